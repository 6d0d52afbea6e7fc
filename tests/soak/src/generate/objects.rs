//! Creation, modification and destruction of objects.

use bareverbs::Access;

use super::Generator;
use crate::model::{Model, Qp, State};
use crate::op::{Connection, End, Id, Kind, Op, QpPlan};

/// Access rights of a region or a connection; each has a random subset.
const RIGHTS: [Access; 3] = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];

impl Generator {
    pub(super) fn alloc_pd(&mut self, model: &Model) -> Option<Op> {
        (model.pds.len() < 3).then(|| Op::AllocPd(self.id()))
    }

    pub(super) fn dealloc_pd(&mut self, model: &Model) -> Option<Op> {
        let used = |pd: &Id| {
            model.mrs.values().any(|mr| mr.pd == *pd)
                || model.mws.values().any(|mw| mw.pd == *pd)
                || model.srqs.values().any(|srq| srq.pd == *pd)
                || model.qps.values().any(|qp| qp.plan.pd == *pd)
        };
        self.pick(model.pds.iter().copied().filter(|pd| !used(pd))).map(Op::DeallocPd)
    }

    pub(super) fn make_cq(&mut self, model: &Model) -> Option<Op> {
        (model.cqs.len() < 5).then(|| Op::MakeCq(self.id(), self.rng.u32(100..600)))
    }

    pub(super) fn resize_cq(&mut self, model: &Model) -> Option<Op> {
        let cq = self.pick(model.cqs.keys().copied())?;
        let least = model.load(cq).max(1) as u32;
        Some(Op::ResizeCq(cq, self.rng.u32(least..least + 600)))
    }

    pub(super) fn destroy_cq(&mut self, model: &Model) -> Option<Op> {
        let used = |cq: &Id| model.qps.values().any(|qp| qp.plan.send_cq == *cq || qp.plan.recv_cq == *cq);
        self.pick(model.cqs.keys().copied().filter(|cq| !used(cq))).map(Op::DestroyCq)
    }

    pub(super) fn make_srq(&mut self, model: &Model) -> Option<Op> {
        let pd = self.pick(model.pds.iter().copied())?;
        (model.srqs.len() < 2).then(|| Op::MakeSrq(self.id(), pd, self.rng.u32(4..40)))
    }

    pub(super) fn destroy_srq(&mut self, model: &Model) -> Option<Op> {
        let used = |srq: &Id| model.qps.values().any(|qp| qp.plan.srq == Some(*srq));
        self.pick(model.srqs.keys().copied().filter(|srq| !used(srq))).map(Op::DestroySrq)
    }

    fn rights(&mut self) -> Access {
        RIGHTS.into_iter().filter(|_| !self.one_in(4)).collect()
    }

    pub(super) fn register(&mut self, model: &Model) -> Option<Op> {
        let pd = self.pick(model.pds.iter().copied())?;
        if model.mrs.len() >= 24 {
            return None;
        }
        let len = if self.one_in(3) { self.rng.usize(1..64) } else { self.rng.usize(64..20_000) };
        let mut access = Access::empty();
        // The kernel grants remote write only together with local write.
        if !self.one_in(6) {
            access = Access::LOCAL_WRITE | self.rights();
        } else if self.one_in(2) {
            access = Access::REMOTE_READ;
        }
        if !self.one_in(3) {
            access |= Access::MW_BIND;
        }
        if self.capabilities.flush && !self.one_in(3) {
            access |= Access::FLUSH_GLOBAL;
        }
        Some(Op::Register(self.id(), pd, len, access))
    }

    pub(super) fn deregister(&mut self, model: &Model) -> Option<Op> {
        // The kernel does not deregister a region that a window is bound to.
        let bound = |mr: Id| model.mws.values().any(|mw| mw.holds(mr, model.round));
        let free = model.mrs.iter().filter(|(mr, region)| region.claims.is_empty() && !bound(**mr));
        self.pick(free.map(|(mr, _)| *mr)).map(Op::Deregister)
    }

    pub(super) fn alloc_mw(&mut self, model: &Model) -> Option<Op> {
        let pd = self.pick(model.pds.iter().copied())?;
        (model.mws.len() < 8).then(|| Op::AllocMw(self.id(), pd, self.rng.bool()))
    }

    pub(super) fn dealloc_mw(&mut self, model: &Model) -> Option<Op> {
        let free = model.mws.iter().filter(|(_, mw)| mw.touched < model.round);
        self.pick(free.map(|(mw, _)| *mw)).map(Op::DeallocMw)
    }

    pub(super) fn make_qp(&mut self, model: &Model) -> Option<Op> {
        if model.qps.len() >= 14 {
            return None;
        }
        let kinds = if self.capabilities.lossy { 3 } else { 5 };
        let kind = [Kind::Rc, Kind::Rc, Kind::Rc, Kind::Uc, Kind::Ud][self.rng.usize(..kinds)];
        let pd = self.pick(model.pds.iter().copied())?;
        let [send_cq, recv_cq] =
            [self.pick(model.cqs.keys().copied())?, self.pick(model.cqs.keys().copied())?];
        let fitting = model.srqs.iter().filter(|(_, srq)| srq.pd == pd).map(|(id, _)| *id);
        let srq = if self.one_in(3) { self.pick(fitting) } else { None };
        let plan = QpPlan {
            kind,
            pd,
            send_cq,
            recv_cq,
            srq,
            sends: self.rng.u32(2..20),
            receives: if srq.is_some() { 0 } else { self.rng.u32(2..20) },
            pieces: self.rng.u32(1..5),
            inline: self.rng.u32(0..200),
            signal_all: self.one_in(3),
        };
        Some(Op::MakeQp(self.id(), plan))
    }

