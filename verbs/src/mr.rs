//! Memory regions.

mod advice;
mod implicit;
mod keys;
mod rereg;

use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::command::{self, MrRequest};
use bareverbs_uapi::uverbs::types::DriverId;
use rustix::io::Errno;

use crate::memory::{copy_in, copy_out};
use crate::pd::PdShared;
use crate::{Access, Borrowed, Error, MemoryOwner, RawMemory, Remote, Result, Sge, mr_hints};

pub use bareverbs_provider::command::MrInfo;
pub use implicit::ImplicitMr;
pub use keys::MrKeys;

const VERB: &str = "reg_mr";

/// Access to borrowed memory: by this process's own operations only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// Operations read it.
    Read,
    /// Operations read and write it.
    ReadWrite,
}

/// A memory region: registered memory and its owner.
///
/// [`Mr::write`] and [`Mr::read`] copy its bytes in and out, at any time. [`Mr::bytes`] lends them
/// in place, unless peers may ever have written them.
#[doc(alias = "ibv_mr")]
pub struct Mr<M> {
    registration: ManuallyDrop<Registration>,
    /// Not a plain `M`: moving a box, say, would claim that nobody else uses its bytes.
    memory: MaybeUninit<M>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is used through this value's methods only, which borrow it as a box's block is
// borrowed.
unsafe impl<M: Send> Send for Mr<M> {}
// SAFETY: shared references only read the bytes.
unsafe impl<M: Sync> Sync for Mr<M> {}

/// Keys and what is behind them.
struct Registration {
    domain: Arc<PdShared>,
    object: Object,
    lkey: u32,
    rkey: u32,
    iova: u64,
    access: Access,
    /// All rights that it has had or may have had. A change of rights does not stop a peer's write
    /// under way, since devices check rights before they copy, and windows that were bound stay
    /// bound.
    ever_granted: Access,
}

/// The kernel's object.
enum Object {
    /// Its handle.
    Own(u32),
    /// That of a region over all memory, which goes with the last of its parts.
    Implicit(Arc<implicit::ImplicitRegistration>),
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
    ) -> Result<Self> {
        let inner = &domain.context;
        let addr = start.expose_provenance() as u64;
        let iova = iova.unwrap_or(if access.contains(Access::ZERO_BASED) { 0 } else { addr });
        if len == 0 {
            return Err(Error::invalid(VERB, "a region must have at least 1 byte"));
        }
        // The device counts addresses with 64 bits too, so that neither range may wrap around.
        if addr.checked_add(len as u64).is_none() || iova.checked_add(len as u64 - 1).is_none() {
            let reason =
                format!("{len} bytes at {addr:#x} (known as {iova:#x}) reach beyond the address space");
            return Err(Error::invalid(VERB, reason));
        }
        let request = MrRequest { pd: domain.handle, addr, length: len as u64, iova, access };
        if iova != addr && access.contains(Access::ON_DEMAND) && is_soft_roce(domain) {
            let reason = format!(
                "Soft-RoCE looks up pages on demand by the wrong address where a region is known as {iova:#x} \
                 but lies at {addr:#x}: leave out `iova` and ZERO_BASED, or register it without ON_DEMAND"
            );
            return Err(Error::invalid(VERB, reason));
        }
        // SAFETY: the caller answers for the range.
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
        })
    }

    #[cfg(test)]
    fn for_test(domain: &Arc<PdShared>, access: Access) -> Self {
        let object = Object::Own(1);
        Self { domain: Arc::clone(domain), object, lkey: 1, rkey: 1, iova: 0, access, ever_granted: access }
    }

    fn handle(&self) -> u32 {
        match &self.object {
            Object::Own(handle) => *handle,
            Object::Implicit(implicit) => implicit.handle(),
        }
    }

    /// Deregisters a region of its own; does nothing to a part of another one.
    ///
    /// # Safety
    ///
    /// It must not have ended before: the kernel may have given the handle to another region.
    /// Nothing may use the registration afterwards.
    unsafe fn dereg(&self) -> Result<()> {
        let Object::Own(handle) = self.object else { return Ok(()) };
        // SAFETY: the handle is this region's, by the contract of `dereg`. Who posts keeps the
        // region until the request is complete.
        unsafe { command::dereg_mr(&self.domain.context.file, handle) }.map_err(|refused| {
            Error::kernel("dereg_mr", format!("lkey {:#x}", self.lkey), refused).or_hint(|errno| {
                matches!(errno, Errno::INVAL | Errno::BUSY).then(|| {
                    "a memory window is still bound to it: invalidate or drop the window first".into()
                })
            })
        })
    }
}

