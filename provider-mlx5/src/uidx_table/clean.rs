//! CQEs of QPs that were destroyed or reset (`__mlx5_cq_clean` of rdma-core).

use std::sync::PoisonError;

use super::{CqTag, QueueRecordRef, Side, UidxTable};
use crate::cq_ring::{Ring, counted, is_before};
use crate::doorbell::{DoorbellRecord, Word};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};

/// State that the poller of a CQ shares with the owners of its queue pairs.
#[derive(Debug)]
pub(crate) struct CqShared {
    /// The CQ's name in table entries. Each record that names the CQ has a reference to this value,
    /// so no entry contains the tag after it was freed.
    tag: CqTag,
    /// The device's number of the CQ.
    pub(crate) cqn: u32,
    pub(crate) doorbell: DoorbellRecord,
    /// The ring of CQEs. Code that takes both locks takes this one before `retired`.
    ring: Mutex<Ring>,
    retired: Mutex<Retired>,
    /// Whether `retired` has entries.
    pub(crate) has_retired: AtomicBool,
}

/// QPs whose CQEs in the ring are discarded.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    /// Destroyed QPs. The number (24 bits) is that of the first CQE that can't belong to the QP. It
    /// is `None` until the poller reaches the end of the ring.
    pub(crate) destroyed: Vec<(QueueRecordRef, Option<u32>)>,
    /// QPs that were reset, with the number (24 bits) of CQEs that the device had written by then.
    pub(crate) reset: Vec<(QueueRecordRef, Side, u32)>,
    /// The CQ was dropped and is not polled any more.
    pub(crate) closed: bool,
}

impl CqShared {
    pub(crate) fn new(
        table: &std::sync::Arc<UidxTable>,
        cqn: u32,
        doorbell: DoorbellRecord,
        ring: Ring,
    ) -> Self {
        let (retired, has_retired) = (Mutex::new(Retired::default()), AtomicBool::new(false));
        Self { tag: CqTag::new(table), cqn, doorbell, ring: Mutex::new(ring), retired, has_retired }
    }

    /// Locks the ring. While the guard exists, the CQ is not resized and no queue pair is reset.
    pub(crate) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of [`Entry::owners`](super::Entry) for this CQ.
    pub(crate) fn tag(&self) -> u32 {
        self.tag.value()
    }

    /// Whether this CQ's poller uses `table`.
    pub(crate) fn is_of_table(&self, table: &std::sync::Arc<UidxTable>) -> bool {
        self.tag.is_of_table(table)
    }

    pub(crate) fn retired(&self) -> MutexGuard<'_, Retired> {
        self.retired.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unpublishes a side of a destroyed queue pair. The CQ keeps a reference to the record until
    /// the QP's last completion has been polled.
    pub(crate) fn retire(&self, record: &QueueRecordRef, side: Side) {
        let mut retired = self.retired();
        // A poller that no longer finds the record in the table finds it here, under the lock.
        record.unpublish(side);
        retired.reset.retain(|(reset, ..)| !Arc::ptr_eq(reset, record));
        if !retired.closed && !retired.destroyed.iter().any(|(other, _)| Arc::ptr_eq(other, record)) {
            retired.destroyed.push((Arc::clone(record), None));
            self.has_retired.store(true, Ordering::Release);
        }
    }

    /// Unpublishes a side of a queue pair that was reset. The poller discards the CQEs that the
    /// device has written for it so far. `base` is the number of receives before this reset.
    ///
    /// The caller must issue
    /// [`barrier::before_slots_are_reused`](bareverbs_provider::barrier::before_slots_are_reused)
    /// before it reuses the slots.
    pub(crate) fn clean(&self, record: &QueueRecordRef, side: Side, base: u64) {
        let ring = self.ring();
        let mut retired = self.retired();
        // The flag is set before the CQEs are counted, under the lock. The poller then waits for
        // this lock at the end of the ring, so it can't pass so many CQEs that the count becomes
        // ambiguous.
        self.has_retired.store(!retired.closed, Ordering::Release);
        let until = ring.first_unwritten(|| self.doorbell.get(Word::First));
        // This happens under the lock because the poller may be about to publish the record again
        // after an earlier reset.
        record.unpublish(side);
        record.rebase(side, base);
        retired.reset.retain(|(reset, which, _)| !(Arc::ptr_eq(reset, record) && *which == side));
        if retired.closed {
            record.republish(side);
        } else {
            retired.reset.push((Arc::clone(record), side, until));
        }
    }
}

impl Retired {
    /// Publishes the records again whose CQEs from before the reset are all before CQE `consumer`.
    /// The caller is the poller.
    pub(crate) fn republish_passed(&mut self, consumer: u32) {
        self.reset.retain(|(record, side, until)| {
            let is_left = is_before(consumer, *until);
            if !is_left {
                record.republish(*side);
            }
            is_left
        });
    }

    /// Removes and returns the records of destroyed queue pairs whose CQEs are all before CQE
    /// `consumer`, in a ring of `entries` CQEs. The caller is the poller. It drops the records
    /// after it has released the lock.
    pub(crate) fn take_passed(&mut self, consumer: u32, entries: u32) -> Vec<QueueRecordRef> {
        let is_passed = |(_, until): &mut (QueueRecordRef, Option<u32>)| {
            // At the first call for a record, all CQEs of its QP are in the ring or were polled.
            !is_before(consumer, *until.get_or_insert(counted(consumer.wrapping_add(entries))))
        };
        self.destroyed.extract_if(.., is_passed).map(|(record, _)| record).collect()
    }

    /// Adjusts the counts for a resize, which increments the number of each pending CQE.
    pub(crate) fn after_resize(&mut self) {
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
