//! The CQ of a hub, and the connections on it.

pub(crate) mod service;

use std::collections::HashMap;
use std::mem::{self, ManuallyDrop};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use bareverbs_provider::traits::{Completion, Provider, Visitor};
use bareverbs_provider::wake::{FirstPanic, wake_all};
use bareverbs_provider::work::WorkCompletion;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::verbs_values::QpState;
use smallvec::SmallVec;

use self::service::{RESERVED, Service};
use super::HubInner;
use super::table::{Reaped, Table};
use crate::cq::Cq;
use crate::error::PostError;
use crate::owned::keepalive::{ProbeMemory, ProbePath, SILENT, post_probe};
use crate::owned::operation::MAX_PARTS;
use crate::owned::{BUDGET, spend_budget};
use crate::qp::{Qp, Rc};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::{Imm, PortNum, WcOpcode, WcStatus, link_down};

/// The `wr_id` of a keepalive.
pub(super) const PROBE: u64 = RESERVED;

/// The status of an operation that its service took back before it was posted. No device reports it.
pub(crate) const TAKEN_BACK: WcStatus = WcStatus(u32::MAX);

/// Maximum of completions that are polled with the CQ locked.
pub(crate) const BATCH: usize = 32;

/// The operations of a hub.
pub(crate) type OpTable<B> = Table<OpEntry<B>, Cqe>;

/// What is kept of the completion of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Cqe {
    pub(crate) status: WcStatus,
    pub(crate) vendor_err: u32,
    /// Of a receive. That of a send is known when it is posted.
    pub(crate) opcode: WcOpcode,
    pub(crate) byte_len: u32,
    /// Immediate data of a receive.
    pub(crate) imm: Option<Imm>,
}

impl Cqe {
    #[inline(always)]
    fn success(completion: &impl Completion) -> Self {
        let (opcode, imm) = match completion.is_recv() {
            true => (completion.recv_opcode(), completion.recv_imm()),
            false => (WcOpcode::SEND, None),
        };
        let byte_len = completion.byte_len();
        Self { status: WcStatus::SUCCESS, vendor_err: 0, opcode, byte_len, imm }
    }

    /// Of a success that was polled by value.
    fn of_value(completion: &WorkCompletion) -> Self {
        let WorkCompletion { opcode, byte_len, .. } = *completion;
        let imm = if opcode.0 & WcOpcode::RECV.0 != 0 { completion.imm() } else { None };
        Self { status: WcStatus::SUCCESS, vendor_err: 0, opcode, byte_len, imm }
    }

    pub(crate) fn error(status: WcStatus, vendor_err: u32) -> Self {
        Self { status, vendor_err, opcode: WcOpcode::SEND, byte_len: 0, imm: None }
    }
}

/// An operation of a hub.
pub(crate) struct OpEntry<B> {
    /// `None` if it is inline.
    pub(crate) buffer: Option<B>,
    /// The opcode of a success. That of a receive depends on its message.
    pub(crate) opcode: WcOpcode,
    pub(crate) kind: SlotKind,
    /// The caller's number.
    pub(crate) tag: u64,
    /// Bytes of its request.
    pub(crate) len: u32,
}

/// The operations of a connection that share its slots of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotKind {
    /// Operations of the send queue.
    Send,
    Recv,
    /// Operations of the send queue whose ends the hub's [`Service`] counts.
    Service,
}

/// The number of operations of each [`SlotKind`] that a connection has room for, and their size.
#[derive(Clone, Copy)]
pub(crate) struct Depths {
    pub(crate) sends: u32,
    pub(crate) recvs: u32,
    pub(crate) service: u32,
    /// Requests that its service posts, and the probe.
    pub(crate) reserved: u32,
    /// The maximum of the buffers of an operation.
    pub(crate) max_sge: u32,
}

impl Default for Depths {
    fn default() -> Self {
        Self { sends: 0, recvs: 0, service: 0, reserved: 0, max_sge: 1 }
    }
}

