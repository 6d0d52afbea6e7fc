//! Buffers that the safe layer posts.

use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::work::Sge;

use crate::pd::shared::PdShared;
use crate::range::{check_range, element, range_within};
use crate::{Error, MemoryOwner, Mr, Result};

pub(crate) mod sealed {
    use std::fmt;
    use std::sync::Arc;

    use crate::Result;
    pub(crate) use crate::pd::shared::PdId;
    use crate::pd::shared::PdShared;

    /// The protection domain of a buffer.
    pub struct Domain<'a>(pub(crate) &'a Arc<PdShared>);

    impl fmt::Debug for Domain<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_tuple("Domain").field(&self.0.handle).finish()
        }
    }

    /// The place of a buffer, as a post reads it. Implementations of `Source` uphold its
    /// obligations.
    pub trait Registered {
        /// The protection domain of the key.
        fn domain(&self) -> Domain<'_>;

        /// The buffer's first byte in operations (IOVA).
        fn iova(&self) -> u64;

        /// The local key.
        fn lkey(&self) -> u32;

        /// The buffer's length in bytes.
        fn length(&self) -> usize;

        /// Rejects a range of the buffer that begins at `start`, if an operation on it may access
        /// other bytes.
        fn check_bounds(&self, verb: &'static str, start: usize) -> Result<()>;

        /// The PD of `domain`, computed before, if the length fits an SGE and `check_bounds`
        /// succeeds for each range. `PdId::NONE` demands the checks.
        fn verified_pd(&self) -> PdId;

        /// `length`, if `verified_pd` is not `PdId::NONE`.
        #[inline]
        fn verified_len(&self) -> u32 {
            self.length() as u32
        }
    }

    /// A buffer that a device may write, owned or borrowed.
    #[diagnostic::on_unimplemented(
        message = "`{Self}` cannot be posted for the device to write",
        label = "not an exclusive, registered buffer",
        note = "use a `RegionMut`, a `PoolBuffer` of a `Pool`, or an `Mr` of memory that it owns; in a scope a `&mut` \
                reference to one"
    )]
    pub trait Writable {}
}

use self::sealed::{Domain, PdId, Registered, Writable};

/// A registered buffer that a device may read: the payload of a send or a write.
///
/// The crate implements it for [`RegionMut`], [`Region`], [`RemoteRegionSource`], [`PoolBuffer`],
/// [`AnyBuffer`] and [`Mr`]`<impl MemoryOwner>`. It is sealed.
///
/// # Safety
///
/// An operation owns its buffer from the post until the device has finished. The implementation
/// guarantees to the code that posts:
///
/// 1. While the value exists, its key, its IOVA and its length do not change, and they name bytes
///    that are valid, initialised and registered in its protection domain. Moving the value does
///    not access the bytes.
/// 2. If the value is forgotten or leaked, this holds until the process ends.
/// 3. While no method of the value is called, this process writes none of the bytes, and no `&mut`
///    reference covers one of them. Copies of [`bareverbs_provider::copy`] are exempt.
/// 4. `check_bounds` fails for a range with which the device is known to access other bytes.
/// 5. If `verified_pd` is not `PdId::NONE`, it is the PD of `domain`, `length` is below 4 GiB, and
///    `check_bounds` succeeds for each range.
///
/// ```compile_fail,E0277
/// # use bareverbs::{Borrowed, Mr};
/// fn post(_: impl bareverbs::buffer::Source) {}
/// fn lend(borrowed: Mr<Borrowed<'static>>) {
///     post(borrowed);
/// }
/// ```
///
/// [`AnyBuffer`]: super::AnyBuffer
/// [`PoolBuffer`]: super::PoolBuffer
/// [`Region`]: super::Region
/// [`RegionMut`]: super::RegionMut
/// [`RemoteRegionSource`]: super::RemoteRegionSource
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be posted by the safe layer",
    label = "not an owned, registered buffer",
    note = "use a `RegionMut`, a `Region`, a `PoolBuffer` of a `Pool`, `RemoteRegion::source`, or an `Mr` of memory that it \
            owns"
)]
pub unsafe trait Source: Registered + Send + 'static {
    /// Its bytes. `None` if peers may ever have written them; see [`Mr::bytes`].
    fn try_bytes(&self) -> Option<&[u8]>;
}

