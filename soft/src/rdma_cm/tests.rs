use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex};

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Transport;
use bareverbs_uapi::rdma_cm::address::SocketAddressStorage;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::QpAttr;
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::CmFile;
use super::address::{Header, service_id, storage};
use crate::cm::{CmEvent, CmSink, ConnId, DatagramRequest, Path, Request, Verdict};
use crate::wire::gid;
use crate::{Fabric, SoftDevice};

/// A fabric with two devices, and a file for each side.
struct Sides {
    fabric: Fabric,
    devices: [SoftDevice; 2],
    client: CmFile,
    server: CmFile,
}

impl Sides {
    fn new() -> Self {
        let fabric = Fabric::new();
        let devices = [(); 2].map(|()| SoftDevice::new(&fabric));
        let [client, server] = [(); 2].map(|()| CmFile::on(&fabric).unwrap());
        Self { fabric, devices, client, server }
    }

    /// A listener on the second device, and its port.
    fn listen(&self, space: PortSpace, backlog: u32) -> (u32, u16) {
        let id = create(&self.server, 100, space);
        bind(&self.server, id, self.address(1, 0)).unwrap();
        execute::<Listen>(&self.server, ListenReq { id, backlog }).unwrap();
        (id, local_port(&self.server, id))
    }

    fn address(&self, device: usize, port: u16) -> SocketAddressStorage {
        storage(Some((self.devices[device].address(), port).into())).0
    }

    /// An identifier with a route to a port of a device.
    fn resolved(&self, uid: u64, space: PortSpace, device: &SoftDevice, port: u16) -> u32 {
        let id = create(&self.client, uid, space);
        resolve(&self.client, id, storage(Some((device.address(), port).into())).0).unwrap();
        expect(&self.client, EventType::ADDR_RESOLVED, uid);
        execute::<ResolveRoute>(&self.client, ResolveRouteReq { id, timeout_ms: 1 }).unwrap();
        expect(&self.client, EventType::ROUTE_RESOLVED, uid);
        id
    }

    /// An identifier that has sent a request with these private data to the second device.
    fn asking(&self, uid: u64, space: PortSpace, port: u16, data: &[u8]) -> u32 {
        self.asking_device(uid, space, &self.devices[1], port, data)
    }

    /// The same to any device.
    fn asking_device(&self, uid: u64, space: PortSpace, device: &SoftDevice, port: u16, data: &[u8]) -> u32 {
        let id = self.resolved(uid, space, device, port);
        let request = ConnectReq { id, conn_param: param(0x77, data), ..ConnectReq::zeroed() };
        execute::<Connect>(&self.client, request).unwrap();
        id
    }

    /// An identifier that is connected with a child of a listener.
    fn connected(&self, port: u16) -> (u32, u32) {
        let client = self.asking(1, PortSpace::TCP, port, b"hello");
        let child = expect(&self.server, EventType::CONNECT_REQUEST, 100).id;
        accept(&self.server, child, 2, b"welcome").unwrap();
        expect(&self.client, EventType::CONNECT_RESPONSE, 1);
        execute::<Accept>(&self.client, AcceptReq { id: client, ..AcceptReq::zeroed() }).unwrap();
        expect(&self.server, EventType::ESTABLISHED, 2);
        (client, child)
    }
}

fn call<C: Command>(file: &CmFile, request: C::Request) -> Result<C::Response, Errno> {
    let mut response = C::Response::new_zeroed();
    file.execute(C::INFO.number, request.as_bytes(), response.as_mut_bytes()).map(|()| response)
}

fn execute<C: Command>(file: &CmFile, request: C::Request) -> Result<(), Errno> {
    call::<C>(file, request).map(drop)
}

fn create(file: &CmFile, uid: u64, ps: PortSpace) -> u32 {
    call::<CreateId>(file, CreateIdReq { uid, ps, qp_type: 2, ..CreateIdReq::zeroed() }).unwrap().id
}

fn destroy(file: &CmFile, id: u32) -> Result<u32, Errno> {
    Ok(call::<DestroyId>(file, DestroyIdReq { id, ..DestroyIdReq::zeroed() })?.events_reported)
}

fn size(addr: &SocketAddressStorage) -> u16 {
    super::address::Address::parse(addr.as_bytes()).size()
}

