use std::time::{Duration, Instant};

use bareverbs::values::AckTimeout;
use bareverbs::{Connection, Endpoint, Hub, Op, Pool, PoolBuffer, Spin};
use bareverbs_kernel_tests::allocations::{CountingAllocator, allocations};
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, cm, device, kernel_test};

use crate::connections::{message, pair, seed_of, setup, take};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const ROUNDS: u64 = 200;

/// Answers each message with the same bytes.
fn echo(peer: &Connection<PoolBuffer>, pool: &Pool) {
    let mut next = peer.post(Op::recv(take(pool)));
    for _ in 0..ROUNDS {
        let request = std::mem::replace(&mut next, peer.post(Op::recv(take(pool)))).wait().unwrap();
        peer.post(Op::send(request.into_buffer(), ..)).wait().unwrap();
    }
}

fn ask(peer: &Connection<PoolBuffer>, pool: &Pool, client: u64) {
    for round in 0..ROUNDS {
        let seed = client << 32 | round;
        let answer = peer.post(Op::recv(take(pool)));
        peer.post(Op::send(message(pool, seed), ..)).wait().unwrap();
        assert_eq!(seed_of(answer.wait().unwrap().message().unwrap()), seed);
    }
}

/// Two connected ends. Their retries outlast a guest that the host, or a thread that polls, stalls.
fn patient_pair(hub: &Hub) -> (Connection<PoolBuffer>, Connection<PoolBuffer>) {
    let options = Endpoint::options().sends(2).recvs(2).timeout(AckTimeout::new(18).unwrap());
    let (a, b) = (hub.connection_with(&options).unwrap(), hub.connection_with(&options).unwrap());
    let [to_a, to_b] = cm::introduce(a.address(), b.address());
    a.connect(&to_b).unwrap();
    b.connect(&to_a).unwrap();
    (a, b)
}

/// Four clients and four servers, each a thread, on one CQ.
fn echoes(hub: &Hub, pool: &Pool) {
    std::thread::scope(|threads| {
        for client in 0..4 {
            let (a, b) = patient_pair(hub);
            threads.spawn(move || echo(&b, pool));
            threads.spawn(move || ask(&a, pool, client));
        }
    });
}

#[kernel_test(device::waits_for_receives)]
fn threads_without_a_driver_share_a_hub() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(32, 64);
        echoes(&hub, &pool);
    });
}

#[kernel_test]
fn threads_with_a_driver_share_a_hub() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(32, 64);
        hub.spawn_driver_thread().unwrap();
        assert!(hub.spawn_driver_thread().unwrap_err().to_string().contains("has a driver"));
        echoes(&hub, &pool);
    });
}

#[kernel_test(device::waits_for_receives)]
fn adaptive_and_busy_threads_share_a_hub() {
    nothing_leaks(|| {
        for (spin, driven) in [
            (Spin::Adaptive(Duration::from_micros(50)), false),
            (Spin::Adaptive(Duration::from_micros(50)), true),
        ] {
            let pd = domain();
            let hub = Hub::with_spin(&pd, 32, spin).unwrap();
            let pool = Pool::new(&pd, 64, 64).unwrap();
            if driven {
                hub.spawn_driver_thread().unwrap();
            }
            echoes(&hub, &pool);
        }
        let pd = domain();
        let hub = Hub::with_spin(&pd, 8, Spin::Always).unwrap();
        let pool = Pool::new(&pd, 8, 64).unwrap();
        let (a, b) = pair(&hub, 2);
        for round in 0..ROUNDS {
            let received = b.post(Op::recv(take(&pool)));
            a.post(Op::send(message(&pool, round), ..)).wait().unwrap();
            assert_eq!(seed_of(received.wait().unwrap().message().unwrap()), round);
        }
    });
}

#[kernel_test]
fn wait_timeout_leaves_the_operation_posted() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(8, 8);
        let (a, b) = pair(&hub, 2);
        let mut received = b.post(Op::recv(take(&pool)));
        let begin = Instant::now();
        assert!(received.wait_timeout(Duration::from_millis(20)).is_none());
        assert!(begin.elapsed() >= Duration::from_millis(20));
        a.post(Op::send(message(&pool, 7), ..)).wait().unwrap();
        let done = received.wait_timeout(TIMEOUT).unwrap().unwrap();
        assert_eq!(seed_of(done.message().unwrap()), 7);
    });
}

#[kernel_test]
fn blocked_thread_takes_over_from_a_dropped_driver() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(8, 8);
        let (a, b) = pair(&hub, 2);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let driver = {
            let _entered = runtime.enter();
            hub.drive(bareverbs::runtime::Tokio).unwrap()
        };
        std::thread::scope(|threads| {
            let received = b.post(Op::recv(take(&pool)));
            let blocked = threads.spawn(move || received.wait().unwrap());
            // It sleeps as a follower of a driver that does nothing.
            std::thread::sleep(Duration::from_millis(30));
            drop(driver);
            a.post(Op::send(message(&pool, 8), ..)).detach();
            assert_eq!(seed_of(blocked.join().unwrap().message().unwrap()), 8);
        });
    });
}

#[kernel_test(device::off_caller_thread)]
fn awaited_operations_allocate_nothing() {
    let (_pd, hub, pool) = setup(16, 16);
    let (a, b) = pair(&hub, 4);
    let run = |rounds: u64| {
        for round in 0..rounds {
            let received = b.post(Op::recv(take(&pool)));
            a.post(Op::send(message(&pool, round), ..)).detach();
            assert_eq!(seed_of(received.wait().unwrap().into_buffer().bytes()), round);
        }
    };
    // The first sleep of a thread creates its waker.
    let mut idle = b.post(Op::recv(take(&pool)));
    assert!(idle.wait_timeout(Duration::from_millis(2)).is_none());
    a.post(Op::send(message(&pool, 1), ..)).detach();
    idle.wait().unwrap();
    run(10);
    assert_eq!(allocations(|| run(2_000)), 0);
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1_u64)))), 1);
}
