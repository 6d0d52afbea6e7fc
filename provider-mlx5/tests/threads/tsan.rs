//! What ThreadSanitizer can't know of a standard library that was compiled without it.
//!
//! `Arc` orders the drops of a value by `fetch_sub(1, Release)` and a fence before the last one.
//! ThreadSanitizer doesn't model fences. The standard library has a load in place of the fence
//! where it is compiled for ThreadSanitizer, which is not so of the one that comes with the
//! compiler. The linker turns calls to `__tsan_atomic64_fetch_sub` into calls to the function here
//! (`--wrap`), which makes the subtraction an acquisition as well.

use std::ffi::c_int;

/// `__tsan_memory_order`.
const RELEASE: c_int = 3;
const ACQ_REL: c_int = 4;

unsafe extern "C" {
    fn __real___tsan_atomic64_fetch_sub(place: *mut u64, value: u64, order: c_int) -> u64;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap___tsan_atomic64_fetch_sub(place: *mut u64, value: u64, order: c_int) -> u64 {
    let order = if order == RELEASE { ACQ_REL } else { order };
    // SAFETY: the caller's arguments, as the function it meant to call takes them.
    unsafe { __real___tsan_atomic64_fetch_sub(place, value, order) }
}
