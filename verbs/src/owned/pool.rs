//! Pools of registered buffers of one size.

mod loan;
#[cfg(all(test, loom))]
mod loom_models;
mod pending;
mod slots;

use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use bareverbs_provider::free_list::MAX_SLOTS;
use bareverbs_provider::traits::Provider;

use self::loan::Loan;
pub(crate) use self::loan::{Lender, Loans};
pub use self::pending::PendingPoolBuffer;
use self::slots::Slots;
use super::buffer::sealed::{Domain, PdId, Registered, Writable};
use super::{Source, Target};
use crate::{Access, Buffer, Error, Mr, Pd, Result};

/// The alignment of slots: no two slots share a cache line.
const ALIGNMENT: usize = 64;

/// Registered buffers of one size in one region.
///
/// Taking a buffer and giving it back neither allocates nor locks nor makes a system call, unless a
/// caller [waits](Self::acquire) for one. Any number of threads may do both. Cloning a pool is cheap:
/// clones share the buffers.
///
/// The region is deregistered when the pool, its clones and all buffers are dropped.
///
/// ```
/// use bareverbs::{Device, Pool};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let pool = Pool::new(&pd, 64, 4096)?;
/// let mut buffer = pool.take().expect("a free buffer");
/// buffer.bytes_mut()[..5].copy_from_slice(b"hello");
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    region: Arc<Mr<Buffer>>,
    slots: Slots,
    /// Length of a buffer.
    size: usize,
    /// Distance of two buffers.
    stride: usize,
    /// The address of the region in requests.
    addr: u64,
    lkey: u32,
    verified_pd: PdId,
    /// Of buffers on loan. Their slots are taken from another `Inner` of the same region.
    loan: Option<Loan>,
}

impl Inner {
    /// The list of free slots has refused a slot.
    #[cold]
    fn put_back_refused(&self, slot: u32) {
        match &self.loan {
            None => self.slots.hand_over(slot),
            Some(loan) => loan.end(slot),
        }
    }
}

impl Pool {
    /// `count` buffers of `size` bytes each. They are zeroed, and aligned to 64 bytes.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `count` or `size` is 0, `count` is above 1,048,575, or `size` is 4 GiB
    ///   or more.
    /// - [`Error::System`]: there is not enough memory.
    /// - [`Error::Kernel`]: the registration failed, for example beyond the limit on locked memory.
    #[doc(alias = "ibv_reg_mr")]
    pub fn new<P: Provider>(pd: &Pd<P>, count: usize, size: usize) -> Result<Self> {
        let (stride, len) = layout(count, size)?;
        let region = pd.register(Buffer::zeroed(len)?, Access::LOCAL_WRITE)?;
        Ok(Self::of(region, count, size, stride))
    }

    /// `region` has local rights only, and `count` times `stride` bytes.
    pub(crate) fn of(region: Mr<Buffer>, count: usize, size: usize, stride: usize) -> Self {
        // The region may be too long for an SGE. Its buffers are not, and they are not registered on
        // demand.
        let (addr, lkey, verified_pd) = (region.addr(), region.lkey(), PdId::of(region.domain()));
        let (region, slots) = (Arc::new(region), Slots::new(count));
        let inner = Inner { region, slots, size, stride, addr, lkey, verified_pd, loan: None };
        Self { inner: Arc::new(inner) }
    }