impl Depths {
    /// The completions for which it needs room.
    pub(crate) fn completions(&self) -> usize {
        let Self { sends, recvs, service, reserved, .. } = *self;
        [sends, recvs, service, reserved].into_iter().map(|depth| depth as usize).sum()
    }
}

/// The `wr_id`s of the buffers of one request, in order. No request has one of them: that of the request
/// is the first one with the bits [`RESERVED`].
pub(super) type Parts = SmallVec<[u64; MAX_PARTS]>;

/// Why a connection accepts no more operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failure {
    /// An operation failed.
    Completion {
        verb: &'static str,
        status: WcStatus,
        vendor_err: u32,
        driver: DriverId,
        link_down: Option<PortNum>,
    },
    /// A completion of its QP matches no operation.
    Unknown { wr_id: u64 },
    /// Its owner ended it.
    Aborted,
    /// A request of its service or a probe could not be posted.
    Post(PostError),
    /// Its service ended it.
    Service { verb: &'static str, reason: &'static str },
    /// The device was removed.
    DeviceRemoved,
}

/// A connection of a hub. Its QP is destroyed before its slots are reused.
pub(crate) struct Conn<P: Provider, S: Service<P> = ()> {
    pub(crate) qp_num: u32,
    /// Its number in its service.
    pub(crate) id: u64,
    pub(crate) driver: DriverId,
    state: Mutex<ConnState<P, S>>,
    /// Indices of the free slots of each kind.
    free: [Mutex<Vec<u32>>; 3],
    /// All of its slots.
    pub(super) slots: Vec<u32>,
    /// The number of slots of each kind.
    pub(super) depths: [u32; 3],
    /// Whether it has room for a probe of its own, beside its slots.
    probe: bool,
    /// Whether its service has requests of its own. Probes are among them.
    reserved: bool,
}

pub(crate) struct ConnState<P: Provider, S: Service<P>> {
    /// `None` once the connection is retired.
    pub(crate) qp: Option<Qp<Rc, P>>,
    pub(crate) failure: Option<Failure>,
    /// What its service keeps of it.
    pub(crate) service: S::Conn,
    /// Whether its service knows of its end.
    pub(crate) ended: bool,
    /// The outstanding requests of several buffers.
    pub(super) parts: Vec<Parts>,
    /// The memory of probes, on iWARP. It is dropped after the QP is destroyed, or leaked.
    pub(super) probe_memory: ManuallyDrop<Option<ProbeMemory>>,
    /// What probes read, if they read memory.
    pub(super) probe_path: Option<ProbePath>,
    /// Whether a probe is outstanding.
    probing: bool,
    /// Intervals in which the peer has not answered the probe.
    silent: u32,
    /// How often the peer is probed, and when the next time.
    keepalive: Option<Duration>,
    next_probe: Option<Instant>,
}

impl<P: Provider, S: Service<P>> ConnState<P, S> {
    /// The QP, unless the connection has ended.
    #[inline]
    pub(super) fn open_qp(&mut self) -> Result<&mut Qp<Rc, P>, Failure> {
        match self {
            Self { failure: Some(failure), .. } => Err(*failure),
            Self { qp: Some(qp), .. } => Ok(qp),
            Self { qp: None, .. } => Err(Failure::Aborted),
        }
    }

    /// Probes the peer every `interval` from `now` on. It has that time to connect.
    pub(super) fn start_keepalive(&mut self, interval: Option<Duration>, now: Instant) {
        self.keepalive = interval;
        self.next_probe = interval.and_then(|interval| now.checked_add(interval));
    }

    /// Probes the peer, unless an earlier probe is outstanding.
    pub(crate) fn probe(&mut self) -> Result<(), PostError> {
        let Self { qp: Some(qp), failure: None, probing: probing @ false, probe_path, .. } = self else {
            return Ok(());
        };
        *probing = true;
        let posted = post_probe(qp, PROBE, *probe_path);
        *probing = posted.is_ok() || matches!(posted, Err(error) if error.accepted > 0);
        posted
    }

