//! Parsers of inter-switch links and RoCE v2 frames, exported for fuzzing.

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bareverbs_transport::roce;

use super::{Fabric, inter_switch_link};
use crate::engine::packet::{Link, Packet};

/// A message of an inter-switch link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum Message {
    /// A packet of an RDMA transport.
    Packet(Packet),
    /// An Ethernet frame.
    Frame(Vec<u8>),
}

/// Decodes a message without its length. Returns `None` if it is malformed.
pub fn decode_message(body: &[u8]) -> Option<Message> {
    let (mut packets, mut frames) = (Vec::new(), Vec::new());
    inter_switch_link::parse(body, &mut packets, &mut frames)?;
    match (packets.pop(), frames.pop()) {
        (Some(packet), None) => Some(Message::Packet(packet)),
        (None, Some(frame)) => Some(Message::Frame(frame)),
        (packet, frame) => panic!("one message is one packet or frame: {packet:?}, {frame:?}"),
    }
}

/// Encodes a message without its length.
pub fn encode_message(message: &Message) -> Vec<u8> {
    match message {
        Message::Packet(packet) => inter_switch_link::packet_body(packet),
        Message::Frame(frame) => inter_switch_link::frame_body(frame),
    }
}

/// Decodes a RoCE v2 frame and verifies its checksums. Returns `None` if it is malformed.
pub fn decode_frame(frame: &[u8]) -> Option<Packet> {
    roce::decode(frame)
}

/// Encodes a packet as a RoCE v2 frame.
pub fn encode_frame(packet: &Packet) -> Vec<u8> {
    roce::encode(packet)
}

/// Reads bytes from a peer that has greeted and then closes the link, into a fabric without ports.
///
/// # Errors
/// The bytes are malformed, and the peer is disconnected.
pub fn read_inter_switch_link(link: Link, bytes: &[u8]) -> io::Result<()> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.set_nonblocking(true)?;
    // Bytes beyond the socket's buffer are not sent.
    let _ = theirs.write(bytes);
    theirs.shutdown(Shutdown::Write)?;
    let fabric = Fabric::new();
    inter_switch_link::read_messages(&ours, &Arc::downgrade(&fabric), 1, link)
}
