use std::time::Duration;

use bareverbs::{Connection, Error, Hub, Op, Pool, PoolBuffer};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::connections::{message, pair, seed_of, setup, take};

const ROUNDS: u64 = 100;
const CLIENTS: u64 = 8;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The call posts the first receive: a message without one ends a connection of iWARP.
fn echo(peer: Connection<PoolBuffer>, pool: Pool, rounds: u64) -> impl Future<Output = ()> {
    let mut next = peer.post(Op::recv(take(&pool)));
    async move {
        for _ in 0..rounds {
            let request = std::mem::replace(&mut next, peer.post(Op::recv(take(&pool)))).await.unwrap();
            peer.post(Op::send(request.into_buffer(), ..)).await.unwrap();
        }
    }
}

async fn ask(peer: Connection<PoolBuffer>, pool: Pool, client: u64, rounds: u64) {
    for round in 0..rounds {
        let seed = client << 32 | round;
        let answer = peer.post(Op::recv(take(&pool)));
        peer.post(Op::send(message(&pool, seed), ..)).await.unwrap();
        assert_eq!(seed_of(answer.await.unwrap().message().unwrap()), seed);
    }
}

async fn echoes(hub: Hub, pool: Pool, clients: u64, rounds: u64) {
    let mut tasks = Vec::new();
    for client in 0..clients {
        let (a, b) = pair(&hub, 2);
        tasks.push(tokio::spawn(echo(b, pool.clone(), rounds)));
        tasks.push(tokio::spawn(ask(a, pool.clone(), client, rounds)));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[kernel_test]
fn tokio_tasks_share_a_hub() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(4 * 2 * CLIENTS as u32, 64);
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            echoes(hub, pool, CLIENTS, ROUNDS).await;
            driver.await.unwrap().unwrap();
        });
    });
}

#[kernel_test]
fn hundreds_of_connections_of_tasks_share_a_hub() {
    const PAIRS: u64 = 125;
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(4 * 2 * PAIRS as u32, 8 * PAIRS as usize);
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            echoes(hub, pool, PAIRS, 3).await;
            driver.await.unwrap().unwrap();
        });
    });
}

#[kernel_test]
fn tasks_share_a_hub_with_a_driver_thread() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(4 * 2 * CLIENTS as u32, 64);
            hub.spawn_driver_thread().unwrap();
            echoes(hub, pool, CLIENTS, ROUNDS).await;
        });
    });
}

#[kernel_test]
fn thread_of_a_driver_that_is_blocked_gets_its_message() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(8, 16);
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            // It is polled, and never again while this thread waits.
            tokio::task::yield_now().await;
            let (a, b) = pair(&hub, 2);
            let mut answer = b.post(Op::recv(take(&pool)));
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    std::thread::sleep(Duration::from_millis(50));
                    a.post(Op::send(message(&pool, 7), ..)).detach();
                });
                let received =
                    answer.wait_timeout(TIMEOUT).transpose().unwrap().expect("the thread waits for events");
                assert_eq!(seed_of(received.message().unwrap()), 7);
            });
            drop((a, b, answer, hub));
            driver.await.unwrap().unwrap();
        });
    });
}

#[kernel_test]
fn async_io_tasks_share_a_hub() {
    nothing_leaks(|| {
        let (_pd, hub, pool) = setup(8, 16);
        let driver = hub.drive(bareverbs::runtime::AsyncIo).unwrap();
        std::thread::scope(|threads| {
            let (a, b) = pair(&hub, 2);
            let pool = &pool;
            let echo = echo(b, pool.clone(), ROUNDS);
            threads.spawn(move || async_io::block_on(echo));
            threads.spawn(move || async_io::block_on(ask(a, pool.clone(), 1, ROUNDS)));
            threads.spawn(move || async_io::block_on(driver).unwrap());
            drop(hub);
        });
    });
}

#[kernel_test]
fn cancelled_awaits_lose_no_message() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(16, 16);
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            let (a, b) = pair(&hub, 4);
            for round in 0..50 {
                let mut received = b.post(Op::recv(take(&pool)));
                for _ in 0..3 {
                    assert!(timeout(Duration::from_micros(200), &mut received).await.is_err());
                }
                // Each future of the `select!` may be dropped.
                let sent = a.post(Op::send(message(&pool, round), ..));
                tokio::select! {
                    biased;
                    () = tokio::task::yield_now(), if round % 2 == 0 => {}
                    _ = sent => {}
                }
                let done = timeout(TIMEOUT, received).await.unwrap().unwrap();
                assert_eq!(seed_of(done.message().unwrap()), round);
            }
            // Buffers of dropped operations came back.
            drop((a, b));
            assert_eq!((0..16).filter_map(|_| pool.take()).collect::<Vec<_>>().len(), 16);
            drop(hub);
            driver.await.unwrap().unwrap();
        });
    });
}

#[kernel_test]
fn tasks_without_a_driver_end_with_an_error() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(8, 8);
            let (a, b) = pair(&hub, 2);
            let mut received = b.post(Op::recv(take(&pool)));
            let failed = (&mut received).await.unwrap_err();
            assert!(matches!(failed.error, Error::NoDriver { .. }), "{failed}");

            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            let waiting = tokio::spawn(async move {
                let failed = (&mut received).await.unwrap_err();
                assert!(matches!(failed.error, Error::NoDriver { .. }), "{failed}");
                Some(received)
            });
            tokio::time::sleep(Duration::from_millis(20)).await;
            driver.abort();
            let received = timeout(TIMEOUT, waiting).await.unwrap().unwrap().unwrap();

            // The operation goes on, and another driver can take over.
            let _driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            a.post(Op::send(message(&pool, 3), ..)).await.unwrap();
            let done = timeout(TIMEOUT, received).await.unwrap().unwrap();
            assert_eq!(seed_of(done.message().unwrap()), 3);
        });
    });
}

#[kernel_test]
fn driver_ends_with_its_hub() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, hub, pool) = setup(8, 8);
            let (a, _b) = pair(&hub, 2);
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            let pending = a.post(Op::recv(take(&pool)));
            drop((hub, a));
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!driver.is_finished(), "connections keep the hub");
            drop((pending, _b));
            timeout(TIMEOUT, driver).await.unwrap().unwrap().unwrap();
        });
    });
}
