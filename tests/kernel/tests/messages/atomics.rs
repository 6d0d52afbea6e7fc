//! Atomics.

use bareverbs::qp::{Operation, Payload, Sge};
use bareverbs::{Access, Remote, WcOpcode, WcStatus};
use bareverbs_kernel_tests::exchange::{RcEndpoint, exchange_rounds, rc_endpoints};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

const ROUNDS: usize = 10;

/// The number in an endpoint's memory.
fn number(player: &RcEndpoint) -> u64 {
    u64::from_ne_bytes(player.bytes(8).try_into().unwrap())
}

#[kernel_test(device::atomics)]
fn both_sides_compare_and_swap() {
    nothing_leaks(|| {
        exchange_rounds(&mut rc_endpoints(&domain(), 8, ALL_REMOTE), ROUNDS, 8, |from, to, text| {
            to.memory.write(0, text).unwrap();
            let before = number(to);
            let remote = to.memory.remote(0).unwrap();
            for (compare, swap, after) in
                [(!before, 1, before), (before, !before, !before), (before, 3, !before), (!before, 0, 0)]
            {
                let there = number(to);
                let completion =
                    from.execute(Operation::CmpSwp { remote, compare, swap }, Payload::Sges(&from.first(8)));
                assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::COMP_SWAP, 8));
                assert_eq!((number(from), number(to)), (there, after));
            }
        });
    });
}

#[kernel_test(device::atomics)]
fn both_sides_fetch_and_add() {
    nothing_leaks(|| {
        exchange_rounds(&mut rc_endpoints(&domain(), 8, ALL_REMOTE), ROUNDS, 8, |from, to, text| {
            to.memory.write(0, text).unwrap();
            let remote = to.memory.remote(0).unwrap();
            for add in [0, 1, 0x0202_0202_0202_0202, u64::MAX] {
                let there = number(to);
                let completion =
                    from.execute(Operation::FetchAdd { remote, add }, Payload::Sges(&from.first(8)));
                assert_eq!((completion.opcode, completion.byte_len), (WcOpcode::FETCH_ADD, 8));
                assert_eq!((number(from), number(to)), (there, there.wrapping_add(add)));
            }
        });
    });
}

/// Each kind of atomic, on 8 bytes of a peer.
fn each(remote: Remote) -> [Operation; 2] {
    [Operation::FetchAdd { remote, add: 1 }, Operation::CmpSwp { remote, compare: 0, swap: 1 }]
}

#[kernel_test(device::atomics)]
fn atomic_with_unknown_rkey_fails() {
    nothing_leaks(|| {
        let pd = domain();
        let (result, target) = (region(&pd, &[0; 8], ALL_REMOTE), region(&pd, &[0; 8], ALL_REMOTE));
        let (good, remote) = (result.sge(..).unwrap(), target.remote(0).unwrap());
        for operation in each(Remote { rkey: remote.rkey + 1, ..remote }) {
            let (mut a, _b) = pair(&pd, Plan::default());
            a.send(&[request(1, operation, Payload::Sges(&[good]))]).unwrap();
            assert_eq!(a.ends(1), [(1, WcStatus::REM_ACCESS_ERR)], "{operation:?}");
        }
        assert_eq!(contents(&target), [0; 8]);
        for operation in each(remote) {
            let (mut a, _b) = pair(&pd, Plan::default());
            a.send(&[request(1, operation, Payload::Sges(&[Sge { lkey: good.lkey + 1, ..good }]))]).unwrap();
            let status = a.ends(1)[0].1;
            let causes = [WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
            assert!(causes.contains(&status), "{operation:?}: {status:?}");
        }
        assert_eq!(contents(&result), [0; 8]);
    });
}

#[kernel_test(device::atomics)]
fn atomic_without_remote_atomic_access_fails() {
    nothing_leaks(|| {
        let pd = domain();
        let (result, target) = (region(&pd, &[0; 8], ALL_REMOTE), region(&pd, &[0; 8], ALL_REMOTE));
        for operation in each(target.remote(0).unwrap()) {
            let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
            let (mut a, _b) = pair(&pd, Plan { access, ..Plan::default() });
            a.send(&[request(1, operation, Payload::Sges(&[result.sge(..).unwrap()]))]).unwrap();
            let status = a.ends(1)[0].1;
            let causes = [WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR];
            assert!(causes.contains(&status), "{operation:?}: {status:?}");
        }
        assert_eq!(contents(&target), [0; 8]);
    });
}
