//! Queue pairs of each transport: creation and bring-up.

use bareverbs::cq::{Cq, CqInit};
use bareverbs::error::{Feature, PostReason};
use bareverbs::qp::{
    BringUp, Datagram, InitAttr, Operation, Payload, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType,
    RawPacket, Rc, RecvRequest, RtrAttr, RtsAttr, SendFlags, SendRequest, Transport, Uc, UcRtrAttr, Ud,
    UdInitAttr,
};
use bareverbs::{Error, Pd, PortNum, WcOpcode, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::exchange::ud_endpoints;
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, domain, pair, region};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, kernel_test, loopback};

const CAP: QpCap =
    QpCap { max_send_wr: 33, max_recv_wr: 17, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 48 };

fn cq(pd: &Pd) -> Cq {
    pd.context().create_cq(&CqInit::new(100)).unwrap()
}

fn make<T: Transport>(pd: &Pd, cap: QpCap, signal_all: bool) -> bareverbs::Result<Qp<T>> {
    let cq = cq(pd);
    pd.create_qp(&QpInit { cap, signal_all, ..QpInit::new(&cq, &cq) })
}

fn state<T: Transport>(qp: &Qp<T>) -> QpState {
    let reported = qp.query().unwrap().0.qp_state;
    let expected = if qp.state() == QpState::RESET { device::reported_reset() } else { qp.state() };
    assert_eq!(reported, expected, "the kernel says otherwise");
    qp.state()
}

/// Each capacity of a queue pair, by name.
fn fields(cap: &QpCap) -> [(&'static str, u32); 5] {
    [
        ("max_send_wr", cap.max_send_wr),
        ("max_recv_wr", cap.max_recv_wr),
        ("max_send_sge", cap.max_send_sge),
        ("max_recv_sge", cap.max_recv_sge),
        ("max_inline_data", cap.max_inline_data),
    ]
}

#[kernel_test]
fn new_qp_is_in_reset_with_requested_caps() {
    fn look<T: Transport>(pd: &Pd) {
        for (cap, signal_all) in [(QpCap::default(), false), (CAP, false), (CAP, true)] {
            let qp = make::<T>(pd, cap, signal_all).unwrap();
            assert_eq!(state(&qp), QpState::RESET);
            let (attr, init) = qp.query().unwrap();
            assert_eq!(attr.cap, init.cap);
            // Soft-iWARP does not report it.
            assert!(init.signal_all == signal_all || device::is_iwarp());
            for has in [qp.cap(), init.cap] {
                for ((what, asked), (_, has)) in fields(&cap).into_iter().zip(fields(&has)) {
                    assert!(has >= asked, "{what}: {has} of {asked}");
                }
            }
        }
    }
    nothing_leaks(|| {
        let pd = domain();
        look::<Rc>(&pd);
        if device::ib_transports().is_ok() {
            look::<Uc>(&pd);
            look::<Ud>(&pd);
        }
    });
}

#[kernel_test(device::moves_qps)]
fn bring_up_of_each_transport_matches_query_qp() {
    nothing_leaks(|| {
        let pd = domain();
        let init = InitAttr { access: ALL_REMOTE, ..InitAttr::new(1) };
        let here = loopback::side(&pd, loopback::Plan::default()).towards(0x123).address;

        let mut rc = make::<Rc>(&pd, CAP, false).unwrap();
        rc.init(&init).unwrap();
        assert_eq!(state(&rc), QpState::INIT);
        assert_eq!(rc.query().unwrap().0.access, device::reported_access(ALL_REMOTE));
        rc.ready_to_receive(&RtrAttr { rq_psn: 0x45, ..RtrAttr::new(here, 0x123) }).unwrap();
        rc.ready_to_send(&RtsAttr { sq_psn: 0x67, ..RtsAttr::default() }).unwrap();
        assert_eq!(state(&rc), QpState::RTS);
        let reported = rc.query().unwrap().0;
        assert_eq!((reported.dest_qp_num, reported.rq_psn, reported.sq_psn), (0x123, 0x45, 0x67));

        let mut uc = make::<Uc>(&pd, CAP, false).unwrap();
        uc.init(&init).unwrap();
        assert_eq!(state(&uc), QpState::INIT);
        uc.ready_to_receive(&UcRtrAttr { rq_psn: 0x45, ..UcRtrAttr::new(here, 0x123) }).unwrap();
        uc.ready_to_send(0x67).unwrap();
        assert_eq!(state(&uc), QpState::RTS);
        let reported = uc.query().unwrap().0;
        assert_eq!((reported.dest_qp_num, reported.rq_psn, reported.sq_psn), (0x123, 0x45, 0x67));

        let mut ud = make::<Ud>(&pd, CAP, false).unwrap();
        for (qkey, psn) in [(0x123, 0x45), (0x7fff_ffff, 0xff_ffff)] {
            ud.init(&UdInitAttr::new(1, qkey)).unwrap();
            assert_eq!((state(&ud), ud.query().unwrap().0.qkey), (QpState::INIT, qkey));
            ud.ready_to_receive().unwrap();
            assert_eq!(state(&ud), QpState::RTR);
            ud.ready_to_send(psn).unwrap();
            assert_eq!((state(&ud), ud.query().unwrap().0.sq_psn), (QpState::RTS, psn));
            ud.modify(&QpAttr { qp_state: QpState::RESET, ..QpAttr::default() }, QpAttrMask::STATE).unwrap();
            assert_eq!(state(&ud), QpState::RESET);
        }
    });
}

#[kernel_test(device::moves_qps)]
fn bring_up_is_generic_over_transports() {
    fn look<T: BringUp>(pd: &Pd, init: &T::Init, rtr: &T::Rtr, rts: &T::Rts) {
        let supported = pd.context().is_qpt_supported(T::QP_TYPE);
        assert!(supported || T::QP_TYPE == QpType::RAW_PACKET);
        let made = make::<T>(pd, CAP, false);
        if !supported {
            let feature = Feature::RawPacketQps;
            let refused = made.map(drop).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { feature: found, .. } if found == feature));
            return;
        }
        let mut qp = made.unwrap();
        qp.bring_up(init, rtr, rts).unwrap();
        assert_eq!(state(&qp), QpState::RTS);
        // The first transition is refused, and nothing changes.
        qp.bring_up(init, rtr, rts).unwrap_err();
        assert_eq!(state(&qp), QpState::RTS);
    }
    nothing_leaks(|| {
        let pd = domain();
        let init = InitAttr::new(1);
        let here = loopback::side(&pd, loopback::Plan::default()).towards(0x123).address;
        look::<Rc>(&pd, &init, &RtrAttr::new(here, 0x123), &RtsAttr::default());
        look::<Uc>(&pd, &init, &UcRtrAttr::new(here, 0x123), &7);
        look::<Ud>(&pd, &UdInitAttr::new(1, 0x123), &(), &7);
        look::<RawPacket>(&pd, &PortNum(1), &(), &());
        assert!(!pd.context().is_qpt_supported(QpType(0x77)));
    });
}

