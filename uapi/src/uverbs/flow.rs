//! Flows, flow actions and counters.

use crate::method::{DestroyHandle, Flags, Handle, NewHandle, OutSlice};
use crate::uverbs::ObjectClass;
use crate::uverbs::types::ReadCountersFlags;

objects! {
    /// A flow, created by [`CreateFlow`](crate::write::ex::CreateFlow) or a driver-specific method.
    object Flow = ObjectClass::FLOW.0, "UVERBS_OBJECT_FLOW" {
        /// Destroys it.
        method FlowDestroy = 0, "UVERBS_METHOD_FLOW_DESTROY" {
            /// The flow.
            HANDLE: DestroyHandle<Flow> = 0, "UVERBS_ATTR_DESTROY_FLOW_HANDLE", mandatory;
        }
    }

    /// A flow action. Only driver-specific methods create one.
    object FlowAction = ObjectClass::FLOW_ACTION.0, "UVERBS_OBJECT_FLOW_ACTION" {
        /// Destroys it.
        method FlowActionDestroy = 1, "UVERBS_METHOD_FLOW_ACTION_DESTROY" {
            /// The flow action.
            HANDLE: DestroyHandle<FlowAction> = 0, "UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE", mandatory;
        }
    }

    /// Counters that flows count into.
    object Counters = ObjectClass::COUNTERS.0, "UVERBS_OBJECT_COUNTERS" {
        /// Creates one.
        method CountersCreate = 0, "UVERBS_METHOD_COUNTERS_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<Counters> = 0, "UVERBS_ATTR_CREATE_COUNTERS_HANDLE", mandatory;
        }
        /// Destroys it.
        method CountersDestroy = 1, "UVERBS_METHOD_COUNTERS_DESTROY" {
            /// The counters.
            HANDLE: DestroyHandle<Counters> = 0, "UVERBS_ATTR_DESTROY_COUNTERS_HANDLE", mandatory;
        }
        /// Reads the counter values.
        method CountersRead = 2, "UVERBS_METHOD_COUNTERS_READ" {
            /// The counters.
            HANDLE: Handle<Counters> = 0, "UVERBS_ATTR_READ_COUNTERS_HANDLE", mandatory;
            /// The values.
            BUFF: OutSlice<u64, 0> = 1, "UVERBS_ATTR_READ_COUNTERS_BUFF", mandatory;
            /// Flags.
            FLAGS: Flags<ReadCountersFlags> = 2, "UVERBS_ATTR_READ_COUNTERS_FLAGS", optional;
        }
    }
}
