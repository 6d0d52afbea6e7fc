//! Doorbells of one queue pair's own, and requests that are built by hand.

use bareverbs::{CqInit, DoorbellChoice, Error, Operation, Payload, QpInit, Rc, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;

use crate::hand_built_wqe;

pub(crate) fn the_example_of_requests_built_by_hand_runs() {
    nothing_leaks(|| hand_built_wqe::main().unwrap());
}

pub(crate) fn a_queue_pair_has_the_doorbell_that_it_was_to_have() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let make = |doorbell| pd.create_qp::<Rc>(&QpInit { doorbell, ..QpInit::new(&cq, &cq) }).unwrap();
        let shared: Vec<_> = (0..3).map(|_| make(DoorbellChoice::Shared)).collect();
        assert!(shared.iter().all(|qp| !qp.owns_doorbell()));
        // Whoever comes first has one, where requests can be copied to it: as many as none who shares has used up.
        let first: Vec<_> = (0..16).map(|_| make(DoorbellChoice::Any)).collect();
        let owners = first.iter().filter(|qp| qp.owns_doorbell()).count();
        assert!([0, 16].contains(&owners), "{owners}");
        assert!(!make(DoorbellChoice::Any).owns_doorbell());
        // Who asks for one has one all the same.
        let own: Vec<_> = (0..20).map(|_| make(DoorbellChoice::Own)).collect();
        assert!(own.iter().all(bareverbs::Qp::owns_doorbell));
    });
}

pub(crate) fn queue_pairs_work_with_either_doorbell() {
    nothing_leaks(|| {
        let pd = domain();
        let with = |doorbell| {
            let mut side = side(&pd, Plan::patient());
            let init = QpInit { cap: Plan::patient().cap, doorbell, ..QpInit::new(&side.cq, &side.cq) };
            side.qp = pd.create_qp::<Rc>(&init).unwrap();
            side
        };
        let (mut a, mut b) = (with(DoorbellChoice::Own), with(DoorbellChoice::Shared));
        a.connect(b.qp.qp_num());
        b.connect(a.qp.qp_num());
        let exchange = |from: &mut Side, to: &mut Side| {
            to.recv_into(1, 1, &[]);
            from.send(&[request(2, Operation::Send, Payload::Inline(&[b""]))]).unwrap();
            assert_eq!(
                (from.ends(1), to.ends(1)),
                (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)])
            );
        };
        for _ in 0..40 {
            exchange(&mut a, &mut b);
            exchange(&mut b, &mut a);
        }
    });
}

pub(crate) fn without_doorbells_of_ones_own_asking_for_one_says_so() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let init = |doorbell| QpInit { doorbell, ..QpInit::new(&cq, &cq) };
        let refused = pd.create_qp::<Rc>(&init(DoorbellChoice::Own)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(
            refused.to_string().contains("doorbells of one queue pair's own are not supported"),
            "{refused}"
        );
        for choice in [DoorbellChoice::Any, DoorbellChoice::Shared] {
            assert!(!pd.create_qp::<Rc>(&init(choice)).unwrap().owns_doorbell());
        }
    });
}
