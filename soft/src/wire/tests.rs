//! Wires on addresses of the loopback network.

use std::net::UdpSocket;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::time::Instant;

use bareverbs_transport::packet::{Datagram as Deth, Headers, Operation, Remote, Transport};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A wire on an address that no other test has.
fn wire() -> UdpWire {
    on_free_address(UdpWire::bind)
}

/// Calls `bind` with an address that no other test has.
pub(crate) fn on_free_address<T>(bind: impl Fn(IpAddr) -> Result<T, AddressError>) -> T {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id().wrapping_mul(64).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let [_, a, b, c] = number.to_be_bytes();
        match bind(Ipv4Addr::new(127, a | 1, b, c).into()) {
            Err(AddressError::InUse { .. } | AddressError::NotLocal { .. }) => {}
            bound => return bound.unwrap(),
        }
    }
}

fn packet(from: &UdpWire, to: IpAddr, payload: Vec<u8>) -> Packet {
    let mut global = global_of(gid(from.address()), to);
    (global.hop_limit, global.traffic_class) = (9, 0x1c);
    Packet {
        route: Route { udp_source: ROCE, global: Some(global), ..Route::default() },
        transport: Transport::Rc,
        operation: Operation::WriteOnly,
        solicited: false,
        migrated: true,
        ack_request: true,
        pkey: 0xffff,
        destination: 0x11,
        psn: 0x22,
        headers: Headers {
            remote: Some(Remote { address: 0x1234, key: 7, length: payload.len() as u32 }),
            ..Headers::default()
        },
        payload,
        zero_copy: None,
    }
}

/// Receives until there are `count` packets.
fn take(wire: &UdpWire, count: usize) -> Vec<Packet> {
    let end = Instant::now() + TIMEOUT;
    let mut inbox = Inbox::new();
    while inbox.packets.len() < count {
        let (socket, groups) = wire.sockets();
        let mut ready: Vec<_> = groups.iter().map(|group| PollFd::new(&**group, PollFlags::IN)).collect();
        ready.push(PollFd::new(socket, PollFlags::IN));
        poll(&mut ready, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).unwrap();
        assert!(Instant::now() < end, "{} of {count} packets; {:?}", inbox.packets.len(), wire.dropped());
        wire.receive(&mut inbox);
    }
    inbox.packets
}

/// Frames of Linux 7.2's rxe between two hosts: an RC SEND and its ACK, a UD SEND.
const RXE: [&str; 6] = [
    "525400100101525400100102080045000034400e40004011e6a60a0100020a010001c16912b7002000000430ffff00000013809b96d4\
     7b7b7b7b7b000000a35cbda5",
    "525400100102525400100101080045000030fc62400040112a560a0100010a010002c16912b7001c00001100ffff00000013009b96d4\
     1f00000136300bce",
    "52540010010152540010010208004500003c426840004011e4440a0100020a010001e8ea12b7002800006430ffff0000001400476722\
     11111111000000147b7b7b7b7b0000009c93ff71",
    "52540010010152540010010286dd6000000000201140fe80000000000000505400fffe100102fe80000000000000505400fffe100101\
     c12112b7002000000430ffff0000001180a7c5a67b7b7b7b7b000000e1766a45",
    "52540010010252540010010186dd60000000001c1140fe80000000000000505400fffe100101fe80000000000000505400fffe100102\
     c12112b7001c00001100ffff0000001100a7c5a61f000001918bbee6",
    "52540010010152540010010286dd6000000000281140fe80000000000000505400fffe100102fe80000000000000505400fffe100101\
     f80612b7002800006430ffff000000120090952e11111111000000127b7b7b7b7b000000878985e8",
];

/// The datagram in a frame, and its destination.
fn datagram(frame: &[u8]) -> (IpAddr, Datagram<'_>) {
    let ip = &frame[14..];
    let (source, destination, udp): (IpAddr, IpAddr, _) = if ip[0] >> 4 == 4 {
        let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap()).into();
        (address(12), address(16), &ip[20..])
    } else {
        let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()).into();
        (address(8), address(24), &ip[40..])
    };
    let source = SocketAddr::new(source, u16::from_be_bytes([udp[0], udp[1]]));
    let datagram = Datagram { bytes: &udp[8..], source, hop_limit: 64, traffic_class: 0, lost: None };
    (destination, datagram)
}

