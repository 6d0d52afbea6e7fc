//! One direction of one QP: the outstanding requests, in the order of posting.

use std::fmt;
use std::mem::MaybeUninit;

/// Bits of a `wr_id` that count the requests of a queue. The owner is above them.
const COUNTER_BITS: u32 = 62;

/// The owner in a `wr_id`.
#[inline(always)]
pub(crate) fn owner(wr_id: u64) -> u32 {
    (wr_id >> COUNTER_BITS) as u32
}

/// The requests of one queue that are outstanding or whose completion was not taken yet. It is a
/// ring in the order of posting, allocated once.
///
/// It serves queues that complete in order: the send queue and the private receive queue of a QP. A
/// completion of a send also completes all older sends, which were not signalled.
///
/// A `wr_id` has the owner, 1 to 3, in its upper 2 bits and the number of the request below. So it
/// never repeats: a queue can't post 2^61 requests, which takes 73 years at 10^9 a second. 0 is
/// never valid.
///
/// All positions are `wr_id`s, so that neither a post nor a poll converts one to the other.
///
/// Invariants, in which a request is named by its `wr_id`:
///
/// - The entries of the requests from `tail` up to `head` are initialised. `tail` is the oldest
///   outstanding request minus `complete`.
/// - The oldest outstanding request is at most `head`, and so is `published`.
/// - The number of entries is a power of two and at least `head - tail`. `mask` is this number
///   minus 1.
/// - `reserved` is 0 or less than `end`, which never decreases but by [`Queue::close`].
/// - `oldest` has the bit `HELD` if `complete` is not 0.
pub(crate) struct Queue<T> {
    entries: Box<[MaybeUninit<T>]>,
    mask: usize,
    /// The next request.
    head: u64,
    /// Requests from here on have no room: `tail` plus the depth. Below every `wr_id` if the queue
    /// is closed: it was 0 then, and has grown by at most one for each entry.
    end: u64,
    /// [`Queue::is_reserved`] accepts requests below. Less than `end`, or 0.
    reserved: u64,
    /// Requests below may be known to the device.
    published: u64,
    /// The oldest outstanding request, or `head` if there is none; with `HELD`, which makes it differ
    /// from every `wr_id`, if [`Queue::oldest_if`] must not return it.
    oldest: u64,
    /// The number of requests that are complete and were not taken.
    complete: u64,
}

/// A bit of `oldest` that no `wr_id` has.
const HELD: u64 = 1 << (COUNTER_BITS - 1);

impl<T> Queue<T> {
    /// A queue for `depth` requests, 1 to 2^31. `owner` is 1 to 3.
    pub(crate) fn new(owner: u32, depth: u32) -> Self {
        assert!((1..4).contains(&owner) && (1..=1 << 31).contains(&depth), "{owner}, {depth}");
        let slots = (depth as usize).next_power_of_two();
        let first = u64::from(owner) << COUNTER_BITS;
        Self {
            entries: (0..slots).map(|_| MaybeUninit::uninit()).collect(),
            mask: slots - 1,
            head: first,
            end: first + u64::from(depth),
            reserved: 0,
            published: first,
            oldest: first,
            complete: 0,
        }
    }

