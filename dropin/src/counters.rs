//! Completion counters, which `bareverbs` lacks.

use std::ffi::c_void;

use crate::convention::{OrErrno, OrNull, refuse};

refuse! {
    OrNull<c_void>: ibv_create_comp_cntr;
    OrErrno:
        _ibv_query_comp_cntr_caps ibv_destroy_comp_cntr ibv_inc_comp_cntr ibv_inc_err_comp_cntr
        ibv_read_comp_cntr ibv_read_err_comp_cntr ibv_set_comp_cntr ibv_set_err_comp_cntr
        ibv_qp_attach_comp_cntr;
}
