//! State transitions of a QP.

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};

use super::{
    Connected, InitAttr, Qp, QpAttr, Rc, RtrAttr, RtsAttr, Transport, Uc, UcRtrAttr, Ud, UdInitAttr,
};
#[cfg(doc)]
use crate::Error;
use crate::error::Result;
use crate::qp::core::modify::{RTR, check_rtr};

impl<T: Connected, P: Provider> Qp<T, P> {
    /// RESET → INIT. Receives can be posted in INIT and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RESET, the P_Key index is beyond the port's table, or
    ///   `access` has rights that apply to MRs only.
    /// - [`Error::NoPort`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_INIT")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(&mut self, attr: &InitAttr) -> Result<()> {
        self.core.reset_to_init(attr)
    }
}

impl<P: Provider> Qp<Rc, P> {
    /// INIT → RTR. The responder executes the peer's requests in RTR and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not INIT; no global route on RoCE or no LID on
    ///   InfiniBand; the address is a multicast group; a value is out of range; the MTU is above
    ///   the port's.
    /// - [`Error::Limit`], [`Error::NoPort`], [`Error::NoGid`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(&mut self, attr: &RtrAttr) -> Result<()> {
        let address = self.core.check_peer(&attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        check_rtr(self.pd().context(), attr)?;
        self.core.init_to_rtr((&RtrAttr { address, ..*attr }).into())
    }

    /// RTR → RTS. The requester executes sends in RTS.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTR, or the PSN has more than 24 bits.
    /// - [`Error::Limit`]: `max_rd_atomic` is above the device's limit.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(&mut self, attr: &RtsAttr) -> Result<()> {
        self.core.rtr_to_rts_reliable(attr)
    }
}

impl<P: Provider> Qp<Uc, P> {
    /// INIT → RTR. The responder executes the peer's requests in RTR and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not INIT; no global route on RoCE or no LID on
    ///   InfiniBand; the address is a multicast group; a value is out of range; the MTU is above
    ///   the port's.
    /// - [`Error::NoPort`], [`Error::NoGid`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(&mut self, attr: &UcRtrAttr) -> Result<()> {
        let address = self.core.check_peer(&attr.address, attr.path_mtu, attr.dest_qp_num, attr.rq_psn)?;
        self.core.init_to_rtr((&UcRtrAttr { address, ..*attr }).into())
    }

    /// RTR → RTS. The requester executes sends in RTS. The first packet has the PSN `sq_psn`.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTR, or the PSN has more than 24 bits.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(&mut self, sq_psn: u32) -> Result<()> {
        self.core.rtr_to_rts(sq_psn)
    }
}

impl<P: Provider> Qp<Ud, P> {
    /// RESET → INIT. Receives can be posted in INIT and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RESET, or the P_Key index is beyond the port's table.
    /// - [`Error::NoPort`]
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_INIT")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn init(&mut self, attr: &UdInitAttr) -> Result<()> {
        self.core.reset_to_init_datagrams(attr)
    }

    /// INIT → RTR. The QP receives datagrams in RTR and later states.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not INIT.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTR")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_receive(&mut self) -> Result<()> {
        self.core.transition(RTR, QpState::INIT, QpState::RTR)
    }

    /// RTR → RTS. The requester executes sends in RTS. The first packet has the PSN `sq_psn`.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the state is not RTR, or the PSN has more than 24 bits.
    /// - [`Error::Kernel`]: the kernel rejects the transition.
    #[doc(alias = "IBV_QPS_RTS")]
    #[doc(alias = "ibv_modify_qp")]
    pub fn ready_to_send(&mut self, sq_psn: u32) -> Result<()> {
        self.core.rtr_to_rts(sq_psn)
    }
}

impl<T: Transport, P: Provider> Qp<T, P> {
    /// Modifies any attributes. The kernel decides whether the transition is valid.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: a value is out of range, or `cur_qp_state` is not the current state.
    /// - [`Error::Limit`]: more outstanding reads and atomics than the device supports.
    /// - [`Error::Kernel`] with `EINVAL`: the transition is invalid from the current state, or the
    ///   mask lacks required attributes or has attributes that are not allowed. The error names
    ///   them.
    /// - [`Error::Kernel`] with another errno: the kernel rejects the transition.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        self.core.modify(attr, mask)
    }
}
