//! Shared receive queues.

use std::ffi::c_void;

use super::device::ibv_context;
use super::memory::ibv_pd;
use super::{Unused, c_types};

c_types! {
    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: Unused<libc::pthread_mutex_t>,
        cond: Unused<libc::pthread_cond_t>,
        events_completed: u32,
    }

    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }
}
