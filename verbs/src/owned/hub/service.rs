//! The seam between a hub and a protocol on its connections.

use std::sync::Arc;
use std::task::Waker;

use bareverbs_provider::traits::Provider;

use super::reaper::{Conn, ConnFailure, ConnState, Deferred, HubOps};
use crate::Error;
use crate::cq::WorkCompletion;

/// The bits of a `wr_id` that no operation of a [`Table`](super::table::Table) has. With one of them it
/// is a request of the service, with both the probe of the hub.
pub(crate) const RESERVED: u64 = 0b11 << 62;

/// A protocol on the connections of a hub: the seam between the hub and
/// [`server`](crate::owned::server). `()` is none: the hub has only operations and probes, and asks it
/// nothing.
///
/// It is called with the CQ locked, so it runs no code of the application: wakers and buffers go to the
/// batch.
#[expect(private_interfaces, reason = "it is sealed: no other crate can name it")]
pub trait Service<P: Provider>: Sized + Send + Sync + 'static {
    /// Its state of each connection.
    type Conn: Send + 'static;

    /// Whether it has requests and operations of its own.
    const OWNS: bool;

    /// Handles the completion of a request of the service. Its `wr_id` has one bit of [`RESERVED`].
    /// `conn` is `None` if the connection was destroyed.
    fn completion<B>(
        &self,
        completion: &WorkCompletion,
        conn: Option<&Arc<Conn<P, Self>>>,
        table: &HubOps<B>,
        deferred: &mut Deferred<B>,
    );

    /// Handles the end of a connection. It may be called again for the same one.
    fn ended<B>(
        &self,
        conn: &Conn<P, Self>,
        failure: ConnFailure,
        table: &HubOps<B>,
        deferred: &mut Deferred<B>,
    );

    /// Counts an operation of [`SlotKind::Service`](super::reaper::SlotKind) that has ended.
    fn count(&self, success: bool, detached: bool);

    /// Whether the peer has received all operations of
    /// [`SlotKind::Service`](super::reaper::SlotKind): then none of them fails.
    fn is_delivered(&self, state: &ConnState<P, Self>) -> bool;

    /// The error of an operation of `verb` that the service [took back](super::reaper::TAKEN_BACK).
    fn taken_back(&self, verb: &'static str) -> Error;

    /// Takes the wakers of all tasks and threads that wait for the service. The caller must wake them.
    #[must_use]
    fn take_wakers(&self) -> Vec<Waker>;
}

#[expect(private_interfaces, reason = "as of the trait")]
impl<P: Provider> Service<P> for () {
    type Conn = ();

    const OWNS: bool = false;

    fn completion<B>(
        &self,
        _: &WorkCompletion,
        _: Option<&Arc<Conn<P, Self>>>,
        _: &HubOps<B>,
        _: &mut Deferred<B>,
    ) {
    }

    fn ended<B>(&self, _: &Conn<P, Self>, _: ConnFailure, _: &HubOps<B>, _: &mut Deferred<B>) {}

    fn count(&self, _: bool, _: bool) {}

    fn is_delivered(&self, _: &ConnState<P, Self>) -> bool {
        false
    }

    fn taken_back(&self, verb: &'static str) -> Error {
        Error::Closed { verb, reason: "the connection was closed" }
    }

    fn take_wakers(&self) -> Vec<Waker> {
        Vec::new()
    }
}
