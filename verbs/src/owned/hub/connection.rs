//! Connections of a hub.

use std::fmt;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{RecvRequest, SendRequest};

use super::connection_inner::{ConnectionInner, full};
use super::reaper::service::Service;
use super::reaper::{Failure, OpEntry, OpTable, SlotKind};
use crate::address::Address;
use crate::error::{PostError, PostReason};
use crate::owned::buffer::sealed::{Domain, PdId};
use crate::owned::in_flight::ListOperation;
use crate::owned::operation::sealed::Sealed;
use crate::owned::operation::{Inline, NoBuffer, OpPayload, Place, Receive};
use crate::owned::{Op, Pending, PoolBuffer, Source};
use crate::qp::{Qp, Rc};
use crate::{AnyProvider, Error, Pd, Result, WcOpcode};

/// A connection of a [`Hub`](super::Hub), shared by threads and tasks: each operation is a future. For
/// one owner, an [`Endpoint`](crate::owned::Endpoint) is faster.
///
/// Clones are the same connection. Threads and tasks may post at the same time. Operations of one
/// direction are posted in the order of the calls, at once: a [`Pending`] that is never awaited is
/// executed as well.
///
/// The first failed operation ends the connection: all its operations fail, and posts are rejected.
///
/// The QP is destroyed when the last clone and the last `Pending` of the connection are dropped.
/// Operations in flight end with it, and their messages may be lost: await them first.
pub struct Connection<B = PoolBuffer, P: Provider = AnyProvider, S: Service<P> = ()> {
    pub(crate) inner: Arc<ConnectionInner<B, P, S>>,
}

impl<B, P: Provider, S: Service<P>> Connection<B, P, S> {
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
    /// On RoCE it blocks while the kernel resolves the peer's Ethernet address, for at most
    /// [`EndpointOptions::resolve_timeout`](crate::owned::EndpointOptions::resolve_timeout) and one
    /// second.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `remote` is the address of a `Server` or `Client`. As for
    /// [`Qp::connect`].
    pub fn connect(&self, remote: &Address) -> Result<()> {
        remote.check_no_flow_control("Connection::connect")?;
        self.inner.connect("Connection::connect", remote, |_| true, |_| ())
    }

    /// Probes the peer by an RDMA write of length 0 (on iWARP a read), unless an earlier probe is
    /// outstanding. If the peer is dead, the connection fails after the retries, and with it its
    /// operations.
    ///
    /// Blocked threads and drivers of the hub do this every few seconds
    /// ([`EndpointOptions::keepalive`](crate::owned::EndpointOptions::keepalive)); a loop of
    /// [`Hub::poll`](super::Hub::poll) does not.
    ///
    /// # Errors
    /// - [`Error::Closed`]: the connection was ended or closed; [`Connection::failure`] says why.
    /// - [`Error::Invalid`]: the device's limits leave no entry of the SQ or the CQ for a probe. Such a
    ///   connection is never probed: a send, write or read to a dead peer ends it.
    /// - [`Error::Post`]: the connection is not connected, or the kernel refuses the doorbell, which
    ///   ends the connection.
    pub fn probe(&self) -> Result<()> {
        let ConnectionInner { conn, .. } = &*self.inner;
        let mut state = conn.lock();
        if let Some(failure) = state.failure {
            return Err(failure.into());
        }
        if !conn.has_probe() {
            let reason = "the device's limits leave no entry for the probe: create the connection with \
                          fewer sends, or a hub with fewer entries";
            return Err(Error::invalid("Connection::probe", reason));
        }
        let probed = state.probe();
        drop(state);
        let Err(error) = probed else { return Ok(()) };
        if matches!(error.reason, PostReason::Doorbell(_)) {
            self.inner.hub.end(conn, Failure::Post(error));
        }
        Err(error.into())
    }

    /// Ends the connection: all operations in flight fail, and return their buffers when the device
    /// has finished with them. Posts are rejected.
    pub fn abort(&self) {
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        conn.fail(Failure::Aborted);
        hub.reap_flushed();
    }

