//! Completions of queue pairs that are gone or were reset.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ring::Ring;
use crate::doorbell::{DoorbellRecord, Word};
use crate::table::{Record, Side, tag};

/// What a completion queue's poller, and the owners of queue pairs that complete there, share.
#[derive(Debug)]
pub(crate) struct CqShared {
    pub(super) cqn: u32,
    pub(super) doorbell: DoorbellRecord,
    /// Where the entries are.
    pub(super) ring: Mutex<Ring>,
    pub(super) strays: Mutex<Strays>,
    /// Whether there are strays.
    pub(super) has_strays: AtomicBool,
}

/// Queue pairs whose completions still to be polled are nobody's.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// Destroyed.
    pub(super) dead: Vec<Arc<Record>>,
    /// Reset, when the device had written this many entries (24 bits).
    pub(super) reset: Vec<(Arc<Record>, Side, u32)>,
    /// The queue is polled no more.
    pub(super) closed: bool,
}

impl CqShared {
    pub(crate) fn tag(&self) -> u32 {
        tag(self.cqn)
    }

    pub(super) fn strays(&self) -> MutexGuard<'_, Strays> {
        self.strays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the record of a queue pair that was destroyed until its last completion has been polled.
    pub(crate) fn bury(&self, record: &Arc<Record>) {
        let mut strays = self.strays();
        strays.reset.retain(|(reset, ..)| !Arc::ptr_eq(reset, record));
        if !strays.closed && !strays.dead.iter().any(|dead| Arc::ptr_eq(dead, record)) {
            strays.dead.push(Arc::clone(record));
            self.has_strays.store(true, Ordering::Release);
        }
    }

    /// Makes the poller pass over what the device has written of a queue pair until now.
    pub(crate) fn forget(&self, record: &Arc<Record>, side: Side) {
        record.hide(side);
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let until = ring.first_unwritten(self.doorbell.get(Word::First));
        let mut strays = self.strays();
        strays.reset.retain(|(reset, which, _)| !(Arc::ptr_eq(reset, record) && *which == side));
        if strays.closed {
            record.show(side);
        } else {
            strays.reset.push((Arc::clone(record), side, until));
            self.has_strays.store(true, Ordering::Release);
        }
    }
}
