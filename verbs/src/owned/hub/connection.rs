//! Connections of a hub.

use std::fmt;
use std::mem;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::HubInner;
use super::reaper::{Batch, Conn, Direction, Failure, Operation as Posted, Queued};
use crate::owned::buffer::checked_sge;
use crate::owned::server::flow::Flow;
use crate::owned::{Address, Pending, Source, Target};
use crate::{
    AnyProvider, ConnectAttr, Error, Imm, Operation, Payload, Pd, PostError, Qp, Rc, RecvRequest, Remote,
    Result, SendFlags, SendRequest, Sge,
};

/// A connection of a [`Hub`](super::Hub).
///
/// Clones are the same connection. Threads and tasks may post at the same time. Operations of one
/// direction are posted in the order of the calls, at once: a [`Pending`] that is never awaited is
/// executed as well.
///
/// The first failed operation ends the connection: all its operations fail, and posts are rejected.
///
/// The QP is destroyed when the last clone and the last `Pending` of the connection are dropped.
/// Operations in flight end with it, and their messages may be lost: await them first.
pub struct Connection<B, P: Provider = AnyProvider> {
    inner: Arc<ConnectionInner<B, P>>,
}

/// What the clones of a `Connection` and its `Pending`s share.
pub(crate) struct ConnectionInner<B, P: Provider> {
    pub(crate) hub: Arc<HubInner<B, P>>,
    pub(crate) conn: Arc<Conn<P>>,
    pub(crate) local: Address,
    pub(crate) attr: ConnectAttr,
}

impl<B, P: Provider> ConnectionInner<B, P> {
    fn retire(&mut self) {
        let qp = self.conn.lock().qp.take();
        let Some(mut qp) = qp else { return };
        let Self { hub, conn, .. } = self;
        // If destroying the QP fails or panics, the device may still use the memory.
        let leak = Leak { hub, slots: &conn.slots };
        // Before Linux 6.4, Soft-RoCE waits long for a QP in RTS whose send is retried.
        let _ = qp.set_error();
        if qp.destroy().is_err() {
            return;
        }
        mem::forget(leak);
        // Each slot stays reserved until its last completion has been reaped.
        hub.reap_all();
        let abandoned: Vec<_> = conn.slots.iter().filter_map(|slot| hub.table.abandon(*slot)).collect();
        hub.lock().remove(conn);
        drop(abandoned);
    }
}

/// Forgets the operations of a connection: the table no longer has them, and their memory is
/// leaked. Their slots stay reserved.
struct Leak<'h, B, P: Provider> {
    hub: &'h HubInner<B, P>,
    slots: &'h [u32],
}

impl<B, P: Provider> Drop for Leak<'_, B, P> {
    fn drop(&mut self) {
        self.slots.iter().for_each(|slot| mem::forget(self.hub.table.abandon(*slot)));
    }
}

impl<B, P: Provider> Drop for ConnectionInner<B, P> {
    fn drop(&mut self) {
        self.retire();
    }
}

impl<B, P: Provider> Connection<B, P> {
    pub(super) fn new(inner: ConnectionInner<B, P>) -> Self {
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn of(inner: Arc<ConnectionInner<B, P>>) -> Self {
        Self { inner }
    }

    pub(crate) fn inner(&self) -> &ConnectionInner<B, P> {
        &self.inner
    }

    pub(crate) fn shared(&self) -> &Arc<ConnectionInner<B, P>> {
        &self.inner
    }

    /// Sets the receive window and the maximum message size in the address of a server's new
    /// connection.
    pub(super) fn describe(&mut self, recvs: u32, max_message: u32) {
        if let Some(inner) = Arc::get_mut(&mut self.inner) {
            (inner.local.recvs, inner.local.max_message) = (recvs, max_message);
        }
    }

    /// The address of this end, for the peer.
    #[must_use]
    pub fn address(&self) -> Address {
        self.inner.local
    }

    /// The protection domain of the connection, in which its buffers are registered.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.inner.hub.pd
    }

    /// Connects to the peer at `remote`, which must also connect to this one. Receives can be
    /// posted before, sends only afterwards.
    ///
    /// # Errors
    /// As for [`Qp::connect`].
    pub fn connect(&self, remote: &Address) -> Result<()> {
        let ConnectionInner { conn, local, attr, .. } = &*self.inner;
        match &mut conn.lock().qp {
            Some(qp) => qp.connect(local, remote, attr),
            None => Err(Error::invalid("Connection::connect", "the connection is closed")),
        }
    }

