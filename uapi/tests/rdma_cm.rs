//! The connection manager's commands: encoding, and formatting as text.

use bareverbs_uapi::abi::{Be16, Since};
use bareverbs_uapi::rdma_cm::address::{AddressFamily, SocketAddressIn, SocketAddressStorage};
use bareverbs_uapi::rdma_cm::path::{PathFlags, PathRecData, PathRecord};
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
use bareverbs_uapi::uverbs::types::QpType;
use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

#[test]
fn numbers_0_to_24_are_commands_but_for_one_hole() {
    let numbers: Vec<_> = COMMANDS.iter().map(|command| command.number).collect();
    let expected: Vec<_> = (0..25).filter(|&number| number != GET_OPTION).collect();
    assert_eq!(numbers, expected);
    assert_eq!(GET_OPTION, 13);
}

#[test]
fn two_commands_came_after_6_12() {
    let usable = |series| COMMANDS.iter().filter(|command| command.since <= series).count();
    assert_eq!((usable(Since::V6_1), usable(Since::V6_12), usable(Since::V7_2)), (22, 22, 24));
    let events = |series| EventType::INFO.values.iter().filter(|event| event.since <= series).count();
    assert_eq!((events(Since::V6_1), events(Since::V6_12), events(Since::V7_2)), (16, 16, 20));
}

/// Asserts that a call is the header and the request with its `response` address, and no further
/// bytes.
fn check_call<C: Command>(bytes: &[u8], room: usize)
where
    C::Request: FromBytes + PartialEq + std::fmt::Debug,
{
    let mut request = C::Request::new_zeroed();
    let used = bytes.len().min(size_of::<C::Request>());
    request.as_mut_bytes()[..used].copy_from_slice(&bytes[..used]);

    let mut response = vec![0; room];
    let address = response.as_ptr().expose_provenance() as u64;
    let mut expected = C::Request::read_from_bytes(request.as_bytes()).unwrap();
    C::set_response(&mut expected, address);
    let call = Call::<C>::with_room(request, &mut response);

    let (header, rest) = Header::read_from_prefix(call.as_bytes()).unwrap();
    assert_eq!(header.command, C::INFO.number);
    assert_eq!(usize::from(header.input), rest.len());
    assert_eq!(usize::from(header.output), room.min(65535));
    assert_eq!(rest, expected.as_bytes());

    let told = decode(call.as_bytes()).to_string();
    assert!(told.starts_with(&format!("{}: {} {{", C::INFO.rust, C::INFO.request.rust)), "{told}");
    let _ = decode(call.as_bytes()).response(bytes).to_string();
}

