//! Protection domains.

use std::ops::RangeBounds;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::contract::Provider;

use crate::context::ContextInner;
use crate::import;
use crate::{
    Access, Ah, AhAttr, AnyProvider, Borrowed, Context, Dm, DmMr, DmabufMr, Error, ImplicitMr, ImportedMr,
    LocalAccess, MemoryOwner, Mr, Mw, MwType, NullMr, Qp, QpInit, RawMemory, RegisterError, Result, RssInit,
    RssQp, Srq, SrqInit, Transport, Wq, WqInit, XrcSrq, XrcSrqInit,
};

/// A protection domain: queue pairs reach memory of their own domain only.
///
/// It is cheap to clone, and lives as long as anything that was made in it.
#[doc(alias = "ibv_pd")]
pub struct Pd<P: Provider = AnyProvider> {
    context: Context<P>,
    domain: Arc<PdShared>,
}

/// The kernel's object.
pub(crate) struct PdShared {
    pub(crate) context: Arc<ContextInner>,
    pub(crate) handle: u32,
    /// Another process's, which gives it back.
    imported: bool,
}

impl Drop for PdShared {
    fn drop(&mut self) {
        if self.imported {
            return;
        }
        // It fails only where an object is in it that could not be given back, or that another
        // process made; closing the file frees both.
        // SAFETY: all that names the domain keeps it, so nothing does any more.
        let _ = unsafe { command::dealloc_pd(&self.context.file, self.handle) };
    }
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

    fn new(context: &Context<P>, handle: u32, imported: bool) -> Self {
        let domain = PdShared { context: Arc::clone(context.inner()), handle, imported };
        Self { context: context.clone(), domain: Arc::new(domain) }
    }

