//! A word that threads sleep on.

#[cfg(not(loom))]
pub(super) use self::kernel::Futex;
#[cfg(loom)]
pub(super) use self::model::Futex;

#[cfg(not(loom))]
mod kernel {
    use std::sync::atomic::AtomicU32;

    use rustix::thread::futex::{self, Flags};

    /// A futex of this process.
    #[derive(Debug)]
    pub(in crate::sync) struct Futex(pub(in crate::sync) AtomicU32);

    impl Futex {
        pub(in crate::sync) const fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps until [`Futex::wake_one`], unless the word differs from `expected`. It may return
        /// early.
        pub(in crate::sync) fn wait(&self, expected: u32) {
            // EAGAIN: the word differs. EINTR: a signal. The caller reads the word again.
            let _ = futex::wait(&self.0, Flags::PRIVATE, expected, None);
        }

        /// Wakes one of the threads that sleep.
        pub(in crate::sync) fn wake_one(&self) {
            // It fails for invalid addresses only.
            let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
        }
    }
}

/// The futex of the models. As in the kernel, the comparison and the start of the sleep are one step
/// for [`Futex::wake_one`].
#[cfg(loom)]
mod model {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};

    #[derive(Debug)]
    pub(in crate::sync) struct Futex(pub(in crate::sync) AtomicU32, Mutex<()>, Condvar);

    impl Futex {
        pub(in crate::sync) fn new(value: u32) -> Self {
            Self(AtomicU32::new(value), Mutex::new(()), Condvar::new())
        }

        pub(in crate::sync) fn wait(&self, expected: u32) {
            let sleepers = self.1.lock().expect("no panic");
            if self.0.load(Ordering::Relaxed) == expected {
                drop(self.2.wait(sleepers).expect("no panic"));
            }
        }

        pub(in crate::sync) fn wake_one(&self) {
            let _sleepers = self.1.lock().expect("no panic");
            self.2.notify_one();
        }
    }
}
