//! Execution of requests.

use bareverbs::{Access, WcOpcode, WcStatus};

use super::{Claim, Expect, Model, State};
use crate::op::{Action, Id, Key, Kind, Payload, Piece, Receive, Request, Target};

/// Bytes of the GRH before a datagram.
const HEADER: usize = bareverbs::qp::GRH_BYTES;

/// The result of the first waiting request.
enum Step {
    /// It was executed.
    Done,
    /// It still waits.
    Waits,
    /// It failed. A failure that is detected locally before sending may have another status.
    Fails { status: WcStatus, before_sending: bool },
    /// It failed at the peer, which goes to ERR too.
    FailsThere(WcStatus),
}

/// A message to a receive.
struct Message {
    bytes: Vec<u8>,
    opcode: WcOpcode,
    imm: Option<u32>,
    invalidates: Option<Id>,
    sender: Option<Id>,
}

impl Model {
    pub(super) fn post_sends(&mut self, id: Id, requests: &[Request]) -> usize {
        let round = self.round;
        let qp = self.qp_mut(id);
        let taken = requests.len().min(qp.room.0 - qp.waiting.len());
        qp.busy = round;
        qp.waiting.extend(requests[..taken].iter().cloned());
        for request in &requests[..taken] {
            self.claim_request(id, request);
        }
        self.execute(id);
        taken
    }

    pub(super) fn post_receives(&mut self, id: Id, receives: &[Receive]) -> usize {
        let qp = self.qp_mut(id);
        let taken = receives.len().min(qp.room.1 - qp.receives.len() - qp.idle.len());
        let receives = &receives[..taken];
        if qp.state == State::Error {
            let numbers = receives.iter().map(|receive| receive.wr_id);
            if qp.modified_to_err {
                qp.receives_expected.extend(numbers.map(Expect::flushed));
            } else {
                qp.idle.extend(numbers);
            }
            return taken;
        }
        qp.receives.extend(receives.iter().cloned());
        for receive in receives {
            self.claim_pieces(&receive.pieces, true, id, receive.wr_id);
        }
        if let Some(peer) = self.peer(id) {
            let round = self.round;
            let there = self.qp_mut(peer);
            if !there.waiting.is_empty() {
                there.waited = round;
            }
            self.execute(peer);
        }
        taken
    }

    /// Goes to ERR: all posted requests are flushed.
    pub(super) fn enter_error(&mut self, id: Id) {
        self.flush_sends(id);
        let qp = self.qp_mut(id);
        qp.state = State::Error;
        let idle = std::mem::take(&mut qp.idle).into_iter();
        let receives = std::mem::take(&mut qp.receives).into_iter().map(|receive| receive.wr_id);
        qp.receives_expected.extend(receives.chain(idle).map(Expect::flushed));
    }

    fn flush_sends(&mut self, id: Id) {
        let round = self.round;
        let qp = self.qp_mut(id);
        qp.no_posts_in_round = round;
        for request in std::mem::take(&mut qp.waiting) {
            qp.sends_expected.push_back(Expect::flushed(request.wr_id));
        }
    }

    fn claim_request(&mut self, id: Id, request: &Request) {
        let fills = matches!(request.action, Action::Read(_) | Action::CmpSwp(..) | Action::FetchAdd(..));
        if let Payload::Pieces(pieces) = &request.payload {
            self.claim_pieces(pieces, fills, id, request.wr_id);
        }
        let (target, len, write) = match request.action {
            Action::Write(target, _) => (target, request.payload.len(), true),
            Action::Read(target) => (target, request.payload.len(), false),
            Action::Flush(target, len) => (target, len, false),
            Action::CmpSwp(target, ..) | Action::FetchAdd(target, _) | Action::AtomicWrite(target, _) => {
                (target, 8, true)
            }
            _ => return,
        };
        if let Key::Window(mw) = target.key
            && let Some(window) = self.mws.get_mut(&mw)
        {
            window.touched = self.round;
        }
        if let Some(region) = self.mrs.get_mut(&target.mr) {
            let range = target.offset..(target.offset + len).min(region.bytes.len());
            let (owner, wr_id) = (id, request.wr_id);
            region.claims.push(Claim { range, write, remote: true, owner, wr_id });
        }
    }

