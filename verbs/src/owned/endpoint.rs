//! A reliable connection whose operations own their buffers.

use std::convert::identity;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bareverbs_provider::traits::{Completion, Provider, Visitor};
use bareverbs_provider::work::WorkCompletion;
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};

use super::in_flight::{
    Direction, FLUSHED, MARKER, OpFailure, PROBE, QueueKind, RECVS, Received, RecvState, RecvsInFlight,
    Reliable, SENDS, SendState, SendsInFlight,
};
use super::keepalive::{
    Keepalive, Policy, ProbeMemory, ProbePath, SILENT, earlier, post_empty_write, post_probe,
};
use super::operation::{Inline, NoBuffer, Parts, PostTo, Receive};
use super::options::QueueParts;
use super::queue::owner;
use super::removal::{Watch, is_hint};
use super::resolve::{self, ResolveTimeout};
use super::spin::SpinState;
use super::{BUDGET, Completed, EndpointOptions, Failed, Op, PoolBuffer, Source};
use crate::address::{PROBE_OFFER, offered_probe, probe_offer};
use crate::cq::{CompChannel, Cq};
use crate::error::{PostError, PostReason};
use crate::pd::shared::PdShared;
use crate::qp::{ConnectAttr, InitAttr, Qp, QpAttr, Rc, Transport};
use crate::runtime::Runtime;
use crate::wake_sources::WakeSources;
use crate::{
    Address, AnyProvider, Error, Pd, PortNum, Refused, Remote, Result, WcOpcode, WcStatus, link_down,
};

/// One connection with one owner, the fastest: completions come from one queue, in order. Several threads
/// or tasks, or many connections on one CQ: a [`Connection`](super::Connection) of a [`Hub`](super::Hub).
///
/// Its operations own their buffers of type `B`: an [`Mr`](crate::Mr), a
/// [`RegionMut`](super::RegionMut), a [`PoolBuffer`](super::PoolBuffer) or
/// [`AnyBuffer`](super::AnyBuffer).
///
/// The first failed operation moves the QP to ERR. All outstanding operations then fail, and posting
/// is rejected.
///
/// The endpoint accepts buffers of its own protection domain only: [`Qp::pd`] of [`Endpoint::qp`].
///
/// # Operations
///
/// [`post`](Self::post) posts each operation, an [`Op`]:
///
/// | operation | |
/// |---|---|
/// | receive | [`Op::recv`], [`Op::recv_parts`], [`Op::recv_empty`] |
/// | send | [`Op::send`], [`Op::send_imm`], [`Op::send_inline`], [`Op::send_parts`] |
/// | write | [`Op::write`], [`Op::write_imm`], [`Op::write_inline`], [`Op::write_parts`] |
/// | read | [`Op::read`], [`Op::read_parts`] |
/// | atomic operation | [`Op::fetch_add`], [`Op::compare_swap`] |
///
/// [`batch`](Self::batch) posts several with one doorbell, and [`scope`](Self::scope) operations on
/// borrowed memory.
///
/// An [`Op`] takes the caller's tag, and may be unsignalled, fenced or solicited.
///
/// # Depth
///
/// [`sends`](EndpointOptions::sends) and [`recvs`](EndpointOptions::recvs) count separately.
/// Receives never take room from sends. An operation counts until [`Endpoint::poll`] has returned
/// it.
///
/// # Connection
///
/// [`EndpointOptions`] sets the attributes. Both ends must be connected before the first send.
///
/// Drop destroys the QP before it frees the buffers of outstanding operations. `mem::forget` leaks
/// the buffers. Drop leaks them too if the kernel refuses to destroy the QP, because the device may
/// still use them. Kernels do not refuse it after the removal of the device.
///
/// # Dead peers
///
/// A peer that dies ends the connection within 10 seconds by default, also if this end only waits for
/// receives: see [`EndpointOptions::keepalive`]. The first probe of an idle connection is sent after 2
/// seconds. Loops that only call [`Endpoint::poll`] call [`Endpoint::probe`] themselves.
///
/// Probes are RDMA writes of length 0. After [`Endpoint::connect`] the peer's address says whether it
/// permits them. After [`Endpoint::modify_qp`] the peer is assumed to permit them, because the
/// kernel's connection manager sets `REMOTE_WRITE` of its QPs.
///
/// On iWARP, probes are reads, because a write is complete when the local TCP has it. A peer
/// that answers none for 3 intervals is dead, unless sends are outstanding, which may be slow.
///
/// # Validation of completions
///
/// Each operation has a `wr_id` of its own, which never repeats. A completion with a `wr_id` of no
/// outstanding operation (never posted, of an earlier operation, or a duplicate) returns no buffer.
/// It moves the QP to ERR and is reported as [`Error::UnknownCompletion`].
///
/// The endpoint cannot detect a device that completes an outstanding operation before it has
/// finished its DMA. Devices are trusted not to: see `docs/soundness.md`.
///
/// # Errors of posting
///
/// A refused post returns [`Refused`] with the operation, which can be posted again. An inline operation
/// moves no buffer: it returns the error only.
///
/// | error | cause |
/// |---|---|
/// | [`Error::Invalid`] | The range is beyond the buffer, or is 4 GiB or longer. |
/// | [`Error::Invalid`] | The buffer belongs to another protection domain. |
/// | [`Error::Invalid`] | On Soft-RoCE: the MR has `ON_DEMAND`, and the range does not begin at a page boundary. |
/// | [`Error::Closed`] | The connection has failed. |
/// | [`Error::Post`], [`PostReason::State`] | A send, write or read before [`Endpoint::connect`]. |
/// | [`Error::Post`], [`PostReason::Queue`] | The queue is full ([`Error::is_full`]), inline data exceeds [`EndpointOptions::inline`] (default 0), or the operation is unsupported. |
/// | [`Error::Post`], [`PostReason::Doorbell`] | The kernel refused the doorbell, and the request was taken back. The connection has failed. |
///
/// If the kernel refused the doorbell but may still execute the request, posting returns `Ok`: the
/// operation is outstanding.
///
/// # Device removal
///
/// A wait notices that the device was removed: at once if it sleeps, within about a second if it polls
/// ([`Spin`](super::Spin)). So does [`Endpoint::arm`]. Then all outstanding operations fail with
/// [`Error::DeviceRemoved`] and their buffers, the QP is destroyed, and posting is rejected. While the
/// kernel destroys the objects, operations may also fail as on any failed connection, with
/// [`Error::Completion`]: it deregisters MRs that are younger than the QP first.
///
/// | call | after the removal |
/// |---|---|
/// | [`Endpoint::next`] | It returns an operation, as failed. When none is left, the error is [`Error::Invalid`]. |
/// | [`Endpoint::arm`] | It fails with [`Error::DeviceRemoved`]. Poll until [`Endpoint::pending`] is 0. |
/// | [`Endpoint::poll`] | It makes no system call, so it notices nothing by itself. After one of the calls above it returns the operations. |
/// | posting | It may return `Ok` until one of the calls above has noticed the removal, because queues are memory. |
/// | [`Endpoint::scope`] | It fails with [`Error::DeviceRemoved`] if it notices the removal while it waits at its end. |
/// | [`Endpoint::close`], drop | They end as for any connection, and free the buffers. |
///
/// [`Context::async_events`](crate::Context::async_events) reports
/// [`EventType::DEVICE_FATAL`](crate::device::EventType::DEVICE_FATAL). Soft-RoCE is not removed
/// while a program has it open: operations go on.
///
/// [`PostReason::State`]: crate::error::PostReason::State
/// [`PostReason::Queue`]: crate::error::PostReason::Queue
/// [`PostReason::Doorbell`]: crate::error::PostReason::Doorbell
#[doc(alias = "IBV_QPT_RC")]
pub struct Endpoint<B = PoolBuffer, P: Provider = AnyProvider> {
    pub(crate) queues: Queues<B, P>,
    pub(super) address: Address,
    pub(super) attr: ConnectAttr,
    pub(super) resolve: ResolveTimeout,
}

