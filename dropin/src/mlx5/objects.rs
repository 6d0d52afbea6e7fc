//! `mlx5dv_init_obj`: addresses of rings, doorbell records and registers, and numbers of objects.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

use bareverbs::raw::uapi::mlx5::PdQuery;
use bareverbs::raw::{DoorbellLayout, QueueLayout, RegisterLayout};

use super::devx::DevxObject;
use super::{context, export};
use crate::abi::device::ibv_context;
use crate::abi::mlx5::{
    mlx5dv_ah, mlx5dv_cq, mlx5dv_devx, mlx5dv_dm, mlx5dv_obj, mlx5dv_pd, mlx5dv_qp, mlx5dv_rwq, mlx5dv_srq,
};
use crate::abi::values::{
    MLX5DV_DM_MASK_REMOTE_VA, MLX5DV_OBJ_AH, MLX5DV_OBJ_CQ, MLX5DV_OBJ_DEVX, MLX5DV_OBJ_DM, MLX5DV_OBJ_PD,
    MLX5DV_OBJ_QP, MLX5DV_OBJ_RWQ, MLX5DV_OBJ_SRQ, MLX5DV_QP_MASK_RAW_QP_HANDLES,
    MLX5DV_QP_MASK_RAW_QP_TIR_ADDR, MLX5DV_QP_MASK_UAR_MMAP_OFFSET, MLX5DV_SRQ_MASK_SRQN, has,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, required};
use crate::cq::CqObject;
use crate::device_memory::DmObject;
use crate::memory::PdObject;
use crate::object::lock;
use crate::path::AhObject;
use crate::qp::QpObject;
use crate::srq::SrqObject;
use crate::wq::WqObject;

/// The doorbell record of a queue, and its register.
fn doorbell(layout: &QueueLayout) -> Result<(*mut u32, Option<RegisterLayout>), Failure> {
    match layout.doorbell {
        DoorbellLayout::Record { record, register } => Ok((record.as_ptr(), register)),
        _ => Err(Failure::UNSUPPORTED),
    }
}

fn check_driver(context_of_object: *mut ibv_context) -> Result<(), Failure> {
    context(ContextArgument::of(context_of_object)).map(drop)
}

/// # Safety
///
/// `out` is null or that of a struct of the program.
unsafe fn qp(qp: &QpObject, out: *mut mlx5dv_qp) -> Result<(), Failure> {
    check_driver(qp.kernel_object().0)?;
    let layout = qp.inner.queues()?.with_core(|core| core.layout());
    let send = layout.send.ok_or(Failure::UNSUPPORTED)?;
    let (dbrec, register) = doorbell(&send)?;
    let register = register.ok_or(Failure::UNSUPPORTED)?;
    // SAFETY: by the contract. Fields behind `comp_mask` exist if their bit is set.
    unsafe {
        let wanted = out.as_ref().ok_or(Failure::INVALID)?.comp_mask;
        (*out).dbrec = dbrec;
        (*out).sq_buf = send.ring.as_ptr().cast();
        ((*out).sq_wqe_cnt, (*out).sq_stride) = (send.slots, send.stride);
        let (buf, slots, stride) = layout
            .recv
            .map_or((ptr::null_mut(), 0, 0), |recv| (recv.ring.as_ptr().cast(), recv.slots, recv.stride));
        ((*out).rq_buf, (*out).rq_wqe_cnt, (*out).rq_stride) = (buf, slots, stride);
        (*out).bf_reg = register.page.as_ptr().wrapping_add(register.offset as usize).cast();
        (*out).bf_size = register.blueflame;
        let mut known = 0;
        let offset = u64::from(MLX5DV_QP_MASK_UAR_MMAP_OFFSET.cast_unsigned());
        if wanted & offset != 0 {
            (*out).uar_mmap_offset = register.mmap_offset.cast_signed();
            known |= offset;
        }
        // Without DEVX, and of other QPs, they are 0, as in C.
        let numbers = send.raw_packet.unwrap_or_default();
        let handles = u64::from(MLX5DV_QP_MASK_RAW_QP_HANDLES.cast_unsigned());
        if wanted & handles != 0 {
            ((*out).tirn, (*out).tisn) = (numbers.tirn, numbers.tisn);
            ((*out).rqn, (*out).sqn) = (numbers.rqn, numbers.sqn);
            known |= handles;
        }
        let address = u64::from(MLX5DV_QP_MASK_RAW_QP_TIR_ADDR.cast_unsigned());
        if wanted & address != 0 {
            (*out).tir_icm_addr = numbers.tir_icm_addr;
            known |= address;
        }
        (*out).comp_mask = known;
    }
    Ok(())
}

