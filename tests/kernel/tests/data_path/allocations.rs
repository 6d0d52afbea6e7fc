//! Allocations of the data path.

use std::time::{Duration, Instant};

use bareverbs::cq::Completion;
use bareverbs::qp::{Operation, Payload, QpCap, RecvRequest, SendFlags};
use bareverbs::server::{Client, Event, Server};
use bareverbs::{Access, Endpoint, Op, Pd, Pool, PoolBuffer, WcStatus};
use bareverbs_kernel_tests::allocations::{CountingAllocator, allocations, total};
use bareverbs_kernel_tests::loopback::{Plan, domain, pair, region, request};
use bareverbs_kernel_tests::{TIMEOUT, cm, device, kernel_test};

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

#[kernel_test(device::off_caller_thread)]
fn ten_thousand_messages_allocate_nothing() {
    const BURST: usize = 50;
    let pd = domain();
    let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, ..Plan::default().cap };
    let (mut a, mut b) = pair(&pd, Plan { cap, ..Plan::default() });
    let memory = region(&pd, &[1; 64], Access::LOCAL_WRITE);
    let sges = [memory.sge(..).unwrap()];
    let receives = [RecvRequest { wr_id: 1, sges: &sges }; BURST];
    let sends = [request(2, Operation::Send, Payload::Sges(&sges)); BURST];
    let begin = Instant::now();

    let mut arrived = 0;
    let counted = allocations(|| {
        for burst in 0..10_000 / BURST {
            b.recv(&receives).unwrap();
            if burst % 2 == 0 {
                a.send(&sends).unwrap();
            } else {
                let mut batch = a.qp.start_send();
                for _ in 0..BURST {
                    batch.send_inline(2, b"inline", SendFlags::SIGNALED).unwrap();
                }
                batch.ring().unwrap();
            }
            for side in [&mut a, &mut b] {
                let mut left = BURST;
                while left > 0 {
                    assert!(begin.elapsed() < 4 * TIMEOUT, "{left} of burst {burst} are missing");
                    let mut completions = side.cq.poll();
                    while let Some(completion) = completions.next() {
                        assert_eq!(completion.status(), WcStatus::SUCCESS);
                        left -= 1;
                    }
                }
            }
            arrived += BURST;
        }
    });
    assert_eq!((arrived, counted), (10_000, 0));
    // The counter does detect an allocation.
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1_u64)))), 1);
}

#[kernel_test(device::off_caller_thread)]
fn endpoint_messages_allocate_nothing() {
    let pd = domain();
    let mut ends: [Endpoint<PoolBuffer>; 2] = [(); 2].map(|()| Endpoint::new(&pd, 1, 16).unwrap());
    let [alice, bob] = ends.each_mut();
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    let pool = Pool::new(&pd, 32, 64).unwrap();
    let counted = allocations(|| {
        for round in 0..200 {
            for _ in 0..10 {
                bob.post(Op::recv(pool.take().unwrap())).unwrap();
            }
            let mut batch = alice.batch();
            for tag in 0..10 {
                let op = Op::send(pool.take().unwrap(), ..8).tag(tag);
                batch.post(if round % 2 == 0 { op } else { op.unsignaled() }).unwrap();
            }
            batch.ring().unwrap();
            bob.post(Op::recv(pool.take().unwrap())).unwrap();
            alice.post(Op::send(pool.take().unwrap(), ..8).tag(10)).unwrap();
            for tag in 0..11 {
                assert_eq!(alice.next().wait_timeout(TIMEOUT).unwrap().unwrap().tag, tag);
            }
            for _ in 0..11 {
                assert_eq!(bob.next().wait_timeout(TIMEOUT).unwrap().unwrap().len, 8);
            }
        }
    });
    assert_eq!(counted, 0);
}

fn connected(pd: &Pd) -> [Endpoint<PoolBuffer>; 2] {
    let mut ends: [Endpoint<PoolBuffer>; 2] = [(); 2].map(|()| Endpoint::new(pd, 1, 16).unwrap());
    let [alice, bob] = ends.each_mut();
    let [to_alice, to_bob] = cm::introduce(alice.address(), bob.address());
    alice.connect(&to_bob).unwrap();
    bob.connect(&to_alice).unwrap();
    ends
}

/// Rounds before the count: threads and runtimes allocate when they wait the first time.
const WARM_UP: u32 = 20;

macro_rules! exchange {
    ($runtime:expr, $pd:expr) => {
        async {
            let pool = Pool::new($pd, 4, 64).unwrap();
            let [mut alice, mut bob] = connected($pd);
            alice.attach($runtime).unwrap();
            bob.attach($runtime).unwrap();
            let mut before = None;
            for round in 0..200 {
                if round == WARM_UP {
                    before = Some(total());
                }
                bob.post(Op::recv(pool.take().unwrap())).unwrap();
                alice.post(Op::send(pool.take().unwrap(), ..8)).unwrap();
                assert_eq!(bob.next().await.unwrap().len, 8);
                drop(alice.next().await.unwrap());
            }
            total() - before.unwrap()
        }
    };
}

#[kernel_test(device::off_caller_thread)]
fn endpoints_of_tasks_allocate_nothing() {
    let pd = domain();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    // The first await of an endpoint that sleeps creates the timer of its keepalive.
    let allocations = runtime.block_on(exchange!(bareverbs::runtime::Tokio, &pd));
    assert!(allocations < 20, "{allocations} in 180 rounds of two awaits");
    // async-io's reactor collects the wakers of an event in a new list.
    let allocations = async_io::block_on(exchange!(bareverbs::runtime::AsyncIo, &pd));
    assert!(allocations <= 2 * 180, "{allocations} in 180 rounds of two awaits");
}

#[kernel_test(device::off_caller_thread)]
fn server_that_echoes_allocates_nothing() {
    let pd = domain();
    let mut server = Server::options().peers(1).message_size(64).build(&pd).unwrap();
    let mut client = Client::options().message_size(64).build(&pd).unwrap();
    cm::admit(server.handle(), &client);
    // A thread that waits the first time has a descriptor made. The messages of the warm-up may all arrive
    // before they are waited for.
    let nothing = Duration::from_millis(1);
    assert!(server.next().wait_timeout(nothing).is_none() && client.next().wait_timeout(nothing).is_none());
    let mut exchange = |rounds| {
        for _ in 0..rounds {
            client.send(client.take().unwrap(), ..8).detach();
            let Some(Event::Message(message)) = server.next().wait_timeout(TIMEOUT).transpose().unwrap()
            else {
                panic!("a message")
            };
            message.reply_in_place(..8).detach();
            let Some(Event::Message(answer)) = client.next().wait_timeout(TIMEOUT).transpose().unwrap()
            else {
                panic!("an answer")
            };
            assert_eq!(answer.bytes().len(), 8);
            server.handle().probe();
        }
    };
    exchange(WARM_UP);
    assert_eq!(allocations(|| exchange(200)), 0);
}
