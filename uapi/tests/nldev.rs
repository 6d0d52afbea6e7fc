//! RDMA netlink's device interface: the numbers, and datagrams formatted as text.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::netlink::{ErrorBody, MessageFlags, MessageHeader, MessageWriter, ReportAttribute};
use bareverbs_uapi::nldev::{self, ATTRIBUTES, Attribute, Command, ValueKind};
use proptest::collection::vec;
use proptest::prelude::*;

fn up_to<T>(items: &[T], series: Since, since: impl Fn(&T) -> Since) -> usize {
    items.iter().filter(|item| since(item) <= series).count()
}

#[test]
fn every_kernel_has_the_commands_that_its_header_names() {
    let count = |series| up_to(Command::INFO.values, series, |command| command.since);
    assert_eq!((count(Since::V6_1), count(Since::V6_12), count(Since::V7_2)), (23, 27, 29));
    assert_eq!(Command(8).name(), None);
}

/// The headers name 101, 106, 120 and 121 attributes. UNSPEC, PAD (the same number) and MAX carry no
/// value, so 98, 103, 117 and 118 attributes remain.
#[test]
fn every_kernel_has_the_attributes_that_its_header_names() {
    let carrying = &ATTRIBUTES[1..];
    let count = |series| up_to(carrying, series, |attribute| attribute.since);
    let counts = [Since::V6_1, Since::V6_12, Since::V7_2, Since::V7_3].map(count);
    assert_eq!(counts, [98, 103, 117, 118]);
    assert_eq!(ATTRIBUTES[0].value, ValueKind::Padding);
}

#[test]
fn nldev_attribute_numbers_match_their_index() {
    for (number, info) in ATTRIBUTES.iter().enumerate() {
        assert_eq!(usize::from(info.attribute.0), number, "{}", info.c);
        assert_eq!(info.attribute.name(), Some(info.rust));
        assert_eq!(info.attribute.info().map(|info| info.c), Some(info.c));
    }
    assert!(Attribute(ATTRIBUTES.len() as u16).info().is_none());
}

#[test]
fn nlmsg_type_contains_client_and_command() {
    assert_eq!(Command::GET_CHARDEV.message_type(), 0x140f);
    assert_eq!(Command::from_message_type(0x140f), Some(Command::GET_CHARDEV));
    assert_eq!(Command::from_message_type(0x100f), None);
}

#[test]
fn nldev_answers_print_names_and_values() {
    let mut buffer = [0; 512];
    let mut writer = MessageWriter::new(&mut buffer);
    writer
        .begin(Command::RES_GET.message_type(), MessageFlags::MULTI, 3)
        .put_u32(Attribute::DEV_INDEX.0, 2)
        .put_u8(Attribute::DEV_NODE_TYPE.0, 1)
        .put_nested(Attribute::RES_SUMMARY.0, |writer| {
            writer.put_nested(Attribute::RES_SUMMARY_ENTRY.0, |writer| {
                writer
                    .put_str(Attribute::RES_SUMMARY_ENTRY_NAME.0, "qp")
                    .put_bytes(Attribute::PAD.0, &[])
                    .put_u64(Attribute::RES_SUMMARY_ENTRY_CURR.0, 1 << 40);
            });
        })
        .put_bytes(Attribute::DRIVER_S32.0, &(-5_i32).to_ne_bytes())
        .put_bytes(Attribute::RES_RAW.0, &[0xde, 0xad])
        .put_u32(Attribute::STAT_AUTO_MODE_MASK.0, 7)
        .put_u32(Attribute::STAT_RES.0, 19)
        .put_bytes(Attribute::LID.0, &[1, 2])
        .put_u8(500, 9)
        .begin(3, MessageFlags::MULTI, 3)
        .put_struct(&0_i32);
    assert_eq!(
        nldev::decode(writer.finish().unwrap()).to_string(),
        "RES_GET MULTI seq 3 { DEV_INDEX 2, DEV_NODE_TYPE CHANNEL_ADAPTER, RES_SUMMARY { \
         RES_SUMMARY_ENTRY { RES_SUMMARY_ENTRY_NAME \"qp\", RES_SUMMARY_ENTRY_CURR 1099511627776 } \
         }, DRIVER_S32 -5, RES_RAW 0xdead, STAT_AUTO_MODE_MASK QP_TYPE | PID | 0x4, STAT_RES \
         RES_QP, LID <malformed: netlink attribute 9 has 2 bytes instead of 4>, Attribute(500) \
         0x09 }\ndone seq 3"
    );
}

