use bareverbs_provider::work::{MwBind, MwType};
use bareverbs_uapi::rxe::QueueBuf;

use super::super::check_rights;
use super::*;

const OK: WcStatus = WcStatus::SUCCESS;

fn attr(peer: &Peer, access: AccessFlags) -> MrAttr {
    MrAttr { pd: PD, start: peer.start(), length: 4096, iova: peer.start(), access }
}

#[test]
fn registrations_are_checked() {
    let peer = Peer::new(&Fabric::new(), 2, 8);
    let register = |attr: MrAttr| peer.with(|engine| engine.register(attr.prepare()?)).map(drop);
    let good = attr(&peer, all_rights());
    assert_eq!(register(good), Ok(()));
    assert_eq!(register(MrAttr { access: AccessFlags::FLUSH_PERSISTENT, ..good }), Err(Errno::INVAL));
    assert_eq!(register(MrAttr { iova: good.iova + 1, ..good }), Err(Errno::INVAL));
    assert_eq!(register(MrAttr { length: u64::MAX, ..good }), Err(Errno::INVAL));
    assert_eq!(register(MrAttr { length: 0, ..good }), Err(Errno::INVAL));
    assert_eq!(register(MrAttr { start: 0, iova: 0, ..good }), Err(Errno::FAULT));
    assert_eq!(register(MrAttr { length: 1 << 46, ..good }), Err(Errno::FAULT));
    // The text of the program is mapped, but not for writing.
    let text = registrations_are_checked as *const () as u64;
    let read_only = MrAttr { start: text, iova: text, length: 8, access: AccessFlags::empty(), ..good };
    assert_eq!(register(read_only), Ok(()));
    for access in [AccessFlags::LOCAL_WRITE, AccessFlags::MW_BIND] {
        assert_eq!(register(MrAttr { access, ..read_only }), Err(Errno::FAULT));
    }
    let mr = peer.with(|engine| engine.register(read_only.prepare()?)).unwrap();
    let widen = |engine: &mut Engine| engine.reregister(mr.id, None, Some(AccessFlags::LOCAL_WRITE));
    assert_eq!(peer.with(widen), Err(Errno::ACCESS));
}

#[test]
fn rights_of_regions_are_checked() {
    assert_eq!(check_rights(all_rights()), Ok(()));
    assert_eq!(check_rights(AccessFlags::REMOTE_WRITE), Err(Errno::INVAL));
    assert_eq!(check_rights(AccessFlags::from_bits_retain(1 << 31)), Err(Errno::INVAL));
    assert_eq!(check_rights(AccessFlags::ON_DEMAND), Err(Errno::OPNOTSUPP));
}

#[test]
fn deregistered_keys_and_those_of_another_pd_are_invalid() {
    let mut pair = Pair::rc();
    let b = &pair.b;
    let mr = b.with(|engine| engine.register(attr(b, all_rights()).prepare()?)).unwrap();
    let remote = Remote { addr: b.start(), rkey: mr.rkey };
    pair.qa.post(1, Operation::Write(remote), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), [(1, OK)]);
    assert_eq!(b.with(|engine| engine.mr(mr.id)).map(|(found, _)| found), Some(mr));
    b.with(|engine| engine.reregister(mr.id, Some(PD + 1), None)).unwrap();
    pair.qa.post(2, Operation::Write(remote), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), [(2, WcStatus::REM_ACCESS_ERR)]);

    let mut pair = Pair::rc();
    let b = &pair.b;
    let mr = b.with(|engine| engine.register(attr(b, all_rights()).prepare()?)).unwrap();
    b.with(|engine| engine.deregister(mr.id)).unwrap();
    let remote = Remote { addr: b.start(), rkey: mr.rkey };
    pair.qa.post(1, Operation::Read(remote), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), [(1, WcStatus::REM_ACCESS_ERR)]);
    assert_eq!(b.with(|engine| engine.deregister(mr.id)), Err(Errno::INVAL));
}

