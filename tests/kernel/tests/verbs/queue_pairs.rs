use bareverbs::ah::AhAttr;
use bareverbs::cq::CqInit;
use bareverbs::device::DriverId;
use bareverbs::qp::{
    InitAttr, Operation, Payload, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, Rc, RtrAttr, RtsAttr, Sge,
};
use bareverbs::values::{AckTimeout, Mtu, RetryCount, RnrRetry};
use bareverbs::{Access, Error, Pd, PortNum, Remote, WcStatus};

use bareverbs_kernel_tests::loopback::{request, take};
use bareverbs_kernel_tests::{device, kernel_test};

use crate::pair::{End, counts, join, open};

fn in_reset(pd: &Pd) -> Qp<Rc> {
    let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
    pd.create_qp::<Rc>(&QpInit::new(&cq, &cq)).unwrap()
}

fn to_itself(qp: &Qp<Rc>) -> RtrAttr {
    let gid = qp.pd().context().default_gid(1).unwrap();
    RtrAttr::new(AhAttr::global(1, gid.gid, gid.index), qp.qp_num())
}

#[kernel_test]
fn bring_up_states_match_query_qp() {
    let mut qp = in_reset(&open().alloc_pd().unwrap());
    let kernels = |qp: &Qp<Rc>| qp.query().unwrap().0;
    assert_eq!((qp.state(), kernels(&qp).qp_state), (QpState::RESET, QpState::RESET));

    let init = InitAttr { access: Access::REMOTE_READ, ..InitAttr::new(1) };
    qp.init(&init).unwrap();
    assert_eq!((qp.state(), kernels(&qp).qp_state), (QpState::INIT, QpState::INIT));
    assert_eq!(
        (kernels(&qp).port_num, kernels(&qp).access),
        (PortNum(1), device::reported_access(Access::REMOTE_READ))
    );

    let rtr = RtrAttr { rq_psn: 0x12_3456, path_mtu: Mtu::Mtu512, ..to_itself(&qp) };
    qp.ready_to_receive(&rtr).unwrap();
    assert_eq!((qp.state(), kernels(&qp).qp_state), (QpState::RTR, QpState::RTR));
    let reported = kernels(&qp);
    assert_eq!(
        (reported.dest_qp_num, reported.rq_psn, reported.path_mtu),
        (qp.qp_num(), 0x12_3456, Some(Mtu::Mtu512))
    );
    assert_eq!(reported.ah_attr.grh.unwrap().dgid, rtr.address.grh.unwrap().dgid);

    let rts = RtsAttr {
        sq_psn: 0x65_4321,
        timeout: AckTimeout::new(9).unwrap(),
        retry_cnt: RetryCount::new(3).unwrap(),
        rnr_retry: RnrRetry::new(5).unwrap(),
        max_rd_atomic: 2,
    };
    qp.ready_to_send(&rts).unwrap();
    let reported = kernels(&qp);
    assert_eq!((qp.state(), reported.qp_state, reported.sq_psn), (QpState::RTS, QpState::RTS, 0x65_4321));
    assert_eq!(
        (reported.timeout, reported.retry_cnt, reported.rnr_retry, reported.max_rd_atomic),
        (rts.timeout, rts.retry_cnt, rts.rnr_retry, 2)
    );
}

#[kernel_test]
fn out_of_order_steps_are_rejected() {
    let mut qp = in_reset(&open().alloc_pd().unwrap());
    let refused = qp.ready_to_send(&RtsAttr::default()).unwrap_err().to_string();
    assert_eq!(refused, "modify_qp RTR→RTS: the QP is in RESET, not in RTR");
    let rtr = to_itself(&qp);
    assert!(matches!(qp.ready_to_receive(&rtr), Err(Error::Invalid { .. })));
    qp.init(&InitAttr::new(1)).unwrap();
    let refused = qp.init(&InitAttr::new(1)).unwrap_err().to_string();
    assert_eq!(refused, "modify_qp RESET→INIT: the QP is in INIT, not in RESET");
}

