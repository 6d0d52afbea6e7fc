//! CQEs of QPs that were destroyed or reset (`__mlx5_cq_clean` of rdma-core).

use std::sync::PoisonError;

use super::{QueueRecordRef, Side, tag};
use crate::cq::ring::{Ring, counted, is_before};
use crate::doorbell::{DoorbellRecord, Word};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};

/// What a completion queue's poller, and the owners of queue pairs that complete there, share.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(crate) cqn: u32,
    pub(crate) doorbell: DoorbellRecord,
    /// Where the CQEs are. Code that locks both locks it before `retired`.
    ring: Mutex<Ring>,
    retired: Mutex<Retired>,
    /// Whether there are retired QPs.
    pub(crate) has_retired: AtomicBool,
}

/// QPs whose CQEs in the ring are discarded.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Destroyed, and CQE from which on none is theirs (24 bits), once the poller has come to the
    /// ring's end.
    pub(crate) destroyed: Vec<(QueueRecordRef, Option<u32>)>,
    /// Reset, when the device had written this many CQEs (24 bits).
    pub(crate) reset: Vec<(QueueRecordRef, Side, u32)>,
    /// The queue is polled no more.
    pub(crate) closed: bool,
}

impl CqShared {
    pub(crate) fn new(cqn: u32, doorbell: DoorbellRecord, ring: Ring) -> Self {
        let (retired, has_retired) = (Mutex::new(Retired::default()), AtomicBool::new(false));
        Self { cqn, doorbell, ring: Mutex::new(ring), retired, has_retired }
    }

    /// Where the CQEs are. The queue moves to no other ring as long as the result is kept, and no
    /// queue pair is reset.
    pub(crate) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tag(&self) -> u32 {
        tag(self.cqn)
    }

    pub(crate) fn retired(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hides a side of a queue pair that was destroyed, and keeps the record until its last
    /// completion has been polled.
    pub(crate) fn retire(&self, record: &QueueRecordRef, side: Side) {
        let mut retired = self.retired();
        // A poller that doesn't find the record any more finds it among the destroyed ones, under
        // the lock.
        record.unpublish(side);
        retired.reset.retain(|(reset, ..)| !Arc::ptr_eq(reset, record));
        if !retired.closed && !retired.destroyed.iter().any(|(dead, _)| Arc::ptr_eq(dead, record)) {
            retired.destroyed.push((Arc::clone(record), None));
            self.has_retired.store(true, Ordering::Release);
        }
    }

    /// Hides a side of a queue pair that was reset, and makes the poller discard the CQEs that the
    /// device has written for it so far; `base` is the number of receives before this reset.
    ///
    /// The caller must issue
    /// [`barrier::before_slots_are_reused`](bareverbs_provider::barrier::before_slots_are_reused)
    /// before it fills slots anew.
    pub(crate) fn clean(&self, record: &QueueRecordRef, side: Side, base: u64) {
        let ring = self.ring();
        let mut retired = self.retired();
        // Before the CQEs are counted, under the lock: at the ring's end the poller waits for it
        // then. So it does not pass so many CQEs meanwhile that the count is ambiguous.
        self.has_retired.store(!retired.closed, Ordering::Release);
        let until = ring.first_unwritten(|| self.doorbell.get(Word::First));
        // Under the lock: the poller may be about to show the record again after an earlier reset.
        record.unpublish(side);
        record.rebase(side, base);
        retired.reset.retain(|(reset, which, _)| !(Arc::ptr_eq(reset, record) && *which == side));
        if retired.closed {
            record.show_again(side);
        } else {
            retired.reset.push((Arc::clone(record), side, until));
        }
    }
}

impl Retired {
    /// Shows those again whose CQEs of before the reset are all before CQE `consumer`. The caller
    /// is the poller.
    pub(crate) fn show_passed(&mut self, consumer: u32) {
        self.reset.retain(|(record, side, until)| {
            let is_left = is_before(consumer, *until);
            if !is_left {
                record.show_again(*side);
            }
            is_left
        });
    }

    /// Takes out the records of destroyed queue pairs whose CQEs are all before CQE `consumer`, in
    /// a ring of so many CQEs. The caller is the poller, which drops them when the lock is
    /// released.
    pub(crate) fn take_passed(&mut self, consumer: u32, entries: u32) -> Vec<QueueRecordRef> {
        let is_passed = |(_, until): &mut (QueueRecordRef, Option<u32>)| {
            // What the device wrote of it is in the ring when this is first asked, or was.
            !is_before(consumer, *until.get_or_insert(counted(consumer.wrapping_add(entries))))
        };
        self.destroyed.extract_if(.., is_passed).map(|(record, _)| record).collect()
    }

    /// The CQEs move to another ring, where each has the next number.
    pub(crate) fn move_on(&mut self) {
        let of_reset = self.reset.iter_mut().map(|(.., until)| until);
        for until in of_reset.chain(self.destroyed.iter_mut().filter_map(|(_, until)| until.as_mut())) {
            *until = counted(until.wrapping_add(1));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.destroyed.is_empty() && self.reset.is_empty()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