    /// Why the connection ended. `None` while it has not.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.inner.conn.lock().failure.map(Error::from)
    }
}

impl<B: Source, P: Provider, S: Service<P>> Connection<B, P, S> {
    /// Posts an operation: a send, a write, a read, an atomic operation or a receive. Its tag comes
    /// back in [`Done::tag`](crate::owned::Done::tag). One of
    /// [several buffers](Op#several-buffers) returns an array: a [`Pending`] for each buffer.
    ///
    /// Each operation has a result of its own, so [`Op::unsignaled`] has no effect.
    ///
    /// ```
    /// # use bareverbs::Op;
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [connection, peer] = example::connections(&pd)?;
    /// # let [answer, buffer, one, two] = example::buffers(&pd)?;
    /// # let _received = [one, two].map(|buffer| peer.post(Op::recv(buffer)));
    /// # let _sent = peer.post(Op::send_inline(b"answer"));
    /// let answer = connection.post(Op::recv(answer));
    /// let reply = connection.post(Op::send_inline(b"short").tag(7));
    /// let write = connection.post(Op::send(buffer, ..10).fenced().tag(8));
    /// assert_eq!((reply.wait()?.tag, write.wait()?.tag), (7, 8));
    /// println!("{:?}", answer.wait()?.message());
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// Types of other crates are not buffers:
    ///
    /// ```compile_fail,E0599
    /// # use bareverbs::{Connection, Op, PoolBuffer};
    /// struct Other;
    ///
    /// impl From<PoolBuffer> for Other {
    ///     fn from(_: PoolBuffer) -> Self {
    ///         Self
    ///     }
    /// }
    ///
    /// fn receive(connection: &Connection<Other>, buffer: PoolBuffer) {
    ///     connection.post(Op::recv(buffer));
    /// }
    /// ```
    #[doc(alias = "recv_tagged")]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post<O: PostOn<B, P, S>>(&self, op: O) -> O::Pending {
        op.post_on(self)
    }

    /// Posts an operation of the send queue.
    #[inline(always)]
    pub(crate) fn post_send<L: OpPayload<B>>(&self, op: Op<L>) -> Pending<B, P, S> {
        let opcode = op.operation.opcode();
        let place = match self.place(opcode, &op) {
            Ok(place) => place,
            Err(error) => return Pending::refused_op(error, op),
        };
        let (buffer, Op { operation, tag, flags, .. }) = op.split();
        let entry = OpEntry { buffer, opcode, kind: SlotKind::Send, tag, len: place.len() };
        self.submit(entry, |qp, wr_id| {
            let request = SendRequest { wr_id, operation, flags, payload: place.payload() };
            // SAFETY: `submit` has moved the buffer into the hub's table, and the place is that of the
            // buffer (`OpPayload`). The table keeps it until the provider reports the completion of
            // `wr_id` or the QP is destroyed (`ConnectionInner::retire`, which leaks the buffer if
            // that fails). A forgotten hub leaks the table. `Source` keeps the bytes valid and
            // unwritten meanwhile; operations that write the bytes come from constructors of `Op` that
            // require `Target`. Inline bytes are copied before this returns.
            unsafe { qp.post_send(&[request]) }
        })
    }

    /// Posts all of `ops` in order with one doorbell, and adds their results to `pending`.
    ///
    /// If an operation is refused, the ones behind it are refused as well, and the ones before it
    /// are posted. It allocates only if the capacity of `pending` is too small.
    ///
    /// ```
    /// # use bareverbs::{Op, RegionMut};
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [connection, _peer] = example::connections::<RegionMut>(&pd)?;
    /// # let file = RegionMut::register(&pd, bareverbs::Buffer::zeroed(3 << 20)?)?;
    /// # let memory = example::exposed(&pd, 3 << 20)?;
    /// # let mut to = memory.remote(0)?;
    /// let mut ops = Vec::new();
    /// for chunk in file.chunks(1 << 20) {
    ///     let len = chunk.len() as u64;
    ///     ops.push(Op::write(chunk, .., to));
    ///     to.addr += len;
    /// }
    /// let mut pending = Vec::new();
    /// connection.post_all(&mut ops, &mut pending);
    /// for operation in pending {
    ///     operation.wait()?;
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "Mixed")]
    #[doc(alias = "mixed")]
    pub fn post_all<L: OpPayload<B>>(&self, ops: &mut Vec<Op<L>>, pending: &mut Vec<Pending<B, P, S>>) {
        pending.reserve(ops.len());
        let first = pending.len();
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        let mut state = conn.lock();
        let qp = match state.open_qp() {
            Ok(qp) => qp,
            Err(failure) => {
                drop(state);
                pending.extend(ops.drain(..).map(|op| Pending::refused_op(failure.into(), op)));
                return;
            }
        };
        let mut ops = ops.drain(..);
        let mut batch = qp.start_send();
        for op in &mut ops {
            let (kind, opcode) = (SlotKind::Send, op.operation.opcode());
            let slot = || conn.take_slot(kind).ok_or_else(|| full(conn, kind));
            let (place, index) = match self.place(opcode, &op).and_then(|place| Ok((place, slot()?))) {
                Ok(placed) => placed,
                Err(error) => {
                    pending.push(Pending::refused_op(error, op));
                    break;
                }
            };
            // Until the doorbell, the device does not know the request.
            let (buffer, Op { operation, tag, flags, .. }) = op.split();
            let entry = OpEntry { buffer, opcode, kind, tag, len: place.len() };
            let wr_id = hub.table.insert_queued(index, entry);
            let payload = place.payload();
            // SAFETY: as in `post_send`: the table has the buffer, or the bytes are copied.
            match unsafe { batch.push(&SendRequest { wr_id, operation, flags, payload }) } {
                Ok(()) => pending.push(Pending::posted(Arc::clone(&self.inner), wr_id)),
                Err(reason) => {
                    let error = PostError { accepted: 0, reason };
                    pending.push(self.take_back(wr_id, error.into()));
                    break;
                }
            }
        }
        let posted = pending[first..].iter().filter_map(Pending::wr_id);
        posted.for_each(|wr_id| hub.table.publish(wr_id));
        let rung = batch.ring();
        drop(state);
        match rung {
            Ok(()) => {}
            // They count as posted, and complete when the connection ends.
            Err(error) if error.accepted > 0 => hub.end(conn, Failure::Post(error)),
            // None of them was posted.
            Err(error) => {
                for operation in &mut pending[first..] {
                    if let Some(wr_id) = operation.wr_id()
                        && let Some(peer) = operation.take_peer()
                    {
                        *operation = Self { inner: peer }.take_back(wr_id, error.into());
                    }
                }
            }
        }
        let behind = || Error::invalid("Connection::post_all", "an earlier operation was refused");
        pending.extend(ops.map(|op| Pending::refused_op(behind(), op)));
    }

    /// The place of the payload of an operation.
    #[inline]
    fn place<L: OpPayload<B>, O>(&self, opcode: WcOpcode, op: &Op<L, O>) -> Result<L::Place> {
        let domain = self.inner.hub.pd.domain();
        match op.payload.place(PdId::of(domain), op.range) {
            Some(place) => Ok(place),
            None => op.payload.checked(S::verb(opcode), Domain(domain), op.range),
        }
    }
}

