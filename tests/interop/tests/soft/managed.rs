//! Connections by IP address between a soft device and rxe, whose connection manager is the kernel's.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use bareverbs::soft::{Fabric, Fault, InjectedFault, SoftDevice};
use bareverbs::{Access, Buffer, Endpoint, Mr, Op, Pd};
use bareverbs_interop_tests::namespace::{Namespace, RXE, RXE_IP, RXE_IP6, SOFT, SOFT_IP, SOFT_IP6, SOFT6};
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_rdmacm::connection::{Domains, Incoming, Route};
use bareverbs_rdmacm::event::RejectReason;
use bareverbs_rdmacm::{ConnectOptions, Connected, Connector, Error, IdOptions, Listener};
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;

/// A program of librdmacm on rxe, and the command of `bareverbs` of the same name on the soft device.
#[derive(Clone, Copy, Debug)]
enum Side {
    Rxe,
    Soft(&'static str),
}

use Side::{Rxe, Soft};

impl Side {
    fn command(self, name: &str, options: &[&str]) -> Command {
        let mut command = match self {
            Rxe => Command::new(name),
            Soft(device) => {
                let mut command = Command::new("bareverbs");
                command.args([name, "--ib-dev", device]);
                command
            }
        };
        command.args(options);
        command
    }

    fn start(self, namespace: &Namespace, name: &str, options: &[&str]) -> Program {
        let mut command = self.command(name, options);
        match self {
            Rxe => Program::start(&mut command),
            Soft(_) => namespace.run(|| Program::start(&mut command)),
        }
    }
}

/// Whether the program says that its peer does not listen.
fn was_rejected(finished: &Finished) -> bool {
    let text = format!("{}{}", finished.stdout, finished.stderr).to_lowercase();
    // The programs of librdmacm print the event, or ECONNREFUSED.
    ["reject", "refused", "unreachable"].iter().any(|word| text.contains(word))
}

/// Runs a client, again if it comes before the server listens.
fn run_client(
    namespace: &Namespace,
    server: &mut Program,
    side: Side,
    name: &str,
    options: &[&str],
) -> Finished {
    let deadline = Instant::now() + LIMIT;
    loop {
        let finished = side.start(namespace, name, options).finish();
        let ended = !was_rejected(&finished) || server.has_ended();
        if finished.status.success() || ended || Instant::now() > deadline {
            return finished;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A pairing of server and client, and the address of the server.
type Pairing = (Side, Side, &'static str);

const IPV4: [Pairing; 2] = [(Soft(SOFT), Rxe, SOFT_IP), (Rxe, Soft(SOFT), RXE_IP)];
const IPV6: [Pairing; 2] = [(Soft(SOFT6), Rxe, SOFT_IP6), (Rxe, Soft(SOFT6), RXE_IP6)];

/// Runs a server and a client to their ends.
fn run(
    namespace: &Namespace,
    (server, client, _): Pairing,
    name: &str,
    server_options: &[&str],
    client_options: &[&str],
) -> [Finished; 2] {
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut program = server.start(namespace, name, server_options);
        let finished = run_client(namespace, &mut program, client, name, client_options);
        // The server began to listen between two connections of a client. It counts one of them and
        // ends before the next client has all of its own.
        let is_early = was_rejected(&finished) && program.has_ended();
        if !is_early || Instant::now() > deadline {
            let client = finished.expect_success();
            return [program.finish().expect_success(), client];
        }
    }
}

/// The text of a ping of `rping`.
fn ping(number: u8, size: usize) -> String {
    let mut text = format!("rdma-ping-{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number.into());
    text.extend(letters.map(char::from).take(size - 1 - text.len()));
    text
}

#[kernel_test(device::soft_roce)]
fn rping_runs_with_rxe() {
    let namespace = Namespace::new();
    let lines =
        |start: &str| (0..3).map(|number| format!("{start}: {}\n", ping(number, 64))).collect::<String>();
    for pairing in IPV4.into_iter().chain(IPV6) {
        let (_, _, address) = pairing;
        let client = ["-c", "-a", address, "-C", "3", "-v", "-V"];
        let [served, finished] = run(&namespace, pairing, "rping", &["-s", "-a", address, "-v"], &client);
        assert_eq!(served.stdout, lines("server ping data"), "{served:#?}");
        assert_eq!(finished.stdout, lines("ping data"), "{finished:#?}");
    }
    for pairing in IPV4 {
        let (_, _, address) = pairing;
        let client = ["-c", "-a", address, "-C", "2", "-S", "65535", "-V"];
        run(&namespace, pairing, "rping", &["-s", "-S", "65535"], &client);
    }
}

#[kernel_test(device::soft_roce)]
fn ucmatose_and_udaddy_run_with_rxe() {
    let namespace = Namespace::new();
    for pairing in IPV4 {
        let (_, _, address) = pairing;
        for counts in [&["-c", "1", "-C", "10", "-S", "100"][..], &["-c", "5", "-C", "3", "-S", "5000", "-m"]]
        {
            let client = [counts, &["-s", address]].concat();
            let sides = run(&namespace, pairing, "ucmatose", counts, &client);
            for side in sides {
                assert!(side.stdout.ends_with("test complete\nreturn status 0\n"), "{side:#?}");
            }
        }
        let counts = ["-c", "3", "-C", "10", "-S", "900"];
        let client = [&counts[..], &["-s", address]].concat();
        for side in run(&namespace, pairing, "udaddy", &counts, &client) {
            assert!(side.stdout.ends_with("test complete\nreturn status 0\n"), "{side:#?}");
        }
    }
}

#[kernel_test(device::soft_roce)]
fn streams_of_librdmacm_run_with_rxe() {
    let namespace = Namespace::new();
    for pairing in IPV4 {
        let (_, _, address) = pairing;
        for sizes in [["-S", "64", "-C", "1", "-I", "20"], ["-S", "1000000", "-C", "2", "-I", "1"]] {
            let server = [&sizes[..], &["-T", "v"]].concat();
            let client = [&["-s", address], &server[..]].concat();
            run(&namespace, pairing, "rstream", &server, &client);
        }
    }
}

#[kernel_test(device::soft_roce)]
fn rcopy_runs_with_rxe() {
    let namespace = Namespace::new();
    let [source, copy] = ["/tmp/soft-source", "/tmp/soft-copy"];
    let bytes: Vec<u8> = (0..700_001_u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
    fs::write(source, &bytes).expect("the guest's /tmp is writable");
    for (server, client, address) in IPV4 {
        let mut program = server.start(&namespace, "rcopy", &[]);
        // The server serves one client after the other.
        for _ in 0..2 {
            let to = format!("{address}:{copy}");
            run_client(&namespace, &mut program, client, "rcopy", &[source, &to]).expect_success();
            assert!(fs::read(copy).expect("the copy exists") == bytes, "{server:?}");
            fs::remove_file(copy).expect("the copy exists");
        }
    }
    fs::remove_file(source).expect("the file exists");
}

/// One end of connections of the library: the domains of its devices, and its address.
struct End<'a> {
    domains: Domains,
    address: IpAddr,
    /// The network namespace of its device, unless it is that of the test.
    namespace: Option<&'a Namespace>,
}

impl End<'_> {
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match self.namespace {
            Some(namespace) => namespace.run(work),
            None => work(),
        }
    }

    fn listener(&self) -> Listener {
        let listener = Listener::bind_with_domains(&self.domains, &IdOptions::default(), (self.address, 0));
        listener.expect("the address is that of a device")
    }

    fn resolve(&self, server: SocketAddr) -> Route {
        Connector::with_domains(&self.domains).resolve(server).wait().expect("the peer has a route")
    }

    /// Connects, with private data.
    fn connect(&self, server: SocketAddr, private_data: &[u8]) -> Result<Connection, Error> {
        self.run(|| {
            let route = self.resolve(server);
            let endpoint = endpoint(&route.pd().wait()?);
            let options = ConnectOptions { private_data, ..ConnectOptions::default() };
            route.connect(endpoint, &options).wait()
        })
    }

    /// Accepts the next request, with private data.
    fn accept(listener: &Listener, private_data: &[u8]) -> Connection {
        let request = listener.request().wait().expect("a request");
        Self::answer(request, private_data)
    }

    fn answer(request: Incoming, private_data: &[u8]) -> Connection {
        let endpoint = endpoint(&request.pd().wait().expect("the device opens"));
        let options = ConnectOptions { private_data, ..ConnectOptions::default() };
        request.accept(endpoint, &options).wait().expect("the peer establishes the connection")
    }
}

type Connection = Connected<Endpoint<Mr<Buffer>>>;

fn endpoint(pd: &Pd) -> Endpoint<Mr<Buffer>> {
    let mut endpoint = Endpoint::options().inline(16).build(pd).expect("the device has a QP");
    // Before the peer sends.
    let memory = pd.register(Buffer::zeroed(64).expect("memory"), Access::LOCAL_WRITE);
    endpoint.post(Op::recv(memory.expect("a registration"))).expect("the queue has room");
    endpoint
}

/// A soft device and rxe, as ends of connections.
struct Ends<'a> {
    soft: SoftDevice,
    ends: [End<'a>; 2],
}

impl<'a> Ends<'a> {
    fn new(namespace: &'a Namespace) -> Self {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let fabric = Fabric::new();
        let soft = namespace.run(|| SoftDevice::bind(&fabric, address(SOFT_IP)));
        let soft = soft.expect("the namespace has the address, and no device");
        let ends = [
            End { domains: Domains::on(&fabric), address: address(SOFT_IP), namespace: Some(namespace) },
            End { domains: Domains::default(), address: address(RXE_IP), namespace: None },
        ];
        Self { soft, ends }
    }

    /// The passive and the active end, in both orders.
    fn roles(&self) -> [(&End<'a>, &End<'a>); 2] {
        let [soft, rxe] = &self.ends;
        [(soft, rxe), (rxe, soft)]
    }

    /// Injects a fault into messages of the connection manager: those from the soft device, or to it.
    fn inject(&self, fault: Fault, from_soft: bool) -> InjectedFault {
        // A MAD is a message to QP 1.
        let fault = fault.qp(1);
        self.soft.fabric().inject(if from_soft { fault.from(&self.soft) } else { fault.to(&self.soft) })
    }
}

/// Sends a message from each end, and ends the connection by the active one.
fn ping_and_end(active: Connection, passive: Connection) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Connected { mut queue, mut link } = passive;
            assert_eq!(received(&mut queue), b"ping");
            queue.post(Op::send_inline(b"pong")).expect("the queue has room");
            link.ended().wait().expect("the peer ends the connection");
        });
        let Connected { mut queue, mut link } = active;
        queue.post(Op::send_inline(b"ping")).expect("the queue has room");
        assert_eq!(received(&mut queue), b"pong");
        link.disconnect().wait().expect("the peer answers");
    });
}

