//! Virtual time and injected faults of soft devices.
#![cfg(feature = "soft")]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bareverbs::datagram::DatagramDone;
use bareverbs::soft::{AddressError, Fabric, Fault, Opcode, SoftDevice};
use bareverbs::{Access, Buffer, Connection, Datagrams, Device, Endpoint, Hub, Mr, Op, Pd};

use rustix::io::Errno;

/// Two devices of a fabric.
fn devices(fabric: &Fabric) -> [SoftDevice; 2] {
    [(); 2].map(|()| SoftDevice::new(fabric))
}

fn open(device: &SoftDevice) -> Pd {
    Device::from(device.clone()).open().unwrap().alloc_pd().unwrap()
}

/// Two connected endpoints on different devices.
fn pair(fabric: &Fabric) -> [(Pd, Endpoint<Mr<Buffer>>); 2] {
    let [alice, bob] = devices(fabric).map(|device| open(&device));
    let [mut a, mut b] = [&alice, &bob].map(|pd| Endpoint::new(pd, 1, 4).unwrap());
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    [(alice, a), (bob, b)]
}

fn receive(pd: &Pd, endpoint: &mut Endpoint<Mr<Buffer>>) {
    let buffer = pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    endpoint.post(Op::recv(buffer)).unwrap();
}

#[test]
fn posts_of_a_seeded_fabric_deliver_nothing_until_it_is_run() {
    let fabric = Fabric::seeded(1);
    let [(_, mut a), (bob, mut b)] = pair(&fabric);
    receive(&bob, &mut b);
    a.post(Op::send_inline(b"hello")).unwrap();
    assert!(a.poll().is_none() && b.poll().is_none());
    fabric.run_until_idle();
    assert_eq!(b.poll().unwrap().unwrap().message(), Some(&b"hello"[..]));
    assert!(a.poll().unwrap().is_ok());
    assert!(!fabric.step());
    assert_eq!(fabric.now(), Duration::ZERO);
}

#[test]
fn wait_runs_a_seeded_fabric_through_its_timers() {
    let fabric = Fabric::seeded(2);
    let [(_, mut a), (bob, mut b)] = pair(&fabric);
    let lost = fabric.inject(Fault::drop().opcode(Opcode::SendOnly).nth(1));
    receive(&bob, &mut b);
    a.post(Op::send_inline(b"again")).unwrap();
    assert_eq!(b.next().wait().unwrap().message(), Some(&b"again"[..]));
    assert!(a.next().wait().is_ok());
    assert_eq!(lost.count(), 1);
    // The ACK timer of the requester has expired.
    assert!(fabric.now() > Duration::from_millis(1), "{:?}", fabric.now());
}

/// An await does not run the fabric: a task beside it does, while the other tasks have nothing to do.
#[cfg(feature = "tokio")]
#[test]
fn task_runs_a_seeded_fabric_beside_awaits() {
    use bareverbs::runtime::Tokio;

    async fn run(fabric: &Fabric) -> ! {
        loop {
            // The runtime looks at the descriptors in between.
            fabric.run_until_idle();
            tokio::task::yield_now().await;
            fabric.advance(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
    }

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let fabric = Fabric::seeded(12);
        let [(_, mut a), (bob, mut b)] = pair(&fabric);
        a.attach(Tokio).unwrap();
        b.attach(Tokio).unwrap();
        let lost = fabric.inject(Fault::drop().opcode(Opcode::SendOnly).nth(1));
        receive(&bob, &mut b);
        a.post(Op::send_inline(b"again")).unwrap();
        let both = async { (b.next().await.unwrap(), a.next().await.unwrap()) };
        let (received, _) = tokio::select! {
            done = both => done,
            _ = run(&fabric) => unreachable!("it has no end"),
        };
        assert_eq!((received.message(), lost.count()), (Some(&b"again"[..]), 1));
        // The ACK timer of the requester has expired.
        assert!(fabric.now() > Duration::from_millis(1), "{:?}", fabric.now());
    });
}

