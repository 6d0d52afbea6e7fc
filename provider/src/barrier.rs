//! Memory ordering between the CPU and the kernel or device that shares a queue with it.
//!
//! The other side of a queue is of one of two kinds:
//!
//! - The kernel's side of a software device runs on another CPU. Acquire and release accesses to
//!   the index words are enough.
//! - A hardware device accesses memory over a bus. On some architectures the ordering between CPUs
//!   does not extend to devices. Registers mapped as write-combining need stronger barriers still.
//!
//! Each function here is named for its purpose. No other module of the providers issues a fence.
//!
//! | | x86-64 | aarch64 | riscv64 |
//! |---|---|---|---|
//! | [`before_device_reads`] | compiler only | `dmb osh` | `fence iorw, ow` |
//! | [`after_device_wrote`] | compiler only | `dmb oshld` | `fence ir, ir` |
//! | [`before_device_overwrites`] | compiler only | `dmb osh` | `fence iorw, ow` |
//! | [`before_write_combining`] | `sfence` | `dsb st` | `fence ow, ow` |
//! | [`flush_write_combining`] | `sfence` | `dsb st` | `fence ow, ow` |
//!
//! Other architectures use a sequentially consistent fence for each.
//!
//! [`before_slots_are_reused`] orders accesses between threads of this process only, and
//! [`between_reads`] and [`before_peer_is_checked`] those of a thread and of the kernel on another CPU.
//!
//! With `--cfg loom` the index words are loom's atomics at the same addresses. `cargo xtask loom`
//! explores the rings of [`crate::ring`] with them. The module `issued` records the barriers then,
//! so that tests can check where they are issued.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Records the barriers that are issued, for tests of the code that issues them.
#[cfg(loom)]
pub mod issued {
    use std::cell::RefCell;
    use std::rc::Rc;

    thread_local! {
        static OBSERVER: RefCell<Option<Box<dyn FnMut(&'static str)>>> = const { RefCell::new(None) };
    }

    pub(super) fn note(barrier: &'static str) {
        OBSERVER.with_borrow_mut(|observer| {
            if let Some(observe) = observer {
                observe(barrier);
            }
        });
    }

    /// Runs `run` and returns the names of the barriers that it issued, in order. Each comes with
    /// the result of `probe` at that moment, such as the value of a doorbell record.
    ///
    /// All threads of a loom model are one thread here.
    pub fn record<T: 'static>(
        mut probe: impl FnMut() -> T + 'static,
        run: impl FnOnce(),
    ) -> Vec<(&'static str, T)> {
        let barriers = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&barriers);
        let observer = move |name| sink.borrow_mut().push((name, probe()));
        OBSERVER.set(Some(Box::new(observer)));
        run();
        OBSERVER.set(None);
        barriers.take()
    }
}

