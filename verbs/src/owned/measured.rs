//! The safe layer over queues without a kernel, for measurements.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use bareverbs_provider::caps::Capabilities;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::CreateError;
use bareverbs_provider::request::{AhRequest, CqRequest, QpRequest, SrqChange, SrqRequest};
use bareverbs_provider::traits::{CompletionQueue, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, Provider};
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use rustix::io::Errno;

use super::endpoint::{InFlight, Polled, Queues, TakeOldest};
use super::keepalive::Policy;
use super::op::{OpPayload, Receive};
use super::options::QueueParts;
use super::resolve::ResolveTimeout;
use super::{Address, Completed, Connection, Endpoint, Hub, Op, Pending, Pool, RegionMut, Source, Spin};
use crate::context::ContextInner;
use crate::cq::{CompChannel, Cq, CqInit};
use crate::pd::shared::PdShared;
use crate::qp::{ConnectAttr, Qp, QpCap, QpInit, QpState, Rc, RecvHalf, SendHalf};
use crate::{Buffer, Context, Gid, MemoryOwner, Mr, Pd, Refused};

/// A protection domain without a kernel object.
pub struct HarnessPd(Arc<PdShared>);

impl HarnessPd {
    /// Creates the domain. Commands on it fail.
    #[expect(clippy::new_without_default, reason = "it opens a file")]
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(PdShared::without_kernel(ContextInner::without_kernel())))
    }

    /// A part of all bytes of a region with the L_Key `lkey`.
    ///
    /// # Panics
    /// Never: a region without a kernel has local rights only.
    #[must_use]
    pub fn part<M: MemoryOwner>(&self, memory: M, lkey: u32) -> RegionMut<M> {
        RegionMut::new(self.mr(memory, lkey)).map_err(|failed| failed.error).expect("local rights")
    }

    /// A region with the L_Key `lkey`.
    #[must_use]
    pub fn mr<M: MemoryOwner>(&self, memory: M, lkey: u32) -> Mr<M> {
        Mr::without_kernel(&self.0, memory, lkey)
    }

    /// A pool of one buffer, with the L_Key `lkey`.
    ///
    /// # Safety
    ///
    /// The bytes must be valid until the process ends, and only this pool accesses them.
    #[must_use]
    pub unsafe fn pool(&self, start: NonNull<u8>, len: usize, lkey: u32) -> Pool {
        // SAFETY: the bytes stay valid by the caller's contract. The buffer is never dropped,
        // because the region can't be deregistered.
        let memory = unsafe { Buffer::from_raw_parts(start, len) };
        Pool::of(self.mr(memory, lkey), 1, len, len)
    }
}

/// An endpoint whose queues the caller keeps.
pub struct HarnessEndpoint<B> {
    in_flight: InFlight<B>,
}

impl<B> HarnessEndpoint<B> {
    /// An endpoint for `depth` operations in each direction.
    #[must_use]
    pub fn new(domain: &HarnessPd, depth: u32) -> Self {
        Self { in_flight: InFlight::new(&domain.0, depth, depth, depth) }
    }

    /// As [`Endpoint::poll`](super::Endpoint::poll). Completions that need more work are dropped.
    ///
    /// # Safety
    ///
    /// `cq` must be the CQ of the queues that the endpoint posts to.
    #[inline(always)]
    pub unsafe fn poll<P: Provider>(&mut self, cq: &mut P::Cq) -> Option<Completed<B>> {
        match cq.visit_next(TakeOldest(&mut self.in_flight)) {
            Polled::Done(done) => Some(Ok(done)),
            Polled::Empty => None,
            Polled::Other(_) => self.in_flight.take(),
        }
    }

    #[cold]
    #[inline(never)]
    fn refused<O>(&mut self, refused: Refused<O>) -> Refused<O> {
        self.in_flight.sends.close();
        refused
    }
}

impl<B: Source> HarnessEndpoint<B> {
    /// As [`Endpoint::post`](super::Endpoint::post). An error closes the endpoint.
    ///
    /// # Errors
    /// As for `Endpoint::post`.
    ///
    /// # Safety
    ///
    /// The endpoint must exist until the device has finished with all operations. `send` must
    /// belong to the endpoint's queue.
    #[expect(clippy::result_large_err, reason = "the error returns the operation without an allocation")]
    #[inline(always)]
    pub unsafe fn post<P: Provider, L: OpPayload<B>>(
        &mut self,
        send: &mut SendHalf<'_, Rc, P>,
        op: Op<L>,
    ) -> Result<(), Refused<Op<L>>> {
        self.in_flight.sends.post(send, op).map_err(|refused| self.refused(refused))
    }

    /// As [`Endpoint::post`](super::Endpoint::post) of a receive.
    ///
    /// # Errors
    /// As for `Endpoint::post`.
    ///
    /// # Safety
    ///
    /// As for [`HarnessEndpoint::post`].
    #[inline(always)]
    pub unsafe fn post_recv<P: Provider>(
        &mut self,
        recv: &mut RecvHalf<'_, Rc, P>,
        op: Op<B, Receive>,
    ) -> Result<(), Refused<Op<B, Receive>>> {
        self.in_flight.recvs.post(recv, op)
    }
}

/// A provider of queues that exist already.
pub struct Given<P: Provider> {
    cq: Mutex<Option<P::Cq>>,
    qp: Mutex<Option<(P::Sq, P::Rq)>>,
}

/// A command that is not measured.
fn not_measured() -> CreateError {
    CreateError::Ioctl(IoctlError { method: "measured", errno: Errno::NOTTY })
}

