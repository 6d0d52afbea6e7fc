//! The operation of UD QPs: a datagram.

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{self, Imm};

use crate::ah::Ah;
pub use crate::ah::grh::GRH_BYTES;
use crate::provider::AnyProvider;

/// The QPN of multicast groups.
#[doc(alias = "IB_MULTICAST_QPN")]
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// Destination and immediate data of a datagram.
#[doc(alias = "ibv_wr_set_ud_addr")]
pub struct Datagram<'a, P: Provider = AnyProvider> {
    /// Address handle of the peer, of the QP's own protection domain. It must exist until the
    /// request completes; otherwise the request fails.
    pub ah: &'a Ah<P>,
    /// QPN of the peer, 24 bits; [`MULTICAST_QP`] for a multicast group.
    pub qp_num: u32,
    /// Q_Key of the peer. The receiver drops a datagram with another Q_Key than its own.
    pub qkey: u32,
    /// Immediate data.
    pub imm: Option<Imm>,
    /// First bytes of the datagram, placed before the payload. They are copied when posted. Only QPs
    /// with a [source QPN](crate::qp::QpInit::source_qp_num) have them, and require 4 to 18 bytes here,
    /// unless the payload is inline. Others reject them with
    /// [`PushError::Unsupported`](crate::error::PushError).
    pub header: &'a [u8],
}

impl<P: Provider> Clone for Datagram<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Provider> Copy for Datagram<'_, P> {}

impl<'a, P: Provider> Datagram<'a, P> {
    /// A datagram to the QP `qp_num` with the Q_Key `qkey`.
    #[must_use]
    pub fn new(ah: &'a Ah<P>, qp_num: u32, qkey: u32) -> Self {
        Self { ah, qp_num, qkey, imm: None, header: &[] }
    }

    #[inline(always)]
    pub(crate) fn to_provider(self) -> work::Datagram<'a, P::Ah> {
        let Self { ah, qp_num, qkey, imm, header } = self;
        work::Datagram { ah: ah.inner(), qp_num, qkey, imm, header }
    }
}
