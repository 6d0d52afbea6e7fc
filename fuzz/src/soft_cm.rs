//! Management datagrams (MADs) to QP 1 of a soft device with listeners, and connections in every state.
//!
//! A MAD is answered by a bounded number of packets. It changes no connection with another host than its
//! sender. A REQ that is repeated is neither a new connection nor rejected. No more requests wait than the
//! backlogs hold, and the connections are no more than those and what the program has taken. Another
//! device still connects. After destruction no connection is left.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bareverbs_provider::Errno;
use bareverbs_soft::testing::{self, CmConnection};
use bareverbs_soft::{CmFile, Fabric, SoftDevice};
use bareverbs_uapi::abi::Be16;
use bareverbs_uapi::rdma_cm::address::{AddressFamily, SocketAddressIn, SocketAddressStorage};
use bareverbs_uapi::rdma_cm::structs::{
    AcceptReq, BindReq, ConnParam, ConnectReq, CreateIdReq, DestroyIdReq, DisconnectReq, EventResp,
    GetEventReq, ListenReq, NotifyReq, RejectReq, ResolveAddrReq, ResolveRouteReq,
};
use bareverbs_uapi::rdma_cm::{
    Accept, Bind, Command, Connect, CreateId, DestroyId, Disconnect, EventType, GetEvent, Listen, Notify,
    PortSpace, Reject, ResolveAddr, ResolveRoute,
};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values;
use zerocopy::{FromZeros, IntoBytes};

use crate::input::Input;
use crate::soft_program::{NO_ADDRESS, gid};

const STEPS: usize = 100;
/// Requests that may wait at each listener.
const BACKLOG: u32 = 4;
/// The port of the listeners, and that of a listener for [`connects`].
const PORT: u16 = 7000;
const HONEST_PORT: u16 = 7001;
/// The user's ids of identifiers, by port space. Those with 0 get no events.
const UIDS: [(PortSpace, u64); 2] = [(PortSpace::TCP, 1), (PortSpace::UDP, 2)];
/// The user's id of identifiers that have accepted.
const ACCEPTED: u64 = 3;
/// Bytes of a MAD, and of its header.
const MAD: usize = 256;
const MAD_HEADER: usize = 24;
/// The place of the attribute in a MAD, and attributes.
const ATTRIBUTE: Range<usize> = 16..18;
const REQ: [u8; 2] = [0x00, 0x10];
const REJ: [u8; 2] = [0x00, 0x12];
/// Places in a REQ: the communication id, the requester's GUID, its QPN, its GID, and its IPv4 address in
/// the private data.
const LOCAL_ID: Range<usize> = field(0, 4);
const GUID: Range<usize> = field(16, 8);
const QPN: Range<usize> = field(32, 3);
const LOCAL_GID: Range<usize> = field(56, 16);
const SOURCE_ADDRESS: Range<usize> = field(140 + 16, 4);
/// The first communication id and QPN of REQs that no program sends.
const FIRST_NUMBER: u32 = 0x50_0000;
/// Units of work that a MAD may cause, including those of a peer that answers.
const WORK: usize = 64;
/// Packets of a connection while time passes: 16 for each of several messages, with their answers.
const PACKETS: usize = 200;
/// The longest time for which a connection stays in `TIMEWAIT` is 2.4 hours.
const TIMEWAIT: Duration = Duration::from_secs(3 * 3600);

/// The place of a field behind the header of a MAD.
const fn field(at: usize, length: usize) -> Range<usize> {
    MAD_HEADER + at..MAD_HEADER + at + length
}

/// A capture of a fabric's packets, in pcap format.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Capture {
    /// Takes the MADs that were sent since the last call.
    fn take(&self) -> Vec<[u8; MAD]> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut rest = &bytes[..];
        let mut mads = Vec::new();
        while let Some((record, behind)) = rest.split_at_checked(16) {
            let length = record[8..12].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
            let (frame, behind) = behind.split_at(length as usize);
            // The ICRC is behind the MAD.
            mads.extend(frame.last_chunk::<{ MAD + 4 }>().and_then(|end| end.first_chunk::<MAD>()));
            rest = behind;
        }
        mads
    }
}