fn bind(file: &CmFile, id: u32, addr: SocketAddressStorage) -> Result<(), Errno> {
    execute::<Bind>(file, BindReq { id, addr_size: size(&addr), addr, ..BindReq::zeroed() })
}

fn resolve(file: &CmFile, id: u32, dst_addr: SocketAddressStorage) -> Result<(), Errno> {
    let (dst_size, timeout_ms) = (size(&dst_addr), 100);
    execute::<ResolveAddr>(
        file,
        ResolveAddrReq { id, timeout_ms, dst_size, dst_addr, ..ResolveAddrReq::zeroed() },
    )
}

fn accept(file: &CmFile, id: u32, uid: u64, data: &[u8]) -> Result<(), Errno> {
    execute::<Accept>(file, AcceptReq { id, uid, conn_param: param(0x88, data), ..AcceptReq::zeroed() })
}

fn attributes(file: &CmFile, id: u32, state: QpState) -> Result<QpAttr, Errno> {
    call::<InitQpAttr>(file, InitQpAttrReq { id, qp_state: state.0.into(), ..InitQpAttrReq::zeroed() })
}

fn param(qp_num: u32, data: &[u8]) -> ConnParam {
    let mut param = ConnParam {
        qp_num,
        private_data_len: data.len() as u8,
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 7,
        valid: 1,
        ..ConnParam::zeroed()
    };
    param.private_data[..data.len()].copy_from_slice(data);
    param
}

fn addresses(file: &CmFile, id: u32) -> QueryAddrResp {
    call::<Query>(file, QueryReq { id, option: QueryOption::ADDR, ..QueryReq::zeroed() }).unwrap()
}

fn local_port(file: &CmFile, id: u32) -> u16 {
    u16::from_be_bytes([addresses(file, id).src_addr.data[0], addresses(file, id).src_addr.data[1]])
}

fn is_readable(file: &CmFile) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&now)).unwrap() == 1
}

fn next(file: &CmFile) -> Option<EventResp> {
    let readable = is_readable(file);
    let event = call::<GetEvent>(file, GetEventReq::zeroed());
    assert_eq!(event.is_ok(), readable, "{event:?}");
    event.ok()
}

#[track_caller]
fn expect(file: &CmFile, event: EventType, uid: u64) -> EventResp {
    let found = next(file).expect("an event");
    assert_eq!((found.event, found.uid), (event, uid));
    found
}

#[test]
fn connection_is_made_and_ended() {
    let sides = Sides::new();
    let (_, port) = sides.listen(PortSpace::TCP, 0);
    let client = sides.asking(1, PortSpace::TCP, port, b"hello");
    let request = expect(&sides.server, EventType::CONNECT_REQUEST, 100);
    let conn = request.conn();
    assert_eq!((conn.private_data_len, &conn.private_data[..6]), (56, &b"hello\0"[..]));
    assert_eq!((conn.qp_num, conn.responder_resources, conn.initiator_depth), (0x77, 5, 3));
    let child = request.id;
    for (state, timeout) in [(QpState::INIT, 0), (QpState::RTR, 0), (QpState::RTS, 17)] {
        let attr = attributes(&sides.server, child, state).unwrap();
        assert_eq!((attr.qp_state, attr.timeout), (u32::from(state.0), timeout));
    }
    assert_eq!(attributes(&sides.client, client, QpState::RTR), Err(Errno::INVAL));
    accept(&sides.server, child, 2, b"welcome").unwrap();
    let response = expect(&sides.client, EventType::CONNECT_RESPONSE, 1).conn();
    assert_eq!((response.private_data_len, &response.private_data[..7]), (196, &b"welcome"[..]));
    assert_eq!(response.qp_num, 0x88);
    let (rtr, rts) = (
        attributes(&sides.client, client, QpState::RTR).unwrap(),
        attributes(&sides.server, child, QpState::RTS).unwrap(),
    );
    assert_eq!((rtr.rq_psn, rtr.dest_qp_num, rtr.path_mtu), (rts.sq_psn, 0x88, 5));
    assert!(rtr.qp_attr_mask.contains(QpAttrMask::MIN_RNR_TIMER));
    execute::<Accept>(&sides.client, AcceptReq { id: client, ..AcceptReq::zeroed() }).unwrap();
    expect(&sides.server, EventType::ESTABLISHED, 2);
    execute::<Disconnect>(&sides.client, DisconnectReq { id: client }).unwrap();
    expect(&sides.server, EventType::DISCONNECTED, 2);
    assert!(next(&sides.client).is_none());
    execute::<Disconnect>(&sides.server, DisconnectReq { id: child }).unwrap();
    assert_eq!(expect(&sides.client, EventType::DISCONNECTED, 1).status, 0);
    assert_eq!(attributes(&sides.client, client, QpState::RTS), Err(Errno::INVAL));
    assert_eq!(destroy(&sides.client, client), Ok(4));
}