#[kernel_test]
fn invalid_bring_up_attributes_are_rejected_by_name() {
    let mut qp = in_reset(&open().alloc_pd().unwrap());
    let device = device::name();
    for port in [0, 3] {
        let refused = qp.init(&InitAttr::new(port)).unwrap_err().to_string();
        assert_eq!(refused, format!("device {device} has no port {port}: its only port is 1"));
    }
    qp.init(&InitAttr::new(1)).unwrap();

    let good = to_itself(&qp);
    let context = qp.pd().context();
    let (active, most) =
        (context.query_port(1).unwrap().active_mtu, context.query_device().unwrap().max_qp_rd_atom);
    let ethernet = device::ethernet().is_ok();
    let mut refused = |attr: RtrAttr| qp.ready_to_receive(&attr).unwrap_err().to_string();
    if active < Mtu::Mtu4096 {
        assert_eq!(
            refused(RtrAttr { path_mtu: Mtu::Mtu4096, ..good }),
            format!("modify_qp INIT→RTR: path MTU 4096 is above the port's active MTU {active}")
        );
    }
    if ethernet {
        assert_eq!(
            refused(RtrAttr { address: AhAttr::local(1, 1), ..good }),
            "modify_qp INIT→RTR: RoCE addresses require a global route: set `grh`"
        );
    }
    let dgid = good.address.grh.unwrap().dgid;
    let text = refused(RtrAttr { address: AhAttr::global(1, dgid, 200), ..good });
    assert!(text.starts_with(&format!("GID index 200 of port 1 of device {device} ")), "{text}");
    assert_eq!(
        refused(RtrAttr { rq_psn: 1 << 24, ..good }),
        "modify_qp INIT→RTR: rq_psn 0x1000000 has more than 24 bits"
    );
    assert_eq!(
        refused(RtrAttr { max_dest_rd_atomic: (most + 1) as u8, ..good }),
        format!("modify_qp INIT→RTR: max_dest_rd_atomic {} is above the maximum of {most}", most + 1)
    );
    // The queue pair is unchanged.
    assert_eq!((qp.state(), qp.query().unwrap().0.qp_state), (QpState::INIT, QpState::INIT));
    qp.ready_to_receive(&good).unwrap();
    qp.ready_to_send(&RtsAttr::default()).unwrap();
}

#[kernel_test]
fn caps_above_device_limits_are_rejected_by_name() {
    let before = counts();
    let pd = open().alloc_pd().unwrap();
    let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
    let refused =
        |cap| pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).map(drop).unwrap_err().to_string();
    let cap = QpCap::default();
    let attr = pd.context().query_device().unwrap();
    let (deep, wide) = (attr.max_qp_wr, attr.max_sge + 1);
    for (cap, asked, most) in [
        (QpCap { max_send_wr: 1 << 21, ..cap }, "max_send_wr 2097152".to_owned(), deep),
        (QpCap { max_recv_wr: u32::MAX, ..cap }, "max_recv_wr 4294967295".to_owned(), deep),
        (QpCap { max_send_sge: wide, ..cap }, format!("max_send_sge {wide}"), attr.max_sge),
        (QpCap { max_recv_sge: wide, ..cap }, format!("max_recv_sge {wide}"), attr.max_sge),
    ] {
        assert_eq!(refused(cap), format!("create_qp: {asked} is above the maximum of {most}"));
    }
    let inline = refused(QpCap { max_inline_data: 1 << 20, ..cap });
    let known = inline.starts_with("create_qp: max_inline_data 1048576 is above the maximum of ");
    let guessed = inline.ends_with("the device may not support 1048576 inline bytes: request fewer");
    assert!(known || guessed, "{inline}");
    drop((cq, pd));
    assert_eq!(counts(), before);
}

#[kernel_test]
fn cqs_of_invalid_depth_are_rejected() {
    let context = open();
    let refused = |init: CqInit<'_>| context.create_cq(&init).map(drop).unwrap_err().to_string();
    assert_eq!(refused(CqInit::new(0)), "create_cq: a CQ requires at least 1 entry");
    let most = context.query_device().unwrap().max_cqe;
    assert_eq!(
        refused(CqInit::new(1 << 31)),
        format!("create_cq: cqe 2147483648 is above the maximum of {most}")
    );
    let vector = refused(CqInit { vector: 99, ..CqInit::new(1) });
    assert!(vector.starts_with("create_cq: ") && vector.contains("vector 99"), "{vector}");
    assert!(context.create_cq(&CqInit::new(100)).unwrap().capacity() >= 100);
    assert!(context.create_cq(&CqInit::new(most)).unwrap().capacity() >= most);
}

