//! Datagrams (UD) whose operations own their buffers.

mod address;
mod destination;
mod options;
mod pending;
mod received;
#[cfg(test)]
mod tests;

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bareverbs_provider::traits::{Completion, Provider};

pub use self::address::DatagramAddress;
pub use self::destination::{Destination, SendTo};
pub use self::options::DatagramOptions;
pub use self::pending::{NextDatagram, PendingDestination};
pub use self::received::{DatagramDone, DatagramSender, ReceivedDatagram};

pub(super) use self::received::checked;
use self::received::{Sender, received, sent};
use super::buffer::sealed::PdId;
use super::endpoint::{Queues, SafeTransport};
use super::in_flight::{Direction, ListOperation, MARKER, PostSend, QueueKind, SendOperation};
use super::keepalive::ProbePath;
use super::operation::{Inline, OpPayload, PostTo, Receive};
use super::resolve::ResolveTimeout;
use super::{Completed, Done, Op, PoolBuffer, Source};
use crate::ah::{Ah, AhAttr};
use crate::cq::{WcFlags, WorkCompletion};
use crate::error::PostError;
use crate::qp::{ConnectAttr, Datagram, GRH_BYTES, Payload, Qp, SendFlags, SendRequest, Ud};
use crate::runtime::Runtime;
use crate::{AnyProvider, Error, Gid, Refused, Result, WcOpcode};

/// Shortest buffer of a receive in bytes: the GRH and one byte.
const SHORTEST: usize = GRH_BYTES + 1;

/// The calls that post.
const SEND: &str = "Datagrams::post(Op::send_to)";
const RECV: &str = "Datagrams::post(Op::recv)";

/// Datagrams: a UD QP whose operations own their buffers of type `B`, as those of an
/// [`Endpoint`](super::Endpoint) do.
///
/// A datagram is one packet. It may be lost, duplicated by the network or reordered, and the sender
/// does not notice: a send completes when the device has sent it. A datagram without a posted
/// receive, or with another Q_Key than the receiver's, is dropped.
///
/// ```
/// use bareverbs::{Datagrams, Device, Op, Pool};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let (mut alice, mut bob): (Datagrams, Datagrams) =
///     (Datagrams::options().inline(64).build(&pd)?, Datagrams::options().inline(64).build(&pd)?);
/// let pool = Pool::new(&pd, 2, 40 + 4096)?;
/// for end in [&mut alice, &mut bob] {
///     end.post(Op::recv(pool.take().expect("a free buffer")))?;
/// }
///
/// // Between two machines, the address goes over a socket, or is looked up.
/// let to = alice.destination(&bob.address()).wait()?;
/// alice.post(Op::send_to_inline(&to, b"hello, bob"))?;
///
/// let hello = bob.next_recv().wait()?;
/// assert_eq!(hello.message(), b"hello, bob");
/// let back = hello.reply_to(&bob).wait()?;
/// bob.post(Op::send_to_inline(&back, b"hello, alice"))?;
/// assert_eq!(alice.next_recv().wait()?.message(), b"hello, alice");
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// # Receives
///
/// The device stores a global route header (GRH) of 40 bytes before the payload, so a receive needs
/// 40 bytes more than its longest message. [`ReceivedDatagram::message`] returns the payload. A
/// buffer of 40 + [`max_message`](Self::max_message) bytes is long enough for every datagram. A
/// longer datagram than the buffer is dropped or moves the QP to ERR, depending on the device.
///
/// # Depth
///
/// [`sends`](DatagramOptions::sends) and [`recvs`](DatagramOptions::recvs) count separately. An
/// operation counts until a poll or a wait has returned it. [`next_recv`](Self::next_recv) and
/// [`poll_recv`](Self::poll_recv) return no sends: a program that uses them takes its sends by
/// [`poll_send`](Self::poll_send).
///
/// # Failure
///
/// The first failed operation moves the QP to ERR. All outstanding operations then fail, with their
/// buffers, and posting is rejected. Create a new `Datagrams`, and join the groups again. On Soft-RoCE
/// a destination without a route fails in this way.
///
/// # Errors of posting
///
/// A refused post returns its buffer, and one of these errors:
///
/// | error | cause |
/// |---|---|
/// | [`Error::BufferTooShort`] | The buffer of a receive has less than 41 bytes. |
/// | [`Error::Invalid`] | Peers may write the buffer of a receive: it was registered with remote access. |
/// | [`Error::Invalid`] | The range is beyond the buffer, or is 4 GiB or longer. |
/// | [`Error::Invalid`] | The buffer or the [`Destination`] belongs to another protection domain. |
/// | [`Error::Closed`] | The QP is in ERR. |
/// | [`Error::Post`], [`PostReason::Queue`] | The queue is full ([`Error::is_full`]), or the message is longer than [`max_message`](Self::max_message) ([`PushError::DatagramTooLong`]). |
/// | [`Error::Post`], [`PostReason::Doorbell`] | The kernel refused the doorbell, and the request was taken back. The QP is in ERR. |
///
/// # Validation of completions
///
/// As for [`Endpoint`](super::Endpoint#validation-of-completions). A receive whose reported length
/// is below 40 bytes or beyond its buffer fails with [`Error::DatagramLength`].
///
/// [`PostReason::Queue`]: crate::error::PostReason::Queue
/// [`PostReason::Doorbell`]: crate::error::PostReason::Doorbell
/// [`PushError::DatagramTooLong`]: crate::error::PushError::DatagramTooLong
#[doc(alias = "IBV_QPT_UD")]
pub struct Datagrams<B = PoolBuffer, P: Provider = AnyProvider> {
    pub(crate) queues: Queues<B, P, Ud>,
    pd: PdId,
    attr: ConnectAttr,
    resolve: ResolveTimeout,
    /// Hop limit of destinations, if the options have one.
    hop_limit: Option<u8>,
    address: DatagramAddress,
    max_message: u32,
    is_ethernet: bool,
}

