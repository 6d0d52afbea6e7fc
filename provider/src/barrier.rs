//! Memory ordering between the processor and whoever shares a queue with it.
//!
//! Two kinds of peer take part in a queue. The kernel's side of a software device is another processor, so ordinary
//! atomics on the index words are enough. A hardware device reads and writes memory over a bus: there the
//! processor's normal ordering between its own cores does not suffice everywhere, and registers mapped as
//! write-combining need more still. Every place where order matters calls one of these functions, named for the
//! reason, and no other module of the providers issues a fence.
//!
//! | | x86-64 | aarch64 | riscv64 |
//! |---|---|---|---|
//! | [`before_device_reads`] | compiler only | `dmb oshst` | `fence ow, ow` |
//! | [`after_device_wrote`] | compiler only | `dmb oshld` | `fence ir, ir` |
//! | [`before_write_combining`] | `sfence` | `dsb st` | `fence ow, ow` |
//! | [`flush_write_combining`] | `sfence` | `dsb st` | `fence ow, ow` |
//!
//! Other processors get a sequentially consistent fence for each.

use std::sync::atomic::{AtomicU32, Ordering};

/// Reads the index that the other side of a shared queue advances.
///
/// Everything the other side wrote before it advanced the index to the value returned is visible afterwards.
///
/// # Safety
///
/// `index` must be aligned, valid for reads and writes, and accessed by this process only through this module.
#[inline]
#[must_use]
pub unsafe fn read_peer_index(index: *mut u32) -> u32 {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed non-atomically.
    unsafe { AtomicU32::from_ptr(index) }.load(Ordering::Acquire)
}

/// Advances the index that this side of a shared queue owns.
///
/// The other side sees everything that was written to the queue before, and everything it may overwrite now has
/// been read before.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline]
pub unsafe fn publish_own_index(index: *mut u32, value: u32) {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed non-atomically.
    unsafe { AtomicU32::from_ptr(index) }.store(value, Ordering::Release);
}

/// Reads the index that this side of a shared queue owns, as it stands in memory.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline]
#[must_use]
pub unsafe fn read_own_index(index: *mut u32) -> u32 {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed non-atomically.
    unsafe { AtomicU32::from_ptr(index) }.load(Ordering::Relaxed)
}

/// Orders stores to normal memory before a later store that lets a device read them.
///
/// Stands between a work request and the doorbell record that announces it, and between the doorbell record and a
/// doorbell register.
#[inline]
pub fn before_device_reads() {
    imp::before_device_reads();
}

/// Orders later loads from normal memory after the load that showed that a device wrote there.
///
/// Stands between the check of a completion's owner bit and the reading of its other fields.
#[inline]
pub fn after_device_wrote() {
    imp::after_device_wrote();
}

/// Orders stores to normal memory before the first store to write-combining device memory.
///
/// Stands before a doorbell or a request is written to a register that the processor may buffer.
#[inline]
pub fn before_write_combining() {
    imp::before_write_combining();
}

/// Sends stores to write-combining device memory on their way, ahead of any later store.
///
/// Stands after the last store of a doorbell, so that it does not linger in the buffer and no later doorbell merges
/// with it or overtakes it.
#[inline]
pub fn flush_write_combining() {
    imp::flush_write_combining();
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::_mm_sfence;
    use std::sync::atomic::{Ordering, compiler_fence};

    /// The processor keeps stores to normal memory in order, for devices as for cores.
    #[inline]
    pub(super) fn before_device_reads() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The processor keeps loads from normal memory in order.
    #[inline]
    pub(super) fn after_device_wrote() {
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn before_write_combining() {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn flush_write_combining() {
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod imp {
    use std::arch::asm;

    macro_rules! barrier {
        ($name:ident, $aarch64:literal, $riscv64:literal) => {
            #[inline]
            pub(super) fn $name() {
                // SAFETY: a barrier has no operands and changes nothing but the order of accesses; without
                // `nomem` the compiler keeps its own accesses on their side of it.
                unsafe {
                    #[cfg(target_arch = "aarch64")]
                    asm!($aarch64, options(nostack, preserves_flags));
                    #[cfg(target_arch = "riscv64")]
                    asm!($riscv64, options(nostack, preserves_flags));
                }
            }
        };
    }

    barrier!(before_device_reads, "dmb oshst", "fence ow, ow");
    barrier!(after_device_wrote, "dmb oshld", "fence ir, ir");
    barrier!(before_write_combining, "dsb st", "fence ow, ow");
    barrier!(flush_write_combining, "dsb st", "fence ow, ow");
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64")))]
mod imp {
    use std::sync::atomic::{Ordering, fence};

    #[inline]
    pub(super) fn before_device_reads() {
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn after_device_wrote() {
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn before_write_combining() {
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn flush_write_combining() {
        fence(Ordering::SeqCst);
    }
}