/// An operation that a [`Connection`] of buffers of type `B` posts: all but datagrams, and those on
/// borrowed memory. It is sealed.
pub trait PostOn<B, P: Provider, S: Service<P>>: Sized + Sealed {
    /// What [`Connection::post`] returns: a [`Pending`], or an array of one for each buffer.
    type Pending;

    #[doc(hidden)]
    fn post_on(self, connection: &Connection<B, P, S>) -> Self::Pending;
}

macro_rules! posts {
    ($($op:ty, $post:ident;)*) => {$(
        impl<B: Source, P: Provider, S: Service<P>> PostOn<B, P, S> for $op {
            type Pending = Pending<B, P, S>;

            #[inline(always)]
            fn post_on(self, connection: &Connection<B, P, S>) -> Pending<B, P, S> {
                connection.$post(self)
            }
        }
    )*};
}

posts! {
    Op<B>, post_send;
    Op<Inline<'_>>, post_send;
    Op<B, Receive>, post_recv;
    Op<NoBuffer, Receive>, post_recv;
}

impl<B: Source, P: Provider, S: Service<P>> Connection<B, P, S> {
    /// Posts a receive.
    fn post_recv<L: OpPayload<B>>(&self, op: Op<L, Receive>) -> Pending<B, P, S> {
        let opcode = WcOpcode::RECV;
        let place = match self.place(opcode, &op) {
            Ok(place) => place,
            Err(error) => return Pending::refused_op(error, op),
        };
        let (buffer, Op { tag, .. }) = op.split();
        let entry = OpEntry { buffer, opcode, kind: SlotKind::Recv, tag, len: place.len() };
        self.submit(entry, |qp, wr_id| {
            // SAFETY: as in `post_send`. `Op::recv` requires a `Target`, and `Op::any` keeps the buffer:
            // both types are buffers of this crate, and no other crate can convert them.
            unsafe { qp.post_recv(&[RecvRequest { wr_id, sges: place.sges() }]) }
        })
    }
}

