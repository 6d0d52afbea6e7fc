//! Operations, before they are posted.

mod payload;

use std::fmt;
use std::ops::{Bound, RangeBounds};

pub use self::payload::{Inline, NoBuffer, OpPayload, Parts};
pub(super) use self::payload::{Lent, MAX_PARTS, Place};
use bareverbs_provider::work::{Operation, SendFlags};

use super::any_buffer::AnyBuffer;
use super::buffer::sealed::Writable;
use crate::{Error, Imm, Remote, Result};

/// An operation with its buffer and its options: a send, a write, a read or an atomic operation, a
/// [receive](Receive), or a [datagram](super::SendTo).
///
/// `post` of [`Endpoint`](super::Endpoint::post), [`Batch`](super::Batch::post),
/// [`Scope`](super::Scope::post), [`Datagrams`](super::Datagrams::post) and
/// [`Connection`](super::Connection::post) posts it. A refused operation comes back in
/// [`Refused`](crate::Refused), if it owns its buffer, and can be posted again.
///
/// ```
/// # use bareverbs::Op;
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let [mut endpoint, _peer] = example::endpoints(&pd)?;
/// # let [one, two, three] = example::buffers(&pd)?;
/// endpoint.post(Op::recv(three).tag(6))?;
/// endpoint.post(Op::send(one, ..10).tag(7))?;
/// endpoint.post(Op::send_imm(two, .., 42).tag(8).solicited())?;
/// endpoint.post(Op::send_inline(b"short"))?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// | `L` | payload | made by |
/// |---|---|---|
/// | a [`Source`](super::Source) | one buffer, and the range of its bytes | [`Op::send`], [`Op::recv`], … |
/// | [`Parts`] | several buffers and their ranges, one message | [`Op::send_parts`], [`Op::recv_parts`], … |
/// | [`Inline`] | bytes that are copied when posted | [`Op::send_inline`], … |
/// | [`NoBuffer`] | a receive for immediate data only | [`Op::recv_empty`] |
/// | `&R`, `&mut R` of a [`Lend`](super::Lend) | borrowed memory, for a [`Scope`](super::Scope) | [`Op::send`], [`Op::recv`], … |
///
/// # Remote access
///
/// A write needs `REMOTE_WRITE`, a read `REMOTE_READ`, and an atomic operation `REMOTE_ATOMIC`. Both
/// the peer's QP ([`EndpointOptions::access`](super::EndpointOptions::access)) and its memory
/// ([`RegionMut::expose`](super::RegionMut::expose)) need the right. By default an endpoint permits
/// reads and writes, and a server or a client only writes.
///
/// Reads and writes transfer bytes unchanged. Operands and results of atomic operations have the
/// native byte order of this host; the word in the peer's memory has that of the peer.
///
/// # Several buffers
///
/// Each buffer has a [`Done`](super::Done) or [`Failed`](super::Failed) of its own, with the tag of the
/// operation and the bytes of the buffer. The last one has the immediate data. An endpoint returns them
/// in order, a [`Connection`](super::Connection::post) a [`Pending`](super::Pending) for each. Each
/// buffer counts as an operation of the depth. The operation is signalled. It allocates no memory. The
/// ranges have one type, such as `..` or `..len`.
///
/// The number of buffers is at most [`EndpointOptions::max_sge`](super::EndpointOptions::max_sge), and
/// at most 8.
///
/// ```
/// # use bareverbs::{AnyBuffer, Endpoint, PoolBuffer, Op, RegionMut};
/// # fn send(pd: &bareverbs::Pd, header: PoolBuffer, body: RegionMut, received: PoolBuffer) -> bareverbs::Result<()> {
/// let mut endpoint: Endpoint<AnyBuffer> = Endpoint::options().max_sge(2).build(pd)?;
/// # let mut peer: Endpoint<PoolBuffer> = Endpoint::new(pd, 1, 1)?;
/// # endpoint.connect(&peer.address())?;
/// # peer.connect(&endpoint.address())?;
/// # peer.post(Op::recv(received))?;
/// let len = body.len();
/// endpoint.post(Op::send_parts([(AnyBuffer::from(header), ..16), (body.into(), ..len)]).tag(7))?;
/// // Each buffer has a result of its own, in order. They have the tag 7.
/// let (header, body) = (endpoint.next().wait()?, endpoint.next().wait()?);
/// assert_eq!((header.len, body.len), (16, len as u32));
/// # Ok(())
/// # }
/// # fn shared(connection: &bareverbs::Connection, [header, body]: [PoolBuffer; 2]) -> bareverbs::Result<()> {
///
/// // On a connection of a hub:
/// let [header, body] = connection.post(Op::send_parts([(header, ..16), (body, ..64)]));
/// header.wait()?;
/// body.wait()?;
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let ([connection, peer], [one, two, received]) = (example::connections(&pd)?, example::buffers(&pd)?);
/// # let _received = peer.post(Op::recv(received));
/// # shared(&connection, [one, two])?;
/// # let [header, received] = example::buffers(&pd)?;
/// # send(&pd, header, RegionMut::register(&pd, bareverbs::Buffer::zeroed(64)?)?, received)?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[must_use = "`post` posts it"]
pub struct Op<L, O = Operation> {
    pub(super) operation: O,
    pub(super) payload: L,
    /// The bytes of the buffer. Without meaning for other payloads than one buffer.
    pub(super) range: ByteRange,
    pub(super) tag: u64,
    pub(super) flags: SendFlags,
}

