//! Work requests.

use std::ffi::{c_int, c_void};

use super::c_types;
use super::memory::{ibv_mw, ibv_mw_bind_info};
use super::path::ibv_ah;

c_types! {
    /// Has the layout of `bareverbs::qp::Sge`.
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    #[derive(Clone, Copy)]
    struct send_wr_rdma in "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    #[derive(Clone, Copy)]
    struct send_wr_atomic in "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    #[derive(Clone, Copy)]
    struct send_wr_ud in "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    union send_wr_peer in "__typeof__(((struct ibv_send_wr *)0)->wr)" {
        rdma: send_wr_rdma,
        atomic: send_wr_atomic,
        ud: send_wr_ud,
    }

    struct send_wr_xrc in "__typeof__(((struct ibv_send_wr *)0)->qp_type)" {
        remote_srqn as "xrc.remote_srqn": u32,
    }

    #[derive(Clone, Copy)]
    struct send_wr_bind in "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    #[derive(Clone, Copy)]
    struct send_wr_tso in "__typeof__(((struct ibv_send_wr *)0)->tso)" {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: u32,
        /// In network byte order, or the R_Key to invalidate.
        imm_data: u32,
        wr: send_wr_peer,
        qp_type: send_wr_xrc,
        extra as "": send_wr_extra,
    }

    /// Memory of an inline request.
    struct ibv_data_buf {
        addr: *const c_void,
        length: usize,
    }
}

/// The union without a name at the end of `ibv_send_wr`.
#[repr(C)]
pub(crate) union send_wr_extra {
    pub(crate) bind_mw: send_wr_bind,
    pub(crate) tso: send_wr_tso,
}
