//! Work queues (WQs): receives of frames without a QP.

use bareverbs_hca::engine::RqState;
use bareverbs_mlx5::Mlx5Rq;
use bareverbs_mlx5_testbed::{Cq, Testbed, poll, recv};
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{PushError, RecvRequest, Sge, WcOpcode, WcStatus};

fn ready(testbed: &mut Testbed, number: u32) {
    testbed.hca().engine().move_rq(number, RqState::Ready).expect("a state");
}

fn arrives(testbed: &mut Testbed, number: u32, frame: &[u8]) -> bool {
    let taken = testbed.hca().engine().receive_frame(number, 0, frame);
    testbed.run();
    taken
}

fn ends(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    poll(cq).iter().map(|done| (done.wr_id, done.status)).collect()
}

/// A WQ of at least `max_wr` receives in RDY, its number and its CQ.
fn queue(testbed: &mut Testbed, max_wr: u32) -> (Mlx5Rq, u32, Cq) {
    let cq = testbed.cq(6, 64);
    let (queue, number, _) = testbed.wq(max_wr, &cq);
    ready(testbed, number);
    (queue, number, cq)
}

#[test]
fn frames_consume_receives_in_order_across_wraps() {
    let mut testbed = Testbed::new();
    let (mut wq, number, mut cq) = queue(&mut testbed, 4);
    assert!(!arrives(&mut testbed, number, &[0; 60]), "nothing is posted");
    for round in 0..20u8 {
        for wr_id in 0..u64::from(round) % 4 + 1 {
            let sges = [testbed.sge(wr_id as usize * 256, 40), testbed.sge(wr_id as usize * 256 + 128, 100)];
            // Receives with one SGE take the fast path, with two the slow path.
            let sges = if round % 2 == 0 { &sges[1..] } else { &sges[..] };
            recv(&mut wq, wr_id, sges);
        }
        for wr_id in 0..u64::from(round) % 4 + 1 {
            let frame = [round.wrapping_add(wr_id as u8); 70];
            assert!(arrives(&mut testbed, number, &frame));
            let done = poll(&mut cq);
            let [done] = &done[..] else { panic!("one completion: {done:?}") };
            assert_eq!((done.wr_id, done.status, done.opcode), (wr_id, WcStatus::SUCCESS, WcOpcode::RECV));
            // The CQE has the flow tag in the place of the number.
            assert_eq!((done.byte_len, done.qp_num), (70, 0));
            let at = wr_id as usize * 256;
            let came = match round % 2 {
                0 => testbed.read(at + 128, 70),
                _ => [testbed.read(at, 40), testbed.read(at + 128, 30)].concat(),
            };
            assert_eq!(came, frame);
        }
    }
}

#[test]
fn full_work_queue_returns_queue_full() {
    let mut testbed = Testbed::new();
    let (mut wq, ..) = queue(&mut testbed, 4);
    let sges = [testbed.sge(0, 64)];
    let request = RecvRequest { wr_id: 1, sges: &sges };
    for _ in 0..wq.capacity() {
        recv(&mut wq, 1, &sges);
    }
    // SAFETY: the MR outlives the device.
    let refused = unsafe { wq.push(&request) };
    assert_eq!(refused, Err(PushError::QueueFull { capacity: wq.capacity() }));
}

#[test]
fn wq_error_flushes_receives_and_reset_restarts() {
    let mut testbed = Testbed::new();
    let (mut wq, number, mut cq) = queue(&mut testbed, 8);
    for round in 0..3 {
        for wr_id in 0..5 {
            recv(&mut wq, 10 * round + wr_id, &[testbed.sge(0, 64)]);
        }
        assert!(arrives(&mut testbed, number, &[1; 60]));
        testbed.hca().engine().move_rq(number, RqState::Error).expect("a state");
        testbed.run();
        let flushed = (1..5).map(|wr_id| (10 * round + wr_id, WcStatus::WR_FLUSH_ERR));
        let all: Vec<_> = [(10 * round, WcStatus::SUCCESS)].into_iter().chain(flushed).collect();
        assert_eq!(ends(&mut cq), all);
        assert!(!arrives(&mut testbed, number, &[1; 60]));
        testbed.hca().engine().move_rq(number, RqState::Reset).expect("a state");
        // SAFETY: the device has just reset the work queue.
        unsafe { wq.reset() };
        ready(&mut testbed, number);
    }
}

#[test]
fn unwritable_receive_moves_wq_to_error() {
    let mut testbed = Testbed::new();
    let (mut wq, number, mut cq) = queue(&mut testbed, 8);
    let good = testbed.sge(0, 64);
    recv(&mut wq, 1, &[Sge { lkey: good.lkey ^ 0xff00, ..good }]);
    recv(&mut wq, 2, &[good]);
    assert!(!arrives(&mut testbed, number, &[1; 60]));
    assert_eq!(ends(&mut cq), [(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    assert!(!arrives(&mut testbed, number, &[1; 60]));
}

#[test]
fn oversized_frame_fails_only_its_receive() {
    let mut testbed = Testbed::new();
    let (mut wq, number, mut cq) = queue(&mut testbed, 8);
    recv(&mut wq, 1, &[testbed.sge(0, 59)]);
    recv(&mut wq, 2, &[testbed.sge(0, 60)]);
    for _ in 0..2 {
        arrives(&mut testbed, number, &[1; 60]);
    }
    assert_eq!(ends(&mut cq), [(1, WcStatus::LOC_LEN_ERR), (2, WcStatus::SUCCESS)]);
}

#[test]
fn cqes_of_destroyed_wq_are_discarded() {
    let mut testbed = Testbed::new();
    let mut cq = testbed.cq(6, 64);
    for round in 0..3 {
        let mut wq = testbed.wq(4, &cq);
        ready(&mut testbed, wq.1);
        for wr_id in [2 * round, 2 * round + 1] {
            recv(&mut wq.0, wr_id, &[testbed.sge(0, 64)]);
        }
        assert!(arrives(&mut testbed, wq.1, &[1; 60]));
        // The second CQE of the previous WQ was discarded. The first CQE of this WQ is found.
        assert_eq!(ends(&mut cq), [(2 * round, WcStatus::SUCCESS)]);
        assert!(arrives(&mut testbed, wq.1, &[1; 60]));
        testbed.destroy_wq(wq);
    }
    assert_eq!(ends(&mut cq), []);
}
