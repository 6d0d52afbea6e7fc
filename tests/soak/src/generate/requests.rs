//! Requests, most of which succeed.

use std::collections::VecDeque;
use std::ops::Range;

use bareverbs::Access;

use super::Generator;
use crate::model::{Model, State};
use crate::op::{Action, Id, Key, Kind, Op, Payload, Piece, RECEIVE, Receive, Request};

/// Bytes of a receive of an SRQ. Each message to an SRQ fits.
pub(super) const SHARED: usize = 2048;
/// Bytes of the longest message or transfer.
pub(super) const LONGEST: usize = 6000;
/// Bytes of the GRH before a datagram.
const HEADER: usize = bareverbs::qp::GRH_BYTES;
/// Bytes of the longest datagram.
const DATAGRAM: usize = 1000;

/// A list of requests under construction.
pub(super) struct List {
    pub(super) qp: Id,
    pub(super) requests: Vec<Request>,
    /// The memory that the requests use: region, bytes, whether they are written, whether they are
    /// the peer's memory.
    pub(super) memory: Vec<(Id, Range<usize>, bool, bool)>,
    /// Sizes of the peer's receives that no message of the list uses. `None` if the peer uses an
    /// SRQ.
    pub(super) receives: Option<VecDeque<usize>>,
    /// Remaining receives of the peer's SRQ.
    pub(super) shared: usize,
    /// Whether a request before the next one waits.
    pub(super) blocked: bool,
    /// Whether a request before the next one fails.
    pub(super) failed: bool,
    /// Whether both ends are idle, so that a request may fail.
    pub(super) may_fail: bool,
}

impl List {
    /// Whether a request binds or invalidates this window.
    pub(super) fn changes(&self, mw: Id) -> bool {
        self.requests.iter().any(|request| match request.action {
            Action::Bind(other, ..) | Action::LocalInv(Some(other)) | Action::SendInv(other) => other == mw,
            _ => false,
        })
    }

    /// Whether a request uses this window.
    pub(super) fn uses(&self, mw: Id) -> bool {
        self.requests.iter().any(|request| match request.action {
            Action::Write(target, _)
            | Action::Read(target)
            | Action::CmpSwp(target, ..)
            | Action::FetchAdd(target, _)
            | Action::AtomicWrite(target, _)
            | Action::Flush(target, _) => target.key == Key::Window(mw),
            _ => false,
        })
    }

    pub(super) fn is_free(
        &self,
        model: &Model,
        mr: Id,
        range: &Range<usize>,
        write: bool,
        remote: bool,
    ) -> bool {
        let all = !model.quirks.overtakes_reads;
        model.mrs[&mr].is_free(range, write, remote, self.qp, all)
            && self.memory.iter().all(|(other, used, written, far)| {
                let apart = *other != mr || used.end <= range.start || range.end <= used.start;
                apart || !(write || *written) || remote && *far && (all || *written)
            })
    }
}

impl Generator {
    /// Pieces of a PD's regions, `len` bytes in total, that may be read or written.
    pub(super) fn pieces(
        &mut self,
        model: &Model,
        list: &List,
        pd: Id,
        most: usize,
        len: usize,
        write: bool,
    ) -> Option<Vec<Piece>> {
        if len == 0 {
            return Some(Vec::new());
        }
        let count = if len < 8 { 1 } else { self.rng.usize(1..=most.max(1)) };
        let mut pieces: Vec<Piece> = Vec::new();
        for i in 0..count {
            let part =
                if i + 1 == count { len - pieces.iter().map(Piece::len).sum::<usize>() } else { len / count };
            let fit = model.mrs.iter().filter(|(_, region)| {
                region.pd == pd
                    && region.bytes.len() >= part
                    && (!write || region.access.contains(Access::LOCAL_WRITE))
            });
            let mr = self.pick(fit.map(|(mr, _)| *mr))?;
            let start = self.rng.usize(..=model.mrs[&mr].bytes.len() - part);
            let range = start..start + part;
            let among = |other: &Piece| {
                other.mr == Some(mr)
                    && write
                    && other.range.start < range.end
                    && range.start < other.range.end
            };
            if pieces.iter().any(among) || !list.is_free(model, mr, &range, write, false) {
                return None;
            }
            pieces.push(Piece { mr: Some(mr), range });
        }
        Some(pieces)
    }