/// The operation of a receive, in an [`Op`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Receive;

/// An operation of the send queue, in an [`Op`]: it has the options of a send.
pub trait SendQueueOperation: Copy {}

impl SendQueueOperation for Operation {}

/// An operation that `To` posts. It is sealed.
///
/// | `To` | operations |
/// |---|---|
/// | [`Endpoint`](super::Endpoint) | all but datagrams and those on borrowed memory |
/// | [`Batch`](super::Batch) | those of the send queue, with one buffer or inline |
/// | [`Scope`](super::Scope) | inline operations, and those on borrowed memory |
/// | [`Datagrams`](super::Datagrams) | datagrams, and receives of one buffer. A refused datagram returns its buffer. |
#[diagnostic::on_unimplemented(
    message = "`{To}` does not post `{Self}`",
    label = "not an operation with an owned, registered buffer of its type",
    note = "an endpoint or a connection of `B` posts buffers of type `B`: `Op::any` converts them for `AnyBuffer`",
    note = "borrowed memory is posted in `Endpoint::scope`"
)]
pub trait PostTo<To>: Sized + sealed::Sealed {
    /// What a refused post returns: [`Refused`](crate::Refused) with the operation, if that owns its
    /// buffers, else the [`Error`]. So it has no lifetime, and `?` converts it to any error.
    type Refused: std::error::Error + Into<Error>;

    #[doc(hidden)]
    fn post_to(self, to: &mut To) -> Result<(), Self::Refused>;
}

pub(super) mod sealed {
    pub trait Sealed {}

    impl<L, O> Sealed for super::Op<L, O> {}
}

/// A range of bytes as the caller gave it.
#[derive(Clone, Copy, Debug)]
pub struct ByteRange {
    start: usize,
    /// `None`: the end of the buffer.
    end: Option<usize>,
}

impl ByteRange {
    const ALL: Self = Self { start: 0, end: None };

    /// A bound beyond the address space becomes the greatest one, which is beyond every buffer.
    #[inline(always)]
    pub(super) fn new(range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(end) => Some(end.saturating_add(1)),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => None,
        };
        Self { start, end }
    }
}

impl RangeBounds<usize> for ByteRange {
    #[inline(always)]
    fn start_bound(&self) -> Bound<&usize> {
        Bound::Included(&self.start)
    }

    #[inline(always)]
    fn end_bound(&self) -> Bound<&usize> {
        self.end.as_ref().map_or(Bound::Unbounded, Bound::Excluded)
    }
}

impl<L, O> Op<L, O> {
    #[inline(always)]
    pub(super) fn of(operation: O, payload: L, range: impl RangeBounds<usize>) -> Self {
        Self { operation, payload, range: ByteRange::new(range), tag: 0, flags: SendFlags::SIGNALED }
    }

    #[inline(always)]
    pub(super) fn without_range(operation: O, payload: L) -> Self {
        Self { operation, payload, range: ByteRange::ALL, tag: 0, flags: SendFlags::SIGNALED }
    }

    /// The payload without the operation: the buffer, or what holds several or none.
    pub fn into_buffer(self) -> L {
        self.payload
    }

