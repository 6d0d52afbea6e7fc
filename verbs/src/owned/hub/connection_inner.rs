//! The state that the clones of a connection and its operations share.

use std::mem;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::FirstPanic;
use bareverbs_provider::work::PushError;

use super::HubInner;
use super::reaper::service::Service;
use super::reaper::{Conn, ConnState, Failure, SlotKind};
use crate::address::Address;
use crate::error::{Error, PostError, Result};
use crate::owned::keepalive::Policy;
use crate::owned::resolve::ResolveTimeout;
use crate::qp::ConnectAttr;

/// What the clones of a `Connection` and its `Pending`s share.
pub(crate) struct ConnectionInner<B, P: Provider, S: Service<P>> {
    pub(crate) hub: Arc<HubInner<B, P, S>>,
    pub(crate) conn: Arc<Conn<P, S>>,
    pub(crate) local: Address,
    pub(crate) attr: ConnectAttr,
    pub(crate) policy: Policy,
    pub(crate) resolve: ResolveTimeout,
}

impl<B, P: Provider, S: Service<P>> ConnectionInner<B, P, S> {
    /// Connects while the connection `is_open`, and calls `connected` before a completion of the
    /// connection is handled.
    pub(crate) fn connect(
        &self,
        verb: &'static str,
        remote: &Address,
        is_open: impl Fn(&ConnState<P, S>) -> bool,
        connected: impl FnOnce(&mut ConnState<P, S>),
    ) -> Result<()> {
        let Self { hub, conn, local, attr, policy, resolve } = self;
        let resolution = resolve.start();
        // Other threads get the lock between two tries.
        let mut state = loop {
            let mut state = conn.lock();
            let open = is_open(&state);
            let Some(qp) = state.qp.as_mut().filter(|qp| open && !qp.is_destroyed()) else {
                return Err(Error::Closed { verb, reason: "the connection was closed" });
            };
            match qp.connect(local, remote, attr) {
                Ok(()) => break state,
                Err(error) if resolution.connect_goes_on(qp, &error) => {}
                Err(error) => return Err(error),
            }
        };
        connected(&mut state);
        let probe = state.probe_memory.as_ref().zip(remote.probe);
        // SAFETY: `retire` drops the memory after it has destroyed the QP, and nothing else drops it.
        let probe_path = probe.map(|(memory, peer)| unsafe { memory.path(peer) });
        state.probe_path = probe_path;
        let interval = policy.interval(remote.remote_write);
        state.start_keepalive(interval, hub.channel.file().now());
        drop(state);
        if let Some(interval) = interval {
            hub.probe_every(interval);
        }
        Ok(())
    }

    fn retire(&mut self) {
        let qp = self.conn.lock().qp.take();
        let Some(mut qp) = qp else { return };
        let Self { hub, conn, .. } = self;
        // If destroying the QP fails or panics, the device may still use the memory. If polling panics,
        // completions may be left.
        let leak = Leak { hub, conn };
        if !qp.is_destroyed() {
            if qp.needs_error_before_destroy() {
                // The kernel refuses it only if the device was removed.
                let _ = qp.set_error();
            }
            if qp.destroy().is_err() {
                return;
            }
        }
        // Each slot stays reserved until its last completion has been reaped.
        let mut panics = FirstPanic::default();
        hub.reap_all(&mut panics);
        mem::forget(leak);
        let probe_memory = conn.lock().probe_memory.take();
        drop(probe_memory);
        let abandoned = hub.abandon_operations(conn, &mut panics);
        hub.lock().remove(conn);
        abandoned.into_iter().for_each(|operation| panics.catch(|| drop(operation)));
        panics.resume();
    }
}

/// Forgets the operations of a connection: the table no longer has them, and their memory is
/// leaked. Their slots stay reserved.
struct Leak<'h, B, P: Provider, S: Service<P>> {
    hub: &'h HubInner<B, P, S>,
    conn: &'h Conn<P, S>,
}

impl<B, P: Provider, S: Service<P>> Drop for Leak<'_, B, P, S> {
    fn drop(&mut self) {
        let mut panics = FirstPanic::default();
        let abandoned = self.hub.abandon_operations(self.conn, &mut panics);
        abandoned.into_iter().for_each(mem::forget);
        panics.resume();
    }
}

impl<B, P: Provider, S: Service<P>> Drop for ConnectionInner<B, P, S> {
    fn drop(&mut self) {
        self.retire();
    }
}

/// The error of [`Failed::is_full`](crate::owned::Failed::is_full).
#[cold]
pub(crate) fn full<P: Provider, S: Service<P>>(conn: &Conn<P, S>, kind: SlotKind) -> Error {
    let capacity = conn.depths[kind as usize];
    PostError { accepted: 0, reason: PushError::QueueFull { capacity }.into() }.into()
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Completion { verb, status, vendor_err, driver, link_down } => {
                Self::Completion { verb, status, vendor_err, driver, link_down }
            }
            Failure::Unknown { wr_id } => Self::UnknownCompletion { wr_id },
            Failure::Post(error) => error.into(),
            Failure::Service { verb, reason } => Self::Closed { verb, reason },
            Failure::Aborted => {
                Self::Closed { verb: "Connection", reason: "the connection was ended by `abort`" }
            }
            Failure::DeviceRemoved => Self::DeviceRemoved { verb: "Connection" },
        }
    }
}