/// A QP with its CQ, and the outstanding operations.
pub(crate) struct Queues<B, P: Provider, T: SafeTransport = Rc> {
    pub(super) qp: Qp<T, P>,
    pub(super) cq: Cq<P>,
    pub(super) channel: CompChannel,
    /// Dropped after the QP is destroyed: see `Drop`.
    pub(super) in_flight: ManuallyDrop<InFlight<B, T::QueueKind<P>>>,
    /// The result of the slow path of a wait, for a moment. If a function returned it, the result of the
    /// fast path would be in the same memory.
    pub(super) ended: Option<Completed<B, DoneOf<B, P, T>>>,
    /// The status that moved the QP to ERR.
    cause: Option<WcStatus>,
    /// Whether this side has ended the connection, by `abort` or `close`, before anything failed.
    ended_here: bool,
    /// Until when closing waits for the flush, once the sends are complete or given up.
    pub(super) flush_end: Option<Instant>,
    /// The port whose link was down then, if this may be the cause.
    link_down: Option<PortNum>,
    /// The marker behind unsignalled sends.
    pub(super) marker: Marker,
    /// Whether the CQ is armed, or its event was not read since.
    pub(super) armed: bool,
    pub(super) spin: SpinState,
    policy: Policy,
    keepalive: Keepalive,
    /// Whether the SQ and the CQ have an entry for a probe.
    probes: bool,
    /// The memory of probes, on iWARP. It is leaked if the QP can't be destroyed.
    pub(super) probe_memory: ManuallyDrop<Option<ProbeMemory>>,
    /// What probes read, if they read memory.
    probe_path: Option<ProbePath>,
    /// Whether a probe is outstanding.
    probing: bool,
    /// Intervals in which the peer has not answered the probe.
    silent: u32,
    /// Whether a look at the keepalive may have ended operations without an event: on iWARP the provider
    /// flushes what the kernel does not.
    pub(super) may_have_flushed: bool,
    /// Whether sends are complete when the local TCP has them.
    pub(super) is_iwarp: bool,
    /// Whether a read was posted behind all sends, and answered.
    pub(super) delivery: Delivery,
    /// When a wait looks whether the device was removed.
    watch: Watch,
    /// Whether the device was removed. The QP is destroyed, and all operations have ended.
    pub(super) removed: bool,
    /// The runtime of tasks that wait.
    pub(super) attached: Option<Box<WakeSources>>,
    /// Awaits until the next one yields to the scheduler (see [`BUDGET`]).
    pub(super) budget: u32,
}

/// A successful operation of a transport.
pub(crate) type DoneOf<B, P, T> = <<T as SafeTransport>::QueueKind<P> as QueueKind>::Done<B>;

/// A transport whose QPs have operations that own their buffers.
pub(crate) trait SafeTransport: Transport {
    /// What its operations keep and return.
    type QueueKind<P: Provider>: QueueKind;

    /// Whether the marker behind unsignalled sends may be executed. Otherwise it is posted in ERR
    /// only, where it is flushed.
    const MARKER_IS_EXECUTED: bool;

    /// Whether a peer can be probed.
    const HAS_PROBES: bool;

    /// Posts the marker: a signalled request without memory. `newest` is what the send before it
    /// holds.
    fn post_marker<P: Provider>(
        qp: &mut Qp<Self, P>,
        newest: &<Self::QueueKind<P> as QueueKind>::Held,
    ) -> Result<(), PostError>
    where
        Self: Sized;

    /// Posts a probe. Only called with [`HAS_PROBES`](Self::HAS_PROBES).
    fn post_probe<P: Provider>(qp: &mut Qp<Self, P>, path: Option<ProbePath>) -> Result<(), PostError>
    where
        Self: Sized;
}

impl SafeTransport for Rc {
    type QueueKind<P: Provider> = Reliable;

    const MARKER_IS_EXECUTED: bool = true;
    const HAS_PROBES: bool = true;

    fn post_marker<P: Provider>(qp: &mut Qp<Self, P>, (): &()) -> Result<(), PostError> {
        post_empty_write(qp, MARKER)
    }

