//! Watches a run: signals, the peer, and the time without progress.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::signal::Stop;

/// Polls without a completion between two looks at the clock.
const SPINS: u32 = 1 << 12;
/// Calls of [`Watch::progress`] between two looks at the peer.
const COMPLETIONS: u32 = 1 << 10;
/// The time in which requests complete after the peer has closed its connection.
const GRACE: Duration = Duration::from_secs(1);

/// Why the wait is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on polling.
    Wait,
    /// The peer closed its connection some time ago.
    PeerGone,
    /// Nothing completed for this time.
    Stalled(Duration),
    /// Another thread failed.
    Aborted,
}

/// The state of a wait.
pub(crate) struct Watch<'a> {
    stop: &'a Stop,
    /// The control connection, and the events that mean its end.
    peer: BorrowedFd<'a>,
    end: PollFlags,
    /// Whether another thread has failed.
    abort: &'a AtomicBool,
    /// The time without progress after which the run ends.
    stall_timeout: Duration,
    spins: u32,
    /// Calls of [`Watch::progress`] since the last look.
    busy: u32,
    quiet: Option<Instant>,
    gone: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(
        stop: &'a Stop,
        (peer, end): (BorrowedFd<'a>, PollFlags),
        abort: &'a AtomicBool,
        stall_timeout: Duration,
    ) -> Self {
        Self { stop, peer, end, abort, stall_timeout, spins: 0, busy: 0, quiet: None, gone: None }
    }

    /// Notes that nothing can complete, because nothing is outstanding.
    #[inline]
    pub(crate) fn idle(&mut self) {
        self.quiet = None;
    }

    /// Notes that something completed. `Wait`: go on.
    ///
    /// A busy run looks around now and then: sends of datagrams complete without a peer.
    #[inline]
    pub(crate) fn progress(&mut self) -> Result<Verdict> {
        (self.spins, self.quiet) = (0, None);
        self.busy += 1;
        let ends = self.stop.check().is_err() || self.abort.load(Ordering::Relaxed);
        if self.busy < COMPLETIONS && self.gone.is_none() && !ends {
            return Ok(Verdict::Wait);
        }
        self.look_while_busy()
    }

    #[cold]
    fn look_while_busy(&mut self) -> Result<Verdict> {
        self.busy = 0;
        let verdict = self.look(None)?;
        self.quiet = None;
        // The peer closes its connection when both sides are done.
        let late = self.gone.is_some_and(|gone| gone.elapsed() >= GRACE);
        Ok(if verdict == Verdict::Wait && late { Verdict::PeerGone } else { verdict })
    }

    /// Notes a poll that found nothing. `Some` if it was time to look around.
    #[inline]
    pub(crate) fn spin(&mut self) -> Result<Option<Verdict>> {
        self.spins += 1;
        if self.spins < SPINS {
            return Ok(None);
        }
        self.spins = 0;
        self.look(None).map(Some)
    }

    /// Sleeps until `fd` is readable, the peer closes its connection or the time is over.
    pub(crate) fn sleep(&mut self, fd: BorrowedFd<'_>, until: Option<Duration>) -> Result<Verdict> {
        let longest = Duration::from_millis(100);
        self.look(Some((fd, until.map_or(longest, |until| until.min(longest)))))
    }

    /// Waits until the peer closes its connection, up to a limit.
    pub(crate) fn wait_for_end(&mut self, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        while self.gone.is_none() && Instant::now() < deadline {
            self.stop.check()?;
            let mut fds = [PollFd::from_borrowed_fd(self.peer, self.end)];
            let slice = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            match poll(&mut fds, Some(&slice)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => self.gone = Some(Instant::now()),
                Err(errno) => return Err(std::io::Error::from(errno).into()),
            }
        }
        Ok(())
    }

    fn look(&mut self, wait: Option<(BorrowedFd<'_>, Duration)>) -> Result<Verdict> {
        self.stop.check()?;
        if self.abort.load(Ordering::Relaxed) {
            return Ok(Verdict::Aborted);
        }
        let watched = if self.gone.is_some() { PollFlags::empty() } else { self.end };
        // Without a wait, the connection stands in for the descriptor.
        let (fd, events, time) = match wait {
            Some((fd, time)) => (fd, PollFlags::IN, time),
            None => (self.peer.as_fd(), PollFlags::empty(), Duration::ZERO),
        };
        let mut fds = [PollFd::from_borrowed_fd(fd, events), PollFd::from_borrowed_fd(self.peer, watched)];
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // A peer that closed its connection ends each wait early.
        let count = if self.gone.is_some() && wait.is_some() { 1 } else { 2 };
        match poll(&mut fds[..count], Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
        let now = Instant::now();
        let ended = self.end | PollFlags::HUP | PollFlags::ERR;
        if count == 2 && fds[1].revents().intersects(ended) {
            self.gone.get_or_insert(now);
        }
        let quiet = *self.quiet.get_or_insert(now);
        if self.gone.is_some_and(|gone| now.duration_since(gone.max(quiet)) >= GRACE) {
            return Ok(Verdict::PeerGone);
        }
        if now.duration_since(quiet) >= self.stall_timeout {
            return Ok(Verdict::Stalled(self.stall_timeout));
        }
        Ok(Verdict::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    use crate::perf::plan::STALL_TIMEOUT;

    static ABORT: AtomicBool = AtomicBool::new(false);

    #[test]
    fn failure_of_another_thread_ends_the_wait() {
        let (stop, abort) = (Stop::new().unwrap(), AtomicBool::new(false));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut watch = Watch::new(&stop, (ours.as_fd(), PollFlags::RDHUP), &abort, STALL_TIMEOUT);
        assert_eq!(watch.look(None).unwrap(), Verdict::Wait);
        assert_eq!(watch.progress().unwrap(), Verdict::Wait);
        abort.store(true, Ordering::Relaxed);
        assert_eq!(watch.look(None).unwrap(), Verdict::Aborted);
        assert_eq!(watch.progress().unwrap(), Verdict::Aborted, "a busy run ends too");
    }

    #[test]
    fn closed_connection_ends_a_busy_run_after_the_grace_time() {
        let stop = Stop::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut watch = Watch::new(&stop, (ours.as_fd(), PollFlags::RDHUP), &ABORT, STALL_TIMEOUT);
        for _ in 0..2 * COMPLETIONS {
            assert_eq!(watch.progress().unwrap(), Verdict::Wait);
        }
        let start = Instant::now();
        drop(theirs);
        while watch.progress().unwrap() == Verdict::Wait {
            assert!(start.elapsed() < STALL_TIMEOUT);
        }
        assert_eq!(watch.progress().unwrap(), Verdict::PeerGone);
        assert!(start.elapsed() >= GRACE);
    }

    #[test]
    fn closed_connection_ends_the_wait_after_the_grace_time() {
        let stop = Stop::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut watch = Watch::new(&stop, (ours.as_fd(), PollFlags::RDHUP), &ABORT, STALL_TIMEOUT);
        let start = Instant::now();
        assert_eq!(watch.look(None).unwrap(), Verdict::Wait);
        drop(theirs);
        loop {
            match watch.spin().unwrap() {
                Some(Verdict::PeerGone) => break,
                None | Some(Verdict::Wait) => {}
                Some(Verdict::Stalled(_) | Verdict::Aborted) => panic!("the peer is gone"),
            }
        }
        assert!((GRACE..STALL_TIMEOUT).contains(&start.elapsed()));
    }

    #[test]
    fn run_without_progress_has_stalled_after_its_timeout() {
        let stop = Stop::new().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let timeout = Duration::from_millis(50);
        let mut watch = Watch::new(&stop, (ours.as_fd(), PollFlags::RDHUP), &ABORT, timeout);
        let start = Instant::now();
        while watch.look(None).unwrap() == Verdict::Wait {}
        assert_eq!(watch.look(None).unwrap(), Verdict::Stalled(timeout));
        assert!(start.elapsed() >= timeout);
    }

    #[test]
    fn readable_descriptor_ends_a_sleep() {
        use std::io::Write;
        let stop = Stop::new().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (events, mut other) = UnixStream::pair().unwrap();
        let mut watch = Watch::new(&stop, (ours.as_fd(), PollFlags::RDHUP), &ABORT, STALL_TIMEOUT);
        other.write_all(b"x").unwrap();
        let start = Instant::now();
        // A sleep that the descriptor does not end takes 100 ms.
        for _ in 0..100 {
            assert_eq!(watch.sleep(events.as_fd(), None).unwrap(), Verdict::Wait);
        }
        assert!(start.elapsed() < Duration::from_secs(9));
    }
}
