//! Completion channels, completion queues and completions.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use super::device::ibv_context;
use super::memory::ibv_pd;
use super::{Function, Unused, c_types};

c_types! {
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: AtomicI32,
    }

    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: AtomicI32,
        mutex: Unused<libc::pthread_mutex_t>,
        cond: Unused<libc::pthread_cond_t>,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// The functions that the inline functions of extended CQs call. Its first fields are those of
    /// `ibv_cq`.
    struct ibv_cq_ex {
        base as "": ibv_cq,
        comp_mask: u32,
        status: AtomicU32,
        wr_id: AtomicU64,
        start_poll: Function,
        next_poll: Function,
        end_poll: Function,
        read_opcode: Function,
        read_vendor_err: Function,
        read_byte_len: Function,
        read_imm_data: Function,
        read_qp_num: Function,
        read_src_qp: Function,
        read_wc_flags: Function,
        read_slid: Function,
        read_sl: Function,
        read_dlid_path_bits: Function,
        read_completion_ts: Function,
        read_cvlan: Function,
        read_flow_tag: Function,
        read_tm_info: Function,
        read_completion_wallclock_ns: Function,
    }

    #[derive(Default)]
    struct ibv_wc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        /// In network byte order, or the invalidated R_Key.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: u32,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }

    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }
}