    fn post_probe<P: Provider>(qp: &mut Qp<Self, P>, path: Option<ProbePath>) -> Result<(), PostError> {
        post_probe(qp, PROBE, path)
    }
}

/// A request without memory, whose completion ends the unsignalled sends before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// It was not posted.
    None,
    /// It was posted.
    Outstanding,
    /// It has completed. A device that reports it again is wrong.
    Completed,
}

/// Whether a read behind all sends shows that the peer's device has them, where their completions do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// It is not known.
    Unknown,
    /// The read is outstanding.
    Asked,
    /// It was answered, or can't be posted.
    Known,
}

/// What a poll found. `D` is a successful operation.
pub(super) enum Polled<D> {
    /// Nothing.
    Empty,
    /// The oldest operation of its direction, successful.
    Done(D),
    /// Another completion; or none, if an operation was reaped before, or the fast path declined the CQE.
    Other(Option<WorkCompletion>),
}

/// Takes the operation of the next completion, if it was successful and is the oldest of its direction.
pub(super) struct TakeOldest<'f, B, K: QueueKind = Reliable>(pub(super) &'f mut InFlight<B, K>);

impl<B, K: QueueKind> Visitor for TakeOldest<'_, B, K> {
    type Output = Polled<K::Done<B>>;

    #[inline(always)]
    fn completion(self, completion: impl Completion) -> Self::Output {
        let InFlight { sends, recvs } = self.0;
        let (wr_id, status) = (completion.wr_id(), completion.status());
        if status == WcStatus::SUCCESS {
            // The direction decides which queue is searched. It may be wrong if the device is: then no
            // request of the queue has this `wr_id`.
            if completion.is_recv() {
                if let Some(oldest) = recvs.oldest(wr_id) {
                    return Polled::Done(oldest.take().done::<K>(received::<K>(&completion)));
                }
            } else if let Some(oldest) = sends.oldest(wr_id) {
                return Polled::Done(oldest.take().done());
            }
        }
        Polled::Other(Some(completion.to_value()))
    }

    #[inline(always)]
    fn empty(self) -> Self::Output {
        if self.0.has_result() { Polled::Other(None) } else { Polled::Empty }
    }

    #[inline(always)]
    fn declined(self) -> Self::Output {
        Polled::Other(None)
    }
}

/// The operations of both directions.
pub(super) struct InFlight<B, K: QueueKind = Reliable> {
    pub(super) sends: SendsInFlight<B, K>,
    pub(super) recvs: RecvsInFlight<B, K>,
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Creates an endpoint at `port` for `depth` outstanding sends and `depth` receives. Short for
    /// [`Endpoint::options`] with these values.
    ///
    /// The first post decides the type of its buffers. Without one, name it: `let endpoint: Endpoint =
    /// …`.
    ///
    /// # Errors
    /// As for [`EndpointOptions::build`].
    pub fn new(pd: &Pd<P>, port: impl Into<PortNum>, depth: u32) -> Result<Self> {
        EndpointOptions::default().port(port).sends(depth).recvs(depth).build(pd)
    }

