use std::time::Instant;

use bareverbs::ah::AhAttr;
use bareverbs::cq::{CqInit, WorkCompletion};
use bareverbs::qp::{
    Datagram, DoorbellChoice, Operation, Payload, QpCap, QpInit, QueueMemory, Rc, SendFlags, SendRequest,
};
use bareverbs::rss::WqInit;
use bareverbs::{WcOpcode, WcStatus};
use bareverbs_kernel_tests::kernel_test;

use crate::pair::{End, TIMEOUT, open, pair_in, region};

/// Sends that are outstanding at a time.
const POSTED: usize = 12;

/// Polls into slices of `len` until all completions of a round are there.
fn poll_all(end: &mut End, len: usize, count: usize) -> Vec<WorkCompletion> {
    let (begin, mut taken) = (Instant::now(), Vec::new());
    while taken.len() < count {
        let mut into = vec![empty(); len];
        let polled = end.cq.poll_into(&mut into);
        assert!(polled <= len);
        assert!(into[polled..].iter().all(|rest| *rest == empty()), "the rest of the slice stays");
        taken.extend_from_slice(&into[..polled]);
        assert!(begin.elapsed() < TIMEOUT, "{} of {count} by slices of {len}", taken.len());
    }
    assert_eq!(end.cq.poll_into(&mut vec![empty(); len]), 0, "no more than was posted");
    taken
}

/// A value that no completion has.
fn empty() -> WorkCompletion {
    WorkCompletion { wr_id: u64::MAX, vendor_err: u32::MAX, ..WorkCompletion::default() }
}

#[kernel_test]
fn slices_of_every_small_length_get_all_completions_in_order() {
    let pd = open().alloc_pd().unwrap();
    let depth = POSTED as u32;
    let cap = QpCap { max_send_wr: depth, max_recv_wr: depth, max_inline_data: 16, ..QpCap::default() };
    let (mut a, mut b) = pair_in(&pd, cap);
    let target = region(&pd, &[0; 64]);
    assert_eq!(a.cq.poll_into(&mut []), 0);
    let mut next = 0;
    for len in 1..=POSTED + 1 {
        for count in [1, 2, 3, 4, 5, POSTED] {
            let ids = next..next + count as u64;
            next = ids.end;
            for wr_id in ids.clone() {
                b.recv(wr_id, &target);
            }
            for wr_id in ids.clone() {
                let bytes = wr_id.to_ne_bytes();
                // Each message is identified by its length.
                let parts = [&bytes[..1 + wr_id as usize % 8]];
                let (operation, flags) = (Operation::Send, SendFlags::SIGNALED);
                a.send(&SendRequest { wr_id, operation, flags, payload: Payload::Inline(&parts) });
            }
            // Without polling in between, all completions are in the CQ before the first poll.
            for (end, opcode) in [(&mut a, WcOpcode::SEND), (&mut b, WcOpcode::RECV)] {
                let taken = poll_all(end, len, count);
                let found: Vec<_> = taken.iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
                let expected: Vec<_> = ids.clone().map(|id| (id, WcStatus::SUCCESS, opcode)).collect();
                assert_eq!(found, expected, "{count} by slices of {len}");
                let qp_num = end.qp.qp_num();
                assert!(taken.iter().all(|wc| wc.qp_num == qp_num));
                if opcode == WcOpcode::RECV {
                    assert!(taken.iter().all(|wc| u64::from(wc.byte_len) == 1 + wc.wr_id % 8));
                }
            }
        }
    }
}

#[kernel_test]
fn init_structs_with_borrows_have_defaults() {
    let context = open();
    let cq = context.create_cq(&CqInit::new(16)).unwrap();
    let QpInit {
        send_cq,
        recv_cq,
        srq,
        cap,
        max_tso_header,
        signal_all,
        flags,
        source_qp_num,
        scatter_to_cqe,
        user_data,
        doorbell,
        memory,
    } = QpInit::new(&cq, &cq);
    assert_eq!([send_cq.handle(), recv_cq.handle()], [cq.handle(); 2]);
    assert!(srq.is_none());
    assert_eq!((cap, max_tso_header, user_data), (QpCap::default(), 0, 0));
    assert!(!signal_all && flags.is_empty() && source_qp_num.is_none() && !scatter_to_cqe);
    assert!(matches!((doorbell, memory), (DoorbellChoice::Any, QueueMemory::BasePages)));

    let WqInit { cq: of, max_recv_wr, max_recv_sge, flags, memory, user_data } = WqInit::new(&cq, 9);
    assert!(of.handle() == cq.handle() && flags.is_empty());
    assert_eq!((max_recv_wr, max_recv_sge, user_data), (9, 1, 0));
    assert!(matches!(memory, QueueMemory::BasePages));

    let pd = context.alloc_pd().unwrap();
    let gid = context.default_gid(1).unwrap();
    let ah = pd.create_ah(&AhAttr::global(1, gid.gid, gid.index)).unwrap();
    let Datagram { ah: of, qp_num, qkey, imm, header } = Datagram::new(&ah, 5, 6);
    assert!(header.is_empty());
    assert!(std::ptr::eq(of, &ah));
    assert_eq!((qp_num, qkey, imm), (5, 6, None));

    // The capacities that the kernel chose for the default depths.
    let qp = pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap();
    let (_, init) = qp.query().unwrap();
    assert!(init.cap.max_send_wr >= 16 && init.cap.max_recv_wr >= 16 && !init.signal_all);
}
