//! Connections by IP address on soft devices.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::soft::{Fabric, Fault, SoftDevice};
use bareverbs::{Access, Buffer, Datagrams, Device, Endpoint, Mr, Op, Pool, PoolBuffer};
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::datagram::DatagramSocketOptions;
use bareverbs_rdmacm::event::RejectReason;
use bareverbs_rdmacm::stream::{RdmaStream, StreamOptions};
use bareverbs_rdmacm::{
    CmId, ConnParam, ConnectOptions, Connected, Connector, Error, EventChannel, IdOptions, JoinMode,
    Listener, PortSpace,
};

/// A fabric with two devices.
struct Network {
    devices: [SoftDevice; 2],
    domains: Domains,
    fabric: Fabric,
}

impl Network {
    fn new() -> Self {
        Self::on(Fabric::new())
    }

    fn on(fabric: Fabric) -> Self {
        let devices = [(); 2].map(|()| SoftDevice::new(&fabric));
        Self { devices, domains: Domains::on(&fabric), fabric }
    }

    fn listener(&self) -> Listener {
        let address = (self.devices[1].address(), 0);
        Listener::bind_with_domains(&self.domains, &IdOptions::default(), address).unwrap()
    }

    fn connector(&self) -> Connector {
        Connector::with_domains(&self.domains)
    }

    /// Both ends of a stream, on a seeded fabric. One thread does both, so that no time passes that a wait
    /// did not ask for.
    fn streams(&self) -> (RdmaStream, RdmaStream) {
        let options = StreamOptions::default().domains(&self.domains);
        let listener = options.listen((self.devices[1].address(), 0)).unwrap();
        let mut connecting = options.connect(listener.local_addr());
        assert!(connecting.wait_timeout(Duration::from_millis(1)).is_none());
        let accepted = listener.accept().wait().unwrap();
        (connecting.wait().unwrap(), accepted)
    }
}

/// Answers a message and waits for the end of the connection.
fn serve(peer: Connected<Endpoint<Mr<Buffer>>>) {
    let Connected { mut queue, mut link } = peer;
    let pd = queue.qp().pd().clone();
    queue.post(Op::recv(pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap())).unwrap();
    let received = queue.next().wait().unwrap();
    assert_eq!(received.message(), Some(&b"ping"[..]));
    queue.post(Op::send_inline(b"pong")).unwrap();
    queue.next().wait().unwrap();
    link.ended().wait().unwrap();
}

fn ping(peer: Connected<Endpoint<Mr<Buffer>>>) {
    let Connected { mut queue, mut link } = peer;
    let pd = queue.qp().pd().clone();
    queue.post(Op::recv(pd.register(Buffer::zeroed(64).unwrap(), Access::LOCAL_WRITE).unwrap())).unwrap();
    queue.post(Op::send_inline(b"ping")).unwrap();
    let mut answers = 0;
    for _ in 0..2 {
        let done = queue.next().wait().unwrap();
        answers += usize::from(done.message() == Some(&b"pong"[..]));
    }
    assert_eq!(answers, 1);
    link.disconnect().wait().unwrap();
}

#[test]
fn endpoints_connect_and_disconnect() {
    let network = Network::new();
    let listener = network.listener();
    let server = listener.local_addr().unwrap();
    let options = Endpoint::options().inline(16);
    thread::scope(|scope| {
        scope.spawn(|| serve(listener.accept(&options).wait().unwrap()));
        let connected = network.connector().connect(server, &options).wait().unwrap();
        assert_eq!(connected.link.peer_addr().unwrap().ip(), Some(server));
        ping(connected);
    });
}

