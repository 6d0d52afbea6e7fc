//! Actions of flows that change headers. ConnectX devices have functions that create them.

use std::ptr::NonNull;

use crate::abi::flow::ibv_flow_action;
use crate::convention::{OrErrno, callback};
use crate::made::Made;

pub(crate) type FlowActionObject = Made<ibv_flow_action>;

callback! {
    /// `ibv_destroy_flow_action`. Actions that flows use are `EBUSY`.
    fn destroy_flow_action(action: Option<NonNull<FlowActionObject>>) -> OrErrno {
        // SAFETY: the argument is a live action.
        unsafe { Made::destroy(action) }
    }
}
