//! Atomics and locks of the standard library, or of loom.
//!
//! Owners of queues and pollers of CQs run on different threads. Everything that they share
//! consists of the types in this module. With `--cfg loom` the types are those of
//! [loom](https://docs.rs/loom), so `cargo xtask loom` explores every order of accesses that the
//! memory model allows.
//!
//! Memory that the device accesses is not explored: CQEs, WQEs and registers. In a model, CQEs are
//! written before the threads start.

pub(crate) use self::imp::*;

/// Types for arrays in memory that is initially zero. Untouched pages use no memory.
///
/// # Safety
///
/// The type must consist of atomics, and all zeros must be a valid value of it.
pub(crate) unsafe trait Zeroed: Default {}

// SAFETY: it is an atomic, and 0 is its default.
unsafe impl Zeroed for AtomicU32 {}

#[cfg(not(loom))]
mod imp {
    use std::marker::PhantomData;
    use std::ptr::NonNull;
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
    pub(crate) use std::thread::yield_now;

    use bareverbs_provider::Errno;
    use bareverbs_provider::mapping::Mapping;

    use super::Zeroed;
    pub(crate) use crate::lock::{Mutex, MutexGuard};

    /// An array of zeros; see [`Zeroed`].
    #[derive(Debug)]
    pub(crate) struct ZeroedArray<T> {
        memory: Mapping,
        len: usize,
        _values: PhantomData<T>,
    }

    impl<T: Zeroed> ZeroedArray<T> {
        pub(crate) fn new(len: usize) -> Result<Self, Errno> {
            let bytes = len.max(1).checked_mul(size_of::<T>()).ok_or(Errno::NOMEM)?;
            Ok(Self { memory: Mapping::anonymous(bytes)?, len, _values: PhantomData })
        }

        #[inline(always)]
        pub(crate) fn get(&self, index: usize) -> Option<&T> {
            const { assert!(align_of::<T>() <= 4096) };
            if index >= self.len {
                return None;
            }
            let values: NonNull<T> = self.memory.as_ptr().cast();
            // SAFETY: `new` mapped `len` values, and the page is aligned for them. Zeros are a
            // value of atomics, by the contract of `Zeroed`, so they may be written through a
            // shared reference.
            Some(unsafe { values.add(index).as_ref() })
        }
    }

    /// Records the uses and the drop of a value. loom checks that no use is concurrent with the
    /// drop or follows it.
    #[derive(Debug)]
    pub(crate) struct Lifetime;

    /// A use of a value, which ends when this guard is dropped.
    pub(crate) struct Used;

    impl Lifetime {
        pub(crate) fn new() -> Self {
            Self
        }

        #[inline(always)]
        pub(crate) fn used(&self) -> Used {
            Used
        }
    }
}

#[cfg(loom)]
mod imp {
    use bareverbs_provider::Errno;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    use super::Zeroed;

    /// An array of default values; see [`Zeroed`].
    #[derive(Debug)]
    pub(crate) struct ZeroedArray<T>(Box<[T]>);

    impl<T: Zeroed> ZeroedArray<T> {
        pub(crate) fn new(len: usize) -> Result<Self, Errno> {
            Ok(Self((0..len).map(|_| T::default()).collect()))
        }

        pub(crate) fn get(&self, index: usize) -> Option<&T> {
            self.0.get(index)
        }
    }

    /// Records the uses and the drop of a value. loom checks that no use is concurrent with the
    /// drop or follows it.
    #[derive(Debug)]
    pub(crate) struct Lifetime(loom::cell::UnsafeCell<()>);

    // SAFETY: the cell contains no data; loom checks the accesses.
    unsafe impl Sync for Lifetime {}

    /// A use of a value, which ends when this guard is dropped.
    pub(crate) struct Used(
        #[allow(dead_code, reason = "loom looks at when it is dropped")] loom::cell::ConstPtr<()>,
    );

    impl Lifetime {
        pub(crate) fn new() -> Self {
            Self(loom::cell::UnsafeCell::new(()))
        }

        pub(crate) fn used(&self) -> Used {
            Used(self.0.get())
        }
    }

    impl Drop for Lifetime {
        fn drop(&mut self) {
            self.0.with_mut(|_| ());
        }
    }
}