    /// Ends the connection: all operations in flight fail, and return their buffers when the device
    /// has finished with them. Posts are rejected.
    pub fn abort(&self) {
        self.inner.conn.fail(Failure::Aborted);
    }

    /// Why the connection ended. `None` while it has not.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.inner.conn.lock().failure.map(Error::from)
    }
}

impl<B: Source, P: Provider> Connection<B, P> {
    /// Sends the bytes of `buffer` in `range` as one message.
    pub fn send(&self, buffer: B, range: impl RangeBounds<usize>) -> Pending<B, P> {
        self.post_send("Connection::send", buffer, range, Operation::Send)
    }

    /// Sends a message with immediate data.
    pub fn send_imm(&self, buffer: B, range: impl RangeBounds<usize>, imm: impl Into<Imm>) -> Pending<B, P> {
        self.post_send("Connection::send_imm", buffer, range, Operation::SendImm(imm.into()))
    }

    /// Writes the bytes of `buffer` in `range` to the peer's memory.
    pub fn write(&self, buffer: B, range: impl RangeBounds<usize>, remote: Remote) -> Pending<B, P> {
        self.post_send("Connection::write", buffer, range, Operation::Write(remote))
    }

    /// Writes to the peer's memory and completes one of its receives with immediate data.
    pub fn write_imm(
        &self,
        buffer: B,
        range: impl RangeBounds<usize>,
        remote: Remote,
        imm: impl Into<Imm>,
    ) -> Pending<B, P> {
        self.post_send("Connection::write_imm", buffer, range, Operation::WriteImm(remote, imm.into()))
    }

    fn post_send(
        &self,
        verb: &'static str,
        buffer: B,
        range: impl RangeBounds<usize>,
        operation: Operation,
    ) -> Pending<B, P> {
        self.post(verb, Direction::Send, buffer, range, |qp, wr_id, sge| {
            let payload = Payload::Sges(&[sge]);
            let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: `post` has moved the buffer into the hub's table and checked its PD and
            // range. The table keeps it until the provider reports the completion of `wr_id` or the
            // QP is destroyed (`ConnectionInner::retire`, which leaks the buffer if that fails). A
            // forgotten hub leaks the table. `Source` keeps the bytes valid and unwritten
            // meanwhile; operations that write the bytes come from functions that require `Target`.
            unsafe { qp.post_send(&[request]) }
        })
    }

    fn post(
        &self,
        verb: &'static str,
        direction: Direction,
        buffer: B,
        range: impl RangeBounds<usize>,
        post: impl FnOnce(&mut Qp<Rc, P>, u64, Sge) -> Result<(), PostError>,
    ) -> Pending<B, P> {
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        let sge = match checked_sge(verb, &buffer, hub.pd.domain(), range) {
            Ok(sge) => sge,
            Err(error) => return Pending::refused(error, buffer),
        };
        let mut state = conn.lock();
        if let Some(failure) = state.failure {
            drop(state);
            return Pending::refused(failure.into(), buffer);
        }
        let Some(qp) = &mut state.qp else {
            drop(state);
            return Pending::refused(Failure::Aborted.into(), buffer);
        };
        let Some(index) = conn.take_slot(direction) else {
            drop(state);
            return Pending::refused(full(verb, conn, direction), buffer);
        };
        // The table owns the buffer before the request is posted, so a panic in between does not
        // free it.
        let wr_id = hub.table.insert(index, Posted { buffer, verb, direction, len: sge.length });
        match post(qp, wr_id, sge) {
            Ok(()) => {}
            // A request that counts as posted will complete, even if its doorbell was refused.
            Err(error) if error.accepted > 0 => {}
            Err(error) => {
                if let Some(Posted { buffer, .. }) = hub.table.take_back(wr_id) {
                    conn.put_slot(direction, index);
                    drop(state);
                    return Pending::refused(error.into(), buffer);
                }
                // A device that completed what it was not given. The buffer is in the table.
            }
        }
        drop(state);
        Pending::posted(Arc::clone(&self.inner), wr_id)
    }
}

