//! Management datagrams: the communication manager on QP 1.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_transport::AddressVector;
use bareverbs_transport::packet::{Datagram, Headers, Operation, PSN_MASK, Packet, Transport};

use super::Engine;
use super::address::udp_source;
use crate::cm::{
    Cm, CmSink, ConnId, ConnState, DatagramReply, DatagramRequest, Outgoing, Path, Reply, Request,
};
use crate::mac::mac_of_gid;

/// The QP of management datagrams, the general services interface (GSI).
pub(super) const MANAGEMENT_QP: u32 = 1;

/// Its Q_Key.
const MANAGEMENT_QKEY: u32 = 0x8001_0000;

/// The only P_Key of a port.
const PKEY: u16 = 0xffff;

/// The hop limit of paths to peers that have sent a request.
const HOP_LIMIT: u8 = 64;

impl Engine {
    /// Listens on a service: `EBUSY` if another listener does.
    pub(crate) fn cm_listen(&mut self, service_id: u64, sink: Arc<dyn CmSink>) -> Result<ConnId, Errno> {
        self.cm.listen(service_id, sink)
    }

    /// Sends a REQ. `EINVAL` if the port doesn't have the path's source GID, or if there is too much
    /// private data; `ENOMEM` if all ids are in use.
    pub(crate) fn cm_connect(
        &mut self,
        request: Request,
        path: Path,
        sink: Arc<dyn CmSink>,
    ) -> Result<ConnId, Errno> {
        self.check_path(&path)?;
        self.with_cm(|cm| cm.connect(&request, path, sink))
    }

    /// The state of a connection. `None` if it was destroyed.
    pub(crate) fn cm_state(&self, id: ConnId) -> Option<ConnState> {
        self.cm.state(id)
    }

    /// The number of connections and listeners.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn cm_count(&self) -> usize {
        self.cm.len()
    }

    /// The connections, with those in `TIMEWAIT`.
    #[cfg(feature = "test-utils")]
    pub(crate) fn cm_connections(&self) -> Vec<crate::cm::CmConnection> {
        self.cm.connections()
    }

    /// Sends a REP: `EINVAL` unless a REQ was received.
    pub(crate) fn cm_reply(&mut self, id: ConnId, reply: Reply) -> Result<(), Errno> {
        self.with_cm(|cm| cm.reply(id, &reply))
    }

    /// Sends an RTU: `EINVAL` unless a REP was received.
    pub(crate) fn cm_establish(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), Errno> {
        self.with_cm(|cm| cm.establish(id, private_data))
    }

    /// Sends a REJ: `EINVAL` unless the connection is being established.
    pub(crate) fn cm_reject(
        &mut self,
        id: ConnId,
        reason: u16,
        info: &[u8],
        private_data: &[u8],
    ) -> Result<(), Errno> {
        self.with_cm(|cm| cm.reject(id, reason, info, private_data))
    }

    /// Sends a DREQ, or a DREP if the peer has sent a DREQ: `EINVAL` in other states.
    pub(crate) fn cm_disconnect(&mut self, id: ConnId, private_data: &[u8]) -> Result<(), Errno> {
        self.with_cm(|cm| cm.disconnect(id, private_data))
    }

    /// Sends a SIDR_REQ: errors as of [`cm_connect`](Self::cm_connect). It is repeated as `timeout`
    /// (4.096 µs × 2^n) and `max_retries` say.
    pub(crate) fn cm_datagram_request(
        &mut self,
        request: DatagramRequest,
        timeout: u8,
        max_retries: u8,
        path: Path,
        sink: Arc<dyn CmSink>,
    ) -> Result<ConnId, Errno> {
        self.check_path(&path)?;
        self.with_cm(|cm| cm.datagram_request(&request, timeout, max_retries, path, sink))
    }

    /// Sends a SIDR_REP: `EINVAL` unless a SIDR_REQ was received.
    pub(crate) fn cm_datagram_reply(&mut self, id: ConnId, reply: DatagramReply) -> Result<(), Errno> {
        self.with_cm(|cm| cm.datagram_reply(id, &reply))
    }

    /// The peer's data has arrived before its RTU: as if it had come. `EISCONN` if it has, `EINVAL`
    /// unless a REP was sent.
    pub(crate) fn cm_established(&mut self, id: ConnId) -> Result<(), Errno> {
        self.with_cm(|cm| cm.established(id))
    }

    /// Ends a listener or a connection. Its peer is sent a REJ, DREQ or DREP if it is connected or may
    /// be. No event follows.
    pub(crate) fn cm_destroy(&mut self, id: ConnId) {
        self.with_cm(|cm| cm.destroy(id));
    }

    /// `EINVAL` if the port doesn't have the source GID of a path.
    fn check_path(&self, path: &Path) -> Result<(), Errno> {
        let is_own = self.port.address.gids.contains(&path.source);
        if is_own { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Calls `f` with the CM, then hands its messages to the wire.
    pub(super) fn with_cm<R>(&mut self, f: impl FnOnce(&mut Cm) -> R) -> R {
        self.cm.set_now(self.port.now);
        let result = f(&mut self.cm);
        for Outgoing { path, mad } in self.cm.take_outgoing() {
            self.send_mad(&path, &mad);
        }
        result
    }

    fn send_mad(&mut self, path: &Path, mad: &[u8]) {
        let Some(index) = self.port.address.gids.iter().position(|gid| *gid == path.source) else { return };
        let address = AddressVector {
            lid: udp_source(MANAGEMENT_QP),
            mac: mac_of_gid(path.destination),
            service_level: path.service_level,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            global: true,
            gid_index: index as u8,
            flow_label: path.flow_label,
            gid: path.destination,
            ..AddressVector::default()
        };
        let Some(route) = self.port.address.route(&address) else { return };
        let datagram = Datagram { qkey: MANAGEMENT_QKEY, source_qp: MANAGEMENT_QP };
        self.management_psn = self.management_psn.wrapping_add(1) & PSN_MASK;
        self.port.outgoing.push(Packet {
            route,
            transport: Transport::Ud,
            operation: Operation::SendOnly,
            solicited: false,
            migrated: true,
            ack_request: false,
            pkey: PKEY,
            destination: MANAGEMENT_QP,
            psn: self.management_psn,
            headers: Headers { datagram: Some(datagram), ..Headers::default() },
            payload: mad.to_vec(),
            zero_copy: None,
        });
    }

    /// Receives a packet for the management QP. Others than those of the CM are dropped, as by a port
    /// without an agent.
    pub(super) fn receive_mad(&mut self, packet: &Packet) {
        let Some(global) = packet.route.global else { return };
        let qkey = packet.headers.datagram.map(|datagram| datagram.qkey);
        let is_datagram = (packet.transport, packet.operation) == (Transport::Ud, Operation::SendOnly);
        let is_own = self.port.address.gids.contains(&global.destination);
        if !is_datagram || !is_own || qkey != Some(MANAGEMENT_QKEY) || packet.pkey & 0x7fff != PKEY & 0x7fff {
            return;
        }
        let back = Path {
            source: global.destination,
            destination: global.source,
            flow_label: global.flow_label,
            traffic_class: global.traffic_class,
            hop_limit: HOP_LIMIT,
            service_level: packet.route.service_level,
            mtu: 0,
            rate: 0,
            packet_life: 0,
            pkey: PKEY,
        };
        self.with_cm(|cm| cm.receive(back, &packet.payload));
    }
}
