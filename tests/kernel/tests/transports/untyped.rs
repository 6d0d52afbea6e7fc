//! QPs whose transport is a value.

use bareverbs::ah::AhAttr;
use bareverbs::cq::Cq;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{
    Datagram, Frame, GRH_BYTES, InitAttr, Operation, Payload, QpAttr, QpAttrMask, QpInit, QpState, QpType,
    RecvRequest, RtrAttr, RtsAttr, SendFlags, SendRequest, UcRtrAttr, UdInitAttr,
};
use bareverbs::untyped::{AnyOperation, QpCore};
use bareverbs::xrc::XrcOperation;
use bareverbs::{Buffer, Error, Mr, Remote, WcOpcode};
use bareverbs_kernel_tests::kernel_test;

use crate::host::{CAP, Host, QKEY, bytes, done, on_device};

const TYPES: [QpType; 3] = [QpType::RC, QpType::UC, QpType::UD];

/// The loopback path.
fn here(host: &Host) -> AhAttr {
    AhAttr { dlid: host.context.query_port(1).unwrap().lid, ..host.here() }
}

fn create(host: &Host, cq: &Cq, qp_type: QpType) -> QpCore {
    let qp = QpCore::create(&host.pd, qp_type, &QpInit { cap: CAP, ..QpInit::new(cq, cq) }).unwrap();
    assert_eq!((qp.qp_type(), qp.state()), (qp_type, QpState::RESET));
    qp
}

/// RESET → INIT → RTR → RTS.
fn transitions(qp_type: QpType, to: AhAttr, peer: u32) -> [(QpAttr, QpAttrMask); 3] {
    let state = |qp_state| QpAttr { qp_state, ..QpAttr::default() };
    let rts = (state(QpState::RTS), QpAttrMask::STATE | QpAttrMask::SQ_PSN);
    let init = (&InitAttr::new(1)).into();
    match qp_type {
        QpType::RC => [init, (&RtrAttr::new(to, peer)).into(), (&RtsAttr::default()).into()],
        QpType::UC => [init, (&UcRtrAttr::new(to, peer)).into(), rts],
        _ => [(&UdInitAttr::new(1, QKEY)).into(), (state(QpState::RTR), QpAttrMask::STATE), rts],
    }
}

fn bring_up(host: &Host, qp: &mut QpCore, peer: u32) {
    for (attr, mask) in transitions(qp.qp_type(), here(host), peer) {
        qp.modify(&attr, mask).unwrap();
        assert_eq!(qp.state(), attr.qp_state);
    }
}

fn request<'a>(
    operation: impl Into<AnyOperation<'a>>,
    text: &'a [&'a [u8]],
) -> SendRequest<'a, AnyOperation<'a>> {
    SendRequest {
        wr_id: 1,
        operation: operation.into(),
        flags: SendFlags::SIGNALED,
        payload: Payload::Inline(text),
    }
}

fn receive(qp: &mut QpCore, memory: &Mr<Buffer>) {
    let sges = [memory.sge(..).unwrap()];
    // SAFETY: the tests look at the memory by copying, after the completion.
    unsafe { qp.post_recv(&[RecvRequest { wr_id: 2, sges: &sges }]) }.unwrap();
}

#[kernel_test]
fn qp_of_a_type_by_value_sends_and_receives() {
    on_device(|host| {
        for qp_type in TYPES {
            let (mut from_cq, mut to_cq) = (host.cq(), host.cq());
            let (mut from, mut to) = (create(host, &from_cq, qp_type), create(host, &to_cq, qp_type));
            let (from_num, to_num) = (from.qp_num(), to.qp_num());
            bring_up(host, &mut from, to_num);
            bring_up(host, &mut to, from_num);
            let memory = host.memory(4096);
            let ah = host.pd.create_ah(&here(host)).unwrap();
            let is_datagram = qp_type == QpType::UD;
            let operation = match is_datagram {
                true => AnyOperation::Datagram(Datagram::new(&ah, to_num, QKEY)),
                false => Operation::Send.into(),
            };
            let mut arrives =
                |to: &mut QpCore, text: &[u8], post: &mut dyn FnMut(SendRequest<'_, AnyOperation<'_>>)| {
                    receive(to, &memory);
                    post(request(operation, &[text]));
                    assert_eq!(done(&mut from_cq).wr_id, 1);
                    let received = done(&mut to_cq);
                    let grh = if is_datagram { GRH_BYTES } else { 0 };
                    assert_eq!((received.wr_id, received.opcode), (2, WcOpcode::RECV));
                    assert_eq!(bytes(&memory, grh, received.byte_len as usize - grh), text, "{qp_type:?}");
                };
            // SAFETY: the requests name no memory.
            arrives(&mut to, b"alone", &mut |request| unsafe { from.post_send(&[request]) }.unwrap());
            arrives(&mut to, b"in a batch", &mut |request| {
                let mut batch = from.start_send();
                // SAFETY: the request names no memory.
                unsafe { batch.push(&request) }.unwrap();
                batch.ring().unwrap();
            });
            arrives(&mut to, b"deferred", &mut |request| {
                // SAFETY: the request names no memory.
                unsafe { from.post_send_deferred(&[request]) }.unwrap();
                from.flush().unwrap();
            });
            arrives(&mut to, b"by a half", &mut |request| {
                // SAFETY: the request names no memory.
                unsafe { from.split().0.post_send(&[request]) }.unwrap();
            });
            drop((from, to));
        }
    });
}