    /// Probes the peer if that is due at `now`, or if `now` is `None`. An end of the connection that is
    /// complete is not probed.
    pub(super) fn probe_if_due(&mut self, now: Option<Instant>) -> Result<(), PostError> {
        if self.ended || self.qp.as_ref().is_none_or(|qp| qp.state() != QpState::RTS) {
            return Ok(());
        }
        if let Some(now) = now {
            let Some(interval) = self.keepalive else { return Ok(()) };
            let next = now.checked_add(interval);
            if self.next_probe.is_some_and(|next| now < next) {
                return Ok(());
            }
            self.next_probe = next;
            self.silent += u32::from(self.probing);
        }
        self.probe()
    }

    /// The completion of the probe was polled. `false`: none is outstanding.
    fn probed(&mut self) -> bool {
        self.silent = 0;
        mem::replace(&mut self.probing, false)
    }
}

impl<P: Provider, S: Service<P>> Conn<P, S> {
    /// `slots` has those of the sends, the receives and the service, and the reserved ones, in this
    /// order. `probe_memory` is that of `qp`. `service` has the number of the connection in its service, and
    /// its state there.
    pub(super) fn new(
        (qp, probe_memory): (Qp<Rc, P>, Option<ProbeMemory>),
        slots: Vec<u32>,
        depths: Depths,
        probe: bool,
        (id, service): (u64, S::Conn),
    ) -> Self {
        let (qp_num, driver) = (qp.qp_num(), DriverId(qp.pd().domain().context.file.driver_id()));
        let state = ConnState {
            qp: Some(qp),
            failure: None,
            service,
            ended: false,
            parts: Vec::with_capacity(if depths.max_sge > 1 { slots.len() } else { 0 }),
            probe_memory: ManuallyDrop::new(probe_memory),
            probe_path: None,
            probing: false,
            silent: 0,
            keepalive: None,
            next_probe: None,
        };
        let reserved = depths.reserved > 0;
        let depths = [depths.sends, depths.recvs, depths.service];
        let mut rest = slots.as_slice();
        let free = depths.map(|depth| {
            let (own, others) = rest.split_at(depth as usize);
            rest = others;
            Mutex::new(own.to_vec())
        });
        Self { qp_num, id, driver, state: Mutex::new(state), free, depths, slots, probe, reserved }
    }

