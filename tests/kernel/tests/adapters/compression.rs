//! Completions that the device may compress.

use std::time::Instant;

use bareverbs::{Access, Completion, CqInit, Error, Operation, Payload, RecvRequest, Sge, WcStatus};
use bareverbs_kernel_tests::loopback::{PATIENCE, Plan, Side, domain, region, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;

pub(crate) fn compressed_completions_tell_what_the_others_tell() {
    const ROUNDS: u64 = 20;
    const BATCH: u64 = 40;
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit { compressed: true, ..CqInit::new(64) }).unwrap();
        let mut plan = Plan::default();
        (plan.cap.max_send_wr, plan.cap.max_recv_wr) = (BATCH as u32, BATCH as u32);
        let (mut a, mut b) = (side(&pd, plan), Side::on(&pd, plan, cq));
        a.connect(b.qp.qp_num());
        b.connect(a.qp.qp_num());
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
                    let operation = if id % 7 == 0 { Operation::SendImm(id as u32) } else { Operation::Send };
                    request(id, operation, Payload::Sges(list))
                })
                .collect();
            a.send(&sends).unwrap();
            assert!(a.ends(BATCH as usize).iter().all(|(_, status)| *status == WcStatus::SUCCESS));
            let begin = Instant::now();
            let mut next = ids.start;
            while next < ids.end {
                assert!(begin.elapsed() < PATIENCE, "no completion of receive {next}");
                let mut completions = b.cq.poll();
                while let Some(done) = completions.next() {
                    assert_eq!((done.wr_id(), done.status()), (next, WcStatus::SUCCESS));
                    assert_eq!(done.byte_len(), 1 + next as u32 % 64);
                    assert_eq!(done.imm_data(), (next % 7 == 0).then_some(next as u32));
                    next += 1;
                }
            }
        }
    });
}

pub(crate) fn without_compression_its_verbs_say_so() {
    let context = domain().context().clone();
    let error = context.create_cq(&CqInit { compressed: true, ..CqInit::new(4) }).map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported { verb: "create_cq", .. }), "{error}");
}