#[kernel_test]
fn operation_of_another_transport_is_rejected() {
    on_device(|host| {
        let cq = host.cq();
        let ah = host.pd.create_ah(&here(host)).unwrap();
        let read = Operation::Read(Remote { addr: 0, rkey: 0 });
        let xrc = XrcOperation { remote_srq: 1, operation: Operation::Send };
        for qp_type in TYPES {
            let mut qp = create(host, &cq, qp_type);
            let own = qp.qp_num();
            bring_up(host, &mut qp, own);
            let mut foreign =
                vec![(AnyOperation::from(xrc), "an XRC request"), (Frame::default().into(), "a raw packet")];
            if qp_type == QpType::UD {
                foreign.push((Operation::Send.into(), "a send"));
            } else {
                foreign.push((Datagram::new(&ah, own, QKEY).into(), "a datagram"));
            }
            if qp_type == QpType::UC {
                foreign.push((read.into(), "an RDMA read"));
            }
            for (operation, name) in foreign {
                let request = SendRequest { payload: Payload::Sges(&[]), ..request(operation, &[]) };
                let reason = PostReason::Queue(PushError::Unsupported { operation: name });
                // A single request takes the fast path.
                for requests in [&[request][..], &[request, request]] {
                    // SAFETY: the requests name no memory.
                    let posted = unsafe { qp.post_send(requests) }.unwrap_err();
                    assert_eq!((posted.accepted, posted.reason), (0, reason), "{qp_type:?}");
                }
                let mut batch = qp.start_send();
                // SAFETY: the request names no memory.
                assert_eq!(unsafe { batch.push(&request) }, Err(reason), "{qp_type:?}");
            }
        }
    });
}

#[kernel_test]
fn types_without_queues_in_user_space_are_rejected() {
    on_device(|host| {
        let cq = host.cq();
        for qp_type in
            [QpType::SMI, QpType::GSI, QpType::XRC_TGT, QpType::DRIVER, QpType(7), QpType(u32::MAX)]
        {
            let refused = QpCore::create(&host.pd, qp_type, &QpInit::new(&cq, &cq)).unwrap_err();
            assert!(matches!(refused, Error::Invalid { verb: "create_qp", .. }), "{refused}");
            assert_eq!(
                qp_type == QpType::XRC_TGT,
                refused.to_string().contains("create_target"),
                "{refused}"
            );
        }
    });
}

#[kernel_test]
fn modify_of_a_type_by_value_names_missing_attributes() {
    on_device(|host| {
        let cq = host.cq();
        for qp_type in TYPES {
            let mut qp = create(host, &cq, qp_type);
            let steps = transitions(qp_type, here(host), qp.qp_num());
            let missing = match qp_type {
                QpType::RC => [QpAttrMask::PORT, QpAttrMask::MAX_DEST_RD_ATOMIC, QpAttrMask::RETRY_CNT],
                QpType::UC => [QpAttrMask::PORT, QpAttrMask::DEST_QPN, QpAttrMask::SQ_PSN],
                _ => [QpAttrMask::QKEY, QpAttrMask::empty(), QpAttrMask::SQ_PSN],
            };
            for ((attr, mask), missing) in steps.into_iter().zip(missing) {
                if !missing.is_empty() {
                    let refused = qp.modify(&attr, mask - missing).unwrap_err();
                    let hint = format!("the transition also requires {missing:?}");
                    assert!(refused.to_string().contains(&hint), "{qp_type:?}: {refused}");
                }
                qp.modify(&attr, mask).unwrap();
            }
        }
    });
}
