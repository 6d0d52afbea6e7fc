//! Ranges of a registered region.

use std::fmt;
use std::iter::FusedIterator;
use std::num::NonZeroUsize;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::buffer::range_of;
use super::buffer::sealed::{Domain, PdId, Registered, Writable};
use super::{Source, Target};
use crate::range::check_range;
use crate::{Access, Buffer, MemoryOwner, Mr, Pd, Refused, Result};

/// An exclusive range of a registered region, called a part of it on this page.
///
/// A part is split and joined without a copy, an allocation or a system call. So many operations
/// use one registration at the same time, each on a part of its own. The region is deregistered
/// when its last part is dropped.
///
/// Peers can't access a part: the region has local rights only. [`RegionMut::expose`] gives them access
/// to a part.
///
/// ```
/// use bareverbs::{Buffer, Device, RegionMut};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let mut file = RegionMut::register(&pd, Buffer::zeroed(64 << 20)?)?;
/// file.bytes_mut()[..5].copy_from_slice(b"hello");
///
/// let (mut left, right) = file.split_at(1 << 20);
/// assert_eq!((left.len(), right.len()), (1 << 20, 63 << 20));
/// left.try_join(right).expect("neighbours");
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// Splitting, posting and freezing move the part:
///
/// ```compile_fail,E0382
/// # use bareverbs::RegionMut;
/// # use bareverbs::buffer::Target;
/// fn post_recv(_: impl Target) {}
/// fn look(part: RegionMut) -> u8 {
///     post_recv(part);
///     part.bytes()[0]
/// }
/// ```
///
/// Its bytes can't be borrowed while it is posted:
///
/// ```compile_fail,E0505
/// # use bareverbs::RegionMut;
/// # use bareverbs::buffer::Target;
/// fn post_recv(_: impl Target) {}
/// fn look(part: RegionMut) -> u8 {
///     let bytes = part.bytes();
///     post_recv(part);
///     bytes[0]
/// }
/// ```
///
/// A part of less than 4 GiB is two words. Splitting and joining parts of 4 GiB or more allocates
/// the descriptions of their windows.
#[doc(alias = "Part")]
pub struct RegionMut<M = Buffer> {
    window: Arc<Window<M>>,
    /// The range belongs to this part alone.
    range: Range,
}

/// A range of a window: the offset in the upper half, the length in the lower one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Range(u64);

impl Range {
    /// The whole of a wide window. Its offset is 0, and no other range has its length.
    const WHOLE: Self = Self(u32::MAX as u64);

    /// `None` if it ends at 2^32 - 1 or beyond.
    fn new(offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len).and_then(|end| u32::try_from(end).ok());
        end.filter(|end| *end != u32::MAX).map(|_| Self((offset as u64) << 32 | len as u64))
    }

    #[inline(always)]
    fn offset(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    fn len(self) -> u32 {
        self.0 as u32
    }
}

/// A base in a region that has parts. Their ranges are relative to it.
struct Window<M> {
    /// The IOVA of its first byte.
    iova: u64,
    lkey: u32,
    /// Of its ranges. `NONE` if it is wide.
    verified_pd: PdId,
    /// Its length, if it is wide: too long for a range. Its only range is [`Range::WHOLE`] then.
    wide: Option<NonZeroUsize>,
    owner: Owner<M>,
}

/// What owns the region of a window.
enum Owner<M> {
    /// The window begins where the region does. Nothing changes the MR.
    Mr(Mr<M>),
    /// Another window, whose owner is the MR.
    First(Arc<Window<M>>),
}

impl<M> Window<M> {
    fn mr(&self) -> &Mr<M> {
        match &self.owner {
            Owner::Mr(mr) => mr,
            Owner::First(first) => first.mr(),
        }
    }

    /// The MR of the first window.
    fn into_mr(self) -> Mr<M> {
        match self.owner {
            Owner::Mr(mr) => mr,
            Owner::First(_) => unreachable!("the first window of a region owns the MR"),
        }
    }
}

