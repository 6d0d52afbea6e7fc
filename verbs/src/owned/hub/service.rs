//! What uses a hub for a protocol of its own.

use std::sync::Arc;
use std::task::Waker;

use bareverbs_provider::traits::Provider;

use super::reaper::{Batch, Conn, ConnState, Failure, Operations};
use crate::Error;
use crate::cq::WorkCompletion;

/// The bits of a `wr_id` that no operation of a [`Table`](super::table::Table) has. With one of them it
/// is a request of the service, with both the probe of the hub.
pub(crate) const RESERVED: u64 = 0b11 << 62;

/// A protocol on the connections of a hub: the seam between the hub and
/// [`server`](crate::owned::server). A hub without one has only operations and probes.
///
/// It is called with the CQ locked, so it runs no code of the application: wakers and buffers go to the
/// batch.
///
/// It is no type parameter of the hub, because [`Pending`](crate::owned::Pending) would show it to every
/// caller. The hub looks for it only after a completion that is no operation of a hub, or that the
/// service counts.
pub(crate) trait Service<B, P: Provider>: Send + Sync {
    /// Handles the completion of a request of the service. Its `wr_id` has one bit of [`RESERVED`].
    /// `conn` is `None` if the connection was destroyed.
    fn completion(
        &self,
        completion: &WorkCompletion,
        conn: Option<&Arc<Conn<P>>>,
        table: &Operations<B>,
        batch: &mut Batch<B>,
    );

    /// Handles the end of a connection. It may be called again for the same one.
    fn ended(&self, conn: &Conn<P>, failure: Failure, table: &Operations<B>, batch: &mut Batch<B>);

    /// Counts an operation of [`SlotKind::Service`](super::reaper::SlotKind) that has ended.
    fn count(&self, success: bool, detached: bool);

    /// Whether the peer has received all operations of
    /// [`SlotKind::Service`](super::reaper::SlotKind): then none of them fails.
    fn is_delivered(&self, state: &ConnState<P>) -> bool;

    /// The error of an operation of `verb` that the service [took back](super::reaper::TAKEN_BACK).
    fn taken_back(&self, verb: &'static str) -> Error;

    /// Takes the wakers of all tasks and threads that wait for the service. The caller must wake them.
    #[must_use]
    fn take_wakers(&self) -> Vec<Waker>;
}
