//! User ABI of Soft-iWARP (siw): driver payloads, and queues shared with the kernel.
//!
//! A queue is an array of elements, without a header: [`Sqe`], [`Rqe`] or [`Cqe`]. Their number is a power
//! of 2, which the response of the creation has. An element belongs to the kernel or to user space by
//! [`WqeFlags::VALID`]. A [`CqCtrl`] follows the elements of a completion queue. The offset of a mapping
//! is the queue's key; 0 is a valid key.

use crate::{uverbs, write};

abi_structs! {
    header = "rdma/siw-abi.h";

    /// Driver response of CREATE_CQ.
    struct CreateCqResp = tag "siw_uresp_create_cq" {
        /// A random number.
        cq_id: u32;
        /// Number of elements.
        num_cqe: u32;
        /// Offset of the mapping.
        cq_key: u64;
    }

    /// Driver response of CREATE_QP.
    struct CreateQpResp = tag "siw_uresp_create_qp" {
        /// The QP number.
        qp_id: u32;
        /// Number of elements of the send queue.
        num_sqe: u32;
        /// Number of elements of the receive queue; of a QP without one it is no size of a mapping.
        num_rqe: u32;
        /// Zero.
        pad: u32;
        /// Offset of the mapping of the send queue.
        sq_key: u64;
        /// Offset of the mapping of the receive queue.
        rq_key: u64;
    }

    /// Driver request of REG_MR.
    struct RegMrCmd = tag "siw_ureq_reg_mr" {
        /// The low 8 bits of the keys.
        stag_key: u8;
        /// Zero.
        reserved: [u8; 3];
        /// Zero.
        pad: u32;
    }

    /// Driver response of REG_MR.
    struct RegMrResp = tag "siw_uresp_reg_mr" {
        /// The L_Key, which is the R_Key too.
        stag: u32;
        /// Zero.
        pad: u32;
    }

    /// Driver response of CREATE_SRQ.
    struct CreateSrqResp = tag "siw_uresp_create_srq" {
        /// Number of elements.
        num_rqe: u32;
        /// Zero.
        pad: u32;
        /// Offset of the mapping.
        srq_key: u64;
    }

    /// Driver response of GET_CONTEXT.
    struct GetContextResp = tag "siw_uresp_alloc_ctx" {
        /// The device's part id.
        dev_id: u32;
        /// Zero.
        pad: u32;
    }

    /// A local buffer.
    struct Sge = tag "siw_sge" {
        /// Address.
        laddr: u64;
        /// Length in bytes.
        length: u32;
        /// L_Key.
        lkey: u32;
    }

    /// An element of a send queue.
    struct Sqe = tag "siw_sqe" {
        /// The `wr_id`.
        id: u64;
        /// [`WqeFlags::VALID`] if the kernel owns the element.
        flags: WqeFlags;
        /// Number of `sge`.
        num_sge: u8;
        /// The operation.
        opcode: Opcode;
        /// R_Key of the remote memory, or of the memory that the peer invalidates.
        rkey: u32;
        /// Remote address.
        raddr: u64;
        /// Local buffers. With [`WqeFlags::INLINE`], the first has the length of the data, and the others
        /// are the data.
        sge: [Sge; MAX_SGE as usize];
    }

    /// An element of a receive queue or shared receive queue.
    struct Rqe = tag "siw_rqe" {
        /// The `wr_id`.
        id: u64;
        /// [`WqeFlags::VALID`] if the kernel owns the element. Other bits hide it from the kernel.
        flags: WqeFlags;
        /// Number of `sge`.
        num_sge: u8;
        /// Used by the kernel.
        opcode: Opcode;
        /// Unused.
        unused: u32;
        /// Local buffers.
        sge: [Sge; MAX_SGE as usize];
    }

    /// An element of a completion queue.
    struct Cqe = tag "siw_cqe" {
        /// The `wr_id`.
        id: u64;
        /// [`WqeFlags::VALID`] if user space owns the element.
        flags: u8 as WqeFlags;
        /// The operation.
        opcode: Opcode;
        /// The status.
        status: WcStatus;
        /// Length in bytes.
        bytes: u32;
        /// Zero: the kernel gives neither immediates nor invalidated keys to user space.
        imm_data: u64;
        /// QP number.
        qp_id: u64;
    }

    /// The word that arms a completion queue.
    struct CqCtrl = tag "siw_cq_ctrl" {
        /// What raises the next event. The kernel stores 0 with the event.
        flags: NotifyFlags;
        /// Zero.
        pad: u32;
    }
}