    fn empty_list(qp: Id) -> List {
        let (requests, memory, receives) = (Vec::new(), Vec::new(), None);
        List { qp, requests, memory, receives, shared: 0, blocked: false, failed: false, may_fail: false }
    }

    /// A transfer length in bytes, mostly short.
    pub(super) fn len(&mut self, most: usize) -> usize {
        match self.rng.u32(..8) {
            0 => 0,
            1..=4 => self.rng.usize(..=most.min(100)),
            _ => self.rng.usize(..=most),
        }
    }

    pub(super) fn post_recv(&mut self, model: &Model) -> Option<Op> {
        let round = model.round;
        let ready = model.qps.iter().filter(|(_, qp)| {
            qp.state != State::Reset
                && qp.plan.srq.is_none()
                && !qp.recv_unusable
                && qp.no_posts_in_round < round
        });
        let id = self.pick(ready.map(|(id, _)| *id))?;
        let qp = model.qp(id);
        let room = qp.receive_room();
        // One more than the capacity, if the free capacity is known.
        let rests = qp.rests(round) && model.peer(id).is_none_or(|peer| model.qp(peer).rests(round));
        let too_many = qp.plan.kind != Kind::Ud && rests && qp.idle.is_empty() && self.one_in(30);
        let count = if too_many { room + 1 } else { self.rng.usize(1..=6).min(room) };
        if model.load(qp.plan.recv_cq) + count > model.cqs[&qp.plan.recv_cq] {
            return None;
        }
        let mut list = Self::empty_list(id);
        let mut receives = Vec::new();
        // Waiting messages must fit: a failure while other requests are outstanding has no single
        // outcome.
        let waiting = model.peer(id).map(|peer| model.qp(peer).waiting.iter()).into_iter().flatten();
        let mut waiting = waiting.filter(|request| matches!(request.action, Action::Send(_)));
        for _ in 0..count {
            let least = if qp.plan.kind == Kind::Ud { HEADER } else { 0 };
            let awaited = waiting.next().map_or(0, |request| request.payload.len());
            let len = (least + self.len(LONGEST - HEADER)).max(awaited);
            let pieces = self.pieces(model, &list, qp.plan.pd, qp.plan.pieces as usize, len, true)?;
            list.memory.extend(
                pieces.iter().filter_map(|piece| Some((piece.mr?, piece.range.clone(), true, false))),
            );
            receives.push(Receive { wr_id: RECEIVE | self.wr_id(), pieces });
        }
        (!receives.is_empty()).then_some(Op::PostRecv(id, receives))
    }

    pub(super) fn post_srq(&mut self, model: &Model) -> Option<Op> {
        let srq = self.pick(model.srqs.keys().copied())?;
        let queue = &model.srqs[&srq];
        let mut list = Self::empty_list(srq);
        let mut receives = Vec::new();
        for _ in 0..self.rng.usize(1..=6).min(queue.room - queue.posted.len()) {
            let pieces = self.pieces(model, &list, queue.pd, 1, SHARED + HEADER, true)?;
            list.memory.extend(
                pieces.iter().filter_map(|piece| Some((piece.mr?, piece.range.clone(), true, false))),
            );
            receives.push(Receive { wr_id: RECEIVE | self.wr_id(), pieces });
        }
        (!receives.is_empty()).then_some(Op::PostSrq(srq, receives))
    }

