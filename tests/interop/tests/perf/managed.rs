//! Runs that the connection manager connects (`--cm`, perftest's `-R`).

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bareverbs::qp::QpState;
use bareverbs::{Buffer, Endpoint, Op, RegionMut};
use bareverbs_interop_tests::perf::{Benchmark, PAIRINGS, Run, Side};
use bareverbs_interop_tests::pingpong::PORT;
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_rdmacm::connection::{ConnectOptions, Connected, Connector};
use bareverbs_rdmacm::{Addr, IdOptions};
use bareverbs_test_support::device::{self, Requirement};
use bareverbs_test_support::iproute2::ip;
use bareverbs_test_support::kernel_test;
use nix::sys::signal::Signal;

use crate::{
    SOON, WITH_PERFTEST, expect_latencies, expect_measured, expect_row, options, queue_pairs_of, size,
};

/// For tests with an IP address of the device.
///
/// # Errors
/// If the port is InfiniBand and the kernel has no IPoIB.
fn has_ip() -> Requirement {
    let there = !device::is_infiniband() || Path::new("/sys/class/net/ib0").exists();
    if there { Ok(()) } else { Err("this kernel has no IPoIB, so the device has no IP address".into()) }
}

/// The IP address of the device.
fn host() -> String {
    device::ip().to_string()
}

/// Whether a program has a queue pair in RTS beside that of its control connection.
fn is_ready_to_send(program: &Program) -> bool {
    queue_pairs_of(program).iter().filter(|qp| qp.state == Some(QpState::RTS)).count() >= 2
}

/// Starts a client, again if it comes before the server listens.
fn client(server: &mut Program, benchmark: Benchmark, side: Side, options: &[&str]) -> Finished {
    let deadline = Instant::now() + LIMIT;
    loop {
        let client = Program::start(&mut benchmark.command(side, options, Some(&host()))).finish();
        // perftest does not say why it failed. The end of a server that has failed may come later.
        let early = side == Side::Perftest || client.stderr.contains("no application listens");
        if client.status.success() || !early || server.has_ended() || Instant::now() > deadline {
            return client;
        }
    }
}

fn run(benchmark: Benchmark, (server, other): (Side, Side), options: &[&str]) -> Run {
    let options = [&["-R"], options].concat();
    let mut running = Program::start(&mut benchmark.command(server, &options, None));
    let client = client(&mut running, benchmark, other, &options);
    let run = Run { sides: (server, other), server: running.finish(), client };
    assert!(run.server.status.success() && run.client.status.success(), "{run:#?}");
    run
}

#[kernel_test(has_ip)]
fn short_managed_runs_interoperate_with_perftest() {
    for pairing in WITH_PERFTEST {
        let benchmark = Benchmark { operation: "send", test: "lat" };
        let run = run(benchmark, *pairing, &options("send", &["-n", "20"]));
        if let Some(json) = run.client_json() {
            expect_latencies(&json, size("send"));
            assert_eq!(json["options"]["cm"], true, "{json:#}");
        }
    }
}

#[kernel_test(device::iwarp)]
fn short_managed_runs_interoperate_on_iwarp() {
    for (operation, test) in [("send", "lat"), ("write", "bw"), ("read", "bw")] {
        for pairing in PAIRINGS {
            let options = [&["-R"], &*options(operation, &["-n", "100"])].concat();
            let benchmark = Benchmark { operation, test };
            let server = benchmark.serve(pairing.0, &options);
            let client = Program::start(&mut benchmark.command(pairing.1, &options, Some(&host())));
            let client = client.finish_within(SOON).expect_success();
            let run = Run { sides: pairing, server: server.finish_within(SOON).expect_success(), client };
            expect_row(&run, Side::Perftest, size(operation), 100);
            if let Some(json) = run.client_json() {
                expect_latencies(&json, size(operation));
                assert_eq!(json["environment"]["nature"], "software iWARP", "{json:#}");
            }
        }
    }
}

