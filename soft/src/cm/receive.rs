//! Messages of peers.

use std::sync::Arc;

use bareverbs_transport::packet::Transport;

use super::connection::{Connection, answered, nanoseconds_of_peer, reason};
use super::message::{Drep, Dreq, Mad, Message, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use super::{
    Cm, CmEvent, ConnId, ConnState, DatagramReply, DatagramRequest, Ece, Path, Peer, Reply, Request, Verdict,
    ack_timeout,
};

/// The status of a SIDR_REP: no listener has the service id.
const DATAGRAM_UNSUPPORTED: u8 = 1;

impl Cm {
    /// Receives a MAD. `from` is the path back to its sender. MADs that aren't understood are dropped.
    pub(crate) fn receive(&mut self, from: Path, mad: &[u8]) {
        let Some(Mad { transaction, message }) = Mad::decode(mad) else { return };
        match message {
            Message::Req(req) => self.receive_req(from, transaction, &req),
            Message::Mra(mra) => self.receive_mra(&from, &mra),
            Message::Rej(rej) => self.receive_rej(&from, &rej),
            Message::Rep(rep) => self.receive_rep(from, transaction, &rep),
            Message::Rtu(rtu) => self.receive_rtu(&from, &rtu),
            Message::Dreq(dreq) => self.receive_dreq(from, transaction, &dreq),
            Message::Drep(drep) => self.receive_drep(&from, &drep),
            Message::SidrReq(request) => self.receive_sidr_req(from, transaction, &request),
            Message::SidrRep(reply) => self.receive_sidr_rep(&from, &reply),
        }
    }

    fn receive_req(&mut self, from: Path, transaction: u64, req: &Req) {
        let peer = Peer { guid: req.ca_guid, gid: from.destination };
        if let Some(&id) = self.remote_ids.get(&(req.local_id, peer)) {
            self.answer_repeated_req(id, from, transaction, req);
            return;
        }
        if let Some(&stale) = self.remote_qps.get(&(req.qpn, peer)) {
            self.refuse_req(from, transaction, req, reason::STALE, &[]);
            self.disconnect_stale(stale);
            return;
        }
        let Some(listener) = self.listeners.get(&req.service_id) else {
            self.refuse_req(from, transaction, req, reason::INVALID_SERVICE, &[]);
            return;
        };
        let listener_id = listener.id;
        let sink = Arc::clone(&listener.sink);
        let transport = match req.transport {
            0 => Transport::Rc,
            1 => Transport::Uc,
            _ => {
                self.refuse_req(from, transaction, req, reason::INVALID_TRANSPORT, &[]);
                return;
            }
        };
        if (req.remote_gid, req.local_gid) != (from.source, from.destination) {
            self.refuse_req(from, transaction, req, reason::INVALID_GID, &from.source);
            return;
        }
        let path = Path {
            flow_label: req.flow_label,
            traffic_class: req.traffic_class,
            service_level: req.service_level,
            mtu: req.mtu,
            rate: req.rate,
            packet_life: req.ack_timeout.saturating_sub(1),
            pkey: req.pkey,
            ..from
        };
        // Without an id the peer repeats its request.
        let Ok(id) = self.new_id() else { return };
        let connection = Connection {
            service_id: req.service_id,
            remote_id: req.local_id,
            remote_guid: req.ca_guid,
            remote_qpn: req.qpn,
            transaction,
            response_time: nanoseconds_of_peer(req.local_response_timeout),
            max_retries: req.max_retries,
            ..Connection::new(ConnState::RequestReceived, Arc::clone(&sink), path)
        };
        self.connections.insert(id, connection);
        self.remote_ids.insert((req.local_id, peer), id);
        self.remote_qps.insert((req.qpn, peer), id);
        let request = Request::of(req, transport);
        let verdict = sink.event(listener_id, CmEvent::Request { connection: ConnId(id), request, path });
        self.obey(id, verdict);
    }

    fn obey(&mut self, id: u32, verdict: Verdict) {
        match verdict {
            Verdict::Keep => {}
            Verdict::Delay => _ = self.delay(ConnId(id)),
            Verdict::Drop => self.drop_request(id),
            Verdict::Reject => self.destroy(ConnId(id)),
        }
    }

    fn answer_repeated_req(&mut self, id: u32, from: Path, transaction: u64, req: &Req) {
        let Some(connection) = self.connections.get(&id) else { return };
        let same = (connection.path.source, connection.path.destination) == (from.source, from.destination);
        match connection.state {
            ConnState::RequestDelayed if same => self.send_mra(id, answered::REQUEST),
            // For the connection that sends it now, which knows no id of this side.
            ConnState::Timewait if same => self.refuse_req(from, transaction, req, reason::STALE, &[]),
            _ => {}
        }
    }

    /// Rejects a REQ without a connection.
    fn refuse_req(&mut self, to: Path, transaction: u64, req: &Req, reason: u16, info: &[u8]) {
        let mut rej = Rej { remote_id: req.local_id, rejected: answered::REQUEST, reason, ..Rej::zero() };
        rej.info_length = info.len() as u8;
        rej.info[..info.len()].copy_from_slice(info);
        self.send(to, transaction, Message::Rej(rej));
    }

    /// The peer has reused the QPN of a connection: it has no such connection any more.
    fn disconnect_stale(&mut self, id: u32) {
        if self.state(ConnId(id)) == Some(ConnState::Established) {
            let sent = self.disconnect(ConnId(id), &[]);
            debug_assert_eq!(sent, Ok(()), "the state allows the call");
        }
    }

    fn receive_rep(&mut self, from: Path, transaction: u64, rep: &Rep) {
        let id = rep.remote_id;
        let Some(connection) = self.find(id, 0, &from) else {
            self.answer_repeated_rep(&from, rep);
            return;
        };
        if !matches!(connection.state, ConnState::RequestSent | ConnState::RequestProlonged) {
            return;
        }
        let peer = Peer { guid: rep.ca_guid, gid: from.destination };
        if self.remote_ids.contains_key(&(rep.local_id, peer)) {
            return;
        }
        if let Some(&stale) = self.remote_qps.get(&(rep.qpn, peer)) {
            let (local_id, remote_id) = (rep.remote_id, rep.local_id);
            let rejected = answered::REPLY;
            let rej = Rej { local_id, remote_id, rejected, reason: reason::STALE, ..Rej::zero() };
            self.send(from, transaction, Message::Rej(rej));
            self.disconnect_stale(stale);
            return;
        }
        self.remote_ids.insert((rep.local_id, peer), id);
        self.remote_qps.insert((rep.qpn, peer), id);
        self.cancel(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.state = ConnState::ReplyReceived;
        connection.remote_id = rep.local_id;
        connection.remote_guid = rep.ca_guid;
        connection.remote_qpn = rep.qpn;
        connection.ack_timeout = ack_timeout(rep.ack_delay, connection.path.packet_life);
        self.raise(id, CmEvent::Reply(Reply::of(rep)));
    }

    fn answer_repeated_rep(&mut self, from: &Path, rep: &Rep) {
        let id = rep.remote_id;
        match self.find(id, rep.local_id, from).map(|connection| connection.state) {
            Some(ConnState::Established) => self.send_rtu(id),
            Some(ConnState::ReplyDelayed) => self.send_mra(id, answered::REPLY),
            _ => {}
        }
    }

    fn receive_rtu(&mut self, from: &Path, rtu: &Rtu) {
        let id = rtu.remote_id;
        let Some(connection) = self.find(id, rtu.local_id, from) else { return };
        if matches!(connection.state, ConnState::ReplySent | ConnState::ReplyProlonged) {
            connection.state = ConnState::Established;
            self.cancel(id);
            self.raise(id, CmEvent::Established);
        }
    }

    fn receive_dreq(&mut self, from: Path, transaction: u64, dreq: &Dreq) {
        use ConnState::{
            DisconnectReceived, DisconnectSent, Established, Idle, ReplyProlonged, ReplySent, Timewait,
        };
        let id = dreq.remote_id;
        let Some(connection) = self.find(id, dreq.local_id, &from) else {
            let drep = Drep { local_id: id, remote_id: dreq.local_id, private_data: [0; 224] };
            self.send(from, transaction, Message::Drep(drep));
            return;
        };
        if connection.local_qpn != dreq.remote_qpn {
            return;
        }
        match connection.state {
            ReplySent | ReplyProlonged | Established | DisconnectSent => {
                connection.state = DisconnectReceived;
                connection.transaction = transaction;
                self.cancel(id);
                self.raise(id, CmEvent::Disconnected);
            }
            // The DREP was lost.
            Timewait | Idle => self.send_drep(id),
            _ => {}
        }
    }

    fn receive_drep(&mut self, from: &Path, drep: &Drep) {
        let id = drep.remote_id;
        let Some(connection) = self.find(id, drep.local_id, from) else { return };
        if matches!(connection.state, ConnState::DisconnectSent | ConnState::DisconnectReceived) {
            self.enter_timewait(id);
            self.raise(id, CmEvent::DisconnectReply);
        }
    }

    /// The connection that a REJ is for.
    fn rejected(&mut self, from: &Path, rej: &Rej) -> Option<u32> {
        let (id, remote_id) = if rej.reason == reason::TIMEOUT {
            // The peer doesn't know the id of this connection.
            let guid = rej.info.first_chunk().map(|guid| u64::from_be_bytes(*guid))?;
            let peer = Peer { guid, gid: from.destination };
            (*self.remote_ids.get(&(rej.local_id, peer))?, rej.local_id)
        } else if rej.rejected == answered::REQUEST {
            (rej.remote_id, 0)
        } else {
            (rej.remote_id, rej.local_id)
        };
        self.find(id, remote_id, from).map(|_| id)
    }

    fn receive_rej(&mut self, from: &Path, rej: &Rej) {
        use ConnState::{
            DisconnectSent, Established, ReplyDelayed, ReplyProlonged, ReplyReceived, ReplySent,
            RequestDelayed, RequestProlonged, RequestReceived, RequestSent,
        };
        let Some(id) = self.rejected(from, rej) else { return };
        match self.connections[&id].state {
            RequestSent | RequestProlonged | RequestReceived | RequestDelayed | ReplySent
            | ReplyProlonged
                if rej.reason != reason::STALE =>
            {
                self.reset(id);
            }
            RequestSent | RequestProlonged | RequestReceived | RequestDelayed | ReplySent
            | ReplyProlonged | ReplyReceived | ReplyDelayed | Established | DisconnectSent => {
                self.enter_timewait(id);
            }
            _ => return,
        }
        self.raise(id, CmEvent::Rejected { reason: rej.reason, private_data: rej.private_data.to_vec() });
    }

    fn receive_mra(&mut self, from: &Path, mra: &Mra) {
        let remote_id = if mra.delayed == answered::REQUEST { 0 } else { mra.local_id };
        let id = mra.remote_id;
        let Some(connection) = self.find(id, remote_id, from) else { return };
        connection.state = match (connection.state, mra.delayed) {
            (ConnState::RequestSent, answered::REQUEST) => ConnState::RequestProlonged,
            (ConnState::ReplySent, answered::REPLY) => ConnState::ReplyProlonged,
            _ => return,
        };
        let interval = nanoseconds_of_peer(mra.service_timeout) + nanoseconds_of_peer(connection.ack_timeout);
        self.prolong(id, interval);
    }

    fn receive_sidr_req(&mut self, from: Path, transaction: u64, request: &SidrReq) {
        let key = (request.request_id, from.destination);
        if self.datagram_requests.contains_key(&key) {
            return;
        }
        let Some(listener) = self.listeners.get(&request.service_id) else {
            let reply = SidrRep {
                request_id: request.request_id,
                status: DATAGRAM_UNSUPPORTED,
                service_id: request.service_id,
                ..SidrRep::zero()
            };
            self.send(from, transaction, Message::SidrRep(reply));
            return;
        };
        let listener_id = listener.id;
        let sink = Arc::clone(&listener.sink);
        let Ok(id) = self.new_id() else { return };
        let path = Path { pkey: request.pkey, ..from };
        let connection = Connection {
            service_id: request.service_id,
            remote_id: request.request_id,
            transaction,
            ..Connection::new(ConnState::DatagramRequestReceived, Arc::clone(&sink), path)
        };
        self.connections.insert(id, connection);
        self.datagram_requests.insert(key, id);
        let private_data = request.private_data.to_vec();
        let request = DatagramRequest { service_id: request.service_id, private_data };
        let event = CmEvent::DatagramRequest { connection: ConnId(id), request, path };
        let verdict = sink.event(listener_id, event);
        self.obey(id, verdict);
    }

    fn receive_sidr_rep(&mut self, from: &Path, reply: &SidrRep) {
        let id = reply.request_id;
        let Some(connection) = self.find(id, 0, from) else { return };
        if connection.state == ConnState::DatagramRequestSent {
            self.reset(id);
            let SidrRep { status, qpn, qkey, private_data, .. } = *reply;
            let private_data = private_data.to_vec();
            self.raise(id, CmEvent::DatagramReply(DatagramReply { status, qpn, qkey, private_data }));
        }
    }
}

impl Request {
    fn of(req: &Req, transport: Transport) -> Self {
        Self {
            service_id: req.service_id,
            transport,
            qpn: req.qpn,
            starting_psn: req.starting_psn,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            remote_response_timeout: req.remote_response_timeout,
            local_response_timeout: req.local_response_timeout,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            max_retries: req.max_retries,
            srq: req.srq,
            ece: Ece { vendor: req.ece_vendor, options: req.ece_options },
            private_data: req.private_data.to_vec(),
        }
    }
}

impl Reply {
    fn of(rep: &Rep) -> Self {
        let vendor = [0, rep.ece_vendor_high, rep.ece_vendor_middle, rep.ece_vendor_low];
        Self {
            qpn: rep.qpn,
            starting_psn: rep.starting_psn,
            responder_resources: rep.responder_resources,
            initiator_depth: rep.initiator_depth,
            flow_control: rep.flow_control,
            rnr_retry_count: rep.rnr_retry_count,
            srq: rep.srq,
            ack_delay: rep.ack_delay,
            ece: Ece { vendor: u32::from_be_bytes(vendor), options: rep.ece_options },
            private_data: rep.private_data.to_vec(),
        }
    }
}
