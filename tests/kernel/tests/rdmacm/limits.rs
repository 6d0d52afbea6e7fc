//! Processes without free descriptors, and in a network namespace without the device.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use bareverbs::{Endpoint, EndpointOptions, Errno, PoolBuffer};
use bareverbs_kernel_tests::{child, device, kernel_test};
use bareverbs_rdmacm::stream::{RdmaListener, RdmaStream, StreamError};
use bareverbs_rdmacm::{CmId, Connector, Error, EventChannel, Listener, PortSpace};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, setrlimit};

use crate::host::*;

fn small() -> EndpointOptions {
    Endpoint::options().sends(1).recvs(1)
}

/// Opens all free descriptors of the process. Lower ones are unchanged.
fn take_all_descriptors() -> Vec<File> {
    setrlimit(Resource::RLIMIT_NOFILE, 64, 64).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Asserts that a call failed because the process has too many descriptors, with the remedy.
#[track_caller]
fn assert_full<T>(result: Result<T, Error>) {
    let refused = result.err().expect("there is no descriptor left");
    assert_eq!(refused.errno(), Some(Errno::MFILE), "{refused:?}");
    assert!(refused.to_string().contains("ulimit -n"), "{refused}");
}

/// The same for a stream.
#[track_caller]
fn assert_stream_full(result: Result<RdmaStream, StreamError>) {
    let refused = result.expect_err("there is no descriptor left");
    assert_eq!(refused.errno(), Some(Errno::MFILE), "{refused:?}");
    assert!(refused.to_string().contains("ulimit -n"), "{refused}");
}

#[kernel_test(crate::host::has_ip, device::connects_any_qp_number)]
fn exhausted_descriptors_are_errors_with_the_remedy() {
    nothing_leaks(|| {
        child::run(|| {
            // Looks the device up.
            let own = ip();
            let (listener, streams) =
                (Listener::bind((own, 0)).unwrap(), RdmaListener::bind((own, 0)).unwrap());
            let addr = listener.local_addr().unwrap();
            let connector = Connector::new();
            // The channel is opened on first use.
            let (asking, opening) =
                (connector.resolve(addr).in_time().unwrap(), resolved(streams.local_addr(), PortSpace::Tcp));
            let offer = offer();
            let [to_asking, to_opening] = [(); 2].map(|()| param());
            let mut taken = take_all_descriptors();
            assert_full(EventChannel::new());
            assert_full(Listener::bind((own, 0)));
            assert_full(Connector::new().resolve(addr).in_time());
            assert_full(connector.connect::<PoolBuffer>(addr, &small()).in_time());
            assert_full(Connector::new().connect::<PoolBuffer>(addr, &small()).in_time());
            assert_stream_full(RdmaStream::connect(streams.local_addr()).wait());

            // A request whose connection can't be created is rejected, and the listener goes on.
            asking.id().connect(&to_asking).unwrap();
            assert_full(listener.accept::<PoolBuffer>(&small()).in_time());
            opening.connect(&bareverbs_rdmacm::ConnParam { private_data: &offer, ..to_opening }).unwrap();
            assert_stream_full(streams.accept().wait());

            taken.clear();
            drop((asking, opening));
            thread::scope(|scope| {
                scope.spawn(|| drop(listener.accept::<PoolBuffer>(&small()).in_time().unwrap()));
                connector.connect::<PoolBuffer>(addr, &small()).in_time().unwrap();
            });
            thread::scope(|scope| {
                scope.spawn(|| drop(streams.accept().wait().unwrap()));
                RdmaStream::connect(streams.local_addr()).wait().unwrap();
            });
        });
    });
}

#[kernel_test(crate::host::has_ip, device::root)]
fn network_namespace_without_the_device_has_no_addresses() {
    let (listener, addr) = listener(PortSpace::Tcp, 8);
    child::run(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let id = CmId::new(&EventChannel::new().unwrap(), PortSpace::Tcp).unwrap();
        assert_eq!(errno(id.bind_addr(addr)), Errno::ADDRNOTAVAIL);
        let refused = errno(id.resolve_addr(None, addr, RESOLVE));
        assert!([Errno::NETUNREACH, Errno::NODEV].contains(&refused), "{refused}");
        let refused = Connector::new().connect::<PoolBuffer>(addr, &small()).in_time().unwrap_err();
        assert!(
            refused.errno().is_some_and(|errno| [Errno::NETUNREACH, Errno::NODEV].contains(&errno)),
            "{refused}"
        );
        let refused = RdmaStream::connect(addr).wait().unwrap_err();
        assert!(!matches!(refused, StreamError::TimedOut { .. }), "{refused}");
        // A listener of all addresses gets no requests from other namespaces, also on the same port.
        let own = Listener::bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), addr.port())).unwrap();
        assert!(own.request().wait_timeout(QUIET).is_none());
    });
    // The connection manager of this namespace is unchanged.
    let (active, passive) = connected(&listener, addr);
    disconnect(&active, &passive);
}
