//! Memory windows (MWs), and re-registration of MRs.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::MwDestroy;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::verbs_values::{MrReregFlags, MwType};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{AllocMwReq, AllocMwResp, ReregMrReq, ReregMrResp};

use crate::device::{DeviceFile, IoctlError};

/// A created MW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwHandle {
    /// The kernel's handle.
    pub handle: u32,
    /// Its R_Key, which gives no access before the MW is bound.
    pub rkey: u32,
}

/// Creates an MW in the PD with the kernel's handle `pd`.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` if the device does not support MWs.
#[doc(alias = "ibv_alloc_mw")]
pub fn alloc_mw(file: &DeviceFile, pd: u32, mw_type: MwType) -> Result<MwHandle, IoctlError> {
    let request = AllocMwReq { pd_handle: pd, mw_type, ..AllocMwReq::zeroed() };
    let mut response = AllocMwResp::zeroed();
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::AllocMw>(&request, &mut response) }?;
    Ok(MwHandle { handle: response.mw_handle, rkey: response.rkey })
}

/// Deallocates an MW, bound or not.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the MW.
#[doc(alias = "ibv_dealloc_mw")]
pub unsafe fn dealloc_mw(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<MwDestroy>::new(file.driver_id());
    call.destroy(MwDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// The new memory of an MR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// I/O virtual address (IOVA) of the first byte.
    pub iova: u64,
}

/// The new memory, PD and access rights of an MR; `None` leaves them unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReregMr {
    /// The new memory.
    pub translation: Option<Translation>,
    /// Handle of the new PD.
    pub pd: Option<u32>,
    /// The new access rights.
    pub access: Option<AccessFlags>,
}

/// Re-registers an MR in place. Returns its L_Key and R_Key, which a device may have changed.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` if the device or the kernel does not support it, `EINVAL` for
/// an empty change, `EACCES` for write access to memory that was pinned for reading.
///
/// # Safety
///
/// 1. The caller must own the MR: no other code of this process relies on its PD, access rights or
///    keys.
/// 2. From now on the device reads and writes the range, the new one if it changes, and peers do as
///    far as the new access rights allow. The memory must permit this use. If a change of the range
///    fails, the device may use either range until the MR is deregistered.
#[doc(alias = "ibv_rereg_mr")]
pub unsafe fn rereg_mr(file: &DeviceFile, handle: u32, change: &ReregMr) -> Result<(u32, u32), IoctlError> {
    let mut request = ReregMrReq { mr_handle: handle, ..ReregMrReq::zeroed() };
    if let Some(Translation { addr, length, iova }) = change.translation {
        request.flags |= MrReregFlags::TRANS;
        (request.start, request.length, request.hca_va) = (addr, length, iova);
    }
    if let Some(pd) = change.pd {
        request.flags |= MrReregFlags::PD;
        request.pd_handle = pd;
    }
    if let Some(access) = change.access {
        request.flags |= MrReregFlags::ACCESS;
        request.access_flags = access;
    }
    let mut response = ReregMrResp::zeroed();
    // SAFETY: the caller guarantees the range.
    unsafe { file.invoke::<write::ReregMr>(&request, &mut response) }?;
    Ok((response.lkey, response.rkey))
}
