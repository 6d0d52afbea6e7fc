use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, child};
use bareverbs_rdmacm::Error;
use bareverbs_rdmacm::event::RejectReason;
use bareverbs_rdmacm::stream::{RdmaStream, StreamError, StreamOptions};

use crate::{any_port, listener, pair, pattern};

pub(crate) fn shutdown_ends_one_direction() {
    nothing_leaks(|| {
        let (mut a, mut b) = pair();
        a.write_all(b"last").unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        assert_eq!(a.write(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        let mut read = Vec::new();
        b.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"last");
        // The other direction goes on.
        b.write_all(b"answer").unwrap();
        b.shutdown(Shutdown::Write).unwrap();
        let mut read = Vec::new();
        a.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"answer");
        a.close(TIMEOUT).unwrap();
        // Both have ended.
        assert_eq!(b.read(&mut [0; 1]).unwrap(), 0);
        b.write(b"x").unwrap_err();
    });
}

pub(crate) fn dropped_stream_delivers_its_bytes() {
    nothing_leaks(|| {
        let (mut a, mut b) = pair();
        let bytes = pattern(100 << 10);
        a.write_all(&bytes).unwrap();
        drop(a);
        let mut read = Vec::new();
        b.read_to_end(&mut read).unwrap();
        assert!(read == bytes, "{} bytes", read.len());
        let error = b.write_all(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
}

pub(crate) fn reads_and_writes_have_time_limits() {
    nothing_leaks(|| {
        let (mut a, _b) = pair();
        let limit = Duration::from_millis(200);
        a.set_read_timeout(Some(limit));
        a.set_write_timeout(Some(limit));
        let start = Instant::now();
        assert_eq!(a.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(start.elapsed() >= limit);
        let error = a.write_all(&pattern(1 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // A time limit does not end the stream.
        assert!(a.error().is_none());
        a.set_nonblocking(true);
        assert_eq!(a.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

pub(crate) fn connect_errors_name_their_cause() {
    nothing_leaks(|| {
        let free = listener().1;
        let refused = RdmaStream::connect(free).unwrap_err();
        let StreamError::Cm(error) = &refused else { panic!("{refused:?}") };
        let Error::Rejected(rejected) = &**error else { panic!("{refused:?}") };
        assert_eq!(rejected.reason, RejectReason::InvalidServiceId);
        let io = std::io::Error::from(refused);
        assert_eq!(io.kind(), ErrorKind::ConnectionRefused, "{io}");

        let unresolved = RdmaStream::connect("no.such.host.invalid:1").unwrap_err();
        assert!(matches!(unresolved, StreamError::Name(_)), "{unresolved:?}");

        let limit = Duration::from_millis(300);
        let start = Instant::now();
        // Nobody has the address.
        let mut absent = any_port();
        absent.set_ip(match absent.ip() {
            std::net::IpAddr::V4(ip) => std::net::Ipv4Addr::from(u32::from(ip) + 77).into(),
            ip => ip,
        });
        absent.set_port(1);
        StreamOptions::default().connect_timeout(absent, limit).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

pub(crate) fn invalid_options_are_rejected() {
    let options = StreamOptions::default;
    for (options, name) in [
        (options().send_buffer(100), "send_buffer"),
        (options().recv_buffer(3), "recv_buffer"),
        (options().recv_buffer(usize::MAX), "recv_buffer"),
        (options().sends(15), "sends"),
        (options().recvs(u16::MAX), "recvs"),
    ] {
        let error = options.listen(any_port()).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

pub(crate) fn stream_dropped_in_a_forked_child_writes_nothing() {
    nothing_leaks(|| {
        let (a, mut b) = pair();
        // The thread that accepted was joined, and the kernel may still list it.
        let start = Instant::now();
        while std::fs::read_dir("/proc/self/task").unwrap().count() > 1 {
            assert!(start.elapsed() < TIMEOUT);
            std::thread::yield_now();
        }
        let mut slot = Some(a);
        child::run(|| drop(slot.take()));
        let mut a = slot.take().unwrap();
        a.write_all(b"of the parent").unwrap();
        a.close(TIMEOUT).unwrap();
        let mut read = Vec::new();
        b.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"of the parent");
    });
}