impl Datagrams {
    /// Options of datagrams, all at their defaults. [`DatagramOptions::build`] determines the type
    /// of the buffers.
    pub fn options() -> DatagramOptions {
        DatagramOptions::default()
    }
}

impl<B, P: Provider> Datagrams<B, P> {
    /// The address of these datagrams, for peers.
    #[must_use]
    pub fn address(&self) -> DatagramAddress {
        self.address
    }

    /// The QP.
    #[must_use]
    pub fn qp(&self) -> &Qp<Ud, P> {
        &self.queues.qp
    }

    /// Length of the longest message in bytes: the port's active MTU. A peer with a smaller MTU
    /// receives only messages up to that.
    #[must_use]
    pub fn max_message(&self) -> u32 {
        self.max_message
    }

    /// Registers the datagrams with an async runtime, before the first await. The runtime is used when an
    /// await has nothing to return. Threads can wait as before.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the calling thread has no reactor.
    /// - [`Error::System`]: the runtime refused the registration.
    #[doc(alias = "tokio::Datagrams::new")]
    #[doc(alias = "async_io::Datagrams::new")]
    pub fn attach(&mut self, runtime: impl Runtime) -> Result<()> {
        self.queues.attach(runtime)
    }

    /// Creates the destination of an address: a peer or a multicast group. It costs a system call,
    /// so keep it for all messages to the peer.
    ///
    /// On RoCE the kernel resolves the Ethernet address of a peer that it does not know, for at most
    /// [`DatagramOptions::resolve_timeout`] and one second. A [thread](PendingDestination::wait) blocks
    /// meanwhile. For a task, it runs beside the tasks of the runtime that is
    /// [attached](Self::attach).
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::Invalid`]: on InfiniBand, the address has no LID; or a task awaits it, and the
    ///   datagrams are not attached.
    /// - [`Error::Kernel`] with `ETIMEDOUT`: the peer did not answer the address resolution, or the
    ///   address has no route, so that the kernel asked on the network interface of the local GID.
    /// - [`Error::Kernel`] with another errno: there is no route.
    #[doc(alias = "ibv_create_ah")]
    pub fn destination(&self, peer: &DatagramAddress) -> PendingDestination<P> {
        self.destination_with_path(&self.path_to(peer), peer.qp_num, peer.qkey)
    }

    /// The path to a peer or a group, by the options.
    fn path_to(&self, peer: &DatagramAddress) -> AhAttr {
        let ConnectAttr { port, gid_index, sl, traffic_class, hop_limit, .. } = self.attr;
        let default = if peer.gid.is_multicast() { 1 } else { hop_limit };
        let mut path = AhAttr { dlid: peer.lid, sl, ..AhAttr::global(port, peer.gid, gid_index) };
        if let Some(grh) = &mut path.grh {
            (grh.traffic_class, grh.hop_limit) = (traffic_class, self.hop_limit.unwrap_or(default));
        }
        path
    }

    /// Creates the destination of a multicast group, with the Q_Key of these datagrams. A sender
    /// need not be a member.
    ///
    /// On RoCE the group is an IP multicast address, such as
    /// `Gid::from(Ipv4Addr::new(239, 1, 2, 3))`. On InfiniBand a group also has a LID: set
    /// [`DatagramAddress::lid`] of [`DatagramAddress::group`] to the MLID, and call
    /// [`destination`](Self::destination).
    ///
    /// # Errors
    /// As for [`destination`](Self::destination).
    pub fn group(&self, group: Gid) -> PendingDestination<P> {
        self.destination(&DatagramAddress::group(group, self.address.qkey))
    }

    /// Creates the destination of the QP `qp_num` on a path, as [`destination`](Self::destination) does.
    ///
    /// # Errors
    /// As for [`Pd::create_ah`](crate::Pd::create_ah).
    pub fn destination_with_path(&self, path: &AhAttr, qp_num: u32, qkey: u32) -> PendingDestination<P> {
        let runtime = self.queues.attached.as_ref().map(|attached| Arc::clone(attached.runtime()));
        let (pd, path, resolution) = (self.queues.qp.pd().clone(), *path, self.resolve.start());
        let create = move || {
            let ah = resolution.run(|| pd.create_ah(&path))?;
            Ok(Destination::new(Arc::new(ah), qp_num, qkey))
        };
        PendingDestination::new(runtime, create)
    }

    /// Receives datagrams to a multicast group that have the Q_Key of these datagrams. A second join
    /// of the same group does nothing. On RoCE, it also joins the IP group until
    /// [`leave`](Self::leave), on the network interface of the local GID; see [`Qp::attach_mcast`].
    ///
    /// On InfiniBand a group also has a LID, and the port must be a member at the subnet
    /// administrator: [`join_with_lid`](Self::join_with_lid).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn join(&mut self, group: Gid) -> Result<()> {
        if !self.is_ethernet {
            return self.queues.qp.attach_mcast(group);
        }
        let own = self.queues.qp.pd().context().gid(self.attr.port, self.attr.gid_index)?;
        self.queues.qp.attach_mcast_via(group, &own)
    }

    /// Attaches to a group of an InfiniBand subnet, named by its GID and its LID. The port must be a
    /// full member of the group already. The connection manager makes it one: its join asks the
    /// subnet administrator, which assigns the LID and the Q_Key.
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast_with_lid`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn join_with_lid(&mut self, group: Gid, lid: u16) -> Result<()> {
        self.queues.qp.attach_mcast_with_lid(group, lid)
    }

