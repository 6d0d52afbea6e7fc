//! Expected completions, and the comparison with polled ones.

use std::collections::VecDeque;

use bareverbs::{WcOpcode, WcStatus};

use super::{Aborted, Model, Qp, State};
use crate::op::{Action, Id, RECEIVE, Request, Seen};

/// An expected completion, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// The request's id. `None` for any receive of the SRQ.
    pub wr_id: Option<u64>,
    /// The SRQ of its receive.
    pub shared: Option<Id>,
    /// The status.
    pub status: WcStatus,
    /// The opcode.
    pub opcode: WcOpcode,
    /// The length in bytes, if the completion has one.
    pub byte_len: Option<u32>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The window that the message invalidated.
    pub invalidated: Option<Id>,
    /// The sender of a datagram.
    pub sender: Option<Id>,
    /// The failure that the queue pair reports: `wr_id` and status.
    pub failure: Option<(u64, WcStatus)>,
    /// Whether the request is unsignalled, so that no completion is generated.
    pub silent: bool,
    /// The data in the memory of an SRQ receive.
    pub bytes: Option<Vec<u8>>,
    /// The GRH bytes before the data, for datagrams.
    pub header: usize,
}

impl Expect {
    pub(super) fn flushed(wr_id: u64) -> Self {
        Self {
            wr_id: Some(wr_id),
            shared: None,
            status: WcStatus::WR_FLUSH_ERR,
            opcode: WcOpcode::SEND,
            byte_len: None,
            imm: None,
            invalidated: None,
            sender: None,
            failure: None,
            silent: false,
            bytes: None,
            header: 0,
        }
    }

    pub(super) fn sent(request: &Request) -> Self {
        let len = request.payload.len() as u32;
        let (opcode, byte_len) = match request.action {
            Action::Send(_) | Action::SendInv(_) | Action::Datagram(..) => (WcOpcode::SEND, None),
            Action::Write(..) => (WcOpcode::RDMA_WRITE, None),
            Action::Read(_) => (WcOpcode::RDMA_READ, Some(len)),
            Action::CmpSwp(..) => (WcOpcode::COMP_SWAP, Some(8)),
            Action::FetchAdd(..) => (WcOpcode::FETCH_ADD, Some(8)),
            Action::AtomicWrite(..) => (WcOpcode::ATOMIC_WRITE, None),
            Action::Flush(..) => (WcOpcode::FLUSH, None),
            Action::Bind(..) => (WcOpcode::BIND_MW, None),
            Action::LocalInv(_) => (WcOpcode::LOCAL_INV, None),
        };
        Self { status: WcStatus::SUCCESS, opcode, byte_len, ..Self::flushed(request.wr_id) }
    }

    pub(super) fn received(opcode: WcOpcode, len: usize, imm: Option<u32>) -> Self {
        Self {
            wr_id: None,
            status: WcStatus::SUCCESS,
            opcode,
            byte_len: Some(len as u32),
            imm,
            ..Self::flushed(0)
        }
    }

    /// Whether a completion matches.
    fn is(&self, seen: &Seen) -> bool {
        let same_request = self.wr_id.is_none_or(|wr_id| wr_id == seen.wr_id) && self.status == seen.status;
        if seen.status != WcStatus::SUCCESS {
            return same_request && (self.failure.is_none() || self.failure == seen.failure);
        }
        same_request
            && self.opcode == seen.opcode
            && self.byte_len.is_none_or(|len| len == seen.byte_len)
            && (self.imm, self.invalidated) == (seen.imm, seen.invalidated)
            && self.sender.is_none_or(|sender| Some(sender) == seen.sender)
    }
}

impl Qp {
    fn expected(&self, receive: bool) -> &VecDeque<Expect> {
        if receive { &self.receives_expected } else { &self.sends_expected }
    }

    /// The ids of the expected completions, if known.
    #[cfg(test)]
    pub(super) fn expected_numbers(&self, receive: bool) -> Vec<u64> {
        self.expected(receive)
            .iter()
            .filter(|expect| !expect.silent)
            .filter_map(|expect| expect.wr_id)
            .collect()
    }

    fn expected_mut(&mut self, receive: bool) -> &mut VecDeque<Expect> {
        if receive { &mut self.receives_expected } else { &mut self.sends_expected }
    }

    /// An executed unsignalled request, also of an earlier round, may not be acknowledged when its
    /// queue pair fails. It is flushed then, with all later requests.
    fn flushes_unsignalled(&mut self, seen: &Seen) {
        let unasked = std::mem::take(&mut self.unasked);
        if self.state != State::Error || seen.status != WcStatus::WR_FLUSH_ERR {
            return;
        }
        if unasked.contains(&seen.wr_id) {
            let silent = |wr_id| Expect { silent: true, ..Expect::flushed(wr_id) };
            unasked.into_iter().rev().for_each(|wr_id| self.sends_expected.push_front(silent(wr_id)));
        }
        let silent = self.sends_expected.iter().take_while(|send| send.silent).count();
        let next = self.sends_expected.get(silent);
        let falls = next.is_none_or(|next| next.status == WcStatus::WR_FLUSH_ERR);
        let first = self.sends_expected.iter().take(silent).position(|send| send.wr_id == Some(seen.wr_id));
        if let Some(first) = first.filter(|_| falls && self.aborted == Aborted::No) {
            for send in self.sends_expected.range_mut(first..silent) {
                *send = Expect::flushed(send.wr_id.expect("sends have numbers"));
            }
        }
    }