macro_rules! words {
    ($($(#[$meta:meta])* $name:ident: $ty:ty, $atomic:ty;)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As for [`read_peer_index`], for as long as the result is used.
        #[inline(always)]
        unsafe fn $name<'a>(word: *mut $ty) -> &'a $atomic {
            // SAFETY: aligned and valid for as long as the result is used, by this function's contract;
            // all accesses to the word are atomic and in this module.
            #[cfg(not(loom))]
            return unsafe { <$atomic>::from_ptr(word) };
            // SAFETY: in a model the pointer was created from an atomic of loom.
            #[cfg(loom)]
            return unsafe { &*word.cast::<$atomic>() };
        }
    )*};
}

words! {
    /// An index word as an atomic.
    word: u32, AtomicU32;
    /// The word of an element as an atomic.
    element_word: u64, AtomicU64;
}

/// Reads the index that the other side of a shared queue advances.
///
/// Writes of the other side before it stored the returned index are visible afterwards.
///
/// # Safety
///
/// `index` must be aligned, valid for reads and writes, and accessed by this process only through
/// this module.
#[inline]
#[must_use]
pub unsafe fn read_peer_index(index: *mut u32) -> u32 {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed
    // non-atomically.
    unsafe { word(index) }.load(Ordering::Acquire)
}

/// Advances the index that this side of a shared queue owns.
///
/// The other side sees all earlier writes to the queue. All earlier reads are complete before the
/// other side can overwrite the slots.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline]
pub unsafe fn publish_own_index(index: *mut u32, value: u32) {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed
    // non-atomically.
    unsafe { word(index) }.store(value, Ordering::Release);
}

/// Reads the index that this side of a shared queue owns, from shared memory.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline]
#[must_use]
pub unsafe fn read_own_index(index: *mut u32) -> u32 {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed
    // non-atomically.
    unsafe { word(index) }.load(Ordering::Relaxed)
}

/// Reads the word of an element: flags, which say which side owns it, and the fields beside them.
///
/// Writes of the other side before it stored the flags are visible afterwards.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline(always)]
#[must_use]
pub unsafe fn read_element_word(word: *mut u64) -> u64 {
    // SAFETY: valid and aligned by this function's contract; this process accesses the word by this
    // function and the next two only.
    unsafe { element_word(word) }.load(Ordering::Acquire)
}

/// Stores the word of an element, which may give it to the other side.
///
/// The other side sees all earlier writes to the element. All earlier reads are complete before the
/// other side can overwrite it.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline(always)]
pub unsafe fn store_element_word(word: *mut u64, value: u64) {
    // SAFETY: as for `read_element_word`.
    unsafe { element_word(word) }.store(value, Ordering::Release);
}

/// Sets bits of the word of an element that this side owns, as [`store_element_word`] does.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline(always)]
pub unsafe fn set_element_bits(word: *mut u64, bits: u64) {
    // SAFETY: as for `read_element_word`.
    let word = unsafe { element_word(word) };
    word.store(word.load(Ordering::Relaxed) | bits, Ordering::Release);
}

/// Stores a word that arms a queue's event. Later loads of the queue by this thread, after
/// [`before_peer_is_checked`], find what the other side added before it could see the word.
///
/// # Safety
///
/// As for [`read_peer_index`].
#[inline]
pub unsafe fn arm_word(index: *mut u32, value: u32) {
    // SAFETY: valid and aligned by this function's contract; the word is never accessed
    // non-atomically.
    unsafe { word(index) }.store(value, Ordering::Release);
    before_peer_is_checked();
}

/// Orders an earlier store, which the other side looks for before it sleeps, before later loads, which show
/// whether it sleeps.
///
/// Used between the publication of a request and the load that shows whether the other side is idle: if that
/// load returns an old value, the other side sees the request. The other side needs the same order between
/// its store and its load.
#[inline(always)]
pub fn before_peer_is_checked() {
    #[cfg(loom)]
    issued::note("before_peer_is_checked");
    fence(Ordering::SeqCst);
}

/// Orders earlier loads from memory that the kernel writes before later ones, as a reader of a
/// sequence lock must.
#[inline]
pub fn between_reads() {
    fence(Ordering::Acquire);
}

/// Orders all accesses to normal memory before a later store that makes a device read memory.
///
/// Used between a WQE and its doorbell record, and between the doorbell record and a doorbell
/// register. Earlier loads are ordered too: a request is often posted because of a CQE or an index
/// that was loaded before. If the doorbell overtook that load, the device could execute the request
/// first, and the load would return the result of the request.
#[inline]
pub fn before_device_reads() {
    #[cfg(loom)]
    issued::note("before_device_reads");
    imp::before_device_reads();
}

/// Orders later loads from normal memory after the load that detected a device's write.
///
/// Used between the check of a CQE's owner bit and the loads of its other fields.
#[inline]
pub fn after_device_wrote() {
    #[cfg(loom)]
    issued::note("after_device_wrote");
    imp::after_device_wrote();
}

/// Orders all accesses to normal memory before a later store that lets a device overwrite the
/// memory.
///
/// Used between the loads of CQEs and the store of the consumer index that releases their slots.
/// Earlier loads are ordered, or they could return later writes of the device. Earlier stores are
/// ordered too: the poller expands runs of compressed CQEs in their slots.
#[inline]
pub fn before_device_overwrites() {
    #[cfg(loom)]
    issued::note("before_device_overwrites");
    imp::before_device_overwrites();
}

/// Orders the stores that hide a queue from other threads before later stores to its slots.
///
/// Used between a QP's reset, which hides the QP from pollers, and the requests that reuse its
/// slots. A thread that loads a new request from such a slot with acquire ordering also sees that
/// the QP is hidden. No device is involved.
#[inline]
pub fn before_slots_are_reused() {
    #[cfg(loom)]
    issued::note("before_slots_are_reused");
    fence(Ordering::Release);
}

/// Orders stores to normal memory before the first store to write-combining device memory.
///
/// Used before a doorbell or a WQE is written to a register that the CPU may buffer.
#[inline]
pub fn before_write_combining() {
    #[cfg(loom)]
    issued::note("before_write_combining");
    imp::before_write_combining();
}

/// Flushes stores to write-combining device memory ahead of any later store.
///
/// Used after the last store of a doorbell. The doorbell then does not stay in the write-combining
/// buffer, and no later doorbell merges with it or overtakes it.
#[inline]
pub fn flush_write_combining() {
    #[cfg(loom)]
    issued::note("flush_write_combining");
    imp::flush_write_combining();
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::_mm_sfence;
    use std::sync::atomic::{Ordering, compiler_fence};

    /// x86-64 makes no store visible before an earlier load or store to normal memory, to devices
    /// as well as to CPUs.
    #[inline]
    pub(super) fn before_device_reads() {
        compiler_fence(Ordering::SeqCst);
    }

    /// x86-64 keeps loads from normal memory in order.
    #[inline]
    pub(super) fn after_device_wrote() {
        compiler_fence(Ordering::SeqCst);
    }

    /// x86-64 makes no store visible before an earlier load or store to normal memory.
    #[inline]
    pub(super) fn before_device_overwrites() {
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn before_write_combining() {
        // SAFETY: every x86-64 CPU has the instruction.
        unsafe { _mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn flush_write_combining() {
        // SAFETY: every x86-64 CPU has the instruction.
        unsafe { _mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }
}

/// Declares barriers that are a single instruction on these architectures.
macro_rules! instructions {
    ($($name:ident: aarch64 $aarch64:literal, riscv64 $riscv64:literal;)*) => {
        #[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
        mod imp {
            use std::arch::asm;

            $(
                #[inline]
                pub(super) fn $name() {
                    // SAFETY: a barrier has no operands and affects only the order of accesses.
                    // Without `nomem` the compiler does not move its own accesses across it.
                    unsafe {
                        #[cfg(target_arch = "aarch64")]
                        asm!($aarch64, options(nostack, preserves_flags));
                        #[cfg(target_arch = "riscv64")]
                        asm!($riscv64, options(nostack, preserves_flags));
                    }
                }
            )*
        }

        /// Instruction of each barrier on aarch64 and riscv64, for a test on any architecture.
        #[cfg(test)]
        const INSTRUCTIONS: &[(&str, &str, &str)] = &[$((stringify!($name), $aarch64, $riscv64)),*];
    };
}

instructions! {
    before_device_reads: aarch64 "dmb osh", riscv64 "fence iorw, ow";
    after_device_wrote: aarch64 "dmb oshld", riscv64 "fence ir, ir";
    before_device_overwrites: aarch64 "dmb osh", riscv64 "fence iorw, ow";
    before_write_combining: aarch64 "dsb st", riscv64 "fence ow, ow";
    flush_write_combining: aarch64 "dsb st", riscv64 "fence ow, ow";
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
    pub(super) fn before_device_overwrites() {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOADS: u8 = 1;
    const STORES: u8 = 2;
    const BOTH: u8 = LOADS | STORES;

    /// Earlier and later accesses between which an instruction keeps the order.
    fn orders(instruction: &str) -> (u8, u8) {
        match instruction {
            "dmb osh" => (BOTH, BOTH),
            "dmb oshld" => (LOADS, BOTH),
            "dsb st" => (STORES, STORES),
            riscv => {
                let sets = riscv.strip_prefix("fence ").and_then(|sets| sets.split_once(", "));
                let (before, after) = sets.expect("a fence of riscv64");
                // Normal memory and device memory.
                let of = |set: &str| match set {
                    "ir" => LOADS,
                    "ow" => STORES,
                    "iorw" => BOTH,
                    other => panic!("{other} of {riscv}"),
                };
                (of(before), of(after))
            }
        }
    }

    #[test]
    fn each_barrier_orders_the_accesses_it_is_named_for() {
        let needed = [
            // The doorbell is stored after the request, and after the loads that led to it.
            ("before_device_reads", BOTH, STORES),
            ("after_device_wrote", LOADS, LOADS),
            // The consumer index is stored after the CQEs were read and expanded.
            ("before_device_overwrites", BOTH, STORES),
            ("before_write_combining", STORES, STORES),
            ("flush_write_combining", STORES, STORES),
        ];
        assert_eq!(INSTRUCTIONS.len(), needed.len());
        for ((name, aarch64, riscv64), (expected, before, after)) in INSTRUCTIONS.iter().zip(needed) {
            assert_eq!(*name, expected);
            for instruction in [aarch64, riscv64] {
                let (orders_before, orders_after) = orders(instruction);
                assert_eq!(orders_before & before, before, "{name}: {instruction} orders what comes before");
                assert_eq!(orders_after & after, after, "{name}: {instruction} orders what comes after");
            }
        }
    }
}