#[test]
fn requests_are_rejected_with_their_reason() {
    let sides = Sides::new();
    let (listener, port) = sides.listen(PortSpace::TCP, 0);
    sides.asking(1, PortSpace::TCP, port + 1, b"");
    assert_eq!(expect(&sides.client, EventType::REJECTED, 1).status, 8);
    sides.asking(2, PortSpace::TCP, port, b"");
    let child = expect(&sides.server, EventType::CONNECT_REQUEST, 100).id;
    let mut request = RejectReq { id: child, private_data_len: 4, ..RejectReq::zeroed() };
    request.private_data[..4].copy_from_slice(b"busy");
    execute::<Reject>(&sides.server, request).unwrap();
    let rejected = expect(&sides.client, EventType::REJECTED, 2);
    assert_eq!((rejected.status, &rejected.conn().private_data[..4]), (28, &b"busy"[..]));
    // Requests that were not delivered end with their listener.
    sides.asking(3, PortSpace::TCP, port, b"");
    destroy(&sides.server, listener).unwrap();
    assert_eq!(expect(&sides.client, EventType::REJECTED, 3).status, 28);
    assert!(next(&sides.server).is_none());
    // A peer that gives up.
    let (_, port) = sides.listen(PortSpace::TCP, 0);
    let client = sides.asking(4, PortSpace::TCP, port, b"");
    let child = expect(&sides.server, EventType::CONNECT_REQUEST, 100).id;
    destroy(&sides.client, client).unwrap();
    assert_eq!(accept(&sides.server, child, 5, b""), Err(Errno::INVAL));
}

#[test]
fn wildcard_listener_serves_later_devices_and_siblings() {
    let sides = Sides::new();
    let listener = create(&sides.server, 100, PortSpace::TCP);
    execute::<Listen>(&sides.server, ListenReq { id: listener, backlog: 0 }).unwrap();
    let port = local_port(&sides.server, listener);
    assert_eq!(addresses(&sides.server, listener).node_guid, 0);
    let later = SoftDevice::new(&sides.fabric);
    let sibling = sides.fabric.sibling();
    let alone = SoftDevice::with_address(&sibling, [10, 9, 8, 7].into()).unwrap();
    for (uid, device) in [(1, &sides.devices[1]), (2, &later), (3, &alone)] {
        sides.asking_device(uid, PortSpace::TCP, device, port, b"");
        let child = expect(&sides.server, EventType::CONNECT_REQUEST, 100).id;
        assert_eq!(addresses(&sides.server, child).ibdev_index, device.index());
    }
}

#[test]
fn ports_are_shared_as_in_the_kernel() {
    let sides = Sides::new();
    let bound = |device, port, option: Option<IdOption>| {
        let id = create(&sides.client, 1, PortSpace::TCP);
        if let Some(IdOption(optname)) = option {
            let (value, level) = (1_i32, OptionLevel::ID);
            let optval = (&raw const value).expose_provenance() as u64;
            let request = SetOptionReq { optval, id, level, optname, optlen: 4 };
            execute::<SetOption>(&sides.client, request).unwrap();
        }
        let address = match device {
            Some(device) => sides.address(device, port),
            None => storage(Some(([0; 4], port).into())).0,
        };
        bind(&sides.client, id, address).map(|()| id)
    };
    let first = bound(Some(0), 7174, None).unwrap();
    assert_eq!(bound(Some(0), 7174, None), Err(Errno::ADDRINUSE));
    assert_eq!(bound(None, 7174, None), Err(Errno::ADDRNOTAVAIL));
    destroy(&sides.client, first).unwrap();
    bound(Some(0), 7174, None).unwrap();
    bound(Some(1), 7174, None).unwrap();
    let reused = [(); 2].map(|()| bound(Some(0), 7175, Some(IdOption::REUSE_ADDR)).unwrap());
    let listen = |id| execute::<Listen>(&sides.client, ListenReq { id, backlog: 0 });
    assert_eq!(listen(reused[0]), Err(Errno::ADDRINUSE));
    destroy(&sides.client, reused[0]).unwrap();
    listen(reused[1]).unwrap();
    let id = create(&sides.client, 1, PortSpace::TCP);
    assert_eq!(
        bind(&sides.client, id, storage(Some(([192, 0, 2, 1], 0).into())).0),
        Err(Errno::ADDRNOTAVAIL)
    );
    bind(&sides.client, id, sides.address(0, 0)).unwrap();
    assert!((32768..=60999).contains(&local_port(&sides.client, id)));
}

