//! The model: the expected completions with status and order, and the expected memory.
//!
//! The model executes each verb on plain data when it is posted, as if it took no time. For each
//! queue pair and direction it keeps the expected completions in order. This works because the
//! generator only makes verbs with one outcome, however long they take:
//!
//! - No two queue pairs use the same bytes at the same time.
//! - A message without a receive waits for one, or fails. It never races with a receive that is
//!   just being posted.
//!
//! An [`Op::Abort`] stops queue pairs under traffic and has several outcomes: the requests up to
//! some point have been executed. The bytes that such requests use are not compared.
//!
//! Deviations of a kernel from the specification are only in [`Quirks`].

mod accept;
mod execute;
mod memory;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bareverbs::{Access, WcStatus};

pub use accept::Expect;
pub use memory::{Claim, Region};

use crate::op::{Connection, End, Id, Kind, Op, QpPlan, Receive, Request};

/// Deviations of a device and its driver from the specification, as probed before the first
/// iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// A send that fails locally completes as flushed; only its slot has the real status. From
    /// Linux 6.4 on, the kernel flushes it together with the later requests (`rxe_requester` of its
    /// `rxe_req.c`).
    pub failed_wr_reports_flush: bool,
    /// The status of a send from memory without a valid key. The specification requires a local
    /// protection error. The kernel gives a local operation error, since a failed lookup of the key
    /// is `EINVAL` (`finish_packet`'s caller in `rxe_req.c`).
    pub bad_lkey: WcStatus,
    /// The status of a send from beyond the end of a region: from Linux 6.4 on the same as for an
    /// invalid key (`mr_check_range` of `rxe_mr.c`).
    pub beyond: WcStatus,
    /// Whether a reset under traffic corrupts the kernel, as before Linux 6.4: the reset does not
    /// wait for a running responder, and both drop the same reference (`rxe_qp_reset` of
    /// `rxe_qp.c`, `cleanup` of `rxe_resp.c`). The result for the queue pair is unpredictable, so
    /// such resets are left out.
    pub reset_under_traffic_corrupts: bool,
    /// Whether destroying a queue pair with outstanding reliable sends, or with sends that wait for
    /// their receive, may block for 50 seconds, as before Linux 6.4 at least. A response that
    /// arrives during a retry is processed only with the next one, and no response reaches a queue
    /// pair that is being destroyed (`rxe_completer` of `rxe_comp.c`). A queue pair that goes to ERR
    /// first is not affected.
    pub destroy_waits_for_responses: bool,
    /// Whether the RNR timer survives a reset and expires after the queue pair is reconnected. The
    /// outstanding requests are then retried, and a fenced read waits for itself without limit.
    /// Soft-RoCE's reset does not stop the timer (`rxe_qp_reset` of `rxe_qp.c`, `rnr_nak_timer` of
    /// `rxe_req.c`).
    pub timer_outlives_reset: bool,
    /// The statuses of a message that is longer than its receive, for sender and receiver. The
    /// specification requires an invalid request error and a local length error. The kernel treats
    /// the receive as malformed (`send_data_in` of `rxe_resp.c`).
    pub too_short: (WcStatus, WcStatus),
    /// The status of a LOCAL_INV without a valid window: a memory management error in the
    /// specification, a local operation error on Soft-RoCE.
    pub local_inv_unbound_status: WcStatus,
    /// Whether the slot of an unsignalled request is free only after the completion of a later
    /// request was polled, because the ring has no consumer index, as on a ConnectX.
    pub unsignalled_wr_holds_slot: bool,
    /// Whether a write may overtake an earlier read, which the specification allows without a
    /// fence. Soft-RoCE executes requests one after the other. Elsewhere, bytes that were just read
    /// are not written. This is not probed.
    pub overtakes_reads: bool,
    /// Whether a UC queue pair goes to ERR when a send fails locally. The specification lets it
    /// receive in SQE. The model does not have that state, so such sends are left out for devices
    /// that do.
    pub uc_goes_to_err: bool,
    /// Whether a window can be bound to a region that does not allow it. On a ConnectX a bind
    /// modifies an mkey, and the region is not checked. Such binds are left out then.
    pub binds_to_any: bool,
}

