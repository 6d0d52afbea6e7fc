//! Attributes that the driver adds to methods of the core.

use super::structs::AllocUcontextResp;
use super::verbs::{DmType, RegDmabufFlags};
use crate::method::{Constant, Flags, In, Out, OutStruct};
use crate::uverbs::{self, types::BufferDesc};

driver_attributes! {
    /// Making a CQ.
    on CqCreate = uverbs::CqCreate {
        /// Number of the doorbell page.
        UAR_INDEX: In<u32> = 0x1002, "MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX" since V6_12, optional;
        /// Memory of the doorbell record.
        DBR_BUF_UMEM: In<BufferDesc> = 0x1003, "MLX5_IB_ATTR_CREATE_CQ_DBR_BUF_UMEM" since V7_2, optional;
    }

    /// Making a QP.
    on QpCreate = uverbs::QpCreate {
        /// Memory of the doorbell record.
        DBR_BUF_UMEM: In<BufferDesc> = 0x1002, "MLX5_IB_ATTR_CREATE_QP_DBR_BUF_UMEM" since V7_2, optional;
    }

    /// Making device memory.
    on DmAlloc = uverbs::DmAlloc {
        /// Where in the mapping, or in the device, it starts.
        RESP_START_OFFSET: Out<u64> = 0x1000, "MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET", mandatory;
        /// Page of the device file that maps it.
        RESP_PAGE_INDEX: Out<u16> = 0x1001, "MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX", optional;
        /// What it is for.
        REQ_TYPE: Constant<DmType> = 0x1002, "MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE", optional;
    }

    /// Asking of the open context.
    on QueryContext = uverbs::QueryContext {
        /// What opening it answered.
        RESP_UCTX: OutStruct<AllocUcontextResp, { size_of::<AllocUcontextResp>() }> = 0x1000,
            "MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX", mandatory;
    }

    /// Registering a dma-buf.
    on RegDmabufMr = uverbs::RegDmabufMr {
        /// How it is registered.
        ACCESS_FLAGS: Flags<RegDmabufFlags> = 0x1000,
            "MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS" since V6_12, optional;
    }
}
