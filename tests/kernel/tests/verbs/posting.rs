use bareverbs::WcStatus;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{
    Operation, Payload, QpAttr, QpAttrMask, QpCap, QpState, RecvRequest, SendFlags, SendRequest,
};
use bareverbs_kernel_tests::kernel_test;

use crate::pair::{End, contents, message, open, pair, pair_in, region};

#[kernel_test]
fn batch_of_64_completes_in_order() {
    let pd = open().alloc_pd().unwrap();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, max_inline_data: 8, ..QpCap::default() };
    let (mut a, mut b) = pair_in(&pd, cap);
    let target = region(&pd, &[0; 8]);
    for wr_id in 0..64 {
        b.recv(wr_id, &target);
    }
    let mut batch = a.qp.start_send();
    for wr_id in 0..64_u64 {
        batch.send_inline(wr_id, &wr_id.to_ne_bytes(), SendFlags::SIGNALED).unwrap();
    }
    assert_eq!(batch.len(), 64);
    batch.ring().unwrap();
    for end in [&mut a, &mut b] {
        let completions = end.completions(64);
        assert!(completions.iter().all(|completion| completion.status == WcStatus::SUCCESS));
        assert!(completions.iter().map(|completion| completion.wr_id).eq(0..64));
    }
}

#[kernel_test]
fn full_queue_reports_accepted_count() {
    let (pd, mut a, mut b) = pair();
    let target = region(&pd, &[0; 8]);
    let room = b.qp.split().1.capacity() as usize;
    let sges = [target.sge(..).unwrap()];
    let receives: Vec<_> = (0..room as u64 + 3).map(|wr_id| RecvRequest { wr_id, sges: &sges }).collect();
    // SAFETY: the region outlives the queue pair.
    let refused = unsafe { b.qp.post_recv(&receives) }.unwrap_err();
    let received = room;
    assert_eq!(refused.accepted, received);
    assert!(matches!(refused.reason, PostReason::Queue(PushError::QueueFull { .. })), "{refused}");

    let room = a.qp.split().0.capacity() as usize;
    let payload = Payload::Inline(&[b"x"]);
    let sends: Vec<_> = (0..room as u64 + 1).map(|wr_id| message(wr_id, payload)).collect();
    // SAFETY: the requests are inline.
    let refused = unsafe { a.qp.post_send(&sends) }.unwrap_err();
    assert_eq!(refused.accepted, room);
    assert_eq!(refused.reason, PostReason::Queue(PushError::QueueFull { capacity: room as u32 }));
    // A send queue may be deeper than requested.
    let more = room.saturating_sub(received);
    b.completions(more);
    (0..more).for_each(|_| b.recv(0, &target));
    let completions = a.completions(room);
    assert!(completions.iter().all(|completion| completion.status == WcStatus::SUCCESS));
    assert!(completions.iter().map(|completion| completion.wr_id).eq(0..room as u64));
    // There is room again.
    a.send(&sends[room]);
}

#[kernel_test]
fn dropped_batch_sends_nothing() {
    let (pd, mut a, mut b) = pair();
    let target = region(&pd, &[0; 8]);
    b.recv(1, &target);
    let mut batch = a.qp.start_send();
    batch.send_inline(2, b"dropped", SendFlags::SIGNALED).unwrap();
    drop(batch);
    a.send(&message(3, Payload::Inline(&[b"sent"])));
    assert_eq!(a.completion().wr_id, 3);
    assert_eq!(b.completion().byte_len, 4);
    assert_eq!(&contents(&target)[..5], b"sent\0");
}

#[kernel_test]
fn posting_in_reset_is_rejected() {
    let pd = open().alloc_pd().unwrap();
    let mut end = End::new(&pd, QpCap { max_inline_data: 8, ..QpCap::default() });
    let target = region(&pd, &[0; 8]);
    let sges = [target.sge(..).unwrap()];
    // SAFETY: the request is rejected.
    let refused = unsafe { end.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]) }.unwrap_err();
    assert_eq!((refused.accepted, refused.reason), (0, PostReason::State(QpState::RESET)));
    // SAFETY: the request is rejected.
    let refused = unsafe { end.qp.post_send(&[message(1, Payload::Sges(&sges))]) }.unwrap_err();
    assert_eq!((refused.accepted, refused.reason), (0, PostReason::State(QpState::RESET)));
    assert!(refused.to_string().contains("the QP is in RESET"), "{refused}");
    assert!(end.cq.poll_one().is_none());
}