#[test]
fn private_data_and_rejections_reach_the_peer() {
    let network = Network::new();
    let listener = network.listener();
    let server = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.request().wait().unwrap();
            assert_eq!(&request.private_data()[..5], b"hello");
            request.reject(b"not today").unwrap();
            let request = listener.request().wait().unwrap();
            let pd = request.pd().wait().unwrap();
            let endpoint: Endpoint<PoolBuffer> = Endpoint::options().build(&pd).unwrap();
            let options = ConnectOptions { private_data: b"welcome", ..ConnectOptions::default() };
            let mut peer = request.accept(endpoint, &options).wait().unwrap();
            peer.link.ended().wait().unwrap();
        });
        let connect = |data: &'static [u8]| {
            let route = network.connector().resolve(server).wait().unwrap();
            let pd = route.pd().wait().unwrap();
            let endpoint: Endpoint<PoolBuffer> = Endpoint::options().build(&pd).unwrap();
            let options = ConnectOptions { private_data: data, ..ConnectOptions::default() };
            route.connect(endpoint, &options).wait()
        };
        let Err(Error::Rejected(rejected)) = connect(b"hello") else { panic!("it was accepted") };
        assert_eq!(rejected.reason, RejectReason::Consumer);
        assert_eq!(&rejected.private_data[..9], b"not today");
        let mut connected = connect(b"again").unwrap();
        assert_eq!(&connected.link.peer().private_data[..7], b"welcome");
        connected.link.disconnect().wait().unwrap();
    });
    let port = server.port() - 1;
    let refused = network.connector().connect::<PoolBuffer>((server.ip(), port), &Endpoint::options()).wait();
    let Err(Error::Rejected(rejected)) = refused else { panic!("it was accepted") };
    assert_eq!(rejected.reason, RejectReason::InvalidServiceId);
}

#[test]
fn lost_requests_end_a_connect_in_virtual_time() {
    let network = Network::on(Fabric::seeded(1));
    let listener = network.listener();
    let lost = network.fabric.inject(Fault::drop().to(&network.devices[1]));
    let start = Instant::now();
    let server = listener.local_addr().unwrap();
    let (connector, options) = (network.connector(), Endpoint::options());
    let connected: Result<Connected<Endpoint<Mr<Buffer>>>, _> = connector.connect(server, &options).wait();
    let error = connected.map(drop).unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    // The request and 15 retries.
    assert_eq!(lost.count(), 16);
    assert!(network.fabric.now() > Duration::from_secs(10), "{:?}", network.fabric.now());
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn streams_carry_bytes_both_ways() {
    const LEN: usize = 300_000;
    let network = Network::new();
    let options = StreamOptions::default().domains(&network.domains);
    let listener = options.listen((network.devices[1].address(), 0)).unwrap();
    let server = listener.local_addr();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 7) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut stream = listener.accept().wait().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert!(received == bytes);
            stream.write_all(b"thanks").unwrap();
            stream.close().wait().unwrap();
        });
        let mut stream = options.connect(server).wait().unwrap();
        assert_eq!(stream.peer_addr(), server);
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "thanks");
    });
}

#[test]
fn datagram_sockets_exchange_messages() {
    let network = Network::new();
    let options = DatagramSocketOptions::default().domains(&network.domains);
    let [mut one, mut other] =
        [0, 1].map(|at: usize| options.bind((network.devices[at].address(), 0)).unwrap());
    let [address, server] = [&one, &other].map(|socket| socket.local_addr().unwrap());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = [0; 64];
            for _ in 0..3 {
                let (len, from) = other.recv_from(&mut buffer).wait().unwrap();
                assert_eq!(from, address);
                other.send_to(&buffer[..len], from).wait().unwrap();
            }
        });
        let mut buffer = [0; 64];
        for message in [&b"one"[..], b"two", b"three"] {
            one.send_to(message, server).wait().unwrap();
            let (len, from) = one.recv_from(&mut buffer).wait().unwrap();
            assert_eq!((&buffer[..len], from), (message, server));
        }
    });
}

#[test]
fn datagram_service_is_resolved_and_joins_a_group() {
    let network = Network::new();
    let channel = EventChannel::on(&network.fabric).unwrap();
    let listener = CmId::new(&channel, PortSpace::Udp).unwrap();
    listener.bind_addr((network.devices[1].address(), 0)).unwrap();
    listener.listen(0).unwrap();
    let port = listener.addresses().unwrap().local.unwrap().port();
    let id = CmId::new(&EventChannel::on(&network.fabric).unwrap(), PortSpace::Udp).unwrap();
    id.resolve(None, (network.devices[1].address(), port)).wait().unwrap();
    id.connect(&ConnParam::new(0)).unwrap();
    let request = listener.request().wait().unwrap();
    let device = request.id().addresses().unwrap().device.unwrap();
    let pd = network.domains.pd(device).unwrap();
    let mut service: Datagrams = Datagrams::options().port(device.port).build(&pd).unwrap();
    let pool = Pool::new(&pd, 1, 40 + 4096).unwrap();
    service.post(Op::recv(pool.take().unwrap())).unwrap();
    request.accept(&ConnParam::new(service.qp().qp_num())).unwrap();
    let peer = id.ud_peer().wait().unwrap();
    let own = network.domains.pd(id.addresses().unwrap().device.unwrap()).unwrap();
    let mut client: Datagrams = Datagrams::options().inline(64).qkey(peer.qkey).build(&own).unwrap();
    let to = client.destination_with_path(&peer.address, peer.qp_num, peer.qkey).wait().unwrap();
    client.post(Op::send_to_inline(&to, b"hello")).unwrap();
    assert_eq!(service.next_recv().wait().unwrap().message(), b"hello");

    let member = CmId::new(&channel, PortSpace::Udp).unwrap();
    member.bind_addr((network.devices[0].address(), 0)).unwrap();
    let key = member.join_multicast((Ipv4Addr::new(239, 1, 2, 3), 0), JoinMode::Full).unwrap();
    let group = member.joined(key).wait().unwrap();
    assert_eq!(group.qp_num, 0xff_ffff);
    member.leave_multicast(key).unwrap();
}

