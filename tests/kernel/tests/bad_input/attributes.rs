//! Queue pair attributes, each wrong in turn.

use std::net::Ipv4Addr;

use bareverbs::ah::{AhAttr, GlobalRoute};
use bareverbs::cq::CqInit;
use bareverbs::error::Limit;
use bareverbs::qp::{
    InitAttr, MigState, QpAttr, QpAttrMask, QpInit, QpState, RtrAttr, RtsAttr, Uc, UcRtrAttr, Ud, UdInitAttr,
};
use bareverbs::values::{AckTimeout, GidIndex, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::{Access, Error, Gid, PortNum};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::{Plan, domain, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, kernel_test};

use crate::refusals::{invalid, refused_by_kernel};

const INIT: &str = "modify_qp RESET→INIT";
const RTR: &str = "modify_qp INIT→RTR";
const RTS: &str = "modify_qp RTR→RTS";
const EINVAL: i32 = 22;

#[kernel_test(device::ib_transports)]
fn reset_to_init_attributes_are_validated() {
    nothing_leaks(|| {
        let pd = domain();
        let mut rc = side(&pd, Plan::default());
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let mut ud = pd.create_qp::<Ud>(&QpInit::new(&cq, &cq)).unwrap();
        let good = InitAttr::new(1);
        let length = pd.context().query_port(1).unwrap().pkey_tbl_len;
        for pkey_index in [length, 0x8000, u16::MAX] {
            let text =
                format!("{INIT}: P_Key index {pkey_index} exceeds the table of {length} entries of port 1");
            invalid(rc.qp.init(&InitAttr { pkey_index, ..good }), &text);
            invalid(ud.init(&UdInitAttr { pkey_index, ..UdInitAttr::new(1, 7) }), &text);
        }
        for access in [Access::ZERO_BASED, Access::HUGETLB, Access::from_bits_retain(1 << 31)] {
            let text = format!("{INIT}: a QP cannot grant access {access:?}: these flags apply to MRs only");
            invalid(rc.qp.init(&InitAttr { access: access | Access::LOCAL_WRITE, ..good }), &text);
        }
        assert_eq!((rc.qp.state(), rc.kernel_state()), (QpState::RESET, QpState::RESET));
        assert!(matches!(ud.init(&UdInitAttr::new(0, 7)), Err(Error::NoPort { port: PortNum(0), .. })));
        assert_eq!(ud.query().unwrap().0.qp_state, QpState::RESET);
        let access = Access::REMOTE_READ | Access::RELAXED_ORDERING;
        if let Err(refused) = rc.qp.init(&InitAttr { access, ..good }) {
            assert!(
                refused.to_string().ends_with(&format!("may not support access {access:?}")),
                "{refused}"
            );
            rc.qp.init(&good).unwrap();
        }
        ud.init(&UdInitAttr::new(1, 7)).unwrap();
    });
}

#[kernel_test(device::root, device::ib_transports)]
fn privileged_qkey_is_rejected_without_privilege() {
    nothing_leaks(|| {
        child::run(|| {
            child::drop_privileges();
            let pd = domain();
            let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
            let mut ud = pd.create_qp::<Ud>(&QpInit::new(&cq, &cq)).unwrap();
            let privileged = ud.init(&UdInitAttr::new(1, 0x8000_0001));
            if let Err(refused) = privileged {
                refused_by_kernel(
                    Err::<(), _>(refused),
                    INIT,
                    1,
                    "or permit it by `rdma system set privileged-qkey on`",
                );
                assert_eq!(ud.query().unwrap().0.qp_state, QpState::RESET);
                ud.init(&UdInitAttr::new(1, 0x7fff_ffff)).unwrap();
            }
        });
    });
}

#[kernel_test(device::moves_qps)]
fn ah_attr_is_validated_in_init_to_rtr() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = side(&pd, Plan::default());
        side.qp.init(&InitAttr::new(1)).unwrap();
        let good = side.towards(1);
        let grh = good.address.grh.unwrap();
        let way = |grh: GlobalRoute| AhAttr { grh: Some(grh), ..good.address };
        let cases = [
            (AhAttr { sl: 16, ..good.address }, "service level 16 is above 15"),
            (way(GlobalRoute { flow_label: 1 << 20, ..grh }), "flow label 0x100000 has more than 20 bits"),
            (way(GlobalRoute { dgid: Gid::default(), ..grh }), "the destination GID is zero"),
            (AhAttr { grh: None, ..good.address }, "RoCE addresses require a global route: set `grh`"),
        ];
        let ethernet = device::ethernet().is_ok();
        for (address, words) in cases.into_iter().filter(|(way, _)| ethernet || way.grh.is_some()) {
            invalid(side.qp.ready_to_receive(&RtrAttr { address, ..good }), &format!("{RTR}: {words}"));
            invalid(pd.create_ah(&address), &format!("create_ah: {words}"));
        }
        let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
        invalid(
            side.qp.ready_to_receive(&RtrAttr { address: way(GlobalRoute { dgid: group, ..grh }), ..good }),
            &format!("{RTR}: a connected QP cannot use the multicast group {group}"),
        );

        // Values that only the kernel can check.
        let table = pd.context().gid_table().unwrap();
        let v6 = table.iter().find(|entry| entry.gid.ipv4().is_none()).unwrap().gid;
        let strangers = [
            ("another family", GlobalRoute { dgid: v6, ..grh }),
            ("no route", GlobalRoute { dgid: Gid::from(Ipv4Addr::new(203, 0, 113, 9)), ..grh }),
        ];
        // On InfiniBand only packets show whether a GID can be reached. A soft device resolves no
        // address.
        for (what, grh) in strangers.into_iter().filter(|_| ethernet && !device::is_soft_device()) {
            for (verb, refused) in [
                (RTR, side.qp.ready_to_receive(&RtrAttr { address: way(grh), ..good })),
                ("create_ah", pd.create_ah(&way(grh)).map(drop)),
            ] {
                let refused = refused.expect_err(what);
                let text = refused.to_string();
                assert!(matches!(refused, Error::Kernel(_)), "{what}: {refused:?}");
                assert!(text.starts_with(verb), "{what}: {text}");
                let reported = if what == "no route" {
                    "did not answer the address resolution"
                } else {
                    "have different address families"
                };
                assert!(text.contains(reported), "{what}: {text}");
            }
        }
        for port in [0, 2, 255] {
            let refused =
                pd.create_ah(&AhAttr { port: PortNum(port), ..good.address }).map(drop).unwrap_err();
            assert!(matches!(refused, Error::NoPort { count: 1, .. }), "{refused:?}");
        }
        for index in [77, 255] {
            let grh = GlobalRoute { sgid_index: GidIndex(index), ..grh };
            let refused = side.qp.ready_to_receive(&RtrAttr { address: way(grh), ..good }).unwrap_err();
            assert!(matches!(refused, Error::NoGid { .. }), "{refused:?}");
            let refused = pd.create_ah(&way(grh)).map(drop).unwrap_err();
            assert!(matches!(refused, Error::NoGid { .. }), "{refused:?}");
        }
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::INIT, QpState::INIT));
        side.qp.ready_to_receive(&good).unwrap();
    });
}

