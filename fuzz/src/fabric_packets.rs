//! Input from the fabric of another process: messages of an inter-switch link, packets of the
//! transports, RoCE v2 frames.
//!
//! A message or frame that was decoded, encoded and decoded again is unchanged. Decoding of any
//! byte stream terminates, also if it is truncated.

use bareverbs_hca::Link;
use bareverbs_hca::engine::packet::{Packet, Route};
use bareverbs_hca::testing::{
    Message, decode_frame, decode_message, encode_frame, encode_message, read_inter_switch_link,
};

use crate::input::Input;

/// A packet with valid flags, so that more of the input is used.
fn packet(bytes: &[u8]) -> Option<Packet> {
    let mut bytes = bytes.to_vec();
    if let Some(flags) = bytes.get_mut(1) {
        *flags = *flags & 0xb0 | 0x40;
    }
    Packet::parse(Route::default(), &bytes)
}

fn check_message(body: &[u8]) {
    if let Some(message) = decode_message(body) {
        assert_eq!(decode_message(&encode_message(&message)), Some(message));
    }
}

pub(crate) fn run(data: &[u8]) {
    check_message(data);
    if let Some(packet) = decode_frame(data) {
        assert_eq!(decode_frame(&encode_frame(&packet)), Some(packet));
    }

    let mut input = Input(data);
    let (stream, route) = (input.byte(), input.array::<58>());
    if let Some(packet) = packet(input.0) {
        let mut body = encode_message(&Message::Packet(packet.clone()));
        assert_eq!(decode_message(&body), Some(Message::Packet(packet.clone())));
        // With another routing header.
        let length = body.len().min(1 + route.len());
        body[1..length].copy_from_slice(&route[..length - 1]);
        check_message(&body);
        if let Some(Message::Packet(packet)) = decode_message(&body) {
            let frame = encode_frame(&packet);
            if let Some(read) = decode_frame(&frame) {
                assert_eq!(read.headers, packet.headers);
                assert_eq!(read.payload, packet.payload);
            }
        }
    }
    if stream % 8 == 0 {
        let link = if stream & 8 == 0 { Link::InfiniBand } else { Link::Ethernet };
        let mut bytes = Vec::new();
        while !input.is_empty() {
            let length = input.byte();
            let body = input.slice(length.into());
            // Mostly the true length.
            let stated = if input.one_in(8) { input.word() } else { body.len() as u32 };
            bytes.extend(stated.to_be_bytes());
            bytes.extend(body);
        }
        let _ = read_inter_switch_link(link, &bytes);
    }
}
