//! Memory that peers access.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::{barrier, copy};
use bareverbs_uapi::verbs_values::AtomicCap;

use super::buffer::range_of;
use super::buffer::sealed::{Domain, PdId, Registered};
use super::{RegionMut, Source};
use crate::error::Feature;
use crate::mr::{REMOTE_ACCESSIBLE, REMOTE_WRITABLE};
use crate::pd::shared::PdShared;
use crate::{Access, Buffer, Error, MemoryOwner, Mr, RawMemory, Refused, Remote, Result};

const EXPOSE: &str = "RegionMut::expose";

/// A range of a registered region that peers access by RDMA: they read, write or update it without
/// an operation of this process, at any time.
///
/// So there is no slice of it. [`read`](Self::read) and [`write`](Self::write) copy
/// bytes, [`load`](Self::load) and [`store`](Self::store) access whole words. To look at the bytes
/// as a slice, [`revoke`](Self::revoke) the access first.
///
/// [`RegionMut::expose`] creates it. The range has a registration of its own, whose R_Key grants access
/// to this range only. Peers can't access the rest of the region.
///
/// ```
/// use bareverbs::{Access, Buffer, Device, RegionMut};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let part = RegionMut::register(&pd, Buffer::zeroed(4096)?)?;
/// let exposed = part.expose(Access::REMOTE_WRITE)?;
/// let remote = exposed.remote(0)?;
/// println!("send the peer {remote:?}");
///
/// // The peer writes, then sends a message.
/// let mut header = [0; 16];
/// exposed.read(0, &mut header)?;
/// let sequence: u64 = exposed.load(16)?;
///
/// let part = exposed.revoke()?;
/// let all: &[u8] = part.bytes();
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// No slice of it exists:
///
/// ```compile_fail,E0599
/// fn look(exposed: &bareverbs::RemoteRegion) -> u8 {
///     exposed.bytes()[0]
/// }
/// ```
///
/// It can't be posted either, but a [`source`](Self::source) of it can, for sends and writes:
///
/// ```compile_fail,E0277
/// # use bareverbs::RemoteRegion;
/// # use bareverbs::buffer::Source;
/// fn post_send(_: impl Source) {}
/// fn send(exposed: RemoteRegion) {
///     post_send(exposed);
/// }
/// ```
///
/// # Visibility of remote operations
///
/// | operation of a peer | visible after |
/// |---|---|
/// | write with immediate | its receive completion was polled |
/// | writes before a send or a write with immediate | the receive completion of that message was polled |
/// | write, without a message | no defined time; a device with relaxed ordering writes bytes in any order |
/// | atomic operation | a [`load`](Self::load) that returns the new word |
/// | atomic operation before a send or a write with immediate | the receive completion of that message was polled: a responder executes them in order (InfiniBand specification 1.4, section 9.5) |
/// | writes before an atomic operation of the same QP | a [`load`](Self::load) that returns the new word, unless the memory was registered with relaxed ordering |
///
/// A QP executes reads in the order of posting, but a read of several packets or cache lines is not
/// one snapshot: a value that changes meanwhile may be read half old, half new. Readers compare a
/// version before and after the value, in reads of their own that are complete before the next is
/// posted.
///
/// Drop revokes the access, with the last [source](Self::source). If the kernel refuses, the region
/// stays registered and its memory is leaked. `mem::forget` leaves the range exposed.
#[doc(alias = "Exposed")]
pub struct RemoteRegion<M = Buffer> {
    memory: Arc<Memory<M>>,
    /// Word accesses and copies of two threads must not race on these architectures.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    _not_sync: std::marker::PhantomData<std::cell::Cell<()>>,
}

/// What an exposure and its sources share.
struct Memory<M> {
    /// Taken out when peers have lost the access, or never.
    part: ManuallyDrop<RegionMut<M>>,
    /// The registration with remote rights, of the part's bytes.
    remote: ManuallyDrop<Mr<RawMemory>>,
}