    /// Executes the waiting requests of a queue pair as far as possible.
    fn execute(&mut self, id: Id) {
        while let Some(request) = self.qp(id).waiting.front().cloned() {
            if self.qp(id).state == State::Error {
                return self.flush_sends(id);
            }
            let step = self.step(id, &request);
            let (quirks, round) = (self.quirks, self.round);
            let qp = self.qp_mut(id);
            let silent = !request.signalled && !qp.plan.signal_all;
            match step {
                Step::Waits => {
                    qp.waited = round;
                    return;
                }
                Step::Done => {
                    qp.waiting.pop_front();
                    let expect = Expect { silent, ..Expect::sent(&request) };
                    qp.sends_expected.push_back(expect);
                }
                Step::Fails { status, before_sending } => {
                    qp.waiting.pop_front();
                    let hidden = before_sending && quirks.failed_wr_reports_flush;
                    qp.sends_expected.push_back(if hidden {
                        Expect { failure: Some((request.wr_id, status)), ..Expect::flushed(request.wr_id) }
                    } else {
                        Expect { status, ..Expect::flushed(request.wr_id) }
                    });
                    return self.enter_error(id);
                }
                Step::FailsThere(status) => {
                    qp.waiting.pop_front();
                    qp.sends_expected.push_back(Expect { status, ..Expect::flushed(request.wr_id) });
                    self.enter_error(id);
                    if let Some(peer) = self.peer(id) {
                        self.enter_error(peer);
                    }
                    return;
                }
            }
        }
    }

    fn step(&mut self, id: Id, request: &Request) -> Step {
        let (kind, pd) = (self.qp(id).plan.kind, self.qp(id).plan.pd);
        let local = |status| Step::Fails { status, before_sending: true };
        match request.action {
            Action::Bind(mw, mr, access) => return self.bind(id, mw, mr, access),
            Action::LocalInv(mw) => {
                let Some(mw) = mw else { return local(self.quirks.local_inv_unbound_status) };
                self.unbind(id, mw);
                return Step::Done;
            }
            _ => {}
        }
        let bytes = match (&request.payload, &request.action) {
            (Payload::Inline(bytes), _) => bytes.clone(),
            (
                Payload::Pieces(pieces),
                Action::Send(_) | Action::SendInv(_) | Action::Write(..) | Action::Datagram(..),
            ) => {
                if !self.usable(pd, pieces, false) {
                    let known = |piece: &Piece| piece.mr.is_some_and(|mr| self.mrs.contains_key(&mr));
                    let quirks = self.quirks;
                    return local(if pieces.iter().all(known) { quirks.beyond } else { quirks.bad_lkey });
                }
                self.gather(pieces)
            }
            _ => Vec::new(),
        };
        if let Action::Datagram(to, right_key, imm) = request.action {
            if right_key && self.qps.get(&to).is_some_and(|there| there.state == State::Up) {
                let message =
                    Message { bytes, opcode: WcOpcode::RECV, imm, invalidates: None, sender: Some(id) };
                self.deliver(to, &message);
            }
            return Step::Done;
        }
        let Some(peer) = self.peer(id).filter(|peer| self.qp(*peer).state == State::Up) else {
            return Step::Waits;
        };
        let message =
            |bytes, opcode, imm, invalidates| Message { bytes, opcode, imm, invalidates, sender: None };
        match request.action {
            Action::Send(imm) => self.match_receive(id, peer, &message(bytes, WcOpcode::RECV, imm, None)),
            Action::SendInv(mw) => {
                self.match_receive(id, peer, &message(bytes, WcOpcode::RECV, None, Some(mw)))
            }
            Action::Write(target, imm) => {
                if let Err(status) = self.check(peer, target, bytes.len(), Access::REMOTE_WRITE) {
                    // Lost UC messages are not reported.
                    return if kind == Kind::Rc { Step::FailsThere(status) } else { Step::Done };
                }
                if imm.is_some() {
                    match self.match_receive(
                        id,
                        peer,
                        &message(bytes.clone(), WcOpcode::RECV_RDMA_WITH_IMM, imm, None),
                    ) {
                        Step::Done if kind == Kind::Rc || !self.qp(peer).recv_unusable => {}
                        other => return other,
                    }
                }
                self.store(target.mr, target.offset, &bytes);
                Step::Done
            }
            Action::Read(target) => {
                let len = request.payload.len();
                if let Err(status) = self.check(peer, target, len, Access::REMOTE_READ) {
                    return Step::FailsThere(status);
                }
                let bytes = self.mrs[&target.mr].bytes[target.offset..target.offset + len].to_vec();
                self.store_result(pd, &request.payload, &bytes)
            }
            Action::CmpSwp(target, compare, swap) => {
                self.atomic(peer, pd, target, &request.payload, |old| if old == compare { swap } else { old })
            }
            Action::FetchAdd(target, add) => {
                self.atomic(peer, pd, target, &request.payload, |old| old.wrapping_add(add))
            }
            Action::AtomicWrite(target, value) => {
                if let Err(status) = self.check(peer, target, 8, Access::REMOTE_WRITE) {
                    return Step::FailsThere(status);
                }
                self.store(target.mr, target.offset, &value.to_ne_bytes());
                Step::Done
            }
            Action::Flush(target, len) => match self.check(peer, target, len, Access::FLUSH_GLOBAL) {
                Err(status) => Step::FailsThere(status),
                Ok(()) => Step::Done,
            },
            Action::Bind(..) | Action::LocalInv(_) | Action::Datagram(..) => {
                unreachable!("carried out above")
            }
        }
    }

