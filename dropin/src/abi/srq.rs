//! Shared receive queues and XRC domains.

use std::ffi::{c_int, c_void};

use super::cq::ibv_cq;
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

    #[derive(Clone, Copy)]
    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    struct ibv_xrcd {
        context: *mut ibv_context,
    }

    struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }
}