#[kernel_test]
fn requests_that_exceed_the_queue_are_rejected() {
    let (pd, mut a, _b) = pair();
    let source = region(&pd, &[0; 64]);
    let element = source.sge(..8).unwrap();
    let mut refused = |payload| {
        let request =
            SendRequest { wr_id: 1, operation: Operation::Send, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the request is rejected.
        unsafe { a.qp.post_send(&[request]) }.unwrap_err().reason
    };
    let elements = [element; 33];
    let reason = refused(Payload::Sges(&elements));
    assert!(matches!(reason, PostReason::Queue(PushError::TooManySges { given: 33, .. })), "{reason}");
    let reason = refused(Payload::Inline(&[&[0; 2000]]));
    assert!(matches!(reason, PostReason::Queue(PushError::InlineTooLong { given: 2000, .. })), "{reason}");
}

#[kernel_test]
fn lkey_of_another_pd_completes_with_loc_prot_err() {
    let (pd, mut a, mut b) = pair();
    let foreign = region(&pd.context().alloc_pd().unwrap(), b"not here");
    let target = region(&pd, &[0; 8]);
    b.recv(1, &target);
    a.send(&message(2, Payload::Sges(&[foreign.sge(..).unwrap()])));
    let completion = a.completions(1)[0];
    assert_eq!(completion.wr_id, 2);
    // From 6.4 on, Soft-RoCE flushes the failing request like all others, and reports the status
    // separately.
    let failure = a.qp.failure().filter(|failure| failure.wr_id == 2);
    assert_eq!(a.qp.split().0.failure(), a.qp.failure());
    let status = failure.map_or(completion.status, |failure| failure.status);
    assert!(matches!(status, WcStatus::LOC_PROT_ERR | WcStatus::LOC_QP_OP_ERR), "{status:?}");
    assert!(pd.context().explain(status).contains("another PD"));
    assert_eq!(contents(&target), [0; 8]);
}

#[kernel_test]
fn message_longer_than_its_receive_fails_both_sides() {
    let (pd, mut a, mut b) = pair();
    let target = region(&pd, &[0; 4]);
    b.recv(1, &target);
    a.send(&message(2, Payload::Inline(&[b"too long"])));
    let (sent, received) = (a.completions(1)[0].status, b.completions(1)[0].status);
    // The status depends on the kernel.
    assert!(matches!(sent, WcStatus::REM_INV_REQ_ERR | WcStatus::REM_OP_ERR), "{sent:?}");
    assert!(matches!(received, WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR), "{received:?}");
}

#[kernel_test]
fn rnr_retries_end_with_rnr_retry_exc_err() {
    let pd = open().alloc_pd().unwrap();
    let cap = QpCap { max_inline_data: 8, ..QpCap::default() };
    let (mut a, mut b) = (End::new(&pd, cap), End::new(&pd, cap));
    let (a_num, b_num) = (a.qp.qp_num(), b.qp.qp_num());
    a.connect_with(b_num, 1);
    b.connect_with(a_num, 7);
    a.send(&message(1, Payload::Inline(&[b"anyone?"])));
    assert_eq!(a.completions(1)[0].status, WcStatus::RNR_RETRY_EXC_ERR);
}

#[kernel_test]
fn unreachable_peer_exhausts_retries_and_flushes() {
    let (_pd, mut a, b) = pair();
    drop(b);
    for wr_id in 0..3 {
        a.send(&message(wr_id, Payload::Inline(&[b"hello?"])));
    }
    let ends: Vec<_> =
        a.completions(3).iter().map(|completion| (completion.wr_id, completion.status)).collect();
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(ends, [(0, WcStatus::RETRY_EXC_ERR), (1, flushed), (2, flushed)]);
    assert_eq!(a.qp.query().unwrap().0.qp_state, QpState::ERR);
}

#[kernel_test]
fn err_state_flushes_receives() {
    let (pd, _a, mut b) = pair();
    let target = region(&pd, &[0; 4]);
    for wr_id in 0..3 {
        b.recv(wr_id, &target);
    }
    b.qp.modify(&QpAttr { qp_state: QpState::ERR, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    let completions = b.completions(3);
    assert!(
        completions.iter().all(|completion| completion.status == WcStatus::WR_FLUSH_ERR),
        "{completions:?}"
    );
    assert!(completions.iter().map(|completion| completion.wr_id).eq(0..3));
}
