//! Functions for the provider libraries of rdma-core.
//!
//! Programs that are linked with such a library, as perftest with libefa, start only if each name exists
//! with the version of the library's release: 33 in Debian 11, 34 in Debian 12 and 13, 65 here. The
//! library then registers its driver, which does nothing here. It gets no device, so nothing calls the
//! other functions.
//!
//! One function has many names, and each name several versions. Rust can't say that, the assembler can: a
//! label that jumps to the function has them.

use std::arch::global_asm;
use std::ffi::{c_int, c_void};

use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, Value, callback, export};
use crate::{port, text};

export! {
    fn verbs_register_driver_33(_operations: *const c_void) -> Value<()> { Ok(()) }
    fn verbs_register_driver_34(_operations: *const c_void) -> Value<()> { Ok(()) }
    fn verbs_register_driver_65(_operations: *const c_void) -> Value<()> { Ok(()) }
}

// For names of the provider libraries, and for functions of a context that this library lacks.
callback! {
    fn refuse_null() -> OrNull<c_void> { Err(Failure::UNSUPPORTED) }
    fn refuse_minus_one() -> OrMinusOne { Err(Failure::UNSUPPORTED) }
    fn refuse_errno() -> OrErrno { Err(Failure::UNSUPPORTED) }
    fn refuse_number() -> Value<c_int> { Err(Failure::UNSUPPORTED) }
    fn refuse() -> Value<()> { Err(Failure::UNSUPPORTED) }

    /// Logs nothing, as the release builds of libibverbs without `VERBS_LOG_FILE`.
    fn log(_context: *mut c_void) -> Value<()> { Ok(()) }
}

/// The names of a label, with the version of a release and the later ones. The last version is that of
/// programs that name none.
macro_rules! versions {
    (33 $label:literal $name:ident) => {
        concat!(
            ".symver ",
            $label,
            ", ",
            stringify!($name),
            "@IBVERBS_PRIVATE_33\n",
            versions!(34 $label $name)
        )
    };
    (34 $label:literal $name:ident) => {
        concat!(
            ".symver ",
            $label,
            ", ",
            stringify!($name),
            "@IBVERBS_PRIVATE_34\n",
            versions!(65 $label $name)
        )
    };
    (65 $label:literal $name:ident) => {
        concat!(".symver ", $label, ", ", stringify!($name), "@@IBVERBS_PRIVATE_65\n")
    };
}

/// A jump to the function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}
#[cfg(not(target_arch = "x86_64"))]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

/// Exports a function under the names that follow the oldest release that has them.
macro_rules! names {
    ($( $function:path as $label:literal { $( $release:tt: $($name:ident)*; )* } )*) => { $(
        global_asm!(
            concat!(".pushsection .text.", $label, ",\"ax\",@progbits"),
            concat!(".globl ", $label, "\n.type ", $label, ", @function\n", $label, ":"),
            jump!(),
            concat!(".size ", $label, ", . - ", $label),
            $($( versions!($release $label $name), )*)*
            ".popsection",
            function = sym $function,
        );
    )* };
}

names! {
    refuse_null as "bareverbs_refuse_null" {
        33: _verbs_init_and_alloc_context verbs_open_device;
        65: ibv_dmabuf_heap_alloc ibv_dmabuf_heap_cc_shared_init;
    }
    refuse_minus_one as "bareverbs_refuse_minus_one" { 33: ibv_read_ibdev_sysfs_file; }
    refuse_number as "bareverbs_refuse_number" { 33: __ioctl_final_num_attrs; }
    refuse as "bareverbs_refuse" {
        33: verbs_init_cq verbs_set_ops verbs_uninit_context;
        65: ibv_dmabuf_heap_destroy ibv_dmabuf_heap_free;
    }
    refuse_errno as "bareverbs_refuse_errno" {
        33:
            execute_ioctl
            ibv_cmd_advise_mr ibv_cmd_alloc_dm ibv_cmd_alloc_mw ibv_cmd_alloc_pd ibv_cmd_attach_mcast
            ibv_cmd_close_xrcd ibv_cmd_create_ah ibv_cmd_create_counters ibv_cmd_create_cq
            ibv_cmd_create_cq_ex ibv_cmd_create_flow ibv_cmd_create_flow_action_esp ibv_cmd_create_qp
            ibv_cmd_create_qp_ex ibv_cmd_create_qp_ex2 ibv_cmd_create_rwq_ind_table ibv_cmd_create_srq
            ibv_cmd_create_srq_ex ibv_cmd_create_wq ibv_cmd_dealloc_mw ibv_cmd_dealloc_pd
            ibv_cmd_dereg_mr ibv_cmd_destroy_ah ibv_cmd_destroy_counters ibv_cmd_destroy_cq
            ibv_cmd_destroy_flow ibv_cmd_destroy_flow_action ibv_cmd_destroy_qp
            ibv_cmd_destroy_rwq_ind_table ibv_cmd_destroy_srq ibv_cmd_destroy_wq ibv_cmd_detach_mcast
            ibv_cmd_free_dm ibv_cmd_get_context ibv_cmd_modify_cq ibv_cmd_modify_flow_action_esp
            ibv_cmd_modify_qp ibv_cmd_modify_qp_ex ibv_cmd_modify_srq ibv_cmd_modify_wq ibv_cmd_open_qp
            ibv_cmd_open_xrcd ibv_cmd_poll_cq ibv_cmd_post_recv ibv_cmd_post_send ibv_cmd_post_srq_recv
            ibv_cmd_query_context ibv_cmd_query_device_any ibv_cmd_query_mr ibv_cmd_query_port
            ibv_cmd_query_qp ibv_cmd_query_srq ibv_cmd_read_counters ibv_cmd_reg_dm_mr ibv_cmd_reg_mr
            ibv_cmd_req_notify_cq ibv_cmd_rereg_mr ibv_cmd_resize_cq;
        34: ibv_cmd_create_cq_ex2 ibv_cmd_reg_dmabuf_mr;
        65:
            ibv_cmd_alloc_dmah ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr ibv_cmd_export_dmabuf_fd
            ibv_cmd_free_dmah ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr
            ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_query_port_speed
            ibv_cmd_read_comp_cntr ibv_cmd_read_err_comp_cntr ibv_cmd_reg_mr_ex ibv_cmd_set_comp_cntr
            ibv_cmd_set_err_comp_cntr;
    }
    log as "bareverbs_log" { 34: __verbs_log; }
    port::query_gid_type as "bareverbs_query_gid_type" { 33: ibv_query_gid_type; }
    text::wr_opcode_str as "bareverbs_wr_opcode_str" { 34: ibv_wr_opcode_str; }
}

// Whether the provider libraries destroy objects of removed devices without an error: a byte, which is 0.
global_asm!(
    ".pushsection .bss.bareverbs_allow_disassociate,\"aw\",@nobits",
    ".globl bareverbs_allow_disassociate\n.type bareverbs_allow_disassociate, @object",
    ".size bareverbs_allow_disassociate, 1\nbareverbs_allow_disassociate: .zero 1",
    versions!(33 "bareverbs_allow_disassociate" verbs_allow_disassociate_destroy),
    ".popsection",
);
