//! Work queues that receive, tables of them, and queue pairs that spread frames over these.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::{QpType, WqType};
use bareverbs_uapi::uverbs::{QpCreate, RwqIndTblDestroy, WqCreate, WqDestroy};
use bareverbs_uapi::verbs_values::WqAttrMask;
use bareverbs_uapi::write::structs::{ExCreateRwqIndTable, ExCreateRwqIndTableResp, ExModifyWq};
use bareverbs_uapi::write::{self, WriteCommand, ex};
use zerocopy::IntoBytes;

use super::qp_without_rings::create_qp_without_rings;
use super::{DriverPayload, QpHandle};
use crate::device::{DeviceFile, IoctlError};
use crate::request::{RssQpRequest, WqChange, WqRequest};

/// A work queue as the kernel made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqHandle {
    /// The handle.
    pub handle: u32,
    /// Its number.
    pub wq_num: u32,
}

/// Creates a work queue that receives.
///
/// # Errors
///
/// The kernel's error, `EINVAL` for a depth or width that the device does not have.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_create_wq")]
pub unsafe fn create_wq(
    file: &DeviceFile,
    request: &WqRequest,
    payload: DriverPayload<'_>,
) -> Result<WqHandle, IoctlError> {
    let (mut max_wr, mut max_sge, mut wq_num) = (0, 0, 0);
    let mut call = Call::<WqCreate>::new(file.driver_id());
    call.make(WqCreate::HANDLE);
    call.handle(WqCreate::PD_HANDLE, request.pd);
    call.handle(WqCreate::CQ_HANDLE, request.cq);
    call.constant(WqCreate::TYPE, WqType::RQ);
    call.input(WqCreate::USER_HANDLE, &request.user_handle);
    call.input(WqCreate::MAX_WR, &request.max_wr);
    call.input(WqCreate::MAX_SGE, &request.max_sge);
    call.flags(WqCreate::FLAGS, request.flags);
    add_events!(call, file, WqCreate::EVENT_FD);
    // The kernel gives back what was asked for.
    call.output(WqCreate::RESP_MAX_WR, &mut max_wr);
    call.output(WqCreate::RESP_MAX_SGE, &mut max_sge);
    call.output(WqCreate::RESP_WQ_NUM, &mut wq_num);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller answers for that.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(WqCreate::HANDLE);
    Ok(WqHandle { handle, wq_num })
}

/// Changes a work queue.
///
/// # Errors
///
/// The kernel's error, such as the driver's of flags that the device can't change.
///
/// # Safety
///
/// 1. `handle` must be that of a work queue of the caller's own. After a change to RESET, nothing
///    may be pushed before its queue was [reset](crate::traits::RecvQueue::reset).
/// 2. Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_modify_wq")]
pub unsafe fn modify_wq(
    file: &DeviceFile,
    handle: u32,
    change: WqChange,
    payload: DriverPayload<'_>,
) -> Result<(), IoctlError> {
    let whole = ExModifyWq { wq_handle: handle, ..ExModifyWq::zeroed() };
    let request = match change {
        WqChange::State { from, to } => {
            let attr_mask = WqAttrMask::STATE | WqAttrMask::CUR_STATE;
            ExModifyWq { attr_mask, wq_state: to, curr_wq_state: from, ..whole }
        }
        WqChange::Flags { which, flags } => {
            ExModifyWq { attr_mask: WqAttrMask::FLAGS, flags, flags_mask: which, ..whole }
        }
    };
    let mut call = write::invoke_without_response::<ex::ModifyWq>(file.driver_id(), &request);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller answers for that.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: ex::ModifyWq::INFO.rust, ..refused })
}

/// Destroys a work queue; returns how many of its events were put into their stream.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while a table names it.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the work queue any more.
#[doc(alias = "ibv_destroy_wq")]
pub unsafe fn destroy_wq(file: &DeviceFile, handle: u32) -> Result<u32, IoctlError> {
    let mut events = 0;
    let mut call = Call::<WqDestroy>::new(file.driver_id());
    call.destroy(WqDestroy::HANDLE, handle);
    call.output(WqDestroy::RESP, &mut events);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(events)
}

/// Creates a table of work queues, a power of 2 of them; returns its handle.
///
/// # Errors
///
/// The kernel's error, `EINVAL` for a number of queues that is none or that the device does not
/// have.
#[doc(alias = "ibv_create_rwq_ind_table")]
pub fn create_rwq_ind_table(file: &DeviceFile, wqs: &[u32]) -> Result<u32, IoctlError> {
    let refused = |errno| IoctlError { method: ex::CreateRwqIndTbl::INFO.rust, errno };
    if !wqs.len().is_power_of_two() {
        return Err(refused(rustix::io::Errno::INVAL));
    }
    let log_ind_tbl_size = wqs.len().trailing_zeros();
    let head = ExCreateRwqIndTable { log_ind_tbl_size, ..ExCreateRwqIndTable::zeroed() };
    let request = [head.as_bytes(), wqs.as_bytes()].concat();
    let mut response = ExCreateRwqIndTableResp::zeroed();
    let mut call =
        write::invoke_bytes::<ex::CreateRwqIndTbl>(file.driver_id(), &request, response.as_mut_bytes());
    // SAFETY: the command reads and writes nothing but its structs.
    unsafe { file.execute(&mut call) }.map_err(|kernel| refused(kernel.errno))?;
    Ok(response.ind_tbl_handle)
}

/// Destroys a table of work queues.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while a queue pair uses it.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the table any more.
#[doc(alias = "ibv_destroy_rwq_ind_table")]
pub unsafe fn destroy_rwq_ind_table(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<RwqIndTblDestroy>::new(file.driver_id());
    call.destroy(RwqIndTblDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Creates a queue pair that spreads frames over a table of work queues. What it hashes is for the
/// driver's payload to say.
///
/// # Errors
///
/// The kernel's error, `EPERM` without the privilege `CAP_NET_RAW`.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_create_qp_ex")]
pub unsafe fn create_rss_qp(
    file: &DeviceFile,
    request: &RssQpRequest,
    payload: DriverPayload<'_>,
) -> Result<QpHandle, IoctlError> {
    let add_handles = |call: &mut Call<'_, QpCreate>| {
        call.handle(QpCreate::PD_HANDLE, request.pd);
        call.handle(QpCreate::IND_TABLE_HANDLE, request.table);
    };
    // SAFETY: the caller's promise is the same, and handles are no addresses.
    unsafe { create_qp_without_rings(file, QpType::RAW_PACKET, request.user_handle, add_handles, payload) }
}
