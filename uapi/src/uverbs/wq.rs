//! Work queues and indirection tables.

use crate::method::{Constant, Descriptor, DestroyHandle, Flags, Handle, In, NewHandle, Out};
use crate::uverbs::ObjectClass;
use crate::uverbs::object::{AsyncEvent, Cq, Pd};
use crate::uverbs::types::{WqFlags, WqType};

objects! {
    /// An RSS indirection table of work queues.
    object RwqIndTbl = ObjectClass::RWQ_IND_TBL.0, "UVERBS_OBJECT_RWQ_IND_TBL" {
        /// Destroys it.
        method RwqIndTblDestroy = 0, "UVERBS_METHOD_RWQ_IND_TBL_DESTROY" {
            /// The table.
            HANDLE: DestroyHandle<RwqIndTbl> = 0, "UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE", mandatory;
        }
    }

    /// A work queue.
    object Wq = ObjectClass::WQ.0, "UVERBS_OBJECT_WQ" {
        /// Creates one.
        method WqCreate = 0, "UVERBS_METHOD_WQ_CREATE" with driver_payload {
            /// Its handle.
            HANDLE: NewHandle<Wq> = 0, "UVERBS_ATTR_CREATE_WQ_HANDLE", mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 1, "UVERBS_ATTR_CREATE_WQ_PD_HANDLE", mandatory;
            /// Completion queue.
            CQ_HANDLE: Handle<Cq> = 2, "UVERBS_ATTR_CREATE_WQ_CQ_HANDLE", optional;
            /// User handle, which its events carry.
            USER_HANDLE: In<u64> = 3, "UVERBS_ATTR_CREATE_WQ_USER_HANDLE", mandatory;
            /// Its type.
            TYPE: Constant<WqType> = 4, "UVERBS_ATTR_CREATE_WQ_TYPE", mandatory;
            /// Asynchronous event channel, if not the default one of the file.
            EVENT_FD: Descriptor<AsyncEvent> = 5, "UVERBS_ATTR_CREATE_WQ_EVENT_FD", optional;
            /// Requested maximum of outstanding requests.
            MAX_WR: In<u32> = 6, "UVERBS_ATTR_CREATE_WQ_MAX_WR", mandatory;
            /// Requested maximum of SGEs per request.
            MAX_SGE: In<u32> = 7, "UVERBS_ATTR_CREATE_WQ_MAX_SGE", mandatory;
            /// Flags.
            FLAGS: Flags<WqFlags> = 8, "UVERBS_ATTR_CREATE_WQ_FLAGS", mandatory;
            /// Actual maximum of outstanding requests.
            RESP_MAX_WR: Out<u32> = 9, "UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR", mandatory;
            /// Actual maximum of SGEs per request.
            RESP_MAX_SGE: Out<u32> = 10, "UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE", mandatory;
            /// Its number.
            RESP_WQ_NUM: Out<u32> = 11, "UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM", optional;
        }
        /// Destroys it.
        method WqDestroy = 1, "UVERBS_METHOD_WQ_DESTROY" {
            /// The work queue.
            HANDLE: DestroyHandle<Wq> = 0, "UVERBS_ATTR_DESTROY_WQ_HANDLE", mandatory;
            /// Number of asynchronous events that it had raised.
            RESP: Out<u32> = 1, "UVERBS_ATTR_DESTROY_WQ_RESP", mandatory;
        }
    }
}