/// Binds a window of `a` to 100 bytes at 1000. Returns its new key.
fn bind(a: &mut Peer, qp: &mut Qp, mw_type: MwType, rkey: u32, access: AccessFlags) -> WcStatus {
    let bind = MwBind {
        mw_type,
        mw_rkey: rkey,
        rkey: rkey ^ 0x55,
        mr_lkey: a.mr.lkey,
        addr: a.start() + 1000,
        length: 100,
        access,
    };
    qp.post(77, Operation::BindMw(bind), &[]);
    let found = a.wait();
    assert_eq!(found.wr_id, 77);
    found.status
}

fn window(peer: &Peer, ty: MwType) -> (u32, u32) {
    peer.with(|engine| engine.allocate_window(PD, ty)).unwrap()
}

#[test]
fn type_2_window_opens_its_range_until_it_is_invalidated() {
    let mut pair = Pair::rc();
    let (id, rkey) = window(&pair.b, MwType::TYPE_2);
    let access = AccessFlags::REMOTE_WRITE;
    assert_eq!(bind(&mut pair.b, &mut pair.qb, MwType::TYPE_2, rkey, access), OK);
    let rkey = rkey ^ 0x55;
    let remote = Remote { addr: pair.b.start() + 1000, rkey };
    pair.a.fill(0, &[7; 100]);
    pair.qa.post(1, Operation::Write(remote), &[pair.a.sge(0, 100)]);
    assert_eq!((pair.a.drain(), pair.b.bytes(1000, 100)), (vec![(1, OK)], vec![7; 100]));
    // The region is in use.
    assert_eq!(pair.b.with(|engine| engine.deregister(pair.b.mr.id)), Err(Errno::INVAL));
    // The peer invalidates it.
    pair.qb.receive(2, &[pair.b.sge(0, 8)]);
    pair.qa.post(2, Operation::SendInv(rkey), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.b.wait().invalidated_rkey(), Some(rkey));
    assert_eq!(pair.a.drain(), [(2, OK)]);
    // It can be bound again, and invalidated locally.
    assert_eq!(bind(&mut pair.b, &mut pair.qb, MwType::TYPE_2, rkey, access), OK);
    pair.qb.post(3, Operation::LocalInv(rkey ^ 0x55), &[]);
    assert_eq!(pair.b.drain(), [(3, OK)]);
    assert_eq!(pair.b.with(|engine| engine.free_window(id)), Ok(()));
    assert_eq!(pair.b.with(|engine| engine.deregister(pair.b.mr.id)), Ok(()));
    pair.qa.post(4, Operation::Write(remote), &[pair.a.sge(0, 100)]);
    assert_eq!(pair.a.drain(), [(4, WcStatus::REM_ACCESS_ERR)]);
}

#[test]
fn window_grants_its_rights_and_range_only() {
    let fails = |operation: fn(Remote) -> Operation, access: AccessFlags, offset: u64| {
        let mut pair = Pair::rc();
        let (_, rkey) = window(&pair.b, MwType::TYPE_1);
        assert_eq!(bind(&mut pair.b, &mut pair.qb, MwType::TYPE_1, rkey, access), OK);
        let remote = Remote { addr: pair.b.start() + offset, rkey: rkey ^ 0x55 };
        pair.qa.post(1, operation(remote), &[pair.a.sge(0, 8)]);
        pair.a.drain() == [(1, WcStatus::REM_ACCESS_ERR)]
    };
    let (read, write) = (AccessFlags::REMOTE_READ, AccessFlags::REMOTE_WRITE);
    assert!(!fails(Operation::Read, read, 1092) && !fails(Operation::Write, write, 1000));
    assert!(fails(Operation::Write, read, 1000) && fails(Operation::Read, write, 1000));
    assert!(fails(Operation::Read, read, 1093) && fails(Operation::Read, read, 999));
}

