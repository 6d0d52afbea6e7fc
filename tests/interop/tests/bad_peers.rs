//! Peers that violate the exchange protocol: `bareverbs` reports an error within the time limit and
//! leaks no objects.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use bareverbs_interop_tests::lines::RECORD;
use bareverbs_interop_tests::pingpong::{Bareverbs, HOST, RdmaCore, record_of_absent_qp, run_pingpong};
use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

const WITHOUT_GID: &[u8; RECORD] = b"0000:00fffe:123456:00000000000000000000000000000000\0";
/// Time limit of a case: the exchange's timeout of 10 s, and a reserve for a slow machine.
const BOUND: Duration = Duration::from_secs(25);

/// A case: its name, the behaviour of the bad peer on its connection, and the text of the error.
type Case = (&'static str, fn(TcpStream), &'static str);

fn send(mut stream: &TcpStream, bytes: &[u8]) {
    // A write error is ignored: the program may have exited already. Its error message is checked.
    let _ = stream.write_all(bytes);
}

/// Reads until the program closes the connection, so that this side does not close it first.
fn read_to_end(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

fn read_record(mut stream: &TcpStream) {
    stream.read_exact(&mut [0; RECORD]).unwrap();
}

const CLIENTS: [Case; 10] = [
    ("closes at once", drop, "closed the connection after 0 of the 52 bytes of its address record"),
    (
        "sends nothing",
        read_to_end,
        "timeout after 0 of the 52 bytes of its address record: the peer sent nothing for 10 s",
    ),
    (
        "sends too little and closes",
        |stream| send(&stream, b"0000:00fffe:12345"),
        "closed the connection after 17 of the 52 bytes of its address record",
    ),
    (
        "sends too little and stalls",
        |stream| {
            send(&stream, &record_of_absent_qp()[..51]);
            read_to_end(stream);
        },
        "timeout after 51 of the 52 bytes of its address record: the peer sent nothing for 10 s",
    ),
    (
        "sends too much",
        |stream| {
            send(&stream, &[&record_of_absent_qp()[..], b"more"].concat());
            read_to_end(stream);
        },
        "sent more than the 52 bytes of its address record",
    ),
    (
        "sends garbage",
        |stream| {
            send(&stream, b"GET / HTTP/1.1\r\nHost: 10.1.0.1\r\nAccept: text/html\r\n\r\n");
            read_to_end(stream);
        },
        "sent",
    ),
    (
        "sends a record with a bad digit",
        |stream| {
            send(&stream, &record_of_absent_qp().map(|byte| if byte == b'f' { b'x' } else { byte }));
            read_to_end(stream);
        },
        "invalid address record from the peer: byte",
    ),
    (
        "sends no GID",
        |stream| {
            send(&stream, WITHOUT_GID);
            read_to_end(stream);
        },
        "the peer sent no GID",
    ),
    (
        "closes instead of done",
        |stream| {
            send(&stream, &record_of_absent_qp());
            read_record(&stream);
        },
        "closed the connection after 0 of the 5 bytes of its closing message",
    ),
    (
        "sends another word instead of done",
        |stream| {
            send(&stream, &record_of_absent_qp());
            read_record(&stream);
            send(&stream, b"gone\0");
            read_to_end(stream);
        },
        "instead of \"done\\0\"",
    ),
];

const SERVERS: [Case; 7] = [
    (
        "closes without an answer",
        |stream| read_record(&stream),
        "closed the connection after 0 of the 52 bytes of its address record",
    ),
    (
        "answers nothing",
        read_to_end,
        "timeout after 0 of the 52 bytes of its address record: the peer sent nothing for 10 s",
    ),
    (
        "answers too little and closes",
        |stream| {
            read_record(&stream);
            send(&stream, &record_of_absent_qp()[..30]);
        },
        "closed the connection after 30 of the 52 bytes of its address record",
    ),
    (
        "answers too little and stalls",
        |stream| {
            send(&stream, &record_of_absent_qp()[..30]);
            read_to_end(stream);
        },
        "timeout after 30 of the 52 bytes of its address record: the peer sent nothing for 10 s",
    ),
    (
        "answers too much",
        |stream| {
            read_record(&stream);
            send(&stream, &[&record_of_absent_qp()[..], &record_of_absent_qp()[..]].concat());
            read_to_end(stream);
        },
        "sent more than the 52 bytes of its address record",
    ),
    (
        "answers garbage",
        |stream| {
            read_record(&stream);
            send(&stream, &[0xff; RECORD]);
            read_to_end(stream);
        },
        "invalid address record from the peer: byte",
    ),
    (
        "answers without a GID",
        |stream| {
            read_record(&stream);
            send(&stream, WITHOUT_GID);
            read_to_end(stream);
        },
        "the peer sent no GID",
    ),
];

/// Runs all cases in parallel, because some take 10 s. Each has its own TCP port.
#[kernel_test]
fn misbehaving_peers_are_reported() {
    let serve = |port: u16, peer: fn(TcpStream), words: &str| {
        let server = Bareverbs(&["-p", &port.to_string()]).serve(port);
        peer(TcpStream::connect((HOST, port)).unwrap());
        server.finish_within(BOUND).expect_failure(words);
    };
    let call = |port: u16, peer: fn(TcpStream), words: &str| {
        let listener = TcpListener::bind((HOST, port)).unwrap();
        let client = Program::start(&mut Bareverbs(&["-p", &port.to_string()]).command(Some(HOST)));
        peer(listener.accept().unwrap().0);
        client.finish_within(BOUND).expect_failure(words);
    };
    nothing_leaks(|| {
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            // On InfiniBand, a LID without a GID is an address.
            let is_case = |words: &str| !device::is_infiniband() || !words.contains("no GID");
            for (port, &(name, peer, words)) in
                (4000..).zip(&CLIENTS).filter(|(_, (_, _, words))| is_case(words))
            {
                threads.push((format!("client that {name}"), scope.spawn(move || serve(port, peer, words))));
            }
            for (port, &(name, peer, words)) in
                (5000..).zip(&SERVERS).filter(|(_, (_, _, words))| is_case(words))
            {
                threads.push((format!("server that {name}"), scope.spawn(move || call(port, peer, words))));
            }
            for (name, thread) in threads {
                assert!(thread.join().is_ok(), "a {name}: see above");
            }
        });
    });
}

