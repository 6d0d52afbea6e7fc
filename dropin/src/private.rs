//! Functions for the provider libraries of rdma-core.
//!
//! Programs that are linked with such a library, as perftest with libefa, start only if each name exists.
//! The library then registers its driver, which does nothing here. It gets no device, so nothing calls
//! the other functions.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;

use crate::convention::{OrErrno, OrMinusOne, OrNull, Value, export, refuse};

export! {
    fn verbs_register_driver_65(_operations: *const c_void) -> Value<()> { Ok(()) }

    /// Logs nothing, as the release builds of libibverbs without `VERBS_LOG_FILE`.
    fn __verbs_log(_context: *mut c_void) -> Value<()> { Ok(()) }
}

/// Whether the provider libraries destroy objects of removed devices without an error.
#[unsafe(no_mangle)]
static verbs_allow_disassociate_destroy: AtomicBool = AtomicBool::new(false);

refuse! {
    OrNull<c_void>:
        _verbs_init_and_alloc_context verbs_open_device ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init;
    OrMinusOne: ibv_read_ibdev_sysfs_file;
    Value<c_int>: __ioctl_final_num_attrs;
    Value<()>: verbs_init_cq verbs_set_ops verbs_uninit_context ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free;
    OrErrno:
        execute_ioctl
        ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_dmah ibv_cmd_alloc_mw ibv_cmd_alloc_pd
        ibv_cmd_attach_mcast ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_comp_cntr
        ibv_cmd_create_counters ibv_cmd_create_cq ibv_cmd_create_cq_ex ibv_cmd_create_cq_ex2
        ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp ibv_cmd_create_qp_ex
        ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq ibv_cmd_create_srq_ex
        ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd ibv_cmd_dereg_mr ibv_cmd_destroy_ah
        ibv_cmd_destroy_comp_cntr ibv_cmd_destroy_counters ibv_cmd_destroy_cq ibv_cmd_destroy_flow
        ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq
        ibv_cmd_destroy_wq ibv_cmd_detach_mcast ibv_cmd_export_dmabuf_fd ibv_cmd_free_dm ibv_cmd_free_dmah
        ibv_cmd_get_context ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr ibv_cmd_modify_cq
        ibv_cmd_modify_flow_action_esp ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq
        ibv_cmd_modify_wq ibv_cmd_open_qp ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv
        ibv_cmd_post_send ibv_cmd_post_srq_recv ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps
        ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
        ibv_cmd_query_port_speed ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_comp_cntr
        ibv_cmd_read_counters ibv_cmd_read_err_comp_cntr ibv_cmd_reg_dm_mr ibv_cmd_reg_dmabuf_mr
        ibv_cmd_reg_mr ibv_cmd_reg_mr_ex ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq
        ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr;
}
