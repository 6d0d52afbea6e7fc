//! Threads that sleep until they are woken or a descriptor is readable.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Wake, Waker};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::wait::is_past;
use crate::{Error, Result};

const AWAKE: u32 = 0;
const WOKEN: u32 = 1;
const ASLEEP: u32 = 2;

/// The waker of a thread. Waking a thread that is awake makes no system call.
pub(crate) struct Parker {
    state: AtomicU32,
    /// An eventfd, written if the thread sleeps. The first sleep creates it.
    events: OnceLock<OwnedFd>,
}

impl Parker {
    /// A parker and its waker. This is all that it allocates.
    fn new() -> (Arc<Self>, Waker) {
        let parker = Arc::new(Self { state: AtomicU32::new(AWAKE), events: OnceLock::new() });
        let waker = Waker::from(Arc::clone(&parker));
        (parker, waker)
    }

    /// The eventfd.
    fn events(&self) -> Result<BorrowedFd<'_>> {
        if let Some(events) = self.events.get() {
            return Ok(events.as_fd());
        }
        let events = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::system("creating an eventfd for a thread that waits", errno))?;
        Ok(self.events.get_or_init(|| events).as_fd())
    }

    /// Calls `work` with the parker of this thread and its waker. It is created by the first call
    /// of a thread. Calls within `work` use another one.
    pub(crate) fn with<T>(work: impl FnOnce(&Self, &Waker) -> Result<T>) -> Result<T> {
        thread_local! {
            static PARKER: RefCell<Option<(Arc<Parker>, Waker)>> = const { RefCell::new(None) };
        }
        let taken = PARKER.try_with(|parker| parker.borrow_mut().take()).ok().flatten();
        let (parker, waker) = taken.unwrap_or_else(Self::new);
        let result = work(&parker, &waker);
        let _ = PARKER.try_with(|own| own.borrow_mut().replace((parker, waker)));
        result
    }

    /// Blocks the thread until `poll` returns a value, at most until `end`. `poll` registers the waker.
    pub(crate) fn block_on<T>(
        end: Option<Instant>,
        mut poll: impl FnMut(&Waker) -> Poll<Result<T>>,
    ) -> Poll<Result<T>> {
        let ended = Self::with(|parker, waker| {
            loop {
                if let Poll::Ready(value) = poll(waker) {
                    return value.map(Poll::Ready);
                }
                if is_past(end) {
                    return Ok(Poll::Pending);
                }
                parker.sleep(None, end)?;
            }
        });
        ended.map_or_else(|error| Poll::Ready(Err(error)), |polled| polled.map(Ok))
    }

    /// Whether the next sleep returns at once because the thread was woken.
    pub(crate) fn is_woken(&self) -> bool {
        self.state.load(Ordering::Acquire) == WOKEN
    }

    /// Sleeps until the thread is woken, `other` is readable or `end` has passed. Returns at once
    /// if the thread was woken since the last sleep. It may return early. Returns whether `other`
    /// is readable.
    pub(crate) fn sleep(&self, other: Option<BorrowedFd<'_>>, end: Option<Instant>) -> Result<bool> {
        let own = self.events()?;
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_err() {
            self.state.store(AWAKE, Ordering::Release);
            return Ok(false);
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut descriptors =
            [own, other.unwrap_or(own)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let polled = rustix::event::poll(&mut descriptors[..1 + usize::from(other.is_some())], left.as_ref());
        let readable = other.is_some() && !descriptors[1].revents().is_empty();
        let written = !descriptors[0].revents().is_empty();
        if self.state.swap(AWAKE, Ordering::AcqRel) == WOKEN || written {
            // Either the eventfd was written, or it will be: the next sleep returns early then, and
            // reads it.
            let _ = rustix::io::read(own, &mut [0; 8]);
        }
        match polled {
            Ok(_) => Ok(readable),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::system("waiting for completion events", errno)),
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A thread that sleeps has created the eventfd.
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP
            && let Some(events) = self.events.get()
        {
            // It fails only if the counter is near its maximum: it is readable then.
            let _ = rustix::io::write(events, &1_u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::*;

    fn later(milliseconds: u64) -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(milliseconds))
    }

    #[test]
    fn late_write_of_a_waker_ends_one_sleep_only() {
        Parker::with(|parker, _| {
            // A waker that was stopped before its write, while the thread returned otherwise.
            rustix::io::write(parker.events()?, &1_u64.to_ne_bytes()).unwrap();
            parker.sleep(None, later(5000))?;
            let start = Instant::now();
            parker.sleep(None, later(20))?;
            assert!(start.elapsed() >= Duration::from_millis(20));
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn wake_before_sleep_is_not_lost() {
        Parker::with(|parker, waker| {
            for _ in 0..3 {
                waker.wake_by_ref();
                waker.wake_by_ref();
                parker.sleep(None, None)?;
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn wake_ends_the_sleep_of_a_thread() {
        Parker::with(|parker, waker| {
            for _ in 0..20 {
                let (waker, woken) = (waker.clone(), Arc::new(AtomicBool::new(false)));
                let other = {
                    let woken = Arc::clone(&woken);
                    std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(2));
                        woken.store(true, Ordering::Release);
                        waker.wake();
                    })
                };
                let begin = Instant::now();
                // A late write of the previous round may end a sleep early.
                while !woken.load(Ordering::Acquire) {
                    parker.sleep(None, later(20_000))?;
                }
                assert!(begin.elapsed() < Duration::from_secs(10));
                other.join().unwrap();
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn sleep_ends_at_the_time_limit_and_with_the_descriptor() {
        Parker::with(|parker, _| {
            let begin = Instant::now();
            parker.sleep(None, later(20))?;
            assert!(begin.elapsed() >= Duration::from_millis(20));
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::io::write(&write, b"x").unwrap();
            parker.sleep(Some(read.as_fd()), later(20_000))?;
            assert!(begin.elapsed() < Duration::from_secs(10));
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn nested_waits_have_parkers_of_their_own() {
        Parker::with(|outer, waker| {
            waker.wake_by_ref();
            Parker::with(|inner, _| {
                assert!(!std::ptr::eq(outer, inner));
                inner.sleep(None, later(5))
            })?;
            outer.sleep(None, None)
        })
        .unwrap();
    }
}
