//! Requests that fail.

use bareverbs::Access;

use super::Generator;
use super::connected::Stop;
use super::requests::List;
use crate::model::Model;
use crate::op::{Action, Id, Key, Kind, Payload, Piece, Target};

/// Bytes of a message that fits one packet at every MTU.
const ONE_PACKET: usize = 256;

impl Generator {
    /// A request that fails, on this side or at the peer.
    pub(super) fn push_failing(
        &mut self,
        model: &Model,
        list: &mut List,
        peer: Id,
        last: bool,
    ) -> Option<Stop> {
        let qp = model.qp(list.qp);
        let (plan, there) = (&qp.plan, model.qp(peer));
        let reliable = plan.kind == Kind::Rc;
        let first = list.requests.is_empty();
        let none = || Payload::Pieces(Vec::new());
        let far = model.mrs.iter().filter(|(_, mr)| mr.pd == there.plan.pd).map(|(id, _)| *id);
        let any = self.pick(far);
        let len = self.rng.usize(1..ONE_PACKET);
        match self.rng.u32(..6) {
            // From memory with an invalid key, or beyond a region. The kernel detects this before
            // it sends, and before earlier sends are acknowledged, so the request must be the
            // first.
            0 if first && (reliable || model.quirks.uc_goes_to_err) => {
                let own = model.mrs.iter().filter(|(_, mr)| mr.pd == plan.pd && mr.bytes.len() < 1000);
                let beyond = self
                    .pick(own)
                    .map(|(id, mr)| Piece { mr: Some(*id), range: mr.bytes.len()..mr.bytes.len() + len });
                let unregistered = Piece { mr: None, range: 0..len };
                let piece = beyond.filter(|_| self.rng.bool()).unwrap_or(unregistered);
                let request = self.request(Action::Send(None), Payload::Pieces(vec![piece]));
                list.requests.push(request);
            }
            1 if first && reliable => {
                let request = self.request(Action::LocalInv(None), none());
                list.requests.push(request);
            }
            2 if first && reliable && !model.quirks.binds_to_any => {
                let windows = model.mws.iter().filter(|(_, mw)| mw.pd == plan.pd && mw.touched < model.round);
                let mw = self.pick(windows.map(|(id, _)| *id))?;
                let own = model
                    .mrs
                    .iter()
                    .filter(|(_, mr)| mr.pd == plan.pd && !mr.access.contains(Access::MW_BIND));
                let mr = self.pick(own.map(|(id, _)| *id))?;
                let request = self.request(Action::Bind(mw, mr, Access::REMOTE_READ), none());
                list.requests.push(request);
            }
            // Detected when the response arrives, when later requests may have been executed.
            3 if last && reliable => {
                let target = self.target(model, list, peer, 8, Access::REMOTE_READ, 1)?;
                let own = model.mrs.iter().filter(|(_, mr)| {
                    mr.pd == plan.pd && mr.bytes.len() >= 8 && !mr.access.contains(Access::LOCAL_WRITE)
                });
                let mr = self.pick(own.map(|(id, _)| *id))?;
                let payload = Payload::Pieces(vec![Piece { mr: Some(mr), range: 0..8 }]);
                let request = self.request(Action::Read(target), payload);
                list.requests.push(request);
            }
            4 | 5 => {
                let mr = any?;
                let size = model.mrs[&mr].bytes.len();
                let target = match self.rng.u32(..3) {
                    0 => Target { key: Key::Invalid, mr, offset: 0 },
                    1 => Target { key: Key::Region, mr, offset: size.saturating_sub(len - 1) },
                    _ => {
                        let lacking = model.mrs.iter().filter(|(_, mr)| {
                            mr.pd == there.plan.pd && !mr.access.contains(Access::REMOTE_WRITE)
                        });
                        Target { key: Key::Region, mr: self.pick(lacking.map(|(id, _)| *id))?, offset: 0 }
                    }
                };
                let inline = len <= plan.inline as usize;
                let payload = if inline {
                    Payload::Inline(vec![7; len])
                } else {
                    Payload::Pieces(self.pieces(model, list, plan.pd, 1, len, false)?)
                };
                let request = self.request(Action::Write(target, None), payload);
                self.push(list, request, None);
                if !reliable {
                    // The message is lost, and no queue pair fails.
                    return None;
                }
            }
            _ => return None,
        }
        list.failed = true;
        None
    }
}
