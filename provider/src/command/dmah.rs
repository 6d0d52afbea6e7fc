//! DMA handles.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::dmah::TphMemType;
use bareverbs_uapi::uverbs::{DmahAlloc, DmahFree};

use crate::device::{DeviceFile, IoctlError};

/// The hints of a DMA handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmahRequest {
    /// PCIe processing hint, two bits.
    pub processing_hint: Option<u8>,
    /// The CPU whose cache the data is intended for, and the type of the memory.
    pub cpu: Option<(u32, TphMemType)>,
}

/// Creates a DMA handle (ioctl method `DMAH_ALLOC`).
///
/// # Errors
///
/// The kernel's error: `EPROTONOSUPPORT` from a kernel, a driver or a device without DMA handles,
/// `EINVAL` for hints that do not fit, `EPERM` for a CPU that the calling thread may not run on.
#[doc(alias = "ibv_alloc_dmah")]
pub fn alloc_dmah(file: &DeviceFile, request: &DmahRequest) -> Result<u32, IoctlError> {
    let DmahRequest { processing_hint, cpu } = *request;
    let (hint, id) = (processing_hint.unwrap_or_default(), cpu.map_or(0, |(id, _)| id));
    let mut call = Call::<DmahAlloc>::new(file.driver_id());
    call.make(DmahAlloc::HANDLE);
    if let Some((_, memory)) = cpu {
        call.input(DmahAlloc::CPU_ID, &id);
        call.enumeration(DmahAlloc::TPH_MEM_TYPE, memory, &[]);
    }
    if processing_hint.is_some() {
        call.input(DmahAlloc::PH, &hint);
    }
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }?;
    Ok(call.made(DmahAlloc::HANDLE))
}

/// Destroys a DMA handle.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while an MR uses it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses it.
#[doc(alias = "ibv_dealloc_dmah")]
pub unsafe fn free_dmah(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<DmahFree>::new(file.driver_id());
    call.destroy(DmahFree::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}
