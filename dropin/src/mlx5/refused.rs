//! Functions that refuse: software-managed steering (DR), DC, memory keys of several regions, inline
//! encryption, scheduling, VFIO (also MSI vectors and EQs, which libmlx5 has there only) and operations on
//! device memory.

use std::ffi::c_void;

use super::refuse;
use crate::convention::{OrErrno, OrMinusOne, OrNegative, OrNull, Value};

refuse! {
    OrNull<c_void>:
        mlx5dv_create_flow_action_esp mlx5dv_create_mkey mlx5dv_crypto_login_create
        mlx5dv_dek_create mlx5dv_devx_alloc_msi_vector
        mlx5dv_devx_create_eq mlx5dv_dm_map_op_addr mlx5dv_dr_action_create_aso
        mlx5dv_dr_action_create_default_miss mlx5dv_dr_action_create_dest_array
        mlx5dv_dr_action_create_dest_devx_tir mlx5dv_dr_action_create_dest_ib_port
        mlx5dv_dr_action_create_dest_root_table
        mlx5dv_dr_action_create_dest_table mlx5dv_dr_action_create_dest_vport
        mlx5dv_dr_action_create_drop mlx5dv_dr_action_create_flow_counter
        mlx5dv_dr_action_create_flow_meter mlx5dv_dr_action_create_flow_sampler
        mlx5dv_dr_action_create_modify_header mlx5dv_dr_action_create_packet_reformat
        mlx5dv_dr_action_create_pop_vlan mlx5dv_dr_action_create_push_vlan mlx5dv_dr_action_create_tag
        mlx5dv_dr_domain_create mlx5dv_dr_matcher_create mlx5dv_dr_rule_create mlx5dv_dr_table_create
        mlx5dv_get_vfio_device_list mlx5dv_sched_leaf_create mlx5dv_sched_node_create;
    OrErrno:
        _mlx5dv_mkey_check mlx5dv_crypto_login mlx5dv_crypto_login_destroy mlx5dv_crypto_login_query
        mlx5dv_crypto_login_query_state mlx5dv_crypto_logout mlx5dv_dci_stream_id_reset mlx5dv_dek_destroy
        mlx5dv_dek_query mlx5dv_destroy_mkey mlx5dv_devx_destroy_eq
        mlx5dv_devx_free_msi_vector mlx5dv_dr_action_modify_aso
        mlx5dv_dr_action_modify_flow_meter mlx5dv_dr_aso_other_domain_link
        mlx5dv_dr_aso_other_domain_unlink mlx5dv_dr_domain_destroy mlx5dv_dr_domain_sync
        mlx5dv_dr_matcher_destroy mlx5dv_dr_matcher_set_layout mlx5dv_dr_rule_destroy
        mlx5dv_dr_table_destroy mlx5dv_dump_dr_domain mlx5dv_dump_dr_matcher mlx5dv_dump_dr_rule
        mlx5dv_dump_dr_table mlx5dv_map_ah_to_qp mlx5dv_modify_qp_sched_elem
        mlx5dv_sched_leaf_destroy mlx5dv_sched_leaf_modify
        mlx5dv_sched_node_destroy mlx5dv_sched_node_modify mlx5dv_vfio_process_events;
    OrMinusOne: mlx5dv_vfio_get_events_fd;
    OrNegative: mlx5dv_qp_cancel_posted_send_wrs;
    Value<()>: mlx5dv_dr_domain_allow_duplicate_rules mlx5dv_dr_domain_set_reclaim_device_memory;
}