impl<M> AsRef<[u8]> for RegionMut<M> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<M> AsMut<[u8]> for RegionMut<M> {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl<M> AsRef<[u8]> for Region<M> {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl<M: MemoryOwner> RegionMut<M> {
    /// The whole of `mr`.
    ///
    /// # Errors
    /// The errors return the MR.
    ///
    /// - [`Error::Invalid`]: the MR has or ever had remote rights or [`MW_BIND`](Access::MW_BIND).
    ///   An R_Key grants access to the whole region, so slices of it would be unsound.
    /// - [`Error::Invalid`] on Soft-RoCE: the MR has [`ON_DEMAND`](Access::ON_DEMAND). The kernel
    ///   would access bytes of other parts.
    ///
    /// [`Error::Invalid`]: crate::Error::Invalid
    pub fn new(mr: Mr<M>) -> Result<Self, Refused<Mr<M>>> {
        match mr.check_local("RegionMut::new") {
            Ok(()) => Ok(Self::whole(mr)),
            Err(error) => Err(Refused::new(error, mr)),
        }
    }

    /// Registers `memory` with [`LOCAL_WRITE`](Access::LOCAL_WRITE) and returns the whole of it.
    ///
    /// # Errors
    /// As for [`Pd::register`]. The errors return the memory.
    pub fn register<P: Provider>(pd: &Pd<P>, memory: M) -> Result<Self, Refused<M>> {
        Ok(Self::whole(pd.register(memory, Access::LOCAL_WRITE)?))
    }
}

impl<M> RegionMut<M> {
    /// `mr` has local rights only.
    fn whole(mr: Mr<M>) -> Self {
        let (iova, lkey, len) = (mr.addr(), mr.lkey(), mr.len());
        Self::of_window(iova, lkey, len, mr.verified_pd(), Owner::Mr(mr))
    }

    /// The whole of a new window.
    fn of_window(iova: u64, lkey: u32, len: usize, verified_pd: PdId, owner: Owner<M>) -> Self {
        let (range, wide, verified_pd) = match Range::new(0, len) {
            Some(range) => (range, None, verified_pd),
            None => (Range::WHOLE, NonZeroUsize::new(len), PdId::NONE),
        };
        Self { window: Arc::new(Window { iova, lkey, verified_pd, wide, owner }), range }
    }

    /// The window that owns the MR.
    fn first(&self) -> &Arc<Window<M>> {
        match &self.window.owner {
            Owner::Mr(_) => &self.window,
            Owner::First(first) => first,
        }
    }

    /// A range of the region, relative to the part's window. `None` if it does not fit.
    fn range_at(&self, offset: usize, len: usize) -> Option<Range> {
        let base = self.window.iova.wrapping_sub(self.region_iova()) as usize;
        let relative = offset.checked_sub(base).filter(|_| self.window.wide.is_none());
        relative.and_then(|offset| Range::new(offset, len))
    }

    /// A part of the same region. The range at `offset` of the region must belong to the caller.
    fn sibling(&self, offset: usize, len: usize) -> Self {
        if let Some(range) = self.range_at(offset, len) {
            return Self { window: Arc::clone(&self.window), range };
        }
        let first = Arc::clone(self.first());
        let (iova, lkey, pd) = (first.iova.wrapping_add(offset as u64), first.lkey, first.mr().domain());
        Self::of_window(iova, lkey, len, PdId::of(pd), Owner::First(first))
    }

    /// Replaces its range. The new one must belong to the caller.
    fn set_range(&mut self, offset: usize, len: usize) {
        match self.range_at(offset, len) {
            Some(range) => self.range = range,
            None => *self = self.sibling(offset, len),
        }
    }

    fn region_iova(&self) -> u64 {
        self.first().iova
    }

    /// The offset of its first byte within the region.
    fn offset(&self) -> usize {
        self.iova().wrapping_sub(self.region_iova()) as usize
    }

    /// Its first byte in this process's address space.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the offset is within the region.
        unsafe { self.window.mr().as_ptr().add(self.offset()) }
    }

