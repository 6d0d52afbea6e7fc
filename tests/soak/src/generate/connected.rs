//! Requests on RC and UC queue pairs.

use std::ops::Range;

use bareverbs::Access;

use super::Generator;
use super::requests::{LONGEST, List, SHARED};
use crate::model::Model;
use crate::op::{Action, Id, Key, Kind, Payload, Piece, Target};

/// Access rights of memory windows.
const WINDOW: [Access; 3] = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];

/// Whether a list ends before its maximum length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The list ends.
    Here,
}

impl Generator {
    pub(super) fn fill(&mut self, model: &Model, list: &mut List, most: usize) {
        let qp = model.qp(list.qp);
        let peer = model.peer(list.qp).expect("a queue pair that sends has a peer");
        let there = model.qp(peer);
        match there.plan.srq {
            Some(srq) => list.shared = model.srqs[&srq].posted.len() - model.srqs[&srq].consumed,
            None => {
                let room = there.receives.iter().map(|receive| receive.pieces.iter().map(Piece::len).sum());
                list.receives = Some(room.collect());
            }
        }
        list.blocked = !qp.waiting.is_empty();
        // A waiting send is transmitted again. If it has a fence, the kernel would hold it back for
        // later reads, and these wait for it: `rxe_wqe_is_fenced` of `rxe_req.c` counts all
        // outstanding reads.
        let again = list.blocked || qp.waited == model.round;
        // The NAK of a failure may be lost. The peer is in ERR then and answers nothing.
        list.may_fail = !self.capabilities.lossy && qp.rests(model.round) && there.rests(model.round);
        for i in 0..most {
            let last = i + 1 == most;
            let made = match self.rng.u32(..20) {
                _ if list.may_fail && !list.failed && !list.blocked && self.one_in(25) => {
                    self.push_failing(model, list, peer, last)
                }
                0..=8 => self.push_message(model, list, peer),
                9..=12 => self.push_write(model, list, peer),
                _ if again || list.blocked || qp.plan.kind == Kind::Uc => None,
                13..=15 => self.push_read(model, list, peer),
                16 | 17 => self.push_atomic(model, list, peer),
                _ if list.failed => None,
                18 => self.push_bind(model, list),
                _ => self.push_invalidation(model, list, peer),
            };
            if made == Some(Stop::Here) {
                return;
            }
        }
    }

    /// A message: its receive has room, is not posted yet, or is too short.
    fn push_message(&mut self, model: &Model, list: &mut List, peer: Id) -> Option<Stop> {
        let (plan, there) = (&model.qp(list.qp).plan, model.qp(peer));
        let reliable = plan.kind == Kind::Rc;
        let mut len = self.len(LONGEST);
        if let Some(rooms) = &mut list.receives {
            match rooms.front() {
                Some(&room) if room < len => {
                    // Rarely too long for its receive, else shorter.
                    let fails = reliable && list.may_fail && !list.blocked && !list.failed && self.one_in(12);
                    if fails {
                        list.failed = true;
                    } else {
                        len = self.rng.usize(..=room);
                    }
                }
                Some(_) => {}
                // Lost RNR NAKs count as retries, which end.
                None if self.capabilities.lossy => return None,
                None if !reliable => {
                    // The message is lost, after which the queue pair can't be used for receives.
                    if !self.one_in(15) {
                        return None;
                    }
                }
                None => {
                    let rnr_retry_zero =
                        model.qp(list.qp).connection.is_some_and(|connection| connection.rnr_retry_zero);
                    if rnr_retry_zero && !list.failed {
                        if !list.may_fail || there.no_posts_in_round == model.round {
                            return None;
                        }
                        list.failed = true;
                    } else if !rnr_retry_zero {
                        list.blocked = true;
                    }
                }
            }
        } else {
            if list.shared == 0 {
                return None;
            }
            len = len.min(SHARED);
        }
        let payload = self.outgoing(model, list, plan.pd, plan.pieces, plan.inline, len)?;
        match &mut list.receives {
            Some(rooms) => drop(rooms.pop_front()),
            None => list.shared -= 1,
        }
        let imm = self.one_in(3).then(|| self.rng.u32(..));
        let request = self.request(Action::Send(imm), payload);
        self.push(list, request, None);
        None
    }