#[kernel_test(device::moves_qps)]
fn init_to_rtr_attributes_are_validated() {
    nothing_leaks(|| {
        let pd = domain();
        let mut rc = side(&pd, Plan::default());
        rc.qp.init(&InitAttr::new(1)).unwrap();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let mut uc = pd.create_qp::<Uc>(&QpInit::new(&cq, &cq)).unwrap();
        uc.init(&InitAttr::new(1)).unwrap();
        let good = rc.towards(1);
        let good_uc = UcRtrAttr::new(good.address, 1);
        let active = pd.context().query_port(1).unwrap().active_mtu;
        for number in [1 << 24, 1 << 31, u32::MAX] {
            for (what, rtr, rtr_uc) in [
                (
                    "dest_qp_num",
                    RtrAttr { dest_qp_num: number, ..good },
                    UcRtrAttr { dest_qp_num: number, ..good_uc },
                ),
                ("rq_psn", RtrAttr { rq_psn: number, ..good }, UcRtrAttr { rq_psn: number, ..good_uc }),
            ] {
                let text = format!("{RTR}: {what} {number:#x} has more than 24 bits");
                invalid(rc.qp.ready_to_receive(&rtr), &text);
                invalid(uc.ready_to_receive(&rtr_uc), &text);
            }
        }
        for path_mtu in [Mtu::Mtu2048, Mtu::Mtu4096].into_iter().filter(|mtu| *mtu > active) {
            let text = format!("{RTR}: path MTU {path_mtu} is above the port's active MTU {active}");
            invalid(rc.qp.ready_to_receive(&RtrAttr { path_mtu, ..good }), &text);
            invalid(uc.ready_to_receive(&UcRtrAttr { path_mtu, ..good_uc }), &text);
        }
        let most = pd.context().query_device().unwrap().max_qp_rd_atom as u8;
        let refused = rc.qp.ready_to_receive(&RtrAttr { max_dest_rd_atomic: most + 1, ..good }).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("{RTR}: max_dest_rd_atomic {} is above the maximum of {most}", most + 1)
        );
        assert_eq!((rc.kernel_state(), uc.query().unwrap().0.qp_state), (QpState::INIT, QpState::INIT));
        rc.qp
            .ready_to_receive(&RtrAttr {
                max_dest_rd_atomic: most,
                min_rnr_timer: MinRnrTimer::new(31).unwrap(),
                ..good
            })
            .unwrap();
        uc.ready_to_receive(&UcRtrAttr { rq_psn: 0xff_ffff, ..good_uc }).unwrap();
    });
}

