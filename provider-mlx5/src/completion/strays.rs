//! Completions of queue pairs that are gone or were reset.

use std::sync::PoisonError;

use super::ring::{Ring, is_before};
use crate::doorbell::{DoorbellRecord, Word};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};
use crate::table::{RecordRef, Side, tag};

/// What a completion queue's poller, and the owners of queue pairs that complete there, share.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(super) cqn: u32,
    pub(super) doorbell: DoorbellRecord,
    /// Where the entries are. It is locked before `strays` by those who lock both.
    ring: Mutex<Ring>,
    strays: Mutex<Strays>,
    /// Whether there are strays.
    pub(super) has_strays: AtomicBool,
}

/// Queue pairs whose completions still to be polled are nobody's.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// Destroyed.
    pub(super) dead: Vec<RecordRef>,
    /// Reset, when the device had written this many entries (24 bits).
    pub(super) reset: Vec<(RecordRef, Side, u32)>,
    /// The queue is polled no more.
    pub(super) closed: bool,
}

impl CqShared {
    pub(super) fn new(cqn: u32, doorbell: DoorbellRecord, ring: Ring) -> Self {
        let (strays, has_strays) = (Mutex::new(Strays::default()), AtomicBool::new(false));
        Self { cqn, doorbell, ring: Mutex::new(ring), strays, has_strays }
    }

    /// Where the entries are. The queue moves to no other ring as long as the result is kept, and no queue pair is reset.
    pub(crate) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tag(&self) -> u32 {
        tag(self.cqn)
    }

    pub(super) fn strays(&self) -> MutexGuard<'_, Strays> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hides a side of a queue pair that was destroyed, and keeps the record until its last completion has been polled.
    pub(crate) fn bury(&self, record: &RecordRef, side: Side) {
        let mut strays = self.strays();
        // A poller that doesn't find the record any more finds it among the dead, which it looks at under the lock.
        record.hide(side);
        strays.reset.retain(|(reset, ..)| !Arc::ptr_eq(reset, record));
        if !strays.closed && !strays.dead.iter().any(|dead| Arc::ptr_eq(dead, record)) {
            strays.dead.push(Arc::clone(record));
            self.has_strays.store(true, Ordering::Release);
        }
    }

    /// Hides a side of a queue pair that was reset, and makes the poller pass over what the device has written of it until
    /// now; `base` are the receives of its lives so far.
    ///
    /// The caller must issue [`barrier::before_slots_are_reused`](bareverbs_provider::barrier::before_slots_are_reused)
    /// before it fills slots anew.
    pub(crate) fn forget(&self, record: &RecordRef, side: Side, base: u64) {
        let ring = self.ring();
        let until = ring.first_unwritten(|| self.doorbell.get(Word::First));
        let mut strays = self.strays();
        // Under the lock: the poller may be about to show the record again after an earlier reset.
        record.hide(side);
        record.rebase(side, base);
        strays.reset.retain(|(reset, which, _)| !(Arc::ptr_eq(reset, record) && *which == side));
        if strays.closed {
            record.show_again(side);
        } else {
            strays.reset.push((Arc::clone(record), side, until));
            self.has_strays.store(true, Ordering::Release);
        }
    }
}

impl Strays {
    /// Shows those again whose entries of before the reset are all before entry `consumer`. The caller is the poller.
    pub(super) fn show_passed(&mut self, consumer: u32) {
        self.reset.retain(|(record, side, until)| {
            let is_left = is_before(consumer, *until);
            if !is_left {
                record.show_again(*side);
            }
            is_left
        });
    }
}
