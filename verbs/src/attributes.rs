//! Attributes of devices and ports.

use bareverbs_provider::caps::Capabilities;
use bareverbs_provider::rss::{HashFields, HashFunctions};
use bareverbs_uapi::uverbs::types::{PortCapFlags, PortFlags, QueryPortRespEx};
use bareverbs_uapi::verbs_values::{self as values, AtomicCap, PortSpeed, PortWidth, TmCapFlags};
use bareverbs_uapi::verbs_values::{LinkLayer, PortPhysState, PortState};
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use bareverbs_uapi::write::types::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps};

use crate::values::{Guid, Mtu};

/// Declares fields as `$field: $type = $value`, where `$value` reads the kernel's response.
macro_rules! attr_struct {
    ($(#[$meta:meta])* $name:ident from $resp:ident: $from:ty { $(
        $(#[$fmeta:meta])* $field:ident: $ty:ty = $value:expr;
    )* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name { $( $(#[$fmeta])* pub $field: $ty, )* }

        impl From<&$from> for $name {
            fn from($resp: &$from) -> Self {
                Self { $( $field: $value, )* }
            }
        }
    };
}

attr_struct! {
    /// Properties and limits of a device.
    ///
    /// Fields have the names of C's `ibv_device_attr` and `ibv_device_attr_ex`. Fields that the
    /// kernel or the driver does not report are 0.
    #[doc(alias = "ibv_device_attr")]
    #[doc(alias = "ibv_device_attr_ex")]
    DeviceAttr from resp: ExQueryDeviceResp {
        /// Version of the firmware.
        fw_ver: String = fw_ver(resp.base.fw_ver);
        /// Identifier of the node.
        node_guid: Guid = Guid(resp.base.node_guid.get().to_be_bytes());
        /// Identifier of the system that the node is part of.
        sys_image_guid: Guid = Guid(resp.base.sys_image_guid.get().to_be_bytes());
        /// Largest memory region in bytes.
        max_mr_size: u64 = resp.base.max_mr_size;
        /// Page sizes supported, one bit each.
        page_size_cap: u64 = resp.base.page_size_cap;
        /// IEEE OUI of the vendor.
        vendor_id: u32 = resp.base.vendor_id;
        /// Part number of the vendor.
        vendor_part_id: u32 = resp.base.vendor_part_id;
        /// Version of the hardware.
        hw_ver: u32 = resp.base.hw_ver;
        /// Maximum number of QPs.
        max_qp: u32 = resp.base.max_qp;
        /// Maximum number of outstanding requests of a queue.
        max_qp_wr: u32 = resp.base.max_qp_wr;
        /// Capability flags of the device.
        device_cap_flags: DeviceCapFlags = resp.device_cap_flags_ex;
        /// Maximum number of SGEs of a request.
        max_sge: u32 = resp.base.max_sge;
        /// Maximum number of SGEs of an RDMA READ.
        max_sge_rd: u32 = resp.base.max_sge_rd;
        /// Maximum number of CQs.
        max_cq: u32 = resp.base.max_cq;
        /// Maximum number of entries of a CQ.
        max_cqe: u32 = resp.base.max_cqe;
        /// Maximum number of MRs.
        max_mr: u32 = resp.base.max_mr;
        /// Maximum number of PDs.
        max_pd: u32 = resp.base.max_pd;
        /// Maximum number of outstanding RDMA READs and atomics per QP as responder.
        max_qp_rd_atom: u32 = resp.base.max_qp_rd_atom;
        /// The same per end-to-end (EE) context. No device has EE contexts.
        max_ee_rd_atom: u32 = resp.base.max_ee_rd_atom;
        /// Maximum number of outstanding RDMA READs and atomics of the device as responder.
        max_res_rd_atom: u32 = resp.base.max_res_rd_atom;
        /// Maximum number of outstanding RDMA READs and atomics per QP as requester.
        max_qp_init_rd_atom: u32 = resp.base.max_qp_init_rd_atom;
        /// The same per EE context.
        max_ee_init_rd_atom: u32 = resp.base.max_ee_init_rd_atom;
        /// Scope of atomicity of atomic operations.
        atomic_cap: AtomicCap = resp.base.atomic_cap;
        /// Maximum number of EE contexts.
        max_ee: u32 = resp.base.max_ee;
        /// Maximum number of reliable datagram domains.
        max_rdd: u32 = resp.base.max_rdd;
        /// Maximum number of memory windows.
        max_mw: u32 = resp.base.max_mw;
        /// Maximum number of raw IPv6 QPs.
        max_raw_ipv6_qp: u32 = resp.base.max_raw_ipv6_qp;
        /// Maximum number of raw Ethertype QPs.
        max_raw_ethy_qp: u32 = resp.base.max_raw_ethy_qp;
        /// Maximum number of multicast groups.
        max_mcast_grp: u32 = resp.base.max_mcast_grp;
        /// Maximum number of QPs attached to a multicast group.
        max_mcast_qp_attach: u32 = resp.base.max_mcast_qp_attach;
        /// Maximum number of attachments to multicast groups in total.
        max_total_mcast_qp_attach: u32 = resp.base.max_total_mcast_qp_attach;
        /// Maximum number of address handles.
        max_ah: u32 = resp.base.max_ah;
        /// Maximum number of fast memory regions (FMR). FMRs no longer exist.
        max_fmr: u32 = resp.base.max_fmr;
        /// Maximum number of maps of an FMR.
        max_map_per_fmr: u32 = resp.base.max_map_per_fmr;
        /// Maximum number of SRQs.
        max_srq: u32 = resp.base.max_srq;
        /// Maximum number of outstanding requests of an SRQ.
        max_srq_wr: u32 = resp.base.max_srq_wr;
        /// Maximum number of SGEs of an SRQ request.
        max_srq_sge: u32 = resp.base.max_srq_sge;
        /// Maximum number of partitions.
        max_pkeys: u16 = resp.base.max_pkeys;
        /// Local acknowledge delay: 4.096 µs × 2^n.
        local_ca_ack_delay: u8 = resp.base.local_ca_ack_delay;
        /// Number of ports.
        phys_port_cnt: u8 = resp.base.phys_port_cnt;
        /// General ODP capabilities.
        odp_general_caps: OdpGeneralCaps = resp.odp_caps.general_caps;
        /// ODP capabilities of RC.
        rc_odp_caps: OdpTransportCaps = resp.odp_caps.per_transport_caps.rc_odp_caps;
        /// ODP capabilities of UC.
        uc_odp_caps: OdpTransportCaps = resp.odp_caps.per_transport_caps.uc_odp_caps;
        /// ODP capabilities of UD.
        ud_odp_caps: OdpTransportCaps = resp.odp_caps.per_transport_caps.ud_odp_caps;
        /// ODP capabilities of XRC.
        xrc_odp_caps: OdpTransportCaps = resp.xrc_odp_caps;
        /// Valid bits of completion timestamps; 0 if the device has none.
        completion_timestamp_mask: u64 = resp.timestamp_mask;
        /// Frequency of the device clock in kHz.
        hca_core_clock: u64 = resp.hca_core_clock;
        /// TCP segmentation offload (TSO): maximum payload in bytes.
        max_tso: u32 = 0;
        /// QP types with TSO, as a mask of `1 << type`.
        #[doc(alias = "ibv_is_qpt_supported")]
        tso_supported_qpts: u32 = 0;
        /// Packet fields that the RSS hash supports.
        rx_hash_fields_mask: HashFields = HashFields::empty();
        /// RSS hash functions.
        rx_hash_function: HashFunctions = HashFunctions::empty();
        /// Packet pacing: minimum rate in kbit/s
        /// ([`QpAttr::rate_limit`](crate::qp::QpAttr::rate_limit)).
        qp_rate_limit_min: u32 = 0;
        /// Packet pacing: maximum rate in kbit/s; 0 if unsupported.
        qp_rate_limit_max: u32 = 0;
        /// QP types with packet pacing, as a mask of `1 << type`.
        #[doc(alias = "ibv_is_qpt_supported")]
        rate_limit_supported_qpts: u32 = 0;
        /// QP types with RSS, as a mask of `1 << type`.
        #[doc(alias = "ibv_is_qpt_supported")]
        rss_supported_qpts: u32 = resp.rss_caps.supported_qpts;
        /// Maximum number of indirection tables.
        max_rwq_indirection_tables: u32 = resp.rss_caps.max_rwq_indirection_tables;
        /// Maximum number of entries of an indirection table.
        max_rwq_indirection_table_size: u32 = resp.rss_caps.max_rwq_indirection_table_size;
        /// Maximum number of receive work queues.
        max_wq_type_rq: u32 = resp.max_wq_type_rq;
        /// Capabilities of raw packet QPs.
        raw_packet_caps: RawPacketCaps = resp.raw_packet_caps;
        /// Tag matching: maximum size of a rendezvous request in bytes.
        tm_max_rndv_hdr_size: u32 = resp.tm_caps.max_rndv_hdr_size;
        /// Tag matching: maximum number of tags in the list.
        tm_max_num_tags: u32 = resp.tm_caps.max_num_tags;
        /// Tag matching: capability flags.
        tm_flags: TmCapFlags = resp.tm_caps.flags;
        /// Tag matching: maximum number of outstanding list operations.
        tm_max_ops: u32 = resp.tm_caps.max_ops;
        /// Tag matching: maximum number of SGEs of a tag.
        tm_max_sge: u32 = resp.tm_caps.max_sge;
        /// CQ moderation: maximum number of completions per event.
        max_cq_count: u16 = resp.cq_moderation_caps.max_cq_moderation_count;
        /// CQ moderation: maximum delay of an event in µs.
        max_cq_period: u16 = resp.cq_moderation_caps.max_cq_moderation_period;
        /// Size of the device memory in bytes.
        max_dm_size: u64 = resp.max_dm_size;
    }
}

attr_struct! {
    /// Properties of a port.
    ///
    /// Fields have the names of C's `ibv_port_attr`.
    #[doc(alias = "ibv_port_attr")]
    PortAttr from resp: QueryPortRespEx {
        /// Logical state.
        state: PortState = resp.legacy_resp.state;
        /// Largest MTU that it supports.
        max_mtu: Mtu = mtu(resp.legacy_resp.max_mtu);
        /// Active MTU. On RoCE it follows the MTU of the network interface.
        active_mtu: Mtu = mtu(resp.legacy_resp.active_mtu);
        /// Number of entries of the GID table.
        gid_tbl_len: u32 = resp.legacy_resp.gid_tbl_len;
        /// Capability flags.
        port_cap_flags: PortCapFlags = resp.legacy_resp.port_cap_flags;
        /// CapabilityMask2 of PortInfo.
        port_cap_flags2: u16 = resp.port_cap_flags2;
        /// Maximum message size in bytes.
        max_msg_sz: u32 = resp.legacy_resp.max_msg_sz;
        /// Number of packets with a wrong P_Key.
        bad_pkey_cntr: u32 = resp.legacy_resp.bad_pkey_cntr;
        /// Number of packets with a wrong Q_Key.
        qkey_viol_cntr: u32 = resp.legacy_resp.qkey_viol_cntr;
        /// Number of entries of the P_Key table.
        pkey_tbl_len: u16 = resp.legacy_resp.pkey_tbl_len;
        /// LID; 0 on Ethernet.
        lid: u16 = resp.legacy_resp.lid;
        /// LID of the subnet manager.
        sm_lid: u16 = resp.legacy_resp.sm_lid;
        /// LID mask control: number of low LID bits that select a path.
        lmc: u8 = resp.legacy_resp.lmc;
        /// Virtual lanes, as encoded in PortInfo (VLCap).
        max_vl_num: u8 = resp.legacy_resp.max_vl_num;
        /// Service level of the subnet manager.
        sm_sl: u8 = resp.legacy_resp.sm_sl;
        /// Maximum delay through the subnet: 4.096 µs × 2^n.
        subnet_timeout: u8 = resp.legacy_resp.subnet_timeout;
        /// Type of initialisation by the subnet manager (InitTypeReply).
        init_type_reply: u8 = resp.legacy_resp.init_type_reply;
        /// Active link width.
        active_width: PortWidth = resp.legacy_resp.active_width;
        /// Active speed of one lane.
        active_speed: PortSpeed = if resp.active_speed_ex == 0 {
            PortSpeed(resp.legacy_resp.active_speed.into())
        } else {
            PortSpeed(resp.active_speed_ex)
        };
        /// Physical state.
        phys_state: PortPhysState = resp.legacy_resp.phys_state;
        /// Link layer.
        link_layer: LinkLayer = resp.legacy_resp.link_layer;
        /// Flags with requirements for users.
        flags: PortFlags = resp.legacy_resp.flags;
    }
}

impl DeviceAttr {
    /// Adds the attributes that only the driver reports.
    pub(crate) fn with(self, caps: Capabilities) -> Self {
        Self {
            max_tso: caps.max_tso,
            tso_supported_qpts: caps.tso_supported_qpts,
            rx_hash_fields_mask: caps.rx_hash_fields_mask,
            rx_hash_function: caps.rx_hash_function,
            qp_rate_limit_min: caps.qp_rate_limit_min,
            qp_rate_limit_max: caps.qp_rate_limit_max,
            rate_limit_supported_qpts: caps.rate_limit_supported_qpts,
            ..self
        }
    }
}

/// Formats a firmware version. rxe, mlx5 and most drivers pack major, minor and sub-minor number
/// into 32, 16 and 16 bits.
fn fw_ver(packed: u64) -> String {
    format!("{}.{}.{}", packed >> 32, packed >> 16 & 0xffff, packed & 0xffff)
}

/// Maps MTUs above the InfiniBand range, such as those of Omni-Path, to 4096 bytes.
fn mtu(resp: values::Mtu) -> Mtu {
    Mtu::from_raw(resp.0).unwrap_or(if resp.0 == 0 { Mtu::Mtu256 } else { Mtu::Mtu4096 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_version_has_three_parts() {
        assert_eq!(fw_ver(16 << 32 | 35 << 16 | 2000), "16.35.2000");
        assert_eq!(fw_ver(0), "0.0.0");
    }

    #[test]
    fn active_speed_ex_takes_precedence() {
        let mut resp = QueryPortRespEx::zeroed();
        resp.legacy_resp.active_speed = 128;
        assert_eq!(PortAttr::from(&resp).active_speed, PortSpeed::NDR);
        resp.active_speed_ex = 256;
        assert_eq!(PortAttr::from(&resp).active_speed, PortSpeed::XDR);
    }

    #[test]
    fn unknown_mtu_values_do_not_panic() {
        assert_eq!(mtu(values::Mtu(3)), Mtu::Mtu1024);
        assert_eq!(mtu(values::Mtu(0)), Mtu::Mtu256);
        assert_eq!(mtu(values::Mtu(7)), Mtu::Mtu4096);
    }
}
