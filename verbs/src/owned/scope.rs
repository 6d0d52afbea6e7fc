//! Operations on borrowed memory.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::SendFlags;

use super::buffer::range_of;
use super::buffer::sealed::{Domain, PdId, Registered, Writable};
use super::endpoint::{FLUSH_LIMIT, Queues};
use super::keepalive::earlier;
use super::operation::{Inline, Lent, PostTo, Receive};
use super::{Completed, Endpoint, Next, Op, PoolBuffer, RegionMut};
use crate::{AnyProvider, Borrowed, Error, MemoryOwner, Mr, Refused, Result};

/// A registered region that a [`Scope`] can borrow: an [`Mr`] of memory that it
/// [owns](MemoryOwner) or [borrows](Borrowed), a [`RegionMut`], a [`PoolBuffer`], or a range of one of
/// them ([`LendRange`]). It is sealed.
///
/// # Safety
///
/// While a reference to the region exists, it stays registered and its bytes stay valid. No method
/// of a shared reference writes the bytes.
pub unsafe trait Lend: Registered {
    /// The whole region as a range, to be divided into disjoint ranges that a scope borrows
    /// exclusively.
    ///
    /// ```
    /// use bareverbs::buffer::Lend;
    /// use bareverbs::{Buffer, Endpoint, Mr, Op, Remote, Result};
    ///
    /// /// Reads a file of the peer by as many reads as it has MiB.
    /// fn read(endpoint: &mut Endpoint, file: &mut Mr<Buffer>, mut from: Remote) -> Result<()> {
    ///     let mut chunks: Vec<_> = file.lend().chunks(1 << 20).collect();
    ///     endpoint.scope(|scope| -> Result<()> {
    ///         for chunk in &mut chunks {
    ///             scope.post(Op::read(chunk, .., from))?;
    ///             from.addr += 1 << 20;
    ///         }
    ///         Ok(())
    ///     })?
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, _peer] = example::endpoints(&pd)?;
    /// # let memory = example::exposed(&pd, 3 << 20)?;
    /// # let mut file = pd.register(Buffer::zeroed(3 << 20)?, bareverbs::Access::LOCAL_WRITE)?;
    /// # read(&mut endpoint, &mut file, memory.remote(0)?)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    fn lend(&mut self) -> LendRange<'_, Self>
    where
        Self: Sized,
    {
        let (iova, len) = (self.iova(), self.length());
        LendRange { region: self, iova, len, _exclusive: PhantomData }
    }
}

/// A range of a region that is borrowed exclusively, from [`Lend::lend`]. Ranges of one region are
/// disjoint.
///
/// On Soft-RoCE, a post rejects a range of an MR with [`ON_DEMAND`](crate::Access::ON_DEMAND) that does
/// not begin at a page boundary.
///
/// The region can be used again when its ranges are dropped:
///
/// ```compile_fail,E0502
/// # use bareverbs::buffer::Lend;
/// # use bareverbs::{Buffer, Endpoint, Mr, Op};
/// # fn read(endpoint: &mut Endpoint, region: &mut Mr<Buffer>) {
/// let (mut head, _body) = region.lend().split_at(16);
/// println!("{:?}", region.bytes());
/// endpoint.scope(|scope| scope.post(Op::recv(&mut head)).unwrap());
/// # }
/// ```
pub struct LendRange<'r, R> {
    region: &'r R,
    iova: u64,
    len: usize,
    /// The region was borrowed exclusively, and this range belongs to this value alone.
    _exclusive: PhantomData<&'r mut R>,
}

impl<'r, R: Lend> LendRange<'r, R> {
    /// Splits it: the first range has `mid` bytes, the second the rest.
    ///
    /// # Panics
    /// If `mid` exceeds its length.
    #[must_use]
    pub fn split_at(self, mid: usize) -> (Self, Self) {
        let Self { region, iova, len, _exclusive } = self;
        assert!(mid <= len, "a split at {mid} exceeds the range's {len} bytes");
        (
            Self { region, iova, len: mid, _exclusive },
            Self { region, iova: iova.wrapping_add(mid as u64), len: len - mid, _exclusive },
        )
    }

    /// Splits it into ranges of `size` bytes. The last one is shorter if `size` does not divide its
    /// length.
    ///
    /// # Panics
    /// If `size` is 0.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Self> {
        assert!(size > 0, "chunks have at least 1 byte");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let range = rest.take().filter(|range| !range.is_empty())?;
            let mid = size.min(range.len());
            let (chunk, behind) = range.split_at(mid);
            rest = Some(behind);
            Some(chunk)
        })
    }
}

