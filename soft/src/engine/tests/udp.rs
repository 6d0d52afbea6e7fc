//! Devices whose packets go over UDP: each has a fabric of its own, as in another process.

use std::net::IpAddr;

use bareverbs_provider::work::Imm;
use bareverbs_uapi::write::types::WcOpcode;

use super::*;
use crate::address_error::AddressError;
use crate::wire::gid as gid_of;
use crate::wire::tests::on_free_address;
use crate::wire::{ROCE, UdpWire};

const OK: WcStatus = WcStatus::SUCCESS;

fn peer() -> (Peer, IpAddr) {
    on_free_address(|address| {
        let fabric = Fabric::new();
        let (device, _) = fabric.add_udp_device(address, [2, 0, 0, 0, 0, 1])?;
        Ok((Peer::of(&fabric, device, 256), address))
    })
}

fn av_of(address: IpAddr) -> Av {
    let grh = GlobalRoute { dgid: gid_of(address), hop_limit: 64, ..GlobalRoute::new_zeroed() };
    Av { port_num: 1, network_type: NetworkType::IPV4, grh, ..Av::new_zeroed() }
}

/// The attributes of a connection over a UDP wire.
fn attributes(peer: &Peer, address: IpAddr, qpn: u32) -> QpAttributes {
    let route = peer.with(|engine| engine.route(&av_of(address))).unwrap();
    // Half a second, for busy machines.
    QpAttributes { route, mtu: 4096, ack_timeout: 17, retry_count: 7, ..peer.attributes((2, qpn)) }
}

fn pair(qp_type: QpType, change: impl Fn(&mut QpAttributes)) -> (Pair, [IpAddr; 2]) {
    let ((a, to_a), (b, to_b)) = (peer(), peer());
    let (qa, qb) = (a.qp(qp_type), b.qp(qp_type));
    for (peer, qp, to) in [(&a, &qa, (to_b, qb.qpn)), (&b, &qb, (to_a, qa.qpn))] {
        let mut attributes = attributes(peer, to.0, to.1);
        change(&mut attributes);
        peer.connect_with(qp, &attributes);
    }
    (Pair { a, b, qa, qb }, [to_a, to_b])
}

#[test]
fn rc_moves_data_of_all_lengths() {
    let (mut pair, _) = pair(QpType::RC, |_| {});
    for length in [0, 1, 7, 4095, 4096, 4097, 100_000, MEMORY / 2] {
        let data = pattern(length, 1);
        pair.a.fill(0, &data);
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, length)]);
        let found = pair.a.wait();
        assert_eq!((found.wr_id, found.status), (1, OK));
        assert_eq!(pair.b.bytes(0, length), data);
        pair.qa.post(2, Operation::Read(pair.b.remote(0)), &[pair.a.sge(MEMORY / 2, length)]);
        let found = pair.a.wait();
        assert_eq!((found.wr_id, found.status, found.byte_len as usize), (2, OK, length));
        assert_eq!(pair.a.bytes(MEMORY / 2, length), data);
        pair.qb.receive(3, &[pair.b.sge(MEMORY / 2, length)]);
        pair.qa.post(4, Operation::SendImm(Imm(7)), &[pair.a.sge(0, length)]);
        let found = pair.b.wait();
        assert_eq!((found.wr_id, found.status, found.imm()), (3, OK, Some(Imm(7))));
        assert_eq!(pair.b.bytes(MEMORY / 2, length), data);
        assert_eq!(pair.a.wait().wr_id, 4);
    }
}

#[test]
fn late_receive_is_found_by_retries() {
    let (mut pair, _) = pair(QpType::RC, |_| {});
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 100)]);
    pair.qb.receive(2, &[pair.b.sge(0, 100)]);
    assert_eq!((pair.b.wait().wr_id, pair.a.wait().status), (2, OK));
}

#[test]
fn lost_packets_are_repeated() {
    let (mut pair, _) = pair(QpType::RC, |_| {});
    // Room for two packets or so.
    pair.b.with(|engine| engine.wire().unwrap().limit_receive_buffer(0));
    let dropped = |pair: &Pair| pair.b.with(|engine| engine.wire().unwrap().dropped());
    let end = Instant::now() + TIMEOUT;
    let mut seed = 0;
    while dropped(&pair).overflowed == 0 {
        seed += 1;
        let data = pattern(100_000, seed);
        pair.a.fill(0, &data);
        pair.qa.post(1, Operation::Write(pair.b.remote(0)), &[pair.a.sge(0, data.len())]);
        assert_eq!(pair.a.wait().status, OK);
        assert_eq!(pair.b.bytes(0, data.len()), data);
        assert!(Instant::now() < end, "no packet was lost");
    }
}