/// Waits for a message.
fn received(endpoint: &mut Endpoint<Mr<Buffer>>) -> Vec<u8> {
    loop {
        let done = endpoint.next().wait().expect("a completion without an error");
        if let Some(message) = done.message() {
            return message.to_vec();
        }
    }
}

/// Connects both ends, exchanges messages and disconnects.
fn run_connection(passive: &End<'_>, active: &End<'_>, listener: &Listener) {
    let server = listener.local_addr().expect("the listener is bound");
    let (one, other) = std::thread::scope(|scope| {
        let accepts = scope.spawn(|| passive.run(|| End::accept(listener, b"welcome")));
        let connected = active.connect(server, b"hello").expect("the peer accepts");
        (connected, accepts.join().expect("the peer accepts"))
    });
    assert_eq!(&one.link.peer().private_data[..7], b"welcome");
    ping_and_end(one, other);
}

#[kernel_test(device::soft_roce)]
fn library_connects_with_rxe_and_is_rejected() {
    let namespace = Namespace::new();
    let ends = Ends::new(&namespace);
    for (passive, active) in ends.roles() {
        let listener = passive.listener();
        let server = listener.local_addr().expect("the listener is bound");
        for _ in 0..3 {
            run_connection(passive, active, &listener);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.request().wait().expect("a request");
                assert_eq!(&request.private_data()[..5], b"hello");
                assert_eq!(
                    request.peer_addr().expect("an address").ip().map(|addr| addr.ip()),
                    Some(active.address)
                );
                request.reject(b"not today").expect("the request waits");
            });
            let rejected = active.connect(server, b"hello").map(drop);
            let Err(Error::Rejected(rejected)) = rejected else { panic!("not rejected: {rejected:?}") };
            assert_eq!(rejected.reason, RejectReason::Consumer);
            assert_eq!(&rejected.private_data[..9], b"not today");
        });
        drop(listener);
        let rejected = active.connect(server, b"").map(drop);
        let Err(Error::Rejected(rejected)) = rejected else { panic!("not rejected: {rejected:?}") };
        assert_eq!(rejected.reason, RejectReason::InvalidServiceId);
    }
}

