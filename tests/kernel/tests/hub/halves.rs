use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bareverbs::owned::{Endpoint, EndpointReceiver, EndpointSender, Lease, Op, Pool, Spin};
use bareverbs::{Error, Pd, Remote, WcStatus};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use tokio::runtime::Builder;

use crate::connections::{message, seed_of, take};

pub(crate) const DEPTH: u32 = 8;

/// Two connected endpoints, and a pool with room for the operations of both.
pub(crate) fn setup(spin: Spin) -> (Pd, Pool, [Endpoint<Lease>; 2]) {
    let pd = domain();
    let pool = Pool::new(&pd, 64, 64).unwrap();
    let build = || Endpoint::options().sends(DEPTH).recvs(DEPTH).inline(16).spin(spin).build(&pd).unwrap();
    let (mut alice, mut bob): (Endpoint<Lease>, Endpoint<Lease>) = (build(), build());
    alice.connect(&bob.address()).unwrap();
    bob.connect(&alice.address()).unwrap();
    (pd, pool, [alice, bob])
}

pub(crate) const MESSAGES: u64 = 300;

fn send_all(sender: &mut EndpointSender<Lease>, pool: &Pool) {
    let mut next = 0;
    while next < MESSAGES || sender.pending() > 0 {
        while next < MESSAGES && sender.pending() < DEPTH as usize / 2 {
            sender.post(Op::send(message(pool, next), ..).tag(next)).unwrap();
            next += 1;
        }
        let oldest = next - sender.pending() as u64;
        assert_eq!(sender.wait_timeout(TIMEOUT).unwrap().expect("a send").tag, oldest);
    }
}

fn receive_all(receiver: &mut EndpointReceiver<Lease>) {
    for number in 0..MESSAGES {
        let done = receiver.wait_timeout(TIMEOUT).unwrap().expect("a message");
        assert_eq!((seed_of(done.message().unwrap()), done.tag), (number, number));
        receiver.post_recv_tagged(done.into_buffer(), number + u64::from(DEPTH)).unwrap();
    }
}

pub(crate) fn post_receives(endpoint: &mut Endpoint<Lease>, pool: &Pool) {
    for tag in 0..u64::from(DEPTH) {
        endpoint.post_recv_tagged(take(pool), tag).unwrap();
    }
}

pub(crate) fn halves_of_an_endpoint_run_in_two_threads() {
    for spin in [Spin::Never, Spin::default()] {
        nothing_leaks(|| {
            let (_pd, pool, mut ends) = setup(spin);
            for end in &mut ends {
                post_receives(end, &pool);
            }
            // The receives that were posted before belong to the receive halves.
            let ends = ends.map(Endpoint::split);
            let joined = std::thread::scope(|scope| {
                let pool = &pool;
                let threads = ends.map(|(mut sender, mut receiver)| {
                    let sends = scope.spawn(move || {
                        send_all(&mut sender, pool);
                        sender
                    });
                    let receives = scope.spawn(move || {
                        receive_all(&mut receiver);
                        receiver
                    });
                    (sends, receives)
                });
                threads
                    .map(|(sends, receives)| sends.join().unwrap().unsplit(receives.join().unwrap()).unwrap())
            });
            for mut endpoint in joined {
                assert_eq!((endpoint.pending_sends(), endpoint.pending_recvs()), (0, DEPTH as usize));
                endpoint.post(Op::send_inline(b"whole")).unwrap();
                let ended = endpoint.close(TIMEOUT).unwrap();
                assert_eq!(ended.len(), DEPTH as usize + 1);
            }
        });
    }
}

/// A half that waits is woken if the other half polls its completion.
pub(crate) fn half_that_polls_wakes_the_other_half() {
    nothing_leaks(|| {
        let (_pd, pool, [mut alice, mut bob]) = setup(Spin::Never);
        for round in 0..20 {
            bob.post_recv(take(&pool)).unwrap();
            let (mut sender, mut receiver) = bob.split();
            let received = AtomicBool::new(false);
            let (sender, receiver) = std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let done = receiver.wait_timeout(TIMEOUT).unwrap().expect("a message");
                    assert_eq!(seed_of(done.message().unwrap()), round);
                    received.store(true, Ordering::Release);
                    receiver
                });
                std::thread::sleep(Duration::from_millis(2));
                alice.post_send(message(&pool, round), ..).unwrap();
                while !received.load(Ordering::Acquire) {
                    assert!(sender.poll().is_none());
                    std::thread::yield_now();
                }
                (sender, thread.join().unwrap())
            });
            alice.wait_timeout(TIMEOUT).unwrap().expect("a send");
            bob = sender.unsplit(receiver).unwrap();
        }
    });
}

pub(crate) fn failure_of_one_half_ends_the_wait_of_the_other() {
    nothing_leaks(|| {
        let (_pd, pool, [alice, bob]) = setup(Spin::Never);
        let (mut sender, mut receiver) = alice.split();
        assert!(matches!(receiver.wait(), Err(failed) if matches!(failed.error, Error::Invalid { .. })));
        assert!(matches!(sender.wait(), Err(failed) if matches!(failed.error, Error::Invalid { .. })));
        receiver.post_recv(take(&pool)).unwrap();
        drop(bob);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| receiver.wait().unwrap_err());
            let mut ops = vec![Op::send(message(&pool, 1), ..), Op::send_inline(b"two")];
            sender.post_all(&mut ops).unwrap();
            assert!(ops.is_empty());
            let lost = sender.wait().unwrap_err();
            assert!(
                matches!(lost.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }),
                "{lost}"
            );
            let flushed = waits.join().unwrap();
            assert_eq!((flushed.cause, flushed.buffer.is_some()), (Some(WcStatus::RETRY_EXC_ERR), true));
        });
    });
}

