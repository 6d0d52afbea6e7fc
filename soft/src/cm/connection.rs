//! A connection: its state, its timer, and the messages that it sends.

use std::sync::Arc;

use bareverbs_provider::Errno;

use super::message::{Message, Mra, Rej, Rtu};
use super::{Cm, CmEvent, CmSink, ConnId, ConnState, Path, Peer, Verdict};

/// Connections of a device, including those in `TIMEWAIT`.
const MAX_CONNECTIONS: usize = 1 << 20;

/// What a REJ or MRA answers.
pub(super) mod answered {
    pub(in crate::cm) const REQUEST: u8 = 0;
    pub(in crate::cm) const REPLY: u8 = 1;
    pub(in crate::cm) const OTHER: u8 = 2;
}

/// Reasons of REJ that the CM gives by itself.
pub(super) mod reason {
    pub(in crate::cm) const TIMEOUT: u16 = 4;
    pub(in crate::cm) const INVALID_SERVICE: u16 = 8;
    pub(in crate::cm) const INVALID_TRANSPORT: u16 = 9;
    pub(in crate::cm) const STALE: u16 = 10;
    pub(in crate::cm) const INVALID_GID: u16 = 12;
    pub(in crate::cm) const CONSUMER: u16 = 28;
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: ConnState,
    /// `None` once it was destroyed: it remains in `TIMEWAIT`.
    pub(super) sink: Option<Arc<dyn CmSink>>,
    pub(super) path: Path,
    pub(super) service_id: u64,
    /// The peer's communication or request id. 0 until it is known.
    pub(super) remote_id: u32,
    /// The GUID of the peer.
    pub(super) remote_guid: u64,
    pub(super) local_qpn: u32,
    pub(super) remote_qpn: u32,
    /// The transaction of its answers.
    pub(super) transaction: u64,
    /// The time within which the peer answers, in nanoseconds.
    pub(super) response_time: u64,
    pub(super) max_retries: u8,
    /// The time-out of the QP, and the duration of `TIMEWAIT`: 4.096 µs × 2^n.
    pub(super) ack_timeout: u8,
    /// The service time of MRA.
    pub(super) service_timeout: u8,
    /// That of the RTU or DREP that is repeated.
    pub(super) private_data: Vec<u8>,
    /// The message that waits for an answer.
    pub(super) repeated: Option<Repeated>,
    pub(super) deadline: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Repeated {
    transaction: u64,
    message: Message,
    /// Nanoseconds until the next repetition.
    interval: u64,
    left: u8,
}

/// Nanoseconds of 4.096 µs × 2^n, in whole milliseconds and approximate, as in the kernel. At most
/// those of the largest exponent of a message, 31.
pub(super) fn nanoseconds(exponent: u8) -> u64 {
    1_000_000 << exponent.min(31).saturating_sub(8)
}

/// The same for an exponent that a peer has chosen. A larger one would keep the connection for hours.
pub(super) fn nanoseconds_of_peer(exponent: u8) -> u64 {
    const MAX: u8 = 24;
    nanoseconds(exponent.min(MAX))
}

/// The field of a message with private data. `EINVAL` if it is too long.
pub(super) fn field<const N: usize>(data: &[u8]) -> Result<[u8; N], Errno> {
    let mut field = [0; N];
    field.get_mut(..data.len()).ok_or(Errno::INVAL)?.copy_from_slice(data);
    Ok(field)
}

impl Connection {
    pub(super) fn new(state: ConnState, sink: Arc<dyn CmSink>, path: Path) -> Self {
        Self {
            state,
            sink: Some(sink),
            path,
            service_id: 0,
            remote_id: 0,
            remote_guid: 0,
            local_qpn: 0,
            remote_qpn: 0,
            transaction: 0,
            response_time: 0,
            max_retries: 0,
            ack_timeout: path.packet_life.saturating_add(1),
            service_timeout: 0,
            private_data: Vec::new(),
            repeated: None,
            deadline: None,
        }
    }

    fn peer(&self) -> Peer {
        Peer { guid: self.remote_guid, gid: self.path.destination }
    }
}

impl Cm {
    /// An id that is free. `ENOMEM` if the limit is reached.
    pub(super) fn new_id(&mut self) -> Result<u32, Errno> {
        if self.connections.len() + self.listeners.len() >= MAX_CONNECTIONS {
            return Err(Errno::NOMEM);
        }
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            let is_listener = || self.listeners.values().any(|listener| listener.id.0 == id);
            if id != 0 && !self.connections.contains_key(&id) && !is_listener() {
                return Ok(id);
            }
        }
    }

    /// The transaction of a message that isn't an answer.
    pub(super) fn transaction(&self, id: u32) -> u64 {
        self.guid << 32 | u64::from(id)
    }

    /// The connection with these communication ids, if a message comes from its peer.
    pub(super) fn find(&mut self, id: u32, remote_id: u32, from: &Path) -> Option<&mut Connection> {
        let is_peer = |path: &Path| (path.source, path.destination) == (from.source, from.destination);
        self.connections
            .get_mut(&id)
            .filter(|connection| connection.remote_id == remote_id && is_peer(&connection.path))
    }

