//! Full queues and invalid requests.

use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::error::{PostError, PostReason, PushError};
use bareverbs::qp::{Operation, Payload, QpCap, QpState, RecvRequest, SendFlags, SendRequest, Sge};
use bareverbs::srq::SrqInit;
use bareverbs::values::RnrRetry;
use bareverbs::{Access, Remote, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, kernel_test, skip};

const HELLO: Payload<'_> = Payload::Inline(&[b"hello"]);

fn hello(wr_id: u64) -> SendRequest<'static> {
    request(wr_id, Operation::Send, HELLO)
}

/// Messages wait for their receives without limit.
fn long_timeouts() -> Plan {
    Plan { rnr_retry: RnrRetry::new(7).unwrap(), ..Plan::default() }
}

fn good(range: impl Iterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    range.map(|wr_id| (wr_id, WcStatus::SUCCESS)).collect()
}

#[kernel_test(device::acknowledges)]
fn full_send_queue_frees_exactly_the_completed_slots() {
    nothing_leaks(|| {
        let pd = domain();
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 64, ..long_timeouts().cap };
        let (mut a, mut b) = pair(&pd, Plan { cap, ..long_timeouts() });
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let sges = [target.sge(..).unwrap()];
        let capacity = a.qp.split().0.capacity() as usize;
        assert!(capacity >= 8);
        let full = PostReason::Queue(PushError::QueueFull { capacity: capacity as u32 });

        // Without receives at the peer no send completes.
        let requests: Vec<_> = (0..capacity as u64 + 3).map(hello).collect();
        let refused = a.send(&requests).unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (capacity, full));
        assert_eq!(
            refused.to_string(),
            format!(
                "{capacity} requests were posted, the next was rejected: the queue is full \
                 ({capacity} requests): poll completions first, or create a deeper queue"
            )
        );
        let again = a.send(&requests[capacity..]).unwrap_err();
        assert_eq!((again.accepted, again.reason), (0, full));

        // Five complete, and exactly five more fit.
        b.recv_into(100, 5, &sges);
        assert_eq!(a.ends(5), good(0..5));
        let more: Vec<_> = (100..110).map(hello).collect();
        let refused = a.send(&more).unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (5, full));

        b.recv_into(105, capacity as u64, &sges);
        assert_eq!(a.ends(capacity), good((5..capacity as u64).chain(100..105)));
        assert_eq!(b.ends(capacity + 5), good(100..105 + capacity as u64));
        assert!(a.cq.poll_one().is_none(), "the refused requests were carried out too");
    });
}

#[kernel_test]
fn full_recv_queue_frees_exactly_the_completed_slots() {
    nothing_leaks(|| {
        let pd = domain();
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 8, ..long_timeouts().cap };
        let (mut a, mut b) = pair(&pd, Plan { cap, ..long_timeouts() });
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let sges = [target.sge(..).unwrap()];
        let capacity = b.qp.split().1.capacity() as usize;
        let full = PostReason::Queue(PushError::QueueFull { capacity: capacity as u32 });
        let receives = |first: u64, count: usize| {
            (first..first + count as u64).map(|wr_id| RecvRequest { wr_id, sges: &sges }).collect::<Vec<_>>()
        };

        let refused = b.recv(&receives(0, capacity + 2)).unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (capacity, full));
        for wr_id in 0..3 {
            a.send(&[hello(wr_id)]).unwrap();
        }
        assert_eq!(b.ends(3), good(0..3));
        let refused = b.recv(&receives(100, 7)).unwrap_err();
        assert_eq!((refused.accepted, refused.reason), (3, full));
        for wr_id in 3..3 + capacity as u64 {
            a.send(&[hello(wr_id)]).unwrap();
        }
        assert_eq!(b.ends(capacity), good((3..capacity as u64).chain(100..103)));
        assert_eq!(a.ends(capacity + 3), good(0..capacity as u64 + 3));
        assert!(b.cq.poll_one().is_none(), "the refused receives were used too");
    });
}