    /// Takes the buffer out.
    #[inline(always)]
    pub(super) fn split<B>(self) -> (Option<B>, Op<L::Kept, O>)
    where
        L: OpPayload<B>,
    {
        let Self { operation, payload, range, tag, flags } = self;
        let (buffer, payload) = payload.split();
        (buffer, Op { operation, payload, range, tag, flags })
    }

    /// The same operation with another payload.
    pub(super) fn map<T>(self, wrap: impl FnOnce(L) -> T) -> Op<T, O> {
        let Self { operation, payload, range, tag, flags } = self;
        Op { operation, payload: wrap(payload), range, tag, flags }
    }
}

impl<L, O: fmt::Debug> fmt::Debug for Op<L, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op")
            .field("operation", &self.operation)
            .field("tag", &self.tag)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

impl<B> Op<B> {
    /// Sends the bytes of `buffer` in `range` as one message.
    #[doc(alias = "IBV_WR_SEND")]
    #[inline(always)]
    pub fn send(buffer: B, range: impl RangeBounds<usize>) -> Self {
        Self::of(Operation::Send, buffer, range)
    }

    /// Sends the bytes of `buffer` in `range` as one message with immediate data.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[inline(always)]
    pub fn send_imm(buffer: B, range: impl RangeBounds<usize>, imm: impl Into<Imm>) -> Self {
        Self::of(Operation::SendImm(imm.into()), buffer, range)
    }

    /// Writes the bytes of `buffer` in `range` to the peer's memory.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[inline(always)]
    pub fn write(buffer: B, range: impl RangeBounds<usize>, remote: Remote) -> Self {
        Self::of(Operation::Write(remote), buffer, range)
    }

    /// Writes as [`Op::write`] does, and completes a receive of the peer with immediate data.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[inline(always)]
    pub fn write_imm(buffer: B, range: impl RangeBounds<usize>, remote: Remote, imm: impl Into<Imm>) -> Self {
        Self::of(Operation::WriteImm(remote, imm.into()), buffer, range)
    }
}

impl<B: Writable> Op<B> {
    /// Reads the peer's memory into the bytes of `buffer` in `range`.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_RDMA_READ")]
    #[inline(always)]
    pub fn read(buffer: B, range: impl RangeBounds<usize>, remote: Remote) -> Self {
        Self::of(Operation::Read(remote), buffer, range)
    }

    /// Adds `add` to the 8 bytes at `remote`, a multiple of 8. The first 8 bytes of `buffer`
    /// receive the old value, in native byte order.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_ATOMIC_FETCH_AND_ADD")]
    #[inline(always)]
    pub fn fetch_add(buffer: B, remote: Remote, add: u64) -> Self {
        Self::of(Operation::FetchAdd { remote, add }, buffer, ..8)
    }

    /// Replaces the 8 bytes at `remote`, a multiple of 8, by `swap` if they equal `compare`. The
    /// first 8 bytes of `buffer` receive the old value, in native byte order.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_ATOMIC_CMP_AND_SWP")]
    #[inline(always)]
    pub fn compare_swap(buffer: B, remote: Remote, compare: u64, swap: u64) -> Self {
        Self::of(Operation::CmpSwp { remote, compare, swap }, buffer, ..8)
    }
}

impl<'a> Op<Inline<'a>> {
    /// Sends `bytes`, which are copied when posted. They need not be registered. Their maximum is
    /// [`EndpointOptions::inline`](super::EndpointOptions::inline).
    #[doc(alias = "IBV_WR_SEND")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_inline(bytes: &'a [u8]) -> Self {
        Self::without_range(Operation::Send, Inline(bytes))
    }

    /// Sends as [`Op::send_inline`] does, with immediate data.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_imm_inline(bytes: &'a [u8], imm: impl Into<Imm>) -> Self {
        Self::without_range(Operation::SendImm(imm.into()), Inline(bytes))
    }

    /// Writes `bytes`, which are copied when posted, to the peer's memory.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_inline(bytes: &'a [u8], remote: Remote) -> Self {
        Self::without_range(Operation::Write(remote), Inline(bytes))
    }

    /// Writes as [`Op::write_inline`] does, and completes a receive of the peer with immediate
    /// data.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_imm_inline(bytes: &'a [u8], remote: Remote, imm: impl Into<Imm>) -> Self {
        Self::without_range(Operation::WriteImm(remote, imm.into()), Inline(bytes))
    }
}