    /// Receives no more datagrams to the group, and leaves the IP group.
    ///
    /// # Errors
    /// As for [`Qp::detach_mcast`].
    #[doc(alias = "ibv_detach_mcast")]
    pub fn leave(&mut self, group: Gid) -> Result<()> {
        self.queues.qp.detach_mcast(group)
    }

    /// The number of operations that were not returned yet, in both directions.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending_sends() + self.pending_recvs()
    }

    /// The number of sends that were not returned yet.
    #[must_use]
    pub fn pending_sends(&self) -> usize {
        self.queues.in_flight.sends.queue().len()
    }

    /// The number of receives that were not returned yet.
    #[must_use]
    pub fn pending_recvs(&self) -> usize {
        self.queues.in_flight.recvs.queue().len()
    }

    /// Ends all operations: they fail. Polling and waiting return them, with their buffers, until
    /// [`pending`](Self::pending) is 0.
    pub fn abort(&mut self) {
        self.queues.fail();
    }

    /// Arms the CQ: the file descriptor becomes readable at the next completion. It reads pending
    /// events first, so a level-triggered `epoll` does not report them again. Poll once more after
    /// this call and before waiting on the descriptor.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`] and [`Error::Kernel`], as for
    /// [`Endpoint::arm`](super::Endpoint::arm).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self) -> Result<()> {
        self.queues.arm()
    }
}