range_of!([R: Lend] LendRange<'_, R>, region);

impl<R: Lend> Writable for &mut R {}

// SAFETY: the region is borrowed while the range exists, and is `Lend` itself. The range has no method
// that accesses bytes, and its bytes belong to it alone: `split_at` makes disjoint ranges.
unsafe impl<R: Lend> Lend for LendRange<'_, R> {}

// SAFETY: the part has the range alone, and its region stays registered while it exists. `bytes_mut`
// and all methods that change the range borrow or move it.
unsafe impl<M: Send + Sync + 'static> Lend for RegionMut<M> {}

// SAFETY: the slot belongs to the buffer alone, and its region stays registered while it exists.
// `bytes_mut` borrows it exclusively.
unsafe impl Lend for PoolBuffer {}

// SAFETY: the MR owns its memory, and stays registered while it exists. `bytes_mut`, `write` and
// `set_access` borrow it exclusively.
unsafe impl<M: MemoryOwner> Lend for Mr<M> {}

// SAFETY: as above. The memory is borrowed for the lifetime of the MR.
unsafe impl Lend for Mr<Borrowed<'_>> {}

/// Posts operations on borrowed regions to an [`Endpoint`]; see [`Endpoint::scope`].
///
/// An operation names its region by a reference: `Op::send(&region, ..)`, `Op::recv(&mut region)`.
pub struct Scope<'scope, 'env: 'scope, B, P: Provider = AnyProvider> {
    endpoint: &'scope mut Endpoint<B, P>,
    end: Option<Instant>,
    /// The time limit; zero if there is none.
    limit: Duration,
    /// Requests that must be complete at the end, as [`Queue::posted`](super::queue::Queue::posted)
    /// counts them.
    posted: Posted,
    /// The number of sends that were posted before the scope, counted in the same way.
    start: u64,
    /// Invariant, so that no reference with a shorter lifetime is accepted.
    _scope: PhantomData<&'scope mut &'scope ()>,
    _env: PhantomData<&'env mut &'env ()>,
}

