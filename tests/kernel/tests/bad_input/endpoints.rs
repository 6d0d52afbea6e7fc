//! Wrong use of the safe layer: buffers are returned, and no call blocks without limit.

use std::net::Ipv4Addr;
use std::time::Duration;

use bareverbs::{Access, Address, Buffer, Endpoint, Error, Gid, Mr, Op, Pd, Remote, WcStatus};
use bareverbs_kernel_tests::device;
use bareverbs_kernel_tests::loopback::{domain, region};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, cm, kernel_test};

use crate::refusals::invalid;

fn buffer(pd: &Pd) -> Mr<Buffer> {
    region(pd, &[7; 64], Access::LOCAL_WRITE)
}

fn pair(pd: &Pd) -> (Endpoint<Mr<Buffer>>, Endpoint<Mr<Buffer>>) {
    let (mut alice, mut bob) = (Endpoint::new(pd, 1, 4).unwrap(), Endpoint::new(pd, 1, 4).unwrap());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    (alice, bob)
}

#[kernel_test(device::moves_qps)]
fn endpoint_new_and_connect_validate_arguments() {
    nothing_leaks(|| {
        let (pd, device) = (domain(), device::name());
        for (port, depth, start) in [
            (0, 4, &*format!("device {device} has no port 0")),
            (2, 4, &*format!("device {device} has no port 2")),
            (1, 0, "EndpointOptions::build: sends: must be at least 1"),
            (1, 1 << 21, "EndpointOptions::build: sends 2097152 is above the maximum of"),
            (1, u32::MAX, "EndpointOptions::build: sends 4294967295 is above the maximum of"),
        ] {
            let refused = Endpoint::<Mr<Buffer>>::new(&pd, port, depth).map(drop).unwrap_err();
            assert!(refused.to_string().starts_with(start), "{refused}");
        }
        let options = Endpoint::options;
        for (options, words) in [
            (options().recvs(0), "recvs: must be at least 1"),
            (options().recvs(u32::MAX), "recvs 4294967295 is above the maximum of"),
            (options().signal_every(0), "signal_every: must be at least 1"),
            (options().sends(4).signal_every(5), "signal_every (at most sends) 5 is above the maximum of 4"),
        ] {
            let refused = options.build::<Mr<Buffer>, _>(&pd).map(drop).unwrap_err();
            assert!(
                refused.to_string().starts_with(&format!("EndpointOptions::build: {words}")),
                "{refused}"
            );
        }
        let mut alice = Endpoint::<Mr<Buffer>>::new(&pd, 1, 4).unwrap();
        let good = alice.address();
        let rtr = "modify_qp INIT→RTR";
        let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
        let with = |change: fn(&mut Address)| {
            let mut address = good;
            change(&mut address);
            address
        };
        for (peer, words) in [
            (with(|peer| peer.qp_num = 1 << 24), "dest_qp_num 0x1000000 has more than 24 bits".to_owned()),
            (with(|peer| peer.psn = u32::MAX), "rq_psn 0xffffffff has more than 24 bits".to_owned()),
            (with(|peer| peer.gid = Gid::default()), "the destination GID is zero".to_owned()),
            (
                with(|peer| peer.gid = Ipv4Addr::new(239, 1, 2, 3).into()),
                format!("a connected QP cannot use the multicast group {group}"),
            ),
        ] {
            invalid(alice.connect(&peer), &format!("{rtr}: {words}"));
        }
        alice.connect(&good).unwrap();
        invalid(alice.connect(&good), &format!("{rtr}: the QP is in RTS, not in INIT"));
    });
}

#[kernel_test]
fn refused_operation_returns_its_buffer() {
    nothing_leaks(|| {
        let pd = domain();
        let mut alone = Endpoint::<Mr<Buffer>>::new(&pd, 1, 4).unwrap();
        let refused = alone.post(Op::send(buffer(&pd), ..)).unwrap_err();
        assert!(matches!(refused.error, Error::Post(_)), "{refused:?}");
        assert_eq!(refused.object.into_buffer().len(), 64);
        assert_eq!(alone.pending(), 0);
        let idle = alone.next().wait().unwrap_err();
        assert_eq!(idle.to_string(), "Endpoint::next: no operation is outstanding: post one first");
        assert!(idle.buffer.is_none());

        let (mut alice, mut bob) = pair(&pd);
        for (op, called) in [
            (Op::send(buffer(&pd), 60..65), "Endpoint::post(Op::send)"),
            (Op::send(buffer(&pd), ..=usize::MAX), "Endpoint::post(Op::send)"),
            (Op::write(buffer(&pd), 65.., Remote { addr: 0, rkey: 0 }), "Endpoint::post(Op::write)"),
            (Op::read(buffer(&pd), 1..usize::MAX, Remote { addr: 0, rkey: 0 }), "Endpoint::post(Op::read)"),
        ] {
            let refused = alice.post(op).unwrap_err();
            assert!(matches!(refused.error, Error::Invalid { verb, .. } if verb == called), "{refused:?}");
            assert_eq!(refused.object.into_buffer().len(), 64);
        }
        // More receives than the queue's depth.
        let taken = (0..100).take_while(|_| bob.post(Op::recv(buffer(&pd))).is_ok()).count();
        let refused = bob.post(Op::recv(buffer(&pd))).unwrap_err();
        assert_eq!((refused.object.into_buffer().len(), bob.pending(), taken), (64, 4, 4));
        alice.post(Op::send(buffer(&pd), ..)).unwrap();
        assert_eq!(bob.next().wait().unwrap().message(), Some(&[7; 64][..]));
        alice.next().wait().unwrap();
    });
}

