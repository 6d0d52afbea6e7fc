//! Driver-specific attributes of core methods.

use super::structs::AllocUcontextResp;
use super::verbs::{DmType, RegDmabufFlags};
use crate::method::{Constant, Flags, In, Out, OutStruct};
use crate::uverbs::{self, types::BufferDesc};

driver_attributes! {
    /// CREATE_CQ.
    on CqCreate = uverbs::CqCreate {
        /// UAR page index.
        UAR_INDEX: In<u32> = 0x1002, "MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX" since V6_12, optional;
        /// Buffer of the doorbell record.
        DBR_BUF_UMEM: In<BufferDesc> = 0x1003, "MLX5_IB_ATTR_CREATE_CQ_DBR_BUF_UMEM" since V7_2, optional;
    }

    /// CREATE_QP.
    on QpCreate = uverbs::QpCreate {
        /// Buffer of the doorbell record.
        DBR_BUF_UMEM: In<BufferDesc> = 0x1002, "MLX5_IB_ATTR_CREATE_QP_DBR_BUF_UMEM" since V7_2, optional;
    }

    /// CREATE_SRQ.
    on SrqCreate = uverbs::SrqCreate {
        /// Buffer of the doorbell record.
        DBR_BUF_UMEM: In<BufferDesc> = 0x1002, "MLX5_IB_ATTR_CREATE_SRQ_DBR_BUF_UMEM" since V7_3, optional;
    }

    /// ALLOC_DM.
    on DmAlloc = uverbs::DmAlloc {
        /// Offset of its start in the mapping, or in the device.
        RESP_START_OFFSET: Out<u64> = 0x1000, "MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET", mandatory;
        /// Page index for `mmap` of the device file.
        RESP_PAGE_INDEX: Out<u16> = 0x1001, "MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX", optional;
        /// Type of the device memory.
        REQ_TYPE: Constant<DmType> = 0x1002, "MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE", optional;
    }

    /// QUERY_CONTEXT.
    on QueryContext = uverbs::QueryContext {
        /// Response of ALLOC_UCONTEXT.
        RESP_UCTX: OutStruct<AllocUcontextResp, { size_of::<AllocUcontextResp>() }> = 0x1000,
            "MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX", mandatory;
    }

    /// REG_DMABUF_MR.
    on RegDmabufMr = uverbs::RegDmabufMr {
        /// Flags.
        ACCESS_FLAGS: Flags<RegDmabufFlags> = 0x1000,
            "MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS" since V6_12, optional;
    }
}