    /// Sends a message of a connection, and repeats it until the next [`cancel`](Self::cancel).
    pub(super) fn send_repeated(&mut self, id: u32, transaction: u64, message: Message) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (path, interval) = (connection.path, connection.response_time);
        let left = connection.max_retries;
        connection.repeated = Some(Repeated { transaction, message: message.clone(), interval, left });
        self.set_timer(id, interval);
        self.send(path, transaction, message);
    }

    /// Sends the message again that waits for an answer. `false` if it was repeated often enough.
    pub(super) fn repeat(&mut self, id: u32) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        let path = connection.path;
        let Some(repeated) = connection.repeated.as_mut().filter(|repeated| repeated.left > 0) else {
            return false;
        };
        repeated.left -= 1;
        let (transaction, message) = (repeated.transaction, repeated.message.clone());
        let interval = repeated.interval;
        self.set_timer(id, interval);
        self.send(path, transaction, message);
        true
    }

    /// Waits longer for the answer, now and after repetitions.
    pub(super) fn prolong(&mut self, id: u32, interval: u64) {
        if let Some(repeated) = self.connections.get_mut(&id).and_then(|found| found.repeated.as_mut()) {
            repeated.interval = interval;
            self.set_timer(id, interval);
        }
    }

    /// Doesn't wait for an answer any more.
    pub(super) fn cancel(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.repeated = None;
        if let Some(deadline) = connection.deadline.take() {
            self.timers.remove(&(deadline, id));
        }
    }

    fn set_timer(&mut self, id: u32, interval: u64) {
        let deadline = self.now.saturating_add(interval);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(before) = connection.deadline.replace(deadline) {
            self.timers.remove(&(before, id));
        }
        self.timers.insert((deadline, id));
    }

    fn forget_qp(&mut self, id: u32) {
        if let Some(connection) = self.connections.get(&id) {
            let remote = (connection.remote_qpn, connection.peer());
            if self.remote_qps.get(&remote) == Some(&id) {
                self.remote_qps.remove(&remote);
            }
        }
    }

    fn forget_peer(&mut self, id: u32) {
        self.forget_qp(id);
        let Some(connection) = self.connections.get(&id) else { return };
        let remote = (connection.remote_id, connection.peer());
        if self.remote_ids.get(&remote) == Some(&id) {
            self.remote_ids.remove(&remote);
        }
        let request = (connection.remote_id, connection.path.destination);
        if self.datagram_requests.get(&request) == Some(&id) {
            self.datagram_requests.remove(&request);
        }
    }

    /// Ends a connection whose QP was not used.
    pub(super) fn reset(&mut self, id: u32) {
        self.cancel(id);
        self.forget_peer(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = ConnState::Idle;
        }
    }

    /// Ends a connection whose packets may still be under way.
    pub(super) fn enter_timewait(&mut self, id: u32) {
        self.cancel(id);
        self.forget_qp(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.state = ConnState::Timewait;
            let duration = nanoseconds_of_peer(connection.ack_timeout);
            self.set_timer(id, duration);
        }
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.cancel(id);
        self.forget_peer(id);
        self.connections.remove(&id);
    }

    /// Hands an event of a connection to its sink.
    pub(super) fn raise(&mut self, id: u32, event: CmEvent) {
        let Some(sink) = self.connections.get(&id).and_then(|connection| connection.sink.as_ref()) else {
            return;
        };
        if sink.event(ConnId(id), event) == Verdict::Delay {
            // It fails in states without a message to answer.
            let _ = self.delay(ConnId(id));
        }
    }
}

// The messages that are sent from more than one place.
impl Cm {
    pub(super) fn send_rtu(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let private_data = field(&connection.private_data).unwrap_or([0; 224]);
        let rtu = Rtu { local_id: id, remote_id: connection.remote_id, private_data };
        self.send(connection.path, connection.transaction, Message::Rtu(rtu));
    }

    pub(super) fn send_mra(&mut self, id: u32, delayed: u8) {
        let Some(connection) = self.connections.get(&id) else { return };
        let service_timeout = connection.service_timeout;
        let mra = Mra { local_id: id, remote_id: connection.remote_id, delayed, service_timeout };
        self.send(connection.path, connection.transaction, Message::Mra(mra));
    }

    /// Sends a REJ of a connection.
    pub(super) fn send_rej(
        &mut self,
        id: u32,
        reason: u16,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Errno> {
        use ConnState::{ReplyDelayed, ReplyReceived, RequestDelayed, RequestReceived};
        let connection = self.connections.get(&id).ok_or(Errno::INVAL)?;
        let rejected = match connection.state {
            RequestReceived | RequestDelayed => answered::REQUEST,
            ReplyReceived | ReplyDelayed => answered::REPLY,
            _ => answered::OTHER,
        };
        // The peer doesn't know the id of an unanswered REQ.
        let local_id = if connection.state == RequestReceived { 0 } else { id };
        let rej = Rej {
            local_id,
            remote_id: connection.remote_id,
            rejected,
            info_length: info.len() as u8,
            reason,
            info: field(info)?,
            private_data: field(private_data)?,
        };
        self.send(connection.path, connection.transaction, Message::Rej(rej));
        Ok(())
    }
}
