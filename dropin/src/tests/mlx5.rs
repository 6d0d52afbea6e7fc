//! The functions of `libmlx5.so.1` on a device of another driver, and with invalid arguments.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use super::objects::{context_and_pd, pd_of, refuses};
use super::{NO_CONTEXT, errno};
use crate::abi::cq::ibv_cq_init_attr_ex;
use crate::abi::memory::ibv_alloc_dm_attr;
use crate::abi::mlx5::{
    mlx5dv_alloc_dm_attr, mlx5dv_clock_info, mlx5dv_context, mlx5dv_devx_umem_in, mlx5dv_flow_matcher_attr,
    mlx5dv_obj, mlx5dv_pd, mlx5dv_steering_anchor_attr,
};
use crate::abi::qp::ibv_qp_init_attr_ex;
use crate::abi::values::{MLX5DV_OBJ_PD, MLX5DV_OBJ_QP};
use crate::abi::wq::ibv_wq_init_attr;
use crate::flow_action::destroy_flow_action;
use crate::memory::ibv_dealloc_pd;
use crate::mlx5::commands::{
    mlx5dv_modify_qp_lag_port, mlx5dv_modify_qp_udp_sport, mlx5dv_query_qp_lag_port,
    mlx5dv_reserved_qpn_alloc, mlx5dv_reserved_qpn_dealloc,
};
use crate::mlx5::create::{
    mlx5dv_alloc_dm, mlx5dv_create_cq, mlx5dv_create_qp, mlx5dv_create_wq, mlx5dv_qp_ex_from_ibv_qp_ex,
    mlx5dv_reg_dmabuf_mr,
};
use crate::mlx5::devx::{
    mlx5dv_alloc_var, mlx5dv_devx_alloc_uar, mlx5dv_devx_create_cmd_comp, mlx5dv_devx_create_event_channel,
    mlx5dv_devx_general_cmd, mlx5dv_devx_get_event, mlx5dv_devx_obj_create, mlx5dv_devx_obj_destroy,
    mlx5dv_devx_query_eqn, mlx5dv_devx_uar_export_dmabuf_fd, mlx5dv_devx_umem_dereg, mlx5dv_devx_umem_reg,
    mlx5dv_devx_umem_reg_ex, mlx5dv_pp_alloc,
};
use crate::mlx5::dr::{mlx5dv_dr_action_create_dest_ibv_qp, mlx5dv_dr_action_destroy};
use crate::mlx5::flow::{__mlx5dv_create_flow, mlx5dv_create_flow_matcher, mlx5dv_destroy_flow_matcher};
use crate::mlx5::flow_action::{
    mlx5dv_create_flow_action_modify_header, mlx5dv_create_flow_action_packet_reformat,
    mlx5dv_create_steering_anchor, mlx5dv_destroy_steering_anchor,
};
use crate::mlx5::objects::{mlx5dv_init_obj, mlx5dv_init_obj_1_0};
use crate::mlx5::query::{
    _mlx5dv_query_port, mlx5dv_get_clock_info, mlx5dv_get_data_direct_sysfs_path, mlx5dv_is_supported,
    mlx5dv_open_device, mlx5dv_query_device, mlx5dv_set_context_attr,
};
use crate::open::ibv_close_device;

