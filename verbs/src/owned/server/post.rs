//! Messages and operations on the connections of a server.

use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{Operation, SendFlags};

use super::PeerOperation;
use super::reap::{PeerState, Peers, Queued, pump};
use crate::error::Limit;
use crate::owned::buffer::checked_sge;
use crate::owned::hub::connection::Connection;
use crate::owned::hub::connection_inner::{ConnectionInner, full};
use crate::owned::hub::reaper::service::Service;
use crate::owned::hub::reaper::{OpEntry, SlotKind};
use crate::owned::operation::{ByteRange, OpPayload};
use crate::owned::{Op, Pending, Source};
use crate::{Error, WcOpcode};

/// Sends a message, or adds it to those that wait for credits.
fn send_message<B: Source, P: Provider>(
    peer: &Connection<B, P, Peers<P>>,
    buffer: B,
    range: ByteRange,
    tag: u64,
) -> PeerOperation<B, P> {
    let (opcode, kind) = (WcOpcode::SEND, SlotKind::Service);
    let verb = Peers::<P>::verb(opcode);
    let ConnectionInner { hub, conn, .. } = &*peer.inner;
    let sge = match checked_sge(verb, &buffer, hub.pd.domain(), range) {
        Ok(sge) => sge,
        Err(error) => return Pending::refused(error, Some(buffer), tag),
    };
    let mut state = conn.lock();
    let slot = match (state.failure, &state.service) {
        (Some(failure), _) => Err(failure.into()),
        (None, PeerState { max_message, .. }) if sge.length > *max_message => Err(Error::Limit {
            verb,
            limit: Limit::MessageLen,
            asked: sge.length.into(),
            max: (*max_message).into(),
        }),
        (None, peer) => {
            peer.check_open(verb).and_then(|()| conn.take_slot(kind).ok_or_else(|| full(conn, kind)))
        }
    };
    let index = match slot {
        Ok(index) => index,
        Err(error) => {
            drop(state);
            return Pending::refused(error, Some(buffer), tag);
        }
    };
    // The table owns the buffer before the request is posted, so a panic in between does not free it.
    let entry = OpEntry { buffer: Some(buffer), opcode, kind, tag, len: sge.length };
    let wr_id = hub.table.insert_queued(index, entry);
    hub.service.count_accepted();
    state.service.flow.push(Queued { wr_id, sge });
    let pumped = pump(conn, &mut state, &hub.table);
    drop(state);
    if let Err(failure) = pumped {
        hub.end(conn, failure);
    }
    Pending::posted(Arc::clone(&peer.inner), wr_id)
}

/// Posts a message, a write, a read or an atomic operation.
pub(super) fn post<B: Source, P: Provider, L: OpPayload<B>>(
    peer: &Connection<B, P, Peers<P>>,
    op: Op<L>,
) -> PeerOperation<B, P> {
    let checked = match op.operation {
        Operation::Send if op.flags == SendFlags::SIGNALED => {
            let (range, tag) = (op.range, op.tag);
            return match op.split() {
                (Some(buffer), _) => send_message(peer, buffer, range, tag),
                (None, _) => {
                    Pending::refused(Error::invalid("Handle::post", "a message is not inline"), None, tag)
                }
            };
        }
        Operation::Send => Err(Error::invalid("Handle::post", "a message has no option but its tag")),
        Operation::Write(_) | Operation::Read(_) | Operation::CmpSwp { .. } | Operation::FetchAdd { .. } => {
            Ok(())
        }
        _ => {
            let reason = "immediate data belongs to the flow control: use `Op::send` or `Op::write`";
            Err(Error::invalid("Handle::post", reason))
        }
    };
    match checked {
        Ok(()) => peer.post_send(op),
        Err(error) => Pending::refused_op(error, op),
    }
}