    /// The number of requests that are outstanding or complete and not taken.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        (self.head - self.tail()) as usize
    }

    /// The oldest outstanding request, or `head` if there is none.
    #[inline(always)]
    fn oldest(&self) -> u64 {
        self.oldest & !HELD
    }

    /// The oldest request that was not taken, or `head` if there is none.
    #[inline(always)]
    fn tail(&self) -> u64 {
        self.oldest() - self.complete
    }

    /// Sets the oldest outstanding request and the number of complete ones.
    fn set_oldest(&mut self, oldest: u64, complete: u64) {
        self.complete = complete;
        self.oldest = if complete == 0 { oldest } else { oldest | HELD };
    }

    /// Makes [`Queue::oldest_if`] return `None`, or not. [`Queue::complete`] and [`Queue::take`]
    /// also change this.
    pub(crate) fn hold(&mut self, held: bool) {
        let oldest = self.oldest();
        self.oldest = if held || self.complete != 0 { oldest | HELD } else { oldest };
    }

    /// The number of outstanding requests: posted and not complete.
    #[inline(always)]
    pub(crate) fn outstanding(&self) -> usize {
        (self.head - self.oldest()) as usize
    }

    /// The number of requests that can be pushed; 0 if the queue is closed.
    #[inline(always)]
    pub(crate) fn credits(&self) -> usize {
        self.end.saturating_sub(self.head) as usize
    }

    /// The `wr_id` of the next request. It counts the requests that were posted so far.
    #[inline(always)]
    pub(crate) fn posted(&self) -> u64 {
        self.head
    }

    /// The `wr_id` of the oldest outstanding request. It counts the requests that have completed so
    /// far.
    pub(crate) fn completed(&self) -> u64 {
        self.oldest()
    }

    /// The request that was pushed last, if it was not taken.
    pub(crate) fn newest(&self) -> Option<&T> {
        if self.len() == 0 {
            return None;
        }
        let index = (self.head - 1) as usize & self.mask;
        // SAFETY: the request is between the tail and `head`, so its entry is initialised.
        Some(unsafe { self.entries[index].assume_init_ref() })
    }

    /// The `wr_id` of the request that [`Queue::take`] takes next. It counts the requests that were
    /// taken so far.
    pub(crate) fn taken(&self) -> u64 {
        self.tail()
    }

    /// Whether a complete request was not taken.
    #[inline(always)]
    pub(crate) fn has_complete(&self) -> bool {
        self.complete != 0
    }

    /// The number of the oldest `among` outstanding requests behind the newest of them that `until`
    /// accepts.
    pub(crate) fn newer_than(&self, among: usize, until: impl Fn(&T) -> bool) -> usize {
        let outstanding = self.outstanding();
        let left_out = outstanding - among;
        (left_out..outstanding)
            .find(|newer| {
                let index = (self.head - 1 - *newer as u64) as usize & self.mask;
                // SAFETY: the request is outstanding, so its entry is initialised.
                until(unsafe { self.entries[index].assume_init_ref() })
            })
            .unwrap_or(outstanding)
            - left_out
    }

    /// Makes [`Queue::is_reserved`] accept the requests below `until` that do not fill the queue.
    pub(crate) fn reserve(&mut self, until: u64) {
        self.reserved = until.min(self.end.saturating_sub(1));
    }

    /// Accepts no request from now on.
    pub(crate) fn close(&mut self) {
        (self.end, self.reserved) = (0, 0);
    }

    /// Whether [`Queue::close`] was called.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        owner(self.end) == 0
    }

    #[inline(always)]
    fn entry(&mut self, wr_id: u64) -> &mut MaybeUninit<T> {
        // The owner is above the bits of the mask: a queue has at most 2^31 entries.
        let index = wr_id as usize & self.mask;
        // SAFETY: the number of entries is `mask + 1`.
        unsafe { self.entries.get_unchecked_mut(index) }
    }

    /// Stores the entry of a request and returns the request's `wr_id`. Returns the entry if the
    /// queue is full or closed.
    pub(crate) fn push(&mut self, entry: T) -> Result<u64, T> {
        let Some(vacant) = self.vacant() else { return Err(entry) };
        let wr_id = vacant.wr_id();
        vacant.fill(entry);
        Ok(wr_id)
    }

    /// The place of the next request. `None` if the queue is full or closed.
    #[inline(always)]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        (self.head < self.end).then_some(Vacant(self))
    }

    /// Whether the next request is below that of [`Queue::reserve`]. Then the queue has room for it and
    /// one more.
    #[inline(always)]
    pub(crate) fn is_reserved(&self) -> bool {
        self.head < self.reserved
    }

    /// The device may know all requests from now on.
    #[inline(always)]
    pub(crate) fn publish(&mut self) {
        self.published = self.head;
    }

    /// The number of outstanding requests that the device can't know.
    pub(crate) fn unpublished(&self) -> usize {
        (self.head - self.published.max(self.oldest())) as usize
    }

    /// Removes the request that was pushed last, if it was not published.
    pub(crate) fn take_back(&mut self) -> Option<T> {
        if self.unpublished() == 0 {
            return None;
        }
        let wr_id = self.head - 1;
        self.head = wr_id;
        // SAFETY: the request was below `head` and outstanding, so its entry is initialised. It is
        // beyond `head` now, so it is not read again before it is written.
        Some(unsafe { self.entry(wr_id).assume_init_read() })
    }

    /// Removes all requests that were not published. If dropping an entry panics, it leaks the newer
    /// ones.
    pub(crate) fn take_back_unpublished(&mut self) {
        let behind = self.head;
        self.head -= self.unpublished() as u64;
        for wr_id in self.head..behind {
            // SAFETY: the request was below `head` and outstanding, so its entry is initialised. It is
            // not below `head` now, so it is not read again before it is written.
            drop(unsafe { self.entry(wr_id).assume_init_read() });
        }
    }

    /// The number of outstanding requests that are older than the one with this `wr_id`. `None` if
    /// no published outstanding request has it.
    #[inline(always)]
    pub(crate) fn position(&self, wr_id: u64) -> Option<usize> {
        let older = wr_id.wrapping_sub(self.oldest());
        let known = self.published.saturating_sub(self.oldest());
        (older < known).then_some(older as usize)
    }

    /// Marks the `count` oldest outstanding requests as complete, or all if there are fewer.
    pub(crate) fn complete(&mut self, count: usize) {
        let count = (count as u64).min(self.head - self.oldest());
        self.set_oldest(self.oldest() + count, self.complete + count);
    }

    /// The request with this `wr_id`, if it is published, none is older, and the queue is not
    /// [held](Queue::hold).
    #[inline(always)]
    pub(crate) fn oldest_if(&mut self, wr_id: u64) -> Option<Oldest<'_, T>> {
        // `wr_id` has not `HELD` then: `published` has not, and is greater.
        (wr_id == self.oldest && wr_id < self.published).then_some(Oldest { queue: self, wr_id })
    }

    /// Removes the oldest request if it is complete.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Option<T> {
        if self.complete == 0 {
            return None;
        }
        let wr_id = self.tail();
        self.set_oldest(self.oldest(), self.complete - 1);
        // SAFETY: a complete request is below `head`. It was the tail, and is not now.
        Some(unsafe { self.take_entry(wr_id) })
    }

    /// Takes the entry of a request.
    ///
    /// # Safety
    ///
    /// The request was the tail, and is below the tail now.
    #[inline(always)]
    unsafe fn take_entry(&mut self, wr_id: u64) -> T {
        self.end += 1;
        // SAFETY: the request was between the tail and `head`, so its entry is initialised. It is
        // below the tail now, so it is not read again before it is written.
        unsafe { self.entry(wr_id).assume_init_read() }
    }
}