    /// A range of the peer's memory, with a key that grants the right.
    pub(super) fn target(
        &mut self,
        model: &Model,
        list: &List,
        peer: Id,
        len: usize,
        right: Access,
        step: usize,
    ) -> Option<Target> {
        let there = model.qp(peer);
        if !there.connection?.access.contains(right) {
            return None;
        }
        let pd = there.plan.pd;
        let (key, mr) = if !list.blocked && self.one_in(3) {
            let windows = model.mws.iter().filter_map(|(id, mw)| {
                let (mr, access, owner) = mw.bound?;
                let ours = mw.pd == pd && (!mw.type_2 || owner == peer);
                // A window's state changes as soon as the request executes, whatever is
                // outstanding.
                let fixed = mw.touched < model.round && !list.changes(*id);
                (fixed && ours && access.contains(right)).then_some((Key::Window(*id), mr))
            });
            self.pick(windows)?
        } else {
            let regions = model.mrs.iter().filter(|(_, mr)| mr.pd == pd && mr.access.contains(right));
            (Key::Region, self.pick(regions.map(|(id, _)| *id))?)
        };
        let size = model.mrs[&mr].bytes.len();
        let offset = self.rng.usize(..=size.checked_sub(len)?) / step * step;
        let write = right != Access::REMOTE_READ;
        list.is_free(model, mr, &(offset..offset + len), write, true).then_some(Target { key, mr, offset })
    }

    fn push_write(&mut self, model: &Model, list: &mut List, peer: Id) -> Option<Stop> {
        let plan = &model.qp(list.qp).plan;
        let some = list.receives.as_ref().map_or(list.shared > 0, |rooms| !rooms.is_empty());
        let with_imm = some && self.one_in(4);
        let len = self.len(LONGEST).max(1);
        let target = self.target(model, list, peer, len, Access::REMOTE_WRITE, 1)?;
        let payload = self.outgoing(model, list, plan.pd, plan.pieces, plan.inline, len)?;
        // The result of a transfer within one region would depend on the order of its packets.
        if reads(&payload, target.mr, &(target.offset..target.offset + len)) {
            return None;
        }
        let imm = with_imm.then(|| self.rng.u32(..));
        if with_imm {
            match &mut list.receives {
                Some(rooms) => drop(rooms.pop_front()),
                None => list.shared -= 1,
            }
        }
        let request = self.request(Action::Write(target, imm), payload);
        self.push(list, request, Some((target.mr, target.offset..target.offset + len, true)));
        None
    }

    fn push_read(&mut self, model: &Model, list: &mut List, peer: Id) -> Option<Stop> {
        let plan = &model.qp(list.qp).plan;
        let len = self.len(LONGEST).max(1);
        if self.capabilities.flush && self.one_in(8) {
            let target = self.target(model, list, peer, len, Access::FLUSH_GLOBAL, 1)?;
            let request = self.request(Action::Flush(target, len), Payload::Pieces(Vec::new()));
            self.push(list, request, Some((target.mr, target.offset..target.offset + len, false)));
            return None;
        }
        let target = self.target(model, list, peer, len, Access::REMOTE_READ, 1)?;
        let pieces = self.pieces(model, list, plan.pd, plan.pieces as usize, len, true)?;
        let payload = Payload::Pieces(pieces);
        if reads(&payload, target.mr, &(target.offset..target.offset + len)) {
            return None;
        }
        let request = self.request(Action::Read(target), payload);
        self.push(list, request, Some((target.mr, target.offset..target.offset + len, false)));
        None
    }

