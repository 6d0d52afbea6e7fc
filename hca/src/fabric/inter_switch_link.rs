//! Inter-switch links (ISLs): sockets between the fabrics of two processes.
//!
//! Each side begins with a greeting. Messages follow: a length of four bytes, a kind of one byte,
//! and a packet with its route or a frame. A fabric forwards traffic for unknown ports to all its
//! links but the one of arrival, so the links must form a tree. A peer that sends a malformed
//! message is disconnected. A malicious peer can only send false packets and frames.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bareverbs_transport::bth;

use super::{Fabric, Origin};
use crate::engine::packet::{Global, Link, Network, Packet, Route};

/// The greeting; its last byte is the protocol version.
const GREETING: [u8; 4] = *b"bvf\x01";
/// Timeout of the greeting.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum message length in bytes: a frame of 64 KiB with its header.
const LONGEST: usize = 1 << 17;
/// Most messages queued for a slow peer; further ones are dropped.
const CAPACITY: usize = 1 << 13;

mod kind {
    pub(super) const PACKET: u8 = 1;
    pub(super) const FRAME: u8 = 2;
}

/// One end of an inter-switch link.
pub(super) struct InterSwitchLink {
    pub(super) number: u64,
    link: Link,
    outbox: SyncSender<Vec<u8>>,
}

impl InterSwitchLink {
    /// Queues a packet. It is dropped if the peer is too slow.
    pub(super) fn packet(&self, link: Link, packet: &Packet) {
        if link == self.link {
            self.send(&packet_body(packet));
        }
    }

    /// Queues a frame. It is dropped if the peer is too slow.
    pub(super) fn frame(&self, frame: &[u8]) {
        self.send(&frame_body(frame));
    }

    fn send(&self, body: &[u8]) {
        let message = [&(body.len() as u32).to_be_bytes(), body].concat();
        // A full outbox drops the message, as a full switch does.
        let _ = self.outbox.try_send(message);
    }
}

/// The message of a packet, without its length.
pub(super) fn packet_body(packet: &Packet) -> Vec<u8> {
    let mut body = vec![kind::PACKET];
    write_route(&packet.route, &mut body);
    bth::write(packet, &mut body);
    body
}

/// The message of a frame, without its length.
pub(super) fn frame_body(frame: &[u8]) -> Vec<u8> {
    [&[kind::FRAME], frame].concat()
}

/// Accepts inter-switch links until the fabric is dropped.
pub(super) fn listen(fabric: Weak<Fabric>, listener: Arc<UnixListener>, link: Link) -> io::Result<()> {
    std::thread::Builder::new().name("isls".into()).spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            // Each greeting runs on its own thread, so that a slow peer doesn't block others.
            let fabric = fabric.clone();
            let _ = std::thread::Builder::new().name("inter-switch-link".into()).spawn(move || {
                if let Err(error) = join(&fabric, &socket, link) {
                    eprintln!("bareverbs-hca: an inter-switch link was refused: {error}");
                }
            });
        }
    })?;
    Ok(())
}

/// Exchanges greetings and adds the link to the fabric.
pub(super) fn join(fabric: &Weak<Fabric>, socket: &UnixStream, link: Link) -> io::Result<()> {
    let garbage = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_string());
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    (&*socket).write_all(&[GREETING.as_slice(), &[link_code(link)]].concat())?;
    let mut greeting = [0; 5];
    (&*socket).read_exact(&mut greeting)?;
    if greeting[..4] != GREETING {
        return Err(garbage("the peer has a different protocol version"));
    }
    if greeting[4] != link_code(link) {
        return Err(garbage("the peer has a different port type"));
    }
    socket.set_read_timeout(None)?;
    let (outbox, inbox) = sync_channel(CAPACITY);
    let Some(strong) = fabric.upgrade() else { return Ok(()) };
    let number = strong.add_link(|number| InterSwitchLink { number, link, outbox });
    drop(strong);
    let (writer, reader, fabric) = (socket.try_clone()?, socket.try_clone()?, fabric.clone());
    std::thread::Builder::new().name("isl-out".into()).spawn(move || write_messages(&writer, &inbox))?;
    std::thread::Builder::new().name("isl-in".into()).spawn(move || {
        if let Err(error) = read_messages(&reader, &fabric, number, link) {
            eprintln!("bareverbs-hca: an inter-switch link failed: {error}");
        }
        let _ = reader.shutdown(Shutdown::Both);
        if let Some(fabric) = fabric.upgrade() {
            fabric.remove_link(number);
        }
    })?;
    Ok(())
}

fn link_code(link: Link) -> u8 {
    match link {
        Link::InfiniBand => 0,
        Link::Ethernet => 1,
    }
}

fn write_messages(mut socket: &UnixStream, inbox: &Receiver<Vec<u8>>) {
    while let Ok(message) = inbox.recv() {
        if socket.write_all(&message).is_err() {
            break;
        }
    }
    // The reader thread sees the shutdown and removes the link from the fabric.
    let _ = socket.shutdown(Shutdown::Both);
}

