//! Halves of an endpoint as streams and sinks.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bareverbs::owned::{Done, Endpoint, Failed, Lease, Pool, Spin};
use bareverbs::{Error, WcStatus};
use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::resources::nothing_leaks;
use futures_core::Stream;
use futures_sink::Sink;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::connections::{message, seed_of, take};
use crate::halves::{MESSAGES, is_whole, post_receives, setup};

type Sender = bareverbs::tokio::EndpointSender<Lease>;
type Receiver = bareverbs::tokio::EndpointReceiver<Lease>;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn split(endpoint: Endpoint<Lease>) -> (Sender, Receiver) {
    bareverbs::tokio::Endpoint::new(endpoint).unwrap().split()
}

/// Sends all messages, and returns the sink when the peer's device has acknowledged them.
async fn send_all<S: Sink<(Lease, usize), Error = Failed<Lease>> + Unpin>(mut sink: S, pool: Pool) -> S {
    for seed in 0..MESSAGES {
        poll_fn(|cx| Pin::new(&mut sink).poll_ready(cx)).await.unwrap();
        Pin::new(&mut sink).start_send((message(&pool, seed), 64)).unwrap();
    }
    poll_fn(|cx| Pin::new(&mut sink).poll_close(cx)).await.unwrap();
    sink
}

async fn next<S>(stream: &mut S) -> Option<Result<Done<Lease>, Failed<Lease>>>
where
    S: Stream<Item = Result<Done<Lease>, Failed<Lease>>> + Unpin,
{
    poll_fn(|cx| Pin::new(&mut *stream).poll_next(cx)).await
}

/// Receives all messages, and posts each receive again by `post`.
async fn receive_all<S>(mut stream: S, post: fn(&mut S, Lease)) -> S
where
    S: Stream<Item = Result<Done<Lease>, Failed<Lease>>> + Unpin,
{
    for seed in 0..MESSAGES {
        let done = next(&mut stream).await.expect("receives are posted").unwrap();
        assert_eq!(seed_of(done.message().unwrap()), seed);
        post(&mut stream, done.into_buffer());
    }
    stream
}

pub(crate) fn halves_are_a_sink_and_a_stream_of_tokio_tasks() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, ends) = setup(Spin::Never);
            let mut tasks = Vec::new();
            for mut end in ends {
                post_receives(&mut end, &pool);
                let (sender, receiver) = split(end);
                let receives = receive_all(receiver, |receiver, lease| receiver.post_recv(lease).unwrap());
                tasks.push((tokio::spawn(send_all(sender, pool.clone())), tokio::spawn(receives)));
            }
            for (sends, receives) in tasks {
                let sender = timeout(TIMEOUT, sends).await.unwrap().unwrap();
                let receiver = timeout(TIMEOUT, receives).await.unwrap().unwrap();
                is_whole(&sender.unsplit(receiver).unwrap().into_inner());
            }
        });
    });
}

pub(crate) fn halves_are_a_sink_and_a_stream_of_async_io_tasks() {
    nothing_leaks(|| {
        let (_pd, pool, ends) = setup(Spin::default());
        std::thread::scope(|threads| {
            let tasks = ends.map(|mut end| {
                post_receives(&mut end, &pool);
                let (sender, receiver) = bareverbs::async_io::Endpoint::new(end).unwrap().split();
                let pool = pool.clone();
                let sends = threads.spawn(move || async_io::block_on(send_all(sender, pool)));
                let post = |receiver: &mut bareverbs::async_io::EndpointReceiver<Lease>, lease| {
                    receiver.post_recv(lease).unwrap();
                };
                (sends, threads.spawn(move || async_io::block_on(receive_all(receiver, post))))
            });
            for (sends, receives) in tasks {
                is_whole(&sends.join().unwrap().unsplit(receives.join().unwrap()).unwrap().into_inner());
            }
        });
    });
}

pub(crate) fn stream_of_a_half_ends_without_receives_and_goes_on_with_them() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, [mut alice, bob]) = setup(Spin::Never);
            let (_sender, mut receiver) = split(bob);
            for seed in 0..3 {
                assert!(next(&mut receiver).await.is_none(), "no receive is posted");
                receiver.post_recv(take(&pool)).unwrap();
                let cancelled = timeout(Duration::from_millis(2), next(&mut receiver)).await;
                assert!(cancelled.is_err(), "nothing was sent");
                alice.post_send(message(&pool, seed), ..).unwrap();
                let done = timeout(TIMEOUT, next(&mut receiver)).await.unwrap().unwrap().unwrap();
                assert_eq!(seed_of(done.message().unwrap()), seed);
                alice.wait().unwrap();
            }
        });
    });
}

/// The runtime keeps the waker of one task for the descriptor.
pub(crate) fn half_whose_task_has_gone_does_not_keep_the_wake_of_the_other() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, [alice, mut bob]) = setup(Spin::Never);
            let (mut sender, mut receiver) = split(alice);
            receiver.post_recv(take(&pool)).unwrap();
            // The message is not acknowledged before there is a receive for it.
            Pin::new(&mut sender).start_send((message(&pool, 1), 64)).unwrap();
            let sends = tokio::spawn(async move {
                poll_fn(|cx| Pin::new(&mut sender).poll_flush(cx)).await.unwrap();
                sender
            });
            tokio::task::yield_now().await;
            let polled = Pin::new(&mut receiver).poll_next(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Pending), "the task that was polled last has no waker");
            bob.post_recv(take(&pool)).unwrap();
            let sender = timeout(TIMEOUT, sends).await.expect("the sender is woken").unwrap();
            assert_eq!(seed_of(bob.wait().unwrap().message().unwrap()), 1);
            sender.unsplit(receiver).unwrap().into_inner().close(TIMEOUT).unwrap();
        });
    });
}

pub(crate) fn failure_ends_the_sink_and_the_stream_with_their_buffers() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (_pd, pool, [alice, bob]) = setup(Spin::Never);
            let (mut sender, mut receiver) = split(alice);
            receiver.post_recv(take(&pool)).unwrap();
            drop(bob);
            Pin::new(&mut sender).start_send((message(&pool, 1), 64)).unwrap();
            let flush = poll_fn(|cx| Pin::new(&mut sender).poll_flush(cx));
            let (flushed, received) = tokio::join!(flush, next(&mut receiver));
            let failed = flushed.unwrap_err();
            assert!(
                matches!(failed.error, Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }),
                "{failed}"
            );
            assert!(failed.buffer.is_some());
            let failed = received.expect("the receive is flushed").unwrap_err();
            assert_eq!((failed.cause, failed.buffer.is_some()), (Some(WcStatus::RETRY_EXC_ERR), true));
            assert!(next(&mut receiver).await.is_none());
            // A closed sink is ready, and refuses the message.
            poll_fn(|cx| Pin::new(&mut sender).poll_ready(cx)).await.unwrap();
            let refused = Pin::new(&mut sender).start_send((message(&pool, 2), 64)).unwrap_err();
            assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
            assert_eq!(seed_of(refused.buffer.unwrap().bytes()), 2);
        });
    });
}
