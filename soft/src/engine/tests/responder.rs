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
fn results_of_the_last_atomics_are_repeated() {
    const PSN: u32 = 0xff_fff8;
    let pair = Pair::rc();
    let results = |number: u32| -> Vec<_> {
        let (key, address) = (pair.b.mr.rkey, pair.b.start());
        let atomic = packet::Atomic { address, key, swap_or_add: 1, compare: 0, masks: None };
        let headers = Headers { atomic: Some(atomic), ..Headers::default() };
        let request = Packet { operation: Op::FetchAdd, headers, ..read(&pair, PSN + number, key, 0, 8) };
        responses(&pair.b, &request).iter().map(|response| response.headers.original).collect()
    };
    for number in 0..5 {
        assert_eq!(results(number), [Some(number.into())]);
    }
    // The responder keeps `max_dest_rd_atomic` results.
    assert_eq!(results(0), []);
    for number in 1..5 {
        assert_eq!(results(number), [Some(number.into())]);
    }
    assert_eq!(pair.b.bytes(0, 8), 5_u64.to_le_bytes());
}

#[test]
fn requests_behind_a_refused_one_are_dropped_before_its_nak() {
    const PSN: u32 = 0xff_fff8;
    let pair = Pair::rc();
    let key = pair.b.mr.rkey;
    let write = |psn, key| {
        let payload = vec![1; 8];
        Packet { operation: Op::WriteOnly, payload, ..read(&pair, psn, key, 0, 8) }
    };
    // The NAK is sent after the responses to the READ, and the other requests arrive before that.
    let requests =
        [read(&pair, PSN, key, 4096, 2000), write(PSN + 2, !key), write(PSN + 2, key), write(PSN + 3, key)];
    let sent = pair.b.with(|engine| {
        requests.iter().for_each(|request| engine.receive(request));
        while engine.run(0, false) {}
        engine.take_packets(Vec::new())
    });
    let sent: Vec<_> = sent.iter().map(|packet| (packet.operation, packet.psn & 0xf)).collect();
    assert_eq!(sent, [(Op::ReadResponseFirst, 8), (Op::ReadResponseLast, 9), (Op::Acknowledge, 10)]);
    assert_eq!((pair.b.state(&pair.qb), pair.b.bytes(0, 8)), (State::Error, vec![0; 8]));
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