    /// Whether it has room for a probe.
    pub(super) fn has_probe(&self) -> bool {
        self.probe || self.reserved
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ConnState<P, S>> {
        lock(&self.state)
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ConnState<P, S>>> {
        self.state.try_lock()
    }

    /// The failure that a completion of its QP reports.
    pub(crate) fn failure(&self, verb: &'static str, status: WcStatus, vendor_err: u32) -> Failure {
        let state = self.lock();
        let link_down = state.qp.as_ref().and_then(|qp| link_down::cause(&qp.pd().domain().context, status));
        Failure::Completion { verb, status, vendor_err, driver: self.driver, link_down }
    }

    /// Whether its peer is dead although nothing has failed: on iWARP, where TCP retries for a quarter of an
    /// hour. Sends that are outstanding may be slow.
    pub(super) fn is_silent(&self, state: &ConnState<P, S>) -> bool {
        let is_iwarp = |qp: &Qp<Rc, P>| qp.pd().context().capabilities().iwarp;
        state.silent >= SILENT
            && state.qp.as_ref().is_some_and(is_iwarp)
            && self.is_idle(SlotKind::Send)
            && self.is_idle(SlotKind::Service)
    }

    /// Whether no operation of the kind is outstanding.
    pub(crate) fn is_idle(&self, kind: SlotKind) -> bool {
        lock(&self.free[kind as usize]).len() == self.depths[kind as usize] as usize
    }

    /// All of its slots of the kind.
    fn slots_of(&self, kind: SlotKind) -> &[u32] {
        let from: u32 = self.depths[..kind as usize].iter().sum();
        &self.slots[from as usize..][..self.depths[kind as usize] as usize]
    }

    /// Takes a free slot.
    #[inline]
    pub(crate) fn take_slot(&self, kind: SlotKind) -> Option<u32> {
        lock(&self.free[kind as usize]).pop()
    }

    /// Takes `N` free slots, or none.
    pub(super) fn take_slots<const N: usize>(&self, kind: SlotKind) -> Option<[u32; N]> {
        let mut free = lock(&self.free[kind as usize]);
        let at = free.len().checked_sub(N)?;
        let mut slots = [0; N];
        slots.copy_from_slice(&free[at..]);
        free.truncate(at);
        Some(slots)
    }

    /// Gives a free slot back. Its vector has the capacity.
    #[inline]
    pub(crate) fn put_slot(&self, kind: SlotKind, index: u32) {
        lock(&self.free[kind as usize]).push(index);
    }

    /// Takes the parts of the request `wr_id`.
    fn take_parts(&self, wr_id: u64) -> Option<Parts> {
        let parts = &mut self.lock().parts;
        let at = parts.iter().position(|parts| RESERVED | parts[0] == wr_id)?;
        Some(parts.swap_remove(at))
    }

    /// Ends the connection: posts are rejected, and operations in flight complete with an error.
    pub(crate) fn fail(&self, failure: Failure) {
        let mut state = self.lock();
        state.failure.get_or_insert(failure);
        if let Some(qp) = &mut state.qp
            && !qp.is_destroyed()
            && qp.state() != QpState::ERR
        {
            // The kernel refuses it only if the device was removed.
            let _ = qp.set_error();
        }
    }

    /// The device seems to be removed: destroys the QP, and rejects posts then. Returns whether the
    /// kernel has destroyed it, so that the device has finished with all operations. `None` if another
    /// thread retires the connection.
    pub(super) fn destroy_removed(&self) -> Option<bool> {
        let mut state = self.lock();
        let qp = state.qp.as_mut()?;
        // SAFETY: the QP was not destroyed. Every post and command of the connection looks at
        // `failure` or `is_destroyed` first, with the lock.
        let destroyed = qp.is_destroyed() || unsafe { qp.try_destroy_object() }.is_ok();
        if destroyed {
            state.failure.get_or_insert(Failure::DeviceRemoved);
        }
        Some(destroyed)
    }
}

/// The connection of a slot.
type Owner<P, S> = Option<Arc<Conn<P, S>>>;

/// The CQ with the owners of its completions. Its lock makes its holder the only one that reaps.
pub(crate) struct Reaper<P: Provider, S: Service<P>> {
    pub(super) cq: Cq<P>,
    /// The connection of each slot.
    owners: Box<[Owner<P, S>]>,
    /// Whether each slot is one of [`SlotKind::Service`].
    of_service: Box<[bool]>,
    by_number: HashMap<u32, Arc<Conn<P, S>>>,
    /// Slots of no connection. They are also the room of the CQ that is not reserved.
    free: Vec<u32>,
    /// The probes for which the CQ has room that is not reserved.
    probes: u32,
    /// A completion that was polled and not handed out. The holder of the lock that has polled it does
    /// that.
    polled: Option<WorkCompletion>,
    /// Awaits until the next one yields to the scheduler (see [`BUDGET`]).
    budget: u32,
    /// Whether the CQ was armed and no event was read since. An event is pending or will come then,
    /// if there is a completion.
    pub(super) armed: bool,
}

impl<P: Provider, S: Service<P>> Reaper<P, S> {
    /// `cq` has room for `entries` completions and for `probes`.
    pub(super) fn new(cq: Cq<P>, entries: u32, probes: u32) -> Self {
        let owners = (0..entries).map(|_| None).collect();
        let of_service = (0..entries).map(|_| false).collect();
        let free = (0..entries).rev().collect();
        let by_number = HashMap::new();
        Self { cq, owners, of_service, by_number, free, probes, polled: None, budget: BUDGET, armed: false }
    }

    /// Reserves room for a probe. `false`: there is none.
    pub(super) fn reserve_probe(&mut self) -> bool {
        let room = self.probes > 0;
        self.probes -= u32::from(room);
        room
    }

    /// Adds to `found` the connections whose first slot is `from` or above, until it has
    /// [`BATCH`]. Returns where the next call begins, or `None` at the end.
    pub(super) fn connections(&self, from: usize, found: &mut SmallList<Arc<Conn<P, S>>>) -> Option<usize> {
        for (slot, owner) in self.owners.iter().enumerate().skip(from) {
            if let Some(conn) = owner
                && conn.slots.first().is_some_and(|first| *first as usize == slot)
            {
                found.push(Arc::clone(conn));
                if found.len() == BATCH {
                    return Some(slot + 1);
                }
            }
        }
        None
    }

    /// Reserves room for `count` completions.
    pub(super) fn reserve(&mut self, count: usize) -> Option<Vec<u32>> {
        let at = self.free.len().checked_sub(count)?;
        Some(self.free.split_off(at))
    }

    /// Releases what `reserve` returned.
    pub(super) fn release(&mut self, slots: &[u32], probe: bool) {
        self.free.extend_from_slice(slots);
        self.probes += u32::from(probe);
    }

    /// The completions for which there is room.
    pub(super) fn free_entries(&self) -> usize {
        self.free.len()
    }

    /// Adds a connection. The CQ must be empty of completions of a destroyed QP with its number.
    pub(super) fn add(&mut self, conn: &Arc<Conn<P, S>>) {
        self.by_number.insert(conn.qp_num, Arc::clone(conn));
        for slot in &conn.slots {
            self.owners[*slot as usize] = Some(Arc::clone(conn));
            self.of_service[*slot as usize] = false;
        }
        for slot in conn.slots_of(SlotKind::Service) {
            self.of_service[*slot as usize] = true;
        }
    }

    /// Removes a connection whose QP is destroyed, and releases its room. The CQ must be empty of
    /// its completions.
    pub(super) fn remove(&mut self, conn: &Arc<Conn<P, S>>) {
        if self.by_number.get(&conn.qp_num).is_some_and(|other| Arc::ptr_eq(other, conn)) {
            self.by_number.remove(&conn.qp_num);
        }
        for slot in &conn.slots {
            self.owners[*slot as usize] = None;
        }
        self.release(&conn.slots, conn.probe);
    }

    /// Spends one await of the hub's budget. Returns whether it must yield.
    #[inline(always)]
    pub(super) fn spend_budget(&mut self) -> bool {
        spend_budget(&mut self.budget)
    }

    /// Polls one completion. If it is not the success of `wr_id`, the caller must call
    /// [`Reaper::reap_polled`].
    #[inline(always)]
    pub(super) fn poll_own(&mut self, wr_id: u64) -> NextCqe {
        let Self { cq, polled, .. } = self;
        cq.visit_next(PollNext { wr_id, polled })
    }

    /// Hands out the completion that [`Reaper::poll_own`] has polled, and those behind it as
    /// [`Reaper::reap`] does.
    pub(super) fn reap_polled<B>(&mut self, hub: &HubInner<B, P, S>, deferred: &mut Deferred<B>) {
        if let Some(polled) = self.polled.take() {
            let Self { owners, of_service, by_number, .. } = self;
            let success = (polled.status == WcStatus::SUCCESS).then(|| Cqe::of_value(&polled));
            let to = Recipients { owners, of_service, by_number, hub };
            to.deliver(polled.wr_id, success, || polled, deferred);
        }
        self.reap(hub, deferred);
    }

    /// Takes up to [`BATCH`] completions and hands out the result of each. Returns their number.
    #[inline]
    pub(super) fn reap<B>(&mut self, hub: &HubInner<B, P, S>, deferred: &mut Deferred<B>) -> usize {
        let Self { cq, owners, of_service, by_number, .. } = self;
        let to = Recipients { owners, of_service, by_number, hub };
        let mut completions = cq.poll();
        let mut taken = 0;
        while taken < BATCH
            && let Some(completion) = completions.next()
        {
            taken += 1;
            let success = (completion.status() == WcStatus::SUCCESS).then(|| Cqe::success(&completion));
            to.deliver(completion.wr_id(), success, || completion.to_value(), deferred);
        }
        taken
    }
}

/// The next completion of the CQ, for one operation. It is small enough for registers.
pub(super) enum NextCqe {
    /// The success of the operation.
    Success(Cqe),
    /// There is none.
    Empty,
    /// Another one, which is to be reaped.
    Foreign,
}

/// Polls for the operation `wr_id`. Any other completion is stored in `polled`, not in [`NextCqe`], whose
/// variants share their place: the compiler would move the result through memory.
struct PollNext<'r> {
    wr_id: u64,
    polled: &'r mut Option<WorkCompletion>,
}

impl Visitor for PollNext<'_> {
    type Output = NextCqe;

