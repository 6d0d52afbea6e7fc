//! Protection domains.

pub(crate) mod shared;

use std::ops::RangeBounds;
use std::os::fd::AsFd;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use self::shared::PdShared;
use crate::ah::{Ah, AhAttr};
use crate::dm::{Dm, DmMr};
use crate::error::Feature;
use crate::mr::{Advice, AdviceList, DmabufMr, Dmah, ImplicitMr, ImportedMr, LocalAccess, NullMr};
use crate::mw::{Mw, MwType};
use crate::qp::{Qp, QpInit, Transport};
use crate::raw::Released;
use crate::rss::{RssInit, RssQp, Wq, WqInit};
use crate::srq::{Srq, SrqInit};
use crate::xrc::{XrcSrq, XrcSrqInit};
use crate::{
    Access, AnyProvider, Borrowed, Context, Error, MemoryOwner, Mr, RawMemory, Refused, Result, import,
};

/// A protection domain. A QP can access only memory regions of its own domain.
///
/// Cloning is cheap. The domain is deallocated when the last object that was created in it is
/// dropped, or by [`Pd::dealloc`].
#[doc(alias = "ibv_pd")]
pub struct Pd<P: Provider = AnyProvider> {
    context: Context<P>,
    domain: Arc<PdShared>,
}

impl<P: Provider> Clone for Pd<P> {
    fn clone(&self) -> Self {
        Self { context: self.context.clone(), domain: Arc::clone(&self.domain) }
    }
}

impl<P: Provider> Pd<P> {
    pub(crate) fn alloc(context: &Context<P>) -> Result<Self> {
        let handle = context
            .provider()
            .alloc_pd()
            .map_err(|refused| Error::kernel("alloc_pd", context.device().name(), refused))?;
        Ok(Self::new(context, handle, false))
    }

    pub(crate) fn import(context: &Context<P>, handle: u32) -> Result<Self> {
        context.provider().import_pd(handle).map_err(|reason| import::error("import_pd", handle, reason))?;
        Ok(Self::new(context, handle, true))
    }

    pub(crate) fn new(context: &Context<P>, handle: u32, imported: bool) -> Self {
        let released = Released::default();
        let domain = PdShared { context: Arc::clone(context.inner()), handle, imported, released };
        Self { context: context.clone(), domain: Arc::new(domain) }
    }