#[test]
fn named_devices_are_served_by_new_channels() {
    let device = Device::find("soft7").unwrap();
    let address = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 8));
    assert_eq!(device.soft().unwrap().address(), address);
    let listener = Listener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let server = SocketAddr::new(address, listener.local_addr().unwrap().port());
    let options = Endpoint::options().inline(16);
    thread::scope(|scope| {
        scope.spawn(|| serve(listener.accept(&options).wait().unwrap()));
        let connected = Connector::new().connect(server, &options).wait().unwrap();
        let bound = connected.link.id().addresses().unwrap().device.unwrap();
        assert!(bound.find().unwrap().name().starts_with("soft"));
        ping(connected);
    });
}

#[test]
fn ids_move_between_channels() {
    let network = Network::new();
    let listener = network.listener();
    let server = listener.local_addr().unwrap();
    let options = Endpoint::options().inline(16);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut accepted = listener.accept(&options).wait().unwrap();
            accepted.link.own_channel().unwrap();
            serve(accepted);
        });
        let mut connected = network.connector().connect(server, &options).wait().unwrap();
        connected.link.own_channel().unwrap();
        ping(connected);
    });
}

#[test]
fn removed_device_ends_the_wait_of_a_listener() {
    let network = Network::new();
    let listener = network.listener();
    thread::scope(|scope| {
        let waits = scope.spawn(|| listener.request().wait().map(drop));
        network.devices[1].remove();
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(Error::DeviceRemoved { .. })), "{ended:?}");
    });
}

/// Time passes on the fabric only: the kernel's retries take more than a minute.
#[test]
fn silent_peer_is_unreachable_in_virtual_time() {
    let fabric = Fabric::seeded(7);
    let devices = [(); 2].map(|()| SoftDevice::new(&fabric));
    let lost = fabric.inject(Fault::drop().to(&devices[1]));
    let id = CmId::new(&EventChannel::on(&fabric).unwrap(), PortSpace::Tcp).unwrap();
    id.resolve(None, (devices[1].address(), 7174)).wait().unwrap();
    id.connect(&ConnParam::new(0x77)).unwrap();
    let begin = fabric.now();
    assert!(id.response().wait_timeout(Duration::from_secs(20)).is_none());
    let passed = fabric.now() - begin;
    assert!((20..21).contains(&passed.as_secs()), "{passed:?}");
    let error = id.response().wait().unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    let passed = fabric.now() - begin;
    assert!((60..90).contains(&passed.as_secs()), "{passed:?}");
    assert_eq!(lost.count(), 16);
    let error = id.channel().next().wait().unwrap_err();
    assert!(error.to_string().contains("seeded fabric"), "{error}");
}

/// The ends of the waits in real time have passed when they begin.
#[test]
fn limit_of_a_nanosecond_is_one_of_virtual_time() {
    const LIMIT: Duration = Duration::from_nanos(1);
    let network = Network::on(Fabric::seeded(9));
    let id = CmId::new(&EventChannel::on(&network.fabric).unwrap(), PortSpace::Tcp).unwrap();
    let listener = network.listener();
    let options = DatagramSocketOptions::default().domains(&network.domains);
    let mut socket = options.bind((network.devices[0].address(), 0)).unwrap();
    let mut before = network.fabric.now();
    let mut passed = || {
        let now = network.fabric.now();
        now - std::mem::replace(&mut before, now)
    };
    for _ in 0..3 {
        assert!(id.channel().next().wait_timeout(LIMIT).is_none());
        assert_eq!(passed(), LIMIT);
        assert!(listener.request().wait_timeout(LIMIT).is_none());
        assert_eq!(passed(), LIMIT);
        assert!(socket.recv_from(&mut [0; 8]).wait_timeout(LIMIT).is_none());
        assert_eq!(passed(), LIMIT);
        assert!(id.channel().try_wait().unwrap().is_none());
        assert_eq!(passed(), Duration::ZERO);
    }
}

