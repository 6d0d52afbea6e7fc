//! Work queues and their indirection tables.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use super::cq::ibv_cq;
use super::device::ibv_context;
use super::memory::ibv_pd;
use super::{Function, Unused, c_types};

c_types! {
    /// The inline function `ibv_create_wq` writes `wq_context`, `mutex`, `cond` and `events_completed`.
    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: AtomicU32,
        wq_type: u32,
        post_recv: Function,
        mutex: Unused<libc::pthread_mutex_t>,
        cond: Unused<libc::pthread_cond_t>,
        events_completed: u32,
        comp_mask: u32,
    }

    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: u32,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: u32,
        curr_wq_state: u32,
        flags: u32,
        flags_mask: u32,
    }

    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *const *mut ibv_wq,
        comp_mask: u32,
    }
}