proptest! {
    #[test]
    fn every_rdma_cm_command_is_header_and_request(bytes in vec(any::<u8>(), 0..400), room in 0_usize..70_000) {
        macro_rules! check {
            ($($command:ident)*) => {{
                const CHECKED: &[u32] = &[$($command::INFO.number),*];
                prop_assert_eq!(CHECKED.len(), COMMANDS.len());
                $(check_call::<$command>(&bytes, room);)*
            }};
        }
        check!(
            CreateId DestroyId BindIp ResolveIp ResolveRoute QueryRoute Connect Listen Accept Reject Disconnect
            InitQpAttr GetEvent SetOption Notify JoinIpMcast LeaveMcast MigrateId Query Bind ResolveAddr JoinMcast
            ResolveIbService WriteCmEvent
        );
    }

    #[test]
    fn any_bytes_can_be_printed(command in 0_u32..30, input: u16, bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes).to_string();
        let mut message = Header { command, input, output: 0 }.as_bytes().to_vec();
        message.extend(&bytes);
        let _ = decode(&message).to_string();
        let _ = decode(&message).response(&bytes).to_string();
    }

    #[test]
    fn any_option_value_can_be_printed(level in 0_u32..3, option in 0_u32..6, bytes in vec(any::<u8>(), 0..200)) {
        let level = OptionLevel(level);
        let told = DecodedOption { level, option, bytes: &bytes }.to_string();
        prop_assert!(told.len() <= 64 + 16 * bytes.len(), "{told}");
        let request = SetOptionReq { level, optname: option, ..SetOptionReq::zeroed() };
        let call = Call::<SetOption>::new(request, &mut ()).as_bytes().to_vec();
        prop_assert_eq!(decode(&call).option(&bytes).unwrap().to_string(), told);
        prop_assert!(decode(&call[..20]).option(&bytes).is_none());
    }

    #[test]
    fn parameters_of_an_event_are_those_of_its_qp_type(bytes: [[u8; 56]; 6], event in 0_u32..21, ud: bool) {
        let mut resp = EventResp::read_from_bytes(bytes.as_flattened()).unwrap();
        resp.event = EventType(event);
        let qp_type = if ud { QpType::UD } else { QpType::RC };
        // Compared as bytes: the members overlap.
        let start = resp.ud.as_bytes();
        match resp.param(qp_type) {
            EventParam::None => prop_assert_eq!(ParamKind::of(resp.event, qp_type), ParamKind::None),
            EventParam::Conn(conn) => prop_assert_eq!(conn.as_bytes(), &start[..size_of::<ConnParam>()]),
            EventParam::Ud(ud) => prop_assert_eq!(ud.as_bytes(), start),
            EventParam::Arg(arg) => prop_assert_eq!(&arg.to_ne_bytes()[..], &start[..8]),
            other => prop_assert!(false, "{other:?}"),
        }
        let told = decode(&get_event()).response(resp.as_bytes()).with_qp_type(qp_type).to_string();
        let kind = ParamKind::of(resp.event, qp_type);
        prop_assert_eq!(told.contains(" conn: ConnParam {"), kind == ParamKind::Conn, "{}", told);
        prop_assert_eq!(told.contains(" ud: UdParam {"), kind == ParamKind::Ud, "{}", told);
        prop_assert_eq!(told.contains(" arg: "), kind == ParamKind::Arg, "{}", told);
    }

    #[test]
    fn path_records_round_trip(bytes: [u8; 32], more: [u8; 26]) {
        let mut wire = [0; PathRecord::LEN];
        wire[..32].copy_from_slice(&bytes);
        wire[32..58].copy_from_slice(&more);
        // The reserved bits beside the flow label.
        wire[44] &= 0x8f;
        let record = PathRecord::from_bytes(&wire);
        prop_assert_eq!(record.to_bytes(), wire);
        let data = PathRecData::new(PathFlags::GMP, &record);
        prop_assert_eq!(&data.as_bytes()[8..], &wire[..]);
        prop_assert_eq!(data.record(), record);
    }

    #[test]
    fn event_arguments_round_trip(arg: u64) {
        let mut written = WriteCmEventReq::zeroed();
        written.set_arg(arg);
        prop_assert_eq!(&written.as_bytes()[16..24], arg.to_ne_bytes());
        let event = EventResp { ud: written.ud, ..EventResp::zeroed() };
        prop_assert_eq!(event.arg(), arg);
    }
}

/// The command that reads an event.
fn get_event() -> Vec<u8> {
    Call::<GetEvent>::new(GetEventReq::zeroed(), &mut EventResp::zeroed()).as_bytes().to_vec()
}

#[test]
fn path_record_fields_have_their_places() {
    let record = PathRecord {
        dlid: 0x1234,
        flow_label: 0xa_bcde,
        hop_limit: 0x40,
        reversible: true,
        numb_path: 1,
        pkey: 0xffff,
        sl: 3,
        mtu_selector: 2,
        mtu: 5,
        packet_life_time: 16,
        ..PathRecord::default()
    };
    let wire = record.to_bytes();
    assert_eq!(wire[40..42], [0x12, 0x34]);
    assert_eq!(wire[44..58], [0x0a, 0xbc, 0xde, 0x40, 0, 0x81, 0xff, 0xff, 0, 3, 0x85, 0, 16, 0]);
}

#[test]
fn events_print_the_parameters_of_their_type() {
    let event = EventResp { uid: 7, event: EventType::USER, ..EventResp::zeroed() };
    let told = |event: &EventResp| decode(&get_event()).response(event.as_bytes()).to_string();
    assert_eq!(
        told(&event),
        "EventResp { uid: 7, id: 0, event: USER, status: 0, arg: 0, ece: Ece { vendor_id: 0, attr_mod: 0 } }"
    );
    let resolved = EventResp { event: EventType::ADDR_RESOLVED, ..event };
    assert!(told(&resolved).contains("event: ADDR_RESOLVED, status: 0, ece: "), "{}", told(&resolved));
    // The QPN of a request tells connected QPs from datagram QPs.
    let request = EventResp { event: EventType::CONNECT_REQUEST, ..event };
    assert_eq!(request.likely_qp_type(), QpType::UD);
    assert!(told(&request).contains("ud: UdParam { qp_num: 0,"), "{}", told(&request));
    let mut request = request;
    request.ud.qp_num = 17;
    assert!(told(&request).contains("conn: ConnParam { qp_num: 17,"), "{}", told(&request));
    // An established datagram id has the QPN of the peer.
    request.event = EventType::ESTABLISHED;
    assert_eq!(request.likely_qp_type(), QpType::UD);
    request.ud.qp_num = 0;
    assert_eq!(request.likely_qp_type(), QpType::RC);
    // A truncated event is printed up to its end.
    let told = decode(&get_event()).response(&request.as_bytes()[..18]).to_string();
    assert_eq!(told, "EventResp { uid: 7, id: 0, event: ESTABLISHED, status: <2 of 4 bytes: 0x0000> }");
}

