//! Windows, regions, and the operations on them.

use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::error::{PostReason, PushError};
use bareverbs::mw::{Mw, MwType, inc_rkey};
use bareverbs::qp::{Operation, Payload, SendRequest};
use bareverbs::{Access, Buffer, Error, Mr, Remote, WcOpcode, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, Side, contents, domain, pair, region, request};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Outcome, device, kernel_test, skip};

use super::{execute, request_without_sges, settle};

const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// Binds `window` to bytes 16 to 32 of `memory`.
fn bind(side: &mut Side, window: &mut Mw, memory: &Mr<Buffer>) {
    let bind = window.bind(memory, 16..32, REMOTE).unwrap();
    assert_eq!(bind.rkey, inc_rkey(window.rkey()));
    side.send(&[SendRequest::bind_mw(50, bind).signaled()]).unwrap();
    let wc = side.completions(1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (50, WcStatus::SUCCESS, WcOpcode::BIND_MW));
    window.bound(&bind);
    assert_eq!(window.rkey(), bind.rkey);
}

fn write_of(side: &mut Side, remote: Remote, bytes: &[u8]) -> WcStatus {
    execute(side, request(60, Operation::Write(remote), Payload::Inline(&[bytes])))
}

#[kernel_test(device::memory_windows)]
fn type_2_mw_grants_access_until_invalidated() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 64], BINDABLE);
        let (mut a, mut b) = pair(&pd, Plan::default());
        let mut window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        bind(&mut b, &mut window, &memory);
        let inside = window.remote(memory.addr() + 16);
        assert_eq!(write_of(&mut a, inside, b"through a window"), WcStatus::SUCCESS);
        assert_eq!(&contents(&memory)[16..32], b"through a window");
        b.send(&[SendRequest::local_inv(70, window.rkey()).signaled()]).unwrap();
        let wc = b.completions(1)[0];
        assert_eq!((wc.status, wc.opcode), (WcStatus::SUCCESS, WcOpcode::LOCAL_INV));
        assert_eq!(write_of(&mut a, inside, b"when it's closed"), WcStatus::REM_ACCESS_ERR);
        assert_eq!(&contents(&memory)[16..32], b"through a window");
    });
}

#[kernel_test(device::memory_windows)]
fn type_2_mw_is_limited_to_its_qp_and_mr() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 64], BINDABLE);
        let ((mut a, mut b), (mut c, _d)) = (pair(&pd, Plan::default()), pair(&pd, Plan::default()));
        let mut window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        bind(&mut b, &mut window, &memory);
        let inside = window.remote(memory.addr() + 16);
        assert_eq!(write_of(&mut c, inside, b"x"), WcStatus::REM_ACCESS_ERR);
        // Soft-RoCE checks requests against the region's bounds.
        assert_eq!(
            write_of(&mut a, window.remote(memory.addr() + 60), b"too long"),
            WcStatus::REM_ACCESS_ERR
        );
        assert_eq!(contents(&memory), [0; 64]);
    });
}

#[kernel_test(device::memory_windows)]
fn send_with_invalidate_invalidates_a_mw() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[0; 64], BINDABLE);
        let (mut a, mut b) = pair(&pd, Plan::default());
        let mut window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        bind(&mut b, &mut window, &memory);
        b.recv_into(1, 1, &[]);
        let inside = window.remote(memory.addr() + 16);
        assert_eq!(execute(&mut a, SendRequest::send_inv(2, inside.rkey, &[]).signaled()), WcStatus::SUCCESS);
        let mut completions = Vec::new();
        while completions.is_empty() {
            use bareverbs::cq::Completion as _;
            completions.extend(b.cq.poll().next().map(|wc| (wc.wr_id(), wc.invalidated_rkey())));
        }
        assert_eq!(completions, [(1, Some(inside.rkey))]);
        assert_eq!(write_of(&mut a, inside, b"x"), WcStatus::REM_ACCESS_ERR);
        assert_eq!(contents(&memory), [0; 64]);
        window.dealloc().unwrap();
        memory.into_inner().expect("no window is bound to it any more");
    });
}

