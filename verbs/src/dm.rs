//! Device memory.

use std::ops::{Deref, RangeBounds};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::dm::{DeviceMemory, WORD};
use bareverbs_provider::request::DmRequest;
use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use crate::Access;
use crate::context::{Context, ContextInner};
use crate::error::{Error, Feature, Limit, Refused, Result};
use crate::mr_keys::MrKeys;
use crate::pd::Pd;
use crate::pd::shared::PdShared;
use crate::range::check_range;
use crate::released::Released;

/// Attributes of device memory.
#[doc(alias = "ibv_alloc_dm_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmInit {
    /// Length in bytes, at least 1.
    pub len: usize,
    /// Alignment of its first byte on the device: 2 to this power. Default: 0.
    pub log_align: u32,
}

impl DmInit {
    /// `len` bytes with any alignment.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, log_align: 0 }
    }
}

/// Device memory. Operations access it without crossing the PCI bus.
///
/// The program accesses it over the bus, in words of 4 bytes. Operations of this process and of
/// peers access it as a [region](DmMr) whose addresses start at 0.
///
/// ```
/// # fn example(pd: &bareverbs::Pd) -> bareverbs::Result<()> {
/// use bareverbs::dm::DmInit;
/// use bareverbs::Access;
///
/// let mut dm = pd.context().alloc_dm(&DmInit::new(256))?;
/// let region = pd.register_dm(&dm, .., Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
/// dm.write(0, &7u64.to_ne_bytes())?;
/// println!("peers count at {:?}", region.remote(0)?);
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # example::unsupported(example(&pd));
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// It is freed when its last region is dropped.
#[doc(alias = "ibv_dm")]
pub struct Dm {
    memory: DeviceMemory,
    shared: Arc<DmShared>,
}

/// A dma-buf of [`Dm::export_dmabuf`].
#[derive(Debug)]
#[non_exhaustive]
pub struct DmDmabuf {
    /// The dma-buf: whole pages.
    pub buffer: OwnedFd,
    /// Offset of the device memory's first byte in the dma-buf.
    pub offset: u64,
}

/// The kernel object.
struct DmShared {
    context: Arc<ContextInner>,
    handle: u32,
    released: Released,
}

impl<P: Provider> Context<P> {
    /// Allocates device memory. [`Dm`] describes its use.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no device memory.
    /// - [`Error::Invalid`] for a length of 0.
    /// - [`Error::Limit`] for more than
    ///   [`DeviceAttr::max_dm_size`](crate::device::DeviceAttr::max_dm_size).
    /// - [`Error::Kernel`], for example if not enough is left.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, init: &DmInit) -> Result<Dm> {
        Dm::alloc(self, init)
    }

    /// Imports device memory that another process allocated in this context. `handle` is
    /// [`Dm::handle`] of that process, which stays the owner.
    ///
    /// # Errors
    /// As for [`Context::import_pd`].
    #[doc(alias = "ibv_import_dm")]
    #[doc(alias = "ibv_unimport_dm")]
    pub fn import_dm(&self, handle: u32) -> Result<Dm> {
        let dm = Dm::adopt(self, handle)?;
        dm.shared.released.set();
        Ok(dm)
    }
}

impl Dm {
    pub(crate) fn alloc<P: Provider>(context: &Context<P>, init: &DmInit) -> Result<Self> {
        const VERB: &str = "alloc_dm";
        if !context.capabilities().device_memory {
            return Err(Error::unsupported(VERB, Feature::DeviceMemory));
        }
        let DmInit { len, log_align } = *init;
        if len == 0 {
            return Err(Error::empty(VERB, "the length of device memory must be at least 1 byte"));
        }
        let inner = Arc::clone(context.inner());
        Error::check_limit(VERB, Limit::DmLen, len as u64, inner.device_attr.max_dm_size)?;
        let request = DmRequest { len: len as u64, log_align };
        let made = context.provider().alloc_dm(&request);
        let (handle, memory) = made.map_err(|reason| {
            Error::create(VERB, format!("{len} bytes, aligned to 2^{log_align}"), reason).or_hint(|errno| {
                (errno == Errno::NOMEM).then(|| "the device may have less free memory".to_owned())
            })
        })?;
        Ok(Self::new(inner, memory, handle))
    }

