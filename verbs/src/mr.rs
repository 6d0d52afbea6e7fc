//! Memory regions.

mod advice;
mod early_dereg;
mod implicit;
pub(crate) mod raw;
mod replace;
mod rereg;

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::command::{self, MrRequest};
use bareverbs_provider::copy;
use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::Sge;
use rustix::io::Errno;

use self::raw::RawMr;
use crate::dmah::DmahShared;
use crate::pd::Pd;
use crate::pd::shared::{PdId, PdShared};
use crate::range::{check_range, element};
use crate::{Access, Borrowed, Error, MemoryOwner, RawMemory, Refused, Remote, Result, mr_hints};

pub use crate::mr_keys::MrKeys;
pub use advice::AdviceList;
pub use bareverbs_provider::command::MrInfo;
pub use implicit::ImplicitMr;
pub use replace::NotReplaced;

pub use crate::dmabuf::{DmabufMr, NullMr};
pub use crate::dmah::{Dmah, DmahInit, TphMemType};
pub use crate::import::ImportedMr;
pub use bareverbs_uapi::uverbs::types::AdviseMrAdvice as Advice;

const VERB: &str = "reg_mr";

/// Access to borrowed memory. Only operations of this process can access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// Operations can read it.
    Read,
    /// Operations can read and write it.
    ReadWrite,
}

/// A memory region: registered memory and its owner.
///
/// [`Mr::write`] and [`Mr::read`] copy bytes in and out at any time. [`Mr::bytes`] returns a slice,
/// unless peers may ever have written the memory.
#[doc(alias = "ibv_mr")]
pub struct Mr<M> {
    /// In a box, so that moving a region moves one pointer.
    inner: Box<Inner<M>>,
}

struct Inner<M> {
    /// Taken out when the region is dropped.
    registration: ManuallyDrop<Registration>,
    /// Not a plain `M`: moving a `Box` asserts exclusive access to its bytes.
    memory: MaybeUninit<M>,
    start: NonNull<u8>,
    len: usize,
    /// See [`Mr::verified_pd`].
    verified_pd: PdId,
}

// SAFETY: the region is accessed through this value's methods only. They borrow it like `Box`
// borrows its heap block.
unsafe impl<M: Send> Send for Mr<M> {}
// SAFETY: methods on shared references only read the bytes.
unsafe impl<M: Sync> Sync for Mr<M> {}

/// The kernel object, its keys and its access rights.
struct Registration {
    domain: Arc<PdShared>,
    object: Object,
    lkey: u32,
    rkey: u32,
    iova: u64,
    access: Access,
    /// All access rights that the region has or may have had. Removing a right does not stop a
    /// write by a peer in progress: devices check rights before they copy. Bound windows stay
    /// bound.
    ever_granted: Access,
    /// Whether a REREG_MR failed that the driver may have executed in part. The kernel may have
    /// revoked the keys and given them to another region.
    half_changed: bool,
    /// Kept until the region is deregistered.
    _hints: Option<Arc<DmahShared>>,
}

/// The kernel's object.
enum Object {
    /// The handle of an MR of its own.
    Own(u32),
    /// The implicit MR that this region is a part of. It is deregistered with its last part.
    Implicit(Arc<implicit::ImplicitRegistration>),
}

