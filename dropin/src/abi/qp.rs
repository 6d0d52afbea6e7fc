//! Queue pairs.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::cq::ibv_cq;
use super::device::ibv_context;
use super::memory::ibv_pd;
use super::path::ibv_ah_attr;
use super::srq::{ibv_srq, ibv_xrcd};
use super::wq::ibv_rwq_ind_table;
use super::{Function, Unused, c_types};

c_types! {
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: AtomicU32,
        qp_type: u32,
        mutex: Unused<libc::pthread_mutex_t>,
        cond: Unused<libc::pthread_cond_t>,
        events_completed: u32,
    }

    /// The functions that the inline functions `ibv_wr_*` call.
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: AtomicU64,
        wr_flags: AtomicU32,
        wr_atomic_cmp_swp: Function,
        wr_atomic_fetch_add: Function,
        wr_bind_mw: Function,
        wr_local_inv: Function,
        wr_rdma_read: Function,
        wr_rdma_write: Function,
        wr_rdma_write_imm: Function,
        wr_send: Function,
        wr_send_imm: Function,
        wr_send_inv: Function,
        wr_send_tso: Function,
        wr_set_ud_addr: Function,
        wr_set_xrc_srqn: Function,
        wr_set_inline_data: Function,
        wr_set_inline_data_list: Function,
        wr_set_sge: Function,
        wr_set_sge_list: Function,
        wr_start: Function,
        wr_complete: Function,
        wr_abort: Function,
        wr_atomic_write: Function,
        wr_flush: Function,
    }

    #[derive(Clone, Copy)]
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    #[derive(Clone, Copy)]
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
    }

    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }

    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: u32,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }

    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: u32,
    }

    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }

    struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }

    struct ibv_qp_attr {
        qp_state: u32,
        cur_qp_state: u32,
        path_mtu: u32,
        path_mig_state: u32,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: u32,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
}