    fn new(context: Arc<ContextInner>, memory: DeviceMemory, handle: u32) -> Self {
        let shared = DmShared { context, handle, released: Released::default() };
        Self { memory, shared: Arc::new(shared) }
    }

    /// The device memory with this handle. Drop frees it.
    pub(crate) fn adopt<P: Provider>(context: &Context<P>, handle: u32) -> Result<Self> {
        let memory = context
            .provider()
            .import_dm(handle)
            .map_err(|reason| Error::import("import_dm", handle, reason))?;
        Ok(Self::new(Arc::clone(context.inner()), memory, handle))
    }

    /// Its kernel handle. Other processes [import](Context::import_dm) the memory by it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.shared.handle
    }

    /// Releases the handle: drop no longer frees the kernel object. The kernel frees it when the
    /// device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.shared.released.set();
        self.shared.handle
    }

    /// Address of its first byte in this process's address space. The memory may be accessed only
    /// by atomic words of 4 bytes, as long as this value exists.
    #[doc(alias = "mlx5dv_dm")]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "its length is at least 1 byte")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Copies bytes from the device, starting at `offset`. A word that is written at the same time
    /// has its old or its new value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range exceeds the memory; [`Error::Kernel`] with `ESTALE` in a
    /// forked child.
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        const VERB: &str = "memcpy_from_dm";
        check_range(VERB, offset..offset.saturating_add(into.len()), self.len())?;
        self.shared.check_same_process(VERB)?;
        self.memory.read(offset, into);
        Ok(())
    }

    /// Copies bytes to the device, starting at `offset`. Devices accept whole words of 4 bytes
    /// only.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range exceeds the memory, or if `offset` or the length is not a
    /// multiple of 4; [`Error::Kernel`] with `ESTALE` in a forked child.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        const VERB: &str = "memcpy_to_dm";
        check_range(VERB, offset..offset.saturating_add(from.len()), self.len())?;
        if !offset.is_multiple_of(WORD) || !from.len().is_multiple_of(WORD) {
            let reason = format!("{} bytes at offset {offset}: both must be multiples of {WORD}", from.len());
            return Err(Error::invalid(VERB, reason));
        }
        self.shared.check_same_process(VERB)?;
        self.memory.write(offset, from);
        Ok(())
    }

    /// Exports the pages that hold it as a dma-buf, which other devices can access without a copy
    /// in main memory. The dma-buf has whole pages, and no access after the memory is freed.
    ///
    /// ```
    /// # use std::os::fd::OwnedFd;
    /// # use bareverbs::dm::DmInit;
    /// # use bareverbs::{Context, Result};
    /// # fn example(context: &Context) -> Result<()> {
    /// let dm = context.alloc_dm(&DmInit::new(4096))?;
    /// let exported = dm.export_dmabuf()?;
    /// println!("the memory begins at byte {} of the dma-buf", exported.offset);
    /// let buffer: OwnedFd = exported.buffer;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # example::unsupported(example(&context));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`] before Linux 7.2, and from a kernel without peer-to-peer DMA
    ///   (`CONFIG_PCI_P2PDMA`).
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export_dmabuf(&self) -> Result<DmDmabuf> {
        const VERB: &str = "dm_export_dmabuf_fd";
        let offset = self.memory.file_offset();
        let at = offset.ok_or_else(|| Error::unsupported(VERB, Feature::DmabufExport))?;
        let buffer = command::alloc_dmabuf(&self.shared.context.file, at).map_err(|refused| {
            let asked = format!("device memory handle {}", self.shared.handle);
            Error::kernel_lacks(VERB, Feature::DmabufExport, asked, refused)
        })?;
        Ok(DmDmabuf { buffer, offset: self.memory.mapping_offset() as u64 })
    }

    /// Frees it, unless it is [imported](Context::import_dm). Drop ignores errors; the memory is
    /// then freed when its last region is dropped.
    ///
    /// # Errors
    /// The memory and the reason: [`Error::Invalid`] if regions of it are left; [`Error::Kernel`].
    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    #[doc(alias = "ibv_free_dm")]
    pub fn free(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "free_dm";
        let Some(shared) = Arc::get_mut(&mut self.shared) else {
            let error = Error::in_use(VERB, "MRs still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        shared.free().map_err(|refused| {
            let error = Error::kernel(VERB, format!("device memory handle {}", self.handle()), refused);
            Refused::new(error, self)
        })
    }
}