#[kernel_test(device::memory_windows)]
fn type_1_mw_is_rebound_and_unbound() {
    nothing_leaks(|| {
        let pd = domain();
        let (one, other) = (region(&pd, &[0; 64], BINDABLE), region(&pd, &[0; 64], BINDABLE));
        let mut window = pd.alloc_mw(MwType::TYPE_1).unwrap();
        assert_eq!(window.mw_type(), MwType::TYPE_1);
        let (mut a, mut b) = pair(&pd, Plan::default());
        for memory in [&one, &other] {
            bind(&mut b, &mut window, memory);
            let inside = window.remote(memory.addr() + 16);
            assert_eq!(write_of(&mut a, inside, b"type 1"), WcStatus::SUCCESS);
            assert_eq!(&contents(memory)[16..22], b"type 1");
        }
        one.into_inner().expect("the window is bound to the other region");
        let unbind = window.unbind();
        assert_eq!(execute(&mut b, request_without_sges(3, Operation::BindMw(unbind))), WcStatus::SUCCESS);
        window.bound(&unbind);
        let addr = other.addr();
        other.into_inner().expect("the window is bound to nothing");
        assert_eq!(write_of(&mut a, window.remote(addr + 16), b"x"), WcStatus::REM_ACCESS_ERR);
    });
}

#[kernel_test(device::soft_roce_validates_binds)]
fn mw_bind_without_mw_bind_access_fails() {
    nothing_leaks(|| {
        let pd = domain();
        let plain = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let bindable = region(&pd, &[0; 64], BINDABLE);
        let window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        let refused = window.bind(&plain, .., REMOTE).expect_err("it has no right to be bound to");
        assert!(refused.to_string().contains("MW_BIND"), "{refused}");
        assert!(matches!(window.bind(&bindable, 60..70, REMOTE), Err(Error::Invalid { .. })));

        // The kernel's own checks, with a raw request.
        let good = window.bind(&bindable, .., REMOTE).unwrap();
        for wrong in [
            bareverbs::mw::MwBind { mr_lkey: plain.lkey(), addr: plain.addr(), ..good },
            bareverbs::mw::MwBind { length: 65, ..good },
            bareverbs::mw::MwBind { mw_rkey: good.rkey, ..good },
        ] {
            let (_a, mut b) = pair(&pd, Plan::default());
            let status = execute(&mut b, request_without_sges(1, Operation::BindMw(wrong)));
            assert!(
                matches!(status, WcStatus::MW_BIND_ERR | WcStatus::WR_FLUSH_ERR),
                "{wrong:?} ended with {status:?}"
            );
        }
    });
}

#[kernel_test(device::soft_roce_validates_binds)]
fn mr_with_bound_mw_is_not_deregistered() {
    let pd = domain();
    let memory = region(&pd, &[7; 64], BINDABLE);
    let (mut a, mut b) = pair(&pd, Plan::default());
    let mut window = pd.alloc_mw(MwType::TYPE_2).unwrap();
    bind(&mut b, &mut window, &memory);
    let (start, addr) = (memory.as_ptr(), memory.addr());
    let refused = memory.into_inner().expect_err("a window is bound to it");
    assert!(refused.to_string().contains("an MW is still bound"), "{refused}");

    // The region is returned and works, and so does its window.
    let memory = refused.object;
    assert_eq!(write_of(&mut a, window.remote(addr + 16), b"still here"), WcStatus::SUCCESS);
    assert_eq!(&contents(&memory)[15..18], b"\x07st");
    let byte = |offset| {
        // SAFETY: a region that the kernel keeps is never freed.
        unsafe { start.add(offset).read_volatile() }
    };
    // Drop is refused too, and leaks the memory.
    drop(memory);
    assert_eq!(write_of(&mut a, window.remote(addr + 16), b"STILL"), WcStatus::SUCCESS);
    assert_eq!([byte(15), byte(16), byte(17)], [7, b'S', b'T']);
}