#[test]
fn option_values_print_as_their_type() {
    let told = |level, option, bytes: &[u8]| DecodedOption { level, option, bytes }.to_string();
    let (id, ib) = (OptionLevel::ID, OptionLevel::IB);
    assert_eq!(told(id, IdOption::TOS.0, &[32]), "TOS = 32");
    assert_eq!(told(id, IdOption::REUSE_ADDR.0, &1_i32.to_ne_bytes()), "REUSE_ADDR = 1");
    assert_eq!(told(id, IdOption::AF_ONLY.0, &[1]), "AF_ONLY = 0x01");
    assert_eq!(told(id, IdOption::ACK_TIMEOUT.0, &[14]), "ACK_TIMEOUT = 14");
    assert_eq!(told(id, 9, &[1, 2]), "option 9 of level 0 = 0x0102");
    let path = PathRecData::new(PathFlags::BIDIRECTIONAL, &PathRecord::default());
    let told_path = told(ib, IbOption::PATH.0, path.as_bytes());
    assert!(told_path.starts_with("PATH = [PathRecData { flags: BIDIRECTIONAL,"), "{told_path}");
    assert_eq!(told(ib, IbOption::PATH.0, &[0, 1]), "PATH = 0x0001");
    assert_eq!(option_name(OptionLevel(7), 0), None);

    let request = SetOptionReq { id: 3, level: ib, optname: IbOption::PATH.0, ..SetOptionReq::zeroed() };
    let call = Call::<SetOption>::new(request, &mut ()).as_bytes().to_vec();
    assert!(decode(&call).to_string().ends_with("optname: 1, optlen: 0 } (PATH)"), "{}", decode(&call));
    assert!(decode(&get_event()).option(&[]).is_none());
}

#[test]
fn rdma_cm_commands_print_names_and_values() {
    let mut response = CreateIdResp::zeroed();
    let request = CreateIdReq { uid: 5, ps: PortSpace::TCP, qp_type: 2, ..CreateIdReq::zeroed() };
    let mut call = Call::<CreateId>::new(request, &mut response).as_bytes().to_vec();
    call[16..24].fill(0);
    assert_eq!(
        decode(&call).to_string(),
        "CreateId: CreateIdReq { uid: 5, response: 0, ps: TCP, qp_type: RC } room 4"
    );
    assert_eq!(decode(&call).response(&[9, 0, 0, 0]).to_string(), "CreateIdResp { id: 9 }");
    assert_eq!(
        decode(&call[..20]).to_string(),
        "CreateId: CreateIdReq { uid: 5, response: <4 of 8 bytes: 0x00000000> } <malformed: 12 of 24 bytes> room 4"
    );
    assert_eq!(decode(&call[..7]).to_string(), "<malformed: 7 bytes where the head has 8>");
}

#[test]
fn path_records_are_printed_individually() {
    let mut room = [0; 8 + 2 * size_of::<PathRecData>()];
    let request = QueryReq { id: 1, option: QueryOption::PATH, ..QueryReq::zeroed() };
    let call = Call::<Query>::with_room(request, &mut room).as_bytes().to_vec();
    let mut answer = 1_u32.to_ne_bytes().to_vec();
    answer.extend([0; 4]);
    answer.extend(PathRecData { flags: path::PathFlags::BIDIRECTIONAL, ..PathRecData::zeroed() }.as_bytes());
    let told = decode(&call).response(&answer).to_string();
    let start =
        "QueryPathResp { num_paths: 1, path_data: [PathRecData { flags: BIDIRECTIONAL, path_rec: [0, 0,";
    assert!(told.starts_with(start), "{told}");
}

#[test]
fn cm_event_has_336_bytes_and_conn_or_ud_parameters() {
    assert_eq!(size_of::<EventResp>(), 336);
    let mut event = EventResp::zeroed();
    let conn = ConnParam { qp_num: 17, private_data_len: 3, retry_count: 7, ..ConnParam::zeroed() };
    event.ud.as_mut_bytes()[..size_of::<ConnParam>()].copy_from_slice(conn.as_bytes());
    assert_eq!(event.conn(), conn);
    assert_eq!(event.ud.qp_num, 17);
}

#[test]
fn any_address_fits_the_storage() {
    let address = SocketAddressIn {
        family: AddressFamily::INET,
        port: Be16::new(4791),
        address: [10, 1, 0, 1],
        reserved: [0; 8],
    };
    let storage = SocketAddressStorage::from(address);
    assert_eq!(storage.family, AddressFamily::INET);
    assert_eq!(storage.as_bytes()[..8], [2, 0, 0x12, 0xb7, 10, 1, 0, 1]);
}