    /// A pool in a region that no kernel has registered.
    #[cfg(test)]
    pub(crate) fn for_test(pd: &Pd<crate::testing::Plain>, count: usize, size: usize) -> Self {
        let (stride, len) = layout(count, size).expect("valid sizes");
        let region = crate::mr::ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE)
            .part(Buffer::zeroed(len).expect("memory"));
        Self::of(region.map_err(|failed| failed.error).expect("a region"), count, size, stride)
    }

    /// Takes a buffer. `None` if all are taken, or callers of [`acquire`](Self::acquire) wait.
    ///
    /// The buffer is not zeroed: it has the bytes of its last use.
    #[must_use]
    pub fn take(&self) -> Option<PoolBuffer> {
        let slot = self.inner.slots.take()?;
        Some(PoolBuffer::new(&self.inner, slot))
    }

    /// Waits for a buffer, in a task or a thread. Waits get buffers in the order of their first polls.
    ///
    /// The buffer is as that of [`take`](Self::take). Waiting allocates only if more callers wait than
    /// ever before.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use bareverbs::{Connection, Op, Pool};
    /// # async fn send(connection: &Connection, pool: &Pool) -> bareverbs::Result<()> {
    /// let mut message = pool.acquire().await?;
    /// message.bytes_mut()[..5].copy_from_slice(b"hello");
    /// connection.post(Op::send(message, ..5)).detach();
    /// # Ok(())
    /// # }
    /// # fn block(pool: &Pool) -> bareverbs::Result<()> {
    ///
    /// // A thread blocks:
    /// let buffer = pool.acquire().wait()?;
    /// let in_time = pool.acquire().wait_timeout(Duration::from_millis(100)).transpose()?;
    /// # drop((buffer, in_time));
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let ([connection, _peer], pool) = (example::connections(&pd)?, Pool::new(&pd, 2, 64)?);
    /// # example::block_on(send(&connection, &pool))?;
    /// # block(&pool)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    pub fn acquire(&self) -> PendingPoolBuffer {
        PendingPoolBuffer::new(Arc::clone(&self.inner))
    }

    /// Takes the wakers of the callers that wait, which keep their places. The caller must wake them.
    #[must_use]
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        self.inner.slots.take_wakers()
    }

    /// The number of its buffers, taken or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inner.slots.capacity()
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
/// A buffer may outlive the pool.
#[doc(alias = "Lease")]
pub struct PoolBuffer {
    pool: Arc<Inner>,
    /// The address of its slot, which belongs to this buffer alone.
    iova: u64,
}

impl AsRef<[u8]> for PoolBuffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsMut<[u8]> for PoolBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl PoolBuffer {
    /// The buffer of a slot that was taken.
    #[inline]
    fn new(pool: &Arc<Inner>, slot: u32) -> Self {
        let offset = slot as usize * pool.stride;
        let iova = pool.addr.wrapping_add(offset as u64);
        Self { pool: Arc::clone(pool), iova }
    }

    fn offset(&self) -> usize {
        self.iova.wrapping_sub(self.pool.addr) as usize
    }

    /// Its number in the pool.
    pub(crate) fn slot(&self) -> u32 {
        (self.offset() / self.pool.stride) as u32
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
        // exists. The region never had remote rights. The slot belongs to this buffer alone, and a
        // buffer that an operation uses is owned by the code that posted it, which calls no method
        // of it.
        unsafe { std::slice::from_raw_parts(self.pool.region.as_ptr().add(self.offset()), self.len()) }
    }

    /// Its bytes, mutable.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`. The buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.pool.region.as_ptr().add(self.offset()), self.len()) }
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        let slot = self.slot();
        if !self.pool.slots.try_put_back(slot) {
            self.pool.put_back_refused(slot);
        }
    }
}

impl Registered for PoolBuffer {
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
    fn check_bounds(&self, _: &'static str, _: usize) -> Result<()> {
        // The pool's region is not registered on demand.
        Ok(())
    }

    #[inline]
    fn verified_pd(&self) -> PdId {
        self.pool.verified_pd
    }
}

// SAFETY: the buffer keeps the pool's region, which owns its memory and stays registered until the
// last buffer is dropped. The free list gives a slot to one buffer at a time, and only that buffer's
// methods borrow its bytes out. A forgotten buffer keeps the region until the process ends.
unsafe impl Source for PoolBuffer {
    fn try_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
}

impl Writable for PoolBuffer {}

