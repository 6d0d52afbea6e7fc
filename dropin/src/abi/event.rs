//! Asynchronous events.

use super::c_types;

c_types! {
    struct ibv_async_event {
        /// A pointer to the object, or the number of the port.
        element: u64,
        event_type: u32,
    }
}