fn cq(cq: &CqObject, out: Option<&mut mlx5dv_cq>) -> Result<(), Failure> {
    check_driver(cq.kernel_object().0)?;
    let layout = cq.with_queue(|cq| cq.layout()).ok_or(Failure::UNSUPPORTED)?;
    let (dbrec, register) = doorbell(&layout)?;
    *required(out)? = mlx5dv_cq {
        buf: layout.ring.as_ptr().cast(),
        dbrec,
        cqe_cnt: layout.slots,
        cqe_size: layout.stride,
        // The program adds the offset of the register for CQs.
        cq_uar: register.map_or(ptr::null_mut(), |register| register.page.as_ptr().cast()),
        cqn: layout.number.ok_or(Failure::UNSUPPORTED)?,
        comp_mask: 0,
    };
    Ok(())
}

/// # Safety
///
/// `out` is null or that of a struct of the program.
unsafe fn srq(srq: &SrqObject, out: *mut mlx5dv_srq) -> Result<(), Failure> {
    check_driver(srq.kernel_object().0)?;
    let layout = srq.inner.lock().layout().ok_or(Failure::UNSUPPORTED)?;
    let (dbrec, _) = doorbell(&layout)?;
    // SAFETY: by the contract. Fields behind `comp_mask` exist if their bit is set.
    unsafe {
        let wanted = out.as_ref().ok_or(Failure::INVALID)?.comp_mask;
        (*out).buf = layout.ring.as_ptr().cast();
        (*out).dbrec = dbrec;
        (*out).stride = layout.stride;
        (*out).head = layout.index;
        (*out).tail = layout.tail.unwrap_or_default();
        let number = u64::from(MLX5DV_SRQ_MASK_SRQN.cast_unsigned());
        if wanted & number != 0 {
            (*out).srqn = layout.number.ok_or(Failure::UNSUPPORTED)?;
        }
        (*out).comp_mask = wanted & number;
    }
    Ok(())
}

fn rwq(wq: &WqObject, out: Option<&mut mlx5dv_rwq>) -> Result<(), Failure> {
    check_driver(wq.kernel_object().0)?;
    let layout = wq.inner.lock().layout().ok_or(Failure::UNSUPPORTED)?;
    let (dbrec, _) = doorbell(&layout)?;
    *required(out)? = mlx5dv_rwq {
        buf: layout.ring.as_ptr().cast(),
        dbrec,
        wqe_cnt: layout.slots,
        stride: layout.stride,
        comp_mask: 0,
    };
    Ok(())
}

/// # Safety
///
/// `out` is null or that of a struct of the program.
unsafe fn dm(dm: &DmObject, out: *mut mlx5dv_dm) -> Result<(), Failure> {
    check_driver(dm.abi.context)?;
    if out.is_null() {
        return Err(Failure::INVALID);
    }
    let dm = lock(&dm.inner);
    // SAFETY: by the contract. The field behind `comp_mask` exists if its bit is set.
    unsafe {
        (*out).buf = dm.as_ptr().cast();
        (*out).length = dm.len() as u64;
        let remote = u64::from(MLX5DV_DM_MASK_REMOTE_VA.cast_unsigned());
        let known = (*out).comp_mask & remote;
        if known != 0 {
            // Memory regions of device memory begin at 0.
            (*out).remote_va = 0;
        }
        (*out).comp_mask = known;
    }
    Ok(())
}

