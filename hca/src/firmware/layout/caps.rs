//! Capability blocks.

use crate::firmware::bits::layout;

layout! {
    /// General device capabilities (`mlx5_ifc_cmd_hca_cap_bits`).
    HcaCap: 0x1000 {
        LOG_MAX_SRQ_SZ: 0x80, 8,
        LOG_MAX_QP_SZ: 0x88, 8,
        LOG_MAX_QP: 0x9b, 5,
        LOG_MAX_SRQ: 0xab, 5,
        LOG_MAX_CQ_SZ: 0xc8, 8,
        LOG_MAX_CQ: 0xdb, 5,
        LOG_MAX_EQ_SZ: 0xe0, 8,
        LOG_MAX_MKEY: 0xea, 6,
        LOG_MAX_EQ: 0xfc, 4,
        MAX_INDIRECTION: 0x100, 8,
        FIXED_BUFFER_SIZE: 0x108, 1,
        LOG_MAX_MRW_SZ: 0x109, 7,
        LOG_MAX_KLM_LIST_SIZE: 0x11a, 6,
        UMR_EXTENDED_TRANSLATION_OFFSET: 0x118, 1,
        DUMP_FILL_MKEY: 0xf8, 1,
        RELAXED_ORDERING_WRITE_UMR: 0xd0, 1,
        RELAXED_ORDERING_READ_UMR: 0xd1, 1,
        RELAXED_ORDERING_WRITE: 0xe8, 1,
        RELAXED_ORDERING_READ_PCI_ENABLED: 0xe9, 1,
        DEBUG: 0x183, 1,
        NULL_MKEY: 0x119, 1,
        TERMINATE_SCATTER_LIST_MKEY: 0xf6, 1,
        LOG_MAX_RA_REQ_QP: 0x14a, 6,
        RTS2RTS_QP_UDP_SPORT: 0x151, 1,
        LOG_MAX_RA_RES_QP: 0x15a, 6,
        END_PAD: 0x160, 1,
        VPORT_COUNTERS: 0x181, 1,
        IB_VIRT: 0x1a2, 1,
        ETH_VIRT: 0x1a3, 1,
        NIC_FLOW_TABLE: 0x1a6, 1,
        DEVICE_MEMORY: 0x1a8, 1,
        LOCAL_CA_ACK_DELAY: 0x1ab, 5,
        PORT_TYPE: 0x1b6, 2,
        NUM_PORTS: 0x1b8, 8,
        LOG_MAX_MSG: 0x1c3, 5,
        MAX_TC: 0x1cc, 4,
        CQE_VERSION: 0x1fc, 4,
        ECE_SUPPORT: 0xa3, 1,
        SCTR_DATA_CQE: 0x215, 1,
        QOS: 0x21b, 1,
        ETH_NET_OFFLOADS: 0x21c, 1,
        ROCE: 0x21d, 1,
        ATOMIC: 0x21e, 1,
        CQ_OI: 0x220, 1,
        CQ_RESIZE: 0x221, 1,
        CQ_MODERATION: 0x222, 1,
        PG: 0x227, 1,
        BLOCK_LB_MC: 0x228, 1,
        APM: 0x22e, 1,
        IMAICL: 0x231, 1,
        QKV: 0x236, 1,
        PKV: 0x237, 1,
        XRC: 0x23c, 1,
        UD: 0x23d, 1,
        UC: 0x23e, 1,
        RC: 0x23f, 1,
        LOG_PG_SZ: 0x258, 8,
        LOG_BF_REG_SIZE: 0x26b, 5,
        MAX_WQE_SZ_SQ: 0x290, 16,
        MKEY_PCIE_TPH: 0x2a7, 1,
        MAX_WQE_SZ_RQ: 0x2b0, 16,
        MAX_QP_MCG: 0x2e7, 25,
        LOG_MAX_MCG: 0x318, 8,
        LOG_MAX_TRANSPORT_DOMAIN: 0x323, 5,
        LOG_MAX_PD: 0x32b, 5,
        LOG_MAX_XRCD: 0x33b, 5,
        LOG_MAX_RQ: 0x363, 5,
        LOG_MAX_SQ: 0x36b, 5,
        LOG_MAX_TIR: 0x373, 5,
        LOG_MAX_TIS: 0x37b, 5,
        BASIC_CYCLIC_RCV_WQE: 0x380, 1,
        LOG_MAX_RMP: 0x383, 5,
        LOG_MAX_RQT: 0x38b, 5,
        LOG_MAX_RQT_SIZE: 0x393, 5,
        LOG_MAX_STRIDE_SZ_RQ: 0x3a3, 5,
        LOG_MIN_STRIDE_SZ_RQ: 0x3ab, 5,
        LOG_MAX_STRIDE_SZ_SQ: 0x3b3, 5,
        LOG_MIN_STRIDE_SZ_SQ: 0x3bb, 5,
        LOG_MAX_WQ_SZ: 0x3db, 5,
        LOG_MAX_VLAN_LIST: 0x3eb, 5,
        LOG_MAX_CURRENT_MC_LIST: 0x3f3, 5,
        LOG_MAX_CURRENT_UC_LIST: 0x3fb, 5,
        LOG_MAX_UCTX: 0x463, 5,
        LOG_MAX_UMEM: 0x46b, 5,
        MAX_NUM_EQS: 0x470, 16,
        LOG_MAX_L2_TABLE: 0x483, 5,
        DEVICE_FREQUENCY_MHZ: 0x4c0, 32,
        DEVICE_FREQUENCY_KHZ: 0x4e0, 32,
        MINI_CQE_RESP_STRIDE_INDEX: 0x5bc, 1,
        CQE_COMPRESSION: 0x5bf, 1,
        CQE_COMPRESSION_TIMEOUT: 0x5c0, 16,
        CQE_COMPRESSION_MAX_NUM: 0x5d0, 16,
        MAX_QP_CNT: 0x186, 10,
        OUT_OF_SEQ_CNT: 0x180, 1,
    }
}