#[test]
fn destroyed_identifiers_leave_no_port() {
    let sides = Sides::new();
    let (listener, port) = sides.listen(PortSpace::TCP, 0);
    let (client, child) = sides.connected(port);
    for (file, id) in [(&sides.server, listener), (&sides.client, client), (&sides.server, child)] {
        destroy(file, id).unwrap();
    }
    assert!(sides.server.namespace.lock().ports.is_empty());
}

#[test]
fn addresses_without_a_device_do_not_resolve() {
    let sides = Sides::new();
    let id = create(&sides.client, 1, PortSpace::TCP);
    for address in [[127, 0, 0, 99], [0, 0, 0, 0]] {
        let resolved = resolve(&sides.client, id, storage(Some((address, 1).into())).0);
        assert_eq!(resolved, Err(Errno::NETUNREACH), "{address:?}");
    }
    // Failures leave it bound.
    resolve(&sides.client, id, sides.address(1, 1)).unwrap();
    assert_eq!(resolve(&sides.client, id, sides.address(1, 1)), Err(Errno::INVAL));
    let request = ResolveRouteReq { id, timeout_ms: 0 };
    assert_eq!(execute::<ResolveRoute>(&sides.client, request), Err(Errno::INVAL));
}

#[test]
fn backlog_counts_requests_that_wait() {
    let sides = Sides::new();
    let (_, port) = sides.listen(PortSpace::UDP, 2);
    for uid in 1..=3 {
        sides.asking(uid, PortSpace::UDP, port, b"who");
    }
    assert_eq!(expect(&sides.client, EventType::UNREACHABLE, 3).status, 2);
    for _ in 0..2 {
        let request = expect(&sides.server, EventType::CONNECT_REQUEST, 100);
        assert_eq!((request.ud.private_data_len, &request.ud.private_data[..3]), (180, &b"who"[..]));
        accept(&sides.server, request.id, 7, b"me").unwrap();
    }
    for uid in 1..=2 {
        let answer = expect(&sides.client, EventType::ESTABLISHED, uid).ud;
        assert_eq!((answer.qp_num, answer.qkey, answer.private_data_len), (0x88, 0x0123_4567, 136));
        assert_eq!(answer.ah_attr.grh.dgid[12..], [127, 0, 0, 2]);
    }
    sides.asking(9, PortSpace::UDP, port + 1, b"");
    assert_eq!(expect(&sides.client, EventType::UNREACHABLE, 9).status, 1);
    // Requests that were read have left the backlog.
    sides.asking(4, PortSpace::UDP, port, b"");
    expect(&sides.server, EventType::CONNECT_REQUEST, 100);
}

#[test]
fn requests_to_a_removed_device_leave_the_backlog() {
    let sides = Sides::new();
    let listener = create(&sides.server, 100, PortSpace::TCP);
    execute::<Listen>(&sides.server, ListenReq { id: listener, backlog: 1 }).unwrap();
    let port = local_port(&sides.server, listener);
    sides.asking(1, PortSpace::TCP, port, b"");
    sides.devices[1].remove();
    sides.asking_device(2, PortSpace::TCP, &sides.devices[0], port, b"");
    expect(&sides.server, EventType::CONNECT_REQUEST, 100);
    assert!(next(&sides.server).is_none());
}

