//! The model: what must complete, with which status, in which order, and what memory holds then.
//!
//! It carries every verb out on plain data at the moment it is posted, as if nothing took time, and
//! keeps for each queue pair and direction the completions that must be seen, in order. That is
//! possible because the generator makes only what has one outcome, however long things take: no two
//! queue pairs use the same bytes at the same time, and a message that finds no receive waits for
//! one, or fails for want of one, but never meets one that is just being posted. What is taken away
//! from a queue pair in the midst of its traffic ([`Op::Abort`]) has more than one outcome: there,
//! some requests, then no more, may have been carried out, and the bytes they use are not compared.
//!
//! What a kernel does otherwise than the specification says is in [`Quirks`], and nowhere else.

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

/// What a device and its driver do otherwise than the specification says, as found out by trials
/// before the first iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quirks {
    /// A send that fails on its own side completes as flushed, and only its slot tells why: from
    /// Linux 6.4 on, the kernel flushes it with those behind it (`rxe_requester` of its
    /// `rxe_req.c`).
    pub flushes_the_failed: bool,
    /// How a send from memory that it must not read fails. The specification says a local
    /// protection error, the kernel a local operation error, since a failed look-up of the key is
    /// `EINVAL` (`finish_packet`'s caller in `rxe_req.c`).
    pub bad_lkey: WcStatus,
    /// How a send from beyond the end of a region fails: from Linux 6.4 on like one by a key that
    /// nobody has (`mr_check_range` of `rxe_mr.c`).
    pub beyond: WcStatus,
    /// Whether a reset in the midst of traffic does the kernel harm: before Linux 6.4, which also
    /// flushes no request that failed by itself, it does not wait for a responder that another
    /// queue pair's packet has started, and both give back the same reference (`rxe_qp_reset` of
    /// `rxe_qp.c`, `cleanup` of `rxe_resp.c`). What then becomes of the queue pair can't be
    /// foretold, so such resets are left out.
    pub harmed_by_resets: bool,
    /// Whether the destruction of a queue pair may wait 50 seconds in vain that reliable sends are
    /// under way of, or wait for their receive: before Linux 6.4 at least, which also flushes no
    /// request that failed by itself, an answer that comes in the midst of a retry is looked at
    /// with the next one only, and none finds a queue pair that is being destroyed (`rxe_completer`
    /// of `rxe_comp.c`). What is told to go to ERR first has nothing left of that.
    pub outlived_by_answers: bool,
    /// Whether the timer by which a message waits for its receive outlives a reset, and strikes in
    /// the queue pair's next life: what is under way then is sent again, and a fenced read waits
    /// for itself for ever. Soft-RoCE's reset does not stop it (`rxe_qp_reset` of `rxe_qp.c`,
    /// `rnr_nak_timer` of `rxe_req.c`).
    pub timer_outlives_reset: bool,
    /// How a message ends that is longer than its receive, for sender and receiver. The
    /// specification says an invalid request and a local length error; the kernel takes the receive
    /// for malformed (`send_data_in` of `rxe_resp.c`).
    pub too_short: (WcStatus, WcStatus),
    /// How the invalidation of a window that is none ends: the specification says with a memory
    /// management error, and Soft-RoCE with a local operation error.
    pub no_window: WcStatus,
    /// Whether the slot of a request that nobody asked about is free only once the completion of a
    /// later one was seen: where the ring itself tells no news, as on a ConnectX.
    pub holds_unsignalled: bool,
    /// Whether a write may overtake a read before it, as the specification lets requests without a
    /// fence. Soft-RoCE carries out one after the other; elsewhere nothing is written that was
    /// asked for just before. No trial tells.
    pub overtakes_reads: bool,
    /// Whether an unreliable connection falls as a whole when a send fails on its own side. The
    /// specification lets it go on receiving, in SQE; the model does not know that state, so that
    /// where there is one such sends are left out.
    pub unreliable_fall: bool,
    /// Whether a window is bound to a region that does not allow it: on a ConnectX a bind changes a
    /// memory key, and nobody looks at the region. Such binds are left out then.
    pub binds_to_any: bool,
}

