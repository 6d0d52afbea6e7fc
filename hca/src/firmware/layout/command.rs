//! Inputs and outputs of commands about objects.

use crate::firmware::bits::layout;
use crate::firmware::layout::object::{Cqc, Eqc, Mkc, Qpc, XrcSrqc};

layout! {
    /// CREATE_UMEM (`mlx5_ifc_create_umem_in_bits`).
    CreateUmemIn: 0x30 {
        UMEM: 0x80 => Umem,
    }
}

layout! {
    /// User memory, before its page list (`mlx5_ifc_umem_bits`).
    Umem: 0x20 {
        LOG_PAGE_SIZE: 0x9b, 5,
        PAGE_OFFSET: 0xa0, 32,
        NUM_OF_MTT: 0xc0, 64,
    }
}

layout! {
    /// Output of QUERY_ISSI (`mlx5_ifc_query_issi_out_bits`).
    QueryIssiOut: 0x70 {
        SUPPORTED_ISSI_DW0: 0x360, 32,
    }
}

layout! {
    /// Output of QUERY_PAGES (`mlx5_ifc_query_pages_out_bits`).
    QueryPagesOut: 0x10 {
        NUM_PAGES: 0x60, 32,
    }
}

layout! {
    /// MANAGE_PAGES (`mlx5_ifc_manage_pages_in_bits`).
    ManagePagesIn: 0x10 {
        INPUT_NUM_ENTRIES: 0x60, 32,
    }
}

layout! {
    /// Output of MANAGE_PAGES (`mlx5_ifc_manage_pages_out_bits`).
    ManagePagesOut: 0x10 {
        OUTPUT_NUM_ENTRIES: 0x40, 32,
    }
}

layout! {
    /// CREATE_EQ (`mlx5_ifc_create_eq_in_bits`).
    CreateEqIn: 0x110 {
        EQ_CONTEXT_ENTRY: 0x80 => Eqc,
    }
}

layout! {
    /// CREATE_CQ (`mlx5_ifc_create_cq_in_bits`).
    CreateCqIn: 0x110 {
        CQ_CONTEXT: 0x80 => Cqc,
        CQ_UMEM_OFFSET: 0x280, 64,
        CQ_UMEM_ID: 0x2c0, 32,
        CQ_UMEM_VALID: 0x2e0, 1,
    }
}

layout! {
    /// MODIFY_CQ (`mlx5_ifc_modify_cq_in_bits`).
    ModifyCqIn: 0x110 {
        CQN: 0x48, 24,
        MODIFY_FIELD_SELECT_RESIZE_FIELD_SELECT: 0x60, 32,
        CQ_CONTEXT: 0x80 => Cqc,
        CQ_UMEM_VALID: 0x2e0, 1,
    }
}

layout! {
    /// CREATE_MKEY (`mlx5_ifc_create_mkey_in_bits`).
    CreateMkeyIn: 0x110 {
        PG_ACCESS: 0x60, 1,
        MKEY_UMEM_VALID: 0x61, 1,
        MEMORY_KEY_MKEY_ENTRY: 0x80 => Mkc,
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE: 0x300, 32,
    }
}

layout! {
    /// PAGE_FAULT_RESUME (`mlx5_ifc_page_fault_resume_in_bits`).
    PageFaultResumeIn: 0x10 {
        PAGE_FAULT_INFO: 0x40 => TransPageFaultInfo,
    }
}

layout! {
    /// The answered page fault, and its result (`mlx5_ifc_trans_page_fault_info_bits`).
    TransPageFaultInfo: 0x8 {
        ERROR: 0x0, 1,
        PAGE_FAULT_TYPE: 0x5, 3,
        WQ_NUMBER: 0x8, 24,
        FAULT_TOKEN: 0x28, 24,
    }
}

layout! {
    /// CREATE_QP and every QP transition (`mlx5_ifc_create_qp_in_bits`).
    CreateQpIn: 0x110 {
        OPT_PARAM_MASK: 0x80, 32,
        ECE: 0xa0, 32,
        QPC: 0xc0 => Qpc,
        WQ_UMEM_OFFSET: 0x800, 64,
        WQ_UMEM_ID: 0x840, 32,
        WQ_UMEM_VALID: 0x860, 1,
    }
}

layout! {
    /// RTS2RTS_QP, which has a second mask of parameters (`mlx5_ifc_rts2rts_qp_in_bits`).
    Rts2rtsQpIn: 0x110 {
        OPT_PARAM_MASK_95_32: 0x840, 64,
    }
}

layout! {
    /// Output of CREATE_QP and every QP transition (`mlx5_ifc_create_qp_out_bits`).
    CreateQpOut: 0x10 {
        ECE: 0x60, 32,
    }
}

layout! {
    /// Output of QUERY_QP (`mlx5_ifc_query_qp_out_bits`).
    QueryQpOut: 0x110 {
    }
}

