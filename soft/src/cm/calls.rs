//! Calls of the program.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Transport;

use super::connection::{Connection, field, nanoseconds, reason};
use super::message::{Drep, Dreq, Message, Rep, Req, SidrRep, SidrReq};
use super::{
    Cm, CmEvent, CmSink, ConnId, ConnState, DatagramReply, DatagramRequest, Listener, Path, Reply, Request,
    ack_timeout,
};

/// The delay of the device's ACKs, as Soft-RoCE reports it: 4.096 µs × 2^n.
const ACK_DELAY: u8 = 15;

/// The service time of MRA: 4.096 µs × 2^n.
const SERVICE_TIMEOUT: u8 = 24;

/// The status of a SIDR_REP: rejected.
const DATAGRAM_REJECTED: u8 = 2;

/// The LID of a path through routers.
const PERMISSIVE_LID: u16 = 0xffff;

impl Cm {
    /// Listens on a service: `EBUSY` if another listener does.
    pub(crate) fn listen(&mut self, service_id: u64, sink: Arc<dyn CmSink>) -> Result<ConnId, Errno> {
        if self.listeners.contains_key(&service_id) {
            return Err(Errno::BUSY);
        }
        let id = ConnId(self.new_id()?);
        self.listeners.insert(service_id, Listener { id, sink });
        Ok(id)
    }

