//! The protocol of servers and clients on the connections of their hub.

pub(crate) mod inbound;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::Waker;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{Operation, Payload, SendFlags, SendRequest, Sge, WorkCompletion};
use bareverbs_uapi::verbs_values::QpState;

use self::inbound::{Inbound, RawEvent, SHARED};
use super::PeerId;
use super::flow::{ControlKind, FlowControl};
use crate::owned::RegionMut;
use crate::owned::buffer::checked_sge;
use crate::owned::hub::HubInner;
use crate::owned::hub::reaper::service::{Service, post_verb};
use crate::owned::hub::reaper::{Conn, ConnState, Cqe, Deferred, Failure, OpTable, SlotKind, TAKEN_BACK};
use crate::{Buffer, Error, Imm, Pd, Result, WcOpcode, WcStatus};

/// Set in the `wr_id`s of control messages. The kind of the message is in the low bits.
const CONTROL: u64 = 1 << 62;

/// The server's state of a connection.
#[derive(Debug)]
pub struct PeerState {
    pub(crate) flow: FlowControl<Queued>,
    /// Longest message that the peer receives.
    pub(crate) max_message: u32,
    /// The memory of the words of data messages, where they are no immediate data. Messages use one after
    /// the other, and there are no more of them outstanding than words.
    pub(crate) words: Option<VecDeque<RegionMut>>,
}

/// A message that waits for a credit. The table has its buffer.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) wr_id: u64,
    pub(crate) sge: Sge,
}

/// The peers of a server, as the service of its hub.
pub(crate) type Peers<P> = Arc<Inbound<P>>;

/// The connection of a peer.
pub(crate) type PeerConn<P> = Conn<P, Peers<P>>;

/// The memory of words, each of 4 bytes.
pub(crate) fn words<P: Provider>(pd: &Pd<P>, count: usize) -> Result<VecDeque<RegionMut>> {
    let memory = RegionMut::register(pd, Buffer::zeroed(WORD * count)?)?;
    Ok(memory.chunks(WORD).collect())
}

/// Bytes of the word of a message, where it is no immediate data.
pub(crate) const WORD: usize = 4;

/// Posts the messages that are due.
pub(crate) fn pump<B, P: Provider>(
    conn: &PeerConn<P>,
    state: &mut ConnState<P, Peers<P>>,
    table: &OpTable<B>,
) -> Result<(), Failure> {
    let ConnState { qp: Some(qp), failure: None, service: PeerState { flow, words, .. }, .. } = state else {
        return Ok(());
    };
    if qp.state() != QpState::RTS {
        return Ok(());
    }
    while let Some((kind, imm, message)) = flow.next() {
        let (wr_id, sge) = match &message {
            Some(Queued { wr_id, sge }) => (*wr_id, Some(*sge)),
            None => (CONTROL | kind as u64, None),
        };
        if message.is_some() {
            table.publish(wr_id);
        }
        let word = imm.0.to_be_bytes();
        let (inline, both);
        let (operation, payload) = match (&mut *words, &sge) {
            (None, sge) => (Operation::SendImm(imm), Payload::Sges(sge.as_slice())),
            (Some(_), None) => (Operation::Send, {
                inline = [&word[..]];
                Payload::Inline(&inline)
            }),
            (Some(words), Some(sge)) => {
                // The oldest word: its message is complete.
                words.rotate_left(1);
                let own = words.back_mut().map(|own| {
                    own.bytes_mut().copy_from_slice(&word);
                    checked_sge("Server", &*own, qp.pd().domain(), ..)
                });
                let own = own.and_then(Result::ok).ok_or(Failure::Aborted)?;
                both = [own, *sge];
                (Operation::Send, Payload::Sges(&both))
            }
        };
        // Earlier reads and atomics of this end are complete: the peer may end the access to its memory.
        // On siw, two ends that both wait at a fence answer no reads.
        let fences = kind == ControlKind::Fin && !(words.is_some() && conn.is_idle(SlotKind::Send));
        let fence = if fences { SendFlags::FENCE } else { SendFlags::empty() };
        let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED | fence, payload };
        // SAFETY: a request without an SGE names no memory. That of a message was made by `checked_sge`
        // for a buffer of `Source` that was moved into the table, and `Connection::post_send` says how
        // long the table keeps it. `words` has that of a word: its drop deregisters it, whatever the device
        // does. A send does not write its memory.
        if let Err(error) = unsafe { qp.post_send(&[request]) } {
            // A request that counts as posted completes when the connection ends.
            if let Some(message) = message.filter(|_| error.accepted == 0) {
                // It fails with the connection.
                flow.put_back(message);
            }
            return Err(Failure::Post(error));
        }
    }
    Ok(())
}

/// Ends messages that waited for credits, with `status`.
pub(crate) fn flush<B, P: Provider>(
    hub: &HubInner<B, P, Peers<P>>,
    conn: &PeerConn<P>,
    queue: VecDeque<Queued>,
    status: WcStatus,
    deferred: &mut Deferred<B>,
) {
    for Queued { wr_id, .. } in queue {
        hub.end_operation(conn, wr_id, Cqe::error(status, 0), deferred);
    }
}

impl PeerState {
    /// Rejects messages and operations of a connection that closes.
    pub(super) fn check_open(&self, verb: &'static str) -> Result<()> {
        if !self.flow.is_closing() {
            return Ok(());
        }
        if self.flow.is_peer_draining() {
            return Err(Error::Draining { verb });
        }
        let reason = "the connection is closing: it takes no more messages and operations";
        Err(Error::Closed { verb, reason })
    }
}

#[expect(private_interfaces, reason = "as of the trait")]
impl<P: Provider> Service<P> for Peers<P> {
    type Conn = PeerState;

    const OWNS: bool = true;