#[kernel_test]
fn connection_refused_is_reported() {
    nothing_leaks(|| {
        let client = Program::start(&mut Bareverbs(&[]).command(Some(HOST)));
        client.finish().expect_failure("cannot connect to 10.1.0.1:18515: 10.1.0.1: Connection refused");
        let client = Program::start(&mut Bareverbs(&[]).command(Some("no.such.host.invalid")));
        client.finish_within(BOUND).expect_failure("no address for host no.such.host.invalid");
    });
}

#[kernel_test]
fn tcp_port_in_use_is_an_error() {
    nothing_leaks(|| {
        let _taken = TcpListener::bind(("::", 4712)).unwrap();
        let server = Program::start(&mut Bareverbs(&["-p", "4712"]).command(None));
        server.finish().expect_failure("cannot listen on TCP port 4712: Address already in use");
    });
}

#[kernel_test]
fn peers_with_another_message_size() {
    let (small, large) = (&["-n", "5", "-s", "64"][..], &["-n", "5", "-s", "2000"][..]);
    nothing_leaks(|| {
        let run = run_pingpong(Bareverbs(small), RdmaCore(large));
        // Soft-RoCE reports this failure and others with the same status.
        let words = match device::is_soft_roce() {
            true => "for wr_id 1: the peer's message may be longer than the receive",
            false => "for wr_id 1: the peer's message is longer than the receive",
        };
        run.server.expect_failure(words);
        let run = run_pingpong(RdmaCore(small), Bareverbs(large));
        let words = match device::is_soft_roce() {
            true => "for wr_id 2: the peer's receive may be shorter than the message",
            false => "for wr_id 2: the peer's receive is shorter than the message",
        };
        run.client.expect_failure(words);
    });
}