/// A registered buffer that a device may write: for a receive, a read or the result of an atomic
/// operation.
///
/// The crate implements it for [`RegionMut`], [`PoolBuffer`] and [`Mr`]`<impl MemoryOwner>`. It is
/// sealed. A [`Region`] buffer is read-only:
///
/// ```compile_fail,E0277
/// # use bareverbs::Region;
/// # use bareverbs::buffer::Target;
/// fn receive(_: impl Target) {}
/// fn overwrite(shared: Region) {
///     receive(shared);
/// }
/// ```
///
/// # Safety
///
/// The obligations of [`Source`], and: while no method of the value is called, this process does
/// not access the bytes, and no reference covers one of them. Copies of
/// [`bareverbs_provider::copy`] are exempt.
///
/// [`PoolBuffer`]: super::PoolBuffer
/// [`Region`]: super::Region
/// [`RegionMut`]: super::RegionMut
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be posted for the device to write",
    label = "not an exclusive, owned, registered buffer",
    note = "use a `RegionMut`, a `PoolBuffer` of a `Pool`, or an `Mr` of memory that it owns"
)]
pub unsafe trait Target: Source + Writable {}

/// A scatter/gather element for `range` of `buffer`, for a queue of `domain`. Every post of the
/// safe layer makes its elements by this function or by [`verified_sge`].
///
/// It rejects buffers of another protection domain, because a key of another domain may name other
/// memory. On Soft-RoCE, it rejects ranges of on-demand MRs that do not begin at a page boundary,
/// because the kernel accesses bytes before them.
pub(crate) fn checked_sge<B: Registered>(
    verb: &'static str,
    buffer: &B,
    domain: &Arc<PdShared>,
    range: impl RangeBounds<usize>,
) -> Result<Sge> {
    if !Arc::ptr_eq(buffer.domain().0, domain) {
        return Err(other_domain(verb, domain));
    }
    let range = check_range(verb, range, buffer.length())?;
    buffer.check_bounds(verb, range.0)?;
    element(verb, buffer.iova(), range, buffer.lkey())
}

/// The element of [`checked_sge`], for a queue of `pd`. `None` if `checked_sge` would fail, and for
/// a buffer that was not verified before.
#[inline(always)]
pub(super) fn verified_sge<B: Registered>(
    buffer: &B,
    pd: PdId,
    range: impl RangeBounds<usize>,
) -> Option<Sge> {
    // One comparison covers the PD, the bounds and the length of an SGE: obligation 5 of `Source`.
    if buffer.verified_pd() != pd {
        return None;
    }
    let (start, len) = range_within(range, buffer.verified_len() as usize)?;
    Some(Sge { addr: buffer.iova().wrapping_add(start as u64), length: len as u32, lkey: buffer.lkey() })
}

#[cold]
#[inline(never)]
fn other_domain(verb: &'static str, domain: &PdShared) -> Error {
    let reason = format!(
        "the buffer and the QP belong to different PDs: register the buffer in the PD of the QP \
         (`Qp::pd`, handle {})",
        domain.handle
    );
    Error::invalid(verb, reason)
}

impl<M> Registered for Mr<M> {
    #[inline]
    fn domain(&self) -> Domain<'_> {
        Domain(self.domain())
    }

    #[inline]
    fn iova(&self) -> u64 {
        self.addr()
    }

    #[inline]
    fn lkey(&self) -> u32 {
        self.lkey()
    }

    #[inline]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline]
    fn check_bounds(&self, verb: &'static str, start: usize) -> Result<()> {
        self.check_postable(verb, start)
    }

    #[inline]
    fn verified_pd(&self) -> PdId {
        self.verified_pd()
    }
}

// SAFETY: the MR owns its memory and stays registered while it exists. It borrows the bytes out by
// its methods only. `MemoryOwner` keeps the bytes valid and in place, also if the MR is forgotten.
// `check_postable` rejects what Soft-RoCE misplaces.
unsafe impl<M: MemoryOwner + Send + 'static> Source for Mr<M> {
    fn try_bytes(&self) -> Option<&[u8]> {
        self.bytes()
    }
}

impl<M: MemoryOwner + Send + 'static> Writable for Mr<M> {}

// SAFETY: as above. The MR is the only owner of the bytes.
unsafe impl<M: MemoryOwner + Send + 'static> Target for Mr<M> {}

