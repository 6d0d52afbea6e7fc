//! Requests of a peer that sends any packets.

use bareverbs_transport::packet::{self, Headers, Operation as Op, Packet, Transport};

use super::*;

/// The packets that a device sends in response to a packet.
fn responses(peer: &Peer, packet: &Packet) -> Vec<Packet> {
    peer.with(|engine| {
        engine.receive(packet);
        while engine.run(0, false) {}
        engine.take_packets(Vec::new())
    })
}

/// A READ of the range `at..at + length` of the responder's memory.
fn read(pair: &Pair, psn: u32, key: u32, at: usize, length: u32) -> Packet {
    let attributes = pair.a.attributes((3, pair.qb.qpn));
    let address = pair.b.start() + at as u64;
    Packet {
        route: attributes.route,
        transport: Transport::Rc,
        operation: Op::ReadRequest,
        solicited: false,
        migrated: true,
        ack_request: false,
        pkey: attributes.pkey,
        destination: pair.qb.qpn,
        psn: psn & 0xff_ffff,
        headers: Headers { remote: Some(packet::Remote { address, key, length }), ..Headers::default() },
        payload: Vec::new(),
        zero_copy: None,
    }
}

#[test]
fn repeated_read_is_answered_within_the_range_of_the_first() {
    const PSN: u32 = 0xff_fff8;
    let pair = Pair::rc();
    let key = pair.b.mr.rkey;
    let (start, access) = (pair.b.start(), all_rights());
    let attr = MrAttr { pd: PD, start, length: MEMORY as u64, iova: start, access };
    let other_key = pair.b.with(|engine| engine.register(attr.prepare()?)).unwrap().rkey;
    let answers = |psn: u32, key, at, length| responses(&pair.b, &read(&pair, psn, key, at, length)).len();
    // Three packets, whose PSNs are repeated whole or in part.
    assert_eq!(answers(PSN, key, 4096, 3000), 3);
    assert_eq!(answers(PSN, key, 4096, 3000), 3);
    assert_eq!(answers(PSN + 1, key, 4096 + 1024, 3000 - 1024), 2);
    for (psn, key, at, length) in [
        (PSN, key, 4095, 3000),
        (PSN, key, 4096, 3001),
        (PSN + 1, key, 4096 + 1024, 3000),
        (PSN, key, 0, 100),
        (PSN, other_key, 4096, 3000),
        (PSN - 1, key, 4096, 3000),
    ] {
        assert_eq!(answers(psn, key, at, length), 0, "{psn:#x} {at} {length}");
    }
    // Only the last four are repeated.
    for number in 0..4 {
        assert_eq!(answers(PSN + 3 + number, key, 0, 8), 1);
    }
    assert_eq!([answers(PSN, key, 4096, 3000), answers(PSN + 3, key, 0, 8)], [0, 1]);
    assert_eq!(pair.b.state(&pair.qb), State::ReadyToSend);
}

#[test]
fn ack_never_has_the_psn_of_a_read() {
    const PSN: u32 = 0xff_fff8;
    let pair = Pair::rc();
    let request = |psn| Packet { ack_request: true, ..read(&pair, psn, pair.b.mr.rkey, 0, 8) };
    let write = |psn| Packet { operation: Op::WriteOnly, payload: vec![1; 8], ..request(psn) };
    let sent = |packet: &Packet| -> Vec<_> {
        responses(&pair.b, packet).iter().map(|packet| (packet.operation, packet.psn)).collect()
    };
    assert_eq!(sent(&write(PSN)), [(Op::Acknowledge, PSN)]);
    assert_eq!(sent(&request(PSN + 1)), [(Op::ReadResponseOnly, PSN + 1)]);
    // The response may be lost: a repeated WRITE does not acknowledge the READ.
    assert_eq!(sent(&write(PSN)), [(Op::Acknowledge, PSN)]);
    assert_eq!(sent(&write(PSN + 2)), [(Op::Acknowledge, PSN + 2)]);
}

#[test]
fn response_has_the_hop_limit_of_its_own_path() {
    let pair = Pair::rc();
    let mut packet = read(&pair, 0xff_fff8, pair.b.mr.rkey, 0, 8);
    let global = packet.route.global.as_mut().unwrap();
    (global.hop_limit, global.traffic_class) = (1, 0x1c);
    let response = &responses(&pair.b, &packet)[0];
    let global = response.route.global.unwrap();
    assert_eq!((global.hop_limit, global.traffic_class), (64, 0));
}
