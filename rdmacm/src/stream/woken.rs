//! Tasks to be woken when no lock is held, because a waker runs code of the application.

use std::task::Waker;

use bareverbs_provider::wake::wake_all;

/// Tasks that are woken when the value is dropped. Declared before the guard of a lock, it is dropped
/// after the guard, also on an early return.
#[derive(Default)]
pub(super) struct Woken(Vec<Waker>);

impl Woken {
    /// Adds a task, if there is one.
    pub(super) fn add(&mut self, waker: Option<Waker>) {
        self.0.extend(waker);
    }

    /// Whether there is no task.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes the tasks.
    pub(super) fn wake(&mut self) {
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
    use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
    use std::sync::{Arc, Mutex};
    use std::task::Wake;

    use super::*;

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic_any("of a waker");
        }
    }

    #[test]
    fn several_wakers_that_panic_abort_no_early_return() {
        let woken = Arc::new(Mutex::new(0));
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let mut tasks = Woken::default();
            for _ in 0..2 {
                tasks.add(Some(Waker::from(Arc::new(Panics))));
                tasks.add(Some(Waker::from(Arc::new(Locks(Arc::clone(&woken))))));
            }
        }))
        .unwrap_err();
        assert_eq!((panic.downcast_ref(), *woken.lock().unwrap()), (Some(&"of a waker"), 2));
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
