//! dma-buf MRs.

use std::os::fd::{AsRawFd, BorrowedFd};

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::RegDmabufMr;
use bareverbs_uapi::uverbs::types::AccessFlags;

use super::CreatedMr;
use crate::device::{DeviceFile, IoctlError};

/// What part of a dma-buf is to be registered, and how.
#[derive(Clone, Copy, Debug)]
pub struct DmabufMrRequest<'a> {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Descriptor of the dma-buf.
    pub fd: BorrowedFd<'a>,
    /// Where in it the region starts.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Address by which the device knows the first byte.
    pub iova: u64,
    /// What may be done with it.
    pub access: AccessFlags,
}

/// Registers part of a dma-buf, which the region keeps.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` where the driver does not reach such memory, `EINVAL` for a
/// range that is not in the dma-buf or a descriptor that is none.
#[doc(alias = "ibv_reg_dmabuf_mr")]
pub fn reg_dmabuf_mr(file: &DeviceFile, request: &DmabufMrRequest<'_>) -> Result<CreatedMr, IoctlError> {
    let (mut lkey, mut rkey) = (0, 0);
    let fd = request.fd.as_raw_fd() as u32;
    let mut call = Call::<RegDmabufMr>::new(file.driver_id());
    call.make(RegDmabufMr::HANDLE);
    call.handle(RegDmabufMr::PD_HANDLE, request.pd);
    call.input(RegDmabufMr::OFFSET, &request.offset);
    call.input(RegDmabufMr::LENGTH, &request.length);
    call.input(RegDmabufMr::IOVA, &request.iova);
    call.input(RegDmabufMr::FD, &fd);
    call.flags(RegDmabufMr::ACCESS_FLAGS, request.access);
    call.output(RegDmabufMr::RESP_LKEY, &mut lkey);
    call.output(RegDmabufMr::RESP_RKEY, &mut rkey);
    // SAFETY: the method writes nothing but its attributes; the memory is the other driver's, which
    // no reference of this process is to.
    unsafe { file.execute(&mut call) }?;
    Ok(CreatedMr { handle: call.made(RegDmabufMr::HANDLE), lkey, rkey })
}
