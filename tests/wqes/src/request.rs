//! Requests at random, and how they are written down.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

/// Bytes of the region that all requests work in: the first half is sent from and received into, the second is the
/// peer's.
pub const REGION: u32 = 1 << 16;
/// Bytes inline that queue pairs have room for.
pub const INLINE: u32 = 200;
/// Elements of a request and of a receive.
pub const SGES: usize = 4;
/// Requests that a queue pair has room for.
pub const DEPTH: usize = 16;
/// Bytes of the longest datagram.
const DATAGRAM: u32 = 1000;
/// Bytes before a datagram in its receive.
const HEADER: u32 = 40;

/// Who posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A reliable connection.
    Rc,
    /// An unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
    /// A reliable connection to a peer on a shared receive queue.
    Shared,
    /// The peer of the reliable connection.
    Back,
}

/// What is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of `Operation`")]
pub enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwp,
    FetchAdd,
    /// Of the second window's key.
    SendInv,
    /// Of the first window, or by [`Sender::Back`] of the second.
    Bind,
    /// Of the first window's key.
    LocalInv,
}

const SENDERS: [Sender; 5] = [Sender::Rc, Sender::Uc, Sender::Ud, Sender::Shared, Sender::Back];
const KINDS: [Kind; 10] = [
    Kind::Send,
    Kind::SendImm,
    Kind::Write,
    Kind::WriteImm,
    Kind::Read,
    Kind::CmpSwp,
    Kind::FetchAdd,
    Kind::SendInv,
    Kind::Bind,
    Kind::LocalInv,
];

/// Bits of `flags` in a line.
mod flag {
    pub(super) const SIGNALED: u32 = 1;
    pub(super) const SOLICITED: u32 = 2;
    pub(super) const FENCE: u32 = 4;
    pub(super) const INLINE: u32 = 8;
    pub(super) const RINGS: u32 = 16;
}

/// Offset and length within the region.
pub type Piece = (u32, u32);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who posts it.
    pub sender: Sender,
    /// What it is.
    pub kind: Kind,
    /// Whether it makes a completion.
    pub signaled: bool,
    /// Whether it raises a solicited event.
    pub solicited: bool,
    /// Whether it waits for reads and atomics.
    pub fence: bool,
    /// Whether its bytes go into the queue.
    pub inline: bool,
    /// Whether it is the last of a list.
    pub rings: bool,
    /// Immediate data; for a bind, the rights.
    pub imm: u32,
    /// Where in the region the peer's bytes begin.
    pub remote: u32,
    /// What is added or swapped in; for a datagram, the queue key; for a bind, the bytes.
    pub a: u64,
    /// What is compared with; for a datagram, the address handle.
    pub b: u64,
    /// The bytes.
    pub pieces: Vec<Piece>,
    /// The receive that the peer posts before the list, if it takes one.
    pub receive: Option<Vec<Piece>>,
}

impl Request {
    /// Whether the peer loses a receive to it.
    #[must_use]
    pub fn takes_receive(kind: Kind) -> bool {
        matches!(kind, Kind::Send | Kind::SendImm | Kind::WriteImm | Kind::SendInv)
    }

    /// As a line of numbers.
    #[must_use]
    pub fn line(&self) -> String {
        let place = |found: Option<usize>| found.expect("each is in its table");
        let sender = place(SENDERS.iter().position(|one| *one == self.sender));
        let kind = place(KINDS.iter().position(|one| *one == self.kind));
        let flags = [
            (self.signaled, flag::SIGNALED),
            (self.solicited, flag::SOLICITED),
            (self.fence, flag::FENCE),
            (self.inline, flag::INLINE),
            (self.rings, flag::RINGS),
        ];
        let flags: u32 = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
        let Self { imm, remote, a, b, .. } = self;
        let mut line = format!("{sender} {kind} {flags} {imm} {remote} {a} {b} {}", self.pieces.len());
        let mut list = |pieces: &[Piece]| {
            for (offset, length) in pieces {
                let _ = write!(line, " {offset} {length}");
            }
        };
        list(&self.pieces);
        let receive = self.receive.as_deref();
        let _ = write!(line, " {}", receive.map_or(-1, |pieces| pieces.len() as i64));
        for (offset, length) in receive.unwrap_or_default() {
            let _ = write!(line, " {offset} {length}");
        }
        line
    }

