//! A lock-free stack of free slots.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bits of a slot's index in the head. Above them are `MARK` and the tag.
const INDEX_BITS: u32 = 20;

/// A bit of the head: the list is marked.
const MARK: u64 = 1 << INDEX_BITS;

/// The position of the tag in the head.
const TAG_SHIFT: u32 = INDEX_BITS + 1;

/// The index of no slot: the end of the stack.
const NONE: u32 = (1 << INDEX_BITS) - 1;

/// The largest number of slots.
pub const MAX_SLOTS: usize = NONE as usize;

/// The indices of the free slots. Any number of threads take and return them.
///
/// The head contains the index of the top slot and a tag, which counts the takes modulo 2^43. A
/// thread in [`FreeList::take`] reads the top slot and the slot below. If other threads take both
/// and return the top slot in between, the top is the same and the slot below is not free. The tag
/// differs then, so the exchange fails. It repeats after 2^43 takes: at 10 ns each, the thread
/// would have to be stopped for 24 hours between two instructions, for exactly as many takes.
///
/// An empty list can be [marked](FreeList::mark). Returned slots are refused then, for callers that
/// wait for them.
#[derive(Debug)]
pub struct FreeList {
    head: AtomicU64,
    /// For each free slot, the slot below it.
    below: Box<[AtomicU32]>,
}

impl FreeList {
    /// All of `count` slots. The first to be taken is slot 0.
    ///
    /// # Panics
    /// If `count` exceeds [`MAX_SLOTS`].
    #[must_use]
    pub fn new(count: usize) -> Self {
        assert!(count <= MAX_SLOTS, "{count} slots exceed the maximum of {MAX_SLOTS}");
        let count = count as u32;
        let below = (1..=count).map(|at| AtomicU32::new(if at == count { NONE } else { at })).collect();
        let top = if count == 0 { NONE } else { 0 };
        Self { head: AtomicU64::new(u64::from(top)), below }
    }

    /// `count` slots, none of which is free.
    ///
    /// # Panics
    /// If `count` exceeds [`MAX_SLOTS`].
    #[must_use]
    pub fn all_taken(count: usize) -> Self {
        let list = Self::new(count);
        list.head.store(u64::from(NONE), Ordering::Relaxed);
        list
    }