pub(super) fn read_messages(
    mut socket: &UnixStream,
    fabric: &Weak<Fabric>,
    number: u64,
    link: Link,
) -> io::Result<()> {
    let garbage = || io::Error::new(io::ErrorKind::InvalidData, "the peer sent an invalid message");
    loop {
        let mut length = [0; 4];
        match socket.read_exact(&mut length) {
            // The peer closed the link between two messages.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > LONGEST {
            return Err(garbage());
        }
        let mut body = vec![0; length];
        socket.read_exact(&mut body)?;
        let (mut packets, mut frames) = (Vec::new(), Vec::new());
        parse(&body, &mut packets, &mut frames).ok_or_else(garbage)?;
        let Some(fabric) = fabric.upgrade() else { return Ok(()) };
        fabric.forward(Origin::InterSwitchLink(number), link, &mut packets, &mut frames);
    }
}

/// Parses a message and appends its packet or frame.
pub(super) fn parse(body: &[u8], packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) -> Option<()> {
    match body.split_first()? {
        (&kind::PACKET, rest) => {
            let (route, rest) = read_route(rest)?;
            packets.push(bth::read(route, rest)?);
        }
        (&kind::FRAME, rest) if rest.len() >= 14 => frames.push(rest.to_vec()),
        _ => return None,
    }
    Some(())
}

fn write_route(route: &Route, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&route.source_lid.to_be_bytes());
    bytes.extend_from_slice(&route.destination_lid.to_be_bytes());
    bytes.extend_from_slice(&route.udp_source.to_be_bytes());
    bytes.extend_from_slice(&route.source_mac);
    bytes.extend_from_slice(&route.destination_mac);
    bytes.push(route.service_level);
    match &route.global {
        None => bytes.push(0),
        Some(global) => {
            bytes.push(match global.network {
                Network::Grh => 1,
                Network::Ipv6 => 2,
                Network::Ipv4 => 3,
            });
            bytes.extend_from_slice(&global.source);
            bytes.extend_from_slice(&global.destination);
            bytes.extend_from_slice(&global.flow_label.to_be_bytes());
            bytes.extend_from_slice(&[global.traffic_class, global.hop_limit]);
        }
    }
}

fn read_route(bytes: &[u8]) -> Option<(Route, &[u8])> {
    let (fixed, rest) = bytes.split_first_chunk::<20>()?;
    let short = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    let network = match fixed[19] {
        0 => None,
        1 => Some(Network::Grh),
        2 => Some(Network::Ipv6),
        3 => Some(Network::Ipv4),
        _ => return None,
    };
    let (global, rest) = match network {
        None => (None, rest),
        Some(network) => {
            let (bytes, rest) = rest.split_first_chunk::<38>()?;
            let global = Global {
                source: bytes[..16].try_into().ok()?,
                destination: bytes[16..32].try_into().ok()?,
                flow_label: u32::from_be_bytes(bytes[32..36].try_into().ok()?) & 0xf_ffff,
                traffic_class: bytes[36],
                hop_limit: bytes[37],
                network,
            };
            (Some(global), rest)
        }
    };
    let route = Route {
        source_lid: short(0),
        destination_lid: short(2),
        udp_source: short(4),
        source_mac: fixed[6..12].try_into().ok()?,
        destination_mac: fixed[12..18].try_into().ok()?,
        service_level: fixed[18] & 0xf,
        global,
    };
    Some((route, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Packets of all transports and operations.
    fn any_packet() -> impl Strategy<Value = Packet> {
        proptest::collection::vec(any::<[u8; 4]>(), 3..30).prop_filter_map("a valid BTH", |mut words| {
            // Header version 0.
            words[0][1] &= 0xf0;
            bth::read(Route::default(), words.as_flattened())
        })
    }

    proptest! {
        #[test]
        fn messages_round_trip(mut packet in any_packet(), lid: u16, mac: [u8; 6], gid: [u8; 16], network in 0usize..4) {
            let network = [None, Some(Network::Grh), Some(Network::Ipv6), Some(Network::Ipv4)][network];
            packet.route = Route {
                source_lid: lid,
                destination_lid: !lid,
                service_level: mac[0] & 0xf,
                source_mac: mac,
                destination_mac: mac,
                udp_source: lid,
                global: network.map(|network| Global {
                    source: gid, destination: gid, flow_label: 0x1234, traffic_class: mac[1], hop_limit: mac[2], network,
                }),
            };
            let body = packet_body(&packet);
            let (mut packets, mut frames) = (Vec::new(), Vec::new());
            prop_assert!(parse(&body, &mut packets, &mut frames).is_some());
            prop_assert_eq!((packets, frames), (vec![packet], Vec::new()));
        }

        #[test]
        fn arbitrary_message_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for body in [bytes.clone(), [&[kind::PACKET], bytes.as_slice()].concat()] {
                let (mut packets, mut frames) = (Vec::new(), Vec::new());
                let understood = parse(&body, &mut packets, &mut frames).is_some();
                prop_assert_eq!(packets.len() + frames.len(), usize::from(understood));
            }
        }
    }
}