impl<P: Provider> Pd<P> {
    /// Registers memory and takes ownership of it.
    ///
    /// ```
    /// use bareverbs::{Access, Buffer, Device};
    ///
    /// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
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
        Mr::register(self.domain(), memory, access, None)
    }

    /// Registers memory with hints for the device's accesses, and takes ownership of it.
    ///
    /// ```
    /// # use bareverbs::mr::DmahInit;
    /// # use bareverbs::{Access, Buffer, Pd, Result};
    /// # fn example(pd: &Pd) -> Result<()> {
    /// let hints = pd.context().alloc_dmah(&DmahInit { processing_hint: Some(1), cpu: None })?;
    /// let buffer = Buffer::zeroed(1 << 20)?;
    /// let region = pd.register_with_hints(buffer, Access::LOCAL_WRITE, &hints)?;
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # example::unsupported(example(&pd));
    /// # Ok::<(), bareverbs::Report>(())
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
        if let Err(error) = self.check_hints(hints) {
            return Err(Refused::new(error, memory));
        }
        Mr::register(self.domain(), memory, access, Some(hints))
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
        Mr::register_borrowed(self.domain(), memory, access)
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
        unsafe { Mr::register_raw(self.domain(), addr, len, iova, access, None) }
    }

    /// Registers an address range with hints for the device's accesses. The other parameters are
    /// those of [`Pd::register_raw`].
    ///
    /// # Errors
    /// As for [`Pd::register_raw`] and [`Pd::register_with_hints`].
    ///
    /// # Safety
    ///
    /// As for [`Pd::register_raw`].
    #[doc(alias = "ibv_reg_mr_ex")]
    pub unsafe fn register_raw_with_hints(
        &self,
        addr: *mut u8,
        len: usize,
        iova: Option<u64>,
        access: Access,
        hints: &Dmah,
    ) -> Result<Mr<RawMemory>> {
        self.check_hints(hints)?;
        // SAFETY: the caller upholds the same contract.
        unsafe { Mr::register_raw(self.domain(), addr, len, iova, access, Some(hints)) }
    }

    fn check_hints(&self, hints: &Dmah) -> Result<()> {
        if hints.is_of(self.context().inner()) {
            return Ok(());
        }
        Err(Error::foreign(VERB, "the DMA handle is of another context"))
    }
}

impl Registration {
    /// # Safety
    ///
    /// As for [`command::RegMrMethod::register`].
    unsafe fn new(
        domain: &Arc<PdShared>,
        start: *mut u8,
        len: usize,
        iova: Option<u64>,
        access: Access,
        hints: Option<&Dmah>,
    ) -> Result<Self> {
        let inner = &domain.context;
        let (addr, iova) = check_raw_range(VERB, start, len, iova, access)?;
        let request = MrRequest {
            pd: domain.handle,
            addr,
            length: len as u64,
            iova,
            access,
            dmah: hints.map(Dmah::handle),
        };
        if iova != addr && access.contains(Access::ON_DEMAND) && inner.mr_quirks.odp_ignores_addr {
            let reason = format!(
                "the driver resolves ON_DEMAND pages at the wrong address if iova {iova:#x} differs \
                 from the address {addr:#x}: omit `iova` and ZERO_BASED, or register without \
                 ON_DEMAND"
            );
            return Err(Error::invalid(VERB, reason));
        }
        if iova != addr && inner.mr_quirks.iova_is_addr {
            let reason = format!(
                "the driver addresses the memory by its address {addr:#x}, not by iova {iova:#x}: omit `iova` \
                 and ZERO_BASED"
            );
            return Err(Error::invalid(VERB, reason));
        }
        // SAFETY: the caller upholds the contract for the range.
        let made = unsafe { inner.reg_mr.register(&inner.file, &request) }.map_err(|refused| {
            Error::kernel(VERB, format!("{len} bytes at {addr:#x}, access {access:?}"), refused)
                .or_hint(|errno| mr_hints::hint(errno, &request, &inner.capabilities))
        })?;
        Ok(Self {
            domain: Arc::clone(domain),
            object: Object::Own(made.handle),
            lkey: made.lkey,
            rkey: made.rkey,
            iova,
            access,
            ever_granted: access,
            half_changed: false,
            _hints: hints.map(|hints| Arc::clone(hints.shared())),
        })
    }

    #[cfg(any(test, feature = "test-utils"))]
    fn for_test(domain: &Arc<PdShared>, access: Access) -> Self {
        let object = Object::Own(1);
        Self {
            domain: Arc::clone(domain),
            object,
            lkey: 1,
            rkey: 1,
            iova: 0,
            access,
            ever_granted: access,
            half_changed: false,
            _hints: None,
        }
    }

    fn handle(&self) -> u32 {
        match &self.object {
            Object::Own(handle) => *handle,
            Object::Implicit(implicit) => implicit.handle(),
        }
    }

