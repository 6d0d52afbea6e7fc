//! Completion queues.

use crate::method::{Descriptor, DestroyHandle, Flags, In, NewHandle, Out, RawDescriptor};
use crate::user_verbs::structs::DestroyCqResp;
use crate::user_verbs::types::CqCreateFlags;
use crate::uverbs::ObjectClass;
use crate::uverbs::object::{AsyncEvent, CompChannel};
use crate::uverbs::types::BufferDesc;

objects! {
    /// A completion queue.
    object Cq = ObjectClass::CQ.0, "UVERBS_OBJECT_CQ" {
        /// Creates one.
        method CqCreate = 0, "UVERBS_METHOD_CQ_CREATE" with driver_payload {
            /// Its handle.
            HANDLE: NewHandle<Cq> = 0, "UVERBS_ATTR_CREATE_CQ_HANDLE", mandatory;
            /// Minimum number of entries.
            CQE: In<u32> = 1, "UVERBS_ATTR_CREATE_CQ_CQE", mandatory;
            /// User handle, which its events carry.
            USER_HANDLE: In<u64> = 2, "UVERBS_ATTR_CREATE_CQ_USER_HANDLE", mandatory;
            /// Completion event channel.
            COMP_CHANNEL: Descriptor<CompChannel> = 3, "UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL", optional;
            /// Completion vector.
            COMP_VECTOR: In<u32> = 4, "UVERBS_ATTR_CREATE_CQ_COMP_VECTOR", mandatory;
            /// Flags.
            FLAGS: Flags<CqCreateFlags> = 5, "UVERBS_ATTR_CREATE_CQ_FLAGS", optional;
            /// Number of entries.
            RESP_CQE: Out<u32> = 6, "UVERBS_ATTR_CREATE_CQ_RESP_CQE", mandatory;
            /// Asynchronous event channel, if not the default one of the file.
            EVENT_FD: Descriptor<AsyncEvent> = 7, "UVERBS_ATTR_CREATE_CQ_EVENT_FD", optional;
            /// Address of user memory for the queue.
            BUFFER_VA: In<u64> = 8, "UVERBS_ATTR_CREATE_CQ_BUFFER_VA" since V7_2, optional;
            /// Length of that memory or dma-buf in bytes.
            BUFFER_LENGTH: In<u64> = 9, "UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH" since V7_2, optional;
            /// A dma-buf for the queue.
            BUFFER_FD: RawDescriptor = 10, "UVERBS_ATTR_CREATE_CQ_BUFFER_FD" since V7_2, optional;
            /// Offset in the dma-buf.
            BUFFER_OFFSET: In<u64> = 11, "UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET" since V7_2, optional;
            /// Memory or dma-buf for the queue, in one struct.
            BUF_UMEM: In<BufferDesc> = 12, "UVERBS_ATTR_CREATE_CQ_BUF_UMEM" since V7_2, optional;
        }
        /// Destroys it; `EBUSY` while a queue uses it.
        method CqDestroy = 1, "UVERBS_METHOD_CQ_DESTROY" {
            /// The completion queue.
            HANDLE: DestroyHandle<Cq> = 0, "UVERBS_ATTR_DESTROY_CQ_HANDLE", mandatory;
            /// Number of events that it had raised.
            RESP: Out<DestroyCqResp> = 1, "UVERBS_ATTR_DESTROY_CQ_RESP", mandatory;
        }
    }
}
