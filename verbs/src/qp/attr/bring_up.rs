//! Attributes of the transitions from RESET to RTS.

use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};

use super::QpAttr;
use crate::ah_attr::AhAttr;
use crate::values::{AckTimeout, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use crate::{Access, PortNum};

/// Attributes of RESET → INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// Local port.
    pub port: PortNum,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Remote operations that the QP allows (`qp_access_flags`): RDMA reads, writes and atomics.
    /// Default: none.
    pub access: Access,
}

impl InitAttr {
    /// P_Key index 0, no remote access.
    #[must_use]
    pub fn new(port: impl Into<PortNum>) -> Self {
        Self { port: port.into(), pkey_index: 0, access: Access::empty() }
    }
}

/// Attributes of RESET → INIT for UD QPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdInitAttr {
    /// Local port.
    pub port: PortNum,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Local Q_Key. A datagram with another Q_Key is dropped. A Q_Key with the highest bit set
    /// requires privilege.
    pub qkey: u32,
}

impl UdInitAttr {
    /// P_Key index 0.
    #[must_use]
    pub fn new(port: impl Into<PortNum>, qkey: u32) -> Self {
        Self { port: port.into(), pkey_index: 0, qkey }
    }
}

/// Attributes of INIT → RTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// Address vector of the peer.
    pub address: AhAttr,
    /// QPN of the peer, 24 bits.
    pub dest_qp_num: u32,
    /// PSN of the first packet expected, 24 bits.
    pub rq_psn: u32,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Maximum of incoming reads and atomics that are outstanding (responder).
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer: the peer waits this long before it retries a message for which no receive was
    /// posted.
    pub min_rnr_timer: MinRnrTimer,
}

impl RtrAttr {
    /// MTU 1024, one read or atomic, RNR NAK timer 0.64 ms, PSN 0.
    #[must_use]
    pub fn new(address: AhAttr, dest_qp_num: u32) -> Self {
        Self {
            address,
            dest_qp_num,
            rq_psn: 0,
            path_mtu: Mtu::Mtu1024,
            max_dest_rd_atomic: 1,
            min_rnr_timer: MinRnrTimer::default(),
        }
    }
}

/// Attributes of INIT → RTR for UC and [`XrcSend`](crate::xrc::XrcSend) QPs: those of [`RtrAttr`]
/// without `max_dest_rd_atomic` and `min_rnr_timer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcRtrAttr {
    /// Address vector of the peer.
    pub address: AhAttr,
    /// QPN of the peer, 24 bits.
    pub dest_qp_num: u32,
    /// PSN of the first packet expected, 24 bits.
    pub rq_psn: u32,
    /// Path MTU.
    pub path_mtu: Mtu,
}

impl UcRtrAttr {
    /// MTU 1024, PSN 0.
    #[must_use]
    pub fn new(address: AhAttr, dest_qp_num: u32) -> Self {
        Self { address, dest_qp_num, rq_psn: 0, path_mtu: Mtu::Mtu1024 }
    }
}

/// Attributes of RTR → RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// PSN of the first packet sent, 24 bits.
    pub sq_psn: u32,
    /// Local ACK timeout.
    pub timeout: AckTimeout,
    /// Retries after a timeout.
    pub retry_cnt: RetryCount,
    /// Retries after the peer had no receive posted.
    pub rnr_retry: RnrRetry,
    /// Maximum of outgoing reads and atomics that are outstanding (requester).
    pub max_rd_atomic: u8,
}

impl Default for RtsAttr {
    /// The defaults of [`AckTimeout`] (537 ms), [`RetryCount`] (6) and [`RnrRetry`] (infinite), one
    /// read or atomic, PSN 0.
    fn default() -> Self {
        Self {
            sq_psn: 0,
            timeout: AckTimeout::default(),
            retry_cnt: RetryCount::default(),
            rnr_retry: RnrRetry::default(),
            max_rd_atomic: 1,
        }
    }
}

