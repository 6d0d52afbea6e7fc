//! The InfiniBand communication manager (CM): connections and service resolution by messages on QP 1.
//!
//! States, answers and time-outs are those of the kernel's `drivers/infiniband/core/cm.c`. The CM has no
//! clock and no lock: its owner passes in messages and the time, and takes the messages to send.
//!
//! | module | content |
//! |---|---|
//! | `message` | the messages, and the MADs that carry them |
//! | `connection` | a connection, and the messages that it sends |
//! | `calls` | calls of the program |
//! | `receive` | messages of peers |
//! | `timers` | repetitions, and the end of `TIMEWAIT` |
//!
//! Unlike the kernel's, this CM
//!
//! - drops messages from other addresses than that of the connection's peer, and knows a peer by its GID
//!   beside its GUID, so that no host ends connections of another one;
//! - answers a REQ that is repeated in `TIMEWAIT` with reason 10 (stale connection) rather than as a
//!   new one;
//! - answers a DREQ that is repeated after `TIMEWAIT`;
//! - reckons with time-outs of a peer, and with a `TIMEWAIT`, of at most 4.096 µs × 2^24 (69 s).

mod calls;
mod connection;
mod message;
mod receive;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

use bareverbs_transport::packet::Transport;

use connection::Connection;
pub(crate) use message::MAD_LENGTH;
use message::{Mad, Message};

/// A listener or a connection. The value is its communication id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnId(pub(crate) u32);

/// Takes the events of connections.
pub(crate) trait CmSink: Send + Sync + Debug {
    /// Takes an event. It runs under the fabric's lock, so it must not call the fabric.
    ///
    /// The id is that of the connection; for [`CmEvent::Request`] and [`CmEvent::DatagramRequest`]
    /// that of the listener. The verdict counts for these two only.
    fn event(&self, id: ConnId, event: CmEvent) -> Verdict;
}

/// What happens with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The connection stays until it is destroyed.
    Keep,
    /// The same, and a repeated REQ or REP is answered with MRA. Counts for [`CmEvent::Reply`], too.
    Delay,
    /// The connection is forgotten, without an answer: the peer repeats its request. A datagram
    /// request is rejected with status 2.
    Drop,
    /// The connection is rejected with reason 28 (consumer), a datagram request with status 2.
    Reject,
}

/// A path between two ports. `source` is the own GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    /// 20 bits.
    pub(crate) flow_label: u32,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    pub(crate) service_level: u8,
    /// The MTU: 1 for 256 bytes to 5 for 4096 bytes.
    pub(crate) mtu: u8,
    /// The rate, as in a path record.
    pub(crate) rate: u8,
    /// The packet life time: 4.096 µs × 2^n.
    pub(crate) packet_life: u8,
    pub(crate) pkey: u16,
}

/// Options of enhanced connection establishment (ECE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ece {
    /// 24 bits.
    pub(crate) vendor: u32,
    pub(crate) options: u32,
}

/// A request for a connection, from the view of the side that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) service_id: u64,
    /// RC or UC.
    pub(crate) transport: Transport,
    pub(crate) qpn: u32,
    pub(crate) starting_psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    /// The time within which the peer answers: 4.096 µs × 2^n.
    pub(crate) remote_response_timeout: u8,
    /// The time within which the requester answers: 4.096 µs × 2^n.
    pub(crate) local_response_timeout: u8,
    pub(crate) flow_control: bool,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    /// Repetitions of each message.
    pub(crate) max_retries: u8,
    pub(crate) srq: bool,
    pub(crate) ece: Ece,
    /// At most 92 bytes; 92 in an event.
    pub(crate) private_data: Vec<u8>,
}

/// The answer to a [`Request`], from the view of the side that accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) qpn: u32,
    pub(crate) starting_psn: u32,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) flow_control: bool,
    pub(crate) rnr_retry_count: u8,
    pub(crate) srq: bool,
    /// The delay of the accepting device's ACKs: 4.096 µs × 2^n. The CM sets it when it sends.
    pub(crate) ack_delay: u8,
    pub(crate) ece: Ece,
    /// At most 196 bytes; 196 in an event.
    pub(crate) private_data: Vec<u8>,
}

/// A request for the QP of a datagram service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatagramRequest {
    pub(crate) service_id: u64,
    /// At most 216 bytes; 216 in an event.
    pub(crate) private_data: Vec<u8>,
}

/// The answer to a [`DatagramRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DatagramReply {
    /// 0 if the service is there, 1 unsupported, 2 rejected, 3 no QP.
    pub(crate) status: u8,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    /// At most 136 bytes; 136 in an event.
    pub(crate) private_data: Vec<u8>,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CmEvent {
    /// REQ, for a listener. The events of the connection go to the listener's sink.
    Request { connection: ConnId, request: Request, path: Path },
    /// REP.
    Reply(Reply),
    /// RTU, or a call of [`cm_established`](crate::engine::Engine::cm_established).
    Established,
    /// REJ. 148 bytes of private data.
    Rejected { reason: u16, private_data: Vec<u8> },
    /// DREQ. It is answered by [`cm_disconnect`](crate::engine::Engine::cm_disconnect).
    Disconnected,
    /// DREP.
    DisconnectReply,
    /// No DREP has come. The time of `TIMEWAIT` has begun.
    DisconnectUnanswered,
    /// A REQ, REP or SIDR_REQ was not answered.
    Unreachable,
    /// The time of `TIMEWAIT` is over.
    TimewaitExit,
    /// SIDR_REQ, for a listener.
    DatagramRequest { connection: ConnId, request: DatagramRequest, path: Path },
    /// SIDR_REP.
    DatagramReply(DatagramReply),
}

