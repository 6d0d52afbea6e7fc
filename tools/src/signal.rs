//! SIGINT and SIGTERM as an eventfd. A signal ends waits, and the program cleans up.
//!
//! The program has a grace period for that. Then it exits, also from a call that no signal ends: a name
//! look-up, a connect, a write to a full pipe. The kernel releases its objects. A second signal
//! kills it at once.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// The eventfd that the signal handler writes to.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The signal that arrived.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Whether the next signal kills the program.
static IS_LAST: AtomicBool = AtomicBool::new(false);

/// The signals that end the program.
const ENDING: [Signal; 2] = [Signal::SIGINT, Signal::SIGTERM];

/// The grace period in milliseconds: the time from a signal to the exit of the program, at most.
static GRACE: AtomicU32 = AtomicU32::new(300);

/// That of programs which print what they have measured.
const GRACE_FOR_RESULTS: u32 = 700;

/// Signals within this time are one: timeout(1) sends it to the process and again to its group.
const TOGETHER: Duration = Duration::from_millis(100);

/// Reports a signal that ends the program early.
#[derive(Debug)]
pub(crate) struct Stop {
    event: OwnedFd,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    Ready,
    TimedOut,
    Stopped,
}

/// A signal requested the end of the program.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

impl Interrupted {
    /// The exit status of a program that a signal ended: 128 plus its number.
    pub(crate) fn exit_status(self) -> u8 {
        u8::try_from(exit_status()).unwrap_or(u8::MAX)
    }
}

fn exit_status() -> i32 {
    128 + SIGNAL.load(Ordering::Relaxed)
}

/// Fails with [`Interrupted`] if a signal has arrived. The cost is one load.
pub(crate) fn check() -> Result<(), Interrupted> {
    if SIGNAL.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Interrupted) }
}

impl Stop {
    /// A `Stop` that no signal triggers.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// As [`on_signals`](Self::on_signals), with the time to print what was measured.
    pub(crate) fn on_signals_with_results() -> io::Result<&'static Self> {
        GRACE.store(GRACE_FOR_RESULTS, Ordering::Relaxed);
        Self::on_signals()
    }

    /// The `Stop` that SIGINT and SIGTERM trigger, until the program ends.
    pub(crate) fn on_signals() -> io::Result<&'static Self> {
        let stop: &'static Self = Box::leak(Box::new(Self::new()?));
        WAKE.store(stop.event.as_raw_fd(), Ordering::Relaxed);
        // A handler is not interrupted by the other one.
        let mask = SigSet::from_iter([Signal::SIGALRM].into_iter().chain(ENDING));
        let alarm = SigAction::new(SigHandler::Handler(on_alarm), SaFlags::SA_RESTART, mask);
        // SAFETY: the handler only accesses atomics and calls sigaction() and _exit(), which
        // signal-safety(7) allows.
        unsafe { sigaction(Signal::SIGALRM, &alarm) }?;
        let action = SigAction::new(SigHandler::Handler(on_signal), SaFlags::empty(), mask);
        for signal in ENDING {
            // SAFETY: the handler only accesses atomics and calls write(), which signal-safety(7)
            // allows, and setitimer(), which is a system call and nothing else.
            unsafe { sigaction(signal, &action) }?;
        }
        Ok(stop)
    }

    /// As [`check`].
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        check()
    }

    /// Waits for `events` on `fd`, up to `timeout` if there is one.
    pub(crate) fn wait(
        &self,
        fd: BorrowedFd<'_>,
        events: PollFlags,
        timeout: Option<&mut Timeout>,
    ) -> io::Result<Wake> {
        Self::poll([(self.event.as_fd(), PollFlags::IN), (fd, events)].map(ready), timeout)
    }

    /// Waits until one of two descriptors is readable, up to `timeout` if there is one.
    pub(crate) fn wait_either(
        &self,
        a: BorrowedFd<'_>,
        b: BorrowedFd<'_>,
        timeout: Option<&mut Timeout>,
    ) -> io::Result<Wake> {
        Self::poll([self.event.as_fd(), a, b].map(|fd| ready((fd, PollFlags::IN))), timeout)
    }

    /// Waits until the deadline.
    pub(crate) fn sleep(&self, deadline: Instant) -> io::Result<Wake> {
        Self::poll([ready((self.event.as_fd(), PollFlags::IN))], Some(&mut Timeout::at(deadline)))
    }

    /// Waits for any of `fds`. The first one is the eventfd of the `Stop`.
    fn poll<const N: usize>(mut fds: [PollFd<'_>; N], mut timeout: Option<&mut Timeout>) -> io::Result<Wake> {
        loop {
            let left = timeout.as_mut().map(|timeout| timeout.left());
            match poll(&mut fds, left.map(timespec).as_ref()) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(0) => return Ok(Wake::TimedOut),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(Wake::Stopped),
                Ok(_) => return Ok(Wake::Ready),
            }
        }
    }
}

