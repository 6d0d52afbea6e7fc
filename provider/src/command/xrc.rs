//! Extended reliable connections: domains, and the queue pairs that receive for them.

use std::os::fd::{AsRawFd, BorrowedFd};

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use bareverbs_uapi::uverbs::{QpCreate, XrcdDestroy};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{CreateQpResp, OpenQpReq, OpenXrcdReq, OpenXrcdResp};
use rustix::fs::OFlags;

use super::queueless::create_queueless_qp;
use super::{DriverPayload, QpHandle};
use crate::contract::XrcTargetRequest;
use crate::device::{DeviceFile, Refused};

/// Makes an XRC domain, or joins the one that belongs to the inode of `shared`; returns its handle. Of `flags`, `CREATE`
/// allows to make it and `EXCL` to do nothing else.
///
/// # Errors
///
/// The kernel's refusal: `EAGAIN` where it may not be made and is not there, `EINVAL` where it may only be made and is.
#[doc(alias = "ibv_open_xrcd")]
pub fn open_xrcd(file: &DeviceFile, shared: Option<BorrowedFd<'_>>, flags: OFlags) -> Result<u32, Refused> {
    let fd = shared.map_or(-1, |fd| fd.as_raw_fd());
    let request = OpenXrcdReq { fd: fd as u32, oflags: flags.bits(), ..OpenXrcdReq::zeroed() };
    let mut response = OpenXrcdResp::zeroed();
    // SAFETY: the command reads and writes nothing but its structs.
    unsafe { file.invoke::<write::OpenXrcd>(&request, &mut response) }?;
    Ok(response.xrcd_handle)
}

/// Leaves an XRC domain; with the last one who has it, it goes.
///
/// # Errors
///
/// The kernel's refusal, `EBUSY` while objects made through this handle use it.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the domain any more.
#[doc(alias = "ibv_close_xrcd")]
pub unsafe fn close_xrcd(file: &DeviceFile, handle: u32) -> Result<(), Refused> {
    let mut call = Call::<XrcdDestroy>::new(file.driver_id());
    call.destroy(XrcdDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Makes a queue pair that receives for an XRC domain.
///
/// # Errors
///
/// The kernel's refusal.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub unsafe fn create_xrc_target(
    file: &DeviceFile,
    request: &XrcTargetRequest,
    payload: DriverPayload<'_>,
) -> Result<QpHandle, Refused> {
    let names = |call: &mut Call<'_, QpCreate>| {
        call.handle(QpCreate::XRCD_HANDLE, request.xrcd);
    };
    // SAFETY: the caller's promise is the same, and a handle is no address.
    unsafe { create_queueless_qp(file, QpType::XRC_TGT, request.user_handle, names, payload) }
}

/// Takes part in a queue pair that receives for an XRC domain and that somebody else made there.
///
/// # Errors
///
/// The kernel's refusal, `EINVAL` where the domain has no such queue pair.
#[doc(alias = "ibv_open_qp")]
pub fn open_xrc_target(
    file: &DeviceFile,
    request: &XrcTargetRequest,
    qp_num: u32,
) -> Result<QpHandle, Refused> {
    let request = OpenQpReq {
        pd_handle: request.xrcd,
        user_handle: request.user_handle,
        qpn: qp_num,
        qp_type: QpType::XRC_TGT.0 as u8,
        ..OpenQpReq::zeroed()
    };
    let mut response = CreateQpResp::zeroed();
    // SAFETY: the command reads and writes nothing but its structs.
    unsafe { file.invoke::<write::OpenQp>(&request, &mut response) }?;
    Ok(QpHandle { handle: response.qp_handle, qp_num: response.qpn, cap: QpCap::zeroed() })
}