    #[inline(always)]
    fn completion(self, completion: impl Completion) -> NextCqe {
        let Self { wr_id, polled } = self;
        if completion.wr_id() == wr_id && completion.status() == WcStatus::SUCCESS {
            return NextCqe::Success(Cqe::success(&completion));
        }
        // A copy, so that the fast path keeps the completion in registers.
        let copy = ManuallyDrop::new(completion);
        *polled = Some(copy.to_value());
        NextCqe::Foreign
    }

    #[inline(always)]
    fn empty(self) -> NextCqe {
        NextCqe::Empty
    }

    #[inline(always)]
    fn declined(self) -> NextCqe {
        NextCqe::Foreign
    }
}

/// The owners of completions.
struct Recipients<'r, B, P: Provider, S: Service<P>> {
    owners: &'r [Owner<P, S>],
    of_service: &'r [bool],
    by_number: &'r HashMap<u32, Arc<Conn<P, S>>>,
    hub: &'r HubInner<B, P, S>,
}

impl<B, P: Provider, S: Service<P>> Recipients<'_, B, P, S> {
    /// Hands out a completion. `success` is its result if it succeeded, and `value` returns all of it.
    #[inline(always)]
    fn deliver(
        &self,
        wr_id: u64,
        success: Option<Cqe>,
        value: impl Fn() -> WorkCompletion,
        deferred: &mut Deferred<B>,
    ) {
        let Self { owners, of_service, hub, .. } = *self;
        if S::OWNS && wr_id & RESERVED != 0 {
            self.deliver_reserved(&value(), deferred);
            return;
        }
        let cqe = success.unwrap_or_else(|| self.failed(&value(), deferred));
        match hub.table.complete(wr_id, cqe) {
            Reaped::Waiting(waker) => {
                if S::OWNS && of_service[OpTable::<B>::index(wr_id) as usize] {
                    deferred.woken.extend(hub.service.count(cqe.status == WcStatus::SUCCESS, false));
                }
                if let Some(waker) = waker {
                    deferred.woken.push(waker);
                }
            }
            Reaped::Detached(entry) => {
                let index = OpTable::<B>::index(wr_id);
                if let Some(Some(conn)) = owners.get(index as usize) {
                    conn.put_slot(entry.kind, index);
                }
                if S::OWNS && entry.kind == SlotKind::Service {
                    deferred.woken.extend(hub.service.count(cqe.status == WcStatus::SUCCESS, true));
                }
                deferred.ended.push(entry);
            }
            Reaped::Unknown => self.deliver_reserved(&value(), deferred),
        }
    }

    /// Ends the connection of a failed operation.
    #[cold]
    #[inline(never)]
    fn failed(&self, completion: &WorkCompletion, deferred: &mut Deferred<B>) -> Cqe {
        let owner = self.owners.get(OpTable::<B>::index(completion.wr_id) as usize);
        let conn = owner.and_then(Option::as_deref);
        self.hub.failed(conn, completion.wr_id, completion, deferred)
    }

    /// Hands out a completion whose `wr_id` is that of no operation.
    #[cold]
    #[inline(never)]
    fn deliver_reserved(&self, completion: &WorkCompletion, deferred: &mut Deferred<B>) {
        let conn = self.by_number.get(&completion.qp_num);
        let reserved = completion.wr_id & RESERVED;
        if S::OWNS && reserved != 0 && reserved != RESERVED {
            S::completion(self.hub, completion, conn, deferred);
        } else if let Some(conn) = conn {
            self.hub.complete_other(conn, completion, deferred);
        }
    }
}

