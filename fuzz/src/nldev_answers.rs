//! Responses of RDMA netlink: devices, ports, resource lists and counters; and notifications of
//! RDMA netlink, rtnetlink and uevents.
//!
//! Any datagram is decoded or is malformed, with at most one object for every 4 bytes. Each device
//! in the datagram is decoded with the values that were encoded.

use bareverbs_netlink::parsers::{read_nldev, read_notifications};
use bareverbs_uapi::netlink::{MessageFlags, MessageWriter, messages};
use bareverbs_uapi::nldev::{ATTRIBUTES, Attribute, Command, ValueKind};

use crate::input::Input;

/// The sequence number of the request.
const SEQ: u32 = 1;
const DEPTH: usize = 4;
/// Resource tables.
const TABLES: [Attribute; 9] = [
    Attribute::RES_QP,
    Attribute::RES_CQ,
    Attribute::RES_MR,
    Attribute::RES_PD,
    Attribute::RES_CM_ID,
    Attribute::RES_CTX,
    Attribute::RES_SRQ,
    Attribute::STAT_COUNTER,
    Attribute::STAT_HWCOUNTERS,
];

fn read(datagram: &[u8]) {
    // Each message is at most one notification, and a uevent is the whole datagram.
    assert!(read_notifications(datagram) <= messages(datagram).count() + 1);
    if let Ok((devices, objects)) = read_nldev(datagram, SEQ) {
        assert!(devices.len() <= messages(datagram).count());
        // Each table is decoded as its own type; those of MRs and counters are decoded twice.
        assert!(objects <= 2 * datagram.len() / 4);
    }
}

/// Encodes an attribute, rarely with the type of another.
fn put(writer: &mut MessageWriter<'_>, input: &mut Input<'_>, depth: usize) {
    let number = (usize::from(input.byte()) % ATTRIBUTES.len()) as u16;
    let value = ATTRIBUTES[usize::from(number)].value;
    if input.one_in(16) {
        let length = input.byte() % 32;
        writer.put_bytes(number, &input.bytes(length.into()));
        return;
    }
    match value {
        ValueKind::U8 => writer.put_u8(number, input.byte()),
        ValueKind::U32 | ValueKind::S32 => writer.put_u32(number, input.word()),
        ValueKind::U64 | ValueKind::S64 | ValueKind::Guid => writer.put_u64(number, input.long()),
        ValueKind::String => {
            let length = input.byte() % 16;
            writer.put_bytes(number, &input.bytes(length.into()))
        }
        ValueKind::Nested if depth < DEPTH => writer.put_nested(number, |writer| {
            (0..input.byte() % 5).for_each(|_| put(writer, input, depth + 1));
        }),
        _ => writer.put_bytes(number, &input.array::<28>()),
    };
}

pub(crate) fn run(data: &[u8]) {
    read(data);

    let mut input = Input(data);
    let mut buffer = vec![0; 1 << 15];
    let mut writer = MessageWriter::new(&mut buffer);
    let mut named = Vec::new();
    while !input.is_empty() {
        writer.begin(Command::GET.message_type(), MessageFlags::MULTI, SEQ);
        if input.one_in(2) {
            let (index, guid) = (input.word(), input.long());
            writer.put_u32(Attribute::DEV_INDEX.0, index).put_u64(Attribute::NODE_GUID.0, guid);
            named.push((index, guid.to_be_bytes()));
            continue;
        }
        let table = input.one_of(&TABLES);
        writer.put_nested(table.0, |writer| {
            for _ in 0..input.byte() % 4 {
                writer.put_nested(table.0 + 1, |writer| {
                    (0..input.byte() % 8).for_each(|_| put(writer, &mut input, 0));
                });
            }
        });
    }
    let Ok(datagram) = writer.finish() else { return };
    let (devices, _) = read_nldev(datagram, SEQ).expect("well formed");
    let mut devices = devices.into_iter();
    for (index, guid) in named {
        assert!(
            devices.any(|device| device.index == index && device.node_guid.0 == guid),
            "device {index} is in the list, in its place"
        );
    }
    read(datagram);
}