    /// Length in bytes. It may be 0.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        if self.range == Range::WHOLE {
            self.window.wide.map_or(0, NonZeroUsize::get)
        } else {
            self.range.len() as usize
        }
    }

    /// Whether its length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the range is within the region, whose bytes are valid and initialised while it
        // exists. No peer can write them: the region never had remote rights (`check_local`), and
        // an exposed part is owned by its `RemoteRegion`. They belong to this part alone, and a part
        // that an operation uses is owned by the code that posted it, which calls no method of it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Its bytes, mutable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`. The part is borrowed exclusively, and no peer can read its bytes.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Splits it: the first part has `mid` bytes, the second the rest.
    ///
    /// # Panics
    /// If `mid` exceeds its length.
    #[must_use = "a part that is not used is dropped"]
    pub fn split_at(mut self, mid: usize) -> (Self, Self) {
        let rest = self.split_off(mid);
        (self, rest)
    }

    /// Splits it at `at`: it keeps the first `at` bytes. Returns the rest.
    ///
    /// # Panics
    /// If `at` exceeds its length.
    #[must_use = "a part that is not used is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        let (offset, len) = (self.offset(), self.len());
        assert!(at <= len, "a split at {at} exceeds the range's {len} bytes");
        let rest = self.sibling(offset + at, len - at);
        self.set_range(offset, at);
        rest
    }

    /// Splits it into parts of `size` bytes. The last one is shorter if `size` does not divide its
    /// length.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn chunks(self, size: usize) -> Chunks<M> {
        assert!(size > 0, "chunks have at least 1 byte");
        Chunks { rest: Some(self), size }
    }

    /// Joins it with a neighbour, which begins where this part ends or ends where this part begins.
    ///
    /// # Errors
    /// Returns `other` if it is of another region or not a neighbour.
    pub fn try_join(&mut self, other: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(self.first(), other.first()) {
            return Err(other);
        }
        let (start, other_start) = (self.offset(), other.offset());
        let len = self.len() + other.len();
        if start + self.len() == other_start {
            self.set_range(start, len);
        } else if other_start + other.len() == start {
            if self.range_at(other_start, len).is_none() {
                *self = other;
            }
            self.set_range(other_start, len);
        } else {
            return Err(other);
        }
        Ok(())
    }

    /// Makes it read-only, so that several operations can send it at the same time. This allocates
    /// one counter.
    #[must_use]
    pub fn freeze(self) -> Region<M> {
        Region { iova: self.iova(), len: self.len(), part: Arc::new(self) }
    }

    /// The region, if this is its only part. Parts that were dropped do not matter.
    ///
    /// # Errors
    /// Returns the part if the region has other parts.
    pub fn into_mr(self) -> Result<Mr<M>, Self> {
        let Self { window, range } = self;
        match Arc::try_unwrap(window) {
            Ok(Window { owner: Owner::Mr(mr), .. }) => Ok(mr),
            Ok(Window { owner: Owner::First(first), iova, lkey, verified_pd, wide }) => {
                Arc::try_unwrap(first).map(Window::into_mr).map_err(|first| {
                    let owner = Owner::First(first);
                    Self { window: Arc::new(Window { iova, lkey, verified_pd, wide, owner }), range }
                })
            }
            Err(window) => Err(Self { window, range }),
        }
    }
}

impl<M> Registered for RegionMut<M> {
    #[inline]
    fn domain(&self) -> Domain<'_> {
        Domain(self.window.mr().domain())
    }

    #[inline]
    fn iova(&self) -> u64 {
        self.window.iova.wrapping_add(self.range.offset().into())
    }

    #[inline]
    fn lkey(&self) -> u32 {
        self.window.lkey
    }

    #[inline]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline]
    fn check_bounds(&self, _: &'static str, _: usize) -> Result<()> {
        // `check_local` has rejected the regions with which a device exceeds the bounds.
        Ok(())
    }

    #[inline]
    fn verified_pd(&self) -> PdId {
        self.window.verified_pd
    }

    #[inline]
    fn verified_len(&self) -> u32 {
        self.range.len()
    }
}

// SAFETY: the part keeps its region, which owns its memory and stays registered until its last part
// is dropped; nothing re-registers a region that has parts. The bytes of the range belong to this
// part alone: `new` makes a part of the whole, splitting divides a part, joining adds the range of
// a part that it consumes. Only its methods borrow them out. `MemoryOwner` keeps the bytes valid
// and in place, also if the part is forgotten. `check_local` has rejected the regions that
// Soft-RoCE misplaces.
unsafe impl<M: Send + Sync + 'static> Source for RegionMut<M> {
    fn try_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
}