#[kernel_test]
fn raw_modify_is_checked_by_the_kernel() {
    let mut qp = in_reset(&open().alloc_pd().unwrap());
    let to = |qp_state| QpAttr { qp_state, ..QpAttr::default() };
    let jump = qp.modify(&to(QpState::RTS), QpAttrMask::STATE).unwrap_err();
    assert!(jump.to_string().starts_with("modify_qp (QP "), "{jump}");
    assert_eq!(jump.errno().map(|errno| errno.raw_os_error()), Some(22));
    qp.init(&InitAttr::new(1)).unwrap();
    qp.modify(&to(QpState::ERR), QpAttrMask::STATE).unwrap();
    assert_eq!(qp.state(), QpState::ERR);
    qp.modify(&to(QpState::RESET), QpAttrMask::STATE).unwrap();
    assert_eq!((qp.state(), qp.query().unwrap().0.qp_state), (QpState::RESET, QpState::RESET));
    // A rate limit needs the extended command.
    assert!(qp.modify(&QpAttr::default(), QpAttrMask::RATE_LIMIT).is_err());
}

#[kernel_test]
fn failed_qp_is_reported_in_err() {
    let pd = open().alloc_pd().unwrap();
    let (mut a, mut b) = (End::new(&pd, QpCap::default()), End::new(&pd, QpCap::default()));
    join(&mut a, &mut b);
    a.send(&request(1, Operation::Write(Remote { addr: 0, rkey: 0 }), Payload::Inline(&[])));
    assert_eq!(a.completions(1)[0].status, WcStatus::SUCCESS);
    let sges = [Sge { addr: 8, length: 8, lkey: 0xdead_be00 }];
    a.send(&request(2, Operation::Send, Payload::Sges(&sges)));
    assert_ne!(a.completions(1)[0].status, WcStatus::SUCCESS);
    // The last transition was to RTS.
    assert_eq!(a.qp.state(), QpState::RTS);
    let refused = a.qp.init(&InitAttr::new(1)).unwrap_err().to_string();
    let expected =
        "modify_qp RESET→INIT: the QP is in ERR, where it moved itself after an error, not in RESET";
    assert_eq!(refused, expected);
    let to_init = QpAttr { qp_state: QpState::INIT, ..QpAttr::default() };
    let refused = a.qp.modify(&to_init, QpAttrMask::STATE).unwrap_err().to_string();
    assert!(refused.contains(" in ERR, "), "{refused}");
    assert!(refused.contains("no transition from ERR to INIT"), "{refused}");
}

/// Devices grant deeper queues than requested. Programs that fill them size the CQ for that.
#[kernel_test]
fn cq_of_the_granted_depths_holds_all_completions() {
    const QPS: usize = 6;
    let pd = open().alloc_pd().unwrap();
    let cap = QpCap { max_send_wr: 16, ..QpCap::default() };
    let mut cq = pd.context().create_cq(&CqInit::new(16 * QPS as u32)).unwrap();
    let mut qps: Vec<_> =
        (0..QPS).map(|_| pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap()).collect();
    let granted: u32 = qps.iter().map(|qp| qp.cap().max_send_wr).sum();
    if pd.context().driver() == DriverId::RXE {
        assert!(granted > cq.capacity(), "{granted} requests, {} entries", cq.capacity());
    }
    if cq.capacity() < granted {
        assert!(cq.resize(granted).unwrap() >= granted);
    }
    let gid = pd.context().default_gid(1).unwrap();
    let dlid = pd.context().query_port(1).unwrap().lid;
    let address = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
    let numbers: Vec<_> = qps.iter().map(Qp::qp_num).collect();
    for (place, qp) in qps.iter_mut().enumerate() {
        qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(1) }).unwrap();
        qp.ready_to_receive(&RtrAttr::new(address, numbers[place ^ 1])).unwrap();
        qp.ready_to_send(&RtsAttr::default()).unwrap();
    }
    for qp in &mut qps {
        let write = request(1, Operation::Write(Remote { addr: 0, rkey: 0 }), Payload::Sges(&[]));
        // Not until the queue is full: Soft-RoCE frees a slot before its completion is polled.
        for _ in 0..qp.cap().max_send_wr {
            // SAFETY: the request names no memory.
            unsafe { qp.post_send(&[write]) }.unwrap();
        }
    }
    let completions = take(&mut cq, granted as usize);
    assert!(completions.iter().all(|completion| completion.status == WcStatus::SUCCESS));
}
