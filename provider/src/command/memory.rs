//! Memory windows, and changes of memory regions.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::MwDestroy;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::verbs_values::{MrReregFlags, MwType};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{AllocMwReq, AllocMwResp, ReregMrReq, ReregMrResp};

use crate::device::{DeviceFile, IoctlError};

/// A memory window as the kernel made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwHandle {
    /// The kernel's handle.
    pub handle: u32,
    /// Its key, with which peers can do nothing before it is bound.
    pub rkey: u32,
}

/// Creates a memory window in the protection domain with the kernel's handle `pd`.
///
/// # Errors
///
/// The kernel's error, `EOPNOTSUPP` where the device has no memory windows.
#[doc(alias = "ibv_alloc_mw")]
pub fn alloc_mw(file: &DeviceFile, pd: u32, mw_type: MwType) -> Result<MwHandle, IoctlError> {
    let request = AllocMwReq { pd_handle: pd, mw_type, ..AllocMwReq::zeroed() };
    let mut response = AllocMwResp::zeroed();
    // SAFETY: the command reads and writes nothing but its structs.
    unsafe { file.invoke::<write::AllocMw>(&request, &mut response) }?;
    Ok(MwHandle { handle: response.mw_handle, rkey: response.rkey })
}

/// Deallocates a memory window, bound or not.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the window any more.
#[doc(alias = "ibv_dealloc_mw")]
pub unsafe fn dealloc_mw(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<MwDestroy>::new(file.driver_id());
    call.destroy(MwDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// What a memory region is to become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReregMr {
    /// Handle of another protection domain.
    pub pd: Option<u32>,
    /// Other rights.
    pub access: Option<AccessFlags>,
}

/// Changes a memory region in place; returns its local and its remote key, which a device may have
/// changed.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` where the device or the kernel cannot do that, `EINVAL` for no
/// change at all, `EACCES` where memory that was pinned for reading is to be written.
///
/// # Safety
///
/// 1. The handle must be that of a region of the caller's own: nothing else of this process relies
///    on its domain, rights or keys.
/// 2. The device and, as far as the new rights allow, peers will read and write the range from here
///    on. It must be memory that may be used so.
#[doc(alias = "ibv_rereg_mr")]
pub unsafe fn rereg_mr(file: &DeviceFile, handle: u32, change: &ReregMr) -> Result<(u32, u32), IoctlError> {
    let mut request = ReregMrReq { mr_handle: handle, ..ReregMrReq::zeroed() };
    if let Some(pd) = change.pd {
        request.flags |= MrReregFlags::PD;
        request.pd_handle = pd;
    }
    if let Some(access) = change.access {
        request.flags |= MrReregFlags::ACCESS;
        request.access_flags = access;
    }
    let mut response = ReregMrResp::zeroed();
    // SAFETY: the caller answers for the range.
    unsafe { file.invoke::<write::ReregMr>(&request, &mut response) }?;
    Ok((response.lkey, response.rkey))
}