#[kernel_test]
fn rejected_request_in_a_list_keeps_earlier_ones_posted() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let sges = [target.sge(..).unwrap()];
        b.recv_into(0, 8, &sges);
        let max = a.qp.cap().max_send_sge as usize;
        let many = vec![target.sge(..1).unwrap(); max + 1];
        let requests = [hello(0), hello(1), request(2, Operation::Send, Payload::Sges(&many)), hello(3)];
        let refused = a.send(&requests).unwrap_err();
        assert_eq!(refused.accepted, 2);
        assert_eq!(refused.reason, PostReason::Queue(PushError::TooManySges { given: max + 1, max }));
        assert_eq!(
            refused.to_string(),
            format!(
                "2 requests were posted, the next was rejected: {} SGEs exceed the maximum of \
                 {max} per request",
                max + 1
            )
        );
        a.send(&requests[3..]).unwrap();
        assert_eq!(a.ends(3), good([0, 1, 3].into_iter()));
        assert_eq!(b.ends(3), good(0..3));

        let max = b.qp.cap().max_recv_sge as usize;
        let many = vec![sges[0]; max + 1];
        let receive = RecvRequest { wr_id: 8, sges: &sges };
        let refused = b.recv(&[receive, RecvRequest { wr_id: 9, sges: &many }, receive]).unwrap_err();
        assert_eq!(refused.accepted, 1);
        assert_eq!(refused.reason, PostReason::Queue(PushError::TooManySges { given: max + 1, max }));
    });
}

#[kernel_test]
fn invalid_requests_are_rejected_before_posting() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 64], ALL_REMOTE);
        let remote = target.remote(0).unwrap();
        let eight = [target.sge(..8).unwrap()];
        let seven = [target.sge(..7).unwrap()];
        let odd = Remote { addr: remote.addr + 4, ..remote };
        let long = vec![0; a.qp.cap().max_inline_data as usize + 1];
        let giant = [Sge { length: u32::MAX, ..eight[0] }];
        let add = |remote| Operation::FetchAdd { remote, add: 1 };
        let swap = |remote| Operation::CmpSwp { remote, compare: 0, swap: 1 };
        let cases = [
            (Operation::Send, Payload::Inline(&[&long]), "inline bytes exceed the maximum of"),
            (Operation::Read(remote), HELLO, "cannot use inline data: pass an SGE for the result"),
            (add(remote), HELLO, "cannot use inline data: pass an SGE for the result"),
            (add(remote), Payload::Sges(&seven), "requires an SGE of 8 bytes, not 7"),
            (swap(remote), Payload::Sges(&[]), "requires an SGE of 8 bytes, not 0"),
            (add(odd), Payload::Sges(&eight), "must be a multiple of 8: 0x"),
            (swap(odd), Payload::Sges(&eight), "must be a multiple of 8: 0x"),
            (Operation::Send, Payload::Sges(&giant), "bytes exceeds the maximum of"),
        ];
        for (operation, payload, words) in cases {
            let is_atomic = matches!(operation, Operation::FetchAdd { .. } | Operation::CmpSwp { .. });
            if is_atomic && device::atomics().is_err() {
                continue;
            }
            let refused = a.send(&[request(1, operation, payload)]).unwrap_err();
            assert_eq!(refused.accepted, 0);
            let text = refused.to_string();
            assert!(text.starts_with("no request was posted: ") && text.contains(words), "{text}");
        }
        // The queue pair is unchanged.
        assert_eq!(a.kernel_state(), QpState::RTS);
        b.recv_into(5, 1, &eight);
        a.send(&[hello(6)]).unwrap();
        assert_eq!((a.ends(1), b.ends(1)), (good(6..7), good(5..6)));
        assert_eq!(contents(&target)[..6], *b"hello\0");
    });
}

