//! dma-buf MRs.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::attributes;
use bareverbs_uapi::mlx5::verbs::RegDmabufFlags;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::uverbs::{DmabufAlloc, RegDmabufMr, RegMr};

use super::{CreatedMr, own_descriptor};
use crate::device::{DeviceFile, IoctlError};

/// Parameters of a dma-buf MR.
#[derive(Clone, Copy, Debug)]
pub struct DmabufMrRequest<'a> {
    /// Handle of the protection domain.
    pub pd: u32,
    /// Descriptor of the dma-buf.
    pub fd: BorrowedFd<'a>,
    /// Offset of the MR in the dma-buf, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// I/O virtual address (IOVA) of the first byte.
    pub iova: u64,
    /// Access rights.
    pub access: AccessFlags,
    /// Handle of the DMA handle with hints for the device's accesses. It requires the ioctl method
    /// `REG_MR`.
    pub dmah: Option<u32>,
    /// Whether a ConnectX accesses it by its data direct function, a second PCI function near a GPU. Such
    /// a request has no DMA handle.
    pub data_direct: bool,
}

/// Registers part of a dma-buf. The MR keeps a reference to the dma-buf.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` if the driver does not support dma-buf memory; `EINVAL` for a
/// range beyond the dma-buf or a descriptor of something else.
#[doc(alias = "ibv_reg_dmabuf_mr")]
pub fn reg_dmabuf_mr(file: &DeviceFile, request: &DmabufMrRequest<'_>) -> Result<CreatedMr, IoctlError> {
    if let Some(dmah) = request.dmah {
        return with_dmah(file, request, dmah);
    }
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
    if request.data_direct {
        call.flags(attributes::RegDmabufMr::ACCESS_FLAGS, RegDmabufFlags::DATA_DIRECT);
    }
    call.output(RegDmabufMr::RESP_LKEY, &mut lkey);
    call.output(RegDmabufMr::RESP_RKEY, &mut rkey);
    // SAFETY: the method writes only its attributes. The memory belongs to the exporting driver,
    // and no reference of this process points to it.
    unsafe { file.execute(&mut call) }?;
    Ok(CreatedMr { handle: call.made(RegDmabufMr::HANDLE), lkey, rkey })
}

/// The method of dma-buf MRs has no attribute for a DMA handle.
fn with_dmah(file: &DeviceFile, request: &DmabufMrRequest<'_>, dmah: u32) -> Result<CreatedMr, IoctlError> {
    let (mut lkey, mut rkey) = (0, 0);
    let mut call = Call::<RegMr>::new(file.driver_id());
    call.make(RegMr::HANDLE);
    call.handle(RegMr::PD_HANDLE, request.pd);
    call.handle(RegMr::DMA_HANDLE, dmah);
    call.input(RegMr::IOVA, &request.iova);
    call.input(RegMr::LENGTH, &request.length);
    call.flags(RegMr::ACCESS_FLAGS, request.access);
    call.raw_descriptor(RegMr::FD, request.fd.as_raw_fd());
    call.input(RegMr::FD_OFFSET, &request.offset);
    call.output(RegMr::RESP_LKEY, &mut lkey);
    call.output(RegMr::RESP_RKEY, &mut rkey);
    // SAFETY: as in `reg_dmabuf_mr`.
    unsafe { file.execute(&mut call) }?;
    Ok(CreatedMr { handle: call.made(RegMr::HANDLE), lkey, rkey })
}

/// Exports the pages behind a mapping of the device file as a dma-buf (ioctl method
/// `DMABUF_ALLOC`). `offset` is the mapping's offset in the device file, in bytes.
///
/// # Errors
///
/// The kernel's error: `EPROTONOSUPPORT` from a kernel or a driver without the method, `EOPNOTSUPP`
/// from a kernel without peer-to-peer DMA, `EINVAL` for an offset of nothing that can be exported.
pub fn alloc_dmabuf(file: &DeviceFile, offset: u64) -> Result<OwnedFd, IoctlError> {
    let mut call = Call::<DmabufAlloc>::new(file.driver_id());
    call.make_descriptor(DmabufAlloc::HANDLE);
    call.input(DmabufAlloc::PGOFF, &offset);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }?;
    let fd = call.made_descriptor(DmabufAlloc::HANDLE);
    // SAFETY: the number is -1 if the kernel wrote none. Otherwise the kernel's uverbs driver,
    // which serves every `DeviceFile`, has installed the descriptor for this call.
    unsafe { own_descriptor("DmabufAlloc", fd) }
}
