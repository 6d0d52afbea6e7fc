//! Neighbours that answer while the kernel does not look, late, or not at all.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::runtime::{AsyncIo, Tokio};
use bareverbs_kernel_tests::wire::{End, Wire, wire};
use bareverbs_kernel_tests::{device, kernel_test, neighbour};
use bareverbs_rdmacm::connection::Route;
use bareverbs_rdmacm::stream::{RdmaListener, StreamError, StreamOptions};
use bareverbs_rdmacm::{Connector, Error, IdOptions, PortSpace};

use crate::host::*;

/// What a resolution may take beyond its promised time.
const MARGIN: Duration = Duration::from_secs(1);

fn run_tokio<T>(work: impl Future<Output = T>) -> T {
    ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Resolves in a task of tokio.
fn by_tokio(addr: SocketAddr) -> Result<Route, Error> {
    run_tokio(async {
        let connector = Connector::new();
        connector.attach(Tokio).unwrap();
        connector.resolve(addr).await
    })
}

/// Resolves in a task of async-io.
fn by_async_io(addr: SocketAddr) -> Result<Route, Error> {
    let connector = Connector::new();
    connector.attach(AsyncIo).unwrap();
    ::async_io::block_on(connector.resolve(addr))
}

/// An address in the subnet of the device that no host has.
fn silent(host: u8) -> Ipv4Addr {
    let IpAddr::V4(own) = ip() else { panic!("{}", ip()) };
    let [a, b, c, _] = own.octets();
    Ipv4Addr::new(a, b, c, host)
}

/// On the wire, the far end answers while `RESOLVE_ADDR` sends the solicitation. The request is not in
/// the kernel's list yet, and is not looked at again before its time limit.
#[kernel_test(wire)]
fn answer_of_a_neighbour_is_not_missed() {
    const ROUNDS: usize = 6;
    let wire = Wire::new();
    {
        let listener = RdmaListener::bind((End::Far.ip(), 0)).unwrap();
        let addr = listener.local_addr();
        let resolve = |form: usize| match form {
            0 => drop(Connector::new().resolve(addr).in_time().unwrap()),
            1 => drop(by_tokio(addr).unwrap()),
            2 => drop(by_async_io(addr).unwrap()),
            3 => drop(StreamOptions::default().connect(addr).in_time().unwrap()),
            _ => drop(
                run_tokio(async { StreamOptions::default().runtime(Tokio).connect(addr).await }).unwrap(),
            ),
        };
        let took = Mutex::new(Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| (0..2 * ROUNDS + 2).for_each(|_| drop(listener.accept().wait().unwrap())));
            let timed = |form| {
                let begin = Instant::now();
                resolve(form);
                took.lock().unwrap().push((begin.elapsed(), form));
            };
            // One alone sends the solicitation itself.
            for form in 0..5 {
                neighbour::forget(End::Near.netdev(), End::Far.ip());
                timed(form);
            }
            for _ in 0..ROUNDS {
                neighbour::forget(End::Near.netdev(), End::Far.ip());
                let start = &Barrier::new(5);
                thread::scope(|scope| {
                    for form in 0..5 {
                        scope.spawn(move || {
                            start.wait();
                            timed(form);
                        });
                    }
                });
            }
        });
        let (slowest, form) = took.into_inner().unwrap().into_iter().max().unwrap();
        assert!(slowest < 2 * MARGIN, "form {form} took {slowest:?}");
    }
    wire.settle();
}

