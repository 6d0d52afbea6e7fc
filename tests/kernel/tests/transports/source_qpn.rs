//! UD QPs with a source QPN.

use bareverbs::cq::Cq;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{
    Datagram, GRH_BYTES, Payload, Qp, QpAttr, QpAttrMask, QpInit, QpState, SendFlags, SendRequest, Ud,
    UdInitAttr,
};
use bareverbs::{Error, Imm, WcStatus};
use bareverbs_kernel_tests::loopback::next;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::host::{CAP, Host, QKEY, bytes, done, on_device, receive};

/// The header of IPoIB: the type of the packet.
const HEADER: [u8; 4] = [0x08, 0, 0, 0];

fn with_source(host: &Host, cq: &Cq, number: u32) -> Qp<Ud> {
    let init = QpInit { cap: CAP, source_qp_num: Some(number), ..QpInit::new(cq, cq) };
    host.pd.create_qp(&init).unwrap()
}

fn step(qp: &mut Qp<Ud>, state: QpState) {
    qp.modify(&QpAttr { qp_state: state, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
    assert_eq!(qp.state(), state);
}

fn bring_up(qp: &mut Qp<Ud>) {
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        step(qp, state);
    }
}

#[kernel_test(device::infiniband)]
fn datagrams_have_the_source_qpn_and_answers_go_to_it() {
    on_device(|host| {
        let (mut from_cq, mut to_cq, mut answer_cq) = (host.cq(), host.cq(), host.cq());
        let (mut answers, mut to) = (host.datagrams(&answer_cq, QKEY), host.datagrams(&to_cq, QKEY));
        let (mut text, memory) = (host.memory(4096), host.memory(4096));
        text.write(0, b"registered").unwrap();
        let ah = host.pd.create_ah(&host.here()).unwrap();
        let mut from = with_source(host, &from_cq, answers.qp_num());
        bring_up(&mut from);
        assert_eq!(from.query().unwrap().0.qp_state, QpState::RTS);

        let datagram = Datagram::new(&ah, to.qp_num(), QKEY);
        let sges = [text.sge(..4).unwrap(), text.sge(4..10).unwrap()];
        let whole = [&HEADER[..], b"registered"].concat();
        let pieces: [&[u8]; 2] = [&HEADER, b"registered"];
        // More than the queue has room for at once.
        for round in 0..3 * u64::from(CAP.max_send_wr) {
            receive(&mut to, round, &memory);
            let request = if round % 2 == 0 {
                let operation = Datagram { header: &HEADER, ..datagram };
                let payload = Payload::Sges(&sges);
                SendRequest { wr_id: round, operation, flags: SendFlags::SIGNALED, payload }
            } else {
                let payload = Payload::Inline(&pieces);
                SendRequest { wr_id: round, operation: datagram, flags: SendFlags::SIGNALED, payload }
            };
            // SAFETY: the memory stays registered until the completion.
            unsafe { from.post_send(&[request]) }.unwrap();
            let sent = done(&mut from_cq);
            assert_eq!((sent.wr_id, sent.qp_num), (round, from.qp_num()));
            let received = done(&mut to_cq);
            assert_eq!((received.wr_id, received.src_qp), (round, answers.qp_num()));
            assert_eq!(received.byte_len as usize, GRH_BYTES + whole.len());
            assert_eq!(bytes(&memory, GRH_BYTES, whole.len()), whole);
        }

        receive(&mut answers, 1, &memory);
        let mut batch = to.start_send();
        let back = Datagram::new(&ah, answers.qp_num(), QKEY);
        batch.send_to_inline(2, back, b"answer", SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        assert_eq!(done(&mut to_cq).wr_id, 2);
        assert_eq!((done(&mut answer_cq).wr_id, bytes(&memory, GRH_BYTES, 6)), (1, b"answer".to_vec()));
        drop((from, to, answers));
    });
}

#[kernel_test(device::infiniband)]
fn qp_with_source_qpn_is_flushed_and_brought_up_again() {
    on_device(|host| {
        let (mut cq, mut to_cq) = (host.cq(), host.cq());
        let mut to = host.datagrams(&to_cq, QKEY);
        let memory = host.memory(4096);
        let ah = host.pd.create_ah(&host.here()).unwrap();
        // A number that no QP has.
        let mut qp = with_source(host, &cq, 0x00ab_cdef);
        let refused = qp.init(&UdInitAttr::new(1, QKEY)).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        let datagram = Datagram::new(&ah, to.qp_num(), QKEY);
        let send = |qp: &mut Qp<Ud>, wr_id, operation| {
            let payload = Payload::Inline(&[&HEADER]);
            let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: the request has only inline data.
            unsafe { qp.post_send(&[request]) }
        };
        for _ in 0..2 {
            bring_up(&mut qp);
            receive(&mut qp, 1, &memory);
            receive(&mut to, 2, &memory);
            send(&mut qp, 3, datagram).unwrap();
            assert_eq!(done(&mut cq).wr_id, 3);
            assert_eq!(done(&mut to_cq).src_qp, 0x00ab_cdef);
            let refused = send(&mut qp, 4, Datagram { imm: Some(Imm(1)), ..datagram }).unwrap_err();
            let reason = refused.reason;
            assert!(matches!(reason, PostReason::Queue(PushError::Unsupported { .. })), "{reason}");

            step(&mut qp, QpState::ERR);
            let flushed = next(&mut cq);
            assert_eq!((flushed.wr_id, flushed.status), (1, WcStatus::WR_FLUSH_ERR));
            send(&mut qp, 5, datagram).unwrap();
            let flushed = next(&mut cq);
            assert_eq!((flushed.wr_id, flushed.status), (5, WcStatus::WR_FLUSH_ERR));
            step(&mut qp, QpState::RESET);
        }
        drop((qp, to));
    });
}
