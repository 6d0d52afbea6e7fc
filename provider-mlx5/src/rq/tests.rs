use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::Sge;

use crate::fixture::{Fixture, recv};
use crate::wqe;

#[test]
fn new_and_reset_receive_slots_are_terminated_after_one_sge() {
    let Fixture { mut rq, .. } = Fixture::new(false);
    // SAFETY: the slot has room for four segments, and no device uses the queue.
    assert_eq!(unsafe { rq.slot(0).add(1).read() }, wqe::end_of_list());
    let element = Sge { addr: 64, length: 8, lkey: 1 };
    recv(&mut rq, 1, &[element; 3]).expect("room");
    // SAFETY: the slot has room for four segments, and no device uses the queue.
    assert_ne!(unsafe { rq.slot(0).add(1).read() }, wqe::end_of_list());
    // SAFETY: neither kernel nor device uses the queue.
    unsafe { rq.reset() };
    // SAFETY: the slot has room for four segments, and no device uses the queue.
    assert_eq!(unsafe { rq.slot(0).add(1).read() }, wqe::end_of_list());
}
