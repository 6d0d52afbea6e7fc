//! Corrects the order of `Arc` drops for ThreadSanitizer.
//!
//! `Arc` orders the drops of a value by `fetch_sub(1, Release)` and a fence before the last drop.
//! ThreadSanitizer does not model fences. A standard library that is compiled for ThreadSanitizer
//! has a load in place of the fence, but the compiler's prebuilt one does not. So the linker
//! redirects calls of `__tsan_atomic64_fetch_sub` to the function here (`--wrap`), which makes the
//! subtraction an acquire operation as well.

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
    // SAFETY: the caller's arguments, passed on unchanged except for a stronger order.
    unsafe { __real___tsan_atomic64_fetch_sub(place, value, order) }
}
