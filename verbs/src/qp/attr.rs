//! Attributes of queue pairs.

use bareverbs_uapi::uverbs::types;
use bareverbs_uapi::verbs_values::{self as values, MigState, Rate, RnrTimeout};
use bareverbs_uapi::write::structs::{ExModifyQp, GlobalRoute, ModifyQpReq, QpDest, QueryQpResp};

use crate::{Access, Gid, Mtu, QpAttrMask, QpState};

/// Depths and widths of a queue pair.
#[doc(alias = "ibv_qp_cap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCap {
    /// Sends that can be outstanding.
    pub max_send_wr: u32,
    /// Receives that can be outstanding.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes that a send can carry inline.
    pub max_inline_data: u32,
}

impl Default for QpCap {
    /// 16 sends and 16 receives of one element each, nothing inline.
    fn default() -> Self {
        Self { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 }
    }
}

impl From<QpCap> for types::QpCap {
    fn from(cap: QpCap) -> Self {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

impl From<types::QpCap> for QpCap {
    fn from(cap: types::QpCap) -> Self {
        let types::QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = cap;
        Self { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    }
}

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
    /// The own queue key: a datagram that comes with another one is dropped. Keys with the highest bit set are for the
    /// privileged.
    pub qkey: u32,
}

impl UdInitAttr {
    /// P_Key index 0.
    #[must_use]
    pub fn new(port: u8, qkey: u32) -> Self {
        Self { port, pkey_index: 0, qkey }
    }
}

/// A global route.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of the own GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// How many routers a packet may pass, plus 1.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// The way to a peer.
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// The own port, counted from 1.
    pub port: u8,
    /// The peer's LID; only InfiniBand has them, and needs them: 0 leads to an own GID only.
    pub dlid: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Low bits of the own LID; only InfiniBand has them.
    pub src_path_bits: u8,
    /// Static rate as the kernel numbers it; 0 is the port's own.
    pub static_rate: u8,
    /// The global route; RoCE cannot do without.
    pub grh: Option<Grh>,
}

impl AhAttr {
    /// To `dgid` from the own GID at `sgid_index`, on the same link or subnet. InfiniBand wants the peer's LID besides,
    /// as [`query_port`](crate::Context::query_port) tells it there, unless the GID is the port's own:
    /// `AhAttr { dlid, ..AhAttr::global(port, dgid, sgid_index) }`.
    #[must_use]
    pub fn global(port: u8, dgid: Gid, sgid_index: u8) -> Self {
        let grh = Grh { dgid, sgid_index, flow_label: 0, hop_limit: 1, traffic_class: 0 };
        Self { port, grh: Some(grh), ..Self::default() }
    }

    /// To the LID `dlid` of the same InfiniBand subnet.
    #[must_use]
    pub fn local(port: u8, dlid: u16) -> Self {
        Self { port, dlid, ..Self::default() }
    }

    /// The form that address handles are made from.
    pub(crate) fn to_handle(self) -> bareverbs_uapi::write::structs::AhAttr {
        let QpDest {
            dgid,
            flow_label,
            dlid,
            sgid_index,
            hop_limit,
            traffic_class,
            sl,
            src_path_bits,
            static_rate,
            is_global,
            port_num,
            ..
        } = self.to_kernel();
        bareverbs_uapi::write::structs::AhAttr {
            grh: GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved: 0 },
            dlid,
            sl,
            src_path_bits,
            static_rate,
            is_global,
            port_num,
            reserved: 0,
        }
    }

    fn to_kernel(self) -> QpDest {
        let grh = self.grh.unwrap_or(Grh {
            dgid: Gid::default(),
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
        });
        QpDest {
            dgid: grh.dgid.0,
            flow_label: grh.flow_label,
            dlid: self.dlid,
            reserved: 0,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: Rate(self.static_rate),
            is_global: self.grh.is_some().into(),
            port_num: self.port,
        }
    }

