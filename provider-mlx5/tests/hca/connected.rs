//! Sends, writes, reads and atomics on RC and UC queue pairs.

use bareverbs_mlx5_testbed::{Testbed, cap, poll, push, recv, request, send};
use bareverbs_provider::traits::SendQueue;
use bareverbs_provider::work::{
    Imm, Operation, Payload, PushError, SendFlags, SendRequest, WcFlags, WcOpcode, WcStatus,
};
use bareverbs_uapi::uverbs::types::QpType;
use proptest::prelude::*;

#[test]
fn send_completes_on_both_sides() {
    let mut testbed = Testbed::new();
    let (mut left, mut right, mut cq) = testbed.connected(QpType::RC, &cap(8, 64));
    testbed.write(0, b"hello, peer");
    recv(right.rq.as_mut().expect("receives"), 5, &[testbed.sge(0x1000, 64)]);
    send(&mut left.sq, &request(4, Operation::SendImm(Imm(7)), &[testbed.sge(0, 11)]));
    testbed.run();

    let done = poll(&mut cq);
    let sent = done.iter().find(|wc| wc.wr_id == 4).expect("a send's completion");
    let received = done.iter().find(|wc| wc.wr_id == 5).expect("a receive's completion");
    assert_eq!((sent.status, sent.opcode, sent.qp_num), (WcStatus::SUCCESS, WcOpcode::SEND, left.number));
    assert_eq!((received.status, received.opcode), (WcStatus::SUCCESS, WcOpcode::RECV));
    assert_eq!((received.byte_len, received.qp_num), (11, right.number));
    assert_eq!((received.wc_flags, received.imm()), (WcFlags::WITH_IMM, Some(Imm(7))));
    assert_eq!(testbed.read(0x1000, 11), b"hello, peer");
}

#[test]
fn rdma_operations_reach_peer_memory() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(8, 64));
    testbed.write(0, b"written");
    testbed.write(0x2000, &5u64.to_ne_bytes());
    let local = [testbed.sge(0, 7)];
    let result = [testbed.sge(0x3000, 8)];
    let back = [testbed.sge(0x4000, 7)];
    let remote = testbed.remote(0x1000);
    let counter = testbed.remote(0x2000);
    for request in [
        request(1, Operation::Write(remote), &local),
        request(2, Operation::Read(remote), &back),
        request(3, Operation::FetchAdd { remote: counter, add: 3 }, &result),
        request(4, Operation::CmpSwp { remote: counter, compare: 8, swap: 99 }, &result),
    ] {
        send(&mut left.sq, &request);
        testbed.run();
    }
    let done = poll(&mut cq);
    let opcodes: Vec<_> = done.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode, wc.byte_len)).collect();
    assert_eq!(
        opcodes,
        [
            (1, WcStatus::SUCCESS, WcOpcode::RDMA_WRITE, 0),
            (2, WcStatus::SUCCESS, WcOpcode::RDMA_READ, 7),
            (3, WcStatus::SUCCESS, WcOpcode::FETCH_ADD, 8),
            (4, WcStatus::SUCCESS, WcOpcode::COMP_SWAP, 8),
        ]
    );
    assert_eq!(testbed.read(0x4000, 7), b"written");
    assert_eq!(testbed.read(0x2000, 8), 99u64.to_ne_bytes());
    assert_eq!(testbed.read(0x3000, 8), 8u64.to_ne_bytes());
}

#[test]
fn batch_completes_in_order_after_one_doorbell() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(32, 64));
    let local = [testbed.sge(0, 8)];
    for wr_id in 0..20 {
        push(&mut left.sq, &request(wr_id, Operation::Write(testbed.remote(0x1000)), &local)).expect("room");
    }
    testbed.run();
    assert!(poll(&mut cq).is_empty(), "nothing was rung");
    left.sq.ring().expect("rung");
    testbed.run();
    let ids: Vec<_> = poll(&mut cq).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
}

