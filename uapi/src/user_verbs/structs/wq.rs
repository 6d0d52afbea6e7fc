//! Work queues and indirection tables.

use crate::uverbs_values::{WqFlags, WqType};
use crate::verbs_values::{WqAttrMask, WqState};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request for a work queue.
    struct ExCreateWq = tag "ib_uverbs_ex_create_wq" {
        /// Must be 0.
        comp_mask: u32;
        /// Its type.
        wq_type: WqType;
        /// User handle, which its events carry.
        user_handle: u64;
        /// The protection domain.
        pd_handle: u32;
        /// The completion queue.
        cq_handle: u32;
        /// Maximum number of outstanding requests.
        max_wr: u32;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// Flags.
        create_flags: WqFlags;
        /// Zero.
        reserved: u32;
    }

    /// A new work queue.
    struct ExCreateWqResp = tag "ib_uverbs_ex_create_wq_resp" {
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// Its handle.
        wq_handle: u32;
        /// Maximum number of outstanding requests.
        max_wr: u32;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// Its number.
        wqn: u32;
    }

    /// Destroys a work queue.
    struct ExDestroyWq = tag "ib_uverbs_ex_destroy_wq" {
        /// Must be 0.
        comp_mask: u32;
        /// Its handle.
        wq_handle: u32;
    }

    /// Events that a destroyed WQ had raised.
    struct ExDestroyWqResp = tag "ib_uverbs_ex_destroy_wq_resp" {
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// Number of asynchronous events.
        events_reported: u32;
        /// Zero.
        reserved: u32;
    }

    /// Request of MODIFY_WQ.
    struct ExModifyWq = tag "ib_uverbs_ex_modify_wq" {
        /// Attribute mask.
        attr_mask: WqAttrMask;
        /// Its handle.
        wq_handle: u32;
        /// New state.
        wq_state: WqState;
        /// Current state, as the caller assumes it.
        curr_wq_state: WqState;
        /// Flags.
        flags: WqFlags;
        /// Mask of the flags to change.
        flags_mask: WqFlags;
    }

    /// Request for an RSS indirection table.
    struct ExCreateRwqIndTable = tag "ib_uverbs_ex_create_rwq_ind_table" {
        /// Must be 0.
        comp_mask: u32;
        /// Log2 of the number of handles that follow.
        log_ind_tbl_size: u32;
        /// Start of the handles of the work queues. Their size is rounded up to 8 bytes.
        wq_handles: [u32; 0];
    }

    /// A new indirection table.
    struct ExCreateRwqIndTableResp = tag "ib_uverbs_ex_create_rwq_ind_table_resp" {
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// Its handle.
        ind_tbl_handle: u32;
        /// Its number.
        ind_tbl_num: u32;
    }

    /// Destroys an indirection table.
    struct ExDestroyRwqIndTable = tag "ib_uverbs_ex_destroy_rwq_ind_table" {
        /// Must be 0.
        comp_mask: u32;
        /// Its handle.
        ind_tbl_handle: u32;
    }
}