impl<M: MemoryOwner> RegionMut<M> {
    /// Registers its bytes again, with the rights `access` for peers. The new R_Key grants access
    /// to these bytes only.
    ///
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE) is added for rights to write. The kernel counts the
    /// pages twice against the limit on locked memory.
    ///
    /// # Errors
    /// The errors return the part.
    ///
    /// - [`Error::Invalid`]: `access` contains no right of peers, or [`Access::MW_BIND`].
    /// - [`Error::Invalid`]: the part is empty.
    /// - [`Error::Invalid`] on Soft-RoCE: `access` contains [`Access::ON_DEMAND`], and the part
    ///   does not begin at a page boundary.
    /// - [`Error::Kernel`], for example beyond the limit on locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn expose(self, access: Access) -> Result<RemoteRegion<M>, Refused<Self>> {
        match self.register_remote(access) {
            Ok(remote) => Ok(RemoteRegion::of(Memory {
                part: ManuallyDrop::new(self),
                remote: ManuallyDrop::new(remote),
            })),
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    fn register_remote(&self, access: Access) -> Result<Mr<RawMemory>> {
        if access.contains(Access::MW_BIND) {
            let reason = "a memory window would stay open when the access is revoked: omit MW_BIND";
            return Err(Error::invalid(EXPOSE, reason));
        }
        if !access.intersects(REMOTE_ACCESSIBLE) {
            let reason =
                format!("{access:?} gives peers no right: use REMOTE_READ, REMOTE_WRITE or REMOTE_ATOMIC");
            return Err(Error::invalid(EXPOSE, reason));
        }
        let local = if access.intersects(REMOTE_WRITABLE) { Access::LOCAL_WRITE } else { Access::empty() };
        // SAFETY: the part's bytes are valid until its region is dropped, which `RemoteRegion` prevents
        // while the new registration exists; `MemoryOwner` keeps them valid if it is forgotten. The
        // caller owns the part, so no reference to its bytes exists. `RemoteRegion` makes none: it
        // accesses the bytes by `copy` only.
        unsafe { Mr::register_remote(EXPOSE, self.domain().0, self.as_ptr(), self.len(), access | local) }
    }
}

impl<M> RemoteRegion<M> {
    fn of(memory: Memory<M>) -> Self {
        Self::shared(Arc::new(memory))
    }

    fn shared(memory: Arc<Memory<M>>) -> Self {
        Self {
            memory,
            #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
            _not_sync: std::marker::PhantomData,
        }
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the length of a registration is at least 1 byte")]
    pub fn len(&self) -> usize {
        self.memory.part.len()
    }

    /// The rights of peers.
    #[must_use]
    pub fn access(&self) -> Access {
        self.memory.remote.access()
    }

    /// The remote address and key of the byte at `offset`, as [`Mr::remote`](crate::Mr::remote) returns
    /// them. The key grants access to all of the exposed memory: a peer reaches other bytes by
    /// [`Remote::offset`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the exposed memory has no such byte.
    pub fn remote(&self, offset: usize) -> Result<Remote> {
        let remote = &self.memory.remote;
        remote.range("RemoteRegion::remote", offset..offset.saturating_add(1))?;
        Ok(Remote { addr: remote.addr().wrapping_add(offset as u64), rkey: remote.rkey() })
    }

    /// The place of `len` bytes at `offset`.
    fn place(&self, verb: &'static str, offset: usize, len: usize) -> Result<*mut u8> {
        let (start, _) = self.memory.remote.range(verb, offset..offset.saturating_add(len))?;
        // SAFETY: within the memory.
        Ok(unsafe { self.memory.part.as_ptr().add(start) })
    }

    fn word<W: Word>(&self, verb: &'static str, offset: usize) -> Result<*mut u8> {
        let place = self.place(verb, offset, size_of::<W>())?;
        if !place.addr().is_multiple_of(size_of::<W>()) {
            let reason = format!("the word of {} bytes at offset {offset} is not aligned", size_of::<W>());
            return Err(Error::invalid(verb, reason));
        }
        Ok(place)
    }

    /// Copies bytes from the memory, starting at `offset`. A byte that a peer writes at the same
    /// time has its old or its new value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range exceeds the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let place = self.place("RemoteRegion::read", offset, into.len())?;
        // SAFETY: the bytes are valid while the part exists. This process accesses them only by
        // functions of `copy`, because no other method of the part is called.
        unsafe { copy::copy_out(place, into) };
        Ok(())
    }