    /// Deregisters an MR of its own. Does nothing for a part of an implicit MR.
    ///
    /// # Safety
    ///
    /// It must not have been deregistered before: the kernel may have reused the handle. The
    /// registration must not be used afterwards.
    unsafe fn dereg(&self) -> Result<()> {
        let Object::Own(handle) = self.object else { return Ok(()) };
        // SAFETY: the handle is this region's, by the contract of `dereg`. The caller of a post
        // keeps the region until the request is complete.
        unsafe { command::dereg_mr(&self.domain.context.file, handle) }.map_err(|refused| {
            Error::kernel("dereg_mr", format!("lkey {:#x}", self.lkey), refused).or_hint(|errno| {
                matches!(errno, Errno::INVAL | Errno::BUSY)
                    .then(|| "an MW is still bound to it: invalidate or drop the MW first".into())
            })
        })?;
        if self.domain.context.mr_quirks.dereg_is_early && self.ever_granted.intersects(REMOTE_WRITABLE) {
            early_dereg::wait_for_writes();
        }
        Ok(())
    }
}

impl<M: MemoryOwner> Mr<M> {
    pub(crate) fn register(
        domain: &Arc<PdShared>,
        memory: M,
        access: Access,
        hints: Option<&Dmah>,
    ) -> Result<Self, Refused<M>> {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: it was just initialised.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        if access.intersects(REMOTE_ACCESSIBLE)
            && let Err(error) = check_page_offset(VERB, domain, access, start.addr().get())
        {
            // SAFETY: it was initialised at the top of this function and not moved out of.
            return Err(Refused::new(error, unsafe { memory.assume_init() }));
        }
        // SAFETY: `MemoryOwner` guarantees that the bytes are valid while the owner exists and that
        // nothing else accesses them while they are registered. The region drops the owner only
        // after the kernel has deregistered it.
        match unsafe { Registration::new(domain, start.as_ptr(), len, None, access, hints) } {
            Ok(registration) => Ok(Self::new(registration, memory, start, len)),
            // SAFETY: it was initialised at the top of this function and not moved out of.
            Err(error) => Err(Refused::new(error, unsafe { memory.assume_init() })),
        }
    }
}

#[cfg(any(test, feature = "test-utils"))]
impl<M: MemoryOwner> Mr<M> {
    /// A region without a kernel object, with the L_Key `lkey`.
    pub(crate) fn without_kernel(domain: &Arc<PdShared>, memory: M, lkey: u32) -> Self {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: it was just initialised.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        let iova = start.as_ptr().expose_provenance() as u64;
        let registration = Registration::for_test(domain, Access::LOCAL_WRITE);
        Self::new(Registration { lkey, rkey: lkey, iova, ..registration }, memory, start, len)
    }
}

impl<'a> Mr<Borrowed<'a>> {
    pub(crate) fn register_borrowed(
        domain: &Arc<PdShared>,
        memory: &'a mut [u8],
        access: LocalAccess,
    ) -> Result<Self> {
        let access = match access {
            LocalAccess::Read => Access::empty(),
            LocalAccess::ReadWrite => Access::LOCAL_WRITE,
        };
        let memory = Borrowed::new(memory);
        let (start, len) = memory.region();
        // SAFETY: the region borrows the bytes exclusively. The registration of a forgotten region
        // outlives the borrow, but safe code can't make the device access the bytes then. The
        // rights are local, so peers and windows can't access them. No method gives a borrowed
        // region other rights. Posting an operation on it is `unsafe`: its caller upholds the
        // borrow.
        let registration = unsafe { Registration::new(domain, start.as_ptr(), len, None, access, None) }?;
        Ok(Self::new(registration, MaybeUninit::new(memory), start, len))
    }
}

impl Mr<RawMemory> {
    /// # Safety
    ///
    /// As for [`Pd::register_raw`](crate::Pd::register_raw).
    pub(crate) unsafe fn register_raw(
        domain: &Arc<PdShared>,
        addr: *mut u8,
        len: usize,
        iova: Option<u64>,
        access: Access,
        hints: Option<&Dmah>,
    ) -> Result<Self> {
        // SAFETY: the caller upholds the contract for the range.
        let registration = unsafe { Registration::new(domain, addr, len, iova, access, hints) }?;
        Ok(Self::over_range(registration, addr, len))
    }

