//! Drivers, which wait for the events of a hub's CQ.

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::{FirstPanic, wake_all};
use rustix::io::Errno;

use super::election::DriverKind;
use super::reaper::service::Service;
use super::{BATCH, HubInner};
use crate::cq::CompChannel;
use crate::debug::debug;
use crate::owned::Spinning;
use crate::owned::park::Parker;
use crate::runtime::Runtime;
use crate::wake_sources::WakeSources;
use crate::{AnyProvider, Error, Result};

/// Maximum of completions that a driver reaps before it yields to other tasks.
const TURN: usize = 2 * BATCH;
/// Maximum of events that a driver handles before it yields to other tasks.
const ROUNDS: usize = 4;

/// The role of the driver. Drop ends it.
pub(crate) struct DriverGuard<B, P: Provider, S: Service<P>> {
    hub: Weak<HubInner<B, P, S>>,
}

impl<B, P: Provider, S: Service<P>> DriverGuard<B, P, S> {
    pub(crate) fn take(hub: &Arc<HubInner<B, P, S>>, kind: DriverKind) -> Result<Self> {
        if hub.election.attach_driver(kind) {
            return Ok(Self { hub: Arc::downgrade(hub) });
        }
        Err(Error::invalid("Hub::drive", "the hub already has a driver: a task or thread that drives it"))
    }
}

impl<B, P: Provider, S: Service<P>> DriverGuard<B, P, S> {
    fn end(&mut self) {
        let hub = std::mem::take(&mut self.hub).upgrade();
        if let Some(hub) = hub {
            let own = hub.election.driver();
            let appointed = hub.election.detach_driver();
            // The tasks find that there is no driver.
            let woken = appointed.into_iter().chain(hub.table.take_wakers()).chain(hub.service.take_wakers());
            let mut panics = FirstPanic::default();
            panics.catch(|| wake_all(woken));
            panics.catch(|| drop(own));
            panics.resume();
        }
    }
}

impl<B, P: Provider, S: Service<P>> Drop for DriverGuard<B, P, S> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The driver of a [`Hub`](super::Hub) as a future, for a task of its own.
///
/// It completes when the last handle of the hub (`Hub`, `Connection`, `Pending`) was dropped, or with
/// [`Error::DeviceRemoved`] after all operations have ended because the device was removed. It is
/// `Send`. After it is dropped, the hub has no driver: see
/// [`Pending`](crate::owned::Pending#without-a-driver).
#[must_use = "a driver does nothing unless it is polled"]
pub struct Driver<B, P: Provider = AnyProvider, S: Service<P> = ()> {
    guard: DriverGuard<B, P, S>,
    attached: WakeSources,
    /// The current wait.
    spinning: Option<Spinning>,
}

impl<B, P: Provider, S: Service<P>> Driver<B, P, S> {
    pub(super) fn new(hub: &Arc<HubInner<B, P, S>>, runtime: impl Runtime) -> Result<Self> {
        // A second driver is refused before its runtime is asked.
        let guard = DriverGuard::take(hub, DriverKind::Task)?;
        Ok(Self { guard, attached: WakeSources::new(Arc::new(runtime), &hub.channel)?, spinning: None })
    }
}

// It contains no pinned values.
impl<B, P: Provider, S: Service<P>> Unpin for Driver<B, P, S> {}

impl<B, P: Provider, S: Service<P>> Future for Driver<B, P, S> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = self.get_mut();
        let polled = this.poll_hub(cx);
        if polled.is_ready() {
            // It may be kept after its end.
            this.guard.end();
        }
        polled
    }
}

impl<B, P: Provider, S: Service<P>> Driver<B, P, S> {
    fn poll_hub(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(hub) = self.guard.hub.upgrade() else { return Poll::Ready(Ok(())) };
        for _ in 0..ROUNDS {
            match hub.turn(cx.waker(), &mut self.spinning)? {
                Turn::Yield => break,
                Turn::Again => {}
                Turn::Sleep(due) => {
                    ready!(self.attached.poll(cx.waker(), due))?;
                    hub.take_events()?;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// What a driver does after a turn.
enum Turn {
    /// It lets others run.
    Yield,
    Again,
    /// It waits for an event of the armed CQ, at most until then.
    Sleep(Option<Instant>),
}

impl<B, P: Provider, S: Service<P>> HubInner<B, P, S> {
    /// Reaps, and arms the CQ when there is nothing to reap and the driver has polled long enough.
    fn turn(&self, waker: &Waker, wait: &mut Option<Spinning>) -> Result<Turn> {
        self.election.register_driver(waker);
        if self.is_removed() {
            return Err(Error::DeviceRemoved { verb: "Hub::drive" });
        }
        let due = self.keep_alive(self.channel.file().now());
        let reaped = self.poll(TURN);
        if reaped > 0
            && let Some(spinning) = wait.take()
        {
            self.spin.end(spinning);
        }
        if reaped >= TURN || wait.get_or_insert_with(|| self.spin.start()).goes_on() {
            return Ok(Turn::Yield);
        }
        Ok(if self.arm()? { Turn::Again } else { Turn::Sleep(due) })
    }
}

debug! {
    it: "Driver" [B, P: Provider, S: Service<P>] Driver<B, P, S> {
        ended = it.guard.hub.strong_count() == 0, attached = it.attached
    }
}

/// Starts a thread that drives the hub.
pub(super) fn spawn<B: Send + 'static, P: Provider, S: Service<P>>(
    hub: &Arc<HubInner<B, P, S>>,
) -> Result<()> {
    let guard = DriverGuard::take(hub, DriverKind::Thread)?;
    let channel = hub.channel.clone();
    let spawned = std::thread::Builder::new().name("bareverbs-hub".into()).spawn(move || {
        // On an error the device was removed, and the thread ends.
        let _ = run(&guard, &channel);
    });
    spawned.map(drop).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        Error::system("starting the thread of a hub", errno)
    })
}

fn run<B, P: Provider, S: Service<P>>(guard: &DriverGuard<B, P, S>, channel: &CompChannel) -> Result<()> {
    Parker::with(|parker, waker| {
        let mut spinning = None;
        while let Some(hub) = guard.hub.upgrade() {
            let due = match hub.turn(waker, &mut spinning)? {
                Turn::Yield => {
                    std::hint::spin_loop();
                    continue;
                }
                Turn::Again => continue,
                Turn::Sleep(due) => due,
            };
            // A sleeping driver does not keep the hub.
            drop(hub);
            match channel.before_sleep(None, None, || parker.is_woken()) {
                // Other threads may go on.
                Err(error) if error.errno() == Some(Errno::DEADLK) => continue,
                before => before?,
            };
            if parker.sleep(Some(channel.as_fd()), due)?
                && let Some(hub) = guard.hub.upgrade()
            {
                hub.take_events()?;
            }
        }
        Ok(())
    })
}
