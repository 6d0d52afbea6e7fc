//! Compressed CQEs, and CQEs of 128 bytes.

use std::time::Instant;

use bareverbs::cq::{Completion, CqInit, CqeSize};
use bareverbs::qp::{Operation, Payload, QpCap, QpInit, Rc, RecvRequest, Sge};
use bareverbs::{Access, Error, Imm, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, join, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};
use bareverbs_mlx5::Mlx5;

use crate::raw_wqe;

#[kernel_test(device::compression)]
fn compressed_cqes_equal_uncompressed_ones() {
    completions_equal_those_of_plain_cqes(&CqInit { compressed: true, ..CqInit::new(64) });
}

#[kernel_test(device::connectx)]
fn cqes_of_128_bytes_equal_those_of_64() {
    let init = CqInit { cqe_size: CqeSize::Bytes128, ..CqInit::new(64) };
    let context = domain().context().clone();
    let mut cq = context.create_cq(&init).unwrap();
    assert_eq!(cq.layout().unwrap().stride, 128);
    cq.resize(200).unwrap();
    let layout = cq.layout().unwrap();
    assert_eq!((layout.slots, layout.stride, layout.content_offset), (256, 128, 64));
    completions_equal_those_of_plain_cqes(&init);
}

fn completions_equal_those_of_plain_cqes(init: &CqInit<'_>) {
    const ROUNDS: u64 = 20;
    const BATCH: u64 = 40;
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(init).unwrap();
        let mut plan = Plan::default();
        (plan.cap.max_send_wr, plan.cap.max_recv_wr) = (BATCH as u32, BATCH as u32);
        let (mut a, mut b) = (side(&pd, plan), Side::on(&pd, plan, cq));
        join(&mut a, &mut b);
        let memory = region(&pd, &[0; 128], Access::LOCAL_WRITE);
        let (from, to) = ([memory.sge(..64).unwrap()], [memory.sge(64..).unwrap()]);
        for round in 0..ROUNDS {
            let ids = round * BATCH..(round + 1) * BATCH;
            let receives: Vec<_> = ids.clone().map(|wr_id| RecvRequest { wr_id, sges: &to }).collect();
            b.recv(&receives).unwrap();
            let lists: Vec<_> =
                ids.clone().map(|id| [Sge { length: 1 + id as u32 % 64, ..from[0] }]).collect();
            let sends: Vec<_> = lists
                .iter()
                .zip(ids.clone())
                .map(|(list, id)| {
                    let operation =
                        if id % 7 == 0 { Operation::SendImm(Imm(id as u32)) } else { Operation::Send };
                    request(id, operation, Payload::Sges(list))
                })
                .collect();
            a.send(&sends).unwrap();
            assert!(a.ends(BATCH as usize).iter().all(|(_, status)| *status == WcStatus::SUCCESS));
            let begin = Instant::now();
            let mut next = ids.start;
            while next < ids.end {
                assert!(begin.elapsed() < TIMEOUT, "no completion of receive {next}");
                let mut completions = b.cq.poll();
                while let Some(done) = completions.next() {
                    assert_eq!((done.wr_id(), done.status()), (next, WcStatus::SUCCESS));
                    assert_eq!(done.byte_len(), 1 + next as u32 % 64);
                    assert_eq!(done.imm(), (next % 7 == 0).then_some(Imm(next as u32)));
                    next += 1;
                }
            }
        }
    });
}

#[kernel_test(device::compression)]
fn simultaneous_completions_are_compressed() {
    const RECEIVES: u32 = 8;
    // The format in a CQE's last byte.
    const FORMAT: u8 = 3 << 2;
    nothing_leaks(|| {
        let context = device::device().open_as::<Mlx5>().unwrap();
        let pd = context.alloc_pd().unwrap();
        let mut sent = context.create_cq(&CqInit::new(RECEIVES)).unwrap();
        let mut received = context.create_cq(&CqInit { compressed: true, ..CqInit::new(RECEIVES) }).unwrap();
        let cap = QpCap { max_send_wr: RECEIVES, max_recv_wr: RECEIVES, ..QpInit::new(&sent, &received).cap };
        let create = || pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&sent, &received) }).unwrap();
        let (mut a, mut b) = (create(), create());
        raw_wqe::connect(&mut a, b.qp_num()).unwrap();
        raw_wqe::connect(&mut b, a.qp_num()).unwrap();
        let begin = Instant::now();
        // Whether they arrive together depends on the speed of the device and the machine.
        loop {
            let receives: Vec<_> =
                (0..RECEIVES).map(|id| RecvRequest { wr_id: id.into(), sges: &[] }).collect();
            // SAFETY: messages of 0 bytes need no memory.
            unsafe { b.post_recv(&receives) }.unwrap();
            let sends: Vec<_> = (0..RECEIVES)
                .map(|id| request(id.into(), Operation::Send, Payload::Inline(&[b""])))
                .collect();
            // SAFETY: messages of 0 bytes need no memory.
            unsafe { a.post_send(&sends) }.unwrap();
            let mut left = RECEIVES;
            while left > 0 {
                assert!(begin.elapsed() < TIMEOUT, "{left} sends without a completion");
                left -= sent.poll_one().map_or(0, |_| 1);
            }
            // SAFETY: the queue is only peeked at.
            let first = unsafe { received.provider_queue() }.peek();
            let (format, length) = (first.op_own() & FORMAT, first.byte_count());
            let mut next = 0;
            while next < u64::from(RECEIVES) {
                assert!(begin.elapsed() < TIMEOUT, "no completion of receive {next}");
                if let Some(done) = received.poll_one() {
                    assert_eq!((done.wr_id, done.status, done.byte_len), (next, WcStatus::SUCCESS, 0));
                    next += 1;
                }
            }
            if format == FORMAT && length == RECEIVES {
                break;
            }
            assert!(begin.elapsed() < TIMEOUT, "{RECEIVES} receives never became one run");
        }
    });
}

#[kernel_test(device::no_compression)]
fn compression_is_unsupported_without_the_capability() {
    let context = domain().context().clone();
    let error = context.create_cq(&CqInit { compressed: true, ..CqInit::new(4) }).map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported { verb: "create_cq", .. }), "{error}");
}