    /// Registers bytes with rights of peers.
    ///
    /// # Safety
    ///
    /// As for [`Pd::register_raw`](crate::Pd::register_raw), except for on-demand MRs of drivers that
    /// ignore the offset in a page: they are rejected unless they begin at a page boundary.
    pub(crate) unsafe fn register_remote(
        verb: &'static str,
        domain: &Arc<PdShared>,
        addr: *mut u8,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        check_page_offset(verb, domain, access, addr.addr())?;
        // SAFETY: the caller upholds the contract for the range.
        let registration = unsafe { Registration::new(domain, addr, len, None, access, None) }?;
        Ok(Self::over_range(registration, addr, len))
    }

    /// An MR of these bytes, whose deregistration fails.
    #[cfg(test)]
    pub(crate) fn remote_for_test(domain: &Arc<PdShared>, addr: *mut u8, len: usize) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let iova = addr.expose_provenance() as u64;
        Self::over_range(Registration { iova, ..Registration::for_test(domain, access) }, addr, len)
    }

    fn over_range(registration: Registration, addr: *mut u8, len: usize) -> Self {
        let (start, len) = span(addr, len);
        Self::new(registration, MaybeUninit::new(RawMemory), start, len)
    }

    /// # Safety
    ///
    /// As for [`Mr::from_handle`].
    pub(crate) unsafe fn adopt(domain: &Arc<PdShared>, object: &RawMr, addr: *mut u8, len: usize) -> Self {
        let RawMr { handle, lkey, rkey, iova, access } = *object;
        let (domain, object) = (Arc::clone(domain), Object::Own(handle));
        let registration = Registration {
            domain,
            object,
            lkey,
            rkey,
            iova,
            access,
            ever_granted: access,
            half_changed: false,
            _hints: None,
        };
        Self::over_range(registration, addr, len)
    }
}

impl<M> Inner<M> {
    /// Computes `verified_pd`, after any change of the other fields.
    fn verify(&mut self) {
        let Registration { domain, access, half_changed, .. } = &*self.registration;
        let fits = u32::try_from(self.len).is_ok();
        let postable = !half_changed && !ignores_page_offset(domain, *access);
        self.verified_pd = if fits && postable { PdId::of(domain) } else { PdId::NONE };
    }
}

impl<M> Mr<M> {
    fn new(registration: Registration, memory: MaybeUninit<M>, start: NonNull<u8>, len: usize) -> Self {
        let registration = ManuallyDrop::new(registration);
        let mut inner = Box::new(Inner { registration, memory, start, len, verified_pd: PdId::NONE });
        inner.verify();
        Self { inner }
    }

