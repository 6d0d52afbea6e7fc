//! Channels whose events tasks wait for.
//!
//! A channel is registered with the runtime once, whatever the number of its connections. The waker that
//! the runtime gets delivers events to their inboxes, which wakes the tasks that wait for them.

use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bareverbs::runtime::{Readable, Runtime};
use bareverbs_provider::wake::FirstPanic;

use super::{EventChannel, Inner, RawEvent};
use crate::ready::refused;
use crate::waiting::not_attached;
use crate::{Key, Result};

/// The runtime of a channel.
#[derive(Debug)]
pub(super) struct Attached {
    runtime: Arc<dyn Runtime>,
    readable: Box<dyn Readable>,
    /// The waker of [`Serve`], which is the only one that the runtime gets.
    waker: Waker,
}

/// The task that serves a channel. It runs when the runtime finds the descriptor readable. It does not
/// keep the channel alive, which keeps this waker.
struct Serve(Weak<Inner>);

impl Wake for Serve {
    fn wake(self: Arc<Self>) {
        let Some(inner) = self.0.upgrade() else { return };
        let channel = EventChannel { inner };
        if let Some(attached) = channel.attached() {
            let mut panics = FirstPanic::default();
            attached.serve(&channel, &mut panics);
            panics.resume();
        }
    }
}

impl Attached {
    /// Serves the channel and arms the descriptor. A waker that panics does not keep the descriptor from
    /// being armed for the other tasks.
    fn serve(&self, channel: &EventChannel, panics: &mut FirstPanic) {
        let mut goes_on = true;
        while goes_on {
            match self.poll_readable() {
                // The next wait of a task arms the descriptor, if the tasks read. With unread events,
                // arming it here would run this without end.
                Poll::Ready(Ok(())) => panics.catch(|| goes_on = channel.serve()),
                Poll::Ready(Err(_)) => {
                    panics.catch(|| channel.wake_tasks());
                    goes_on = false;
                }
                Poll::Pending => goes_on = false,
            }
        }
    }

    fn poll_readable(&self) -> Poll<Result<()>> {
        let polled = self.readable.poll_readable(&mut Context::from_waker(&self.waker));
        polled.map_err(|error| refused(&error))
    }

    /// Serves the channel, whose descriptor was readable. The caller arms the descriptor, unless this
    /// panics.
    fn serve_readable(&self, channel: &EventChannel) {
        let mut panics = FirstPanic::default();
        panics.catch(|| _ = channel.serve());
        if panics.caught() {
            self.serve(channel, &mut panics);
        }
        panics.resume();
    }
}

impl EventChannel {
    /// Registers the channel with an async runtime, for the tasks that wait for its events. The
    /// identifiers and connections on the channel have the same runtime. Threads may wait, too. Another
    /// call replaces the runtime, of tasks that wait, too.
    ///
    /// ```no_run
    /// use bareverbs::runtime::Runtime;
    /// use bareverbs_rdmacm::EventChannel;
    ///
    /// // `runtime` is `Tokio` or `AsyncIo` of `bareverbs::runtime`.
    /// async fn print_events(runtime: impl Runtime) -> bareverbs_rdmacm::Result<()> {
    ///     let channel = EventChannel::new()?;
    ///     channel.attach(runtime)?;
    ///     loop {
    ///         println!("{:?}", channel.next().await?);
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// The channel keeps its runtime then.
    ///
    /// - [`Error::Invalid`](crate::Error::Invalid): the calling thread has no such runtime.
    /// - [`Error::System`](crate::Error::System): the process has too many descriptors, or the runtime
    ///   refused the descriptor.
    pub fn attach(&self, runtime: impl Runtime) -> Result<()> {
        self.attach_to(&(Arc::new(runtime) as Arc<dyn Runtime>))
    }

    /// As [`attach`](Self::attach), to a runtime that several channels share.
    pub(crate) fn attach_to(&self, runtime: &Arc<dyn Runtime>) -> Result<()> {
        // A descriptor of its own: a runtime accepts none twice.
        let registered = runtime.register(Arc::new(self.descriptor()?));
        let readable = registered.map_err(|error| refused(&error))?;
        let waker = Waker::from(Arc::new(Serve(Arc::downgrade(&self.inner))));
        let attached = Attached { runtime: Arc::clone(runtime), readable, waker };
        let earlier = self.lock_attached().replace(Arc::new(attached));
        drop(earlier);
        self.wake_tasks();
        Ok(())
    }

    fn lock_attached(&self) -> MutexGuard<'_, Option<Arc<Attached>>> {
        self.inner.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attached(&self) -> Option<Arc<Attached>> {
        self.lock_attached().clone()
    }