#[kernel_test]
fn qp_caps_above_device_limits_are_rejected() {
    fn look<T: Transport>(pd: &Pd) {
        let refused = |cap| make::<T>(pd, cap, false).map(drop).unwrap_err();
        for cap in [
            QpCap { max_send_wr: u32::MAX, ..CAP },
            QpCap { max_recv_wr: u32::MAX, ..CAP },
            QpCap { max_send_sge: 0xffff, ..CAP },
            QpCap { max_recv_sge: 0xffff, ..CAP },
        ] {
            assert!(matches!(refused(cap), Error::Limit { .. }), "{cap:?}");
        }
        make::<T>(pd, CAP, false).unwrap();
    }
    nothing_leaks(|| {
        let pd = domain();
        look::<Rc>(&pd);
        if device::ib_transports().is_ok() {
            look::<Uc>(&pd);
            look::<Ud>(&pd);
        }
    });
}

#[kernel_test(device::root, device::ib_transports)]
fn privileged_qkey_is_rejected_without_privilege() {
    const PRIVILEGED: u32 = 0x8000_0000;
    nothing_leaks(|| {
        let pd = domain();
        let mut qp = make::<Ud>(&pd, CAP, false).unwrap();
        qp.init(&UdInitAttr::new(1, PRIVILEGED)).unwrap();
        assert_eq!((state(&qp), qp.query().unwrap().0.qkey), (QpState::INIT, PRIVILEGED));
        drop((qp, pd));

        child::run(|| {
            child::drop_privileges();
            let pd = domain();
            let mut qp = make::<Ud>(&pd, CAP, false).unwrap();
            match qp.init(&UdInitAttr::new(1, PRIVILEGED)) {
                Err(refused) => {
                    assert!(refused.to_string().contains("is privileged"), "{refused}");
                    assert_eq!(state(&qp), QpState::RESET);
                    qp.init(&UdInitAttr::new(1, PRIVILEGED - 1)).unwrap();
                }
                // Older kernels do not check the privilege.
                Ok(()) => assert_eq!(qp.query().unwrap().0.qkey, PRIVILEGED),
            }
        });
    });
}