#[test]
fn read_limit_of_a_stream_is_one_of_virtual_time() {
    const LIMIT: Duration = Duration::from_nanos(1);
    let network = Network::on(Fabric::seeded(10));
    let (mut stream, accepted) = network.streams();
    stream.set_read_timeout(Some(LIMIT));
    for _ in 0..3 {
        let before = network.fabric.now();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(network.fabric.now() - before, LIMIT);
    }
    drop(accepted);
}

#[test]
fn keepalive_of_a_stream_counts_virtual_time() {
    const HOUR: Duration = Duration::from_secs(3600);
    let network = Network::on(Fabric::seeded(11));
    let (mut stream, accepted) = network.streams();
    stream.set_keepalive(Some(HOUR)).unwrap();
    // The peer answers the probes.
    stream.set_read_timeout(Some(10 * HOUR));
    let before = network.fabric.now();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(network.fabric.now() - before, 10 * HOUR);
    // The next probe finds that the peer is gone.
    network.fabric.inject(Fault::drop());
    let before = network.fabric.now();
    let lost = stream.read(&mut [0]).unwrap_err();
    assert_ne!(lost.kind(), std::io::ErrorKind::TimedOut, "{lost}");
    assert!(network.fabric.now() - before < 2 * HOUR, "{:?}", network.fabric.now() - before);
    drop(accepted);
}

#[test]
fn datagram_socket_of_every_device_names_the_missing_source() {
    // The routes to 127.0.0.0/8 have the source address 127.0.0.1, which is that of `soft0`.
    let fabric = Fabric::new();
    let [one, other] = [70, 71].map(|last| {
        let address = IpAddr::V4(Ipv4Addr::new(127, 70, (std::process::id() % 250) as u8, last));
        SoftDevice::with_address(&fabric, address).unwrap()
    });
    let options = DatagramSocketOptions::default().domains(&Domains::on(&fabric));
    let mut socket = options.bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let refused = socket.connect((other.address(), 7174)).unwrap_err();
    let text = "DatagramSocket: no device has 127.0.0.1, the source address of this host's route to ";
    assert!(refused.to_string().starts_with(text), "{refused}");
    assert!(refused.to_string().ends_with(": bind the socket to the address of a device"), "{refused}");
    options.bind((one.address(), 0)).unwrap().connect((other.address(), 7174)).unwrap();
}

#[test]
fn errors_name_their_remedy() {
    let network = Network::new();
    let id = CmId::new(&EventChannel::on(&network.fabric).unwrap(), PortSpace::Tcp).unwrap();
    let error = id.bind_addr((Ipv4Addr::new(192, 0, 2, 7), 0)).unwrap_err();
    assert!(error.to_string().contains("no soft device of this process has the address"), "{error}");
    let error = id.resolve(None, (Ipv4Addr::new(127, 3, 3, 3), 1)).wait().unwrap_err();
    assert!(error.to_string().contains("no soft device of this process reaches the address"), "{error}");
}

/// The address of the peer process, in its environment.
const PEER: &str = "BAREVERBS_TEST_PEER";

/// The other process of the next test.
#[test]
fn peer_process() {
    let Ok(peer) = std::env::var(PEER) else { return };
    let [a, b, c, _] = peer.parse::<SocketAddrV4>().unwrap().ip().octets();
    Device::find(&format!("soft:{}", Ipv4Addr::new(a, b, c, 2))).unwrap();
    let options = Endpoint::options().inline(16);
    let connected = Connector::new().connect(peer.as_str(), &options).wait().unwrap();
    ping(connected);
}

#[test]
fn processes_connect_by_udp() {
    // No other run of this test has it.
    let [.., b, c] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, b | 0x40, c, 1);
    Device::find(&format!("soft:{address}")).unwrap();
    let listener = Listener::bind((address, 0)).unwrap();
    let options = Endpoint::options().inline(16);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "peer_process"])
        .env(PEER, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let accepted = listener.accept(&options).wait_timeout(Duration::from_secs(60));
    match accepted {
        Some(accepted) => serve(accepted.unwrap()),
        None => child.kill().unwrap(),
    }
    assert!(child.wait().unwrap().success());
}
