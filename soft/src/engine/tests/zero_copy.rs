//! Payloads that the receiver copies from the memory of the sender, and those that are copied before
//! because a packet is kept.

use bareverbs_provider::work::{Imm, MwBind};
use bareverbs_transport::Fault;
use bareverbs_transport::packet::{Operation as Op, Packet, ZeroCopy};
use bareverbs_uapi::verbs_values::MwType;
use proptest::prelude::*;

use super::*;

const OK: WcStatus = WcStatus::SUCCESS;

/// The packets of one turn of a device.
fn turn(peer: &Peer, delivers_at_once: bool) -> Vec<Packet> {
    peer.with(|engine| {
        engine.run(0, delivers_at_once);
        engine.take_packets(Vec::new())
    })
}

fn receive(peer: &Peer, packets: &[Packet]) {
    peer.with(|engine| packets.iter().for_each(|packet| engine.receive(packet)));
}

/// Ends the delivery of the packets of a device.
fn end_delivery(peer: &Peer) {
    peer.with(Engine::post_withheld);
}

/// The number of the packet's PSNs, if its receiver copies the payload.
fn uncopied(packet: &Packet) -> Option<u32> {
    packet.zero_copy.map(|ZeroCopy { packets, .. }| packets)
}

#[test]
fn new_packets_of_a_reliable_message_are_sent_as_one_up_to_each_ack() {
    let pair_of = |qp_type| Pair::on(&Fabric::seeded(1), qp_type, |_| {});
    let mut pair = pair_of(QpType::RC);
    let data = pattern(100_000, 1);
    pair.a.fill(0, &data);
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, data.len())]);
    let sent = turn(&pair.a, true);
    let found: Vec<_> = sent.iter().map(|packet| (packet.operation, uncopied(packet))).collect();
    let expected = [(Op::WriteFirst, 32), (Op::WriteMiddle, 32), (Op::WriteMiddle, 32), (Op::WriteLast, 2)];
    assert_eq!(found, expected.map(|(operation, packets)| (operation, Some(packets))));
    assert!(sent.iter().all(|packet| packet.ack_request && packet.payload.is_empty()));
    receive(&pair.b, &sent);
    end_delivery(&pair.a);
    assert_eq!(pair.b.bytes(0, data.len()), data);
    pair.a.fabric.run_until_idle();
    assert_eq!(pair.a.drain(), [(1, OK)]);

    // Requests that complete before their delivery have a copy, as have those of packets that are kept.
    let mut pair = pair_of(QpType::UC);
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 3000)]);
    let sent = turn(&pair.a, true);
    assert_eq!(sent.iter().map(|packet| packet.payload.len()).collect::<Vec<_>>(), [1024, 1024, 952]);
    let mut pair = pair_of(QpType::RC);
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 3000)]);
    let sent = turn(&pair.a, false);
    assert_eq!(sent.iter().map(|packet| packet.payload.len()).collect::<Vec<_>>(), [1024, 1024, 952]);
}

#[test]
fn packets_that_were_sent_before_are_repeated_one_by_one() {
    let mut pair = Pair::on(&Fabric::seeded(2), QpType::RC, |attributes| attributes.ack_timeout = 8);
    let data = pattern(10_000, 2);
    pair.a.fill(0, &data);
    pair.qb.receive(1, &[pair.b.sge(0, 10_000)]);
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 10_000)]);
    let sent = turn(&pair.a, true);
    receive(&pair.b, &sent);
    // The ACK is lost.
    assert!(turn(&pair.b, true).iter().all(|packet| packet.operation == Op::Acknowledge));
    let later = Duration::from_millis(5).as_nanos() as u64;
    let repeated = pair.a.with(|engine| {
        engine.run(later, true);
        engine.take_packets(Vec::new())
    });
    assert!(!repeated.is_empty() && repeated.iter().all(|packet| uncopied(packet) == Some(1)));
    receive(&pair.b, &repeated);
    end_delivery(&pair.a);
    pair.a.fabric.advance(Duration::from_secs(1));
    assert_eq!((pair.a.drain(), pair.b.drain()), (vec![(1, OK)], vec![(1, OK)]));
    assert_eq!(pair.b.bytes(0, 10_000), data);
}