/// More connections than QPNs that a soft device keeps out of use.
#[kernel_test(device::soft_roce)]
fn qpns_are_used_again() {
    let namespace = Namespace::new();
    let ends = Ends::new(&namespace);
    for (passive, active) in ends.roles() {
        let listener = passive.listener();
        for _ in 0..70 {
            run_connection(passive, active, &listener);
        }
    }
}

#[kernel_test(device::soft_roce)]
fn repeated_messages_are_answered_once() {
    let namespace = Namespace::new();
    let ends = Ends::new(&namespace);
    let faults = [true, false].map(|from_soft| ends.inject(Fault::duplicate(), from_soft));
    for (passive, active) in ends.roles() {
        let listener = passive.listener();
        for _ in 0..5 {
            run_connection(passive, active, &listener);
        }
        // REQ, RTU and DREQ, or REP and DREP, of each connection.
        assert!(faults.iter().all(|fault| fault.count() >= 10), "{faults:?}");
        drop(listener);
    }
}

#[kernel_test(device::soft_roce)]
fn lost_messages_are_repeated() {
    let namespace = Namespace::new();
    let ends = Ends::new(&namespace);
    for (passive, active) in ends.roles() {
        let listener = passive.listener();
        // The active end sends REQ, RTU and DREQ, the passive one REP and DREP.
        let from_active = active.namespace.is_some();
        for (is_of_active, nth) in [(true, 1), (false, 1), (true, 2), (true, 3), (false, 2)] {
            let lost = ends.inject(Fault::drop().nth(nth), is_of_active == from_active);
            run_connection(passive, active, &listener);
            assert_eq!(lost.count(), 1, "message {nth} of the active end: {is_of_active}");
            ends.soft.fabric().remove_fault(&lost);
        }
    }
}

