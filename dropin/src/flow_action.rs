//! Actions of flows that change headers. ConnectX devices have functions that create them.

use std::ptr::NonNull;

use crate::abi::flow::ibv_flow_action;
use crate::convention::{OrErrno, callback};
use crate::driver_object::DriverObject;

pub(crate) type FlowActionObject = DriverObject<ibv_flow_action>;

callback! {
    /// `ibv_destroy_flow_action`. Actions that flows use are `EBUSY`.
    fn destroy_flow_action(action: Option<NonNull<FlowActionObject>>) -> OrErrno {
        // SAFETY: the argument is a live action.
        unsafe { DriverObject::destroy(action) }
    }
}
