//! What the threads and tasks of a stream share, and how they wait.

use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use bareverbs::Pd;
use bareverbs::runtime::{Readable, Runtime};
use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::wait::{Caller, end_of, is_past};
use bareverbs_provider::wake::wake_all;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::link::Link;
use super::session::{BATCH, Session};
use super::woken::Woken;
use super::{Result, StreamError};
use crate::Error;
use crate::ready::{add, combine, is_readable, refused, register};
use crate::waiting::not_attached;

/// How long a call polls before it sleeps, as in rdma-core.
const POLLING_TIME: Duration = Duration::from_micros(10);

/// [`POLLING_TIME`], or none on one processor: the peer or the device's driver can't run while this
/// thread polls.
fn polling_time() -> Duration {
    static TIME: OnceLock<Duration> = OnceLock::new();
    *TIME.get_or_init(|| match available_parallelism() {
        Ok(processors) if processors.get() == 1 => Duration::ZERO,
        _ => POLLING_TIME,
    })
}

/// How long the drop of a stream waits for the peer's device, unless the program says otherwise.
const LINGER: Duration = Duration::from_secs(1);

/// What made the descriptor of a stream readable.
const COMPLETION: u64 = 0;
const CONNECTION: u64 = 1;
const KEEPALIVE: u64 = 2;
const WAKE: u64 = 3;
const LEFT: u64 = 4;

/// A stream as its threads and tasks share it.
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified when the state may have changed.
    changed: Condvar,
    /// Tasks that wait.
    tasks: Arc<Tasks>,
    /// Readable when there is a completion or an event of the connection, or the thread that sleeps
    /// on it is woken.
    ready: Arc<OwnedFd>,
    /// The descriptor as the runtime of the tasks has it.
    readable: Option<Box<dyn Readable>>,
    /// An eventfd that wakes the thread that sleeps on the descriptor, when another one has handled
    /// the completion and its event.
    wake: OwnedFd,
    pub(super) pd: Pd,
    pub(super) local: SocketAddr,
    pub(super) peer: SocketAddr,
}

pub(super) struct State {
    /// Dropped before the link: the queue pair belongs to the link's identifier.
    pub(super) session: Session,
    link: Link,
    /// Whether a thread sleeps on the descriptor. It wakes the others when it has slept.
    sleeping: bool,
    /// Threads that wait for it.
    waiting: usize,
    /// Whether the eventfd `wake` was written for that thread.
    has_wake: bool,
    keepalive: Option<Keepalive>,
    /// An eventfd that makes the descriptor readable while completions may be left. It is created on
    /// first use.
    left: Option<OwnedFd>,
    /// Whether it was written and not read since.
    has_left: bool,
    pub(super) nonblocking: bool,
    pub(super) timeouts: [Option<Duration>; 2],
    /// How long the drop of the stream waits.
    pub(super) linger: Duration,
}

/// How long the peer's device has for its first answer, until it is asked again; and from then on.
const FIRST_ANSWER: Duration = Duration::from_millis(20);
const LATER_ANSWERS: Duration = Duration::from_secs(1);

/// When the connection is to be probed.
enum Keepalive {
    /// When this timer expires.
    Timer(OwnedFd),
    /// When this timer expires, until the peer's device has answered once.
    FirstAnswer(OwnedFd),
    /// At the time `next` of a seeded fabric.
    Virtual { interval: Duration, next: Duration },
}

/// What a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl State {
    /// Whether the connection is to be probed now. The next interval begins then.
    fn is_probe_due(&mut self) -> bool {
        match &mut self.keepalive {
            // The timer is not readable before it expires.
            Some(Keepalive::Timer(timer) | Keepalive::FirstAnswer(timer)) => {
                rustix::io::read(timer, &mut [0; 8]).is_ok()
            }
            Some(Keepalive::Virtual { interval, next }) => {
                let due = self.link.channel().file().virtual_now().filter(|now| now >= next);
                *next = due.map_or(*next, |now| now.saturating_add(*interval));
                due.is_some()
            }
            None => false,
        }
    }

    /// Probes the connection.
    fn probe(&mut self) -> Result<()> {
        if !matches!(self.keepalive, Some(Keepalive::FirstAnswer(_))) {
            return self.session.probe();
        }
        if !self.session.ask_for_answer()? {
            self.keepalive = None;
        }
        Ok(())
    }
}