impl<B, P: Provider, S: Service<P>> HubInner<B, P, S> {
    /// Ends the connection of the failed operation `wr_id`, of which the completion is. Returns it, with
    /// a more precise status if there is one.
    #[cold]
    fn failed(
        &self,
        conn: Option<&Conn<P, S>>,
        wr_id: u64,
        completion: &WorkCompletion,
        deferred: &mut Deferred<B>,
    ) -> Cqe {
        let WorkCompletion { mut status, vendor_err, .. } = *completion;
        let found = self.table.inspect(wr_id, |entry| (entry.opcode, entry.kind));
        let (Some((opcode, kind)), Some(conn)) = (found, conn) else {
            return Cqe::error(status, vendor_err);
        };
        let delivered = {
            let state = conn.lock();
            if let Some(qp) = &state.qp
                && let Some(failure) = qp.failure()
                && failure.wr_id == completion.wr_id
            {
                status = failure.status;
            }
            // Only the hardware acknowledgement is missing.
            kind == SlotKind::Service && self.service.is_delivered(&state)
        };
        self.end_conn(conn, conn.failure(S::verb(opcode), status, vendor_err), deferred);
        Cqe::error(if delivered { WcStatus::SUCCESS } else { status }, vendor_err)
    }

    /// Handles a completion that names no operation: that of a request of several buffers, that of a
    /// probe, or an unknown one.
    #[cold]
    fn complete_other(&self, conn: &Conn<P, S>, completion: &WorkCompletion, deferred: &mut Deferred<B>) {
        let WorkCompletion { wr_id, status, vendor_err, .. } = *completion;
        if let Some(parts) = conn.take_parts(wr_id) {
            self.end_parts(conn, parts, completion, deferred);
            return;
        }
        let failure = if wr_id != PROBE || !conn.lock().probed() {
            Failure::Unknown { wr_id }
        } else if status != WcStatus::SUCCESS {
            conn.failure("keepalive", status, vendor_err)
        } else {
            return;
        };
        self.end_conn(conn, failure, deferred);
    }

