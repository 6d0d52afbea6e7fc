use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{InTime, child, device, kernel_test};
use bareverbs_rdmacm::Error;
use bareverbs_rdmacm::event::RejectReason;
use bareverbs_rdmacm::stream::{RdmaStream, StreamError, StreamOptions};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{any_port, listener, pair, pattern};

#[kernel_test(crate::has_ip)]
fn shutdown_ends_one_direction() {
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
        a.close().in_time().unwrap();
        // Both have ended.
        assert_eq!(b.read(&mut [0; 1]).unwrap(), 0);
        b.write(b"x").unwrap_err();
    });
}

/// Whatever has ended since, this side has ended its direction itself.
#[kernel_test(crate::has_ip)]
pub(crate) fn writes_after_an_own_shutdown_name_this_side() {
    #[track_caller]
    fn assert_own(stream: &RdmaStream) {
        let refused = stream.send(b"x").unwrap_err();
        assert!(matches!(refused, StreamError::Shutdown), "{refused:?}");
        assert_eq!(refused.to_string(), "this side has shut the stream down for writing");
    }

    nothing_leaks(|| {
        let (a, b) = pair();
        a.shutdown(Shutdown::Both).unwrap();
        assert_own(&a);
        // The peer has acknowledged the end, and then noticed it.
        a.sent().in_time().unwrap();
        assert_own(&a);
        assert_eq!(b.recv(&mut [0]).unwrap(), 0);
        let refused = b.send(b"x").unwrap_err();
        assert!(matches!(refused, StreamError::Disconnected), "{refused:?}");
        // This side ends its direction after the peer.
        b.shutdown(Shutdown::Write).unwrap();
        assert_own(&b);
        drop(b);
        assert_own(&a);
        assert_eq!(a.recv(&mut [0]).unwrap(), 0);

        let (a, b) = pair();
        a.shutdown(Shutdown::Write).unwrap();
        b.close().in_time().unwrap();
        assert_eq!(a.recv(&mut [0]).unwrap(), 0);
        assert_own(&a);

        let (a, b) = pair();
        a.shutdown(Shutdown::Read).unwrap();
        assert_eq!(a.recv(&mut [0]).unwrap(), 0);
        assert_eq!(a.send(b"x").unwrap(), 1);
        assert_eq!(b.recv(&mut [0; 2]).unwrap(), 1);
    });
}

#[kernel_test(crate::has_ip)]
fn dropped_stream_delivers_its_bytes() {
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

/// A child process, which is killed if its test fails.
struct Reader(Pid);

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// The device and the connection manager report in no order: whichever a reader looks at first, the
/// other may have changed by then. The peer sends and disconnects while the reader is stopped, each
/// time at another place of its loop.
#[kernel_test(crate::has_ip, device::outlives_its_process)]
fn reader_gets_all_bytes_wherever_the_end_of_the_connection_finds_it() {
    const ROUNDS: u8 = 100;

    nothing_leaks(|| {
        let (mut ports, mut to_reader) = std::io::pipe().unwrap();
        let reader = Reader(child::start(|| {
            let mut port = [0; 2];
            ports.read_exact(&mut port).unwrap();
            let addr = SocketAddr::new(any_port().ip(), u16::from_ne_bytes(port));
            for round in 0..ROUNDS {
                let mut stream = RdmaStream::connect(addr).wait().unwrap();
                // The connection is established on this side, too.
                stream.write_all(b"x").unwrap();
                stream.set_nonblocking(true);
                let (mut read, mut byte) = (Vec::new(), [0]);
                loop {
                    match stream.read(&mut byte) {
                        Ok(0) => break,
                        Ok(_) => read.push(byte[0]),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
                    }
                }
                assert_eq!(read, [round]);
            }
        }));
        let (listener, addr) = listener();
        to_reader.write_all(&addr.port().to_ne_bytes()).unwrap();
        for round in 0..ROUNDS {
            let mut stream = listener.accept().in_time().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            sleep(Duration::from_micros(1000 + 37 * u64::from(round)));
            kill(reader.0, Signal::SIGSTOP).unwrap();
            let stopped = waitpid(reader.0, Some(WaitPidFlag::WUNTRACED));
            assert_eq!(stopped, Ok(WaitStatus::Stopped(reader.0, Signal::SIGSTOP)));
            stream.write_all(&[round]).unwrap();
            // Waits for the acknowledgement, then disconnects.
            drop(stream);
            sleep(Duration::from_millis(5));
            kill(reader.0, Signal::SIGCONT).unwrap();
        }
        let reader = std::mem::ManuallyDrop::new(reader).0;
        assert_eq!(waitpid(reader, None), Ok(WaitStatus::Exited(reader, 0)));
    });
}

/// Both sides have ended their sending direction when the writer drops its stream: that alone does
/// not tell it that its bytes have arrived.
#[kernel_test(crate::has_ip)]
fn bytes_are_acknowledged_before_a_stream_that_both_sides_ended_is_dropped() {
    nothing_leaks(|| {
        for round in 0..50 {
            let (mut reader, mut writer) = pair();
            let bytes = pattern(48 << 10);
            writer.write_all(&bytes).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
            // It overtakes the bytes, which take longer.
            reader.shutdown(Shutdown::Write).unwrap();
            let mut read = Vec::new();
            thread::scope(|scope| {
                scope.spawn(|| reader.read_to_end(&mut read).unwrap());
                drop(writer);
            });
            assert!(read == bytes, "round {round}: {} bytes", read.len());
        }
    });
}

#[kernel_test(crate::has_ip)]
fn shutdown_of_reads_ends_a_read_that_waits() {
    nothing_leaks(|| {
        let (a, _b) = pair();
        thread::scope(|scope| {
            let reader = scope.spawn(|| a.recv(&mut [0; 8]));
            // It sleeps after 10 microseconds.
            sleep(Duration::from_millis(100));
            a.shutdown(Shutdown::Read).unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), 0);
        });
    });
}