/// The tasks that wait, one for each direction. A runtime keeps one waker of a descriptor. It gets
/// this one, which wakes both.
#[derive(Default)]
pub(super) struct Tasks {
    wakers: Mutex<[Option<Waker>; 2]>,
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, [Option<Waker>; 2]> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, direction: Direction, waker: &Waker) {
        // Cloning and dropping a waker may run any code, so both are done without the lock.
        let waker = waker.clone();
        let earlier = self.lock()[direction as usize].replace(waker);
        drop(earlier);
    }

    /// Takes the tasks, except for that of the direction `own`.
    fn take_others(&self, own: Option<Direction>) -> [Option<Waker>; 2] {
        let mut wakers = self.lock();
        [Direction::Read, Direction::Write]
            .map(|direction| if own == Some(direction) { None } else { wakers[direction as usize].take() })
    }
}

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        let wakers = std::mem::take(&mut *self.lock());
        wake_all(wakers.into_iter().flatten());
    }
}

impl Shared {
    pub(super) fn new(
        mut session: Session,
        link: Link,
        local: SocketAddr,
        peer: SocketAddr,
        runtime: Option<&Arc<dyn Runtime>>,
    ) -> Result<Self> {
        let system = |errno| Error::System { what: "creating the descriptor of a stream", errno };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let endpoint = session.endpoint();
        let pd = endpoint.qp().pd().clone();
        let fds = [(endpoint.as_fd(), COMPLETION), (link.as_fd(), CONNECTION), (wake.as_fd(), WAKE)];
        let ready = Arc::new(combine(&fds).map_err(system)?);
        let readable = register(runtime, &ready)?;
        let state = State {
            session,
            link,
            sleeping: false,
            waiting: 0,
            has_wake: false,
            keepalive: None,
            left: None,
            has_left: false,
            nonblocking: false,
            timeouts: [None; 2],
            // Tasks must not block their runtime.
            linger: if runtime.is_some() { Duration::ZERO } else { LINGER },
        };
        let (state, changed, tasks) = (Mutex::new(state), Condvar::new(), Arc::default());
        Ok(Self { state, changed, tasks, ready, readable, wake, pd, local, peer })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No call panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ready(&self) -> &OwnedFd {
        &self.ready
    }

    /// Probes the connection at this interval, while a thread or a task waits for the stream.
    pub(super) fn set_keepalive(&self, interval: Option<Duration>) -> Result<()> {
        let mut state = self.lock();
        let Some(interval) = interval else {
            // Closing the timer removes it from the epoll instance.
            drop(state.keepalive.take_if(|keepalive| !matches!(keepalive, Keepalive::FirstAnswer(_))));
            return Ok(());
        };
        state.keepalive = None;
        if let Some(now) = state.link.channel().file().virtual_now() {
            state.keepalive = Some(Keepalive::Virtual { interval, next: now.saturating_add(interval) });
            return Ok(());
        }
        state.keepalive = Some(Keepalive::Timer(self.timer(interval, interval)?));
        Ok(())
    }

    /// Asks the peer's device again, while a thread or a task waits for the stream, until it has answered.
    pub(super) fn await_answer(&self) -> Result<()> {
        let timer = self.timer(FIRST_ANSWER, LATER_ANSWERS)?;
        self.lock().keepalive = Some(Keepalive::FirstAnswer(timer));
        Ok(())
    }

    /// A timer that makes the descriptor readable.
    fn timer(&self, first: Duration, interval: Duration) -> Result<OwnedFd> {
        let system = |errno| Error::System { what: "setting the keepalive timer of a stream", errno };
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(system)?;
        let [it_value, it_interval] = [first, interval]
            .map(|time| Timespec::try_from(time).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
        let times = Itimerspec { it_interval, it_value };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times).map_err(system)?;
        add(&self.ready, &timer, KEEPALIVE).map_err(system)?;
        Ok(timer)
    }

    /// Attempts as the stream says for the direction: for its time limit, or once if it is non-blocking.
    pub(super) fn call<T>(
        &self,
        direction: Direction,
        mut attempt: impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Result<T> {
        let (state, result) = self.attempt_once(self.lock(), None, false, &mut attempt)?;
        if let Some(result) = result {
            return Ok(result);
        }
        if state.nonblocking {
            return self.attempt_after_events(state, None, &mut attempt)?.ok_or(StreamError::WouldBlock);
        }
        let limit = state.timeouts[direction as usize];
        let end = limit.and_then(end_of);
        let limit = limit.unwrap_or_default();
        self.wait(state, end, &mut attempt)?.ok_or(StreamError::TimedOut { limit })
    }

    /// Attempts until there is a result. Pending: the time of the thread has passed, or the task is woken
    /// when another attempt is worthwhile.
    pub(super) fn poll_by<T>(
        &self,
        caller: Caller<'_>,
        direction: Direction,
        mut attempt: impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Poll<Result<T>> {
        let waker = match caller {
            Caller::Task(waker) => waker,
            Caller::Thread(end) => {
                let result = self.wait(self.lock(), end, &mut attempt);
                return result.transpose().map_or(Poll::Pending, Poll::Ready);
            }
        };
        let Some(readable) = &self.readable else { return Poll::Ready(Err(not_attached().into())) };
        loop {
            // Before the attempt: another task that finds this one's bytes later wakes it.
            self.tasks.set(direction, waker);
            if let Some(result) = self.attempt(Some(direction), &mut attempt)? {
                return Poll::Ready(Ok(result));
            }
            let both = Waker::from(Arc::clone(&self.tasks));
            let polled = ready!(readable.poll_readable(&mut Context::from_waker(&both)));
            polled.map_err(|error| refused(&error))?;
        }
    }

    /// Handles what has happened, and attempts once. `Ok(None)`: the descriptor becomes readable
    /// when another attempt is worthwhile. `task` is the direction of the task that attempts, or `None`
    /// for a thread.
    pub(super) fn attempt<T>(
        &self,
        task: Option<Direction>,
        mut attempt: impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let (state, result) = self.attempt_once(self.lock(), task, false, &mut attempt)?;
        match result {
            Some(result) => Ok(Some(result)),
            None => self.attempt_after_events(state, task, &mut attempt),
        }
    }

    /// Handles events, arms the CQ, handles completions and attempts.
    fn attempt_after_events<T>(
        &self,
        state: MutexGuard<'_, State>,
        task: Option<Direction>,
        attempt: &mut impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let state = self.handle_events(state, task)?;
        Ok(self.attempt_once(state, task, true, attempt)?.1)
    }

    /// Handles events of the connection, and the end of the keepalive interval. The other threads and
    /// tasks notice, because the descriptor does not report an event that was read. Tasks are woken as
    /// by [`progress`](Self::progress).
    fn handle_events<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        task: Option<Direction>,
    ) -> Result<MutexGuard<'a, State>> {
        let end = state.link.end()?;
        let mut is_new = state.link.is_established() && state.session.confirm();
        if let Some(end) = end {
            is_new |= state.session.connection_ended(end);
        }
        if is_new {
            let mut woken = Woken::default();
            self.notify(&mut state, &mut woken, task);
            state = self.wake_tasks(state, woken);
        }
        if state.is_probe_due() {
            state.probe()?;
        }
        let has_left = std::mem::replace(&mut state.has_left, false);
        if let Some(left) = &state.left
            && has_left
        {
            // It was written, so it does not fail.
            let _ = rustix::io::read(left, &mut [0; 8]);
        }
        Ok(state)
    }

    /// Handles completions and attempts. `arms`: arms the CQ before.
    fn attempt_once<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        task: Option<Direction>,
        arms: bool,
        attempt: &mut impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Result<(MutexGuard<'a, State>, Option<T>)> {
        // Completions before the arming raise no event, so it is followed by a poll. There is
        // nothing to arm after the removal of the device.
        if arms
            && state.session.error().is_none()
            && let Err(error) = state.session.endpoint().arm()
        {
            // The event of a removal is the more precise error.
            state = self.handle_events(state, task)?;
            if state.session.error().is_none() {
                return Err(error.into());
            }
        }
        let (mut state, handled) = self.progress(state, task);
        if arms && handled == BATCH {
            self.report_left(&mut state)?;
        }
        let result = attempt(&mut state.session)?;
        Ok((state, result))
    }

    /// Handles completions, at most [`BATCH`], and returns their number.
    ///
    /// Tasks are woken without the lock, and before the caller attempts: if a waker panics, the caller
    /// has not taken its result.
    fn progress<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        task: Option<Direction>,
    ) -> (MutexGuard<'a, State>, usize) {
        let handled = state.session.progress();
        let mut woken = Woken::default();
        if handled > 0 {
            // What has arrived may be what another thread or task waits for. The descriptor does
            // not wake them: arming reads its event.
            self.notify(&mut state, &mut woken, task);
        }
        if state.session.error().is_some() {
            state.link.abandon();
        }
        (self.wake_tasks(state, woken), handled)
    }