    /// An endpoint of a QP and its CQ, whose channel has no events.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn of_queues(qp: Qp<Rc, P>, cq: Cq<P>) -> Self {
        let (sends, recvs) = (qp.cap().max_send_wr, qp.cap().max_recv_wr);
        Self {
            address: Address::new(crate::Gid::default(), qp.qp_num()),
            queues: Queues::new(QueueParts {
                channel: CompChannel::for_test(qp.pd().context().file()),
                qp,
                cq,
                sends,
                recvs,
                max_sge: 1,
                signal_every: sends,
                spin: super::Spin::Always,
                keepalive: Policy::Never,
                probes: true,
                probe_memory: None,
            }),
            attr: ConnectAttr::new(1, 0),
            resolve: ResolveTimeout::default(),
        }
    }

    /// The address of this endpoint, for the peer.
    #[must_use]
    pub fn address(&self) -> Address {
        self.address
    }

    /// The QP.
    #[must_use]
    pub fn qp(&self) -> &Qp<Rc, P> {
        &self.queues.qp
    }

    /// Connects to the endpoint at `peer`, which must also connect to this one. Receives can be
    /// posted before, sends only afterwards.
    ///
    /// The connection uses the smaller MTU of the two addresses, and the smaller number of reads
    /// and atomics at a time.
    ///
    /// On RoCE it blocks while the kernel resolves the peer's Ethernet address, for at most
    /// [`EndpointOptions::resolve_timeout`] and one second.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the endpoint is already connected, or `peer` is not a valid address, or
    ///   that of a `Server` or `Client`.
    /// - [`Error::Closed`]: its connection has failed.
    /// - [`Error::Kernel`]: the peer is unreachable (`ETIMEDOUT`: its neighbour has not answered), or the
    ///   kernel rejects a transition.
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        const VERB: &str = "Endpoint::connect";
        self.queues.check_not_failed(VERB)?;
        peer.check_no_flow_control(VERB)?;
        resolve::connect(&mut self.queues.qp, &self.address, peer, &self.attr, self.resolve)?;
        self.queues.set_peer_probe(peer.probe);
        self.queues.start_keepalive(peer.remote_write);
        Ok(())
    }

    /// Modifies the QP by attributes that a connection manager hands out. In place of
    /// [`Endpoint::connect`], call it once each for INIT (where it changes port or P_Key), RTR and RTS.
    /// The crate `bareverbs-rdmacm` does this.
    ///
    /// The access rights remain those of [`EndpointOptions::access`].
    ///
    /// The peer is assumed to permit RDMA writes, because the kernel's attributes for INIT contain
    /// [`Access::REMOTE_WRITE`](crate::Access) (`cm_init_qp_init_attr` in
    /// `drivers/infiniband/core/cm.c`). If its QP does not, build this endpoint with
    /// [`EndpointOptions::keepalive`]`(None)`: a probe would end the connection.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the mask has no state, the state is another one, or the endpoint is
    ///   already connected.
    /// - [`Error::Closed`]: its connection has failed.
    /// - The errors of [`Qp::modify`].
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn modify_qp(&mut self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        const VERB: &str = "Endpoint::modify_qp";
        self.queues.check_not_failed(VERB)?;
        let target = mask.contains(QpAttrMask::STATE).then_some(attr.qp_state);
        if self.queues.qp.state() == QpState::RTS {
            return Err(Error::invalid(VERB, "the endpoint is already connected"));
        }
        if !matches!(target, Some(QpState::INIT | QpState::RTR | QpState::RTS)) {
            return Err(Error::invalid(VERB, format!("the state is {target:?}, not INIT, RTR or RTS")));
        }
        self.queues.qp.modify(attr, mask.difference(QpAttrMask::ACCESS_FLAGS))?;
        if attr.qp_state == QpState::RTS {
            self.queues.start_keepalive(true);
        }
        Ok(())
    }

    /// Sets the state to which the kernel's connection manager has moved the QP, as [`Qp::set_cm_state`]
    /// does. In RTS the endpoint is connected, and in ERR its connection has failed.
    ///
    /// # Errors
    /// As for [`Qp::set_cm_state`].
    pub fn set_cm_state(&mut self, state: QpState) -> Result<()> {
        const VERB: &str = "Endpoint::set_cm_state";
        if state == QpState::ERR {
            self.queues.qp.set_cm_state(state)?;
            self.queues.fail();
            return Ok(());
        }
        self.queues.check_not_failed(VERB)?;
        let is_new = self.queues.qp.state() != QpState::RTS;
        self.queues.qp.set_cm_state(state)?;
        if is_new {
            self.queues.start_keepalive(true);
        }
        Ok(())
    }

    /// Private data that tells the peer what its probes read, on iWARP, for `bareverbs-rdmacm`.
    #[doc(hidden)]
    #[must_use]
    pub fn probe_offer(&self) -> Option<[u8; PROBE_OFFER]> {
        self.address.probe.map(probe_offer)
    }

    /// Takes what [`Endpoint::probe_offer`] of the peer returned.
    #[doc(hidden)]
    pub fn take_probe_offer(&mut self, offer: Option<&[u8; PROBE_OFFER]>) {
        self.queues.set_peer_probe(offer.and_then(|offer| offered_probe(offer)));
    }

    /// The number of operations that [`Endpoint::poll`] has not returned yet, in both directions.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending_sends() + self.pending_recvs()
    }

    /// The number of sends, writes, reads and atomics that [`Endpoint::poll`] has not returned yet.
    #[must_use]
    pub fn pending_sends(&self) -> usize {
        self.queues.in_flight.sends.queue().len()
    }

    /// The number of receives that [`Endpoint::poll`] has not returned yet.
    #[must_use]
    pub fn pending_recvs(&self) -> usize {
        self.queues.in_flight.recvs.queue().len()
    }

    /// Polls one operation that has ended, or returns `None` if there is none. Operations of a
    /// direction end in the order of posting. A send and a receive have no order: an answer may be
    /// received before the send that it answers has ended.
    ///
    /// # Errors
    /// - [`Error::Completion`]: the operation failed. The error returns the buffer.
    /// - [`Error::UnknownCompletion`]: the completion matches no outstanding operation. It has no
    ///   buffer.
    #[doc(alias = "ibv_poll_cq")]
    #[inline(always)]
    pub fn poll(&mut self) -> Option<Completed<B>> {
        self.queues.poll()
    }
}

impl<B, P: Provider, T: SafeTransport> Queues<B, P, T> {
    pub(super) fn new(parts: QueueParts<P, T>) -> Self {
        let QueueParts { qp, cq, channel, sends, recvs, max_sge, signal_every, spin, .. } = parts;
        let QueueParts { keepalive, probes, probe_memory, .. } = parts;
        let mut in_flight = InFlight::new(qp.pd().domain(), sends, signal_every, recvs);
        if max_sge > 1 {
            in_flight.sends.reserve_parts();
            in_flight.recvs.reserve_parts();
        }
        let is_iwarp = qp.pd().context().capabilities().iwarp;
        Self {
            qp,
            cq,
            channel,
            in_flight: ManuallyDrop::new(in_flight),
            ended: None,
            cause: None,
            ended_here: false,
            flush_end: None,
            link_down: None,
            marker: Marker::None,
            armed: false,
            spin: SpinState::new(spin),
            policy: keepalive,
            keepalive: Keepalive::default(),
            probes,
            probe_memory: ManuallyDrop::new(probe_memory),
            probe_path: None,
            probing: false,
            silent: 0,
            may_have_flushed: false,
            is_iwarp,
            delivery: if is_iwarp { Delivery::Unknown } else { Delivery::Known },
            watch: Watch::default(),
            removed: false,
            attached: None,
            budget: BUDGET,
        }
    }

    #[inline(always)]
    pub(super) fn poll_oldest(&mut self) -> Polled<DoneOf<B, P, T>> {
        self.cq.visit_next(TakeOldest(&mut self.in_flight))
    }

    /// As [`Endpoint::poll`].
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Option<Completed<B, DoneOf<B, P, T>>> {
        match self.poll_oldest() {
            Polled::Done(done) => Some(Ok(done)),
            Polled::Empty => None,
            Polled::Other(completion) => self.poll_slow(completion),
        }
    }

    /// As [`poll`](Self::poll), after [`Polled::Other`].
    #[cold]
    #[inline(never)]
    pub(super) fn poll_slow(
        &mut self,
        completion: Option<WorkCompletion>,
    ) -> Option<Completed<B, DoneOf<B, P, T>>> {
        let Some(completion) = completion.or_else(|| self.cq.poll_one()) else { return self.take() };
        let earlier = if self.in_flight.has_complete() { self.take() } else { None };
        match (self.reap_one(completion), earlier) {
            // An unknown completion has ended the connection. Later polls show that, too.
            (_, Some(earlier)) => Some(earlier),
            // The completion of the marker may end no operation.
            (Ok(()), None) => self.take().or_else(|| self.poll()),
            (Err(error), None) => Some(Err(error.into())),
        }
    }

