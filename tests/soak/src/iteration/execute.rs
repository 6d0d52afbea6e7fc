//! Posts requests to the kernel.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::error::{PostError, PostReason, PushError};
use bareverbs::mw::{MwBind, inc_rkey};
use bareverbs::qp::{
    Datagram, Operation, Payload as Bytes, RecvRequest, SendFlags, SendRequest, Sge, UcOperation,
};
use bareverbs::{Imm, Remote};

use super::{AnyQp, INVALID_KEY, Iteration, QKEYS, TIMEOUT, any};
use crate::model::State;
use crate::op::{Action, Id, Key, Op, Payload, Piece, Receive, Request, Target};

/// A QPN of no queue pair.
const INVALID_QPN: u32 = 0x00ff_fff0;

impl Iteration {
    /// Posts, and compares the number of accepted requests with the model.
    pub(super) fn post(&mut self, op: &Op) -> Result<()> {
        let (asked, posted) = match op {
            Op::PostRecv(id, receives) => (receives.len(), self.post_receives(Some(*id), *id, receives)),
            Op::PostSrq(id, receives) => (receives.len(), self.post_receives(None, *id, receives)),
            Op::PostSend(id, requests) => {
                if let AnyQp::Ud(_) = self.qps[id] {
                    self.prepare_addresses(*id)?;
                }
                (requests.len(), self.post_sends(*id, requests)?)
            }
            _ => bail!("not a post: {op:?}"),
        };
        let taken = self.model.apply(op);
        self.tally.requests += taken as u64;
        match posted {
            Ok(()) => {
                ensure!(taken == asked, "all {asked} requests were taken, but there is room for {taken}")
            }
            Err(PostError { accepted, reason: PostReason::Queue(PushError::QueueFull { .. }), .. }) => {
                match op {
                    Op::PostSend(id, requests) if accepted < taken && self.frees_slots_later(*id) => {
                        self.post_when_there_is_room(*id, &requests[accepted..taken])?;
                    }
                    _ => ensure!(
                        accepted == taken,
                        "{accepted} requests were taken, but there is room for {taken}"
                    ),
                }
            }
            Err(error) => bail!("{error}"),
        }
        Ok(())
    }

    /// Whether slots of executed requests may still be occupied. The release of an unsignalled
    /// request's slot is not reported. From Linux 6.4 on, Soft-RoCE completes a flushed request
    /// before it releases the slot (`flush_send_queue` of `rxe_comp.c`).
    fn frees_slots_later(&self, id: Id) -> bool {
        let qp = self.model.qp(id);
        qp.state == State::Error || !qp.plan.signal_all
    }

    fn post_when_there_is_room(&mut self, id: Id, mut requests: &[Request]) -> Result<()> {
        let begin = self.clock.now();
        while let Err(error) = self.post_sends(id, requests)? {
            let full = matches!(error.reason, PostReason::Queue(PushError::QueueFull { .. }));
            ensure!(full && self.clock.now() - begin < TIMEOUT, "no room where requests are over: {error}");
            requests = &requests[error.accepted..];
            self.clock.wait(Duration::from_micros(1));
        }
        Ok(())
    }

    fn sges(&self, pieces: &[Piece]) -> Vec<Sge> {
        let sge = |piece: &Piece| {
            let length = piece.len() as u32;
            match piece.mr.map(|mr| &self.mrs[&mr]) {
                Some(mr) => Sge { addr: mr.addr() + piece.range.start as u64, length, lkey: mr.lkey() },
                None => Sge { addr: 0x1000, length, lkey: INVALID_KEY },
            }
        };
        pieces.iter().map(sge).collect()
    }

    fn post_receives(&mut self, qp: Option<Id>, id: Id, receives: &[Receive]) -> Result<(), PostError> {
        let sges: Vec<_> = receives.iter().map(|receive| self.sges(&receive.pieces)).collect();
        let requests: Vec<_> = receives
            .iter()
            .zip(&sges)
            .map(|(receive, sges)| RecvRequest { wr_id: receive.wr_id, sges })
            .collect();
        // SAFETY: regions are dropped only when no request uses them, and their bytes are only
        // copied.
        unsafe {
            match qp {
                Some(_) => any!(self.qps.get_mut(&id).expect("it exists"), qp => qp.post_recv(&requests)),
                None => self.srqs.get_mut(&id).expect("it exists").post_recv(&requests),
            }
        }
    }