#[kernel_test]
fn total_length_overflow_is_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 64], ALL_REMOTE);
        let sge = |length| Sge { length, ..target.sge(..).unwrap() };
        // Soft-RoCE transfers longer messages than its port reports, and Soft-iWARP shorter ones. Receives
        // may be longer than any message, except on Soft-iWARP.
        let of_port = pd.context().query_port(1).unwrap().max_msg_sz;
        let max = match () {
            () if device::has_rxe_abi() => 1 << 31,
            () if device::is_iwarp() => (1 << 31) - 1,
            () => of_port.into(),
        };
        // Truncated to 32 bits, these sums are 0, 4 and 2 bytes.
        for lengths in [&[1 << 31, 1 << 31][..], &[u32::MAX, 5], &[0x7fff_ffff, 0x7fff_ffff, 4, u32::MAX - 1]]
        {
            let sges: Vec<_> = lengths.iter().map(|length| sge(*length)).collect();
            let given = lengths.iter().map(|length| u64::from(*length)).sum();
            let is_beyond = |refused: Result<(), PostError>, max, what: &str| {
                let refused = refused.unwrap_err();
                let reason = PostReason::Queue(PushError::MessageTooLong { given, max });
                assert_eq!((refused.accepted, refused.reason), (0, reason), "{what}");
            };
            for operation in [
                Operation::Send,
                Operation::Write(target.remote(0).unwrap()),
                Operation::Read(target.remote(0).unwrap()),
            ] {
                if matches!(operation, Operation::Read(_)) && device::read_lists().is_err() {
                    continue;
                }
                let refused = a.send(&[request(1, operation, Payload::Sges(&sges))]);
                is_beyond(refused, max, operation.name());
            }
            let of_receive = if device::is_iwarp() { max } else { 1 << 31 };
            is_beyond(b.recv(&[RecvRequest { wr_id: 1, sges: &sges }]), of_receive, "a receive");
            let mut srq = pd.create_srq(&SrqInit { max_sge: 4, ..SrqInit::new(4) }).unwrap();
            // SAFETY: the request is rejected.
            let refused = unsafe { srq.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]) };
            is_beyond(refused, of_receive, "a receive of an SRQ");
        }
        // Each part of the inline data fits, but not their sum.
        let limit = a.qp.cap().max_inline_data as usize;
        let half = vec![0; limit / 2 + 1];
        let refused = a.send(&[request(1, Operation::Send, Payload::Inline(&[&half, &half]))]).unwrap_err();
        let given = 2 * half.len();
        assert_eq!(refused.reason, PostReason::Queue(PushError::InlineTooLong { given, max: limit }));
        b.recv_into(5, 1, &[sge(64)]);
        a.send(&[hello(6)]).unwrap();
        assert_eq!((a.ends(1), b.ends(1)), (good(6..7), good(5..6)));
    });
}

#[kernel_test]
fn flush_with_invalid_level_or_placement_is_rejected() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, Plan::default());
        let remote = Remote { addr: 0, rkey: 0 };
        let flush = |level, placement| Operation::Flush {
            remote,
            length: 8,
            placement: PlacementType::from_bits_retain(placement),
            level: SelectivityLevel(level),
        };
        for (level, placement) in [(2, 1), (255, 1), (0, 0), (1, 4), (0, 255)] {
            let refused = a.send(&[request(1, flush(level, placement), Payload::Sges(&[]))]).unwrap_err();
            if let PostReason::Queue(PushError::Unsupported { operation }) = refused.reason {
                assert_eq!(a.kernel_state(), QpState::RTS);
                return skip(format!("{operation} is nothing that this device carries out"));
            }
            assert_eq!(refused.reason, PostReason::Queue(PushError::Flush { level, placement }));
            let words = format!("invalid flush: selectivity level {level}, placement type {placement:#x}");
            assert_eq!(refused.to_string(), format!("no request was posted: {words}"));
        }
        assert_eq!(a.kernel_state(), QpState::RTS);
        Ok(Completion::Completed)
    })
}

#[kernel_test]
fn duplicate_wr_ids_are_returned_for_each_request() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let sges = [target.sge(..).unwrap()];
        for _ in 0..5 {
            b.recv_into(u64::MAX, 0, &sges);
            b.recv(&[RecvRequest { wr_id: u64::MAX, sges: &sges }]).unwrap();
        }
        a.send(&[hello(7); 5]).unwrap();
        assert_eq!(a.ends(5), [(7, WcStatus::SUCCESS); 5]);
        assert_eq!(b.ends(5), [(u64::MAX, WcStatus::SUCCESS); 5]);
    });
}

#[kernel_test]
fn forgotten_batch_is_sent_with_the_next_doorbell() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, mut b) = pair(&pd, Plan::default());
        let target = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        b.recv_into(0, 2, &[target.sge(..).unwrap()]);
        let mut batch = a.qp.start_send();
        batch.send_inline(1, b"first", SendFlags::SIGNALED).unwrap();
        std::mem::forget(batch);
        a.send(&[hello(2)]).unwrap();
        assert_eq!((a.ends(2), b.ends(2)), (good(1..3), good(0..2)));
    });
}
