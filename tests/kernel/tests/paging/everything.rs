//! Implicit ODP regions, over the whole address space.

use bareverbs::mr::{ImplicitMr, LocalAccess};
use bareverbs::qp::{Operation, Payload, RecvRequest};
use bareverbs::{Access, Buffer, Error, Pd, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, pair, request};
use bareverbs_kernel_tests::{Outcome, kernel_test};

use super::{PAGE, ROUNDS, evict_pages, on_demand, passed, skip};

/// Runs `test` if the device supports implicit ODP; else asserts `Error::Unsupported`.
fn implicit(test: impl FnOnce(&Pd)) -> Outcome {
    on_demand(|pd| {
        if !pd.context().capabilities().odp_implicit {
            let refused = pd.register_implicit(LocalAccess::Read).unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
            return skip("the device has no regions over all memory");
        }
        test(pd);
        passed()
    })
}

fn reachable(pd: &Pd) -> ImplicitMr {
    // SAFETY: the peers are in this test, and access only the memory that it gives them.
    unsafe { pd.register_implicit_remote(ALL_REMOTE) }.unwrap()
}

#[kernel_test]
fn implicit_odp_mr_covers_all_memory() -> Outcome {
    implicit(|pd| {
        let everything = pd.register_implicit(LocalAccess::ReadWrite).unwrap();
        let (mut a, mut b) = pair(pd, Plan::long_timeouts());
        for round in 0..ROUNDS {
            // Memory that was mapped after the region was created, and pages that are not present.
            let len = PAGE * (1 + round % 3);
            let mut text = Buffer::zeroed(len).unwrap();
            text.fill(round as u8 + 1);
            let ours = everything.part(text).unwrap();
            let theirs = everything.part(Buffer::zeroed(len).unwrap()).unwrap();
            assert_eq!((ours.lkey(), theirs.lkey()), (everything.lkey(), everything.lkey()));
            evict_pages(&theirs);
            b.recv(&[RecvRequest { wr_id: 1, sges: &[theirs.sge(..).unwrap()] }]).unwrap();
            a.send(&[request(2, Operation::Send, Payload::Sges(&[ours.sge(..).unwrap()]))]).unwrap();
            assert_eq!((a.ends(1), b.ends(1)), (vec![(2, WcStatus::SUCCESS)], vec![(1, WcStatus::SUCCESS)]));
            assert_eq!(contents(&theirs), vec![round as u8 + 1; len]);
        }
    })
}

#[kernel_test]
fn implicit_odp_mr_is_remotely_accessible() -> Outcome {
    implicit(|pd| {
        let everything = reachable(pd);
        let (mut a, b) = pair(pd, Plan::long_timeouts());
        let mut ours = everything.part(vec![0; 3 * PAGE]).unwrap();
        let theirs = everything.part(Buffer::zeroed(3 * PAGE).unwrap()).unwrap();
        for round in 1..=ROUNDS as u8 {
            ours.write(0, &vec![round; 3 * PAGE]).unwrap();
            evict_pages(&theirs);
            let there = everything.remote(theirs.as_ptr());
            assert_eq!(there, theirs.remote(0).unwrap());
            let whole = [ours.sge(..).unwrap()];
            a.send(&[request(1, Operation::Write(there), Payload::Sges(&whole))]).unwrap();
            assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
            assert_eq!(contents(&theirs), vec![round; 3 * PAGE]);
            evict_pages(&theirs);
            a.send(&[request(2, Operation::Read(there), Payload::Sges(&whole))]).unwrap();
            assert_eq!(a.ends(1), [(2, WcStatus::SUCCESS)]);
            assert_eq!(contents(&ours), vec![0; 3 * PAGE], "what was taken away reads as zeros");
        }
        drop(b);
    })
}

#[kernel_test]
fn implicit_odp_parts_keep_access_and_bytes() -> Outcome {
    implicit(|pd| {
        let everything = pd.register_implicit(LocalAccess::Read).unwrap();
        assert!(everything.access().contains(Access::ON_DEMAND));
        let mut part = everything.part(vec![7; 100]).unwrap();
        let refused = everything.part(Vec::new()).unwrap_err();
        assert_eq!((matches!(refused.error, Error::Invalid { .. }), refused.object), (true, Vec::new()));
        let refused = part.set_access(Access::LOCAL_WRITE).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
        let element = everything.sge(part.as_ptr(), 100);
        assert_eq!(element, part.sge(..).unwrap());
        // The region exists until its last part is dropped.
        drop(everything);
        part.prefetch(..).unwrap();
        assert_eq!(part.into_inner().unwrap(), [7; 100]);
    })
}
