//! What each step from RESET to RTS sets.

use super::{AhAttr, QpAttr};
use crate::{Access, Mtu, QpAttrMask, QpState};

/// What RESET → INIT sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// The own port, counted from 1.
    pub port: u8,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// What the peer may do by itself.
    pub access: Access,
}

impl InitAttr {
    /// P_Key index 0, and nothing by the peer but messages.
    #[must_use]
    pub fn new(port: u8) -> Self {
        Self { port, pkey_index: 0, access: Access::empty() }
    }
}

/// What RESET → INIT sets in datagram queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdInitAttr {
    /// The own port, counted from 1.
    pub port: u8,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// The own queue key: a datagram that comes with another one is dropped. Keys with the highest
    /// bit set are for the privileged.
    pub qkey: u32,
}

impl UdInitAttr {
    /// P_Key index 0.
    #[must_use]
    pub fn new(port: u8, qkey: u32) -> Self {
        Self { port, pkey_index: 0, qkey }
    }
}

/// What INIT → RTR sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The way to the peer.
    pub address: AhAttr,
    /// The peer's queue pair, 24 bits.
    pub dest_qp_num: u32,
    /// Number of the first packet expected, 24 bits.
    pub rq_psn: u32,
    /// Largest payload of a packet on the path.
    pub path_mtu: Mtu,
    /// Reads and atomics of the peer that can be outstanding.
    pub max_dest_rd_atomic: u8,
    /// How long a peer is to wait when no receive was posted, as the kernel numbers it: 0 to 31; 12
    /// is 0.64 ms.
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    /// MTU 1024, one read or atomic, RNR timer 12, packets numbered from 0.
    #[must_use]
    pub fn new(address: AhAttr, dest_qp_num: u32) -> Self {
        Self {
            address,
            dest_qp_num,
            rq_psn: 0,
            path_mtu: Mtu::Mtu1024,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }
}

/// What INIT → RTR sets in unreliable connections, which never wait for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UcRtrAttr {
    /// The way to the peer.
    pub address: AhAttr,
    /// The peer's queue pair, 24 bits.
    pub dest_qp_num: u32,
    /// Number of the first packet expected, 24 bits.
    pub rq_psn: u32,
    /// Largest payload of a packet on the path.
    pub path_mtu: Mtu,
}

impl UcRtrAttr {
    /// MTU 1024, packets numbered from 0.
    #[must_use]
    pub fn new(address: AhAttr, dest_qp_num: u32) -> Self {
        Self { address, dest_qp_num, rq_psn: 0, path_mtu: Mtu::Mtu1024 }
    }
}

/// What RTR → RTS sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// Number of the first packet sent, 24 bits.
    pub sq_psn: u32,
    /// Wait for an acknowledgement: 4.096 µs times 2 to this power, 1 to 31; 0 waits for ever.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted, 0 to 6; 7 retries for ever.
    pub rnr_retry: u8,
    /// Own reads and atomics that can be outstanding.
    pub max_rd_atomic: u8,
}

impl Default for RtsAttr {
    /// Timeout 14 (67 ms), 7 retries of each kind, one read or atomic, packets numbered from 0.
    fn default() -> Self {
        Self { sq_psn: 0, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 }
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
            path_mtu: rtr.path_mtu as u8,
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
            path_mtu: rtr.path_mtu as u8,
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

    /// The masks that the kernel requires of reliable connections (`qp_state_table` of
    /// `core/verbs.c`).
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
