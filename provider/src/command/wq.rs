//! Receive work queues (WQs), indirection tables, and RSS QPs.

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

/// A created WQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WqHandle {
    /// The handle.
    pub handle: u32,
    /// WQ number.
    pub wq_num: u32,
}

/// Creates a receive WQ.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a depth or width that the device does not support.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_create_wq")]
pub unsafe fn create_wq(
    file: &DeviceFile,
    request: &WqRequest<'_>,
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
    // The kernel returns the requested sizes.
    call.output(WqCreate::RESP_MAX_WR, &mut max_wr);
    call.output(WqCreate::RESP_MAX_SGE, &mut max_sge);
    call.output(WqCreate::RESP_WQ_NUM, &mut wq_num);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(WqCreate::HANDLE);
    Ok(WqHandle { handle, wq_num })
}

/// Changes a WQ.
///
/// # Errors
///
/// The kernel's error, such as the driver's error for flags that the device can't change.
///
/// # Safety
///
/// 1. The caller must own the WQ `handle`. After a change to RESET, the caller must
///    [reset](crate::traits::RecvQueue::reset) its queue before it pushes a request.
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
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: ex::ModifyWq::INFO.rust, ..refused })
}

/// Destroys a WQ. Returns the number of its events that were put into the event stream.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while an indirection table names it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the WQ.
#[doc(alias = "ibv_destroy_wq")]
pub unsafe fn destroy_wq(file: &DeviceFile, handle: u32) -> Result<u32, IoctlError> {
    let mut events = 0;
    let mut call = Call::<WqDestroy>::new(file.driver_id());
    call.destroy(WqDestroy::HANDLE, handle);
    call.output(WqDestroy::RESP, &mut events);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(events)
}

/// A created indirection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHandle {
    /// The handle.
    pub handle: u32,
    /// The device's number of the table.
    pub table_num: u32,
}

/// Creates an indirection table of WQs, whose number must be a power of 2.
///
/// # Errors
///
/// `EINVAL` if the number of WQs is not a power of 2 or not supported by the device; else the
/// kernel's error.
#[doc(alias = "ibv_create_rwq_ind_table")]
pub fn create_rwq_ind_table(file: &DeviceFile, wqs: &[u32]) -> Result<TableHandle, IoctlError> {
    let refused = |errno| IoctlError::new(ex::CreateRwqIndTbl::INFO.rust, errno);
    if !wqs.len().is_power_of_two() {
        return Err(refused(rustix::io::Errno::INVAL));
    }
    let log_ind_tbl_size = wqs.len().trailing_zeros();
    let head = ExCreateRwqIndTable { log_ind_tbl_size, ..ExCreateRwqIndTable::zeroed() };
    let request = [head.as_bytes(), wqs.as_bytes()].concat();
    let mut response = ExCreateRwqIndTableResp::zeroed();
    let mut call =
        write::invoke_bytes::<ex::CreateRwqIndTbl>(file.driver_id(), &request, response.as_mut_bytes());
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.execute(&mut call) }.map_err(|kernel| refused(kernel.errno))?;
    Ok(TableHandle { handle: response.ind_tbl_handle, table_num: response.ind_tbl_num })
}

/// Destroys an indirection table.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while a QP uses it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the table.
#[doc(alias = "ibv_destroy_rwq_ind_table")]
pub unsafe fn destroy_rwq_ind_table(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<RwqIndTblDestroy>::new(file.driver_id());
    call.destroy(RwqIndTblDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Creates an RSS QP, which spreads packets over an indirection table of WQs. The driver's payload
/// defines the hash.
///
/// # Errors
///
/// The kernel's error: `EPERM` without `CAP_NET_RAW`.
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
    // SAFETY: this function's contract is the same, and handles are not addresses.
    unsafe { create_qp_without_rings(file, QpType::RAW_PACKET, request.user_handle, add_handles, payload) }
}