    /// For an aborted queue pair: as predicted up to some request, and then flushed or missing.
    fn accept_aborted(&mut self, seen: &Seen, receive: bool) -> bool {
        let flushing = self.aborted == Aborted::Flushing;
        let begun = self.flushing[usize::from(receive)];
        let expected = self.expected_mut(receive);
        if !begun {
            let as_predicted = expected.iter().position(|expect| !expect.silent);
            if let Some(place) = as_predicted.filter(|&place| expected[place].is(seen)) {
                expected.drain(..=place);
                return true;
            }
        }
        // Only unsignalled requests before it can have been executed without a completion, and none
        // after the first flushed one.
        let unseen = if begun { 0 } else { expected.iter().take_while(|expect| expect.silent).count() };
        let place = expected.iter().take(unseen + 1).position(|expect| expect.wr_id == Some(seen.wr_id));
        let Some(place) = place.filter(|_| flushing && seen.status == WcStatus::WR_FLUSH_ERR) else {
            return false;
        };
        expected.drain(..=place);
        self.flushing[usize::from(receive)] = true;
        true
    }
}

impl Model {
    /// Processes a polled completion.
    ///
    /// # Errors
    /// If it is not the next expected one of this queue pair and direction.
    pub fn observe(&mut self, seen: &Seen) -> Result<(), String> {
        let receive = seen.wr_id & RECEIVE != 0;
        let Some(qp) = self.qps.get_mut(&seen.qp) else {
            return Err(format!("a completion of a destroyed QP: {seen:?}"));
        };
        if !receive {
            qp.flushes_unsignalled(seen);
        }
        if qp.aborted != Aborted::No {
            let wanted = qp.expected(receive).front().cloned();
            return if qp.accept_aborted(seen, receive) {
                Ok(())
            } else {
                Err(format!("a completion out of order: {seen:?}; expected: {wanted:?}"))
            };
        }
        let expected = qp.expected_mut(receive);
        while expected.front().is_some_and(|expect| expect.silent) {
            expected.pop_front();
        }
        let Some(expect) = expected.pop_front() else {
            if receive && seen.status == WcStatus::WR_FLUSH_ERR && qp.idle.first() == Some(&seen.wr_id) {
                qp.idle.remove(0);
                return Ok(());
            }
            return Err(format!("an unexpected completion: {seen:?}"));
        };
        if !expect.is(seen) {
            return Err(format!("a completion out of order: {seen:?} instead of {expect:?}"));
        }
        match expect.shared {
            Some(srq) => self.take_shared(srq, seen, &expect),
            None => Ok(()),
        }
    }

    /// A queue pair's messages use the receives of an SRQ in the order in which they were posted.
    fn take_shared(&mut self, id: Id, seen: &Seen, expect: &Expect) -> Result<(), String> {
        let srq = self.srqs.get_mut(&id).expect("the SRQ outlives its QPs");
        let Some(place) = srq.posted.iter().position(|receive| receive.wr_id == seen.wr_id) else {
            return Err(format!("a receive that is not posted to SRQ {id}: {seen:?}"));
        };
        // Each outstanding message uses at most one receive, so no later one can be used.
        if place >= srq.consumed {
            return Err(format!(
                "receive {place} of SRQ {id}, but only {} are expected: {seen:?}",
                srq.consumed
            ));
        }
        srq.consumed -= 1;
        let receive = srq.posted.remove(place).expect("it was found there");
        let qp = self.qp_mut(seen.qp);
        if seen.wr_id <= qp.last_shared {
            return Err(format!("SRQ receives out of order: {seen:?}"));
        }
        qp.last_shared = seen.wr_id;
        if let Some(bytes) = &expect.bytes {
            self.write_received(&receive.pieces, expect.header, bytes);
        }
        Ok(())
    }

    /// A missing completion, if any.
    #[must_use]
    pub fn missing(&self) -> Option<String> {
        self.qps.iter().find_map(|(id, qp)| {
            if qp.aborted == Aborted::Gone {
                return None;
            }
            [false, true].into_iter().find_map(|receive| {
                let missing = qp.expected(receive).iter().find(|expect| !expect.silent)?;
                Some(format!("queue pair {id}: no completion came where this is due: {missing:?}"))
            })
        })
    }

    /// A completion that may be polled next of a queue pair and direction.
    #[must_use]
    pub fn next_due(&self, id: Id, receive: bool) -> Option<Seen> {
        let expect = self.qp(id).expected(receive).iter().find(|expect| !expect.silent)?;
        let wr_id = expect.wr_id.or_else(|| Some(self.srqs[&expect.shared?].posted.front()?.wr_id))?;
        Some(Seen {
            qp: id,
            wr_id,
            status: expect.status,
            opcode: expect.opcode,
            byte_len: expect.byte_len.unwrap_or(0),
            imm: expect.imm,
            invalidated: expect.invalidated,
            sender: expect.sender,
            failure: expect.failure,
        })
    }
}