    fn verb(opcode: WcOpcode) -> &'static str {
        post_verb!("Handle", opcode)
    }

    fn check_post(peer: &PeerState, opcode: WcOpcode) -> Result<()> {
        peer.check_open(Self::verb(opcode))
    }

    /// Handles the completion of a receive of the SRQ, or of a control message.
    fn completion<B>(
        hub: &HubInner<B, P, Self>,
        completion: &WorkCompletion,
        conn: Option<&Arc<PeerConn<P>>>,
        deferred: &mut Deferred<B>,
    ) {
        let inbound = &hub.service;
        let WorkCompletion { wr_id, status, vendor_err, .. } = *completion;
        let shared = wr_id & SHARED != 0;
        let receive = if shared { inbound.take(wr_id) } else { None };
        let unknown = shared && receive.is_none();
        let Some(conn) = conn else {
            // The connection was destroyed.
            receive.into_iter().for_each(|receive| inbound.post_again(receive));
            return;
        };
        let failure = if unknown {
            Some(Failure::Unknown { wr_id })
        } else if status != WcStatus::SUCCESS {
            let verb = if shared { "Server::next" } else { Self::verb(WcOpcode::SEND) };
            Some(conn.failure(verb, status, vendor_err))
        } else {
            None
        };
        if let Some(failure) = failure {
            receive.into_iter().for_each(|receive| inbound.post_again(receive));
            hub.end_conn(conn, failure, deferred);
            return;
        }
        let mut state = conn.lock();
        if state.ended {
            // The event of its end was queued, and no message may follow it.
            drop(state);
            receive.into_iter().for_each(|receive| inbound.post_again(receive));
            return;
        }
        let PeerState { flow, words, .. } = &mut state.service;
        let arrived = match &receive {
            None => {
                // Without an acknowledgement of the peer's device, only its message shows that it has the
                // FIN.
                let is_proof = |kind: &ControlKind| *kind != ControlKind::Fin || words.is_none();
                ControlKind::CONTROL
                    .into_iter()
                    .filter(|kind| CONTROL | *kind as u64 == wr_id && is_proof(kind))
                    .for_each(|kind| flow.control_done(kind));
                Ok(None)
            }
            Some(receive) => {
                let len = (completion.byte_len as usize).checked_sub(receive.word.map_or(0, |_| WORD));
                let imm = receive.word.or_else(|| completion.imm()).unwrap_or(Imm(0));
                // The length of an RDMA write with immediate is not that of bytes in the receive.
                if completion.opcode == WcOpcode::RECV
                    && let Some(len) = len.filter(|len| *len <= receive.buffer.len())
                {
                    let kind = flow.arrived(imm);
                    kind.map(|kind| Some((kind, len))).map_err(|_| VIOLATION)
                } else {
                    Err(VIOLATION)
                }
            }
        };
        let unsent = match arrived {
            Ok(Some((ControlKind::Drain, _))) => flow.take_queue(),
            _ => VecDeque::new(),
        };
        let pumped = match arrived {
            Ok(_) => pump(conn, &mut state, &hub.table),
            Err(failure) => Err(failure),
        };
        let finished = state.service.flow.is_finished() && !mem::replace(&mut state.ended, true);
        let answered = state.service.flow.is_delivered();
        drop(state);
        flush(hub, conn, unsent, TAKEN_BACK, deferred);
        let id = PeerId::from(conn.id);
        match (arrived, receive) {
            (Ok(Some((ControlKind::Data, len))), Some(receive)) => {
                let conn = Arc::clone(conn);
                deferred.woken.extend(inbound.push(RawEvent::Message { conn, receive, len }));
            }
            (arrived, receive) => {
                receive.into_iter().for_each(|receive| inbound.post_again(receive));
                if let Ok(Some((ControlKind::Fin, _))) = arrived {
                    deferred.woken.extend(inbound.push(RawEvent::Closed(id)));
                }
            }
        }
        if answered {
            deferred.woken.extend(inbound.shutdown_wakers());
        }
        if finished {
            deferred.woken.extend(inbound.finished(id));
        }
        if let Err(failure) = pumped {
            hub.end_conn(conn, failure, deferred);
        }
    }

    /// Flushes the messages that wait for credits, and queues the event.
    fn ended<B>(
        hub: &HubInner<B, P, Self>,
        conn: &PeerConn<P>,
        failure: Failure,
        deferred: &mut Deferred<B>,
    ) {
        let (queue, complete, first) = {
            let mut state = conn.lock();
            let PeerState { flow, .. } = &mut state.service;
            let (queue, complete) = (flow.take_queue(), flow.is_complete());
            (queue, complete, !mem::replace(&mut state.ended, true))
        };
        flush(hub, conn, queue, WcStatus::WR_FLUSH_ERR, deferred);
        if first {
            let (inbound, id) = (&hub.service, PeerId::from(conn.id));
            if complete {
                deferred.woken.extend(inbound.finished(id));
            } else {
                deferred.woken.extend(inbound.push(RawEvent::Failed(id, failure)));
                deferred.woken.extend(inbound.shutdown_wakers());
            }
        }
    }

    fn count(&self, success: bool, detached: bool) -> Vec<Waker> {
        self.count_ended(success, detached)
    }

    fn is_delivered(&self, state: &ConnState<P, Peers<P>>) -> bool {
        state.service.flow.is_delivered()
    }

    fn taken_back(&self, verb: &'static str) -> Error {
        Error::Draining { verb }
    }

    fn take_wakers(&self) -> Vec<Waker> {
        self.take_all_wakers()
    }
}

/// The peer violated the protocol.
const VIOLATION: Failure = Failure::Service {
    verb: "Server::next",
    reason: "the peer violated the flow control protocol: connect `Server`s and `Client`s of the same version \
             only",
};