#[kernel_test(has_ip)]
fn managed_runs_interoperate_for_every_operation() {
    for operation in ["send", "write", "read", "atomic"] {
        for pairing in PAIRINGS {
            let both = options(operation, &["-n", "100", "-q", "2"]);
            let bandwidth = run(Benchmark { operation, test: "bw" }, pairing, &both);
            expect_row(&bandwidth, Side::Perftest, size(operation), 200);
            if let Some(json) = bandwidth.client_json() {
                expect_measured(&json, size(operation), 200);
            }
            let latency =
                run(Benchmark { operation, test: "lat" }, pairing, &options(operation, &["-n", "50"]));
            if let Some(json) = latency.client_json() {
                expect_latencies(&json, size(operation));
            }
        }
    }
}

#[kernel_test(has_ip)]
fn managed_runs_work_in_both_directions_and_with_threads() {
    let ours = (Side::Bareverbs, Side::Bareverbs);
    for pairing in PAIRINGS {
        run(Benchmark { operation: "write", test: "bw" }, pairing, &["-s", "512", "-n", "100", "-b"]);
    }
    for others in [&["--threads", "2", "--verify", "-b"][..], &["-e", "--srq"]] {
        let options = [&["-s", "512", "-n", "100", "-q", "4"], others].concat();
        let run = run(Benchmark { operation: "send", test: "bw" }, ours, &options);
        expect_measured(&run.client_json().unwrap(), 512, 400);
    }
}

/// Another operation at the other end is named, as over TCP.
#[kernel_test(has_ip)]
fn managed_runs_compare_the_settings() {
    let benchmark = |operation| Benchmark { operation, test: "bw" };
    let options = ["-R", "-n", "20", "-s", "64"];
    let mut server = Program::start(&mut benchmark("write").command(Side::Bareverbs, &options, None));
    let client = client(&mut server, benchmark("read"), Side::Bareverbs, &options);
    client.expect_failure("the peer has op=write, this side op=read");
    server.finish_within(SOON).expect_failure("the peer has op=read, this side op=write");
}

#[kernel_test(has_ip)]
fn end_of_a_managed_peer_is_noticed() {
    for killed in [true, false] {
        let benchmark = Benchmark { operation: "write", test: "bw" };
        let options = ["-R", "-D", "600", "-s", "4096"];
        let server = Program::start(&mut benchmark.command(Side::Bareverbs, &options, None));
        let client = loop {
            let mut client = Program::start(&mut benchmark.command(Side::Bareverbs, &options, Some(&host())));
            while !client.has_ended() && !is_ready_to_send(&client) {
                std::thread::yield_now();
            }
            // It ends if it comes before the server listens.
            if !client.has_ended() {
                break client;
            }
        };
        let (victim, survivor) = if killed { (server, client) } else { (client, server) };
        victim.signal(Signal::SIGKILL);
        victim.finish();
        let survivor = survivor.finish_within(SOON);
        assert_eq!(survivor.status.code(), Some(1), "{survivor:#?}");
    }
}

#[kernel_test(has_ip)]
fn managed_client_without_a_server_is_rejected() {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &["-R"], Some(&host())));
    client.finish_within(SOON).expect_failure("rejected");
}

/// The connection of a client that follows the exchange as far as a test lets it.
struct Client(Connected<Endpoint<RegionMut>>);

impl Client {
    /// Connects to the server, with receives for the messages of the exchange.
    fn try_connect(options: IdOptions, receives: u32) -> bareverbs_rdmacm::Result<Self> {
        let route = Connector::new().id_options(options).resolve((&*host(), PORT)).wait()?;
        let pd = route.device()?.find()?.open()?.alloc_pd()?;
        let options = Endpoint::options().port(route.port()?).sends(16).recvs(8).inline(64).keepalive(None);
        let mut endpoint = options.build(&pd)?;
        for _ in 0..receives {
            let memory = Buffer::zeroed(64).expect("memory");
            endpoint.post(Op::recv(RegionMut::register(&pd, memory)?)).expect("room for a receive");
        }
        Ok(Self(route.connect(endpoint, &ConnectOptions::default()).wait()?))
    }