#[test]
fn atomic_to_an_unaligned_word_of_a_zero_based_window_is_refused() {
    for operation in [
        |remote| Operation::FetchAdd { remote, add: 1 },
        |remote| Operation::AtomicWrite { remote, value: [9; 8] },
    ] {
        // The window begins at a multiple of 8.
        for (at, status) in [(0, OK), (4, WcStatus::REM_ACCESS_ERR)] {
            let mut pair = Pair::rc();
            let (_, rkey) = window(&pair.b, MwType::TYPE_2);
            let bind = MwBind {
                mw_type: MwType::TYPE_2,
                mw_rkey: rkey,
                rkey: rkey ^ 0x55,
                mr_lkey: pair.b.mr.lkey,
                addr: pair.b.start() + 1000 + at,
                length: 16,
                access: AccessFlags::REMOTE_ATOMIC | AccessFlags::REMOTE_WRITE | AccessFlags::ZERO_BASED,
            };
            pair.qb.post(1, Operation::BindMw(bind), &[]);
            assert_eq!(pair.b.drain(), [(1, OK)]);
            let operation = operation(Remote { addr: 0, rkey: rkey ^ 0x55 });
            let place = pair.a.sge(0, 8);
            let is_atomic = matches!(operation, Operation::FetchAdd { .. });
            pair.qa.post(2, operation, if is_atomic { std::slice::from_ref(&place) } else { &[] });
            assert_eq!(pair.a.drain(), [(2, status)], "{at}");
        }
    }
}

#[test]
fn destroyed_qp_releases_its_windows() {
    let mut pair = Pair::rc();
    let (_, rkey) = window(&pair.b, MwType::TYPE_2);
    assert_eq!(bind(&mut pair.b, &mut pair.qb, MwType::TYPE_2, rkey, AccessFlags::REMOTE_READ), OK);
    pair.b.with(|engine| engine.destroy_qp(pair.qb.qpn));
    assert_eq!(pair.b.with(|engine| engine.deregister(pair.b.mr.id)), Ok(()));
}

#[test]
fn freed_window_releases_its_region() {
    for ty in [MwType::TYPE_1, MwType::TYPE_2] {
        let mut pair = Pair::rc();
        let (id, rkey) = window(&pair.b, ty);
        assert_eq!(bind(&mut pair.b, &mut pair.qb, ty, rkey, AccessFlags::REMOTE_READ), OK);
        assert_eq!(pair.b.with(|engine| engine.free_window(id)), Ok(()));
        assert_eq!(pair.b.with(|engine| engine.deregister(pair.b.mr.id)), Ok(()));
    }
}

#[test]
fn bind_without_the_right_fails() {
    let failed = (WcStatus::WR_FLUSH_ERR, Some((77, WcStatus::MW_BIND_ERR)));
    for (rights, access, expected) in [
        (AccessFlags::LOCAL_WRITE, AccessFlags::REMOTE_READ, failed),
        (AccessFlags::MW_BIND, AccessFlags::REMOTE_READ, (OK, None)),
        (AccessFlags::MW_BIND, AccessFlags::REMOTE_WRITE, failed),
        (AccessFlags::MW_BIND, AccessFlags::REMOTE_ATOMIC, failed),
    ] {
        let mut pair = Pair::rc();
        pair.b.with(|engine| engine.reregister(pair.b.mr.id, None, Some(rights))).unwrap();
        let (_, rkey) = window(&pair.b, MwType::TYPE_2);
        let status = bind(&mut pair.b, &mut pair.qb, MwType::TYPE_2, rkey, access);
        assert_eq!((status, pair.qb.sq.failure()), expected, "{rights:?} {access:?}");
    }
}

