use bareverbs_provider::work::Imm;
use bareverbs_uapi::write::types::{PlacementType, SelectivityLevel, WcOpcode};

use super::super::MAX_GROUP_MEMBERS;
use super::*;

const OK: WcStatus = WcStatus::SUCCESS;

/// Lengths around the borders of packets.
const LENGTHS: [usize; 8] = [0, 1, 7, 1023, 1024, 1025, 4096, 100_000];

#[test]
fn rc_writes_and_reads_arrive_at_all_lengths() {
    let mut pair = Pair::rc();
    for length in LENGTHS {
        let data = pattern(length, 1);
        pair.a.fill(0, &data);
        pair.b.fill(0, &vec![0; length + 8]);
        pair.qa.post(1, Operation::Write(pair.b.remote(4)), &[pair.a.sge(0, length)]);
        assert_eq!(pair.a.drain(), [(1, OK)]);
        assert_eq!(pair.b.bytes(4, length), data);
        assert_eq!(pair.b.bytes(4 + length, 4), [0; 4]);
        let half = length / 2;
        let places = [pair.a.sge(200_000, half), pair.a.sge(400_000, length - half)];
        pair.qa.post(2, Operation::Read(pair.b.remote(4)), &places);
        let found = pair.a.wait();
        assert_eq!((found.wr_id, found.status, found.opcode), (2, OK, WcOpcode::RDMA_READ));
        assert_eq!(found.byte_len as usize, length);
        assert_eq!([pair.a.bytes(200_000, half), pair.a.bytes(400_000, length - half)].concat(), data);
    }
}

#[test]
fn rc_sends_arrive_with_their_immediate_data() {
    let mut pair = Pair::rc();
    for length in LENGTHS {
        let data = pattern(length, 2);
        pair.a.fill(0, &data);
        pair.qb.receive(7, &[pair.b.sge(0, 60_000), pair.b.sge(100_000, 60_000)]);
        pair.qa.post(1, Operation::SendImm(Imm(0x0102_0304)), &[pair.a.sge(0, length)]);
        assert_eq!(pair.a.drain(), [(1, OK)]);
        let found = pair.b.wait();
        assert_eq!((found.wr_id, found.status, found.opcode), (7, OK, WcOpcode::RECV));
        assert_eq!((found.byte_len as usize, found.imm()), (length, Some(Imm(0x0102_0304))));
        assert_eq!(found.qp_num, pair.qb.qpn);
        let first = length.min(60_000);
        let arrived = [pair.b.bytes(0, first), pair.b.bytes(100_000, length - first)].concat();
        assert_eq!(arrived, data);
    }
}

#[test]
fn write_with_immediate_consumes_a_receive() {
    let mut pair = Pair::rc();
    pair.a.fill(0, &pattern(3000, 3));
    pair.qb.receive(9, &[]);
    pair.qa.post(1, Operation::WriteImm(pair.b.remote(0), Imm(5)), &[pair.a.sge(0, 3000)]);
    let found = pair.b.wait();
    assert_eq!(
        (found.opcode, found.byte_len, found.imm()),
        (WcOpcode::RECV_RDMA_WITH_IMM, 3000, Some(Imm(5)))
    );
    assert_eq!(pair.b.bytes(0, 3000), pattern(3000, 3));
}

#[test]
fn inline_data_is_sent_from_the_ring() {
    let mut pair = Pair::rc();
    let data = pattern(64, 4);
    let payload = Payload::Inline(&[&data[..10], &data[10..]]);
    pair.qa.push(1, Operation::Write(pair.b.remote(8)), SendFlags::SIGNALED, payload);
    pair.qa.sq.ring().unwrap();
    assert_eq!((pair.a.drain(), pair.b.bytes(8, 64)), (vec![(1, OK)], data));
}