    /// From such a line.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(line: &str) -> Result<Self> {
        let numbers: Vec<i128> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .context("not all are numbers")?;
        let mut words = Words { left: numbers.into_iter() };
        let sender = *SENDERS.get(words.next::<usize>()?).context("no such sender")?;
        let kind = *KINDS.get(words.next::<usize>()?).context("no such kind")?;
        let flags: u32 = words.next()?;
        let is = |bit| flags & bit != 0;
        Ok(Self {
            sender,
            kind,
            signaled: is(flag::SIGNALED),
            solicited: is(flag::SOLICITED),
            fence: is(flag::FENCE),
            inline: is(flag::INLINE),
            rings: is(flag::RINGS),
            imm: words.next()?,
            remote: words.next()?,
            a: words.next()?,
            b: words.next()?,
            pieces: words.pieces()?.context("a request has elements or none")?,
            receive: words.pieces()?,
        })
    }
}

struct Words {
    left: std::vec::IntoIter<i128>,
}

impl Words {
    fn next<T: TryFrom<i128>>(&mut self) -> Result<T> {
        let number = self.left.next().context("the line is too short")?;
        T::try_from(number).ok().with_context(|| format!("{number} does not fit its place"))
    }

    fn pieces(&mut self) -> Result<Option<Vec<Piece>>> {
        let count: i8 = self.next()?;
        ensure!(count <= SGES as i8, "{count} elements are too many");
        (count >= 0).then(|| (0..count).map(|_| Ok((self.next()?, self.next()?))).collect()).transpose()
    }
}

/// About `count` requests, the same for the same seed.
#[must_use]
pub fn generate(seed: u64, count: usize) -> Vec<Request> {
    let mut rng = Rng::with_seed(seed);
    let mut all = Vec::new();
    while all.len() < count {
        let mut list = match rng.u8(..10) {
            0 => windows(&mut rng),
            _ => plain(&mut rng),
        };
        if let Some(last) = list.last_mut() {
            // What came before is complete with it.
            (last.signaled, last.rings) = (true, true);
        }
        all.append(&mut list);
    }
    all
}

fn blank(sender: Sender, kind: Kind) -> Request {
    Request {
        sender,
        kind,
        signaled: false,
        solicited: false,
        fence: false,
        inline: false,
        rings: false,
        imm: 0,
        remote: 0,
        a: 0,
        b: 0,
        pieces: Vec::new(),
        receive: None,
    }
}

/// One of the two windows is bound and invalidated, each step a list of its own.
fn windows(rng: &mut Rng) -> Vec<Request> {
    const READ: u32 = 1 << 2;
    const WRITE: u32 = 1 << 1;
    const ATOMIC: u32 = 1 << 3;
    let by_peer = rng.bool();
    let (binder, last) = if by_peer { (Sender::Back, Kind::SendInv) } else { (Sender::Rc, Kind::LocalInv) };
    let start = rng.u32(..REGION);
    let bind = Request {
        imm: [READ, WRITE, ATOMIC].into_iter().filter(|_| rng.bool()).fold(READ, |all, one| all | one),
        remote: start,
        a: u64::from(rng.u32(1..=REGION - start)),
        signaled: true,
        fence: rng.bool(),
        rings: true,
        ..blank(binder, Kind::Bind)
    };
    let mut end = Request { fence: rng.bool(), ..blank(Sender::Rc, last) };
    if by_peer {
        end.solicited = rng.bool();
        end.receive = Some(receive(rng, 0));
    }
    vec![bind, end]
}

/// A list for one queue pair.
fn plain(rng: &mut Rng) -> Vec<Request> {
    let sender = SENDERS[rng.usize(..4)];
    let kinds = match sender {
        Sender::Ud => &KINDS[..2],
        Sender::Uc => &KINDS[..4],
        _ => &KINDS[..7],
    };
    let count = if rng.u8(..4) == 0 { rng.usize(1..=DEPTH / 2) } else { 1 };
    let kinds: Vec<_> = (0..count).map(|_| kinds[rng.usize(..kinds.len())]).collect();
    kinds.into_iter().map(|kind| one(rng, sender, kind)).collect()
}

