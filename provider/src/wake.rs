//! Calls of wakers, each of which must happen although any of them may panic; and calls that block, for
//! tasks.
//!
//! A waker runs code of the application. If one panics, the tasks of the others must not sleep for
//! ever.

use std::any::Any;
use std::future::{Future, poll_fn};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::{mem, thread};

/// Wakes all tasks in order. Call it without a lock that a waker may take.
///
/// # Panics
/// If a waker panics, with the first panic, after all tasks were woken.
pub fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    let mut panics = FirstPanic::default();
    wakers.into_iter().for_each(|waker| panics.catch(|| waker.wake()));
    panics.resume();
}

/// The first panic of several calls.
#[derive(Debug, Default)]
#[must_use = "`resume` continues the panic"]
pub struct FirstPanic(Option<Box<dyn Any + Send>>);

impl FirstPanic {
    /// Calls `work`. If it panics, the panic is kept, unless an earlier one is.
    pub fn catch(&mut self, work: impl FnOnce()) {
        if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(work)) {
            match &self.0 {
                None => self.0 = Some(payload),
                // Dropping it may panic again.
                Some(_) => mem::forget(payload),
            }
        }
    }

    /// Whether a call has panicked.
    #[must_use]
    pub fn caught(&self) -> bool {
        self.0.is_some()
    }

    /// Continues the panic that was kept, unless the thread is unwinding from another one.
    ///
    /// # Panics
    /// If one of the calls has panicked.
    pub fn resume(self) {
        let Some(payload) = self.0 else { return };
        if thread::panicking() {
            mem::forget(payload);
        } else {
            panic::resume_unwind(payload);
        }
    }
}

/// The state of a call of [`answered`].
enum Answer<T> {
    /// The call has not ended. The task that waits for it.
    Pending(Option<Waker>),
    /// Its result. `None`: it was taken, or the call was dropped unrun.
    Ended(Option<thread::Result<T>>),
}

/// The side of the call. Its drop ends a call that was not run.
struct Answering<T>(Arc<Mutex<Answer<T>>>);

impl<T> Answering<T> {
    /// Only the first end counts.
    fn end(&self, result: Option<thread::Result<T>>) {
        let mut answer = lock(&self.0);
        let Answer::Pending(waker) = &mut *answer else { return };
        let waker = waker.take();
        *answer = Answer::Ended(result);
        drop(answer);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Answering<T> {
    fn drop(&mut self) {
        self.end(None);
    }
}

fn lock<T>(answer: &Mutex<Answer<T>>) -> MutexGuard<'_, Answer<T>> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that blocks, to be run beside the tasks, and a future of its result. `None`: the call was
/// dropped unrun, as by a runtime that ends, or its result was taken before. If the future is dropped,
/// the call runs to its end.
///
/// # Panics
/// The future panics if the call does.
pub fn answered<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
    call: F,
) -> (impl FnOnce() + Send + use<T, F>, impl Future<Output = Option<T>> + Send + use<T, F>) {
    let answer = Arc::new(Mutex::new(Answer::Pending(None)));
    let answering = Answering(Arc::clone(&answer));
    let work = move || answering.end(Some(panic::catch_unwind(AssertUnwindSafe(call))));
    let answered = poll_fn(move |cx| {
        let result = match &mut *lock(&answer) {
            Answer::Pending(waker) => {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Answer::Ended(result) => result.take(),
        };
        Poll::Ready(result.map(|result| result.unwrap_or_else(|payload| panic::resume_unwind(payload))))
    });
    (work, answered)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{catch_unwind, panic_any};
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    /// Wakes the thread that waits.
    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(output) => return output,
                Poll::Pending => thread::park(),
            }
        }
    }

    #[test]
    fn result_of_a_blocking_call_wakes_its_future() {
        let (go, wait) = std::sync::mpsc::channel();
        let own = thread::current().id();
        let (call, called) = answered(move || {
            wait.recv().unwrap();
            thread::current().id()
        });
        drop(thread::spawn(call));
        let mut called = pin!(called);
        assert!(called.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        go.send(()).unwrap();
        assert_ne!(block_on(called).unwrap(), own);
    }

    #[test]
    fn blocking_call_that_is_dropped_unrun_ends_its_future() {
        let (call, called) = answered(|| 5);
        let (mut called, count) = (pin!(called), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        assert!(called.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(call);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(called.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(None));
    }

    #[test]
    fn panic_of_a_blocking_call_continues_in_its_future() {
        let (call, called) = answered(|| panic_any(5_u32));
        drop(thread::spawn(call));
        let panic = catch_unwind(AssertUnwindSafe(|| block_on(called))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&5_u32));
    }

    /// Panics with its number.
    struct Panics(u32);

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic_any(self.0);
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counted wakers between wakers that panic.
    fn wakers(count: &Arc<Count>) -> [Waker; 5] {
        let counted = || Waker::from(Arc::clone(count));
        let panics = |number| Waker::from(Arc::new(Panics(number)));
        [counted(), panics(1), counted(), panics(2), counted()]
    }

    #[test]
    fn all_tasks_are_woken_before_the_first_panic_continues() {
        let count = Arc::new(Count::default());
        let panic = catch_unwind(AssertUnwindSafe(|| wake_all(wakers(&count)))).unwrap_err();
        assert_eq!((panic.downcast_ref(), count.0.load(Ordering::Relaxed)), (Some(&1_u32), 3));
    }

    #[test]
    fn unwinding_thread_wakes_all_tasks_and_goes_on_with_its_panic() {
        struct WakesOnDrop(Arc<Count>);

        impl Drop for WakesOnDrop {
            fn drop(&mut self) {
                wake_all(wakers(&self.0));
            }
        }

        let count = Arc::new(Count::default());
        let panic = catch_unwind(AssertUnwindSafe(|| {
            let _wakes = WakesOnDrop(Arc::clone(&count));
            panic_any(7_u32);
        }))
        .unwrap_err();
        assert_eq!((panic.downcast_ref(), count.0.load(Ordering::Relaxed)), (Some(&7_u32), 3));
    }

    #[test]
    fn payload_that_panics_when_it_is_dropped_stops_no_wake() {
        struct PanicsOnDrop;

        impl Drop for PanicsOnDrop {
            fn drop(&mut self) {
                panic_any(9_u32);
            }
        }

        struct PanicsTwice;

        impl Wake for PanicsTwice {
            fn wake(self: Arc<Self>) {
                panic_any(PanicsOnDrop);
            }
        }

        let count = Arc::new(Count::default());
        let wakers = [
            Waker::from(Arc::new(Panics(1))),
            Waker::from(Arc::new(PanicsTwice)),
            Waker::from(Arc::clone(&count)),
        ];
        let panic = catch_unwind(AssertUnwindSafe(|| wake_all(wakers))).unwrap_err();
        assert_eq!((panic.downcast_ref(), count.0.load(Ordering::Relaxed)), (Some(&1_u32), 1));
    }

    #[test]
    fn first_panic_is_known_before_it_continues() {
        let mut panics = FirstPanic::default();
        panics.catch(|| ());
        assert!(!panics.caught());
        panics.catch(|| panic_any(3_u32));
        panics.catch(|| ());
        assert!(panics.caught());
        let panic = catch_unwind(AssertUnwindSafe(|| panics.resume())).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&3_u32));
    }
}