    /// The number of slots, free or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.below.len()
    }

    /// Takes a free slot. Writes by the thread that returned it are visible to this one.
    #[must_use = "the slot is lost unless it is put back"]
    pub fn take(&self) -> Option<u32> {
        // The acquiring loads pair with the releasing exchange of `put_back`: the entry of `below`
        // is the one that belongs to this head.
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = head as u32 & NONE;
            // `below` has no entry for `NONE`.
            let below = self.below.get(top as usize)?.load(Ordering::Relaxed);
            // A list that has a slot is not marked.
            let tag = (head >> TAG_SHIFT).wrapping_add(1);
            let next = tag << TAG_SHIFT | u64::from(below);
            match self.head.compare_exchange_weak(head, next, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(top),
                Err(now) => head = now,
            }
        }
    }

    /// Returns a slot that was taken. The list does not check that it was: a slot that is returned
    /// twice is taken twice. `false`: the list is [marked](Self::mark), and the caller keeps the slot.
    ///
    /// # Panics
    /// If there is no such slot.
    #[must_use = "a marked list does not accept the slot"]
    pub fn put_back(&self, slot: u32) -> bool {
        let below = &self.below[slot as usize];
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head & MARK != 0 {
                return false;
            }
            below.store(head as u32 & NONE, Ordering::Relaxed);
            let next = head & !u64::from(NONE) | u64::from(slot);
            match self.head.compare_exchange_weak(head, next, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Marks the list if it is empty: it refuses slots until [`unmark`](Self::unmark). Returns whether
    /// it is marked.
    ///
    /// The callers that mark and unmark, and that are refused, must exclude each other. The bit orders
    /// no other accesses.
    #[must_use = "a list that has a slot is not marked"]
    pub fn mark(&self) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head as u32 & NONE != NONE {
                return false;
            }
            match self.head.compare_exchange_weak(head, head | MARK, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Makes the list accept slots again.
    pub fn unmark(&self) {
        self.head.fetch_and(!MARK, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashSet;
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_slot_is_taken_once_until_it_is_returned() {
        let list = FreeList::new(3);
        assert_eq!([(); 4].map(|()| list.take()), [Some(0), Some(1), Some(2), None]);
        assert!(list.put_back(1));
        assert_eq!([list.take(), list.take()], [Some(1), None]);
        assert_eq!(FreeList::new(0).take(), None);
    }

    #[test]
    fn list_of_taken_slots_has_none_until_one_is_returned() {
        let list = FreeList::all_taken(2);
        assert_eq!((list.take(), list.capacity()), (None, 2));
        assert!(list.put_back(1));
        assert_eq!([list.take(), list.take()], [Some(1), None]);
    }

    #[test]
    fn tag_changes_with_each_take() {
        let list = FreeList::new(2);
        let before = list.head.load(Ordering::Relaxed);
        // The top and the slot below are taken, and the top is returned: the case that a tag is
        // for.
        let top = list.take().unwrap();
        list.take().unwrap();
        assert!(list.put_back(top));
        let after = list.head.load(Ordering::Relaxed);
        assert_eq!(before as u32 & NONE, after as u32 & NONE);
        assert_ne!(before, after);
    }

    #[test]
    fn tag_wraps_without_touching_the_index() {
        let list = FreeList::new(2);
        list.head.store(!u64::from(NONE) & !MARK, Ordering::Relaxed);
        assert_eq!([list.take(), list.take(), list.take()], [Some(0), Some(1), None]);
        assert!(list.put_back(0), "the mark is not set");
    }

    #[test]
    fn marked_list_refuses_slots_until_it_is_unmarked() {
        let list = FreeList::new(2);
        assert!(!list.mark(), "it has slots");
        assert_eq!([list.take(), list.take()], [Some(0), Some(1)]);
        assert!(list.mark() && list.mark());
        assert_eq!((list.put_back(1), list.take()), (false, None));
        list.unmark();
        assert!(list.put_back(1) && !list.mark());
        assert_eq!([list.take(), list.take()], [Some(1), None]);
    }

    proptest! {
        #[test]
        fn free_slots_match_a_stack(count in 0usize..8, steps in prop::collection::vec(any::<Option<prop::sample::Index>>(), 0..60)) {
            let list = FreeList::new(count);
            let mut model: Vec<u32> = (0..count as u32).rev().collect();
            let mut taken = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let slot = list.take();
                        prop_assert_eq!(slot, model.pop());
                        taken.extend(slot);
                    }
                    Some(at) if !taken.is_empty() => {
                        let slot = taken.swap_remove(at.index(taken.len()));
                        prop_assert!(list.put_back(slot));
                        model.push(slot);
                    }
                    Some(_) => {}
                }
            }
        }
    }

    #[test]
    fn threads_never_hold_the_same_slot() {
        let rounds = if cfg!(miri) { 50 } else { 50_000 };
        let list = FreeList::new(3);
        let held = [const { AtomicBool::new(false) }; 3];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let slots: Vec<u32> = (0..1 + round % 2).filter_map(|_| list.take()).collect();
                        for slot in &slots {
                            assert!(!held[*slot as usize].swap(true, Ordering::Relaxed));
                        }
                        for slot in slots {
                            held[slot as usize].store(false, Ordering::Relaxed);
                            assert!(list.put_back(slot));
                        }
                    }
                });
            }
        });
        let free: HashSet<u32> = std::iter::from_fn(|| list.take()).collect();
        assert_eq!(free.len(), 3);
    }
}
