//! Flows and their counters.

use super::c_types;
use super::device::ibv_context;

c_types! {
    struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }

    /// The specs of the flow follow.
    struct ibv_flow_attr {
        comp_mask: u32,
        attr_type as "type": u32,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_eth_filter {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }

    struct ibv_flow_spec_eth {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_ipv4_filter {
        src_ip: u32,
        dst_ip: u32,
    }

    struct ibv_flow_spec_ipv4 {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_ipv4_ext_filter {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }

    struct ibv_flow_spec_ipv4_ext {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_ipv6_filter {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }

    struct ibv_flow_spec_ipv6 {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_esp_filter {
        spi: u32,
        seq: u32,
    }

    struct ibv_flow_spec_esp {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_esp_filter,
        mask: ibv_flow_esp_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_tcp_udp_filter {
        dst_port: u16,
        src_port: u16,
    }

    struct ibv_flow_spec_tcp_udp {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_gre_filter {
        c_ks_res0_ver: u16,
        protocol: u16,
        key: u32,
    }

    struct ibv_flow_spec_gre {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_gre_filter,
        mask: ibv_flow_gre_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_mpls_filter {
        label: u32,
    }

    struct ibv_flow_spec_mpls {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_mpls_filter,
        mask: ibv_flow_mpls_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_tunnel_filter {
        tunnel_id: u32,
    }

    struct ibv_flow_spec_tunnel {
        spec_type as "type": u32,
        size: u16,
        val: ibv_flow_tunnel_filter,
        mask: ibv_flow_tunnel_filter,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_spec_action_tag {
        spec_type as "type": u32,
        size: u16,
        tag_id: u32,
    }

    struct ibv_flow_spec_action_drop {
        spec_type as "type": u32,
        size: u16,
    }

    #[derive(Clone, Copy)]
    struct ibv_flow_spec_counter_action {
        spec_type as "type": u32,
        size: u16,
        counters: *mut ibv_counters,
    }

    struct ibv_flow_action {
        context: *mut ibv_context,
    }

    struct ibv_counters {
        context: *mut ibv_context,
    }

    struct ibv_counters_init_attr {
        comp_mask: u32,
    }

    struct ibv_counter_attach_attr {
        counter_desc: u32,
        index: u32,
        comp_mask: u32,
    }
}