#[derive(Clone, Copy, Default)]
struct Posted {
    sends: u64,
    recvs: u64,
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Runs `work`, which can post operations on borrowed regions, and waits until all of them are
    /// complete. So the regions can be used again when this returns. It does not wait for inline
    /// operations, whose bytes are copied.
    ///
    /// ```
    /// use bareverbs::mr::LocalAccess;
    /// use bareverbs::{Endpoint, Op, Pd, Result};
    ///
    /// fn ask(endpoint: &mut Endpoint, pd: &Pd, question: &mut [u8], answer: &mut [u8]) -> Result<u32> {
    ///     let question = pd.register_borrowed(question, LocalAccess::Read)?;
    ///     let mut answer = pd.register_borrowed(answer, LocalAccess::ReadWrite)?;
    ///     endpoint.scope(|scope| {
    ///         scope.post(Op::recv(&mut answer).tag(1))?;
    ///         scope.post(Op::send(&question, ..).tag(2))?;
    ///         loop {
    ///             let done = scope.next().wait()?;
    ///             if done.tag == 1 {
    ///                 return Ok(done.len);
    ///             }
    ///         }
    ///     })?
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, mut peer] = example::endpoints(&pd)?;
    /// # let [buffer] = example::buffers(&pd)?;
    /// # peer.post(Op::recv(buffer))?;
    /// # peer.post(Op::send_inline(b"answer"))?;
    /// # assert_eq!(ask(&mut endpoint, &pd, b"question".to_vec().as_mut(), &mut [0; 64])?, 6);
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// It waits without limit for operations that `work` did not wait for, unless
    /// [`Scope::set_timeout`] was called. Receives may never complete. Results of operations that
    /// `work` did not poll are returned by later polls, without a buffer.
    ///
    /// If `work` panics or the time limit expires, the endpoint is [aborted](Endpoint::abort),
    /// which ends all of its operations. If the device does not flush them within 5 seconds, the QP
    /// is destroyed. If the kernel also refuses to destroy the QP, the device may access the
    /// borrowed memory without limit, and the process is aborted. The removal of the device is no such
    /// case: kernels destroy the QP then.
    ///
    /// A region must live longer than the scope:
    ///
    /// ```compile_fail,E0597
    /// # use bareverbs::{Access, Buffer, Endpoint, Op, Pd};
    /// # fn escape(endpoint: &mut Endpoint, pd: &Pd) {
    /// endpoint.scope(|scope| {
    ///     let region = pd.register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
    ///     scope.post(Op::send(&region, ..)).unwrap();
    /// });
    /// # }
    /// ```
    ///
    /// A region that receives can't be read in the scope:
    ///
    /// ```compile_fail,E0502
    /// # use bareverbs::{Buffer, Endpoint, Mr, Op};
    /// # fn read(endpoint: &mut Endpoint, region: &mut Mr<Buffer>) {
    /// endpoint.scope(|scope| {
    ///     scope.post(Op::recv(&mut *region)).unwrap();
    ///     println!("{:?}", region.bytes());
    /// });
    /// # }
    /// ```
    ///
    /// A scope can't be kept, and a region of an inner scope can't be posted to the outer one:
    ///
    /// ```compile_fail,E0521
    /// # use bareverbs::{Buffer, Endpoint, Mr, Scope};
    /// # fn keep(endpoint: &mut Endpoint) {
    /// let mut kept = None;
    /// endpoint.scope(|scope| kept = Some(scope));
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0597
    /// # use bareverbs::{Access, Buffer, Endpoint, Op, Pd};
    /// # fn nest(one: &mut Endpoint, other: &mut Endpoint, pd: &Pd) {
    /// one.scope(|outer| {
    ///     let region = pd.register(Buffer::zeroed(8).unwrap(), Access::LOCAL_WRITE).unwrap();
    ///     other.scope(|inner| outer.post(Op::send(&region, ..)).unwrap());
    /// });
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::TimedOut`]: operations did not complete in time. The QP was moved to ERR.
    /// - [`Error::DeviceRemoved`]: the device was removed while the scope waited at its end. All
    ///   operations have ended; polls return them as failed.
    /// - The errors of [`Endpoint::next`], if waiting at the end failed.
    ///
    /// # Panics
    /// With the panic of `work`, after all operations have ended.
    pub fn scope<'env, R>(
        &mut self,
        work: impl for<'scope> FnOnce(&mut Scope<'scope, 'env, B, P>) -> R,
    ) -> Result<R> {
        let mut scope = Scope {
            start: self.queues.in_flight.sends.queue().posted(),
            endpoint: self,
            end: None,
            limit: Duration::ZERO,
            posted: Posted::default(),
            _scope: PhantomData,
            _env: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut scope)));
        let Scope { end, limit, posted, .. } = scope;
        // The borrows end if this unwinds.
        let abort = AbortOnDrop;
        let end = if result.is_err() {
            self.queues.fail();
            // A device that does not flush the operations must not keep the panic from its caller.
            earlier(end, Instant::now().checked_add(FLUSH_LIMIT))
        } else {
            end
        };
        let ended = self.end_scope(end, limit, posted);
        std::mem::forget(abort);
        match result {
            Ok(result) => ended.map(|()| result),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Returns after the device has finished with the requests of a scope.
    fn end_scope(&mut self, end: Option<Instant>, limit: Duration, posted: Posted) -> Result<()> {
        let until = move |in_flight: &super::endpoint::InFlight<B>| {
            (in_flight.sends.queue().completed() >= posted.sends || in_flight.sends.in_use() == 0)
                && in_flight.recvs.queue().completed() >= posted.recvs
        };
        let known = self.queues.is_removed();
        match self.queues.reap_until(end, until) {
            Ok(true) if known == self.queues.is_removed() => Ok(()),
            Ok(true) => Err(Error::DeviceRemoved { verb: "Endpoint::scope" }),
            waited => {
                self.queues.fail();
                let flushed = Instant::now().checked_add(FLUSH_LIMIT);
                if !matches!(self.queues.reap_until(flushed, until), Ok(true))
                    && self.queues.destroy_qp().is_err()
                {
                    std::process::abort();
                }
                waited.and(Err(Error::TimedOut { verb: "Endpoint::scope", limit }))
            }
        }
    }
}

/// Aborts the process if a panic leaves operations on borrowed memory outstanding.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

impl<'scope, B, P: Provider> Scope<'scope, '_, B, P> {
    /// Sets the time limit, counted from now, for operations that are outstanding at the end of the
    /// scope. Default: none.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.end = Instant::now().checked_add(timeout);
        self.limit = timeout;
    }

    /// Polls one operation of the endpoint, as [`Endpoint::poll`] does.
    ///
    /// # Errors
    /// As for [`Endpoint::poll`].
    pub fn poll(&mut self) -> Option<Completed<B>> {
        self.endpoint.poll()
    }

    /// The next operation of the endpoint that completes, as [`Endpoint::next`] returns it.
    ///
    /// # Errors
    /// As for [`Endpoint::next`].
    #[doc(alias = "wait")]
    #[doc(alias = "wait_timeout")]
    #[expect(clippy::should_implement_trait, reason = "a stream of futures is no `Iterator`")]
    pub fn next(&mut self) -> Next<'_, B, P> {
        self.endpoint.next()
    }

    /// Probes the peer, as [`Endpoint::probe`] does.
    ///
    /// # Errors
    /// As for [`Endpoint::probe`].
    pub fn probe(&mut self) -> Result<()> {
        self.endpoint.probe()
    }

    /// Posts an operation on a borrowed region, or an inline one.
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting).
    #[inline(always)]
    pub fn post<T: PostTo<Self>>(&mut self, op: T) -> Result<(), T::Refused> {
        op.post_to(self)
    }

    /// A send was refused.
    #[cold]
    #[inline(never)]
    fn refused<O>(&mut self, refused: Refused<O>) -> Refused<O> {
        // All operations since the start of the scope are the scope's.
        let posted = self.endpoint.queues.in_flight.sends.queue().posted();
        self.posted.sends = if posted > self.start { posted } else { 0 };
        self.endpoint.queues.refused(refused)
    }
}

/// A reference to a region, for `'scope`.
pub trait Borrow<'scope>: 'scope {
    type Region: Lend;