    /// The oldest operation that was reaped and not returned.
    pub(super) fn take(&mut self) -> Option<Completed<B, DoneOf<B, P, T>>> {
        let result = self.in_flight.take()?;
        Some(result.map_err(|failed| self.with_cause(failed)))
    }

    /// Adds why the QP is in ERR.
    #[cold]
    #[inline(never)]
    fn with_cause(&self, failed: Failed<B>) -> Failed<B> {
        let ended_here = self.ended_here && self.cause.is_none();
        Failed { ended_here, ..failed.because_of(self.cause, self.link_down) }
    }

    /// Polls one operation of the direction that has ended. It reaps those of the other one.
    pub(crate) fn poll_direction(&mut self, direction: Direction) -> Option<Completed<B, DoneOf<B, P, T>>> {
        while !self.in_flight.has_complete_of(direction)
            && let Some(completion) = self.cq.poll_one()
        {
            if let Err(error) = self.reap_one(completion) {
                return Some(Err(error.into()));
            }
        }
        let InFlight { sends, recvs, .. } = &mut *self.in_flight;
        let ended = match direction {
            Direction::Send => sends.take(),
            Direction::Recv => recvs.take(),
        }?;
        self.in_flight.hold();
        Some(ended.map_err(|failed| self.with_cause(failed)))
    }