impl<B, P: Provider, S: Service<P>> Connection<B, P, S> {
    /// Moves an operation into the table and posts its request by `post`.
    #[inline]
    fn submit(
        &self,
        entry: OpEntry<B>,
        post: impl FnOnce(&mut Qp<Rc, P>, u64) -> Result<(), PostError>,
    ) -> Pending<B, P, S> {
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        let mut state = conn.lock();
        if let Err(error) = S::check_post(&state.service, entry.opcode) {
            drop(state);
            return Pending::refused(error, entry.buffer, entry.tag);
        }
        let qp = match state.open_qp() {
            Ok(qp) => qp,
            Err(failure) => {
                drop(state);
                return Pending::refused(failure.into(), entry.buffer, entry.tag);
            }
        };
        let Some(index) = conn.take_slot(entry.kind) else {
            drop(state);
            return Pending::refused(full(conn, entry.kind), entry.buffer, entry.tag);
        };
        // The table owns the buffer before the request is posted, so a panic in between does not
        // free it.
        let wr_id = hub.table.insert(index, entry);
        let posted = post(qp, wr_id);
        drop(state);
        match posted {
            Ok(()) => {}
            // A request that counts as posted completes when the connection ends.
            Err(error) if error.accepted > 0 => hub.end(conn, Failure::Post(error)),
            Err(error) => return self.take_back(wr_id, error.into()),
        }
        Pending::posted(Arc::clone(&self.inner), wr_id)
    }

    /// Refuses an operation whose request was not posted.
    #[cold]
    pub(super) fn take_back(&self, wr_id: u64, error: Error) -> Pending<B, P, S> {
        let ConnectionInner { hub, conn, .. } = &*self.inner;
        match hub.table.take_back(wr_id) {
            Some(OpEntry { buffer, kind, tag, .. }) => {
                conn.put_slot(kind, OpTable::<B>::index(wr_id));
                Pending::refused(error, buffer, tag)
            }
            // A device that completed what it was not given. The table has the buffer.
            None => Pending::posted(Arc::clone(&self.inner), wr_id),
        }
    }
}

impl<B, P: Provider, S: Service<P>> Clone for Connection<B, P, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B, P: Provider, S: Service<P>> fmt::Debug for Connection<B, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A copy: the writer may use the connection.
        let failure = self.inner.conn.lock().failure;
        f.debug_struct("Connection")
            .field("qp_num", &format_args!("{:#x}", self.inner.conn.qp_num))
            .field("failure", &failure)
            .finish_non_exhaustive()
    }
}