    /// The kernel's handle of it, by which other processes [import](Context::import_pd) it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.domain.handle
    }

    /// Uses a region that another process registered in the context, which stays that one's.
    /// `handle` is that of [`Mr::handle`] there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the driver has no such thing; the kernel refuses, with `ENOENT`
    /// where the context has no such region.
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

    /// Registers memory and owns it from here on.
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
    /// [`Error::Invalid`] for no bytes, and on Soft-RoCE for memory on demand
    /// ([`Access::ON_DEMAND`]) in two cases. If peers may read or write it and it begins within a
    /// page, the kernel would read or write before it. If it is [`Access::ZERO_BASED`], the kernel
    /// would look up its pages by the wrong address. The kernel refuses, as beyond the limit on
    /// locked memory. The error gives the memory back.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: MemoryOwner>(&self, memory: M, access: Access) -> Result<Mr<M>, RegisterError<M>> {
        Mr::register(&self.domain, memory, access)
    }

    /// Registers borrowed memory, with local rights only: a peer or a window could go on using it
    /// after the borrow has ended.
    ///
    /// The memory is borrowed for as long as the region lives. A forgotten region stays registered
    /// after the borrow has ended, which is harmless: only operations of this process could reach
    /// the memory, and posting them is `unsafe` ([`owned::Endpoint`](crate::owned::Endpoint) takes
    /// no borrowed memory).
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

    /// Registers all of the process's memory, on demand, for this process's own operations.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device has no such regions
    /// ([`Capabilities::odp_implicit`](crate::Capabilities::odp_implicit)); the kernel refuses.
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_implicit(&self, access: LocalAccess) -> Result<ImplicitMr> {
        ImplicitMr::local(&self.domain, access)
    }

    /// Registers all of the process's memory, on demand, with any rights.
    ///
    /// # Errors
    /// As for [`Pd::register_implicit`].
    ///
    /// # Safety
    ///
    /// As far as `access` allows, peers who learn the key may read and write whatever the process
    /// has in its memory, at any moment until the region and its parts are dropped: who gives the
    /// key away answers for what they do.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_implicit_remote(&self, access: Access) -> Result<ImplicitMr> {
        // SAFETY: the caller's promise is the same.
        unsafe { ImplicitMr::register(&self.domain, access) }
    }

    /// The region that is nowhere: what operations read there is thrown away or undefined, what
    /// they write there is gone. An element over it skips part of a message.
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
    /// [`Error::Unsupported`] where the device has none.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<NullMr> {
        let lkey = self.context.provider().null_key();
        let lkey = lkey.ok_or(Error::Unsupported { verb: "alloc_null_mr", what: "null MRs are" })?;
        Ok(NullMr { lkey })
    }

    /// Registers `len` bytes of a dma-buf, from `offset` on: memory that another driver exports,
    /// such as that of a graphics card. Operations and peers name its first byte by `iova`, whose
    /// place in its page must be that of `offset`.
    ///
    /// ```no_run
    /// # fn share(pd: &bareverbs::Pd, buffer: std::os::fd::OwnedFd) -> bareverbs::Result<()> {
    /// use std::os::fd::AsFd;
    ///
    /// use bareverbs::Access;
    ///
    /// let region = pd.register_dmabuf(buffer.as_fd(), 0, 1 << 20, 0, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    /// println!("peers read it at {:?}", region.remote(0)?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The region keeps the dma-buf; the descriptor may be closed.
    ///
    /// No device has been seen to do this yet: ConnectX's driver wants memory on demand for it,
    /// which the software ConnectX that this is tested on has not.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes or a range beyond the address space, [`Error::Unsupported`]
    /// where the device does not reach such memory; the kernel refuses, as for a descriptor that is
    /// no dma-buf.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(
        &self,
        buffer: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<DmabufMr> {
        DmabufMr::register(&self.domain, buffer, (offset, len), iova, access)
    }

    /// Registers the address range of `len` bytes from `addr`, known to operations and peers as
    /// starting at `iova`, or at `addr` itself where that is `None`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes, a range beyond the address space, or on Soft-RoCE for
    /// memory on demand ([`Access::ON_DEMAND`]) with an `iova` other than `addr`; the kernel
    /// refuses, as where part of the range is not mapped.
    ///
    /// # Safety
    ///
    /// For a region on demand on Soft-RoCE, "the range" begins at the start of the page that `addr`
    /// is in: the kernel copies to and from there (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
    ///
    /// Until [`Mr::into_inner`] has returned `Ok`, and for the life of the process where the kernel
    /// refuses to deregister, there or when the region is dropped:
    ///
    /// - The range stays mapped. Its bytes are initialised, and valid for reads and writes by this
    ///   process whatever `access` says: [`Mr::read`] and [`Mr::write`] are safe.
    /// - The region's operations, its copying methods on any thread and, as far as `access` allows,
    ///   peers may use the memory.
    /// - While what [`Mr::bytes`] or [`Mr::bytes_mut`] returned is in use, nothing else changes the
    ///   bytes, or reads them in the second case. Whoever has the region can call them.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn register_raw(
        &self,
        addr: *mut u8,
        len: usize,
        iova: Option<u64>,
        access: Access,
    ) -> Result<Mr<RawMemory>> {
        // SAFETY: the caller's promise is the same.
        unsafe { Mr::register_raw(&self.domain, addr, len, iova, access) }
    }

    /// Registers part of memory on the device, `..` for all. Operations and peers name its first
    /// byte by the address 0.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes, a range beyond the memory, or memory of another context;
    /// the kernel refuses, as for rights that the device does not give there.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_dm(&self, dm: &Dm, range: impl RangeBounds<usize>, access: Access) -> Result<DmMr> {
        DmMr::register(&self.domain, dm, range, access)
    }

    /// Makes a memory window, bound to nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device has none, [`Error::Invalid`] for a type that there
    /// is not; the kernel refuses.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        Mw::alloc(&self.domain, mw_type)
    }

    /// Makes a queue pair in the state RESET.
    ///
    /// # Errors
    /// [`Error::Limit`] names the depth or width that is above the device's; [`Error::Invalid`] for
    /// queues of another context; [`Error::Unsupported`] for [XRC](crate::XrcSend) where the device
    /// has none; the kernel refuses.
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp<T: Transport>(&self, init: &QpInit<'_, P>) -> Result<Qp<T, P>> {
        Qp::create(self, init)
    }

    /// Makes a shared receive queue.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no receives or a limit above them, [`Error::Limit`] names the depth
    /// or width that is above the device's; the kernel refuses.
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create(self, init)
    }

    /// Makes a shared receive queue of an XRC domain.
    ///
    /// # Errors
    /// [`Error::Invalid`] for no receives, a limit above them, or a domain or completion queue of
    /// another context, [`Error::Limit`] names the depth or width that is above the device's; the
    /// kernel refuses.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_xrc_srq(&self, init: &XrcSrqInit<'_, P>) -> Result<XrcSrq<P>> {
        XrcSrq::create(self, init)
    }

    /// Makes a work queue that receives, in the state RESET.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device has none, or not with such flags, [`Error::Invalid`]
    /// for no receives or a completion queue of another context, [`Error::Limit`] names the depth
    /// or width that is above the device's; the kernel refuses.
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(&self, init: &WqInit<'_, P>) -> Result<Wq<P>> {
        Wq::create(self, init)
    }

    /// Makes an RSS QP over work queues.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device has none, or does not hash such fields,
    /// [`Error::Invalid`] for fields that no frame has all of or a table of another context; the
    /// kernel refuses, as without the privilege `CAP_NET_RAW`.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_rss_qp(&self, init: &RssInit<'_, P>) -> Result<RssQp<P>> {
        RssQp::create(self, init)
    }

    /// Makes an address handle.
    ///
    /// On RoCE the kernel looks for the way to the peer's GID, which may take as long as the peer's
    /// answer to a neighbour solicitation. [`Context::ah_attr_from_wc`] gives the attributes for an
    /// answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] without a global route on RoCE, for a GID of zeros, or for a service
    /// level or flow label of too many bits; [`Error::NoPort`]; [`Error::NoGid`]; the kernel
    /// refuses, as where there is no way to the peer.
    #[doc(alias = "ibv_create_ah")]
    #[doc(alias = "ibv_create_ah_from_wc")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah<P>> {
        Ah::create(self, attr)
    }
}
