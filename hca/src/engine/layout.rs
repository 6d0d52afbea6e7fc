//! Field offsets of the structures that the data path shares with drivers, in bytes from the start
//! of the structure. All numbers are big-endian. `tests/layouts.rs` compares every offset with the
//! kernel's headers.

/// Page-fault EQE (`struct mlx5_eqe_page_fault`). The number of committed bytes precedes these
/// fields.
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

/// Control segment of a send WQE (`struct mlx5_wqe_ctrl_seg`).
pub(crate) mod control {
    pub(crate) const OPMOD_IDX_OPCODE: usize = 0;
    pub(crate) const QPN_DS: usize = 4;
    pub(crate) const FM_CE_SE: usize = 11;
    pub(crate) const IMM: usize = 12;
    pub(crate) const SIZE: usize = 16;
}

/// Remote address segment (`struct mlx5_wqe_raddr_seg`).
pub(crate) mod remote {
    pub(crate) const RADDR: usize = 0;
    pub(crate) const RKEY: usize = 8;
    pub(crate) const RESERVED: usize = 12;
    pub(crate) const SIZE: usize = 16;
}

/// Data segment: an SGE (`struct mlx5_wqe_data_seg`).
pub(crate) mod data {
    pub(crate) const BYTE_COUNT: usize = 0;
    pub(crate) const LKEY: usize = 4;
    pub(crate) const ADDR: usize = 8;
    pub(crate) const SIZE: usize = 16;
}

/// Atomic segment (`struct mlx5_wqe_atomic_seg`).
pub(crate) mod atomic {
    pub(crate) const SWAP_ADD: usize = 0;
    pub(crate) const COMPARE: usize = 8;
    pub(crate) const SIZE: usize = 16;
}

/// Address vector of a datagram (`struct mlx5_av`).
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

/// XRC segment: the remote SRQ (`struct mlx5_wqe_xrc_seg`). Its other bytes are reserved, but
/// libmlx5 leaves old ring contents there.
pub(crate) mod xrc {
    pub(crate) const XRC_SRQN: usize = 0;
    pub(crate) const SIZE: usize = 16;
}

/// Ethernet segment (`struct mlx5_wqe_eth_seg`).
pub(crate) mod ethernet {
    pub(crate) const CS_FLAGS: usize = 4;
    pub(crate) const MSS: usize = 6;
    /// `inline_hdr.sz`
    pub(crate) const INLINE_SIZE: usize = 12;
    /// `inline_hdr.start`
    pub(crate) const INLINE_START: usize = 14;
    pub(crate) const SIZE: usize = 16;
}

/// UMR control segment (`struct mlx5_wqe_umr_ctrl_seg`).
pub(crate) mod key_update {
    pub(crate) const FLAGS: usize = 0;
    pub(crate) const XLT_OCTOWORDS: usize = 4;
    pub(crate) const XLT_OFFSET: usize = 6;
    pub(crate) const MKEY_MASK: usize = 8;
    pub(crate) const XLT_OFFSET_47_16: usize = 16;
    pub(crate) const SIZE: usize = 48;
}

/// CQE (`struct mlx5_cqe64`).
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

/// Error CQE (`struct mlx5_err_cqe`).
pub(crate) mod error_cqe {
    pub(crate) const VENDOR_ERR_SYND: usize = 54;
    pub(crate) const SYNDROME: usize = 55;
}

/// Mini CQE (`struct mlx5_mini_cqe8`).
pub(crate) mod mini_cqe {
    pub(crate) const RX_HASH_RESULT: usize = 0;
    pub(crate) const CHECKSUM: usize = 0;
    pub(crate) const STRIDX: usize = 2;
    pub(crate) const BYTE_CNT: usize = 4;
    pub(crate) const SIZE: usize = 8;
}

/// The big-endian 32-bit number at a byte offset; 0 if it exceeds `bytes`.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().unwrap_or_default()))
}

/// The big-endian 64-bit number at a byte offset; 0 if it exceeds `bytes`.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_be_bytes(word.try_into().unwrap_or_default()))
}