#[test]
fn message_that_a_link_has_lost_is_repeated() {
    let mut pair = Pair::on(&Fabric::new(), QpType::RC, |attributes| attributes.ack_timeout = 10);
    let data = pattern(200_000, 3);
    pair.a.fill(0, &data);
    pair.b.with(|engine| engine.set_link(false));
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, data.len())]);
    pair.b.with(|engine| engine.set_link(true));
    assert_eq!(pair.a.wait().status, OK);
    assert_eq!(pair.b.bytes(0, data.len()), data);
}

#[test]
fn refused_write_of_several_packets_takes_no_receive() {
    let mut pair = Pair::rc();
    pair.qb.receive(9, &[]);
    let remote = Remote { rkey: pair.b.mr.rkey ^ 1, ..pair.b.remote(0) };
    pair.qa.post(1, Operation::WriteImm(remote, Imm(5)), &[pair.a.sge(0, 3000)]);
    assert_eq!(pair.a.drain(), [(1, WcStatus::REM_ACCESS_ERR)]);
    assert_eq!(pair.b.drain(), [(9, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn peers_with_different_mtus_refuse_long_messages() {
    for (ours, theirs) in [(1024, 4096), (4096, 1024)] {
        let fabric = Fabric::new();
        let mut pair = Pair::rc();
        let (a, b) = (Peer::new(&fabric, 2, 64), Peer::new(&fabric, 3, 64));
        let (qa, qb) = (a.qp(QpType::RC), b.qp(QpType::RC));
        a.connect_with(&qa, &QpAttributes { mtu: ours, ..a.attributes((3, qb.qpn)) });
        b.connect_with(&qb, &QpAttributes { mtu: theirs, ..b.attributes((2, qa.qpn)) });
        (pair.a, pair.b, pair.qa, pair.qb) = (a, b, qa, qb);
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 3000)]);
        assert_eq!(pair.a.drain(), [(1, WcStatus::REM_INV_REQ_ERR)], "{ours} {theirs}");
    }
}

/// Memory of both devices is the same: the sender's.
#[test]
fn overlapping_ranges_are_moved() {
    for (from, to, length) in [(0, 8, 1000), (8, 0, 1000), (100, 100, 900), (0, 500, 1024), (3, 0, 64)] {
        let mut pair = Pair::rc();
        let (start, iova) = (pair.a.start(), pair.a.start());
        let attr = MrAttr { pd: PD, start, length: MEMORY as u64, iova, access: all_rights() };
        let shared = pair.b.with(|engine| engine.register(attr.prepare()?)).unwrap();
        let mut expected = pattern(4096, 4);
        pair.a.fill(0, &expected);
        let remote = Remote { addr: start + to as u64, rkey: shared.rkey };
        pair.qa.post(1, Operation::Write(remote), &[pair.a.sge(from, length)]);
        assert_eq!(pair.a.drain(), [(1, OK)]);
        expected.copy_within(from..from + length, to);
        assert_eq!(pair.a.bytes(0, 4096), expected, "{from} {to} {length}");
    }
}

#[test]
fn sender_may_write_its_memory_after_each_completion_under_faults() {
    let short = Duration::from_micros(50);
    let faults: [fn(Duration) -> Fault; 6] = [
        |_| Fault::drop(),
        |_| Fault::duplicate(),
        |_| Fault::reorder(),
        |_| Fault::corrupt(),
        Fault::delay,
        Fault::jitter,
    ];
    for (number, fault) in faults.into_iter().enumerate() {
        let fabric = Fabric::new();
        let mut pair = Pair::on(&fabric, QpType::RC, |attributes| {
            (attributes.ack_timeout, attributes.retry_count) = (10, 7);
        });
        let affected = fabric.inject(fault(short).every(7));
        for round in 0..20 {
            let data = pattern(20_000, round);
            pair.a.fill(0, &data);
            pair.qb.receive(1, &[pair.b.sge(100_000, 20_000)]);
            pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 20_000)]);
            pair.qa.post(2, Operation::Send, &[pair.a.sge(0, 20_000)]);
            assert_eq!([pair.a.wait().status, pair.a.wait().status], [OK; 2], "{number}");
            pair.a.fill(0, &[0xee; 20_000]);
            assert_eq!(pair.b.wait().status, OK);
            assert_eq!(pair.b.bytes(0, 20_000), data, "fault {number}");
            assert_eq!(pair.b.bytes(100_000, 20_000), data, "fault {number}");
        }
        assert!(affected.count() > 0);
        fabric.remove_fault(&affected);
        pair.qa.post(3, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 20_000)]);
        assert_eq!(pair.a.wait().status, OK);
        assert_eq!(pair.b.bytes(0, 20_000), [0xee; 20_000]);
    }
}