/// The length, [`Registered`] and `Debug` of a type with `iova` and `len`, a range of another region.
macro_rules! range_of {
    ([$($generics:tt)*] $range:ident<$($argument:tt),*>, $($region:ident).+) => {
        impl<$($generics)*> $range<$($argument),*> {
            /// Length in bytes. It may be 0.
            #[must_use]
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether its length is 0.
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }
        }

        impl<$($generics)*> fmt::Debug for $range<$($argument),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($range))
                    .field("addr", &format_args!("{:#x}", self.iova))
                    .field("len", &self.len)
                    .finish_non_exhaustive()
            }
        }

        impl<$($generics)*> Registered for $range<$($argument),*> {
            #[inline]
            fn domain(&self) -> Domain<'_> {
                self.$($region).+.domain()
            }

            #[inline]
            fn iova(&self) -> u64 {
                self.iova
            }

            #[inline]
            fn lkey(&self) -> u32 {
                self.$($region).+.lkey()
            }

            #[inline]
            fn length(&self) -> usize {
                self.len
            }

            #[inline]
            fn check_bounds(&self, verb: &'static str, start: usize) -> Result<()> {
                let offset = self.iova.wrapping_sub(self.$($region).+.iova()) as usize;
                self.$($region).+.check_bounds(verb, offset + start)
            }

            #[inline]
            fn verified_pd(&self) -> PdId {
                self.$($region).+.verified_pd()
            }
        }
    };
}
pub(super) use range_of;

#[cfg(test)]
mod tests {
    use std::ops::Bound;
    use std::ptr::NonNull;

    use bareverbs_provider::caps::MrQuirks;
    use proptest::prelude::*;

    use super::*;
    use crate::Access;
    use crate::memory::Buffer;
    use crate::mr::ImplicitMr;
    use crate::owned::Lend;
    use crate::owned::RegionMut;
    use crate::testing::Plain;

    /// Memory that no test accesses.
    struct Claimed(usize);

    // SAFETY: the bytes are never accessed.
    unsafe impl MemoryOwner for Claimed {
        fn region(&mut self) -> (NonNull<u8>, usize) {
            (NonNull::dangling(), self.0)
        }
    }

    fn bound() -> impl Strategy<Value = Bound<usize>> {
        let at = || prop_oneof![9 => 0usize..20, 1 => Just(usize::MAX)];
        prop_oneof![at().prop_map(Bound::Included), at().prop_map(Bound::Excluded), Just(Bound::Unbounded)]
    }

    proptest! {
        #[test]
        fn verified_element_equals_the_checked_one(range in (bound(), bound())) {
            let plain = Plain::default();
            let (pd, other) = (plain.domain(), plain.domain());
            let mr = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE).part(vec![0; 16]).unwrap();
            let checked = checked_sge("test", &mr, pd.domain(), range);
            prop_assert_eq!(verified_sge(&mr, PdId::of(pd.domain()), range), checked.ok());
            prop_assert_eq!(verified_sge(&mr, PdId::of(other.domain()), range), None);
        }
    }

    #[test]
    fn odp_ranges_are_posted_from_page_boundaries_if_page_offsets_are_ignored() {
        let page = rustix::param::page_size();
        for rejects in [true, false] {
            let quirks = MrQuirks { odp_ignores_page_offset: rejects, ..MrQuirks::default() };
            let pd = Plain::with(quirks).domain();
            let domain = pd.domain();
            let region = ImplicitMr::for_test(domain, Access::LOCAL_WRITE | Access::ON_DEMAND);
            let mut mr =
                region.part(Buffer::zeroed(3 * page).unwrap()).map_err(|failed| failed.error).unwrap();
            for (start, rejected) in [(0, false), (page, false), (100, rejects), (page + 8, rejects)] {
                assert_eq!(mr.sge(start..).is_err(), rejected, "{start}");
                assert_eq!(checked_sge("test", &mr, domain, start..).is_err(), rejected, "{start}");
                let (head, rest) = mr.lend().split_at(start);
                assert!(checked_sge("test", &head, domain, ..).is_ok());
                assert_eq!(checked_sge("test", &rest, domain, ..).is_err(), rejected, "{start}");
                assert_eq!(verified_sge(&rest, PdId::of(domain), ..).is_none(), rejects, "{start}");
            }
            let (_, rest) = mr.lend().split_at(page);
            assert_eq!(checked_sge("test", &rest, domain, 8..).is_err(), rejects);
            assert_eq!(RegionMut::new(mr).is_err(), rejects);
        }
    }

    #[test]
    fn region_beyond_4_gib_is_not_verified_and_its_ranges_are_posted() {
        let pd = Plain::default().domain();
        let region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
        for (len, verified) in [(u32::MAX as usize, true), (1 << 32, false)] {
            let mr = region.part(Claimed(len)).map_err(|failed| failed.error).unwrap();
            assert_eq!(verified_sge(&mr, PdId::of(pd.domain()), ..).is_some(), verified);
            assert_eq!(checked_sge("test", &mr, pd.domain(), ..).is_ok(), verified);
            assert_eq!(checked_sge("test", &mr, pd.domain(), 1..9).unwrap().length, 8);
        }
    }
}
