//! UD datagrams.

use bareverbs_mlx5::Mlx5Ah;
use bareverbs_mlx5::testing::Plain;
use bareverbs_mlx5::wqe::AddressVector;
use bareverbs_mlx5_testbed::{Qp, Testbed, cap, poll, recv};
use bareverbs_provider::traits::SendQueue;
use bareverbs_provider::work::{Datagram, Imm, Payload, PushError, SendFlags, SendRequest, WcStatus};
use bareverbs_uapi::uverbs::types::{QpCap, QpType};
use proptest::prelude::*;

/// An address handle for the port itself.
fn own_port(testbed: &mut Testbed) -> Mlx5Ah {
    let lid = u32::from(testbed.hca().engine().port().lid);
    Plain::ah(AddressVector {
        path: lid,
        rmac: [0; 6],
        traffic_class: 0,
        hop_limit: 0,
        grh: 0,
        rgid: [0; 16],
    })
}

#[test]
fn datagram_arrives_after_grh_with_source_qp() {
    let mut testbed = Testbed::new();
    let (mut left, mut right, mut cq) = testbed.connected(QpType::UD, &cap(8, 64));
    let ah = own_port(&mut testbed);
    let lid = testbed.hca().engine().port().lid;
    assert_eq!((ah.vector().path, ah.vector().grh), (lid.into(), 0));
    let qkey = testbed.hca().attributes(0).qkey;
    testbed.write(0, b"datagram");
    recv(right.rq.as_mut().expect("receives"), 1, &[testbed.sge(0x1000, 256)]);
    let sges = [testbed.sge(0, 8)];
    let operation = Datagram { ah: &ah, qp_num: right.number, qkey, imm: None, header: &[] };
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

/// The number of the underlay QP, which does not exist.
const UNDERLAY: u32 = 0x00ab_cdef;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The ring is short, so that it wraps often.
    #[test]
    fn datagram_with_source_qpn_has_its_header_inline(
        sends in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 4..200), 4usize..=18, any::<[u8; 2]>(), any::<bool>()),
            1..12,
        ),
    ) {
        let mut testbed = Testbed::new();
        let (_other, mut right, mut cq) = testbed.connected(QpType::UD, &cap(8, 64));
        let small = QpCap { max_send_wr: 2, max_send_sge: 3, max_inline_data: 200, ..cap(2, 200) };
        let mut ipoib = testbed.ipoib(&small, UNDERLAY, &cq);
        let (ah, qkey) = (own_port(&mut testbed), testbed.hca().attributes(0).qkey);
        for (message, header, cuts, is_inline) in sends {
            recv(right.rq.as_mut().expect("receives"), 1, &[testbed.sge(0x1000, 256)]);
            let to = Datagram { ah: &ah, qp_num: right.number, qkey, imm: None, header: &[] };
            let mut at = cuts.map(|cut| usize::from(cut) % (message.len() + 1));
            at.sort_unstable();
            let pieces = [&message[..at[0]], &message[at[0]..at[1]], &message[at[1]..]];
            let (header, rest) = message.split_at(header.min(message.len()));
            testbed.write(0, rest);
            let middle = rest.len() / 2;
            let sges = [testbed.sge(0, middle as u32), testbed.sge(middle, (rest.len() - middle) as u32)];
            let (operation, payload) = if is_inline {
                (to, Payload::Inline(&pieces))
            } else {
                (Datagram { header, ..to }, Payload::Sges(&sges))
            };
            let request = SendRequest { wr_id: 2, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: the SGEs lie in the testbed's MR.
            unsafe { ipoib.sq.push_datagram(&request) }.expect("room");
            ipoib.sq.ring().expect("rung");
            testbed.run();
            let done = poll(&mut cq);
            prop_assert!(done.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{:?}", done);
            let received = done.iter().find(|wc| wc.wr_id == 1).expect("a receive's completion");
            prop_assert_eq!((received.byte_len, received.src_qp), (40 + message.len() as u32, UNDERLAY));
            prop_assert_eq!(testbed.read(0x1000 + 40, message.len()), message);
        }
    }
}

#[test]
fn header_of_a_datagram_is_checked() {
    let mut testbed = Testbed::new();
    let (mut plain, right, mut cq) = testbed.connected(QpType::UD, &cap(8, 64));
    let mut ipoib = testbed.ipoib(&cap(8, 64), UNDERLAY, &cq);
    let (ah, sges) = (own_port(&mut testbed), [testbed.sge(0, 8)]);
    let long = [testbed.sge(0, 4093)];
    let to = Datagram { ah: &ah, qp_num: right.number, qkey: 1, imm: None, header: &[0; 4][..] };
    let refusal = |qp: &mut Qp, operation, payload| {
        let request = SendRequest { wr_id: 0, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: a rejected request is not executed.
        unsafe { qp.sq.push_datagram(&request) }.expect_err("a refusal")
    };
    let unsupported = [
        refusal(&mut plain, to, Payload::Sges(&sges)),
        refusal(&mut ipoib, Datagram { header: &[], ..to }, Payload::Sges(&sges)),
        refusal(&mut ipoib, Datagram { header: &[0; 3], ..to }, Payload::Sges(&sges)),
        refusal(&mut ipoib, Datagram { header: &[0; 19], ..to }, Payload::Sges(&sges)),
        refusal(&mut ipoib, Datagram { header: &[], ..to }, Payload::Inline(&[&[0; 3]])),
        refusal(&mut ipoib, Datagram { imm: Some(Imm(1)), ..to }, Payload::Sges(&sges)),
    ];
    for refused in unsupported {
        assert!(matches!(refused, PushError::Unsupported { .. }), "{refused}");
    }
    let refused = refusal(&mut ipoib, Datagram { qp_num: 1 << 24, ..to }, Payload::Sges(&sges));
    assert_eq!(refused, PushError::QpNumber { qp_num: 1 << 24 });
    let refused = refusal(&mut ipoib, to, Payload::Sges(&long));
    assert_eq!(refused, PushError::DatagramTooLong { given: 4097, max: 4096 });
    for qp in [&mut plain, &mut ipoib] {
        qp.sq.ring().expect("rung");
    }
    testbed.run();
    assert!(poll(&mut cq).is_empty());
}
