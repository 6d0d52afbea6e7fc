use crate::socket::{Outcome, read_answers};
use bareverbs_uapi::netlink::messages;

use super::*;

/// The response of Linux 6.12 to a dump of devices with one rxe device.
#[rustfmt::skip]
const DEVICE_DUMP: &[u8] = &[
    // Header: 116 bytes, type 0x1401, MULTI, seq 1, port 77.
    0x74, 0, 0, 0, 0x01, 0x14, 2, 0, 1, 0, 0, 0, 77, 0, 0, 0,
    // DEV_INDEX 2; DEV_NAME "rxe0"; PORT_INDEX 1.
    8, 0, 1, 0, 2, 0, 0, 0,
    9, 0, 2, 0, b'r', b'x', b'e', b'0', 0, 0, 0, 0,
    8, 0, 3, 0, 1, 0, 0, 0,
    // CAP_FLAGS 0x1223c76, without a PAD attribute.
    12, 0, 4, 0, 0x76, 0x3c, 0x22, 0x01, 0, 0, 0, 0,
    // NODE_GUID, SYS_IMAGE_GUID.
    12, 0, 6, 0, 1, 0, 0, 0xfe, 0xff, 0, 0, 2,
    12, 0, 7, 0, 1, 0, 0, 0xfe, 0xff, 0, 0, 2,
    // DEV_NODE_TYPE 1, DEV_DIM 0, NAME_ASSIGN_TYPE 1.
    5, 0, 14, 0, 1, 0, 0, 0,
    5, 0, 84, 0, 0, 0, 0, 0,
    5, 0, 101, 0, 1, 0, 0, 0,
    // DEV_PROTOCOL "roce".
    9, 0, 67, 0, b'r', b'o', b'c', b'e', 0, 0, 0, 0,
    // DONE, seq 1.
    20, 0, 0, 0, 3, 0, 2, 0, 1, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0,
];

fn answers(datagram: &[u8], seq: u32) -> (Result<Outcome, Malformed>, usize) {
    let mut seen = 0;
    let outcome = read_answers(datagram, seq, &mut |_| {
        seen += 1;
        Ok(())
    });
    (outcome, seen)
}

#[test]
fn device_dump_is_parsed() {
    let mut devices = Vec::new();
    let outcome = read_answers(DEVICE_DUMP, 1, &mut |answer| {
        devices.push(DeviceInfo::read(answer)?);
        Ok(())
    });
    assert_eq!(outcome, Ok(Outcome::Ended));
    assert_eq!(
        devices,
        [DeviceInfo {
            index: 2,
            name: "rxe0".into(),
            port_count: 1,
            cap_flags: 0x122_3c76,
            fw_ver: String::new(),
            node_guid: Guid([2, 0, 0, 0xff, 0xfe, 0, 0, 1]),
            sys_image_guid: Guid([2, 0, 0, 0xff, 0xfe, 0, 0, 1]),
            node_type: NodeType::CHANNEL_ADAPTER,
            protocol: "roce".into(),
            adaptive_moderation: Some(false),
            parent: None,
        }]
    );
}

#[test]
fn answers_with_another_sequence_number_are_skipped() {
    assert_eq!(answers(DEVICE_DUMP, 2), (Ok(Outcome::Nothing), 0));
}

#[test]
fn truncated_dump_is_an_error() {
    for length in (1..DEVICE_DUMP.len()).filter(|length| *length != 0x74) {
        assert!(answers(&DEVICE_DUMP[..length], 1).0.is_err(), "{length}");
    }
    assert_eq!(answers(&DEVICE_DUMP[..0x74], 1), (Ok(Outcome::Data), 1));
}

#[test]
fn invalid_netlink_errno_does_not_panic() {
    let refusal = |errno: i32| {
        let mut datagram = vec![36, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        datagram.extend((-errno).to_ne_bytes());
        datagram.extend([16, 0, 0, 0, 3, 0x14, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        answers(&datagram, 1).0
    };
    assert_eq!(refusal(0), Ok(Outcome::Ended));
    assert_eq!(refusal(1), Ok(Outcome::Refused(Errno::PERM, None)));
    assert_eq!(refusal(95), Ok(Outcome::Refused(Errno::OPNOTSUPP, None)));
    assert_eq!(refusal(70_000), Ok(Outcome::Refused(Errno::PROTO, None)));
    assert_eq!(refusal(-3), Ok(Outcome::Refused(Errno::PROTO, None)));
}

pub(crate) fn with_attributes<T>(
    fill: impl FnOnce(&mut MessageWriter<'_>),
    read: impl FnOnce(&Attributes<'_>) -> Result<T, Malformed>,
) -> T {
    let mut buffer = [0; 512];
    let mut writer = MessageWriter::new(&mut buffer);
    fill(writer.begin(0x1401, MessageFlags::empty(), 1));
    let message = messages(writer.finish().unwrap()).next().unwrap().unwrap();
    read(&message.attributes()).unwrap()
}

#[test]
fn uverbs_char_device_has_driver_id() {
    let device = with_attributes(
        |writer| {
            writer
                .put_u32(Attribute::UVERBS_DRIVER_ID.0, 14)
                .put_u64(Attribute::CHARDEV.0, 231 << 8 | 192)
                .put_u64(Attribute::CHARDEV_ABI.0, 2)
                .put_str(Attribute::CHARDEV_NAME.0, "uverbs0");
        },
        CharDevice::read,
    );
    let expected =
        CharDevice { name: "uverbs0".into(), number: (231, 192), abi: 2, driver_id: Some(DriverId::RXE) };
    assert_eq!(device, expected);
}

#[test]
fn device_number_split_matches_huge_encode_dev() {
    assert_eq!(split_device_number(0x0010_0a34), (10, 0x134));
    assert_eq!(split_device_number(231 << 8 | 255), (231, 255));
}

#[test]
fn resource_counts_are_read_by_name_and_unknown_names_skipped() {
    let summary = with_attributes(
        |writer| {
            writer.put_nested(Attribute::RES_SUMMARY.0, |writer| {
                for (name, count) in [("qp", 3), ("mr", 1 << 33), ("ctx", 1), ("new thing", 9)] {
                    writer.put_nested(Attribute::RES_SUMMARY_ENTRY.0, |writer| {
                        writer
                            .put_str(Attribute::RES_SUMMARY_ENTRY_NAME.0, name)
                            .put_u64(Attribute::RES_SUMMARY_ENTRY_CURR.0, count);
                    });
                }
            });
        },
        ResourceSummary::read,
    );
    assert_eq!(summary, ResourceSummary { qp: 3, mr: 1 << 33, ctx: 1, ..ResourceSummary::default() });
}

#[test]
fn ports_above_255_are_left_out() {
    let port = |number| {
        let fill = |writer: &mut MessageWriter<'_>| _ = writer.put_u32(Attribute::PORT_INDEX.0, number);
        with_attributes(fill, PortInfo::read)
    };
    assert_eq!(port(1).map(|port| port.port), Some(PortNum(1)));
    assert_eq!(port(255).map(|port| port.port), Some(PortNum(255)));
    assert_eq!(port(256), None);
    let counters = with_attributes(
        |writer| _ = writer.put_u32(Attribute::PORT_INDEX.0, 257),
        counters::QpCounters::read,
    );
    assert_eq!(counters.port, None, "not truncated to 1");
}