#[kernel_test(device::soft_roce_validates_binds)]
fn mr_of_a_refused_deregistration_is_deregistered_after_its_mw() {
    nothing_leaks(|| {
        let pd = domain();
        let memory = region(&pd, &[7; 64], BINDABLE);
        let (_a, mut b) = pair(&pd, Plan::default());
        let mut window = pd.alloc_mw(MwType::TYPE_2).unwrap();
        bind(&mut b, &mut window, &memory);
        let refused = memory.into_inner().expect_err("a window is bound to it");
        window.dealloc().unwrap();
        refused.object.into_inner().expect("no window is bound to it any more");
    });
}

#[kernel_test(device::iova)]
fn mr_is_addressed_by_its_iova() {
    nothing_leaks(|| {
        let pd = domain();
        let mut buffer = Buffer::zeroed(8192).unwrap();
        let iova = 0x7000_0000_0000 | buffer.as_ptr() as u64 & 0xfff;
        // SAFETY: the buffer outlives the region, and its bytes are only copied.
        let memory = unsafe { pd.register_raw(buffer.as_mut_ptr(), 8192, Some(iova), ALL_REMOTE) }.unwrap();
        assert_eq!(memory.addr(), iova);
        let reported = memory.query().unwrap();
        assert_eq!((reported.lkey, reported.rkey), (memory.lkey(), memory.rkey()));
        assert_eq!((reported.length, reported.iova), (8192, iova));

        let (mut a, _b) = pair(&pd, Plan::default());
        assert_eq!(write_of(&mut a, memory.remote(5000).unwrap(), b"by iova"), WcStatus::SUCCESS);
        assert_eq!(&contents(&memory)[5000..5007], b"by iova");
        let true_address = Remote { addr: memory.as_ptr() as u64, rkey: memory.rkey() };
        assert_eq!(write_of(&mut a, true_address, b"x"), WcStatus::REM_ACCESS_ERR);
        drop(memory);
    });
}

