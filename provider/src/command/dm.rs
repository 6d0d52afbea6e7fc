//! Device memory.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::uverbs::{DmFree, DmMrReg};

use super::CreatedMr;
use crate::device::{DeviceFile, IoctlError};

/// Frees device memory.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while it is registered.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the memory.
#[doc(alias = "ibv_free_dm")]
pub unsafe fn free_dm(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<DmFree>::new(file.driver_id());
    call.destroy(DmFree::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Registers `length` bytes of device memory from `offset` on, in the PD `pd`. `access` must
/// contain [`AccessFlags::ZERO_BASED`].
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a range beyond the memory or for access rights that the device
/// does not support.
#[doc(alias = "ibv_reg_dm_mr")]
pub fn reg_dm_mr(
    file: &DeviceFile,
    pd: u32,
    dm: u32,
    (offset, length): (u64, u64),
    access: AccessFlags,
) -> Result<CreatedMr, IoctlError> {
    let (mut lkey, mut rkey) = (0, 0);
    let mut call = Call::<DmMrReg>::new(file.driver_id());
    call.make(DmMrReg::HANDLE);
    call.handle(DmMrReg::PD_HANDLE, pd);
    call.handle(DmMrReg::DM_HANDLE, dm);
    call.input(DmMrReg::OFFSET, &offset);
    call.input(DmMrReg::LENGTH, &length);
    call.flags(DmMrReg::ACCESS_FLAGS, access);
    call.output(DmMrReg::RESP_LKEY, &mut lkey);
    call.output(DmMrReg::RESP_RKEY, &mut rkey);
    // SAFETY: the method writes only its attributes, and the memory is on the device.
    unsafe { file.execute(&mut call) }?;
    Ok(CreatedMr { handle: call.made(DmMrReg::HANDLE), lkey, rkey })
}