/// A struct of C without any bit set.
fn zeroed<T>() -> T {
    // SAFETY: the structs of the ABI have numbers and pointers only.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[test]
fn devices_of_other_drivers_are_refused() {
    let (context, pd) = context_and_pd();
    let (mut device, mut clock): (mlx5dv_context, mlx5dv_clock_info) = (zeroed(), zeroed());
    let (mut bytes, mut eqn, mut out): ([u8; 64], u32, mlx5dv_pd) = ([0; 64], 0, zeroed());
    let memory = bytes.as_mut_ptr().cast();
    let obj = mlx5dv_obj { pd_in: pd, pd_out: &raw mut out, ..zeroed() };
    // SAFETY: the calls are those of a C program.
    unsafe {
        for refused in [
            mlx5dv_query_device(context, &raw mut device),
            mlx5dv_get_clock_info(context, Some(&mut clock)),
            _mlx5dv_query_port(context, 1, memory, 64),
            mlx5dv_get_data_direct_sysfs_path(context, memory.cast(), 64),
            mlx5dv_set_context_attr(context, 1, ptr::null()),
            mlx5dv_init_obj(Some(&obj), MLX5DV_OBJ_PD as u64),
            mlx5dv_devx_general_cmd(context, memory, 16, memory, 16),
            mlx5dv_devx_query_eqn(context, 0, Some(&mut eqn)),
            mlx5dv_reserved_qpn_alloc(context, Some(&mut eqn)),
            mlx5dv_reserved_qpn_dealloc(context, 1),
        ] {
            assert_eq!((refused, errno()), (libc::EOPNOTSUPP, libc::EOPNOTSUPP));
        }
        refuses(mlx5dv_create_cq(context, Some(&zeroed::<ibv_cq_init_attr_ex>()), None), libc::EOPNOTSUPP);
        refuses(
            mlx5dv_create_qp(context, Some(&mut zeroed::<ibv_qp_init_attr_ex>()), None),
            libc::EOPNOTSUPP,
        );
        refuses(mlx5dv_reg_dmabuf_mr(pd_of(pd), 0, 64, 0, 0, 0, 0), libc::EOPNOTSUPP);
        refuses(mlx5dv_devx_obj_create(context, memory, 16, memory, 16), libc::EOPNOTSUPP);
        refuses(mlx5dv_devx_umem_reg(context, memory, 64, 1), libc::EOPNOTSUPP);
        refuses(mlx5dv_devx_umem_reg_ex(context, Some(&zeroed::<mlx5dv_devx_umem_in>())), libc::EOPNOTSUPP);
        refuses(mlx5dv_devx_alloc_uar(context, 0), libc::EOPNOTSUPP);
        refuses(mlx5dv_devx_create_cmd_comp(context), libc::EOPNOTSUPP);
        refuses(mlx5dv_devx_create_event_channel(context, 0), libc::EOPNOTSUPP);
        refuses(mlx5dv_alloc_var(context, 0), libc::EOPNOTSUPP);
        refuses(mlx5dv_create_wq(context, Some(&zeroed::<ibv_wq_init_attr>()), None), libc::EOPNOTSUPP);
        let (dm, attr): (ibv_alloc_dm_attr, mlx5dv_alloc_dm_attr) = (zeroed(), zeroed());
        refuses(mlx5dv_alloc_dm(context, Some(&dm), Some(&attr)), libc::EOPNOTSUPP);
        refuses(mlx5dv_create_flow_action_modify_header(context, 8, memory.cast(), 0), libc::EOPNOTSUPP);
        refuses(mlx5dv_create_flow_action_packet_reformat(context, 8, memory, 0, 0), libc::EOPNOTSUPP);
        let anchor: mlx5dv_steering_anchor_attr = zeroed();
        refuses(mlx5dv_create_steering_anchor(context, Some(&anchor)), libc::EOPNOTSUPP);
        refuses(mlx5dv_pp_alloc(context, 48, memory, 0), libc::EOPNOTSUPP);
        refuses(
            mlx5dv_create_flow_matcher(context, Some(&zeroed::<mlx5dv_flow_matcher_attr>())),
            libc::EOPNOTSUPP,
        );
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}

#[test]
fn null_arguments_are_invalid() {
    let empty: mlx5dv_obj = zeroed();
    // SAFETY: all pointers are null, or those of a struct of null pointers.
    unsafe {
        refuses(mlx5dv_dr_action_create_dest_ibv_qp(None), libc::EINVAL);
        for failed in [
            mlx5dv_query_device(NO_CONTEXT(), ptr::null_mut()),
            mlx5dv_get_clock_info(NO_CONTEXT(), None),
            _mlx5dv_query_port(NO_CONTEXT(), 1, ptr::null_mut(), 0),
            mlx5dv_init_obj(None, MLX5DV_OBJ_QP as u64),
            mlx5dv_init_obj(Some(&empty), 0),
            mlx5dv_init_obj(Some(&empty), u64::MAX),
            mlx5dv_init_obj_1_0(Some(&empty), u64::MAX),
            mlx5dv_devx_general_cmd(NO_CONTEXT(), ptr::null(), 0, ptr::null_mut(), 0),
            mlx5dv_devx_query_eqn(NO_CONTEXT(), 0, None),
            mlx5dv_devx_obj_destroy(None),
            mlx5dv_devx_umem_dereg(None),
            mlx5dv_destroy_flow_matcher(None),
            mlx5dv_destroy_steering_anchor(None),
            mlx5dv_dr_action_destroy(None),
            destroy_flow_action(None),
            mlx5dv_modify_qp_udp_sport(None, 0),
            mlx5dv_modify_qp_lag_port(None, 1),
            mlx5dv_query_qp_lag_port(None, None, None),
            mlx5dv_reserved_qpn_alloc(NO_CONTEXT(), None),
            mlx5dv_reserved_qpn_dealloc(NO_CONTEXT(), 0),
        ] {
            assert_eq!((failed, errno()), (libc::EINVAL, libc::EINVAL));
        }
        assert!(!mlx5dv_is_supported(None));
        refuses(mlx5dv_open_device(None, None), libc::EINVAL);
        refuses(mlx5dv_create_cq(NO_CONTEXT(), None, None), libc::EINVAL);
        refuses(mlx5dv_create_qp(NO_CONTEXT(), None, None), libc::EINVAL);
        refuses(mlx5dv_create_wq(NO_CONTEXT(), None, None), libc::EINVAL);
        refuses(mlx5dv_alloc_dm(NO_CONTEXT(), None, None), libc::EINVAL);
        refuses(mlx5dv_create_flow_action_modify_header(NO_CONTEXT(), 0, ptr::null(), 0), libc::EINVAL);
        refuses(mlx5dv_create_flow_action_packet_reformat(NO_CONTEXT(), 0, ptr::null(), 0, 0), libc::EINVAL);
        refuses(mlx5dv_create_steering_anchor(NO_CONTEXT(), None), libc::EINVAL);
        refuses(mlx5dv_qp_ex_from_ibv_qp_ex(None), libc::EINVAL);
        refuses(mlx5dv_create_flow_matcher(NO_CONTEXT(), None), libc::EINVAL);
        refuses(__mlx5dv_create_flow(None, ptr::null(), 0, ptr::null(), 0), libc::EINVAL);
        assert_eq!((mlx5dv_devx_uar_export_dmabuf_fd(None), errno()), (-1, libc::EINVAL));
        assert_eq!((mlx5dv_devx_get_event(None, ptr::null_mut(), 0), errno()), (-1, libc::EINVAL));
    }
}