    /// Deallocates it, unless it is [imported](Context::import_pd). Drop of the last object in it
    /// does the same, and ignores errors.
    ///
    /// ```no_run
    /// # fn example(pd: bareverbs::Pd) -> bareverbs::Result<()> {
    /// let pd = match pd.dealloc() {
    ///     Ok(()) => return Ok(()),
    ///     // A raw call has created an object in it.
    ///     Err(refused) => refused.object,
    /// };
    /// # drop(pd);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The domain and the reason:
    ///
    /// - [`Error::Invalid`]: this process still has clones or objects of the domain.
    /// - [`Error::Kernel`]: the kernel rejects the command, with `EBUSY` while the domain has an
    ///   object that a raw call or another process has created.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "dealloc_pd";
        let Some(domain) = Arc::get_mut(&mut self.domain) else {
            let error = Error::in_use(VERB, "clones or objects of the PD are left: drop them first");
            return Err(Refused::new(error, self));
        };
        if domain.imported || domain.released.get() {
            return Ok(());
        }
        // SAFETY: all objects that use the PD hold an `Arc` of it, and this is the last one. If
        // this succeeds, it is dropped next.
        match unsafe { command::dealloc_pd(&domain.context.file, domain.handle) } {
            Ok(()) => {
                domain.released.set();
                Ok(())
            }
            Err(refused) => {
                let asked = format!("PD handle {}", domain.handle);
                let error = Error::kernel(VERB, asked, refused).or_hint(|errno| {
                    (errno == Errno::BUSY)
                        .then(|| "an object of a raw call or of another process is left in it".into())
                });
                Err(Refused::new(error, self))
            }
        }
    }

    /// Its kernel handle. Other processes [import](Context::import_pd) the domain by it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.domain.handle
    }

    /// Imports a region that another process registered in this context. `handle` is [`Mr::handle`]
    /// of that process, which stays the owner.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver does not support imports; [`Error::Kernel`] with
    /// `ENOENT` if the context has no such region.
    #[doc(alias = "ibv_import_mr")]
    #[doc(alias = "ibv_unimport_mr")]
    pub fn import_mr(&self, handle: u32) -> Result<ImportedMr> {
        ImportedMr::import(&self.domain, handle)
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context<P> {
        &self.context
    }

    pub(crate) fn domain(&self) -> &Arc<PdShared> {
        &self.domain
    }

    /// Registers memory and takes ownership of it.
    ///
    /// ```no_run
    /// use bareverbs::{Access, Buffer, Device};
    ///
    /// let pd = Device::find("rxe0")?.open()?.alloc_pd()?;
    /// let own = pd.register(Buffer::zeroed(1 << 20)?, Access::LOCAL_WRITE)?;
    /// let vector = pd.register(vec![0; 4096], Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// let vector: Vec<u8> = vector.into_inner()?;
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// All errors return the memory.
    ///
    /// - [`Error::Invalid`] for memory of 0 bytes.
    /// - [`Error::Invalid`] on rxe for an ODP region ([`Access::ON_DEMAND`]) with remote rights
    ///   that begins within a page: the kernel would read or write before it.
    /// - [`Error::Invalid`] on rxe for an ODP region with [`Access::ZERO_BASED`]: the kernel would
    ///   look up its pages by the wrong address.
    /// - [`Error::Kernel`], for example beyond the limit on locked memory (`RLIMIT_MEMLOCK`): `EPERM`
    ///   if it is 0, `ENOMEM` if it is exceeded.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: MemoryOwner>(&self, memory: M, access: Access) -> Result<Mr<M>, Refused<M>> {
        Mr::register(&self.domain, memory, access, None)
    }

    /// Registers memory with hints for the device's accesses, and takes ownership of it.
    ///
    /// ```no_run
    /// # use bareverbs::mr::DmahInit;
    /// # use bareverbs::{Access, Buffer, Device, Result};
    /// # fn example() -> Result<()> {
    /// let pd = Device::find("mlx5_0")?.open()?.alloc_pd()?;
    /// let hints = pd.context().alloc_dmah(&DmahInit { processing_hint: Some(1), cpu: None })?;
    /// let buffer = Buffer::zeroed(1 << 20)?;
    /// let region = pd.register_with_hints(buffer, Access::LOCAL_WRITE, &hints)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Pd::register`]; also [`Error::Invalid`] if the handle is of another context. mlx5
    /// rejects ODP regions with hints, and [`Mr::set_access`], [`Mr::move_to`] and [`Mr::replace`]
    /// of a region with hints.
    #[doc(alias = "ibv_reg_mr_ex")]
    pub fn register_with_hints<M: MemoryOwner>(
        &self,
        memory: M,
        access: Access,
        hints: &Dmah,
    ) -> Result<Mr<M>, Refused<M>> {
        if !hints.is_of(self.context.inner()) {
            let error = Error::foreign("reg_mr", "the DMA handle is of another context");
            return Err(Refused::new(error, memory));
        }
        Mr::register(&self.domain, memory, access, Some(hints))
    }

    /// Registers borrowed memory with local rights only. With remote rights, a peer or a window
    /// could access the memory after the borrow has ended.
    ///
    /// The memory is borrowed until the region is dropped. A forgotten region stays registered
    /// after the borrow has ended. This is harmless: only operations of this process can access the
    /// memory, and posting them is `unsafe`, or in a
    /// [scope](crate::owned::Endpoint::scope), which waits for them.
    ///
    /// The borrow is exclusive also for [`LocalAccess::Read`], because [`Mr::write`] writes the memory.
    ///
    /// # Errors
    /// As for [`Pd::register`].
    pub fn register_borrowed<'a>(
        &self,
        memory: &'a mut [u8],
        access: LocalAccess,
    ) -> Result<Mr<Borrowed<'a>>> {
        Mr::register_borrowed(&self.domain, memory, access)
    }

    /// Registers the whole address space of the process as an implicit ODP region with local
    /// rights.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no implicit ODP
    /// ([`Capabilities::odp_implicit`](crate::device::Capabilities::odp_implicit)); [`Error::Kernel`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_implicit(&self, access: LocalAccess) -> Result<ImplicitMr> {
        ImplicitMr::local(&self.domain, access)
    }

    /// Registers the whole address space of the process as an implicit ODP region with any rights.
    ///
    /// # Errors
    /// As for [`Pd::register_implicit`].
    ///
    /// # Safety
    ///
    /// As far as `access` allows, a peer that knows the key can read and write all memory of the
    /// process at any time until the region and its parts are dropped. The caller is responsible
    /// for all accesses of the peers that get the key.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_implicit_remote(&self, access: Access) -> Result<ImplicitMr> {
        // SAFETY: the caller upholds the same contract.
        unsafe { ImplicitMr::register(&self.domain, access) }
    }

    /// Gives advice for ranges of several ODP regions of the domain in one command.
    ///
    /// ```no_run
    /// # fn fetch(pd: &bareverbs::Pd, a: &bareverbs::Mr<Vec<u8>>, b: &bareverbs::Mr<Vec<u8>>) -> bareverbs::Result<()> {
    /// use bareverbs::mr::Advice;
    ///
    /// pd.advise(Advice::PREFETCH).with(a, ..4096)?.with(b, ..)?.execute()
    /// # }
    /// ```
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice) -> AdviceList {
        AdviceList::new(&self.domain, advice)
    }

    /// The null MR. Data that an operation gathers from it is undefined, and data that an operation
    /// scatters to it is discarded. A scatter/gather element over it skips part of a message.
    ///
    /// ```no_run
    /// # fn second_half(pd: &bareverbs::Pd, buffer: &bareverbs::Mr<bareverbs::Buffer>) -> bareverbs::Result<()> {
    /// // Of messages of 128 bytes, only the last 64 are kept.
    /// let sges = [pd.alloc_null_mr()?.sge(64), buffer.sge(..64)?];
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no null MR.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<NullMr> {
        let lkey = self.context.provider().capabilities().null_key;
        let lkey = lkey.ok_or(Error::unsupported("alloc_null_mr", Feature::NullMr))?;
        Ok(NullMr { lkey })
    }

    /// Registers `len` bytes of a dma-buf, starting at `offset`. A dma-buf is memory that another
    /// driver exports, such as the memory of a GPU. `iova` is the address of its first byte in
    /// operations of this process and of peers. `iova` and `offset` must have the same offset
    /// within a page.
    ///
    /// ```no_run
    /// # fn share(pd: &bareverbs::Pd, buffer: std::os::fd::OwnedFd) -> bareverbs::Result<()> {
    /// use bareverbs::Access;
    ///
    /// let region = pd.register_dmabuf(&buffer, 0, 1 << 20, 0, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// println!("peers read it at {:?}", region.remote(0)?);
    /// # Ok(())
    /// # }
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
        DmabufMr::register(&self.domain, buffer.as_fd(), (offset, len), iova, access, None)
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
        DmabufMr::register(&self.domain, buffer.as_fd(), (offset, len), iova, access, Some(hints))
    }

    /// Registers the address range of `len` bytes from `addr`. `iova` is the address of its first
    /// byte in operations of this process and of peers; `None` means `addr`, or 0 with
    /// [`Access::ZERO_BASED`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length of 0, a range beyond the address space, or on rxe for an ODP
    /// region ([`Access::ON_DEMAND`]) with an `iova` other than `addr`; [`Error::Kernel`] with
    /// `EFAULT` if part of the range is not mapped, does not permit the access or can't be pinned, such
    /// as a file mapping beyond the end of its file, a mapping of a device, or before Linux 6.2 a
    /// shared mapping that is not writable.
    ///
    /// # Safety
    ///
    /// For an ODP region on rxe, "the range" begins at the start of the page of `addr`: the kernel
    /// copies to and from there (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
    ///
    /// These hold until [`Mr::into_inner`] returned `Ok`. If the kernel refuses to deregister,
    /// there or when the region is dropped, they hold until the process exits:
    ///
    /// - The range stays mapped. Its bytes are initialised, and valid for reads and writes by this
    ///   process whatever `access` says: [`Mr::read`] and [`Mr::write`] are safe.
    /// - The memory may be accessed by operations on the region, by its copying methods on any
    ///   thread and, as far as `access` allows, by peers.
    /// - While a slice of [`Mr::bytes`] is in use, nothing else changes the bytes. While a slice of
    ///   [`Mr::bytes_mut`] is in use, nothing else reads or changes them. All code that has the
    ///   region can call them.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "ibv_reg_mr_iova2")]
    pub unsafe fn register_raw(
        &self,
        addr: *mut u8,
        len: usize,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Mr<RawMemory>> {
        // SAFETY: the caller upholds the same contract.
        unsafe { Mr::register_raw(&self.domain, addr, len, iova, access) }
    }

    /// Registers a range of device memory; `..` is all of it. The address of its first byte in
    /// operations of this process and of peers is 0.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a length of 0, a range that exceeds the memory, or memory of another
    /// context; [`Error::Kernel`], for example for access rights that the device does not support
    /// there.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_dm(&self, dm: &Dm, range: impl RangeBounds<usize>, access: Access) -> Result<DmMr> {
        DmMr::register(&self.domain, dm, range, access)
    }

    /// Allocates an unbound memory window.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no memory windows; [`Error::Invalid`] for an
    /// unknown type; [`Error::Kernel`].
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        Mw::alloc(&self.domain, mw_type)
    }

    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// - [`Error::Limit`] for a depth or a number of SGEs above the device's limit.
    /// - [`Error::Invalid`] for queues of another context.
    /// - [`Error::Unsupported`] for [XRC](crate::xrc::XrcSend) if the device has none.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp<T: Transport>(&self, init: &QpInit<'_, P>) -> Result<Qp<T, P>> {
        Qp::create(self, init)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 receives or a limit above their number; [`Error::Limit`] for a
    /// depth or a number of SGEs above the device's limit; [`Error::Kernel`].
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create(self, init)
    }

    /// Creates a shared receive queue of an XRC domain.
    ///
    /// # Errors
    /// - [`Error::Invalid`] for 0 receives, a limit above their number, or a domain or completion
    ///   queue of another context.
    /// - [`Error::Limit`] for a depth or a number of SGEs above the device's limit.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_xrc_srq(&self, init: &XrcSrqInit<'_, P>) -> Result<XrcSrq<P>> {
        XrcSrq::create(self, init)
    }

    /// Creates a receive work queue in the state RESET.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no work queues or does not support the flags.
    /// - [`Error::Invalid`] for 0 receives or a completion queue of another context.
    /// - [`Error::Limit`] for a depth or a number of SGEs above the device's limit.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, init: &WqInit<'_, P>) -> Result<Wq<P>> {
        Wq::create(self, init)
    }

    /// Creates an RSS QP over work queues.
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device has no RSS QPs or does not hash the fields.
    /// - [`Error::Invalid`] for a set of fields that no frame has, or a table of another context.
    /// - [`Error::Kernel`], for example without the capability `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_rss_qp(&self, init: &RssInit<'_, P>) -> Result<RssQp<P>> {
        RssQp::create(self, init)
    }

    /// Creates an address handle.
    ///
    /// On RoCE the kernel resolves the peer's GID to an Ethernet address. This may wait for the
    /// response to a neighbour solicitation. [`Context::ah_attr_from_wc`] returns the attributes
    /// for a reply to a received datagram.
    ///
    /// # Errors
    /// - [`Error::Invalid`] on RoCE without a global route, for a GID of zeros, or for a service
    ///   level or flow label of too many bits.
    /// - [`Error::NoPort`].
    /// - [`Error::NoGid`].
    /// - [`Error::Kernel`], for example if there is no route to the peer.
    #[doc(alias = "ibv_create_ah")]
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah<P>> {
        Ah::create(self, attr)
    }
}