impl From<&InitAttr> for (QpAttr, QpAttrMask) {
    fn from(init: &InitAttr) -> Self {
        let attr = QpAttr {
            qp_state: QpState::INIT,
            port_num: init.port,
            pkey_index: init.pkey_index,
            access: init.access,
            ..QpAttr::default()
        };
        (attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS)
    }
}

impl From<&UdInitAttr> for (QpAttr, QpAttrMask) {
    fn from(init: &UdInitAttr) -> Self {
        let attr = QpAttr {
            qp_state: QpState::INIT,
            port_num: init.port,
            pkey_index: init.pkey_index,
            qkey: init.qkey,
            ..QpAttr::default()
        };
        (attr, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY)
    }
}

impl From<&UcRtrAttr> for (QpAttr, QpAttrMask) {
    fn from(rtr: &UcRtrAttr) -> Self {
        let attr = QpAttr {
            qp_state: QpState::RTR,
            ah_attr: rtr.address,
            path_mtu: Some(rtr.path_mtu),
            dest_qp_num: rtr.dest_qp_num,
            rq_psn: rtr.rq_psn,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN;
        (attr, mask)
    }
}

impl From<&RtrAttr> for (QpAttr, QpAttrMask) {
    fn from(rtr: &RtrAttr) -> Self {
        let attr = QpAttr {
            qp_state: QpState::RTR,
            ah_attr: rtr.address,
            path_mtu: Some(rtr.path_mtu),
            dest_qp_num: rtr.dest_qp_num,
            rq_psn: rtr.rq_psn,
            max_dest_rd_atomic: rtr.max_dest_rd_atomic,
            min_rnr_timer: rtr.min_rnr_timer,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::AV
            | QpAttrMask::PATH_MTU
            | QpAttrMask::DEST_QPN
            | QpAttrMask::RQ_PSN
            | QpAttrMask::MAX_DEST_RD_ATOMIC
            | QpAttrMask::MIN_RNR_TIMER;
        (attr, mask)
    }
}

impl From<&RtsAttr> for (QpAttr, QpAttrMask) {
    fn from(rts: &RtsAttr) -> Self {
        let attr = QpAttr {
            qp_state: QpState::RTS,
            sq_psn: rts.sq_psn,
            timeout: rts.timeout,
            retry_cnt: rts.retry_cnt,
            rnr_retry: rts.rnr_retry,
            max_rd_atomic: rts.max_rd_atomic,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::STATE
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::SQ_PSN
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        (attr, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Gid;

    /// The masks that the kernel requires for RC QPs (`qp_state_table` of `core/verbs.c`).
    #[test]
    fn typed_transitions_set_the_required_attributes() {
        let mask = |(_, mask): (QpAttr, QpAttrMask)| mask.bits();
        let address = AhAttr::global(1, Gid::default(), 0);
        assert_eq!(mask((&InitAttr::new(1)).into()), 0x1 | 0x8 | 0x10 | 0x20);
        assert_eq!(
            mask((&RtrAttr::new(address, 2)).into()),
            0x1 | 0x80 | 0x100 | 0x1000 | 0x8000 | 0x2_0000 | 0x10_0000
        );
        assert_eq!(mask((&RtsAttr::default()).into()), 0x1 | 0x200 | 0x400 | 0x800 | 0x2000 | 0x1_0000);
    }

    #[test]
    fn unreliable_transports_set_fewer_attributes() {
        let mask = |(_, mask): (QpAttr, QpAttrMask)| mask.bits();
        let address = AhAttr::global(1, Gid::default(), 0);
        assert_eq!(mask((&UcRtrAttr::new(address, 2)).into()), 0x1 | 0x80 | 0x100 | 0x1000 | 0x10_0000);
        assert_eq!(mask((&UdInitAttr::new(1, 0x1111_1111)).into()), 0x1 | 0x10 | 0x20 | 0x40);
    }
}
