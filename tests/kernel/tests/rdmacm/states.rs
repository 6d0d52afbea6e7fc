//! The end of a connection in each state, and calls of two threads for one identifier.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::Errno;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::command::{self, CmFile};
use bareverbs_rdmacm::event::{EventKind, RejectReason};
use bareverbs_rdmacm::{CmId, Error, EventChannel, PortSpace};
use bareverbs_uapi::rdma_cm;
use bareverbs_uapi::rdma_cm::structs::*;

use crate::host::*;

/// The kernel ends only an established connection. Before and afterwards, the call does nothing.
#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn disconnect_ends_established_connections_only() {
    nothing_leaks(|| {
        let everywhere = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        everywhere.listen(1).unwrap();
        assert_eq!(errno(everywhere.disconnect()), Errno::INVAL);
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        listener.disconnect().unwrap();

        let active = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        assert_eq!(errno(active.disconnect()), Errno::INVAL);
        resolve(&active, addr);
        assert_eq!(errno(active.disconnect()), Errno::INVAL);
        active.connect(&param()).unwrap();
        active.disconnect().unwrap();
        let passive = request(&listener).into_id();
        passive.disconnect().unwrap();
        passive.accept(&param()).unwrap();
        passive.disconnect().unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
        active.disconnect().unwrap();
        active.establish().unwrap();
        let kind = next_of(passive.channel(), passive.key());
        assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");

        // Both ends at once, twice.
        active.disconnect().unwrap();
        passive.disconnect().unwrap();
        active.disconnect().unwrap();
        passive.disconnect().unwrap();
        for id in [&active, &passive] {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
            id.disconnect().unwrap();
        }
        assert_eq!(errno(active.establish()), Errno::INVAL);
        assert_eq!(errno(active.connect(&param())), Errno::INVAL);
        for id in [active, passive, listener, everywhere] {
            id.destroy().unwrap();
        }
    });
}

/// The peer ends the connection before this side has noticed that it is established.
#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn end_of_the_peer_follows_its_confirmation() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let active = resolved(addr, PortSpace::Tcp);
        active.connect(&param()).unwrap();
        let passive = request(&listener).accept(&param()).unwrap();
        let kind = next_of(active.channel(), active.key());
        assert!(matches!(kind, EventKind::ConnectResponse(_)), "{kind:?}");
        active.establish().unwrap();
        active.destroy().unwrap();
        thread::sleep(QUIET);
        let again = passive.accept(&param()).unwrap_err();
        assert!(matches!(again, Error::Invalid { verb: "accept", .. }), "{again}");
        let kind = next_of(passive.channel(), passive.key());
        assert!(matches!(kind, EventKind::Established(_)), "{kind:?}");
        let kind = next_of(passive.channel(), passive.key());
        assert!(matches!(kind, EventKind::Disconnected(None)), "{kind:?}");
        passive.disconnect().unwrap();
    });
}

#[kernel_test(crate::host::has_ip)]
fn two_threads_accept_a_request_once() {
    const ROUNDS: usize = 20;
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        for _ in 0..ROUNDS {
            let active = resolved(addr, PortSpace::Tcp);
            active.connect(&param()).unwrap();
            let passive = request(&listener).into_id();
            let start = Barrier::new(2);
            let accept = || {
                let param = param();
                start.wait();
                passive.accept(&param)
            };
            let answers = thread::scope(|scope| {
                let other = scope.spawn(accept);
                [accept(), other.join().unwrap()]
            });
            assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 1, "{answers:?}");
            let refused = answers.into_iter().find_map(Result::err).unwrap();
            assert!(matches!(refused, Error::Invalid { verb: "accept", .. }), "{refused}");
            establish(&active, &passive);
            disconnect(&active, &passive);
        }
    });
}

