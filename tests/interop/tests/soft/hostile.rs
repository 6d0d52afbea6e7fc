//! Packets of a third host to a soft device that is connected to rxe.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Instant;

use bareverbs::qp::QpState;
use bareverbs::soft::QpAction;
use bareverbs::values::Mtu;
use bareverbs_interop_tests::namespace::add_address;
use bareverbs_test_support::{TIMEOUT, device, kernel_test};
use bareverbs_transport::bth;
use bareverbs_transport::packet::{
    Acknowledge, Global, Headers, Network, Operation, Packet, Route, Transport, syndrome,
};
use bareverbs_transport::roce::NetworkHeaders;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};

use crate::host::{Hosts, Ip};
use crate::messages::{MEMORY, send_in_order};

/// The address of the third host.
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 3);
const ROCE: u16 = 4791;
const ROUNDS: usize = 5;
const MESSAGES: usize = 100;

/// A host that sends any bytes to the soft device.
struct Stranger {
    socket: UdpSocket,
    to: IpAddr,
}

impl Stranger {
    fn new(to: IpAddr) -> Self {
        add_address(STRANGER.into());
        let socket = UdpSocket::bind((STRANGER, 0)).expect("the host has the address");
        // The identification of the IPv4 header is 0 then, as the ICRC assumes.
        set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE).expect("a UDP socket");
        Self { socket, to }
    }

    fn send_bytes(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, (self.to, ROCE)).expect("the network takes it");
    }

    /// Sends a packet from the BTH to the padding, with an ICRC that differs from the right one by these
    /// bits.
    fn send(&self, transport: &[u8], wrong: u32) {
        let gid = |address: IpAddr| match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        let global = Global {
            source: gid(STRANGER.into()),
            destination: gid(self.to),
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            network: Network::Ipv4,
        };
        let port = self.socket.local_addr().expect("it is bound").port();
        let icrc = NetworkHeaders::new(&global, port, transport.len()).icrc(transport) ^ wrong;
        self.send_bytes(&[transport, &icrc.to_le_bytes()].concat());
    }
}

/// A packet of RC that would be valid if it came from the peer.
fn packet(destination: u32, operation: Operation, psn: u32, payload: &[u8]) -> Packet {
    Packet {
        route: Route::default(),
        transport: Transport::Rc,
        operation,
        solicited: false,
        migrated: true,
        ack_request: true,
        pkey: 0xffff,
        destination,
        psn,
        headers: Headers::default(),
        payload: payload.to_vec(),
        zero_copy: None,
    }
}

fn bytes_of(packet: &Packet) -> Vec<u8> {
    let mut bytes = Vec::new();
    bth::write(packet, &mut bytes);
    bytes
}

/// Sends one packet of each kind that the device must drop.
fn attack(stranger: &Stranger, qpn: u32, psns: std::ops::Range<u32>) {
    let send = |psn| packet(qpn, Operation::SendOnly, psn, &[0xdd; 64]);
    let valid = bytes_of(&send(psns.start));
    // Shorter than a BTH with ICRC, other bytes, as long as the interface takes.
    for length in [0, 1, 11, 15] {
        stranger.send_bytes(&vec![0x55; length]);
    }
    stranger.send_bytes(&[0xa5; 300]);
    stranger.send_bytes(&[0x04; 4172]);
    // Bits of the ICRC, one or all.
    stranger.send(&valid, 1 << 17);
    stranger.send(&valid, u32::MAX);
    // A transport header version, a reserved transport, a reserved opcode, more padding than payload, a
    // payload whose length is no multiple of 4, headers that are cut off.
    let mut version = valid.clone();
    version[1] |= 1;
    stranger.send(&version, 0);
    for opcode in [0xe4, 0x1f, 0x5f] {
        let mut changed = valid.clone();
        changed[0] = opcode;
        stranger.send(&changed, 0);
    }
    let mut padded = bytes_of(&packet(qpn, Operation::SendOnly, psns.start, &[]));
    padded[1] |= 3 << 4;
    stranger.send(&padded, 0);
    stranger.send(&valid[..valid.len() - 2], 0);
    let mut write = valid[..16].to_vec();
    write[0] = Operation::WriteOnly as u8;
    stranger.send(&write, 0);
    // QPNs that no QP has, the two special ones and that of multicast.
    for other in [qpn + 1, 0, 1, 0xff_fffe, 0xff_ffff] {
        stranger.send(&bytes_of(&packet(other, Operation::SendOnly, psns.start, &[0xdd; 64])), 0);
    }
    // Requests and responses that would be right from the peer's address.
    for psn in psns {
        stranger.send(&bytes_of(&send(psn)), 0);
        for syndrome in [syndrome::ACK, syndrome::NAK_SEQUENCE, syndrome::NAK_ACCESS] {
            let mut response = packet(qpn, Operation::Acknowledge, psn, &[]);
            response.headers.acknowledge = Some(Acknowledge { syndrome, messages: 1 });
            stranger.send(&bytes_of(&response), 0);
        }
    }
}

#[kernel_test(device::soft_roce)]
fn packets_of_a_third_host_do_not_disturb_a_connection() {
    let hosts = Hosts::new(Ip::V4);
    let log = hosts.soft_device.fabric().log(100_000);
    let _printed = log.print_on_panic();
    let stranger = Stranger::new(hosts.ip.soft());
    let mut peers = hosts.peers(Mtu::Mtu1024, MEMORY);
    let qpn = peers[1].qp.qp_num();
    let begin = Instant::now();
    for round in 0.. {
        // The connection begins with PSN 0 in both directions.
        attack(&stranger, qpn, 0..8);
        let [rxe, soft] = &mut peers;
        send_in_order(rxe, soft, MESSAGES);
        attack(&stranger, qpn, 0..8);
        send_in_order(soft, rxe, MESSAGES);
        let dropped = hosts.soft_device.dropped();
        let has_arrived = |syndrome| {
            log.of_qp(hosts.ip.soft(), qpn).iter().any(|entry| {
                matches!(entry.action, QpAction::Received(packet) if packet.syndrome == Some(syndrome))
            })
        };
        if round >= ROUNDS
            && dropped.malformed > 0
            && dropped.corrupt > 0
            && has_arrived(syndrome::NAK_ACCESS)
        {
            break;
        }
        assert!(begin.elapsed() < 2 * TIMEOUT, "the packets have not arrived: {dropped:?}");
    }
    for peer in &peers {
        assert_eq!(peer.qp.query().expect("the QP").0.qp_state, QpState::RTS);
    }
}
