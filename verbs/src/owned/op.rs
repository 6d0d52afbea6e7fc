//! Operations of a send queue, before they are posted.

use std::ops::{Bound, RangeBounds};

use super::{AnyBuffer, Source, Target};
use crate::qp::{Operation, SendFlags};
use crate::{Imm, Remote};

/// A send, write, read or atomic operation, with its buffer and its options.
/// [`Endpoint::post`](super::Endpoint::post) and [`Batch::post`](super::Batch::post) post it.
/// [`Datagrams::post`](super::Datagrams::post) posts a datagram, an operation of type
/// [`SendTo`](super::SendTo).
///
/// ```no_run
/// # use bareverbs::{Buffer, Endpoint, Mr, NotPosted, Op};
/// # fn post(endpoint: &mut Endpoint, one: Mr<Buffer>, two: Mr<Buffer>) -> Result<(), NotPosted<Mr<Buffer>>> {
/// endpoint.post(Op::send(one, ..10).tag(7))?;
/// endpoint.post(Op::send_imm(two, .., 42).tag(8).solicited())?;
/// endpoint.post(Op::send_inline(b"short"))?;
/// # Ok(())
/// # }
/// ```
///
/// # Remote access
///
/// A write needs `REMOTE_WRITE`, a read `REMOTE_READ`, and an atomic operation `REMOTE_ATOMIC`. Both
/// the peer's QP ([`EndpointOptions::access`](super::EndpointOptions::access)) and its memory
/// ([`RegionMut::expose`](super::RegionMut::expose)) need the right. By default an endpoint permits reads and
/// writes, and a server or a client only writes.
///
/// Reads and writes transfer bytes unchanged. Operands and results of atomic operations have the
/// native byte order of this host; the word in the peer's memory has that of the peer.
#[derive(Debug)]
#[must_use = "`post` posts it"]
pub struct Op<'a, B, O = Operation> {
    pub(super) operation: O,
    pub(super) payload: OpPayload<'a, B>,
    pub(super) tag: u64,
    pub(super) flags: SendFlags,
}

/// A range as the caller gave it.
pub(super) type AnyRange = (Bound<usize>, Bound<usize>);

#[derive(Debug)]
pub(super) enum OpPayload<'a, B, R = AnyRange> {
    Buffer(B, R),
    Inline(&'a [u8]),
}

#[inline(always)]
pub(super) fn any_range(range: impl RangeBounds<usize>) -> AnyRange {
    (range.start_bound().cloned(), range.end_bound().cloned())
}

impl<'a, B, O> Op<'a, B, O> {
    #[inline(always)]
    pub(super) fn of(operation: O, buffer: B, range: impl RangeBounds<usize>) -> Self {
        let payload = OpPayload::Buffer(buffer, any_range(range));
        Self { operation, payload, tag: 0, flags: SendFlags::SIGNALED }
    }

    #[inline(always)]
    pub(super) fn inline(operation: O, bytes: &'a [u8]) -> Self {
        Self { operation, payload: OpPayload::Inline(bytes), tag: 0, flags: SendFlags::SIGNALED }
    }
}

impl<B, O> Op<'_, B, O> {
    /// The buffer, if it has one, and the tag.
    pub(super) fn into_buffer(self) -> (Option<B>, u64) {
        let buffer = match self.payload {
            OpPayload::Buffer(buffer, _) => Some(buffer),
            OpPayload::Inline(_) => None,
        };
        (buffer, self.tag)
    }
}

impl<B: Source> Op<'_, B> {
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

impl<B: Target> Op<'_, B> {
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

impl<'a, B> Op<'a, B> {
    /// Sends `bytes`, which are copied when posted. They need not be registered. Their maximum is
    /// [`EndpointOptions::inline`](super::EndpointOptions::inline).
    #[doc(alias = "IBV_WR_SEND")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_inline(bytes: &'a [u8]) -> Self {
        Self::inline(Operation::Send, bytes)
    }

    /// Sends as [`Op::send_inline`] does, with immediate data.
    #[doc(alias = "IBV_WR_SEND_WITH_IMM")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn send_imm_inline(bytes: &'a [u8], imm: impl Into<Imm>) -> Self {
        Self::inline(Operation::SendImm(imm.into()), bytes)
    }

    /// Writes `bytes`, which are copied when posted, to the peer's memory.
    ///
    /// The peer must permit it: see [remote access](Op#remote-access).
    #[doc(alias = "IBV_WR_RDMA_WRITE")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_inline(bytes: &'a [u8], remote: Remote) -> Self {
        Self::inline(Operation::Write(remote), bytes)
    }

    /// Writes as [`Op::write_inline`] does, and completes a receive of the peer with immediate
    /// data.
    #[doc(alias = "IBV_WR_RDMA_WRITE_WITH_IMM")]
    #[doc(alias = "IBV_SEND_INLINE")]
    #[inline(always)]
    pub fn write_imm_inline(bytes: &'a [u8], remote: Remote, imm: impl Into<Imm>) -> Self {
        Self::inline(Operation::WriteImm(remote, imm.into()), bytes)
    }

    /// Sets the fence indicator (`IBV_SEND_FENCE`): the operation starts after earlier reads and
    /// atomics of the endpoint are complete.
    #[doc(alias = "IBV_SEND_FENCE")]
    #[inline(always)]
    pub fn fenced(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }
}

impl<'a, B, O> Op<'a, B, O> {
    /// A number that comes back in [`Done::tag`](super::Done::tag) or
    /// [`Failed::tag`](super::Failed::tag). Default: 0.
    #[inline(always)]
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = tag;
        self
    }

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

    /// The same operation for an endpoint of [`AnyBuffer`].
    pub fn any<M>(self) -> Op<'a, AnyBuffer<M>, O>
    where
        B: Into<AnyBuffer<M>>,
    {
        let payload = match self.payload {
            OpPayload::Buffer(buffer, range) => OpPayload::Buffer(buffer.into(), range),
            OpPayload::Inline(bytes) => OpPayload::Inline(bytes),
        };
        Op { operation: self.operation, payload, tag: self.tag, flags: self.flags }
    }
}