layout! {
    /// Debugging capabilities (`mlx5_ifc_debug_cap_bits`).
    DebugCap: 0x100 {
        RESOURCE_DUMP: 0x9, 1,
    }
}

layout! {
    /// Capabilities of packet pacing (`mlx5_ifc_qos_cap_bits`).
    QosCap: 0x100 {
        PACKET_PACING: 0x0, 1,
        PACKET_PACING_BURST_BOUND: 0x5, 1,
        PACKET_PACING_TYPICAL_SIZE: 0x6, 1,
        PACKET_PACING_REQ_UD: 0x22, 1,
        PACKET_PACING_REQ_UC: 0x23, 1,
        PACKET_PACING_MAX_RATE: 0x40, 32,
        PACKET_PACING_MIN_RATE: 0x60, 32,
        PACKET_PACING_RATE_TABLE_SIZE: 0x90, 16,
    }
}

layout! {
    /// On-demand paging (`mlx5_ifc_odp_cap_bits`).
    OdpCap: 0x100 {
        TRANSPORT_PAGE_FAULT_SCHEME_CAP: 0x0 => OdpSchemeCap,
    }
}

layout! {
    /// ODP capabilities in the transport page-fault scheme (`mlx5_ifc_odp_scheme_cap_bits`).
    OdpSchemeCap: 0x40 {
        RC_ODP_CAPS: 0x80 => OdpServiceCap,
        UD_ODP_CAPS: 0xc0 => OdpServiceCap,
        XRC_ODP_CAPS: 0xe0 => OdpServiceCap,
    }
}

layout! {
    /// ODP capabilities of one transport (`mlx5_ifc_odp_per_transport_service_cap_bits`).
    OdpServiceCap: 0x4 {
        SEND: 0x0, 1,
        RECEIVE: 0x1, 1,
        WRITE: 0x2, 1,
        READ: 0x3, 1,
        ATOMIC: 0x4, 1,
        SRQ_RECEIVE: 0x5, 1,
    }
}

