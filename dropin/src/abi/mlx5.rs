//! `infiniband/mlx5dv.h`.

use std::ffi::{c_int, c_void};

use super::cq::ibv_cq;
use super::memory::ibv_pd;
use super::path::ibv_ah;
use super::qp::ibv_qp;
use super::srq::ibv_srq;
use super::{Function, c_types};

c_types! {
    struct mlx5dv_cqe_comp_caps {
        max_num: u32,
        supported_format: u32,
    }

    struct mlx5dv_sw_parsing_caps {
        sw_parsing_offloads: u32,
        supported_qpts: u32,
    }

    struct mlx5dv_striding_rq_caps {
        min_single_stride_log_num_of_bytes: u32,
        max_single_stride_log_num_of_bytes: u32,
        min_single_wqe_log_num_of_strides: u32,
        max_single_wqe_log_num_of_strides: u32,
        supported_qpts: u32,
    }

    struct mlx5dv_dci_streams_caps {
        max_log_num_concurent: u8,
        max_log_num_errored: u8,
    }

    struct mlx5dv_sig_caps {
        block_size: u64,
        block_prot: u32,
        t10dif_bg: u16,
        crc_type: u16,
    }

    struct mlx5dv_crypto_caps {
        failed_selftests: u16,
        crypto_engines: u8,
        wrapped_import_method: u8,
        log_max_num_deks: u8,
        flags: u32,
    }

    struct mlx5dv_ooo_recv_wrs_caps {
        max_rc: u32,
        max_xrc: u32,
        max_dct: u32,
        max_ud: u32,
        max_uc: u32,
    }

    struct mlx5dv_reg {
        value: u32,
        mask: u32,
    }

    /// A program that was compiled with an older header has a shorter one: a field exists if its bit of
    /// `comp_mask` is set.
    struct mlx5dv_context {
        version: u8,
        flags: u64,
        comp_mask: u64,
        cqe_comp_caps: mlx5dv_cqe_comp_caps,
        sw_parsing_caps: mlx5dv_sw_parsing_caps,
        striding_rq_caps: mlx5dv_striding_rq_caps,
        tunnel_offloads_caps: u32,
        max_dynamic_bfregs: u32,
        max_clock_info_update_nsec: u64,
        flow_action_flags: u32,
        dc_odp_caps: u32,
        hca_core_clock: *mut c_void,
        num_lag_ports: u8,
        sig_caps: mlx5dv_sig_caps,
        dci_streams_caps: mlx5dv_dci_streams_caps,
        max_wr_memcpy_length: usize,
        crypto_caps: mlx5dv_crypto_caps,
        max_dc_rd_atom: u64,
        max_dc_init_rd_atom: u64,
        reg_c0: mlx5dv_reg,
        ooo_recv_wrs_caps: mlx5dv_ooo_recv_wrs_caps,
    }

    struct mlx5dv_context_attr {
        flags: u32,
        comp_mask: u64,
        fds: *mut c_void,
    }

    struct mlx5dv_clock_info {
        nsec: u64,
        last_cycles: u64,
        frac: u64,
        mult: u32,
        shift: u32,
        mask: u64,
    }

    struct mlx5dv_cq_init_attr {
        comp_mask: u64,
        cqe_comp_res_format: u8,
        flags: u32,
        cqe_size: u16,
    }

    struct mlx5dv_dc_init_attr {
        dc_type: u32,
        dct_access_key: u64,
    }

    struct mlx5dv_qp_init_attr {
        comp_mask: u64,
        create_flags: u32,
        dc_init_attr: mlx5dv_dc_init_attr,
        send_ops_flags: u64,
    }

    /// The functions that the inline functions `mlx5dv_wr_*` call.
    struct mlx5dv_qp_ex {
        comp_mask: u64,
        wr_set_dc_addr: Function,
        wr_mr_interleaved: Function,
        wr_mr_list: Function,
        wr_mkey_configure: Function,
        wr_set_mkey_access_flags: Function,
        wr_set_mkey_layout_list: Function,
        wr_set_mkey_layout_interleaved: Function,
        wr_set_mkey_sig_block: Function,
        wr_raw_wqe: Function,
        wr_set_dc_addr_stream: Function,
        wr_memcpy: Function,
        wr_set_mkey_crypto: Function,
    }

    struct mlx5dv_qp {
        dbrec: *mut u32,
        sq_buf as "sq.buf": *mut c_void,
        sq_wqe_cnt as "sq.wqe_cnt": u32,
        sq_stride as "sq.stride": u32,
        rq_buf as "rq.buf": *mut c_void,
        rq_wqe_cnt as "rq.wqe_cnt": u32,
        rq_stride as "rq.stride": u32,
        bf_reg as "bf.reg": *mut c_void,
        bf_size as "bf.size": u32,
        comp_mask: u64,
        uar_mmap_offset: i64,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        tir_icm_addr: u64,
    }

    struct mlx5dv_cq {
        buf: *mut c_void,
        dbrec: *mut u32,
        cqe_cnt: u32,
        cqe_size: u32,
        cq_uar: *mut c_void,
        cqn: u32,
        comp_mask: u64,
    }

    struct mlx5dv_srq {
        buf: *mut c_void,
        dbrec: *mut u32,
        stride: u32,
        head: u32,
        tail: u32,
        comp_mask: u64,
        srqn: u32,
    }

    struct mlx5dv_rwq {
        buf: *mut c_void,
        dbrec: *mut u32,
        wqe_cnt: u32,
        stride: u32,
        comp_mask: u64,
    }

    struct mlx5dv_dm {
        buf: *mut c_void,
        length: u64,
        comp_mask: u64,
        remote_va: u64,
    }

    struct mlx5dv_ah {
        av: *mut c_void,
        comp_mask: u64,
    }

    struct mlx5dv_pd {
        pdn: u32,
        comp_mask: u64,
    }

    struct mlx5dv_devx {
        handle: u32,
    }

    struct mlx5dv_obj {
        qp_in as "qp.in": *mut ibv_qp,
        qp_out as "qp.out": *mut mlx5dv_qp,
        cq_in as "cq.in": *mut ibv_cq,
        cq_out as "cq.out": *mut mlx5dv_cq,
        srq_in as "srq.in": *mut ibv_srq,
        srq_out as "srq.out": *mut mlx5dv_srq,
        rwq_in as "rwq.in": *mut c_void,
        rwq_out as "rwq.out": *mut mlx5dv_rwq,
        dm_in as "dm.in": *mut c_void,
        dm_out as "dm.out": *mut mlx5dv_dm,
        ah_in as "ah.in": *mut ibv_ah,
        ah_out as "ah.out": *mut mlx5dv_ah,
        pd_in as "pd.in": *mut ibv_pd,
        pd_out as "pd.out": *mut mlx5dv_pd,
        devx_in as "devx.in": *mut c_void,
        devx_out as "devx.out": *mut mlx5dv_devx,
    }

    struct mlx5dv_flow_match_parameters {
        match_sz: usize,
        match_buf as "": [u64; 0],
    }

    struct mlx5dv_flow_matcher_attr {
        r#type as "type": u32,
        flags: u32,
        priority: u16,
        match_criteria_enable: u8,
        match_mask: *mut mlx5dv_flow_match_parameters,
        comp_mask: u64,
        ft_type: u32,
        ib_port: u32,
    }

    /// The object is a pointer, or a tag of 4 bytes.
    struct mlx5dv_flow_action_attr {
        r#type as "type": u32,
        object as "qp": *mut c_void,
        offset as "bulk_obj.offset": u32,
    }

    struct mlx5dv_steering_anchor_attr {
        ft_type: u32,
        priority: u16,
        comp_mask: u64,
    }

    struct mlx5dv_steering_anchor {
        id: u32,
    }

    struct mlx5dv_alloc_dm_attr {
        r#type as "type": u32,
        comp_mask: u64,
    }

    struct mlx5dv_striding_rq_init_attr {
        single_stride_log_num_of_bytes: u32,
        single_wqe_log_num_of_strides: u32,
        two_byte_shift_en: u8,
    }

    struct mlx5dv_wq_init_attr {
        comp_mask: u64,
        striding_rq_attrs: mlx5dv_striding_rq_init_attr,
    }

    struct mlx5dv_devx_umem {
        umem_id: u32,
    }

    struct mlx5dv_devx_umem_in {
        addr: *mut c_void,
        size: usize,
        access: u32,
        pgsz_bitmap: u64,
        comp_mask: u64,
        dmabuf_fd: c_int,
    }

    struct mlx5dv_devx_uar {
        reg_addr: *mut c_void,
        base_addr: *mut c_void,
        page_id: u32,
        mmap_off: i64,
        comp_mask: u64,
    }

    struct mlx5dv_devx_cmd_comp {
        fd: c_int,
    }

    struct mlx5dv_devx_event_channel {
        fd: c_int,
    }

    struct mlx5dv_var {
        page_id: u32,
        length: u32,
        mmap_off: i64,
        comp_mask: u64,
    }

    struct mlx5dv_pp {
        index: u16,
    }
}