impl<M: Send + Sync + 'static> Writable for RegionMut<M> {}

// SAFETY: as above. No other value gives access to the bytes.
unsafe impl<M: Send + Sync + 'static> Target for RegionMut<M> {}

impl<M> fmt::Debug for RegionMut<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMut")
            .field("addr", &format_args!("{:#x}", self.iova()))
            .field("len", &self.len())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .finish()
    }
}

/// The parts of [`RegionMut::chunks`]. Dropping it drops the rest.
pub struct Chunks<M = Buffer> {
    rest: Option<RegionMut<M>>,
    size: usize,
}

impl<M> Iterator for Chunks<M> {
    type Item = RegionMut<M>;

    fn next(&mut self) -> Option<RegionMut<M>> {
        let mut part = self.rest.take().filter(|part| !part.is_empty())?;
        if part.len() > self.size {
            self.rest = Some(part.split_off(self.size));
        }
        Some(part)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.rest.as_ref().map_or(0, |part| part.len().div_ceil(self.size));
        (left, Some(left))
    }
}

impl<M> ExactSizeIterator for Chunks<M> {}

impl<M> FusedIterator for Chunks<M> {}

impl<M> fmt::Debug for Chunks<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks").field("rest", &self.rest).field("size", &self.size).finish()
    }
}

/// A read-only range of a registered region. Clones share the range, so several operations can send
/// it at the same time.
///
/// ```
/// # let pd = bareverbs_test_support::example::pd()?;
/// # let part = bareverbs::RegionMut::register(&pd, bareverbs::Buffer::zeroed(64)?)?;
/// let shared = part.freeze();
/// let header = shared.slice(..16);
/// drop(header);
/// let part = shared.try_unfreeze().expect("the only one");
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// It is never written, neither by this process nor by a device:
///
/// ```compile_fail,E0599
/// fn write(shared: &mut bareverbs::Region) {
///     shared.bytes_mut()[0] = 1;
/// }
/// ```
#[doc(alias = "Shared")]
pub struct Region<M = Buffer> {
    part: Arc<RegionMut<M>>,
    iova: u64,
    len: usize,
}

impl<M> Clone for Region<M> {
    fn clone(&self) -> Self {
        Self { part: Arc::clone(&self.part), ..*self }
    }
}

impl<M> Region<M> {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let start = self.iova.wrapping_sub(self.part.iova()) as usize;
        &self.part.bytes()[start..start + self.len]
    }

    /// A range of it, which shares the bytes.
    ///
    /// # Panics
    /// If `range` exceeds it.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        match check_range("Region::slice", range, self.len) {
            Ok((start, len)) => {
                Self { part: Arc::clone(&self.part), iova: self.iova.wrapping_add(start as u64), len }
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The part that was frozen, all of it, if no clone and no slice of it is left.
    ///
    /// # Errors
    /// Returns itself if there are others.
    pub fn try_unfreeze(self) -> Result<RegionMut<M>, Self> {
        let Self { part, iova, len } = self;
        Arc::try_unwrap(part).map_err(|part| Self { part, iova, len })
    }
}

range_of!([M] Region<M>, part);

