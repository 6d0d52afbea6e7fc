//! Waits for buffers of servers and clients.

use std::time::Duration;

use bareverbs::Error;
use bareverbs::server::Event;
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, kernel_test};
use tokio::runtime::Builder;
use tokio::time::timeout;

use crate::connections::{fill, seed_of};
use crate::servers::{client, server};

/// Twice as many as a client has buffers.
const SENDERS: usize = 8;
const MESSAGES: u64 = 40;

/// Checks that the messages of each sender arrive in order.
#[derive(Default)]
struct Order([u64; SENDERS]);

impl Order {
    fn arrived(&mut self, bytes: &[u8]) {
        let seed = seed_of(bytes);
        let next = &mut self.0[(seed >> 32) as usize];
        assert_eq!(seed & u64::from(u32::MAX), *next);
        *next += 1;
    }

    fn is_complete(&self) -> bool {
        self.0.iter().all(|next| *next == MESSAGES)
    }
}

#[kernel_test]
fn tasks_wait_for_the_buffers_of_a_client() {
    nothing_leaks(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let pd = domain();
            let mut server = server(&pd, 1);
            tokio::spawn(server.handle().drive(bareverbs::runtime::Tokio).unwrap());
            let (client, _) = client(&pd, &server);
            tokio::spawn(client.handle().drive(bareverbs::runtime::Tokio).unwrap());
            let senders = (0..SENDERS as u64).map(|sender| {
                let (peer, handle) = (client.id(), client.handle().clone());
                tokio::spawn(async move {
                    for number in 0..MESSAGES {
                        let message = fill(handle.acquire().await.unwrap(), sender << 32 | number);
                        let sent = handle.send(peer, message, ..);
                        if number % 3 == 0 {
                            sent.await.unwrap();
                        }
                    }
                })
            });
            let (senders, mut order) = (senders.collect::<Vec<_>>(), Order::default());
            while !order.is_complete() {
                match timeout(TIMEOUT, server.next()).await.expect("each wait gets a buffer").unwrap() {
                    Event::Message(message) => order.arrived(message.bytes()),
                    other => panic!("{other:?}"),
                }
            }
            for sender in senders {
                timeout(TIMEOUT, sender).await.unwrap().unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(20));
    });
}

#[kernel_test]
fn threads_wait_for_the_buffers_of_a_client_without_a_driver() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 1);
        let (client, _) = client(&pd, &server);
        std::thread::scope(|threads| {
            for sender in 0..SENDERS as u64 {
                let (peer, handle) = (client.id(), client.handle().clone());
                threads.spawn(move || {
                    for number in 0..MESSAGES {
                        let buffer =
                            handle.acquire().wait_timeout(TIMEOUT).transpose().unwrap().expect("a buffer");
                        let sent = handle.send(peer, fill(buffer, sender << 32 | number), ..);
                        // A thread that ends leaves its last messages to others, which reap them.
                        if number % 3 == 0 || number == MESSAGES - 1 {
                            sent.wait().unwrap();
                        }
                    }
                });
            }
            let mut order = Order::default();
            while !order.is_complete() {
                match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
                    Some(Event::Message(message)) => order.arrived(message.bytes()),
                    other => panic!("{other:?}"),
                }
            }
        });
    });
}