    /// Reaps all completions: marks their operations, for later polls.
    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some(completion) = self.cq.poll_one() {
            self.reap_one(completion)?;
        }
        Ok(())
    }

    /// Reaps any completion.
    ///
    /// # Errors
    /// [`Error::UnknownCompletion`].
    fn reap_one(&mut self, completion: WorkCompletion) -> Result<()> {
        let wr_id = completion.wr_id;
        let failure = self.failure(&completion);
        let InFlight { sends, recvs, .. } = &mut *self.in_flight;
        let known = match owner(wr_id) {
            SENDS => sends.reap(wr_id, failure),
            RECVS => recvs.reap(wr_id, received_value::<T::QueueKind<P>>(&completion), failure),
            _ if wr_id == MARKER && self.marker == Marker::Outstanding => {
                self.marker = Marker::Completed;
                sends.reap_marker();
                self.in_flight.hold();
                return Ok(());
            }
            _ if wr_id == PROBE && self.probing => {
                (self.probing, self.silent) = (false, 0);
                if self.delivery == Delivery::Asked {
                    self.delivery = Delivery::Known;
                }
                true
            }
            _ => false,
        };
        self.in_flight.hold();
        if !known || failure.is_some() {
            self.fail();
        }
        if known { Ok(()) } else { Err(Error::UnknownCompletion { wr_id }) }
    }

    /// The failure that the completion reports.
    fn failure(&mut self, completion: &WorkCompletion) -> Option<OpFailure> {
        let WorkCompletion { wr_id, mut status, vendor_err, .. } = *completion;
        if status == WcStatus::SUCCESS {
            return None;
        }
        let known = self.qp.failure();
        if let Some(failure) = known.filter(|failure| failure.wr_id == wr_id) {
            status = failure.status;
        }
        let cause = known.map_or(status, |failure| failure.status);
        if cause != WcStatus::WR_FLUSH_ERR && self.cause.is_none() {
            self.cause = Some(cause);
            self.link_down = link_down::cause(self.qp.pd().context().inner(), cause);
        }
        Some(OpFailure::Completion { status, vendor_err })
    }

    /// Ends the connection: moves the QP to ERR, which flushes all operations. Without effect if
    /// that was done.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self) {
        self.in_flight.sends.close();
        self.in_flight.recvs.close();
        if self.qp.is_destroyed() {
            return;
        }
        if self.qp.state() != QpState::ERR {
            // Soft-RoCE flushes receives that were posted after the QP had failed only on a
            // transition to ERR. The kernel refuses it only if the device was removed.
            let _ = self.qp.set_error();
        }
        if self.qp.state() == QpState::ERR {
            self.mark();
        }
    }

    /// Makes the device end all sends: posts the marker behind unsignalled ones, unless it was posted,
    /// and rings for those that a forgotten batch has left. The list must be closed.
    pub(super) fn mark(&mut self) {
        if self.qp.is_destroyed() {
            return;
        }
        if self.in_flight.sends.unsignaled_tail() == 0 || self.marker != Marker::None {
            return self.ring_left();
        }
        let Some(newest) = self.in_flight.sends.newest_held() else { return };
        match T::post_marker(&mut self.qp, newest) {
            Ok(()) => {
                self.marker = Marker::Outstanding;
                self.in_flight.sends.published();
            }
            Err(error) => {
                // A request that counts as posted completes in ERR at the latest.
                if error.accepted > 0 {
                    self.marker = Marker::Outstanding;
                }
                self.in_flight.sends.not_posted(error.reason);
            }
        }
    }

    /// Rings the doorbell for operations that a forgotten batch has left in the queue.
    fn ring_left(&mut self) {
        if !self.in_flight.sends.has_left() {
            return;
        }
        match self.qp.start_send().ring() {
            Ok(()) => self.in_flight.sends.published(),
            Err(error) => self.in_flight.sends.not_posted(error.reason),
        }
    }

    /// As [`Endpoint::probe`]. Does nothing if the transport has no probes.
    pub(super) fn probe(&mut self) -> Result<()> {
        if self.in_flight.sends.queue().is_closed() {
            return Err(Error::Closed { verb: "Endpoint::probe", reason: T::QueueKind::<P>::CLOSED });
        }
        if self.probing || !T::HAS_PROBES {
            return Ok(());
        }
        if !self.probes {
            let reason = "the device's limits leave no entry for the probe: create the endpoint with fewer \
                          sends or receives";
            return Err(Error::invalid("Endpoint::probe", reason));
        }
        // Set before the request is posted, so a panic in between does not make it unknown.
        self.probing = true;
        match T::post_probe(&mut self.qp, self.probe_path) {
            // The doorbell was rung for all earlier requests.
            Ok(()) => {
                self.in_flight.sends.published();
                Ok(())
            }
            Err(error) => {
                self.probing = error.accepted > 0;
                self.probe_refused(error);
                Err(error.into())
            }
        }
    }

    #[cold]
    fn probe_refused(&mut self, error: PostError) {
        self.in_flight.sends.not_posted(error.reason);
        if let PostReason::Doorbell(_) = error.reason {
            self.fail();
        }
    }

    /// Whether a flush takes longer than its limit.
    pub(super) fn is_flush_late(&self) -> bool {
        self.flush_end.is_some_and(|end| self.channel.file().now() >= end)
    }

    /// Probes the peer if the connection was idle for the interval. Returns when to call it again, or
    /// when a flush is late. A removed device is noticed as well: a wait that polls without limit
    /// reads no event.
    pub(crate) fn keep_alive(&mut self, now: Instant) -> Option<Instant> {
        if self.watch.is_due(now) && self.channel.is_closed() {
            self.end_removed();
        }
        let InFlight { sends, recvs, .. } = &*self.in_flight;
        let completed = sends.queue().completed().wrapping_add(recvs.queue().completed());
        if self.keepalive.is_idle(completed, now) && self.qp.state() == QpState::RTS {
            if self.is_iwarp && self.probing && self.in_flight.sends.in_use() == 0 {
                self.silent += 1;
                if self.silent == SILENT {
                    self.cause.get_or_insert(WcStatus::RETRY_EXC_ERR);
                    self.fail();
                }
            }
            // A refused doorbell ends the connection, and the wait returns that.
            let _ = self.probe();
            self.may_have_flushed = self.is_iwarp;
        }
        earlier(self.keepalive.next(completed, now), self.flush_end)
    }

    /// Posts a read behind all sends, unless it was posted. Without one, nothing shows their delivery.
    pub(super) fn ask_delivery(&mut self) {
        if self.delivery != Delivery::Unknown || self.probing {
            return;
        }
        self.delivery = Delivery::Known;
        if self.probes && self.qp.state() == QpState::RTS {
            self.probing = true;
            match T::post_probe(&mut self.qp, self.probe_path) {
                Ok(()) => {
                    self.in_flight.sends.published();
                    self.delivery = Delivery::Asked;
                }
                Err(error) => {
                    self.probing = error.accepted > 0;
                    self.probe_refused(error);
                }
            }
        }
    }

    /// Probes read the memory of the peer at `peer`, if they read memory.
    fn set_peer_probe(&mut self, peer: Option<Remote>) {
        let both = self.probe_memory.as_ref().zip(peer);
        // SAFETY: `Drop` destroys the QP before the memory, or leaks it.
        self.probe_path = both.map(|(memory, peer)| unsafe { memory.path(peer) });
    }

    /// Probes the peer of a new connection from now on, by the policy.
    fn start_keepalive(&mut self, remote_write: bool) {
        self.keepalive.start(self.policy.interval(remote_write).filter(|_| self.probes));
    }
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Probes the peer by an RDMA write of length 0 (on iWARP a read), unless an earlier probe is
    /// outstanding. If the peer is dead, the connection fails after the retries, and polling returns the
    /// posted operations as failed. If none is posted, polling returns `None`, and the next probe fails
    /// with [`Error::Closed`].
    ///
    /// [`Endpoint::next`] does this by itself when the connection is idle
    /// ([`EndpointOptions::keepalive`]). A loop that only polls calls it every few seconds:
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, _peer] = example::endpoints::<bareverbs::PoolBuffer>(&pd)?;
    /// let mut probed = Instant::now();
    /// loop {
    ///     while let Some(ended) = endpoint.poll() {
    ///         println!("{} bytes", ended?.len);
    ///     }
    ///     if probed.elapsed() > Duration::from_secs(3) {
    ///         endpoint.probe()?;
    ///         probed = Instant::now();
    ///     }
    /// #     break;
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// The peer must permit RDMA writes ([`Address::remote_write`]). It takes no room from
    /// [`EndpointOptions::sends`]: the SQ and the CQ have one more entry. The device's limits leave none
    /// if `sends` is `max_qp_wr`, or `sends` and `recvs` together are `max_cqe`. Then no peer is probed,
    /// and a wait for a receive from a dead peer ends when a send, write or read to it fails.
    ///
    /// # Errors
    /// - [`Error::Closed`]: the connection has failed.
    /// - [`Error::Invalid`]: there is no entry for a probe.
    /// - [`Error::Post`]: the endpoint is not connected, or the kernel refuses the doorbell, which ends
    ///   the connection.
    pub fn probe(&mut self) -> Result<()> {
        self.queues.probe()
    }

    /// Ends the connection: all outstanding operations fail. Polling and waiting return them, with
    /// their buffers, until [`Endpoint::pending`] is 0.
    ///
    /// ```
    /// # use bareverbs::Error;
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, _peer] = example::endpoints::<bareverbs::PoolBuffer>(&pd)?;
    /// # let [buffer] = example::buffers(&pd)?;
    /// # endpoint.post(bareverbs::Op::recv(buffer))?;
    /// endpoint.abort();
    /// while endpoint.pending() > 0 {
    ///     match endpoint.next().wait() {
    ///         Ok(done) => println!("operation {} was done", done.tag),
    ///         Err(failed) if failed.is_operation() => {
    ///             println!("operation {}: {:?}", failed.tag, failed.outcome);
    ///         }
    ///         // The device completed an unknown operation. The others still end.
    ///         Err(failed) if matches!(failed.error, Error::UnknownCompletion { .. }) => {}
    ///         // The wait failed.
    ///         Err(_) => break,
    ///     }
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    pub fn abort(&mut self) {
        self.queues.end();
    }
}

impl<B, P: Provider, T: SafeTransport> Queues<B, P, T> {
    /// Ends the connection for this side.
    pub(super) fn end(&mut self) {
        self.ended_here |= self.qp.state() != QpState::ERR;
        self.fail();
    }

    /// Rejects to connect a QP that has failed or was destroyed.
    fn check_not_failed(&self, verb: &'static str) -> Result<()> {
        let reason = T::QueueKind::<P>::CLOSED;
        let failed = self.qp.is_destroyed() || self.qp.state() == QpState::ERR;
        if failed { Err(Error::Closed { verb, reason }) } else { Ok(()) }
    }

