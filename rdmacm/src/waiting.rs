//! The values that calls return which wait: one future, for threads and for tasks.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use bareverbs::runtime::Runtime;
use bareverbs_provider::wait::{Caller, waits};
use bareverbs_provider::wake::answered;

use crate::command::CmFile;
use crate::ready::refused;
use crate::{Error, Result};

/// The result of a call that waits. A thread takes it by [`wait`](Self::wait), a task by `.await`. The
/// call begins then.
///
/// Drop ends the call: an attempt to connect, or the answer to a request. It loses no event of a
/// channel and no request of a listener. A wait after the result was returned panics.
///
/// ```
/// # bareverbs::Device::find("soft0").unwrap();
/// # std::thread::spawn(|| loop {
/// #     let options = bareverbs::Endpoint::options();
/// #     let connector = bareverbs_rdmacm::Connector::new();
/// #     let _ = connector.connect::<bareverbs::PoolBuffer>("127.0.0.1:7174", &options).wait();
/// # });
/// use bareverbs_rdmacm::Listener;
/// use std::time::Duration;
///
/// let listener = Listener::bind("0.0.0.0:7174")?;
/// let mut requested = listener.request();
/// let request = loop {
///     match requested.wait_timeout(Duration::from_secs(1)) {
///         Some(request) => break request?,
///         None => println!("no peer yet"),
///     }
/// };
/// # Ok::<(), bareverbs_rdmacm::Error>(())
/// ```
#[must_use = "the call begins with `wait`, `wait_timeout` or `.await`"]
pub struct Waiting<'a, T> {
    future: Pin<Box<dyn Future<Output = T> + Send + 'a>>,
    waiter: Waiter,
}

impl<'a, T> Waiting<'a, T> {
    /// The value of a call whose steps wait by the [`Waiter`].
    pub(crate) fn new<F: Future<Output = T> + Send + 'a>(steps: impl FnOnce(Waiter) -> F) -> Self {
        let waiter = Waiter::default();
        Self { future: Box::pin(steps(waiter.clone())), waiter }
    }

    /// The same call as a step of another one, whose caller waits for both.
    pub(crate) async fn within(mut self, outer: &Waiter) -> T {
        poll_fn(|cx| {
            self.waiter.set(outer.mode());
            let polled = self.future.as_mut().poll(cx);
            if matches!(self.waiter.mode(), Mode::Expired) {
                outer.expire();
            }
            polled
        })
        .await
    }

    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<T> {
        let end = match caller {
            Caller::Task(waker) => return self.future.as_mut().poll(&mut Context::from_waker(waker)),
            Caller::Thread(end) => end,
        };
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            self.waiter.set(Mode::Thread { end });
            let polled = self.future.as_mut().poll(&mut Context::from_waker(&waker));
            let has_passed = matches!(self.waiter.mode(), Mode::Expired);
            self.waiter.set(Mode::Task);
            if polled.is_ready() || has_passed {
                return polled;
            }
            // Its time has passed, or it goes on with work that a task has begun.
            match end.map(|end| end.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Poll::Pending,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
    }
}