#[kernel_test(device::moves_qps)]
fn max_rd_atomic_is_kept() {
    nothing_leaks(|| {
        let pd = domain();
        let limits = pd.context().query_device().unwrap();
        let here = loopback::side(&pd, loopback::Plan::default()).towards(0x123).address;
        for asked in [0, 1, 12, limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom) as u8] {
            let mut qp = make::<Rc>(&pd, CAP, false).unwrap();
            qp.init(&InitAttr::new(1)).unwrap();
            qp.ready_to_receive(&RtrAttr { max_dest_rd_atomic: asked, ..RtrAttr::new(here, 0x123) }).unwrap();
            qp.ready_to_send(&RtsAttr { max_rd_atomic: asked, ..RtsAttr::default() }).unwrap();
            let reported = qp.query().unwrap().0;
            assert!(
                reported.max_rd_atomic >= asked && reported.max_dest_rd_atomic >= asked,
                "{asked}: {reported:?}"
            );
        }
    });
}

#[kernel_test(device::cq_resize)]
fn cq_sized_for_the_granted_depths_loses_no_completion() {
    nothing_leaks(|| {
        let pd = domain();
        let cap = QpCap { max_send_wr: 20, max_recv_wr: 9, ..QpCap::default() };
        let (mut a, mut b) = pair(&pd, Plan { cap, ..Plan::long_timeouts() });
        let granted = a.qp.cap();
        let entries = granted.max_send_wr + granted.max_recv_wr;
        if a.cq.capacity() < entries {
            a.cq.resize(entries).unwrap();
        }
        let (source, target) = (region(&pd, &[7; 64], ALL_REMOTE), region(&pd, &[0; 4096], ALL_REMOTE));
        let byte = [source.sge(..1).unwrap()];
        for round in 0..3 {
            let mut receives = 0;
            // SAFETY: the memory is only copied from, after the completion.
            while unsafe { a.qp.post_recv(&[RecvRequest { wr_id: receives, sges: &[] }]) }.is_ok() {
                receives += 1;
            }
            assert_eq!(receives, u64::from(granted.max_recv_wr), "round {round}");
            // Nothing of `a` is polled until all its requests have completed.
            for wr_id in 0..granted.max_send_wr.into() {
                let offset = wr_id as usize % 4096;
                let write = Operation::Write(target.remote(offset).unwrap());
                a.send(&[loopback::request(wr_id, write, Payload::Sges(&byte))]).unwrap();
            }
            for wr_id in 0..receives {
                b.send(&[loopback::request(wr_id, Operation::Send, Payload::Sges(&[]))]).unwrap();
                assert_eq!(b.ends(1), [(wr_id, WcStatus::SUCCESS)]);
            }
            let polled = a.completions(entries as usize);
            assert!(polled.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{polled:?}");
            for (opcode, count) in
                [(WcOpcode::RDMA_WRITE, granted.max_send_wr), (WcOpcode::RECV, granted.max_recv_wr)]
            {
                let of_kind = polled.iter().filter(|wc| wc.opcode == opcode).map(|wc| wc.wr_id);
                assert!(of_kind.eq(0..count.into()), "{opcode:?}: {polled:?}");
            }
            assert!(a.cq.poll_one().is_none());
        }
    });
}

#[kernel_test(device::ib_transports)]
fn reset_qp_rejects_posts() {
    nothing_leaks(|| {
        let pd = domain();
        let [mut one, mut other] = ud_endpoints(&pd, 8, ALL_REMOTE);
        let target = region(&pd, &[0; 64], ALL_REMOTE);
        let refused = PostReason::State(QpState::RESET);
        one.send_to(&mut other, None, b"a letter");
        for correspondent in [&mut one, &mut other] {
            let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
            correspondent.qp.modify(&reset, QpAttrMask::STATE).unwrap();
            let sges = [target.sge(..).unwrap()];
            // SAFETY: the request is rejected.
            let error = unsafe { correspondent.qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]) };
            assert_eq!(error.unwrap_err().reason, refused);
        }
        let ah = pd.create_ah(&loopback::side(&pd, loopback::Plan::default()).towards(1).address).unwrap();
        let operation = Datagram::new(&ah, other.qp.qp_num(), 1);
        let payload = Payload::Inline(&[b"x"]);
        let request = SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the request is rejected.
        assert_eq!(unsafe { one.qp.post_send(&[request]) }.unwrap_err().reason, refused);
        assert!(one.cq.poll_one().is_none() && other.cq.poll_one().is_none());
    });
}