impl<B: Source, P: Provider> Datagrams<B, P> {
    /// Posts a datagram or a receive.
    ///
    /// [`Op::send_to`], [`Op::send_to_imm`], [`Op::send_to_inline`] and [`Op::send_to_imm_inline`] make a
    /// datagram. [`Op::recv`] makes a receive of one datagram of up to the length of the buffer minus 40
    /// bytes.
    ///
    /// ```
    /// use bareverbs::{Datagrams, Destination, PoolBuffer, Op};
    ///
    /// fn post(datagrams: &mut Datagrams, to: &Destination, buffers: [PoolBuffer; 2]) -> bareverbs::Result<()> {
    ///     let [answer, message] = buffers;
    ///     datagrams.post(Op::recv(answer))?;
    ///     datagrams.post(Op::send_to_inline(to, b"begin").tag(1).unsignaled())?;
    ///     datagrams.post(Op::send_to_imm(to, message, ..64, 7).tag(2).solicited())?;
    ///     Ok(())
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let options = Datagrams::options().inline(64);
    /// # let (mut datagrams, peer): (Datagrams, Datagrams) = (options.build(&pd)?, options.build(&pd)?);
    /// # let to = datagrams.destination(&peer.address()).wait()?;
    /// # post(&mut datagrams, &to, example::buffers(&pd)?)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [Errors of posting](Datagrams#errors-of-posting). The error returns the buffer of a datagram,
    /// or the receive.
    #[doc(alias = "post_send")]
    #[doc(alias = "post_send_imm")]
    #[doc(alias = "post_send_inline")]
    #[doc(alias = "post_recv")]
    #[doc(alias = "post_recv_tagged")]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post<T: PostTo<Self>>(&mut self, op: T) -> Result<(), T::Refused> {
        op.post_to(self)
    }

    /// Polls one operation that has ended, or returns `None` if there is none. Operations of a
    /// direction end in the order of posting.
    ///
    /// # Errors
    /// - [`Error::Completion`]: the operation failed. The error returns the buffer.
    /// - [`Error::DatagramLength`]: the device reports an impossible length. The error returns the
    ///   buffer.
    /// - [`Error::UnknownCompletion`]: the completion matches no outstanding operation. It has no
    ///   buffer.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&mut self) -> Option<Completed<B, DatagramDone<B>>> {
        self.queues.poll().map(|ended| checked(ended?))
    }

    /// Polls one receive that has ended, or returns `None` if there is none. Sends that have ended
    /// are returned later, by [`poll_send`](Self::poll_send) or [`poll`](Self::poll).
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    pub fn poll_recv(&mut self) -> Option<Completed<B, ReceivedDatagram<B>>> {
        self.queues.poll_direction(Direction::Recv).map(|ended| received(ended?))
    }

    /// Polls one send that has ended, or returns `None` if there is none. Receives that have ended
    /// are returned later, by [`poll_recv`](Self::poll_recv) or [`poll`](Self::poll).
    ///
    /// # Errors
    /// As for [`poll`](Self::poll).
    pub fn poll_send(&mut self) -> Option<Completed<B>> {
        self.queues.poll_direction(Direction::Send).map(|ended| ended.map(sent))
    }

    /// The next operation that completes, to be awaited or waited for, as that of an
    /// [`Endpoint`](super::Endpoint::next).
    ///
    /// # Errors
    /// The errors of the wait:
    ///
    /// - [`Error::Completion`], [`Error::DatagramLength`] and [`Error::UnknownCompletion`], as for
    ///   [`poll`](Self::poll).
    /// - [`Error::Invalid`]: no operation is outstanding, or all outstanding operations are
    ///   unsignalled; or a task awaits it, and the datagrams are not [attached](Self::attach).
    /// - [`Error::DeviceRemoved`]: the device was removed, as for
    ///   [`Endpoint`](super::Endpoint#device-removal). The error returns the buffer.
    /// - [`Error::Kernel`] with `ESTALE`: this process was forked from the one that opened the
    ///   device.
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    #[expect(clippy::should_implement_trait, reason = "a stream of futures is no `Iterator`")]
    #[inline]
    pub fn next(&mut self) -> NextDatagram<'_, B, P, DatagramDone<B>> {
        NextDatagram::new(self)
    }

    /// The next datagram that is received, to be awaited or waited for. Sends that have ended are
    /// returned later, by [`poll_send`](Self::poll_send), [`next_send`](Self::next_send) or
    /// [`poll`](Self::poll).
    ///
    /// # Errors
    /// As for [`next`](Self::next). [`Error::Invalid`] if no receive is outstanding.
    #[doc(alias = "wait_recv")]
    #[doc(alias = "wait_recv_timeout")]
    pub fn next_recv(&mut self) -> NextDatagram<'_, B, P, ReceivedDatagram<B>> {
        NextDatagram::new(self)
    }

    /// The next send that completes, to be awaited or waited for: the device has sent the datagram.
    /// Receives that have ended are returned later.
    ///
    /// # Errors
    /// As for [`next`](Self::next). [`Error::Invalid`] if no signalled send is outstanding.
    #[doc(alias = "wait_send")]
    pub fn next_send(&mut self) -> NextDatagram<'_, B, P, Done<B>> {
        NextDatagram::new(self)
    }
}