#[test]
fn batches_of_packets_arrive_in_order_and_whole() {
    let (one, other) = (wire(), wire());
    let lengths = [100, 100, 100, 52, 100, 0, 1, 4096, 4096, 4095, 4096].into_iter();
    let lengths: Vec<usize> = lengths.chain([4096; 40]).chain([8; 70]).collect();
    let sent = |number: usize| {
        let payload: Vec<u8> = (0..lengths[number]).map(|at| (at + number) as u8).collect();
        Packet { psn: number as u32, ..packet(&one, other.address(), payload) }
    };
    let mut arrived = Vec::new();
    // In parts, for small receive buffers.
    for first in (0..lengths.len()).step_by(11) {
        let part = first..lengths.len().min(first + 11);
        part.clone().for_each(|number| one.send(&sent(number), false));
        one.flush();
        arrived.extend(take(&other, part.len()));
    }
    let of = |packet: &Packet| (packet.psn, packet.payload.clone());
    assert!(arrived.iter().map(of).eq((0..lengths.len()).map(|number| of(&sent(number)))));
    assert_eq!((one.dropped(), other.dropped()), (DroppedPackets::default(), DroppedPackets::default()));
}

#[test]
fn ipv6_datagrams_without_a_checksum_arrive() {
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let (receiver, sender) = (Socket::new(address).unwrap(), Socket::new(address).unwrap());
    net::bind(&receiver, &SocketAddr::new(address, 0)).unwrap();
    sender.set(libc::SOL_UDP, libc::UDP_NO_CHECK6_TX).unwrap();
    let to = net::getsockname(&receiver).unwrap();
    net::sendto(&sender, b"datagram", net::SendFlags::empty(), &to).unwrap();
    let mut ready = [PollFd::new(&receiver, PollFlags::IN)];
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut ready, Some(&timeout)), Ok(1));
}

#[test]
fn packets_of_rxe_are_decoded_and_damaged_ones_are_not() {
    for (frame, operation) in RXE.iter().zip([
        Operation::SendOnly,
        Operation::Acknowledge,
        Operation::SendOnly,
        Operation::SendOnly,
        Operation::Acknowledge,
        Operation::SendOnly,
    ]) {
        let byte = |at: usize| u8::from_str_radix(&frame[at..at + 2], 16).unwrap();
        let mut frame: Vec<_> = (0..frame.len()).step_by(2).map(byte).collect();
        let (destination, rxe) = datagram(&frame);
        let packet = decode(destination, &rxe).unwrap();
        assert_eq!((packet.operation, packet.pkey), (operation, 0xffff));
        let expected: &[u8] = if operation == Operation::SendOnly { &[0x7b; 5] } else { &[] };
        assert_eq!(packet.payload, expected);
        let mut bytes = Vec::new();
        bth::write(&packet, &mut bytes);
        assert_eq!(bytes, rxe.bytes[..rxe.bytes.len() - 4]);
        let last = frame.len() - 6;
        frame[last] ^= 1;
        let (_, damaged) = datagram(&frame);
        assert_eq!(decode(destination, &damaged), Err(DecodeError::Corrupt));
    }
}

#[test]
fn packets_of_all_lengths_arrive_unchanged() {
    let (one, other) = (wire(), wire());
    assert_eq!((one.interface.name.as_str(), one.mtu()), ("lo", 4096));
    for length in [0, 1, 2, 3, 4, 5, 255, 256, 1024, 4095, 4096] {
        let sent = packet(&one, other.address(), (0..length).map(|byte| byte as u8).collect());
        one.send_now(&sent, false);
        assert_eq!(take(&other, 1), [sent]);
    }
    assert_eq!((one.dropped(), other.dropped()), (DroppedPackets::default(), DroppedPackets::default()));
}