#[test]
fn identifiers_move_with_their_events() {
    let sides = Sides::new();
    let (_, port) = sides.listen(PortSpace::TCP, 0);
    let (id, _) = sides.connected(port);
    let fd = sides.client.as_fd().as_raw_fd().cast_unsigned();
    let migrate =
        |file: &CmFile, fd| call::<MigrateId>(file, MigrateIdReq { id, fd, ..MigrateIdReq::zeroed() });
    execute::<WriteCmEvent>(
        &sides.client,
        WriteCmEventReq { id, event: EventType::USER, ..WriteCmEventReq::zeroed() },
    )
    .unwrap();
    assert_eq!(migrate(&sides.server, 0x7fff_fff0), Err(Errno::NOENT));
    assert_eq!(migrate(&sides.server, 1), Err(Errno::INVAL));
    assert_eq!(migrate(&sides.server, fd).unwrap().events_reported, 3);
    assert!(!is_readable(&sides.client));
    expect(&sides.server, EventType::USER, 1);
    assert_eq!(destroy(&sides.client, id), Err(Errno::INVAL));
    assert_eq!(destroy(&sides.server, id), Ok(4));
    expect(&sides.server, EventType::DISCONNECTED, 2);
}

#[test]
fn listener_moves_with_its_requests() {
    let sides = Sides::new();
    let (id, port) = sides.listen(PortSpace::TCP, 0);
    sides.asking(1, PortSpace::TCP, port, b"");
    let fd = sides.server.as_fd().as_raw_fd().cast_unsigned();
    call::<MigrateId>(&sides.client, MigrateIdReq { id, fd, ..MigrateIdReq::zeroed() }).unwrap();
    assert!(!is_readable(&sides.server));
    let child = expect(&sides.client, EventType::CONNECT_REQUEST, 100).id;
    accept(&sides.client, child, 2, b"").unwrap();
    expect(&sides.client, EventType::CONNECT_RESPONSE, 1);
}

#[test]
fn groups_are_joined_at_once() {
    let sides = Sides::new();
    let id = create(&sides.client, 1, PortSpace::UDP);
    bind(&sides.client, id, sides.address(0, 0)).unwrap();
    let join = |addr: SocketAddressStorage| {
        let request = JoinMcastReq { uid: 9, id, addr_size: size(&addr), addr, ..JoinMcastReq::zeroed() };
        call::<JoinMcast>(&sides.client, request)
    };
    let membership = join(storage(Some(([239, 1, 2, 3], 0).into())).0).unwrap().id;
    let joined = expect(&sides.client, EventType::MULTICAST_JOIN, 9);
    assert_eq!((joined.id, joined.ud.qp_num, joined.ud.qkey), (membership, 0xff_ffff, 0x0123_4567));
    assert_eq!(joined.ud.ah_attr.grh.dgid[10..], [0xff, 0xff, 239, 1, 2, 3]);
    let leave = |id| call::<LeaveMcast>(&sides.client, DestroyIdReq { id, ..DestroyIdReq::zeroed() });
    assert_eq!(leave(membership).unwrap().events_reported, 1);
    assert_eq!(leave(membership), Err(Errno::NOENT));
    let v6: std::net::SocketAddr = "[ff0e::1]:0".parse().unwrap();
    assert_eq!(join(storage(Some(v6)).0), Err(Errno::from_raw_os_error(524)));
}

#[test]
fn removed_device_closes_its_identifiers() {
    let sides = Sides::new();
    let (listener, port) = sides.listen(PortSpace::TCP, 0);
    let (_, child) = sides.connected(port);
    sides.asking(5, PortSpace::TCP, port, b"");
    sides.devices[1].remove();
    for uid in [100, 2] {
        expect(&sides.server, EventType::DEVICE_REMOVAL, uid);
    }
    assert!(next(&sides.server).is_none(), "the request that was not delivered is gone");
    for id in [listener, child] {
        assert_eq!(attributes(&sides.server, id, QpState::INIT), Err(Errno::NXIO));
        assert_eq!(bind(&sides.server, id, sides.address(0, 0)), Err(Errno::NXIO));
        destroy(&sides.server, id).unwrap();
    }
    assert_eq!(SoftDevice::find(sides.devices[1].index()).map(|device| device.index()), None);
    let found = SoftDevice::find(sides.devices[0].index()).unwrap();
    assert_eq!(found.address(), sides.devices[0].address());
}

#[test]
fn closed_file_ends_its_connections() {
    let sides = Sides::new();
    let (_, port) = sides.listen(PortSpace::TCP, 0);
    sides.connected(port);
    let Sides { client, server, .. } = sides;
    drop(client);
    expect(&server, EventType::DISCONNECTED, 2);
}

