//! Streams over the connection manager, within this host.

mod bytes;
mod ends;
mod hostile;
#[path = "../../../../rdmacm/examples/http2.rs"]
#[expect(dead_code, reason = "its `main`")]
mod http2;
mod impaired;
mod iwarp;
mod tasks;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::device::{self, Requirement};
use bareverbs_rdmacm::stream::{RdmaListener, RdmaStream, StreamOptions};

/// For tests with an IP address of the device.
///
/// # Errors
/// If the port is InfiniBand and the kernel has no IPoIB.
fn has_ip() -> Requirement {
    let there = !device::is_infiniband() || std::path::Path::new("/sys/class/net/ib0").exists();
    if there { Ok(()) } else { Err("this kernel has no IPoIB, so the device has no IP address".into()) }
}

/// The IP address of the device, with any port.
fn any_port() -> SocketAddr {
    (device::ip(), 0).into()
}

/// Both ends of a stream.
fn pair_with(options: &StreamOptions) -> (RdmaStream, RdmaStream) {
    pair_of(options, options)
}

/// Both ends of a stream whose listener has other options than the connecting side.
fn pair_of(passive: &StreamOptions, active: &StreamOptions) -> (RdmaStream, RdmaStream) {
    let listener = passive.listen(any_port()).unwrap();
    let addr = listener.local_addr();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| listener.accept().wait().unwrap());
        let connected = active.connect(addr).wait().unwrap();
        let accepted = accepted.join().unwrap();
        // The accepting side grants all of its receive buffer when it is used first after the peer's
        // confirmation.
        let start = Instant::now();
        while !accepted.is_writable().unwrap() {
            assert!(start.elapsed() < TIMEOUT, "the peer does not confirm");
            // On iWARP, the connecting side repeats its first message while it waits for the peer.
            assert!(!connected.is_readable().unwrap());
            thread::sleep(Duration::from_millis(1));
        }
        (connected, accepted)
    })
}

fn pair() -> (RdmaStream, RdmaStream) {
    pair_with(&StreamOptions::default())
}

/// `len` bytes that differ by position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn listener() -> (RdmaListener, SocketAddr) {
    let listener = RdmaListener::bind(any_port()).unwrap();
    let addr = listener.local_addr();
    (listener, addr)
}

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
