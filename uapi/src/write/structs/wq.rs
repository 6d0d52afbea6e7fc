//! Work queues and indirection tables.

use crate::uverbs::types::{WqFlags, WqType};
use crate::verbs_values::{WqAttrMask, WqState};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request for a work queue.
    struct ExCreateWq = tag "ib_uverbs_ex_create_wq" {
        /// Must be 0.
        comp_mask: u32;
        /// Its type.
        wq_type: WqType;
        /// Number by which events name it.
        user_handle: u64;
        /// The protection domain.
        pd_handle: u32;
        /// The completion queue.
        cq_handle: u32;
        /// Requests outstanding.
        max_wr: u32;
        /// Scatter entries of a request.
        max_sge: u32;
        /// Options.
        create_flags: WqFlags;
        /// Zero.
        reserved: u32;
    }

    /// A new work queue.
    struct ExCreateWqResp = tag "ib_uverbs_ex_create_wq_resp" {
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Its handle.
        wq_handle: u32;
        /// Requests outstanding.
        max_wr: u32;
        /// Scatter entries of a request.
        max_sge: u32;
        /// Its number.
        wqn: u32;
    }

    /// Gives a work queue back.
    struct ExDestroyWq = tag "ib_uverbs_ex_destroy_wq" {
        /// Must be 0.
        comp_mask: u32;
        /// Its handle.
        wq_handle: u32;
    }

    /// What the work queue had raised.
    struct ExDestroyWqResp = tag "ib_uverbs_ex_destroy_wq_resp" {
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Asynchronous events.
        events_reported: u32;
        /// Zero.
        reserved: u32;
    }

    /// Request to change a work queue.
    struct ExModifyWq = tag "ib_uverbs_ex_modify_wq" {
        /// Which attributes.
        attr_mask: WqAttrMask;
        /// Its handle.
        wq_handle: u32;
        /// State to go to.
        wq_state: WqState;
        /// State that the caller believes it to be in.
        curr_wq_state: WqState;
        /// Options.
        flags: WqFlags;
        /// Which options to change.
        flags_mask: WqFlags;
    }

    /// Request for a table that spreads packets over work queues.
    struct ExCreateRwqIndTable = tag "ib_uverbs_ex_create_rwq_ind_table" {
        /// Must be 0.
        comp_mask: u32;
        /// Logarithm to base 2 of the number of handles that follow.
        log_ind_tbl_size: u32;
        /// Where the work queues' handles start; their size is rounded up to 8 bytes.
        wq_handles: [u32; 0];
    }

    /// A new indirection table.
    struct ExCreateRwqIndTableResp = tag "ib_uverbs_ex_create_rwq_ind_table_resp" {
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Its handle.
        ind_tbl_handle: u32;
        /// Its number.
        ind_tbl_num: u32;
    }

    /// Gives an indirection table back.
    struct ExDestroyRwqIndTable = tag "ib_uverbs_ex_destroy_rwq_ind_table" {
        /// Must be 0.
        comp_mask: u32;
        /// Its handle.
        ind_tbl_handle: u32;
    }
}
