//! One direction of one QP: the requests in flight, in the order of posting.

use std::fmt;
use std::mem::MaybeUninit;

/// Bits of a `wr_id` that count the requests of a queue. The owner is above them.
const COUNTER_BITS: u32 = 40;
const COUNTER: u64 = (1 << COUNTER_BITS) - 1;

/// The owner in a `wr_id`.
#[inline(always)]
pub(crate) fn owner(wr_id: u64) -> u32 {
    (wr_id >> COUNTER_BITS) as u32
}

/// The requests of one queue that are in flight or whose completion was not taken yet. It is a ring
/// in the order of posting, allocated once.
///
/// It serves queues that complete in order: the send queue and the private receive queue of an RC
/// QP. A completion of a send also completes all older sends, which were not signalled.
///
/// A `wr_id` has the owner in its upper 24 bits and the request's number modulo 2^40 below. A queue
/// has at most 2^31 requests in flight. So a `wr_id` of an earlier request matches again only after
/// 2^40 further requests. An owner is not 0, so 0 is never a valid `wr_id`.
///
/// Invariant: the entries of the requests from `tail` up to `head` are initialised.
pub(crate) struct Queue<T> {
    /// Its length is a power of two.
    entries: Box<[MaybeUninit<T>]>,
    /// The owner in its place in a `wr_id`.
    owner: u64,
    /// Maximum of requests between `tail` and `head`. 0 if the queue is closed.
    limit: u64,
    /// Number of the next request.
    head: u64,
    /// Requests below may be known to the device.
    published: u64,
    /// Requests below are complete.
    done: u64,
    /// Requests below were taken.
    tail: u64,
}

impl<T> Queue<T> {
    /// A queue for `depth` requests, 1 to 2^31. `owner` has 24 bits and is not 0.
    pub(crate) fn new(owner: u32, depth: u32) -> Self {
        assert!((1..1 << 24).contains(&owner) && (1..=1 << 31).contains(&depth), "{owner}, {depth}");
        let slots = (depth as usize).next_power_of_two();
        Self {
            entries: (0..slots).map(|_| MaybeUninit::uninit()).collect(),
            owner: u64::from(owner) << COUNTER_BITS,
            limit: depth.into(),
            head: 0,
            published: 0,
            done: 0,
            tail: 0,
        }
    }

