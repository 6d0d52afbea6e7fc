//! Atomics and locks of the standard library, or loom's.
//!
//! Owners of queues and pollers of completion queues run on different threads. All that they share
//! is made of the types here, so that `cargo xtask loom` can explore how their accesses interleave:
//! with `--cfg loom` they are those of [loom](https://docs.rs/loom), which tries every order that
//! the memory model allows.
//!
//! What lies in memory that the device reads or writes is not explored: the entries of completion
//! queues, the requests and the registers. A model has the entries written before its threads
//! start.

pub(crate) use self::imp::*;

/// Values in memory of their own that are all zero at first. Memory is used for those that are
/// written.
///
/// # Safety
///
/// Bytes of zeros must be a value of the type, which must consist of atomics.
pub(crate) unsafe trait Zeroed: Default {}

// SAFETY: an atomic, and 0 is its default.
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

    /// See [`Zeroed`].
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
            // SAFETY: `new` mapped `len` values, and a page is aligned for them. Zeros are a value
            // of atomics, by the contract of `Zeroed`, so they may be written through a shared
            // reference.
            Some(unsafe { values.add(index).as_ref() })
        }
    }

    /// Says when a value is used and when it is freed, for loom to check that no use comes after.
    #[derive(Debug)]
    pub(crate) struct Lifetime;

    /// A value is used as long as this is there.
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

    /// See [`Zeroed`].
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

    /// Says when a value is used and when it is freed, for loom to check that no use comes after.
    #[derive(Debug)]
    pub(crate) struct Lifetime(loom::cell::UnsafeCell<()>);

    // SAFETY: there is nothing in the cell; loom checks the accesses.
    unsafe impl Sync for Lifetime {}

    /// A value is used as long as this is there.
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
