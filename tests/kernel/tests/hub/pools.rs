//! Waits for buffers of a pool.

use std::time::{Duration, Instant};

use bareverbs::{Connection, Hub, Op, Pool, PoolBuffer};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::connections::{fill, pair, seed_of, setup};

const CLIENTS: u64 = 4;
const MESSAGES: u64 = 60;

/// Connections of clients with their servers, a pool of half as many buffers for the sends of all
/// clients, and a pool for the receives.
struct Setup {
    hub: Hub,
    pairs: Vec<(Connection<PoolBuffer>, Connection<PoolBuffer>)>,
    sends: Pool,
    receives: Pool,
}

impl Setup {
    fn new() -> Self {
        let (pd, hub, sends) = setup(8 * CLIENTS as u32, CLIENTS as usize / 2);
        let receives = Pool::new(&pd, CLIENTS as usize, 64).unwrap();
        Self { pairs: (0..CLIENTS).map(|_| pair(&hub, 2)).collect(), hub, sends, receives }
    }

    /// Ends the connections. All buffers are free then.
    fn end(self) {
        drop(self.pairs);
        assert!(is_full(&self.sends) && is_full(&self.receives));
    }
}

/// Whether all buffers are free soon: the driver drops those of detached operations after it has unlocked
/// the CQ.
fn is_full(pool: &Pool) -> bool {
    let free = |_| pool.acquire().wait_timeout(TIMEOUT).transpose().unwrap();
    let buffers: Vec<_> = (0..pool.capacity()).map_while(free).collect();
    buffers.len() == pool.capacity()
}

#[kernel_test(device::waits_for_receives)]
fn threads_wait_for_the_buffers_of_detached_sends() {
    nothing_leaks(|| {
        let setup = Setup::new();
        setup.hub.spawn_driver_thread().unwrap();
        let acquire =
            |pool: &Pool| pool.acquire().wait_timeout(TIMEOUT).transpose().unwrap().expect("a buffer");
        std::thread::scope(|threads| {
            for (a, b) in &setup.pairs {
                threads.spawn(|| {
                    for seed in 0..MESSAGES {
                        let done = b.post(Op::recv(acquire(&setup.receives))).wait().unwrap();
                        assert_eq!(seed_of(done.message().unwrap()), seed);
                    }
                });
                threads.spawn(|| {
                    for seed in 0..MESSAGES {
                        let sent = a.post(Op::send(fill(acquire(&setup.sends), seed), ..));
                        if seed % 3 == 0 {
                            sent.wait().unwrap();
                        }
                    }
                });
            }
        });
        setup.end();
    });
}

#[kernel_test(device::waits_for_receives)]
fn tasks_wait_for_the_buffers_of_detached_sends() {
    nothing_leaks(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let setup = Setup::new();
            let driver = tokio::spawn(setup.hub.drive(bareverbs::runtime::Tokio).unwrap());
            let mut tasks = Vec::new();
            for (a, b) in setup.pairs.clone() {
                let (sends, receives) = (setup.sends.clone(), setup.receives.clone());
                tasks.push(tokio::spawn(async move {
                    for seed in 0..MESSAGES {
                        let done = b.post(Op::recv(receives.acquire().await.unwrap())).await.unwrap();
                        assert_eq!(seed_of(done.message().unwrap()), seed);
                    }
                }));
                tasks.push(tokio::spawn(async move {
                    for seed in 0..MESSAGES {
                        let sent = a.post(Op::send(fill(sends.acquire().await.unwrap(), seed), ..));
                        if seed % 3 == 0 {
                            sent.await.unwrap();
                        }
                    }
                }));
            }
            for task in tasks {
                timeout(TIMEOUT, task).await.expect("each wait gets a buffer").unwrap();
            }
            setup.end();
            timeout(TIMEOUT, driver).await.unwrap().unwrap().unwrap();
        });
    });
}

#[kernel_test(device::acknowledges)]
fn cancelled_wait_passes_its_buffer_to_the_next_one() {
    nothing_leaks(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let (pd, hub, pool) = setup(8, 1);
            let driver = tokio::spawn(hub.drive(bareverbs::runtime::Tokio).unwrap());
            let ((a, b), receives) = (pair(&hub, 2), Pool::new(&pd, 1, 64).unwrap());
            for seed in 0..20 {
                a.post(Op::send(fill(pool.acquire().await.unwrap(), seed), ..)).detach();
                // The peer has no receive for it.
                let mut first = pool.acquire();
                assert!(timeout(Duration::from_millis(1), &mut first).await.is_err());
                let second = tokio::spawn(pool.acquire());
                tokio::task::yield_now().await;
                let done = timeout(TIMEOUT, b.post(Op::recv(receives.acquire().await.unwrap())))
                    .await
                    .unwrap()
                    .unwrap();
                assert_eq!(seed_of(done.message().unwrap()), seed);
                if seed % 2 == 0 {
                    // The first wait may have got the buffer.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                drop(first);
                timeout(TIMEOUT, second).await.expect("the second wait gets the buffer").unwrap().unwrap();
            }
            assert!(is_full(&pool));
            drop((a, b, hub));
            timeout(TIMEOUT, driver).await.unwrap().unwrap().unwrap();
        });
    });
}

#[kernel_test(device::waits_for_receives)]
fn wait_for_a_buffer_ends_at_its_time_limit_and_goes_on() {
    nothing_leaks(|| {
        let (pd, hub, pool) = setup(8, 1);
        let ((a, b), receives) = (pair(&hub, 2), Pool::new(&pd, 1, 64).unwrap());
        a.post(Op::send(fill(pool.acquire().wait().unwrap(), 7), ..)).detach();
        let mut wait = pool.acquire();
        assert!(wait.wait_timeout(Duration::from_millis(5)).is_none());
        let done = b.post(Op::recv(receives.acquire().wait().unwrap())).wait().unwrap();
        assert_eq!(seed_of(done.message().unwrap()), 7);
        // A wait does not poll the CQ.
        let begin = Instant::now();
        while wait.wait_timeout(Duration::from_millis(1)).is_none() {
            hub.poll(8);
            assert!(begin.elapsed() < TIMEOUT);
        }
    });
}
