//! Connections: requests, answers and their events.

use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Transport;
use bareverbs_uapi::rdma_cm::EventType;
use bareverbs_uapi::rdma_cm::structs::{ConnParam, Ece, EventResp, UdParam};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values;
use bareverbs_uapi::write::structs::AhAttr;
use zerocopy::IntoBytes;

use super::address::{HEADER, Header, service_id};
use super::attributes::ah_attr;
use super::id::{Id, IdState, Parameters, UDP_QKEY, psn};
use super::namespace::{CmPort, Namespace, Service, State};
use super::resolve::{bind, check_port};
use crate::cm::{
    self, CmEvent, CmSink, ConnId, DatagramReply, DatagramRequest, Path, Reply, Request, Verdict, ack_timeout,
};
use crate::engine::Engine;
use crate::wire::gid;

/// The time within which a side answers: 4.096 µs × 2^20, as the kernel's `cma.c`.
const RESPONSE_TIMEOUT: u8 = 20;
const RETRIES: u8 = 15;

/// The reason of a rejection by the program.
const CONSUMER: u16 = 28;

/// Most private data of a message in bytes.
const MAX_REQUEST: usize = 92;
const MAX_DATAGRAM_REQUEST: usize = 216;
const MAX_REPLY: usize = 196;
const MAX_REJECT: usize = 148;
const MAX_DATAGRAM_REPLY: usize = 136;

/// Statuses of a SIDR_REP.
const UNSUPPORTED: u8 = 1;
const REJECTED: u8 = 2;

/// `net.rdma_ucm.max_backlog` of Linux.
const MAX_BACKLOG: u32 = 1024;

/// Takes the events of connections of one device.
#[derive(Debug)]
struct Sink {
    namespace: Weak<Namespace>,
    device: u32,
}

impl CmSink for Sink {
    fn event(&self, connection: ConnId, event: CmEvent) -> Verdict {
        match self.namespace.upgrade() {
            Some(namespace) => namespace.lock().take(self.device, connection, event),
            None => Verdict::Reject,
        }
    }
}

impl Namespace {
    fn sink(self: &Arc<Self>, device: u32) -> Arc<dyn CmSink> {
        Arc::new(Sink { namespace: Arc::downgrade(self), device })
    }

