//! A time at which a task is woken, without the timers of its runtime.

use std::sync::Arc;
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use bareverbs_provider::device::DeviceFile;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::event_fd::EventFd;
use crate::runtime::{Registration, Runtime};
use crate::{Error, Result};

/// Wakes a task at a time that moves. It is a timerfd, created when the first time is set. It needs a
/// runtime with I/O only.
#[derive(Debug)]
pub(crate) struct Alarm {
    file: Arc<DeviceFile>,
    /// Boxed, because most alarms have none.
    timer: Option<Box<Timer>>,
}

#[derive(Debug)]
struct Timer {
    registration: Registration,
    events: EventFd,
    /// The time that the timer is set to.
    set: Option<Instant>,
}

impl Alarm {
    /// An alarm without a time. The kernel ends it with `file`.
    pub(crate) fn new(file: &Arc<DeviceFile>) -> Self {
        Self { file: Arc::clone(file), timer: None }
    }

    /// Registers the task to be woken at `due`, in place of an earlier task or time. `Ready` if the
    /// time of an earlier call has passed. Virtual time wakes no task.
    pub(crate) fn poll(
        &mut self,
        runtime: &Arc<dyn Runtime>,
        waker: &Waker,
        due: Option<Instant>,
    ) -> Poll<Result<()>> {
        match self.timer(runtime, due)? {
            Some(timer) => timer.poll(waker, due),
            None => Poll::Pending,
        }
    }

    fn timer(&mut self, runtime: &Arc<dyn Runtime>, due: Option<Instant>) -> Result<Option<&mut Timer>> {
        if self.timer.is_none() && due.is_some() && !self.file.runs_in_waits() {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)
                .map_err(|errno| Error::system("creating a timerfd for keepalives", errno))?;
            let events = EventFd::new(timer, "a timerfd", Arc::clone(&self.file))?;
            let registration = Registration::new(Arc::clone(runtime), events.fd())?;
            self.timer = Some(Box::new(Timer { registration, events, set: None }));
        }
        Ok(self.timer.as_deref_mut())
    }
}

impl Timer {
    /// `Ready` if the timer has expired. Otherwise it is set to `due`.
    fn poll(&mut self, waker: &Waker, due: Option<Instant>) -> Poll<Result<()>> {
        let Self { registration, events, set } = self;
        if *set != due {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            // A time of 0 would disarm it.
            let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
            let it_value = Timespec::try_from(left)
                .map_err(|_| Error::invalid("keepalive", "the interval is too long"))?;
            let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            timerfd_settime(&*events, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })
                .map_err(|errno| Error::system("setting a timerfd for keepalives", errno))?;
            *set = due;
        }
        // Once more after a wake-up without an expiry, so that the task is registered.
        loop {
            ready!(registration.poll_readable(waker))?;
            if events.try_read::<u64>()?.is_some() {
                *set = None;
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(all(test, not(loom), any(feature = "async-io", feature = "tokio")))]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn file() -> Arc<DeviceFile> {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        Arc::new(unsafe { DeviceFile::from_fd_unchecked(null.into(), 0) }.unwrap())
    }

    async fn rings(runtime: impl Runtime) {
        let runtime: Arc<dyn Runtime> = Arc::new(runtime);
        let mut alarm = Alarm::new(&file());
        let begin = Instant::now();
        let due = begin + Duration::from_millis(30);
        poll_fn(|cx| {
            assert!(alarm.poll(&runtime, cx.waker(), None).is_pending(), "no time is set");
            // The later time is replaced.
            let later = Some(begin + Duration::from_secs(600));
            assert!(alarm.poll(&runtime, cx.waker(), later).is_pending());
            Poll::Ready(())
        })
        .await;
        poll_fn(|cx| alarm.poll(&runtime, cx.waker(), Some(due))).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(30));
        let due = Instant::now() + Duration::from_millis(10);
        poll_fn(|cx| alarm.poll(&runtime, cx.waker(), Some(due))).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(40));
        // A time that has passed.
        poll_fn(|cx| alarm.poll(&runtime, cx.waker(), Some(begin))).await.unwrap();
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn alarm_wakes_a_task_of_tokio_at_its_time() {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(rings(crate::runtime::Tokio));
    }

    #[cfg(feature = "async-io")]
    #[test]
    fn alarm_wakes_a_task_of_async_io_at_its_time() {
        ::async_io::block_on(rings(crate::runtime::AsyncIo));
    }
}