#[test]
fn srq_serves_qps_and_raises_its_limit_once() {
    let mut pair = Pair::rc();
    let sink = pair.b.sink();
    let (srq, ring) = pair.b.with(|engine| engine.create_srq(PD, 8, 2, 3, sink)).unwrap();
    // SAFETY: the ring is that of the SRQ, and this is its only producer.
    let mut queue = unsafe { RxeRq::new(Memory(ring), 8, 2) }.unwrap();
    let qb = pair.b.qp_of(QpInit { srq: Some(srq), ..pair.b.init(QpType::RC) });
    pair.b.connect(&qb, (2, pair.qa.qpn));
    pair.a.modify(pair.qa.qpn, State::Reset, &QpAttributes::default());
    // SAFETY: the QP is in RESET.
    unsafe { SendQueue::reset(&mut pair.qa.sq) };
    pair.a.connect(&pair.qa, (3, qb.qpn));
    for wr_id in 0..4 {
        receive(&mut queue, wr_id, &[pair.b.sge(wr_id as usize * 8, 8)]);
    }
    let mut arrivals = vec![];
    for wr_id in 0..2 {
        pair.a.fill(0, &[wr_id as u8 + 1; 8]);
        pair.qa.post(wr_id, Operation::Send, &[pair.a.sge(0, 8)]);
        arrivals.push(pair.b.events());
    }
    assert_eq!(arrivals, [vec![], vec![EventType::SRQ_LIMIT_REACHED]]);
    assert_eq!(pair.b.drain(), [(0, OK), (1, OK)]);
    assert_eq!(pair.b.with(|engine| engine.srq(srq)), Some((15, 2, 0)));
    // A resize keeps the receives.
    assert_eq!(pair.b.with(|engine| engine.resize_srq(srq, 1)).map(drop), Err(Errno::INVAL));
    let ring = pair.b.with(|engine| engine.resize_srq(srq, 30)).unwrap();
    // SAFETY: the device has moved to the new ring.
    unsafe { queue.finish_resize(Ok(Memory(ring)), 30) }.unwrap();
    assert_eq!(queue.posted(), 2);
    pair.qa.post(2, Operation::Send, &[pair.a.sge(0, 8)]);
    assert_eq!(pair.b.drain(), [(2, OK)]);
    assert_eq!(pair.b.with(|engine| engine.set_srq_limit(srq, 32)), Err(Errno::INVAL));
    assert_eq!(pair.b.with(|engine| engine.set_srq_limit(srq, 31)), Ok(()));
    // A QP in ERR takes no receives of the SRQ.
    pair.b.modify(qb.qpn, State::Error, &QpAttributes::default());
    assert_eq!((pair.b.events(), pair.b.drain()), (vec![EventType::QP_LAST_WQE_REACHED], vec![]));
    assert_eq!(queue.posted(), 1);
}

#[test]
fn receives_of_an_srq_are_to_memory_of_its_pd() {
    let mut pair = Pair::rc();
    let (srq, ring) = pair.b.with(|engine| engine.create_srq(PD + 1, 8, 2, 0, pair.b.sink())).unwrap();
    // SAFETY: the ring is that of the SRQ, and this is its only producer.
    let mut queue = unsafe { RxeRq::new(Memory(ring), 8, 2) }.unwrap();
    let start = pair.b.start();
    let attr = MrAttr { pd: PD + 1, start, length: 4096, iova: start, access: AccessFlags::LOCAL_WRITE };
    let mr = pair.b.with(|engine| engine.register(attr.prepare()?)).unwrap();
    // The keys of both PDs, in this order.
    receive(&mut queue, 1, &[Sge { addr: start, length: 8, lkey: mr.lkey }]);
    receive(&mut queue, 2, &[pair.b.sge(0, 8)]);
    let qb = pair.b.qp_of(QpInit { srq: Some(srq), ..pair.b.init(QpType::RC) });
    let mut qa = pair.a.qp(QpType::RC);
    pair.b.connect(&qb, (2, qa.qpn));
    pair.a.connect(&qa, (3, qb.qpn));
    qa.post(1, Operation::Send, &[pair.a.sge(0, 8)]);
    qa.post(2, Operation::Send, &[pair.a.sge(0, 8)]);
    assert_eq!(pair.b.drain(), [(1, OK), (2, WcStatus::LOC_QP_OP_ERR)]);
}

#[test]
fn full_cq_fails_once_and_keeps_its_completions() {
    let fabric = Fabric::new();
    let (mut a, b) = (Peer::new(&fabric, 2, 3), Peer::new(&fabric, 3, 8));
    let (mut qa, qb) = (a.qp(QpType::RC), b.qp(QpType::RC));
    a.connect(&qa, (3, qb.qpn));
    b.connect(&qb, (2, qa.qpn));
    for wr_id in 0..6 {
        qa.post(wr_id, Operation::Write(b.remote(0)), &[a.sge(0, 8)]);
    }
    assert_eq!(a.events(), [EventType::CQ_ERR]);
    assert_eq!(a.drain(), [(0, OK), (1, OK), (2, OK)]);
}

