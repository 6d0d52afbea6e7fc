//! Pools of registered buffers of one size.

use std::fmt;
use std::sync::Arc;

use bareverbs_provider::free_list::{FreeList, MAX_SLOTS};
use bareverbs_provider::traits::Provider;

use super::buffer::sealed::{Domain, PdId, Registered};
use super::{Source, Target};
use crate::{Access, Buffer, Error, Mr, Pd, Result};

/// The alignment of slots: no two slots share a cache line.
const ALIGNMENT: usize = 64;

/// Registered buffers of one size in one region.
///
/// Taking a buffer and giving it back neither allocates nor locks nor makes a system call. Any
/// number of threads may do both. Cloning a pool is cheap: clones share the buffers.
///
/// The region is deregistered when the pool, its clones and all leases are dropped.
///
/// ```no_run
/// use bareverbs::Device;
/// use bareverbs::owned::Pool;
///
/// let pd = Device::first()?.open()?.alloc_pd()?;
/// let pool = Pool::new(&pd, 64, 4096)?;
/// let mut lease = pool.take().expect("a free buffer");
/// lease.bytes_mut()[..5].copy_from_slice(b"hello");
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    region: Mr<Buffer>,
    free: FreeList,
    /// Length of a buffer.
    size: usize,
    /// Distance of two buffers.
    stride: usize,
    lkey: u32,
    verified_pd: PdId,
}

impl Pool {
    /// `count` buffers of `size` bytes each. They are zeroed, and aligned to 64 bytes.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `count` or `size` is 0, `count` is above 1,048,575, or `size` is 4 GiB
    ///   or more.
    /// - [`Error::System`]: there is not enough memory.
    /// - [`Error::Kernel`]: the registration failed, for example beyond the limit on locked memory.
    pub fn new<P: Provider>(pd: &Pd<P>, count: usize, size: usize) -> Result<Self> {
        let (stride, len) = layout(count, size)?;
        let region = pd.register(Buffer::zeroed(len)?, Access::LOCAL_WRITE)?;
        Ok(Self::of(region, count, size, stride))
    }

    /// `region` has local rights only, and `count` times `stride` bytes.
    pub(super) fn of(region: Mr<Buffer>, count: usize, size: usize, stride: usize) -> Self {
        // The region may be too long for an SGE. Its buffers are not, and they are not registered on
        // demand.
        let (lkey, verified_pd) = (region.lkey(), PdId::of(region.domain()));
        let free = FreeList::new(count);
        Self { inner: Arc::new(Inner { region, free, size, stride, lkey, verified_pd }) }
    }

    /// A pool in a region that no kernel has registered.
    #[cfg(test)]
    pub(crate) fn for_test(pd: &Pd<crate::testing::Plain>, count: usize, size: usize) -> Self {
        let (stride, len) = layout(count, size).expect("valid sizes");
        let region = crate::ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE)
            .part(Buffer::zeroed(len).expect("memory"));
        Self::of(region.map_err(|failed| failed.error).expect("a region"), count, size, stride)
    }

    /// Takes a buffer. `None` if all are taken.
    ///
    /// The buffer is not zeroed: it has the bytes of its last use.
    #[must_use]
    pub fn take(&self) -> Option<Lease> {
        let slot = self.inner.free.take()?;
        let offset = slot as usize * self.inner.stride;
        let iova = self.inner.region.addr().wrapping_add(offset as u64);
        Some(Lease { pool: Arc::clone(&self.inner), iova })
    }

    /// The number of its buffers, taken or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.free.capacity()
    }

    /// Length of each buffer in bytes.
    #[must_use]
    pub fn buffer_len(&self) -> usize {
        self.inner.size
    }
}

/// The distance of two buffers and the length of all.
fn layout(count: usize, size: usize) -> Result<(usize, usize)> {
    const VERB: &str = "Pool::new";
    if count == 0 || count > MAX_SLOTS {
        let reason = format!("count {count} is out of range: 1 to {MAX_SLOTS}");
        return Err(Error::invalid(VERB, reason));
    }
    if size == 0 || u32::try_from(size).is_err() {
        let reason = format!("size {size} is out of range: 1 to {} bytes", u32::MAX);
        return Err(Error::invalid(VERB, reason));
    }
    let stride = size.checked_next_multiple_of(ALIGNMENT);
    let layout = stride.and_then(|stride| Some((stride, stride.checked_mul(count)?)));
    layout.ok_or_else(|| {
        Error::invalid(VERB, format!("{count} buffers of {size} bytes exceed the address space"))
    })
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("capacity", &self.capacity())
            .field("buffer_len", &self.buffer_len())
            .field("lkey", &format_args!("{:#x}", self.inner.region.lkey()))
            .finish()
    }
}

/// A buffer of a [`Pool`]. Dropping it gives the buffer back. `mem::forget` removes the buffer from
/// the pool permanently.
///
/// A lease may outlive the pool.
pub struct Lease {
    pool: Arc<Inner>,
    /// The address of its slot, which belongs to this lease alone.
    iova: u64,
}

