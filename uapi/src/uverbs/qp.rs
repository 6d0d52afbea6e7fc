//! Queue pairs.

use crate::method::{
    Constant, Descriptor, DestroyHandle, Flags, Handle, HandleWrite, In, InStruct, NewHandle, Out, OutStruct,
};
use crate::user_verbs::structs::DestroyQpResp;
use crate::uverbs::ObjectClass;
use crate::uverbs::comp_cntr::CompCntrOps;
use crate::uverbs::object::{AsyncEvent, CompCntr, Cq, Pd, RwqIndTbl, Srq, Xrcd};
use crate::uverbs::types::{BufferDesc, QpCap, QpCreateFlags, QpType};

objects! {
    /// A queue pair.
    object Qp = ObjectClass::QP.0, "UVERBS_OBJECT_QP" {
        /// Creates one in the state RESET.
        method QpCreate = 0, "UVERBS_METHOD_QP_CREATE" with driver_payload {
            /// Its handle.
            HANDLE: NewHandle<Qp> = 0, "UVERBS_ATTR_CREATE_QP_HANDLE", mandatory;
            /// XRC domain of an XRC target QP.
            XRCD_HANDLE: Handle<Xrcd> = 1, "UVERBS_ATTR_CREATE_QP_XRCD_HANDLE", optional;
            /// Protection domain; XRC target QPs have none.
            PD_HANDLE: Handle<Pd> = 2, "UVERBS_ATTR_CREATE_QP_PD_HANDLE", optional;
            /// Shared receive queue.
            SRQ_HANDLE: Handle<Srq> = 3, "UVERBS_ATTR_CREATE_QP_SRQ_HANDLE", optional;
            /// Send CQ.
            SEND_CQ_HANDLE: Handle<Cq> = 4, "UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE", optional;
            /// Receive CQ.
            RECV_CQ_HANDLE: Handle<Cq> = 5, "UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE", optional;
            /// Indirection table for RSS.
            IND_TABLE_HANDLE: Handle<RwqIndTbl> = 6, "UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE", optional;
            /// User handle, which its events carry.
            USER_HANDLE: In<u64> = 7, "UVERBS_ATTR_CREATE_QP_USER_HANDLE", mandatory;
            /// Requested sizes.
            CAP: InStruct<QpCap, 20> = 8, "UVERBS_ATTR_CREATE_QP_CAP", mandatory;
            /// Transport.
            TYPE: Constant<QpType> = 9, "UVERBS_ATTR_CREATE_QP_TYPE", mandatory;
            /// Flags.
            FLAGS: Flags<QpCreateFlags> = 10, "UVERBS_ATTR_CREATE_QP_FLAGS", optional;
            /// Source QPN of sends.
            SOURCE_QPN: In<u32> = 11, "UVERBS_ATTR_CREATE_QP_SOURCE_QPN", optional;
            /// Asynchronous event channel, if not the default one of the file.
            EVENT_FD: Descriptor<AsyncEvent> = 12, "UVERBS_ATTR_CREATE_QP_EVENT_FD", optional;
            /// Actual sizes.
            RESP_CAP: OutStruct<QpCap, 20> = 13, "UVERBS_ATTR_CREATE_QP_RESP_CAP", mandatory;
            /// Its number.
            RESP_QP_NUM: Out<u32> = 14, "UVERBS_ATTR_CREATE_QP_RESP_QP_NUM", mandatory;
            /// User memory for both queues.
            BUF_UMEM: In<BufferDesc> = 15, "UVERBS_ATTR_CREATE_QP_BUF_UMEM" since V7_2, optional;
            /// User memory for the receive queue.
            RQ_BUF_UMEM: In<BufferDesc> = 16, "UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM" since V7_2, optional;
            /// User memory for the send queue.
            SQ_BUF_UMEM: In<BufferDesc> = 17, "UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM" since V7_2, optional;
        }
        /// Destroys it; `EBUSY` while it is attached to a multicast group.
        method QpDestroy = 1, "UVERBS_METHOD_QP_DESTROY" {
            /// The queue pair.
            HANDLE: DestroyHandle<Qp> = 0, "UVERBS_ATTR_DESTROY_QP_HANDLE", mandatory;
            /// Number of events that it had raised.
            RESP: Out<DestroyQpResp> = 1, "UVERBS_ATTR_DESTROY_QP_RESP", mandatory;
        }
        /// Lets a counter count completions of the QP. Each operation has at most one counter.
        method QpAttachCompCntr = 2, "UVERBS_METHOD_QP_ATTACH_COMP_CNTR" since V7_3 {
            /// The queue pair.
            HANDLE: HandleWrite<Qp> = 0, "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE" since V7_3, mandatory;
            /// The counter.
            CNTR_HANDLE: Handle<CompCntr> = 1,
                "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE" since V7_3, mandatory;
            /// The operations; at least one.
            OP_MASK: Flags<CompCntrOps> = 2,
                "UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK" since V7_3, mandatory;
        }
    }
}
