//! Port counters.

use crate::firmware::bits::layout;

layout! {
    /// QUERY_VPORT_COUNTER (`mlx5_ifc_query_vport_counter_in_bits`).
    QueryVportCounterIn: 0x20 {
        OTHER_VPORT: 0x40, 1,
        CLEAR: 0xc0, 1,
    }
}

layout! {
    /// Output of QUERY_VPORT_COUNTER (`mlx5_ifc_query_vport_counter_out_bits`).
    QueryVportCounterOut: 0x210 {
        RECEIVED_IB_UNICAST: 0x180 => TrafficCounter,
        TRANSMITTED_IB_UNICAST: 0x200 => TrafficCounter,
        RECEIVED_IB_MULTICAST: 0x280 => TrafficCounter,
        TRANSMITTED_IB_MULTICAST: 0x300 => TrafficCounter,
        RECEIVED_ETH_BROADCAST: 0x380 => TrafficCounter,
        TRANSMITTED_ETH_BROADCAST: 0x400 => TrafficCounter,
        RECEIVED_ETH_UNICAST: 0x480 => TrafficCounter,
        TRANSMITTED_ETH_UNICAST: 0x500 => TrafficCounter,
        RECEIVED_ETH_MULTICAST: 0x580 => TrafficCounter,
        TRANSMITTED_ETH_MULTICAST: 0x600 => TrafficCounter,
    }
}

layout! {
    /// Packets and bytes of one class (`mlx5_ifc_traffic_counter_bits`).
    TrafficCounter: 0x10 {
        PACKETS: 0x0, 64,
        OCTETS: 0x40, 64,
    }
}

layout! {
    /// PPCNT; a group of counters follows it (`mlx5_ifc_ppcnt_reg_bits`).
    PpcntReg: 0x8 {
        GRP: 0x1a, 6,
        CLR: 0x20, 1,
        PRIO_TC: 0x3b, 5,
    }
}

layout! {
    /// IEEE 802.3 group (`mlx5_ifc_eth_802_3_cntrs_grp_data_layout_bits`).
    Ieee8023Counters: 0xf8 {
        A_FRAMES_TRANSMITTED_OK_HIGH: 0x0, 32,
        A_FRAMES_RECEIVED_OK_HIGH: 0x40, 32,
        A_OCTETS_TRANSMITTED_OK_HIGH: 0x100, 32,
        A_OCTETS_RECEIVED_OK_HIGH: 0x140, 32,
        A_MULTICAST_FRAMES_XMITTED_OK_HIGH: 0x180, 32,
        A_BROADCAST_FRAMES_XMITTED_OK_HIGH: 0x1c0, 32,
        A_MULTICAST_FRAMES_RECEIVED_OK_HIGH: 0x200, 32,
        A_BROADCAST_FRAMES_RECEIVED_OK_HIGH: 0x240, 32,
    }
}

layout! {
    /// RFC 2863 group (`mlx5_ifc_eth_2863_cntrs_grp_data_layout_bits`).
    Rfc2863Counters: 0xf8 {
        IF_IN_OCTETS_HIGH: 0x0, 32,
        IF_IN_UCAST_PKTS_HIGH: 0x40, 32,
        IF_OUT_OCTETS_HIGH: 0x140, 32,
        IF_OUT_UCAST_PKTS_HIGH: 0x180, 32,
        IF_IN_MULTICAST_PKTS_HIGH: 0x240, 32,
        IF_IN_BROADCAST_PKTS_HIGH: 0x280, 32,
        IF_OUT_MULTICAST_PKTS_HIGH: 0x2c0, 32,
        IF_OUT_BROADCAST_PKTS_HIGH: 0x300, 32,
    }
}

layout! {
    /// RFC 2819 group of received frames (`mlx5_ifc_eth_2819_cntrs_grp_data_layout_bits`).
    Rfc2819Counters: 0xf8 {
        ETHER_STATS_OCTETS_HIGH: 0x40, 32,
        ETHER_STATS_PKTS_HIGH: 0x80, 32,
        ETHER_STATS_BROADCAST_PKTS_HIGH: 0xc0, 32,
        ETHER_STATS_MULTICAST_PKTS_HIGH: 0x100, 32,
        ETHER_STATS_PKTS64OCTETS_HIGH: 0x2c0, 32,
        ETHER_STATS_PKTS65TO127OCTETS_HIGH: 0x300, 32,
        ETHER_STATS_PKTS128TO255OCTETS_HIGH: 0x340, 32,
        ETHER_STATS_PKTS256TO511OCTETS_HIGH: 0x380, 32,
        ETHER_STATS_PKTS512TO1023OCTETS_HIGH: 0x3c0, 32,
        ETHER_STATS_PKTS1024TO1518OCTETS_HIGH: 0x400, 32,
        ETHER_STATS_PKTS1519TO2047OCTETS_HIGH: 0x440, 32,
        ETHER_STATS_PKTS2048TO4095OCTETS_HIGH: 0x480, 32,
        ETHER_STATS_PKTS4096TO8191OCTETS_HIGH: 0x4c0, 32,
        ETHER_STATS_PKTS8192TO10239OCTETS_HIGH: 0x500, 32,
    }
}

layout! {
    /// Group of one priority (`mlx5_ifc_eth_per_prio_grp_data_layout_bits`).
    PriorityCounters: 0xf8 {
        RX_OCTETS_HIGH: 0x0, 32,
        RX_FRAMES_HIGH: 0x100, 32,
        TX_OCTETS_HIGH: 0x140, 32,
        TX_FRAMES_HIGH: 0x240, 32,
    }
}

layout! {
    /// Physical layer group (`mlx5_ifc_phys_layer_cntrs_bits`).
    PhysicalCounters: 0xf8 {
        LINK_DOWN_EVENTS: 0x600, 32,
    }
}

layout! {
    /// Error counters of an InfiniBand port (`mlx5_ifc_ib_port_cntrs_grp_data_layout_bits`).
    InfiniBandCounters: 0x28 {
        LINK_DOWNED_COUNTER: 0x18, 8,
    }
}