    fn from_kernel(dest: &QpDest) -> Self {
        let grh = Grh {
            dgid: Gid(dest.dgid),
            sgid_index: dest.sgid_index,
            flow_label: dest.flow_label,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        };
        Self {
            port: dest.port_num,
            dlid: dest.dlid,
            sl: dest.sl,
            src_path_bits: dest.src_path_bits,
            static_rate: dest.static_rate.0,
            grh: (dest.is_global != 0).then_some(grh),
        }
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
    /// How long a peer is to wait when no receive was posted, as the kernel numbers it: 0 to 31; 12 is 0.64 ms.
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

/// All attributes of a queue pair, as [`Qp::query`](crate::Qp::query) tells them and
/// [`Qp::modify`](crate::Qp::modify) takes them.
///
/// Numbers are the kernel's; what each means is said at [`InitAttr`], [`RtrAttr`] and [`RtsAttr`].
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State; the one to go to.
    pub qp_state: QpState,
    /// State that it is believed to be in.
    pub cur_qp_state: QpState,
    /// Path MTU, 1 (256 bytes) to 5 (4096 bytes).
    pub path_mtu: u8,
    /// Path migration: 0 migrated, 1 rearm, 2 armed.
    pub path_mig_state: u8,
    /// Key of datagrams.
    pub qkey: u32,
    /// Number of the next packet expected, 24 bits.
    pub rq_psn: u32,
    /// Number of the next packet sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// What the peer may do by itself.
    pub access: Access,
    /// Depths and widths.
    pub cap: QpCap,
    /// Path.
    pub ah_attr: AhAttr,
    /// Alternate path.
    pub alt_ah_attr: AhAttr,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// The same for the alternate path.
    pub alt_pkey_index: u16,
    /// Whether an event is wanted when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is draining.
    pub sq_draining: bool,
    /// Own reads and atomics that can be outstanding.
    pub max_rd_atomic: u8,
    /// The peer's reads and atomics that can be outstanding.
    pub max_dest_rd_atomic: u8,
    /// RNR timer.
    pub min_rnr_timer: u8,
    /// The own port.
    pub port_num: u8,
    /// Acknowledgement timeout.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port_num: u8,
    /// Timeout of the alternate path.
    pub alt_timeout: u8,
    /// Packet pacing in kbit/s; not told by a query.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    /// Zero throughout, to be filled where the mask says.
    fn default() -> Self {
        Self::from_kernel(&QueryQpResp::zeroed())
    }
}

impl QpAttr {
    pub(super) fn from_kernel(told: &QueryQpResp) -> Self {
        Self {
            qp_state: told.qp_state,
            cur_qp_state: told.cur_qp_state,
            path_mtu: told.path_mtu.0,
            path_mig_state: told.path_mig_state.0,
            qkey: told.qkey,
            rq_psn: told.rq_psn,
            sq_psn: told.sq_psn,
            dest_qp_num: told.dest_qp_num,
            access: told.qp_access_flags,
            cap: QpCap {
                max_send_wr: told.max_send_wr,
                max_recv_wr: told.max_recv_wr,
                max_send_sge: told.max_send_sge,
                max_recv_sge: told.max_recv_sge,
                max_inline_data: told.max_inline_data,
            },
            ah_attr: AhAttr::from_kernel(&told.dest),
            alt_ah_attr: AhAttr::from_kernel(&told.alt_dest),
            pkey_index: told.pkey_index,
            alt_pkey_index: told.alt_pkey_index,
            en_sqd_async_notify: false,
            sq_draining: told.sq_draining != 0,
            max_rd_atomic: told.max_rd_atomic,
            max_dest_rd_atomic: told.max_dest_rd_atomic,
            min_rnr_timer: told.min_rnr_timer.0,
            port_num: told.port_num,
            timeout: told.timeout,
            retry_cnt: told.retry_cnt,
            rnr_retry: told.rnr_retry,
            alt_port_num: told.alt_port_num,
            alt_timeout: told.alt_timeout,
            rate_limit: 0,
        }
    }

    /// The request to the kernel: as given, also where it makes no sense.
    pub(super) fn to_kernel(self, qp_handle: u32, attr_mask: QpAttrMask) -> ExModifyQp {
        ExModifyQp {
            base: ModifyQpReq {
                dest: self.ah_attr.to_kernel(),
                alt_dest: self.alt_ah_attr.to_kernel(),
                qp_handle,
                attr_mask,
                qkey: self.qkey,
                rq_psn: self.rq_psn,
                sq_psn: self.sq_psn,
                dest_qp_num: self.dest_qp_num,
                qp_access_flags: self.access,
                pkey_index: self.pkey_index,
                alt_pkey_index: self.alt_pkey_index,
                qp_state: self.qp_state,
                cur_qp_state: self.cur_qp_state,
                path_mtu: values::Mtu(self.path_mtu),
                path_mig_state: MigState(self.path_mig_state),
                en_sqd_async_notify: self.en_sqd_async_notify.into(),
                max_rd_atomic: self.max_rd_atomic,
                max_dest_rd_atomic: self.max_dest_rd_atomic,
                min_rnr_timer: RnrTimeout(self.min_rnr_timer),
                port_num: self.port_num,
                timeout: self.timeout,
                retry_cnt: self.retry_cnt,
                rnr_retry: self.rnr_retry,
                alt_port_num: self.alt_port_num,
                alt_timeout: self.alt_timeout,
                ..ModifyQpReq::zeroed()
            },
            rate_limit: self.rate_limit,
            reserved: 0,
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

/// How the kernel says a queue pair was made.
#[doc(alias = "ibv_qp_init_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInitAttr {
    /// Depths and widths.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub signal_all: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The masks that the kernel requires of reliable connections (`qp_state_table` of `core/verbs.c`).
    #[test]
    fn every_step_sets_what_the_kernel_requires_of_it() {
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

    #[test]
    fn a_path_with_a_global_route_says_so_to_the_kernel() {
        let gid = Gid([7; 16]);
        let dest = AhAttr::global(1, gid, 3).to_kernel();
        assert_eq!((dest.is_global, dest.sgid_index, dest.dgid, dest.port_num), (1, 3, gid.0, 1));
        assert_eq!(AhAttr::from_kernel(&dest), AhAttr::global(1, gid, 3));
        let handle = AhAttr::global(1, gid, 3).to_handle();
        assert_eq!((handle.is_global, handle.grh.sgid_index, handle.grh.dgid), (1, 3, gid.0));
        assert_eq!((handle.port_num, handle.grh.hop_limit), (1, 1));

        let dest = AhAttr::local(2, 0x1234).to_kernel();
        assert_eq!((dest.is_global, dest.dlid, dest.port_num), (0, 0x1234, 2));
        assert_eq!(AhAttr::from_kernel(&dest), AhAttr::local(2, 0x1234));
    }

    #[test]
    fn a_raw_request_reaches_the_kernel_as_given() {
        let attr = QpAttr { qp_state: QpState(9), path_mtu: 77, rate_limit: 5, ..QpAttr::default() };
        let request = attr.to_kernel(42, QpAttrMask::all());
        assert_eq!((request.base.qp_handle, request.base.attr_mask), (42, QpAttrMask::all()));
        assert_eq!((request.base.qp_state.0, request.base.path_mtu.0, request.rate_limit), (9, 77, 5));
    }
}
