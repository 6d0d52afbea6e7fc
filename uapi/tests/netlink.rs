//! Netlink messages: encoded messages decode to the same values, and no input makes the decoder
//! panic.

use bareverbs_uapi::netlink::{
    Attributes, Content, ErrorBody, Malformed, MessageFlags, MessageHeader, MessageWriter, ReportAttribute,
    WriteError, messages,
};
use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::IntoBytes;

#[path = "netlink/attributes.rs"]
mod attributes;

use attributes::{Value, check, write};

fn values() -> impl Strategy<Value = Vec<(u16, Value)>> {
    let leaf = prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<u16>().prop_map(Value::U16),
        any::<u32>().prop_map(Value::U32),
        any::<u64>().prop_map(Value::U64),
        vec(any::<u8>(), 0..40).prop_map(Value::Bytes),
        "[a-zäß0-9]{0,20}".prop_map(Value::Text),
    ];
    let value = leaf.prop_recursive(3, 32, 6, |inner| vec((number(), inner), 0..6).prop_map(Value::Nested));
    vec((number(), value), 0..8)
}

fn number() -> impl Strategy<Value = u16> {
    0..0x4000_u16
}

/// Decodes all messages and attributes of a datagram, by every accessor.
fn read_all(datagram: &[u8]) {
    fn attributes(list: Attributes<'_>, depth: usize) {
        for attribute in list.flatten() {
            let _ = (attribute.u8(), attribute.u16(), attribute.u32(), attribute.u64(), attribute.str());
            if depth > 0 {
                attributes(attribute.attributes(), depth - 1);
            }
        }
    }
    for message in messages(datagram).flatten() {
        let _ = message.content();
        let _ = message.body::<ErrorBody>().map(|(_, rest)| attributes(rest, 3));
        attributes(message.attributes(), 3);
    }
}

