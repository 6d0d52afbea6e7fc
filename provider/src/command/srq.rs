//! Shared receive queues.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::SrqType;
use bareverbs_uapi::uverbs::{SrqCreate, SrqDestroy};
use bareverbs_uapi::write::structs::{DestroySrqResp, ModifySrqReq, QuerySrqReq, QuerySrqResp};
use bareverbs_uapi::write::{self, ModifySrq, WriteCommand};

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};
use crate::request::SrqRequest;

/// A shared receive queue as the kernel made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqHandle {
    /// The handle.
    pub handle: u32,
    /// Receives it holds, as the kernel reports it.
    pub max_wr: u32,
    /// SGEs that each carries, as the kernel reports it.
    pub max_sge: u32,
    /// Its number on the wire, for one of XRC; 0 for others, whose number only some drivers tell.
    pub srq_num: u32,
}

/// Creates a shared receive queue.
///
/// # Errors
///
/// The kernel's error, `EINVAL` for a depth or width that the device does not have.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_create_srq")]
pub unsafe fn create_srq(
    file: &DeviceFile,
    request: &SrqRequest,
    payload: DriverPayload<'_>,
) -> Result<SrqHandle, IoctlError> {
    let (mut max_wr, mut max_sge, mut srq_num) = (0, 0, 0);
    let mut call = Call::<SrqCreate>::new(file.driver_id());
    call.make(SrqCreate::HANDLE);
    call.handle(SrqCreate::PD_HANDLE, request.pd);
    call.constant(SrqCreate::TYPE, if request.xrc.is_some() { SrqType::XRC } else { SrqType::BASIC });
    if let Some(xrc) = request.xrc {
        call.handle(SrqCreate::XRCD_HANDLE, xrc.xrcd);
        call.handle(SrqCreate::CQ_HANDLE, xrc.cq);
        call.output(SrqCreate::RESP_SRQ_NUM, &mut srq_num);
    }
    call.input(SrqCreate::USER_HANDLE, &request.user_handle);
    call.input(SrqCreate::MAX_WR, &request.max_wr);
    call.input(SrqCreate::MAX_SGE, &request.max_sge);
    call.input(SrqCreate::LIMIT, &request.limit);
    add_events!(call, file, SrqCreate::EVENT_FD);
    call.output(SrqCreate::RESP_MAX_WR, &mut max_wr);
    call.output(SrqCreate::RESP_MAX_SGE, &mut max_sge);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller answers for that.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(SrqCreate::HANDLE);
    Ok(SrqHandle { handle, max_wr, max_sge, srq_num })
}

/// Destroys a shared receive queue; returns how many of its events were put into their stream.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while a queue pair uses it.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the queue any more.
#[doc(alias = "ibv_destroy_srq")]
pub unsafe fn destroy_srq(file: &DeviceFile, handle: u32) -> Result<DestroySrqResp, IoctlError> {
    let mut response = DestroySrqResp::zeroed();
    let mut call = Call::<SrqDestroy>::new(file.driver_id());
    call.destroy(SrqDestroy::HANDLE, handle);
    call.output(SrqDestroy::RESP, &mut response);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(response)
}

/// Reads a shared receive queue's attributes.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_query_srq")]
pub fn query_srq(file: &DeviceFile, handle: u32) -> Result<QuerySrqResp, IoctlError> {
    let request = QuerySrqReq { srq_handle: handle, ..QuerySrqReq::zeroed() };
    let mut response = QuerySrqResp::zeroed();
    // SAFETY: the command reads and writes nothing but its structs.
    unsafe { file.invoke::<write::QuerySrq>(&request, &mut response) }?;
    Ok(response)
}

/// Changes a shared receive queue's depth or limit.
///
/// # Errors
///
/// The kernel's error, `EINVAL` for a depth below the receives that are posted or the limit, or
/// beyond the device's.
///
/// # Safety
///
/// 1. `request.srq_handle` must be the handle of a shared receive queue of the caller's own, whose
///    rings follow a resize.
/// 2. Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_modify_srq")]
pub unsafe fn modify_srq(
    file: &DeviceFile,
    request: &ModifySrqReq,
    payload: DriverPayload<'_>,
) -> Result<(), IoctlError> {
    let mut call = write::invoke_without_response::<ModifySrq>(file.driver_id(), request);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller answers for that.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: ModifySrq::INFO.rust, ..refused })
}