#[kernel_test(device::soft_roce)]
fn connections_are_made_over_a_network_with_loss() {
    let namespace = Namespace::new();
    let ends = Ends::new(&namespace);
    namespace.impair_soft("loss 10% duplicate 10%");
    namespace.impair_rxe("loss 10% duplicate 10%");
    std::thread::scope(|scope| {
        for (passive, active) in ends.roles() {
            for _ in 0..4 {
                scope.spawn(|| {
                    let listener = passive.listener();
                    run_connection(passive, active, &listener);
                });
            }
        }
    });
    namespace.heal();
}

/// The number of messages of the connection manager that rxe has received or sent.
fn rxe_messages(direction: &str, message: &str) -> u64 {
    let path = format!("/sys/class/infiniband/{RXE}/ports/1/cm_{direction}_msgs/{message}");
    let text = fs::read_to_string(path).expect("the kernel counts its messages");
    text.trim().parse().expect("a number")
}

/// The kernel repeats a REQ after 4.8 s without an answer.
#[kernel_test(device::soft_roce)]
fn late_answers_are_announced() {
    let namespace = Namespace::new();
    let ends = Ends::new(&namespace);
    for (passive, active) in ends.roles() {
        let listener = passive.listener();
        let server = listener.local_addr().expect("the listener is bound");
        // The passive end sends MRA when the REQ is repeated.
        let direction = if passive.namespace.is_some() { "rx" } else { "tx" };
        let before = rxe_messages(direction, "mra");
        let (one, other) = std::thread::scope(|scope| {
            let accepts = scope.spawn(|| {
                passive.run(|| {
                    let request = listener.request().wait().expect("a request");
                    wait_until("an MRA", || rxe_messages(direction, "mra") > before);
                    End::answer(request, b"")
                })
            });
            let connected = active.connect(server, b"").expect("the peer accepts");
            (connected, accepts.join().expect("the peer accepts"))
        });
        ping_and_end(one, other);
    }
}

/// More pings than a test can wait for.
const FOREVER: &str = "1000000000";

