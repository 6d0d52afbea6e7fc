//! SIGINT and SIGTERM in phases that need no device.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The program starts, and ends, within a second. The rest is for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// The time in which a program with signal handlers comes to a wait that shows nothing. It may be in an
/// earlier phase on a busy machine: the signals end that, too.
const A_WHILE: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_millis(10);
/// The signals that end the program.
const ENDING: [Signal; 2] = [Signal::SIGTERM, Signal::SIGINT];

fn bareverbs(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn start(command: &mut Command) -> Killed {
    Killed(command.spawn().expect("the program starts"))
}

fn send(child: &Killed, signal: Signal) {
    kill(Pid::from_raw(child.0.id().cast_signed()), signal).expect("the child is not waited for");
}

/// Waits for the end of a program.
fn end(child: &mut Killed) -> ExitStatus {
    wait_for("the end of the program", || child.0.try_wait().expect("a child can be waited for"))
}

/// Asserts that both signals end a program with 128 and their number. `wait` waits for the phase.
fn ends(mut command: Command, mut wait: impl FnMut(&mut Child)) {
    for signal in ENDING {
        let mut child = start(&mut command);
        wait(&mut child.0);
        send(&child, signal);
        let status = end(&mut child);
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal} of {command:?}: {status:?}");
    }
}

/// A field of `/proc/PID/status`.
fn status_of(process: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
    value.expect("a field of each process").to_owned()
}

/// Waits until there is a value.
fn wait_for<T>(what: &str, mut value: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = value() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        sleep(STEP);
    }
}

/// Waits for a while, which begins when the program has handlers for both signals.
fn wait_a_while(child: &mut Child) {
    wait_for("the handlers of the program", || {
        let caught = u64::from_str_radix(&status_of(child.id(), "SigCgt"), 16).expect("a mask");
        ENDING.iter().all(|signal| caught & 1 << (*signal as u32 - 1) != 0).then_some(())
    });
    sleep(A_WHILE);
}

/// Waits for text on the standard output, which is a pipe.
fn wait_for_output(child: &mut Child) {
    child.stdout.as_mut().expect("it is a pipe").read_exact(&mut [0]).expect("the program prints");
    wait_a_while(child);
}

/// A pipe that is full, and its end to read from.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// A FIFO. Drop removes it.
struct Fifo(PathBuf);

impl Fifo {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bareverbs-{name}-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A program that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn signals_end_the_opening_of_a_fifo() {
    let fifo = Fifo::new("opening");
    let mut command = bareverbs(&format!("rcopy {} 127.0.0.1:/nonexistent/copy", fifo.0.display()));
    command.stdout(Stdio::piped());
    ends(command, wait_for_output);
}

#[test]
fn signals_end_reading_of_standard_input() {
    let mut command = bareverbs("rcopy /dev/stdin 127.0.0.1:/nonexistent/copy");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    ends(command, |child| {
        child.stdin.as_mut().unwrap().write_all(b"part").unwrap();
        wait_for_output(child);
    });
}

#[test]
fn signals_end_writing_to_a_full_pipe() {
    let (_reader, writer) = full_pipe();
    let mut command = bareverbs("rstream -S 64 -T s -p 0");
    command.stdout(writer);
    ends(command, wait_a_while);
}

#[test]
fn signals_end_a_wait_for_a_client() {
    let mut command = bareverbs("rstream -T s -p 0");
    command.stdout(Stdio::piped());
    ends(command, wait_for_output);
}

#[test]
fn signals_end_a_connect_that_is_not_answered() {
    // A full backlog: the kernel drops the SYN of one more client.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let addr = listener.local_addr().unwrap();
    let _first = TcpStream::connect(addr).unwrap();
    let mut command = bareverbs(&format!("rstream -T s -s 127.0.0.1 -p {}", addr.port()));
    command.stdout(Stdio::piped());
    ends(command, wait_for_output);
}

/// A loopback address that no other process uses.
fn address() -> IpAddr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, a | 1, b, c).into()
}

/// The bytes in each direction before the transfers of `rstream`.
const SYNC: [u8; 16] = [0; 16];
/// A part of the transfers.
const PART: usize = 1 << 20;

#[test]
fn signals_end_transfers_of_a_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    for waiting in ["s", "a", "n"] {
        let command = bareverbs(&format!(
            "rstream -T s -T {waiting} -S 65536 -I 1 -C 1000000000 -s 127.0.0.1 -p {}",
            addr.port()
        ));
        let mut peer = None;
        ends(command, |_| {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&SYNC).unwrap();
            stream.read_exact(&mut [0; SYNC.len() + PART]).unwrap();
            peer = Some(stream);
        });
    }
}

#[test]
fn signals_end_transfers_of_a_server() {
    let (address, port) = (address(), 7471);
    for waiting in ["s", "a", "n"] {
        let command = bareverbs(&format!(
            "rstream -T s -T {waiting} -S 65536 -I 1 -C 1000000000 -b {address} -p {port}"
        ));
        let mut peer = None;
        ends(command, |_| {
            let mut stream = wait_for("a listener", || TcpStream::connect((address, port)).ok());
            stream.write_all(&SYNC).unwrap();
            stream.read_exact(&mut [0; SYNC.len()]).unwrap();
            stream.write_all(&vec![0; PART]).unwrap();
            peer = Some(stream);
        });
    }
}

/// A program that waits in a call which no signal ends.
fn start_waiting(fifo: &Fifo) -> Killed {
    let mut command = bareverbs(&format!("rcopy {} 127.0.0.1:/nonexistent/copy", fifo.0.display()));
    let mut child = start(command.stdout(Stdio::piped()));
    wait_for_output(&mut child.0);
    child
}

#[test]
fn second_signal_ends_at_once() {
    let fifo = Fifo::new("second");
    // On a busy machine, the program may end before the second signal.
    let killed = (0..10).any(|_| {
        let mut child = start_waiting(&fifo);
        send(&child, Signal::SIGTERM);
        let deadline = Instant::now() + LIMIT;
        while child.0.try_wait().unwrap().is_none() && Instant::now() < deadline {
            sleep(STEP);
            send(&child, Signal::SIGINT);
        }
        end(&mut child).signal() == Some(Signal::SIGINT as i32)
    });
    assert!(killed, "the second signal does not have its default action");
}

#[test]
fn signal_of_timeout_counts_once_though_it_is_sent_twice() {
    // On a busy machine, the second one may be late.
    let ended = (0..10).any(|_| {
        let mut command = bareverbs("rstream -T s -p 0");
        let mut child = start(command.stdout(Stdio::piped()));
        wait_for_output(&mut child.0);
        send(&child, Signal::SIGTERM);
        send(&child, Signal::SIGTERM);
        end(&mut child).code() == Some(143)
    });
    assert!(ended, "the second signal killed the program");
}

#[test]
fn signals_end_a_trace_that_prints_to_a_full_pipe() {
    let (_reader, writer) = full_pipe();
    let program = Command::new("sleep").arg("100").spawn().unwrap();
    let id = program.id();
    let _program = Killed(program);
    let mut command = bareverbs(&format!("trace --summary -p {id}"));
    command.stdout(writer);
    // The tracer blocks signals before it attaches, and waits for them.
    ends(command, |tracer| {
        wait_for("a tracer", || (status_of(id, "TracerPid") == tracer.id().to_string()).then_some(()));
        sleep(A_WHILE);
    });
    assert_eq!(status_of(id, "TracerPid"), "0");
}