/// A program that uses the connection manager.
struct Program {
    file: CmFile,
    address: IpAddr,
    /// All identifiers that it has had.
    ids: Vec<u32>,
}

impl Program {
    fn new(device: &SoftDevice) -> Self {
        let file = CmFile::on(device.fabric()).expect("a file");
        Self { file, address: device.address(), ids: Vec::new() }
    }

    fn call<C: Command>(&self, request: C::Request) -> Result<C::Response, Errno> {
        let mut response = C::Response::new_zeroed();
        let result = self.file.execute(C::INFO.number, request.as_bytes(), response.as_mut_bytes());
        assert_ne!(result, Err(Errno::IO), "the device has failed");
        result.map(|()| response)
    }

    fn create(&mut self, ps: PortSpace) -> u32 {
        let qp_type = if ps == PortSpace::UDP { QpType::UD } else { QpType::RC };
        let uid = UIDS.iter().find(|(of, _)| *of == ps).expect("TCP or UDP").1;
        let request = CreateIdReq { uid, ps, qp_type: qp_type.0 as u8, ..CreateIdReq::zeroed() };
        let id = self.call::<CreateId>(request).expect("an identifier").id;
        self.ids.push(id);
        id
    }

    fn listen(&mut self, ps: PortSpace, port: u16) {
        let id = self.create(ps);
        let addr = storage(self.address, port);
        let addr_size = size_of::<SocketAddressIn>() as u16;
        let request = BindReq { id, addr_size, addr, ..BindReq::zeroed() };
        self.call::<Bind>(request).expect("a free port");
        self.call::<Listen>(ListenReq { id, backlog: BACKLOG }).expect("a listener");
    }

    /// Sends a REQ or SIDR_REQ.
    fn connect(&mut self, ps: PortSpace, address: IpAddr, port: u16) -> u32 {
        let id = self.create(ps);
        let size = size_of::<SocketAddressIn>() as u16;
        let request = ResolveAddrReq {
            id,
            timeout_ms: 1000,
            // Without a source, it is any device of the fabric.
            src_size: size,
            src_addr: storage(self.address, 0),
            dst_size: size,
            dst_addr: storage(address, port),
            ..ResolveAddrReq::zeroed()
        };
        self.call::<ResolveAddr>(request).expect("a device of the fabric");
        self.expect(EventType::ADDR_RESOLVED);
        self.call::<ResolveRoute>(ResolveRouteReq { id, timeout_ms: 1000 }).expect("a route");
        self.expect(EventType::ROUTE_RESOLVED);
        self.call::<Connect>(ConnectReq { id, conn_param: param(id), ..ConnectReq::zeroed() })
            .expect("a message");
        id
    }

    fn accept(&self, id: u32) -> Result<(), Errno> {
        self.call::<Accept>(AcceptReq { id, uid: ACCEPTED, conn_param: param(id), ..AcceptReq::zeroed() })
    }

    /// Answers a reply.
    fn establish(&self, id: u32) -> Result<(), Errno> {
        self.call::<Accept>(AcceptReq { id, ..AcceptReq::zeroed() })
    }

    fn disconnect(&self, id: u32) -> Result<(), Errno> {
        self.call::<Disconnect>(DisconnectReq { id })
    }

    fn next(&mut self) -> Option<EventResp> {
        let event = self.call::<GetEvent>(GetEventReq::zeroed()).ok()?;
        if event.event == EventType::CONNECT_REQUEST {
            self.ids.push(event.id);
        }
        Some(event)
    }