impl Quirks {
    /// The behaviour of the specification.
    pub const NONE: Self = Self {
        failed_wr_reports_flush: false,
        bad_lkey: WcStatus::LOC_PROT_ERR,
        beyond: WcStatus::LOC_PROT_ERR,
        reset_under_traffic_corrupts: false,
        destroy_waits_for_responses: false,
        timer_outlives_reset: false,
        too_short: (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
        local_inv_unbound_status: WcStatus::MW_BIND_ERR,
        unsignalled_wr_holds_slot: false,
        overtakes_reads: true,
        uc_goes_to_err: false,
        binds_to_any: false,
    };
}

/// A state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// RESET.
    Reset,
    /// RTS: it sends and receives.
    Up,
    /// ERR: it flushes.
    Error,
}

/// How to check the completions of a queue pair that an [`Op::Abort`] stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aborted {
    /// It was not stopped.
    No,
    /// Some as predicted, the others flushed.
    Flushing,
    /// Some as predicted, then none.
    Gone,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its parameters.
    pub plan: QpPlan,
    /// Its state.
    pub state: State,
    /// Its latest connection.
    pub connection: Option<Connection>,
    /// Capacity for sends and receives.
    pub room: (usize, usize),
    /// Sends that wait for a receive, or whose peer no longer exists.
    pub waiting: VecDeque<Request>,
    /// Receives that no message has used.
    pub receives: VecDeque<Receive>,
    /// Whether it was modified to ERR; later receives are flushed then.
    modified_to_err: bool,
    /// Receives that were posted to a queue pair in ERR after a failure. The kernel flushes them
    /// when it is modified to ERR, and may flush them earlier: on a packet or, from Linux 6.4 on,
    /// on a send.
    pub idle: Vec<u64>,
    sends_expected: VecDeque<Expect>,
    /// Executed unsignalled sends of earlier rounds that no later completion covers.
    unasked: Vec<u64>,
    receives_expected: VecDeque<Expect>,
    aborted: Aborted,
    flushing: [bool; 2],
    /// The latest SRQ receive in a completion of this queue pair.
    last_shared: u64,
    /// The round of the latest post of sends.
    pub busy: u64,
    /// The round in which a send last waited.
    pub waited: u64,
    /// The round in which no more requests may be posted.
    pub no_posts_in_round: u64,
    /// Whether no receive may be posted. A message was lost for want of a receive, or is in flight
    /// from a peer that was stopped while it waited for one. Its arrival time is unknown.
    pub recv_unusable: bool,
    /// The latest round in which it bound or invalidated a window, or the peer invalidated one of
    /// its.
    pub mw_changed_in_round: u64,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Its PD.
    pub pd: Id,
    /// Capacity for receives.
    pub room: usize,
    /// Receives without a completion.
    pub posted: VecDeque<Receive>,
    /// How many of them are used by messages.
    pub consumed: usize,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its PD.
    pub pd: Id,
    /// Whether it is of type 2.
    pub type_2: bool,
    /// The region, the rights and the queue pair of the bind.
    pub bound: Option<(Id, Access, Id)>,
    /// The region of the previous bind, which may still be in use.
    pub left: Option<Id>,
    /// The round in which it was last bound, invalidated or used.
    pub touched: u64,
}

impl Window {
    /// Whether it may be bound to a region, whatever is outstanding in this round.
    #[must_use]
    pub fn holds(&self, mr: Id, round: u64) -> bool {
        self.bound.is_some_and(|(region, ..)| region == mr) || self.touched == round && self.left == Some(mr)
    }
}

/// All objects and their expected completions.
#[derive(Debug)]
pub struct Model {
    /// The kernel's deviations.
    pub quirks: Quirks,
    /// Incremented when all expected completions have been polled.
    pub round: u64,
    /// PDs.
    pub pds: BTreeSet<Id>,
    /// CQs with their capacities.
    pub cqs: BTreeMap<Id, usize>,
    /// SRQs.
    pub srqs: BTreeMap<Id, Srq>,
    /// Regions.
    pub mrs: BTreeMap<Id, Region>,
    /// Windows.
    pub mws: BTreeMap<Id, Window>,
    /// Queue pairs.
    pub qps: BTreeMap<Id, Qp>,
}

impl Model {
    /// A model without objects.
    #[must_use]
    pub fn new(quirks: Quirks) -> Self {
        Self {
            quirks,
            round: 1,
            pds: BTreeSet::new(),
            cqs: BTreeMap::new(),
            srqs: BTreeMap::new(),
            mrs: BTreeMap::new(),
            mws: BTreeMap::new(),
            qps: BTreeMap::new(),
        }
    }

    /// A queue pair that exists.
    #[must_use]
    pub fn qp(&self, id: Id) -> &Qp {
        &self.qps[&id]
    }