#[test]
fn dead_peer_ends_a_wait_in_virtual_time() {
    let fabric = Fabric::seeded(3);
    let [(_, mut a), (_, b)] = pair(&fabric);
    fabric.inject(Fault::drop());
    a.post(Op::send_inline(b"lost")).unwrap();
    let start = Instant::now();
    let error = a.next().wait().unwrap_err();
    assert!(error.to_string().contains("RETRY_EXC"), "{error}");
    assert!(fabric.now() > Duration::from_millis(100), "{:?}", fabric.now());
    assert!(start.elapsed() < Duration::from_secs(10));
    drop(b);
}

#[test]
fn limit_of_a_wait_is_one_of_virtual_time() {
    let fabric = Fabric::seeded(4);
    let [_peer, (bob, mut b)] = pair(&fabric);
    receive(&bob, &mut b);
    let start = Instant::now();
    assert!(b.next().wait_timeout(Duration::from_secs(3600)).is_none());
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(fabric.now(), Duration::from_secs(3600));
}

/// Its end in real time has passed when the wait begins.
#[test]
fn limit_of_a_nanosecond_is_one_of_virtual_time() {
    const LIMIT: Duration = Duration::from_nanos(1);
    let fabric = Fabric::seeded(8);
    let [(_alice, _one, _a), (bob, _other, b)] = connections(&fabric);
    let buffer = bob.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    let mut received = b.post(Op::recv(buffer));
    let channel = bob.context().create_comp_channel().unwrap();
    let events = bob.context().async_events();
    for round in 0..3 {
        assert_eq!(fabric.now(), 3 * round * LIMIT);
        assert!(received.wait_timeout(LIMIT).is_none());
        assert!(channel.next().wait_timeout(LIMIT).is_none());
        assert!(events.next().wait_timeout(LIMIT).is_none());
    }
}

#[test]
fn wait_that_nothing_can_end_is_an_error() {
    let fabric = Fabric::seeded(5);
    let [_peer, (bob, mut b)] = pair(&fabric);
    receive(&bob, &mut b);
    let error = b.next().wait().unwrap_err();
    assert!(error.to_string().contains("seeded fabric"), "{error}");
    let channel = bob.context().create_comp_channel().unwrap();
    assert_eq!(channel.next().wait().unwrap_err().errno(), Some(Errno::DEADLK));
}

const KEEPALIVE: Duration = Duration::from_secs(3600);

#[test]
fn keepalives_of_endpoints_count_virtual_time() {
    let fabric = Fabric::seeded(13);
    let [alice, bob] = devices(&fabric).map(|device| open(&device));
    let options = Endpoint::options().sends(1).recvs(4).keepalive(KEEPALIVE);
    let [mut a, mut b] = [&alice, &bob].map(|pd| options.build(pd).unwrap());
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    receive(&bob, &mut b);
    // The peer answers: nothing but the limit ends the wait.
    let start = Instant::now();
    assert!(b.next().wait_timeout(3 * KEEPALIVE).is_none());
    assert_eq!(fabric.now(), 3 * KEEPALIVE);
    // Probes that succeed do not keep a wait without a limit.
    let error = b.next().wait().unwrap_err();
    assert!(error.to_string().contains("seeded fabric"), "{error}");
    let now = fabric.now();
    assert!(now < 1000 * KEEPALIVE, "{now:?}");
    fabric.inject(Fault::drop());
    let error = b.next().wait().unwrap_err();
    assert!(error.is_operation(), "{error}");
    assert!(fabric.now() > now && start.elapsed() < Duration::from_secs(30));
}

#[test]
fn keepalives_of_hubs_count_virtual_time() {
    let fabric = Fabric::seeded(14);
    let [alice, bob] = devices(&fabric).map(|device| {
        let pd = open(&device);
        let hub: Hub<Mr<Buffer>> = Hub::new(&pd, 16).unwrap();
        let options = Endpoint::options().sends(1).recvs(4).keepalive(KEEPALIVE);
        let connection = hub.connection_with(&options).unwrap();
        (pd, hub, connection)
    });
    alice.2.connect(&bob.2.address()).unwrap();
    bob.2.connect(&alice.2.address()).unwrap();
    let buffer = bob.0.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    let mut received = bob.2.post(Op::recv(buffer));
    assert!(received.wait_timeout(2 * KEEPALIVE).is_none());
    assert_eq!(fabric.now(), 2 * KEEPALIVE);
    fabric.inject(Fault::drop());
    let start = Instant::now();
    let error = received.wait().unwrap_err();
    assert!(error.is_operation(), "{error}");
    assert!(fabric.now() > 2 * KEEPALIVE && start.elapsed() < Duration::from_secs(30));
}

