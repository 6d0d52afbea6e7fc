//! Deallocated windows, windows with restricted ranges or rights, and flushes.

use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::mw::{MwBind, MwType};
use bareverbs::qp::{Operation, Payload};
use bareverbs::{Access, Remote, WcOpcode, WcStatus};
use bareverbs_kernel_tests::exchange::{exchange_rounds, rc_endpoints};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, device, kernel_test, skip};

const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const NOTHING: Payload<'static> = Payload::Sges(&[]);

#[kernel_test(device::memory_windows)]
fn deallocated_mw_grants_no_access() {
    nothing_leaks(|| {
        let pd = domain();
        for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
            let mut both = rc_endpoints(&pd, 64, BINDABLE);
            let mut windows = both.each_ref().map(|_| Some(pd.alloc_mw(mw_type).unwrap()));
            let opened = [0, 1].map(|i| {
                let window = windows[i].as_mut().unwrap();
                let bind = window.bind(&both[i].memory, .., Access::REMOTE_WRITE).unwrap();
                assert_eq!(both[i].execute(Operation::BindMw(bind), NOTHING).opcode, WcOpcode::BIND_MW);
                window.bound(&bind);
                window.remote(bind.addr)
            });
            let mut receiver = 1;
            exchange_rounds(&mut both, 5, 64, |from, to, text| {
                from.memory.write(0, text).unwrap();
                from.execute(Operation::Write(opened[receiver]), Payload::Sges(&from.first(64)));
                assert!(to.bytes(64) == text, "other bytes were written");
                receiver = 1 - receiver;
            });
            windows.iter_mut().for_each(|window| window.take().unwrap().dealloc().unwrap());
            let before = both[1].bytes(64);
            let write = request(1, Operation::Write(opened[1]), Payload::Inline(&[b"too late"]));
            both[0].side.send(&[write]).unwrap();
            assert_eq!(both[0].side.ends(1), [(1, WcStatus::REM_ACCESS_ERR)]);
            assert_eq!(both[1].bytes(64), before);
        }
    });
}

#[kernel_test(device::memory_windows)]
fn mw_grants_the_bound_access() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, b"8 bytes.", BINDABLE | ALL_REMOTE);
        let result = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        let sges = [result.sge(..).unwrap()];
        for (access, writes, reads) in [
            (Access::LOCAL_WRITE, false, false),
            (Access::REMOTE_READ, false, true),
            (Access::REMOTE_WRITE, true, false),
            (Access::REMOTE_WRITE | Access::REMOTE_READ, true, true),
        ] {
            for write in [true, false] {
                let (mut a, mut b) = pair(&pd, Plan::default());
                let window = pd.alloc_mw(MwType::TYPE_2).unwrap();
                // `bind` requires a remote right; a window without any is bound by a raw request.
                let bind = MwBind { access, ..window.bind(&memory, .., Access::REMOTE_READ).unwrap() };
                b.send(&[request(1, Operation::BindMw(bind), NOTHING)]).unwrap();
                assert_eq!(b.ends(1), [(1, WcStatus::SUCCESS)]);
                let remote = Remote { addr: bind.addr, rkey: bind.rkey };
                let (tried, allowed) = match write {
                    true => (request(2, Operation::Write(remote), Payload::Inline(&[b"8 others"])), writes),
                    false => (request(2, Operation::Read(remote), Payload::Sges(&sges)), reads),
                };
                a.send(&[tried]).unwrap();
                let status = if allowed { WcStatus::SUCCESS } else { WcStatus::REM_ACCESS_ERR };
                assert_eq!(a.ends(1), [(2, status)], "a window for {access:?}, {:?}", tried.operation);
                if write && !allowed {
                    assert_eq!(contents(&memory), *b"8 bytes.");
                }
            }
        }
        assert_eq!((contents(&memory), contents(&result)), (b"8 others".to_vec(), b"8 others".to_vec()));
    });
}

#[kernel_test]
fn flush_of_a_whole_mr_checks_placement_type() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        if !pd.context().capabilities().flush {
            return skip("this kernel has no flush");
        }
        let access = ALL_REMOTE | Access::FLUSH_GLOBAL;
        let (mut a, _b) = pair(&pd, Plan { access, ..Plan::default() });
        let memory = region(&pd, &[0; 64], access);
        let remote = memory.remote(0).unwrap();
        let flush = |length, placement, level| Operation::Flush { remote, length, placement, level };
        a.send(&[request(1, Operation::Write(remote), Payload::Inline(&[b"made visible"]))]).unwrap();
        assert_eq!(a.ends(1), [(1, WcStatus::SUCCESS)]);
        // The length is ignored in a flush of the whole region.
        for length in [0, 1, 64, 12_345_678] {
            let whole = flush(length, PlacementType::GLOBAL, SelectivityLevel::MR);
            a.send(&[request(2, whole, NOTHING)]).unwrap();
            assert_eq!(a.ends(1), [(2, WcStatus::SUCCESS)], "{length} bytes");
        }
        assert_eq!(&contents(&memory)[..12], b"made visible");

        let persistent = flush(64, PlacementType::PERSISTENT, SelectivityLevel::RANGE);
        a.send(&[request(3, persistent, NOTHING)]).unwrap();
        assert_eq!(a.ends(1), [(3, WcStatus::REM_INV_REQ_ERR)], "the queue pair allows global flushes only");
        let (mut a, _b) = pair(&pd, Plan { access: access | Access::FLUSH_PERSISTENT, ..Plan::default() });
        a.send(&[request(4, persistent, NOTHING)]).unwrap();
        assert_eq!(a.ends(1), [(4, WcStatus::REM_ACCESS_ERR)], "the region allows global flushes only");
        Ok(Completion::Completed)
    })
}