#[test]
fn delayed_packets_keep_their_bytes() {
    for qp_type in [QpType::RC, QpType::UC] {
        let fabric = Fabric::seeded(5);
        let mut pair = Pair::on(&fabric, qp_type, |_| {});
        let affected = fabric.inject(Fault::delay(Duration::from_micros(10)));
        pair.a.fill(0, b"before");
        let attr = MrAttr {
            start: pair.a.start(),
            length: 4096,
            iova: pair.a.start(),
            pd: PD,
            access: all_rights(),
        };
        let source = pair.a.with(|engine| engine.register(attr.prepare()?)).unwrap();
        let sge = Sge { lkey: source.lkey, ..pair.a.sge(0, 6) };
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[sge]);
        fabric.run_until_idle();
        assert_eq!((affected.count(), pair.b.bytes(0, 6)), (1, vec![0; 6]));
        pair.a.with(|engine| engine.deregister(source.id)).unwrap();
        pair.a.fill(0, b"after!");
        fabric.advance(Duration::from_millis(1));
        assert_eq!((pair.a.drain(), pair.b.bytes(0, 6)), (vec![(1, OK)], b"before".to_vec()));
    }
}

#[test]
fn region_that_was_deregistered_before_its_turn_fails_the_request() {
    let mut pair = Pair::on(&Fabric::seeded(6), QpType::RC, |_| {});
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 100_000)]);
    pair.a.with(|engine| engine.deregister(pair.a.mr.id)).unwrap();
    assert_eq!(turn(&pair.a, true), []);
    assert_eq!(pair.a.drain(), [(1, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(pair.qa.sq.failure(), Some((1, WcStatus::LOC_QP_OP_ERR)));
}

/// A program may write its memory as soon as it polls a completion, also that of a flush.
#[test]
fn completions_wait_for_the_delivery_of_payloads_that_are_not_copied() {
    // Both QPs are of the same device, whose packets are delivered one after the other.
    let fabric = Fabric::seeded(9);
    let mut peer = Peer::new(&fabric, 2, 64);
    let [mut qa, mut qb] = [peer.qp(QpType::RC), peer.qp(QpType::RC)];
    peer.connect(&qa, (2, qb.qpn));
    peer.connect(&qb, (2, qa.qpn));
    let refused = Remote { rkey: peer.mr.rkey ^ 1, ..peer.remote(0) };
    qa.post(1, Operation::Write(refused), &[peer.sge(0, 100)]);
    qb.post(2, Operation::Write(peer.remote(5000)), &[peer.sge(1000, 100)]);
    let sent = turn(&peer, true);
    assert_eq!(sent.iter().map(uncopied).collect::<Vec<_>>(), [Some(1); 2]);
    receive(&peer, &sent[..1]);
    assert_eq!((peer.state(&qb), peer.drain()), (State::Error, vec![]));
    receive(&peer, &sent[1..]);
    end_delivery(&peer);
    assert_eq!(peer.drain(), [(2, WcStatus::WR_FLUSH_ERR)]);
    fabric.run_until_idle();
    assert_eq!(peer.drain(), [(1, WcStatus::REM_ACCESS_ERR)]);
}

#[test]
fn failed_message_completes_after_the_delivery_of_its_first_packets() {
    let mut pair = Pair::on(&Fabric::seeded(10), QpType::RC, |_| {});
    let wrong = Sge { lkey: pair.a.mr.lkey ^ 1, ..pair.a.sge(0, 1024) };
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 2048), wrong]);
    let sent = turn(&pair.a, true);
    assert!(sent.iter().any(|packet| packet.zero_copy.is_some()), "{sent:?}");
    assert_eq!((pair.a.state(&pair.qa), pair.a.drain()), (State::Error, vec![]));
    receive(&pair.b, &sent);
    end_delivery(&pair.a);
    assert_eq!(pair.a.drain(), [(1, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn window_is_invalidated_after_the_delivery_of_what_was_read_through_it() {
    let mut pair = Pair::on(&Fabric::seeded(11), QpType::RC, |_| {});
    let (_, window) = pair.b.with(|engine| engine.allocate_window(PD, MwType::TYPE_2)).unwrap();
    let bind = Operation::BindMw(MwBind {
        mw_type: MwType::TYPE_2,
        mw_rkey: window,
        rkey: window ^ 1,
        mr_lkey: pair.b.mr.lkey,
        addr: pair.b.start(),
        length: 4096,
        access: AccessFlags::REMOTE_READ,
    });
    pair.qb.post(1, bind, &[]);
    pair.a.fabric.run_until_idle();
    assert_eq!(pair.b.drain(), [(1, OK)]);
    pair.qa.post(1, Operation::Read(Remote { rkey: window ^ 1, ..pair.b.remote(0) }), &[pair.a.sge(0, 100)]);
    let sent = turn(&pair.a, true);
    receive(&pair.b, &sent);
    pair.qb.post(2, Operation::LocalInv(window ^ 1), &[]);
    let responses = turn(&pair.b, true);
    assert_eq!((responses.iter().map(uncopied).collect::<Vec<_>>(), pair.b.drain()), (vec![Some(1)], vec![]));
    receive(&pair.a, &responses);
    end_delivery(&pair.b);
    assert_eq!((pair.a.drain(), pair.b.drain()), (vec![(1, OK)], vec![(2, OK)]));
}

/// A request: kind, parts, offset of the target.
type Request = (u8, Vec<(usize, usize)>, usize);

/// What each side polls after each request.
type Completions = Vec<Vec<(u64, WcStatus)>>;

/// Bytes of a part at most.
const PART: usize = 40_000;

/// Executes requests. Returns completions of both sides, and both memories.
fn execute(copies: bool, requests: &[Request]) -> (Completions, [Vec<u8>; 2]) {
    let fabric = Fabric::new();
    // Packets that a log shows are sent one by one, with a copy of the payload.
    let _log = copies.then(|| fabric.log(1));
    let mut pair = Pair::on(&fabric, QpType::RC, |_| {});
    pair.a.fill(0, &pattern(MEMORY, 7));
    pair.b.fill(0, &pattern(MEMORY, 8));
    let mut completions = Vec::new();
    for (number, (kind, parts, target)) in (1..).zip(requests) {
        let length: usize = parts.iter().map(|(_, length)| length).sum();
        let sges: Vec<Sge> = parts.iter().map(|(at, length)| pair.a.sge(*at, *length)).collect();
        let remote = pair.b.remote(*target);
        let operation = match kind % 4 {
            0 => Operation::Write(remote),
            1 => Operation::WriteImm(remote, Imm(1)),
            2 => Operation::Read(remote),
            _ => Operation::Send,
        };
        if kind % 2 == 1 {
            let half = length / 2;
            let places = [pair.b.sge(*target, half), pair.b.sge(target + half, length - half)];
            pair.qb.receive(number, &places);
        }
        pair.qa.post(number, operation, &sges);
        completions.extend([pair.a.drain(), pair.b.drain()]);
    }
    (completions, [pair.a.bytes(0, MEMORY), pair.b.bytes(0, MEMORY)])
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let part = (0..MEMORY - PART, prop_oneof![0..200usize, 1020..1030usize, 0..PART]);
    let request = (any::<u8>(), prop::collection::vec(part, 0..4), 0..MEMORY - 3 * PART);
    prop::collection::vec(request, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn memories_and_completions_are_those_of_copied_payloads(requests in requests()) {
        prop_assert_eq!(execute(false, &requests), execute(true, &requests));
    }
}
