//! Malicious drivers and peers.

use proptest::prelude::*;

use super::qp_pair::Pair;
use crate::engine::packet::{
    Acknowledge, Atomic, Flush, Headers, Operation, Packet, Remote, Route, Transport,
};

fn wqe() -> impl Strategy<Value = Vec<u8>> {
    let opcodes = prop_oneof![
        Just(0x00u8),
        Just(0x01),
        Just(0x08),
        Just(0x09),
        Just(0x0a),
        Just(0x0b),
        Just(0x10),
        Just(0x11),
        Just(0x12),
        Just(0x14),
        Just(0x15),
        Just(0x25),
        any::<u8>()
    ];
    (opcodes, any::<u8>(), proptest::collection::vec(any::<u8>(), 64..=256)).prop_map(
        |(opcode, units, mut bytes)| {
            bytes[3] = opcode;
            bytes[7] = units;
            bytes
        },
    )
}

fn packet() -> impl Strategy<Value = (bool, u8, u32, u64, u32, u32, Vec<u8>)> {
    (
        any::<bool>(),
        any::<u8>(),
        0xff_ffe0u32..0x100_0020,
        any::<u64>(),
        any::<u32>(),
        0u32..8192,
        proptest::collection::vec(any::<u8>(), 0..2000),
    )
}

proptest! {
    #[test]
    fn arbitrary_wqes_complete(wqes in proptest::collection::vec(wqe(), 1..6)) {
        let mut pair = Pair::new(Transport::Rc);
        pair.connect(|attributes| attributes.rnr_retry = 1);
        for (index, mut wqe) in wqes.into_iter().enumerate() {
            // Every second WQE passes the checks of the control segment.
            if index % 2 == 0 {
                let sound = pair.wqe(0, wqe[3], 0, &[]);
                wqe[..7].copy_from_slice(&sound[..7]);
                (wqe[7], wqe[11]) = (wqe[7] & 0x3f, 0x08);
            }
            pair.post_raw(0, &wqe);
        }
        pair.settle(|packets| packets);
        pair.poll();
    }

    #[test]
    fn arbitrary_packets_do_not_panic(packets in proptest::collection::vec(packet(), 1..20)) {
        let mut pair = Pair::new(Transport::Rc);
        let key = pair.key;
        pair.post_receive(1, super::qp_pair::DATA, 64);
        for (which, bits, psn, address, other, length, payload) in packets {
            let Some(operation) = Operation::from_bits(bits) else { continue };
            let key = if which { key } else { other };
            pair.engine.receive(Packet {
                route: Route { source_lid: 1, destination_lid: 1, service_level: 0, source_mac: [0; 6],
                    destination_mac: [0; 6], udp_source: 0, global: None },
                transport: Transport::Rc,
                operation,
                solicited: false,
                migrated: true,
                ack_request: true,
                pkey: 0xffff,
                destination: pair.qps[1],
                psn: psn & 0xff_ffff,
                headers: Headers {
                    srq: None,
                    datagram: None,
                    flush: Some(Flush { placement: bits & 0xf, whole_key: which }),
                    remote: Some(Remote { address, key, length }),
                    atomic: Some(Atomic { address, key, ..Atomic::default() }),
                    acknowledge: Some(Acknowledge { syndrome: bits, messages: 0 }),
                    original: Some(address),
                    immediate: Some(other),
                },
                payload,
                zero_copy: None,
            });
        }
        pair.settle(|packets| packets);
    }

    #[test]
    fn unmapped_memory_fails_requests_without_panic(turns in 0usize..8) {
        let mut pair = Pair::new(Transport::Rc);
        let key = pair.key;
        for _ in 0..3 {
            let body = [super::qp_pair::remote(key, super::qp_pair::DATA), super::qp_pair::data(key, super::qp_pair::DATA, 4000)];
            pair.post(0, 0x08, 0, &body.concat());
        }
        let (mut packets, mut frames) = (Vec::new(), Vec::new());
        for _ in 0..turns {
            pair.engine.run(pair.now);
            pair.engine.take_outgoing(&mut packets, &mut frames);
            for packet in packets.drain(..) {
                pair.engine.receive(packet);
            }
        }
        pair.engine.memory().clear();
        pair.settle(|packets| packets);
    }
}