#[kernel_test]
fn cancelled_wait_of_a_client_passes_its_buffer_on() {
    nothing_leaks(|| {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let pd = domain();
            let mut server = server(&pd, 1);
            tokio::spawn(server.handle().drive(bareverbs::runtime::Tokio).unwrap());
            let (client, _) = client(&pd, &server);
            tokio::spawn(client.handle().drive(bareverbs::runtime::Tokio).unwrap());
            let handle = client.handle().clone();
            // One buffer is left.
            let others: Vec<_> = (0..3).map(|_| client.take().unwrap()).collect();
            for seed in 0..20 {
                client.send(fill(handle.acquire().await.unwrap(), seed), ..).detach();
                let mut first = handle.acquire();
                if seed % 2 == 0 {
                    // The message may be acknowledged meanwhile.
                    drop(timeout(Duration::from_millis(1), &mut first).await);
                } else {
                    tokio::select! {
                        biased;
                        _ = &mut first => {}
                        () = std::future::ready(()) => {}
                    }
                }
                let second = tokio::spawn({
                    let handle = handle.clone();
                    async move { handle.acquire().await }
                });
                tokio::task::yield_now().await;
                match timeout(TIMEOUT, server.next()).await.unwrap().unwrap() {
                    Event::Message(message) => assert_eq!(seed_of(message.bytes()), seed),
                    other => panic!("{other:?}"),
                }
                drop(first);
                timeout(TIMEOUT, second).await.expect("the second wait gets it").unwrap().unwrap();
            }
            drop(others);
            let all: Vec<_> = std::iter::from_fn(|| client.take()).collect();
            assert_eq!(all.len(), 4);
        });
        std::thread::sleep(Duration::from_millis(20));
    });
}

#[kernel_test]
fn death_of_a_peer_ends_the_wait_for_its_buffers() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 1);
        let (dead, lost) = client(&pd, &server);
        let handle = server.handle().clone();
        // The fifth message has no buffer: the peer acknowledges none.
        drop(dead);
        for seed in 0..4 {
            handle.send(lost, fill(handle.take().unwrap(), seed), ..).detach();
        }
        let waiter = std::thread::spawn({
            let handle = handle.clone();
            move || handle.acquire().wait_timeout(TIMEOUT).transpose()
        });
        match server.next().wait_timeout(TIMEOUT).transpose().unwrap() {
            Some(Event::Failed(peer, _)) => assert_eq!(peer, lost),
            other => panic!("{other:?}"),
        }
        let buffer = waiter.join().unwrap().unwrap().expect("the buffer of a failed message");
        let refused = handle.send(lost, buffer, ..).wait().unwrap_err();
        assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
    });
}

#[kernel_test]
fn end_of_a_server_ends_the_waits_for_its_buffers() {
    nothing_leaks(|| {
        for shut_down in [true, false] {
            let pd = domain();
            let server = server(&pd, 1);
            let (client, _) = client(&pd, &server);
            let _buffers: Vec<_> = std::iter::from_fn(|| server.handle().take())
                .chain(std::iter::from_fn(|| client.take()))
                .collect();
            let waiters = [server.handle(), client.handle()].map(|handle| {
                let handle = handle.clone();
                std::thread::spawn(move || handle.acquire().wait().map(drop))
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
            if shut_down {
                drop((server.handle().shutdown(), client.shutdown()));
            }
            drop((server, client));
            for waiter in waiters {
                let ended = waiter.join().unwrap().unwrap_err();
                assert!(matches!(ended, Error::Closed { verb: "Handle::acquire", .. }), "{ended}");
            }
        }
    });
}

#[kernel_test]
fn waits_for_a_buffer_do_not_delay_replies_in_place() {
    nothing_leaks(|| {
        let pd = domain();
        let mut server = server(&pd, 1);
        let (mut client, _) = client(&pd, &server);
        let buffers: Vec<_> = std::iter::from_fn(|| server.handle().take()).collect();
        std::thread::scope(|threads| {
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let handle = server.handle().clone();
                    threads
                        .spawn(move || handle.acquire().wait_timeout(TIMEOUT).transpose().unwrap().is_some())
                })
                .collect();
            // Each window several times.
            for round in 0..40 {
                client.send(fill(client.take().unwrap(), round), ..).detach();
                let Some(Event::Message(message)) = server.next().wait_timeout(TIMEOUT).transpose().unwrap()
                else {
                    panic!("a message")
                };
                message.reply_in_place(..).wait().unwrap();
                let Some(Event::Message(answer)) = client.next().wait_timeout(TIMEOUT).transpose().unwrap()
                else {
                    panic!("an answer")
                };
                assert_eq!(seed_of(answer.bytes()), round);
            }
            assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "no buffer is free");
            drop(buffers);
            assert!(waiters.into_iter().all(|waiter| waiter.join().unwrap()));
        });
    });
}