#[kernel_test]
fn rereg_mr_changes_access() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let mut memory = region(&pd, &[0; 64], Access::LOCAL_WRITE);
        let (mut a, _b) = pair(&pd, Plan::default());
        match memory.set_access(ALL_REMOTE) {
            Err(refused @ Error::Unsupported { verb: "rereg_mr", .. }) => {
                assert_eq!(memory.access(), Access::LOCAL_WRITE);
                return skip(refused.to_string());
            }
            answer => answer.unwrap(),
        }
        assert_eq!(memory.access(), ALL_REMOTE);
        assert!(memory.bytes().is_none(), "peers may write it at any moment");
        assert_eq!(write_of(&mut a, memory.remote(0).unwrap(), b"now"), WcStatus::SUCCESS);
        memory.set_access(Access::LOCAL_WRITE).unwrap();
        assert!(memory.bytes().is_none(), "an earlier write may be outstanding");
        assert_eq!(write_of(&mut a, memory.remote(0).unwrap(), b"not"), WcStatus::REM_ACCESS_ERR);
        assert_eq!(&contents(&memory)[..4], b"now\0");
        assert_eq!(&memory.into_inner().unwrap()[..4], b"now\0", "deregistering ends all writes");

        let mut read_only = region(&pd, &[0; 64], Access::empty());
        match read_only.set_access(Access::LOCAL_WRITE) {
            // Whether the kernel pins pages for writing when only reading was requested depends on
            // its version.
            Ok(()) => assert_eq!(read_only.access(), Access::LOCAL_WRITE),
            Err(refused) => assert!(refused.to_string().contains("register a new MR"), "{refused}"),
        }
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test(device::atomics)]
fn rereg_mr_changes_atomic_access() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let mut theirs = region(&pd, &5u64.to_ne_bytes(), atomic);
        let ours = region(&pd, &[0; 8], Access::LOCAL_WRITE);
        // A violation ends its QPs, so that each operation has its own.
        let add = |remote| {
            let (mut a, _b) = pair(&pd, Plan::default());
            let sges = [ours.sge(..).unwrap()];
            execute(&mut a, request(61, Operation::FetchAdd { remote, add: 2 }, Payload::Sges(&sges)))
        };
        assert_eq!(add(theirs.remote(0).unwrap()), WcStatus::SUCCESS);
        match theirs.set_access(Access::LOCAL_WRITE) {
            Err(refused @ Error::Unsupported { verb: "rereg_mr", .. }) => return skip(refused.to_string()),
            answer => answer.unwrap(),
        }
        assert_eq!(add(theirs.remote(0).unwrap()), WcStatus::REM_ACCESS_ERR);
        theirs.set_access(atomic).unwrap();
        assert_eq!(add(theirs.remote(0).unwrap()), WcStatus::SUCCESS);
        assert_eq!(contents(&theirs), 9u64.to_ne_bytes());
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test]
fn rereg_mr_changes_access_of_raw_memory() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let mut buffer = Buffer::zeroed(4096).unwrap();
        let start = buffer.as_mut_ptr();
        // SAFETY: the region is dropped before the buffer, and the buffer is only read while no
        // peer may write it.
        let mut memory = unsafe { pd.register_raw(start, 4096, None, Access::LOCAL_WRITE) }.unwrap();
        let (mut a, _b) = pair(&pd, Plan::default());
        // SAFETY: the buffer is not accessed until the right is revoked.
        match unsafe { memory.set_raw_access(ALL_REMOTE) } {
            Err(refused @ Error::Unsupported { verb: "rereg_mr", .. }) => {
                assert_eq!(memory.access(), Access::LOCAL_WRITE);
                return skip(refused.to_string());
            }
            answer => answer.unwrap(),
        }
        assert_eq!(memory.access(), ALL_REMOTE);
        assert_eq!(write_of(&mut a, memory.remote(0).unwrap(), b"now"), WcStatus::SUCCESS);
        // SAFETY: the local write right stays, but no request that writes is posted.
        unsafe { memory.set_raw_access(Access::LOCAL_WRITE) }.unwrap();
        assert_eq!(memory.access(), Access::LOCAL_WRITE);
        assert_eq!(write_of(&mut a, memory.remote(0).unwrap(), b"not"), WcStatus::REM_ACCESS_ERR);
        drop(memory);
        assert_eq!(&buffer[..4], b"now\0");
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test]
fn rereg_mr_changes_pd() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let other = pd.context().alloc_pd().unwrap();
        let mut memory = region(&pd, b"who may send this?", ALL_REMOTE);
        match memory.move_to(&other) {
            Err(refused @ Error::Unsupported { .. }) => return skip(refused.to_string()),
            answer => answer.unwrap(),
        }
        let (mut a, mut b) = pair(&pd, Plan::default());
        let (mut c, mut d) = pair(&other, Plan::default());
        let sges = [memory.sge(..).unwrap()];
        b.recv_into(0, 1, &[]);
        let send = request(1, Operation::Send, Payload::Sges(&sges));
        let status = execute(&mut a, send);
        assert_ne!(status, WcStatus::SUCCESS, "it left that domain");
        let target = region(&other, &[0; 18], ALL_REMOTE);
        d.recv_into(0, 1, &[target.sge(..).unwrap()]);
        assert_eq!(execute(&mut c, send), WcStatus::SUCCESS);
        d.completions(1);
        assert_eq!(contents(&target), b"who may send this?");

        let elsewhere = domain();
        assert!(matches!(memory.move_to(&elsewhere), Err(Error::Invalid { .. })));
        // The first PD has no references from the region any more.
        drop((a, b, pd));
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test]
fn many_mrs_coexist() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, Plan::default());
        let regions: Vec<_> = (0..2000).map(|_| region(&pd, &[0; 16], ALL_REMOTE)).collect();
        let mut keys: Vec<_> = regions.iter().map(Mr::rkey).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), regions.len(), "every region has a key of its own");
        for (i, memory) in regions.iter().enumerate().step_by(97) {
            let bytes = i.to_ne_bytes();
            assert_eq!(write_of(&mut a, memory.remote(0).unwrap(), &bytes), WcStatus::SUCCESS);
        }
        for (i, memory) in regions.iter().enumerate() {
            let expected = if i % 97 == 0 { i } else { 0 };
            assert_eq!(contents(memory)[..8], expected.to_ne_bytes(), "region {i}");
        }
    });
}