#[kernel_test]
fn mr_of_another_pd_is_rejected_and_returned() {
    nothing_leaks(|| {
        let pd = domain();
        let same_context = pd.context().alloc_pd().unwrap();
        let other_context = domain();
        let (mut alice, mut bob) = pair(&pd);
        bob.post(Op::recv(buffer(&pd))).unwrap();
        let remote = Remote { addr: 0x1000, rkey: 0 };
        for other in [&same_context, &other_context] {
            let check = |verb: &str, error: Error, buffer: Mr<Buffer>| {
                let start = format!("Endpoint::post({verb}): the buffer and the QP belong to different PDs");
                assert!(error.to_string().starts_with(&start), "{error}");
                assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
                assert_eq!(buffer.len(), 64);
            };
            let refused = alice.post(Op::recv(buffer(other))).unwrap_err();
            check("Op::recv", refused.error, refused.object.into_buffer());
            for (verb, op) in [
                ("Op::send", Op::send(buffer(other), ..)),
                ("Op::write", Op::write(buffer(other), .., remote)),
                ("Op::read", Op::read(buffer(other), .., remote)),
            ] {
                let refused = alice.post(op).unwrap_err();
                check(verb, refused.error, refused.object.into_buffer());
            }
        }
        assert_eq!(alice.pending(), 0);
        // The connection still works.
        alice.post(Op::send(buffer(&pd), ..)).unwrap();
        assert_eq!(bob.next().wait().unwrap().message(), Some(&[7; 64][..]));
        alice.next().wait().unwrap();
    });
}

#[kernel_test(device::acknowledges)]
fn failed_endpoint_returns_all_buffers_and_rejects_posts() {
    nothing_leaks(|| {
        let pd = domain();
        let unregistered = Remote { addr: 0x1000, rkey: 0xdead_be00 };
        let cases = [
            ("a key that never was", Op::write(buffer(&pd), .., unregistered)),
            ("the same for a read", Op::read(buffer(&pd), .., unregistered)),
        ];
        for (what, op) in cases {
            let (mut alice, mut bob) = pair(&pd);
            bob.post(Op::recv(buffer(&pd))).unwrap();
            alice.post(Op::recv(buffer(&pd))).unwrap();
            alice.post(op).unwrap();
            // Long after the queue pair failed, and before the program polls.
            std::thread::sleep(Duration::from_millis(100));
            alice.post(Op::recv(buffer(&pd))).unwrap();
            let mut statuses = Vec::new();
            while alice.pending() > 0 {
                match alice.next().wait_timeout(TIMEOUT).transpose() {
                    Err(failed) => {
                        assert_eq!(failed.buffer.expect("its buffer").len(), 64, "{what}");
                        let Error::Completion { status, .. } = failed.error else { panic!("{what}") };
                        statuses.push(status);
                    }
                    Ok(Some(_)) => panic!("{what}: it cannot have worked"),
                    Ok(None) => panic!("{what}: Endpoint::next hangs: {statuses:?}"),
                }
            }
            assert_eq!(statuses.len(), 3, "{what}");
            assert!(!statuses.contains(&WcStatus::SUCCESS), "{what}");
            let text = |op| {
                format!(
                    "Endpoint::post({op}): the connection has failed, or this side has ended it: create a new endpoint"
                )
            };
            let refused = alice.post(Op::recv(buffer(&pd))).unwrap_err();
            assert_eq!(refused.to_string(), text("Op::recv"));
            assert_eq!(refused.object.into_buffer().len(), 64);
            let refused = alice.post(Op::send(buffer(&pd), ..)).unwrap_err();
            assert_eq!(refused.to_string(), text("Op::send"));
            assert_eq!(refused.object.into_buffer().len(), 64);
            drop((alice, bob));
        }
    });
}