#[kernel_test(device::moves_qps)]
fn rtr_to_rts_attributes_are_validated() {
    nothing_leaks(|| {
        let pd = domain();
        let mut rc = side(&pd, Plan::default());
        rc.qp.init(&InitAttr::new(1)).unwrap();
        let rtr = rc.towards(1);
        rc.qp.ready_to_receive(&rtr).unwrap();
        let cq = pd.context().create_cq(&CqInit::new(16)).unwrap();
        let mut ud = pd.create_qp::<Ud>(&QpInit::new(&cq, &cq)).unwrap();
        ud.init(&UdInitAttr::new(1, 7)).unwrap();
        ud.ready_to_receive().unwrap();
        let good = RtsAttr::default();
        for sq_psn in [1 << 24, 1 << 31, u32::MAX] {
            let text = format!("{RTS}: sq_psn {sq_psn:#x} has more than 24 bits");
            invalid(rc.qp.ready_to_send(&RtsAttr { sq_psn, ..good }), &text);
            invalid(ud.ready_to_send(sq_psn), &text);
        }
        let most = pd.context().query_device().unwrap().max_qp_init_rd_atom as u8;
        let refused = rc.qp.ready_to_send(&RtsAttr { max_rd_atomic: most + 1, ..good }).unwrap_err();
        assert!(matches!(refused, Error::Limit { limit: Limit::MaxRdAtomic, .. }), "{refused:?}");
        assert_eq!(rc.kernel_state(), QpState::RTR);
        let most = RtsAttr {
            sq_psn: 0xff_ffff,
            timeout: AckTimeout::new(31).unwrap(),
            retry_cnt: RetryCount::new(7).unwrap(),
            rnr_retry: RnrRetry::new(7).unwrap(),
            max_rd_atomic: most,
        };
        rc.qp.ready_to_send(&most).unwrap();
        ud.ready_to_send(0xff_ffff).unwrap();
    });
}

/// Each attribute of `modify`, out of range.
#[kernel_test(device::moves_qps)]
fn modify_rejects_out_of_range_values() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = side(&pd, Plan::default());
        let zero = QpAttr::default();
        type Mask = QpAttrMask;
        let cases = [
            (QpAttr { rq_psn: 1 << 24, ..zero }, Mask::RQ_PSN, "rq_psn 0x1000000 has more than 24 bits"),
            (QpAttr { sq_psn: u32::MAX, ..zero }, Mask::SQ_PSN, "sq_psn 0xffffffff has more than 24 bits"),
            (
                QpAttr { dest_qp_num: 1 << 24, ..zero },
                Mask::DEST_QPN,
                "dest_qp_num 0x1000000 has more than 24 bits",
            ),
            (
                QpAttr { path_mig_state: MigState(3), ..zero },
                Mask::PATH_MIG_STATE,
                "path_mig_state 3 is above 2",
            ),
            (zero, Mask::PATH_MTU, "the mask has PATH_MTU, but path_mtu is None"),
            (
                QpAttr { cur_qp_state: QpState::RTR, ..zero },
                Mask::CUR_STATE,
                "the QP is in RESET, not in RTR",
            ),
        ];
        for (attr, mask, words) in cases {
            invalid(side.qp.modify(&attr, mask), &format!("modify_qp: {words}"));
            // Also together with valid attributes.
            let init = QpAttr { qp_state: QpState::INIT, port_num: PortNum(1), ..attr };
            let all = Mask::STATE | Mask::PORT | Mask::PKEY_INDEX | Mask::ACCESS_FLAGS;
            invalid(side.qp.modify(&init, all | mask), &format!("modify_qp: {words}"));
        }
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::RESET, QpState::RESET));
    });
}