    /// The number of requests that are in flight or complete and not taken.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        (self.head - self.tail) as usize
    }

    /// The number of requests in flight: posted and not complete.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> usize {
        (self.head - self.done) as usize
    }

    /// The number of requests that can be pushed; 0 if the queue is closed.
    #[inline(always)]
    pub(crate) fn credits(&self) -> usize {
        self.limit.saturating_sub(self.head - self.tail) as usize
    }

    /// The number of requests that were posted so far.
    #[inline(always)]
    pub(crate) fn posted(&self) -> u64 {
        self.head
    }

    /// The number of requests that have completed so far.
    pub(crate) fn completed(&self) -> u64 {
        self.done
    }

    /// The number of requests that were taken so far: the number of the request that
    /// [`Queue::take`] takes next.
    pub(crate) fn taken(&self) -> u64 {
        self.tail
    }

    /// Whether a complete request was not taken.
    #[inline(always)]
    pub(crate) fn has_complete(&self) -> bool {
        self.tail != self.done
    }

    /// Accepts no request from now on.
    pub(crate) fn close(&mut self) {
        self.limit = 0;
    }

    /// Whether [`Queue::close`] was called.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.limit == 0
    }

    #[inline(always)]
    fn entry(&mut self, number: u64) -> &mut MaybeUninit<T> {
        let mask = self.entries.len() - 1;
        &mut self.entries[number as usize & mask]
    }

    #[inline(always)]
    fn wr_id(&self, number: u64) -> u64 {
        self.owner | number & COUNTER
    }

    /// Stores the entry of a request and returns the request's `wr_id`. Returns the entry if the
    /// queue is full or closed.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: T) -> Result<u64, T> {
        if self.head - self.tail >= self.limit {
            return Err(entry);
        }
        let number = self.head;
        self.entry(number).write(entry);
        self.head = number + 1;
        Ok(self.wr_id(number))
    }

    /// The device may know all requests from now on.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        self.published = self.head;
    }

    /// The number of requests in flight that the device can't know.
    pub(crate) fn unpublished(&self) -> usize {
        (self.head - self.published.max(self.done)) as usize
    }

    /// Removes the request that was pushed last, if it was not published.
    pub(crate) fn take_back(&mut self) -> Option<T> {
        if self.unpublished() == 0 {
            return None;
        }
        let number = self.head - 1;
        self.head = number;
        // SAFETY: the request was below `head` and not below `done`, so its entry is initialised.
        // It is beyond `head` now, so it is not read again before it is written.
        Some(unsafe { self.entry(number).assume_init_read() })
    }

    /// The number of requests in flight that are older than the one with this `wr_id`. `None` if no
    /// published request in flight has it.
    #[inline(always)]
    pub(crate) fn position(&self, wr_id: u64) -> Option<usize> {
        let number = wr_id ^ self.owner;
        let ahead = number.wrapping_sub(self.done) & COUNTER;
        let known = self.published.saturating_sub(self.done);
        (number <= COUNTER && ahead < known).then_some(ahead as usize)
    }

    /// Marks the `count` oldest requests in flight as complete, or all if there are fewer.
    #[inline(always)]
    pub(crate) fn complete(&mut self, count: usize) {
        self.done += (count as u64).min(self.head - self.done);
    }

    /// Completes and removes the request with this `wr_id`, if it is published and none is older.
    #[inline(always)]
    pub(crate) fn take_oldest(&mut self, wr_id: u64) -> Option<T> {
        if self.done != self.tail || self.done >= self.published || wr_id != self.wr_id(self.done) {
            return None;
        }
        self.done += 1;
        self.take()
    }

    /// Removes the oldest request if it is complete.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.tail == self.done {
            return None;
        }
        let number = self.tail;
        self.tail = number + 1;
        // SAFETY: the request was between `tail` and `head`, so its entry is initialised. It is
        // below `tail` now, so it is not read again before it is written.
        Some(unsafe { self.entry(number).assume_init_read() })
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        self.complete(usize::MAX);
        while self.take().is_some() {}
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("limit", &self.limit)
            .field("in_flight", &self.in_flight())
            .field("complete", &(self.done - self.tail))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_foreign_stale_and_repeated_wr_ids_match_no_request() {
        let mut queue = Queue::new(1, 2);
        let first = queue.push("first").unwrap();
        assert_eq!(queue.position(first), None, "an unpublished request");
        queue.publish();
        for nonsense in [0, first + 1, first + (1 << COUNTER_BITS), u64::MAX] {
            assert_eq!(queue.position(nonsense), None, "{nonsense:#x}");
        }
        assert_eq!((queue.position(first), queue.take_oldest(first + 1)), (Some(0), None));
        assert_eq!(queue.take_oldest(first), Some("first"));
        assert_eq!(queue.position(first), None, "a repeated wr_id");
        assert_eq!(queue.take_oldest(first), None, "a repeated wr_id");
        let second = queue.push("second").unwrap();
        assert_eq!(queue.take_oldest(second), None, "an unpublished request");
        queue.publish();
        assert_ne!(second, first);
        assert_eq!((queue.position(first), queue.position(second)), (None, Some(0)));
    }

    #[test]
    fn numbers_wrap_below_the_owner() {
        let mut queue = Queue::new(3, 4);
        (queue.head, queue.done, queue.tail) = (COUNTER, COUNTER, COUNTER);
        let ids: Vec<_> = (0..3).map(|entry| queue.push(entry).unwrap()).collect();
        queue.publish();
        assert_eq!(ids, [3 << 40 | COUNTER, 3 << 40, 3 << 40 | 1]);
        assert_eq!(ids.iter().map(|id| queue.position(*id)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        assert!(ids.iter().all(|id| owner(*id) == 3));
    }

    #[test]
    fn closed_queue_accepts_nothing_and_keeps_its_requests() {
        let mut queue = Queue::new(1, 2);
        queue.push(7).unwrap();
        queue.close();
        assert_eq!((queue.push(8), queue.credits(), queue.is_closed()), (Err(8), 0, true));
        queue.complete(1);
        assert_eq!(queue.take(), Some(7));
    }

    #[test]
    fn dropped_queue_drops_each_entry_once() {
        let entry = Rc::new(());
        let mut queue = Queue::new(1, 3);
        for _ in 0..3 {
            queue.push(Rc::clone(&entry)).unwrap();
        }
        queue.complete(2);
        drop(queue.take());
        drop(queue.take_back());
        assert_eq!(Rc::strong_count(&entry), 2);
        drop(queue);
        assert_eq!(Rc::strong_count(&entry), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push,
        Publish,
        TakeBack,
        /// A `wr_id` of the model, or an arbitrary one.
        Complete(prop::sample::Index, Option<u64>),
        Take,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            2 => Just(Step::Publish),
            1 => Just(Step::TakeBack),
            3 => (any::<prop::sample::Index>(), prop::option::weighted(0.2, 0u64..1 << 42))
                .prop_map(|(index, other)| Step::Complete(index, other)),
            3 => Just(Step::Take),
        ]
    }

    proptest! {
        #[test]
        fn queue_is_a_fifo_whose_completions_retire_all_older_requests(
            depth in 1u32..9,
            start in prop_oneof![Just(0), COUNTER - 20..=COUNTER],
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut queue = Queue::new(2, depth);
            (queue.head, queue.published, queue.done, queue.tail) = (start, start, start, start);
            // `wr_id` and whether it is complete. The newest `unpublished` ones are not published.
            let mut model: VecDeque<(u64, bool)> = VecDeque::new();
            let mut seen = 0u64;
            let mut unpublished = 0;
            for step in steps {
                match step {
                    Step::Push => match queue.push(seen) {
                        Ok(wr_id) => {
                            prop_assert!(wr_id != 0 && model.iter().all(|(id, _)| *id != wr_id));
                            model.push_back((wr_id, false));
                            (seen, unpublished) = (seen + 1, unpublished + 1);
                        }
                        Err(_) => prop_assert_eq!(model.len(), depth as usize),
                    },
                    Step::Publish => {
                        queue.publish();
                        unpublished = 0;
                    }
                    Step::TakeBack => {
                        let expected = unpublished > 0;
                        let taken = queue.take_back();
                        prop_assert_eq!(taken.is_some(), expected);
                        if expected {
                            model.pop_back();
                            (seen, unpublished) = (seen - 1, unpublished - 1);
                        }
                    }
                    Step::Complete(index, other) => {
                        let ids: Vec<u64> = model.iter().map(|(id, _)| *id).collect();
                        let wr_id = match other {
                            None if !ids.is_empty() => *index.get(&ids),
                            other => other.unwrap_or(0),
                        };
                        let open: Vec<u64> =
                            model.iter().filter(|(_, complete)| !complete).map(|(id, _)| *id).collect();
                        let known = &open[..open.len() - unpublished];
                        let expected = known.iter().position(|id| *id == wr_id);
                        prop_assert_eq!(queue.position(wr_id), expected);
                        if let Some(position) = expected {
                            queue.complete(position + 1);
                            model
                                .iter_mut()
                                .filter(|(_, complete)| !complete)
                                .take(position + 1)
                                .for_each(|(_, complete)| *complete = true);
                        }
                    }
                    Step::Take => {
                        let expected = model.front().is_some_and(|(_, complete)| *complete);
                        let oldest = seen - model.len() as u64;
                        prop_assert_eq!(queue.take(), expected.then_some(oldest));
                        if expected {
                            model.pop_front();
                        }
                    }
                }
                let in_flight = model.iter().filter(|(_, complete)| !complete).count();
                prop_assert_eq!((queue.len(), queue.in_flight()), (model.len(), in_flight));
                prop_assert_eq!(queue.unpublished(), unpublished);
                prop_assert_eq!(queue.credits(), depth as usize - model.len());
                prop_assert_eq!(queue.has_complete(), in_flight != model.len());
            }
        }
    }
}