    /// Its kernel handle. Other processes [import](crate::Pd::import_mr) the region by it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.inner.registration.handle()
    }

    /// Releases the handle: drop no longer deregisters the kernel object. The kernel deregisters it
    /// when the device file is closed. Owned memory is leaked. [`Mr::from_handle`] adopts the region.
    ///
    /// # Errors
    /// The region, if it is a part of an [implicit region](ImplicitMr), which owns the object.
    pub fn into_handle(self) -> Result<u32, Self> {
        let Object::Own(handle) = self.inner.registration.object else { return Err(self) };
        drop(ManuallyDrop::into_inner(self.into_parts().registration));
        Ok(handle)
    }

    /// The local key, for operations of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.inner.registration.lkey
    }

    /// The remote key, for operations of peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.inner.registration.rkey
    }

    /// The address of its first byte in operations of this process and of peers (IOVA).
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.inner.registration.iova
    }

    /// Its current access rights.
    #[must_use]
    pub fn access(&self) -> Access {
        self.inner.registration.access
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the length of an MR is at least 1 byte")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Its first byte in this process's address space.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.inner.start.as_ptr()
    }

    /// A scatter/gather element for a range of it; `..` is all of it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if
    ///
    /// - the range exceeds the region or has 4 GiB or more,
    /// - the region has [`Access::ON_DEMAND`] on rxe and the range does not begin at a page boundary,
    /// - [`Mr::set_access`] or [`Mr::move_to`] failed and may have changed the region in part.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        let range = self.range("Mr::sge", range)?;
        if self.verified_pd() == PdId::NONE {
            self.check_postable("Mr::sge", range.0)?;
        }
        element("Mr::sge", self.addr(), range, self.lkey())
    }

    /// The remote address and key of the byte at `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region has no such byte.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        self.range("Mr::remote", offset..offset.saturating_add(1))?;
        Ok(Remote { addr: self.addr().wrapping_add(offset as u64), rkey: self.rkey() })
    }

    /// Copies bytes from the region, starting at `offset`. A byte that an operation or a peer
    /// writes at the same time has its old or its new value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range exceeds the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let (start, _) = self.range("Mr::read", offset..offset.saturating_add(into.len()))?;
        // SAFETY: the range is within the region. The bytes are valid while the region exists.
        // While a request uses them, this process writes them only by such copies: here, in `write`
        // and in a poller (scatter to CQE). The caller that posts the request guarantees it.
        unsafe { copy::copy_out(self.inner.start.as_ptr().add(start), into) };
        Ok(())
    }

    /// Copies bytes into the region, starting at `offset`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range exceeds the region.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        let (start, _) = self.range("Mr::write", offset..offset.saturating_add(from.len()))?;
        // SAFETY: the range is within the region. The bytes are valid while the region exists. The
        // exclusive borrow excludes other accesses of this process except such copies of a poller
        // (scatter to CQE).
        unsafe { copy::copy_in(from, self.inner.start.as_ptr().add(start)) };
        Ok(())
    }

    /// Its bytes as a slice.
    ///
    /// `None` if peers may write them or may ever have written them: the region has or ever had the
    /// right [`REMOTE_WRITE`](Access::REMOTE_WRITE), [`REMOTE_ATOMIC`](Access::REMOTE_ATOMIC) or
    /// [`MW_BIND`](Access::MW_BIND). Removing a right with [`Mr::set_access`] does not stop a write
    /// in progress and does not unbind a window. [`Mr::into_inner`] deregisters the region and
    /// returns the memory.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: the bytes are valid and initialised while the region exists (`MemoryOwner`, or
        // the caller of `register_raw`). No peer can write them or ever could. The caller of an
        // `unsafe` method that posts an operation on them guarantees that no slice is read until it
        // is complete.
        (!self.inner.registration.ever_granted.intersects(REMOTE_WRITABLE))
            .then(|| unsafe { std::slice::from_raw_parts(self.inner.start.as_ptr(), self.inner.len) })
    }

    /// Its bytes as a mutable slice. `None` if [`Mr::bytes`] is `None`, and if the region has or
    /// ever had the right [`REMOTE_READ`](Access::REMOTE_READ).
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the bytes are valid and initialised while the region exists (`MemoryOwner`, or
        // the caller of `register_raw`). No peer can read or write them or ever could. The caller
        // of an `unsafe` method that posts an operation on them guarantees that no slice is changed
        // until it is complete. The region is borrowed exclusively.
        (!self.inner.registration.ever_granted.intersects(REMOTE_ACCESSIBLE))
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.inner.start.as_ptr(), self.inner.len) })
    }

    /// Deregisters the region and returns the memory.
    ///
    /// # Errors
    /// The region and [`Error::Kernel`], for example while a memory window is bound to the region.
    /// Drop of the region leaks owned memory if the kernel refuses again.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn dereg(self) -> Result<M, Refused<Self>> {
        // SAFETY: the region is registered. It is not used again if this succeeds.
        if let Err(error) = unsafe { self.inner.registration.dereg() } {
            return Err(Refused::new(error, self));
        }
        let Inner { registration, memory, .. } = self.into_parts();
        drop(ManuallyDrop::into_inner(registration));
        // SAFETY: the memory was initialised when the region was created.
        Ok(unsafe { memory.assume_init() })
    }

    /// [`Mr::dereg`] under the name that `std` gives to the end of a wrapper.
    ///
    /// # Errors
    /// As for [`Mr::dereg`].
    pub fn into_inner(self) -> Result<M, Refused<Self>> {
        self.dereg()
    }

    /// Leaks the memory and leaves it registered, because the device may still access it.
    pub(crate) fn abandon(self) {
        drop(ManuallyDrop::into_inner(self.into_parts().registration));
    }

    /// Its parts. The region stays registered.
    fn into_parts(self) -> Inner<M> {
        let region = ManuallyDrop::new(self);
        // SAFETY: the region is in a `ManuallyDrop` and is not used again.
        *unsafe { std::ptr::read(&raw const region.inner) }
    }

    pub(crate) fn domain(&self) -> &Arc<PdShared> {
        &self.inner.registration.domain
    }

    /// Its PD, if an SGE of any range of it is accepted: no range is too long for an SGE, and
    /// [`Mr::check_postable`] succeeds for each.
    #[inline]
    pub(crate) fn verified_pd(&self) -> PdId {
        self.inner.verified_pd
    }

    /// Rejects a range that begins at `start` if an operation on it may access other bytes.
    #[inline(never)]
    pub(crate) fn check_postable(&self, verb: &'static str, start: usize) -> Result<()> {
        self.check_keys(verb)?;
        let addr = self.inner.start.addr().get().wrapping_add(start);
        check_page_offset(verb, self.domain(), self.access(), addr)
    }

    /// Rejects an MR whose keys the kernel may have revoked.
    pub(crate) fn check_keys(&self, verb: &'static str) -> Result<()> {
        if self.inner.registration.half_changed {
            let reason = "a failed change of the MR may have revoked its keys: deregister it (`Mr::dereg`) and \
                          register the memory again";
            return Err(Error::invalid(verb, reason));
        }
        Ok(())
    }

    /// Rejects an MR whose bytes peers may access, and one of which the device is known to access
    /// other bytes than those that a request names.
    pub(crate) fn check_local(&self, verb: &'static str) -> Result<()> {
        self.check_keys(verb)?;
        let remote = self.inner.registration.ever_granted.intersection(REMOTE_ACCESSIBLE);
        if !remote.is_empty() {
            let reason = format!(
                "the MR has or had the right {remote:?}, by which peers can access all of it: register the \
                 memory with LOCAL_WRITE"
            );
            return Err(Error::invalid(verb, reason));
        }
        if ignores_page_offset(self.domain(), self.access()) {
            let reason = "the driver ignores the offset of an operation on an ON_DEMAND MR within a page: \
                          register the memory without ON_DEMAND";
            return Err(Error::invalid(verb, reason));
        }
        Ok(())
    }

    pub(crate) fn range(&self, what: &'static str, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        check_range(what, range, self.inner.len)
    }
}

