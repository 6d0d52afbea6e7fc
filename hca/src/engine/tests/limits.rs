//! Checks of P_Keys, Q_Keys, access rights and negotiated limits.

use super::qp_pair::{DATA, Pair, data, remote};
use crate::engine::packet::{
    Datagram, Flush, Global, Headers, Network, Operation, Packet, Remote, Route, Transport,
};
use crate::engine::wqe::opcode;
use crate::engine::{EventKind, QpAttributes, Service, State};

const FROM: u64 = DATA + 0x100;
const TO: u64 = DATA + 0x4_0000;

/// The requester's syndromes for one WQE between QPs with these attributes.
fn syndromes(tune: impl Fn(&mut QpAttributes), opcode: u8) -> Vec<u8> {
    let mut pair = Pair::new(Transport::Rc);
    pair.connect(|attributes| {
        attributes.retry_count = 1;
        tune(attributes);
    });
    let key = pair.key;
    let mut body = remote(key, TO);
    if opcode == opcode::FETCH_ADD {
        body.extend_from_slice(&[0; 16]);
    }
    body.extend(data(key, FROM, 8));
    pair.post(0, opcode, 0, &body);
    pair.settle(|packets| packets);
    let qp = pair.qps[0];
    pair.poll().iter().filter(|cqe| cqe.qp == qp).map(|cqe| cqe.syndrome).collect()
}

#[test]
fn remote_access_follows_responder_qp_flags() {
    const INVALID_REQUEST: u8 = 0x12;
    type Tune = fn(&mut QpAttributes);
    let cases: [(u8, Tune); 3] = [
        (opcode::WRITE, |attributes| attributes.remote_write = false),
        (opcode::READ, |attributes| attributes.remote_read = false),
        (opcode::FETCH_ADD, |attributes| attributes.remote_atomic = false),
    ];
    for (opcode, tune) in cases {
        assert_eq!(syndromes(|_| {}, opcode), [0]);
        assert_eq!(syndromes(tune, opcode), [INVALID_REQUEST], "{opcode:#x}");
    }
}

#[test]
fn pkeys_require_match_and_full_member() {
    const RETRIES: u8 = 0x15;
    // `connect` visits the sender first and the receiver second.
    let with = |sender: u16, receiver: u16| {
        let first = std::cell::Cell::new(true);
        syndromes(
            move |attributes| attributes.pkey = if first.replace(false) { sender } else { receiver },
            opcode::WRITE,
        )
    };
    assert_eq!(with(0x8001, 0x8001), [0]);
    assert_eq!(with(0x8001, 0x0001), [0], "a limited member and a full one");
    assert_eq!(with(0x0001, 0x0001), [RETRIES], "two limited members");
    assert_eq!(with(0x8001, 0x8002), [RETRIES]);
}

#[test]
fn requester_honours_max_rd_atomic() {
    for agreed in [1, 2, 4] {
        let mut pair = Pair::new(Transport::Rc);
        pair.connect(|attributes| attributes.max_rd_atomic = agreed);
        let key = pair.key;
        for _ in 0..6 {
            pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 8)].concat());
        }
        pair.engine.run(pair.now);
        let (mut packets, mut frames) = (Vec::new(), Vec::new());
        pair.engine.take_outgoing(&mut packets, &mut frames);
        assert_eq!(packets.len(), usize::from(agreed));
        for packet in packets {
            pair.engine.receive(packet);
        }
        pair.settle(|packets| packets);
        assert_eq!(pair.poll().iter().filter(|cqe| cqe.syndrome == 0).count(), 6);
    }
}

#[test]
fn responder_rejects_reads_above_max_dest_rd_atomic() {
    let mut pair = Pair::new(Transport::Rc);
    pair.connect(|attributes| (attributes.max_rd_atomic, attributes.max_dest_rd_atomic) = (4, 1));
    let key = pair.key;
    for _ in 0..4 {
        // The READ is long enough that the second one arrives during its response.
        pair.post(0, opcode::READ, 0, &[remote(key, TO), data(key, FROM, 100_000)].concat());
    }
    pair.settle(|packets| packets);
    assert_eq!(pair.engine.qp_attributes(pair.qps[1]).unwrap().0, State::Error);
    assert!(pair.events().contains(&(EventKind::InvalidRequest as u8)));
}