impl<M: MemoryOwner> Mr<M> {
    pub(crate) fn register(
        domain: &Arc<PdShared>,
        memory: M,
        access: Access,
    ) -> Result<Self, RegisterError<M>> {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: it was just filled.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        if access.intersects(REMOTE_ACCESSIBLE)
            && let Err(error) = check_odp_page_offset(VERB, domain, access, start)
        {
            // SAFETY: it was filled at the top of this function and not moved out of.
            return Err(RegisterError { error, memory: unsafe { memory.assume_init() } });
        }
        // SAFETY: the contract of `MemoryOwner`: the owner keeps the bytes valid for as long as it
        // exists, and nothing else reaches them while they are registered. The region frees the
        // owner only after the kernel has let go of the bytes.
        match unsafe { Registration::new(domain, start.as_ptr(), len, None, access) } {
            Ok(registration) => Ok(Self::new(registration, memory, start, len)),
            // SAFETY: it was filled at the top of this function and not moved out of.
            Err(error) => Err(RegisterError { error, memory: unsafe { memory.assume_init() } }),
        }
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
        // SAFETY: the region borrows the bytes exclusively. A forgotten region's registration
        // outlives the borrow, but then no safe code has the device reach the bytes: the rights are
        // local, so peers and windows can't, no method gives a region over borrowed memory other
        // rights, and posting an operation on it is `unsafe`, for the caller to answer.
        let registration = unsafe { Registration::new(domain, start.as_ptr(), len, None, access) }?;
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
    ) -> Result<Self> {
        // SAFETY: the caller answers for the range.
        let registration = unsafe { Registration::new(domain, addr, len, iova, access) }?;
        let start = NonNull::new(addr).unwrap_or(NonNull::dangling());
        // Nothing is copied where the address is null, as a region on demand may start there.
        let len = if addr.is_null() { 0 } else { len };
        Ok(Self::new(registration, MaybeUninit::new(RawMemory), start, len))
    }
}

impl<M> Mr<M> {
    fn new(registration: Registration, memory: MaybeUninit<M>, start: NonNull<u8>, len: usize) -> Self {
        Self { registration: ManuallyDrop::new(registration), memory, start, len }
    }

