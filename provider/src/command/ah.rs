//! Address handles and multicast groups.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::AhDestroy;
use bareverbs_uapi::write::structs::{AttachMcastReq, CreateAhReq, CreateAhResp, DetachMcastReq};
use bareverbs_uapi::write::{self, AttachMcast, CreateAh, DetachMcast, WriteCommand};

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};
use crate::request::AhRequest;

/// A created address handle (AH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhHandle {
    /// The handle.
    pub handle: u32,
}

/// Creates an address handle. On RoCE the kernel resolves the GID to the next hop's Ethernet
/// address first, which may require a neighbour solicitation.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for an invalid port or GID index; `ENETUNREACH`, `EHOSTUNREACH` or
/// `ETIMEDOUT` if the GID has no route.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_create_ah")]
pub unsafe fn create_ah(
    file: &DeviceFile,
    request: &AhRequest,
    payload: DriverPayload<'_>,
) -> Result<AhHandle, IoctlError> {
    let request = CreateAhReq { pd_handle: request.pd, attr: request.attr, ..CreateAhReq::zeroed() };
    let mut response = CreateAhResp::zeroed();
    let mut call = write::invoke::<CreateAh>(file.driver_id(), &request, &mut response);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: CreateAh::INFO.rust, ..refused })?;
    Ok(AhHandle { handle: response.ah_handle })
}

/// Destroys an address handle.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the address
/// handle. A request that names it may be outstanding: Soft-RoCE then fails it (`rxe_get_av`), and
/// the WQEs of other devices contain the address vector.
#[doc(alias = "ibv_destroy_ah")]
pub unsafe fn destroy_ah(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<AhDestroy>::new(file.driver_id());
    call.destroy(AhDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Attaches a QP to the multicast group `gid`. Attaching it again changes nothing. `mlid` is the
/// multicast LID of the group; InfiniBand only.
///
/// # Errors
///
/// The kernel's error: `EINVAL` if the QP is not UD or the GID is not a multicast GID.
#[doc(alias = "ibv_attach_mcast")]
pub fn attach_mcast(file: &DeviceFile, qp: u32, gid: [u8; 16], mlid: u16) -> Result<(), IoctlError> {
    let request = AttachMcastReq { gid, qp_handle: qp, mlid, ..AttachMcastReq::zeroed() };
    // SAFETY: the command reads only its struct.
    unsafe { file.invoke::<AttachMcast>(&request, &mut ()) }
}

/// Detaches a QP from the multicast group `gid`.
///
/// # Errors
///
/// The kernel's error: `EINVAL` if the QP is not attached to the group.
///
/// # Safety
///
/// The caller must own the QP: no other code of this process relies on its membership.
#[doc(alias = "ibv_detach_mcast")]
pub unsafe fn detach_mcast(file: &DeviceFile, qp: u32, gid: [u8; 16], mlid: u16) -> Result<(), IoctlError> {
    let request = DetachMcastReq { gid, qp_handle: qp, mlid, ..DetachMcastReq::zeroed() };
    // SAFETY: the command reads only its struct.
    unsafe { file.invoke::<DetachMcast>(&request, &mut ()) }
}
