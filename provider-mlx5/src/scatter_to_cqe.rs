//! Scatter to CQE: copying payload from CQEs to the memory of receives.
//!
//! The device may put a short message into the CQE instead of writing it to memory, which saves a
//! DMA write. The poller of the CQ then copies the message to the SGEs of the receive. The SGEs are
//! stored here. They are not read from the ring, to which the device has access.
//!
//! # Access to a receive's memory
//!
//! Each slot of the receive queue has a state word:
//!
//! | state | meaning | transition out by |
//! |---|---|---|
//! | [`EMPTY`] | no receive is posted | the owner: [`ScatterToCqe::post`] |
//! | [`POSTED`] | the SGEs are those of a posted receive | the owner: [`ScatterToCqe::take_back`]; the poller: [`ScatterToCqe::claim`] |
//! | [`COPYING`] | the poller copies a message to the SGEs | the poller: [`Claim`] |
//!
//! The poller moves a slot from `POSTED` to `COPYING` by one compare-and-exchange. If that fails,
//! it discards the message; it never waits.
//!
//! The owner moves a slot from `POSTED` to `EMPTY`. It waits while the slot is `COPYING`, for at
//! most the copy of one CQE. A forked child does not wait: it has a copy of the state words and no
//! poller.
//!
//! So once the owner has taken a slot back, the poller does not access the memory of its receive
//! any more. The owner takes all slots back before it gives up the receives: when the queue is
//! reset, dropped or [abandoned](bareverbs_provider::traits::RecvQueue::abandon).
//!
//! Until then, other threads may access the memory by the copying methods of its MR. These methods
//! and the poller use the copies of [`bareverbs_provider::copy`], which may run concurrently.
//!
//! A payload is copied at most once per receive, even if the device repeats the CQE.

use bareverbs_provider::Errno;
use bareverbs_provider::copy::copy_in;
use bareverbs_provider::process::ForkGuard;
use bareverbs_provider::work::Sge;

use crate::sync::{AtomicU32, AtomicU64, Ordering, yield_now};

/// States of a slot.
const EMPTY: u32 = 0;
const POSTED: u32 = 1;
const COPYING: u32 = 2;

/// The SGEs of the posted receives of a queue.
#[derive(Debug)]
pub(crate) struct ScatterToCqe {
    states: Box<[AtomicU32]>,
    elements: Box<[Element]>,
    /// SGEs per receive, and number of slots minus 1.
    width: usize,
    mask: usize,
    /// The process that the poller belongs to.
    fork_guard: ForkGuard,
}

/// One SGE. The owner writes it while the slot is `EMPTY`; the poller reads it while the slot is
/// `COPYING`.
#[derive(Debug)]
struct Element {
    addr: AtomicU64,
    /// In bytes; 0 for an unused SGE.
    length: AtomicU32,
}

/// A receive that the poller has claimed. Dropping it sets the slot to `EMPTY`.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    state: &'a AtomicU32,
    elements: &'a [Element],
}

impl ScatterToCqe {
    /// Allocates `slots` slots, a power of 2, of `width` SGEs.
    pub(crate) fn new(slots: u32, width: u32) -> Result<Self, Errno> {
        let (slots, width) = (slots as usize, width as usize);
        assert!(slots.is_power_of_two(), "a ring of receives");
        let element = |_| Element { addr: AtomicU64::new(0), length: AtomicU32::new(0) };
        Ok(Self {
            states: (0..slots).map(|_| AtomicU32::new(EMPTY)).collect(),
            elements: (0..slots * width).map(element).collect(),
            width,
            mask: slots - 1,
            fork_guard: ForkGuard::new()?,
        })
    }

    fn of(&self, slot: usize) -> (&AtomicU32, &[Element]) {
        let slot = slot & self.mask;
        let first = slot * self.width;
        (&self.states[slot], &self.elements[first..first + self.width])
    }

    /// Stores the SGEs of a receive in a slot. Only the owner may call it.
    pub(crate) fn post(&self, slot: usize, sges: &[Sge]) {
        // With a faulty device the slot may still be in use.
        self.take_back(slot);
        let (state, elements) = self.of(slot);
        let sges = sges.iter().map(|sge| (sge.addr, sge.length)).chain(std::iter::repeat((0, 0)));
        for (element, (addr, length)) in elements.iter().zip(sges) {
            element.addr.store(addr, Ordering::Relaxed);
            element.length.store(length, Ordering::Relaxed);
        }
        // The poller that claims the slot sees the SGEs and all earlier stores of the owner.
        state.store(POSTED, Ordering::Release);
    }

