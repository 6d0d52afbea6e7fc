//! Completion counters.

use crate::method::{Constant, DestroyHandle, Handle, HandleWrite, In, NewHandle, Out};
use crate::uverbs::ObjectClass;

objects! {
    /// Counter of the completions of QPs.
    object CompCntr = ObjectClass::COMP_CNTR.0, "UVERBS_OBJECT_COMP_CNTR" since V7_3 {
        /// Creates one.
        method CompCntrCreate = 0, "UVERBS_METHOD_COMP_CNTR_CREATE" since V7_3 {
            /// Its handle.
            HANDLE: NewHandle<CompCntr> = 0, "UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE" since V7_3, mandatory;
        }
        /// Destroys it; `EBUSY` while a QP uses it.
        method CompCntrDestroy = 1, "UVERBS_METHOD_COMP_CNTR_DESTROY" since V7_3 {
            /// The counter.
            HANDLE: DestroyHandle<CompCntr> = 0, "UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE" since V7_3, mandatory;
        }
        /// Sets or increments one of its values.
        method CompCntrModify = 2, "UVERBS_METHOD_COMP_CNTR_MODIFY" since V7_3 {
            /// The counter.
            HANDLE: HandleWrite<CompCntr> = 0, "UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE" since V7_3, mandatory;
            /// The value that changes.
            ENTRY: Constant<CompCntrEntry> = 1, "UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY" since V7_3, mandatory;
            /// The operation.
            OP: Constant<CompCntrModifyOp> = 2, "UVERBS_ATTR_MODIFY_COMP_CNTR_OP" since V7_3, mandatory;
            /// Its operand.
            VALUE: In<u64> = 3, "UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE" since V7_3, mandatory;
        }
        /// Reads one of its values.
        method CompCntrRead = 3, "UVERBS_METHOD_COMP_CNTR_READ" since V7_3 {
            /// The counter.
            HANDLE: Handle<CompCntr> = 0, "UVERBS_ATTR_READ_COMP_CNTR_HANDLE" since V7_3, mandatory;
            /// The value to read.
            ENTRY: Constant<CompCntrEntry> = 1, "UVERBS_ATTR_READ_COMP_CNTR_ENTRY" since V7_3, mandatory;
            /// The value.
            RESP_VALUE: Out<u64> = 2, "UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE" since V7_3, mandatory;
        }
    }
}

abi_enums! {
    header = "rdma/ib_user_ioctl_verbs.h";

    /// Value of a completion counter.
    enum CompCntrEntry : u32 = "ib_uverbs_comp_cntr_entry" {
        /// Number of completions without an error.
        COMP = 0, "IB_UVERBS_COMP_CNTR_ENTRY_COMP" since V7_3;
        /// Number of completions with an error.
        ERR = 1, "IB_UVERBS_COMP_CNTR_ENTRY_ERR" since V7_3;
    }

    /// Change of a completion counter.
    enum CompCntrModifyOp : u32 = "ib_uverbs_comp_cntr_modify_op" {
        /// The value becomes the operand.
        SET = 0, "IB_UVERBS_COMP_CNTR_MODIFY_OP_SET" since V7_3;
        /// The operand is added to the value.
        INC = 1, "IB_UVERBS_COMP_CNTR_MODIFY_OP_INC" since V7_3;
    }
}

abi_flags! {
    header = "rdma/ib_user_ioctl_verbs.h";

    /// Operations whose completions a counter counts.
    flags CompCntrOps : u32 = "ib_uverbs_qp_attach_comp_cntr_op" {
        /// Sends.
        SEND = 1 << 0, "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_SEND" since V7_3;
        /// Receives.
        RECV = 1 << 1, "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RECV" since V7_3;
        /// RDMA reads.
        RDMA_READ = 1 << 2, "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_READ" since V7_3;
        /// RDMA reads by the peer.
        REMOTE_RDMA_READ = 1 << 3, "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ" since V7_3;
        /// RDMA writes.
        RDMA_WRITE = 1 << 4, "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE" since V7_3;
        /// RDMA writes by the peer.
        REMOTE_RDMA_WRITE = 1 << 5, "IB_UVERBS_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE" since V7_3;
    }
}
