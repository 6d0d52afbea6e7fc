//! Completion counters.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::comp_cntr::{CompCntrEntry, CompCntrModifyOp, CompCntrOps};
use bareverbs_uapi::uverbs::{
    CompCntrCreate, CompCntrDestroy, CompCntrModify, CompCntrRead, QpAttachCompCntr, QueryCompCntrCaps,
};

use crate::device::{DeviceFile, IoctlError};

/// Limits of completion counters.
#[doc(alias = "ibv_comp_cntr_caps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompCntrCaps {
    /// Maximum number of counters.
    pub max_counters: u32,
    /// Maximum value of a counter.
    pub max_value: u64,
    /// Operations whose completions can be counted.
    pub ops: CompCntrOps,
}

/// Queries the limits of completion counters.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` if the driver has none, `EPROTONOSUPPORT` before Linux 7.3.
#[doc(alias = "ibv_query_comp_cntr_caps")]
pub fn query_comp_cntr_caps(file: &DeviceFile) -> Result<CompCntrCaps, IoctlError> {
    let (mut max_counters, mut max_value, mut ops) = (0, 0, CompCntrOps::empty());
    let mut call = Call::<QueryCompCntrCaps>::new(file.driver_id());
    call.output(QueryCompCntrCaps::MAX_COUNTERS, &mut max_counters)
        .output(QueryCompCntrCaps::MAX_VALUE, &mut max_value)
        .output(QueryCompCntrCaps::SUPPORTED_QP_ATTACH_OPS, &mut ops);
    // SAFETY: the call borrows its results.
    unsafe { file.execute(&mut call) }?;
    Ok(CompCntrCaps { max_counters, max_value, ops })
}

/// Creates a completion counter, whose values are 0. Returns its handle.
///
/// # Errors
///
/// As for [`query_comp_cntr_caps`].
#[doc(alias = "ibv_create_comp_cntr")]
pub fn create_comp_cntr(file: &DeviceFile) -> Result<u32, IoctlError> {
    let mut call = Call::<CompCntrCreate>::new(file.driver_id());
    call.make(CompCntrCreate::HANDLE);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }?;
    Ok(call.made(CompCntrCreate::HANDLE))
}

/// Destroys a completion counter.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while a QP uses it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the counter.
#[doc(alias = "ibv_destroy_comp_cntr")]
pub unsafe fn destroy_comp_cntr(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<CompCntrDestroy>::new(file.driver_id());
    call.destroy(CompCntrDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Changes a value of a completion counter.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_set_comp_cntr")]
#[doc(alias = "ibv_inc_comp_cntr")]
pub fn modify_comp_cntr(
    file: &DeviceFile,
    handle: u32,
    entry: CompCntrEntry,
    op: CompCntrModifyOp,
    value: u64,
) -> Result<(), IoctlError> {
    let mut call = Call::<CompCntrModify>::new(file.driver_id());
    call.handle_write(CompCntrModify::HANDLE, handle)
        .constant(CompCntrModify::ENTRY, entry)
        .constant(CompCntrModify::OP, op)
        .input(CompCntrModify::VALUE, &value);
    // SAFETY: the call borrows the value.
    unsafe { file.execute(&mut call) }
}

/// Reads a value of a completion counter.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_read_comp_cntr")]
pub fn read_comp_cntr(file: &DeviceFile, handle: u32, entry: CompCntrEntry) -> Result<u64, IoctlError> {
    let mut value = 0;
    let mut call = Call::<CompCntrRead>::new(file.driver_id());
    call.handle(CompCntrRead::HANDLE, handle)
        .constant(CompCntrRead::ENTRY, entry)
        .output(CompCntrRead::RESP_VALUE, &mut value);
    // SAFETY: the call borrows the value.
    unsafe { file.execute(&mut call) }?;
    Ok(value)
}

/// Lets a counter count completions of these operations of the QP `qp`, until the QP is destroyed.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_qp_attach_comp_cntr")]
pub fn attach_comp_cntr(file: &DeviceFile, qp: u32, handle: u32, ops: CompCntrOps) -> Result<(), IoctlError> {
    let mut call = Call::<QpAttachCompCntr>::new(file.driver_id());
    call.handle_write(QpAttachCompCntr::HANDLE, qp)
        .handle(QpAttachCompCntr::CNTR_HANDLE, handle)
        .flags(QpAttachCompCntr::OP_MASK, ops);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}