#[test]
fn short_commands_read_what_follows() {
    let fabric = Fabric::new();
    let file = CmFile::on(&fabric).unwrap();
    let mut response = CreateIdResp::zeroed();
    let request = CreateIdReq { uid: 1, ps: PortSpace::TCP, ..CreateIdReq::zeroed() };
    let call = Call::<CreateId>::new(request, &mut response);
    let bytes = call.as_bytes().to_vec();
    // SAFETY: the response is that of the call.
    let write = |bytes: &[u8]| unsafe { file.write(bytes) };
    assert_eq!(write(&bytes[..7]), Err(Errno::INVAL));
    assert_eq!(write(&bytes[..bytes.len() - 1]), Err(Errno::INVAL));
    let mut short = bytes.clone();
    short[4..6].fill(0);
    assert_eq!(write(&short[..8]), Ok(()));
    assert!(response.id >= CmFile::FIRST_ID);
    assert_eq!(write(&[13, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::NOSYS));
    assert_eq!(write(&[25, 0, 0, 0, 0, 0, 0, 0]), Err(Errno::INVAL));
}

#[test]
fn event_without_memory_for_it_stays_queued() {
    let sides = Sides::new();
    let id = create(&sides.client, 1, PortSpace::TCP);
    resolve(&sides.client, id, sides.address(1, 1)).unwrap();
    let mut event = EventResp::zeroed();
    let mut bytes = Call::<GetEvent>::new(GetEventReq::zeroed(), &mut event).as_bytes().to_vec();
    let last = bytes.len() - 8;
    bytes[last..].copy_from_slice(&64_u64.to_ne_bytes());
    // SAFETY: an address without memory is EFAULT.
    assert_eq!(unsafe { sides.client.write(&bytes) }, Err(Errno::FAULT));
    expect(&sides.client, EventType::ADDR_RESOLVED, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Requests of any contents, to identifiers in several states, neither panic nor hang.
    #[test]
    fn arbitrary_requests_have_an_answer(
        calls in proptest::collection::vec((0_u32..27, proptest::collection::vec(any::<u8>(), 0..400), 0_usize..4), 1..24),
    ) {
        let sides = Sides::new();
        let (listener, port) = sides.listen(PortSpace::TCP, 0);
        let (client, child) = sides.connected(port);
        let ids = [listener, client, child, create(&sides.client, 3, PortSpace::UDP)];
        for (command, mut request, id) in calls {
            let place = find(command).and_then(|info| info.request.fields.iter().find(|field| field.rust == "id"));
            if let Some(place) = place && request.len() >= place.offset + 4 {
                request[place.offset..place.offset + 4].copy_from_slice(&ids[id].to_ne_bytes());
            }
            for file in [&sides.client, &sides.server] {
                let _ = file.execute(command, &request, &mut [0; 512]);
            }
        }
    }
}

#[test]
fn responses_need_their_room() {
    let fabric = Fabric::new();
    let file = CmFile::on(&fabric).unwrap();
    let id = create(&file, 1, PortSpace::TCP);
    let request = QueryReq { id, ..QueryReq::zeroed() };
    for (command, least) in [(5, 200), (19, 272)] {
        let execute = |room: usize| file.execute(command, request.as_bytes(), &mut vec![0; room]);
        assert_eq!((execute(least - 1), execute(least)), (Err(Errno::NOSPC), Ok(())));
    }
    let get = |room: usize| file.execute(12, &[0; 8], &mut vec![0; room]);
    assert_eq!((get(323), get(324)), (Err(Errno::NOSPC), Err(Errno::AGAIN)));
    assert!(EventResp::read_from_bytes(&[0; 336][..]).is_ok());
}

#[test]
fn services_are_of_listening_identifiers() {
    let sides = Sides::new();
    let namespace = &sides.server.namespace;
    let (listener, port) = sides.listen(PortSpace::TCP, 0);
    let device = namespace.device(sides.devices[1].index()).unwrap();
    let listen_again = |id, port| {
        let service = service_id(PortSpace::TCP, port);
        device.with(|engine| namespace.listen_on(engine, &*device, id, service)).unwrap();
        namespace.lock().services.get(&(device.index(), service)).map(|service| service.ids.clone())
    };
    assert_eq!(listen_again(listener, port), Some(vec![listener]));
    let bound = create(&sides.server, 1, PortSpace::TCP);
    bind(&sides.server, bound, sides.address(1, 0)).unwrap();
    assert_eq!(listen_again(bound, local_port(&sides.server, bound)), None);
    // One that is being destroyed.
    namespace.lock().ids.remove(&listener);
    sides.asking(1, PortSpace::TCP, port, b"");
    assert_eq!(expect(&sides.client, EventType::REJECTED, 1).status, 28);
}

#[test]
fn identifier_that_is_destroyed_in_listen_leaves_no_service() {
    let sides = Sides::new();
    for _ in 0..100 {
        let id = create(&sides.server, 1, PortSpace::TCP);
        bind(&sides.server, id, sides.address(1, 7174)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| _ = execute::<Listen>(&sides.server, ListenReq { id, backlog: 0 }));
            destroy(&sides.server, id).unwrap();
        });
        assert!(sides.server.namespace.lock().services.is_empty());
    }
    sides.listen(PortSpace::TCP, 0);
}

