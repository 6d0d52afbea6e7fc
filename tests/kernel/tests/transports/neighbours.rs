//! Neighbours that answer late, or not at all.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::datagram::{DatagramAddress, DatagramOptions};
use bareverbs::qp::{GRH_BYTES, QpState};
use bareverbs::runtime::{AsyncIo, Tokio};
use bareverbs::{
    Buffer, Context, Datagrams, Endpoint, EndpointOptions, Errno, Error, Gid, Hub, Mr, Op, Pool, PoolBuffer,
};
use bareverbs_kernel_tests::wire::{End, Wire, lossy_wire};
use bareverbs_kernel_tests::{device, kernel_test, neighbour};

use crate::host::{QKEY, TIMEOUT, on_device};

/// No host has this address.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 79);

/// How long the peer is silent: longer than the kernel waits.
const SILENCE: Duration = Duration::from_millis(1500);

/// How long the kernel waits for a neighbour, and what it may take longer in a slow guest.
const KERNEL: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(900);

fn peer() -> DatagramAddress {
    DatagramAddress::new(Gid::from(PEER), 17, QKEY)
}

fn options() -> DatagramOptions {
    Datagrams::options().qkey(QKEY).inline(64)
}

fn endpoints() -> EndpointOptions {
    Endpoint::options().sends(1).recvs(1)
}

/// Asserts that `resolve` takes a time in the range.
#[track_caller]
fn taking<T>(expected: Range<Duration>, resolve: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let resolved = resolve();
    let took = begin.elapsed();
    assert!(expected.contains(&took), "{took:?}, not {expected:?}");
    resolved
}

/// Calls `resolve` while the peer is silent.
#[track_caller]
fn silent<T>(tries: u32, resolve: impl FnOnce() -> T) -> T {
    neighbour::forget(&device::netdev(), PEER);
    // Timers of the kernel end within a tick.
    let least = tries * KERNEL - Duration::from_millis(20);
    taking(least..tries * KERNEL + MARGIN, resolve)
}

/// Calls `resolve`, which succeeds when the peer answers.
#[track_caller]
fn late<T>(resolve: impl FnOnce() -> bareverbs::Result<T>) -> T {
    let netdev = device::netdev();
    neighbour::forget(&netdev, PEER);
    let resolved = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(SILENCE);
            neighbour::add(&netdev, PEER);
        });
        taking(SILENCE..SILENCE + MARGIN, resolve)
    });
    // Other tests expect that no neighbour answers.
    neighbour::forget(&netdev, PEER);
    resolved.unwrap()
}

#[kernel_test(device::has_netdev, device::ib_transports)]
fn destination_waits_for_a_late_neighbour() {
    on_device(|host| {
        let datagrams: Datagrams = options().build(&host.pd).unwrap();
        let to = late(|| datagrams.destination(&peer()).wait());
        assert_eq!((to.qp_num(), to.ah().attr().grh.unwrap().dgid), (17, Gid::from(PEER)));
    });
}

#[kernel_test(device::has_netdev, device::ib_transports)]
fn destination_of_a_silent_neighbour_has_a_time_limit() {
    on_device(|host| {
        for (limit, tries) in [(Duration::ZERO, 1), (SILENCE, 2)] {
            let datagrams: Datagrams = options().resolve_timeout(limit).build(&host.pd).unwrap();
            let refused = silent(tries, || datagrams.destination(&peer()).wait()).unwrap_err();
            assert_eq!(refused.errno(), Some(Errno::TIMEDOUT), "{refused}");
            assert!(
                refused.to_string().contains("::ffff:10.1.0.79 did not answer the address resolution"),
                "{refused}"
            );
        }
    });
}

/// Waits for the destination, and returns when another future of the same task was done.
async fn beside<T>(
    destination: impl Future<Output = T> + Send,
    pause: impl Future<Output = ()>,
) -> (T, Duration) {
    let begin = Instant::now();
    let (mut destination, mut pause) = (std::pin::pin!(destination), std::pin::pin!(pause));
    let mut paused = None;
    std::future::poll_fn(|cx| {
        if paused.is_none() && pause.as_mut().poll(cx).is_ready() {
            paused = Some(begin.elapsed());
        }
        destination.as_mut().poll(cx).map(|created| (created, paused.expect("the task runs meanwhile")))
    })
    .await
}