impl Lease {
    fn offset(&self) -> usize {
        self.iova.wrapping_sub(self.pool.region.addr()) as usize
    }

    /// Length in bytes: [`Pool::buffer_len`].
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "the length of a buffer is at least 1 byte")]
    pub fn len(&self) -> usize {
        self.pool.size
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the slot is within the region, whose bytes are valid and initialised while it
        // exists. The region never had remote rights. The slot belongs to this lease alone, and a
        // lease that an operation uses is owned by the code that posted it, which calls no method
        // of it.
        unsafe { std::slice::from_raw_parts(self.pool.region.as_ptr().add(self.offset()), self.len()) }
    }

    /// Its bytes, mutable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`. The lease is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pool.region.as_ptr().add(self.offset()), self.len()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.free.put_back((self.offset() / self.pool.stride) as u32);
    }
}

impl Registered for Lease {
    #[inline]
    fn domain(&self) -> Domain<'_> {
        Domain(self.pool.region.domain())
    }

    #[inline]
    fn iova(&self) -> u64 {
        self.iova
    }

    #[inline]
    fn lkey(&self) -> u32 {
        self.pool.lkey
    }

    #[inline]
    fn length(&self) -> usize {
        self.len()
    }

    #[inline]
    fn check_bounds(&self, _: &'static str) -> Result<()> {
        // The pool's region is not registered on demand.
        Ok(())
    }

    #[inline]
    fn verified_pd(&self) -> PdId {
        self.pool.verified_pd
    }
}

// SAFETY: the lease keeps the pool's region, which owns its memory and stays registered until the
// last lease is dropped. The free list gives a slot to one lease at a time, and only that lease's
// methods borrow its bytes out. A forgotten lease keeps the region until the process ends.
unsafe impl Source for Lease {
    fn try_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
}

// SAFETY: as above. No other value gives access to the bytes.
unsafe impl Target for Lease {}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("addr", &format_args!("{:#x}", self.iova()))
            .field("len", &self.len())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_test_support::allocations::allocations;

    use super::*;
    use crate::owned::buffer::checked_sge;
    use crate::testing::Plain;

    fn pool(count: usize, size: usize) -> (Pd<Plain>, Pool) {
        let pd = Plain::default().domain();
        let pool = Pool::for_test(&pd, count, size);
        (pd, pool)
    }

    #[test]
    fn zero_and_overflowing_sizes_are_rejected() {
        for (count, size) in [(0, 64), (1 << 20, 64), (1, 0), (1, 1 << 32), (MAX_SLOTS, usize::MAX)] {
            let refused = layout(count, size).unwrap_err();
            assert!(matches!(refused, Error::Invalid { verb: "Pool::new", .. }), "{refused}");
        }
        assert_eq!(layout(MAX_SLOTS, 65).unwrap(), (128, 128 * MAX_SLOTS));
    }

    #[test]
    fn leases_are_disjoint_and_come_back_when_dropped() {
        let (pd, pool) = pool(3, 100);
        assert_eq!((pool.capacity(), pool.buffer_len()), (3, 100));
        let mut leases: Vec<Lease> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        for (at, lease) in (1..).zip(&mut leases) {
            lease.bytes_mut().fill(at);
            let sge = checked_sge("test", lease, pd.domain(), 10..).unwrap();
            assert_eq!((sge.addr, sge.length), (lease.bytes().as_ptr().addr() as u64 + 10, 90));
            assert_eq!(lease.bytes().as_ptr().addr() % ALIGNMENT, 0);
        }
        assert!((1..).zip(&leases).all(|(at, lease)| lease.bytes() == [at; 100]));
        leases.remove(1);
        let back = pool.take().unwrap();
        assert_eq!((back.bytes(), back.len()), (&[2; 100][..], 100));
        assert!(pool.take().is_none());
    }

    #[test]
    fn forgotten_lease_takes_its_buffer_only() {
        let (_, pool) = pool(2, 8);
        std::mem::forget(pool.take());
        let lease = pool.take().unwrap();
        assert!(pool.take().is_none());
        drop(lease);
        assert!(pool.take().is_some());
    }

    #[test]
    fn lease_outlives_its_pool() {
        let (_, pool) = pool(1, 8);
        let mut lease = pool.take().unwrap();
        drop(pool);
        lease.bytes_mut().fill(7);
        assert_eq!(lease.bytes(), [7; 8]);
    }

    #[test]
    fn take_and_give_back_do_not_allocate() {
        let (pd, pool) = pool(8, 64);
        assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
        let count = allocations(|| {
            for _ in 0..100 {
                let leases: [Option<Lease>; 9] = std::array::from_fn(|_| pool.take());
                let taken = leases.iter().flatten();
                let sges = taken.filter(|lease| checked_sge("test", *lease, pd.domain(), ..).is_ok());
                assert_eq!(sges.count(), 8);
            }
        });
        assert_eq!(count, 0);
    }
}