    /// Takes all events. The requests are no more than the backlog of each listener.
    fn drain(&mut self) {
        let mut requests = Vec::new();
        while let Some(event) = self.next() {
            requests.extend((event.event == EventType::CONNECT_REQUEST).then_some(event.uid));
        }
        for (_, uid) in UIDS {
            let waiting = requests.iter().filter(|of| **of == uid).count();
            assert!(waiting <= BACKLOG as usize, "{waiting} requests wait at a listener");
        }
    }

    /// Takes events up to one of this type. Returns its identifier.
    fn expect(&mut self, event: EventType) -> u32 {
        loop {
            match self.next() {
                Some(next) if next.event == event => return next.id,
                next => assert!(next.is_some(), "no event {event}"),
            }
        }
    }

    /// Calls a command on one of the identifiers.
    fn act(&self, input: &mut Input<'_>) {
        let id = self.ids[input.below(self.ids.len())];
        let _ = match input.byte() % 6 {
            0 => self.accept(id),
            1 => self.establish(id),
            2 => self.disconnect(id),
            3 => self.call::<Reject>(RejectReq { id, ..RejectReq::zeroed() }),
            4 => self.call::<Notify>(NotifyReq { id, event: verbs_values::EventType::COMM_EST }),
            _ => self.call::<DestroyId>(DestroyIdReq { id, ..DestroyIdReq::zeroed() }).map(drop),
        };
    }
}

fn storage(address: IpAddr, port: u16) -> SocketAddressStorage {
    let IpAddr::V4(address) = address else { return SocketAddressStorage::zeroed() };
    let (family, port) = (AddressFamily::INET, Be16::new(port));
    SocketAddressIn { family, port, address: address.octets(), ..SocketAddressIn::zeroed() }.into()
}

fn param(id: u32) -> ConnParam {
    ConnParam { qp_num: 0x100 + (id & 0xffff), retry_count: 7, valid: 1, ..ConnParam::zeroed() }
}

/// A device with listeners and connections, and its peer.
struct Victim {
    fabric: Fabric,
    devices: [SoftDevice; 2],
    own: Program,
    peer: Program,
    capture: Capture,
    /// MADs that were on the wire.
    mads: Vec<[u8; MAD]>,
    /// A REQ of the peer.
    request: [u8; MAD],
    /// The number of REQs that no program has sent.
    requests: u32,
}

impl Victim {
    fn new(fabric: Fabric) -> Self {
        let devices = [SoftDevice::new(&fabric), SoftDevice::new(&fabric)];
        let [own, peer] = [Program::new(&devices[0]), Program::new(&devices[1])];
        let capture = Capture::default();
        fabric.capture(capture.clone()).expect("a writer without errors");
        // The header of the file.
        capture.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let mut victim = Self { fabric, devices, own, peer, capture, mads: Vec::new(), request: [0; MAD], requests: 0 };
        for program in [&mut victim.own, &mut victim.peer] {
            program.listen(PortSpace::TCP, PORT);
            program.listen(PortSpace::UDP, PORT);
        }
        victim.connect_in_every_state();
        victim.mads = victim.capture.take();
        let gid = gid(victim.peer.address);
        let of_peer = |mad: &&[u8; MAD]| mad[ATTRIBUTE] == REQ && mad[LOCAL_GID] == gid;
        victim.request = *victim.mads.iter().find(of_peer).expect("a REQ of the peer");
        victim
    }

    /// Leaves connections in the states from a REQ to `TIMEWAIT`, in both roles.
    fn connect_in_every_state(&mut self) {
        for stage in [Stage::Timewait, Stage::Dreq, Stage::Rtu, Stage::Rep, Stage::Req] {
            for ends_first in [false, true] {
                Self::connect(&self.fabric, [&mut self.own, &mut self.peer], stage, ends_first);
                Self::connect(&self.fabric, [&mut self.peer, &mut self.own], stage, ends_first);
            }
        }
        let addresses = [self.own.address, self.peer.address];
        self.own.connect(PortSpace::UDP, addresses[1], PORT);
        self.peer.connect(PortSpace::UDP, addresses[0], PORT);
        self.fabric.run_until_idle();
    }