    /// Whether the peer may access memory of `id` with this right.
    fn check(&self, id: Id, target: Target, len: usize, right: Access) -> Result<(), WcStatus> {
        let qp = self.qp(id);
        if !qp.connection.is_some_and(|connection| connection.access.contains(right)) {
            return Err(WcStatus::REM_INV_REQ_ERR);
        }
        let region = match target.key {
            Key::Invalid => None,
            Key::Region => self
                .mrs
                .get(&target.mr)
                .filter(|region| region.pd == qp.plan.pd)
                .map(|region| (region, region.access)),
            Key::Window(mw) => self.mws.get(&mw).filter(|mw| mw.pd == qp.plan.pd).and_then(|mw| {
                let (mr, access, owner) = mw.bound?;
                let here = mr == target.mr && (!mw.type_2 || owner == id);
                here.then(|| (&self.mrs[&mr], access))
            }),
        };
        match region {
            Some((region, access)) if access.contains(right) && target.offset + len <= region.bytes.len() => {
                Ok(())
            }
            _ => Err(WcStatus::REM_ACCESS_ERR),
        }
    }

    fn atomic(
        &mut self,
        peer: Id,
        pd: Id,
        target: Target,
        result: &Payload,
        change: impl Fn(u64) -> u64,
    ) -> Step {
        if let Err(status) = self.check(peer, target, 8, Access::REMOTE_ATOMIC) {
            return Step::FailsThere(status);
        }
        let old = self.word(target.mr, target.offset);
        self.store(target.mr, target.offset, &change(old).to_ne_bytes());
        self.store_result(pd, result, &old.to_ne_bytes())
    }

    /// Stores the result of a read or an atomic.
    fn store_result(&mut self, pd: Id, to: &Payload, bytes: &[u8]) -> Step {
        let Payload::Pieces(pieces) = to else { unreachable!("results go to registered memory") };
        if !self.usable(pd, pieces, true) {
            return Step::Fails { status: WcStatus::LOC_PROT_ERR, before_sending: false };
        }
        self.scatter(pieces, bytes);
        Step::Done
    }

