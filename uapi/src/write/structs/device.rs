//! Contexts, devices, ports, completion channels and events.

use crate::abi::Be64;
use crate::uverbs::types::{PortCapFlags, PortFlags};
use crate::verbs_values::{
    AtomicCap, EventType, LinkLayer, Mtu, PortPhysState, PortSpeed, PortState, PortWidth, TmCapFlags,
};
use crate::write::types::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// An event as it is read from an asynchronous event descriptor.
    struct AsyncEventDesc = tag "ib_uverbs_async_event_desc" {
        /// User handle of the object concerned, or the port's number.
        element: u64;
        /// What happened.
        event_type: EventType;
        /// Zero.
        reserved: u32;
    }

    /// An event as it is read from a completion channel.
    struct CompEventDesc = tag "ib_uverbs_comp_event_desc" {
        /// User handle of the CQ.
        cq_handle: u64;
    }

    /// How far completion events can be held back.
    struct CqModerationCaps = tag "ib_uverbs_cq_moderation_caps" {
        /// Most completions.
        max_cq_moderation_count: u16;
        /// Longest time in microseconds.
        max_cq_moderation_period: u16;
        /// Zero.
        reserved: u32;
    }

    /// Head of a command passed through `write()`, which this project never does.
    struct CmdHdr = tag "ib_uverbs_cmd_hdr" {
        /// The command word.
        command: u32;
        /// Size of the request in words of 4 bytes (8 for the extended kind).
        in_words: u16;
        /// Size of the response in words of 4 bytes (8 for the extended kind).
        out_words: u16;
    }

    /// Second head of an extended command passed through `write()`.
    struct ExCmdHdr = tag "ib_uverbs_ex_cmd_hdr" {
        /// Address of the response.
        response: u64;
        /// Size of the driver's request in words of 8 bytes.
        provider_in_words: u16;
        /// Size of the driver's response in words of 8 bytes.
        provider_out_words: u16;
        /// Must be 0.
        cmd_hdr_reserved: u32;
    }

    /// Request for a context.
    struct GetContextReq = tag "ib_uverbs_get_context" {
        /// Ignored by the ioctl.
        response: u64;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A new context.
    struct GetContextResp = tag "ib_uverbs_get_context_resp" {
        /// Descriptor of asynchronous events.
        async_fd: u32;
        /// Number of completion vectors.
        num_comp_vectors: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Request for a device's attributes.
    struct QueryDeviceReq = tag "ib_uverbs_query_device" {
        /// Ignored by the ioctl.
        response: u64;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A device's attributes.
    struct QueryDeviceResp = tag "ib_uverbs_query_device_resp" {
        /// Firmware version, in the driver's own format.
        fw_ver: u64;
        /// GUID of the node.
        node_guid: Be64;
        /// GUID of the system that the node is part of.
        sys_image_guid: Be64;
        /// Largest memory region in bytes.
        max_mr_size: u64;
        /// Page sizes supported, one bit each.
        page_size_cap: u64;
        /// The vendor's IEEE number.
        vendor_id: u32;
        /// The vendor's number of the part.
        vendor_part_id: u32;
        /// Hardware version.
        hw_ver: u32;
        /// Most queue pairs.
        max_qp: u32;
        /// Most requests outstanding in a queue.
        max_qp_wr: u32;
        /// The low half of what the device can do.
        device_cap_flags: u32 as DeviceCapFlags;
        /// Most scatter/gather entries of a request.
        max_sge: u32;
        /// Most scatter/gather entries of an RDMA read.
        max_sge_rd: u32;
        /// Most completion queues.
        max_cq: u32;
        /// Most entries of a completion queue.
        max_cqe: u32;
        /// Most memory regions.
        max_mr: u32;
        /// Most protection domains.
        max_pd: u32;
        /// Most reads and atomics outstanding as target, per QP.
        max_qp_rd_atom: u32;
        /// The same per end-to-end context, which no device has.
        max_ee_rd_atom: u32;
        /// Resources for reads and atomics as target, whole device.
        max_res_rd_atom: u32;
        /// Most reads and atomics outstanding as initiator, per QP.
        max_qp_init_rd_atom: u32;
        /// The same per end-to-end context.
        max_ee_init_rd_atom: u32;
        /// What atomics are atomic against.
        atomic_cap: AtomicCap;
        /// Most end-to-end contexts.
        max_ee: u32;
        /// Most reliable datagram domains.
        max_rdd: u32;
        /// Most memory windows.
        max_mw: u32;
        /// Most raw IPv6 queue pairs.
        max_raw_ipv6_qp: u32;
        /// Most raw Ethertype queue pairs.
        max_raw_ethy_qp: u32;
        /// Most multicast groups.
        max_mcast_grp: u32;
        /// Most queue pairs of a multicast group.
        max_mcast_qp_attach: u32;
        /// Most attachments to multicast groups.
        max_total_mcast_qp_attach: u32;
        /// Most address handles.
        max_ah: u32;
        /// Most fast memory regions, which no longer exist.
        max_fmr: u32;
        /// Most maps of a fast memory region.
        max_map_per_fmr: u32;
        /// Most shared receive queues.
        max_srq: u32;
        /// Most requests outstanding in a shared receive queue.
        max_srq_wr: u32;
        /// Most scatter entries of a shared receive request.
        max_srq_sge: u32;
        /// Most partitions.
        max_pkeys: u16;
        /// Time the device takes to acknowledge: 4.096 µs times 2 to this power.
        local_ca_ack_delay: u8;
        /// Number of ports.
        phys_port_cnt: u8;
        /// Zero.
        reserved: [u8; 4];
    }

    /// Extended request for a device's attributes.
    struct ExQueryDevice = tag "ib_uverbs_ex_query_device" {
        /// Must be 0.
        comp_mask: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// On-demand paging by transport.
    struct OdpPerTransportCaps = expr "__typeof__(((struct ib_uverbs_odp_caps *)0)->per_transport_caps)" {
        /// Reliable connections.
        rc_odp_caps: OdpTransportCaps;
        /// Unreliable connections.
        uc_odp_caps: OdpTransportCaps;
        /// Unreliable datagrams.
        ud_odp_caps: OdpTransportCaps;
    }

    /// On-demand paging.
    struct OdpCaps = tag "ib_uverbs_odp_caps" {
        /// As a whole.
        general_caps: OdpGeneralCaps;
        /// By transport.
        per_transport_caps: OdpPerTransportCaps;
        /// Zero.
        reserved: u32;
    }

    /// Receive side scaling.
    struct RssCaps = tag "ib_uverbs_rss_caps" {
        /// Transports supported, bit 2 to the power of the QP type's number.
        supported_qpts: u32;
        /// Most indirection tables.
        max_rwq_indirection_tables: u32;
        /// Most entries of an indirection table.
        max_rwq_indirection_table_size: u32;
        /// Zero.
        reserved: u32;
    }

    /// Tag matching.
    struct TmCaps = tag "ib_uverbs_tm_caps" {
        /// Most bytes of a rendezvous request.
        max_rndv_hdr_size: u32;
        /// Most entries of the matching list.
        max_num_tags: u32;
        /// What it can do.
        flags: TmCapFlags;
        /// Most list operations outstanding.
        max_ops: u32;
        /// Most scatter entries of a tag.
        max_sge: u32;
        /// Zero.
        reserved: u32;
    }

    /// A device's attributes, extended. A kernel fills what it knows and says how much in
    /// `response_length`.
    struct ExQueryDeviceResp = tag "ib_uverbs_ex_query_device_resp" {
        /// The older attributes.
        base: QueryDeviceResp;
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
        /// On-demand paging.
        odp_caps: OdpCaps;
        /// Valid bits of a completion's time.
        timestamp_mask: u64;
        /// The device's clock in kHz.
        hca_core_clock: u64;
        /// What the device can do, all of it.
        device_cap_flags_ex: DeviceCapFlags;
        /// Receive side scaling.
        rss_caps: RssCaps;
        /// Most work queues for receives.
        max_wq_type_rq: u32;
        /// Raw packets.
        raw_packet_caps: RawPacketCaps;
        /// Tag matching.
        tm_caps: TmCaps;
        /// Event moderation.
        cq_moderation_caps: CqModerationCaps;
        /// Bytes of device memory.
        max_dm_size: u64;
        /// On-demand paging on extended reliable connections.
        xrc_odp_caps: OdpTransportCaps;
        /// Zero.
        reserved: u32;
    }

    /// Request for a port's attributes.
    struct QueryPortReq = tag "ib_uverbs_query_port" {
        /// Ignored by the ioctl.
        response: u64;
        /// The port, from 1.
        port_num: u8;
        /// Zero.
        reserved: [u8; 7];
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A port's attributes.
    struct QueryPortResp = tag "ib_uverbs_query_port_resp" {
        /// What the port can do.
        port_cap_flags: PortCapFlags;
        /// Bytes of the largest message.
        max_msg_sz: u32;
        /// Packets with a wrong partition key.
        bad_pkey_cntr: u32;
        /// Packets with a wrong queue key.
        qkey_viol_cntr: u32;
        /// Entries of the GID table.
        gid_tbl_len: u32;
        /// Entries of the partition table.
        pkey_tbl_len: u16;
        /// Local identifier; 0 on Ethernet.
        lid: u16;
        /// The subnet manager's local identifier.
        sm_lid: u16;
        /// Logical state.
        state: PortState;
        /// Largest MTU supported.
        max_mtu: Mtu;
        /// MTU in use.
        active_mtu: Mtu;
        /// Low bits of the local identifier that are masked.
        lmc: u8;
        /// Virtual lanes, in the agent's code.
        max_vl_num: u8;
        /// The subnet manager's service level.
        sm_sl: u8;
        /// Longest delay through the subnet: 4.096 µs times 2 to this power.
        subnet_timeout: u8;
        /// How the subnet manager initialised the port.
        init_type_reply: u8;
        /// Lanes in use.
        active_width: PortWidth;
        /// Speed of a lane, where one byte can say it.
        active_speed: u8 as PortSpeed;
        /// Physical state.
        phys_state: PortPhysState;
        /// What carries the packets.
        link_layer: LinkLayer;
        /// What the port asks of its users.
        flags: PortFlags;
        /// Zero.
        reserved: u8;
    }

    /// Request for a completion channel.
    struct CreateCompChannelReq = tag "ib_uverbs_create_comp_channel" {
        /// Ignored by the ioctl.
        response: u64;
    }

    /// A new completion channel.
    struct CreateCompChannelResp = tag "ib_uverbs_create_comp_channel_resp" {
        /// Its descriptor.
        fd: u32;
    }
}