impl<B, R: RangeBounds<usize>, const N: usize> Op<Parts<B, R, N>> {
    /// Sends the bytes of several buffers, in order, as one message. See
    /// [several buffers](Op#several-buffers).
    #[doc(alias = "post_send_parts")]
    #[doc(alias = "IBV_WR_SEND")]
    pub fn send_parts(parts: [(B, R); N]) -> Self {
        Self::without_range(Operation::Send, Parts(parts))
    }

    /// Writes the bytes of several buffers, in order, to the peer's memory. See
    /// [several buffers](Op#several-buffers).
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "post_write_parts")]
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    pub fn write_parts(parts: [(B, R); N], remote: Remote) -> Self {
        Self::without_range(Operation::Write(remote), Parts(parts))
    }
}

impl<B: Writable, R: RangeBounds<usize>, const N: usize> Op<Parts<B, R, N>> {
    /// Reads the peer's memory into several buffers, in order. See
    /// [several buffers](Op#several-buffers).
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "post_read_parts")]
    #[doc(alias = "IBV_WR_RDMA_READ")]
    pub fn read_parts(parts: [(B, R); N], remote: Remote) -> Self {
        Self::without_range(Operation::Read(remote), Parts(parts))
    }
}

impl<B: Writable> Op<B, Receive> {
    /// Receives one message of up to the whole length of `buffer`.
    #[doc(alias = "post_recv")]
    #[doc(alias = "post_recv_tagged")]
    #[doc(alias = "recv_tagged")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn recv(buffer: B) -> Self {
        Self::without_range(Receive, buffer)
    }
}

impl<B: Writable, R: RangeBounds<usize>, const N: usize> Op<Parts<B, R, N>, Receive> {
    /// Receives one message into the ranges of several buffers, in order. See
    /// [several buffers](Op#several-buffers).
    ///
    /// [`Done::message`](super::Done::message) of each buffer has the bytes of the message that the
    /// buffer received. It begins at the start of the buffer, so begin its range there to use it.
    #[doc(alias = "post_recv_parts")]
    #[doc(alias = "ibv_post_recv")]
    pub fn recv_parts(parts: [(B, R); N]) -> Self {
        Self::without_range(Receive, Parts(parts))
    }
}

impl Op<NoBuffer, Receive> {
    /// Receives the immediate data of a [write](Op::write_imm) or of a message without bytes. A message
    /// with bytes fails.
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn recv_empty() -> Self {
        Self::without_range(Receive, NoBuffer(()))
    }
}

impl<L> Op<L> {
    /// Sets the fence indicator (`IBV_SEND_FENCE`): the operation starts after earlier reads and
    /// atomics of the endpoint are complete.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline(always)]
    pub fn fenced(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }
}

impl<L, O> Op<L, O> {
    /// A number that comes back in [`Done::tag`](super::Done::tag) or
    /// [`Failed::tag`](super::Failed::tag). Default: 0.
    #[inline(always)]
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

    /// The same operation for an endpoint or a connection of [`AnyBuffer`].
    #[inline(always)]
    pub fn any<M>(self) -> Op<AnyBuffer<M>, O>
    where
        L: Into<AnyBuffer<M>>,
    {
        self.map(Into::into)
    }
}

impl<L, O: SendQueueOperation> Op<L, O> {
    /// Clears `IBV_SEND_SIGNALED`: the operation generates no CQE on success. It is reported with
    /// the next signalled one. Runs of such operations are limited by
    /// [`EndpointOptions::signal_every`](super::EndpointOptions::signal_every).
    #[doc(alias = "IBV_SEND_SIGNALED")]
    #[inline(always)]
    pub fn unsignaled(mut self) -> Self {
        self.flags = self.flags.difference(SendFlags::SIGNALED);
        self
    }

    /// Sets the solicited event bit (`IBV_SEND_SOLICITED`): the peer's completion raises a
    /// solicited event.
    #[doc(alias = "IBV_SEND_SOLICITED")]
    #[inline(always)]
    pub fn solicited(mut self) -> Self {
        self.flags |= SendFlags::SOLICITED;
        self
    }
}
