//! Extended reliable connections: domains, and the queue pairs that receive for them.

use std::os::fd::{AsRawFd, BorrowedFd};

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use bareverbs_uapi::uverbs::{QpCreate, XrcdDestroy};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{CreateQpResp, OpenQpReq, OpenXrcdReq, OpenXrcdResp};
use rustix::fs::OFlags;

use super::qp_without_rings::create_qp_without_rings;
use super::{DriverPayload, QpHandle};
use crate::device::{DeviceFile, IoctlError};
use crate::request::XrcTargetRequest;

/// Creates an XRC domain, or joins the one that belongs to the inode of `shared`; returns its
/// handle. Of `flags`, `CREATE` allows to make it and `EXCL` to do nothing else.
///
/// # Errors
///
/// The kernel's error: `EAGAIN` where it may not be made and is not there, `EINVAL` where it may
/// only be made and is.
#[doc(alias = "ibv_open_xrcd")]
pub fn open_xrcd(
    file: &DeviceFile,
    shared: Option<BorrowedFd<'_>>,
    flags: OFlags,
) -> Result<u32, IoctlError> {
    let fd = shared.map_or(-1, |fd| fd.as_raw_fd());
    let request = OpenXrcdReq { fd: fd as u32, oflags: flags.bits(), ..OpenXrcdReq::zeroed() };
    let mut response = OpenXrcdResp::zeroed();
    // SAFETY: the command reads and writes nothing but its structs.
    unsafe { file.invoke::<write::OpenXrcd>(&request, &mut response) }?;
    Ok(response.xrcd_handle)
}

/// Closes an XRC domain. The kernel destroys it with its last user.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while objects made through this handle use it.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the domain any more.
#[doc(alias = "ibv_close_xrcd")]
pub unsafe fn close_xrcd(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<XrcdDestroy>::new(file.driver_id());
    call.destroy(XrcdDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Creates a queue pair that receives for an XRC domain.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub unsafe fn create_xrc_target(
    file: &DeviceFile,
    request: &XrcTargetRequest,
    payload: DriverPayload<'_>,
) -> Result<QpHandle, IoctlError> {
    let add_handles = |call: &mut Call<'_, QpCreate>| {
        call.handle(QpCreate::XRCD_HANDLE, request.xrcd);
    };
    // SAFETY: the caller's promise is the same, and a handle is no address.
    unsafe { create_qp_without_rings(file, QpType::XRC_TGT, request.user_handle, add_handles, payload) }
}

/// Opens an existing XRC target QP of an XRC domain.
///
/// # Errors
///
/// The kernel's error, `EINVAL` where the domain has no such queue pair.
#[doc(alias = "ibv_open_qp")]
pub fn open_xrc_target(
    file: &DeviceFile,
    request: &XrcTargetRequest,
    qp_num: u32,
) -> Result<QpHandle, IoctlError> {
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