fn one(rng: &mut Rng, sender: Sender, kind: Kind) -> Request {
    let mut request = blank(sender, kind);
    let copied = !matches!(kind, Kind::Read | Kind::CmpSwp | Kind::FetchAdd);
    request.signaled = rng.bool();
    request.solicited = rng.u8(..4) == 0 && Request::takes_receive(kind);
    request.fence = rng.u8(..4) == 0 && sender != Sender::Ud;
    request.inline = copied && rng.bool();
    if matches!(kind, Kind::SendImm | Kind::WriteImm) {
        request.imm = rng.u32(..);
    }
    let longest = match (request.inline, sender) {
        (true, _) => INLINE,
        (false, Sender::Ud) => DATAGRAM,
        _ => 8192,
    };
    request.pieces = match kind {
        Kind::CmpSwp | Kind::FetchAdd => vec![(rng.u32(..64) * 8, 8)],
        _ => pieces(rng, 0, longest),
    };
    // A shared half is the peer's.
    request.remote = REGION / 2 + rng.u32(..128) * 8;
    (request.a, request.b) = match (kind, sender) {
        (_, Sender::Ud) => (u64::from(rng.u32(..1 << 31)), rng.u64(..HANDLES)),
        (Kind::CmpSwp | Kind::FetchAdd, _) => (rng.u64(..), rng.u64(..)),
        _ => (0, 0),
    };
    if sender == Sender::Ud {
        request.a = QKEY;
    }
    if Request::takes_receive(kind) {
        let length = request.pieces.iter().map(|(_, length)| length).sum::<u32>();
        let length = if kind == Kind::WriteImm { 0 } else { length };
        request.receive = Some(receive(rng, if sender == Sender::Ud { length + HEADER } else { length }));
    }
    request
}

/// The queue key of all datagrams.
pub const QKEY: u64 = 0x1357_2468;
/// How many address handles there are.
pub const HANDLES: u64 = 3;

/// Pieces of at most so many bytes together, from `start` of the region on; some of them of none.
fn pieces(rng: &mut Rng, start: u32, most: u32) -> Vec<Piece> {
    let mut left = most;
    let count = rng.usize(..=SGES);
    let piece = |rng: &mut Rng, left: &mut u32| {
        // Short ones are where formats go wrong.
        let bound = if rng.bool() { (*left).min(40) } else { *left };
        let length = rng.u32(..=bound);
        *left -= length;
        (start + rng.u32(..1024), length)
    };
    (0..count).map(|_| piece(rng, &mut left)).collect()
}

/// A receive of at least so many bytes.
fn receive(rng: &mut Rng, least: u32) -> Vec<Piece> {
    let mut list = pieces(rng, REGION / 2, least);
    let has: u32 = list.iter().map(|(_, length)| length).sum();
    if has < least || rng.bool() {
        list.truncate(SGES - 1);
        list.push((REGION / 2, least + rng.u32(..64)));
    }
    list
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_few_hundred_requests_are_of_every_kind_by_every_sender() {
        let all = generate(1, 400);
        for kind in KINDS {
            assert!(all.iter().any(|request| request.kind == kind), "{kind:?}");
        }
        for sender in SENDERS {
            assert!(all.iter().any(|request| request.sender == sender), "{sender:?}");
        }
        assert_eq!(all, generate(1, 400));
        assert_ne!(all, generate(2, 400));
    }

    proptest! {
        #[test]
        fn a_line_is_its_request(seed: u64) {
            for request in generate(seed, 50) {
                prop_assert_eq!(Request::parse(&request.line()).unwrap(), request);
            }
        }

        #[test]
        fn every_request_can_be_carried_out(seed: u64) {
            let (mut under_way, mut unseen) = (0, true);
            for request in generate(seed, 50) {
                let length: u32 = request.pieces.iter().map(|(_, length)| length).sum();
                prop_assert!(request.pieces.iter().all(|(offset, length)| offset + length <= REGION));
                prop_assert!(!request.inline || length <= INLINE);
                prop_assert_eq!(request.receive.is_some(), Request::takes_receive(request.kind));
                if let Some(receive) = &request.receive {
                    let room: u32 = receive.iter().map(|(_, length)| length).sum();
                    let needs = match (request.kind, request.sender) {
                        (Kind::WriteImm, _) => 0,
                        (_, Sender::Ud) => length + HEADER,
                        _ => length,
                    };
                    prop_assert!(room >= needs && receive.len() <= SGES);
                }
                under_way += 1;
                prop_assert!(under_way <= DEPTH);
                unseen = !request.signaled;
                if request.rings {
                    prop_assert!(!unseen);
                    under_way = 0;
                }
            }
            prop_assert!(!unseen);
        }
    }
}