// SAFETY: the frozen part upholds the obligations. It is never borrowed exclusively, nor posted for
// a device to write, while a `Region` of it exists: the `Arc` gives shared references to it only.
unsafe impl<M: Send + Sync + 'static> Source for Region<M> {
    fn try_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use proptest::prelude::*;

    use super::*;
    use bareverbs_provider::caps::MrQuirks;

    use crate::mr::ImplicitMr;
    use crate::owned::buffer::checked_sge;
    use crate::testing::Plain;

    fn region(len: u32) -> Mr<Vec<u8>> {
        let pd = Plain::default().domain();
        let bytes = (0..len).map(|at| at as u8).collect();
        let registered = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE).part(bytes);
        registered.map_err(|failed| failed.error).unwrap()
    }

    fn whole(len: u32) -> RegionMut<Vec<u8>> {
        RegionMut::new(region(len)).unwrap()
    }

    #[test]
    fn region_with_remote_rights_is_rejected_and_returned() {
        let rights = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC, Access::MW_BIND];
        for right in rights {
            let pd = Plain::default().domain();
            let access = Access::LOCAL_WRITE | right;
            let mr = ImplicitMr::for_test(pd.domain(), access).part(vec![0; 8]);
            let refused = RegionMut::new(mr.map_err(|failed| failed.error).unwrap()).unwrap_err();
            assert!(
                matches!(refused.error, crate::Error::Invalid { verb: "RegionMut::new", .. }),
                "{refused}"
            );
            assert_eq!(refused.object.len(), 8);
        }
    }

    #[test]
    fn on_demand_region_is_rejected_if_its_page_offsets_are_ignored() {
        for refused in [true, false] {
            let quirks = MrQuirks { odp_ignores_page_offset: refused, ..MrQuirks::default() };
            let pd = Plain::with(quirks).domain();
            let mr = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE | Access::ON_DEMAND)
                .part(Buffer::zeroed(8192).unwrap());
            assert_eq!(RegionMut::new(mr.map_err(|failed| failed.error).unwrap()).is_err(), refused);
        }
    }

    #[test]
    fn region_comes_back_from_its_last_part() {
        let (left, right) = whole(8).split_at(3);
        let left = left.into_mr().unwrap_err();
        drop(right);
        assert_eq!((left.len(), left.into_mr().unwrap().len()), (3, 8));
    }

    #[test]
    fn forgotten_part_keeps_the_region() {
        let (left, right) = whole(8).split_at(3);
        std::mem::forget(right);
        assert!(left.into_mr().is_err());
    }

    #[test]
    fn parts_of_other_regions_do_not_join() {
        let (mut left, _) = whole(8).split_at(4);
        let (_, right) = whole(8).split_at(4);
        assert_eq!(left.try_join(right).unwrap_err().bytes(), [4, 5, 6, 7]);
    }

    #[test]
    fn frozen_part_is_shared_until_the_last_clone_is_dropped() {
        let (left, right) = whole(10).split_at(2);
        let shared = right.freeze();
        let slice = shared.slice(1..).slice(..=2);
        assert_eq!((shared.bytes(), slice.bytes()), (&[2, 3, 4, 5, 6, 7, 8, 9][..], &[3, 4, 5][..]));
        assert_eq!(slice.iova(), left.iova() + 3);
        let shared = shared.try_unfreeze().unwrap_err();
        drop(shared);
        let mut part = slice.try_unfreeze().unwrap();
        part.try_join(left).unwrap();
        assert_eq!((part.len(), part.bytes()[9]), (10, 9));
    }

    #[test]
    #[should_panic = "bytes 3..5 exceed the length of 4 bytes"]
    fn slice_beyond_a_shared_part_panics() {
        let _ = whole(4).freeze().slice(3..5);
    }

    #[test]
    #[should_panic = "a split at 5 exceeds the range's 4 bytes"]
    fn split_beyond_a_part_panics() {
        let _ = whole(4).split_at(5);
    }

    /// Memory that no test accesses.
    struct Claimed(usize);

    // SAFETY: the bytes are never accessed.
    unsafe impl MemoryOwner for Claimed {
        fn region(&mut self) -> (NonNull<u8>, usize) {
            (NonNull::dangling(), self.0)
        }
    }

    fn claimed(len: usize) -> RegionMut<Claimed> {
        let pd = Plain::default().domain();
        let mr = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE).part(Claimed(len));
        RegionMut::new(mr.map_err(|failed| failed.error).unwrap()).unwrap()
    }

    const GIB: usize = 1 << 30;

    #[test]
    fn parts_of_a_region_beyond_4_gib_are_split_and_joined() {
        let whole = claimed(20 * GIB);
        let iova = whole.iova();
        assert_eq!((whole.len(), whole.verified_pd()), (20 * GIB, PdId::NONE));
        let (mut left, right) = whole.split_at(9 * GIB + 1);
        assert_eq!((left.iova(), left.len()), (iova, 9 * GIB + 1));
        assert_eq!((right.iova() - iova, right.len()), ((9 * GIB + 1) as u64, 11 * GIB - 1));
        let (short, rest) = right.split_at(GIB);
        assert_eq!((short.iova() - iova, short.len()), ((9 * GIB + 1) as u64, GIB));
        assert_ne!(short.verified_pd(), PdId::NONE, "an SGE holds its length");
        let (short, end) = short.split_at(GIB - 3);
        assert_eq!((end.iova(), end.len()), (rest.iova() - 3, 3));
        let rest = left.try_join(rest).unwrap_err();
        left.try_join(short).unwrap();
        left.try_join(end).unwrap();
        assert_eq!((left.iova(), left.len()), (iova, 10 * GIB + 1));
        // The upper part joins the lower one.
        let mut rest = rest;
        rest.try_join(left).unwrap();
        assert_eq!((rest.iova(), rest.len()), (iova, 20 * GIB));
    }

    #[test]
    fn region_beyond_4_gib_comes_back_from_its_last_part() {
        let mut parts = claimed(9 * GIB).chunks(2 * GIB);
        assert_eq!(parts.len(), 5);
        let last = parts.by_ref().last().unwrap();
        assert_eq!(last.len(), GIB);
        assert_eq!(last.into_mr().unwrap().len(), 9 * GIB);

        let mut parts = claimed(9 * GIB).chunks(2 * GIB);
        let (mut first, mut others) = (parts.next().unwrap(), parts.collect::<Vec<_>>());
        let last = others.pop().unwrap().into_mr().unwrap_err();
        others.push(last);
        while let Some(part) = others.pop() {
            if let Err(part) = first.try_join(part) {
                others.insert(0, part);
            }
        }
        assert_eq!((first.len(), first.offset()), (9 * GIB, 0));
        assert_eq!(first.into_mr().unwrap().len(), 9 * GIB);
    }

    #[test]
    fn part_of_the_longest_sge_is_posted_after_the_checks() {
        for (len, verified) in [(u32::MAX as usize - 1, true), (u32::MAX as usize, false)] {
            let part = claimed(len);
            assert_eq!((part.len(), part.verified_pd() != PdId::NONE), (len, verified));
            let pd = Arc::clone(part.domain().0);
            assert_eq!(checked_sge("test", &part, &pd, ..).unwrap().length as usize, len);
        }
    }

    #[test]
    fn parts_are_used_by_several_threads() {
        let parts: Vec<_> = whole(1000).chunks(100).collect();
        let written: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(parts)
                .map(|(at, mut part)| {
                    scope.spawn(move || {
                        part.bytes_mut().fill(at);
                        part
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut parts = written.into_iter();
        let mut all = parts.next().unwrap();
        parts.for_each(|part| all.try_join(part).unwrap());
        assert!((0..10).all(|at| all.bytes()[100 * at] == at as u8));
        assert!(all.into_mr().is_ok());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Split(prop::sample::Index, prop::sample::Index),
        Join(prop::sample::Index, prop::sample::Index),
        Chunks(prop::sample::Index, usize),
        Freeze(prop::sample::Index),
        Slice(prop::sample::Index, prop::sample::Index, prop::sample::Index),
        Unfreeze(prop::sample::Index),
        Drop(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let at = any::<prop::sample::Index>;
        let step = prop_oneof![
            4 => (at(), at()).prop_map(|(part, mid)| Step::Split(part, mid)),
            4 => (at(), at()).prop_map(|(one, other)| Step::Join(one, other)),
            1 => (at(), 1usize..20).prop_map(|(part, size)| Step::Chunks(part, size)),
            2 => at().prop_map(Step::Freeze),
            2 => (at(), at(), at()).prop_map(|(shared, one, other)| Step::Slice(shared, one, other)),
            3 => at().prop_map(Step::Unfreeze),
            1 => at().prop_map(Step::Drop),
        ];
        prop::collection::vec(step, 1..40)
    }

    const LEN: u32 = 60;

    proptest! {
        /// The model of a part is its range. The model of a shared part is the range of what was
        /// frozen, by its start, and its own range.
        #[test]
        fn ranges_match_the_model(steps in steps()) {
            let mut parts = vec![whole(LEN)];
            let mut ranges: Vec<_> = std::iter::once(0..LEN as usize).collect();
            let mut shared: Vec<Region<Vec<u8>>> = Vec::new();
            let mut frozen = Vec::new();
            let base = parts[0].iova();
            for step in steps {
                match step {
                    Step::Split(at, mid) if !parts.is_empty() => {
                        let at = at.index(parts.len());
                        let mid = mid.index(ranges[at].len() + 1);
                        let rest = parts[at].split_off(mid);
                        parts.push(rest);
                        let whole = ranges[at].clone();
                        ranges[at].end = whole.start + mid;
                        ranges.push(whole.start + mid..whole.end);
                    }
                    Step::Join(one, other) if parts.len() > 1 => {
                        let other = other.index(parts.len());
                        let (part, range) = (parts.swap_remove(other), ranges.swap_remove(other));
                        let one = one.index(parts.len());
                        match parts[one].try_join(part) {
                            Ok(()) => {
                                let joined = &mut ranges[one];
                                prop_assert!(joined.end == range.start || range.end == joined.start);
                                *joined = joined.start.min(range.start)..joined.end.max(range.end);
                            }
                            Err(part) => {
                                let joined = &ranges[one];
                                prop_assert!(joined.end != range.start && range.end != joined.start);
                                parts.push(part);
                                ranges.push(range);
                            }
                        }
                    }
                    Step::Chunks(at, size) if !parts.is_empty() => {
                        let at = at.index(parts.len());
                        let (part, range) = (parts.swap_remove(at), ranges.swap_remove(at));
                        let chunks = part.chunks(size);
                        prop_assert_eq!(chunks.len(), range.len().div_ceil(size));
                        let before = parts.len();
                        parts.extend(chunks);
                        ranges.extend(range.clone().step_by(size).map(|at| at..range.end.min(at + size)));
                        prop_assert_eq!(parts.len() - before, range.len().div_ceil(size));
                    }
                    Step::Freeze(at) if !parts.is_empty() => {
                        let at = at.index(parts.len());
                        shared.push(parts.swap_remove(at).freeze());
                        let range = ranges.swap_remove(at);
                        frozen.push((range.clone(), range));
                    }
                    Step::Slice(at, one, other) if !shared.is_empty() => {
                        let at = at.index(shared.len());
                        let (whole, range) = frozen[at].clone();
                        let (one, other) = (one.index(range.len() + 1), other.index(range.len() + 1));
                        let slice = one.min(other)..one.max(other);
                        shared.push(shared[at].slice(slice.clone()));
                        frozen.push((whole, range.start + slice.start..range.start + slice.end));
                    }
                    Step::Unfreeze(at) if !shared.is_empty() => {
                        let at = at.index(shared.len());
                        let (one, range) = (shared.swap_remove(at), frozen.swap_remove(at));
                        match one.try_unfreeze() {
                            Ok(part) => {
                                parts.push(part);
                                ranges.push(range.0);
                            }
                            Err(one) => {
                                shared.push(one);
                                frozen.push(range);
                            }
                        }
                    }
                    Step::Drop(at) if parts.len() > 1 => {
                        let at = at.index(parts.len());
                        drop(parts.swap_remove(at));
                        ranges.swap_remove(at);
                    }
                    _ => {}
                }
                for (part, range) in parts.iter().zip(&ranges) {
                    let expected: Vec<u8> = range.clone().map(|at| at as u8).collect();
                    prop_assert_eq!(part.bytes(), expected);
                    prop_assert_eq!((part.iova(), part.len()), (base + range.start as u64, range.len()));
                }
                for (one, (_, range)) in shared.iter().zip(&frozen) {
                    let expected: Vec<u8> = range.clone().map(|at| at as u8).collect();
                    prop_assert_eq!(one.bytes(), expected);
                    prop_assert_eq!(one.iova(), base + range.start as u64);
                }
                // No two parts overlap, and no part overlaps what is frozen.
                let owned = ranges.iter().chain(frozen.iter().map(|(_, range)| range));
                for (at, range) in ranges.iter().enumerate() {
                    let overlaps = owned.clone().enumerate().filter(|(other, _)| *other != at);
                    for (_, other) in overlaps {
                        prop_assert!(range.end <= other.start || other.end <= range.start
                            || range.is_empty() || other.is_empty());
                    }
                }
            }
        }
    }
}