    /// Copies bytes into the memory, starting at `offset`. A byte that a peer writes at the same
    /// time gets either value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the range exceeds the memory.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        let place = self.place("RemoteRegion::write", offset, from.len())?;
        // SAFETY: as in `read`.
        unsafe { copy::copy_in(from, place) };
        Ok(())
    }

    /// Reads a word (`u32` or `u64`) whole. Accesses to the memory that follow are made after it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the word exceeds the memory or is not aligned to its size.
    pub fn load<W: Word>(&self, offset: usize) -> Result<W> {
        let place = self.word::<W>("RemoteRegion::load", offset)?;
        // SAFETY: the word is aligned, and valid as in `read`.
        let word = unsafe { W::load(place) };
        barrier::after_device_wrote();
        Ok(word)
    }

    /// Writes a word (`u32` or `u64`) whole. Accesses to the memory that precede it are made
    /// before. Those that follow it may be made earlier, unless a [`fence`](Self::fence) is between.
    ///
    /// # Errors
    /// As for [`RemoteRegion::load`].
    pub fn store<W: Word>(&self, offset: usize, word: W) -> Result<()> {
        let place = self.word::<W>("RemoteRegion::store", offset)?;
        barrier::before_device_reads();
        // SAFETY: the word is aligned, and valid as in `read`.
        unsafe { W::store(place, word) };
        Ok(())
    }

    /// Orders writes: peers see those before it not later than those after it. A writer that marks a
    /// record as being changed calls it between the mark and the change.
    pub fn fence(&self) {
        barrier::before_device_reads();
    }

    /// Adds `add` to a word of 8 bytes by an atomic operation of the CPU. Returns the previous value.
    /// The sum wraps around.
    ///
    /// It is atomic with atomic operations of peers. This needs a device whose
    /// [`atomic_cap`](crate::device::DeviceAttr::atomic_cap) is [`AtomicCap::GLOB`]. With other
    /// devices, such as Soft-RoCE and ConnectX, use [`LocalAtomics`](super::LocalAtomics).
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the device's atomic operations are not atomic with the CPU's.
    /// - [`Error::Invalid`] as for [`RemoteRegion::load`].
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64> {
        self.check_global("RemoteRegion::fetch_add")?;
        let place = self.word::<u64>("RemoteRegion::fetch_add", offset)?;
        // SAFETY: the word is aligned, and valid as in `read`.
        Ok(unsafe { copy::fetch_add_u64(place, add) })
    }

    /// Replaces a word of 8 bytes by `swap` if it is `compare`, by an atomic operation of the CPU.
    /// Returns the previous value. [`RemoteRegion::fetch_add`] names the devices that permit it.
    ///
    /// # Errors
    /// As for [`RemoteRegion::fetch_add`].
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64> {
        self.check_global("RemoteRegion::compare_swap")?;
        let place = self.word::<u64>("RemoteRegion::compare_swap", offset)?;
        // SAFETY: the word is aligned, and valid as in `read`.
        Ok(unsafe { copy::compare_swap_u64(place, compare, swap) })
    }

    /// The word at `offset` for an atomic operation of a QP in `domain`.
    pub(super) fn atomic_word(
        &self,
        verb: &'static str,
        domain: &Arc<PdShared>,
        offset: usize,
    ) -> Result<Remote> {
        self.word::<u64>(verb, offset)?;
        if !self.access().contains(Access::REMOTE_ATOMIC) {
            return Err(Error::invalid(verb, "peers have no right to it: expose it with REMOTE_ATOMIC"));
        }
        if !Arc::ptr_eq(self.memory.remote.domain(), domain) {
            return Err(Error::invalid(verb, "the memory belongs to another protection domain"));
        }
        self.remote(offset)
    }

    fn check_global(&self, verb: &'static str) -> Result<()> {
        if self.memory.remote.domain().context.device_attr.base.atomic_cap == AtomicCap::GLOB {
            return Ok(());
        }
        Err(Error::unsupported(verb, Feature::GlobalAtomics))
    }

    /// The bytes in `range`, for sends and writes to peers without a copy, while peers may access them.
    /// Any number of sources can exist, also of overlapping ranges.
    ///
    /// ```
    /// use bareverbs::Op;
    ///
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, _peer] = example::endpoints(&pd)?;
    /// # let table = example::exposed(&pd, 8192)?;
    /// endpoint.post(Op::send(table.source(4096..8192)?, ..).any())?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// The device reads the bytes while it sends. If they are changed meanwhile, by a peer or by
    /// [`write`](Self::write), the message may have both old and new bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `range` exceeds the exposed memory.
    pub fn source(&self, range: impl RangeBounds<usize>) -> Result<RemoteRegionSource<M>> {
        let (start, len) = self.memory.remote.range("RemoteRegion::source", range)?;
        let iova = self.memory.part.iova().wrapping_add(start as u64);
        Ok(RemoteRegionSource { memory: Arc::clone(&self.memory), iova, len })
    }

    /// Ends the access of peers and returns the part.
    ///
    /// It deregisters what [`RegionMut::expose`] registered, and returns when no write is in progress. On
    /// siw, it waits for an RCU grace period, and TCP may still send bytes that a peer has read. Later accesses
    /// of peers fail with [`REM_ACCESS_ERR`](crate::WcStatus::REM_ACCESS_ERR).
    ///
    /// # Errors
    /// The memory is still exposed: the errors return it.
    ///
    /// - [`Error::Invalid`]: a [source](Self::source) of it exists. Wait for its operation and drop it.
    /// - [`Error::Kernel`].
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(self) -> Result<RegionMut<M>, Refused<Self>> {
        let memory = match Arc::try_unwrap(self.memory) {
            Ok(memory) => memory,
            Err(memory) => {
                let reason = "a source of the memory exists: wait for its operation and drop it";
                let error = Error::invalid("RemoteRegion::revoke", reason);
                return Err(Refused::new(error, Self::shared(memory)));
            }
        };
        let mut memory = ManuallyDrop::new(memory);
        // SAFETY: `memory` is not used after this, unless it gets the registration back.
        let remote = unsafe { ManuallyDrop::take(&mut memory.remote) };
        match remote.dereg() {
            // SAFETY: `memory` is not used after this.
            Ok(RawMemory) => Ok(unsafe { ManuallyDrop::take(&mut memory.part) }),
            Err(refused) => {
                memory.remote = ManuallyDrop::new(refused.object);
                let exposed = Self::of(ManuallyDrop::into_inner(memory));
                Err(Refused::new(refused.error, exposed))
            }
        }
    }
}