/// The oldest request of a queue. It is outstanding and published, and no request is complete.
pub(crate) struct Oldest<'q, T> {
    queue: &'q mut Queue<T>,
    wr_id: u64,
}

impl<T> Oldest<'_, T> {
    /// Completes and removes the request.
    #[inline(always)]
    pub(crate) fn take(self) -> T {
        self.queue.oldest = self.wr_id + 1;
        // SAFETY: the request was the tail, because none is complete. It is not now.
        unsafe { self.queue.take_entry(self.wr_id) }
    }
}

/// The place of the next request of a queue that is neither full nor closed.
pub(crate) struct Vacant<'q, T>(&'q mut Queue<T>);

impl<'q, T> Vacant<'q, T> {
    /// The `wr_id` of the request.
    #[inline(always)]
    pub(crate) fn wr_id(&self) -> u64 {
        self.0.head
    }

    /// Stores the entry of the request.
    #[inline(always)]
    pub(crate) fn fill(self, entry: T) -> Pushed<'q, T> {
        let wr_id = self.0.head;
        self.0.entry(wr_id).write(entry);
        let head = wr_id + 1;
        self.0.head = head;
        Pushed { queue: self.0, head }
    }
}

/// A request that was pushed to a queue. It is the last one.
pub(crate) struct Pushed<'q, T> {
    queue: &'q mut Queue<T>,
    /// The head of the queue, in a register.
    head: u64,
}

