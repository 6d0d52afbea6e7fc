//! Extended reliable connection (XRC): domains and target QPs.

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

/// Opens the XRC domain of the inode of `shared`, or creates a new one. Returns its handle. In
/// `flags`, `CREATE` allows creation; `EXCL` rejects an existing domain.
///
/// # Errors
///
/// The kernel's error: `EAGAIN` if the domain does not exist and `CREATE` is missing, `EINVAL` if
/// it exists and `EXCL` is set.
#[doc(alias = "ibv_open_xrcd")]
pub fn open_xrcd(
    file: &DeviceFile,
    shared: Option<BorrowedFd<'_>>,
    flags: OFlags,
) -> Result<u32, IoctlError> {
    let fd = shared.map_or(-1, |fd| fd.as_raw_fd());
    let request = OpenXrcdReq { fd: fd as u32, oflags: flags.bits(), ..OpenXrcdReq::zeroed() };
    let mut response = OpenXrcdResp::zeroed();
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::OpenXrcd>(&request, &mut response) }?;
    Ok(response.xrcd_handle)
}

/// Closes an XRC domain. The kernel destroys it with its last user.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while objects created through this handle use it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the domain.
#[doc(alias = "ibv_close_xrcd")]
pub unsafe fn close_xrcd(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<XrcdDestroy>::new(file.driver_id());
    call.destroy(XrcdDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Creates an XRC target QP.
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
    // SAFETY: this function's contract is the same, and a handle is not an address.
    unsafe { create_qp_without_rings(file, QpType::XRC_TGT, request.user_handle, add_handles, payload) }
}

/// Opens an existing XRC target QP of an XRC domain.
///
/// # Errors
///
/// The kernel's error: `EINVAL` if the domain has no such QP.
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
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::OpenQp>(&request, &mut response) }?;
    Ok(QpHandle { handle: response.qp_handle, qp_num: response.qpn, cap: QpCap::zeroed() })
}