impl Quirks {
    /// What the specification says.
    pub const NONE: Self = Self {
        flushes_the_failed: false,
        bad_lkey: WcStatus::LOC_PROT_ERR,
        beyond: WcStatus::LOC_PROT_ERR,
        harmed_by_resets: false,
        outlived_by_answers: false,
        timer_outlives_reset: false,
        too_short: (WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR),
        no_window: WcStatus::MW_BIND_ERR,
        holds_unsignalled: false,
        overtakes_reads: true,
        unreliable_fall: false,
        binds_to_any: false,
    };
}

/// A state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It does nothing.
    Reset,
    /// It sends and receives.
    Up,
    /// It flushes.
    Error,
}

/// How the completions of a queue pair are to be taken that was brought down in the midst of its
/// traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aborted {
    /// It was not.
    No,
    /// Some as predicted, the others flushed.
    Flushing,
    /// Some as predicted, then none.
    Gone,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// As it was made.
    pub plan: QpPlan,
    /// Its state.
    pub state: State,
    /// As it was connected last.
    pub connection: Option<Connection>,
    /// Sends and receives that have room.
    pub room: (usize, usize),
    /// Sends that wait: for a receive, or for a peer that is gone.
    pub waiting: VecDeque<Request>,
    /// Receives that no message has found.
    pub receives: VecDeque<Receive>,
    /// Whether it was told to go to ERR: then receives that are posted there are flushed.
    told: bool,
    /// Receives that were posted to a queue pair that fell by itself: the kernel looks at them when
    /// it is told to go to ERR, and may do so before, for a packet or, from Linux 6.4 on, a send.
    pub idle: Vec<u64>,
    sends_expected: VecDeque<Expect>,
    /// Sends of earlier rounds that were carried out, which nobody asked about and no completion
    /// since tells of.
    unasked: Vec<u64>,
    receives_expected: VecDeque<Expect>,
    aborted: Aborted,
    flushing: [bool; 2],
    /// The last receive of a shared queue that a completion of this one had.
    last_shared: u64,
    /// The round in which sends were last posted.
    pub busy: u64,
    /// The round in which a send last waited.
    pub waited: u64,
    /// The round in which nothing more may be posted.
    pub sealed: u64,
    /// Whether a message was lost for want of a receive, or is on its way from a peer that was
    /// taken away while it waited for one: who knows when it arrives, so that no receive may be
    /// posted.
    pub spoiled: bool,
    /// The round in which it last bound or invalidated a window, or had one invalidated.
    pub rebound: u64,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Its domain.
    pub pd: Id,
    /// Receives that have room.
    pub room: usize,
    /// Receives that no completion has told of.
    pub posted: VecDeque<Receive>,
    /// How many of them messages have found.
    pub promised: usize,
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Its domain.
    pub pd: Id,
    /// Whether it is of type 2.
    pub type_2: bool,
    /// The region, the rights and the queue pair that bound it.
    pub bound: Option<(Id, Access, Id)>,
    /// The region that it was bound to before it was last bound or invalidated, which may still be
    /// under way.
    pub left: Option<Id>,
    /// The round in which it was last bound, invalidated or used.
    pub touched: u64,
}

impl Window {
    /// Whether it may be bound to a region, whatever is under way in this round.
    #[must_use]
    pub fn holds(&self, mr: Id, round: u64) -> bool {
        self.bound.is_some_and(|(region, ..)| region == mr) || self.touched == round && self.left == Some(mr)
    }
}