#[test]
fn responder_rejects_flush_and_atomic_write() {
    for operation in [Operation::Flush, Operation::AtomicWrite] {
        let mut pair = Pair::new(Transport::Rc);
        let address = TO.next_multiple_of(8);
        let remote = Remote { address, key: pair.key, length: 8 };
        let flush = (operation == Operation::Flush).then(Flush::default);
        pair.engine.receive(Packet {
            route: Route { source_lid: 1, destination_lid: 1, ..Route::default() },
            transport: Transport::Rc,
            operation,
            solicited: false,
            migrated: true,
            ack_request: true,
            pkey: 0xffff,
            destination: pair.qps[1],
            psn: 0xff_fff0,
            headers: Headers { flush, remote: Some(remote), ..Headers::default() },
            payload: if flush.is_some() { Vec::new() } else { vec![1; 8] },
            zero_copy: None,
        });
        pair.settle(|packets| packets);
        assert_eq!(pair.engine.qp_attributes(pair.qps[1]).unwrap().0, State::Error, "{operation:?}");
        assert!(pair.events().contains(&(EventKind::InvalidRequest as u8)));
        assert_eq!(pair.read(address, 8), [0; 8]);
    }
}

/// Sends a datagram with this Q_Key to a QP in this state.
fn datagram(qkey: u32, state: State, length: u32) -> (Vec<u8>, u16) {
    datagram_to(Service::Datagram(None), qkey, state, length)
}

fn datagram_to(service: Service, qkey: u32, state: State, length: u32) -> (Vec<u8>, u16) {
    let mut pair = Pair::with(Transport::Ud, |_| {}, |setup| setup.service = service);
    let receiver = pair.qps[1];
    let attributes = pair.engine.qp_attributes(receiver).unwrap().1.clone();
    pair.engine.modify_qp(receiver, state, attributes).unwrap();
    pair.post_receive(1, TO, length);
    let headers = Headers { datagram: Some(Datagram { qkey, source_qp: 5 }), ..Headers::default() };
    pair.engine.receive(Packet {
        route: Route { source_lid: 1, destination_lid: 1, ..Route::default() },
        transport: Transport::Ud,
        operation: Operation::SendOnly,
        solicited: false,
        migrated: true,
        ack_request: false,
        pkey: 0xffff,
        destination: receiver,
        psn: 77,
        headers,
        payload: vec![1; 8],
        zero_copy: None,
    });
    pair.settle(|packets| packets);
    (pair.poll().iter().map(|cqe| cqe.syndrome).collect(), pair.engine.port().qkey_violations)
}

#[test]
fn datagrams_require_qkey_and_rtr() {
    const QKEY: u32 = 0x1111;
    assert_eq!(datagram(QKEY, State::ReadyToSend, 64), (vec![0], 0));
    assert_eq!(datagram(QKEY, State::ReadyToReceive, 64), (vec![0], 0));
    assert_eq!(datagram(QKEY + 1, State::ReadyToSend, 64), (vec![], 1), "counted, not told");
    assert_eq!(datagram(QKEY, State::Init, 64), (vec![], 0));
    assert_eq!(datagram(QKEY, State::ReadyToSend, 47), (vec![0x01], 0), "no room for the header");
    let sq = Service::Ipoib { underlay_qp: 9 };
    for qkey in [QKEY, QKEY + 1] {
        assert_eq!(datagram_to(sq, qkey, State::ReadyToSend, 64), (vec![], 0), "an SQ receives nothing");
    }
}

/// The completions at two members of a group, of which the first is the sender.
fn own_multicast(blocks: bool) -> usize {
    const QKEY: u32 = 0x1111;
    const GROUP: [u8; 16] = [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
    let mut pair = Pair::with(
        Transport::Ud,
        |_| {},
        |setup| {
            setup.service = Service::Datagram(None);
            setup.blocks_own_multicast = blocks;
        },
    );
    pair.connect(|attributes| attributes.qkey = QKEY);
    let sender = pair.qps[0];
    for side in 0..2 {
        pair.engine.attach(GROUP, pair.qps[side]).unwrap();
        pair.post_receive(side, TO, 64);
    }
    let port = pair.engine.port();
    let global = Global {
        source: port.own_gid(),
        destination: GROUP,
        flow_label: 0,
        traffic_class: 0,
        hop_limit: 1,
        network: Network::Grh,
    };
    let route =
        Route { source_lid: port.lid, destination_lid: 0xc005, global: Some(global), ..Route::default() };
    let headers =
        Headers { datagram: Some(Datagram { qkey: QKEY, source_qp: sender }), ..Headers::default() };
    pair.engine.receive(Packet {
        route,
        transport: Transport::Ud,
        operation: Operation::SendOnly,
        solicited: false,
        migrated: true,
        ack_request: false,
        pkey: 0xffff,
        destination: 0xff_ffff,
        psn: 77,
        headers,
        payload: vec![1; 8],
        zero_copy: None,
    });
    pair.settle(|packets| packets);
    pair.poll().len()
}

#[test]
fn sender_receives_its_own_multicast_unless_blocked() {
    assert_eq!(own_multicast(false), 2);
    assert_eq!(own_multicast(true), 1);
}