    fn push_atomic(&mut self, model: &Model, list: &mut List, peer: Id) -> Option<Stop> {
        let plan = &model.qp(list.qp).plan;
        if self.capabilities.atomic_write && self.one_in(3) {
            let target = self.target(model, list, peer, 8, Access::REMOTE_WRITE, 8)?;
            let action = Action::AtomicWrite(target, self.rng.u64(..));
            let request = self.request(action, Payload::Pieces(Vec::new()));
            self.push(list, request, Some((target.mr, target.offset..target.offset + 8, true)));
            return None;
        }
        let target = self.target(model, list, peer, 8, Access::REMOTE_ATOMIC, 8)?;
        let pieces = self.pieces(model, list, plan.pd, 1, 8, true)?;
        let payload = Payload::Pieces(pieces);
        if reads(&payload, target.mr, &(target.offset..target.offset + 8)) {
            return None;
        }
        let found = &model.mrs[&target.mr].bytes[target.offset..target.offset + 8];
        let found = u64::from_ne_bytes(found.try_into().expect("8 bytes"));
        let compare = if self.rng.bool() { found } else { self.rng.u64(..) };
        let action = if self.rng.bool() {
            Action::CmpSwp(target, compare, self.rng.u64(..))
        } else {
            Action::FetchAdd(target, self.rng.u64(..))
        };
        let request = self.request(action, payload);
        self.push(list, request, Some((target.mr, target.offset..target.offset + 8, true)));
        None
    }

    fn push_bind(&mut self, model: &Model, list: &mut List) -> Option<Stop> {
        let pd = model.qp(list.qp).plan.pd;
        let windows = model.mws.iter().filter(|(id, mw)| {
            let free = mw.touched < model.round && !list.changes(**id) && !list.uses(**id);
            mw.pd == pd && free && !(mw.type_2 && mw.bound.is_some())
        });
        let mw = self.pick(windows.map(|(id, _)| *id))?;
        let regions = model.mrs.iter().filter(|(_, mr)| mr.pd == pd && mr.access.contains(Access::MW_BIND));
        let mr = self.pick(regions.map(|(id, _)| *id))?;
        let mut access: Access = WINDOW.into_iter().filter(|_| !self.one_in(4)).collect();
        if !model.mrs[&mr].access.contains(Access::LOCAL_WRITE) {
            access &= Access::REMOTE_READ;
        }
        let request = self.request(Action::Bind(mw, mr, access), Payload::Pieces(Vec::new()));
        self.push(list, request, None);
        None
    }

    /// Invalidates a window that this queue pair bound, or with a message one that the peer bound.
    fn push_invalidation(&mut self, model: &Model, list: &mut List, peer: Id) -> Option<Stop> {
        let by_message = self.rng.bool();
        let owner = if by_message { peer } else { list.qp };
        let windows = model.mws.iter().filter(|(id, mw)| {
            let bound = mw.bound.is_some_and(|(_, _, by)| by == owner);
            mw.type_2 && bound && mw.touched < model.round && !list.changes(**id) && !list.uses(**id)
        });
        let mw = self.pick(windows.map(|(id, _)| *id))?;
        if !by_message {
            let request = self.request(Action::LocalInv(Some(mw)), Payload::Pieces(Vec::new()));
            self.push(list, request, None);
            return None;
        }
        match &mut list.receives {
            Some(rooms) => drop(rooms.pop_front()?),
            None => list.shared = list.shared.checked_sub(1)?,
        }
        let request = self.request(Action::SendInv(mw), Payload::Pieces(Vec::new()));
        self.push(list, request, None);
        // Whether a later request could use the window would be undetermined.
        Some(Stop::Here)
    }
}

/// Whether a payload uses any of these bytes.
fn reads(payload: &Payload, mr: Id, range: &Range<usize>) -> bool {
    let Payload::Pieces(pieces) = payload else { return false };
    pieces
        .iter()
        .any(|piece| piece.mr == Some(mr) && piece.range.start < range.end && range.start < piece.range.end)
}