/// The address and the IOVA of a range that begins at `start`. Rejects an empty range, and one that
/// exceeds the address space.
fn check_raw_range(
    verb: &'static str,
    start: *mut u8,
    len: usize,
    iova: Option<u64>,
    access: Access,
) -> Result<(u64, u64)> {
    let addr = start.expose_provenance() as u64;
    let iova = iova.unwrap_or(if access.contains(Access::ZERO_BASED) { 0 } else { addr });
    if len == 0 {
        return Err(Error::empty(verb, "the length of an MR must be at least 1 byte"));
    }
    // Device addresses have 64 bits too: neither range may wrap around.
    if addr.checked_add(len as u64).is_none() || iova.checked_add(len as u64 - 1).is_none() {
        let reason = format!("{len} bytes at {addr:#x} (iova {iova:#x}) exceed the address space");
        return Err(Error::out_of_bounds(verb, reason));
    }
    Ok((addr, iova))
}

/// The bytes of a range for the copying methods of its region. An ODP region may start at the null
/// address: then they get length 0.
fn span(addr: *mut u8, len: usize) -> (NonNull<u8>, usize) {
    NonNull::new(addr).map_or((NonNull::dangling(), 0), |start| (start, len))
}

/// Whether the device copies to and from the start of the page that an operation names, and so may
/// exceed the bounds of a part of a region. It keeps to the bounds of a region or range that begins
/// at a page boundary.
fn ignores_page_offset(domain: &PdShared, access: Access) -> bool {
    access.contains(Access::ON_DEMAND) && domain.context.mr_quirks.odp_ignores_page_offset
}