// SAFETY: each queue is given out once. The caller of `HarnessHub::new` upholds the rest.
unsafe impl<P: Provider> Provider for Given<P> {
    type Cq = P::Cq;
    type Sq = P::Sq;
    type Rq = P::Rq;
    type Srq = P::Srq;
    type Ah = P::Ah;

    fn drives(_: u32) -> bool {
        false
    }

    fn open(_: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        Err(IoctlError { method: "measured", errno: Errno::NOTTY })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { num_comp_vectors: 1, ..Capabilities::default() }
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        Ok(1)
    }

    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
        let queue = self.cq.lock().expect("no panic").take().ok_or_else(not_measured)?;
        Ok(CreatedCq { handle: 1, entries: request.entries, queue })
    }

    unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
        let (sq, rq) = self.qp.lock().expect("no panic").take().ok_or_else(not_measured)?;
        Ok(CreatedQp { handle: 1, qp_num: 1, cap: request.cap, sq, rq: Some(rq) })
    }

    unsafe fn create_srq(&self, _: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError> {
        Err(not_measured())
    }

    unsafe fn modify_srq(&self, _: u32, _: &mut P::Srq, _: SrqChange) -> Result<(), CreateError> {
        Err(not_measured())
    }

    fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        Err(not_measured())
    }
}

/// Objects of a context without a kernel.
struct GivenObjects<P: Provider> {
    pd: Pd<Given<P>>,
    cq: Cq<Given<P>>,
    qp: Qp<Rc, Given<P>>,
}

/// The queues as objects. The QP is in RTS.
fn given<P: Provider>(cq: P::Cq, (sq, rq): (P::Sq, P::Rq), depth: u32) -> GivenObjects<P> {
    let provider = Given::<P> { cq: Mutex::new(Some(cq)), qp: Mutex::new(Some((sq, rq))) };
    let mut limits = ExQueryDeviceResp::zeroed();
    let base = &mut limits.base;
    (base.max_qp_wr, base.max_sge, base.max_cqe) = (depth, 4, 2 * depth);
    let file = Arc::clone(&ContextInner::without_kernel().file);
    let pd = Context::for_test(file, provider, limits).alloc_pd().expect("no command");
    let cq = pd.context().create_cq(&CqInit::new(2 * depth)).expect("no command");
    let cap = QpCap { max_send_wr: depth, max_recv_wr: depth, ..QpCap::default() };
    let mut qp = pd.create_qp(&QpInit { cap, ..QpInit::new(&cq, &cq) }).expect("no command");
    qp.assume_state(QpState::RTS);
    GivenObjects { pd, cq, qp }
}

/// An endpoint for `depth` operations in each direction, on queues without a kernel, and the
/// protection domain of its buffers. Its waits never sleep.
///
/// # Panics
/// If there is not enough memory.
///
/// # Safety
///
/// As for [`HarnessHub::new`].
#[must_use]
pub unsafe fn endpoint<B, P: Provider>(
    cq: P::Cq,
    queues: (P::Sq, P::Rq),
    depth: u32,
) -> (Endpoint<B, Given<P>>, HarnessPd) {
    let GivenObjects { pd, cq, qp } = given::<P>(cq, queues, depth);
    let endpoint = Endpoint {
        address: Address::new(Gid::default(), qp.qp_num()),
        queues: Queues::new(QueueParts {
            qp,
            cq,
            channel: CompChannel::for_test(pd.context().file()),
            sends: depth,
            recvs: depth,
            max_sge: 1,
            signal_every: depth,
            spin: Spin::Always,
            keepalive: Policy::Never,
            probes: true,
        }),
        attr: ConnectAttr::new(1, 0),
        resolve: ResolveTimeout::default(),
    };
    (endpoint, HarnessPd(Arc::clone(pd.domain())))
}

/// A hub with one connection, on queues without a kernel.
pub struct HarnessHub<B, P: Provider> {
    connection: Connection<B, Given<P>>,
    domain: HarnessPd,
}

impl<B: Source, P: Provider> HarnessHub<B, P> {
    /// A hub for `depth` operations in each direction.
    ///
    /// # Panics
    /// If there is not enough memory.
    ///
    /// # Safety
    ///
    /// `sq` and `rq` must be the queues of a connected QP, and `cq` their CQ. The device must not
    /// access memory after the hub was dropped.
    #[must_use]
    pub unsafe fn new(cq: P::Cq, (sq, rq): (P::Sq, P::Rq), depth: u32) -> Self {
        let GivenObjects { pd, cq, qp } = given::<P>(cq, (sq, rq), depth);
        let hub = Hub::of_cq(&pd, cq, 2 * depth, ());
        let connection = hub.connection_for_test(qp, [depth as usize; 2], (0, ()));
        Self { connection, domain: HarnessPd(Arc::clone(pd.domain())) }
    }

    /// The protection domain of its buffers.
    pub fn domain(&self) -> &HarnessPd {
        &self.domain
    }

    /// As [`Connection::post`].
    #[inline(always)]
    pub fn post(&self, op: Op<B>) -> Pending<B, Given<P>> {
        self.connection.post(op)
    }
}

impl<P: Provider> fmt::Debug for Given<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").finish_non_exhaustive()
    }
}

impl<B, P: Provider> fmt::Debug for HarnessHub<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HarnessHub").finish_non_exhaustive()
    }
}

impl fmt::Debug for HarnessPd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HarnessPd").finish_non_exhaustive()
    }
}

impl<B> fmt::Debug for HarnessEndpoint<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HarnessEndpoint").finish_non_exhaustive()
    }
}