#[test]
fn rnr_retries_without_end_are_an_error_of_the_wait() {
    let fabric = Fabric::seeded(6);
    let [(_, mut a), _b] = pair(&fabric);
    // The peer has no receive, and RNR retries have no limit.
    a.post(Op::send_inline(b"not ready")).unwrap();
    let error = a.next().wait().unwrap_err();
    assert!(error.to_string().contains("seeded fabric"), "{error}");
}

type Connections = [(Pd, Hub<Mr<Buffer>>, Connection<Mr<Buffer>>); 2];

/// Two connections of hubs on different devices, with their protection domains.
fn connections(fabric: &Fabric) -> Connections {
    let [alice, bob] = devices(fabric).map(|device| {
        let pd = open(&device);
        let hub = Hub::new(&pd, 16).unwrap();
        let connection = hub.connection(1, 4).unwrap();
        (pd, hub, connection)
    });
    alice.2.connect(&bob.2.address()).unwrap();
    bob.2.connect(&alice.2.address()).unwrap();
    [alice, bob]
}

#[test]
fn hub_runs_a_seeded_fabric() {
    let fabric = Fabric::seeded(7);
    let [(_alice, _one, a), (bob, _other, b)] = connections(&fabric);
    fabric.inject(Fault::drop().nth(1));
    let buffer = bob.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
    let mut received = b.post(Op::recv(buffer));
    assert!(received.wait_timeout(Duration::from_millis(500)).is_none());
    assert_eq!(fabric.now(), Duration::from_millis(500));
    let sent = a.post(Op::send_inline(b"hub"));
    assert_eq!(received.wait().unwrap().message(), Some(&b"hub"[..]));
    sent.wait().unwrap();
}

#[test]
fn driver_thread_and_other_threads_share_a_seeded_fabric() {
    let fabric = Fabric::seeded(8);
    let [(_alice, _one, a), (bob, other, b)] = connections(&fabric);
    other.spawn_driver_thread().unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for _ in 0..20 {
                a.post(Op::send_inline(b"hub")).wait().unwrap();
            }
        });
        for _ in 0..20 {
            let buffer = bob.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap();
            assert_eq!(b.post(Op::recv(buffer)).wait().unwrap().message(), Some(&b"hub"[..]));
        }
        sender.join().unwrap();
    });
}

/// Sends messages of one byte by UD, and returns those that arrive.
fn datagrams(fabric: &Fabric, bytes: &[u8], run: impl FnOnce()) -> Vec<u8> {
    let [alice, bob] = devices(fabric).map(|device| open(&device));
    let [mut a, mut b]: [Datagrams<Mr<Buffer>>; 2] =
        [&alice, &bob].map(|pd| Datagrams::options().inline(64).sends(8).recvs(8).build(pd).unwrap());
    for _ in 0..8 {
        b.post(Op::recv(bob.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap())).unwrap();
    }
    let to = a.destination(&b.address()).wait().unwrap();
    for byte in bytes {
        a.post(Op::send_to_inline(&to, &[*byte])).unwrap();
    }
    run();
    let mut found = Vec::new();
    while let Some(done) = b.poll() {
        if let DatagramDone::Received(received) = done.unwrap() {
            found.extend_from_slice(received.message());
        }
    }
    found
}

#[test]
fn each_fault_affects_datagrams_as_described() {
    let arrived = |fault: Fault| {
        let fabric = Fabric::seeded(9);
        let fault = fabric.inject(fault);
        let found = datagrams(&fabric, &[1, 2, 3], || fabric.run_until_idle());
        (found, fault.count())
    };
    assert_eq!(arrived(Fault::drop().nth(2)), (vec![1, 3], 1));
    assert_eq!(arrived(Fault::duplicate().nth(2)), (vec![1, 2, 2, 3], 1));
    assert_eq!(arrived(Fault::reorder().nth(2)), (vec![1, 3, 2], 1));
    // Nothing follows the last one.
    assert_eq!(arrived(Fault::reorder().nth(3)), (vec![1, 2, 3], 1));
    assert_eq!(arrived(Fault::corrupt().every(2)), (vec![1, 3], 1));
    assert_eq!(arrived(Fault::rnr().nth(1)), (vec![2, 3], 1));
    assert_eq!(arrived(Fault::delay(Duration::from_secs(1)).nth(1)), (vec![2, 3], 1));
    assert_eq!(arrived(Fault::drop().qp(0xabcdef)), (vec![1, 2, 3], 0));
}