#[test]
fn peer_that_is_gone_exhausts_the_retries() {
    let (Pair { mut a, mut qa, b, .. }, _) = pair(QpType::RC, |attributes| {
        (attributes.retry_count, attributes.ack_timeout) = (2, 12);
    });
    b.remove();
    qa.post(1, Operation::Send, &[a.sge(0, 100)]);
    assert_eq!(a.wait().status, WcStatus::RETRY_EXC_ERR);
    assert_eq!(a.state(&qa), State::Error);
}

#[test]
fn connected_qp_receives_from_its_peer_only() {
    let (mut pair, [_, to_b]) = pair(QpType::UC, |_| {});
    let (stranger, _) = peer();
    let mut strange = stranger.qp(QpType::UC);
    stranger.connect_with(&strange, &attributes(&stranger, to_b, pair.qb.qpn));
    for number in 1..3 {
        pair.qb.receive(number, &[pair.b.sge(0, 100)]);
    }
    stranger.fill(0, &[1; 100]);
    pair.a.fill(0, &[2; 100]);
    strange.post(1, Operation::Send, &[stranger.sge(0, 100)]);
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 100)]);
    assert_eq!(pair.b.wait().wr_id, 1);
    assert_eq!(pair.b.bytes(0, 100), [2; 100]);
    assert_eq!(pair.b.drain(), []);
}

#[test]
fn wire_brings_no_packet_from_an_address_of_the_fabric() {
    let ((mut b, to_b), (stranger, to_a), (honest, to_c)) = (peer(), peer(), peer());
    let device = b.fabric.add_device(vec![gid_of(to_a)], [2, 0, 0, 0, 0, 2]);
    let a = Peer::of(&b.fabric, device.unwrap(), 16);
    let [qa, mut qb, mut qc] = [&a, &b, &b].map(|peer| peer.qp(QpType::UC));
    let [mut strange, mut other] = [&stranger, &honest].map(|peer| peer.qp(QpType::UC));
    a.connect_with(&qa, &attributes(&a, to_b, qb.qpn));
    b.connect_with(&qb, &attributes(&b, to_a, qa.qpn));
    b.connect_with(&qc, &attributes(&b, to_c, other.qpn));
    stranger.connect_with(&strange, &attributes(&stranger, to_b, qb.qpn));
    honest.connect_with(&other, &attributes(&honest, to_b, qc.qpn));
    qb.receive(1, &[b.sge(0, 100)]);
    qc.receive(2, &[b.sge(0, 100)]);
    strange.post(1, Operation::Send, &[stranger.sge(0, 100)]);
    other.post(1, Operation::Send, &[honest.sge(0, 100)]);
    assert_eq!((b.wait().wr_id, b.drain()), (2, vec![]));
}

#[test]
fn datagrams_and_multicast_reach_other_processes() {
    let ((mut a, _), (mut b, to_b)) = (peer(), peer());
    let (mut qa, mut qb) = (a.qp(QpType::UD), b.qp(QpType::UD));
    for (peer, qp) in [(&a, &qa), (&b, &qb)] {
        peer.connect_with(qp, &QpAttributes { qkey: QKEY, ..QpAttributes::default() });
    }
    let [.., high, low] = std::process::id().to_be_bytes();
    let group: IpAddr = [239, 2, high, low].into();
    b.with(|engine| engine.attach(qb.qpn, gid_of(group))).unwrap();
    for (number, (to, qpn)) in [(to_b, qb.qpn), (group, 0xff_ffff)].into_iter().enumerate() {
        let ah = a.with(|engine| engine.create_ah(PD, av_of(to))).unwrap();
        qb.receive(number as u64, &[b.sge(0, 140)]);
        a.fill(0, &[7 + number as u8; 100]);
        qa.post_datagram(1, ah, qpn, &[a.sge(0, 100)]);
        assert_eq!(a.wait().status, OK);
        let found = b.wait();
        assert_eq!((found.wr_id, found.status, found.opcode), (number as u64, OK, WcOpcode::RECV));
        assert_eq!((found.byte_len, found.src_qp), (140, qa.qpn));
        assert_eq!(b.bytes(40, 100), [7 + number as u8; 100]);
    }
    b.with(|engine| engine.detach(qb.qpn, gid_of(group))).unwrap();
}

#[test]
fn address_has_one_device_until_its_removal() {
    let (one, address) = peer();
    let again = one.fabric.add_udp_device(address, [2; 6]);
    assert!(matches!(again, Err(AddressError::InUse { .. })));
    one.remove();
    one.fabric.add_udp_device(address, [2; 6]).unwrap();
}

#[test]
fn thread_of_a_removed_device_does_not_run_its_successor() {
    let (Pair { a, b, mut qa, .. }, _) = pair(QpType::RC, |_| {});
    b.remove();
    // A retry timer remains.
    qa.post(1, Operation::Send, &[a.sge(0, 100)]);
    let before = on_free_address(UdpWire::bind);
    assert_eq!(a.fabric.run_wire(a.device, &before), None);
}

