//! An allocator that counts what each thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts. A test program makes it its `#[global_allocator]`.
pub struct CountingAllocator;

// SAFETY: each call is passed on to the system's allocator unchanged. The counter is a plain cell
// of the thread, which allocates nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller fulfils the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller fulfils the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The number of allocations that `work` makes on this thread. Always 0 where
/// [`CountingAllocator`] is not the global allocator.
pub fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}
