//! Regions: their expected bytes, and the requests that use them.

use std::ops::Range;

use bareverbs::Access;

use super::Model;
use crate::op::{Id, Piece};

/// Bytes in use by a request until it is complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The range in the region.
    pub range: Range<usize>,
    /// Whether the request writes them.
    pub write: bool,
    /// Whether they are accessed remotely. Requests of one queue pair access them in order then.
    pub remote: bool,
    /// The queue pair or shared queue.
    pub owner: Id,
    /// The request.
    pub wr_id: u64,
}

/// A region.
#[derive(Debug)]
pub struct Region {
    /// Its PD.
    pub pd: Id,
    /// Its access rights.
    pub access: Access,
    /// The expected bytes.
    pub bytes: Vec<u8>,
    /// Bytes with unknown content.
    unknown: Vec<Range<usize>>,
    /// Bytes in use.
    pub claims: Vec<Claim>,
}

impl Region {
    pub(super) fn new(id: Id, pd: Id, len: usize, access: Access) -> Self {
        Self { pd, access, bytes: Self::filling(id, len), unknown: Vec::new(), claims: Vec::new() }
    }

    /// The initial content of a region.
    #[must_use]
    pub fn filling(id: Id, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fastrand::Rng::with_seed(id.into()).fill(&mut bytes);
        bytes
    }

    /// Whether a request of `owner` may use these bytes together with its earlier requests, `all`
    /// or only those that write.
    #[must_use]
    pub fn is_free(&self, range: &Range<usize>, write: bool, remote: bool, owner: Id, all: bool) -> bool {
        self.claims.iter().all(|claim| {
            let apart = claim.range.end <= range.start || range.end <= claim.range.start;
            let before = remote && claim.remote && claim.owner == owner && (all || claim.write);
            apart || !(write || claim.write) || before
        })
    }

    /// The bytes that these claims write become unknown. Later requests, of another connection, are in
    /// no order with those of the claims.
    pub(super) fn mark_unknown(&mut self, whose: impl Fn(&Claim) -> bool) {
        for claim in self.claims.iter_mut().filter(|claim| whose(claim)) {
            claim.remote = false;
            if claim.write {
                self.unknown.push(claim.range.clone());
            }
        }
    }

    /// Compares with the region's content, and learns the unknown bytes.
    ///
    /// # Errors
    /// The first byte that differs.
    pub fn compare(&mut self, found: &[u8]) -> Result<(), String> {
        for range in std::mem::take(&mut self.unknown) {
            self.bytes[range.clone()].copy_from_slice(&found[range]);
        }
        if self.bytes == found {
            return Ok(());
        }
        match self.bytes.iter().zip(found).position(|(expected, found)| expected != found) {
            None => Ok(()),
            Some(at) => {
                let end = (at + 16).min(found.len());
                Err(format!("byte {at}: {:02x?} in place of {:02x?}", &found[at..end], &self.bytes[at..end]))
            }
        }
    }

    /// Whether some bytes are unknown.
    #[must_use]
    pub fn has_unknown_bytes(&self) -> bool {
        !self.unknown.is_empty()
    }

    fn store(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.bytes[range].copy_from_slice(bytes);
    }
}

impl Model {
    /// Whether a queue pair of this PD may use all these pieces.
    pub(super) fn usable(&self, pd: Id, pieces: &[Piece], write: bool) -> bool {
        pieces.iter().filter(|piece| !piece.is_empty()).all(|piece| {
            piece.mr.and_then(|mr| self.mrs.get(&mr)).is_some_and(|region| {
                let right = !write || region.access.contains(Access::LOCAL_WRITE);
                region.pd == pd && piece.range.end <= region.bytes.len() && right
            })
        })
    }

    pub(super) fn claim_pieces(&mut self, pieces: &[Piece], write: bool, owner: Id, wr_id: u64) {
        for piece in pieces {
            if let Some(region) = piece.mr.and_then(|mr| self.mrs.get_mut(&mr)) {
                let range = piece.range.clone();
                region.claims.push(Claim { range, write, remote: false, owner, wr_id });
            }
        }
    }

    pub(super) fn gather(&self, pieces: &[Piece]) -> Vec<u8> {
        let bytes = pieces.iter().filter(|piece| !piece.is_empty()).map(|piece| {
            let region = &self.mrs[&piece.mr.expect("only usable pieces are gathered")];
            &region.bytes[piece.range.clone()]
        });
        bytes.flatten().copied().collect()
    }

    pub(super) fn scatter(&mut self, pieces: &[Piece], mut bytes: &[u8]) {
        for (mr, range) in places(pieces, bytes.len()) {
            let (now, later) = bytes.split_at(range.len());
            self.region(mr).store(range, now);
            bytes = later;
        }
    }

    /// The first `len` bytes of these pieces become unknown.
    pub(super) fn scatter_unknown(&mut self, pieces: &[Piece], len: usize) {
        for (mr, range) in places(pieces, len) {
            self.region(mr).unknown.push(range);
        }
    }

    pub(super) fn store(&mut self, mr: Id, offset: usize, bytes: &[u8]) {
        self.region(mr).store(offset..offset + bytes.len(), bytes);
    }

    pub(super) fn word(&self, mr: Id, offset: usize) -> u64 {
        u64::from_ne_bytes(self.mrs[&mr].bytes[offset..offset + 8].try_into().expect("8 bytes"))
    }

    fn region(&mut self, mr: Id) -> &mut Region {
        self.mrs.get_mut(&mr).expect("the region exists")
    }
}

/// The ranges of the first `len` bytes.
fn places(pieces: &[Piece], mut len: usize) -> Vec<(Id, Range<usize>)> {
    let mut places = Vec::new();
    for piece in pieces {
        let part = piece.len().min(len);
        len -= part;
        if let Some(mr) = piece.mr.filter(|_| part > 0) {
            places.push((mr, piece.range.start..piece.range.start + part));
        }
    }
    places
}
