//! Local invalidation and its completions.

use bareverbs_mlx5_testbed::{Testbed, cap, poll, request, send};
use bareverbs_provider::work::{Operation, WcOpcode, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;

#[test]
fn failed_local_inv_completes_in_error_and_flushes() {
    let mut testbed = Testbed::new();
    let (mut left, _right, mut cq) = testbed.connected(QpType::RC, &cap(8, 0));
    send(&mut left.sq, &request(1, Operation::LocalInv(0xdead_be00), &[]));
    send(&mut left.sq, &request(2, Operation::Send, &[]));
    testbed.run();
    let done: Vec<_> = poll(&mut cq).iter().map(|wc| (wc.wr_id, wc.status, wc.opcode)).collect();
    assert_eq!(done.len(), 2);
    assert_ne!(done[0].1, WcStatus::SUCCESS);
    assert_eq!((done[0].0, done[0].2), (1, WcOpcode::LOCAL_INV));
    assert_eq!((done[1].0, done[1].1), (2, WcStatus::WR_FLUSH_ERR));
}