impl DmShared {
    fn free(&mut self) -> Result<(), IoctlError> {
        // SAFETY: nothing shares this. Regions of the memory hold an `Arc` of it, and a mapping keeps the
        // pages of the device.
        self.released.destroy(|| unsafe { command::free_dm(&self.context.file, self.handle) })
    }

    fn check_same_process(&self, verb: &'static str) -> Result<()> {
        self.context.file.check_same_process().map_err(|errno| {
            let refused = IoctlError::new("mmap", errno);
            Error::kernel(verb, format!("device memory handle {}", self.handle), refused)
        })
    }
}

impl Drop for DmShared {
    fn drop(&mut self) {
        // It fails only if a region of it could not be deregistered. Closing the file frees both.
        let _ = self.free();
    }
}

/// Registered device memory, created by [`Pd::register_dm`](crate::Pd::register_dm).
#[doc(alias = "ibv_mr")]
#[doc(alias = "ibv_reg_dm_mr")]
pub struct DmMr {
    domain: Arc<PdShared>,
    _dm: Arc<DmShared>,
    handle: u32,
    keys: MrKeys,
    released: Released,
}

impl<P: Provider> Pd<P> {
    /// Registers a range of device memory; `..` is all of it. The address of its first byte in
    /// operations of this process and of peers is 0. A range may be empty.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that exceeds the memory, or memory of another context;
    /// [`Error::Kernel`], for example for access rights that the device does not support there.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_dm(&self, dm: &Dm, range: impl RangeBounds<usize>, access: Access) -> Result<DmMr> {
        DmMr::register(self.domain(), dm, range, access)
    }
}

impl DmMr {
    pub(crate) fn register(
        domain: &Arc<PdShared>,
        dm: &Dm,
        range: impl RangeBounds<usize>,
        access: Access,
    ) -> Result<Self> {
        const VERB: &str = "reg_dm_mr";
        let (start, len) = check_range(VERB, range, dm.len())?;
        if !Arc::ptr_eq(&domain.context, &dm.shared.context) {
            let reason = "the device memory belongs to another context: allocate it in the context of the PD";
            return Err(Error::foreign(VERB, reason));
        }
        let (access, range) = (access | Access::ZERO_BASED, (start as u64, len as u64));
        let made = command::reg_dm_mr(&domain.context.file, domain.handle, dm.shared.handle, range, access)
            .map_err(|refused| {
            Error::kernel(VERB, format!("{len} bytes at offset {start}, access {access:?}"), refused)
        })?;
        let (domain, _dm) = (Arc::clone(domain), Arc::clone(&dm.shared));
        // The region is zero-based for operations of this process and of peers.
        let keys = MrKeys::new((made.lkey, made.rkey), 0, len);
        Ok(Self { domain, _dm, handle: made.handle, keys, released: Released::default() })
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
        // SAFETY: the region is this value's, and its memory is the device's.
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

impl Deref for DmMr {
    type Target = MrKeys;

    fn deref(&self) -> &MrKeys {
        &self.keys
    }
}

impl Drop for DmMr {
    fn drop(&mut self) {
        // If the kernel refuses, closing the file frees the region.
        let _ = self.dereg_inner();
    }
}