    /// Wakes tasks without the lock.
    fn wake_tasks<'a>(&'a self, mut state: MutexGuard<'a, State>, mut woken: Woken) -> MutexGuard<'a, State> {
        if !woken.is_empty() {
            drop(state);
            woken.wake();
            state = self.lock();
        }
        state
    }

    /// Makes the descriptor readable, because no event may report the completions that are left.
    fn report_left(&self, state: &mut State) -> Result<()> {
        let system = |errno| Error::System { what: "reporting completions of a stream", errno };
        let left = match &mut state.left {
            Some(left) => left,
            none => {
                let left = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
                add(&self.ready, &left, LEFT).map_err(system)?;
                none.insert(left)
            }
        };
        rustix::io::write(left, &1u64.to_ne_bytes()).map_err(system)?;
        state.has_left = true;
        Ok(())
    }

    /// Ends a direction, or both, and lets its threads and tasks notice.
    pub(super) fn shutdown(&self, how: Shutdown) -> Result<()> {
        let mut woken = Woken::default();
        let mut state = self.lock();
        let ended = state.session.shutdown(how);
        self.notify(&mut state, &mut woken, None);
        ended
    }

    /// Lets the threads attempt that wait for the one that sleeps on the descriptor.
    fn notify_waiting(&self, state: &State) {
        // Each call is a system call.
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Lets the other threads and tasks attempt.
    fn notify(&self, state: &mut State, woken: &mut Woken, task: Option<Direction>) {
        self.notify_waiting(state);
        if state.sleeping && !state.has_wake {
            // The count of an eventfd that was read can't overflow.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            state.has_wake = true;
        }
        self.tasks.take_others(task).into_iter().for_each(|waker| woken.add(waker));
    }

    /// Attempts until there is a result, at most until `end`.
    fn wait<'a, T>(
        &'a self,
        state: MutexGuard<'a, State>,
        end: Option<Instant>,
        attempt: &mut impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let start = Instant::now();
        // Polling does not let a seeded fabric go on, and the limit is not one of real time.
        let runs_in_waits = state.link.channel().file().runs_in_waits();
        let spins_until = if runs_in_waits { start } else { start + polling_time() };
        // A thread that sleeps does so on the descriptor, which reports events.
        let mut events = end.is_some_and(|end| end <= start);
        let (mut state, mut now, mut is_late) = (state, start, false);
        loop {
            let result;
            (state, result) = self.attempt_once(state, None, false, attempt)?;
            if result.is_some() {
                return Ok(result);
            }
            // Completions raise no events while the thread polls, because the CQ is not armed.
            if now < spins_until && end.is_none_or(|end| now < end) {
                // Lets the other threads of the stream attempt, too.
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
            } else {
                if std::mem::take(&mut events) {
                    state = self.handle_events(state, None)?;
                }
                let result;
                (state, result) = self.attempt_once(state, None, true, attempt)?;
                if result.is_some() || is_late || is_past(end) && !runs_in_waits {
                    return Ok(result);
                }
                (state, events, is_late) = self.sleep(state, end)?;
            }
            now = Instant::now();
        }
    }

