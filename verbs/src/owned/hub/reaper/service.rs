//! The interface between a hub and a protocol on its connections.

use std::sync::Arc;
use std::task::Waker;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::WorkCompletion;

use super::{Conn, ConnState, Deferred, Failure};
use crate::owned::hub::HubInner;
use crate::{Error, Result, WcOpcode};

/// The bits of a `wr_id` that no operation of a [`Table`](crate::owned::hub::table::Table) has.
/// With one of them it is a request of the service. With both it is the probe of the hub, or a
/// request of several buffers.
pub(crate) const RESERVED: u64 = 0b11 << 62;

/// The call of `$type` that posts operations with an opcode.
macro_rules! post_verb {
    ($type:literal, $opcode:expr) => {
        match $opcode {
            $crate::WcOpcode::RDMA_WRITE => concat!($type, "::post(Op::write)"),
            $crate::WcOpcode::RDMA_READ => concat!($type, "::post(Op::read)"),
            $crate::WcOpcode::FETCH_ADD => concat!($type, "::post(Op::fetch_add)"),
            $crate::WcOpcode::COMP_SWAP => concat!($type, "::post(Op::compare_swap)"),
            $crate::WcOpcode::SEND => concat!($type, "::post(Op::send)"),
            _ => concat!($type, "::post(Op::recv)"),
        }
    };
}
pub(crate) use post_verb;

/// A protocol on the connections of a hub: the seam between the hub and
/// [`server`](crate::owned::server). `()` is none: the hub has only operations and probes, and asks it
/// nothing.
///
/// It is called with the CQ locked, so it runs no code of the application: wakers and buffers are
/// deferred.
#[expect(private_interfaces, reason = "it is sealed: no other crate can name it")]
pub trait Service<P: Provider>: Sized + Send + Sync + 'static {
    /// Its state of each connection.
    type Conn: Send + 'static;

    /// Whether it has requests and operations of its own.
    const OWNS: bool;

    /// The call that posts operations with this opcode.
    fn verb(opcode: WcOpcode) -> &'static str;

    /// Whether the connection takes an operation. It is called with the connection locked until the
    /// operation is posted.
    #[inline(always)]
    fn check_post(_: &Self::Conn, _: WcOpcode) -> Result<()> {
        Ok(())
    }

    /// Handles the completion of a request of the service. Its `wr_id` has one bit of [`RESERVED`].
    /// `conn` is `None` if the connection was destroyed.
    fn completion<B>(
        _hub: &HubInner<B, P, Self>,
        _completion: &WorkCompletion,
        _conn: Option<&Arc<Conn<P, Self>>>,
        _deferred: &mut Deferred<B>,
    ) {
    }

    /// Handles the end of a connection. It may be called again for the same one.
    fn ended<B>(_: &HubInner<B, P, Self>, _: &Conn<P, Self>, _: Failure, _: &mut Deferred<B>) {}

    /// Counts an operation of [`SlotKind::Service`](super::SlotKind) that has ended. The caller must wake
    /// the returned wakers.
    #[must_use]
    fn count(&self, _success: bool, _detached: bool) -> Vec<Waker> {
        Vec::new()
    }

    /// Whether the peer has received all operations of
    /// [`SlotKind::Service`](super::SlotKind): then none of them fails.
    fn is_delivered(&self, _: &ConnState<P, Self>) -> bool {
        false
    }

    /// The error of an operation of `verb` that the service [took back](super::TAKEN_BACK).
    fn taken_back(&self, verb: &'static str) -> Error {
        Error::Closed { verb, reason: "the connection was closed" }
    }

    /// Takes the wakers of all tasks and threads that wait for the service. The caller must wake them.
    #[must_use]
    fn take_wakers(&self) -> Vec<Waker> {
        Vec::new()
    }
}

impl<P: Provider> Service<P> for () {
    type Conn = ();

    const OWNS: bool = false;

    fn verb(opcode: WcOpcode) -> &'static str {
        post_verb!("Connection", opcode)
    }
}