    /// Ends the operations of the buffers of a request. A received message fills them in order.
    fn end_parts(
        &self,
        conn: &Conn<P, S>,
        parts: Parts,
        completion: &WorkCompletion,
        deferred: &mut Deferred<B>,
    ) {
        let cqe = match completion.status {
            WcStatus::SUCCESS => Cqe::of_value(completion),
            _ => self.failed(Some(conn), parts[0], completion, deferred),
        };
        let (mut left, last) = (cqe.byte_len, parts.len() - 1);
        for (at, wr_id) in parts.into_iter().enumerate() {
            let byte_len = match cqe.opcode {
                _ if at == last => left,
                WcOpcode::RECV => self.table.inspect(wr_id, |entry| entry.len.min(left)).unwrap_or(0),
                // The length of a write with immediate is not that of bytes in the buffers.
                _ => 0,
            };
            left -= byte_len;
            let imm = if at == last { cqe.imm } else { None };
            self.end_operation(conn, wr_id, Cqe { byte_len, imm, ..cqe }, deferred);
        }
    }

    /// Ends the operation in flight with this `wr_id`, if there is one. It may be queued.
    pub(crate) fn end_operation(&self, conn: &Conn<P, S>, wr_id: u64, cqe: Cqe, deferred: &mut Deferred<B>) {
        self.table.publish(wr_id);
        let counts = S::OWNS && self.table.inspect(wr_id, |entry| entry.kind) == Some(SlotKind::Service);
        let detached = match self.table.complete(wr_id, cqe) {
            Reaped::Waiting(waker) => {
                deferred.woken.extend(waker);
                false
            }
            Reaped::Detached(entry) => {
                conn.put_slot(entry.kind, OpTable::<B>::index(wr_id));
                deferred.ended.push(entry);
                true
            }
            Reaped::Unknown => return,
        };
        if counts {
            deferred.woken.extend(self.service.count(cqe.status == WcStatus::SUCCESS, detached));
        }
    }