fn ah(ah: &AhObject, out: Option<&mut mlx5dv_ah>) -> Result<(), Failure> {
    check_driver(ah.abi.abi.context)?;
    *required(out)? = mlx5dv_ah { av: ah.address_vector().as_ptr().cast_mut().cast(), comp_mask: 0 };
    Ok(())
}

fn pd(pd: &PdObject, out: Option<&mut mlx5dv_pd>) -> Result<(), Failure> {
    let raw = context(ContextArgument::of(pd.abi.context))?.context.raw();
    let mut pdn = 0;
    let query = raw.query::<PdQuery>().handle(PdQuery::HANDLE, pd.inner.handle());
    query.output(PdQuery::RESP_PDN, &mut pdn).execute()?;
    *required(out)? = mlx5dv_pd { pdn, comp_mask: 0 };
    Ok(())
}

fn init(obj: Option<&mlx5dv_obj>, types: u64) -> Result<(), Failure> {
    let obj = required(obj)?;
    let has = |bit| has(types, bit);
    let known = MLX5DV_OBJ_QP
        | MLX5DV_OBJ_CQ
        | MLX5DV_OBJ_SRQ
        | MLX5DV_OBJ_RWQ
        | MLX5DV_OBJ_DM
        | MLX5DV_OBJ_AH
        | MLX5DV_OBJ_PD
        | MLX5DV_OBJ_DEVX;
    if !has(known) {
        return Err(Failure::INVALID);
    }
    // SAFETY: the pointers of the types are those of live objects and of structs of the program, or null.
    unsafe {
        if has(MLX5DV_OBJ_QP) {
            qp(required(obj.qp_in.cast::<QpObject>().as_ref())?, obj.qp_out)?;
        }
        if has(MLX5DV_OBJ_CQ) {
            cq(required(obj.cq_in.cast::<CqObject>().as_ref())?, obj.cq_out.as_mut())?;
        }
        if has(MLX5DV_OBJ_SRQ) {
            srq(required(obj.srq_in.cast::<SrqObject>().as_ref())?, obj.srq_out)?;
        }
        if has(MLX5DV_OBJ_RWQ) {
            rwq(required(obj.rwq_in.cast::<WqObject>().as_ref())?, obj.rwq_out.as_mut())?;
        }
        if has(MLX5DV_OBJ_DM) {
            dm(required(obj.dm_in.cast::<DmObject>().as_ref())?, obj.dm_out)?;
        }
        if has(MLX5DV_OBJ_AH) {
            ah(required(obj.ah_in.cast::<AhObject>().as_ref())?, obj.ah_out.as_mut())?;
        }
        if has(MLX5DV_OBJ_PD) {
            pd(required(obj.pd_in.cast::<PdObject>().as_ref())?, obj.pd_out.as_mut())?;
        }
        if has(MLX5DV_OBJ_DEVX) {
            let handle = required(obj.devx_in.cast::<DevxObject>().as_ref())?.object()?.handle();
            *required(obj.devx_out.as_mut())? = mlx5dv_devx { handle };
        }
    }
    Ok(())
}

export! {
    fn mlx5dv_init_obj(obj: Option<&mlx5dv_obj>, types: u64) -> OrErrno { init(obj, types) }

    /// That of `MLX5_1.0`: `cq_uar` is the address of a pointer to the page.
    fn mlx5dv_init_obj_1_0(obj: Option<&mlx5dv_obj>, types: u64) -> OrErrno {
        init(obj, types)?;
        if has(types, MLX5DV_OBJ_CQ) {
            // SAFETY: `init` has written the struct of this CQ.
            let (cq, out) = unsafe {
                let obj = required(obj)?;
                (obj.cq_in.cast::<CqObject>().as_ref(), &mut *obj.cq_out)
            };
            let page = &ContextArgument::of(required(cq)?.kernel_object().0).required()?.cq_uar;
            page.store(out.cq_uar, Ordering::Relaxed);
            out.cq_uar = ptr::from_ref(page).cast_mut().cast::<c_void>();
        }
        Ok(())
    }
}