    /// Takes a slot back: from then on the poller copies nothing to its SGEs. Only the owner may
    /// call it.
    pub(crate) fn take_back(&self, slot: usize) {
        let (state, _) = self.of(slot);
        // Success and failure are ordered after the poller's copy, which the poller's store of
        // `EMPTY` releases.
        while let Err(COPYING) = state.compare_exchange(POSTED, EMPTY, Ordering::Acquire, Ordering::Acquire) {
            if !self.fork_guard.is_same_process() {
                // This is a forked child. The poller is a thread of the parent, and copies to the
                // parent's memory.
                break;
            }
            yield_now();
        }
    }

    /// Takes all slots back. Only the owner may call it.
    pub(crate) fn take_back_all(&self) {
        (0..self.states.len()).for_each(|slot| self.take_back(slot));
    }

    /// Claims the completed receive in a slot; `None` if no receive is posted there. Only the
    /// poller may call it.
    pub(crate) fn claim(&self, slot: usize) -> Option<Claim<'_>> {
        let (state, elements) = self.of(slot);
        state.compare_exchange(POSTED, COPYING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Claim { state, elements })
    }
}

impl Claim<'_> {
    /// Copies a message to the SGEs; whether they have room for all of it.
    ///
    /// # Safety
    ///
    /// The memory of the SGEs must be writable, and this process may access it only by functions of
    /// [`bareverbs_provider::copy`]. The caller of [`ScatterToCqe::post`] guarantees this until the
    /// receive completes or its slot was taken back.
    pub(crate) unsafe fn scatter(self, mut message: &[u8]) -> bool {
        for element in self.elements {
            let length = element.length.load(Ordering::Relaxed) as usize;
            let (now, rest) = message.split_at(length.min(message.len()));
            let to =
                std::ptr::with_exposed_provenance_mut::<u8>(element.addr.load(Ordering::Relaxed) as usize);
            if !now.is_empty() {
                // SAFETY: the contract of this function: the slot does not complete and is not
                // taken back before `self` is dropped. `now` is not longer than the SGE. Until
                // then this process accesses the memory only by such copies.
                unsafe { copy_in(now, to) };
            }
            message = rest;
        }
        message.is_empty()
    }

    /// Cancels the claim: the receive remains posted.
    pub(crate) fn cancel(self) {
        self.state.store(POSTED, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.state.store(EMPTY, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_scattered_once_to_the_sges_of_its_slot() {
        let mut memory = [0u8; 8];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let sge = |at: u64, length| Sge { addr: start + at, length, lkey: 0 };
        let slots = ScatterToCqe::new(4, 3).expect("a page");
        // SAFETY: the SGEs lie in `memory`.
        let scatter = |slot, message: &[u8]| slots.claim(slot).map(|claim| unsafe { claim.scatter(message) });
        slots.post(5, &[sge(6, 2), sge(0, 3)]);
        assert_eq!(scatter(0, &[9]), None, "another slot's");
        assert_eq!(scatter(1, &[1, 2, 3, 4]), Some(true));
        assert_eq!(scatter(1, &[9]), None, "complete already");
        slots.post(1, &[sge(0, 1)]);
        assert_eq!(scatter(1, &[5, 6]), Some(false), "longer than its elements");
        slots.post(1, &[sge(0, 8)]);
        slots.take_back_all();
        assert_eq!(scatter(1, &[9]), None);
        assert_eq!(memory, [5, 4, 0, 0, 0, 0, 1, 2]);
    }

    #[test]
    fn cancelled_claim_leaves_the_receive_posted() {
        let slots = ScatterToCqe::new(1, 1).expect("a page");
        slots.post(0, &[]);
        slots.claim(0).expect("posted").cancel();
        assert!(slots.claim(0).is_some());
        assert!(slots.claim(0).is_none());
    }

    /// Miri does not support child processes.
    #[cfg(not(any(loom, miri)))]
    #[test]
    fn forked_child_does_not_wait_for_the_poll_lock() {
        use std::os::unix::process::CommandExt;
        use std::process::Command;
        use std::sync::Arc;

        let slots = Arc::new(ScatterToCqe::new(1, 1).expect("a page"));
        slots.post(0, &[]);
        let claim = slots.claim(0).expect("posted");
        let mut child = Command::new("/bin/true");
        let inherited = Arc::clone(&slots);
        // SAFETY: the child only accesses atomics and sets an alarm. It does not allocate and takes
        // no lock.
        unsafe {
            child.pre_exec(move || {
                // The alarm kills a child that waits.
                nix::unistd::alarm::set(5);
                inherited.take_back_all();
                Ok(())
            })
        };
        assert!(child.status().expect("a child").success());
        assert!(slots.states[0].load(Ordering::Relaxed) == COPYING, "the parent's words are its own");
        drop(claim);
    }

    #[test]
    fn take_back_waits_for_the_copy() {
        let slots = ScatterToCqe::new(1, 1).expect("a page");
        slots.post(0, &[]);
        let claim = slots.claim(0).expect("posted");
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| slots.take_back_all());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!owner.is_finished(), "the owner waits for the poller");
            drop(claim);
        });
    }
}