    fn region(self) -> &'scope Self::Region;
}

impl<'scope, R: Lend> Borrow<'scope> for &'scope R {
    type Region = R;

    #[inline(always)]
    fn region(self) -> &'scope R {
        self
    }
}

impl<'scope, R: Lend> Borrow<'scope> for &'scope mut R {
    type Region = R;

    #[inline(always)]
    fn region(self) -> &'scope R {
        self
    }
}

// An operation that fills its region takes a mutable reference: only that is `Writable`.
impl<'scope, B, P: Provider, L: Borrow<'scope>> PostTo<Scope<'scope, '_, B, P>> for Op<L> {
    type Refused = Error;

    #[inline(always)]
    fn post_to(self, to: &mut Scope<'scope, '_, B, P>) -> Result<()> {
        let Queues { qp, in_flight, .. } = &mut to.endpoint.queues;
        // Counted before the request is posted.
        to.posted.sends = in_flight.sends.queue().posted() + 1;
        // SAFETY: the region is borrowed for 'scope, so it stays registered, and nothing writes its
        // bytes. If the operation fills them, the region is borrowed exclusively, so nothing accesses
        // them. `Endpoint::scope` does not return before the request is complete or the QP is
        // destroyed, and the borrow lasts until it returns.
        let mut op = self.map(|region| unsafe { Lent::new(region.region()) });
        // The end of the scope waits for its completion.
        op.flags |= SendFlags::SIGNALED;
        let posted = in_flight.sends.post(qp, op);
        posted.map_err(|refused| to.refused(refused).into())
    }
}

impl<B, P: Provider> PostTo<Scope<'_, '_, B, P>> for Op<Inline<'_>> {
    type Refused = Error;

    fn post_to(self, to: &mut Scope<'_, '_, B, P>) -> Result<()> {
        let Queues { qp, in_flight, .. } = &mut to.endpoint.queues;
        let posted = in_flight.sends.post(qp, self);
        posted.map_err(|refused| to.endpoint.queues.refused(refused).into())
    }
}

impl<'scope, B, P: Provider, R: Lend> PostTo<Scope<'scope, '_, B, P>> for Op<&'scope mut R, Receive> {
    type Refused = Error;

    fn post_to(self, to: &mut Scope<'scope, '_, B, P>) -> Result<()> {
        let Queues { qp, in_flight, .. } = &mut to.endpoint.queues;
        // Counted before the request is posted.
        let before = to.posted.recvs;
        to.posted.recvs = in_flight.recvs.queue().posted() + 1;
        // SAFETY: as for the operations of the send queue.
        let op = self.map(|region| unsafe { Lent::new(region) });
        let posted = in_flight.recvs.post(qp, op);
        posted.map_err(|refused| {
            to.posted.recvs = before;
            refused.into()
        })
    }
}

impl<B, P: Provider> fmt::Debug for Scope<'_, '_, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