layout! {
    /// Atomic capabilities (`mlx5_ifc_atomic_caps_bits`).
    AtomicCaps: 0x100 {
        ATOMIC_REQ_8B_ENDIANNESS_MODE: 0x40, 2,
        SUPPORTED_ATOMIC_REQ_8B_ENDIANNESS_MODE_1: 0x46, 1,
        ATOMIC_OPERATIONS: 0x90, 16,
        ATOMIC_SIZE_QP: 0xb0, 16,
    }
}

layout! {
    /// RoCE capabilities (`mlx5_ifc_roce_cap_bits`).
    RoceCap: 0x100 {
        L3_TYPE: 0x8c, 4,
        ROCE_VERSION: 0x98, 8,
        R_ROCE_DEST_UDP_PORT: 0xb0, 16,
        R_ROCE_MAX_SRC_UDP_PORT: 0xc0, 16,
        R_ROCE_MIN_SRC_UDP_PORT: 0xd0, 16,
        ROCE_ADDRESS_TABLE_SIZE: 0xf0, 16,
    }
}

layout! {
    /// Ethernet offload capabilities (`mlx5_ifc_per_protocol_networking_offload_caps_bits`).
    EthernetCap: 0x100 {
        CSUM_CAP: 0x0, 1,
        VLAN_CAP: 0x1, 1,
        MAX_LSO_CAP: 0xb, 5,
        WQE_INLINE_MODE: 0x12, 2,
        RSS_IND_TBL_CAP: 0x14, 4,
        SCATTER_FCS: 0x19, 1,
        SELF_LB_EN_MODIFIABLE: 0x8, 1,
    }
}

layout! {
    /// Flow table capabilities (`mlx5_ifc_flow_table_nic_cap_bits`).
    NicFlowCap: 0x1000 {
        NIC_RX_MULTI_PATH_TIRS: 0x0, 1,
        ALLOW_SNIFFER_AND_NIC_RX_SHARED_TIR: 0x2, 1,
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE: 0x200 => FlowTableCap,
        FLOW_TABLE_PROPERTIES_NIC_RECEIVE_SNIFFER: 0x600 => FlowTableCap,
        FLOW_TABLE_PROPERTIES_NIC_TRANSMIT_SNIFFER: 0xc00 => FlowTableCap,
    }
}

layout! {
    /// Capabilities of one flow table type (`mlx5_ifc_flow_table_prop_layout_bits`).
    FlowTableCap: 0x40 {
        FT_SUPPORT: 0x0, 1,
        FLOW_COUNTER: 0x2, 1,
        FLOW_MODIFY_EN: 0x3, 1,
        MODIFY_ROOT: 0x4, 1,
        IDENTIFIED_MISS_TABLE_MODE: 0x5, 1,
        FLOW_TABLE_MODIFY: 0x6, 1,
        LOG_MAX_FT_SIZE: 0x22, 6,
        MAX_FT_LEVEL: 0x38, 8,
        LOG_MAX_FT_NUM: 0x78, 8,
        LOG_MAX_FLOW_COUNTER: 0x90, 8,
        LOG_MAX_DESTINATION: 0x98, 8,
        LOG_MAX_FLOW: 0xb8, 8,
    }
}

layout! {
    /// Device memory capabilities (`mlx5_ifc_device_mem_cap_bits`).
    DeviceMemoryCap: 0x100 {
        MEMIC: 0x0, 1,
        LOG_MIN_MEMIC_ALLOC_SIZE: 0x2b, 5,
        LOG_MAX_MEMIC_ADDR_ALIGNMENT: 0x38, 8,
        MEMIC_BAR_START_ADDR: 0x40, 64,
        MEMIC_BAR_SIZE: 0x80, 32,
        MAX_MEMIC_SIZE: 0xa0, 32,
    }
}
