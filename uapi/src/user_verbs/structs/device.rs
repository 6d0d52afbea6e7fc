//! Contexts, devices, ports, completion channels and events.

use crate::abi::Be64;
use crate::user_verbs::types::{DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, RawPacketCaps};
use crate::uverbs_values::{PortCapFlags, PortFlags};
use crate::verbs_values::{
    AtomicCap, EventType, LinkLayer, Mtu, PortPhysState, PortSpeed, PortState, PortWidth, TmCapFlags,
};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// An event read from an asynchronous event descriptor.
    struct AsyncEventDesc = tag "ib_uverbs_async_event_desc" {
        /// User handle of the object, or the port number.
        element: u64;
        /// Type of the event.
        event_type: EventType;
        /// Zero.
        reserved: u32;
    }

    /// An event read from a completion channel.
    struct CompEventDesc = tag "ib_uverbs_comp_event_desc" {
        /// User handle of the CQ.
        cq_handle: u64;
    }

    /// CQ moderation capabilities.
    #[doc(alias = "ibv_cq_moderation_caps")]
    struct CqModerationCaps = tag "ib_uverbs_cq_moderation_caps" {
        /// Maximum number of completions.
        max_cq_moderation_count: u16;
        /// Maximum delay in µs.
        max_cq_moderation_period: u16;
        /// Zero.
        reserved: u32;
    }

    /// Header of a command for `write()`. This project does not use it.
    struct CmdHdr = tag "ib_uverbs_cmd_hdr" {
        /// The command word.
        command: u32;
        /// Size of the request in words of 4 bytes (8 for the extended kind).
        in_words: u16;
        /// Size of the response in words of 4 bytes (8 for the extended kind).
        out_words: u16;
    }

    /// Second header of an extended command for `write()`.
    struct ExCmdHdr = tag "ib_uverbs_ex_cmd_hdr" {
        /// Address of the response.
        response: u64;
        /// Size of the driver request in words of 8 bytes.
        provider_in_words: u16;
        /// Size of the driver response in words of 8 bytes.
        provider_out_words: u16;
        /// Must be 0.
        cmd_hdr_reserved: u32;
    }

    /// Request for a context.
    struct GetContextReq = tag "ib_uverbs_get_context" {
        /// Ignored by the ioctl.
        response: u64;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new context.
    struct GetContextResp = tag "ib_uverbs_get_context_resp" {
        /// Descriptor of the asynchronous event channel.
        async_fd: u32;
        /// Number of completion vectors.
        num_comp_vectors: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Request of QUERY_DEVICE.
    struct QueryDeviceReq = tag "ib_uverbs_query_device" {
        /// Ignored by the ioctl.
        response: u64;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Attributes of a device.
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
        /// IEEE OUI of the vendor.
        vendor_id: u32;
        /// Part number of the vendor.
        vendor_part_id: u32;
        /// Hardware version.
        hw_ver: u32;
        /// Maximum number of QPs.
        max_qp: u32;
        /// Maximum number of outstanding requests of a queue.
        max_qp_wr: u32;
        /// Capability flags, low 32 bits.
        device_cap_flags: u32 as DeviceCapFlags;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// Maximum number of SGEs of an RDMA READ.
        max_sge_rd: u32;
        /// Maximum number of CQs.
        max_cq: u32;
        /// Maximum number of entries of a CQ.
        max_cqe: u32;
        /// Maximum number of MRs.
        max_mr: u32;
        /// Maximum number of PDs.
        max_pd: u32;
        /// Maximum number of outstanding RDMA READs and atomics per QP as responder.
        max_qp_rd_atom: u32;
        /// The same per end-to-end (EE) context. No device has EE contexts.
        max_ee_rd_atom: u32;
        /// Maximum number of outstanding RDMA READs and atomics of the device as responder.
        max_res_rd_atom: u32;
        /// Maximum number of outstanding RDMA READs and atomics per QP as requester.
        max_qp_init_rd_atom: u32;
        /// The same per EE context.
        max_ee_init_rd_atom: u32;
        /// Scope of atomicity of atomic operations.
        atomic_cap: AtomicCap;
        /// Maximum number of EE contexts.
        max_ee: u32;
        /// Maximum number of reliable datagram domains.
        max_rdd: u32;
        /// Maximum number of memory windows.
        max_mw: u32;
        /// Maximum number of raw IPv6 QPs.
        max_raw_ipv6_qp: u32;
        /// Maximum number of raw Ethertype QPs.
        max_raw_ethy_qp: u32;
        /// Maximum number of multicast groups.
        max_mcast_grp: u32;
        /// Maximum number of QPs attached to a multicast group.
        max_mcast_qp_attach: u32;
        /// Maximum number of attachments to multicast groups in total.
        max_total_mcast_qp_attach: u32;
        /// Maximum number of address handles.
        max_ah: u32;
        /// Maximum number of fast memory regions (FMR). FMRs no longer exist.
        max_fmr: u32;
        /// Maximum number of maps of an FMR.
        max_map_per_fmr: u32;
        /// Maximum number of SRQs.
        max_srq: u32;
        /// Maximum number of outstanding requests of an SRQ.
        max_srq_wr: u32;
        /// Maximum number of SGEs of an SRQ request.
        max_srq_sge: u32;
        /// Maximum number of partitions.
        max_pkeys: u16;
        /// Local acknowledge delay: 4.096 µs × 2^n.
        local_ca_ack_delay: u8;
        /// Number of ports.
        phys_port_cnt: u8;
        /// Zero.
        reserved: [u8; 4];
    }

    /// Request of the extended QUERY_DEVICE.
    struct ExQueryDevice = tag "ib_uverbs_ex_query_device" {
        /// Must be 0.
        comp_mask: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// ODP capabilities by transport.
    struct OdpPerTransportCaps = expr "__typeof__(((struct ib_uverbs_odp_caps *)0)->per_transport_caps)" {
        /// Reliable connections.
        rc_odp_caps: OdpTransportCaps;
        /// Unreliable connections.
        uc_odp_caps: OdpTransportCaps;
        /// Unreliable datagrams.
        ud_odp_caps: OdpTransportCaps;
    }

    /// ODP capabilities.
    #[doc(alias = "ibv_odp_caps")]
    struct OdpCaps = tag "ib_uverbs_odp_caps" {
        /// General.
        general_caps: OdpGeneralCaps;
        /// Per transport.
        per_transport_caps: OdpPerTransportCaps;
        /// Zero.
        reserved: u32;
    }

    /// RSS capabilities.
    #[doc(alias = "ibv_rss_caps")]
    struct RssCaps = tag "ib_uverbs_rss_caps" {
        /// Supported QP types, as a mask of `1 << type`.
        supported_qpts: u32;
        /// Maximum number of indirection tables.
        max_rwq_indirection_tables: u32;
        /// Maximum number of entries of an indirection table.
        max_rwq_indirection_table_size: u32;
        /// Zero.
        reserved: u32;
    }

    /// Tag matching capabilities.
    #[doc(alias = "ibv_tm_caps")]
    struct TmCaps = tag "ib_uverbs_tm_caps" {
        /// Maximum size of a rendezvous request in bytes.
        max_rndv_hdr_size: u32;
        /// Maximum number of tags in the list.
        max_num_tags: u32;
        /// Capability flags.
        flags: TmCapFlags;
        /// Maximum number of outstanding list operations.
        max_ops: u32;
        /// Maximum number of SGEs of a tag.
        max_sge: u32;
        /// Zero.
        reserved: u32;
    }

    /// Extended attributes of a device. The kernel fills `response_length` bytes.
    struct ExQueryDeviceResp = tag "ib_uverbs_ex_query_device_resp" {
        /// The non-extended attributes.
        base: QueryDeviceResp;
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// ODP capabilities.
        odp_caps: OdpCaps;
        /// Valid bits of completion timestamps.
        timestamp_mask: u64;
        /// Frequency of the device clock in kHz.
        hca_core_clock: u64;
        /// Capability flags, all 64 bits.
        device_cap_flags_ex: DeviceCapFlags;
        /// RSS capabilities.
        rss_caps: RssCaps;
        /// Maximum number of receive work queues.
        max_wq_type_rq: u32;
        /// Raw packet capabilities.
        raw_packet_caps: RawPacketCaps;
        /// Tag matching capabilities.
        tm_caps: TmCaps;
        /// CQ event moderation.
        cq_moderation_caps: CqModerationCaps;
        /// Size of the device memory in bytes.
        max_dm_size: u64;
        /// ODP capabilities of XRC.
        xrc_odp_caps: OdpTransportCaps;
        /// Zero.
        reserved: u32;
    }

    /// Request of QUERY_PORT.
    struct QueryPortReq = tag "ib_uverbs_query_port" {
        /// Ignored by the ioctl.
        response: u64;
        /// The port, from 1.
        port_num: u8;
        /// Zero.
        reserved: [u8; 7];
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Attributes of a port.
    struct QueryPortResp = tag "ib_uverbs_query_port_resp" {
        /// Capability flags.
        port_cap_flags: PortCapFlags;
        /// Maximum message size in bytes.
        max_msg_sz: u32;
        /// Number of packets with a wrong P_Key.
        bad_pkey_cntr: u32;
        /// Number of packets with a wrong Q_Key.
        qkey_viol_cntr: u32;
        /// Number of entries of the GID table.
        gid_tbl_len: u32;
        /// Number of entries of the P_Key table.
        pkey_tbl_len: u16;
        /// LID; 0 on Ethernet.
        lid: u16;
        /// LID of the subnet manager.
        sm_lid: u16;
        /// Logical state.
        state: PortState;
        /// Maximum supported MTU.
        max_mtu: Mtu;
        /// Active MTU.
        active_mtu: Mtu;
        /// LID mask control (LMC).
        lmc: u8;
        /// Virtual lanes, as encoded in PortInfo (VLCap).
        max_vl_num: u8;
        /// Service level of the subnet manager.
        sm_sl: u8;
        /// Maximum delay through the subnet: 4.096 µs × 2^n.
        subnet_timeout: u8;
        /// Type of initialisation by the subnet manager (InitTypeReply).
        init_type_reply: u8;
        /// Active link width.
        active_width: PortWidth;
        /// Active speed of one lane, if it fits one byte.
        active_speed: u8 as PortSpeed;
        /// Physical state.
        phys_state: PortPhysState;
        /// Link layer.
        link_layer: LinkLayer;
        /// Port flags with requirements for users.
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