    /// LISTEN.
    pub(super) fn listen(self: &Arc<Self>, file: u64, number: u32, backlog: u32) -> Result<(), Errno> {
        let (service, device) = {
            let mut state = self.lock();
            let state = &mut *state;
            let id = state.id(file, number)?;
            id.backlog = if (1..MAX_BACKLOG).contains(&backlog) { backlog } else { MAX_BACKLOG };
            if id.state == IdState::Idle {
                bind(state, &[], file, number, ([0; 4], 0).into())?;
            }
            if state.id(file, number)?.state != IdState::Bound {
                return Err(Errno::INVAL);
            }
            if state.ids[&number].reuses_address {
                check_port(state, number, false)?;
            }
            let id = state.id(file, number)?;
            (id.reuses_address, id.state) = (false, IdState::Listening);
            (service_id(id.space, id.source.map_or(0, |source| source.port())), id.device)
        };
        // The state comes first: a device that is added from now on finds the listener.
        let devices = self.devices();
        for port in devices.iter().filter(|port| device.is_none_or(|index| port.index() == index)) {
            // A device that was removed meanwhile has no requests.
            let listened = port.with(|engine| self.listen_on(engine, &**port, number, service));
            if let Err(errno) = listened
                && !port.is_removed()
            {
                // It fails if the identifier was destroyed meanwhile.
                let _ = self.unlisten(file, number);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Takes LISTEN back: the identifier is bound only. Its requests that were not read are rejected.
    ///
    /// # Errors
    ///
    /// Those of [`State::id`]; `EINVAL` unless it listens.
    pub(super) fn unlisten(&self, file: u64, number: u32) -> Result<(), Errno> {
        {
            let mut state = self.lock();
            let id = state.id(file, number)?;
            if id.state != IdState::Listening {
                return Err(Errno::INVAL);
            }
            id.state = IdState::Bound;
        }
        // No request comes after this.
        self.stop_listening(number);
        let requests = self.lock().drop_events(file, |event| event.id == number && event.is_request());
        self.destroy_children(&requests);
        Ok(())
    }

    /// Listens on a device for an identifier, unless it was destroyed or listens already.
    pub(super) fn listen_on(
        self: &Arc<Self>,
        engine: &mut Engine,
        port: &dyn CmPort,
        number: u32,
        service: u64,
    ) -> Result<(), Errno> {
        let mut state = self.lock();
        if state.ids.get(&number).is_none_or(|id| id.state != IdState::Listening) {
            return Ok(());
        }
        match state.services.entry((port.index(), service)) {
            Entry::Occupied(mut service) => {
                let ids = &mut service.get_mut().ids;
                if !ids.contains(&number) {
                    ids.push(number);
                }
            }
            Entry::Vacant(place) => {
                let connection = engine.cm_listen(service, self.sink(port.index()))?;
                place.insert(Service { connection, ids: vec![number] });
            }
        }
        Ok(())
    }

    /// Lets the identifiers that listen on all devices listen on a new one.
    pub(crate) fn listen_on_new(self: &Arc<Self>, port: &Arc<dyn CmPort>) {
        let wildcards = self.lock().wildcards();
        for (number, service) in wildcards {
            // A device without room for the listener is as one without the service.
            let _ = port.with(|engine| self.listen_on(engine, &**port, number, service));
        }
    }

    /// Ends the services of an identifier.
    pub(super) fn stop_listening(&self, number: u32) {
        let devices = self.lock().devices_of_services(number);
        for device in devices {
            // The services of a device that was removed are gone.
            let Some(port) = self.device(device) else { continue };
            // Under the lock of the fabric: another identifier finds either both the service and its
            // listener, or neither.
            let _ = port.with(|engine| {
                let ended = self.lock().leave_services(device, number);
                ended.into_iter().for_each(|connection| engine.cm_destroy(connection));
                Ok(())
            });
        }
    }

    /// Destroys a connection of a device.
    pub(super) fn destroy_connection(&self, device: u32, connection: ConnId) {
        if let Some(port) = self.device(device) {
            // The connections of a device that was removed are gone.
            let _ = port.with(|engine| {
                engine.cm_destroy(connection);
                Ok(())
            });
        }
    }

    /// CONNECT.
    pub(super) fn connect(
        self: &Arc<Self>,
        file: u64,
        number: u32,
        param: &ConnParam,
        ece: Ece,
    ) -> Result<(), Errno> {
        self.on_device(file, number, |engine, port| {
            let (message, path) = {
                let mut state = self.lock();
                let id = state.id(file, number)?;
                if id.state != IdState::RouteResolved {
                    return Err(Errno::INVAL);
                }
                let message = message(number, id, param, ece)?;
                (message, id.path.ok_or(Errno::INVAL)?)
            };
            let sink = self.sink(port.index());
            let parameters = parameters(param);
            let connection = match message {
                Message::Connect(request) => engine.cm_connect(request, path, sink)?,
                Message::Datagram(request) => {
                    engine.cm_datagram_request(request, RESPONSE_TIMEOUT, RETRIES, path, sink)?
                }
            };
            let mut state = self.lock();
            let Ok(id) = state.id(file, number) else {
                drop(state);
                engine.cm_destroy(connection);
                return Err(Errno::NOENT);
            };
            (id.connection, id.state, id.parameters) = (Some(connection), IdState::Connecting, parameters);
            state.connections.insert((port.index(), connection), number);
            Ok(())
        })
    }

    /// ACCEPT. `uid` is that of the identifier from now on, if there are parameters.
    pub(super) fn accept(
        &self,
        file: u64,
        number: u32,
        param: Option<&ConnParam>,
        ece: Ece,
        uid: u64,
    ) -> Result<(), Errno> {
        self.on_device(file, number, |engine, _| {
            let (connection, message) = {
                let mut state = self.lock();
                let id = state.id(file, number)?;
                let connection = id.connection.filter(|_| id.state == IdState::Connecting);
                let connection = connection.ok_or(Errno::INVAL)?;
                (connection, answer(number, id, param, ece))
            };
            let answered = message.and_then(|message| match message {
                Answer::Reply(reply) => engine.cm_reply(connection, reply),
                Answer::Establish => engine.cm_establish(connection, &[]),
                Answer::Datagram(reply) => engine.cm_datagram_reply(connection, reply),
            });
            let mut state = self.lock();
            let id = state.id(file, number)?;
            let is_datagram = id.is_datagram();
            if let Err(errno) = answered {
                drop(state);
                // As the kernel does: it fails if there is nothing to reject.
                let _ = reject(engine, connection, is_datagram, CONSUMER, &[]);
                return Err(errno);
            }
            if let Some(param) = param {
                id.uid = uid;
                let own = parameters(param);
                let Parameters { retry_count, rnr_retry_count, peer_qpn, send_psn, timeout, .. } =
                    id.parameters;
                id.parameters =
                    Parameters { retry_count, rnr_retry_count, peer_qpn, send_psn, timeout, ..own };
            }
            Ok(())
        })
    }

    /// REJECT.
    pub(super) fn reject(&self, file: u64, number: u32, reason: u16, data: &[u8]) -> Result<(), Errno> {
        self.on_device(file, number, |engine, _| {
            let (connection, is_datagram) = self.connection(file, number)?;
            reject(engine, connection, is_datagram, reason, data)
        })
    }

    /// DISCONNECT. Does nothing in states without a connection, and for a listener of a device.
    pub(super) fn disconnect(&self, file: u64, number: u32) -> Result<(), Errno> {
        self.on_device(file, number, |engine, _| {
            if self.lock().id(file, number)?.state == IdState::Listening {
                return Ok(());
            }
            let (connection, is_datagram) = self.connection(file, number)?;
            if !is_datagram {
                let _ = engine.cm_disconnect(connection, &[]);
            }
            Ok(())
        })
    }

    /// NOTIFY.
    pub(super) fn notify(&self, file: u64, number: u32, event: verbs_values::EventType) -> Result<(), Errno> {
        self.on_device(file, number, |engine, _| {
            let (connection, _) = self.connection(file, number)?;
            match event {
                verbs_values::EventType::COMM_EST => engine.cm_established(connection),
                _ => Err(Errno::INVAL),
            }
        })
    }

    /// The connection of an identifier, and whether it is one of datagrams.
    fn connection(&self, file: u64, number: u32) -> Result<(ConnId, bool), Errno> {
        let mut state = self.lock();
        let id = state.id(file, number)?;
        Ok((id.connection.ok_or(Errno::INVAL)?, id.is_datagram()))
    }
}

enum Message {
    Connect(Request),
    Datagram(DatagramRequest),
}

/// The request of an identifier.
fn message(number: u32, id: &Id, param: &ConnParam, ece: Ece) -> Result<Message, Errno> {
    let (Some(source), Some(destination)) = (id.source, id.destination) else { return Err(Errno::INVAL) };
    let header = Header { source, destination: destination.ip() };
    let data = private_data(param);
    let private_data = [&header.to_bytes()[..], data].concat();
    let service_id = service_id(id.space, destination.port());
    let is_datagram = id.is_datagram();
    if private_data.len() > if is_datagram { MAX_DATAGRAM_REQUEST } else { MAX_REQUEST } {
        return Err(Errno::INVAL);
    }
    let transport = match id.qp_type {
        QpType::UD => return Ok(Message::Datagram(DatagramRequest { service_id, private_data })),
        QpType::RC => Transport::Rc,
        QpType::UC => Transport::Uc,
        _ => return Err(Errno::INVAL),
    };
    Ok(Message::Connect(Request {
        service_id,
        transport,
        qpn: param.qp_num & 0xff_ffff,
        starting_psn: psn(number),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        remote_response_timeout: RESPONSE_TIMEOUT,
        local_response_timeout: RESPONSE_TIMEOUT,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count.min(7),
        rnr_retry_count: param.rnr_retry_count.min(7),
        max_retries: RETRIES,
        srq: param.srq != 0,
        ece: ece.into(),
        private_data,
    }))
}

enum Answer {
    Reply(Reply),
    Establish,
    Datagram(DatagramReply),
}

/// The answer to the peer of an identifier.
fn answer(number: u32, id: &mut Id, param: Option<&ConnParam>, ece: Ece) -> Result<Answer, Errno> {
    let Some(param) = param else {
        return Ok(if id.is_datagram() {
            Answer::Datagram(DatagramReply { status: UNSUPPORTED, ..DatagramReply::default() })
        } else {
            Answer::Establish
        });
    };
    let private_data = private_data(param).to_vec();
    if private_data.len() > if id.is_datagram() { MAX_DATAGRAM_REPLY } else { MAX_REPLY } {
        return Err(Errno::INVAL);
    }
    let qpn = param.qp_num & 0xff_ffff;
    if id.is_datagram() {
        id.qkey = UDP_QKEY;
        return Ok(Answer::Datagram(DatagramReply { status: 0, qpn, qkey: UDP_QKEY, private_data }));
    }
    Ok(Answer::Reply(Reply {
        qpn,
        starting_psn: psn(number),
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq: param.srq != 0,
        ece: ece.into(),
        private_data,
        ..Reply::default()
    }))
}

impl From<Ece> for cm::Ece {
    fn from(ece: Ece) -> Self {
        // The messages have room for 24 bits of the vendor's number.
        Self { vendor: ece.vendor_id & 0xff_ffff, options: ece.attr_mod }
    }
}

impl From<cm::Ece> for Ece {
    fn from(ece: cm::Ece) -> Self {
        Self { vendor_id: ece.vendor, attr_mod: ece.options }
    }
}

fn private_data(param: &ConnParam) -> &[u8] {
    &param.private_data[..param.private_data_len.into()]
}

fn parameters(param: &ConnParam) -> Parameters {
    Parameters {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        retry_count: param.retry_count.min(7),
        ..Parameters::default()
    }
}

/// Rejects a request or a reply.
fn reject(
    engine: &mut Engine,
    connection: ConnId,
    is_datagram: bool,
    reason: u16,
    data: &[u8],
) -> Result<(), Errno> {
    if data.len() > if is_datagram { MAX_DATAGRAM_REPLY } else { MAX_REJECT } {
        return Err(Errno::INVAL);
    }
    if is_datagram {
        let private_data = data.to_vec();
        let reply = DatagramReply { status: REJECTED, private_data, ..DatagramReply::default() };
        engine.cm_datagram_reply(connection, reply)
    } else {
        engine.cm_reject(connection, reason, &[], data)
    }
}

/// An event with private data in the parameters of a connection.
fn conn_event(event: EventType, mut param: ConnParam, data: &[u8]) -> EventResp {
    let len = data.len().min(param.private_data.len() - 1);
    param.private_data[..len].copy_from_slice(&data[..len]);
    param.private_data_len = len as u8;
    let mut ud = UdParam::zeroed();
    ud.as_mut_bytes()[..size_of::<ConnParam>()].copy_from_slice(param.as_bytes());
    EventResp { event, ud, ..EventResp::zeroed() }
}

/// An event with private data in the parameters of a datagram QP.
fn ud_event(event: EventType, mut ud: UdParam, data: &[u8]) -> EventResp {
    let len = data.len().min(ud.private_data.len() - 1);
    ud.private_data[..len].copy_from_slice(&data[..len]);
    ud.private_data_len = len as u8;
    EventResp { event, ud, ..EventResp::zeroed() }
}

/// The status of an event for an errno.
fn status(errno: Errno) -> u32 {
    (-errno.raw_os_error()).cast_unsigned()
}

impl State {
    /// Takes an event of a connection of a device.
    fn take(&mut self, device: u32, connection: ConnId, event: CmEvent) -> Verdict {
        match event {
            CmEvent::Request { connection: child, request, path } => {
                self.take_request(device, connection, child, request, path)
            }
            CmEvent::DatagramRequest { connection: child, request, path } => {
                self.take_datagram_request(device, connection, child, &request, path)
            }
            event => {
                let is_reply = matches!(event, CmEvent::Reply(_));
                self.take_answer(device, connection, event);
                if is_reply { Verdict::Delay } else { Verdict::Keep }
            }
        }
    }

    /// The listener of a service that takes requests to an address.
    fn listener(&self, device: u32, connection: ConnId, header: &Header) -> Option<u32> {
        let of_device = self.services.iter().filter(|((of, _), _)| *of == device);
        let service =
            of_device.map(|(_, service)| service).find(|service| service.connection == connection)?;
        let takes = |number: &u32| self.ids.get(number).is_some_and(|id| id.takes(header.destination));
        service.ids.iter().copied().find(takes)
    }

    /// A child of a listener for a request.
    fn child(&self, listener: u32, device: u32, child: ConnId, header: &Header, path: Path) -> Id {
        let listener = &self.ids[&listener];
        let port = listener.source.map_or(0, |source| source.port());
        Id {
            state: IdState::Connecting,
            is_undelivered: true,
            source: Some(SocketAddr::new(header.destination, port)),
            destination: Some(header.source),
            device: Some(device),
            path: Some(path),
            tos: listener.tos,
            family_only: listener.family_only,
            connection: Some(child),
            ..Id::new(listener.file, 0, listener.space, listener.qp_type)
        }
    }

    /// Queues the request of a new child.
    fn queue_request(&mut self, listener: u32, device: u32, child: Id, resp: EventResp) -> Verdict {
        let Some(connection) = child.connection else { return Verdict::Reject };
        if self.ids[&listener].backlog == 0 {
            return Verdict::Drop;
        }
        let Ok(number) = self.insert_id(child) else { return Verdict::Drop };
        self.connections.insert((device, connection), number);
        self.raise_request(listener, number, resp);
        Verdict::Delay
    }

    fn take_request(
        &mut self,
        device: u32,
        connection: ConnId,
        child: ConnId,
        request: Request,
        path: Path,
    ) -> Verdict {
        let Some(header) = header(&request.private_data, &path) else { return Verdict::Reject };
        let Some(listener) = self.listener(device, connection, &header) else { return Verdict::Reject };
        let matches = match self.ids[&listener].qp_type {
            QpType::RC => request.transport == Transport::Rc,
            QpType::UC => request.transport == Transport::Uc,
            _ => false,
        };
        if !matches {
            return Verdict::Reject;
        }
        let mut id = self.child(listener, device, child, &header, path);
        id.parameters = Parameters {
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            peer_qpn: request.qpn,
            send_psn: request.starting_psn,
            timeout: path.packet_life.saturating_add(1).min(31),
        };
        let param = ConnParam {
            qp_num: request.qpn,
            srq: request.srq.into(),
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            flow_control: request.flow_control.into(),
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            ..ConnParam::zeroed()
        };
        let resp = conn_event(EventType::CONNECT_REQUEST, param, &request.private_data[HEADER..]);
        let resp = EventResp { ece: request.ece.into(), ..resp };
        self.queue_request(listener, device, id, resp)
    }

    fn take_datagram_request(
        &mut self,
        device: u32,
        connection: ConnId,
        child: ConnId,
        request: &DatagramRequest,
        path: Path,
    ) -> Verdict {
        let Some(header) = header(&request.private_data, &path) else { return Verdict::Reject };
        let Some(listener) = self.listener(device, connection, &header) else { return Verdict::Reject };
        if !self.ids[&listener].is_datagram() {
            return Verdict::Reject;
        }
        let id = self.child(listener, device, child, &header, path);
        let resp = ud_event(EventType::CONNECT_REQUEST, UdParam::zeroed(), &request.private_data[HEADER..]);
        self.queue_request(listener, device, id, resp)
    }

    /// Takes an event of a connection that exists.
    fn take_answer(&mut self, device: u32, connection: ConnId, event: CmEvent) {
        let Some(number) = self.connections.get(&(device, connection)).copied() else { return };
        let gid_index = self.gid_index(device);
        let Some(id) = self.ids.get_mut(&number) else { return };
        let expected = match event {
            CmEvent::TimewaitExit => IdState::Disconnected,
            _ => IdState::Connecting,
        };
        if id.state != expected {
            return;
        }
        let plain = |event| EventResp { event, ..EventResp::zeroed() };
        let resp = match event {
            CmEvent::Reply(reply) => take_reply(id, &reply),
            CmEvent::DatagramReply(reply) => take_datagram_reply(id, &reply, gid_index),
            CmEvent::Established => plain(EventType::ESTABLISHED),
            CmEvent::Rejected { reason, private_data } => {
                let resp = conn_event(EventType::REJECTED, ConnParam::zeroed(), &private_data);
                EventResp { status: reason.into(), ..resp }
            }
            CmEvent::Disconnected | CmEvent::DisconnectReply | CmEvent::DisconnectUnanswered => {
                id.state = IdState::Disconnected;
                let is_answered = event != CmEvent::DisconnectUnanswered;
                let status = if is_answered { 0 } else { status(Errno::TIMEDOUT) };
                EventResp { status, ..plain(EventType::DISCONNECTED) }
            }
            CmEvent::Unreachable => {
                EventResp { status: status(Errno::TIMEDOUT), ..plain(EventType::UNREACHABLE) }
            }
            CmEvent::TimewaitExit => plain(EventType::TIMEWAIT_EXIT),
            CmEvent::Request { .. } | CmEvent::DatagramRequest { .. } => return,
        };
        self.raise(number, resp);
    }
}

/// The header of a request. `None` if there is none, or if its addresses are not those of the packet:
/// the kernel takes the GIDs of a connection over RoCE from its IP addresses.
fn header(private_data: &[u8], path: &Path) -> Option<Header> {
    let header = Header::parse(private_data)?;
    let gids = (gid(header.source.ip()), gid(header.destination));
    (gids == (path.destination, path.source)).then_some(header)
}

fn take_reply(id: &mut Id, reply: &Reply) -> EventResp {
    let packet_life = id.path.map_or(0, |path| path.packet_life);
    id.parameters = Parameters {
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        rnr_retry_count: reply.rnr_retry_count,
        peer_qpn: reply.qpn,
        send_psn: reply.starting_psn,
        timeout: ack_timeout(reply.ack_delay, packet_life),
        ..id.parameters
    };
    let param = ConnParam {
        qp_num: reply.qpn,
        srq: reply.srq.into(),
        responder_resources: reply.initiator_depth,
        initiator_depth: reply.responder_resources,
        flow_control: reply.flow_control.into(),
        rnr_retry_count: reply.rnr_retry_count,
        ..ConnParam::zeroed()
    };
    let resp = conn_event(EventType::CONNECT_RESPONSE, param, &reply.private_data);
    EventResp { ece: reply.ece.into(), ..resp }
}

fn take_datagram_reply(id: &mut Id, reply: &DatagramReply, gid_index: u8) -> EventResp {
    if reply.status != 0 {
        let resp = ud_event(EventType::UNREACHABLE, UdParam::zeroed(), &reply.private_data);
        return EventResp { status: reply.status.into(), ..resp };
    }
    if id.qkey != 0 && reply.qkey != 0 && id.qkey != reply.qkey {
        return EventResp {
            event: EventType::ADDR_ERROR,
            status: status(Errno::INVAL),
            ..EventResp::zeroed()
        };
    }
    id.qkey = if reply.qkey == 0 { id.qkey } else { reply.qkey };
    let ah_attr = id.path.map_or_else(AhAttr::zeroed, |path| ah_attr(&path, gid_index));
    let ud = UdParam { qp_num: reply.qpn, qkey: reply.qkey, ah_attr, ..UdParam::zeroed() };
    ud_event(EventType::ESTABLISHED, ud, &reply.private_data)
}
