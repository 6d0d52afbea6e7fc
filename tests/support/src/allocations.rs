//! An allocator that counts the allocations of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a counter per thread. A test program declares it as its
/// `#[global_allocator]`.
pub struct CountingAllocator;

// SAFETY: each call is forwarded to the system's allocator unchanged. The counter is a thread-local
// cell, and its update does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The number of allocations of this thread so far, for work that is not a function, such as awaits.
/// It is 0 if [`CountingAllocator`] is not the global allocator.
pub fn total() -> u64 {
    ALLOCATIONS.get()
}

/// The number of allocations by `work` on this thread. It is 0 if [`CountingAllocator`] is not the
/// global allocator.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}