#[test]
fn guids_and_capabilities_print_as_text() {
    let print = |command: Command| {
        let mut buffer = [0; 128];
        let mut writer = MessageWriter::new(&mut buffer);
        writer
            .begin(command.message_type(), MessageFlags::empty(), 1)
            .put_u64(Attribute::NODE_GUID.0, 0x5054_00ff_fe12_3456)
            .put_u64(Attribute::SUBNET_PREFIX.0, 0xfe80 << 48)
            .put_u64(Attribute::CAP_FLAGS.0, 1 << 10 | 1 << 34);
        nldev::decode(writer.finish().unwrap()).to_string()
    };
    let numbers = "NODE_GUID 5054:00ff:fe12:3456, SUBNET_PREFIX fe80:0000:0000:0000";
    assert_eq!(
        print(Command::GET),
        format!("GET 0 seq 1 {{ {numbers}, CAP_FLAGS PORT_ACTIVE_EVENT | RAW_SCATTER_FCS }}")
    );
    // The second mask of a port has no names.
    assert_eq!(
        print(Command::PORT_GET),
        format!("PORT_GET 0 seq 1 {{ {numbers}, CAP_FLAGS SM_DISABLED | 0x400000000 }}")
    );
}

#[test]
fn nldev_errors_print_the_request() {
    let request = MessageHeader {
        length: 16,
        kind: Command::NEWLINK.message_type(),
        flags: MessageFlags::REQUEST,
        seq: 8,
        port: 0,
    };
    let mut buffer = [0; 128];
    let mut writer = MessageWriter::new(&mut buffer);
    writer
        .begin(2, MessageFlags::CAPPED | MessageFlags::ACK_ATTRIBUTES, 8)
        .put_struct(&ErrorBody { error: -17, request })
        .put_str(ReportAttribute::MESSAGE.0, "exists")
        .put_u32(ReportAttribute::MISSING_TYPE.0, 2);
    assert_eq!(
        nldev::decode(writer.finish().unwrap()).to_string(),
        "refused seq 8 NEWLINK errno 17 \"exists\" missing DEV_NAME"
    );
}

#[test]
fn deeply_nested_attributes_are_truncated() {
    fn nest(writer: &mut MessageWriter<'_>, depth: usize) {
        if depth > 0 {
            writer.put_nested(Attribute::DRIVER.0, |writer| nest(writer, depth - 1));
        }
    }
    let mut buffer = vec![0; 1 << 16];
    let mut writer = MessageWriter::new(&mut buffer);
    nest(writer.begin(Command::GET.message_type(), MessageFlags::empty(), 0), 1000);
    assert!(nldev::decode(writer.finish().unwrap()).to_string().contains("{ .. }"));
}

proptest! {
    #[test]
    fn any_bytes_can_be_printed(datagram in vec(any::<u8>(), 0..300)) {
        let _ = nldev::decode(&datagram).to_string();
    }

    #[test]
    fn any_attributes_can_be_printed(command in 0_u16..40, attributes in vec((0_u16..130, vec(any::<u8>(), 0..24)), 0..8)) {
        let mut buffer = [0; 1024];
        let mut writer = MessageWriter::new(&mut buffer);
        writer.begin(Command(command).message_type(), MessageFlags::empty(), 0);
        for (number, payload) in &attributes {
            writer.put_bytes(*number, payload);
        }
        let told = nldev::decode(writer.finish().unwrap()).to_string();
        for (number, _) in attributes.iter().filter(|(number, _)| *number != 0) {
            let name = format!("{:?} ", Attribute(*number));
            prop_assert!(told.contains(&name), "{} lacks {}", told, name);
        }
    }
}
