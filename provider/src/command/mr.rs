//! Memory regions.

use std::sync::OnceLock;

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::uverbs::{MrDestroy, QueryMr, RegMr};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{RegMrReq, RegMrResp};
use rustix::io::Errno;

use crate::device::{DeviceFile, IoctlError};

/// What memory is to be registered, and how.
#[derive(Clone, Copy, Debug)]
pub struct MrRequest {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address by which the device knows the first byte.
    pub iova: u64,
    /// What may be done with it.
    pub access: AccessFlags,
}

/// A memory region as registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedMr {
    /// The kernel's handle.
    pub handle: u32,
    /// For local use.
    pub lkey: u32,
    /// For the peer.
    pub rkey: u32,
}

/// How memory is registered on a device: by the ioctl method of its own, which Linux 7.2 has, or by
/// the write command.
///
/// It is not enough that the kernel knows the method. The handler of 7.2 leaves the region's
/// address and length unset, which the older command's handler does for drivers that rely on it;
/// with rxe such a region has a key and refuses every access. So the kernel is asked what it made
/// of the first region, and the method is used from then on or never.
#[derive(Debug, Default)]
pub struct RegMrMethod(OnceLock<bool>);

impl RegMrMethod {
    /// Registers memory.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EFAULT` where part of the range is not mapped as `access` wants it,
    /// `ENOMEM` beyond the limit on locked memory, `EINVAL` for a range that wraps around.
    ///
    /// # Safety
    ///
    /// The device and, as far as `access` allows, peers will read and write the range until the
    /// region is given back. It must stay memory that may be used so.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register(&self, file: &DeviceFile, request: &MrRequest) -> Result<CreatedMr, IoctlError> {
        let known = self.0.get();
        // The range of a region on demand may be all memory, which says nothing.
        let telling = !request.access.contains(AccessFlags::ON_DEMAND);
        if known == Some(&true) || known.is_none() && telling {
            // SAFETY: the caller answers for the range.
            match (known, unsafe { by_method(file, request) }) {
                (Some(_), made) => return made,
                (None, Ok(mr)) => {
                    let works = query_mr(file, mr.handle)
                        .is_ok_and(|info| (info.length, info.iova) == (request.length, request.iova));
                    if *self.0.get_or_init(|| works) {
                        return Ok(mr);
                    }
                    // SAFETY: the region was made above, and nothing else has its handle.
                    if unsafe { dereg_mr(file, mr.handle) }.is_err() {
                        // It still has the memory, so the caller has to have the region.
                        return Ok(mr);
                    }
                }
                (None, Err(IoctlError { errno: Errno::PROTONOSUPPORT, .. })) => {
                    self.0.get_or_init(|| false);
                }
                // The command's refusal is the one that is known.
                (None, Err(_)) => {}
            }
        }
        // SAFETY: the caller answers for the range.
        unsafe { by_command(file, request) }
    }
}

/// # Safety
///
/// As for [`RegMrMethod::register`].
unsafe fn by_method(file: &DeviceFile, request: &MrRequest) -> Result<CreatedMr, IoctlError> {
    let (mut lkey, mut rkey) = (0, 0);
    let mut call = Call::<RegMr>::new(file.driver_id());
    call.make(RegMr::HANDLE);
    call.handle(RegMr::PD_HANDLE, request.pd);
    call.input(RegMr::IOVA, &request.iova);
    call.input(RegMr::ADDR, &request.addr);
    call.input(RegMr::LENGTH, &request.length);
    call.flags(RegMr::ACCESS_FLAGS, request.access);
    call.output(RegMr::RESP_LKEY, &mut lkey);
    call.output(RegMr::RESP_RKEY, &mut rkey);
    // SAFETY: the caller answers for the range.
    unsafe { file.execute(&mut call) }?;
    Ok(CreatedMr { handle: call.made(RegMr::HANDLE), lkey, rkey })
}

/// # Safety
///
/// As for [`RegMrMethod::register`].
unsafe fn by_command(file: &DeviceFile, request: &MrRequest) -> Result<CreatedMr, IoctlError> {
    let request = RegMrReq {
        start: request.addr,
        length: request.length,
        hca_va: request.iova,
        pd_handle: request.pd,
        access_flags: request.access,
        ..RegMrReq::zeroed()
    };
    let mut response = RegMrResp::zeroed();
    // SAFETY: the caller answers for the range.
    unsafe { file.invoke::<write::RegMr>(&request, &mut response) }?;
    Ok(CreatedMr { handle: response.mr_handle, lkey: response.lkey, rkey: response.rkey })
}

/// Deregisters a memory region.
///
/// # Errors
///
/// The kernel's error, `EINVAL` while a memory window is bound to it.
///
/// # Safety
///
/// The handle must be the caller's own to destroy: nothing else of this process uses or relies on
/// the region or its keys any more.
#[doc(alias = "ibv_dereg_mr")]
pub unsafe fn dereg_mr(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<MrDestroy>::new(file.driver_id());
    call.destroy(MrDestroy::HANDLE, handle);
    // SAFETY: the call names no memory; a region that is gone is used no more.
    unsafe { file.execute(&mut call) }
}

/// What the kernel knows of a memory region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrInfo {
    /// For local use.
    pub lkey: u32,
    /// For the peer.
    pub rkey: u32,
    /// Bytes.
    pub length: u64,
    /// Address by which the device knows the first byte.
    pub iova: u64,
}

/// Reads back what was registered.
///
/// # Errors
///
/// The kernel's error.
pub fn query_mr(file: &DeviceFile, handle: u32) -> Result<MrInfo, IoctlError> {
    let mut info = MrInfo::default();
    let mut call = Call::<QueryMr>::new(file.driver_id());
    call.handle(QueryMr::HANDLE, handle);
    call.output(QueryMr::RESP_LKEY, &mut info.lkey);
    call.output(QueryMr::RESP_RKEY, &mut info.rkey);
    call.output(QueryMr::RESP_LENGTH, &mut info.length);
    call.output(QueryMr::RESP_IOVA, &mut info.iova);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(info)
}