    fn post_sends(&mut self, id: Id, requests: &[Request]) -> Result<Result<(), PostError>> {
        let sges: Vec<Vec<Sge>> = requests
            .iter()
            .map(|request| match &request.payload {
                Payload::Pieces(pieces) => self.sges(pieces),
                Payload::Inline(_) => Vec::new(),
            })
            .collect();
        let inline: Vec<[&[u8]; 1]> = requests
            .iter()
            .map(|request| match &request.payload {
                Payload::Inline(bytes) => [bytes.as_slice()],
                Payload::Pieces(_) => [&[][..]],
            })
            .collect();
        let payload = |i: usize| match &requests[i].payload {
            Payload::Pieces(_) => Bytes::Sges(&sges[i]),
            Payload::Inline(_) => Bytes::Inline(&inline[i]),
        };
        let flags = |request: &Request| {
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, request.signalled);
            flags.set(SendFlags::FENCE, request.fence);
            flags.set(SendFlags::SOLICITED, request.solicited);
            flags
        };
        let numbers: Vec<u32> = requests
            .iter()
            .map(|request| match request.action {
                Action::Datagram(to, ..) => {
                    self.qps.get(&to).map_or(INVALID_QPN, |qp| any!(qp, qp => qp.qp_num()))
                }
                _ => 0,
            })
            .collect();
        let operations: Vec<Operation> = requests.iter().map(|request| self.operation(request)).collect();
        let request = |i: usize| SendRequest {
            wr_id: requests[i].wr_id,
            operation: operations[i],
            flags: flags(&requests[i]),
            payload: payload(i),
        };
        let all = 0..requests.len();
        let pd = self.model.qp(id).plan.pd;
        // SAFETY: the model keeps the regions of outstanding requests; their bytes are only copied.
        let posted = unsafe {
            match self.qps.get_mut(&id).expect("it exists") {
                AnyQp::Rc(qp) => qp.post_send(&all.map(request).collect::<Vec<_>>()),
                AnyQp::Uc(qp) => {
                    let narrow = |i| request(i).with(unreliable(operations[i]));
                    qp.post_send(&all.map(narrow).collect::<Vec<_>>())
                }
                AnyQp::Ud(qp) => {
                    let ah = &self.ahs[&pd];
                    let addressed = |i: usize| {
                        let (qkey, imm) = match requests[i].action {
                            Action::Datagram(_, right, imm) => (QKEYS[usize::from(!right)], imm),
                            _ => (QKEYS[0], None),
                        };
                        request(i).with(Datagram { imm: imm.map(Imm), ..Datagram::new(ah, numbers[i], qkey) })
                    };
                    qp.post_send(&all.map(addressed).collect::<Vec<_>>())
                }
            }
        };
        for (request, operation) in requests.iter().zip(&operations) {
            if let (Action::Bind(mw, mr, _), Operation::BindMw(bind)) = (request.action, operation) {
                // A bind that the region does not allow fails, and the window keeps its key.
                if self.model.mrs[&mr].access.contains(bareverbs::Access::MW_BIND) {
                    self.mws.get_mut(&mw).expect("it exists").bound(bind);
                }
            }
        }
        Ok(posted)
    }

    fn prepare_addresses(&mut self, id: Id) -> Result<()> {
        let pd = self.model.qp(id).plan.pd;
        if !self.ahs.contains_key(&pd) {
            let ah = self.pds[&pd].create_ah(&self.path)?;
            self.ahs.insert(pd, ah);
        }
        Ok(())
    }

    fn remote(&self, target: Target) -> Remote {
        let mr = &self.mrs[&target.mr];
        let rkey = match target.key {
            Key::Region => mr.rkey(),
            Key::Window(mw) => self.mws[&mw].rkey(),
            Key::Invalid => INVALID_KEY,
        };
        Remote { addr: mr.addr() + target.offset as u64, rkey }
    }

    fn operation(&self, request: &Request) -> Operation {
        match request.action {
            Action::Send(None) | Action::Datagram(..) => Operation::Send,
            Action::Send(Some(imm)) => Operation::SendImm(Imm(imm)),
            Action::SendInv(mw) => Operation::SendInv(self.mws[&mw].rkey()),
            Action::Write(target, None) => Operation::Write(self.remote(target)),
            Action::Write(target, Some(imm)) => Operation::WriteImm(self.remote(target), Imm(imm)),
            Action::Read(target) => Operation::Read(self.remote(target)),
            Action::CmpSwp(target, compare, swap) => {
                Operation::CmpSwp { remote: self.remote(target), compare, swap }
            }
            Action::FetchAdd(target, add) => Operation::FetchAdd { remote: self.remote(target), add },
            Action::AtomicWrite(target, value) => {
                Operation::AtomicWrite { remote: self.remote(target), value: value.to_ne_bytes() }
            }
            Action::Flush(target, len) => Operation::Flush {
                remote: self.remote(target),
                length: len as u32,
                placement: PlacementType::GLOBAL,
                level: SelectivityLevel::RANGE,
            },
            Action::Bind(mw, mr, access) => {
                let (mw, mr) = (&self.mws[&mw], &self.mrs[&mr]);
                Operation::BindMw(MwBind {
                    mw_type: mw.mw_type(),
                    mw_rkey: mw.rkey(),
                    rkey: inc_rkey(mw.rkey()),
                    mr_lkey: mr.lkey(),
                    addr: mr.addr(),
                    length: mr.len() as u64,
                    access,
                })
            }
            Action::LocalInv(mw) => Operation::LocalInv(mw.map_or(INVALID_KEY, |mw| self.mws[&mw].rkey())),
        }
    }
}

/// The UC operation; the generator uses no others on UC.
fn unreliable(operation: Operation) -> UcOperation {
    match operation {
        Operation::SendImm(imm) => UcOperation::SendImm(imm),
        Operation::Write(remote) => UcOperation::Write(remote),
        Operation::WriteImm(remote, imm) => UcOperation::WriteImm(remote, imm),
        _ => UcOperation::Send,
    }
}