/// Reads the completion events. Returns their number.
fn comp_events(peer: &Peer) -> usize {
    let mut bytes = [0; 8];
    let fd = &peer.comp_channel.1;
    let flags = rustix::fs::fcntl_getfl(fd).unwrap();
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    std::iter::from_fn(|| rustix::io::read(fd, &mut bytes).ok()).count()
}

#[test]
fn armed_cq_raises_one_event() {
    let mut pair = Pair::rc();
    let send = |pair: &mut Pair, flags: SendFlags| {
        pair.qb.receive(1, &[pair.b.sge(0, 8)]);
        let sge = pair.a.sge(0, 8);
        pair.qa.push(1, Operation::Send, flags, Payload::Sges(&[sge]));
        pair.qa.sq.ring().unwrap();
        comp_events(&pair.b)
    };
    assert_eq!(send(&mut pair, SendFlags::empty()), 0);
    pair.b.completions.arm(false).unwrap();
    assert_eq!(send(&mut pair, SendFlags::empty()), 1);
    assert_eq!(send(&mut pair, SendFlags::empty()), 0);
    pair.b.completions.arm(true).unwrap();
    assert_eq!(send(&mut pair, SendFlags::empty()), 0);
    assert_eq!(send(&mut pair, SendFlags::SOLICITED), 1);
}

#[test]
fn resized_cq_keeps_its_completions() {
    let mut pair = Pair::rc();
    let mut expected = vec![];
    for wr_id in 0..50 {
        pair.qa.post(wr_id, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
        if wr_id < 40 { assert_eq!(pair.a.wait().wr_id, wr_id) } else { expected.push((wr_id, OK)) }
    }
    assert_eq!(pair.a.with(|engine| engine.resize_cq(pair.a.cq, 9)).map(drop), Err(Errno::INVAL));
    let queue = |peer: &Peer| peer.with(|engine| engine.port.cqs.get(peer.cq).unwrap().memory());
    let before = queue(&pair.a);
    let ring = pair.a.with(|engine| engine.resize_cq(pair.a.cq, 10)).unwrap();
    // A program that polls the old ring finds nothing.
    // SAFETY: the header is within the mapping, which nothing writes now.
    let header = unsafe { before.mapping().as_ptr().as_ptr().cast::<QueueBuf>().read() };
    assert_eq!(header.producer_index, header.consumer_index);
    // SAFETY: the device has moved to the new ring.
    unsafe { pair.a.completions.finish_resize(Ok(Memory(ring)), 10) }.unwrap();
    pair.qa.post(50, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
    expected.push((50, OK));
    assert_eq!(pair.a.drain(), expected);
}

#[test]
fn capacities_are_those_of_soft_roce() {
    let peer = Peer::new(&Fabric::new(), 2, 8);
    let made = peer.with(|engine| engine.create_qp(peer.init(QpType::RC))).unwrap();
    assert_eq!((made.max_send_wr, made.max_recv_wr), (31, 31));
    assert_eq!((made.max_send_sge, made.max_inline), (4, 64));
    let init = QpInit { max_inline: 100, ..peer.init(QpType::RC) };
    let made = peer.with(|engine| engine.create_qp(init)).unwrap();
    assert_eq!((made.max_send_sge, made.max_inline), (6, 100));
    let init = peer.init(QpType::RAW_PACKET);
    assert_eq!(peer.with(|engine| engine.create_qp(init)).map(drop), Err(Errno::OPNOTSUPP));
}

#[test]
fn window_of_type_2_is_of_one_qp() {
    let mut pair = Pair::rc();
    let (_, rkey) = window(&pair.b, MwType::TYPE_2);
    let mut other = [pair.a.qp(QpType::RC), pair.b.qp(QpType::RC)];
    pair.a.connect(&other[0], (3, other[1].qpn));
    pair.b.connect(&other[1], (2, other[0].qpn));
    assert_eq!(bind(&mut pair.b, &mut pair.qb, MwType::TYPE_2, rkey, AccessFlags::REMOTE_WRITE), OK);
    let remote = Remote { addr: pair.b.start() + 1000, rkey: rkey ^ 0x55 };
    pair.qa.post(1, Operation::Write(remote), &[pair.a.sge(0, 8)]);
    other[0].post(2, Operation::Write(remote), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), [(1, OK), (2, WcStatus::REM_ACCESS_ERR)]);
}

#[test]
fn failed_completion_is_an_event_of_a_cq_armed_for_solicited_ones() {
    let mut pair = Pair::rc();
    pair.a.completions.arm(true).unwrap();
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
    assert_eq!((pair.a.drain(), comp_events(&pair.a)), (vec![(1, OK)], 0));
    let bad = Operation::Write(Remote { rkey: 0, ..pair.b.remote(0) });
    pair.qa.post(2, bad, &[pair.a.sge(0, 8)]);
    assert_eq!((pair.a.drain(), comp_events(&pair.a)), (vec![(2, WcStatus::REM_ACCESS_ERR)], 1));
}

#[test]
fn fault_of_a_destroyed_qp_does_not_fail_a_later_qp() {
    let mut pair = Pair::rc();
    let qpn = pair.qa.qpn;
    assert!(pair.a.with(|engine| engine.fail_completion(qpn, 1, WcStatus::REM_OP_ERR)));
    pair.a.with(|engine| engine.destroy_qp(qpn));
    // Numbers are used again.
    while pair.qa.qpn != qpn || pair.a.with(|engine| engine.qp_state(qpn)).is_none() {
        pair.a.with(|engine| engine.destroy_qp(pair.qa.qpn));
        pair.qa = pair.a.qp(QpType::RC);
    }
    pair.a.connect(&pair.qa, (3, pair.qb.qpn));
    pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, 8)]);
    assert_eq!(pair.a.drain(), [(1, OK)]);
}