#[test]
fn delayed_packet_arrives_at_its_time_and_a_removed_fault_affects_no_more() {
    let fabric = Fabric::seeded(10);
    let fault = fabric.inject(Fault::delay(Duration::from_secs(1)).nth(1));
    let run = || {
        fabric.advance(Duration::from_millis(999));
        fabric.remove_fault(&fault);
        fabric.advance(Duration::from_millis(1));
    };
    assert_eq!(datagrams(&fabric, &[1, 2], run), [2, 1]);
}

#[test]
fn corrupt_packets_are_counted_by_their_receiver() {
    let fabric = Fabric::seeded(11);
    let [alice, bob] = devices(&fabric);
    let [a_pd, b_pd] = [&alice, &bob].map(open);
    let [mut a, mut b] = [&a_pd, &b_pd].map(|pd| Endpoint::<Mr<Buffer>>::new(pd, 1, 4).unwrap());
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    let fault = fabric.inject(Fault::corrupt().from(&alice).to(&bob).nth(1));
    fabric.inject(Fault::drop().from(&bob).to(&bob));
    receive(&b_pd, &mut b);
    a.post(Op::send_inline(b"damaged")).unwrap();
    assert_eq!(b.next().wait().unwrap().message(), Some(&b"damaged"[..]));
    assert_eq!((fault.count(), bob.dropped().corrupt, alice.dropped().corrupt), (1, 1, 0));
}

#[test]
fn faults_apply_in_real_time() {
    let fabric = Fabric::new();
    let [(_, mut a), (bob, mut b)] = pair(&fabric);
    let [lost, late, not_ready] =
        [Fault::drop().nth(1), Fault::delay(Duration::from_millis(5)).nth(2), Fault::rnr().nth(3)]
            .map(|fault| fabric.inject(fault.opcode(Opcode::SendOnly)));
    for text in [&b"one"[..], b"two", b"three"] {
        receive(&bob, &mut b);
        a.post(Op::send_inline(text)).unwrap();
        assert_eq!(b.next().wait().unwrap().message(), Some(text));
        assert!(a.next().wait().is_ok());
    }
    assert_eq!([lost, late, not_ready].map(|fault| fault.count()), [1, 1, 1]);
}

#[test]
fn faults_apply_to_packets_that_are_sent_and_received_by_udp() {
    let fabrics = [(); 2].map(|()| Fabric::new());
    let devices = [0, 1].map(|at: u8| {
        let mut addresses = (1..=254).map(|last| IpAddr::from([127, 81, at, last]));
        addresses.find_map(|address| SoftDevice::bind(&fabrics[usize::from(at)], address).ok())
    });
    let [Some(alice), Some(bob)] = devices else { panic!("no free address of 127.81.0.0/16") };
    let [a_pd, b_pd] = [&alice, &bob].map(open);
    let [mut a, mut b] = [&a_pd, &b_pd].map(|pd| Endpoint::<Mr<Buffer>>::new(pd, 1, 4).unwrap());
    a.connect(&b.address()).unwrap();
    b.connect(&a.address()).unwrap();
    let sent = fabrics[0].inject(Fault::corrupt().opcode(Opcode::SendOnly).nth(1));
    // The peer has dropped the corrupt packet.
    let received = fabrics[1].inject(Fault::drop().opcode(Opcode::SendOnly).nth(1));
    receive(&b_pd, &mut b);
    a.post(Op::send_inline(b"third time")).unwrap();
    assert_eq!(b.next().wait().unwrap().message(), Some(&b"third time"[..]));
    assert_eq!((sent.count(), received.count(), bob.dropped().corrupt), (1, 1, 1));
    let fabric = Fabric::seeded(0);
    let error = SoftDevice::bind(&fabric, IpAddr::from([127, 81, 3, 1])).unwrap_err();
    assert!(matches!(error, AddressError::VirtualTime { .. }), "{error}");
}