impl<B: Source, P: Provider> Connection<B, P> {
    /// Sends a message of a server or a client, or adds it to those that wait for credits.
    pub(crate) fn send_message(&self, buffer: B, range: impl RangeBounds<usize>) -> Pending<B, P> {
        const VERB: &str = "Handle::send";
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        let sge = match checked_sge(VERB, &buffer, hub.pd.domain(), range) {
            Ok(sge) => sge,
            Err(error) => return Pending::refused(error, buffer),
        };
        let mut state = conn.lock();
        let max = state.max_message;
        let refusal = if let Some(failure) = state.failure {
            Some(failure.into())
        } else if sge.length > max {
            Some(Error::Limit {
                verb: VERB,
                what: "message of bytes",
                asked: sge.length.into(),
                max: max.into(),
            })
        } else if state.flow.as_ref().is_none_or(Flow::is_closing) {
            Some(Error::invalid(VERB, "the connection is closing: it takes no more messages"))
        } else {
            None
        };
        let index = if refusal.is_none() { conn.take_slot(Direction::Send) } else { None };
        let (Some(index), Some(flow)) = (index, &mut state.flow) else {
            drop(state);
            let error = refusal.unwrap_or_else(|| {
                let reason = "the queue of messages to the peer is full: await an earlier `Pending` first";
                Error::invalid(VERB, reason)
            });
            return Pending::refused(error, buffer);
        };
        // The table owns the buffer before the request is posted, so a panic in between does not
        // free it.
        let wr_id = hub
            .table
            .insert(index, Posted { buffer, verb: VERB, direction: Direction::Send, len: sge.length });
        flow.push(Queued { wr_id, sge });
        let pumped = state.pump();
        drop(state);
        if let Err(failure) = pumped {
            let mut batch = Batch::new();
            hub.end(conn, failure, &mut batch);
            batch.finish();
        }
        Pending::posted(Arc::clone(&self.inner), wr_id)
    }
}

impl<B: Target, P: Provider> Connection<B, P> {
    /// Receives one message of up to the whole length of `buffer`.
    pub fn recv(&self, buffer: B) -> Pending<B, P> {
        self.post("Connection::recv", Direction::Recv, buffer, .., |qp, wr_id, sge| {
            // SAFETY: as in `post_send`; a `Target` is not accessed meanwhile.
            unsafe { qp.post_recv(&[RecvRequest { wr_id, sges: &[sge] }]) }
        })
    }

    /// Reads the peer's memory into the bytes of `buffer` in `range`.
    pub fn read(&self, buffer: B, range: impl RangeBounds<usize>, remote: Remote) -> Pending<B, P> {
        self.post_send("Connection::read", buffer, range, Operation::Read(remote))
    }

    /// Adds `add` to 8 bytes of the peer's memory. The first 8 bytes of `buffer` receive the old
    /// value.
    pub fn fetch_add(&self, buffer: B, remote: Remote, add: u64) -> Pending<B, P> {
        self.post_send("Connection::fetch_add", buffer, ..8, Operation::FetchAdd { remote, add })
    }

    /// Replaces 8 bytes of the peer's memory by `swap` if they equal `compare`. The first 8 bytes
    /// of `buffer` receive the old value.
    pub fn compare_swap(&self, buffer: B, remote: Remote, compare: u64, swap: u64) -> Pending<B, P> {
        self.post_send("Connection::compare_swap", buffer, ..8, Operation::CmpSwp { remote, compare, swap })
    }
}

#[cold]
fn full<P: Provider>(verb: &'static str, conn: &Conn<P>, direction: Direction) -> Error {
    let what = match direction {
        Direction::Send => "sends",
        Direction::Recv => "receives",
    };
    let _ = conn;
    Error::invalid(verb, format!("all {what} of the connection are in use: await one of them first"))
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Completion { verb, status, vendor_err, driver } => {
                Self::Completion { verb, status, vendor_err, driver }
            }
            Failure::Unknown { wr_id } => Self::UnknownCompletion { wr_id },
            Failure::Post(error) => error.into(),
            Failure::Protocol => {
                let reason =
                    "the peer violated the protocol: it is not a `Server` or `Client`, or has failed";
                Self::invalid("Server", reason)
            }
            Failure::Aborted => Self::invalid("Connection", "the connection was ended by `abort`"),
        }
    }
}

impl<B, P: Provider> Clone for Connection<B, P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B, P: Provider> fmt::Debug for Connection<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("qp_num", &format_args!("{:#x}", self.inner.conn.qp_num))
            .field("failure", &self.inner.conn.lock().failure)
            .finish_non_exhaustive()
    }
}
