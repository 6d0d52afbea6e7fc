//! The mlx5 driver: its payloads of core calls, its own object classes and methods, and the
//! attributes that it adds to the core's.
//!
//! The method types stand here flat ([`DevxObjCreate`]); the attributes added to a core method are
//! constants of a type of the method's name in [`attributes`], and go with calls of the core's
//! method:
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

/// The driver's own object classes, and those of the core with the methods that it adds.
pub const OBJECTS: [&ObjectInfo; 15] = flatten(&[devx::OBJECTS, steering::OBJECTS, resources::OBJECTS]);