impl<M> Drop for Memory<M> {
    fn drop(&mut self) {
        // SAFETY: not used after the drop.
        let remote = unsafe { ManuallyDrop::take(&mut self.remote) };
        match remote.dereg() {
            // SAFETY: not used after the drop.
            Ok(RawMemory) => unsafe { ManuallyDrop::drop(&mut self.part) },
            // Peers may still access the memory. The part keeps its region until the process ends.
            Err(refused) => refused.object.abandon(),
        }
    }
}

impl<M> fmt::Debug for RemoteRegion<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteRegion")
            .field("addr", &format_args!("{:#x}", self.memory.remote.addr()))
            .field("len", &self.len())
            .field("rkey", &format_args!("{:#x}", self.memory.remote.rkey()))
            .field("access", &self.access())
            .finish()
    }
}

/// Bytes of [`RemoteRegion`] memory that are sent or written to peers, from [`RemoteRegion::source`].
///
/// It has no access to the bytes. The exposure can't be revoked while it exists. Clones are cheap.
#[doc(alias = "ExposedSource")]
pub struct RemoteRegionSource<M = Buffer> {
    memory: Arc<Memory<M>>,
    iova: u64,
    len: usize,
}

impl<M> Clone for RemoteRegionSource<M> {
    fn clone(&self) -> Self {
        Self { memory: Arc::clone(&self.memory), ..*self }
    }
}

