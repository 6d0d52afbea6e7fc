//! UD datagrams.

use bareverbs_mlx5::testing::Plain;
use bareverbs_mlx5::wqe::AddressVector;
use bareverbs_mlx5_testbed::{Testbed, cap, poll, recv};
use bareverbs_provider::traits::SendQueue;
use bareverbs_provider::work::{Datagram, Payload, PushError, SendFlags, SendRequest, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;

#[test]
fn datagram_arrives_after_grh_with_source_qp() {
    let mut testbed = Testbed::new();
    let (mut left, mut right, mut cq) = testbed.connected(QpType::UD, &cap(8, 64));
    let lid = u32::from(testbed.hca().engine().port().lid);
    let ah = Plain::ah(AddressVector {
        path: lid,
        rmac: [0; 6],
        traffic_class: 0,
        hop_limit: 0,
        grh: 0,
        rgid: [0; 16],
    });
    assert_eq!((ah.vector().path, ah.vector().grh), (lid, 0));
    let qkey = testbed.hca().attributes(0).qkey;
    testbed.write(0, b"datagram");
    recv(right.rq.as_mut().expect("receives"), 1, &[testbed.sge(0x1000, 256)]);
    let sges = [testbed.sge(0, 8)];
    let operation = Datagram { ah: &ah, qp_num: right.number, qkey, imm: None };
    let request =
        SendRequest { wr_id: 2, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&sges) };
    // SAFETY: the SGEs lie in the testbed's MR.
    unsafe { left.sq.push_datagram(&request) }.expect("room");
    left.sq.ring().expect("rung");
    testbed.run();
    let done = poll(&mut cq);
    assert!(done.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{done:?}");
    let received = done.iter().find(|wc| wc.wr_id == 1).expect("a receive's completion");
    assert_eq!((received.byte_len, received.src_qp, received.qp_num), (48, left.number, right.number));
    assert_eq!(testbed.read(0x1000 + 40, 8), b"datagram");

    let long = [testbed.sge(0, 4097)];
    let request = SendRequest { payload: Payload::Sges(&long), ..request };
    // SAFETY: the SGEs lie in the testbed's MR.
    let refused = unsafe { left.sq.push_datagram(&request) };
    assert_eq!(refused, Err(PushError::DatagramTooLong { given: 4097, max: 4096 }));
}