/// Rejects memory at `addr` if the device exceeds its bounds.
fn check_page_offset(verb: &'static str, domain: &PdShared, access: Access, addr: usize) -> Result<()> {
    if !ignores_page_offset(domain, access) || addr.is_multiple_of(rustix::param::page_size()) {
        return Ok(());
    }
    let reason = "the driver ignores the offset of an operation on an ON_DEMAND MR within its first page: use \
                  page-aligned memory such as `Buffer` and ranges that begin at a page boundary, or \
                  register without ON_DEMAND";
    Err(Error::invalid(verb, reason))
}

/// Access rights by which a peer can write a region without an operation of this process.
pub(crate) const REMOTE_WRITABLE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

/// Access rights by which a peer can read or write a region without an operation of this process.
pub(crate) const REMOTE_ACCESSIBLE: Access = REMOTE_WRITABLE.union(Access::REMOTE_READ);

impl<M> Drop for Mr<M> {
    fn drop(&mut self) {
        // SAFETY: the region is not used after its drop.
        let registration = unsafe { ManuallyDrop::take(&mut self.inner.registration) };
        // If the kernel refuses, the device may still access the memory: it is leaked.
        // SAFETY: the registration was taken out of the region, and is dropped after this.
        if unsafe { registration.dereg() }.is_ok() {
            // SAFETY: the memory was initialised when the region was created, and is dropped only
            // here.
            unsafe { self.inner.memory.assume_init_drop() };
        }
    }
}