layout! {
    /// CREATE_XRC_SRQ (`mlx5_ifc_create_xrc_srq_in_bits`).
    CreateXrcSrqIn: 0x110 {
        XRC_SRQ_CONTEXT_ENTRY: 0x80 => XrcSrqc,
    }
}

layout! {
    /// ARM_XRC_SRQ (`mlx5_ifc_arm_xrc_srq_in_bits`).
    ArmXrcSrqIn: 0x10 {
        XRC_SRQN: 0x48, 24,
        LWM: 0x70, 16,
    }
}

layout! {
    /// CREATE_RMP (`mlx5_ifc_create_rmp_in_bits`).
    CreateRmpIn: 0x110 {
    }
}

layout! {
    /// MODIFY_RMP (`mlx5_ifc_modify_rmp_in_bits`).
    ModifyRmpIn: 0x110 {
        RMPN: 0x48, 24,
    }
}

layout! {
    /// Output of QUERY_RMP (`mlx5_ifc_query_rmp_out_bits`).
    QueryRmpOut: 0x110 {
    }
}

layout! {
    /// Output of QUERY_SPECIAL_CONTEXTS (`mlx5_ifc_query_special_contexts_out_bits`).
    QuerySpecialContextsOut: 0x20 {
        DUMP_FILL_MKEY: 0x40, 32,
        RESD_LKEY: 0x60, 32,
        NULL_MKEY: 0x80, 32,
        TERMINATE_SCATTER_LIST_MKEY: 0xa0, 32,
    }
}

layout! {
    /// CREATE_RQ (`mlx5_ifc_create_rq_in_bits`).
    CreateRqIn: 0x110 {
    }
}

layout! {
    /// MODIFY_RQ (`mlx5_ifc_modify_rq_in_bits`).
    ModifyRqIn: 0x110 {
        RQ_STATE: 0x40, 4,
        RQN: 0x48, 24,
        MODIFY_BITMASK: 0x80, 64,
    }
}

layout! {
    /// CREATE_SQ (`mlx5_ifc_create_sq_in_bits`).
    CreateSqIn: 0x110 {
    }
}

layout! {
    /// MODIFY_SQ (`mlx5_ifc_modify_sq_in_bits`).
    ModifySqIn: 0x110 {
        SQ_STATE: 0x40, 4,
        SQN: 0x48, 24,
        MODIFY_BITMASK: 0x80, 64,
    }
}

layout! {
    /// SET_PP_RATE_LIMIT (`mlx5_ifc_set_pp_rate_limit_in_bits`).
    SetPpRateLimitIn: 0x40 {
        RATE_LIMIT_INDEX: 0x50, 16,
        CTX: 0x80 => SetPpRateLimitContext,
    }
}

layout! {
    /// A rate limit (`mlx5_ifc_set_pp_rate_limit_context_bits`).
    SetPpRateLimitContext: 0x30 {
        RATE_LIMIT: 0x0, 32,
        BURST_UPPER_BOUND: 0x20, 32,
    }
}

layout! {
    /// QUERY_Q_COUNTER (`mlx5_ifc_query_q_counter_in_bits`).
    QueryQCounterIn: 0x20 {
        CLEAR: 0xc0, 1,
        COUNTER_SET_ID: 0xf8, 8,
    }
}

layout! {
    /// Output of QUERY_Q_COUNTER (`mlx5_ifc_query_q_counter_out_bits`).
    QueryQCounterOut: 0x100 {
        RX_WRITE_REQUESTS: 0x80, 32,
        RX_READ_REQUESTS: 0xc0, 32,
        RX_ATOMIC_REQUESTS: 0x100, 32,
        OUT_OF_BUFFER: 0x180, 32,
        OUT_OF_SEQUENCE: 0x1c0, 32,
        DUPLICATE_REQUEST: 0x200, 32,
        RNR_NAK_RETRY_ERR: 0x240, 32,
        PACKET_SEQ_ERR: 0x280, 32,
        IMPLIED_NAK_SEQ_ERR: 0x2c0, 32,
        LOCAL_ACK_TIMEOUT_ERR: 0x300, 32,
    }
}

layout! {
    /// SET_ROCE_ADDRESS (`mlx5_ifc_set_roce_address_in_bits`).
    SetRoceAddressIn: 0x30 {
        ROCE_ADDRESS_INDEX: 0x40, 16,
    }
}

layout! {
    /// A GID table entry with its MAC (`mlx5_ifc_roce_addr_layout_bits`).
    RoceAddrLayout: 0x20 {
        SOURCE_MAC_47_32: 0x90, 16,
        SOURCE_MAC_31_0: 0xa0, 32,
        ROCE_VERSION: 0xd8, 8,
    }
}

layout! {
    /// Receive queue table context (`mlx5_ifc_rqtc_bits`).
    Rqtc: 0xf0 {
        LIST_Q_TYPE: 0xa5, 3,
        RQT_MAX_SIZE: 0xb0, 16,
        RQT_ACTUAL_SIZE: 0xd0, 16,
    }
}

