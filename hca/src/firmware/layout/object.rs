//! Contexts of EQs, CQs, QPs, mkeys, SRQs, RMPs, RQs and SQs.

use crate::firmware::bits::layout;

layout! {
    /// Queue pair context (`mlx5_ifc_qpc_bits`).
    Qpc: 0xe8 {
        STATE: 0x0, 4,
        ST: 0x8, 8,
        PM_STATE: 0x13, 2,
        BLOCK_LB_MC: 0x21, 1,
        PD: 0x28, 24,
        MTU: 0x40, 3,
        LOG_MSG_MAX: 0x43, 5,
        LOG_RQ_SIZE: 0x49, 4,
        LOG_RQ_STRIDE: 0x4d, 3,
        NO_SQ: 0x50, 1,
        LOG_SQ_SIZE: 0x51, 4,
        COUNTER_SET_ID: 0x60, 8,
        UAR_PAGE: 0x68, 24,
        USER_INDEX: 0x88, 24,
        LOG_PAGE_SIZE: 0xa3, 5,
        REMOTE_QPN: 0xa8, 24,
        PRIMARY_ADDRESS_PATH: 0xc0 => AddressPath,
        SECONDARY_ADDRESS_PATH: 0x220 => AddressPath,
        LOG_ACK_REQ_FREQ: 0x380, 4,
        LOG_SRA_MAX: 0x388, 3,
        RETRY_COUNT: 0x38d, 3,
        RNR_RETRY: 0x390, 3,
        PACKET_PACING_RATE_LIMIT_INDEX: 0x3b0, 16,
        NEXT_SEND_PSN: 0x3c8, 24,
        CQN_SND: 0x3e8, 24,
        LAST_ACKED_PSN: 0x448, 24,
        LOG_RRA_MAX: 0x488, 3,
        RRE: 0x490, 1,
        RWE: 0x491, 1,
        RAE: 0x492, 1,
        PAGE_OFFSET: 0x494, 6,
        MIN_RNR_NAK: 0x4a3, 5,
        NEXT_RCV_PSN: 0x4a8, 24,
        XRCD: 0x4c8, 24,
        CQN_RCV: 0x4e8, 24,
        DBR_ADDR: 0x500, 64,
        Q_KEY: 0x540, 32,
        RQ_TYPE: 0x565, 3,
        SRQN_RMPN_XRQN: 0x568, 24,
        RMSN: 0x588, 24,
        HW_SQ_WQEBB_COUNTER: 0x5a0, 16,
        SW_SQ_WQEBB_COUNTER: 0x5b0, 16,
        HW_RQ_COUNTER: 0x5c0, 32,
        CS_REQ: 0x630, 8,
        CS_RES: 0x638, 8,
        DBR_UMEM_VALID: 0x683, 1,
        DBR_UMEM_ID: 0x720, 32,
        RLKY: 0x5b, 1,
    }
}

layout! {
    /// Address path of a queue pair (`mlx5_ifc_ads_bits`).
    AddressPath: 0x2c {
        PKEY_INDEX: 0x10, 16,
        GRH: 0x28, 1,
        RLID: 0x30, 16,
        ACK_TIMEOUT: 0x40, 5,
        SRC_ADDR_INDEX: 0x48, 8,
        HOP_LIMIT: 0x58, 8,
        TCLASS: 0x64, 8,
        FLOW_LABEL: 0x6c, 20,
        RGID_RIP: 0x80, bytes 16,
        UDP_SPORT: 0x110, 16,
        SL: 0x124, 4,
        VHCA_PORT_NUM: 0x128, 8,
        RMAC_47_32: 0x130, 16,
        RMAC_31_0: 0x140, 32,
    }
}

layout! {
    /// Completion queue context (`mlx5_ifc_cqc_bits`).
    Cqc: 0x40 {
        STATUS: 0x0, 4,
        DBR_UMEM_VALID: 0x6, 1,
        DBR_UMEM_ID: 0x20, 32,
        CQE_SZ: 0x8, 3,
        OI: 0xe, 1,
        CQE_COMP_EN: 0x11, 1,
        MINI_CQE_RES_FORMAT: 0x12, 2,
        CQE_COMPRESSION_LAYOUT: 0x1e, 2,
        PAGE_OFFSET: 0x54, 6,
        LOG_CQ_SIZE: 0x63, 5,
        UAR_PAGE: 0x68, 24,
        CQ_PERIOD: 0x84, 12,
        CQ_MAX_COUNT: 0x90, 16,
        C_EQN_OR_APU_ELEMENT: 0xa0, 32,
        LOG_PAGE_SIZE: 0xc3, 5,
        PRODUCER_COUNTER: 0x168, 24,
        DBR_ADDR: 0x1c0, 64,
    }
}

