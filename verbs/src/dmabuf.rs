//! Regions without memory of this process: dma-bufs and the null MR.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bareverbs_provider::command::{self, DmabufMrRequest};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::Sge;
use rustix::io::Errno;

use crate::Access;
use crate::dmah::{Dmah, DmahShared};
use crate::error::{Error, Feature, Refused, Result};
use crate::mr_keys::MrKeys;
use crate::pd::Pd;
use crate::pd::shared::PdShared;
use crate::released::Released;

/// The null MR; see [`Pd::alloc_null_mr`](crate::Pd::alloc_null_mr).
#[doc(alias = "ibv_mr")]
#[doc(alias = "ibv_alloc_null_mr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullMr {
    pub(crate) lkey: u32,
}

impl<P: Provider> Pd<P> {
    /// The null MR. Data that an operation gathers from it is undefined, and data that an operation
    /// scatters to it is discarded. A scatter/gather element over it skips part of a message.
    ///
    /// ```
    /// # fn second_half(pd: &bareverbs::Pd, buffer: &bareverbs::Mr<bareverbs::Buffer>) -> bareverbs::Result<()> {
    /// // Of messages of 128 bytes, only the last 64 are kept.
    /// let sges = [pd.alloc_null_mr()?.sge(64), buffer.sge(..64)?];
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let mut mr = pd.register(bareverbs::Buffer::zeroed(4096)?, bareverbs::Access::LOCAL_WRITE)?;
    /// # example::unsupported(second_half(&pd, &mr));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no null MR.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<NullMr> {
        let lkey = self.context().provider().capabilities().null_key;
        let lkey = lkey.ok_or(Error::unsupported("alloc_null_mr", Feature::NullMr))?;
        Ok(NullMr { lkey })
    }
}

impl NullMr {
    /// The local key, for operations of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// A scatter/gather element for `length` bytes of the null MR.
    #[must_use]
    pub fn sge(&self, length: u32) -> Sge {
        Sge { addr: 0, length, lkey: self.lkey }
    }
}

/// A registered part of a dma-buf; see [`Pd::register_dmabuf`](crate::Pd::register_dmabuf).
#[doc(alias = "ibv_mr")]
#[doc(alias = "ibv_reg_dmabuf_mr")]
pub struct DmabufMr {
    domain: Arc<PdShared>,
    handle: u32,
    keys: MrKeys,
    released: Released,
    /// Kept until the region is deregistered.
    _hints: Option<Arc<DmahShared>>,
}

impl<P: Provider> Pd<P> {
    /// Registers `len` bytes of a dma-buf, starting at `offset`. A dma-buf is memory that another
    /// driver exports, such as the memory of a GPU. `iova` is the address of its first byte in
    /// operations of this process and of peers. `iova` and `offset` must have the same offset
    /// within a page.
    ///
    /// ```
    /// # fn share(pd: &bareverbs::Pd, buffer: std::os::fd::OwnedFd) -> bareverbs::Result<()> {
    /// use bareverbs::Access;
    ///
    /// let region = pd.register_dmabuf(&buffer, 0, 1 << 20, 0, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// println!("peers read it at {:?}", region.remote(0)?);
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let file = std::fs::File::open("/dev/null")?;
    /// # example::unsupported(share(&pd, file.into()));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// The region holds a reference to the dma-buf; the descriptor may be closed.
    ///
    /// The mlx5 driver requires a device with ODP. rxe does not support dma-bufs.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for a length of 0 or a range beyond the address space.
    /// - [`Error::Unsupported`] if the device does not support dma-bufs.
    /// - [`Error::Kernel`], for example for a descriptor that is not a dma-buf.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(
        &self,
        buffer: impl AsFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<DmabufMr> {
        DmabufMr::register(self.domain(), buffer.as_fd(), (offset, len), iova, access, Reach::Usual)
    }

