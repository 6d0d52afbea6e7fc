//! The slots of an SRQ. The owner and the pollers of its completions share them.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The end of a list of slots.
pub(crate) const NONE: u32 = u32::MAX;

/// State that the owner of an SRQ and the pollers of its completions share.
#[derive(Debug)]
pub(crate) struct SrqShared {
    pub(crate) slots: Box<[Slot]>,
    /// The slot that was returned last.
    pub(crate) returned: AtomicU32,
    /// The SRQN; 0 until the SRQ was created.
    number: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) wr_id: AtomicU64,
    /// Whether the device has the slot, as far as its completions say.
    pub(crate) posted: AtomicBool,
    /// The next slot in the list; for a returned slot, the slot that was returned before it.
    pub(crate) next: AtomicU32,
}

impl SrqShared {
    pub(crate) fn new(slots: u32) -> Self {
        let slot =
            |_| Slot { wr_id: AtomicU64::new(0), posted: AtomicBool::new(false), next: AtomicU32::new(NONE) };
        Self {
            slots: (0..slots).map(slot).collect(),
            returned: AtomicU32::new(NONE),
            number: AtomicU32::new(0),
        }
    }

    /// The SRQN; 0 until the SRQ was created.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    pub(crate) fn set_number(&self, number: u32) {
        self.number.store(number, Ordering::Relaxed);
    }

    /// Completes the receive in a slot and returns its `wr_id`; `None` if no receive is posted
    /// there.
    ///
    /// So a repeated CQE does not return the slot twice, which would make the list circular.
    pub(crate) fn complete(&self, slot: u16) -> Option<u64> {
        let index = slot as usize & self.slots.len().wrapping_sub(1);
        let slot = self.slots.get(index)?;
        if !slot.posted.swap(false, Ordering::AcqRel) {
            return None;
        }
        // The owner stored `wr_id` before it set `posted`.
        let wr_id = slot.wr_id.load(Ordering::Relaxed);
        let mut last = self.returned.load(Ordering::Relaxed);
        loop {
            slot.next.store(last, Ordering::Relaxed);
            match self.returned.compare_exchange_weak(
                last,
                index as u32,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(wr_id),
                Err(now) => last = now,
            }
        }
    }
}