layout! {
    /// Event queue context (`mlx5_ifc_eqc_bits`).
    Eqc: 0x40 {
        LOG_EQ_SIZE: 0x63, 5,
        UAR_PAGE: 0x68, 24,
        INTR: 0xb4, 12,
        LOG_PAGE_SIZE: 0xc3, 5,
        PRODUCER_COUNTER: 0x168, 24,
    }
}

layout! {
    /// Memory key context (`mlx5_ifc_mkc_bits`).
    Mkc: 0x40 {
        FREE: 0x1, 1,
        RELAXED_ORDERING_WRITE: 0xd, 1,
        A: 0x11, 1,
        RW: 0x12, 1,
        RR: 0x13, 1,
        LW: 0x14, 1,
        LR: 0x15, 1,
        QPN: 0x20, 24,
        MKEY_7_0: 0x38, 8,
        EN_RINVAL: 0x67, 1,
        PD: 0x68, 24,
        START_ADDR: 0x80, 64,
        LEN: 0xc0, 64,
        RELAXED_ORDERING_READ: 0x1d9, 1,
        LOG_PAGE_SIZE: 0x1da, 6,
    }
}

layout! {
    /// Shared receive queue context (`mlx5_ifc_xrc_srqc_bits`).
    XrcSrqc: 0x40 {
        LOG_XRC_SRQ_SIZE: 0x4, 4,
        WQ_SIGNATURE: 0x20, 1,
        LOG_RQ_STRIDE: 0x25, 3,
        XRCD: 0x28, 24,
        PAGE_OFFSET: 0x40, 6,
        CQN: 0x48, 24,
        LOG_PAGE_SIZE: 0x82, 6,
        USER_INDEX: 0x88, 24,
        PD: 0xc8, 24,
        LWM: 0xe0, 16,
        DB_RECORD_ADDR_H: 0x140, 32,
        DB_RECORD_ADDR_L: 0x160, 30,
    }
}

layout! {
    /// Work queue in SQ, RQ and RMP contexts (`mlx5_ifc_wq_bits`).
    Wq: 0xc0 {
        WQ_TYPE: 0x0, 4,
        WQ_SIGNATURE: 0x4, 1,
        END_PADDING_MODE: 0x5, 2,
        PAGE_OFFSET: 0x2b, 5,
        LWM: 0x30, 16,
        PD: 0x48, 24,
        UAR_PAGE: 0x68, 24,
        DBR_ADDR: 0x80, 64,
        HW_COUNTER: 0xc0, 32,
        LOG_WQ_STRIDE: 0x10c, 4,
        LOG_WQ_PG_SZ: 0x113, 5,
        LOG_WQ_SZ: 0x11b, 5,
    }
}

layout! {
    /// Receive memory pool context (`mlx5_ifc_rmpc_bits`).
    Rmpc: 0xf0 {
        STATE: 0x8, 4,
        WQ: 0x180 => Wq,
    }
}

layout! {
    /// Receive queue context (`mlx5_ifc_rqc_bits`).
    Rqc: 0xf0 {
        DELAY_DROP_EN: 0x1, 1,
        SCATTER_FCS: 0x2, 1,
        VSD: 0x3, 1,
        MEM_RQ_TYPE: 0x4, 4,
        STATE: 0x8, 4,
        FLUSH_IN_ERROR_EN: 0xd, 1,
        HAIRPIN: 0xe, 1,
        USER_INDEX: 0x28, 24,
        CQN: 0x48, 24,
        WQ: 0x180 => Wq,
    }
}

layout! {
    /// Send queue context (`mlx5_ifc_sqc_bits`).
    Sqc: 0xf0 {
        STATE: 0x8, 4,
        HAIRPIN: 0xe, 1,
        USER_INDEX: 0x28, 24,
        CQN: 0x48, 24,
        PACKET_PACING_RATE_LIMIT_INDEX: 0xf0, 16,
        TIS_LST_SZ: 0x100, 16,
        TIS_NUM_0: 0x168, 24,
        WQ: 0x180 => Wq,
    }
}