#[test]
fn atomics_return_the_old_value() {
    let mut pair = Pair::rc();
    pair.b.fill(16, &40u64.to_ne_bytes());
    let remote = pair.b.remote(16);
    pair.qa.post(1, Operation::FetchAdd { remote, add: 2 }, &[pair.a.sge(0, 8)]);
    pair.qa.post(2, Operation::CmpSwp { remote, compare: 42, swap: 7 }, &[pair.a.sge(8, 8)]);
    pair.qa.post(3, Operation::CmpSwp { remote, compare: 42, swap: 8 }, &[pair.a.sge(16, 8)]);
    pair.qa.post(4, Operation::AtomicWrite { remote: pair.b.remote(24), value: [9; 8] }, &[]);
    let flush = Operation::Flush {
        remote: pair.b.remote(16),
        length: 16,
        placement: PlacementType::GLOBAL,
        level: SelectivityLevel::RANGE,
    };
    pair.qa.post(5, flush, &[]);
    let found: Vec<_> = std::iter::from_fn(|| pair.a.poll()).collect();
    assert!(found.iter().all(|found| found.status == OK), "{found:?}");
    let opcodes: Vec<_> = found.iter().map(|found| found.opcode).collect();
    let (swap, add) = (WcOpcode::COMP_SWAP, WcOpcode::FETCH_ADD);
    assert_eq!(opcodes, [add, swap, swap, WcOpcode::ATOMIC_WRITE, WcOpcode::FLUSH]);
    let word = |peer: &Peer, at| u64::from_ne_bytes(peer.bytes(at, 8).try_into().unwrap());
    assert_eq!([word(&pair.a, 0), word(&pair.a, 8), word(&pair.a, 16)], [40, 42, 7]);
    assert_eq!((word(&pair.b, 16), pair.b.bytes(24, 8)), (7, vec![9; 8]));
}

#[test]
fn uc_sends_and_writes_arrive() {
    let mut pair = Pair::new(QpType::UC);
    pair.a.fill(0, &pattern(5000, 5));
    pair.qb.receive(1, &[pair.b.sge(0, 5000)]);
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 5000)]);
    pair.qa.post(2, Operation::Write(pair.b.remote(10_000)), &[pair.a.sge(0, 5000)]);
    // Without a receive, the message is lost, and the sender doesn't learn of it.
    pair.qa.post(3, Operation::Send, &[pair.a.sge(0, 10)]);
    assert_eq!(pair.a.drain(), [(1, OK), (2, OK), (3, OK)]);
    assert_eq!(pair.b.drain(), [(1, OK)]);
    assert_eq!([pair.b.bytes(0, 5000), pair.b.bytes(10_000, 5000)], [pattern(5000, 5), pattern(5000, 5)]);
}

#[test]
fn datagrams_arrive_behind_a_header() {
    let mut pair = Pair::new(QpType::UD);
    let ah = pair.a.with(|engine| engine.create_ah(PD, av(3))).unwrap();
    pair.a.fill(0, &pattern(4096, 6));
    pair.qb.receive(1, &[pair.b.sge(0, 8192)]);
    pair.qa.post_datagram(1, ah, pair.qb.qpn, &[pair.a.sge(0, 4096)]);
    assert_eq!(pair.a.drain(), [(1, OK)]);
    let found = pair.b.wait();
    assert_eq!((found.status, found.byte_len, found.src_qp), (OK, 4136, pair.qa.qpn));
    assert_eq!(pair.b.bytes(40, 4096), pattern(4096, 6));
    let header = pair.b.bytes(20, 20);
    assert_eq!((header[0], &header[12..16], &header[16..]), (0x45, &[127, 0, 0, 2][..], &[127, 0, 0, 3][..]));

    // An address handle of another PD.
    let foreign = pair.a.with(|engine| engine.create_ah(PD + 1, av(3))).unwrap();
    pair.qa.post_datagram(2, foreign, pair.qb.qpn, &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), [(2, WcStatus::WR_FLUSH_ERR)]);
    assert_eq!(pair.qa.sq.failure(), Some((2, WcStatus::LOC_QP_OP_ERR)));
}

