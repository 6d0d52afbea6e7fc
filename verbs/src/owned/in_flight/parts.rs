//! Operations of several buffers.
//!
//! Each buffer has an entry of the queue. The request has the `wr_id` of the last one.

use std::array;
use std::collections::VecDeque;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::work::{Payload, RecvRequest, SendFlags, SendRequest, Sge};

use super::super::buffer::checked_sge;
use super::super::operation::{MAX_PARTS, Parts, Receive};
use super::super::queue::Queue;
use super::super::{Op, Source};
use super::{
    Entry, ListOperation, PostRecv, PostResult, PostSend, QueueInFlight, QueueKind, Received, RecvEntry,
    RecvsInFlight, Reliable, SendEntry, SendsInFlight,
};
use crate::error::PostError;
use crate::pd::shared::PdShared;
use crate::{Refused, Result, WcOpcode};

/// The entries of one operation.
struct Group {
    /// The `wr_id`s of its first and its last entry.
    first: u64,
    last: u64,
    /// The lengths of its SGEs.
    lens: [u32; MAX_PARTS],
}

/// The operations of several buffers that are outstanding, oldest first, and maybe older ones.
#[derive(Default)]
pub(super) struct Groups(VecDeque<Group>);

impl Groups {
    /// Makes room for those of a queue of `depth` entries.
    pub(super) fn reserve(&mut self, depth: u32) {
        // A group has at least two entries.
        self.0.reserve(depth as usize / 2);
    }

    /// Adds the newest group, and removes those before `completed`.
    fn add(&mut self, completed: u64, first: u64, sges: &[Sge]) {
        while self.0.front().is_some_and(|group| group.last < completed) {
            self.0.pop_front();
        }
        let mut lens = [0; MAX_PARTS];
        lens.iter_mut().zip(sges).for_each(|(len, sge)| *len = sge.length);
        if sges.len() > 1 {
            self.0.push_back(Group { first, last: first + sges.len() as u64 - 1, lens });
        }
    }

    /// The first entry of the operation whose last one is `last`.
    pub(super) fn first(&self, last: u64) -> u64 {
        self.0.iter().find(|group| group.last == last).map_or(last, |group| group.first)
    }

    /// Whether one of them is outstanding. `completed` is the `wr_id` of the oldest outstanding entry.
    pub(super) fn outstanding(&self, completed: u64) -> bool {
        self.0.back().is_some_and(|group| group.last >= completed)
    }

    /// Whether this is the `wr_id` of an entry that is not the last one of its operation. No request
    /// has it.
    pub(super) fn within(&self, wr_id: u64) -> bool {
        self.0.iter().any(|group| (group.first..group.last).contains(&wr_id))
    }

    /// Takes the group of the entries from `first` to `last`. Returns the bytes of each in a
    /// message.
    pub(super) fn take<S: Copy>(
        &mut self,
        first: u64,
        last: u64,
        received: Received<S>,
    ) -> Option<impl Iterator<Item = Received<S>> + use<S>> {
        self.0.front().filter(|group| (group.first, group.last) == (first, last))?;
        let Group { lens, .. } = self.0.pop_front()?;
        let count = (last - first) as usize + 1;
        // The length of a write with immediate is not that of bytes in the buffers.
        let mut left = if received.opcode == WcOpcode::RECV { received.len } else { 0 };
        Some(lens.into_iter().take(count).enumerate().map(move |(at, len)| {
            let here = len.min(left);
            left -= here;
            if at + 1 < count {
                return Received { len: here, imm: None, ..received };
            }
            let len = if received.opcode == WcOpcode::RECV { here + left } else { received.len };
            Received { len, ..received }
        }))
    }
}

pub(in crate::owned) fn sges<B: Source, R: RangeBounds<usize>, const N: usize>(
    verb: &'static str,
    parts: &[(B, R); N],
    domain: &Arc<PdShared>,
) -> Result<[Sge; N]> {
    const { assert!(N > 0 && N <= MAX_PARTS, "an operation has 1 to 8 buffers") };
    let mut sges = [Sge { addr: 0, length: 0, lkey: 0 }; N];
    for (sge, (buffer, range)) in sges.iter_mut().zip(parts) {
        let range = (range.start_bound(), range.end_bound());
        *sge = checked_sge(verb, buffer, domain, range)?;
    }
    Ok(sges)
}