#[test]
fn devices_of_one_fabric_need_no_wire() {
    let fabric = Fabric::new();
    let bind = |address| Ok((fabric.add_udp_device(address, [2; 6])?.0, address));
    let ((one, to_a), (other, to_b)) = (on_free_address(bind), on_free_address(bind));
    let (mut a, b) = (Peer::of(&fabric, one, 16), Peer::of(&fabric, other, 16));
    let (mut qa, qb) = (a.qp(QpType::RC), b.qp(QpType::RC));
    a.connect_with(&qa, &attributes(&a, to_b, qb.qpn));
    b.connect_with(&qb, &attributes(&b, to_a, qa.qpn));
    a.fill(0, &[9; 100]);
    qa.post(1, Operation::Write(b.remote(0)), &[a.sge(0, 100)]);
    // No other thread takes part.
    assert_eq!(a.drain(), [(1, OK)]);
    assert_eq!(b.bytes(0, 100), [9; 100]);
}

#[test]
fn devices_of_one_fabric_receive_multicast_once() {
    const COUNT: u64 = 10;
    let fabric = Fabric::new();
    let bind = |address| Ok((fabric.add_udp_device(address, [2; 6])?.0, address));
    let ((one, _), (other, _)) = (on_free_address(bind), on_free_address(bind));
    let (mut a, mut b) = (Peer::of(&fabric, one, 16), Peer::of(&fabric, other, 16));
    let (mut c, _) = peer();
    let [mut qa, mut qb, mut qc] = [&a, &b, &c].map(|peer| peer.qp(QpType::UD));
    for (peer, qp) in [(&a, &qa), (&b, &qb), (&c, &qc)] {
        peer.connect_with(qp, &QpAttributes { qkey: QKEY, ..QpAttributes::default() });
    }
    let [.., high, low] = std::process::id().to_be_bytes();
    let group: IpAddr = [239, 4, high, low].into();
    b.with(|engine| engine.attach(qb.qpn, gid_of(group))).unwrap();
    let place = |number: u64| 41 * number as usize;
    (0..=COUNT).for_each(|number| qb.receive(number, &[b.sge(place(number), 41)]));
    // A second copy of a message would come before that of another process.
    for number in 0..=COUNT {
        let (from, qp) = if number < COUNT { (&mut a, &mut qa) } else { (&mut c, &mut qc) };
        let ah = from.with(|engine| engine.create_ah(PD, av_of(group))).unwrap();
        from.fill(0, &[number as u8]);
        qp.post_datagram(number, ah, 0xff_ffff, &[from.sge(0, 1)]);
        assert_eq!((from.wait().wr_id, b.wait().wr_id), (number, number));
        assert_eq!(b.bytes(place(number) + 40, 1), [number as u8]);
    }
}

#[test]
#[ignore = "a measurement"]
fn latency_and_bandwidth_over_udp() {
    const ROUNDS: u32 = 10_000;
    let (mut pair, _) = pair(QpType::RC, |_| {});
    let (sa, sb) = ([pair.a.sge(0, 64)], [pair.b.sge(0, 64)]);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        pair.qb.receive(1, &sb);
        pair.qa.post(1, Operation::Send, &sa);
        assert_eq!((pair.b.wait().status, pair.a.wait().status), (OK, OK));
    }
    println!("64-byte send with its ACK: {:?}", start.elapsed() / ROUNDS);

    const LENGTH: usize = 1 << 16;
    let (ra, rb) = (pair.a.sge(0, LENGTH), pair.b.remote(0));
    let start = Instant::now();
    for posted in 0..ROUNDS {
        pair.qa.post(1, Operation::Write(rb), &[ra]);
        if posted >= 8 {
            assert_eq!(pair.a.wait().status, OK);
        }
    }
    let each = start.elapsed() / ROUNDS;
    println!("64 KiB write {each:?}: {} MB/s", LENGTH as u128 * 1000 / each.as_nanos());
}

#[test]
fn capture_has_the_ports_of_the_wire() {
    let (mut pair, _) = pair(QpType::RC, |_| {});
    let file = super::records::Bytes::default();
    pair.a.fabric.capture(file.clone()).unwrap();
    pair.qb.receive(2, &[pair.b.sge(0, 100)]);
    pair.qa.post(1, Operation::Send, &[pair.a.sge(0, 100)]);
    assert_eq!((pair.b.wait().wr_id, pair.a.wait().status), (2, OK));
    pair.a.fabric.end_capture().unwrap();
    // Requests that it has sent, and responses that it has received.
    let ports: Vec<_> = file.packets().iter().map(|(_, packet)| packet.route.udp_source).collect();
    assert!(ports.len() >= 2 && ports.iter().all(|port| *port == ROCE), "{ports:?}");
}