    /// The runtime of the tasks.
    pub(crate) fn runtime(&self) -> Option<Arc<dyn Runtime>> {
        Some(Arc::clone(&self.attached()?.runtime))
    }

    /// Waits in a task for an event, as [`wait_raw`](Self::wait_raw) does in a thread.
    pub(crate) fn poll_raw(&self, key: Option<Key>, cx: &mut Context<'_>) -> Poll<Result<RawEvent>> {
        let mut attached = self.attached().ok_or_else(not_attached)?;
        loop {
            if let Some(event) = self.take_or_register(key, cx.waker())? {
                return Poll::Ready(Ok(event));
            }
            match attached.poll_readable() {
                Poll::Ready(Ok(())) => attached.serve_readable(self),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                // `attach` may have replaced the runtime before the task was registered. It wakes only
                // tasks that are.
                Poll::Pending => match self.attached() {
                    Some(now) if !Arc::ptr_eq(&now, &attached) => attached = now,
                    _ => return Poll::Pending,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::{fmt, io};

    use bareverbs_uapi::rdma_cm::EventType;
    use bareverbs_uapi::rdma_cm::structs::EventResp;

    use super::*;

    /// A runtime whose descriptor becomes readable when the test says so. Its first wait that finds it
    /// readable calls the function.
    #[derive(Clone, Default)]
    struct Manual(Arc<State>);

    #[derive(Default)]
    struct State(Mutex<(bool, Option<Waker>)>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl fmt::Debug for Manual {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Manual")
        }
    }

    impl Manual {
        /// A channel that is attached to a new one.
        fn attached(channel: &EventChannel) -> Self {
            let runtime = Self::default();
            channel.attach(runtime.clone()).unwrap();
            runtime
        }

        /// Whether a channel has its descriptor.
        fn is_registered(&self) -> bool {
            Arc::strong_count(&self.0) > 1
        }

        fn has_waker(&self) -> bool {
            self.0.0.lock().unwrap().1.is_some()
        }

        fn become_readable(&self) {
            let mut state = self.0.0.lock().unwrap();
            state.0 = true;
            let waker = state.1.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    impl Runtime for Manual {
        fn register(&self, _: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
            Ok(Box::new(self.clone()))
        }

        fn blocking(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            unreachable!("no test blocks")
        }
    }

    impl Readable for Manual {
        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            let mut state = self.0.0.lock().unwrap();
            if std::mem::take(&mut state.0) {
                if let Some(call) = self.0.1.lock().unwrap().take() {
                    call();
                }
                return Poll::Ready(Ok(()));
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        }
    }

    fn new_key() -> Key {
        crate::key::create(crate::key::KeyInfo {
            port_space: crate::PortSpace::Tcp,
            qp_type: bareverbs::qp::QpType::RC,
        })
    }

    fn arm(channel: &EventChannel) -> Poll<Result<()>> {
        channel.attached().unwrap().poll_readable()
    }

    #[test]
    fn channel_is_freed_while_the_runtime_keeps_its_waker() {
        let channel = EventChannel::for_test();
        let runtime = Manual::attached(&channel);
        assert!(arm(&channel).is_pending());
        let weak = Arc::downgrade(&channel.inner);
        drop(channel);
        assert!(weak.upgrade().is_none());
        runtime.become_readable();
    }

    #[test]
    fn tasks_that_wait_move_to_another_runtime() {
        let channel = EventChannel::simulated();
        let first = Manual::attached(&channel);
        let (task, key) = Waiter::new(&channel, false);
        assert!(arm(&channel).is_pending());
        let second = Manual::attached(&channel);
        assert_eq!(task.woken.load(Ordering::Relaxed), 1, "it arms the other runtime");
        let mut cx = Context::from_waker(Waker::noop());
        assert!(channel.poll_raw(Some(key), &mut cx).is_pending());
        assert!(second.has_waker());
        report(&channel, key);
        second.become_readable();
        assert!(channel.poll_raw(Some(key), &mut cx).is_ready());
        assert!(!first.is_registered() && second.is_registered());
    }

    /// A task whose waker attaches its channel to the runtime.
    struct Attaches(EventChannel, Manual);

    impl Wake for Attaches {
        fn wake(self: Arc<Self>) {
            self.0.attach(self.1.clone()).unwrap();
        }
    }

    #[test]
    fn task_that_registers_after_attach_arms_the_other_runtime() {
        let channel = EventChannel::simulated();
        let first = Manual::attached(&channel);
        let (second, other, own) = (Manual::default(), new_key(), new_key());
        [other, own].iter().for_each(|key| channel.claim(*key, 0));
        let attaches = Waker::from(Arc::new(Attaches(channel.clone(), second.clone())));
        assert!(channel.take_or_register(Some(other), &attaches).unwrap().is_none());
        drop(attaches);
        // The task reads the event of the other one, and wakes it, before it registers itself.
        report(&channel, other);
        assert!(channel.poll_raw(Some(own), &mut Context::from_waker(Waker::noop())).is_pending());
        assert!(second.has_waker());
        assert!(!first.is_registered() && second.is_registered());
    }

    #[test]
    fn readable_descriptor_arms_itself_again() {
        let channel = EventChannel::for_test();
        let runtime = Manual::attached(&channel);
        channel.claim(new_key(), 0);
        assert!(arm(&channel).is_pending());
        for _ in 0..3 {
            runtime.become_readable();
            assert!(runtime.has_waker());
        }
    }

    /// The waker of a task. It panics, or counts.
    struct Waiter {
        panics: bool,
        woken: AtomicUsize,
    }

    impl Waiter {
        /// A task that waits for the events of a new key.
        fn new(channel: &EventChannel, panics: bool) -> (Arc<Self>, Key) {
            let (task, key) = (Arc::new(Self { panics, woken: AtomicUsize::new(0) }), new_key());
            channel.claim(key, 0);
            assert!(channel.take_or_register(Some(key), &Waker::from(Arc::clone(&task))).unwrap().is_none());
            (task, key)
        }
    }

    impl Wake for Waiter {
        fn wake(self: Arc<Self>) {
            assert!(!self.panics, "the test asked for it");
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(channel: &EventChannel, key: Key) {
        let event = EventResp { uid: key.get(), event: EventType::ADDR_CHANGE, ..EventResp::zeroed() };
        channel.file().kernel().report(event);
    }

    #[test]
    fn waker_that_panics_does_not_disarm_the_descriptor() {
        for by_task in [false, true] {
            let channel = EventChannel::simulated();
            let runtime = Manual::attached(&channel);
            let ((_, one), (task, other)) = (Waiter::new(&channel, true), Waiter::new(&channel, false));
            let serve = || {
                if !by_task {
                    assert!(arm(&channel).is_pending());
                    report(&channel, one);
                    return runtime.become_readable();
                }
                // The event comes after the task has looked for its own.
                let late = channel.clone();
                *runtime.0.1.lock().unwrap() = Some(Box::new(move || report(&late, one)));
                runtime.become_readable();
                let own = new_key();
                channel.claim(own, 0);
                let mut cx = Context::from_waker(Waker::noop());
                assert!(channel.poll_raw(Some(own), &mut cx).is_pending());
            };
            let panic = catch_unwind(AssertUnwindSafe(serve)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"the test asked for it"), "{by_task}");
            report(&channel, other);
            runtime.become_readable();
            assert_eq!(task.woken.load(Ordering::Relaxed), 1, "{by_task}");
        }
    }

    /// A runtime that has ended when its descriptor is asked for the second time.
    #[derive(Clone, Debug, Default)]
    struct Ends(Arc<Mutex<Option<Waker>>>);

    impl Runtime for Ends {
        fn register(&self, _: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
            Ok(Box::new(self.clone()))
        }

        fn blocking(&self, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            unreachable!("no test blocks")
        }
    }

    impl Readable for Ends {
        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.0.lock().unwrap().replace(cx.waker().clone()) {
                None => Poll::Pending,
                Some(_) => Poll::Ready(Err(io::ErrorKind::Other.into())),
            }
        }
    }

    #[test]
    fn end_of_the_runtime_wakes_the_tasks() {
        let (channel, runtime) = (EventChannel::simulated(), Ends::default());
        channel.attach(runtime.clone()).unwrap();
        let (task, _) = Waiter::new(&channel, false);
        assert!(arm(&channel).is_pending());
        let waker = runtime.0.lock().unwrap().clone().unwrap();
        waker.wake();
        assert_eq!(task.woken.load(Ordering::Relaxed), 1);
    }

    /// A runtime with a level-triggered poller would report it again and again.
    #[test]
    fn descriptor_is_not_armed_while_its_events_are_left_unread() {
        let channel = EventChannel::for_test();
        let runtime = Manual::attached(&channel);
        assert!(arm(&channel).is_pending());
        runtime.become_readable();
        assert!(!runtime.has_waker());
        assert!(arm(&channel).is_pending(), "the next wait arms it");
        assert!(runtime.has_waker());
    }
}