    /// The kernel's handle of it, by which other processes [import](crate::Pd::import_mr) it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.registration.handle()
    }

    /// The key by which this process's operations name it.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.registration.lkey
    }

    /// The key by which peers name it.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.registration.rkey
    }

    /// The address by which operations and peers name its first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.registration.iova
    }

    /// What may be done with it now.
    #[must_use]
    pub fn access(&self) -> Access {
        self.registration.access
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region has at least 1 byte")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where its first byte is in this process's memory.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// A scatter/gather element over a range of it, `..` for all.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the range reaches beyond the region, or beyond the 4 GiB that an
    /// element can name.
    pub fn sge(&self, range: impl RangeBounds<usize>) -> Result<Sge> {
        element(self.addr(), self.range("Mr::sge", range)?, self.lkey())
    }

    /// The byte at `offset`, as peers name it.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the region has no such byte.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        self.range("Mr::remote", offset..offset.saturating_add(1))?;
        Ok(Remote { addr: self.addr().wrapping_add(offset as u64), rkey: self.rkey() })
    }

    /// Copies bytes out, from `offset` on. Bytes that are being written meanwhile, by an operation
    /// or a peer, come out old or new.
    ///
    /// # Errors
    /// [`Error::Invalid`] where that reaches beyond the region.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let (start, _) = self.range("Mr::read", offset..offset.saturating_add(into.len()))?;
        // SAFETY: the range lies in the region, whose bytes are valid for as long as it lives.
        unsafe { copy_out(self.start.as_ptr().add(start), into) };
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] where that reaches beyond the region.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        let (start, _) = self.range("Mr::write", offset..offset.saturating_add(from.len()))?;
        // SAFETY: the range lies in the region, whose bytes are valid for as long as it lives, and
        // the exclusive borrow keeps other threads of this process out.
        unsafe { copy_in(from, self.start.as_ptr().add(start)) };
        Ok(())
    }

    /// Its bytes in place.
    ///
    /// `None` where peers may write them, or may ever have: where the region has or ever had the
    /// right [`REMOTE_WRITE`](Access::REMOTE_WRITE), [`REMOTE_ATOMIC`](Access::REMOTE_ATOMIC) or
    /// [`MW_BIND`](Access::MW_BIND). Taking a right away by [`Mr::set_access`] does not stop a
    /// write that is under way, nor unbind a window. [`Mr::into_inner`] ends all that and gives the
    /// memory back.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        // SAFETY: the bytes are valid and initialised for as long as the region lives
        // (`MemoryOwner`, or the callers of `register_raw`). No peer may write them or ever could;
        // the caller of an `unsafe` method that posts an operation on them has promised that nobody
        // looks until it is complete.
        (!self.registration.ever_granted.intersects(REMOTE_WRITABLE))
            .then(|| unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// Its bytes in place. `None` where [`Mr::bytes`] is, and where peers may read them, or may
    /// ever have: [`REMOTE_READ`](Access::REMOTE_READ).
    #[must_use]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the bytes are valid and initialised for as long as the region lives
        // (`MemoryOwner`, or the callers of `register_raw`). No peer may read or write them or ever
        // could; the caller of an `unsafe` method that posts an operation on them has promised that
        // nobody changes them until it is complete. The region is borrowed exclusively.
        (!self.registration.ever_granted.intersects(REMOTE_ACCESSIBLE))
            .then(|| unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Ends the registration and gives the memory back.
    ///
    /// # Errors
    /// The kernel refuses, as while a memory window is bound to it. The memory then stays
    /// registered, and memory that the region owns is never freed.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn into_inner(self) -> Result<M> {
        let mut region = ManuallyDrop::new(self);
        // SAFETY: the region is dropped by hand here and never used again.
        let registration = unsafe { ManuallyDrop::take(&mut region.registration) };
        // SAFETY: the registration was taken out of the region, and is dropped after this.
        unsafe { registration.dereg() }?;
        // SAFETY: the memory was put there when the region was made.
        Ok(unsafe { region.memory.assume_init_read() })
    }

    pub(crate) fn domain(&self) -> &Arc<PdShared> {
        &self.registration.domain
    }

    /// Refuses a region that the device is known to read or write beyond.
    pub(crate) fn check_odp_bounds(&self, verb: &'static str) -> Result<()> {
        check_odp_page_offset(verb, self.domain(), self.access(), self.start)
    }

    pub(crate) fn range(&self, what: &'static str, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        check_range(what, range, self.len)
    }
}

/// Where a range of `len` bytes starts, and its own length.
pub(crate) fn check_range(
    what: &'static str,
    range: impl RangeBounds<usize>,
    len: usize,
) -> Result<(usize, usize)> {
    let start = match range.start_bound() {
        Bound::Included(start) => Some(*start),
        Bound::Excluded(start) => start.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.checked_add(1),
        Bound::Excluded(end) => Some(*end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        _ => {
            let bound = |bound: Option<usize>| bound.map_or_else(String::new, |bound| bound.to_string());
            let (start, end) = (bound(start), bound(end));
            let reason = format!("bytes {start}..{end} are not all in a region of {len}");
            Err(Error::invalid(what, reason))
        }
    }
}

/// Refuses what would have Soft-RoCE read or write before a region that begins within a page. Its
/// on-demand paging copies to and from the start of a page whatever the offset in it
/// (`__rxe_odp_mr_copy` of `rxe_odp.c`, Linux 7.2).
fn check_odp_page_offset(
    verb: &'static str,
    domain: &PdShared,
    access: Access,
    start: NonNull<u8>,
) -> Result<()> {
    let misplaces = access.contains(Access::ON_DEMAND) && is_soft_roce(domain);
    if !misplaces || start.addr().get().is_multiple_of(rustix::param::page_size()) {
        return Ok(());
    }
    let reason = "Soft-RoCE reads and writes at the start of a page on demand, which is before this region: use memory \
                  that begins at a page, as `Buffer` does, or register it without ON_DEMAND";
    Err(Error::invalid(verb, reason))
}

fn is_soft_roce(domain: &PdShared) -> bool {
    domain.context.file.driver_id() == DriverId::RXE.0
}

/// An element over a checked range of a region that starts at `addr`.
pub(crate) fn element(addr: u64, (start, len): (usize, usize), lkey: u32) -> Result<Sge> {
    let length = u32::try_from(len).map_err(|_| {
        let reason = format!("an element of {len} bytes is longer than the possible {}", u32::MAX);
        Error::invalid("Mr::sge", reason)
    })?;
    Ok(Sge { addr: addr.wrapping_add(start as u64), length, lkey })
}

/// What lets a peer write a region's bytes without this process's doing.
const REMOTE_WRITABLE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC).union(Access::MW_BIND);