    pub(super) fn connect(&mut self, model: &Model) -> Option<Op> {
        let idle = |kind| {
            let qps =
                model.qps.iter().filter(move |(_, qp)| qp.plan.kind == kind && qp.state == State::Reset);
            qps.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        let mut ids = idle(if self.one_in(4) { Kind::Uc } else { Kind::Rc });
        if ids.len() < 2 {
            return None;
        }
        self.rng.shuffle(&mut ids);
        let mut access = if self.one_in(4) { self.rights() } else { RIGHTS.into_iter().collect() };
        if self.capabilities.flush && !self.one_in(4) {
            access |= Access::FLUSH_GLOBAL;
        }
        // PSNs have 24 bits. A high first PSN wraps during the traffic.
        let psn = [(); 2].map(|()| {
            0x00ff_ffff - if self.rng.bool() { self.rng.u32(..30) } else { self.rng.u32(..1 << 24) }
        });
        let mtu = [256, 512, 1024][self.rng.usize(..3)];
        Some(Op::Connect(Connection {
            a: ids[0],
            b: ids[1],
            access,
            mtu,
            psn,
            rnr_retry_zero: self.one_in(6) && !self.capabilities.lossy,
        }))
    }

    pub(super) fn bring_up(&mut self, model: &Model) -> Option<Op> {
        // A datagram in flight could arrive when the queue pair is up.
        if model.qps.values().any(|qp| qp.plan.kind == Kind::Ud && qp.busy == model.round) {
            return None;
        }
        let idle = model.qps.iter().filter(|(_, qp)| qp.plan.kind == Kind::Ud && qp.state == State::Reset);
        self.pick(idle.map(|(id, _)| *id)).map(Op::BringUp)
    }

    /// Whether a queue pair has bound windows: the kernel would wait for them for long if it were
    /// destroyed.
    fn holds_windows(model: &Model, qp: Id) -> bool {
        model.mws.values().any(|mw| mw.type_2 && mw.bound.is_some_and(|(_, _, owner)| owner == qp))
    }

    fn ending(&mut self, model: &Model, of: &[Id]) -> End {
        let free = !of.iter().any(|qp| Self::holds_windows(model, *qp));
        match self.rng.u32(..4) {
            0 if free && !of.iter().any(|qp| model.needs_error_before_destroy(*qp)) => End::Destroy,
            1 | 2 => End::Reset,
            _ => End::Error,
        }
    }

    pub(super) fn end(&mut self, model: &Model) -> Option<Op> {
        let rests = |id: Id, qp: &Qp| {
            let alone = match qp.plan.kind {
                Kind::Ud => {
                    model.qps.values().all(|other| other.plan.kind != Kind::Ud || other.rests(model.round))
                }
                _ => model.peer(id).is_none_or(|peer| model.qp(peer).rests(model.round)),
            };
            alone && qp.rests(model.round)
        };
        let resting: Vec<_> =
            model.qps.iter().filter(|(id, qp)| rests(**id, qp)).map(|(id, _)| *id).collect();
        // Queue pairs that can't work any more go first.
        let useless = |id: &Id| {
            let qp = model.qp(*id);
            let lonely = qp.plan.kind != Kind::Ud
                && !model.peer(*id).is_some_and(|peer| model.qp(peer).state == State::Up);
            qp.recv_unusable || qp.state == State::Error || qp.state == State::Up && lonely
        };
        let first: Vec<_> = resting.iter().copied().filter(useless).collect();
        let qp = if first.is_empty() || self.one_in(5) { self.pick(resting) } else { self.pick(first) }?;
        let end = self.ending(model, &[qp]);
        // A peer that still retries could reach the queue pair after it is reconnected, where its
        // packets could be valid.
        let asks = model
            .peer(qp)
            .is_some_and(|peer| model.qp(peer).state == State::Up && !model.qp(peer).waiting.is_empty());
        if asks && end != End::Error {
            return None;
        }
        // There is no transition from RESET to ERR.
        (model.qp(qp).state != State::Reset || end == End::Destroy).then_some(Op::End(qp, end))
    }

    pub(super) fn abort(&mut self, model: &Model) -> Option<Op> {
        let fit = |qp: &Qp| {
            let calm = qp.no_posts_in_round < model.round && qp.mw_changed_in_round < model.round;
            calm && qp.plan.kind == Kind::Rc && qp.plan.srq.is_none() && qp.state == State::Up
        };
        let pairs = model.qps.iter().filter_map(|(a, qp)| {
            let b = model.peer(*a)?;
            (fit(qp) && fit(model.qp(b)) && (qp.busy == model.round)).then_some((*a, b))
        });
        let (a, b) = self.pick(pairs)?;
        let end = match self.ending(model, &[a, b]) {
            End::Reset if model.quirks.reset_under_traffic_corrupts => End::Error,
            end => end,
        };
        Some(Op::Abort(a, b, end))
    }
}
