//! Endpoints of tasks as streams of results.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bareverbs::{Done, Endpoint, Error, Failed, Op, Pd, Pool, PoolBuffer, Spin, WcStatus};
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, cm, device, kernel_test};
use futures_core::Stream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::connections::{message, seed_of, take};

const DEPTH: u32 = 8;
const MESSAGES: u64 = 300;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Two connected endpoints, and a pool with room for the operations of both.
fn setup(spin: Spin) -> (Pd, Pool, [Endpoint<PoolBuffer>; 2]) {
    let pd = domain();
    let pool = Pool::new(&pd, 64, 64).unwrap();
    let build = || Endpoint::options().sends(DEPTH).recvs(DEPTH).spin(spin).build(&pd).unwrap();
    let (mut alice, mut bob): (Endpoint<PoolBuffer>, Endpoint<PoolBuffer>) = (build(), build());
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    (pd, pool, [alice, bob])
}

async fn next<S>(stream: &mut S) -> Option<Result<Done<PoolBuffer>, Failed<PoolBuffer>>>
where
    S: Stream<Item = Result<Done<PoolBuffer>, Failed<PoolBuffer>>> + Unpin,
{
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

/// Sends all messages, receives those of the peer, and takes all results from the stream. The
/// endpoint must live until the peer has its last acknowledgement.
async fn exchange(
    mut endpoint: Endpoint<PoolBuffer>,
    pool: Pool,
    runtime: impl bareverbs::runtime::Runtime,
) -> Endpoint<PoolBuffer> {
    endpoint.attach(runtime).unwrap();
    for tag in 0..u64::from(DEPTH) {
        endpoint.post(Op::recv(take(&pool)).tag(tag)).unwrap();
    }
    let (mut posted, mut sent, mut received) = (0, 0, 0);
    while sent < MESSAGES || received < MESSAGES {
        while posted < MESSAGES && endpoint.pending_sends() < DEPTH as usize / 2 {
            endpoint.post(Op::send(message(&pool, posted), ..).tag(posted)).unwrap();
            posted += 1;
        }
        let done = next(&mut endpoint).await.expect("operations are outstanding").unwrap();
        if !done.is_recv() {
            assert_eq!(done.tag, sent);
            sent += 1;
            continue;
        }
        assert_eq!((seed_of(done.message().unwrap()), done.tag), (received, received));
        received += 1;
        if received + u64::from(DEPTH) <= MESSAGES {
            let tag = received + u64::from(DEPTH) - 1;
            endpoint.post(Op::recv(done.into_buffer()).tag(tag)).unwrap();
        }
    }
    assert!(next(&mut endpoint).await.is_none(), "nothing is outstanding");
    endpoint
}

#[kernel_test(device::waits_for_receives)]
fn streams_of_endpoints_carry_both_directions_in_tokio_tasks() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, ends) = setup(Spin::Never);
            let tasks = ends.map(|end| tokio::spawn(exchange(end, pool.clone(), bareverbs::runtime::Tokio)));
            let mut ended = Vec::new();
            for task in tasks {
                ended.push(timeout(TIMEOUT, task).await.unwrap().unwrap());
            }
        });
    });
}

#[kernel_test(device::waits_for_receives)]
fn streams_of_endpoints_carry_both_directions_in_async_io_tasks() {
    nothing_leaks(|| {
        let (_pd, pool, ends) = setup(Spin::default());
        std::thread::scope(|threads| {
            let ended = ends.map(|end| {
                let pool = pool.clone();
                threads.spawn(move || async_io::block_on(exchange(end, pool, bareverbs::runtime::AsyncIo)))
            });
            drop(ended.map(|thread| thread.join().unwrap()));
        });
    });
}

#[kernel_test]
fn dropped_await_of_an_endpoint_loses_no_message() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, [mut alice, mut bob]) = setup(Spin::Never);
            bob.attach(bareverbs::runtime::Tokio).unwrap();
            for round in 0..20 {
                bob.post(Op::recv(take(&pool))).unwrap();
                let limit = Duration::from_millis(2);
                let cancelled = match round % 2 {
                    0 => timeout(limit, bob.next()).await.is_err(),
                    _ => timeout(limit, next(&mut bob)).await.is_err(),
                };
                assert!(cancelled, "nothing was sent");
                alice.post(Op::send(message(&pool, round), ..)).unwrap();
                let received = timeout(TIMEOUT, next(&mut bob)).await.unwrap().unwrap().unwrap();
                assert_eq!(seed_of(received.message().unwrap()), round);
                assert!(next(&mut bob).await.is_none(), "nothing is outstanding");
                alice.next().wait_timeout(TIMEOUT).transpose().unwrap().expect("a send");
            }
        });
    });
}

#[kernel_test(device::acknowledges)]
fn failure_ends_the_stream_of_an_endpoint_with_its_buffers() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, [mut alice, bob]) = setup(Spin::Never);
            alice.attach(bareverbs::runtime::Tokio).unwrap();
            alice.post(Op::recv(take(&pool))).unwrap();
            drop(bob);
            alice.post(Op::send(message(&pool, 1), ..)).unwrap();
            for _ in 0..2 {
                let failed = timeout(TIMEOUT, next(&mut alice)).await.unwrap();
                let failed = failed.expect("an operation").unwrap_err();
                assert!(failed.buffer.is_some());
                if failed.is_recv() {
                    assert_eq!(failed.cause, Some(WcStatus::RETRY_EXC_ERR));
                } else {
                    assert!(
                        matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }),
                        "{failed}"
                    );
                }
            }
            assert!(next(&mut alice).await.is_none());
            let refused = alice.post(Op::send(message(&pool, 2), ..)).unwrap_err();
            assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
            assert_eq!(seed_of(refused.object.into_buffer().bytes()), 2);
        });
    });
}
