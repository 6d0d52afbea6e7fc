//! The packets between rxe and a soft device, as they are on the wire and as a fabric records them.

use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use bareverbs::device::{PlacementType, SelectivityLevel};
use bareverbs::qp::Operation as Request;
use bareverbs::values::Mtu;
use bareverbs_test_support::{TIMEOUT, device, kernel_test};
use bareverbs_transport::packet::{Operation, Packet};
use bareverbs_transport::roce;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::host::{Hosts, Ip};
use crate::messages::{MEMORY, send_in_order};

/// Receives the frames of all interfaces of this network namespace that have the UDP port of RoCE.
fn frames() -> Receiver<Vec<u8>> {
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
        .expect("root may have packet sockets");
    let mut socket = File::from(socket);
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length) = socket.read(&mut buffer) {
            let frame = &buffer[..length];
            if is_roce(frame) && sender.send(frame.to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Whether the frame is IP with UDP to port 4791.
fn is_roce(frame: &[u8]) -> bool {
    let (protocol, port) = match frame.get(12..14) {
        Some([0x08, 0x00]) => (frame.get(23), frame.get(36..38)),
        Some([0x86, 0xdd]) => (frame.get(20), frame.get(56..58)),
        _ => return false,
    };
    protocol == Some(&17) && port == Some(&4791_u16.to_be_bytes())
}

/// Traffic of all kinds between the two devices, in both directions.
fn exchange(hosts: &Hosts) {
    let mut peers = hosts.peers(Mtu::Mtu1024, MEMORY);
    let capabilities = *hosts.rxe.context().capabilities();
    for requester in [0, 1] {
        let remote = peers[1 - requester].memory.remote(0).unwrap();
        for length in [0, 1, 1024, 3001] {
            peers[requester].execute(Request::Write(remote), 0..length);
            peers[requester].execute(Request::Read(remote), 0..length);
        }
        peers[requester].execute(Request::FetchAdd { remote, add: 1 }, 0..8);
        peers[requester].execute(Request::CmpSwp { remote, compare: 0, swap: 1 }, 0..8);
        if capabilities.atomic_write {
            peers[requester].execute(Request::AtomicWrite { remote, value: [1; 8] }, 0..0);
        }
        if capabilities.flush {
            let (placement, level) = (PlacementType::GLOBAL, SelectivityLevel::RANGE);
            peers[requester].execute(Request::Flush { remote, length: 8, placement, level }, 0..0);
        }
    }
    let [rxe, soft] = &mut peers;
    send_in_order(rxe, soft, 100);
    send_in_order(soft, rxe, 100);
}

/// The packets of frames, all of which must be sound.
fn packets(frames: &[Vec<u8>]) -> Vec<Packet> {
    let packet = |frame: &Vec<u8>| {
        roce::decode(frame).unwrap_or_else(|| panic!("a malformed frame or a wrong ICRC: {frame:02x?}"))
    };
    frames.iter().map(packet).collect()
}

/// An operation that one of the devices has sent no packet of.
fn missing_operation(hosts: &Hosts, packets: &[Packet]) -> Option<(Operation, IpAddr)> {
    let mut operations = vec![
        Operation::SendOnly,
        Operation::SendFirst,
        Operation::SendLast,
        Operation::WriteOnly,
        Operation::WriteFirst,
        Operation::ReadRequest,
        Operation::ReadResponseOnly,
        Operation::ReadResponseFirst,
        Operation::CompareSwap,
        Operation::FetchAdd,
        Operation::AtomicAcknowledge,
        Operation::Acknowledge,
    ];
    let capabilities = hosts.rxe.context().capabilities();
    operations.extend(capabilities.atomic_write.then_some(Operation::AtomicWrite));
    operations.extend(capabilities.flush.then_some(Operation::Flush));
    let is_missing = |operation, address| {
        let source = |packet: &Packet| packet.route.global.expect("RoCE v2").source;
        let is_of = |packet: &Packet| {
            packet.operation == operation && Ipv6Addr::from(source(packet)).to_canonical() == address
        };
        !packets.iter().any(is_of)
    };
    let pairs =
        operations.into_iter().flat_map(|operation| hosts.addresses().map(|address| (operation, address)));
    pairs.into_iter().find(|&(operation, address)| is_missing(operation, address))
}

#[kernel_test(device::soft_roce)]
fn all_packets_of_both_devices_are_sound() {
    for ip in [Ip::V4, Ip::V6] {
        let hosts = Hosts::new(ip);
        let path = std::env::temp_dir().join(format!("soft-{}.pcap", std::process::id()));
        let fabric = hosts.soft_device.fabric();
        fabric.capture(File::create(&path).unwrap()).unwrap();
        let receiver = frames();
        let begin = Instant::now();
        let mut on_wire = Vec::new();
        // The packet socket loses frames that are not read in time.
        loop {
            exchange(&hosts);
            // The thread sends the frames that it has not sent yet with the next exchange.
            on_wire.extend(receiver.try_iter());
            let missing = missing_operation(&hosts, &packets(&on_wire));
            if missing.is_none() {
                break;
            }
            assert!(begin.elapsed() < TIMEOUT, "no packet of {missing:?}");
        }
        fabric.end_capture().unwrap();

        let capture = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let recorded: Vec<_> = records(&capture).into_iter().map(<[u8]>::to_vec).collect();
        assert_eq!(missing_operation(&hosts, &packets(&recorded)), None);
    }
}

/// The frames of a pcap file of this machine's byte order.
fn records(mut capture: &[u8]) -> Vec<&[u8]> {
    const FILE_HEADER: usize = 24;
    const RECORD_HEADER: usize = 16;
    let mut frames = Vec::new();
    capture = &capture[FILE_HEADER..];
    while let Some((header, rest)) = capture.split_at_checked(RECORD_HEADER) {
        let length = u32::from_ne_bytes(header[8..12].try_into().expect("4 bytes")) as usize;
        let (frame, rest) = rest.split_at(length);
        frames.push(frame);
        capture = rest;
    }
    frames
}
