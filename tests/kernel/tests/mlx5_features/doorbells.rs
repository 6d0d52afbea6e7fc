//! Dedicated doorbell registers, and raw WQEs.

use bareverbs::cq::CqInit;
use bareverbs::error::Feature;
use bareverbs::qp::{DoorbellChoice, Operation, Payload, QpInit, Rc, ThreadDomain};
use bareverbs::{Error, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, join, request, side};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::raw_wqe;

#[kernel_test(device::connectx)]
fn hand_built_wqe_example_runs() {
    nothing_leaks(|| raw_wqe::main().unwrap());
}

#[kernel_test(device::connectx)]
fn qp_uses_the_requested_doorbell() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(64)).unwrap();
        let make = |doorbell| pd.create_qp::<Rc>(&QpInit { doorbell, ..QpInit::new(&cq, &cq) }).unwrap();
        let shared: Vec<_> = (0..3).map(|_| make(DoorbellChoice::Shared)).collect();
        assert!(shared.iter().all(|qp| !qp.owns_doorbell()));
        // With BlueFlame, the first 16 queue pairs get a dedicated register each, and the next one
        // shares.
        let first: Vec<_> = (0..16).map(|_| make(DoorbellChoice::Any)).collect();
        let owners = first.iter().filter(|qp| qp.owns_doorbell()).count();
        assert!([0, 16].contains(&owners), "{owners}");
        assert!(!make(DoorbellChoice::Any).owns_doorbell());
        // `DoorbellChoice::Own` always gives a dedicated register.
        let own: Vec<_> = (0..20).map(|_| make(DoorbellChoice::Own)).collect();
        assert!(own.iter().all(bareverbs::qp::Qp::owns_doorbell));
    });
}

#[kernel_test(device::connectx)]
fn qps_work_with_shared_and_dedicated_doorbells() {
    nothing_leaks(|| {
        let pd = domain();
        let with = |doorbell| {
            let mut side = side(&pd, Plan::long_timeouts());
            let init = QpInit { cap: Plan::long_timeouts().cap, doorbell, ..QpInit::new(&side.cq, &side.cq) };
            side.qp = pd.create_qp::<Rc>(&init).unwrap();
            side
        };
        let (mut a, mut b) = (with(DoorbellChoice::Own), with(DoorbellChoice::Shared));
        join(&mut a, &mut b);
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

#[kernel_test(device::connectx)]
fn qps_of_a_thread_domain_work_in_two_threads() {
    nothing_leaks(|| {
        let pd = domain();
        let td = pd.context().alloc_td().unwrap();
        let other = device::open();
        let plan = Plan::long_timeouts();
        let with = |td: &ThreadDomain| {
            let mut side = side(&pd, plan);
            let doorbell = DoorbellChoice::Domain(td);
            let init = QpInit { cap: plan.cap, doorbell, ..QpInit::new(&side.cq, &side.cq) };
            side.qp = pd.create_qp::<Rc>(&init)?;
            Ok::<_, Error>(side)
        };
        let refused = with(&other.alloc_td().unwrap()).map(drop).unwrap_err();
        assert!(refused.to_string().contains("thread domain belongs to another context"), "{refused}");
        let sides = [(); 4].map(|()| with(&td).unwrap());
        // The queue pairs keep the register.
        drop(td);
        assert!(sides.iter().all(|side| !side.qp.owns_doorbell()));
        let [a, b, c, d] = sides;
        std::thread::scope(|scope| {
            for (mut from, mut to) in [(a, b), (c, d)] {
                scope.spawn(move || {
                    join(&mut from, &mut to);
                    for wr_id in 0..100 {
                        let (from, to) =
                            if wr_id % 2 == 0 { (&mut from, &mut to) } else { (&mut to, &mut from) };
                        to.recv_into(wr_id, 1, &[]);
                        from.send(&[request(wr_id, Operation::Send, Payload::Inline(&[b""]))]).unwrap();
                        assert_eq!(from.ends(1), [(wr_id, WcStatus::SUCCESS)]);
                        assert_eq!(to.ends(1), [(wr_id, WcStatus::SUCCESS)]);
                    }
                });
            }
        });
    });
}

#[kernel_test(device::rxe_abi)]
fn dedicated_doorbell_is_unsupported_on_rxe() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let init = |doorbell| QpInit { doorbell, ..QpInit::new(&cq, &cq) };
        let refused = pd.create_qp::<Rc>(&init(DoorbellChoice::Own)).map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        assert!(refused.to_string().contains("dedicated doorbells are not supported"), "{refused}");
        let refused = pd.context().alloc_td().map(drop).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { feature: Feature::ThreadDomains, .. }), "{refused}");
        for choice in [DoorbellChoice::Any, DoorbellChoice::Shared] {
            assert!(!pd.create_qp::<Rc>(&init(choice)).unwrap().owns_doorbell());
        }
    });
}