layout! {
    /// CREATE_TIR (`mlx5_ifc_create_tir_in_bits`).
    CreateTirIn: 0x110 {
    }
}

layout! {
    /// Transport interface receive context (`mlx5_ifc_tirc_bits`).
    Tirc: 0xf0 {
        DISP_TYPE: 0x20, 4,
        INLINE_RQN: 0xe8, 24,
        RX_HASH_SYMMETRIC: 0x100, 1,
        TUNNELED_OFFLOAD_EN: 0x102, 1,
        INDIRECT_TABLE: 0x108, 24,
        RX_HASH_FN: 0x120, 4,
        SELF_LB_BLOCK: 0x126, 2,
        TRANSPORT_DOMAIN: 0x128, 24,
        RX_HASH_TOEPLITZ_KEY: 0x140, bytes 40,
        RX_HASH_FIELD_SELECTOR_OUTER: 0x280 => RxHashFieldSelect,
        RX_HASH_FIELD_SELECTOR_INNER: 0x2a0 => RxHashFieldSelect,
    }
}

layout! {
    /// The header fields of the RSS hash (`mlx5_ifc_rx_hash_field_select_bits`).
    RxHashFieldSelect: 0x4 {
        L3_PROT_TYPE: 0x0, 1,
        L4_PROT_TYPE: 0x1, 1,
        SELECTED_FIELDS: 0x2, 30,
    }
}

layout! {
    /// Transport interface send context (`mlx5_ifc_tisc_bits`).
    Tisc: 0xa0 {
        TRANSPORT_DOMAIN: 0x128, 24,
        UNDERLAY_QPN: 0x148, 24,
    }
}

layout! {
    /// CREATE_FLOW_TABLE and related commands (`mlx5_ifc_create_flow_table_in_bits`).
    CreateFlowTableIn: 0x40 {
        TABLE_TYPE: 0x80, 8,
    }
}

layout! {
    /// SET_FLOW_TABLE_ENTRY (`mlx5_ifc_set_fte_in_bits`).
    SetFteIn: 0x340 {
        TABLE_ID: 0xa8, 24,
        FLOW_INDEX: 0x100, 32,
    }
}

layout! {
    /// SET_FLOW_TABLE_ROOT (`mlx5_ifc_set_flow_table_root_in_bits`).
    SetFlowTableRootIn: 0x40 {
        TABLE_TYPE: 0x80, 8,
        TABLE_ID: 0xa8, 24,
    }
}

layout! {
    /// CREATE_FLOW_GROUP (`mlx5_ifc_create_flow_group_in_bits`).
    CreateFlowGroupIn: 0x400 {
        TABLE_ID: 0xa8, 24,
        START_FLOW_INDEX: 0xe0, 32,
        END_FLOW_INDEX: 0x120, 32,
    }
}

layout! {
    /// The action of a flow entry (`mlx5_ifc_flow_context_bits`).
    FlowContext: 0x300 {
        GROUP_ID: 0x20, 32,
        FLOW_TAG: 0x48, 24,
        ACTION: 0x70, 16,
        DESTINATION_LIST_SIZE: 0x88, 24,
        FLOW_COUNTER_LIST_SIZE: 0xa8, 24,
    }
}

layout! {
    /// ALLOC_FLOW_COUNTER (`mlx5_ifc_alloc_flow_counter_in_bits`).
    AllocFlowCounterIn: 0x10 {
        FLOW_COUNTER_BULK: 0x78, 8,
    }
}

layout! {
    /// QUERY_FLOW_COUNTER (`mlx5_ifc_query_flow_counter_in_bits`).
    QueryFlowCounterIn: 0x20 {
        CLEAR: 0xc0, 1,
        NUM_OF_COUNTERS: 0xd0, 16,
        FLOW_COUNTER_ID: 0xe0, 32,
    }
}

layout! {
    /// ALLOC_MEMIC (`mlx5_ifc_alloc_memic_in_bits`).
    AllocMemicIn: 0x20 {
        LOG_MEMIC_ADDR_ALIGNMENT: 0x78, 8,
        RANGE_START_ADDR: 0x80, 64,
        RANGE_SIZE: 0xc0, 32,
        MEMIC_SIZE: 0xe0, 32,
    }
}

layout! {
    /// Output of ALLOC_MEMIC (`mlx5_ifc_alloc_memic_out_bits`).
    AllocMemicOut: 0x10 {
        MEMIC_START_ADDR: 0x40, 64,
    }
}

layout! {
    /// DEALLOC_MEMIC (`mlx5_ifc_dealloc_memic_in_bits`).
    DeallocMemicIn: 0x20 {
        MEMIC_START_ADDR: 0x80, 64,
        MEMIC_SIZE: 0xc0, 32,
    }
}
