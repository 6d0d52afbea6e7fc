//! The connection manager's commands: encoding, and formatting as text.

use bareverbs_uapi::abi::{Be16, Since};
use bareverbs_uapi::rdma_cm::address::{AddressFamily, SocketAddressIn, SocketAddressStorage};
use bareverbs_uapi::rdma_cm::path::PathRecData;
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::*;
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
    fn event_arguments_round_trip(arg: u64) {
        let mut written = WriteCmEventReq::zeroed();
        written.set_arg(arg);
        prop_assert_eq!(&written.as_bytes()[16..24], arg.to_ne_bytes());
        let event = EventResp { ud: written.ud, ..EventResp::zeroed() };
        prop_assert_eq!(event.arg(), arg);
    }
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
