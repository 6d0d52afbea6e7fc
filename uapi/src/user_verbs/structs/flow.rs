//! Flows: steering rules for raw packet QPs.

use crate::abi::{Be16, Be32};
use crate::verbs_values::{FlowAttrType, FlowFlags, FlowSpecType};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Header of a specification.
    struct FlowSpecHdr = tag "ib_uverbs_flow_spec_hdr" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Start of the rest.
        flow_spec_data: [u64; 0];
    }

    /// Fields of an Ethernet header.
    struct FlowEthFilter = tag "ib_uverbs_flow_eth_filter" {
        /// Destination address.
        dst_mac: [u8; 6];
        /// Source address.
        src_mac: [u8; 6];
        /// Type.
        ether_type: Be16;
        /// VLAN tag.
        vlan_tag: Be16;
    }

    /// Fields of an IPv4 header.
    struct FlowIpv4Filter = tag "ib_uverbs_flow_ipv4_filter" {
        /// Source address.
        src_ip: Be32;
        /// Destination address.
        dst_ip: Be32;
        /// Protocol.
        proto: u8;
        /// Type of service.
        tos: u8;
        /// Time to live.
        ttl: u8;
        /// 2: must not be fragmented; 4: fragments follow.
        flags: u8;
    }

    /// Fields of a TCP or UDP header.
    struct FlowTcpUdpFilter = tag "ib_uverbs_flow_tcp_udp_filter" {
        /// Destination port.
        dst_port: Be16;
        /// Source port.
        src_port: Be16;
    }

    /// Fields of an IPv6 header.
    struct FlowIpv6Filter = tag "ib_uverbs_flow_ipv6_filter" {
        /// Source address.
        src_ip: [u8; 16];
        /// Destination address.
        dst_ip: [u8; 16];
        /// Flow label.
        flow_label: Be32;
        /// Next header.
        next_hdr: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Hop limit.
        hop_limit: u8;
        /// Zero.
        reserved: u8;
    }

    /// Fields of a tunnel's header.
    struct FlowTunnelFilter = tag "ib_uverbs_flow_tunnel_filter" {
        /// Network identifier.
        tunnel_id: Be32;
    }

    /// Fields of an ESP header.
    struct FlowSpecEspFilter = tag "ib_uverbs_flow_spec_esp_filter" {
        /// Security parameter index.
        spi: u32;
        /// Sequence number.
        seq: u32;
    }

    /// Fields of a GRE header.
    struct FlowGreFilter = tag "ib_uverbs_flow_gre_filter" {
        /// Its first 16 bits: which fields follow, and the version.
        c_ks_res0_ver: Be16;
        /// Protocol.
        protocol: Be16;
        /// Key.
        key: Be32;
    }

    /// An MPLS label.
    struct FlowMplsFilter = tag "ib_uverbs_flow_mpls_filter" {
        /// The 32 bits of the label stack entry.
        label: Be32;
    }

    /// Matches an Ethernet header.
    #[doc(alias = "ibv_flow_spec_eth")]
    struct FlowSpecEth align(8) = tag "ib_uverbs_flow_spec_eth" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowEthFilter;
        /// Mask of the bits to compare.
        mask: FlowEthFilter;
    }

    /// Matches an IPv4 header.
    #[doc(alias = "ibv_flow_spec_ipv4")]
    struct FlowSpecIpv4 align(8) = tag "ib_uverbs_flow_spec_ipv4" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowIpv4Filter;
        /// Mask of the bits to compare.
        mask: FlowIpv4Filter;
    }

    /// Matches a TCP or UDP header.
    #[doc(alias = "ibv_flow_spec_tcp_udp")]
    struct FlowSpecTcpUdp align(8) = tag "ib_uverbs_flow_spec_tcp_udp" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowTcpUdpFilter;
        /// Mask of the bits to compare.
        mask: FlowTcpUdpFilter;
    }

    /// Matches an IPv6 header.
    #[doc(alias = "ibv_flow_spec_ipv6")]
    struct FlowSpecIpv6 align(8) = tag "ib_uverbs_flow_spec_ipv6" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowIpv6Filter;
        /// Mask of the bits to compare.
        mask: FlowIpv6Filter;
    }

    /// Matches a tunnel's header.
    #[doc(alias = "ibv_flow_spec_tunnel")]
    struct FlowSpecTunnel align(8) = tag "ib_uverbs_flow_spec_tunnel" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowTunnelFilter;
        /// Mask of the bits to compare.
        mask: FlowTunnelFilter;
    }

    /// Matches an ESP header.
    #[doc(alias = "ibv_flow_spec_esp")]
    struct FlowSpecEsp align(8) = tag "ib_uverbs_flow_spec_esp" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowSpecEspFilter;
        /// Mask of the bits to compare.
        mask: FlowSpecEspFilter;
    }

    /// Matches a GRE header.
    #[doc(alias = "ibv_flow_spec_gre")]
    struct FlowSpecGre align(8) = tag "ib_uverbs_flow_spec_gre" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowGreFilter;
        /// Mask of the bits to compare.
        mask: FlowGreFilter;
    }

    /// Matches an MPLS label.
    #[doc(alias = "ibv_flow_spec_mpls")]
    struct FlowSpecMpls align(8) = tag "ib_uverbs_flow_spec_mpls" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Values.
        val: FlowMplsFilter;
        /// Mask of the bits to compare.
        mask: FlowMplsFilter;
    }

    /// Sets a tag in completions.
    #[doc(alias = "ibv_flow_spec_action_tag")]
    struct FlowSpecActionTag align(8) = tag "ib_uverbs_flow_spec_action_tag" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// The tag.
        tag_id: u32;
        /// Zero.
        reserved1: u32;
    }

    /// Drops the packets.
    #[doc(alias = "ibv_flow_spec_action_drop")]
    struct FlowSpecActionDrop align(8) = tag "ib_uverbs_flow_spec_action_drop" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
    }

    /// Applies a flow action.
    #[doc(alias = "ibv_flow_spec_action_handle")]
    struct FlowSpecActionHandle align(8) = tag "ib_uverbs_flow_spec_action_handle" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Handle of the flow action.
        handle: u32;
        /// Zero.
        reserved1: u32;
    }

    /// Counts the packets.
    #[doc(alias = "ibv_flow_spec_counter_action")]
    struct FlowSpecActionCount align(8) = tag "ib_uverbs_flow_spec_action_count" {
        /// Type of the specification.
        spec_type: FlowSpecType = "type";
        /// Size of the specification in bytes, including this header.
        size: u16;
        /// Zero.
        reserved: u16;
        /// Handle of the counters object.
        handle: u32;
        /// Zero.
        reserved1: u32;
    }

    /// A flow; its specifications follow.
    struct FlowAttr = tag "ib_uverbs_flow_attr" {
        /// Its type.
        attr_type: FlowAttrType = "type";
        /// Size of the specifications in bytes.
        size: u16;
        /// Priority; 0 is the highest.
        priority: u16;
        /// Number of specifications.
        num_of_specs: u8;
        /// Zero.
        reserved: [u8; 2];
        /// The port.
        port: u8;
        /// Flags.
        flags: FlowFlags;
        /// Start of the specifications.
        flow_specs: [FlowSpecHdr; 0];
    }

    /// Request for a flow.
    struct CreateFlowReq = tag "ib_uverbs_create_flow" {
        /// Must be 0.
        comp_mask: u32;
        /// The queue pair that receives.
        qp_handle: u32;
        /// The flow.
        flow_attr: FlowAttr;
    }

    /// A new flow.
    struct CreateFlowResp = tag "ib_uverbs_create_flow_resp" {
        /// Zero.
        comp_mask: u32;
        /// Its handle.
        flow_handle: u32;
    }

    /// Destroys a flow.
    struct DestroyFlowReq = tag "ib_uverbs_destroy_flow" {
        /// Must be 0.
        comp_mask: u32;
        /// Its handle.
        flow_handle: u32;
    }
}