pub(crate) fn halves_of_two_endpoints_do_not_join() {
    nothing_leaks(|| {
        let (_pd, pool, [mut alice, bob]) = setup(Spin::Never);
        alice.post_recv(take(&pool)).unwrap();
        let addresses = [alice.address(), bob.address()];
        let ((sender, mine), (theirs, other)) = (alice.split(), bob.split());
        let refused = sender.unsplit(other).unwrap_err();
        assert_eq!([refused.sender.address(), refused.receiver.address()], addresses);
        let mut alice = refused.sender.unsplit(mine).unwrap();
        assert_eq!(alice.pending_recvs(), 1);
        // A half keeps the endpoint. Its peer may drop the other one.
        drop(refused.receiver);
        let mut theirs = theirs;
        theirs.post_send(message(&pool, 9), ..).unwrap();
        assert_eq!(seed_of(alice.wait().unwrap().message().unwrap()), 9);
        theirs.wait().unwrap();
    });
}

macro_rules! tasks {
    ($runtime:ident, $send:ident, $receive:ident) => {
        async fn $send(
            mut sender: bareverbs::$runtime::EndpointSender<Lease>,
            pool: Pool,
        ) -> bareverbs::$runtime::EndpointSender<Lease> {
            let mut next = 0;
            while next < MESSAGES || sender.get_mut().pending() > 0 {
                while next < MESSAGES && sender.get_mut().pending() < DEPTH as usize / 2 {
                    sender.get_mut().post_send(message(&pool, next), ..).unwrap();
                    next += 1;
                }
                sender.wait().await.unwrap();
            }
            sender
        }

        async fn $receive(
            mut receiver: bareverbs::$runtime::EndpointReceiver<Lease>,
        ) -> bareverbs::$runtime::EndpointReceiver<Lease> {
            for number in 0..MESSAGES {
                let done = receiver.wait().await.unwrap();
                assert_eq!(seed_of(done.message().unwrap()), number);
                receiver.get_mut().post_recv(done.into_buffer()).unwrap();
            }
            receiver
        }
    };
}

tasks!(tokio, send_on_tokio, receive_on_tokio);
tasks!(async_io, send_on_async_io, receive_on_async_io);

pub(crate) fn is_whole(endpoint: &Endpoint<Lease>) {
    assert_eq!((endpoint.pending_sends(), endpoint.pending_recvs()), (0, DEPTH as usize));
}

pub(crate) fn halves_of_an_endpoint_run_in_tokio_tasks() {
    nothing_leaks(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let (_pd, pool, ends) = setup(Spin::Never);
            let mut tasks = Vec::new();
            for mut end in ends {
                post_receives(&mut end, &pool);
                let (sender, receiver) = bareverbs::tokio::Endpoint::new(end).unwrap().split();
                let sends = tokio::spawn(send_on_tokio(sender, pool.clone()));
                tasks.push((sends, tokio::spawn(receive_on_tokio(receiver))));
            }
            for (sends, receives) in tasks {
                let (sender, receiver) = (sends.await.unwrap(), receives.await.unwrap());
                is_whole(&sender.unsplit(receiver).unwrap().into_inner());
            }
        });
    });
}

pub(crate) fn halves_of_an_endpoint_run_in_async_io_tasks() {
    nothing_leaks(|| {
        let (_pd, pool, ends) = setup(Spin::default());
        std::thread::scope(|threads| {
            let tasks = ends.map(|mut end| {
                post_receives(&mut end, &pool);
                let (sender, receiver) = bareverbs::async_io::Endpoint::new(end).unwrap().split();
                let pool = pool.clone();
                let sends = threads.spawn(move || async_io::block_on(send_on_async_io(sender, pool)));
                (sends, threads.spawn(move || async_io::block_on(receive_on_async_io(receiver))))
            });
            for (sends, receives) in tasks {
                is_whole(&sends.join().unwrap().unsplit(receives.join().unwrap()).unwrap().into_inner());
            }
        });
    });
}

pub(crate) fn dropped_wait_of_a_half_loses_no_message() {
    nothing_leaks(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let (_pd, pool, [alice, mut bob]) = setup(Spin::Never);
            let (mut sender, mut receiver) = bareverbs::tokio::Endpoint::new(alice).unwrap().split();
            for round in 0..20 {
                receiver.get_mut().post_recv(take(&pool)).unwrap();
                let wait = tokio::time::timeout(Duration::from_millis(2), receiver.wait()).await;
                assert!(wait.is_err(), "nothing was sent yet");
                bob.post_send(message(&pool, round), ..).unwrap();
                sender.get_mut().post(Op::write_inline(&[], Remote { addr: 0, rkey: 0 })).unwrap();
                let (sent, received) = tokio::join!(sender.wait(), receiver.wait());
                assert_eq!(seed_of(received.unwrap().message().unwrap()), round);
                sent.unwrap();
                bob.wait().unwrap();
            }
            // The halves of two endpoints, swapped, wait for nothing.
            let (_pd, _pool, [other, _]) = setup(Spin::Never);
            let (mut foreign, _receiver) = other.split();
            std::mem::swap(sender.get_mut(), &mut foreign);
            assert!(
                matches!(sender.wait().await, Err(failed) if matches!(failed.error, Error::Invalid { .. }))
            );
            assert!(sender.unsplit(receiver).is_err());
        });
    });
}