    pub(super) fn post_send(&mut self, model: &Model) -> Option<Op> {
        let ready = |id: Id| {
            let qp = model.qp(id);
            if qp.plan.kind == Kind::Ud || qp.state == State::Error {
                return qp.state != State::Reset && qp.no_posts_in_round < model.round;
            }
            let fit = |qp: &crate::model::Qp| qp.state == State::Up && qp.no_posts_in_round < model.round;
            fit(qp) && model.peer(id).is_some_and(|peer| fit(model.qp(peer)))
        };
        let id = self.pick(model.qps.keys().copied().filter(|id| ready(*id)))?;
        let qp = model.qp(id);
        let room = qp.send_room();
        let mut most = self.rng.usize(1..=8).min(room).min(model.free(qp.plan.send_cq));
        if qp.plan.kind != Kind::Ud
            && let Some(peer) = model.peer(id)
        {
            most = most.min(model.messages(qp.plan.send_cq, model.qp(peer).plan.recv_cq));
        }
        if most == 0 {
            return None;
        }
        let mut list = Self::empty_list(id);
        if qp.state == State::Error {
            self.fill_flushed(&mut list, most);
        } else if qp.plan.kind == Kind::Ud {
            self.fill_with_datagrams(model, &mut list, most);
        } else {
            self.fill(model, &mut list, most);
        }
        // The completion of the last one covers all.
        list.requests.last_mut()?.signalled = true;
        Some(Op::PostSend(id, list.requests))
    }

    pub(super) fn request(&mut self, action: Action, payload: Payload) -> Request {
        let (signalled, fence, solicited) = (self.rng.bool(), self.one_in(5), self.one_in(5));
        Request { wr_id: self.wr_id(), action, payload, signalled, fence, solicited }
    }

    /// Requests to a queue pair in ERR.
    fn fill_flushed(&mut self, list: &mut List, most: usize) {
        for _ in 0..most {
            let request = self.request(Action::Send(None), Payload::Pieces(Vec::new()));
            list.requests.push(request);
        }
    }

    fn fill_with_datagrams(&mut self, model: &Model, list: &mut List, most: usize) {
        let plan = &model.qp(list.qp).plan;
        let peers =
            model.qps.iter().filter(|(_, qp)| qp.plan.kind == Kind::Ud && qp.receives_only_from(list.qp));
        let Some((to, there)) = self.pick(peers) else { return };
        let up = there.state == State::Up;
        let mut rooms: VecDeque<usize> =
            there.receives.iter().map(|receive| receive.pieces.iter().map(Piece::len).sum()).collect();
        let mut shared = there.plan.srq.map(|srq| model.srqs[&srq].posted.len() - model.srqs[&srq].consumed);
        for _ in 0..most {
            let right = !self.one_in(8);
            let len = self.len(DATAGRAM);
            let Some(payload) = self.outgoing(model, list, plan.pd, plan.pieces, plan.inline, len) else {
                continue;
            };
            if right && up {
                if model.messages(plan.send_cq, there.plan.recv_cq) < most {
                    continue;
                }
                let fits = match &mut shared {
                    Some(left) if *left > 0 => {
                        *left -= 1;
                        true
                    }
                    Some(_) => false,
                    None => match rooms.front() {
                        Some(room) if *room >= HEADER + len => rooms.pop_front().is_some(),
                        // The message is lost without a receive. Afterwards the queue pair can't be
                        // used for receives.
                        None => self.one_in(20),
                        Some(_) => false,
                    },
                };
                if !fits {
                    continue;
                }
            }
            let imm = self.rng.bool().then(|| self.rng.u32(..));
            let request = self.request(Action::Datagram(*to, right, imm), payload);
            self.push(list, request, None);
        }
    }

    /// Bytes to send: inline if possible, or from regions.
    pub(super) fn outgoing(
        &mut self,
        model: &Model,
        list: &List,
        pd: Id,
        pieces: u32,
        inline: u32,
        len: usize,
    ) -> Option<Payload> {
        if len <= inline as usize && self.rng.bool() {
            let mut bytes = vec![0; len];
            self.rng.fill(&mut bytes);
            return Some(Payload::Inline(bytes));
        }
        self.pieces(model, list, pd, pieces as usize, len, false).map(Payload::Pieces)
    }

    pub(super) fn push(
        &mut self,
        list: &mut List,
        request: Request,
        remote: Option<(Id, Range<usize>, bool)>,
    ) {
        let fills = matches!(request.action, Action::Read(_) | Action::CmpSwp(..) | Action::FetchAdd(..));
        if let Payload::Pieces(pieces) = &request.payload {
            list.memory.extend(
                pieces.iter().filter_map(|piece| Some((piece.mr?, piece.range.clone(), fills, false))),
            );
        }
        list.memory.extend(remote.map(|(mr, range, write)| (mr, range, write, true)));
        list.requests.push(request);
    }
}
