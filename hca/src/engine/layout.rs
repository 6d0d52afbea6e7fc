//! Where fields lie in the structures that the device's data path shares with drivers: bytes from
//! the structure's start, all numbers big-endian. `tests/layouts.rs` compares every one with the
//! kernel's headers.

/// What an event says of a page fault (`struct mlx5_eqe_page_fault`); before it, how many bytes are
/// done.
pub(crate) mod page_fault {
    /// `wqe.wqe_index`
    pub(crate) const WQE_INDEX: usize = 6;
    /// `wqe.packet_length`
    pub(crate) const WQE_PACKET_LENGTH: usize = 10;
    /// `wqe.token`
    pub(crate) const TOKEN: usize = 12;
    /// `wqe.pftype_wq`
    pub(crate) const PFTYPE_WQ: usize = 24;
    /// `rdma.r_key`
    pub(crate) const R_KEY: usize = 4;
    /// `rdma.packet_length`
    pub(crate) const RDMA_PACKET_LENGTH: usize = 10;
    /// `rdma.rdma_op_len`
    pub(crate) const RDMA_OP_LEN: usize = 12;
    /// `rdma.rdma_va`
    pub(crate) const RDMA_VA: usize = 16;
    /// `rdma.pftype_token`
    pub(crate) const PFTYPE_TOKEN: usize = 24;
    pub(crate) const SIZE: usize = 28;
}

/// A work request's first segment (`struct mlx5_wqe_ctrl_seg`).
pub(crate) mod control {
    pub(crate) const OPMOD_IDX_OPCODE: usize = 0;
    pub(crate) const QPN_DS: usize = 4;
    pub(crate) const FM_CE_SE: usize = 11;
    pub(crate) const IMM: usize = 12;
    pub(crate) const SIZE: usize = 16;
}

/// Remote memory (`struct mlx5_wqe_raddr_seg`).
pub(crate) mod remote {
    pub(crate) const RADDR: usize = 0;
    pub(crate) const RKEY: usize = 8;
    pub(crate) const RESERVED: usize = 12;
    pub(crate) const SIZE: usize = 16;
}

/// Local memory (`struct mlx5_wqe_data_seg`).
pub(crate) mod data {
    pub(crate) const BYTE_COUNT: usize = 0;
    pub(crate) const LKEY: usize = 4;
    pub(crate) const ADDR: usize = 8;
    pub(crate) const SIZE: usize = 16;
}

/// An atomic's operands (`struct mlx5_wqe_atomic_seg`).
pub(crate) mod atomic {
    pub(crate) const SWAP_ADD: usize = 0;
    pub(crate) const COMPARE: usize = 8;
    pub(crate) const SIZE: usize = 16;
}

/// Where a datagram goes (`struct mlx5_av`).
pub(crate) mod address {
    /// `key.qkey.qkey`
    pub(crate) const QKEY: usize = 0;
    /// `key.qkey.reserved`
    pub(crate) const QKEY_RESERVED: usize = 4;
    pub(crate) const DQP_DCT: usize = 8;
    pub(crate) const STAT_RATE_SL: usize = 12;
    pub(crate) const RLID: usize = 14;
    pub(crate) const RESERVED0: usize = 16;
    pub(crate) const RMAC: usize = 20;
    pub(crate) const TCLASS: usize = 26;
    pub(crate) const HOP_LIMIT: usize = 27;
    pub(crate) const GRH_GID_FL: usize = 28;
    pub(crate) const RGID: usize = 32;
    pub(crate) const SIZE: usize = 48;
}

/// The shared receive queue of an XRC request (`struct mlx5_wqe_xrc_seg`). Its other bytes are
/// reserved, but libmlx5 leaves in them what stood in the ring.
pub(crate) mod xrc {
    pub(crate) const XRC_SRQN: usize = 0;
    pub(crate) const SIZE: usize = 16;
}

/// How a frame is sent (`struct mlx5_wqe_eth_seg`).
pub(crate) mod ethernet {
    pub(crate) const CS_FLAGS: usize = 4;
    pub(crate) const MSS: usize = 6;
    /// `inline_hdr.sz`
    pub(crate) const INLINE_SIZE: usize = 12;
    /// `inline_hdr.start`
    pub(crate) const INLINE_START: usize = 14;
    pub(crate) const SIZE: usize = 16;
}

/// What an update of a key does (`struct mlx5_wqe_umr_ctrl_seg`).
pub(crate) mod key_update {
    pub(crate) const FLAGS: usize = 0;
    pub(crate) const XLT_OCTOWORDS: usize = 4;
    pub(crate) const XLT_OFFSET: usize = 6;
    pub(crate) const MKEY_MASK: usize = 8;
    pub(crate) const XLT_OFFSET_47_16: usize = 16;
    pub(crate) const SIZE: usize = 48;
}

/// A completion (`struct mlx5_cqe64`).
pub(crate) mod cqe {
    pub(crate) const RSS_HASH_RESULT: usize = 12;
    pub(crate) const CHECK_SUM: usize = 20;
    pub(crate) const SLID: usize = 22;
    pub(crate) const FLAGS_RQPN: usize = 24;
    pub(crate) const L4_L3_HDR_TYPE: usize = 29;
    pub(crate) const VLAN_INFO: usize = 30;
    pub(crate) const SRQN: usize = 32;
    pub(crate) const IMMEDIATE: usize = 36;
    pub(crate) const BYTE_CNT: usize = 44;
    pub(crate) const TIMESTAMP_H: usize = 48;
    pub(crate) const SOP_DROP_QPN: usize = 56;
    pub(crate) const WQE_COUNTER: usize = 60;
    pub(crate) const OP_OWN: usize = 63;
    pub(crate) const SIZE: usize = 64;
}

/// A failed completion (`struct mlx5_err_cqe`).
pub(crate) mod error_cqe {
    pub(crate) const VENDOR_ERR_SYND: usize = 54;
    pub(crate) const SYNDROME: usize = 55;
}

/// A compressed completion (`struct mlx5_mini_cqe8`).
pub(crate) mod mini_cqe {
    pub(crate) const RX_HASH_RESULT: usize = 0;
    pub(crate) const CHECKSUM: usize = 0;
    pub(crate) const STRIDX: usize = 2;
    pub(crate) const BYTE_CNT: usize = 4;
    pub(crate) const SIZE: usize = 8;
}