abi_enums! {
    header = "rdma/siw-abi.h";

    /// An operation.
    enum Opcode: u8 = "siw_opcode" {
        /// RDMA WRITE.
        WRITE = 0, "SIW_OP_WRITE";
        /// RDMA READ.
        READ = 1, "SIW_OP_READ";
        /// RDMA READ, then invalidation of the local key; for the kernel only.
        READ_LOCAL_INV = 2, "SIW_OP_READ_LOCAL_INV";
        /// SEND.
        SEND = 3, "SIW_OP_SEND";
        /// SEND with an immediate; not supported.
        SEND_WITH_IMM = 4, "SIW_OP_SEND_WITH_IMM";
        /// SEND that invalidates a key of the peer.
        SEND_REMOTE_INV = 5, "SIW_OP_SEND_REMOTE_INV";
        /// Fetch and add; not supported.
        FETCH_AND_ADD = 6, "SIW_OP_FETCH_AND_ADD";
        /// Compare and swap; not supported.
        COMP_AND_SWAP = 7, "SIW_OP_COMP_AND_SWAP";
        /// RECEIVE.
        RECEIVE = 8, "SIW_OP_RECEIVE";
        /// Response to an RDMA READ; inside of the kernel.
        READ_RESPONSE = 9, "SIW_OP_READ_RESPONSE";
        /// Invalidation of a local key; for the kernel only.
        INVAL_STAG = 10, "SIW_OP_INVAL_STAG";
        /// Fast registration; for the kernel only.
        REG_MR = 11, "SIW_OP_REG_MR";
        /// The number of operations.
        COUNT = 12, "SIW_NUM_OPCODES";
    }

    /// The status of a completion.
    enum WcStatus: u16 = "siw_wc_status" {
        /// Success.
        SUCCESS = 0, "SIW_WC_SUCCESS";
        /// The message is longer than the receive.
        LOC_LEN_ERR = 1, "SIW_WC_LOC_LEN_ERR";
        /// Local protection error.
        LOC_PROT_ERR = 2, "SIW_WC_LOC_PROT_ERR";
        /// The request can't be executed, such as for an invalid L_Key.
        LOC_QP_OP_ERR = 3, "SIW_WC_LOC_QP_OP_ERR";
        /// Flushed.
        WR_FLUSH_ERR = 4, "SIW_WC_WR_FLUSH_ERR";
        /// Bad response.
        BAD_RESP_ERR = 5, "SIW_WC_BAD_RESP_ERR";
        /// Local access error.
        LOC_ACCESS_ERR = 6, "SIW_WC_LOC_ACCESS_ERR";
        /// Remote access error.
        REM_ACCESS_ERR = 7, "SIW_WC_REM_ACCESS_ERR";
        /// The message invalidates a key that it may not invalidate.
        REM_INV_REQ_ERR = 8, "SIW_WC_REM_INV_REQ_ERR";
        /// Another error.
        GENERAL_ERR = 9, "SIW_WC_GENERAL_ERR";
        /// The number of statuses.
        COUNT = 10, "SIW_NUM_WC_STATUS";
    }
}

abi_flags! {
    header = "rdma/siw-abi.h";

    /// Flags of an element of a queue.
    flags WqeFlags: u16 = "siw_wqe_flags" {
        /// The element belongs to the consumer of the queue.
        VALID = 1, "SIW_WQE_VALID";
        /// The data is in the element.
        INLINE = 1 << 1, "SIW_WQE_INLINE";
        /// Success makes a completion too.
        SIGNALLED = 1 << 2, "SIW_WQE_SIGNALLED";
        /// Solicited event.
        SOLICITED = 1 << 3, "SIW_WQE_SOLICITED";
        /// The request waits for all earlier RDMA READs.
        READ_FENCE = 1 << 4, "SIW_WQE_READ_FENCE";
        /// A completion has an invalidated key; for the kernel only.
        REM_INVAL = 1 << 5, "SIW_WQE_REM_INVAL";
        /// Unused.
        COMPLETED = 1 << 6, "SIW_WQE_COMPLETED";
    }

    /// What raises the next event of a completion queue.
    flags NotifyFlags: u32 = "siw_notify_flags" {
        /// A solicited completion.
        SOLICITED = 1 << 0, "SIW_NOTIFY_SOLICITED";
        /// Any completion.
        NEXT_COMPLETION = 1 << 1, "SIW_NOTIFY_NEXT_COMPLETION";
        /// Unused.
        MISSED_EVENTS = 1 << 2, "SIW_NOTIFY_MISSED_EVENTS";
    }
}

abi_consts! {
    header = "rdma/siw-abi.h";

    /// Version of the driver ABI.
    const ABI_VERSION: u32 = 1, "SIW_ABI_VERSION";
    /// SGEs of an element.
    const MAX_SGE: u32 = 6, "SIW_MAX_SGE";
    /// Bytes of inline data: the room of all SGEs but the first.
    const MAX_INLINE: u32 = 80, "SIW_MAX_INLINE";
    /// The highest key of a queue by the header. Kernels give higher ones.
    const UOBJ_MAX_KEY: u32 = 0x8_ffff, "SIW_UOBJ_MAX_KEY";
    /// The value of a key before the kernel sets it. A queue may have this key.
    const INVAL_UOBJ_KEY: u32 = 0x9_0000, "SIW_INVAL_UOBJ_KEY";
}

driver_payloads! {
    () => GetContextResp, for [write::GetContext] methods [uverbs::GetContext];
    RegMrCmd => RegMrResp, for [write::RegMr];
    () => CreateCqResp, for [write::CreateCq, write::ex::CreateCq] methods [uverbs::CqCreate];
    () => CreateQpResp, for [write::CreateQp, write::ex::CreateQp] methods [uverbs::QpCreate];
    () => CreateSrqResp, for [write::CreateSrq, write::CreateXsrq] methods [uverbs::SrqCreate];
}