    /// Registers part of a dma-buf that a ConnectX accesses by its data direct function: a second PCI
    /// function, near the GPU that exports the memory. The parameters are those of
    /// [`Pd::register_dmabuf`].
    ///
    /// ```
    /// # fn share(pd: &bareverbs::Pd, buffer: std::os::fd::OwnedFd) -> bareverbs::Result<()> {
    /// use bareverbs::Access;
    ///
    /// let region = pd.register_dmabuf_data_direct(&buffer, 0, 1 << 20, 0, Access::LOCAL_WRITE)?;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let file = std::fs::File::open("/dev/null")?;
    /// # example::unsupported(share(&pd, file.into()));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Pd::register_dmabuf`]; [`Error::Unsupported`] also if the device has no such function,
    /// and before Linux 6.12.
    #[doc(alias = "mlx5dv_reg_dmabuf_mr")]
    #[doc(alias = "MLX5DV_REG_DMABUF_ACCESS_DATA_DIRECT")]
    pub fn register_dmabuf_data_direct(
        &self,
        buffer: impl AsFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<DmabufMr> {
        DmabufMr::register(self.domain(), buffer.as_fd(), (offset, len), iova, access, Reach::DataDirect)
    }

    /// Registers part of a dma-buf with hints for the device's accesses. The other parameters are
    /// those of [`Pd::register_dmabuf`].
    ///
    /// ```no_run
    /// # use bareverbs::mr::Dmah;
    /// # use bareverbs::{Access, Pd, Result};
    /// # fn example(pd: &Pd, buffer: std::os::fd::OwnedFd, hints: &Dmah) -> Result<()> {
    /// let region = pd.register_dmabuf_with_hints(&buffer, 0, 1 << 20, 0, Access::LOCAL_WRITE, hints)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Pd::register_dmabuf`]; also [`Error::Invalid`] if the handle is of another context.
    #[doc(alias = "ibv_reg_mr_ex")]
    pub fn register_dmabuf_with_hints(
        &self,
        buffer: impl AsFd,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
        hints: &Dmah,
    ) -> Result<DmabufMr> {
        DmabufMr::register(self.domain(), buffer.as_fd(), (offset, len), iova, access, Reach::Hinted(hints))
    }
}

/// How the device reaches the memory.
#[derive(Clone, Copy)]
enum Reach<'a> {
    Usual,
    Hinted(&'a Dmah),
    DataDirect,
}

impl DmabufMr {
    fn register(
        domain: &Arc<PdShared>,
        buffer: BorrowedFd<'_>,
        (offset, len): (u64, usize),
        iova: u64,
        access: Access,
        reach: Reach<'_>,
    ) -> Result<Self> {
        const VERB: &str = "reg_dmabuf_mr";
        let hints = if let Reach::Hinted(hints) = reach { Some(hints) } else { None };
        if hints.is_some_and(|hints| !hints.is_of(&domain.context)) {
            return Err(Error::foreign(VERB, "the DMA handle is of another context"));
        }
        let length = len as u64;
        if len == 0 {
            return Err(Error::empty(VERB, "the length of an MR must be at least 1 byte"));
        }
        if offset.checked_add(length).is_none() || iova.checked_add(length - 1).is_none() {
            let reason = format!("{len} bytes at {offset:#x} (iova {iova:#x}) exceed the address space");
            return Err(Error::out_of_bounds(VERB, reason));
        }
        let dmah = hints.map(Dmah::handle);
        let data_direct = matches!(reach, Reach::DataDirect);
        let request = DmabufMrRequest {
            pd: domain.handle,
            fd: buffer,
            offset,
            length,
            iova,
            access,
            dmah,
            data_direct,
        };
        let made = command::reg_dmabuf_mr(&domain.context.file, &request).map_err(|refused| {
            let asked = format!("{len} bytes at {offset:#x}, iova {iova:#x}, access {access:?}");
            Error::kernel_lacks(VERB, Feature::DmabufMrs, asked, refused).or_hint(|errno| match errno {
                Errno::INVAL => Some(
                    "the range may exceed the dma-buf, iova and offset may differ in their offset \
                     within the page, or the descriptor may not be a dma-buf"
                        .into(),
                ),
                _ => None,
            })
        })?;
        let keys = MrKeys::new((made.lkey, made.rkey), iova, len);
        let (domain, released) = (Arc::clone(domain), Released::default());
        let _hints = hints.map(|hints| Arc::clone(hints.shared()));
        Ok(Self { domain, handle: made.handle, keys, released, _hints })
    }

    /// Deregisters the region. Drop does the same, and ignores errors.
    ///
    /// # Errors
    /// The region and [`Error::Kernel`]: the kernel rejects the command.
    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(mut self) -> Result<(), Refused<Self>> {
        self.dereg_inner().map_err(|refused| {
            let error = Error::kernel("dereg_mr", format!("lkey {:#x}", self.keys.lkey()), refused);
            Refused::new(error, self)
        })
    }

    fn dereg_inner(&mut self) -> Result<(), IoctlError> {
        // SAFETY: the region is this value's. The memory belongs to the exporting driver, which keeps it.
        self.released.destroy(|| unsafe { command::dereg_mr(&self.domain.context.file, self.handle) })
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Releases the handle: drop no longer deregisters the kernel object. The kernel deregisters it
    /// when the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.released.set();
        self.handle
    }
}

impl Deref for DmabufMr {
    type Target = MrKeys;

    fn deref(&self) -> &MrKeys {
        &self.keys
    }
}

impl Drop for DmabufMr {
    fn drop(&mut self) {
        // If the kernel refuses, closing the file frees the region. The device keeps the dma-buf until
        // then.
        let _ = self.dereg_inner();
    }
}