/// The error names missing and disallowed attributes, together with the kernel's error.
#[kernel_test(device::moves_qps)]
fn modify_names_missing_and_disallowed_attributes() {
    nothing_leaks(|| {
        let pd = domain();
        let mut side = side(&pd, Plan::default());
        type Mask = QpAttrMask;
        let to = |qp_state| QpAttr { qp_state, port_num: PortNum(1), ..QpAttr::default() };
        let all = Mask::STATE | Mask::PORT | Mask::PKEY_INDEX | Mask::ACCESS_FLAGS;
        for bit in [Mask::PORT, Mask::PKEY_INDEX, Mask::ACCESS_FLAGS] {
            let hint = format!("the transition also requires {bit:?}");
            refused_by_kernel(side.qp.modify(&to(QpState::INIT), all - bit), "modify_qp", EINVAL, &hint);
        }
        for bit in [Mask::QKEY, Mask::TIMEOUT, Mask::SQ_PSN, Mask::MAX_QP_RD_ATOMIC] {
            let hint = format!("the transition does not allow {bit:?}");
            refused_by_kernel(side.qp.modify(&to(QpState::INIT), all | bit), "modify_qp", EINVAL, &hint);
        }
        for state in [QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE, QpState::ERR] {
            let text = side.qp.modify(&to(state), Mask::STATE).unwrap_err().to_string();
            assert!(text.contains(&format!("no transition from RESET to {state:?}: the order is")), "{text}");
        }
        for port_num in [0, 2, 255] {
            let attr = QpAttr { port_num: PortNum(port_num), ..to(QpState::INIT) };
            refused_by_kernel(side.qp.modify(&attr, all), "modify_qp", EINVAL, "query it");
        }
        // Undefined bits.
        let unknown = Mask::from_bits_retain(1 << 30);
        let refused = side.qp.modify(&to(QpState::INIT), all | unknown).unwrap_err();
        assert!(matches!(refused, Error::Kernel(_)), "{refused:?}");
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::RESET, QpState::RESET));
        side.qp.modify(&to(QpState::INIT), all).unwrap();
        assert_eq!((side.qp.state(), side.kernel_state()), (QpState::INIT, QpState::INIT));
    });
}

#[kernel_test(device::moves_qps)]
fn max_dest_rd_atomic_above_the_first_value_is_rejected_on_rxe() {
    nothing_leaks(|| {
        let pd = domain();
        for (first, next, possible) in
            [(0, 0, true), (0, 1, false), (4, 3, true), (3, 4, true), (3, 5, false), (1, 16, false)]
        {
            let mut side = side(&pd, Plan::default());
            for (max_dest_rd_atomic, possible) in [(first, true), (next, possible)] {
                side.qp.init(&InitAttr::new(1)).unwrap();
                let rtr = RtrAttr { max_dest_rd_atomic, ..side.towards(1) };
                match side.qp.ready_to_receive(&rtr) {
                    Err(refused) => {
                        let start = "Soft-RoCE cannot increase max_dest_rd_atomic of a QP";
                        assert!(refused.to_string().starts_with(&format!("{RTR}: {start}")), "{refused}");
                        assert!(!possible, "{first} {next}: {refused}");
                    }
                    // Only Soft-RoCE keeps the first max_dest_rd_atomic as its limit.
                    Ok(()) => assert!(possible || !device::has_rxe_abi(), "{first} {next}"),
                }
                side.qp.reset().unwrap();
            }
        }
    });
}