/// The answer comes after several tries of the kernel.
#[kernel_test(device::has_netdev, device::path_records)]
fn late_neighbour_is_resolved() {
    const DELAY: Duration = Duration::from_millis(1300);
    let netdev = device::netdev();
    let peer = silent(79);
    let addr = SocketAddr::new(peer.into(), 1);
    let options = IdOptions { source: Some((ip(), 0).into()), tos: Some(0x20), ..IdOptions::default() };
    neighbour::forget(&netdev, peer);
    let begin = Instant::now();
    let resolved = |form: &str, tos: Option<u8>| {
        let took = begin.elapsed();
        assert!((DELAY..DELAY + MARGIN).contains(&took), "{form} took {took:?}");
        if let Some(tos) = tos {
            assert_eq!(tos, 0x20, "{form} keeps its options");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(DELAY);
            neighbour::add(&netdev, peer);
        });
        scope.spawn(|| {
            let route = Connector::new().id_options(options).resolve(addr).in_time().unwrap();
            resolved("Route", Some(route.id().paths().unwrap()[0].traffic_class));
        });
        scope.spawn(|| {
            let id = new_id(PortSpace::Tcp);
            options.apply(&id).unwrap();
            id.resolve(None, addr).in_time().unwrap();
            resolved("CmId", Some(id.paths().unwrap()[0].traffic_class));
            id.resolve(None, addr).in_time().expect_err("it resolves once");
        });
        scope.spawn(|| {
            let id = new_id(PortSpace::Udp);
            id.bind_addr((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            let port = id.addresses().unwrap().local.unwrap().port();
            id.resolve(None, addr).in_time().unwrap();
            resolved("bound id", None);
            assert_eq!(id.addresses().unwrap().local.unwrap().port(), port);
        });
        scope.spawn(|| {
            let route = run_tokio(async {
                let connector = Connector::new().id_options(options);
                connector.attach(Tokio).unwrap();
                connector.resolve(addr).await.unwrap()
            });
            resolved("tokio", Some(route.id().paths().unwrap()[0].traffic_class));
        });
        scope.spawn(|| {
            drop(by_async_io(addr).unwrap());
            resolved("async-io", None);
        });
    });
    neighbour::forget(&netdev, peer);
}

#[kernel_test(crate::host::has_ip, device::has_netdev)]
fn resolution_without_an_answer_ends_at_its_time_limit() {
    /// The longest time that a resolution takes.
    const WHOLE: Duration = Duration::from_secs(10);
    let addr = SocketAddr::new(silent(80).into(), 1);
    let in_time = |form: &str, limit: Duration, begin: Instant| {
        let took = begin.elapsed();
        assert!((limit..limit + MARGIN).contains(&took), "{form} took {took:?} of {limit:?}");
    };
    let ended = |form: &str, begin: Instant, refused: &Error| {
        in_time(form, WHOLE, begin);
        let is_whole = matches!(refused, Error::TimedOut { verb: "resolve_addr", limit: WHOLE });
        assert!(is_whole, "{form}: {refused:?}");
    };
    thread::scope(|scope| {
        for limit in [0, 50, 700, 1800].map(Duration::from_millis) {
            scope.spawn(move || {
                let begin = Instant::now();
                assert!(Connector::new().resolve(addr).wait_timeout(limit).is_none());
                in_time("Connector", limit, begin);
            });
            scope.spawn(move || {
                let begin = Instant::now();
                let id = new_id(PortSpace::Tcp);
                assert!(id.resolve(None, addr).wait_timeout(limit).is_none());
                in_time("CmId", limit, begin);
            });
            scope.spawn(move || {
                let begin = Instant::now();
                assert!(StreamOptions::default().connect(addr).wait_timeout(limit).is_none());
                in_time("stream", limit, begin);
            });
        }
        scope.spawn(move || {
            let begin = Instant::now();
            ended("thread", begin, &Connector::new().resolve(addr).wait().unwrap_err());
        });
        scope.spawn(move || {
            let begin = Instant::now();
            // A wait whose time limit has passed goes on.
            let connector = Connector::new();
            let mut resolving = connector.resolve(addr);
            assert!(resolving.wait_timeout(MARGIN).is_none());
            ended("second wait", begin, &resolving.wait().unwrap_err());
        });
        scope.spawn(move || {
            let begin = Instant::now();
            ended("tokio", begin, &by_tokio(addr).unwrap_err());
        });
        scope.spawn(move || {
            let begin = Instant::now();
            ended("async-io", begin, &by_async_io(addr).unwrap_err());
        });
        scope.spawn(move || {
            let begin = Instant::now();
            let refused = run_tokio(async { StreamOptions::default().runtime(Tokio).connect(addr).await });
            let StreamError::Cm(refused) = refused.unwrap_err() else { panic!("another error") };
            ended("tokio stream", begin, &refused);
        });
    });
}