    /// A doorbell that the kernel refused ends the connection.
    #[cold]
    #[inline(never)]
    pub(super) fn refused<O>(&mut self, refused: Refused<O>) -> Refused<O> {
        if let Error::Post(PostError { reason: PostReason::Doorbell(_), .. }) = refused.error {
            self.fail();
        }
        refused
    }

    /// Destroys the QP. Its rings stay until the endpoint is dropped.
    pub(super) fn destroy_qp(&mut self) -> Result<()> {
        if self.qp.is_destroyed() {
            return Ok(());
        }
        // SAFETY: `fail` and the queues in flight, which are closed by `destroyed`, post nothing
        // afterwards.
        let destroyed = unsafe { self.qp.destroy_object() };
        destroyed
            .map_err(|refused| Error::kernel("destroy_qp", format!("QP {:#x}", self.qp.qp_num()), refused))?;
        self.in_flight.sends.destroyed(FLUSHED);
        self.in_flight.recvs.destroyed(FLUSHED);
        Ok(())
    }

    /// Whether the device was removed, and all operations have ended.
    pub(super) fn is_removed(&self) -> bool {
        self.removed
    }

    /// Handles an error of arming the CQ or of reading its events. `Ok`: the device was removed, and all
    /// operations have ended.
    #[cold]
    pub(super) fn check_removed(&mut self, error: Error) -> Result<()> {
        if is_hint(&error) && self.end_removed() { Ok(()) } else { Err(error) }
    }

    /// The device seems to be removed: ends all operations, if the kernel has destroyed the QP.
    #[cold]
    fn end_removed(&mut self) -> bool {
        if self.removed {
            return true;
        }
        self.in_flight.sends.close();
        self.in_flight.recvs.close();
        // SAFETY: the QP was not destroyed. The queues in flight, `fail`, `mark` and `probe` post
        // nothing afterwards.
        if !self.qp.is_destroyed() && unsafe { self.qp.try_destroy_object() }.is_err() {
            return false;
        }
        // Completions from before the removal. Without operations it changes nothing.
        let _ = self.reap();
        self.in_flight.sends.destroyed(OpFailure::DeviceRemoved);
        self.in_flight.recvs.destroyed(OpFailure::DeviceRemoved);
        self.in_flight.hold();
        self.removed = true;
        true
    }
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Registers the endpoint with an async runtime, before the first await. The runtime is used when an
    /// await has nothing to return. Threads can wait as before. Another call changes the runtime.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the calling thread has no reactor.
    /// - [`Error::System`]: the runtime refused the registration.
    #[doc(alias = "tokio::Endpoint::new")]
    #[doc(alias = "async_io::Endpoint::new")]
    pub fn attach(&mut self, runtime: impl Runtime) -> Result<()> {
        self.queues.attach(runtime)
    }

    /// Arms the CQ: the file descriptor becomes readable at the next completion. It reads pending
    /// events first, so a level-triggered `epoll` does not report them again. Poll once more after
    /// this call and before waiting on the descriptor.
    ///
    /// # Errors
    /// - [`Error::DeviceRemoved`]: [the device was removed](Endpoint#device-removal), and all operations
    ///   have ended.
    /// - [`Error::Kernel`] with `ESTALE`, as for [`Endpoint::next`].
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&mut self) -> Result<()> {
        self.queues.arm()
    }
}

impl Endpoint {
    /// Options of an endpoint, all at their defaults. [`EndpointOptions::build`] determines the
    /// type of the buffers.
    pub fn options() -> EndpointOptions {
        EndpointOptions::default()
    }

    /// What [`Endpoint::probe_offer`] of a peer returned, if the private data is that.
    #[doc(hidden)]
    #[must_use]
    pub fn probe_offer_of(private_data: &[u8]) -> Option<[u8; PROBE_OFFER]> {
        offered_probe(private_data)?;
        private_data.try_into().ok()
    }
}

impl EndpointOptions {
    /// Creates the endpoint, with its CQ and its QP in INIT.
    ///
    /// # Errors
    /// - [`Error::Limit`], [`Error::Invalid`]: an option is out of range. The error names it.
    /// - [`Error::NoPort`]: the device has no such port.
    /// - [`Error::NoGid`]: the port has no such GID, or none.
    /// - [`Error::Kernel`], [`Error::Provider`]: a command of the setup failed.
    pub fn build<B, P: Provider>(&self, pd: &Pd<P>) -> Result<Endpoint<B, P>> {
        const VERB: &str = "EndpointOptions::build";
        self.check_max_sge(VERB)?;
        let (mut parts, attr) = self.queues::<Rc, P>(VERB, pd, Rc::HAS_PROBES)?;
        let qp = &mut parts.qp;
        qp.init(&InitAttr { port: attr.port, pkey_index: attr.pkey_index, access: attr.access })?;
        let address = self.address(qp.address(attr.port, attr.gid_index)?);
        let probe = parts.probe_memory.as_ref().map(ProbeMemory::remote);
        let address = Address { probe, ..address };
        Ok(Endpoint { queues: Queues::new(parts), address, attr, resolve: self.resolve() })
    }
}

/// How long the operations of a QP in ERR may take to be flushed.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(5);

impl<B, K: QueueKind> InFlight<B, K> {
    pub(super) fn new(domain: &Arc<PdShared>, sends: u32, signal_every: u32, recvs: u32) -> Self {
        Self {
            sends: SendsInFlight::new(SENDS, domain, sends, SendState::new(sends, signal_every)),
            recvs: RecvsInFlight::new(RECVS, domain, recvs, RecvState::new(recvs)),
        }
    }

    /// The oldest operation that was reaped and not returned.
    pub(super) fn take(&mut self) -> Option<Completed<B, K::Done<B>>> {
        let result = self.sends.take().or_else(|| self.recvs.take());
        self.hold();
        result
    }

    /// Makes polls return operations that were reaped before all others, if there are any.
    fn hold(&mut self) {
        let held = self.has_complete();
        self.sends.hold(held);
        self.recvs.hold(held);
    }