/// What lets a peer read or write a region's bytes without this process's doing.
const REMOTE_ACCESSIBLE: Access = REMOTE_WRITABLE.union(Access::REMOTE_READ);

impl<M> Drop for Mr<M> {
    fn drop(&mut self) {
        // SAFETY: the region is not used after its drop.
        let registration = unsafe { ManuallyDrop::take(&mut self.registration) };
        // Where the kernel does not let go, the device may go on using the memory: it has to stay.
        // SAFETY: the registration was taken out of the region, and is dropped after this.
        if unsafe { registration.dereg() }.is_ok() {
            // SAFETY: the memory was put there when the region was made, and is dropped only here.
            unsafe { self.memory.assume_init_drop() };
        }
    }
}

impl<M> fmt::Debug for Mr<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mr")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

/// A failed registration, with the memory.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct RegisterError<M> {
    /// Why it failed.
    #[source]
    pub error: Error,
    /// The memory, given back.
    pub memory: M,
}

impl<M> fmt::Debug for RegisterError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisterError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> From<RegisterError<M>> for Error {
    fn from(failed: RegisterError<M>) -> Self {
        failed.error
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::testing::Plain;

    /// A range that is another one each time that it is asked.
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
            // SAFETY: it was just filled.
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
    fn failed_rereg_mr_counts_as_granted() {
        // Its ioctl fails with `EINVAL`.
        let domain = Plain::default().domain_behind("/dev/urandom", DriverId::UNKNOWN);
        let mut memory = MaybeUninit::new(vec![7; 4]);
        // SAFETY: it was just filled.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        let registration = Registration::for_test(domain.domain(), Access::LOCAL_WRITE);
        let mut region = Mr::new(registration, memory, start, len);
        let refused = region.set_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::INVAL));
        assert_eq!(region.access(), Access::LOCAL_WRITE);
        assert!(region.bytes().is_none() && region.bytes_mut().is_none());
    }

    #[test]
    fn rxe_rereg_mr_rejects_changes_of_on_demand() {
        let domain = Plain::default().domain_of(DriverId::RXE);
        for (has, asked) in [
            (Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::ON_DEMAND),
            (Access::LOCAL_WRITE | Access::ON_DEMAND, Access::LOCAL_WRITE),
        ] {
            let mut memory = MaybeUninit::new(vec![7; 4]);
            // SAFETY: it was just filled.
            let (start, len) = unsafe { memory.assume_init_mut() }.region();
            let mut region = Mr::new(Registration::for_test(domain.domain(), has), memory, start, len);
            let refused = region.set_access(asked).unwrap_err();
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
            assert_eq!(region.access(), has);
        }
    }

    #[test]
    fn rxe_odp_mr_requires_iova_equal_to_address() {
        let pages = crate::Buffer::zeroed(64).unwrap();
        let start = pages.as_ptr().cast_mut();
        let addr = start.expose_provenance() as u64;
        for (driver, refuses) in [(DriverId::RXE, true), (DriverId::UNKNOWN, false)] {
            let pd = Plain::default().domain_of(driver);
            for (iova, access, refused) in [
                (Some(addr), Access::ON_DEMAND, false),
                (None, Access::ON_DEMAND, false),
                (Some(addr + 4096), Access::empty(), false),
                (None, Access::ZERO_BASED, false),
                (Some(addr + 4096), Access::ON_DEMAND, refuses),
                (Some(0), Access::ON_DEMAND, refuses),
                (None, Access::ON_DEMAND | Access::ZERO_BASED, refuses),
            ] {
                // SAFETY: no device file is behind the domain, so nothing is registered.
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

        // SAFETY: the vector's heap block does not move with it, and is never freed where it is
        // forgotten.
        unsafe impl MemoryOwner for Memory<'_> {
            fn region(&mut self) -> (NonNull<u8>, usize) {
                self.0.region()
            }
        }

        let (domain, freed) = (Plain::default().domain(), Cell::new(false));
        let region = || {
            let mut memory = MaybeUninit::new(Memory(vec![7; 4], &freed));
            // SAFETY: it was just filled.
            let (start, len) = unsafe { memory.assume_init_mut() }.region();
            Mr::new(Registration::for_test(domain.domain(), Access::LOCAL_WRITE), memory, start, len)
        };
        drop(region());
        assert!(region().into_inner().is_err());
        assert!(!freed.get());
    }
}