    /// Sends a REQ.
    pub(crate) fn connect(
        &mut self,
        request: &Request,
        path: Path,
        sink: Arc<dyn CmSink>,
    ) -> Result<ConnId, Errno> {
        let transport = match request.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            _ => return Err(Errno::INVAL),
        };
        let private_data = field(&request.private_data)?;
        let id = self.new_id()?;
        let is_local = path.hop_limit <= 1;
        let lid = if is_local { 0 } else { PERMISSIVE_LID };
        let message = Message::Req(Req {
            local_id: id,
            ece_vendor: request.ece.vendor,
            service_id: request.service_id,
            ca_guid: self.guid,
            qkey: 0,
            qpn: request.qpn,
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            remote_response_timeout: request.remote_response_timeout,
            transport,
            flow_control: request.flow_control,
            starting_psn: request.starting_psn,
            local_response_timeout: request.local_response_timeout,
            retry_count: request.retry_count,
            pkey: path.pkey,
            mtu: path.mtu,
            rnr_retry_count: request.rnr_retry_count,
            max_retries: request.max_retries,
            srq: request.srq,
            local_lid: lid,
            remote_lid: lid,
            flow_label: path.flow_label,
            rate: path.rate,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            service_level: path.service_level,
            subnet_local: is_local,
            ack_timeout: ack_timeout(ACK_DELAY, path.packet_life),
            local_gid: path.source,
            remote_gid: path.destination,
            private_data,
            ece_options: request.ece.options,
        });
        let transaction = self.transaction(id);
        let connection = Connection {
            service_id: request.service_id,
            local_qpn: request.qpn & 0xff_ffff,
            transaction,
            response_time: 2 * nanoseconds(path.packet_life) + nanoseconds(request.remote_response_timeout),
            max_retries: request.max_retries & 0xf,
            ..Connection::new(ConnState::RequestSent, sink, path)
        };
        self.connections.insert(id, connection);
        self.send_repeated(id, transaction, message);
        Ok(ConnId(id))
    }

    /// The state of a connection or listener that was not destroyed.
    pub(crate) fn state(&self, id: ConnId) -> Option<ConnState> {
        match self.connections.get(&id.0) {
            Some(connection) => connection.sink.is_some().then_some(connection.state),
            None => {
                let is_listener = self.listeners.values().any(|listener| listener.id == id);
                is_listener.then_some(ConnState::Listen)
            }
        }
    }

    /// The connection with an id that was not destroyed. `EINVAL` unless it is in one of these states.
    fn in_state(&mut self, id: ConnId, states: &[ConnState]) -> Result<&mut Connection, Errno> {
        let connection = self.connections.get_mut(&id.0).filter(|found| found.sink.is_some());
        connection.filter(|found| states.contains(&found.state)).ok_or(Errno::INVAL)
    }

    /// Makes repeated REQs or REPs be answered with MRA.
    pub(crate) fn delay(&mut self, id: ConnId) -> Result<(), Errno> {
        use ConnState::{ReplyDelayed, ReplyReceived, RequestDelayed, RequestReceived};
        let connection = self.in_state(id, &[RequestReceived, ReplyReceived])?;
        connection.service_timeout = SERVICE_TIMEOUT;
        let is_request = connection.state == RequestReceived;
        connection.state = if is_request { RequestDelayed } else { ReplyDelayed };
        Ok(())
    }

    /// Sends a REP.
    pub(crate) fn reply(&mut self, id: ConnId, reply: &Reply) -> Result<(), Errno> {
        let guid = self.guid;
        let private_data = field(&reply.private_data)?;
        let connection = self.in_state(id, &[ConnState::RequestReceived, ConnState::RequestDelayed])?;
        connection.state = ConnState::ReplySent;
        connection.local_qpn = reply.qpn & 0xff_ffff;
        let transaction = connection.transaction;
        let [_, ece_vendor_high, ece_vendor_middle, ece_vendor_low] = reply.ece.vendor.to_be_bytes();
        let message = Message::Rep(Rep {
            local_id: id.0,
            remote_id: connection.remote_id,
            qkey: 0,
            qpn: reply.qpn,
            ece_vendor_high,
            ece_vendor_middle,
            starting_psn: reply.starting_psn,
            ece_vendor_low,
            responder_resources: reply.responder_resources,
            initiator_depth: reply.initiator_depth,
            ack_delay: ACK_DELAY,
            failover: 0,
            flow_control: reply.flow_control,
            rnr_retry_count: reply.rnr_retry_count,
            srq: reply.srq,
            ca_guid: guid,
            private_data,
            ece_options: reply.ece.options,
        });
        self.send_repeated(id.0, transaction, message);
        Ok(())
    }

    /// Sends an RTU.
    pub(crate) fn establish(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), Errno> {
        field::<224>(private_data)?;
        let connection = self.in_state(id, &[ConnState::ReplyReceived, ConnState::ReplyDelayed])?;
        connection.state = ConnState::Established;
        connection.private_data = private_data.to_vec();
        self.send_rtu(id.0);
        Ok(())
    }

    /// Sends a REJ.
    pub(crate) fn reject(
        &mut self,
        id: ConnId,
        reason: u16,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Errno> {
        use ConnState::{
            ReplyDelayed, ReplyProlonged, ReplyReceived, ReplySent, RequestDelayed, RequestProlonged,
            RequestReceived, RequestSent,
        };
        const UNUSED: [ConnState; 6] =
            [RequestSent, RequestProlonged, RequestReceived, RequestDelayed, ReplyReceived, ReplyDelayed];
        let is_unused = self.in_state(id, &UNUSED).is_ok();
        if !is_unused {
            self.in_state(id, &[ReplySent, ReplyProlonged])?;
        }
        self.send_rej(id.0, reason, info, private_data)?;
        if is_unused {
            self.reset(id.0);
        } else {
            self.enter_timewait(id.0);
        }
        Ok(())
    }

    /// Sends a DREQ, or a DREP if the peer has sent a DREQ.
    pub(crate) fn disconnect(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), Errno> {
        use ConnState::{DisconnectReceived, DisconnectSent, Established};
        let connection = self.in_state(id, &[Established, DisconnectReceived])?;
        if connection.state == DisconnectReceived {
            field::<224>(private_data)?;
            connection.private_data = private_data.to_vec();
            self.enter_timewait(id.0);
            self.send_drep(id.0);
            return Ok(());
        }
        let dreq = Dreq {
            local_id: id.0,
            remote_id: connection.remote_id,
            remote_qpn: connection.remote_qpn,
            private_data: field(private_data)?,
        };
        connection.state = DisconnectSent;
        let transaction = self.transaction(id.0);
        self.send_repeated(id.0, transaction, Message::Dreq(dreq));
        Ok(())
    }

    pub(super) fn send_drep(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else { return };
        let private_data = field(&connection.private_data).unwrap_or([0; 224]);
        let drep = Drep { local_id: id, remote_id: connection.remote_id, private_data };
        self.send(connection.path, connection.transaction, Message::Drep(drep));
    }

    /// Sends a SIDR_REQ.
    pub(crate) fn datagram_request(
        &mut self,
        request: &DatagramRequest,
        timeout: u8,
        max_retries: u8,
        path: Path,
        sink: Arc<dyn CmSink>,
    ) -> Result<ConnId, Errno> {
        let private_data = field(&request.private_data)?;
        let id = self.new_id()?;
        let connection = Connection {
            service_id: request.service_id,
            response_time: nanoseconds(timeout),
            max_retries,
            ..Connection::new(ConnState::DatagramRequestSent, sink, path)
        };
        self.connections.insert(id, connection);
        let service_id = request.service_id;
        let message = SidrReq { request_id: id, pkey: path.pkey, service_id, private_data };
        let transaction = self.transaction(id);
        self.send_repeated(id, transaction, Message::SidrReq(message));
        Ok(ConnId(id))
    }

    /// Sends a SIDR_REP.
    pub(crate) fn datagram_reply(&mut self, id: ConnId, reply: &DatagramReply) -> Result<(), Errno> {
        let private_data = field(&reply.private_data)?;
        let connection = self.in_state(id, &[ConnState::DatagramRequestReceived])?;
        let message = SidrRep {
            request_id: connection.remote_id,
            status: reply.status,
            info_length: 0,
            qpn: reply.qpn,
            service_id: connection.service_id,
            qkey: reply.qkey,
            info: [0; 72],
            private_data,
        };
        let (path, transaction) = (connection.path, connection.transaction);
        self.send(path, transaction, Message::SidrRep(message));
        self.reset(id.0);
        Ok(())
    }

    /// The peer's data has arrived before its RTU.
    pub(crate) fn established(&mut self, id: ConnId) -> Result<(), Errno> {
        use ConnState::{Established, ReplyProlonged, ReplySent};
        let connection = self.in_state(id, &[ReplySent, ReplyProlonged, Established])?;
        if std::mem::replace(&mut connection.state, Established) == Established {
            return Err(Errno::ISCONN);
        }
        self.cancel(id.0);
        self.raise(id.0, CmEvent::Established);
        Ok(())
    }

    /// Ends a listener or a connection.
    pub(crate) fn destroy(&mut self, id: ConnId) {
        use ConnState::{
            DatagramRequestReceived, DisconnectReceived, DisconnectSent, Established, ReplyDelayed,
            ReplyProlonged, ReplyReceived, ReplySent, RequestDelayed, RequestProlonged, RequestReceived,
            RequestSent, Timewait,
        };
        self.listeners.retain(|_, listener| listener.id != id);
        let Some(connection) = self.connections.get(&id.0).filter(|found| found.sink.is_some()) else {
            return;
        };
        let guid = self.guid.to_be_bytes();
        let refused = match connection.state {
            DatagramRequestReceived => {
                let reply = DatagramReply { status: DATAGRAM_REJECTED, ..DatagramReply::default() };
                self.datagram_reply(id, &reply)
            }
            RequestSent | RequestProlonged => self.reject(id, reason::TIMEOUT, &guid, &[]),
            RequestReceived | RequestDelayed | ReplySent | ReplyProlonged | ReplyReceived | ReplyDelayed => {
                self.reject(id, reason::CONSUMER, &[], &[])
            }
            Established | DisconnectReceived => self.disconnect(id, &[]),
            _ => Ok(()),
        };
        debug_assert_eq!(refused, Ok(()), "the state allows the call");
        // A DREQ is not repeated.
        let Some(connection) = self.connections.get_mut(&id.0) else { return };
        connection.sink = None;
        match connection.state {
            DisconnectSent => self.enter_timewait(id.0),
            Timewait => {}
            _ => self.remove(id.0),
        }
    }

    /// Forgets a connection without a message.
    pub(super) fn drop_request(&mut self, id: u32) {
        match self.connections.get(&id).map(|connection| connection.state) {
            Some(ConnState::RequestReceived) => self.remove(id),
            _ => self.destroy(ConnId(id)),
        }
    }
}
