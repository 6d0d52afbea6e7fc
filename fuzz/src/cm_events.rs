//! Events and addresses of the RDMA connection manager, as typed values.
//!
//! Any event is decoded by its type and the QP type. Private data is within the event, with the
//! length that the event states. An address that is decoded, encoded and decoded again is the same.

use bareverbs::qp::QpType;
use bareverbs_rdmacm::event::{EstablishedParam, EventKind, RequestParam, Unreachable};
use bareverbs_rdmacm::parsers::{encode_addr, parse_addr, parse_event, parse_request};
use bareverbs_uapi::rdma_cm::EventType;
use bareverbs_uapi::rdma_cm::address::SocketAddressStorage;
use bareverbs_uapi::rdma_cm::structs::EventResp;
use zerocopy::FromBytes;

use crate::input::Input;

fn check_event(resp: &EventResp, qp_type: QpType) {
    let conn = resp.conn();
    let of_conn = &conn.private_data[..conn.private_data_len.into()];
    let of_ud = &resp.ud.private_data[..resp.ud.private_data_len.into()];
    match parse_event(resp, qp_type) {
        EventKind::ConnectResponse(peer)
        | EventKind::Established(EstablishedParam::Connection(peer)) => assert_eq!(&*peer.private_data, of_conn),
        EventKind::Rejected(rejected) => {
            assert_eq!((&*rejected.private_data, rejected.reason.code()), (of_conn, resp.status));
        }
        EventKind::Established(EstablishedParam::Datagram(peer)) | EventKind::MulticastJoin(peer) => {
            assert_eq!((&*peer.private_data, peer.qp_num), (of_ud, resp.ud.qp_num));
        }
        EventKind::Unreachable(Unreachable::Sidr(_, data)) => assert_eq!(&*data, of_ud),
        EventKind::Unknown { event, .. } => {
            assert!(event == EventType::CONNECT_REQUEST.0 || event > EventType::INTERNAL.0);
        }
        kind => assert!(!format!("{kind:?}").is_empty()),
    }
    let request = EventResp { event: EventType::CONNECT_REQUEST, ..*resp };
    let parsed = parse_request(&request, qp_type);
    assert_eq!(&**parsed.private_data(), if qp_type == QpType::UD { of_ud } else { of_conn });
    assert_eq!(matches!(parsed, RequestParam::Datagram(_)), qp_type == QpType::UD);
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let qp_type = QpType(input.byte().into());
    let event = input.byte();
    let mut bytes = input.bytes(size_of::<EventResp>());
    bytes.resize(size_of::<EventResp>(), 0);
    let mut resp = EventResp::read_from_bytes(&bytes).expect("as many bytes");
    if event % 4 != 0 {
        resp.event = EventType((event / 4 % 24).into());
    }
    for qp_type in [qp_type, QpType::RC, QpType::UD] {
        check_event(&resp, qp_type);
    }

    let mut storage = SocketAddressStorage::read_from_bytes(&bytes[..128]).expect("as many bytes");
    for family in [storage.family.0, 2, 10, 27] {
        storage.family.0 = family;
        if let Some(addr) = parse_addr(&storage) {
            let (again, length) = encode_addr(addr);
            assert!(usize::from(length) <= size_of::<SocketAddressStorage>());
            assert_eq!(parse_addr(&again), Some(addr));
        }
    }
}