// The local key is that of the region, which peers don't know.
range_of!([M] RemoteRegionSource<M>, memory.part);

// SAFETY: the range is within the part, which exists while the source does, and stays registered. A
// part that is verified is shorter than 4 GiB, and so is the range. If the source is forgotten, so is
// the part. `RemoteRegion` has the only other handle of the part: it accesses the bytes by functions of
// `copy` only, and does not return the part while a source exists.
unsafe impl<M: Send + Sync + 'static> Source for RemoteRegionSource<M> {
    fn try_bytes(&self) -> Option<&[u8]> {
        None
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A word that CPU and device access whole: `u32` or `u64`. It is sealed.
pub trait Word: Copy + sealed::Sealed {
    /// # Safety
    ///
    /// As for [`copy::load_u64`].
    #[doc(hidden)]
    unsafe fn load(place: *const u8) -> Self;

    /// # Safety
    ///
    /// As for [`copy::store_u64`].
    #[doc(hidden)]
    unsafe fn store(place: *mut u8, word: Self);
}

macro_rules! words {
    ($($of:ty, $load:ident, $store:ident;)*) => {$(
        impl sealed::Sealed for $of {}

        impl Word for $of {
            unsafe fn load(place: *const u8) -> Self {
                // SAFETY: the caller upholds the same contract.
                unsafe { copy::$load(place) }
            }

            unsafe fn store(place: *mut u8, word: Self) {
                // SAFETY: the caller upholds the same contract.
                unsafe { copy::$store(place, word) };
            }
        }
    )*};
}

words! {
    u32, load_u32, store_u32;
    u64, load_u64, store_u64;
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Pd;
    use crate::mr::ImplicitMr;
    use crate::owned::buffer::{checked_sge, verified_sge};
    use crate::testing::Plain;

    /// Memory that counts how often it is freed.
    struct Counted(Buffer, Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }

    // SAFETY: the buffer's mapping does not move with it.
    unsafe impl MemoryOwner for Counted {
        fn region(&mut self) -> (NonNull<u8>, usize) {
            self.0.region()
        }
    }

    fn part(pd: &Pd<Plain>, len: usize, freed: &Arc<AtomicUsize>) -> RegionMut<Counted> {
        let memory = Counted(Buffer::zeroed(len).unwrap(), Arc::clone(freed));
        let mr = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE).part(memory);
        RegionMut::new(mr.map_err(|failed| failed.error).unwrap()).unwrap()
    }

    /// The bytes from 8 of a part of 40 bytes. Its deregistration fails.
    fn exposed(freed: &Arc<AtomicUsize>) -> RemoteRegion<Counted> {
        let pd = Plain::default().domain();
        let part = part(&pd, 40, freed).split_off(8);
        let remote = Mr::remote_for_test(pd.domain(), part.as_ptr(), part.len());
        RemoteRegion::of(Memory { part: ManuallyDrop::new(part), remote: ManuallyDrop::new(remote) })
    }

    #[test]
    fn word_of_another_pd_is_no_target_of_local_atomics() {
        let exposed = exposed(&Arc::default());
        let own = Arc::clone(exposed.memory.remote.domain());
        let other = Plain::default().domain();
        assert_eq!(exposed.atomic_word("test", &own, 8).unwrap(), exposed.remote(8).unwrap());
        let refused = exposed.atomic_word("test", other.domain(), 8).unwrap_err();
        assert!(refused.to_string().contains("another protection domain"), "{refused}");
    }

    #[test]
    fn access_without_remote_rights_or_with_mw_bind_is_rejected() {
        let (pd, freed) = (Plain::default().domain(), Arc::default());
        for access in
            [Access::empty(), Access::LOCAL_WRITE, Access::MW_BIND | Access::REMOTE_WRITE, Access::ON_DEMAND]
        {
            let refused = part(&pd, 8, &freed).expose(access).unwrap_err();
            assert!(matches!(refused.error, Error::Invalid { verb: EXPOSE, .. }), "{refused}");
            assert_eq!(refused.object.bytes(), [0; 8]);
        }
        // The device file of the test accepts no command.
        let refused = part(&pd, 8, &freed).expose(Access::REMOTE_READ).unwrap_err();
        assert!(refused.error.errno().is_some(), "{refused}");
        assert_eq!(refused.object.into_mr().unwrap().len(), 8);
    }

    #[test]
    fn empty_part_is_rejected() {
        let (pd, freed) = (Plain::default().domain(), Arc::default());
        let refused = part(&pd, 8, &freed).split_off(8).expose(Access::REMOTE_READ).unwrap_err();
        assert!(refused.to_string().contains("at least 1 byte"), "{refused}");
    }

    #[test]
    fn copies_and_words_are_bounds_checked() {
        let exposed = exposed(&Arc::default());
        assert_eq!(exposed.len(), 32);
        exposed.write(8, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!(exposed.load::<u64>(8).unwrap(), u64::from_ne_bytes([1, 2, 3, 4, 5, 6, 7, 8]));
        exposed.store(12, 0u32).unwrap();
        let mut bytes = [9; 10];
        exposed.read(7, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3, 4, 0, 0, 0, 0, 0]);
        let base = exposed.remote(0).unwrap();
        assert_eq!(exposed.remote(3).unwrap(), Remote { addr: base.addr + 3, ..base });
        for refused in [
            exposed.read(23, &mut bytes).unwrap_err(),
            exposed.read(usize::MAX, &mut bytes).unwrap_err(),
            exposed.write(32, &[1]).unwrap_err(),
            exposed.load::<u64>(25).unwrap_err(),
            exposed.load::<u64>(4).unwrap_err(),
            exposed.load::<u32>(2).unwrap_err(),
            exposed.store(30, 1u32).unwrap_err(),
            exposed.store(usize::MAX, 1u64).unwrap_err(),
            exposed.remote(32).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        }
    }

    #[test]
    fn cpu_atomics_need_a_device_with_global_atomicity() {
        let exposed = exposed(&Arc::default());
        for refused in [exposed.fetch_add(0, 1).unwrap_err(), exposed.compare_swap(0, 0, 1).unwrap_err()] {
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            assert!(refused.to_string().contains("`LocalAtomics`"), "{refused}");
        }
        assert_eq!(exposed.load::<u64>(0).unwrap(), 0);
    }

    #[test]
    fn memory_is_leaked_if_the_kernel_refuses_to_deregister_it() {
        let freed = Arc::default();
        let failed = exposed(&freed).revoke().unwrap_err();
        assert_eq!(failed.object.len(), 32);
        drop(failed);
        assert_eq!(freed.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn source_names_bytes_of_the_part_and_prevents_the_end_of_the_exposure() {
        let (freed, pd) = (Arc::default(), Plain::default().domain());
        let exposed = exposed(&freed);
        let base = exposed.memory.part.iova();
        let source = exposed.source(4..12).unwrap();
        let domain = source.domain().0;
        let sge = checked_sge("test", &source, domain, 1..).unwrap();
        assert_eq!((sge.addr, sge.length, sge.lkey), (base + 5, 7, exposed.memory.part.lkey()));
        assert_eq!(verified_sge(&source, PdId::of(domain), 1..), Some(sge));
        assert!(checked_sge("test", &source, domain, ..9).is_err(), "beyond the source");
        assert!(checked_sge("test", &source, pd.domain(), ..).is_err(), "another PD");
        assert!(source.try_bytes().is_none());
        assert!(exposed.source(..33).is_err());
        let other = source.clone();
        drop(source);
        let failed = exposed.revoke().unwrap_err();
        assert!(matches!(failed.error, Error::Invalid { .. }), "{failed}");
        drop(failed);
        assert_eq!(other.len(), 8, "it is valid without the exposure");
        drop(other);
        // The deregistration fails.
        assert_eq!(freed.load(Ordering::Relaxed), 0);
    }
}
