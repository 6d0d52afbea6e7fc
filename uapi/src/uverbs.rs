//! The core's object classes, methods and attributes.
//!
//! Method types are in this module ([`QpCreate`]), object classes in [`object`].

pub mod comp_cntr;
pub mod cq;
pub mod device;
pub mod dm;
pub mod dmah;
pub mod flow;
pub mod mr;
pub mod pd;
pub mod qp;
pub mod srq;
pub mod types;
pub mod wq;

pub use comp_cntr::{CompCntrCreate, CompCntrDestroy, CompCntrModify, CompCntrRead};
pub use cq::{CqCreate, CqDestroy};
pub use device::{
    GetContext, InfoHandles, InvokeWrite, QueryCompCntrCaps, QueryContext, QueryGidEntry, QueryGidTable,
    QueryPort, QueryPortSpeed,
};
pub use dm::{DmAlloc, DmFree, DmabufAlloc};
pub use dmah::{DmahAlloc, DmahFree};
pub use flow::{CountersCreate, CountersDestroy, CountersRead, FlowActionDestroy, FlowDestroy};
pub use mr::{AdviseMr, DmMrReg, MrDestroy, QueryMr, RegDmabufMr, RegMr};
pub use pd::{AhDestroy, AsyncEventAlloc, MwDestroy, PdDestroy, XrcdDestroy};
pub use qp::{QpAttachCompCntr, QpCreate, QpDestroy};
pub use srq::{SrqCreate, SrqDestroy};
pub use wq::{RwqIndTblDestroy, WqCreate, WqDestroy};

/// The object classes as types.
pub mod object {
    pub use super::comp_cntr::CompCntr;
    pub use super::cq::Cq;
    pub use super::device::Device;
    pub use super::dm::{Dm, Dmabuf};
    pub use super::dmah::Dmah;
    pub use super::flow::{Counters, Flow, FlowAction};
    pub use super::mr::Mr;
    pub use super::pd::{Ah, AsyncEvent, CompChannel, Mw, Pd, Xrcd};
    pub use super::qp::Qp;
    pub use super::srq::Srq;
    pub use super::wq::{RwqIndTbl, Wq};
}

abi_enums! {
    header = "rdma/ib_user_ioctl_cmds.h";

    /// The number of an object class.
    enum ObjectClass : u16 = "uverbs_default_objects" {
        /// The device itself.
        DEVICE = 0, "UVERBS_OBJECT_DEVICE";
        /// Protection domains.
        PD = 1, "UVERBS_OBJECT_PD";
        /// Completion channels.
        COMP_CHANNEL = 2, "UVERBS_OBJECT_COMP_CHANNEL";
        /// Completion queues.
        CQ = 3, "UVERBS_OBJECT_CQ";
        /// Queue pairs.
        QP = 4, "UVERBS_OBJECT_QP";
        /// Shared receive queues.
        SRQ = 5, "UVERBS_OBJECT_SRQ";
        /// Address handles.
        AH = 6, "UVERBS_OBJECT_AH";
        /// Memory regions.
        MR = 7, "UVERBS_OBJECT_MR";
        /// Memory windows.
        MW = 8, "UVERBS_OBJECT_MW";
        /// Flows.
        FLOW = 9, "UVERBS_OBJECT_FLOW";
        /// XRC domains.
        XRCD = 10, "UVERBS_OBJECT_XRCD";
        /// Indirection tables.
        RWQ_IND_TBL = 11, "UVERBS_OBJECT_RWQ_IND_TBL";
        /// Work queues.
        WQ = 12, "UVERBS_OBJECT_WQ";
        /// Flow actions.
        FLOW_ACTION = 13, "UVERBS_OBJECT_FLOW_ACTION";
        /// Device memory.
        DM = 14, "UVERBS_OBJECT_DM";
        /// Counters.
        COUNTERS = 15, "UVERBS_OBJECT_COUNTERS";
        /// Asynchronous event channels.
        ASYNC_EVENT = 16, "UVERBS_OBJECT_ASYNC_EVENT";
        /// DMA handle: hints for the device's accesses.
        DMAH = 17, "UVERBS_OBJECT_DMAH" since V7_2;
        /// Device mappings exported as dma-bufs.
        DMABUF = 18, "UVERBS_OBJECT_DMABUF" since V7_2;
        /// Completion counters.
        COMP_CNTR = 19, "UVERBS_OBJECT_COMP_CNTR" since V7_3;
    }
}

abi_consts! {
    header = "rdma/ib_user_ioctl_cmds.h";

    /// Mask of the namespace bits of an id.
    const ID_NS_MASK: u16 = 0xf000, "UVERBS_ID_NS_MASK";
    /// Shift of the namespace bits.
    const ID_NS_SHIFT: u16 = 12, "UVERBS_ID_NS_SHIFT";
    /// First id of driver-specific objects, methods and attributes.
    const ID_DRIVER_NS: u16 = 1 << ID_NS_SHIFT, "UVERBS_ID_DRIVER_NS" since V6_12;
    /// Attribute of a driver request (`UHW_IN`).
    const ATTR_UHW_IN: u16 = crate::method::UHW_IN, "UVERBS_ATTR_UHW_IN";
    /// Attribute of a driver response (`UHW_OUT`).
    const ATTR_UHW_OUT: u16 = crate::method::UHW_OUT, "UVERBS_ATTR_UHW_OUT";
    /// First id of driver-specific attributes on a method with `UHW_IN` and `UHW_OUT`.
    const ID_DRIVER_NS_WITH_UHW: u16 = 0x1002, "UVERBS_ID_DRIVER_NS_WITH_UHW" since V6_12;
    /// A method without a handler.
    const METHOD_FLOW_ACTION_ESP_CREATE: u16 = 0, "UVERBS_METHOD_FLOW_ACTION_ESP_CREATE";
    /// A method without a handler.
    const METHOD_FLOW_ACTION_ESP_MODIFY: u16 = 2, "UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY";
    /// Attribute of a method without a handler: the new flow action.
    const ATTR_CREATE_FLOW_ACTION_ESP_HANDLE: u16 = 0, "UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE";
    /// Attribute of a method without a handler: the flow action to change.
    const ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE: u16 = 0, "UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE";
    /// Attribute of a method without a handler: [`FlowActionEsp`](types::FlowActionEsp).
    const ATTR_FLOW_ACTION_ESP_ATTRS: u16 = 1, "UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS";
    /// Attribute of a method without a handler: the extended sequence number.
    const ATTR_FLOW_ACTION_ESP_ESN: u16 = 2, "UVERBS_ATTR_FLOW_ACTION_ESP_ESN";
    /// Attribute of a method without a handler: the key.
    const ATTR_FLOW_ACTION_ESP_KEYMAT: u16 = 3, "UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT";
    /// Attribute of a method without a handler: replay protection.
    const ATTR_FLOW_ACTION_ESP_REPLAY: u16 = 4, "UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY";
    /// Attribute of a method without a handler: the outer headers.
    const ATTR_FLOW_ACTION_ESP_ENCAP: u16 = 5, "UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP";
}