waits!([T] Waiting<'_, T> => T);

impl<T> fmt::Debug for Waiting<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").finish_non_exhaustive()
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The poller of a [`Waiting`].
#[derive(Clone, Copy, Debug, Default)]
enum Mode {
    /// A task: the future pends.
    #[default]
    Task,
    /// A thread: the future blocks, and pends at the end. `None`: without end.
    Thread { end: Option<Instant> },
    /// A thread whose time has passed, perhaps that of a fabric of virtual time.
    Expired,
}

/// How the steps of a [`Waiting`] wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiter(Arc<Mutex<Mode>>);

impl Waiter {
    fn set(&self, mode: Mode) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    fn mode(&self) -> Mode {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_task(&self) -> bool {
        matches!(self.mode(), Mode::Task)
    }

    /// The current poller.
    pub(crate) fn caller<'w>(&self, cx: &Context<'w>) -> Caller<'w> {
        match self.mode() {
            Mode::Task => Caller::Task(cx.waker()),
            Mode::Thread { end } => Caller::Thread(end),
            Mode::Expired => Caller::Thread(Some(Instant::now())),
        }
    }

    /// Notes that a wait for an event has not got one: in a thread, its time has passed.
    pub(crate) fn expire(&self) {
        if !self.is_task() {
            self.set(Mode::Expired);
        }
    }

    /// To be called between events that peers may cause without end. It ends the wait if the time limit
    /// has passed, or lets other tasks run.
    pub(crate) async fn pass(&self, file: &CmFile) {
        let mut has_passed = false;
        poll_fn(|cx| match self.caller(cx) {
            Caller::Thread(end) if file.is_past(end) => Poll::Pending,
            Caller::Task(waker) if !std::mem::replace(&mut has_passed, true) => {
                waker.wake_by_ref();
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
        .await;
    }

    /// Runs work that blocks: in the thread that waits, or else beside the tasks of the runtime.
    ///
    /// # Errors
    /// There is no runtime, or it refused the work, or it has ended.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        runtime: Option<Arc<dyn Runtime>>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        if !self.is_task() {
            return Ok(work());
        }
        let (work, answer) = answered(work);
        let runtime = runtime.ok_or_else(not_attached)?;
        runtime.blocking(Box::new(work)).map_err(|error| refused(&error))?;
        answer.await.ok_or_else(|| Error::invalid("await", "the async runtime has ended"))
    }
}

/// The error of a task without a runtime.
pub(crate) fn not_attached() -> Error {
    let reason = "there is no async runtime: give one at set-up by `attach`, or by `runtime` of the options, \
                  or call `wait` in a thread";
    Error::invalid("await", reason)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::key::{self, KeyInfo};
    use crate::testing::Count;
    use crate::{EventChannel, PortSpace};

    /// A runtime without a reactor.
    #[derive(Debug)]
    enum Blocking {
        /// A thread for each call that blocks.
        Threads,
        /// The runtime has ended: it drops the calls.
        Ended,
    }

    impl Runtime for Blocking {
        fn register(
            &self,
            _: Arc<std::os::fd::OwnedFd>,
        ) -> std::io::Result<Box<dyn bareverbs::runtime::Readable>> {
            Err(std::io::ErrorKind::Unsupported.into())
        }

        fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
            match self {
                Self::Threads => drop(thread::spawn(work)),
                Self::Ended => drop(work),
            }
            Ok(())
        }
    }

    fn threads() -> Option<Arc<dyn Runtime>> {
        Some(Arc::new(Blocking::Threads))
    }

    fn poll<T>(waiting: &mut Waiting<'_, T>) -> Poll<T> {
        Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop()))
    }

    /// As runtimes with several threads require.
    #[test]
    fn waits_can_move_to_another_thread() {
        fn can_move<T: Send + Unpin>() {}
        can_move::<Waiting<'_, Result<()>>>();
    }

    #[test]
    fn pass_ends_at_the_time_limit() {
        let channel = EventChannel::simulated();
        let passing = || {
            Waiting::new(|waiter| async {
                let waiter = waiter;
                waiter.pass(channel.file()).await
            })
        };
        assert!(passing().wait_timeout(Duration::ZERO).is_none());
        // The second limit overflows `Instant`.
        for limit in [Duration::from_secs(3600), Duration::MAX] {
            passing().wait_timeout(limit).unwrap();
        }
        let mut by_task = passing();
        assert!(poll(&mut by_task).is_pending());
        assert!(poll(&mut by_task).is_ready());
    }

    #[test]
    fn pass_of_a_task_wakes_it_again() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let channel = EventChannel::simulated();
        let mut passing = Waiting::new(|waiter| async {
            let waiter = waiter;
            waiter.pass(channel.file()).await
        });
        assert!(Pin::new(&mut passing).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(count.wakes(), 1);
    }

    #[test]
    fn task_goes_on_with_the_wait_of_a_thread() {
        let channel = EventChannel::simulated();
        let mut next = channel.next();
        assert!(next.wait_timeout(Duration::from_millis(1)).is_none());
        // It does not wait as the thread did.
        assert!(matches!(poll(&mut next), Poll::Ready(Err(Error::Invalid { verb: "await", .. }))));
    }

    #[test]
    fn thread_waits_until_its_time_limit_for_the_work_that_a_task_has_begun() {
        let (go, gone) = mpsc::channel();
        let work = move || gone.recv().unwrap();
        let mut work = Waiting::new(|waiter| async move { waiter.blocking(threads(), work).await });
        assert!(poll(&mut work).is_pending());
        thread::spawn(move || go.send(7).unwrap());
        assert_eq!(work.wait_timeout(Duration::from_secs(20)).transpose().unwrap(), Some(7));
    }

    #[test]
    fn wait_goes_on_after_its_time_limit() {
        let channel = EventChannel::simulated();
        let key = key::create(KeyInfo { port_space: PortSpace::Tcp, qp_type: bareverbs::qp::QpType::RC });
        let mut next = channel.next();
        assert!(next.wait_timeout(Duration::from_millis(1)).is_none());
        let uid = key.get();
        let event = bareverbs_uapi::rdma_cm::EventType::ADDR_CHANGE;
        channel.file().kernel().report(bareverbs_uapi::rdma_cm::structs::EventResp {
            uid,
            event,
            ..bareverbs_uapi::rdma_cm::structs::EventResp::zeroed()
        });
        assert_eq!(next.wait().unwrap().key, key);
    }

    #[test]
    fn error_of_the_channel_ends_the_wait() {
        // A file that refuses commands is not an event channel.
        let error = EventChannel::for_test().next().wait().unwrap_err();
        let Error::Command(error) = error else { panic!("{error}") };
        assert_eq!((error.command, error.errno), ("GET_EVENT", rustix::io::Errno::BADF));
    }

    #[test]
    fn task_without_a_runtime_gets_an_error() {
        let channel = EventChannel::simulated();
        let Poll::Ready(refused) = poll(&mut channel.next()) else { panic!("it pends") };
        assert!(matches!(refused, Err(Error::Invalid { verb: "await", .. })));
        let mut work = Waiting::new(|waiter| async move { waiter.blocking(None, || 7).await });
        let Poll::Ready(refused) = poll(&mut work) else { panic!("it pends") };
        assert!(matches!(refused, Err(Error::Invalid { verb: "await", .. })));
    }

    #[test]
    fn end_of_the_runtime_ends_the_wait() {
        let ended = Some(Arc::new(Blocking::Ended) as Arc<dyn Runtime>);
        let mut work = Waiting::new(|waiter| async move { waiter.blocking(ended, || 7).await });
        let Poll::Ready(dropped) = poll(&mut work) else { panic!("it pends") };
        assert!(dropped.unwrap_err().to_string().contains("has ended"));
    }

    #[test]
    fn thread_goes_on_with_the_work_that_a_task_has_begun() {
        let (go, gone) = mpsc::channel();
        let work = move || gone.recv().map(|()| thread::current().id()).unwrap();
        let mut work = Waiting::new(|waiter| async move { waiter.blocking(threads(), work).await });
        assert!(poll(&mut work).is_pending());
        assert!(work.wait_timeout(Duration::from_millis(1)).is_none());
        go.send(()).unwrap();
        assert_ne!(work.wait().unwrap(), thread::current().id());
        // A thread needs no runtime.
        let own =
            Waiting::new(|waiter| async move { waiter.blocking(None, || thread::current().id()).await });
        assert_eq!(own.wait().unwrap(), thread::current().id());
    }
}