/// Removes the entries that were pushed last. Returns the parts of their operation.
fn take_back<E: Entry<B>, B, R, const N: usize>(queue: &mut Queue<E>, ranges: [R; N]) -> [(B, R); N] {
    let mut buffers = array::from_fn::<_, N, _>(|_| None);
    for slot in buffers.iter_mut().rev() {
        *slot = queue.take_back().and_then(E::into_buffer);
    }
    let mut parts = buffers.into_iter().zip(ranges);
    array::from_fn(|_| match parts.next() {
        Some((Some(buffer), range)) => (buffer, range),
        _ => unreachable!("the caller has pushed each buffer"),
    })
}

impl<E, S> QueueInFlight<E, S> {
    /// Makes room for operations of several buffers.
    pub(in crate::owned) fn reserve_parts(&mut self) {
        self.groups.reserve(self.depth);
    }

    /// Posts an operation of several buffers by `post`, and publishes it with all earlier ones.
    fn post_entries<B: Source, O: ListOperation, R: RangeBounds<usize>, const N: usize>(
        &mut self,
        op: Op<Parts<B, R, N>, O>,
        entry: impl Fn(Option<B>, u32) -> E,
        post: impl FnOnce(u64, &[Sge]) -> Result<(), PostError>,
    ) -> PostResult<Parts<B, R, N>, O>
    where
        E: Entry<B>,
    {
        let sges = match sges(Reliable::verb(op.operation.opcode()), &op.payload.0, &self.domain) {
            Ok(sges) => sges,
            Err(error) => return Err(Refused::new(error, op)),
        };
        if self.queue.credits() < N {
            return self.full::<Reliable, _, _>(op);
        }
        let first = self.queue.posted();
        let mut lens = sges.iter().map(|sge| sge.length);
        // The list owns the buffers before the request is posted, so a panic in between does not
        // free them.
        let op = op.map(|Parts(parts)| {
            parts.map(|(buffer, range)| {
                let pushed = self.queue.push(entry(Some(buffer), lens.next().unwrap_or_default()));
                debug_assert!(pushed.is_ok(), "there is room");
                range
            })
        });
        match post(self.queue.posted() - 1, &sges) {
            Err(error) if error.accepted == 0 => {
                let op = op.map(|ranges| Parts(take_back(&mut self.queue, ranges)));
                Err(Refused::new(error.into(), op))
            }
            _ => {
                self.queue.publish();
                self.groups.add(self.queue.completed(), first, &sges);
                self.hold(self.queue.has_complete());
                Ok(())
            }
        }
    }
}

impl<B: Source> SendsInFlight<B> {
    /// Posts a signalled operation of several buffers, and publishes it with all earlier ones.
    #[expect(clippy::result_large_err, reason = "the error returns the operation without an allocation")]
    pub(in crate::owned) fn post_parts<Q: PostSend, R: RangeBounds<usize>, const N: usize>(
        &mut self,
        queue: &mut Q,
        op: Op<Parts<B, R, N>>,
    ) -> PostResult<Parts<B, R, N>> {
        const { assert!(Q::PUBLISHES) };
        let (operation, tag, flags) = (op.operation, op.tag, op.flags | SendFlags::SIGNALED);
        let opcode = operation.opcode();
        let entry = |buffer, len| SendEntry { buffer, tag, len, opcode, signaled: true, held: () };
        let mut refused = None;
        let posted = self.post_entries(op, entry, |wr_id, sges| {
            let request = SendRequest { wr_id, operation, flags, payload: Payload::Sges(sges) };
            // SAFETY: as in `post`, for each buffer. The request completes with the last entry, and the
            // queue returns none of the entries before.
            let posted = unsafe { queue.post(&request) };
            refused = posted.err().filter(|error| error.accepted == 0);
            posted
        });
        if let Some(error) = refused {
            self.taken_back(true, error.reason);
        }
        posted
    }
}

impl<B: Source> RecvsInFlight<B> {
    /// Posts a receive of several buffers.
    pub(in crate::owned) fn post_parts<R: RangeBounds<usize>, const N: usize>(
        &mut self,
        queue: &mut impl PostRecv,
        op: Op<Parts<B, R, N>, Receive>,
    ) -> PostResult<Parts<B, R, N>, Receive> {
        let tag = op.tag;
        self.post_entries(
            op,
            |buffer, _| RecvEntry { buffer, tag },
            |wr_id, sges| {
                // SAFETY: as for sends.
                unsafe { queue.post(&RecvRequest { wr_id, sges }) }
            },
        )
    }
}