/// Raw commands have no owner of an identifier.
#[kernel_test(crate::host::has_ip)]
fn two_threads_destroy_a_number_once() {
    const ROUNDS: usize = 100;
    nothing_leaks(|| {
        let file = CmFile::open().unwrap();
        for round in 0..ROUNDS {
            let request = CreateIdReq { uid: 1, ps: rdma_cm::PortSpace::TCP, ..CreateIdReq::zeroed() };
            let id = command::create_id(&file, request).unwrap().id;
            if round % 2 == 1 {
                // The event may be on its way.
                let (src_addr, dst_addr) = (kernel_ip(0), kernel_ip(1));
                let request = ResolveIpReq { id, src_addr, dst_addr, timeout_ms: 1000 };
                command::resolve_ip(&file, request).unwrap();
            }
            let start = Barrier::new(2);
            let destroy = || {
                start.wait();
                command::destroy_id(&file, DestroyIdReq { id, ..DestroyIdReq::zeroed() })
            };
            let answers = thread::scope(|scope| {
                let other = scope.spawn(destroy);
                [destroy(), other.join().unwrap()]
            });
            let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert_eq!(refused[0].errno(), Some(Errno::NOENT), "{}", refused[0]);
        }
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn rejection_has_any_length_of_private_data() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        for length in [0, 1, 2, 3, 7, 63, 147, 148] {
            let data: Vec<u8> = (0..length).map(|at| (at as u8).wrapping_mul(37) ^ 0xff).collect();
            let active = resolved(addr, PortSpace::Tcp);
            active.connect(&param()).unwrap();
            request(&listener).reject(&data).unwrap();
            let kind = next_of(active.channel(), active.key());
            let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
            assert_eq!(rejected.reason, RejectReason::Consumer);
            // The message has no length: the rest is zero.
            let mut padded = [0; 148];
            padded[..length].copy_from_slice(&data);
            assert_eq!(rejected.private_data[..], padded, "{length} bytes");
        }
    });
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn destroyed_listener_rejects_unread_requests_only() {
    const EACH: usize = 50;
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 0);
        let active: Vec<_> = (0..2 * EACH).map(|_| resolved(addr, PortSpace::Tcp)).collect();
        let connect = |id: &CmId| id.connect(&param()).unwrap();
        active[..EACH].iter().for_each(connect);
        let read: Vec<_> = (0..EACH).map(|_| request(&listener)).collect();
        active[EACH..].iter().for_each(connect);
        thread::sleep(QUIET);
        let (channel, begin) = (listener.channel().clone(), Instant::now());
        listener.destroy().unwrap();
        assert!(begin.elapsed() < TIMEOUT / 2, "{:?}", begin.elapsed());
        for id in &active[EACH..] {
            let kind = next_of(id.channel(), id.key());
            let EventKind::Rejected(rejected) = kind else { panic!("{kind:?}") };
            // The kernel finds no listener for a request that it handles later.
            let reasons = [RejectReason::Consumer, RejectReason::InvalidServiceId];
            assert!(reasons.contains(&rejected.reason), "{rejected}");
        }
        // Those that were read are answered without the listener.
        let mut passive = Vec::new();
        for (at, request) in read.into_iter().enumerate() {
            match at % 2 {
                0 => passive.push(request.accept(&param()).unwrap()),
                _ => request.reject(b"closed").unwrap(),
            }
        }
        // The kernel may handle requests in another order than that of their connects.
        let mut accepted = 0;
        for id in &active[..EACH] {
            match next_of(id.channel(), id.key()) {
                EventKind::ConnectResponse(_) => accepted += 1,
                EventKind::Rejected(rejected) => {
                    assert!(rejected.private_data.starts_with(b"closed"), "{rejected}");
                }
                kind => panic!("{kind:?}"),
            }
        }
        assert_eq!(accepted, passive.len());
        drop(active);
        for _ in &passive {
            let kind = next(&channel).kind;
            assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
        }
    });
}

/// The channel has unread events of each kind.
#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn channel_is_dropped_with_unread_events() {
    const EACH: usize = 100;
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 0);
        let channel = EventChannel::new().unwrap();
        let new = || CmId::new(&channel, PortSpace::Tcp).unwrap();
        let resolving: Vec<_> = (0..EACH).map(|_| new()).collect();
        for id in &resolving {
            id.resolve_addr(None, addr, RESOLVE).unwrap();
        }
        let ended: Vec<_> = (0..EACH / 10)
            .map(|_| {
                let (mut active, passive) = connected(&listener, addr);
                active.migrate(&channel).unwrap();
                passive.disconnect().unwrap();
                (active, passive)
            })
            .collect();
        let asking: Vec<_> = (0..EACH).map(|_| resolved(addr, PortSpace::Tcp)).collect();
        for id in &asking {
            id.connect(&param()).unwrap();
        }
        thread::sleep(QUIET);
        let begin = Instant::now();
        drop((channel, listener));
        drop((resolving, ended));
        assert!(begin.elapsed() < TIMEOUT / 2, "{:?}", begin.elapsed());
        for id in &asking {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
        }
    });
}

/// A handler that does nothing.
extern "C" fn ignore(_: nix::libc::c_int) {}

#[kernel_test(crate::host::has_ip)]
fn signals_do_not_end_a_wait() {
    use nix::sys::pthread::{pthread_kill, pthread_self};
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    let action = SigAction::new(SigHandler::Handler(ignore), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler calls nothing.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Tcp, 8);
        let (sender, waiting) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                sender.send(pthread_self()).unwrap();
                let begin = Instant::now();
                let none = listener.channel().next().wait_timeout(2 * QUIET).transpose().unwrap();
                assert!(none.is_none() && begin.elapsed() >= 2 * QUIET, "{none:?} {:?}", begin.elapsed());
                request(&listener).reject(b"").unwrap();
            });
            let thread_of_wait = waiting.recv().unwrap();
            for _ in 0..20 {
                thread::sleep(Duration::from_millis(25));
                pthread_kill(thread_of_wait, Signal::SIGUSR1).unwrap();
            }
            let active = resolved(addr, PortSpace::Tcp);
            active.connect(&param()).unwrap();
            let kind = next_of(active.channel(), active.key());
            assert!(matches!(kind, EventKind::Rejected(_)), "{kind:?}");
            waits.join().unwrap();
        });
    });
}