    /// Sends the messages of a connection up to one of them.
    fn connect(fabric: &Fabric, programs: [&mut Program; 2], last: Stage, client_ends: bool) {
        let [client, server] = programs;
        let id = client.connect(PortSpace::TCP, server.address, PORT);
        fabric.run_until_idle();
        if last == Stage::Req {
            return;
        }
        let child = server.expect(EventType::CONNECT_REQUEST);
        server.accept(child).expect("a request");
        fabric.run_until_idle();
        client.expect(EventType::CONNECT_RESPONSE);
        if last == Stage::Rep {
            return;
        }
        client.establish(id).expect("a reply");
        fabric.run_until_idle();
        server.expect(EventType::ESTABLISHED);
        let ends = if client_ends { [(client, id), (server, child)] } else { [(server, child), (client, id)] };
        let count = if last == Stage::Rtu { 0 } else { 1 + usize::from(last == Stage::Timewait) };
        for (program, id) in ends.into_iter().take(count) {
            program.disconnect(id).expect("a connection");
            fabric.run_until_idle();
        }
    }

    /// The connections of the device with other hosts than this one.
    fn connections_with_others(&self, host: IpAddr) -> Vec<CmConnection> {
        let mut connections = testing::cm_connections(&self.devices[0]);
        connections.retain(|connection| connection.peer != host);
        connections
    }