/// The states of a connection, without those of SIDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnState {
    Idle,
    Listen,
    RequestSent,
    /// The peer has asked for more time (MRA).
    RequestProlonged,
    RequestReceived,
    /// A repeated REQ is answered with MRA.
    RequestDelayed,
    ReplySent,
    /// The peer has asked for more time (MRA).
    ReplyProlonged,
    ReplyReceived,
    /// A repeated REP is answered with MRA.
    ReplyDelayed,
    Established,
    DisconnectSent,
    DisconnectReceived,
    Timewait,
    DatagramRequestSent,
    DatagramRequestReceived,
}

/// The time-out of a QP whose peer has this delay of ACKs and whose path has this packet life time.
/// All are 4.096 µs × 2^n.
///
/// That of ACKs and twice that of packets are added: the larger one, or one more if the other is
/// within half of it.
pub(crate) fn ack_timeout(ack_delay: u8, packet_life: u8) -> u8 {
    let round_trip = packet_life.saturating_add(1);
    let (larger, smaller) = (round_trip.max(ack_delay), round_trip.min(ack_delay));
    larger.saturating_add(u8::from(larger - smaller <= 1)).min(31)
}

/// What fuzz targets compare of a connection.
#[cfg(feature = "test-utils")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmConnection {
    /// The communication id.
    pub id: u32,
    /// The address of the peer.
    pub peer: std::net::IpAddr,
    /// The number of the state.
    pub state: u8,
    /// The time of its timer.
    pub deadline: Option<u64>,
}

/// A message for the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) path: Path,
    pub(crate) mad: [u8; MAD_LENGTH],
}

/// A device that sends messages. The GUID is of its choice, the GID is the source of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    guid: u64,
    gid: [u8; 16],
}

/// A listener.
#[derive(Debug)]
struct Listener {
    id: ConnId,
    sink: Arc<dyn CmSink>,
}

/// The communication manager of a device.
#[derive(Debug)]
pub(crate) struct Cm {
    /// The GUID of the device.
    guid: u64,
    /// The time in nanoseconds.
    now: u64,
    /// The id that is tried next.
    next_id: u32,
    /// By service id.
    listeners: BTreeMap<u64, Listener>,
    /// By communication id.
    connections: BTreeMap<u32, Connection>,
    /// The connection with a communication id of a peer: finds repeated REQs.
    remote_ids: BTreeMap<(u32, Peer), u32>,
    /// The connection with a QPN of a peer: finds stale connections.
    remote_qps: BTreeMap<(u32, Peer), u32>,
    /// The connection with a SIDR request id and GID: finds repeated SIDR_REQs.
    datagram_requests: BTreeMap<(u32, [u8; 16]), u32>,
    /// The times of timers, with their connections.
    timers: BTreeSet<(u64, u32)>,
    outgoing: Vec<Outgoing>,
}

impl Cm {
    /// The CM of a device with this GUID. `first_id` is its first communication id. A device that follows
    /// another one on an address should have another one, or peers take its requests for repeated ones.
    pub(crate) fn new(guid: u64, first_id: u32) -> Self {
        Self {
            guid,
            now: 0,
            next_id: first_id,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            remote_ids: BTreeMap::new(),
            remote_qps: BTreeMap::new(),
            datagram_requests: BTreeMap::new(),
            timers: BTreeSet::new(),
            outgoing: Vec::new(),
        }
    }

    /// The number of connections and listeners.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn len(&self) -> usize {
        self.connections.len() + self.listeners.len()
    }

    /// The connections, with those in `TIMEWAIT`.
    #[cfg(feature = "test-utils")]
    pub(crate) fn connections(&self) -> Vec<CmConnection> {
        let of = |(id, connection): (&u32, &Connection)| CmConnection {
            id: *id,
            peer: crate::wire::address_of(&connection.path.destination),
            state: connection.state as u8,
            deadline: connection.deadline,
        };
        self.connections.iter().map(of).collect()
    }

    /// Sets the next communication id.
    pub(crate) fn set_next_id(&mut self, id: u32) {
        self.next_id = id;
    }

    /// Sets the time.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = now;
    }

    /// Takes the messages to send.
    pub(crate) fn take_outgoing(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.outgoing)
    }

    fn send(&mut self, path: Path, transaction: u64, message: Message) {
        self.outgoing.push(Outgoing { path, mad: Mad { transaction, message }.encode() });
    }
}
