//! Waiting tasks, with each runtime.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bareverbs::cq::{CompChannel, CqInit, WorkCompletion};
use bareverbs::device::EventType;
use bareverbs::qp::{Operation, Payload, QpCap};
use bareverbs::runtime::{AsyncIo, Tokio};
use bareverbs::{AsyncEvent, Endpoint, Error, Op, Pool, PoolBuffer, WcStatus};
use bareverbs_kernel_tests::loopback::{Plan, Side, domain, join, request, side, side_on};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{cm, device, kernel_test};
use futures_core::Stream;
use tokio::runtime::{Builder, Runtime};

use crate::{async_io_echo, tokio_echo};

#[kernel_test(device::moves_qps)]
fn tokio_example_runs() {
    nothing_leaks(|| runtime().block_on(tokio_echo::run(&device::open())).unwrap());
}

#[kernel_test(device::moves_qps)]
fn async_io_example_runs() {
    nothing_leaks(|| async_io_echo::run(&device::open()).unwrap());
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Two connected sides whose completion queues share a channel.
fn pair_on_a_channel() -> (CompChannel, Side, Side) {
    let pd = domain();
    let context = pd.context();
    let channel = context.create_comp_channel().unwrap();
    let cap = QpCap { max_send_wr: 32, max_recv_wr: 32, ..QpCap::default() };
    let plan = Plan { cap, ..Plan::long_timeouts() };
    let on_channel = |user_data| {
        let init = CqInit { channel: Some(&channel), user_data, ..CqInit::new(64) };
        side_on(&pd, plan, context.create_cq(&init).unwrap(), user_data)
    };
    let (mut a, mut b) = (on_channel(1), on_channel(2));
    join(&mut a, &mut b);
    (channel, a, b)
}

fn send(from: &mut Side, number: u64) {
    from.send(&[request(number, Operation::Send, Payload::Sges(&[]))]).unwrap();
}

fn is(completion: WorkCompletion, number: u64) {
    assert_eq!((completion.wr_id, completion.status), (number, WcStatus::SUCCESS));
}

const MESSAGES: u64 = 500;

macro_rules! completions_of_several_queues {
    ($runtime:expr) => {
        async {
            let (mut channel, mut a, mut b) = pair_on_a_channel();
            channel.attach($runtime).unwrap();
            for number in 0..MESSAGES {
                b.recv_into(number, 1, &[]);
                send(&mut a, number);
                // The other queue's event must not be missed, whichever completes first.
                let (first, second) = if number % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                is(channel.completion(&mut first.cq).await.unwrap(), number);
                is(channel.completion(&mut second.cq).await.unwrap(), number);
            }
        }
    };
}

#[kernel_test]
fn completions_of_several_cqs_wake_a_tokio_task() {
    nothing_leaks(|| runtime().block_on(completions_of_several_queues!(Tokio)));
}

#[kernel_test]
fn completions_of_several_cqs_wake_an_async_io_task() {
    nothing_leaks(|| async_io::block_on(completions_of_several_queues!(AsyncIo)));
}

macro_rules! a_drained_queue_pair {
    ($runtime:expr) => {
        async {
            let (_channel, mut a, _b) = pair_on_a_channel();
            let mut events = a.qp.pd().context().async_events();
            events.attach($runtime).unwrap();
            a.qp.drain().unwrap();
            let drained = AsyncEvent::Qp { event: EventType::SQ_DRAINED, user_data: 1 };
            assert_eq!(events.next().await.unwrap(), drained);
        }
    };
}

#[kernel_test(device::sqd)]
fn tasks_wake_with_asynchronous_events() {
    nothing_leaks(|| {
        runtime().block_on(a_drained_queue_pair!(Tokio));
        async_io::block_on(a_drained_queue_pair!(AsyncIo));
    });
}

#[kernel_test]
fn dropped_wait_future_loses_no_event() {
    nothing_leaks(|| {
        runtime().block_on(async {
            let (mut channel, mut a, mut b) = pair_on_a_channel();
            channel.attach(Tokio).unwrap();
            for number in 0..20 {
                let wait = channel.completion(&mut b.cq);
                let given_up = tokio::time::timeout(Duration::from_millis(2), wait).await;
                assert!(given_up.is_err(), "nothing was sent yet");
                b.recv_into(number, 1, &[]);
                send(&mut a, number);
                is(channel.completion(&mut b.cq).await.unwrap(), number);
            }
        });
    });
}

#[kernel_test]
fn streams_and_endpoints_change_their_runtime() {
    nothing_leaks(|| {
        let pd = domain();
        let pool = Pool::new(&pd, 4, 64).unwrap();
        let [mut alice, mut bob]: [Endpoint<PoolBuffer>; 2] =
            [(); 2].map(|()| Endpoint::new(&pd, 1, 4).unwrap());
        let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
        alice.connect(&to_bob).unwrap();
        bob.connect(&to_alice).unwrap();
        let mut events = pd.context().async_events();
        runtime().block_on(async {
            bob.attach(Tokio).unwrap();
            // The same runtime again.
            bob.attach(Tokio).unwrap();
            events.attach(Tokio).unwrap();
        });
        async_io::block_on(async {
            bob.attach(AsyncIo).unwrap();
            events.attach(AsyncIo).unwrap();
            assert_eq!(events.try_wait().unwrap(), None);
            for number in 0..4 {
                bob.post(Op::recv(pool.take().unwrap())).unwrap();
                alice.post(Op::send(pool.take().unwrap(), ..8)).unwrap();
                // Tasks and threads take turns.
                let received = match number % 2 {
                    0 => bob.next().await,
                    _ => bob.next().wait(),
                };
                assert_eq!(received.unwrap().len, 8);
                drop(alice.next().wait().unwrap());
            }
        });
    });
}

#[kernel_test]
fn invalid_waits_are_rejected() {
    nothing_leaks(|| {
        let (mut channel, mut a, _b) = pair_on_a_channel();
        let outside = channel.attach(Tokio).unwrap_err();
        assert!(outside.to_string().contains("no reactor"), "{outside}");

        let mut elsewhere = side(&domain(), Plan::long_timeouts());
        let mut clone = channel.clone();
        async_io::block_on(async {
            let detached = channel.next().await.unwrap_err();
            assert!(detached.to_string().contains("call `attach` first"), "{detached}");
            channel.attach(AsyncIo).unwrap();
            let foreign = channel.completion(&mut elsewhere.cq).await;
            assert!(matches!(foreign, Err(Error::Invalid { .. })), "{foreign:?}");
            let twice = clone.attach(AsyncIo).unwrap_err();
            assert!(twice.to_string().contains("exists"), "{twice}");
        });
        runtime().block_on(async { channel.attach(Tokio).unwrap() });
        a.cq.arm(bareverbs::cq::Arm::Any).unwrap();
    });
}

macro_rules! results_are_a_stream {
    ($runtime:expr) => {
        async {
            let pd = domain();
            let pool = Pool::new(&pd, 32, 64).unwrap();
            let [mut alice, mut bob]: [Endpoint<PoolBuffer>; 2] =
                [(); 2].map(|()| Endpoint::new(&pd, 1, 16).unwrap());
            let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
            alice.connect(&to_bob).unwrap();
            bob.connect(&to_alice).unwrap();
            bob.attach($runtime).unwrap();
            assert!(poll_fn(|cx| Pin::new(&mut bob).poll_next(cx)).await.is_none(), "nothing is outstanding");
            for round in 0..50 {
                for tag in 0..4 {
                    bob.post(Op::recv(pool.take().unwrap()).tag(tag)).unwrap();
                }
                // The task sleeps before the first message.
                let sender = std::thread::spawn({
                    let (mut alice, buffers) = (alice, [(); 4].map(|()| pool.take().unwrap()));
                    move || {
                        std::thread::sleep(Duration::from_millis(2));
                        buffers
                            .into_iter()
                            .for_each(|buffer| alice.post(Op::send(buffer, ..=round)).unwrap());
                        (0..4).for_each(|_| drop(alice.next().wait().unwrap()));
                        alice
                    }
                });
                let mut next = async || poll_fn(|cx| Pin::new(&mut bob).poll_next(cx)).await;
                for tag in 0..4 {
                    let done = next().await.expect("an operation is outstanding").unwrap();
                    assert_eq!((done.tag, done.len), (tag, round as u32 + 1));
                }
                assert!(next().await.is_none());
                alice = sender.join().unwrap();
            }
        }
    };
}

#[kernel_test]
fn results_of_an_endpoint_are_a_stream() {
    nothing_leaks(|| {
        runtime().block_on(results_are_a_stream!(Tokio));
        async_io::block_on(results_are_a_stream!(AsyncIo));
    });
}