    /// The control connection, as soon as the server listens.
    fn connect(server: &mut Program, receives: u32) -> Self {
        let deadline = Instant::now() + LIMIT;
        loop {
            match Self::try_connect(IdOptions::default(), receives) {
                Ok(client) => return client,
                Err(error) => {
                    assert!(!server.has_ended() && Instant::now() < deadline, "the server listens: {error}");
                }
            }
        }
    }

    fn send(&mut self, message: &[u8]) {
        self.0.queue.post(Op::send_inline(message)).expect("room for a message");
    }

    /// Sends a message, and waits for that of the server.
    fn swap(&mut self, message: &[u8]) {
        self.send(message);
        let deadline = Instant::now() + SOON;
        while !self.0.queue.poll().is_some_and(|ended| ended.expect("a completion").is_recv()) {
            assert!(Instant::now() < deadline, "the server does not answer");
        }
    }

    /// The messages of perftest before those of the queue pairs.
    fn preamble(&mut self) {
        let messages: [&[u8]; 4] =
            [b"6.24\0\0\0\0\0\0\0\0\0\0\0\0", &[0, 0, 0x10, 0], &[0, 0, 0, 64], b"3\0"];
        messages.into_iter().for_each(|message| self.swap(message));
    }
}

/// The server of a managed run.
fn serve() -> Program {
    let benchmark = Benchmark { operation: "write", test: "bw" };
    Program::start(&mut benchmark.command(Side::Bareverbs, &["-R", "-n", "20", "-s", "64"], None))
}

/// The peer has no receive for the server's message, and goes on sending.
#[kernel_test(has_ip)]
fn managed_server_keeps_few_messages_of_a_peer_that_does_not_listen() {
    let mut server = serve();
    let mut client = Client::connect(&mut server, 0);
    for _ in 0..8 {
        client.send(b"6.24\0\0\0\0\0\0\0\0\0\0\0\0");
    }
    server.finish_within(SOON).expect_failure("the peer sends messages before its turn");
}

#[kernel_test(device::soft_roce)]
fn managed_server_probes_a_silent_peer() {
    let packets = || {
        let text = fs::read_to_string(device::sysfs("ports/1/hw_counters/sent_pkts"));
        text.expect("rxe counts its packets").trim().parse::<u64>().expect("a number")
    };
    let mut server = serve();
    let mut client = Client::connect(&mut server, 8);
    client.preamble();
    // A probe and its acknowledgement are two packets.
    let (start, deadline) = (packets(), Instant::now() + LIMIT);
    while packets() < start + 4 {
        assert!(!server.has_ended() && Instant::now() < deadline, "it sends no probes");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(client);
    server.finish_within(SOON).expect_failure("");
}

#[kernel_test(device::soft_roce)]
fn managed_server_rejects_connections_of_other_hosts() {
    let netdev = fs::read_to_string("/sys/class/infiniband/rxe0/parent").expect("rxe has an interface");
    let address = |verb: &str| ip(&format!("addr {verb} 10.1.0.9/24 dev {}", netdev.trim()));
    address("add");
    let mut server = serve();
    let mut client = Client::connect(&mut server, 8);
    client.preamble();
    // An empty record: the server waits for the connections of its queue pairs from here on.
    client.swap(&[0; 56]);
    let other = IdOptions { source: Some(Addr::from(([10, 1, 0, 9], 0))), ..IdOptions::default() };
    let refused = Client::try_connect(other, 0).err().expect("it is of another host").to_string();
    assert!(refused.contains("rejected"), "{refused}");
    let data = Client::try_connect(IdOptions::default(), 0).expect("it is of the peer");
    drop((data, client));
    server.finish_within(SOON).expect_failure("");
    address("del");
}