#[test]
fn identifier_that_is_destroyed_in_connect_leaves_no_connection() {
    let sides = Sides::new();
    let device = sides.client.namespace.device(sides.devices[0].index()).unwrap();
    let both = std::sync::Barrier::new(2);
    for round in 0..2000 {
        let id = sides.resolved(1, PortSpace::TCP, &sides.devices[1], 7174);
        let request = ConnectReq { id, conn_param: param(0x77, b""), ..ConnectReq::zeroed() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                let _ = execute::<Connect>(&sides.client, request);
            });
            both.wait();
            // At another time in each round.
            (0..round % 100 * 10).for_each(|_| std::hint::spin_loop());
            destroy(&sides.client, id).unwrap();
        });
        assert_eq!(device.with(|engine| Ok(engine.cm_count())), Ok(0));
        while next(&sides.client).is_some() {}
    }
}

#[test]
fn device_that_is_added_in_listen_has_the_service() {
    let sides = Sides::new();
    for _ in 0..50 {
        let id = create(&sides.server, 1, PortSpace::TCP);
        let added = std::thread::scope(|scope| {
            scope.spawn(|| execute::<Listen>(&sides.server, ListenReq { id, backlog: 0 }).unwrap());
            SoftDevice::new(&sides.fabric)
        });
        let service = service_id(PortSpace::TCP, local_port(&sides.server, id));
        let state = sides.server.namespace.lock();
        let ids = state.services.get(&(added.index(), service)).map(|service| service.ids.clone());
        assert_eq!(ids, Some(vec![id]));
    }
}

/// Keeps the last event of a connection.
#[derive(Debug, Default)]
struct Last(Mutex<Option<CmEvent>>);

impl CmSink for Last {
    fn event(&self, _: ConnId, event: CmEvent) -> Verdict {
        *self.0.lock().unwrap() = Some(event);
        Verdict::Keep
    }
}

fn path(from: IpAddr, to: IpAddr) -> Path {
    Path {
        source: gid(from),
        destination: gid(to),
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
        mtu: 3,
        rate: 3,
        packet_life: 16,
        pkey: 0xffff,
    }
}

/// A request to a listener on a port.
fn request(port: u16, private_data: Vec<u8>) -> Request {
    Request {
        service_id: service_id(PortSpace::TCP, port),
        transport: Transport::Rc,
        qpn: 0x77,
        starting_psn: 0,
        responder_resources: 0,
        initiator_depth: 0,
        remote_response_timeout: 20,
        local_response_timeout: 20,
        flow_control: false,
        retry_count: 7,
        rnr_retry_count: 7,
        max_retries: 15,
        srq: false,
        ece: crate::cm::Ece::default(),
        private_data,
    }
}

#[test]
fn request_of_another_transport_is_rejected() {
    let sides = Sides::new();
    let (_, port) = sides.listen(PortSpace::TCP, 0);
    let [own, destination] = [0, 1].map(|device| sides.devices[device].address());
    let device = sides.client.namespace.device(sides.devices[0].index()).unwrap();
    let header = Header { source: (own, 9).into(), destination }.to_bytes().to_vec();
    let ask = |transport| {
        let request = Request { transport, ..request(port, header.clone()) };
        let sink = Arc::<Last>::default();
        device.with(|engine| engine.cm_connect(request, path(own, destination), sink.clone())).unwrap();
        sink.0.lock().unwrap().take()
    };
    assert_eq!(ask(Transport::Uc), Some(CmEvent::Rejected { reason: 28, private_data: vec![0; 148] }));
    assert!(next(&sides.server).is_none());
    assert_eq!(ask(Transport::Rc), None);
    expect(&sides.server, EventType::CONNECT_REQUEST, 100);
}

