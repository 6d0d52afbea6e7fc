//! Opening and closing devices, and the functions that C finds in an open one.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, OnceLock};

use bareverbs::Context;
use bareverbs::device::DriverId;
use bareverbs::untyped::BuiltIn;
use bareverbs_mlx5::Mlx5;
use bareverbs_rxe::Rxe;
use bareverbs_siw::Siw;

use crate::abi::Function;
use crate::abi::device::{ibv_context, ibv_context_ops, verbs_context};
use crate::context::{ContextArgument, ContextObject};
use crate::convention::{Failure, OrErrno, OrNull, export, required};
use crate::data_path::{DataPath, DataPaths};
use crate::device::DeviceObject;
use crate::environment::environment;
use crate::hooks::hook_context;
use crate::private::{refuse_errno, refuse_null};
use crate::{
    cq, device_memory, dma_handle, domain, flow, flow_action, flow_counters, memory, port, qp, record, srq,
    window, wq, xrc,
};

/// Says to the inline functions that `verbs_context` is in front of the context.
const EXTENDED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// A pointer to each function.
macro_rules! functions {
    ($type:ident { $($field:ident: $function:path,)* $(; $($other:ident: $value:expr,)*)? }) => {
        $type {
            $($field: Function::new($function as *const ()),)*
            $($($other: $value,)*)?
        }
    };
}

fn operations(data_path: &DataPath) -> ibv_context_ops {
    functions! { ibv_context_ops {
        _compat_query_device: port::ibv_query_device,
        _compat_query_port: port::ibv_query_port,
        _compat_alloc_pd: refuse_null,
        _compat_dealloc_pd: refuse_errno,
        _compat_reg_mr: refuse_null,
        _compat_rereg_mr: refuse_errno,
        _compat_dereg_mr: refuse_errno,
        alloc_mw: window::alloc_mw,
        bind_mw: qp::bind_mw,
        dealloc_mw: window::dealloc_mw,
        _compat_create_cq: refuse_null,
        req_notify_cq: cq::req_notify_cq,
        _compat_cq_event: refuse_null,
        _compat_resize_cq: refuse_errno,
        _compat_destroy_cq: refuse_errno,
        _compat_create_srq: refuse_null,
        _compat_modify_srq: refuse_errno,
        _compat_query_srq: refuse_errno,
        _compat_destroy_srq: refuse_errno,
        _compat_create_qp: refuse_null,
        _compat_query_qp: refuse_errno,
        _compat_modify_qp: refuse_errno,
        _compat_destroy_qp: refuse_errno,
        _compat_create_ah: refuse_null,
        _compat_destroy_ah: refuse_errno,
        _compat_attach_mcast: refuse_errno,
        _compat_detach_mcast: refuse_errno,
        _compat_async_event: refuse_null,
        ;
        poll_cq: data_path.poll_cq,
        post_srq_recv: data_path.post_srq_recv,
        post_send: data_path.post_send,
        post_recv: data_path.post_recv,
    }}
}

/// The functions for the queues of a provider. `IS_ELIDED`: the queues have no locks. Otherwise, those in a
/// context find out whether a queue has one.
const fn data_path<P: BuiltIn, const IS_ELIDED: bool>() -> DataPath {
    DataPath {
        post_send: Function::new(qp::post_send::<P, IS_ELIDED> as *const ()),
        post_recv: Function::new(qp::post_recv::<P, IS_ELIDED> as *const ()),
        post_srq_recv: Function::new(srq::post_srq_recv::<P, IS_ELIDED> as *const ()),
        poll_cq: Function::new(cq::poll_cq::<P, IS_ELIDED> as *const ()),
        wr_complete: Function::new(qp::wr_complete::<P> as *const ()),
        polling: cq::poll_functions::<P, IS_ELIDED>(),
    }
}

/// The functions for a device.
fn data_paths(context: &Context) -> &'static DataPaths {
    const fn of<P: BuiltIn>() -> DataPaths {
        DataPaths { locked: data_path::<P, false>(), elided: data_path::<P, true>() }
    }
    match context.driver() {
        DriverId::MLX5 => const { &of::<Mlx5>() },
        DriverId::SIW => const { &of::<Siw>() },
        _ => const { &of::<Rxe>() },
    }
}