// SAFETY: as above. No other value gives access to the bytes.
unsafe impl Target for PoolBuffer {}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuffer")
            .field("addr", &format_args!("{:#x}", self.iova()))
            .field("len", &self.len())
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::future::Future;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};
    use std::time::Duration;

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
    fn buffers_are_disjoint_and_come_back_when_dropped() {
        let (pd, pool) = pool(3, 100);
        assert_eq!((pool.capacity(), pool.buffer_len()), (3, 100));
        let mut buffers: Vec<PoolBuffer> = (0..3).map(|_| pool.take().unwrap()).collect();
        assert!(pool.take().is_none());
        for (at, buffer) in (1..).zip(&mut buffers) {
            buffer.bytes_mut().fill(at);
            let sge = checked_sge("test", buffer, pd.domain(), 10..).unwrap();
            assert_eq!((sge.addr, sge.length), (buffer.bytes().as_ptr().addr() as u64 + 10, 90));
            assert_eq!(buffer.bytes().as_ptr().addr() % ALIGNMENT, 0);
        }
        assert!((1..).zip(&buffers).all(|(at, buffer)| buffer.bytes() == [at; 100]));
        buffers.remove(1);
        let back = pool.take().unwrap();
        assert_eq!((back.bytes(), back.len()), (&[2; 100][..], 100));
        assert!(pool.take().is_none());
    }

    #[test]
    fn forgotten_buffer_is_the_only_one_lost() {
        let (_, pool) = pool(2, 8);
        std::mem::forget(pool.take());
        let buffer = pool.take().unwrap();
        assert!(pool.take().is_none());
        drop(buffer);
        assert!(pool.take().is_some());
    }

    #[test]
    fn buffer_outlives_its_pool() {
        let (_, pool) = pool(1, 8);
        let mut buffer = pool.take().unwrap();
        drop(pool);
        buffer.bytes_mut().fill(7);
        assert_eq!(buffer.bytes(), [7; 8]);
    }

    /// Counts its wakes.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A wait that was polled, and its wakes.
    fn waits(pool: &Pool) -> (PendingPoolBuffer, Arc<Wakes>) {
        let (mut wait, wakes) = (pool.acquire(), Arc::new(Wakes::default()));
        assert!(poll(&mut wait, &wakes).is_none());
        (wait, wakes)
    }

    fn poll(wait: &mut PendingPoolBuffer, wakes: &Arc<Wakes>) -> Option<PoolBuffer> {
        let waker = Waker::from(Arc::clone(wakes));
        match Pin::new(wait).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(buffer) => Some(buffer.unwrap()),
            Poll::Pending => None,
        }
    }

    fn woken(wakes: &Wakes) -> usize {
        wakes.0.load(Ordering::Relaxed)
    }

    #[test]
    fn wait_for_a_free_buffer_is_ready_at_once() {
        let (_, pool) = pool(1, 8);
        let buffer = poll(&mut pool.acquire(), &Arc::default()).unwrap();
        assert!(pool.take().is_none());
        drop(buffer);
        drop(pool.acquire().wait().unwrap());
        assert!(pool.take().is_some());
    }

    #[test]
    fn returned_buffers_go_to_the_waits_in_order_and_wake_one_each() {
        let (_, pool) = pool(2, 8);
        let (one, two) = (pool.take().unwrap(), pool.take().unwrap());
        let [(mut first, a), (mut second, b), (mut third, c)] = [(); 3].map(|()| waits(&pool));
        drop(one);
        assert_eq!([&a, &b, &c].map(|wakes| woken(wakes)), [1, 0, 0]);
        assert!(pool.take().is_none(), "the buffer belongs to the first wait");
        assert!(poll(&mut second, &b).is_none());
        drop(two);
        assert_eq!([&a, &b, &c].map(|wakes| woken(wakes)), [1, 1, 0]);
        let buffers = [poll(&mut second, &b).unwrap(), poll(&mut first, &a).unwrap()];
        assert!(poll(&mut third, &c).is_none());
        let [buffer, _held] = buffers;
        drop(buffer);
        assert_eq!(woken(&c), 1);
        assert!(pool.take().is_none(), "waits are served before later callers");
        drop(poll(&mut third, &c).unwrap());
        assert!(pool.take().is_some(), "no wait is left");
    }

    #[test]
    fn dropped_wait_passes_its_buffer_on() {
        let (_, pool) = pool(1, 8);
        let buffer = pool.take().unwrap();
        let [(first, a), (second, b), (mut third, c)] = [(); 3].map(|()| waits(&pool));
        // The first one has no buffer yet.
        drop(first);
        drop(buffer);
        assert_eq!([&a, &b, &c].map(|wakes| woken(wakes)), [0, 1, 0]);
        drop(second);
        assert_eq!(woken(&c), 1);
        drop(poll(&mut third, &c).unwrap());
        drop(third);
        let (last, _) = {
            let buffer = pool.take().unwrap();
            let wait = waits(&pool);
            drop(buffer);
            wait
        };
        drop(last);
        assert!(pool.take().is_some());
    }

    #[test]
    fn wait_is_woken_by_its_last_waker() {
        let (_, pool) = pool(1, 8);
        let buffer = pool.take().unwrap();
        let (mut wait, before) = waits(&pool);
        let now = Arc::default();
        assert!(poll(&mut wait, &now).is_none());
        assert_eq!(Arc::strong_count(&before), 1, "the earlier waker was dropped");
        drop(buffer);
        assert_eq!((woken(&before), woken(&now)), (0, 1));
    }

    #[test]
    fn wait_of_a_thread_ends_at_its_time_limit_and_keeps_its_place() {
        let (_, pool) = pool(1, 8);
        let buffer = pool.take().unwrap();
        let mut first = pool.acquire();
        assert!(first.wait_timeout(Duration::from_millis(5)).is_none());
        let (mut second, wakes) = waits(&pool);
        drop(buffer);
        assert!(poll(&mut second, &wakes).is_none());
        drop(first.wait_timeout(Duration::ZERO).unwrap().unwrap());
        assert!(poll(&mut second, &wakes).is_some());
    }

    #[test]
    fn threads_that_wait_get_all_buffers() {
        let rounds = if cfg!(miri) { 10 } else { 2000 };
        let (_, pool) = pool(2, 8);
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let pool = &pool;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let mut wait = pool.acquire();
                        let mut buffer = wait
                            .wait_timeout(Duration::from_secs(20))
                            .transpose()
                            .unwrap()
                            .expect("a buffer");
                        buffer.bytes_mut().fill(thread);
                        std::thread::yield_now();
                        assert_eq!(buffer.bytes(), [thread; 8]);
                    }
                });
            }
        });
        assert!(pool.take().is_some() && pool.take().is_some());
    }

    #[test]
    fn panic_of_a_waker_loses_no_buffer() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("in a waker");
            }
        }
        let (_, pool) = pool(1, 8);
        let buffer = pool.take().unwrap();
        let (mut wait, waker) = (pool.acquire(), Waker::from(Arc::new(Panics)));
        assert!(Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending());
        catch_unwind(AssertUnwindSafe(|| drop(buffer))).unwrap_err();
        assert!(poll(&mut wait, &Arc::default()).is_some());
    }

    /// A waker whose drop panics.
    fn panics_on_drop() -> Waker {
        use std::task::{RawWaker, RawWakerVTable};

        static CALLS: RawWakerVTable = RawWakerVTable::new(
            |data| RawWaker::new(data, &CALLS),
            |_| (),
            |_| (),
            |_| panic!("in the drop of a waker"),
        );
        // SAFETY: the functions don't use the data, and may be called by any thread.
        unsafe { Waker::new(std::ptr::null(), &CALLS) }
    }

    #[test]
    fn panic_in_the_drop_of_a_waker_loses_no_buffer() {
        let (_, pool) = pool(1, 8);
        let waker = std::mem::ManuallyDrop::new(panics_on_drop());
        let mut cx = Context::from_waker(&waker);
        let buffer = pool.take().unwrap();
        let (mut first, _) = waits(&pool);
        let (mut second, wakes) = waits(&pool);
        drop(buffer);
        // The first wait has the buffer.
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut first).poll(&mut cx).is_ready()));
        assert!(polled.is_err());
        assert_eq!(woken(&wakes), 1, "the next one has it");
        drop(poll(&mut second, &wakes).unwrap());
        drop((first, second));
        assert!(pool.take().is_some());
    }

    #[test]
    fn take_and_give_back_do_not_allocate() {
        let (pd, pool) = pool(8, 64);
        assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
        let count = allocations(|| {
            for _ in 0..100 {
                let buffers: [Option<PoolBuffer>; 9] = std::array::from_fn(|_| pool.take());
                let taken = buffers.iter().flatten();
                let sges = taken.filter(|buffer| checked_sge("test", *buffer, pd.domain(), ..).is_ok());
                assert_eq!(sges.count(), 8);
            }
        });
        assert_eq!(count, 0);
    }
}