#[test]
fn packets_of_ipv6_arrive_unchanged() {
    let wire = match UdpWire::bind(Ipv6Addr::LOCALHOST.into()) {
        Ok(wire) => wire,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let sent = packet(&wire, wire.address(), vec![7; 33]);
    wire.send_now(&sent, false);
    assert_eq!(take(&wire, 1), [sent]);
}

#[test]
fn many_packets_arrive_in_order() {
    let (one, other) = (wire(), wire());
    for psn in 0..100 {
        one.send_now(&Packet { psn, ..packet(&one, other.address(), vec![psn as u8; 100]) }, false);
    }
    let found: Vec<_> = take(&other, 100).iter().map(|packet| packet.psn).collect();
    assert_eq!(found, Vec::from_iter(0..100));
}

#[test]
fn packets_of_another_source_are_refused() {
    let (one, other) = (wire(), wire());
    one.send_now(&packet(&other, other.address(), vec![1]), false);
    one.send_now(&packet(&one, Ipv6Addr::LOCALHOST.into(), vec![1]), false);
    assert_eq!(one.dropped().refused, 2);
}

#[test]
fn datagrams_that_are_too_long_are_dropped() {
    let wire = wire();
    let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    foreign.send_to(&[0; 6000], (wire.address(), ROCE)).unwrap();
    let other = super::tests::wire();
    other.send_now(&packet(&other, wire.address(), vec![1]), false);
    assert_eq!(take(&wire, 1).len(), 1);
    assert_eq!(wire.dropped(), DroppedPackets { malformed: 1, ..DroppedPackets::default() });
}

#[test]
fn datagrams_beyond_the_receive_buffer_are_counted() {
    let (one, other) = (wire(), wire());
    other.limit_receive_buffer(0);
    let packet = packet(&one, other.address(), vec![1; 1000]);
    for _ in 0..100 {
        one.send_now(&packet, false);
    }
    let before = take(&other, 1).len();
    // The next datagram reports the loss.
    one.send_now(&packet, false);
    take(&other, 1);
    assert_eq!(other.dropped().overflowed, 100 - before as u64);
    // Later ones report it again.
    one.send_now(&packet, false);
    take(&other, 1);
    assert_eq!(other.dropped().overflowed, 100 - before as u64);
}

#[test]
fn losses_of_all_sockets_are_added() {
    let (one, other) = (wire(), wire());
    let group: IpAddr =
        Ipv4Addr::new(239, 3, (std::process::id() >> 8) as u8, std::process::id() as u8).into();
    other.join(gid(group)).unwrap();
    other.limit_receive_buffer(0);
    sockopt::set_socket_recv_buffer_size(&*other.sockets().1[0], 0).unwrap();
    let to = [other.address(), group];
    let send = || to.into_iter().for_each(|to| one.send_now(&packet(&one, to, vec![1; 1000]), false));
    (0..100).for_each(|_| send());
    let before = take(&other, 2).len();
    // The next datagrams report the losses.
    send();
    take(&other, 2);
    assert_eq!(other.dropped().overflowed, 200 - before as u64);
}

#[test]
fn one_call_receives_a_limited_number_of_datagrams() {
    let wire = wire();
    let foreign = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for _ in 0..1000 {
        foreign.send_to(&[0; 4], (wire.address(), ROCE)).unwrap();
    }
    let mut inbox = Inbox::new();
    // Datagrams that are no packets count too.
    wire.receive(&mut inbox);
    let limit = wire.dropped().malformed;
    assert!((1..=512).contains(&limit), "{limit}");
}

#[test]
fn all_of_many_sockets_are_served() {
    let (one, other) = (wire(), wire());
    let [.., high, low] = std::process::id().to_be_bytes();
    // More than one call serves.
    for number in 100..120 {
        other.join(gid(Ipv4Addr::new(239, number, high, low).into())).unwrap();
    }
    let sent = packet(&one, other.address(), vec![1]);
    one.send_now(&sent, false);
    assert_eq!(take(&other, 1), [sent]);
}

#[test]
fn group_delivers_its_packets_until_it_is_left() {
    let (one, other) = (wire(), wire());
    let group: IpAddr =
        Ipv4Addr::new(239, 1, (std::process::id() >> 8) as u8, std::process::id() as u8).into();
    other.join(gid(group)).unwrap();
    other.join(gid(group)).unwrap();
    let mut sent = packet(&one, group, vec![1, 2, 3]);
    sent.transport = Transport::Ud;
    sent.operation = Operation::SendOnly;
    sent.destination = 0xff_ffff;
    sent.headers = Headers { datagram: Some(Deth { qkey: 1, source_qp: 2 }), ..Headers::default() };
    one.send_now(&sent, false);
    assert_eq!(take(&other, 1), [sent.clone()]);
    other.retain_groups(|member| *member != gid(group));
    one.send_now(&sent, false);
    let last = packet(&one, other.address(), vec![4]);
    one.send_now(&last, false);
    assert_eq!(take(&other, 1), [last]);
    assert_eq!(other.join([0; 16]), Err(Errno::INVAL));
    // A group of IPv6 has no packets on the wire of an IPv4 address.
    other.join(gid(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 0x42).into())).unwrap();
    assert!(other.sockets().1.is_empty());
}

#[test]
fn address_in_use_is_an_error_that_says_so() {
    let wire = wire();
    let error = UdpWire::bind(wire.address()).unwrap_err();
    assert!(matches!(error, AddressError::InUse { .. }));
    assert!(error.to_string().contains("rdma_rxe"), "{error}");
    let address = wire.address();
    drop(wire);
    UdpWire::bind(address).unwrap();
}