#[test]
fn multicast_reaches_all_members() {
    const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 1];
    let mut pair = Pair::new(QpType::UD);
    let mut to_group = av(3);
    to_group.grh.dgid = GROUP;
    let ah = pair.a.with(|engine| engine.create_ah(PD, to_group)).unwrap();
    for (peer, qp) in [(&pair.a, &mut pair.qa), (&pair.b, &mut pair.qb)] {
        peer.with(|engine| engine.attach(qp.qpn, GROUP)).unwrap();
        qp.receive(5, &[peer.sge(1000, 100)]);
    }
    pair.a.fill(0, b"to all");
    pair.qa.post_datagram(1, ah, 0xff_ffff, &[pair.a.sge(0, 6)]);
    assert_eq!(pair.b.drain(), [(5, OK)]);
    let mut own = pair.a.drain();
    own.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(own, [(1, OK), (5, OK)]);
    assert_eq!(pair.b.bytes(1040, 6), b"to all");
    assert_eq!(pair.b.with(|engine| engine.detach(pair.qb.qpn, GROUP)), Ok(()));
    assert_eq!(pair.b.with(|engine| engine.detach(pair.qb.qpn, GROUP)), Err(Errno::INVAL));
    pair.qb.receive(6, &[pair.b.sge(0, 100)]);
    pair.qa.post_datagram(2, ah, 0xff_ffff, &[pair.a.sge(0, 6)]);
    assert_eq!(pair.b.drain(), []);
}

#[test]
fn group_has_a_limited_number_of_members() {
    const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 2];
    let peer = Peer::new(&Fabric::new(), 2, 8);
    let qps: Vec<_> = (0..=MAX_GROUP_MEMBERS).map(|_| peer.qp(QpType::UD)).collect();
    let attach = |qp: &Qp| peer.with(|engine| engine.attach(qp.qpn, GROUP));
    let (last, members) = qps.split_last().unwrap();
    members.iter().for_each(|qp| assert_eq!(attach(qp), Ok(())));
    assert_eq!((attach(last), attach(&members[0])), (Err(Errno::NOMEM), Ok(())));
    peer.with(|engine| engine.detach(members[0].qpn, GROUP)).unwrap();
    assert_eq!(attach(last), Ok(()));
}

#[test]
fn send_without_a_receive_is_retried_until_there_is_one() {
    let mut pair = Pair::rc();
    pair.a.fill(0, b"late");
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 4)]);
    assert_eq!(pair.a.drain(), []);
    // No call tells the device of the receive: its timer finds it.
    pair.qb.receive(2, &[pair.b.sge(0, 4)]);
    assert_eq!((pair.b.wait().status, pair.a.wait().status), (OK, OK));
    assert_eq!(pair.b.bytes(0, 4), b"late");
    let deadline = Instant::now() + TIMEOUT;
    while pair.a.fabric.has_thread() {
        assert!(Instant::now() < deadline, "the timer thread doesn't end");
        std::thread::yield_now();
    }
}

#[test]
fn timer_thread_wakes_for_an_earlier_timer() {
    // The time-out of the first request, to a device that is gone, is more than a minute.
    let mut lost = Pair::on(&Fabric::new(), QpType::RC, |attributes| attributes.ack_timeout = 24);
    lost.b.remove();
    lost.qa.post(1, Operation::Write(lost.b.remote(0)), &[lost.a.sge(0, 4)]);
    let [mut a, mut b] = [4, 5].map(|last| Peer::new(&lost.a.fabric, last, 16));
    let (mut qa, mut qb) = (a.qp(QpType::RC), b.qp(QpType::RC));
    a.connect(&qa, (5, qb.qpn));
    b.connect(&qb, (4, qa.qpn));
    // Not only while the thread starts.
    for round in 0..20 {
        qa.post(round, Operation::Send, &[a.sge(0, 4)]);
        qb.receive(round, &[b.sge(0, 4)]);
        assert_eq!((b.wait().wr_id, a.wait().wr_id), (round, round));
    }
}

#[test]
fn run_ends_after_its_time_and_a_thread_does_the_rest() {
    let mut pair = Pair::rc();
    pair.a.fabric.set_run_time(Duration::ZERO);
    let returns_early = |number| {
        pair.qa.post(number, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, MEMORY)]);
        let done = pair.a.poll();
        let early = done.is_none();
        assert_eq!(done.unwrap_or_else(|| pair.a.wait()).status, OK);
        early
    };
    // The thread may be done before the caller looks.
    assert!((0..100).any(returns_early));
}

#[test]
fn rnr_retries_end() {
    let mut pair = Pair::on(&Fabric::new(), QpType::RC, |attributes| attributes.rnr_retry = 2);
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 4)]);
    assert_eq!(pair.a.wait().status, WcStatus::RNR_RETRY_EXC_ERR);
    assert_eq!(pair.a.state(&pair.qa), State::Error);
}

