//! Address handles and multicast groups.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::AhDestroy;
use bareverbs_uapi::write::structs::{AttachMcastReq, CreateAhReq, CreateAhResp, DetachMcastReq};
use bareverbs_uapi::write::{self, AttachMcast, CreateAh, DetachMcast, WriteCommand};

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};
use crate::request::AhRequest;

/// An address handle as the kernel made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhHandle {
    /// The handle.
    pub handle: u32,
}

/// Creates an address handle. On RoCE the kernel resolves the GID to the next hop's Ethernet
/// address first, which can take a neighbour solicitation.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a port or an index of a GID that there is not, `ENETUNREACH`,
/// `EHOSTUNREACH` or `ETIMEDOUT` without a route to the GID.
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
    // SAFETY: only the payload could name other memory, and the caller answers for that.
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
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the address handle any more, such as a request not yet complete.
#[doc(alias = "ibv_destroy_ah")]
pub unsafe fn destroy_ah(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<AhDestroy>::new(file.driver_id());
    call.destroy(AhDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Lets a queue pair join the multicast group `gid`; joining once more changes nothing. `mlid` is
/// the group's local identifier, which only InfiniBand has.
///
/// # Errors
///
/// The kernel's error, `EINVAL` where the queue pair is no datagram one or the GID no group's.
#[doc(alias = "ibv_attach_mcast")]
pub fn attach_mcast(file: &DeviceFile, qp: u32, gid: [u8; 16], mlid: u16) -> Result<(), IoctlError> {
    let request = AttachMcastReq { gid, qp_handle: qp, mlid, ..AttachMcastReq::zeroed() };
    // SAFETY: the command reads nothing but its struct.
    unsafe { file.invoke::<AttachMcast>(&request, &mut ()) }
}

/// Lets a queue pair leave the multicast group `gid`.
///
/// # Errors
///
/// The kernel's error, `EINVAL` where it is not in the group.
///
/// # Safety
///
/// The handle must be that of a queue pair of the caller's own: nothing else of this process relies
/// on its membership.
#[doc(alias = "ibv_detach_mcast")]
pub unsafe fn detach_mcast(file: &DeviceFile, qp: u32, gid: [u8; 16], mlid: u16) -> Result<(), IoctlError> {
    let request = DetachMcastReq { gid, qp_handle: qp, mlid, ..DetachMcastReq::zeroed() };
    // SAFETY: the command reads nothing but its struct.
    unsafe { file.invoke::<DetachMcast>(&request, &mut ()) }
}