    /// Ends all operations of a connection whose QP was destroyed because the device was removed, unless
    /// another thread retires it. The CQ must be empty of its completions.
    pub(super) fn end_operations(&self, conn: &Conn<P, S>, deferred: &mut Deferred<B>) {
        // While the connection has its QP, no other connection uses its slots.
        let state = conn.lock();
        if !state.qp.as_ref().is_some_and(Qp::is_destroyed) {
            return;
        }
        let flushed = Cqe::error(WcStatus::WR_FLUSH_ERR, 0);
        for kind in [SlotKind::Send, SlotKind::Recv, SlotKind::Service] {
            for slot in conn.slots_of(kind) {
                self.end_operation(conn, self.table.wr_id(*slot), flushed, deferred);
            }
        }
        drop(state);
        self.end_conn(conn, Failure::DeviceRemoved, deferred);
    }

    /// Takes all operations of a connection from the table, also those whose completions never come.
    pub(super) fn abandon_operations(&self, conn: &Conn<P, S>, panics: &mut FirstPanic) -> Vec<OpEntry<B>> {
        let delivered = self.service.is_delivered(&conn.lock());
        let mut woken = Vec::new();
        let abandon = |slot: &u32| {
            let (entry, in_flight) = self.table.abandon(*slot)?;
            if in_flight && entry.kind == SlotKind::Service {
                woken.extend(self.service.count(delivered, true));
            }
            Some(entry)
        };
        let abandoned = conn.slots.iter().filter_map(abandon).collect();
        panics.catch(|| wake_all(woken));
        abandoned
    }

    /// Ends a connection, and tells its service.
    pub(crate) fn end_conn(&self, conn: &Conn<P, S>, failure: Failure, deferred: &mut Deferred<B>) {
        conn.fail(failure);
        S::ended(self, conn, failure, deferred);
    }

    /// As [`HubInner::end_conn`], without a lock.
    #[cold]
    pub(crate) fn end(&self, conn: &Conn<P, S>, failure: Failure) {
        let mut deferred = Deferred::new();
        self.end_conn(conn, failure, &mut deferred);
        deferred.finish();
        self.reap_flushed();
    }
}

/// Wakers to call and buffers to drop after the CQ was unlocked, because both run code of the
/// application.
pub(crate) struct Deferred<B> {
    // Empty lists are not dropped. They have not grown, so there is nothing to free.
    pub(crate) woken: ManuallyDrop<SmallList<Waker>>,
    ended: ManuallyDrop<SmallList<OpEntry<B>>>,
}

impl<B> Deferred<B> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { woken: ManuallyDrop::new(SmallList::new()), ended: ManuallyDrop::new(SmallList::new()) }
    }

    /// Wakes the tasks and drops the buffers of detached operations.
    ///
    /// # Panics
    /// With the first panic of a waker or of the drop of a buffer, after all of them.
    #[inline]
    pub(crate) fn finish(&mut self) {
        if !self.woken.is_empty() || !self.ended.is_empty() {
            self.finish_all();
        }
    }

    #[inline(never)]
    fn finish_all(&mut self) {
        let mut panics = FirstPanic::default();
        let (woken, ended) = (mem::take(&mut *self.woken), mem::take(&mut *self.ended));
        woken.into_iter().for_each(|waker| panics.catch(|| waker.wake()));
        ended.into_iter().for_each(|operation| panics.catch(|| drop(operation)));
        panics.resume();
    }
}

impl<B> Drop for Deferred<B> {
    /// If the thread unwinds.
    #[inline]
    fn drop(&mut self) {
        self.finish();
    }
}

/// A list that allocates only beyond [`BATCH`] values, which occur when connections end.
pub(super) type SmallList<T> = SmallVec<[T; BATCH]>;
