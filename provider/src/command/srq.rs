//! Shared receive queues (SRQs).

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::SrqType;
use bareverbs_uapi::uverbs::{SrqCreate, SrqDestroy};
use bareverbs_uapi::write::structs::{DestroySrqResp, ModifySrqReq, QuerySrqReq, QuerySrqResp};
use bareverbs_uapi::write::{self, ModifySrq, WriteCommand};

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};
use crate::request::SrqRequest;

/// A created SRQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqHandle {
    /// The handle.
    pub handle: u32,
    /// Capacity in receives, as the kernel reports it.
    pub max_wr: u32,
    /// SGEs of each receive, as the kernel reports it.
    pub max_sge: u32,
    /// SRQ number of an XRC SRQ, as on the wire. 0 for other SRQs, whose number only some drivers
    /// report.
    pub srq_num: u32,
}

/// Creates an SRQ.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a depth or width that the device does not support.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_create_srq")]
pub unsafe fn create_srq(
    file: &DeviceFile,
    request: &SrqRequest<'_>,
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
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(SrqCreate::HANDLE);
    Ok(SrqHandle { handle, max_wr, max_sge, srq_num })
}

/// Destroys an SRQ. Returns the number of its events that were put into the event stream.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while a QP uses it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the SRQ.
#[doc(alias = "ibv_destroy_srq")]
pub unsafe fn destroy_srq(file: &DeviceFile, handle: u32) -> Result<DestroySrqResp, IoctlError> {
    let mut response = DestroySrqResp::zeroed();
    let mut call = Call::<SrqDestroy>::new(file.driver_id());
    call.destroy(SrqDestroy::HANDLE, handle);
    call.output(SrqDestroy::RESP, &mut response);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(response)
}

/// Queries the attributes of an SRQ.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_query_srq")]
pub fn query_srq(file: &DeviceFile, handle: u32) -> Result<QuerySrqResp, IoctlError> {
    let request = QuerySrqReq { srq_handle: handle, ..QuerySrqReq::zeroed() };
    let mut response = QuerySrqResp::zeroed();
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::QuerySrq>(&request, &mut response) }?;
    Ok(response)
}

/// Changes the depth or limit of an SRQ.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a depth below the posted receives or the limit, or above the
/// device's maximum.
///
/// # Safety
///
/// 1. The caller must own the SRQ `request.srq_handle` and must switch its rings after a resize.
/// 2. Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_modify_srq")]
pub unsafe fn modify_srq(
    file: &DeviceFile,
    request: &ModifySrqReq,
    payload: DriverPayload<'_>,
) -> Result<(), IoctlError> {
    let mut call = write::invoke_without_response::<ModifySrq>(file.driver_id(), request);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: ModifySrq::INFO.rust, ..refused })
}
