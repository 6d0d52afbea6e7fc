//! Attributes for the creation of a QP.

use bareverbs_provider::request::{DoorbellChoice, QueueMemory};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::uverbs::types::QpCreateFlags;

use super::attr::QpCap;
use crate::cq::{Cq, CqRef};
use crate::provider::AnyProvider;
use crate::srq::Srq;

/// Attributes for the creation of a QP.
#[doc(alias = "ibv_qp_init_attr")]
pub struct QpInit<'a, P: Provider = AnyProvider> {
    /// CQ for completions of sends.
    pub send_cq: &'a CqRef<P>,
    /// CQ for completions of receives. May be the same as `send_cq`.
    pub recv_cq: &'a CqRef<P>,
    /// Shared receive queue. With it, the QP has no receive queue of its own.
    pub srq: Option<&'a Srq<P>>,
    /// Depths and widths of the queues. Devices may grant more, and the CQs must hold what was
    /// granted: see [`QpCap`]. `max_recv_wr` and `max_recv_sge` are ignored if the QP has no receive
    /// queue of its own: with [`srq`](Self::srq), and for XRC.
    pub cap: QpCap,
    /// Length in bytes of the longest header of a large send ([`Frame::mss`](crate::qp::Frame::mss)):
    /// 14 or more, or 0 for no large sends. Only for [`RawPacket`](crate::qp::RawPacket) QPs on
    /// devices with TCP segmentation offload ([`DeviceAttr::max_tso`](crate::device::DeviceAttr),
    /// `tso_supported_qpts`).
    ///
    /// Large sends of IPoIB (`IB_QP_CREATE_IPOIB_UD_LSO`) are reserved to kernel consumers.
    #[doc(alias = "IBV_QP_INIT_ATTR_MAX_TSO_HEADER")]
    pub max_tso_header: u16,
    /// Whether every send generates a completion, with or without `SendFlags::SIGNALED`.
    #[doc(alias = "sq_sig_all")]
    pub signal_all: bool,
    /// Options of the device. Unsupported ones are rejected.
    #[doc(alias = "IBV_QP_INIT_ATTR_CREATE_FLAGS")]
    pub flags: QpCreateFlags,
    /// QPN in sent packets in place of the QP's own, 24 bits, not 0. Only UD QPs on InfiniBand ports of
    /// ConnectX devices, with `CAP_NET_RAW`. Elsewhere creation fails with
    /// [`Error::Unsupported`](crate::Error::Unsupported).
    ///
    /// It is for programs that process the packets of an IPoIB interface: the number is that of the
    /// interface's QP, whose P_Key the packets have too. Answers go to that QP. The driver makes such a
    /// QP of a raw send queue and receive queue:
    ///
    /// - Requests have the first bytes of their datagram in
    ///   [`Datagram::header`](crate::qp::Datagram::header), or inline. They have no immediate data.
    /// - [`Qp::modify`](crate::qp::Qp::modify) sets the state alone. Calls with other attributes, such as
    ///   [`Qp::init`](crate::qp::Qp::init), fail with [`Error::Invalid`](crate::Error::Invalid).
    /// - Only flow rules steer packets to its receive queue.
    #[doc(alias = "IBV_QP_CREATE_SOURCE_QPN")]
    pub source_qp_num: Option<u32>,
    /// Whether the device may place messages of up to 32 bytes into their CQEs instead of writing
    /// them to memory (scatter to CQE). It saves a DMA write. The poller copies the message to the
    /// SGEs of the receive. So the SGE addresses must be virtual addresses of this process: an MR
    /// [registered](crate::Pd::register_raw) at another address does not work.
    ///
    /// Only on ConnectX, for RC and UC QPs that have their own receive queue and do not set
    /// [`signal_all`](Self::signal_all).
    #[doc(alias = "MLX5_QP_FLAG_SCATTER_CQE")]
    #[doc(alias = "MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE")]
    #[doc(alias = "MLX5_SCATTER_TO_CQE")]
    #[doc(alias = "mlx5dv_create_qp")]
    pub scatter_to_cqe: bool,
    /// Value reported in [asynchronous events](crate::AsyncEvent::Qp). For completions, use the
    /// `wr_id` of the requests; see [`WrId`](crate::qp::WrId).
    #[doc(alias = "qp_context")]
    pub user_data: u64,
    /// Choice of the doorbell register.
    ///
    /// On ConnectX, a dedicated doorbell is a page of the device. If the machine supports it, a
    /// single request is copied whole into that page (*BlueFlame*), so the device need not fetch
    /// the WQE. By default the first 16 QPs of a context get a dedicated doorbell on such machines.
    /// A program with more QPs chooses with this field.
    ///
    /// The QPs of one thread can share a doorbell without BlueFlame, which no other QP writes: that of a
    /// thread domain ([`Context::alloc_td`](crate::Context::alloc_td)). Thread domains of libibverbs also
    /// avoid locks. Queues here have one owner and no locks.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub doorbell: DoorbellChoice<'a>,
    /// Memory of both queues. ConnectX only: on other devices the kernel allocates it.
    #[doc(alias = "UVERBS_ATTR_CREATE_QP_BUF_UMEM")]
    #[doc(alias = "UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM")]
    #[doc(alias = "UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM")]
    pub memory: QueueMemory<'a>,
}

impl<'a, P: Provider> QpInit<'a, P> {
    /// A QP with [`QpCap::default`] whose sends generate completions only if signalled.
    #[must_use]
    pub fn new(send_cq: &'a Cq<P>, recv_cq: &'a Cq<P>) -> Self {
        Self::with_cqs(send_cq.reference(), recv_cq.reference())
    }

    /// As [`new`](Self::new), with references to the CQs.
    #[must_use]
    pub fn with_cqs(send_cq: &'a CqRef<P>, recv_cq: &'a CqRef<P>) -> Self {
        Self {
            send_cq,
            recv_cq,
            srq: None,
            cap: QpCap::default(),
            max_tso_header: 0,
            signal_all: false,
            flags: QpCreateFlags::empty(),
            source_qp_num: None,
            scatter_to_cqe: false,
            user_data: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::BasePages,
        }
    }
}