#[test]
fn requests_behind_a_failed_completion_are_flushed() {
    let mut pair = Pair::rc();
    assert!(pair.a.with(|engine| engine.fail_completion(pair.qa.qpn, 2, WcStatus::REM_OP_ERR)));
    let sge = [pair.a.sge(0, 8)];
    for wr_id in 1..4 {
        let operation = Operation::Write(pair.b.remote(0));
        pair.qa.push(wr_id, operation, SendFlags::SIGNALED, Payload::Sges(&sge));
    }
    // One ACK completes all.
    pair.qa.sq.ring().unwrap();
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(pair.a.drain(), [(1, OK), (2, WcStatus::REM_OP_ERR), (3, flushed)]);
}

#[test]
fn keys_of_a_number_that_is_used_again_differ() {
    let peer = Peer::new(&Fabric::new(), 2, 8);
    let register = || peer.with(|engine| engine.register(attr(&peer, all_rights()).prepare()?)).unwrap();
    let deregister = |mr: Mr| peer.with(|engine| engine.deregister(mr.id)).unwrap();
    let first = register();
    deregister(first);
    let again = loop {
        let mr = register();
        if mr.id == first.id {
            break mr;
        }
        deregister(mr);
    };
    assert_ne!(again.lkey, first.lkey);
}

#[test]
fn device_without_link_neither_sends_nor_receives() {
    let mut pair = Pair::new(QpType::UC);
    let [remote_a, remote_b] = [pair.a.remote(0), pair.b.remote(0)];
    pair.a.fill(8, &[1; 8]);
    pair.b.fill(8, &[2; 8]);
    for (up, expected) in [(false, [0; 8]), (true, [1; 8])] {
        pair.a.with(|engine| engine.set_link(up));
        pair.qa.post(1, Operation::Write(remote_b), &[pair.a.sge(8, 8)]);
        assert_eq!((pair.a.drain(), pair.b.bytes(0, 8)), (vec![(1, OK)], expected.to_vec()));
        pair.qb.post(1, Operation::Write(remote_a), &[pair.b.sge(8, 8)]);
        assert_eq!(
            (pair.b.drain(), pair.a.bytes(0, 8)),
            (vec![(1, OK)], expected.map(|byte| 2 * byte).to_vec())
        );
    }
}
