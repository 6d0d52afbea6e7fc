//! Messages and operations on the connections of a server.

use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::PeerOperation;
use super::reap::{PeerState, Peers, Queued, pump};
use crate::error::Limit;
use crate::owned::buffer::checked_sge;
use crate::owned::hub::connection::{Connection, ConnectionInner, full};
use crate::owned::hub::reaper::{HubOp, PostedBy, SlotKind};
use crate::owned::op::{ByteRange, OpPayload};
use crate::owned::{Op, Pending, Source};
use crate::qp::{Operation, SendFlags};
use crate::{Error, WcOpcode};

/// Sends a message, or adds it to those that wait for credits.
fn send_message<B: Source, P: Provider>(
    peer: &Connection<B, P, Peers<P>>,
    buffer: B,
    range: ByteRange,
    tag: u64,
) -> PeerOperation<B, P> {
    const BY: &PostedBy = &PostedBy { verb: "Handle::post(Op::send)", opcode: WcOpcode::SEND };
    const VERB: &str = BY.verb;
    let ConnectionInner { hub, conn, .. } = peer.inner();
    let sge = match checked_sge(VERB, &buffer, hub.pd.domain(), range) {
        Ok(sge) => sge,
        Err(error) => return Pending::refused(error, Some(buffer), tag),
    };
    let mut state = conn.lock();
    if let Some(failure) = state.failure {
        drop(state);
        return Pending::refused(failure.into(), Some(buffer), tag);
    }
    let room = match &mut state.service {
        PeerState { max_message, .. } if sge.length > *max_message => Err(Error::Limit {
            verb: VERB,
            limit: Limit::MessageLen,
            asked: sge.length.into(),
            max: (*max_message).into(),
        }),
        PeerState { flow, .. } if !flow.is_closing() => match conn.take_slot(SlotKind::Service) {
            Some(index) => Ok((flow, index)),
            None => Err(full(conn, SlotKind::Service)),
        },
        peer => Err(closing(VERB, peer)),
    };
    let (flow, index) = match room {
        Ok(room) => room,
        Err(error) => {
            drop(state);
            return Pending::refused(error, Some(buffer), tag);
        }
    };
    // The table owns the buffer before the request is posted, so a panic in between does not free it.
    let wr_id = hub.table.insert_queued(
        index,
        HubOp { buffer: Some(buffer), posted_by: BY, kind: SlotKind::Service, tag, len: sge.length },
    );
    flow.push(Queued { wr_id, sge });
    let pumped = pump(&mut state, &hub.table);
    drop(state);
    if let Err(failure) = pumped {
        peer.inner().end(failure);
    }
    Pending::posted(Arc::clone(peer.shared()), wr_id)
}

/// Posts a message, a write, a read or an atomic operation.
pub(super) fn post<B: Source, P: Provider, L: OpPayload<B>>(
    peer: &Connection<B, P, Peers<P>>,
    op: Op<L>,
) -> PeerOperation<B, P> {
    let by = match op.operation {
        Operation::Write(_) => &PostedBy { verb: "Handle::post(Op::write)", opcode: WcOpcode::RDMA_WRITE },
        Operation::Read(_) => &PostedBy { verb: "Handle::post(Op::read)", opcode: WcOpcode::RDMA_READ },
        Operation::CmpSwp { .. } => {
            &PostedBy { verb: "Handle::post(Op::compare_swap)", opcode: WcOpcode::COMP_SWAP }
        }
        Operation::FetchAdd { .. } => {
            &PostedBy { verb: "Handle::post(Op::fetch_add)", opcode: WcOpcode::FETCH_ADD }
        }
        Operation::Send if op.flags == SendFlags::SIGNALED => {
            let (range, tag) = (op.range, op.tag);
            return match op.split() {
                (Some(buffer), _) => send_message(peer, buffer, range, tag),
                (None, _) => {
                    Pending::refused(Error::invalid("Handle::post", "a message is not inline"), None, tag)
                }
            };
        }
        Operation::Send => {
            let reason = "a message has no option but its tag";
            return Pending::refused_op(SlotKind::Send, Error::invalid("Handle::post", reason), op);
        }
        _ => {
            let reason = "immediate data belongs to the flow control: use `Op::send` or `Op::write`";
            return Pending::refused_op(SlotKind::Send, Error::invalid("Handle::post", reason), op);
        }
    };
    let closing = match &peer.inner().conn.lock().service {
        PeerState { flow, .. } if !flow.is_closing() => None,
        peer => Some(closing(by.verb, peer)),
    };
    if let Some(error) = closing {
        return Pending::refused_op(SlotKind::Send, error, op);
    }
    peer.post_by(by, op)
}

#[cold]
fn closing(verb: &'static str, peer: &PeerState) -> Error {
    if peer.flow.is_peer_draining() {
        return Error::Draining { verb };
    }
    Error::Closed { verb, reason: "the connection is closing: it takes no more messages and operations" }
}