    /// Receives bytes as the payload of a datagram to QP 1. Returns the MADs that follow.
    fn receive(&mut self, host: IpAddr, payload: &[u8]) -> Vec<[u8; MAD]> {
        self.fabric.run_until_idle();
        let before = self.connections_with_others(host);
        let source = SocketAddr::new(host, 0xc000);
        let mut bytes = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
        bytes.extend([0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes.extend(testing::icrc(source, self.own.address, &bytes));
        testing::receive(&self.devices[0], source, &bytes);
        let work = (0..=WORK).take_while(|_| self.fabric.step()).count();
        assert!(work <= WORK, "the answers have no end");
        assert_eq!(before, self.connections_with_others(host), "a message has changed another host's connection");
        let sent = self.capture.take();
        self.mads.extend(&sent);
        self.mads.truncate(200);
        sent
    }

    /// Receives a MAD that was on the wire, changed or not.
    fn receive_like(&mut self, input: &mut Input<'_>, other: &SoftDevice) {
        let mut mad = self.mads[input.below(self.mads.len())];
        for _ in 0..input.byte() % 6 {
            let at = input.below(MAD);
            mad[at] = input.byte();
        }
        match input.byte() % 4 {
            // From the other side: the ids are swapped.
            0 => mad[MAD_HEADER..MAD_HEADER + 8].rotate_left(4),
            // Another message with these ids.
            1 => mad[17] = REQ[1] + input.byte() % 9,
            _ => {}
        }
        // A REQ that names the GUID of another device can take the place of one of that device.
        if mad[ATTRIBUTE] == REQ && mad[GUID] == other.node_guid().0 {
            mad[GUID.start] ^= 1;
        }
        let source = if input.one_in(8) { NO_ADDRESS } else { self.peer.address };
        self.receive_twice(source, mad, mad);
    }

    /// Receives a valid REQ with new numbers, of the peer or another host, and its repetition.
    fn receive_request(&mut self, input: &mut Input<'_>) {
        let number = FIRST_NUMBER + self.requests;
        self.requests += 1;
        let mut mad = self.request;
        mad[LOCAL_ID].copy_from_slice(&number.to_be_bytes());
        mad[QPN].copy_from_slice(&number.to_be_bytes()[1..]);
        let host = if input.one_in(4) { NO_ADDRESS } else { self.peer.address };
        let gid = gid(host);
        mad[LOCAL_GID].copy_from_slice(&gid);
        mad[SOURCE_ADDRESS].copy_from_slice(&gid[12..]);
        let mut again = mad;
        if input.one_in(2) {
            // The communication id alone makes it a repetition.
            again[QPN.start] |= 0x80;
        }
        self.receive_twice(host, mad, again);
    }

    /// Receives a MAD. If it is a REQ, receives its repetition, too.
    fn receive_twice(&mut self, source: IpAddr, mad: [u8; MAD], again: [u8; MAD]) {
        let connections = |victim: &Self| testing::cm_count(&victim.devices[0]);
        let before = connections(self);
        self.receive(source, &mad);
        let after = connections(self);
        if mad[ATTRIBUTE] == REQ && after > before {
            let answers = self.receive(source, &again);
            let is_rejected = answers.iter().any(|answer| answer[ATTRIBUTE] == REJ);
            assert!(!is_rejected && connections(self) == after, "a repeated REQ is taken for another one");
        }
    }

    fn advance(&mut self, time: Duration) {
        self.fabric.advance(time);
        let sent = self.capture.take().len();
        let connections: usize = self.devices.iter().map(testing::cm_count).sum();
        assert!(sent <= PACKETS * (connections + self.own.ids.len()), "{sent} packets of {connections}");
    }

    /// Checks that no connection is left over but those of the program, and of requests that wait.
    fn check_connections(&self) {
        let connections = testing::cm_count(&self.devices[0]);
        let most = self.own.ids.len() + 2 * BACKLOG as usize;
        assert!(connections <= most, "{connections} connections, at most {most} expected");
    }

    /// Destroys the identifiers of both sides. No connection is left.
    fn destroy(self) {
        let Self { fabric, devices, own, peer, .. } = self;
        drop((own, peer));
        fabric.advance(TIMEWAIT);
        for device in &devices {
            assert_eq!(testing::cm_count(device), 0, "connections are left");
        }
    }
}

/// The last message of a connection that another one follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Req,
    Rep,
    Rtu,
    Dreq,
    Timewait,
}

/// Connects another device with the first one, and ends the connection.
fn connects(fabric: &Fabric, device: &SoftDevice, other: &SoftDevice) {
    let mut server = Program::new(device);
    server.listen(PortSpace::TCP, HONEST_PORT);
    let mut client = Program::new(other);
    let id = client.connect(PortSpace::TCP, server.address, HONEST_PORT);
    fabric.run_until_idle();
    let child = server.expect(EventType::CONNECT_REQUEST);
    server.accept(child).expect("a request");
    fabric.run_until_idle();
    client.expect(EventType::CONNECT_RESPONSE);
    client.establish(id).expect("a reply");
    fabric.run_until_idle();
    server.expect(EventType::ESTABLISHED);
    client.disconnect(id).expect("a connection");
    fabric.run_until_idle();
    server.expect(EventType::DISCONNECTED);
    server.disconnect(child).expect("a connection");
    fabric.run_until_idle();
    client.expect(EventType::DISCONNECTED);
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let fabric = Fabric::seeded(1);
    let other = SoftDevice::new(&fabric);
    let mut victim = Victim::new(fabric.clone());
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        match input.byte() % 8 {
            0 => {
                let source = input.one_of(&[NO_ADDRESS, victim.peer.address]);
                let length = usize::from(input.half()) % (2 * MAD);
                let payload = input.slice(length);
                victim.receive(source, payload);
            }
            1 => victim.own.act(&mut input),
            2 => victim.own.drain(),
            3 => victim.advance(Duration::from_millis(1 << (input.byte() % 20))),
            4 => victim.receive_request(&mut input),
            _ => victim.receive_like(&mut input, &other),
        }
        victim.check_connections();
    }
    victim.own.drain();
    connects(&fabric, &victim.devices[0], &other);
    victim.destroy();
}
