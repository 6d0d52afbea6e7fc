//! Models of the mutex, for `cargo xtask loom`, and what other models use. The futex is abstracted.

use std::task::{Wake, Waker};

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar};
use loom::thread;

use super::mutex::RawMutex;
use super::{Mutex, lock};

/// A thread that sleeps until it is woken.
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn new() -> (std::sync::Arc<Self>, Waker) {
        let bell = std::sync::Arc::new(Self { rung: Mutex::new(false), changed: Condvar::new() });
        (std::sync::Arc::clone(&bell), Waker::from(bell))
    }

    pub(crate) fn sleep(&self) {
        let mut rung = lock(&self.rung);
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        *lock(&self.rung) = true;
        self.changed.notify_one();
    }
}

/// Explores the interleavings of `work`. Loom reports a deadlock if a thread sleeps for ever.
pub(crate) fn model(work: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(work);
}

/// A value that loom checks for unordered accesses, and its lock.
struct Guarded {
    lock: RawMutex,
    value: UnsafeCell<u32>,
}

// SAFETY: the lock orders all accesses to the value; loom checks it.
unsafe impl Sync for Guarded {}
// SAFETY: the value belongs to no thread.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new() -> Arc<Self> {
        Arc::new(Self { lock: RawMutex::new(), value: UnsafeCell::new(0) })
    }

    /// Adds 1. The caller has locked it. Unlocks it.
    fn add_and_unlock(&self) {
        // SAFETY: the lock is held; loom checks it.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.lock.unlock();
    }

    fn add(&self) {
        self.lock.lock();
        self.add_and_unlock();
    }

    fn get(&self) -> u32 {
        // SAFETY: the threads have ended; loom checks it.
        self.value.with(|value| unsafe { *value })
    }
}

#[test]
fn threads_hold_the_mutex_one_at_a_time_and_none_sleeps_for_ever() {
    model(|| {
        let guarded = Guarded::new();
        let others = [(); 2].map(|()| {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.add())
        });
        guarded.add();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(guarded.get(), 3);
    });
}

#[test]
fn thread_that_locks_again_wakes_the_one_that_sleeps() {
    model(|| {
        let guarded = Guarded::new();
        let other = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || (0..2).for_each(|_| guarded.add()))
        };
        (0..2).for_each(|_| guarded.add());
        other.join().unwrap();
        assert_eq!(guarded.get(), 4);
    });
}

#[test]
fn try_lock_gives_the_mutex_to_one_thread_and_wakes_no_less() {
    model(|| {
        let guarded = Guarded::new();
        let tries = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                let locked = guarded.lock.try_lock();
                if locked {
                    guarded.add_and_unlock();
                }
                u32::from(locked)
            })
        };
        let waits = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || guarded.add())
        };
        guarded.add();
        waits.join().unwrap();
        let tried = tries.join().unwrap();
        assert_eq!(guarded.get(), 2 + tried);
    });
}