    /// Matches an RC or UC message with a receive of the peer.
    fn match_receive(&mut self, id: Id, peer: Id, message: &Message) -> Step {
        let reliable = self.qp(id).plan.kind == Kind::Rc;
        let some = match self.qp(peer).plan.srq {
            Some(srq) => self.srqs[&srq].posted.len() > self.srqs[&srq].consumed,
            None => !self.qp(peer).receives.is_empty(),
        };
        if !some && reliable {
            let rnr_retry_zero = self.qp(id).connection.is_some_and(|connection| connection.rnr_retry_zero);
            let status = WcStatus::RNR_RETRY_EXC_ERR;
            if rnr_retry_zero {
                let round = self.round;
                self.qp_mut(peer).no_posts_in_round = round;
            }
            return if rnr_retry_zero { Step::Fails { status, before_sending: false } } else { Step::Waits };
        }
        if self.deliver(peer, message) { Step::Done } else { Step::FailsThere(self.quirks.too_short.0) }
    }

    /// Delivers a message to a queue pair. False if it is longer than its receive.
    fn deliver(&mut self, to: Id, message: &Message) -> bool {
        let qp = self.qp_mut(to);
        let header = if qp.plan.kind == Kind::Ud { HEADER } else { 0 };
        let received = Expect::received(message.opcode, header + message.bytes.len(), message.imm);
        let expect = Expect { invalidated: message.invalidates, sender: message.sender, ..received };
        let is_write = message.opcode == WcOpcode::RECV_RDMA_WITH_IMM;
        if let Some(srq) = qp.plan.srq {
            let bytes = (!is_write).then(|| message.bytes.clone());
            qp.receives_expected.push_back(Expect { shared: Some(srq), bytes, header, ..expect });
            self.srqs.get_mut(&srq).expect("the shared queue outlives its queue pairs").consumed += 1;
            self.invalidate(to, message);
            return true;
        }
        let Some(receive) = qp.receives.pop_front() else {
            qp.recv_unusable = true;
            return true;
        };
        let wr_id = Some(receive.wr_id);
        let room: usize = receive.pieces.iter().map(Piece::len).sum();
        if !is_write && room < header + message.bytes.len() {
            let status = self.quirks.too_short.1;
            let qp = self.qp_mut(to);
            qp.receives_expected.push_back(Expect { status, ..Expect::flushed(receive.wr_id) });
            self.scatter_unknown(&receive.pieces, room);
            return false;
        }
        qp.receives_expected.push_back(Expect { wr_id, ..expect });
        if !is_write {
            self.write_received(&receive.pieces, header, &message.bytes);
        }
        self.invalidate(to, message);
        true
    }

    /// Stores a message in a receive's memory, after a header that the kernel writes.
    pub(super) fn write_received(&mut self, pieces: &[Piece], header: usize, bytes: &[u8]) {
        let padded: Vec<u8> = std::iter::repeat_n(0, header).chain(bytes.iter().copied()).collect();
        self.scatter(pieces, &padded);
        self.scatter_unknown(pieces, header);
    }

    fn invalidate(&mut self, at: Id, message: &Message) {
        if let Some(mw) = message.invalidates {
            self.unbind(at, mw);
        }
    }

    fn bind(&mut self, id: Id, mw: Id, mr: Id, access: Access) -> Step {
        let round = self.round;
        self.qp_mut(id).mw_changed_in_round = round;
        let (qp_pd, region) = (self.qp(id).plan.pd, &self.mrs[&mr]);
        let window = &self.mws[&mw];
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = window.pd == qp_pd
            && region.pd == qp_pd
            && region.access.contains(Access::MW_BIND)
            && (!writes || region.access.contains(Access::LOCAL_WRITE))
            && !(window.type_2 && window.bound.is_some());
        if !allowed {
            return Step::Fails { status: WcStatus::MW_BIND_ERR, before_sending: true };
        }
        let window = self.mws.get_mut(&mw).expect("the window exists");
        window.left = window.bound.replace((mr, access, id)).map(|(region, ..)| region);
        window.touched = round;
        Step::Done
    }

    fn unbind(&mut self, at: Id, mw: Id) {
        let round = self.round;
        self.qp_mut(at).mw_changed_in_round = round;
        let window = self.mws.get_mut(&mw).expect("the window exists");
        window.left = window.bound.take().map(|(region, ..)| region);
        window.touched = round;
    }
}