#[test]
fn unreachable_peer_ends_the_retries() {
    let mut pair = Pair::on(&Fabric::new(), QpType::RC, |attributes| {
        (attributes.retry_count, attributes.ack_timeout) = (2, 8);
    });
    pair.b.remove();
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 4)]);
    assert_eq!(pair.a.wait().status, WcStatus::RETRY_EXC_ERR);
}

#[test]
fn reads_and_atomics_need_an_initiator_depth() {
    for is_read in [true, false] {
        let mut pair = Pair::on(&Fabric::new(), QpType::RC, |attributes| attributes.max_rd_atomic = 0);
        let remote = pair.b.remote(0);
        let operation =
            if is_read { Operation::Read(remote) } else { Operation::FetchAdd { remote, add: 1 } };
        pair.qa.post(1, operation, &[pair.a.sge(0, 8)]);
        assert_eq!(pair.a.drain(), [(1, WcStatus::WR_FLUSH_ERR)]);
        assert_eq!(pair.qa.sq.failure(), Some((1, WcStatus::LOC_QP_OP_ERR)));
    }
}

#[test]
fn keys_are_checked() {
    let sge_error = |sge: fn(&Peer) -> Sge| {
        let mut pair = Pair::rc();
        let sge = sge(&pair.a);
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[sge]);
        assert_eq!(pair.qa.sq.failure(), Some((1, WcStatus::LOC_QP_OP_ERR)));
        pair.a.drain()
    };
    let local = [(1, WcStatus::WR_FLUSH_ERR)];
    assert_eq!(sge_error(|a| Sge { lkey: a.mr.lkey ^ 1, ..a.sge(0, 8) }), local);
    assert_eq!(sge_error(|a| Sge { lkey: 0x0012_3400, ..a.sge(0, 8) }), local);
    assert_eq!(sge_error(|a| a.sge(MEMORY - 7, 8)), local);
    assert_eq!(sge_error(|a| Sge { addr: u64::MAX - 3, ..a.sge(0, 8) }), local);

    let remote_error = |remote: fn(&Peer) -> Remote, read: bool| {
        let mut pair = Pair::rc();
        let remote = remote(&pair.b);
        let operation = if read { Operation::Read(remote) } else { Operation::Write(remote) };
        pair.qa.post(1, operation, &[pair.a.sge(0, 8)]);
        assert_eq!(pair.b.state(&pair.qb), State::Error);
        pair.a.drain()
    };
    let refused = [(1, WcStatus::REM_ACCESS_ERR)];
    for read in [false, true] {
        assert_eq!(remote_error(|b| Remote { rkey: b.mr.rkey ^ 1, ..b.remote(0) }, read), refused);
        assert_eq!(remote_error(|b| b.remote(MEMORY - 7), read), refused);
        assert_eq!(remote_error(|b| Remote { addr: b.start() - 1, ..b.remote(0) }, read), refused);
    }
}

#[test]
fn failure_is_shown_in_the_slot_and_flushes_the_later_requests() {
    let mut pair = Pair::rc();
    let sge = pair.a.sge(0, 8);
    pair.qa.push(1, Operation::Write(pair.b.remote(0)), SendFlags::SIGNALED, Payload::Sges(&[sge]));
    let bad = Operation::Write(Remote { rkey: 0, ..pair.b.remote(0) });
    pair.qa.push(2, bad, SendFlags::empty(), Payload::Sges(&[sge]));
    pair.qa.push(3, Operation::Write(pair.b.remote(0)), SendFlags::empty(), Payload::Sges(&[sge]));
    pair.qa.receive(10, &[pair.a.sge(0, 8)]);
    pair.qa.receive(11, &[pair.a.sge(0, 8)]);
    pair.qa.sq.ring().unwrap();
    let flushed = WcStatus::WR_FLUSH_ERR;
    let found = pair.a.drain();
    assert_eq!(found, [(1, OK), (2, WcStatus::REM_ACCESS_ERR), (3, flushed), (10, flushed), (11, flushed)]);
    assert_eq!(pair.qa.sq.failure(), Some((2, WcStatus::REM_ACCESS_ERR)));
    // Requests posted in ERR are flushed, receives by a timer.
    pair.qa.post(4, Operation::Send, &[sge]);
    assert_eq!(pair.a.drain(), [(4, flushed)]);
    pair.qa.receive(12, &[pair.a.sge(0, 8)]);
    assert_eq!((pair.a.wait().wr_id, pair.a.drain()), (12, vec![]));
    pair.a.modify(pair.qa.qpn, State::Reset, &QpAttributes::default());
}