#[kernel_test(device::has_netdev, device::ib_transports)]
fn tasks_run_while_a_destination_is_resolved() {
    const PAUSE: Duration = Duration::from_millis(50);
    on_device(|host| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (to, paused) = late(|| {
            runtime.block_on(async {
                let mut datagrams: Datagrams = options().build(&host.pd)?;
                datagrams.attach(Tokio)?;
                let (to, paused) = beside(datagrams.destination(&peer()), tokio::time::sleep(PAUSE)).await;
                Ok((to?, paused))
            })
        });
        assert!(paused < SILENCE, "{paused:?}");
        assert_eq!(to.ah().attr().grh.unwrap().dgid, Gid::from(PEER));
        drop(to);

        let (to, paused) = late(|| {
            async_io::block_on(async {
                let mut datagrams: Datagrams = options().build(&host.pd)?;
                datagrams.attach(AsyncIo)?;
                let pause = async {
                    async_io::Timer::after(PAUSE).await;
                };
                let (to, paused) = beside(datagrams.destination(&peer()), pause).await;
                Ok((to?, paused))
            })
        });
        assert!(paused < SILENCE, "{paused:?}");
        assert_eq!(to.qp_num(), 17);

        // A dropped future leaves nothing behind after its time limit.
        let mut datagrams: Datagrams = options().resolve_timeout(Duration::ZERO).build(&host.pd).unwrap();
        runtime.block_on(async {
            datagrams.attach(Tokio).unwrap();
            let cancelled = tokio::time::timeout(PAUSE, datagrams.destination(&peer())).await;
            assert!(cancelled.is_err());
        });
        drop(runtime);
    });
}

#[kernel_test(device::has_netdev, device::ib_transports)]
fn connect_waits_for_a_late_neighbour() {
    on_device(|host| {
        let mut endpoint: Endpoint<Mr<Buffer>> = endpoints().build(&host.pd).unwrap();
        let mut peer = endpoint.address();
        (peer.gid, peer.qp_num) = (Gid::from(PEER), 17);
        late(|| endpoint.connect(&peer));
        assert_eq!(endpoint.qp().state(), QpState::RTS);

        let hub: Hub<PoolBuffer> = Hub::new(&host.pd, 16).unwrap();
        let connection = hub.connection_with(&endpoints()).unwrap();
        late(|| connection.connect(&peer));

        // A failed attempt leaves the QP in INIT, so that another one may follow.
        let mut endpoint: Endpoint<Mr<Buffer>> =
            endpoints().resolve_timeout(Duration::ZERO).build(&host.pd).unwrap();
        let refused = silent(1, || endpoint.connect(&peer)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::TIMEDOUT), "{refused}");
        assert_eq!(endpoint.qp().state(), QpState::INIT);
        let connection = hub.connection_with(&endpoints().resolve_timeout(SILENCE)).unwrap();
        let refused = silent(2, || connection.connect(&peer)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::TIMEDOUT), "{refused}");
        neighbour::add(&device::netdev(), PEER);
        endpoint.connect(&peer).unwrap();
        connection.connect(&peer).unwrap();
        neighbour::forget(&device::netdev(), PEER);
        assert!(matches!(endpoint.connect(&peer), Err(Error::Invalid { .. })));
    });
}

fn open(end: End) -> Context {
    let devices = bareverbs::devices().unwrap();
    devices.iter().find(|device| device.name() == end.device()).expect("the device").open().unwrap()
}

/// The solicitations of the first 1.5 seconds are lost, and the next one is answered.
#[kernel_test(device::has_netdev, lossy_wire)]
fn reply_waits_for_a_neighbour_whose_answer_is_lost() {
    let wire = Wire::new();
    {
        let [near, far] = [End::Near, End::Far].map(|end| open(end).alloc_pd().unwrap());
        let mut client: Datagrams = options().build(&near).unwrap();
        let mut server: Datagrams = options().build(&far).unwrap();
        let pools = [&near, &far].map(|pd| Pool::new(pd, 4, GRH_BYTES + 64).unwrap());
        client.post(Op::recv(pools[0].take().unwrap())).unwrap();
        server.post(Op::recv(pools[1].take().unwrap())).unwrap();
        let to = client.destination(&server.address()).wait().unwrap();
        client.post(Op::send_to_inline(&to, b"question")).unwrap();
        let question = server.next_recv().wait_timeout(TIMEOUT).transpose().unwrap().expect("the question");

        neighbour::forget(End::Far.netdev(), End::Near.ip());
        wire.cut(End::Far);
        let back = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(SILENCE);
                wire.heal();
            });
            // Solicitations are repeated every second.
            taking(SILENCE..SILENCE + 2 * KERNEL, || question.reply_to(&server).wait()).unwrap()
        });
        server.post(Op::send_to_inline(&back, b"answer")).unwrap();
        let answer = client.next_recv().wait_timeout(TIMEOUT).transpose().unwrap().expect("the answer");
        assert_eq!(answer.message(), b"answer");
    }
    wire.settle();
}