    /// Whether an operation was reaped and not returned.
    fn has_complete(&self) -> bool {
        self.sends.queue().has_complete() || self.recvs.queue().has_complete()
    }

    /// Whether an operation of the direction was reaped and not returned.
    fn has_complete_of(&self, direction: Direction) -> bool {
        match direction {
            Direction::Send => self.sends.queue().has_complete(),
            Direction::Recv => self.recvs.queue().has_complete(),
        }
    }

    /// Whether [`Queues::take`] may return an operation.
    #[inline(always)]
    fn has_result(&self) -> bool {
        self.sends.has_result() || self.recvs.has_result()
    }

    /// The number of operations that the device may still use.
    pub(super) fn in_use(&self) -> usize {
        self.sends.in_use() + self.recvs.queue().outstanding()
    }
}

/// The fields of a successful receive.
#[inline(always)]
fn received<K: QueueKind>(completion: &impl Completion) -> Received<K::Sender> {
    let len = completion.byte_len();
    let (imm, opcode, sender) = (completion.recv_imm(), completion.recv_opcode(), K::sender(completion));
    Received { len, imm, opcode, sender }
}

fn received_value<K: QueueKind>(completion: &WorkCompletion) -> Received<K::Sender> {
    // The queue of the `wr_id` says that it is a receive. A device may say otherwise.
    let opcode = match completion.opcode {
        WcOpcode::RECV_RDMA_WITH_IMM => WcOpcode::RECV_RDMA_WITH_IMM,
        _ => WcOpcode::RECV,
    };
    let byte_len = completion.byte_len;
    Received { len: byte_len, imm: completion.imm(), opcode, sender: K::sender_of(completion) }
}

impl<B, P: Provider> Endpoint<B, P> {
    /// Posts an operation. A receive waits for a message of the peer; all others are executed at once.
    ///
    /// ```
    /// # use bareverbs::Op;
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let [mut endpoint, _peer] = example::endpoints(&pd)?;
    /// # let [question, answer] = example::buffers(&pd)?;
    /// endpoint.post(Op::recv(answer))?;
    /// endpoint.post(Op::send(question, ..10))?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [Errors of posting](Endpoint#errors-of-posting). The error returns the operation.
    #[doc(alias = "post_recv")]
    #[doc(alias = "post_recv_tagged")]
    #[doc(alias = "post_recv_parts")]
    #[doc(alias = "post_send_imm")]
    #[doc(alias = "post_send_inline")]
    #[doc(alias = "post_send_parts")]
    #[doc(alias = "post_write")]
    #[doc(alias = "post_write_imm")]
    #[doc(alias = "post_write_inline")]
    #[doc(alias = "post_write_parts")]
    #[doc(alias = "post_read")]
    #[doc(alias = "post_read_parts")]
    #[doc(alias = "post_fetch_add")]
    #[doc(alias = "post_compare_swap")]
    #[doc(alias = "ibv_post_send")]
    #[doc(alias = "ibv_post_recv")]
    #[inline(always)]
    pub fn post<T: PostTo<Self>>(&mut self, op: T) -> Result<(), T::Refused> {
        op.post_to(self)
    }
}

macro_rules! posts {
    ($([$($generics:tt)*] $op:ty, $direction:ident.$post:ident -> $refused:ty, $returned:expr;)*) => {$(
        impl<B: Source, P: Provider, $($generics)*> PostTo<Endpoint<B, P>> for $op {
            type Refused = $refused;

            #[inline(always)]
            fn post_to(self, to: &mut Endpoint<B, P>) -> Result<(), $refused> {
                let Queues { qp, in_flight, .. } = &mut to.queues;
                let posted = in_flight.$direction.$post(qp, self);
                posted.map_err(|refused| $returned(to.queues.refused(refused)))
            }
        }
    )*};
}

posts! {
    [] Op<B>, sends.post -> Refused<Self>, identity;
    [] Op<Inline<'_>>, sends.post -> Error, Error::from;
    [R: RangeBounds<usize>, const N: usize] Op<Parts<B, R, N>>, sends.post_parts -> Refused<Self>, identity;
    [] Op<B, Receive>, recvs.post -> Refused<Self>, identity;
    [] Op<NoBuffer, Receive>, recvs.post -> Error, Error::from;
    [R: RangeBounds<usize>, const N: usize]
        Op<Parts<B, R, N>, Receive>, recvs.post_parts -> Refused<Self>, identity;
}

/// The results of the operations, in the order of completion, as [`Endpoint::next`] returns them.
///
/// The stream ends when no operation is outstanding; after another post it continues. It sleeps at once,
/// without the polling of [`Spin`](super::Spin).
#[cfg(feature = "futures")]
impl<B, P: Provider> futures_core::Stream for Endpoint<B, P> {
    type Item = Completed<B>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.get_mut().queues.poll_stream(None, cx.waker())
    }
}

// It contains no pinned values.
impl<B, P: Provider> Unpin for Endpoint<B, P> {}

impl<B, P: Provider, T: SafeTransport> Drop for Queues<B, P, T> {
    fn drop(&mut self) {
        // The operations in flight are not dropped, even if destroying the QP panics.
        let destroyed = self.qp.is_destroyed() || {
            if self.qp.needs_error_before_destroy() {
                // The kernel refuses it only if the device was removed.
                let _ = self.qp.set_error();
            }
            // SAFETY: `self` owns the QP, which was not destroyed, and does not use it afterwards.
            unsafe { self.qp.destroy_inner() }.is_ok()
        };
        if destroyed {
            // SAFETY: `in_flight` and `probe_memory` are not used after this.
            unsafe {
                ManuallyDrop::drop(&mut self.in_flight);
                ManuallyDrop::drop(&mut self.probe_memory);
            }
        }
    }
}

impl<B, P: Provider> AsFd for Endpoint<B, P> {
    /// The file descriptor that [`Endpoint::arm`] makes readable.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queues.channel.as_fd()
    }
}

impl<B, P: Provider> fmt::Debug for Endpoint<B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address)
            .field("state", &self.queues.qp.state())
            .field("pending_sends", &self.pending_sends())
            .field("pending_recvs", &self.pending_recvs())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