#[test]
fn too_short_receive_fails_both_sides() {
    let mut pair = Pair::rc();
    pair.qb.receive(5, &[pair.b.sge(0, 10)]);
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 11)]);
    assert_eq!(pair.a.drain(), [(1, WcStatus::REM_OP_ERR)]);
    assert_eq!(pair.b.drain(), [(5, WcStatus::LOC_QP_OP_ERR)]);
}

#[test]
fn doorbell_below_rts_reads_nothing() {
    let mut pair = Pair::rc();
    let qp = &mut pair.qa;
    pair.a.modify(qp.qpn, State::Reset, &QpAttributes::default());
    // SAFETY: the QP is in RESET.
    unsafe { SendQueue::reset(&mut qp.sq) };
    assert_eq!(pair.a.with(|engine| engine.post_send(qp.qpn)), Err(Errno::INVAL));
    let attributes = pair.a.attributes((3, pair.qb.qpn));
    for state in [State::Init, State::ReadyToReceive] {
        pair.a.modify(qp.qpn, state, &attributes);
        assert_eq!(pair.a.with(|engine| engine.post_send(qp.qpn)), Err(Errno::INVAL));
    }
    pair.a.modify(qp.qpn, State::ReadyToSend, &attributes);
    assert_eq!(pair.a.with(|engine| engine.post_send(qp.qpn)), Ok(()));
}

#[test]
fn reset_discards_requests_and_the_qp_works_again() {
    let mut pair = Pair::rc();
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 4)]);
    pair.qa.receive(2, &[pair.a.sge(0, 8)]);
    for (peer, qp) in [(&pair.a, &mut pair.qa), (&pair.b, &mut pair.qb)] {
        peer.modify(qp.qpn, State::Reset, &QpAttributes::default());
        // SAFETY: the QP is in RESET.
        unsafe {
            SendQueue::reset(&mut qp.sq);
            RecvQueue::reset(qp.rq.as_mut().unwrap());
        }
    }
    pair.a.connect(&pair.qa, (3, pair.qb.qpn));
    pair.b.connect(&pair.qb, (2, pair.qa.qpn));
    for round in 0..40 {
        pair.qb.receive(round, &[pair.b.sge(0, 8)]);
        pair.qa.post(round, Operation::Send, &[pair.a.sge(0, 8)]);
        assert_eq!((pair.a.drain(), pair.b.drain()), (vec![(round, OK)], vec![(round, OK)]));
    }
}

#[test]
fn unsignaled_requests_release_their_slots() {
    let mut pair = Pair::rc();
    for round in 0..100 {
        let sge = pair.a.sge(0, 8);
        pair.qa.push(round, Operation::Write(pair.b.remote(0)), SendFlags::empty(), Payload::Sges(&[sge]));
        pair.qa.sq.ring().unwrap();
    }
    assert_eq!(pair.a.drain(), []);
}

#[test]
fn send_queue_drains() {
    let mut pair = Pair::rc();
    let attributes = pair.a.attributes((3, pair.qb.qpn));
    pair.a.modify(pair.qa.qpn, State::SendQueueDrained, &attributes);
    assert_eq!(pair.a.events(), [EventType::SQ_DRAINED]);
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), []);
    pair.a.modify(pair.qa.qpn, State::ReadyToSend, &attributes);
    assert_eq!(pair.a.drain(), [(1, OK)]);
}

#[test]
fn first_packet_in_rtr_raises_an_event() {
    let mut pair = Pair::rc();
    let attributes = pair.b.attributes((2, pair.qa.qpn));
    pair.b.modify(pair.qb.qpn, State::Reset, &QpAttributes::default());
    pair.b.modify(pair.qb.qpn, State::Init, &attributes);
    pair.b.modify(pair.qb.qpn, State::ReadyToReceive, &attributes);
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
    assert_eq!((pair.a.drain(), pair.b.events()), (vec![(1, OK)], vec![EventType::COMM_EST]));
}