#[kernel_test(crate::has_ip)]
fn reads_and_writes_have_time_limits() {
    nothing_leaks(|| {
        let (mut a, _b) = pair();
        let limit = Duration::from_millis(200);
        a.set_read_timeout(Some(limit));
        a.set_write_timeout(Some(limit));
        let start = Instant::now();
        let error = a.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "the time limit of 200ms has passed");
        assert!(start.elapsed() >= limit);
        let error = a.write_all(&pattern(1 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // A time limit does not end the stream.
        assert!(a.error().is_none());
        a.set_nonblocking(true);
        assert_eq!(a.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

#[kernel_test(crate::has_ip)]
fn connect_errors_name_their_cause() {
    nothing_leaks(|| {
        let free = listener().1;
        let refused = RdmaStream::connect(free).wait().unwrap_err();
        let StreamError::Cm(error) = &refused else { panic!("{refused:?}") };
        let Error::Rejected(rejected) = &**error else { panic!("{refused:?}") };
        assert_eq!(rejected.reason, RejectReason::InvalidServiceId);
        let text =
            format!("the connection to {free} was rejected: no application listens on the port (reason 8)");
        assert_eq!(refused.to_string(), text);
        let io = std::io::Error::from(refused);
        assert_eq!(io.kind(), ErrorKind::ConnectionRefused, "{io}");

        let unresolved = RdmaStream::connect("no.such.host.invalid:1").wait().unwrap_err();
        let StreamError::Cm(cause) = &unresolved else { panic!("{unresolved:?}") };
        assert!(matches!(**cause, Error::Name { .. }), "{unresolved:?}");
        let text = "RdmaStream::connect: the name \"no.such.host.invalid:1\" was not resolved: ";
        assert!(unresolved.to_string().starts_with(text), "{unresolved}");

        let limit = Duration::from_millis(300);
        let start = Instant::now();
        // No host has the address.
        let mut absent = any_port();
        absent.set_ip(match absent.ip() {
            std::net::IpAddr::V4(ip) => std::net::Ipv4Addr::from(u32::from(ip) + 77).into(),
            ip => ip,
        });
        absent.set_port(1);
        let connected = StreamOptions::default().connect(absent).wait_timeout(limit);
        // The devices of a fabric are known.
        assert!(connected.is_none_or(|connected| device::is_soft_device() && connected.is_err()));
        assert!(start.elapsed() < Duration::from_secs(5));
    });
}

#[kernel_test]
fn invalid_options_are_rejected() {
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

#[kernel_test(crate::has_ip)]
fn stream_dropped_in_a_forked_child_writes_nothing() {
    nothing_leaks(|| {
        let (a, mut b) = pair();
        let mut slot = Some(a);
        child::run(|| drop(slot.take()));
        let mut a = slot.take().unwrap();
        a.write_all(b"of the parent").unwrap();
        a.close().in_time().unwrap();
        let mut read = Vec::new();
        b.read_to_end(&mut read).unwrap();
        assert_eq!(read, b"of the parent");
    });
}
