//! Datagram sockets.

use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::qp::GRH_BYTES;
use bareverbs::runtime::{AsyncIo, Runtime, Tokio};
use bareverbs::{Datagrams, Errno, Op, Pool, PoolBuffer};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{child, device, kernel_test};
use bareverbs_rdmacm::Error;
use bareverbs_rdmacm::datagram::{DatagramError, DatagramSocket, DatagramSocketOptions};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::host::*;

const ANY: (Ipv4Addr, u16) = (Ipv4Addr::UNSPECIFIED, 0);

/// The first bytes of a UDP message of the protocol, with operation and QPN.
fn lookup(operation: u8, qp_num: u32) -> Vec<u8> {
    let mut bytes = vec![0x55, 0x55, 0x55, 0x55, 4, operation, 16, 0];
    bytes.extend(qp_num.to_be_bytes());
    bytes.extend([0; 4]);
    bytes
}

const DATA: u8 = 0;
const CONTROL: u8 = 7;

fn server() -> (DatagramSocket, SocketAddr) {
    let server = DatagramSocket::bind(SocketAddr::new(ip(), 0)).unwrap();
    let addr = server.local_addr().unwrap();
    (server, addr)
}

/// A socket that is connected to a server.
fn client(server: SocketAddr) -> DatagramSocket {
    let mut client = DatagramSocket::bind(ANY).unwrap();
    client.connect(server).unwrap();
    client
}

/// The next message.
#[track_caller]
fn received(socket: &mut DatagramSocket, into: &mut [u8]) -> (usize, SocketAddr) {
    socket.recv_from(into).wait_timeout(TIMEOUT).expect("a message in time").unwrap()
}

/// The length of the next message, if there is one.
fn try_recv(socket: &mut DatagramSocket, into: &mut [u8]) -> Option<usize> {
    Some(socket.recv_from(into).wait_timeout(Duration::ZERO)?.unwrap().0)
}

/// A UDP socket at the device's address.
fn plain_udp() -> UdpSocket {
    let udp = UdpSocket::bind(SocketAddr::new(ip(), 0)).unwrap();
    udp.set_read_timeout(Some(TIMEOUT)).unwrap();
    udp
}