#[kernel_test]
fn flush_reaches_peer_memory() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let flush = |remote| Operation::Flush {
            remote,
            length: 64,
            placement: PlacementType::GLOBAL,
            level: SelectivityLevel::RANGE,
        };
        if !pd.context().capabilities().flush {
            let (mut a, _b) = pair(&pd, Plan::default());
            let refused = a.send(&[request_without_sges(1, flush(Remote { addr: 0, rkey: 0 }))]).unwrap_err();
            assert_eq!(refused.reason, PostReason::Queue(PushError::Unsupported { operation: "a flush" }));
            return skip("this kernel has no flush, and the queue says so");
        }
        let access = ALL_REMOTE | Access::FLUSH_GLOBAL;
        let (mut a, _b) = pair(&pd, Plan { access, ..Plan::default() });
        let memory = region(&pd, &[0; 64], access);
        let remote = memory.remote(0).unwrap();
        assert_eq!(write_of(&mut a, remote, b"made visible"), WcStatus::SUCCESS);
        a.send(&[request_without_sges(1, flush(remote))]).unwrap();
        let wc = a.completions(1)[0];
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::SUCCESS, WcOpcode::FLUSH));
        assert_eq!(&contents(&memory)[..12], b"made visible");

        let without = region(&pd, &[0; 64], ALL_REMOTE);
        assert_eq!(
            execute(&mut a, request_without_sges(2, flush(without.remote(0).unwrap()))),
            WcStatus::REM_ACCESS_ERR,
            "a region must allow flushes"
        );
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test]
fn atomic_write_changes_eight_bytes() -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        let write = |remote, value| Operation::AtomicWrite { remote, value };
        let (mut a, _b) = pair(&pd, Plan::default());
        let memory = region(&pd, &[0; 32], ALL_REMOTE);
        if !pd.context().capabilities().atomic_write {
            let refused =
                a.send(&[request_without_sges(1, write(memory.remote(8).unwrap(), [1; 8]))]).unwrap_err();
            let reason = PostReason::Queue(PushError::Unsupported { operation: "an atomic write" });
            assert_eq!(refused.reason, reason);
            return skip("this kernel has no atomic write, and the queue says so");
        }
        a.send(&[request_without_sges(1, write(memory.remote(8).unwrap(), *b"8 at one"))]).unwrap();
        let wc = a.completions(1)[0];
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::SUCCESS, WcOpcode::ATOMIC_WRITE));
        assert_eq!(&contents(&memory)[..17], b"\0\0\0\0\0\0\0\08 at one\0");

        let refused =
            a.send(&[request_without_sges(2, write(memory.remote(9).unwrap(), [1; 8]))]).unwrap_err();
        assert!(matches!(refused.reason, PostReason::Queue(PushError::AtomicAddress { .. })));
        let foreign = Remote { rkey: memory.rkey() ^ 1, ..memory.remote(8).unwrap() };
        assert_eq!(
            execute(&mut a, request_without_sges(3, write(foreign, [1; 8]))),
            WcStatus::REM_ACCESS_ERR
        );
        Ok(bareverbs_kernel_tests::Completion::Completed)
    })
}

#[kernel_test(device::memory_windows)]
fn operations_without_payload_reject_a_payload() {
    nothing_leaks(|| {
        let pd = domain();
        let (mut a, _b) = pair(&pd, Plan::default());
        let window = pd.alloc_mw(MwType::TYPE_1).unwrap();
        let memory = region(&pd, &[0; 32], BINDABLE);
        let sges = [memory.sge(..).unwrap()];
        for operation in [Operation::LocalInv(7), Operation::BindMw(window.unbind())] {
            for payload in [Payload::Sges(&sges), Payload::Inline(&[b"x"])] {
                let refused = a.send(&[request(1, operation, payload)]).unwrap_err();
                let reason = refused.reason;
                assert!(
                    matches!(reason, PostReason::Queue(PushError::UnexpectedPayload { .. })),
                    "{reason:?}"
                );
            }
        }
        settle();
        assert_eq!(a.cq.poll_one(), None, "nothing went out");
    });
}