#[test]
fn aborted_requests_are_never_executed() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(8, 64));
    let local = [testbed.sge(0, 8)];
    push(&mut left.sq, &request(1, Operation::Write(testbed.remote(0x1000)), &local)).expect("room");
    left.sq.abort();
    send(&mut left.sq, &request(2, Operation::Write(testbed.remote(0x1000)), &local));
    testbed.run();
    let ids: Vec<_> = poll(&mut cq).iter().map(|wc| wc.wr_id).collect();
    assert_eq!(ids, [2]);
}

#[test]
fn send_queue_is_full_until_cqe_is_polled() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(4, 0));
    let local = [testbed.sge(0, 8)];
    let write = |flags| SendRequest { flags, ..request(9, Operation::Write(testbed.remote(0x1000)), &local) };
    let capacity = left.sq.capacity();
    // Only the last request of a round is signalled.
    let unsignaled = write(SendFlags::empty());
    let signaled = write(SendFlags::SIGNALED);
    for _ in 0..3 {
        for _ in 1..capacity {
            push(&mut left.sq, &unsignaled).expect("room");
        }
        push(&mut left.sq, &signaled).expect("room");
        assert_eq!(push(&mut left.sq, &signaled), Err(PushError::QueueFull { capacity }));
        left.sq.ring().expect("rung");
        testbed.run();
        assert_eq!(push(&mut left.sq, &signaled), Err(PushError::QueueFull { capacity }), "not polled yet");
        assert_eq!(poll(&mut cq).len(), 1);
    }
}

#[test]
fn bad_lkey_fails_request_and_flushes_queue() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(8, 64));
    let local = [testbed.sge(0, 8)];
    let mut remote = testbed.remote(0x1000);
    remote.rkey ^= 0x100;
    send(&mut left.sq, &request(1, Operation::Write(remote), &local));
    send(&mut left.sq, &request(2, Operation::Write(testbed.remote(0x1000)), &local));
    testbed.run();
    let done: Vec<_> = poll(&mut cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(1, WcStatus::REM_ACCESS_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn zero_length_sge_transfers_nothing() {
    let mut testbed = Testbed::new();
    let (mut left, mut right, mut cq) = testbed.connected(QpType::RC, &cap(8, 64));
    testbed.write(0, b"ab");
    let sges = [testbed.sge(0, 1), testbed.sge(0, 0), testbed.sge(1, 1)];
    let into = [testbed.sge(0x1000, 0), testbed.sge(0x1000, 4)];
    recv(right.rq.as_mut().expect("receives"), 1, &into);
    send(&mut left.sq, &request(2, Operation::Send, &sges));
    testbed.run();
    assert!(poll(&mut cq).iter().all(|wc| wc.status == WcStatus::SUCCESS));
    assert_eq!(testbed.read(0x1000, 3), b"ab\0");
}

#[test]
fn uc_rejects_reads_and_atomics() {
    let mut testbed = Testbed::new();
    let (mut left, mut right, mut cq) = testbed.connected(QpType::UC, &cap(8, 64));
    testbed.write(0, b"unreliable");
    let local = [testbed.sge(0, 10)];
    recv(right.rq.as_mut().expect("receives"), 1, &[testbed.sge(0x1000, 64)]);
    send(&mut left.sq, &request(2, Operation::Send, &local));
    send(&mut left.sq, &request(3, Operation::Write(testbed.remote(0x2000)), &local));
    testbed.run();
    assert_eq!(poll(&mut cq).len(), 3);
    assert_eq!(testbed.read(0x1000, 10), testbed.read(0x2000, 10));
    let refused = push(&mut left.sq, &request(4, Operation::Read(testbed.remote(0)), &local));
    assert_eq!(refused, Err(PushError::Unsupported { operation: "an RDMA read" }));
}

#[test]
fn oversized_request_is_rejected_without_side_effect() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(8, 16));
    let sges = [testbed.sge(0, 8); 9];
    let max = 1 << 30;
    let long = [testbed.sge(0, max as u32), testbed.sge(0, 1)];
    let write = Operation::Write(testbed.remote(0));
    let inline =
        |operation, parts| SendRequest { payload: Payload::Inline(parts), ..request(1, operation, &[]) };
    let odd = Operation::FetchAdd { remote: testbed.remote(4), add: 1 };
    let fetch = Operation::FetchAdd { remote: testbed.remote(8), add: 1 };
    let many = vec![0; 4096];
    let parts: [&[u8]; 1] = [&many];
    assert!(matches!(
        push(&mut left.sq, &request(1, write, &sges)),
        Err(PushError::TooManySges { given: 9, .. })
    ));
    let too_long = Err(PushError::MessageTooLong { given: max + 1, max });
    assert_eq!(push(&mut left.sq, &request(1, write, &long)), too_long);
    let too_long = push(&mut left.sq, &inline(write, &parts));
    assert!(matches!(too_long, Err(PushError::InlineTooLong { given: 4096, .. })));
    let read = push(&mut left.sq, &inline(Operation::Read(testbed.remote(0)), &[]));
    assert_eq!(read, Err(PushError::InlineResult));
    let unaligned = Err(PushError::AtomicAddress { addr: testbed.address(4) });
    assert_eq!(push(&mut left.sq, &request(1, odd, &sges[..1])), unaligned);
    let two = push(&mut left.sq, &request(1, fetch, &sges[..2]));
    assert_eq!(two, Err(PushError::AtomicResult { given: 16 }));
    let payload = push(&mut left.sq, &request(1, Operation::LocalInv(1), &sges[..1]));
    assert!(matches!(payload, Err(PushError::UnexpectedPayload { .. })));

    send(&mut left.sq, &request(2, write, &sges[..1]));
    testbed.run();
    let done: Vec<_> = poll(&mut cq).iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(done, [(2, WcStatus::SUCCESS)]);
}

