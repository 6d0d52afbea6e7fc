//! The netlink parser, and the text form of nldev messages.
//!
//! Encoded messages are decoded unchanged, nested attributes included. Parsing of any bytes
//! terminates: a message takes at least 16 bytes, an attribute 4. Attributes nested deeper than in
//! nldev are not printed.

use bareverbs_uapi::netlink::{
    Attributes, Content, ErrorBody, MessageFlags, MessageHeader, MessageWriter, messages,
};
use bareverbs_uapi::nldev;

use self::attributes::{Value, check, write};
use crate::input::Input;

#[path = "../../uapi/tests/netlink/attributes.rs"]
mod attributes;

/// Maximum depth of encoded nested attributes.
const DEPTH: usize = 6;
/// Upper bound of the bytes printed for each byte of input.
const PRINTED: usize = 64;

fn values(input: &mut Input<'_>, depth: usize) -> Vec<(u16, Value)> {
    let count = if input.is_empty() { 0 } else { input.byte() % 6 };
    (0..count).map(|_| (input.half() & 0x3fff, value(input, depth))).collect()
}

fn value(input: &mut Input<'_>, depth: usize) -> Value {
    match input.byte() % 8 {
        0 => Value::U8(input.byte()),
        1 => Value::U16(input.half()),
        2 => Value::U32(input.word()),
        3 => Value::U64(input.long()),
        4 => {
            let length = input.byte() % 40;
            Value::Text(String::from_utf8_lossy(&input.bytes(length.into())).replace('\0', "x"))
        }
        5 | 6 if depth < DEPTH => Value::Nested(values(input, depth + 1)),
        _ => {
            let length = input.byte() % 40;
            Value::Bytes(input.bytes(length.into()))
        }
    }
}

fn walk(bytes: &[u8], depth: usize) {
    let attributes = Attributes::new(bytes);
    assert!(attributes.clone().count() <= bytes.len() / 4 + 1);
    for attribute in attributes.flatten() {
        let _ = (attribute.u8(), attribute.u32(), attribute.u64(), attribute.str());
        assert!(attribute.payload.len() + 4 <= bytes.len());
        if depth > 0 {
            walk(attribute.payload, depth - 1);
        }
    }
}

fn read_all(datagram: &[u8]) {
    assert!(messages(datagram).count() <= datagram.len() / size_of::<MessageHeader>() + 1);
    for message in messages(datagram).flatten() {
        assert!(message.payload.len() + size_of::<MessageHeader>() <= datagram.len());
        if let Ok(Content::Error(report)) = message.content() {
            assert_ne!(report.errno, 0);
        }
        let _ = message.body::<ErrorBody>();
        walk(message.payload, 3);
    }
    let text = nldev::decode(datagram).to_string();
    assert!(text.len() <= PRINTED * datagram.len(), "{} bytes of {}", text.len(), datagram.len());
}

pub(crate) fn run(data: &[u8]) {
    read_all(data);

    let mut input = Input(data);
    let (kind, flags, seq) = (input.half(), MessageFlags::from_bits_retain(input.half()), input.word());
    let written = values(&mut input, 0);
    let mut buffer = vec![0xff; 1 << 16];
    let mut writer = MessageWriter::new(&mut buffer);
    write(writer.begin(kind, flags, seq), &written);
    let Ok(datagram) = writer.finish() else { return };
    let message = messages(datagram).next().expect("a message").expect("well formed");
    assert_eq!((message.header.kind, message.header.flags, message.header.seq), (kind, flags, seq));
    check(message.attributes(), &written);

    // The same with some bytes changed.
    let mut damaged = datagram.to_vec();
    for _ in 0..input.byte() % 8 {
        let at = usize::from(input.half()) % damaged.len();
        damaged[at] = input.byte();
    }
    read_all(&damaged);
}