    /// Sleeps until something has happened, or until `end`. Returns whether there may be events
    /// beside completions, and whether the limit has passed. While another thread runs a seeded
    /// fabric, it is one of real time.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        end: Option<Instant>,
    ) -> Result<(MutexGuard<'a, State>, bool, bool)> {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if state.sleeping {
            state.waiting += 1;
            let (mut state, is_late) = match left {
                None => (self.changed.wait(state).unwrap_or_else(PoisonError::into_inner), false),
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    (state, waited.timed_out())
                }
            };
            state.waiting -= 1;
            return Ok((state, true, is_late));
        }
        state.sleeping = true;
        let channel = state.link.channel().clone();
        let alarm = match state.keepalive {
            Some(Keepalive::Virtual { next, .. }) => Some(next),
            _ => None,
        };
        drop(state);
        let before = channel.file().before_wait(end, alarm, || is_readable(self.ready.as_fd()));
        // The event is there, a probe is due, or the limit has passed in virtual time.
        let left = if matches!(before, Ok(BeforeWait::Block)) { left } else { Some(Duration::ZERO) };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut ready = [const { MaybeUninit::<epoll::Event>::uninit() }; 5];
        let slept = epoll::wait(&self.ready, &mut ready, left.as_ref());
        let mut state = self.lock();
        state.sleeping = false;
        if std::mem::take(&mut state.has_wake) {
            // Resets the eventfd.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
        // Another thread sleeps on the descriptor next, if this one does not.
        self.notify_waiting(&state);
        let is_late = before? == BeforeWait::TimedOut;
        match slept {
            Ok((ready, _)) => {
                let events = ready.iter().any(|event| event.data.u64() != COMPLETION);
                // A thread that has reached its limit looks for them once more.
                Ok((state, events || ready.is_empty(), is_late))
            }
            Err(Errno::INTR) => Ok((state, true, is_late)),
            Err(errno) => Err(Error::System { what: "waiting for a stream", errno }.into()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // A forked child does not inherit the rings.
        if !state.link.is_of_this_process() {
            return;
        }
        // Drop reports no error.
        let _ = state.session.shutdown(Shutdown::Both);
        let end = Instant::now().checked_add(state.linger);
        let _ = self.wait(self.lock(), end, &mut Session::flushed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;

    /// A task whose waker runs code of the application when it is called or dropped.
    struct Reenters(Arc<Tasks>);

    impl Reenters {
        fn use_tasks(&self) {
            assert!(self.0.wakers.try_lock().is_ok(), "no lock is held");
        }
    }

    impl Wake for Reenters {
        fn wake(self: Arc<Self>) {
            self.use_tasks();
        }
    }

    impl Drop for Reenters {
        fn drop(&mut self) {
            self.use_tasks();
        }
    }

    #[test]
    fn readiness_wakes_the_tasks_of_both_directions() {
        let (tasks, count) = (Arc::<Tasks>::default(), Arc::<Count>::default());
        for direction in [Direction::Read, Direction::Write] {
            tasks.set(direction, &Waker::from(Arc::clone(&count)));
        }
        tasks.wake();
        assert_eq!(count.wakes(), 2);
    }

    #[test]
    fn wakers_are_called_and_dropped_without_a_lock() {
        let tasks = Arc::<Tasks>::default();
        let waker = || Waker::from(Arc::new(Reenters(Arc::clone(&tasks))));
        for direction in [Direction::Read, Direction::Write, Direction::Read] {
            tasks.set(direction, &waker());
        }
        drop(tasks.take_others(Some(Direction::Write)));
        tasks.set(Direction::Read, &waker());
        Arc::clone(&tasks).wake();
        assert_eq!(Arc::strong_count(&tasks), 1, "both were woken");
    }
}