    pub(crate) fn qp_mut(&mut self, id: Id) -> &mut Qp {
        self.qps.get_mut(&id).expect("the queue pair exists")
    }

    /// Whether a queue pair must go to ERR before it is destroyed.
    #[must_use]
    pub fn needs_error_before_destroy(&self, id: Id) -> bool {
        let qp = self.qp(id);
        self.quirks.destroy_waits_for_responses && qp.plan.kind == Kind::Rc && qp.state == State::Up
    }

    /// The connected peer, if it still exists and is connected to this one.
    #[must_use]
    pub fn peer(&self, id: Id) -> Option<Id> {
        let connection = self.qp(id).connection.as_ref()?;
        let other = if connection.a == id { connection.b } else { connection.a };
        let there = self.qps.get(&other)?;
        (there.connection.as_ref() == Some(connection)).then_some(other)
    }

    /// The maximum number of completions in a CQ before it is polled.
    #[must_use]
    pub fn load(&self, cq: Id) -> usize {
        let of = |qp: &Qp| {
            let sends = qp.sends_expected.len() + qp.waiting.len();
            let receives = qp.receives_expected.len() + qp.receives.len() + qp.idle.len();
            let sends = if qp.plan.send_cq == cq { sends } else { 0 };
            sends + if qp.plan.recv_cq == cq { receives } else { 0 }
        };
        self.qps.values().map(of).sum()
    }

    /// The remaining capacity of a CQ.
    #[must_use]
    pub fn free(&self, cq: Id) -> usize {
        self.cqs[&cq].saturating_sub(self.load(cq))
    }

    /// The number of messages whose completions fit at both ends.
    #[must_use]
    pub fn messages(&self, send_cq: Id, recv_cq: Id) -> usize {
        if send_cq == recv_cq { self.free(send_cq) / 2 } else { self.free(send_cq).min(self.free(recv_cq)) }
    }

    /// Executes a verb. For a post, returns the number of accepted requests.
    pub fn apply(&mut self, op: &Op) -> usize {
        match op {
            Op::AllocPd(pd) => {
                self.pds.insert(*pd);
            }
            Op::DeallocPd(pd) => {
                self.pds.remove(pd);
            }
            Op::MakeCq(cq, entries) | Op::ResizeCq(cq, entries) => {
                self.cqs.insert(*cq, *entries as usize);
            }
            Op::DestroyCq(cq) => {
                self.cqs.remove(cq);
            }
            Op::MakeSrq(srq, pd, room) => {
                let made = Srq { pd: *pd, room: *room as usize, posted: VecDeque::new(), consumed: 0 };
                self.srqs.insert(*srq, made);
            }
            Op::DestroySrq(srq) => {
                self.srqs.remove(srq);
            }
            Op::Register(mr, pd, len, access) => {
                self.mrs.insert(*mr, Region::new(*mr, *pd, *len, *access));
            }
            Op::Deregister(mr) => {
                self.mrs.remove(mr);
            }
            Op::AllocMw(mw, pd, type_2) => {
                let made = Window { pd: *pd, type_2: *type_2, bound: None, left: None, touched: self.round };
                self.mws.insert(*mw, made);
            }
            Op::DeallocMw(mw) => {
                self.mws.remove(mw);
            }
            Op::MakeQp(qp, plan) => {
                self.qps.insert(*qp, Qp::new(plan));
            }
            Op::Connect(connection) => {
                for qp in [connection.a, connection.b] {
                    let qp = self.qp_mut(qp);
                    qp.connection = Some(*connection);
                    qp.state = State::Up;
                }
            }
            Op::BringUp(qp) => self.qp_mut(*qp).state = State::Up,
            Op::End(qp, end) => self.end(*qp, *end),
            Op::Abort(a, b, end) => self.abort([*a, *b], *end),
            Op::PostRecv(qp, receives) => return self.post_receives(*qp, receives),
            Op::PostSrq(srq, receives) => {
                let queue = self.srqs.get_mut(srq).expect("the shared queue exists");
                let taken = receives.len().min(queue.room - queue.posted.len());
                queue.posted.extend(receives[..taken].iter().cloned());
                for receive in &receives[..taken] {
                    self.claim_pieces(&receive.pieces, true, *srq, receive.wr_id);
                }
                return taken;
            }
            Op::PostSend(qp, requests) => return self.post_sends(*qp, requests),
            Op::Settle => {}
        }
        0
    }