impl<T> Pushed<'_, T> {
    /// As [`Queue::publish`].
    #[inline(always)]
    pub(crate) fn publish(self) {
        self.queue.published = self.head;
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
            .field("outstanding", &self.outstanding())
            .field("complete", &self.complete)
            .field("credits", &self.credits())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    fn take_oldest<T>(queue: &mut Queue<T>, wr_id: u64) -> Option<T> {
        queue.oldest_if(wr_id).map(Oldest::take)
    }

    #[test]
    fn zero_foreign_stale_and_repeated_wr_ids_match_no_request() {
        let mut queue = Queue::new(1, 2);
        let first = queue.push("first").unwrap();
        assert_eq!(queue.position(first), None, "an unpublished request");
        queue.publish();
        for nonsense in [0, first + 1, first ^ (3 << COUNTER_BITS), u64::MAX] {
            assert_eq!(queue.position(nonsense), None, "{nonsense:#x}");
        }
        assert_eq!((queue.position(first), take_oldest(&mut queue, first + 1)), (Some(0), None));
        assert_eq!(take_oldest(&mut queue, first), Some("first"));
        assert_eq!(queue.position(first), None, "a repeated wr_id");
        assert_eq!(take_oldest(&mut queue, first), None, "a repeated wr_id");
        let second = queue.push("second").unwrap();
        assert_eq!(take_oldest(&mut queue, second), None, "an unpublished request");
        queue.publish();
        assert_ne!(second, first);
        assert_eq!((queue.position(first), queue.position(second)), (None, Some(0)));
    }

    #[test]
    fn wr_ids_count_up_from_the_owner() {
        for of in 1..4 {
            let mut queue = Queue::new(of, 4);
            let first = u64::from(of) << 62;
            let ids: Vec<_> = (0..3).map(|entry| queue.push(entry).unwrap()).collect();
            queue.publish();
            assert_eq!(ids, [first, first + 1, first + 2]);
            assert_eq!(
                ids.iter().map(|id| queue.position(*id)).collect::<Vec<_>>(),
                [Some(0), Some(1), Some(2)]
            );
            assert!(ids.iter().all(|id| owner(*id) == of));
        }
    }

    #[test]
    fn closed_queue_stays_closed_when_its_requests_are_taken() {
        let mut queue = Queue::new(1, 2);
        let ids = [queue.push(7).unwrap(), queue.push(8).unwrap()];
        queue.publish();
        queue.close();
        assert_eq!((take_oldest(&mut queue, ids[0]), take_oldest(&mut queue, ids[1])), (Some(7), Some(8)));
        assert_eq!((queue.push(9), queue.credits(), queue.is_closed()), (Err(9), 0, true));
    }

    #[test]
    fn taken_unpublished_requests_leave_no_entry_to_take() {
        let mut queue = Queue::new(1, 4);
        let first = queue.push(7).unwrap();
        queue.complete(1);
        assert_eq!(queue.take(), Some(7));
        assert_eq!((take_oldest(&mut queue, first + 1), queue.position(first + 1)), (None, None));
    }

    #[test]
    fn closed_queue_accepts_nothing_and_keeps_its_requests() {
        let mut queue = Queue::new(1, 2);
        queue.push(7).unwrap();
        queue.reserve(u64::MAX);
        queue.close();
        assert!(!queue.is_reserved(), "closed");
        assert_eq!((queue.push(8), queue.credits(), queue.is_closed()), (Err(8), 0, true));
        queue.complete(1);
        assert_eq!(queue.take(), Some(7));
    }

    #[test]
    fn reserved_requests_leave_room_for_one_more() {
        let mut queue = Queue::new(1, 3);
        let first = queue.posted();
        let fill = |queue: &mut Queue<u64>| queue.is_reserved() && queue.push(7).is_ok();
        assert!(!fill(&mut queue), "nothing is reserved");
        queue.reserve(first + 1);
        assert!(fill(&mut queue) && !fill(&mut queue), "one request is reserved");
        queue.reserve(u64::MAX);
        assert!(fill(&mut queue) && !fill(&mut queue), "the third request fills the queue");
        assert_eq!(queue.push(8), Ok(first + 2));
        queue.publish();
        assert_eq!(take_oldest(&mut queue, first), Some(7));
        assert!(!fill(&mut queue), "one request has room, and fills the queue");
        queue.reserve(u64::MAX);
        assert!(!fill(&mut queue), "one request has room, and fills the queue");
    }

    #[test]
    fn complete_request_holds_the_queue_until_it_is_taken() {
        let mut queue = Queue::new(1, 2);
        let ids = [queue.push(7).unwrap(), queue.push(8).unwrap()];
        queue.publish();
        queue.complete(1);
        queue.hold(false);
        assert_eq!(take_oldest(&mut queue, ids[1]), None, "the older one comes first");
        assert_eq!((queue.take(), take_oldest(&mut queue, ids[1])), (Some(7), Some(8)));
    }

    #[test]
    fn newer_requests_are_counted_up_to_the_oldest_outstanding_one() {
        let mut queue = Queue::new(1, 4);
        for entry in [1, 2, 1, 1] {
            queue.push(entry).unwrap();
        }
        assert_eq!(
            (queue.newer_than(4, |entry| *entry == 2), queue.newer_than(4, |entry| *entry == 1)),
            (2, 0)
        );
        assert_eq!(
            (queue.newer_than(2, |entry| *entry == 2), queue.newer_than(2, |entry| *entry == 1)),
            (0, 1)
        );
        queue.complete(1);
        assert_eq!(queue.newer_than(3, |entry| *entry == 3), 3);
        queue.complete(3);
        assert_eq!(queue.newer_than(0, |entry| *entry == 3), 0);
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
        TakeBackUnpublished,
        /// A `wr_id` of the model, or an arbitrary one.
        Complete(prop::sample::Index, Option<u64>),
        Take,
    }

    fn any_wr_id() -> impl Strategy<Value = u64> {
        let first: u64 = 2 << COUNTER_BITS;
        prop_oneof![0u64..1 << 42, first..first + 150, first + HELD..first + HELD + 150, any::<u64>()]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Push),
            2 => Just(Step::Publish),
            1 => Just(Step::TakeBack),
            1 => Just(Step::TakeBackUnpublished),
            3 => (any::<prop::sample::Index>(), prop::option::weighted(0.2, any_wr_id()))
                .prop_map(|(index, other)| Step::Complete(index, other)),
            3 => Just(Step::Take),
        ]
    }

    proptest! {
        #[test]
        fn queue_is_a_fifo_whose_completions_retire_all_older_requests(
            depth in 1u32..9,
            start in prop_oneof![Just(0), 0u64..1 << 60],
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let mut queue = Queue::new(2, depth);
            let first = 2 << COUNTER_BITS | start;
            (queue.head, queue.published, queue.oldest) = (first, first, first);
            queue.end = first + u64::from(depth);
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
                    Step::TakeBackUnpublished => {
                        queue.take_back_unpublished();
                        model.truncate(model.len() - unpublished);
                        (seen, unpublished) = (seen - unpublished as u64, 0);
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
                let outstanding = model.iter().filter(|(_, complete)| !complete).count();
                prop_assert_eq!((queue.len(), queue.outstanding()), (model.len(), outstanding));
                prop_assert_eq!(queue.unpublished(), unpublished);
                prop_assert_eq!(queue.credits(), depth as usize - model.len());
                prop_assert_eq!(queue.has_complete(), outstanding != model.len());
                prop_assert_eq!(queue.newest().copied(), (!model.is_empty()).then(|| seen - 1));
            }
        }
    }
}
