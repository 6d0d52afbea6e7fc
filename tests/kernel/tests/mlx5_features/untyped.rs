//! QPs whose transport is a value: XRC initiators and raw packet QPs.

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit};
use bareverbs::error::{Feature, PostReason, PushError};
use bareverbs::flow::{EthernetMatch, FlowRule};
use bareverbs::qp::{
    Frame, InitAttr, Operation, Payload, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType, RecvRequest,
    RtrAttr, RtsAttr, SendFlags, SendRequest, UcRtrAttr,
};
use bareverbs::srq::SrqInit;
use bareverbs::untyped::{AnyOperation, QpCore};
use bareverbs::xrc::{XrcOperation, XrcSrqInit, XrcTargetRtsAttr, XrcdShare};
use bareverbs::{Access, Error, Pd, PortNum};
use bareverbs_kernel_tests::loopback::{contents, domain, region, take};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::raw_packets::{BOB, EXPERIMENT, frame};

fn create(pd: &Pd, cq: &Cq, qp_type: QpType) -> Result<QpCore, Error> {
    let cap = QpCap { max_inline_data: 128, ..QpCap::default() };
    QpCore::create(pd, qp_type, &QpInit { cap, ..QpInit::new(cq, cq) })
}

fn request<'a>(operation: AnyOperation<'a>, payload: Payload<'a>) -> SendRequest<'a, AnyOperation<'a>> {
    SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload }
}

/// A send of RC is not posted.
fn rejects_connected_sends(qp: &mut QpCore) {
    let send = request(Operation::Send.into(), Payload::Sges(&[]));
    // SAFETY: the request names no memory.
    let refused = unsafe { qp.post_send(&[send]) }.unwrap_err();
    assert_eq!(refused.reason, PostReason::Queue(PushError::Unsupported { operation: "a send" }));
}

#[kernel_test(device::xrc)]
fn xrc_initiator_by_value_sends_to_the_named_srq() {
    nothing_leaks(|| {
        let pd = domain();
        let context = pd.context();
        let cq = || context.create_cq(&CqInit::new(16)).unwrap();
        let xrcd = context.open_xrcd(XrcdShare::Private).unwrap();
        let (mut send_cq, mut recv_cq) = (cq(), cq());
        let memory = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let mut srq =
            pd.create_xrc_srq(&XrcSrqInit { srq: SrqInit::new(4), xrcd: &xrcd, cq: &recv_cq }).unwrap();
        let mut qp = create(&pd, &send_cq, QpType::XRC_INI).unwrap();
        let mut target = xrcd.create_target(0).unwrap();

        let gid = context.default_gid(1).unwrap();
        let dlid = context.query_port(1).unwrap().lid;
        let to = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
        target.init(&InitAttr::new(1)).unwrap();
        let (rtr, mask) = (&RtrAttr::new(to, qp.qp_num())).into();
        let refused = target.modify(&rtr, mask - QpAttrMask::MIN_RNR_TIMER).unwrap_err().to_string();
        assert!(refused.contains("the transition also requires MIN_RNR_TIMER"), "{refused}");
        target.modify(&rtr, mask).unwrap();
        target.ready_to_send(&XrcTargetRtsAttr::default()).unwrap();
        for (attr, mask) in [
            (&InitAttr::new(1)).into(),
            (&UcRtrAttr::new(to, target.qp_num())).into(),
            (&RtsAttr::default()).into(),
        ] {
            qp.modify(&attr, mask).unwrap();
        }

        let sges = [memory.sge(..).unwrap()];
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { srq.post_recv(&[RecvRequest { wr_id: 2, sges: &sges }]) }.unwrap();
        let operation = XrcOperation { remote_srq: srq.srq_num(), operation: Operation::Send };
        // SAFETY: the request names no memory.
        unsafe { qp.post_send(&[request(operation.into(), Payload::Inline(&[b"by value"]))]) }.unwrap();
        assert_eq!(take(&mut send_cq, 1)[0].wr_id, 1);
        let received = take(&mut recv_cq, 1)[0];
        assert_eq!((received.wr_id, received.byte_len), (2, 8));
        assert_eq!(contents(&memory)[..8], *b"by value");

        rejects_connected_sends(&mut qp);
        // SAFETY: the request is rejected.
        let refused = unsafe { qp.post_recv(&[RecvRequest { wr_id: 2, sges: &sges }]) }.unwrap_err();
        assert_eq!(refused.reason, PostReason::XrcInitiator);
        drop((qp, target));
    });
}

#[kernel_test(device::no_xrc)]
fn xrc_initiator_by_value_is_unsupported() {
    let pd = domain();
    let cq = pd.context().create_cq(&CqInit::new(1)).unwrap();
    let refused = create(&pd, &cq, QpType::XRC_INI).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { feature: Feature::XrcQps, .. }), "{refused}");
}

#[kernel_test(device::raw_packets)]
fn raw_packet_qp_by_value_sends_and_receives_frames() {
    nothing_leaks(|| {
        let (alice, bob) = (domain(), domain());
        let memory = region(&bob, &[0; 256], Access::LOCAL_WRITE);
        let [mut from, mut to] = [&alice, &bob].map(|pd| {
            let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
            let mut qp = create(pd, &cq, QpType::RAW_PACKET).unwrap();
            let state = |qp_state| QpAttr { qp_state, port_num: PortNum(1), ..QpAttr::default() };
            qp.modify(&state(QpState::INIT), QpAttrMask::STATE | QpAttrMask::PORT).unwrap();
            for next in [QpState::RTR, QpState::RTS] {
                qp.modify(&state(next), QpAttrMask::STATE).unwrap();
            }
            (qp, cq)
        });
        let flow =
            to.0.create_flow(&FlowRule::new(1, EthernetMatch { dst_mac: Some(BOB), ..Default::default() }));
        let sges = [memory.sge(..).unwrap()];
        // SAFETY: the memory is only copied from, after the completion.
        unsafe { to.0.post_recv(&[RecvRequest { wr_id: 2, sges: &sges }]) }.unwrap();
        let bytes = frame(BOB, EXPERIMENT, b"by value");
        let payload = [&bytes[..]];
        let send = request(Frame::default().into(), Payload::Inline(&payload));
        // SAFETY: the request names no memory.
        unsafe { from.0.post_send(&[send]) }.unwrap();
        assert_eq!(take(&mut from.1, 1)[0].wr_id, 1);
        assert_eq!(take(&mut to.1, 1)[0].wr_id, 2);
        assert_eq!(contents(&memory)[..bytes.len()], *bytes);
        rejects_connected_sends(&mut from.0);
        to.0.destroy_flow(flow.unwrap()).unwrap();
    });
}
