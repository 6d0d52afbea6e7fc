//! Resize and event moderation of CQs.

use bareverbs_uapi::verbs_values::CqAttrMask;
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{CqModeration, ExModifyCq, ResizeCqReq, ResizeCqResp};

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};

/// Resizes a CQ to at least `entries` CQEs. Returns the new number, as the kernel reports it.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for more CQEs than the device supports or fewer than the CQ holds
/// now.
///
/// # Safety
///
/// 1. The caller must own the CQ `cq` and must switch its ring after the resize.
/// 2. Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_resize_cq")]
pub unsafe fn resize_cq(
    file: &DeviceFile,
    cq: u32,
    entries: u32,
    payload: DriverPayload<'_>,
) -> Result<u32, IoctlError> {
    let request = ResizeCqReq { cq_handle: cq, cqe: entries, ..ResizeCqReq::zeroed() };
    let mut response = ResizeCqResp::zeroed();
    let mut call = write::invoke::<write::ResizeCq>(file.driver_id(), &request, &mut response);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }.map_err(|refused| IoctlError { method: "ResizeCq", ..refused })?;
    Ok(response.cqe)
}

/// Sets the event moderation: an armed CQ raises its event after `count` completions or `period`
/// microseconds, whichever comes first.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` if the driver does not support it.
#[doc(alias = "ibv_modify_cq")]
pub fn moderate_cq(file: &DeviceFile, cq: u32, count: u16, period: u16) -> Result<(), IoctlError> {
    let request = ExModifyCq {
        cq_handle: cq,
        attr_mask: CqAttrMask::MODERATE,
        attr: CqModeration { cq_count: count, cq_period: period },
        ..ExModifyCq::zeroed()
    };
    // SAFETY: the command reads only its struct.
    unsafe { file.invoke::<write::ex::ModifyCq>(&request, &mut ()) }
}
