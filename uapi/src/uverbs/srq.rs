//! Shared receive queues.

use crate::method::{Constant, Descriptor, DestroyHandle, Handle, In, NewHandle, Out};
use crate::user_verbs::structs::DestroySrqResp;
use crate::uverbs::ObjectClass;
use crate::uverbs::object::{AsyncEvent, Cq, Pd, Xrcd};
use crate::uverbs::types::{BufferDesc, SrqType};

objects! {
    /// A shared receive queue.
    object Srq = ObjectClass::SRQ.0, "UVERBS_OBJECT_SRQ" {
        /// Creates one.
        method SrqCreate = 0, "UVERBS_METHOD_SRQ_CREATE" with driver_payload {
            /// Its handle.
            HANDLE: NewHandle<Srq> = 0, "UVERBS_ATTR_CREATE_SRQ_HANDLE", mandatory;
            /// Protection domain.
            PD_HANDLE: Handle<Pd> = 1, "UVERBS_ATTR_CREATE_SRQ_PD_HANDLE", mandatory;
            /// XRC domain; XRC SRQs only.
            XRCD_HANDLE: Handle<Xrcd> = 2, "UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE", optional;
            /// Completion queue; all types except basic.
            CQ_HANDLE: Handle<Cq> = 3, "UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE", optional;
            /// User handle, which its events carry.
            USER_HANDLE: In<u64> = 4, "UVERBS_ATTR_CREATE_SRQ_USER_HANDLE", mandatory;
            /// Requested maximum of outstanding receives.
            MAX_WR: In<u32> = 5, "UVERBS_ATTR_CREATE_SRQ_MAX_WR", mandatory;
            /// Requested maximum of SGEs per request.
            MAX_SGE: In<u32> = 6, "UVERBS_ATTR_CREATE_SRQ_MAX_SGE", mandatory;
            /// SRQ limit: fewer posted receives raise an event.
            LIMIT: In<u32> = 7, "UVERBS_ATTR_CREATE_SRQ_LIMIT", mandatory;
            /// Maximum number of entries of the tag matching list.
            MAX_NUM_TAGS: In<u32> = 8, "UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS", optional;
            /// Its type.
            TYPE: Constant<SrqType> = 9, "UVERBS_ATTR_CREATE_SRQ_TYPE", mandatory;
            /// Asynchronous event channel, if not the default one of the file.
            EVENT_FD: Descriptor<AsyncEvent> = 10, "UVERBS_ATTR_CREATE_SRQ_EVENT_FD", optional;
            /// Actual maximum of outstanding receives.
            RESP_MAX_WR: Out<u32> = 11, "UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR", mandatory;
            /// Actual maximum of SGEs per request.
            RESP_MAX_SGE: Out<u32> = 12, "UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE", mandatory;
            /// SRQ number; all types except basic.
            RESP_SRQ_NUM: Out<u32> = 13, "UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM", optional;
            /// User memory for the queue.
            BUF_UMEM: In<BufferDesc> = 14, "UVERBS_ATTR_CREATE_SRQ_BUF_UMEM" since V7_3, optional;
        }
        /// Destroys it; `EBUSY` while a QP uses it.
        method SrqDestroy = 1, "UVERBS_METHOD_SRQ_DESTROY" {
            /// The shared receive queue.
            HANDLE: DestroyHandle<Srq> = 0, "UVERBS_ATTR_DESTROY_SRQ_HANDLE", mandatory;
            /// Number of events that it had raised.
            RESP: Out<DestroySrqResp> = 1, "UVERBS_ATTR_DESTROY_SRQ_RESP", mandatory;
        }
    }
}
