//! Where messages go that their completions carry.
//!
//! The device may put a short message into the completion instead of writing it to memory, which spares it a transfer.
//! The poller brings it where it belongs. What the receives said of that is kept here, and not read from the ring, which the
//! device knows: an element is used once, and only while its receive is posted, as long as which its owner vouches for
//! the memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bareverbs_provider::work::Sge;

/// The elements of the receives of a queue.
#[derive(Debug)]
pub(crate) struct Kept {
    elements: Box<[Element]>,
    /// Elements of a receive, and slots less one.
    width: usize,
    mask: usize,
}

#[derive(Debug, Default)]
struct Element {
    addr: AtomicU64,
    /// 0 for none.
    length: AtomicU32,
}

impl Kept {
    /// For `slots` slots, a power of 2, of `width` elements.
    pub(crate) fn new(slots: u32, width: u32) -> Self {
        let (slots, width) = (slots as usize, width as usize);
        assert!(slots.is_power_of_two(), "a ring of receives");
        Self { elements: (0..slots * width).map(|_| Element::default()).collect(), width, mask: slots - 1 }
    }

    fn of(&self, slot: usize) -> &[Element] {
        let first = (slot & self.mask) * self.width;
        &self.elements[first..first + self.width]
    }

    /// Keeps the elements of the receive in a slot.
    pub(crate) fn keep(&self, slot: usize, sges: &[Sge]) {
        let sges = sges.iter().map(|sge| (sge.addr, sge.length)).chain(std::iter::repeat((0, 0)));
        for (element, (addr, length)) in self.of(slot).iter().zip(sges) {
            element.addr.store(addr, Ordering::Relaxed);
            element.length.store(length, Ordering::Release);
        }
    }

    /// Takes the elements of a slot, whose receive is complete, and brings a message to them; whether all of it went
    /// there.
    ///
    /// # Safety
    ///
    /// What is kept of the slot must be memory that may be written: whoever kept it vouches for that until the receive is
    /// complete.
    pub(crate) unsafe fn scatter(&self, slot: usize, mut message: &[u8]) -> bool {
        for element in self.of(slot) {
            let length = element.length.swap(0, Ordering::AcqRel) as usize;
            let (now, rest) = message.split_at(length.min(message.len()));
            let to =
                std::ptr::with_exposed_provenance_mut::<u8>(element.addr.load(Ordering::Relaxed) as usize);
            if !now.is_empty() {
                // SAFETY: this function's contract; the element is no shorter.
                unsafe { to.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            }
            message = rest;
        }
        message.is_empty()
    }

    /// Forgets all elements.
    pub(crate) fn forget(&self) {
        self.elements.iter().for_each(|element| element.length.store(0, Ordering::Release));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_to_the_elements_of_its_slot_once() {
        let mut memory = [0u8; 8];
        let start = memory.as_mut_ptr().expose_provenance() as u64;
        let sge = |at: u64, length| Sge { addr: start + at, length, lkey: 0 };
        let kept = Kept::new(4, 3);
        kept.keep(5, &[sge(6, 2), sge(0, 3)]);
        // SAFETY: the elements are of `memory`.
        unsafe {
            assert!(!kept.scatter(0, &[9]), "another slot's");
            assert!(kept.scatter(1, &[1, 2, 3, 4]));
            assert!(!kept.scatter(1, &[9]), "complete already");
            kept.keep(1, &[sge(0, 1)]);
            assert!(!kept.scatter(1, &[5, 6]), "longer than its elements");
            kept.keep(1, &[sge(0, 8)]);
            kept.forget();
            assert!(!kept.scatter(1, &[9]));
        }
        assert_eq!(memory, [5, 4, 0, 0, 0, 0, 1, 2]);
    }
}
