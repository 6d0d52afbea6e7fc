//! Processes that end without destroying their objects.

use std::io::{Read, Write, pipe};
use std::mem::forget;

use bareverbs::cq::{Arm, CqInit};
use bareverbs::qp::{Operation, Payload};
use bareverbs::values::RnrRetry;
use bareverbs::{Access, Buffer, Endpoint, Op};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, domain, pair, region, request};
use bareverbs_kernel_tests::resources::{held, nothing_leaks};
use bareverbs_kernel_tests::{child, cm, device, kernel_test};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};

/// Creates an object of each type, with outstanding requests, and calls `then`.
fn with_all_objects(then: impl FnOnce()) {
    let pd = domain();
    let channel = pd.context().create_comp_channel().unwrap();
    let mut cq = pd.context().create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(64) }).unwrap();
    cq.arm(Arm::Any).unwrap();
    let (mut a, mut b) = pair(&pd, Plan { rnr_retry: RnrRetry::new(7).unwrap(), ..Plan::default() });
    let memory = region(&pd, &[7; 65536], ALL_REMOTE);
    let sges = [memory.sge(..).unwrap()];
    b.recv_into(0, 2, &sges);
    for wr_id in 0..8 {
        a.send(&[request(wr_id, Operation::Send, Payload::Sges(&sges))]).unwrap();
    }
    let (mut alice, mut bob) = (Endpoint::new(&pd, 1, 8).unwrap(), Endpoint::new(&pd, 1, 8).unwrap());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    let buffer = || pd.register(Buffer::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
    bob.post(Op::recv(buffer())).unwrap();
    alice.post(Op::send(buffer(), ..)).unwrap();
    then();
    forget((pd, channel, cq, a, b, memory, alice, bob));
}

#[kernel_test(device::has_device_node)]
fn killed_process_leaks_no_objects() {
    nothing_leaks(|| {
        let before = held();
        let (mut ready, mut say) = pipe().unwrap();
        let process = child::start(|| {
            with_all_objects(|| {
                say.write_all(b"!").unwrap();
                loop {
                    std::thread::park();
                }
            });
        });
        drop(say);
        ready.read_exact(&mut [0]).unwrap();
        let during = held();
        assert_eq!(during.ctx, before.ctx + 1);
        assert_eq!((during.pd, during.qp), (before.pd + 1, before.qp + 4));
        assert_eq!((during.cq, during.mr), (before.cq + 5, before.mr + 3));
        kill(process, Signal::SIGKILL).unwrap();
        assert_eq!(waitpid(process, None), Ok(WaitStatus::Signaled(process, Signal::SIGKILL, false)));
    });
}

#[kernel_test]
fn forgotten_handles_leak_no_objects_after_exit() {
    nothing_leaks(|| {
        child::run(|| {
            for _ in 0..3 {
                with_all_objects(|| ());
            }
        });
    });
}