/// A time limit over several waits.
///
/// The first wait does not read the clock, because that is a system call in some virtual machines.
/// The clock starts when the first wait has ended early. So the total can be almost twice the
/// limit.
#[derive(Debug)]
pub(crate) enum Timeout {
    Fresh(Duration),
    Waited(Duration),
    Until(Instant),
}

impl Timeout {
    pub(crate) fn after(limit: Duration) -> Self {
        Self::Fresh(limit)
    }

    fn at(deadline: Instant) -> Self {
        Self::Until(deadline)
    }

    fn left(&mut self) -> Duration {
        match *self {
            Self::Fresh(limit) => {
                *self = Self::Waited(limit);
                limit
            }
            Self::Waited(limit) => {
                *self = Self::Until(Instant::now() + limit);
                limit
            }
            Self::Until(deadline) => deadline.saturating_duration_since(Instant::now()),
        }
    }
}

fn ready((fd, events): (BorrowedFd<'_>, PollFlags)) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, events)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() }
}

/// Notes a signal that was taken elsewhere.
pub(crate) fn arrived(signal: i32) -> io::Result<()> {
    Stop::on_signals_with_results()?;
    on_signal(signal);
    Ok(())
}

extern "C" fn on_signal(signal: i32) {
    if SIGNAL.compare_exchange(0, signal, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let rest = Duration::from_millis(GRACE.load(Ordering::Relaxed).into()) - TOGETHER;
    let times = libc::itimerval { it_value: timeval(TOGETHER), it_interval: timeval(rest) };
    // SAFETY: the kernel reads the times, which live during the call, and writes nothing.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const times, std::ptr::null_mut()) };
    let event: RawFd = WAKE.load(Ordering::Relaxed);
    // SAFETY: `Stop::on_signals` leaked the eventfd before it set the handler, so it stays open.
    let event = unsafe { BorrowedFd::borrow_raw(event) };
    // If the counter is at its maximum, the eventfd is readable already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

/// The first alarm is the end of [`TOGETHER`], the second one that of the grace
/// period.
extern "C" fn on_alarm(_: i32) {
    if IS_LAST.swap(true, Ordering::Relaxed) {
        // SAFETY: _exit() runs no code of the process. The kernel releases what it has.
        unsafe { libc::_exit(exit_status()) };
    }
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in ENDING {
        // SAFETY: the default action runs no code of the process. The signals are valid.
        let _ = unsafe { sigaction(signal, &default) };
    }
}

fn timeval(time: Duration) -> libc::timeval {
    libc::timeval { tv_sec: time.as_secs() as i64, tv_usec: time.subsec_micros().into() }
}

#[cfg(test)]
impl Stop {
    pub(crate) fn trigger(&self) {
        rustix::io::write(&self.event, &1u64.to_ne_bytes()).expect("writing to an eventfd");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_at_its_deadline() {
        let stop = Stop::new().unwrap();
        let (silent, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let start = Instant::now();
        let mut timeout = Timeout::after(Duration::from_millis(20));
        for waits in 1..=3 {
            let woken = stop.wait(silent.as_fd(), PollFlags::IN, Some(&mut timeout)).unwrap();
            assert_eq!(woken, Wake::TimedOut);
            // The clock starts with the second wait.
            assert!(start.elapsed() >= Duration::from_millis(20 * waits.min(2)));
        }
    }

    #[test]
    fn sleep_ends_at_its_deadline_or_on_a_signal() {
        let stop = Stop::new().unwrap();
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(stop.sleep(soon).unwrap(), Wake::TimedOut);
        assert!(Instant::now() >= soon);
        stop.trigger();
        assert_eq!(stop.sleep(soon + Duration::from_secs(60)).unwrap(), Wake::Stopped);
    }

    #[test]
    fn wait_without_deadline_ends_on_a_signal() {
        let stop = Stop::new().unwrap();
        let (silent, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| stop.wait(silent.as_fd(), PollFlags::IN, None).unwrap());
            stop.trigger();
            assert_eq!(waiter.join().unwrap(), Wake::Stopped);
        });
    }

    #[test]
    fn stop_takes_precedence_over_readiness() {
        let stop = Stop::new().unwrap();
        let (ready, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(stop.wait(ready.as_fd(), PollFlags::OUT, None).unwrap(), Wake::Ready);
        stop.trigger();
        assert_eq!(stop.wait(ready.as_fd(), PollFlags::OUT, None).unwrap(), Wake::Stopped);
    }
}