proptest! {
    #[test]
    fn written_messages_read_back_equal(first in values(), second in values(), seq: u32, fixed: u32) {
        let mut buffer = vec![0xff; 1 << 16];
        let mut writer = MessageWriter::new(&mut buffer);
        writer.begin(0x1401, MessageFlags::REQUEST, seq);
        write(&mut writer, &first);
        writer.begin(0x1402, MessageFlags::ACK, seq.wrapping_add(1)).put_struct(&fixed);
        write(&mut writer, &second);

        let mut read = messages(writer.finish().unwrap());
        let message = read.next().unwrap().unwrap();
        prop_assert_eq!((message.header.kind, message.header.flags), (0x1401, MessageFlags::REQUEST));
        prop_assert_eq!(message.header.seq, seq);
        check(message.attributes(), &first);
        let message = read.next().unwrap().unwrap();
        let (found, attributes) = message.body::<u32>().unwrap();
        prop_assert_eq!(found, fixed);
        check(attributes, &second);
        prop_assert!(read.next().is_none());
    }

    #[test]
    fn too_small_buffer_is_rejected_with_the_needed_size(values in values(), size in 0_usize..200) {
        let mut large = vec![0; 1 << 16];
        let mut writer = MessageWriter::new(&mut large);
        write(writer.begin(1, MessageFlags::empty(), 0), &values);
        let whole = writer.finish().unwrap();

        let mut small = vec![0; size];
        let mut writer = MessageWriter::new(&mut small);
        write(writer.begin(1, MessageFlags::empty(), 0), &values);
        let expected = if size < whole.len() {
            Err(WriteError::BufferTooSmall { needed: whole.len(), available: size })
        } else {
            Ok(whole)
        };
        prop_assert_eq!(writer.finish(), expected);
    }

    #[test]
    fn netlink_reader_never_panics_or_loops(datagram in vec(any::<u8>(), 0..200)) {
        prop_assert!(messages(&datagram).count() <= datagram.len() / size_of::<MessageHeader>() + 1);
        prop_assert!(Attributes::new(&datagram).count() <= datagram.len() / 4 + 1);
        read_all(&datagram);
    }

    #[test]
    fn netlink_reader_never_panics_on_corrupted_datagrams(
        values in values(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut: prop::sample::Index,
    ) {
        let mut buffer = vec![0; 1 << 16];
        let mut writer = MessageWriter::new(&mut buffer);
        write(writer.begin(2, MessageFlags::ACK_ATTRIBUTES, 0), &values);
        let mut datagram = writer.finish().unwrap().to_vec();
        for (place, byte) in damage {
            let place = place.index(datagram.len());
            datagram[place] = byte;
        }
        datagram.truncate(cut.index(datagram.len() + 1));
        read_all(&datagram);
    }
}

#[test]
fn request_bytes_match_the_kernel_layout() {
    let mut buffer = [0xee; 64];
    let mut writer = MessageWriter::new(&mut buffer);
    writer
        .begin(0x1403, MessageFlags::REQUEST | MessageFlags::ACK, 9)
        .put_str(2, "rxe0")
        .put_u32(1, 0x0102_0304);
    let mut expected = Vec::new();
    expected.extend(36_u32.to_ne_bytes());
    expected.extend(0x1403_u16.to_ne_bytes());
    expected.extend(5_u16.to_ne_bytes());
    expected.extend(9_u32.to_ne_bytes());
    expected.extend(0_u32.to_ne_bytes());
    expected.extend(9_u16.to_ne_bytes());
    expected.extend(2_u16.to_ne_bytes());
    expected.extend(*b"rxe0\0\0\0\0");
    expected.extend(8_u16.to_ne_bytes());
    expected.extend(1_u16.to_ne_bytes());
    expected.extend(0x0102_0304_u32.to_ne_bytes());
    assert_eq!(writer.finish().unwrap(), expected);
}

#[test]
fn attributes_above_65535_bytes_are_rejected() {
    let payload = vec![0; 65532];
    let mut buffer = vec![0; 1 << 17];
    let mut writer = MessageWriter::new(&mut buffer);
    writer.begin(1, MessageFlags::empty(), 0).put_bytes(7, &payload[1..]);
    assert!(writer.finish().is_ok());
    writer.put_bytes(8, &payload);
    assert_eq!(writer.finish(), Err(WriteError::AttributeTooLong { attribute: 8, length: 65536 }));
}

#[test]
fn text_with_a_zero_byte_is_refused() {
    let mut buffer = [0; 64];
    let mut writer = MessageWriter::new(&mut buffer);
    writer.begin(1, MessageFlags::empty(), 0).put_str(2, "a\0b");
    assert_eq!(writer.finish(), Err(WriteError::InteriorNul { attribute: 2 }));
}

#[test]
fn nlmsg_error_carries_errno_request_and_extack() {
    for capped in [false, true] {
        let request =
            MessageHeader { length: 18, kind: 0x1403, flags: MessageFlags::REQUEST, seq: 4, port: 0 };
        let mut buffer = [0; 128];
        let mut writer = MessageWriter::new(&mut buffer);
        let flags = if capped { MessageFlags::CAPPED } else { MessageFlags::empty() };
        writer
            .begin(2, flags | MessageFlags::ACK_ATTRIBUTES, 4)
            .put_struct(&ErrorBody { error: -22, request });
        if !capped {
            writer.put_struct(&[0xab_u8, 0xcd]);
        }
        writer.put_str(ReportAttribute::MESSAGE.0, "bad link").put_u32(ReportAttribute::OFFSET.0, 16);
        let message = messages(writer.finish().unwrap()).next().unwrap().unwrap();
        let Content::Error(report) = message.content().unwrap() else { panic!("not a refusal: {message:?}") };
        assert_eq!(report.errno, 22);
        assert_eq!(report.request, Some(request));
        assert_eq!(report.message, Some("bad link"));
        assert_eq!(report.offset, Some(16));
    }
}

#[test]
fn ack_done_and_data_messages_are_distinguished() {
    let request = MessageHeader::zeroed();
    let mut buffer = [0; 256];
    let mut writer = MessageWriter::new(&mut buffer);
    writer.begin(2, MessageFlags::empty(), 0).put_struct(&ErrorBody { error: 0, request });
    writer.begin(3, MessageFlags::MULTI, 0).put_struct(&0_i32);
    writer.begin(3, MessageFlags::MULTI, 0).put_struct(&-4_i32);
    writer.begin(0x1401, MessageFlags::MULTI, 0);
    let told: Vec<_> = messages(writer.finish().unwrap()).map(|message| message.unwrap()).collect();
    assert!(matches!(told[0].content(), Ok(Content::Acknowledged(report)) if report.errno == 0));
    assert!(matches!(told[1].content(), Ok(Content::Done(report)) if report.errno == 0));
    assert!(matches!(told[2].content(), Ok(Content::Done(report)) if report.errno == 4));
    assert!(matches!(told[3].content(), Ok(Content::Data)));
}

#[test]
fn bad_message_length_ends_iteration_with_an_error() {
    for length in [0, 15, 33, u32::MAX] {
        let header = MessageHeader { length, ..MessageHeader::zeroed() };
        let mut bytes = header.as_bytes().to_vec();
        bytes.resize(32, 0);
        let mut walk = messages(&bytes);
        assert_eq!(
            walk.next().map(|message| message.map(|_| ())),
            Some(Err(Malformed::Length { stated: length as usize, available: 32 }))
        );
        assert!(walk.next().is_none());
    }
}