/// The QPN in an answer to a lookup.
fn answered(udp: &UdpSocket) -> u32 {
    let mut answer = [0; 64];
    let len = udp.recv(&mut answer).unwrap();
    assert_eq!((len, &answer[..8]), (16, &lookup(CONTROL, 0)[..8]));
    u32::from_be_bytes(answer[8..12].try_into().unwrap())
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_sockets_exchange_messages() {
    nothing_leaks(|| {
        let (mut server, addr) = server();
        let echo = thread::spawn(move || {
            let mut message = [0; 2048];
            loop {
                let (len, sender) = received(&mut server, &mut message);
                server.send_to(&message[..len], sender).wait().unwrap();
                if len == 0 {
                    return;
                }
            }
        });
        let mut client = client(addr);
        assert_eq!((client.peer_addr(), client.local_addr().unwrap().ip()), (Some(addr), ip()));
        let max = client.max_message(addr).unwrap();
        for round in 0..200usize {
            // Inline, by reference, and of the largest size.
            let message = vec![round as u8; [1, 50, 500, max][round % 4]];
            let mut answer = [0; 2048];
            // Messages may be lost while the sides look each other up.
            let end = Instant::now() + TIMEOUT;
            loop {
                client.send(&message).wait().unwrap();
                match client.recv_from(&mut answer).wait_timeout(Duration::from_millis(100)).transpose() {
                    Ok(Some((len, _))) if answer[..len] == message => break,
                    Ok(_) => assert!(Instant::now() < end),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let too_long = client.send(&vec![0; max + 1]).wait().unwrap_err();
        assert!(matches!(too_long, DatagramError::TooLong { len, .. } if len == max + 1), "{too_long}");
        client.send(&[]).wait().unwrap();
        echo.join().unwrap();
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn messages_go_by_udp_until_the_peer_answers_the_lookup() {
    nothing_leaks(|| {
        let peer = plain_udp();
        let mut socket = client(peer.local_addr().unwrap());
        let mut queue = PeerQueue::new();
        // By UDP, and with the same queue pair each time.
        let [first, second] = [b"one", b"two"].map(|message| {
            socket.send(message).wait().unwrap();
            let mut bytes = [0; 64];
            let (len, sender) = peer.recv_from(&mut bytes).unwrap();
            assert_eq!(sender, socket.local_addr().unwrap());
            assert_eq!((&bytes[..8], &bytes[16..len]), (&lookup(DATA, 0)[..8], &message[..]));
            bytes[8..12].to_vec()
        });
        assert_eq!(first, second);
        peer.send_to(&lookup(CONTROL, queue.qp_num()), socket.local_addr().unwrap()).unwrap();
        // By RDMA, as soon as the path is resolved.
        let end = Instant::now() + TIMEOUT;
        let received = loop {
            socket.send(b"three").wait().unwrap();
            if let Some(message) = queue.recv() {
                break message;
            }
            assert!(Instant::now() < end, "no message by RDMA");
        };
        let SocketAddr::V4(local) = socket.local_addr().unwrap() else { panic!("an IPv4 address") };
        let mut header = vec![4, 8];
        header.extend(local.port().to_be_bytes());
        header.extend(local.ip().octets());
        assert_eq!(received, [&header[..], b"three"].concat());
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_socket_dropped_in_a_forked_child_polls_nothing() {
    nothing_leaks(|| {
        let peer = plain_udp();
        let mut socket = client(peer.local_addr().unwrap());
        let mut queue = PeerQueue::new();
        peer.send_to(&lookup(CONTROL, queue.qp_num()), socket.local_addr().unwrap()).unwrap();
        let end = Instant::now() + TIMEOUT;
        loop {
            socket.send(b"one").wait().unwrap();
            if queue.recv().is_some() {
                break;
            }
            assert!(Instant::now() < end, "no message by RDMA");
        }
        // The completion of the send was not polled.
        let mut slot = Some(socket);
        child::run(|| drop(slot.take()));
        slot.take().unwrap().send(b"of the parent").wait().unwrap();
        assert!(queue.recv().is_some());
    });
}

/// The UD queue pair of a peer that the test plays.
struct PeerQueue {
    datagrams: Datagrams<PoolBuffer>,
}

impl PeerQueue {
    fn new() -> Self {
        let pd = device::open().alloc_pd().unwrap();
        let mut datagrams: Datagrams = Datagrams::options().recvs(4).inline(64).build(&pd).unwrap();
        let pool = Pool::new(&pd, 4, GRH_BYTES + 2048).unwrap();
        while let Some(buffer) = pool.take() {
            datagrams.post(Op::recv(buffer)).unwrap();
        }
        Self { datagrams }
    }

    fn qp_num(&self) -> u32 {
        self.datagrams.address().qp_num
    }

    /// A message that arrives soon.
    fn recv(&mut self) -> Option<Vec<u8>> {
        let received =
            self.datagrams.next_recv().wait_timeout(Duration::from_millis(20)).transpose().unwrap()?;
        Some(received.message().to_vec())
    }

    /// Sends to the queue pair with a number on this host.
    fn send(&mut self, qp_num: u32, message: &[u8]) {
        let mut address = self.datagrams.address();
        address.qp_num = qp_num;
        let to = self.datagrams.destination(&address).wait().unwrap();
        self.datagrams.post(Op::send_to_inline(&to, message)).unwrap();
        self.datagrams.next_send().wait().unwrap();
    }
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn lookup_is_answered_and_its_message_received() {
    nothing_leaks(|| {
        let (mut socket, addr) = server();
        let (udp, mut queue) = (plain_udp(), PeerQueue::new());
        let from = udp.local_addr().unwrap();
        let mut message = lookup(DATA, queue.qp_num());
        message.extend(b"hello");
        udp.send_to(&message, addr).unwrap();
        let mut bytes = [0; 64];
        assert_eq!(received(&mut socket, &mut bytes), (5, from));
        assert_eq!(&bytes[..5], b"hello");
        let qp_num = answered(&udp);

        // A message by RDMA has the sender that its header says.
        let SocketAddr::V4(from) = from else { panic!("an IPv4 address") };
        let mut message = vec![4, 8];
        message.extend(from.port().to_be_bytes());
        message.extend(from.ip().octets());
        message.extend(b"again");
        queue.send(qp_num, &message);
        assert_eq!(received(&mut socket, &mut bytes), (5, from.into()));
        assert_eq!(&bytes[..5], b"again");
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn malformed_messages_are_ignored() {
    nothing_leaks(|| {
        let (mut socket, addr) = server();
        let (udp, mut queue) = (plain_udp(), PeerQueue::new());
        let whole = [&lookup(DATA, queue.qp_num())[..], b"end"].concat();
        let mut wrong_tag = whole.clone();
        wrong_tag[0] = 0;
        let mut of_ipv6 = whole.clone();
        of_ipv6[4] = 6;
        for message in [&[][..], &whole[..15], &wrong_tag, &of_ipv6, &[0xff; 3000]] {
            udp.send_to(message, addr).unwrap();
        }
        udp.send_to(&whole, addr).unwrap();
        let mut bytes = [0; 64];
        assert_eq!(received(&mut socket, &mut bytes).0, 3);
        let qp_num = answered(&udp);
        // Headers of no family, of a wrong length, and cut off.
        for message in [&[][..], &[4], &[5, 8, 0, 1, 10, 1, 0, 1], &[4, 24, 0, 1, 10, 1, 0, 1], &[6, 24, 0]] {
            queue.send(qp_num, message);
        }
        queue.send(qp_num, &[4, 8, 0, 1, 10, 9, 9, 9, 7]);
        let sender = SocketAddr::from((Ipv4Addr::new(10, 9, 9, 9), 1));
        assert_eq!(received(&mut socket, &mut bytes), (1, sender));
        assert_eq!(bytes[0], 7);
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn connected_socket_receives_from_its_peer_only() {
    nothing_leaks(|| {
        let (peer, other, mut queue) = (plain_udp(), plain_udp(), PeerQueue::new());
        let mut socket = client(peer.local_addr().unwrap());
        let local = socket.local_addr().unwrap();
        let message = [&lookup(DATA, queue.qp_num())[..], b"!"].concat();
        other.send_to(&message, local).unwrap();
        peer.send_to(&message, local).unwrap();
        let mut bytes = [0; 64];
        assert_eq!(received(&mut socket, &mut bytes), (1, peer.local_addr().unwrap()));
        queue.send(answered(&peer), &[4, 8, 0, 1, 10, 9, 9, 9, 7]);
        assert!(socket.recv_from(&mut bytes).wait_timeout(QUIET).is_none());
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_socket_errors_name_their_cause() {
    nothing_leaks(|| {
        let mut socket = DatagramSocket::bind(ANY).unwrap();
        let error = socket.send(b"to whom").wait().unwrap_err();
        assert!(matches!(error, DatagramError::NotConnected), "{error}");
        assert!(socket.recv_from(&mut [0; 8]).wait_timeout(Duration::ZERO).is_none());
        let error = DatagramSocket::bind("192.0.2.1:0").unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ADDRNOTAVAIL), "{error}");
        // A soft device has this address.
        if !device::is_soft_device() {
            let error = socket.connect("127.0.0.1:7174").unwrap_err();
            assert_eq!(error.errno(), Some(Errno::NODEV), "{error}");
        }
        let error = DatagramSocket::bind("no-such-host.invalid:1").unwrap_err();
        assert!(matches!(error, DatagramError::Cm(Error::Name { .. })), "{error}");

        // No socket is at the port: the host of the peer reports it.
        let free = plain_udp().local_addr().unwrap();
        let mut socket = client(free);
        let end = Instant::now() + TIMEOUT;
        let error = loop {
            if let Err(error) = socket.send(b"hello").wait() {
                break error;
            }
            assert!(Instant::now() < end, "no error");
        };
        assert_eq!(error.errno(), Some(Errno::CONNREFUSED), "{error}");
        let taken = UdpSocket::bind(SocketAddr::new(ip(), 0)).unwrap().local_addr().unwrap();
        let _keeps = DatagramSocket::bind(taken).unwrap();
        let error = DatagramSocket::bind(taken).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::ADDRINUSE), "{error}");
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn descriptor_tells_when_a_message_waits() {
    nothing_leaks(|| {
        let (mut server, addr) = server();
        let ready = |socket: &DatagramSocket, wait: Duration| {
            let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(wait).unwrap();
            poll(&mut fds, timeout).unwrap() == 1
        };
        let (mut client, mut bytes) = (client(addr), [0; 8]);
        for round in 0..20u8 {
            // Until the socket has nothing to do.
            while try_recv(&mut server, &mut bytes).is_some() || ready(&server, Duration::ZERO) {}
            client.send(&[round]).wait().unwrap();
            let end = Instant::now() + TIMEOUT;
            loop {
                assert!(ready(&server, TIMEOUT) && Instant::now() < end);
                // Else the descriptor reported the resolution of the path.
                if let Some(len) = try_recv(&mut server, &mut bytes) {
                    break assert_eq!((len, bytes[0]), (1, round));
                }
            }
            // The client gets the answer to its lookup.
            assert!(client.recv_from(&mut bytes).wait_timeout(Duration::from_millis(5)).is_none());
        }
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn full_send_queue_makes_its_sender_wait() {
    nothing_leaks(|| {
        let (mut server, addr) = server();
        let options = DatagramSocketOptions::default().send_buffer(4096).recv_buffer(1 << 20);
        let mut client = options.bind(ANY).unwrap();
        client.connect(addr).unwrap();
        let (stop, stopped) = mpsc::channel();
        let receiving = thread::spawn(move || {
            let (mut bytes, mut received) = ([0; 256], 0);
            while stopped.try_recv().is_err() {
                let len = self::received(&mut server, &mut bytes).0;
                assert_eq!((len, bytes[199]), (200, 1));
                received += 1;
            }
            received
        });
        // The first messages go by UDP, the others by RDMA, faster than the device sends them.
        let end = Instant::now() + QUIET;
        while Instant::now() < end {
            client.send(&[1; 200]).wait().unwrap();
        }
        stop.send(()).unwrap();
        while !receiving.is_finished() {
            client.send(&[1; 200]).wait().unwrap();
        }
        assert!(receiving.join().unwrap() > 0);
    });
}

/// A client in a task, and its server in another one. Messages may be lost while the sides look each
/// other up, so the client sends again after a pause.
async fn exchange_in_a_task<P: Future>(runtime: impl Runtime + Copy, pause: impl Fn() -> P) {
    let bind = |addr| DatagramSocketOptions::default().runtime(runtime).bind(addr).unwrap();
    let (mut server, mut client) = (bind(SocketAddr::new(ip(), 0)), bind(SocketAddr::from(ANY)));
    client.connect(server.local_addr().unwrap()).unwrap();
    let echo = async {
        let mut message = [0; 64];
        loop {
            let (len, sender) = server.recv_from(&mut message).await.unwrap();
            server.send_to(&message[..len], sender).await.unwrap();
        }
    };
    let exchange = async {
        let mut answer = [0; 64];
        for round in 0..50u8 {
            loop {
                client.send(&[round; 2]).await.unwrap();
                let received = first(client.recv_from(&mut answer), pause()).await;
                if received.is_some_and(|received| received.unwrap().0 == 2) && answer[0] == round {
                    break;
                }
            }
        }
    };
    first(exchange, echo).await.expect("the exchange ends");
}

/// The output of `one`, unless `other` ends before.
async fn first<T>(one: impl Future<Output = T>, other: impl Future) -> Option<T> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|cx| match one.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => other.as_mut().poll(cx).map(|_| None),
    })
    .await
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn tasks_exchange_datagrams() {
    const PAUSE: Duration = Duration::from_millis(100);
    nothing_leaks(|| {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(exchange_in_a_task(Tokio, || ::tokio::time::sleep(PAUSE)));
        ::async_io::block_on(exchange_in_a_task(AsyncIo, || ::async_io::Timer::after(PAUSE)));
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn task_without_a_runtime_does_not_wait_for_datagrams() {
    let mut socket = DatagramSocket::bind(ANY).unwrap();
    let refused = ::async_io::block_on(socket.recv_from(&mut [0; 8])).unwrap_err();
    assert!(matches!(refused, DatagramError::Cm(Error::Invalid { verb: "await", .. })), "{refused}");
}