/// Many short parts, so that requests begin and end at every position of the ring.
fn parts() -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn inline_data_survive_ring_wrap(messages in proptest::collection::vec(parts(), 1..40)) {
        let mut testbed = Testbed::new();
        let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(3, 300));
        let write = Operation::Write(testbed.remote(0x1000));
        for (wr_id, parts) in messages.iter().enumerate() {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let request = SendRequest { payload: Payload::Inline(&slices), ..request(wr_id as u64, write, &[]) };
            send(&mut left.sq, &request);
            testbed.run();
            let done = poll(&mut cq);
            prop_assert_eq!(done.len(), 1);
            prop_assert_eq!((done[0].wr_id, done[0].status), (wr_id as u64, WcStatus::SUCCESS));
            let whole = slices.concat();
            prop_assert_eq!(testbed.read(0x1000, whole.len()), whole);
        }
    }

    #[test]
    fn gathered_data_survive_ring_wrap(
        messages in proptest::collection::vec(proptest::collection::vec((0usize..0x800, 0u32..200), 0..5), 1..40),
    ) {
        let mut testbed = Testbed::new();
        let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(3, 0));
        let source: Vec<u8> = (0..0x900).map(|at| (at * 7 % 251) as u8).collect();
        testbed.write(0, &source);
        let write = Operation::Write(testbed.remote(0x1000));
        for (wr_id, runs) in messages.iter().enumerate() {
            let runs = &runs[..runs.len().min(4)];
            let sges: Vec<_> = runs.iter().map(|(at, length)| testbed.sge(*at, *length)).collect();
            send(&mut left.sq, &request(wr_id as u64, write, &sges));
            testbed.run();
            let done = poll(&mut cq);
            prop_assert_eq!(done.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>(), [(wr_id as u64, WcStatus::SUCCESS)]);
            let whole: Vec<u8> =
                runs.iter().flat_map(|(at, length)| source[*at..*at + *length as usize].to_vec()).collect();
            prop_assert_eq!(testbed.read(0x1000, whole.len()), whole);
        }
    }
}