/// All objects, and what must come of them.
#[derive(Debug)]
pub struct Model {
    /// What the kernel does otherwise.
    pub quirks: Quirks,
    /// Counts up when all that must happen has happened.
    pub round: u64,
    /// Domains.
    pub pds: BTreeSet<Id>,
    /// Completion queues, and how many completions each has room for.
    pub cqs: BTreeMap<Id, usize>,
    /// Shared receive queues.
    pub srqs: BTreeMap<Id, Srq>,
    /// Regions.
    pub mrs: BTreeMap<Id, Region>,
    /// Windows.
    pub mws: BTreeMap<Id, Window>,
    /// Queue pairs.
    pub qps: BTreeMap<Id, Qp>,
}

impl Model {
    /// An empty iteration.
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
        self.quirks.outlived_by_answers && qp.plan.kind == Kind::Rc && qp.state == State::Up
    }

    /// The queue pair at the other end, while it is one.
    #[must_use]
    pub fn peer(&self, id: Id) -> Option<Id> {
        let connection = self.qp(id).connection.as_ref()?;
        let other = if connection.a == id { connection.b } else { connection.a };
        let there = self.qps.get(&other)?;
        (there.connection.as_ref() == Some(connection)).then_some(other)
    }

    /// How many completions may come into a queue before they are looked at.
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

    /// How many more may.
    #[must_use]
    pub fn free(&self, cq: Id) -> usize {
        self.cqs[&cq].saturating_sub(self.load(cq))
    }

    /// Of how many messages the completions at both ends may.
    #[must_use]
    pub fn messages(&self, send_cq: Id, recv_cq: Id) -> usize {
        if send_cq == recv_cq { self.free(send_cq) / 2 } else { self.free(send_cq).min(self.free(recv_cq)) }
    }

    /// Carries a verb out. Tells how many requests a post takes, for the others.
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
                let made = Srq { pd: *pd, room: *room as usize, posted: VecDeque::new(), promised: 0 };
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
            self.qp_mut(peer).spoiled = true;
        }
        match end {
            End::Error => {
                self.enter_error(id);
                self.qp_mut(id).told = true;
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

    /// Two ends of a connection go, whatever they do.
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
            qp.told = end == End::Error;
            qp.state = State::Error;
        }
    }

    /// After an [`Op::Abort`], when all completions have been looked at that were there when it was
    /// over.
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

    /// Checks that nothing is missing, and goes on to the next round.
    ///
    /// # Errors
    /// What is missing.
    pub fn settle(&mut self) -> Result<(), String> {
        if let Some(missing) = self.missing() {
            return Err(missing);
        }
        self.round += 1;
        let mut open = BTreeSet::new();
        for (&id, qp) in &mut self.qps {
            qp.aborted = Aborted::No;
            qp.flushing = [false; 2];
            if !self.quirks.holds_unsignalled {
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
            told: false,
            idle: Vec::new(),
            sends_expected: VecDeque::new(),
            unasked: Vec::new(),
            receives_expected: VecDeque::new(),
            aborted: Aborted::No,
            flushing: [false; 2],
            last_shared: 0,
            busy: 0,
            waited: 0,
            sealed: 0,
            spoiled: false,
            rebound: 0,
        }
    }

    /// Whether all that was posted before this round is complete or waits, and nothing was posted
    /// in it.
    #[must_use]
    pub fn rests(&self, round: u64) -> bool {
        let quiet =
            self.sends_expected.iter().all(|expect| expect.silent) && self.receives_expected.is_empty();
        quiet && self.busy < round && self.sealed < round
    }

    /// Sends that certainly have room.
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.room.0.saturating_sub(self.waiting.len() + self.sends_expected.len())
    }

    /// Receives that certainly have room.
    #[must_use]
    pub fn receive_room(&self) -> usize {
        self.room.1.saturating_sub(self.receives.len() + self.receives_expected.len() + self.idle.len())
    }

    /// Whether datagrams of this round are from one sender only: others could come before or after
    /// them.
    #[must_use]
    pub fn receives_only_from(&self, sender: Id) -> bool {
        self.receives_expected.iter().all(|expect| expect.sender == Some(sender))
    }
}
