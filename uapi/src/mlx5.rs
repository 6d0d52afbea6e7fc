//! The mlx5 driver: driver payloads of core calls, driver-specific object classes and methods, and
//! driver-specific attributes of core methods.
//!
//! Method types are in this module ([`DevxObjCreate`]). The driver-specific attributes of a core
//! method are constants of a type with the method's name in [`attributes`]. They are used in calls
//! of the core method:
//!
//! ```
//! use bareverbs_uapi::method::Call;
//! use bareverbs_uapi::uverbs::types::DriverId;
//! use bareverbs_uapi::{mlx5, uverbs};
//!
//! let uar_index = 3;
//! let mut call = Call::<uverbs::CqCreate>::new(DriverId::MLX5.0);
//! call.make(uverbs::CqCreate::HANDLE).input(mlx5::attributes::CqCreate::UAR_INDEX, &uar_index);
//! ```

pub mod attributes;
pub mod devx;
pub mod resources;
pub mod steering;
pub mod structs;
pub mod values;
pub mod verbs;

pub use attributes::ATTRIBUTES;
pub use devx::{
    AnyObject, Devx, DevxAsyncCmdFd, DevxAsyncCmdFdAlloc, DevxAsyncEventFd, DevxAsyncEventFdAlloc, DevxObj,
    DevxObjAsyncQuery, DevxObjCreate, DevxObjDestroy, DevxObjModify, DevxObjQuery, DevxOther, DevxQueryEqn,
    DevxQueryUar, DevxSubscribeEvent, DevxUmem, DevxUmemDereg, DevxUmemReg,
};
pub use resources::{
    DmMapOpAddr, DmQuery, GetDataDirectSysfsPath, PdQuery, Pp, PpObjAlloc, PpObjDestroy, QueryPort, Uar,
    UarObjAlloc, UarObjDestroy, Var, VarObjAlloc, VarObjDestroy,
};
pub use steering::{
    CreateFlow, DestroyFlow, FlowActionCreateModifyHeader, FlowActionCreatePacketReformat, FlowMatcher,
    FlowMatcherCreate, FlowMatcherDestroy, SteeringAnchor, SteeringAnchorCreate, SteeringAnchorDestroy,
};
pub use structs::*;
pub use values::*;

use crate::abi::flatten;
use crate::method::ObjectInfo;
use crate::{uverbs, write};

driver_payloads! {
    AllocUcontextReqV2 => AllocUcontextResp, for [write::GetContext] methods [uverbs::GetContext];
    () => AllocPdResp, for [write::AllocPd];
    () => QueryDeviceResp, for [write::ex::QueryDevice];
    CreateCqReq => CreateCqResp, for [write::CreateCq, write::ex::CreateCq] methods [uverbs::CqCreate];
    ResizeCqReq => (), for [write::ResizeCq];
    CreateSrqReq => CreateSrqResp, for [write::CreateSrq, write::CreateXsrq] methods [uverbs::SrqCreate];
    CreateQpReq => CreateQpResp, for [write::CreateQp, write::ex::CreateQp] methods [uverbs::QpCreate];
    AllocMwReq => (), for [write::AllocMw];
    () => CreateAhResp, for [write::CreateAh];
    ModifyQpReq => ModifyQpResp, for [write::ex::ModifyQp];
    CreateWqReq => CreateWqResp, for [write::ex::CreateWq] methods [uverbs::WqCreate];
    ModifyWqReq => (), for [write::ex::ModifyWq];
    () => CreateRwqIndTblResp, for [write::ex::CreateRwqIndTbl];
    CreateFlowReq => (), for [write::ex::CreateFlow];
}

/// The driver-specific object classes, and core classes with the methods that the driver adds.
pub const OBJECTS: [&ObjectInfo; 15] = flatten(&[devx::OBJECTS, steering::OBJECTS, resources::OBJECTS]);
