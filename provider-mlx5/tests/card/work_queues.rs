//! Work queues: receives of frames, without a queue pair.

use bareverbs_hca::engine::RqState;
use bareverbs_mlx5::Mlx5Rq;
use bareverbs_provider::contract::RecvQueue;
use bareverbs_provider::work::{RecvRequest, Refusal, Sge, WcOpcode, WcStatus};

use crate::bench::{Bench, Cq, poll, recv};

fn ready(bench: &mut Bench, number: u32) {
    bench.card.engine().move_rq(number, RqState::Ready).expect("a state");
}

fn arrives(bench: &mut Bench, number: u32, frame: &[u8]) -> bool {
    let taken = bench.card.engine().receive_frame(number, frame);
    bench.run();
    taken
}

fn ends(cq: &mut Cq) -> Vec<(u64, WcStatus)> {
    poll(cq).iter().map(|done| (done.wr_id, done.status)).collect()
}

/// A queue for at least `max_wr` receives, ready, and its completion queue.
fn queue(bench: &mut Bench, max_wr: u32) -> (Mlx5Rq, u32, Cq) {
    let cq = bench.cq(6, 64);
    let (queue, number, _) = bench.wq(max_wr, &cq);
    ready(bench, number);
    (queue, number, cq)
}

#[test]
fn frames_take_receives_in_turn_as_often_as_the_queue_goes_round() {
    let mut bench = Bench::new();
    let (mut wq, number, mut cq) = queue(&mut bench, 4);
    assert!(!arrives(&mut bench, number, &[0; 60]), "nothing is posted");
    for round in 0..20u8 {
        for wr_id in 0..u64::from(round) % 4 + 1 {
            let sges = [bench.sge(wr_id as usize * 256, 40), bench.sge(wr_id as usize * 256 + 128, 100)];
            // Of one element by the short way, of two by the long one.
            let sges = if round % 2 == 0 { &sges[1..] } else { &sges[..] };
            recv(&mut wq, wr_id, sges);
        }
        for wr_id in 0..u64::from(round) % 4 + 1 {
            let frame = [round.wrapping_add(wr_id as u8); 70];
            assert!(arrives(&mut bench, number, &frame));
            let done = poll(&mut cq);
            let [done] = &done[..] else { panic!("one completion: {done:?}") };
            assert_eq!((done.wr_id, done.status, done.opcode), (wr_id, WcStatus::SUCCESS, WcOpcode::RECV));
            assert_eq!((done.byte_len, done.qp_num), (70, number));
            let at = wr_id as usize * 256;
            let came = match round % 2 {
                0 => bench.read(at + 128, 70),
                _ => [bench.read(at, 40), bench.read(at + 128, 30)].concat(),
            };
            assert_eq!(came, frame);
        }
    }
}

#[test]
fn a_queue_that_is_full_says_so() {
    let mut bench = Bench::new();
    let (mut wq, ..) = queue(&mut bench, 4);
    let sges = [bench.sge(0, 64)];
    let request = RecvRequest { wr_id: 1, sges: &sges };
    for _ in 0..wq.capacity() {
        recv(&mut wq, 1, &sges);
    }
    // SAFETY: the region outlives the card.
    let refused = unsafe { wq.push(&request) };
    assert_eq!(refused, Err(Refusal::QueueFull { capacity: wq.capacity() }));
}

#[test]
fn what_is_posted_is_flushed_when_the_queue_fails_and_a_reset_begins_anew() {
    let mut bench = Bench::new();
    let (mut wq, number, mut cq) = queue(&mut bench, 8);
    for round in 0..3 {
        for wr_id in 0..5 {
            recv(&mut wq, 10 * round + wr_id, &[bench.sge(0, 64)]);
        }
        assert!(arrives(&mut bench, number, &[1; 60]));
        bench.card.engine().move_rq(number, RqState::Error).expect("a state");
        bench.run();
        let flushed = (1..5).map(|wr_id| (10 * round + wr_id, WcStatus::WR_FLUSH_ERR));
        let all: Vec<_> = [(10 * round, WcStatus::SUCCESS)].into_iter().chain(flushed).collect();
        assert_eq!(ends(&mut cq), all);
        assert!(!arrives(&mut bench, number, &[1; 60]));
        bench.card.engine().move_rq(number, RqState::Reset).expect("a state");
        // SAFETY: the device has just reset the work queue.
        unsafe { wq.reset() };
        ready(&mut bench, number);
    }
}

#[test]
fn a_receive_that_can_not_be_written_takes_the_queue_down() {
    let mut bench = Bench::new();
    let (mut wq, number, mut cq) = queue(&mut bench, 8);
    let good = bench.sge(0, 64);
    recv(&mut wq, 1, &[Sge { lkey: good.lkey ^ 0xff00, ..good }]);
    recv(&mut wq, 2, &[good]);
    assert!(!arrives(&mut bench, number, &[1; 60]));
    assert_eq!(ends(&mut cq), [(1, WcStatus::LOC_PROT_ERR), (2, WcStatus::WR_FLUSH_ERR)]);
    assert!(!arrives(&mut bench, number, &[1; 60]));
}

#[test]
fn a_frame_longer_than_its_receive_fails_it_alone() {
    let mut bench = Bench::new();
    let (mut wq, number, mut cq) = queue(&mut bench, 8);
    recv(&mut wq, 1, &[bench.sge(0, 59)]);
    recv(&mut wq, 2, &[bench.sge(0, 60)]);
    for _ in 0..2 {
        arrives(&mut bench, number, &[1; 60]);
    }
    assert_eq!(ends(&mut cq), [(1, WcStatus::LOC_LEN_ERR), (2, WcStatus::SUCCESS)]);
}

#[test]
fn completions_of_a_destroyed_queue_are_nobodys() {
    let mut bench = Bench::new();
    let mut cq = bench.cq(6, 64);
    for round in 0..3 {
        let mut wq = bench.wq(4, &cq);
        ready(&mut bench, wq.1);
        for wr_id in [2 * round, 2 * round + 1] {
            recv(&mut wq.0, wr_id, &[bench.sge(0, 64)]);
        }
        assert!(arrives(&mut bench, wq.1, &[1; 60]));
        // One of the last queue is there no more, one of this one is.
        assert_eq!(ends(&mut cq), [(2 * round, WcStatus::SUCCESS)]);
        assert!(arrives(&mut bench, wq.1, &[1; 60]));
        bench.destroy_wq(wq);
    }
    assert_eq!(ends(&mut cq), []);
}
