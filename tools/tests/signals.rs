//! SIGINT and SIGTERM in phases that need no device.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The program ends within a second. The rest is for a busy machine.
const LIMIT: Duration = Duration::from_secs(5);
/// The time in which the program comes to a wait that shows nothing. It may be in an earlier phase
/// on a busy machine.
const A_WHILE: Duration = Duration::from_millis(300);
const STEP: Duration = Duration::from_millis(10);

fn bareverbs(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    command.args(line.split(' ')).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn start(command: &mut Command) -> Child {
    command.spawn().expect("the program starts")
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("the child is not waited for");
}

/// Waits for the end of a program.
fn end(mut child: Child) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return status;
        }
        sleep(STEP);
    }
    child.kill().expect("the child is not waited for");
    panic!("it ran on after the signal: {:?}", child.wait());
}

/// Asserts that both signals end a program with 128 and their number. `wait` waits for the phase.
fn ends(mut command: Command, mut wait: impl FnMut(&mut Child)) {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut child = start(&mut command);
        wait(&mut child);
        send(&child, signal);
        let status = end(child);
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal} of {command:?}: {status:?}");
    }
}

/// Waits for text on the standard output, which is a pipe.
fn wait_for_output(child: &mut Child) {
    child.stdout.as_mut().expect("it is a pipe").read_exact(&mut [0]).expect("the program prints");
    sleep(A_WHILE);
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

/// Programs that are killed on drop.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
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
    ends(command, |_| sleep(A_WHILE));
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

#[test]
fn signals_end_transfers_on_both_sides() {
    for waiting in ["s", "a", "n"] {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options = format!("rstream -T s -T {waiting} -S 65536 -I 1 -C 1000000000 -p {free}");
        for signalled in ["client", "server"] {
            let server = start(&mut bareverbs(&options));
            // It begins to listen at some time.
            let client = loop {
                let mut client = start(&mut bareverbs(&format!("{options} -s 127.0.0.1")));
                sleep(A_WHILE);
                if client.try_wait().unwrap().is_none() {
                    break client;
                }
            };
            let (child, other) = if signalled == "client" { (client, server) } else { (server, client) };
            let _other = Killed(Some(other));
            send(&child, Signal::SIGTERM);
            assert_eq!(end(child).code(), Some(143), "{signalled}, -T {waiting}");
        }
    }
}

/// A program that waits in a call which no signal ends.
fn start_waiting(fifo: &Fifo) -> Child {
    let mut command = bareverbs(&format!("rcopy {} 127.0.0.1:/nonexistent/copy", fifo.0.display()));
    let mut child = start(command.stdout(Stdio::piped()));
    wait_for_output(&mut child);
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
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            sleep(STEP);
            send(&child, Signal::SIGINT);
        }
        end(child).signal() == Some(Signal::SIGINT as i32)
    });
    assert!(killed, "the second signal does not have its default action");
}

#[test]
fn signal_of_timeout_counts_once_though_it_is_sent_twice() {
    // On a busy machine, the second one may be late.
    let ended = (0..10).any(|_| {
        let mut command = bareverbs("rstream -T s -p 0");
        let mut child = start(command.stdout(Stdio::piped()));
        wait_for_output(&mut child);
        send(&child, Signal::SIGTERM);
        send(&child, Signal::SIGTERM);
        end(child).code() == Some(143)
    });
    assert!(ended, "the second signal killed the program");
}

#[test]
fn signals_end_a_trace_that_prints_to_a_full_pipe() {
    let (_reader, writer) = full_pipe();
    let program = Command::new("sleep").arg("100").spawn().unwrap();
    let id = program.id();
    let _program = Killed(Some(program));
    let mut command = bareverbs(&format!("trace --summary -p {id}"));
    command.stdout(writer);
    ends(command, |_| sleep(A_WHILE));
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    assert!(status.contains("TracerPid:\t0\n"), "{status}");
}