/// No pointer is null: the inline functions call some without a test.
fn extended(context: ibv_context) -> verbs_context {
    functions! { verbs_context {
        free_buf: memory::ibv_free_buf,
        alloc_buf: memory::ibv_alloc_buf,
        dm_export_dmabuf_fd: device_memory::ibv_dm_export_dmabuf_fd,
        reg_mr_ex: memory::ibv_reg_mr_ex,
        dealloc_dmah: dma_handle::ibv_dealloc_dmah,
        alloc_dmah: dma_handle::ibv_alloc_dmah,
        query_port: port::query_port,
        advise_mr: memory::advise_mr,
        alloc_null_mr: memory::alloc_null_mr,
        read_counters: flow_counters::read_counters,
        attach_counters_point_flow: flow_counters::attach_counters_point_flow,
        create_counters: flow_counters::create_counters,
        destroy_counters: flow_counters::destroy_counters,
        reg_dm_mr: memory::reg_dm_mr,
        alloc_dm: device_memory::alloc_dm,
        free_dm: device_memory::free_dm,
        modify_flow_action_esp: refuse_errno,
        destroy_flow_action: flow_action::destroy_flow_action,
        create_flow_action_esp: refuse_null,
        modify_qp_rate_limit: qp::modify_qp_rate_limit,
        alloc_parent_domain: memory::alloc_parent_domain,
        dealloc_td: domain::dealloc_td,
        alloc_td: domain::alloc_td,
        modify_cq: cq::modify_cq,
        post_srq_ops: refuse_errno,
        destroy_rwq_ind_table: wq::destroy_rwq_ind_table,
        create_rwq_ind_table: wq::create_rwq_ind_table,
        destroy_wq: wq::destroy_wq,
        modify_wq: wq::modify_wq,
        create_wq: wq::create_wq,
        query_rt_values: port::query_rt_values,
        create_cq_ex: cq::create_cq_ex,
        query_device_ex: port::query_device_ex,
        ibv_destroy_flow: flow::destroy_flow,
        ABI_placeholder2: flow::destroy_flow,
        ibv_create_flow: flow::create_flow,
        ABI_placeholder1: flow::create_flow,
        open_qp: qp::open_qp,
        create_qp_ex: qp::create_qp_ex,
        get_srq_num: srq::get_srq_num,
        create_srq_ex: srq::create_srq_ex,
        open_xrcd: xrc::open_xrcd,
        close_xrcd: xrc::close_xrcd,
        ;
        private: ptr::null_mut(),
        _ABI_placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context: context,
    }}
}

/// The object of C of an open device. An imported context has the descriptor of the program.
pub(crate) fn create(
    context: Context,
    device: Arc<DeviceObject>,
    imported: Option<OwnedFd>,
) -> Result<*mut ibv_context, Failure> {
    let events = context.async_events();
    // Programs make it non-blocking if they want that.
    record::set_blocking(events.as_fd())?;
    let is_single_threaded = context.driver() == DriverId::MLX5 && environment().is_single_threaded;
    let data_paths = data_paths(&context);
    let mut ops = operations(data_paths.of(is_single_threaded));
    let hooks = hook_context(&mut ops);
    let abi = ibv_context {
        device: Arc::as_ptr(&device).cast_mut().cast(),
        ops,
        cmd_fd: imported.as_ref().map_or_else(|| context.as_fd().as_raw_fd(), AsRawFd::as_raw_fd),
        async_fd: events.as_fd().as_raw_fd(),
        num_comp_vectors: c_int::try_from(context.capabilities().num_comp_vectors).unwrap_or(c_int::MAX),
        mutex: MaybeUninit::zeroed(),
        abi_compat: EXTENDED,
    };
    let object = ContextObject {
        abi: extended(abi),
        context,
        hooks,
        data_paths,
        is_single_threaded,
        _imported: imported,
        process: std::process::id(),
        _device: device,
        cq_uar: AtomicPtr::default(),
        core_clock: OnceLock::new(),
        reserved_qpns: Mutex::default(),
    };
    let object = Box::into_raw(Box::new(object));
    // SAFETY: the object exists.
    Ok(unsafe { &raw mut (*object).abi.context })
}

export! {
    fn ibv_open_device(device: Option<&'static DeviceObject>) -> OrNull<ibv_context> {
        let device = required(device)?;
        let context = device.device.open()?;
        create(context, device.reference(), None)
    }

    /// Objects of the context that are left keep the device file open.
    fn ibv_close_device(context: ContextArgument<'_>) -> OrErrno {
        // SAFETY: `ibv_open_device` leaked the object, and the program uses it no longer.
        drop(unsafe { Box::from_raw(context.object()?) });
        Ok(())
    }
}
