//! Protection domains, memory regions and windows.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicU32;

use super::device::ibv_context;
use super::{Function, c_types};

/// The program's function that allocates the memory of a queue: of a PD and its context, in bytes, with an
/// alignment, for a type of resource.
pub(crate) type AllocQueue = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, usize, u64) -> *mut c_void;

/// The program's function that frees memory of an [`AllocQueue`].
pub(crate) type FreeQueue = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, *mut c_void, u64);

c_types! {
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_td {
        context: *mut ibv_context,
    }

    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<AllocQueue>,
        free: Option<FreeQueue>,
        pd_context: *mut c_void,
    }

    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: AtomicU32,
        handle: u32,
        mw_type as "type": u32,
    }

    #[derive(Clone, Copy)]
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: u32,
    }

    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: u32,
        bind_info: ibv_mw_bind_info,
    }

    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Function,
        memcpy_from_dm: Function,
        comp_mask: u32,
        handle: u32,
    }

    struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    struct ibv_dmah {
        context: *mut ibv_context,
    }

    struct ibv_dmah_init_attr {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }

    struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
        buf: *mut c_void,
    }
}
