//! Memory regions (MRs).

use std::fmt;
use std::sync::OnceLock;

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::uverbs::{MrDestroy, QueryMr, RegMr};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{RegMrReq, RegMrResp};
use rustix::io::Errno;

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};

/// Parameters of an MR.
#[derive(Clone, Copy, Debug)]
pub struct MrRequest {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u64,
    /// I/O virtual address (IOVA) of the first byte.
    pub iova: u64,
    /// Access rights.
    pub access: AccessFlags,
    /// Handle of the DMA handle with hints for the device's accesses. It requires the ioctl method
    /// `REG_MR`.
    pub dmah: Option<u32>,
}

/// A registered MR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedMr {
    /// The kernel's handle.
    pub handle: u32,
    /// L_Key.
    pub lkey: u32,
    /// R_Key.
    pub rkey: u32,
}

/// Selects how MRs are registered on a device: by the ioctl method `REG_MR`, which Linux 7.2 has,
/// or by the write command.
///
/// Workaround: docs/kernel-bugs.md, "The `REG_MR` method makes unusable regions".
///
/// A probe for the method is not enough. The handler of 7.2 leaves the address and length of the MR
/// unset. The write command's handler sets them, and rxe relies on it: an MR without them has keys
/// but fails every access. Therefore the first MR is queried after registration. If its range is
/// right, the method is used from then on, otherwise never.
#[derive(Debug, Default)]
pub struct RegMrMethod {
    works: OnceLock<bool>,
    payload: Option<MrPayload>,
}

/// The driver's payload of MR registrations: [`Provider::mr_payload`](crate::traits::Provider::mr_payload).
pub struct MrPayload {
    /// Makes the driver's request of a registration. It contains no address.
    pub request: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    /// Bytes of the driver's response, which is ignored.
    pub response_len: usize,
}

impl fmt::Debug for MrPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MrPayload").field("response_len", &self.response_len).finish_non_exhaustive()
    }
}

impl RegMrMethod {
    /// Registers MRs with the driver's payload, if it has one.
    #[must_use]
    pub fn new(payload: Option<MrPayload>) -> Self {
        Self { works: OnceLock::new(), payload }
    }

    /// Registers an MR.
    ///
    /// # Errors
    ///
    /// The kernel's error: `EFAULT` if part of the range is not mapped with the protection that
    /// `access` needs, `ENOMEM` beyond the limit on locked memory, `EINVAL` for a range that wraps
    /// around.
    ///
    /// # Safety
    ///
    /// Until the MR is deregistered, the device reads and writes the range, and peers do as far as
    /// `access` allows. The memory must stay valid for this use.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register(&self, file: &DeviceFile, request: &MrRequest) -> Result<CreatedMr, IoctlError> {
        let input = self.payload.as_ref().map_or_else(Vec::new, |payload| (payload.request)());
        let mut output = vec![0; self.payload.as_ref().map_or(0, |payload| payload.response_len)];
        if request.dmah.is_some() {
            // SAFETY: the caller guarantees the range.
            return unsafe { by_method(file, request, DriverPayload { input: &input, output: &mut output }) };
        }
        let known = self.works.get();
        // An ODP MR may cover all memory, so its range proves nothing.
        let telling = !request.access.contains(AccessFlags::ON_DEMAND);
        if known == Some(&true) || known.is_none() && telling {
            // SAFETY: the caller guarantees the range.
            match (known, unsafe {
                by_method(file, request, DriverPayload { input: &input, output: &mut output })
            }) {
                (Some(_), made) => return made,
                (None, Ok(mr)) => {
                    let works = query_mr(file, mr.handle)
                        .is_ok_and(|info| (info.length, info.iova) == (request.length, request.iova));
                    if *self.works.get_or_init(|| works) {
                        return Ok(mr);
                    }
                    // SAFETY: the MR was created above, and no other code has its handle.
                    if unsafe { dereg_mr(file, mr.handle) }.is_err() {
                        // The MR still exists, so the caller must own it.
                        return Ok(mr);
                    }
                }
                (None, Err(IoctlError { errno: Errno::PROTONOSUPPORT, .. })) => {
                    self.works.get_or_init(|| false);
                }
                // The write command then gives the documented error.
                (None, Err(_)) => {}
            }
        }
        // SAFETY: the caller guarantees the range.
        unsafe { by_command(file, request, DriverPayload { input: &input, output: &mut output }) }
    }
}

/// # Safety
///
/// As for [`RegMrMethod::register`].
unsafe fn by_method(
    file: &DeviceFile,
    request: &MrRequest,
    payload: DriverPayload<'_>,
) -> Result<CreatedMr, IoctlError> {
    let (mut lkey, mut rkey) = (0, 0);
    let mut call = Call::<RegMr>::new(file.driver_id());
    call.make(RegMr::HANDLE);
    call.handle(RegMr::PD_HANDLE, request.pd);
    if let Some(dmah) = request.dmah {
        call.handle(RegMr::DMA_HANDLE, dmah);
    }
    call.input(RegMr::IOVA, &request.iova);
    call.input(RegMr::ADDR, &request.addr);
    call.input(RegMr::LENGTH, &request.length);
    call.flags(RegMr::ACCESS_FLAGS, request.access);
    call.output(RegMr::RESP_LKEY, &mut lkey);
    call.output(RegMr::RESP_RKEY, &mut rkey);
    add_payload!(call, payload);
    // SAFETY: the caller guarantees the range.
    unsafe { file.execute(&mut call) }?;
    Ok(CreatedMr { handle: call.made(RegMr::HANDLE), lkey, rkey })
}

/// # Safety
///
/// As for [`RegMrMethod::register`].
unsafe fn by_command(
    file: &DeviceFile,
    request: &MrRequest,
    payload: DriverPayload<'_>,
) -> Result<CreatedMr, IoctlError> {
    let request = RegMrReq {
        start: request.addr,
        length: request.length,
        hca_va: request.iova,
        pd_handle: request.pd,
        access_flags: request.access,
        ..RegMrReq::zeroed()
    };
    let mut response = RegMrResp::zeroed();
    let mut call = write::invoke::<write::RegMr>(file.driver_id(), &request, &mut response);
    add_payload!(call, payload);
    // SAFETY: the caller guarantees the range. The payload contains no address.
    unsafe { file.execute(&mut call) }.map_err(|refused| IoctlError { method: "RegMr", ..refused })?;
    Ok(CreatedMr { handle: response.mr_handle, lkey: response.lkey, rkey: response.rkey })
}

/// Deregisters an MR.
///
/// # Errors
///
/// The kernel's error: `EINVAL` while an MW is bound to it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the MR or its
/// keys.
#[doc(alias = "ibv_dereg_mr")]
pub unsafe fn dereg_mr(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<MrDestroy>::new(file.driver_id());
    call.destroy(MrDestroy::HANDLE, handle);
    // SAFETY: the call names no memory, and a deregistered MR is no longer accessed.
    unsafe { file.execute(&mut call) }
}

/// The kernel's view of an MR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MrInfo {
    /// L_Key.
    pub lkey: u32,
    /// R_Key.
    pub rkey: u32,
    /// Length in bytes.
    pub length: u64,
    /// I/O virtual address (IOVA) of the first byte.
    pub iova: u64,
}

/// Queries an MR (ioctl method `QUERY_MR`).
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
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(info)
}