impl<M> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.inner.len)
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Bound;

    use bareverbs_provider::caps::MrQuirks;
    use bareverbs_uapi::uverbs::types::DriverId;

    use super::*;
    use crate::testing::Plain;

    /// A range whose bounds differ at each call.
    struct Fickle(Cell<usize>);

    impl RangeBounds<usize> for Fickle {
        fn start_bound(&self) -> Bound<&usize> {
            self.0.set(self.0.get() + 1);
            Bound::Included(if self.0.get() == 1 { &2 } else { &usize::MAX })
        }

        fn end_bound(&self) -> Bound<&usize> {
            self.0.set(self.0.get() + 1);
            Bound::Excluded(if self.0.get() == 2 { &5 } else { &usize::MAX })
        }
    }

    #[test]
    fn check_range_evaluates_each_bound_once() {
        assert_eq!(check_range("test", Fickle(Cell::new(0)), 8).unwrap(), (2, 3));
        let part = ImplicitMr::for_test(Plain::default().domain().domain(), Access::LOCAL_WRITE)
            .part(vec![0; 8])
            .unwrap();
        let sge = part.sge(Fickle(Cell::new(0))).unwrap();
        assert_eq!((sge.addr, sge.length), (part.addr() + 2, 3));
    }

    #[test]
    fn mr_bytes_is_none_if_remote_write_was_ever_granted() {
        let domain = Plain::default().domain();
        let region = |access, ever| {
            let registration =
                Registration { ever_granted: ever, ..Registration::for_test(domain.domain(), access) };
            let mut memory = MaybeUninit::new(vec![7; 4]);
            // SAFETY: it was just initialised.
            let (start, len) = unsafe { memory.assume_init_mut() }.region();
            Mr::new(registration, memory, start, len)
        };
        let local = Access::LOCAL_WRITE;
        let mut never = region(local, local);
        assert!(never.bytes().is_some() && never.bytes_mut().is_some());
        for right in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::MW_BIND] {
            let mut once = region(local, local | right);
            assert!(once.bytes().is_none() && once.bytes_mut().is_none(), "{right:?}");
        }
        let mut read = region(local, local | Access::REMOTE_READ);
        assert!(read.bytes().is_some() && read.bytes_mut().is_none());
    }

    #[test]
    fn mr_is_not_postable_after_a_failed_rereg_mr() {
        // Its ioctl fails with `EINVAL`.
        for postable in [false, true] {
            let quirks = MrQuirks { rereg_is_atomic: postable, ..MrQuirks::default() };
            let domain = Plain::with(quirks).domain_behind("/dev/urandom", DriverId::UNKNOWN);
            let mut memory = MaybeUninit::new(vec![7; 4]);
            // SAFETY: it was just initialised.
            let (start, len) = unsafe { memory.assume_init_mut() }.region();
            let registration = Registration::for_test(domain.domain(), Access::LOCAL_WRITE);
            let mut region = Mr::new(registration, memory, start, len);
            assert!(region.sge(..).is_ok());
            assert!(region.set_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE).is_err());
            assert_eq!((region.sge(..).is_ok(), region.check_local("test").is_ok()), (postable, false));
            assert_eq!(region.verified_pd() != PdId::NONE, postable);
        }
    }

    #[test]
    fn failed_rereg_mr_counts_as_granted() {
        // Its ioctl fails with `EINVAL`.
        let domain = Plain::default().domain_behind("/dev/urandom", DriverId::UNKNOWN);
        let mut memory = MaybeUninit::new(vec![7; 4]);
        // SAFETY: it was just initialised.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        let registration = Registration::for_test(domain.domain(), Access::LOCAL_WRITE);
        let mut region = Mr::new(registration, memory, start, len);
        let refused = region.set_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL));
        assert_eq!(region.access(), Access::LOCAL_WRITE);
        assert!(region.bytes().is_none() && region.bytes_mut().is_none());
    }

    #[test]
    fn rereg_mr_rejects_changes_of_on_demand_that_the_driver_can_not_make() {
        let quirks = MrQuirks { odp_is_fixed: true, ..MrQuirks::default() };
        let domain = Plain::with(quirks).domain();
        for (has, asked) in [
            (Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::ON_DEMAND),
            (Access::LOCAL_WRITE | Access::ON_DEMAND, Access::LOCAL_WRITE),
        ] {
            let mut memory = MaybeUninit::new(vec![7; 4]);
            // SAFETY: it was just initialised.
            let (start, len) = unsafe { memory.assume_init_mut() }.region();
            let mut region = Mr::new(Registration::for_test(domain.domain(), has), memory, start, len);
            let refused = region.set_access(asked).unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
            assert_eq!(region.access(), has);
        }
    }

    #[test]
    fn odp_mr_requires_the_address_as_iova_if_the_driver_ignores_the_address() {
        let pages = crate::Buffer::zeroed(64).unwrap();
        let start = pages.as_ptr().cast_mut();
        let addr = start.expose_provenance() as u64;
        for refuses in [true, false] {
            let quirks = MrQuirks { odp_ignores_addr: refuses, ..MrQuirks::default() };
            let pd = Plain::with(quirks).domain();
            for (iova, access, refused) in [
                (Some(addr), Access::ON_DEMAND, false),
                (None, Access::ON_DEMAND, false),
                (Some(addr + 4096), Access::empty(), false),
                (None, Access::ZERO_BASED, false),
                (Some(addr + 4096), Access::ON_DEMAND, refuses),
                (Some(0), Access::ON_DEMAND, refuses),
                (None, Access::ON_DEMAND | Access::ZERO_BASED, refuses),
            ] {
                // SAFETY: the domain has no device file, so nothing is registered.
                let failed = unsafe { pd.register_raw(start, 64, iova, access) }.unwrap_err();
                assert_eq!(matches!(failed, Error::Invalid { .. }), refused, "{iova:?} {access:?}: {failed}");
            }
        }
    }

    #[test]
    fn mr_memory_is_leaked_if_dereg_mr_fails() {
        struct Memory<'a>(Vec<u8>, &'a Cell<bool>);

        impl Drop for Memory<'_> {
            fn drop(&mut self) {
                self.1.set(true);
            }
        }

        // SAFETY: the vector's heap block does not move with it, and is not freed if the vector is
        // forgotten.
        unsafe impl MemoryOwner for Memory<'_> {
            fn region(&mut self) -> (NonNull<u8>, usize) {
                self.0.region()
            }
        }

        let (domain, freed) = (Plain::default().domain(), Cell::new(false));
        let region = || {
            let mut memory = MaybeUninit::new(Memory(vec![7; 4], &freed));
            // SAFETY: it was just initialised.
            let (start, len) = unsafe { memory.assume_init_mut() }.region();
            Mr::new(Registration::for_test(domain.domain(), Access::LOCAL_WRITE), memory, start, len)
        };
        drop(region());
        assert!(region().into_inner().is_err());
        assert!(!freed.get());
    }
}