impl<B: Source, P: Provider> Datagrams<B, P> {
    #[inline]
    fn send<L: OpPayload<B>>(&mut self, op: Op<L, SendTo<'_, P>>) -> Result<(), Refused<L>> {
        if op.operation.pd() != self.pd {
            return Err(foreign_destination(op.into_buffer()));
        }
        let Queues { qp, in_flight, .. } = &mut self.queues;
        let posted = in_flight.sends.post(qp, op);
        posted.map_err(|refused| self.queues.refused(refused).map(Op::into_buffer))
    }
}

impl<B: Source, P: Provider> PostTo<Datagrams<B, P>> for Op<B, SendTo<'_, P>> {
    type Refused = Refused<B>;

    #[inline]
    fn post_to(self, to: &mut Datagrams<B, P>) -> Result<(), Refused<B>> {
        to.send(self)
    }
}

impl<B: Source, P: Provider> PostTo<Datagrams<B, P>> for Op<Inline<'_>, SendTo<'_, P>> {
    type Refused = Error;

    #[inline]
    fn post_to(self, to: &mut Datagrams<B, P>) -> Result<()> {
        Ok(to.send(self)?)
    }
}

impl<B: Source, P: Provider> PostTo<Datagrams<B, P>> for Op<B, Receive> {
    type Refused = Refused<Self>;

    #[inline]
    fn post_to(self, to: &mut Datagrams<B, P>) -> Result<(), Refused<Self>> {
        if self.payload.length() < SHORTEST || self.payload.try_bytes().is_none() {
            return Err(unusable(self));
        }
        let Queues { qp, in_flight, .. } = &mut to.queues;
        in_flight.recvs.post(qp, self)
    }
}

#[cold]
#[inline(never)]
fn foreign_destination<T>(op: T) -> Refused<T> {
    let reason = "the destination belongs to another PD than the QP: create it with \
                  `Datagrams::destination` of these datagrams";
    Refused::new(Error::invalid(SEND, reason), op)
}

#[cold]
#[inline(never)]
fn unusable<B: Source>(op: Op<B, Receive>) -> Refused<Op<B, Receive>> {
    let (len, min) = (op.payload.length() as u64, SHORTEST as u64);
    let error = if len < min {
        Error::BufferTooShort { verb: RECV, len, min }
    } else {
        Error::invalid(RECV, "peers may write the buffer: register it without remote access")
    };
    Refused::new(error, op)
}

/// UD: datagrams over address handles.
pub(crate) struct Unconnected<P>(PhantomData<P>);