    fn end(&mut self, id: Id, end: End) {
        let peer = self.peer(id).filter(|_| !self.qp(id).waiting.is_empty());
        if let Some(peer) = peer {
            self.qp_mut(peer).recv_unusable = true;
        }
        match end {
            End::Error => {
                self.enter_error(id);
                self.qp_mut(id).modified_to_err = true;
            }
            End::Reset => self.reset(id),
            End::Destroy => {
                self.qps.remove(&id);
            }
        }
    }

    fn reset(&mut self, id: Id) {
        let qp = self.qp_mut(id);
        let (plan, room) = (qp.plan.clone(), qp.room);
        *qp = Qp { room, ..Qp::new(&plan) };
    }

    /// Stops both ends of a connection under traffic.
    fn abort(&mut self, ends: [Id; 2], end: End) {
        for region in self.mrs.values_mut() {
            region.mark_unknown(|claim| ends.contains(&claim.owner));
        }
        for id in ends {
            let qp = self.qp_mut(id);
            for request in std::mem::take(&mut qp.waiting) {
                qp.sends_expected.push_back(Expect::flushed(request.wr_id));
            }
            for receive in std::mem::take(&mut qp.receives) {
                qp.receives_expected.push_back(Expect::flushed(receive.wr_id));
            }
            qp.aborted = if end == End::Error { Aborted::Flushing } else { Aborted::Gone };
            qp.modified_to_err = end == End::Error;
            qp.state = State::Error;
        }
    }

    /// Ends an [`Op::Abort`], after all of its completions have been polled.
    pub fn aborted(&mut self, ends: [Id; 2], end: End) {
        for id in ends {
            match end {
                End::Error => {}
                End::Reset => self.reset(id),
                End::Destroy => {
                    self.qps.remove(&id);
                }
            }
        }
    }

    /// Checks that no completion is missing, and starts the next round.
    ///
    /// # Errors
    /// The missing completion.
    pub fn settle(&mut self) -> Result<(), String> {
        if let Some(missing) = self.missing() {
            return Err(missing);
        }
        self.round += 1;
        let mut open = BTreeSet::new();
        for (&id, qp) in &mut self.qps {
            qp.aborted = Aborted::No;
            qp.flushing = [false; 2];
            if !self.quirks.unsignalled_wr_holds_slot {
                qp.unasked.extend(qp.sends_expected.drain(..).filter_map(|send| send.wr_id));
            }
            qp.receives_expected.clear();
            open.extend(qp.waiting.iter().map(|request| (id, request.wr_id)));
            open.extend(qp.receives.iter().map(|receive| (id, receive.wr_id)));
        }
        for (&id, srq) in &self.srqs {
            open.extend(srq.posted.iter().map(|receive| (id, receive.wr_id)));
        }
        for region in self.mrs.values_mut() {
            region.claims.retain(|claim| open.contains(&(claim.owner, claim.wr_id)));
        }
        Ok(())
    }
}

impl Qp {
    fn new(plan: &QpPlan) -> Self {
        Self {
            plan: plan.clone(),
            state: State::Reset,
            connection: None,
            room: (plan.sends as usize, plan.receives as usize),
            waiting: VecDeque::new(),
            receives: VecDeque::new(),
            modified_to_err: false,
            idle: Vec::new(),
            sends_expected: VecDeque::new(),
            unasked: Vec::new(),
            receives_expected: VecDeque::new(),
            aborted: Aborted::No,
            flushing: [false; 2],
            last_shared: 0,
            busy: 0,
            waited: 0,
            no_posts_in_round: 0,
            recv_unusable: false,
            mw_changed_in_round: 0,
        }
    }

    /// Whether all requests of earlier rounds are complete or waiting, and none was posted in this
    /// round.
    #[must_use]
    pub fn rests(&self, round: u64) -> bool {
        let quiet =
            self.sends_expected.iter().all(|expect| expect.silent) && self.receives_expected.is_empty();
        quiet && self.busy < round && self.no_posts_in_round < round
    }

    /// Free slots for sends, at least.
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.room.0.saturating_sub(self.waiting.len() + self.sends_expected.len())
    }

    /// Free slots for receives, at least.
    #[must_use]
    pub fn receive_room(&self) -> usize {
        self.room.1.saturating_sub(self.receives.len() + self.receives_expected.len() + self.idle.len())
    }

    /// Whether all datagrams of this round have the same sender. The order of several senders is
    /// undefined.
    #[must_use]
    pub fn receives_only_from(&self, sender: Id) -> bool {
        self.receives_expected.iter().all(|expect| expect.sender == Some(sender))
    }
}