#[test]
fn requests_with_addresses_of_other_hosts_are_rejected() {
    let sides = Sides::new();
    let (_, port) = sides.listen(PortSpace::TCP, 0);
    let (_, datagrams) = sides.listen(PortSpace::UDP, 0);
    let [own, peer] = [0, 1].map(|device| sides.devices[device].address());
    let device = sides.client.namespace.device(sides.devices[0].index()).unwrap();
    let other = [127, 0, 0, 77].into();
    let path = path(own, peer);
    for (source, destination) in [(other, peer), (own, other)] {
        let private_data = Header { source: (source, 9).into(), destination }.to_bytes().to_vec();
        let request = request(port, private_data.clone());
        let sink = Arc::<Last>::default();
        device.with(|engine| engine.cm_connect(request, path, sink.clone())).unwrap();
        let event = sink.0.lock().unwrap().take();
        assert_eq!(event, Some(CmEvent::Rejected { reason: 28, private_data: vec![0; 148] }));
        let request = DatagramRequest { service_id: service_id(PortSpace::UDP, datagrams), private_data };
        device.with(|engine| engine.cm_datagram_request(request, 20, 15, path, sink.clone())).unwrap();
        let event = sink.0.lock().unwrap().take();
        let Some(CmEvent::DatagramReply(reply)) = event else { panic!("{event:?}") };
        assert_eq!(reply.status, 2);
    }
    assert!(next(&sides.server).is_none());
}

#[test]
fn disconnect_of_a_listener_does_nothing() {
    let sides = Sides::new();
    let (listener, port) = sides.listen(PortSpace::TCP, 0);
    let disconnect = |id| execute::<Disconnect>(&sides.server, DisconnectReq { id });
    assert_eq!(disconnect(listener), Ok(()));
    sides.connected(port);
    let everywhere = create(&sides.server, 3, PortSpace::TCP);
    execute::<Listen>(&sides.server, ListenReq { id: everywhere, backlog: 0 }).unwrap();
    assert_eq!(disconnect(everywhere), Err(Errno::INVAL));
}

#[test]
fn bind_and_listen_are_taken_back() {
    let sides = Sides::new();
    let (listener, port) = sides.listen(PortSpace::TCP, 0);
    assert_eq!(sides.server.unbind(listener), Err(Errno::INVAL));
    // Requests that were not read end with the listener, those that were read stay.
    sides.asking(1, PortSpace::TCP, port, b"");
    sides.server.unlisten(listener).unwrap();
    assert_eq!(expect(&sides.client, EventType::REJECTED, 1).status, 28);
    assert!(next(&sides.server).is_none());
    assert_eq!(sides.server.unlisten(listener), Err(Errno::INVAL));
    sides.asking(2, PortSpace::TCP, port, b"");
    assert_eq!(expect(&sides.client, EventType::REJECTED, 2).status, 8);
    execute::<Listen>(&sides.server, ListenReq { id: listener, backlog: 0 }).unwrap();
    let client = sides.asking(3, PortSpace::TCP, port, b"");
    let child = expect(&sides.server, EventType::CONNECT_REQUEST, 100).id;
    sides.server.unlisten(listener).unwrap();
    accept(&sides.server, child, 4, b"").unwrap();
    expect(&sides.client, EventType::CONNECT_RESPONSE, 3);
    destroy(&sides.client, client).unwrap();
    destroy(&sides.server, child).unwrap();
    // The port is free again, and the identifier may be bound again.
    sides.server.unbind(listener).unwrap();
    assert_eq!(sides.server.unbind(listener), Err(Errno::INVAL));
    assert_eq!(addresses(&sides.server, listener).src_size, 0);
    let other = create(&sides.client, 5, PortSpace::TCP);
    bind(&sides.client, other, sides.address(1, port)).unwrap();
    sides.client.unbind(other).unwrap();
    bind(&sides.server, listener, sides.address(1, port)).unwrap();
    execute::<Listen>(&sides.server, ListenReq { id: listener, backlog: 0 }).unwrap();
    sides.asking(6, PortSpace::TCP, port, b"");
    expect(&sides.server, EventType::CONNECT_REQUEST, 100);
    assert_eq!(sides.server.unbind(1), Err(Errno::NOENT));
    assert_eq!(sides.server.unlisten(1), Err(Errno::NOENT));
}