impl<P: Provider> QueueKind for Unconnected<P> {
    type Held = Arc<Ah<P>>;
    type Sender = Sender;
    type Done<B> = DatagramDone<B>;

    const CLOSED: &'static str = "the QP is in ERR: create a new `Datagrams`";
    const WAIT: &'static str = "Datagrams::next";
    const ARM: &'static str = "Datagrams::arm";
    const CLOSE: &'static str = "Datagrams::close";

    fn verb(opcode: WcOpcode) -> &'static str {
        if opcode == WcOpcode::SEND { SEND } else { RECV }
    }

    #[inline]
    fn sender(completion: &impl Completion) -> Sender {
        Sender {
            qp_num: completion.src_qp(),
            slid: completion.slid(),
            sl: completion.sl(),
            dlid_path_bits: completion.dlid_path_bits(),
            has_grh: completion.wc_flags().contains(WcFlags::GRH),
        }
    }

    fn sender_of(completion: &WorkCompletion) -> Sender {
        let WorkCompletion { src_qp, slid, sl, dlid_path_bits, wc_flags, .. } = *completion;
        Sender { qp_num: src_qp, slid, sl, dlid_path_bits, has_grh: wc_flags.contains(WcFlags::GRH) }
    }

    #[inline]
    fn sent<B>(done: Done<B>) -> DatagramDone<B> {
        DatagramDone::Sent(done)
    }

    #[inline]
    fn received<B>(done: Done<B>, sender: Sender) -> DatagramDone<B> {
        DatagramDone::Received(ReceivedDatagram::new(done, sender))
    }
}

impl SafeTransport for Ud {
    type QueueKind<P: Provider> = Unconnected<P>;

    /// In RTS, it would be a datagram to a peer.
    const MARKER_IS_EXECUTED: bool = false;

    /// UD has no acknowledgements.
    const HAS_PROBES: bool = false;

    fn post_marker<P: Provider>(qp: &mut Qp<Self, P>, newest: &Arc<Ah<P>>) -> Result<(), PostError> {
        let operation = Datagram::new(&**newest, 0, 0);
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&[]));
        // SAFETY: the request names no memory.
        unsafe { qp.post_send(&[SendRequest { wr_id: MARKER, operation, flags, payload }]) }
    }

    fn post_probe<P: Provider>(_: &mut Qp<Self, P>, _: Option<ProbePath>) -> Result<(), PostError> {
        unreachable!("UD has no probes")
    }
}

impl<P: Provider> ListOperation for SendTo<'_, P> {
    #[inline]
    fn opcode(&self) -> WcOpcode {
        WcOpcode::SEND
    }
}

impl<P: Provider> SendOperation<Unconnected<P>> for SendTo<'_, P> {
    #[inline]
    fn held(&self) -> Arc<Ah<P>> {
        self.ah()
    }
}

impl<P: Provider> PostSend<SendTo<'_, P>> for Qp<Ud, P> {
    const PUBLISHES: bool = true;

    #[inline]
    unsafe fn post(&mut self, request: &SendRequest<'_, SendTo<'_, P>>) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.post_send(&[request.with(request.operation.to_datagram())]) }
    }
}

/// The datagrams that are received. It ends when no receive is posted; after another post it continues.
#[cfg(feature = "futures")]
impl<B: Source, P: Provider> futures_core::Stream for Datagrams<B, P> {
    type Item = Completed<B, ReceivedDatagram<B>>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let ended = self.get_mut().queues.poll_stream(Some(Direction::Recv), cx.waker());
        ended.map(|ended| ended.map(|ended| ended.and_then(received)))
    }
}

// It contains no pinned values.
impl<B, P: Provider> Unpin for Datagrams<B, P> {}

impl<B, P: Provider> AsFd for Datagrams<B, P> {
    /// The file descriptor that [`Datagrams::arm`] makes readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queues.channel.as_fd()
    }
}

impl<B, P: Provider> fmt::Debug for Datagrams<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams")
            .field("address", &self.address)
            .field("state", &self.queues.qp.state())
            .field("pending_sends", &self.pending_sends())
            .field("pending_recvs", &self.pending_recvs())
            .finish_non_exhaustive()
    }
}