#[test]
fn mtu_leaves_room_for_the_headers() {
    let of = |mtu| super::mtu(&Interface { name: String::new(), index: 1, mtu });
    assert_eq!([65536, 4192, 4191, 1500, 352, 351, 0].map(of), [4096, 4096, 2048, 1024, 256, 0, 0]);
}

#[test]
fn address_of_another_host_is_an_error() {
    let documentation = Ipv4Addr::new(192, 0, 2, 1).into();
    assert!(matches!(UdpWire::bind(documentation), Err(AddressError::NotLocal { .. })));
}

#[test]
fn forked_child_does_not_keep_the_address() {
    let wire = wire();
    let address = wire.address();
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes two kinds of system calls, and ends by a signal.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let _ = rustix::io::write(&writer, &[1]);
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    let child = Pid::from_raw(child).expect("fork");
    // The child runs.
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]), Ok(1));
    drop(wire);
    let again = UdpWire::bind(address);
    kill_process(child, Signal::KILL).unwrap();
    waitpid(Some(child), WaitOptions::empty()).unwrap();
    again.unwrap();
}

#[test]
fn thread_receives_wakes_and_ends() {
    let (one, other) = (wire(), Arc::new(wire()));
    let address = other.address();
    let (sender, receiver) = mpsc::channel();
    let thread = WireThread::start(other, move |packets| {
        sender.send(packets.drain(..).count()).unwrap();
        None
    })
    .unwrap();
    assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(0));
    one.send_now(&packet(&one, address, vec![1]), false);
    assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(1));
    thread.wake();
    assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(0));
    drop(thread);
    UdpWire::bind(address).unwrap();
}

#[test]
fn thread_receives_from_groups_that_are_joined_while_it_waits() {
    let (one, other) = (wire(), Arc::new(wire()));
    let (sender, receiver) = mpsc::channel();
    let _thread = WireThread::start(Arc::clone(&other), move |packets| {
        sender.send(packets.drain(..).count()).unwrap();
        None
    })
    .unwrap();
    let [.., high, low] = std::process::id().to_be_bytes();
    for number in 10..30 {
        let group: IpAddr = Ipv4Addr::new(239, number, high, low).into();
        other.join(gid(group)).unwrap();
        one.send_now(&packet(&one, group, vec![1]), false);
        while receiver.recv_timeout(TIMEOUT).expect("a packet") == 0 {}
        other.retain_groups(|_| false);
    }
}

#[test]
fn thread_calls_at_the_time_asked_for() {
    let mut left = 3;
    let (sender, receiver) = mpsc::channel();
    let _thread = WireThread::start(Arc::new(wire()), move |_| {
        sender.send(()).unwrap();
        left -= 1;
        (left > 0).then_some(Duration::from_millis(1))
    })
    .unwrap();
    for _ in 0..3 {
        receiver.recv_timeout(TIMEOUT).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn damaged_and_foreign_datagrams_are_dropped_and_counted(
        noise in proptest::collection::vec(any::<u8>(), 0..100),
        at in 0..60usize,
        bit in 0..8u32,
        cut in 1..60usize,
    ) {
        thread_local!(static WIRES: (UdpWire, UdpWire, UdpSocket) = {
            let (one, other) = (wire(), wire());
            (one, other, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
        });
        WIRES.with(|(one, other, foreign)| {
            let source = foreign.local_addr().unwrap();
            let mut good = Vec::new();
            bth::write(&packet(one, other.address(), vec![3; 32]), &mut good);
            let global = global_of(gid(source.ip()), other.address());
            let headers = NetworkHeaders::new(&global, source.port(), good.len());
            good.extend_from_slice(&headers.icrc(&good).to_le_bytes());
            assert_eq!(good.len(), 64);
            let before = other.dropped();
            let to = (other.address(), ROCE);
            let mut damaged = good.clone();
            // The byte with FECN and BECN may change on the way.
            damaged[if at == 4 { 5 } else { at }] ^= 1 << bit;
            foreign.send_to(&damaged, to).unwrap();
            foreign.send_to(&good[..good.len() - cut], to).unwrap();
            foreign.send_to(&noise, to).unwrap();
            foreign.send_to(&good, to).unwrap();
            assert_eq!(take(other, 1).len(), 1);
            let after = other.dropped();
            assert_eq!(after.malformed + after.corrupt - before.malformed - before.corrupt, 3);
        });
    }
}
