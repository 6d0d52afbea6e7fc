//! Datagrams.

use bareverbs_mlx5::testing::Plain;
use bareverbs_mlx5::wqe::AddressVector;
use bareverbs_provider::contract::SendQueue;
use bareverbs_provider::work::{Datagram, Payload, Refusal, SendRequest, WcStatus};
use bareverbs_uapi::uverbs::types::QpType;

use crate::bench::{Bench, SIGNALED, cap, poll, recv};

#[test]
fn a_datagram_arrives_behind_forty_bytes_of_header_with_its_sender() {
    let mut bench = Bench::new();
    let (mut left, mut right, mut cq) = bench.connected(QpType::UD, &cap(8, 64));
    let lid = u32::from(bench.card.engine().port().lid);
    let ah = Plain::ah(AddressVector {
        path: lid,
        rmac: [0; 6],
        traffic_class: 0,
        hop_limit: 0,
        grh: 0,
        rgid: [0; 16],
    });
    assert_eq!((ah.vector().path, ah.vector().grh), (lid, 0));
    let qkey = bench.card.attributes(0).qkey;
    bench.write(0, b"datagram");
    recv(right.rq.as_mut().expect("receives"), 1, &[bench.sge(0x1000, 256)]);
    let sges = [bench.sge(0, 8)];
    let operation = Datagram { ah: &ah, qp_num: right.number, qkey, imm: None };
    let request = SendRequest { wr_id: 2, operation, flags: SIGNALED, payload: Payload::Sges(&sges) };
    // SAFETY: the elements are of the bench's region.
    unsafe { left.sq.push_datagram(&request) }.expect("room");
    left.sq.ring().expect("rung");
    bench.run();
    let done = poll(&mut cq);
    assert!(done.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{done:?}");
    let received = done.iter().find(|wc| wc.wr_id == 1).expect("a receive's completion");
    assert_eq!((received.byte_len, received.src_qp, received.qp_num), (48, left.number, right.number));
    assert_eq!(bench.read(0x1000 + 40, 8), b"datagram");

    let long = [bench.sge(0, 4097)];
    let request = SendRequest { payload: Payload::Sges(&long), ..request };
    // SAFETY: the elements are of the bench's region.
    let refused = unsafe { left.sq.push_datagram(&request) };
    assert_eq!(refused, Err(Refusal::DatagramTooLong { given: 4097, max: 4096 }));
}
