//! What a device and its ports say of themselves.

use bareverbs_provider::contract::Offloads;
use bareverbs_provider::rss::{HashFields, HashFunctions};
use bareverbs_uapi::uverbs::types::{PortCapFlags, PortFlags, QueryPortRespEx};
use bareverbs_uapi::verbs_values::{self as values, AtomicCap, PortSpeed, PortWidth, TmCapFlags};
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use bareverbs_uapi::write::types::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps};

use crate::{Guid, LinkLayer, Mtu, PortPhysState, PortState};

/// `$field: $type = $path` with its documentation, where `$path` is the field's place in the
/// kernel's answer.
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
    /// Fields have the names of C's `ibv_device_attr` and `ibv_device_attr_ex`. What the kernel or
    /// the driver does not know is 0.
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
        /// The vendor's IEEE number.
        vendor_id: u32 = resp.base.vendor_id;
        /// The vendor's number of the part.
        vendor_part_id: u32 = resp.base.vendor_part_id;
        /// Version of the hardware.
        hw_ver: u32 = resp.base.hw_ver;
        /// Most queue pairs.
        max_qp: u32 = resp.base.max_qp;
        /// Most requests outstanding in a queue.
        max_qp_wr: u32 = resp.base.max_qp_wr;
        /// What the device can do.
        device_cap_flags: DeviceCapFlags = resp.device_cap_flags_ex;
        /// Most scatter/gather elements of a request.
        max_sge: u32 = resp.base.max_sge;
        /// Most scatter/gather elements of a read.
        max_sge_rd: u32 = resp.base.max_sge_rd;
        /// Most completion queues.
        max_cq: u32 = resp.base.max_cq;
        /// Most completions of a completion queue.
        max_cqe: u32 = resp.base.max_cqe;
        /// Most memory regions.
        max_mr: u32 = resp.base.max_mr;
        /// Most protection domains.
        max_pd: u32 = resp.base.max_pd;
        /// Most reads and atomics of a peer outstanding, per queue pair.
        max_qp_rd_atom: u32 = resp.base.max_qp_rd_atom;
        /// The same per end-to-end context, which no device has.
        max_ee_rd_atom: u32 = resp.base.max_ee_rd_atom;
        /// Most reads and atomics of peers outstanding in the whole device.
        max_res_rd_atom: u32 = resp.base.max_res_rd_atom;
        /// Most own reads and atomics outstanding, per queue pair.
        max_qp_init_rd_atom: u32 = resp.base.max_qp_init_rd_atom;
        /// The same per end-to-end context.
        max_ee_init_rd_atom: u32 = resp.base.max_ee_init_rd_atom;
        /// What atomics are atomic against.
        atomic_cap: AtomicCap = resp.base.atomic_cap;
        /// Most end-to-end contexts.
        max_ee: u32 = resp.base.max_ee;
        /// Most reliable datagram domains.
        max_rdd: u32 = resp.base.max_rdd;
        /// Most memory windows.
        max_mw: u32 = resp.base.max_mw;
        /// Most raw IPv6 queue pairs.
        max_raw_ipv6_qp: u32 = resp.base.max_raw_ipv6_qp;
        /// Most raw Ethertype queue pairs.
        max_raw_ethy_qp: u32 = resp.base.max_raw_ethy_qp;
        /// Most multicast groups.
        max_mcast_grp: u32 = resp.base.max_mcast_grp;
        /// Most queue pairs of a multicast group.
        max_mcast_qp_attach: u32 = resp.base.max_mcast_qp_attach;
        /// Most attachments to multicast groups.
        max_total_mcast_qp_attach: u32 = resp.base.max_total_mcast_qp_attach;
        /// Most address handles.
        max_ah: u32 = resp.base.max_ah;
        /// Most fast memory regions, which no longer exist.
        max_fmr: u32 = resp.base.max_fmr;
        /// Most maps of a fast memory region.
        max_map_per_fmr: u32 = resp.base.max_map_per_fmr;
        /// Most shared receive queues.
        max_srq: u32 = resp.base.max_srq;
        /// Most requests outstanding in a shared receive queue.
        max_srq_wr: u32 = resp.base.max_srq_wr;
        /// Most scatter elements of a shared receive.
        max_srq_sge: u32 = resp.base.max_srq_sge;
        /// Most partitions.
        max_pkeys: u16 = resp.base.max_pkeys;
        /// Time the device takes to acknowledge: 4.096 µs times 2 to this power.
        local_ca_ack_delay: u8 = resp.base.local_ca_ack_delay;
        /// Number of ports.
        phys_port_cnt: u8 = resp.base.phys_port_cnt;
        /// On-demand paging as a whole.
        odp_general_caps: OdpGeneralCaps = resp.odp_caps.general_caps;
        /// On-demand paging on reliable connections.
        rc_odp_caps: OdpTransportCaps = resp.odp_caps.per_transport_caps.rc_odp_caps;
        /// On-demand paging on unreliable connections.
        uc_odp_caps: OdpTransportCaps = resp.odp_caps.per_transport_caps.uc_odp_caps;
        /// On-demand paging on unreliable datagrams.
        ud_odp_caps: OdpTransportCaps = resp.odp_caps.per_transport_caps.ud_odp_caps;
        /// On-demand paging on extended reliable connections.
        xrc_odp_caps: OdpTransportCaps = resp.xrc_odp_caps;
        /// Valid bits of a completion's time; 0 where completions carry none.
        completion_timestamp_mask: u64 = resp.timestamp_mask;
        /// The device's clock in kHz.
        hca_core_clock: u64 = resp.hca_core_clock;
        /// Most bytes of payload that the device cuts into packets of TCP.
        max_tso: u32 = 0;
        /// Transports that it does so for, 1 shifted by the queue pair type's number.
        tso_supported_qpts: u32 = 0;
        /// What of a packet can choose the queue that it is received to.
        rx_hash_fields_mask: HashFields = HashFields::empty();
        /// How that is chosen.
        rx_hash_function: HashFunctions = HashFunctions::empty();
        /// Lowest rate that sends can be held to
        /// ([`QpAttr::rate_limit`](crate::QpAttr::rate_limit)), in kbit/s.
        qp_rate_limit_min: u32 = 0;
        /// Highest such rate in kbit/s; 0 where there is none. No device that this was tested with
        /// has any.
        qp_rate_limit_max: u32 = 0;
        /// Transports whose sends can be held to a rate, 1 shifted by the queue pair type's number.
        rate_limit_supported_qpts: u32 = 0;
        /// Transports that spread receives, 1 shifted by the queue pair type's number.
        rss_supported_qpts: u32 = resp.rss_caps.supported_qpts;
        /// Most indirection tables.
        max_rwq_indirection_tables: u32 = resp.rss_caps.max_rwq_indirection_tables;
        /// Most entries of an indirection table.
        max_rwq_indirection_table_size: u32 = resp.rss_caps.max_rwq_indirection_table_size;
        /// Most work queues for receives.
        max_wq_type_rq: u32 = resp.max_wq_type_rq;
        /// What can be done with raw packets.
        raw_packet_caps: RawPacketCaps = resp.raw_packet_caps;
        /// Tag matching: most bytes of a rendezvous request.
        tm_max_rndv_hdr_size: u32 = resp.tm_caps.max_rndv_hdr_size;
        /// Tag matching: most entries of the list.
        tm_max_num_tags: u32 = resp.tm_caps.max_num_tags;
        /// Tag matching: what it can do.
        tm_flags: TmCapFlags = resp.tm_caps.flags;
        /// Tag matching: most list operations outstanding.
        tm_max_ops: u32 = resp.tm_caps.max_ops;
        /// Tag matching: most scatter elements of a tag.
        tm_max_sge: u32 = resp.tm_caps.max_sge;
        /// Most completions that can share an event.
        max_cq_count: u16 = resp.cq_moderation_caps.max_cq_moderation_count;
        /// Longest time in µs that an event can wait for more completions.
        max_cq_period: u16 = resp.cq_moderation_caps.max_cq_moderation_period;
        /// Bytes of device memory.
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
        /// Largest MTU that can be used now, as its network interface is set.
        active_mtu: Mtu = mtu(resp.legacy_resp.active_mtu);
        /// Entries of the GID table.
        gid_tbl_len: u32 = resp.legacy_resp.gid_tbl_len;
        /// What it can do.
        port_cap_flags: PortCapFlags = resp.legacy_resp.port_cap_flags;
        /// Second word of its capabilities, as the subnet management agent numbers them.
        port_cap_flags2: u16 = resp.port_cap_flags2;
        /// Bytes of the largest message.
        max_msg_sz: u32 = resp.legacy_resp.max_msg_sz;
        /// Packets with a wrong P_Key.
        bad_pkey_cntr: u32 = resp.legacy_resp.bad_pkey_cntr;
        /// Packets with a wrong Q_Key.
        qkey_viol_cntr: u32 = resp.legacy_resp.qkey_viol_cntr;
        /// Entries of the P_Key table.
        pkey_tbl_len: u16 = resp.legacy_resp.pkey_tbl_len;
        /// Local identifier; 0 on Ethernet.
        lid: u16 = resp.legacy_resp.lid;
        /// The subnet manager's local identifier.
        sm_lid: u16 = resp.legacy_resp.sm_lid;
        /// Low bits of the local identifier that choose a path.
        lmc: u8 = resp.legacy_resp.lmc;
        /// Virtual lanes, in the agent's code.
        max_vl_num: u8 = resp.legacy_resp.max_vl_num;
        /// The subnet manager's service level.
        sm_sl: u8 = resp.legacy_resp.sm_sl;
        /// Longest delay through the subnet: 4.096 µs times 2 to this power.
        subnet_timeout: u8 = resp.legacy_resp.subnet_timeout;
        /// How the subnet manager initialised the port.
        init_type_reply: u8 = resp.legacy_resp.init_type_reply;
        /// Lanes in use.
        active_width: PortWidth = resp.legacy_resp.active_width;
        /// Speed of one lane.
        active_speed: PortSpeed = if resp.active_speed_ex == 0 {
            PortSpeed(resp.legacy_resp.active_speed.into())
        } else {
            PortSpeed(resp.active_speed_ex)
        };
        /// Physical state.
        phys_state: PortPhysState = resp.legacy_resp.phys_state;
        /// What carries its packets.
        link_layer: LinkLayer = resp.legacy_resp.link_layer;
        /// What it asks of its users.
        flags: PortFlags = resp.legacy_resp.flags;
    }
}

impl DeviceAttr {
    /// With what only the driver tells.
    pub(crate) fn with(self, offloads: Offloads) -> Self {
        Self {
            max_tso: offloads.max_tso,
            tso_supported_qpts: offloads.tso_supported_qpts,
            rx_hash_fields_mask: offloads.rx_hash_fields_mask,
            rx_hash_function: offloads.rx_hash_function,
            qp_rate_limit_min: offloads.qp_rate_limit_min,
            qp_rate_limit_max: offloads.qp_rate_limit_max,
            rate_limit_supported_qpts: offloads.rate_limit_supported_qpts,
            ..self
        }
    }
}

/// Rxe, mlx5 and most others pack major, minor and sub-minor number into 32, 16 and 16 bits.
fn fw_ver(packed: u64) -> String {
    format!("{}.{}.{}", packed >> 32, packed >> 16 & 0xffff, packed & 0xffff)
}

/// An MTU beyond the InfiniBand ones, as Omni-Path has, counts as the largest of those.
fn mtu(resp: values::Mtu) -> Mtu {
    Mtu::from_raw(resp.0).unwrap_or(if resp.0 == 0 { Mtu::Mtu256 } else { Mtu::Mtu4096 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firmware_version_has_three_parts() {
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
