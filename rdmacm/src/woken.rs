//! Tasks to be woken when no lock is held, because a waker runs code of the application.

use std::task::Waker;

/// Wakes tasks in order. If a waker panics, the others are still called.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    WakeRest(wakers.into_iter()).run();
}

/// The wakers that are still to be called.
struct WakeRest<I: Iterator<Item = Waker>>(I);

impl<I: Iterator<Item = Waker>> WakeRest<I> {
    fn run(&mut self) {
        self.0.by_ref().for_each(Waker::wake);
    }
}

impl<I: Iterator<Item = Waker>> Drop for WakeRest<I> {
    fn drop(&mut self) {
        self.run();
    }
}

/// Tasks that are woken when the value is dropped. Declared before the guard of a lock, it is dropped
/// after the guard, also on an early return.
#[derive(Default)]
pub(crate) struct Woken(Vec<Waker>);

impl Woken {
    /// Adds a task, if there is one.
    pub(crate) fn add(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    /// Whether there is no task.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes the tasks.
    pub(crate) fn wake(&mut self) {
        wake_all(std::mem::take(&mut self.0));
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        self.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("in a waker");
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn panic_of_a_waker_does_not_lose_the_wakes_of_others() {
        let count = Arc::new(Count::default());
        let counted = || Waker::from(Arc::clone(&count));
        let wakers = [counted(), Waker::from(Arc::new(Panics)), counted(), counted()];
        catch_unwind(AssertUnwindSafe(|| wake_all(wakers))).unwrap_err();
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
    }

    /// Locks a mutex when it is woken.
    struct Locks(Arc<Mutex<usize>>);

    impl Wake for Locks {
        fn wake(self: Arc<Self>) {
            *self.0.try_lock().expect("no lock is held") += 1;
        }
    }

    #[test]
    fn task_is_woken_after_the_lock_also_on_an_early_return() {
        let lock = Arc::new(Mutex::new(0));
        let waker = || Some(Waker::from(Arc::new(Locks(Arc::clone(&lock)))));
        let early = || -> Option<()> {
            let mut woken = Woken::default();
            let _guard = lock.lock().unwrap();
            woken.add(waker());
            woken.add(waker());
            woken.add(None);
            assert!(!woken.is_empty());
            None
        };
        assert_eq!(early(), None);
        let mut woken = Woken::default();
        woken.add(waker());
        woken.wake();
        drop(woken);
        assert_eq!(*lock.lock().unwrap(), 3);
    }
}
