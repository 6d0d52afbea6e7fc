//! Where datagrams go.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::super::Op;
use super::super::buffer::sealed::PdId;
use super::super::operation::{Inline, SendQueueOperation};
use crate::ah::Ah;
use crate::qp::Datagram;
use crate::{AnyProvider, Imm};

/// Where a datagram goes: the path to a port, and a QP there. Cloning it is cheap: clones share the
/// address handle. Each outstanding send also shares it, so a destination may be dropped at any
/// time.
///
/// [`Datagrams::destination`](super::Datagrams::destination) creates one from an address,
/// [`Datagrams::group`](super::Datagrams::group) from a multicast group, and
/// [`ReceivedDatagram::reply_to`](super::ReceivedDatagram::reply_to) from the sender of a datagram.
pub struct Destination<P: Provider = AnyProvider> {
    ah: Arc<Ah<P>>,
    qp_num: u32,
    qkey: u32,
}

impl<P: Provider> Destination<P> {
    /// The QP `qp_num`, 24 bits, with the Q_Key `qkey`, on the path of an address handle.
    /// [`MULTICAST_QP`](crate::qp::MULTICAST_QP) for a multicast group.
    #[must_use]
    pub fn new(ah: Arc<Ah<P>>, qp_num: u32, qkey: u32) -> Self {
        Self { ah, qp_num, qkey }
    }

    /// The same QP with another Q_Key. If its highest bit is set, the specification (IBTA 10.2.5)
    /// requires the device to send the Q_Key of the local QP instead. rxe sends the given one.
    #[must_use]
    pub fn with_qkey(self, qkey: u32) -> Self {
        Self { qkey, ..self }
    }

    /// The address handle.
    #[must_use]
    pub fn ah(&self) -> &Arc<Ah<P>> {
        &self.ah
    }

    /// The QPN.
    #[must_use]
    #[doc(alias = "remote_qpn")]
    pub fn qp_num(&self) -> u32 {
        self.qp_num
    }

    /// The Q_Key that datagrams carry. The receiver drops a datagram with another Q_Key than its
    /// own.
    #[must_use]
    #[doc(alias = "remote_qkey")]
    pub fn qkey(&self) -> u32 {
        self.qkey
    }
}

impl<P: Provider> Clone for Destination<P> {
    fn clone(&self) -> Self {
        Self { ah: Arc::clone(&self.ah), ..*self }
    }
}

impl<P: Provider> fmt::Debug for Destination<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("path", self.ah.attr())
            .field("qp_num", &self.qp_num)
            .field("qkey", &self.qkey)
            .finish()
    }
}

/// The operation of a datagram, in an [`Op`]: its destination and its immediate data.
pub struct SendTo<'a, P: Provider = AnyProvider> {
    to: &'a Destination<P>,
    imm: Option<Imm>,
}

impl<'a, P: Provider> SendTo<'a, P> {
    #[inline]
    pub(super) fn pd(&self) -> PdId {
        PdId::of(self.to.ah.pd().domain())
    }

    #[inline]
    pub(super) fn ah(&self) -> Arc<Ah<P>> {
        Arc::clone(&self.to.ah)
    }

    #[inline]
    pub(super) fn to_datagram(self) -> Datagram<'a, P> {
        Datagram { imm: self.imm, ..Datagram::new(&*self.to.ah, self.to.qp_num, self.to.qkey) }
    }
}

impl<P: Provider> Clone for SendTo<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for SendTo<'_, P> {}

impl<P: Provider> fmt::Debug for SendTo<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendTo").field("to", self.to).field("imm", &self.imm).finish()
    }
}

impl<P: Provider> SendQueueOperation for SendTo<'_, P> {}

impl<'a, B, P: Provider> Op<B, SendTo<'a, P>> {
    /// Sends the bytes of `buffer` in `range` as one datagram.
    #[inline]
    pub fn send_to(to: &'a Destination<P>, buffer: B, range: impl RangeBounds<usize>) -> Self {
        Self::of(SendTo { to, imm: None }, buffer, range)
    }

    /// Sends the bytes of `buffer` in `range` as one datagram with immediate data.
    #[inline]
    pub fn send_to_imm(
        to: &'a Destination<P>,
        buffer: B,
        range: impl RangeBounds<usize>,
        imm: impl Into<Imm>,
    ) -> Self {
        Self::of(SendTo { to, imm: Some(imm.into()) }, buffer, range)
    }
}

impl<'a, P: Provider> Op<Inline<'a>, SendTo<'a, P>> {
    /// Sends `bytes`, which are copied when posted, as one datagram. They need not be registered.
    /// Their maximum is [`DatagramOptions::inline`](super::DatagramOptions::inline).
    #[inline]
    pub fn send_to_inline(to: &'a Destination<P>, bytes: &'a [u8]) -> Self {
        Self::without_range(SendTo { to, imm: None }, Inline(bytes))
    }

    /// Sends as [`Op::send_to_inline`] does, with immediate data.
    #[inline]
    pub fn send_to_imm_inline(to: &'a Destination<P>, bytes: &'a [u8], imm: impl Into<Imm>) -> Self {
        Self::without_range(SendTo { to, imm: Some(imm.into()) }, Inline(bytes))
    }
}