#[kernel_test(device::soft_roce)]
fn killed_soft_process_is_followed_by_another_one() {
    let namespace = Namespace::new();
    // A client.
    let mut server = Rxe.start(&namespace, "rping", &["-s", "-P"]);
    let options = ["-c", "-a", RXE_IP, "-C", "1", "-V"];
    run_client(&namespace, &mut server, Soft(SOFT), "rping", &options).expect_success();
    for _ in 0..3 {
        let endless = ["-c", "-a", RXE_IP, "-C", FOREVER, "-v"];
        let mut client = Soft(SOFT).start(&namespace, "rping", &endless);
        client.line("ping data: ");
        client.signal(Signal::SIGKILL);
        client.finish();
        // The kernel still has the connection. It is not taken for the next one.
        Soft(SOFT).start(&namespace, "rping", &options).finish().expect_success();
    }
    drop(server);

    // A server. The peer's requests are answered by the next one.
    let mut server = Soft(SOFT).start(&namespace, "rping", &["-s", "-P", "-v"]);
    let options = ["-c", "-a", SOFT_IP, "-C", "1", "-V"];
    run_client(&namespace, &mut server, Rxe, "rping", &options).expect_success();
    let mut client = Rxe.start(&namespace, "rping", &["-c", "-a", SOFT_IP, "-C", FOREVER, "-v"]);
    client.line("ping data: ");
    server.signal(Signal::SIGKILL);
    server.finish();
    let mut server = Soft(SOFT).start(&namespace, "rping", &["-s", "-P", "-v"]);
    run_client(&namespace, &mut server, Rxe, "rping", &options).expect_success();
    // It retries without an end.
    drop(client);

    // While a client connects. The next server answers when the kernel repeats the request.
    server.signal(Signal::SIGSTOP);
    let client = Rxe.start(&namespace, "rping", &options);
    wait_until("a request reaches the server's socket", || namespace.run(has_unread_datagram));
    server.signal(Signal::SIGKILL);
    server.finish();
    let _server = Soft(SOFT).start(&namespace, "rping", &["-s", "-P"]);
    client.finish().expect_success();
}

/// Whether a UDP socket of the thread's network namespace has a datagram that its program has not read.
fn has_unread_datagram() -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/net/udp").expect("the kernel lists sockets");
    let queues = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(4)?.split_once(':'));
    queues.into_iter().any(|(_, unread)| unread != "00000000")
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[kernel_test(device::soft_roce)]
fn killed_process_on_rxe_is_reported_and_followed_by_another_one() {
    const BOUND: Duration = Duration::from_secs(40);
    let namespace = Namespace::new();
    let options = ["-c", "-a", RXE_IP, "-C", "1", "-V"];
    let endless = ["-c", "-a", RXE_IP, "-C", FOREVER, "-v"];
    // A server: the kernel ends its connections.
    let mut server = Rxe.start(&namespace, "rping", &["-s", "-P"]);
    run_client(&namespace, &mut server, Soft(SOFT), "rping", &options).expect_success();
    let mut client = Soft(SOFT).start(&namespace, "rping", &endless);
    client.line("ping data: ");
    server.signal(Signal::SIGKILL);
    server.finish();
    client.finish_within(BOUND).expect_failure("");

    // While the client connects: the kernel rejects the request that the server has not read.
    let mut server = Rxe.start(&namespace, "rping", &["-s", "-P"]);
    run_client(&namespace, &mut server, Soft(SOFT), "rping", &options).expect_success();
    server.signal(Signal::SIGSTOP);
    let received = rxe_messages("rx", "req");
    let client = Soft(SOFT).start(&namespace, "rping", &options);
    wait_until("the kernel receives a request", || rxe_messages("rx", "req") > received);
    server.signal(Signal::SIGKILL);
    server.finish();
    client.finish_within(BOUND).expect_failure("rejected");
    let mut server = Rxe.start(&namespace, "rping", &["-s"]);
    run_client(&namespace, &mut server, Soft(SOFT), "rping", &options).expect_success();
    server.finish().expect_success();

    // A client.
    let mut server = Soft(SOFT).start(&namespace, "rping", &["-s"]);
    let options = ["-c", "-a", SOFT_IP, "-C", FOREVER, "-v"];
    let client = loop {
        let mut client = Rxe.start(&namespace, "rping", &options);
        // It ends if it comes before the server listens.
        if client.line_or_end("ping data: ").is_some() {
            break client;
        }
        assert!(was_rejected(&client.finish()) && !server.has_ended());
    };
    client.signal(Signal::SIGKILL);
    client.finish();
    let ended = server.finish_within(BOUND);
    assert_eq!(ended.status.signal(), None, "{ended:#?}");
}
