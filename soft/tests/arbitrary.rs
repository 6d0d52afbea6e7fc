//! Calls with arbitrary contents: no panic, no hang, no access outside of their own memory.

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::mapping::Mapping;
use bareverbs_soft::{Fabric, SoftDevice};
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::write::EXTENDED;
use proptest::prelude::*;
use rustix::mm::{MprotectFlags, mprotect};
use zerocopy::IntoBytes;

/// Bytes that calls may name. Their outputs begin in the first half.
const ARENA: usize = 256 << 10;
const PAGE: usize = 4096;

/// Memory that ends at a page without access.
struct Arena(Mapping);

impl Arena {
    fn new() -> Self {
        let mapping = Mapping::anonymous(ARENA + PAGE).unwrap();
        let guard = mapping.as_ptr().as_ptr().wrapping_add(ARENA);
        // SAFETY: nothing accesses the guard.
        unsafe { mprotect(guard.cast(), PAGE, MprotectFlags::empty()) }.unwrap();
        Self(mapping)
    }

    fn address(&self, place: Place) -> u64 {
        let start = self.0.as_ptr().as_ptr().expose_provenance() as u64;
        match place {
            Place::Small(value) => value.into(),
            Place::Inside(at) => start + u64::from(at) % (ARENA as u64 / 2),
            Place::Guard(before) => start + (ARENA - usize::from(before)) as u64,
            Place::Above(value) => value | 1 << 63,
        }
    }
}

/// A number in a call, which may be an address.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Handles, descriptors and flags. There is no memory at the address.
    Small(u16),
    Inside(u32),
    /// That many bytes before the guard.
    Guard(u8),
    /// Not an address of a program.
    Above(u64),
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        4 => (0..40_u16).prop_map(Place::Small),
        4 => any::<u32>().prop_map(Place::Inside),
        1 => any::<u8>().prop_map(Place::Guard),
        1 => any::<u64>().prop_map(Place::Above),
    ]
}

#[derive(Clone, Debug)]
struct Ioctl {
    /// Index of a method, and its class and id if there is none.
    method: usize,
    unknown: Option<(u16, u16)>,
    /// What the header's length is changed by.
    length: i16,
    attributes: Vec<(u16, u16, u16, u16, Place)>,
}

fn ioctl() -> impl Strategy<Value = Ioctl> {
    let id = prop_oneof![8 => 0..18_u16, 2 => 0x1000..0x1003_u16, 1 => any::<u16>()];
    let length = prop_oneof![4 => Just(0), 4 => 1..64_u16, 1 => any::<u16>()];
    let reserved = prop_oneof![20 => Just(0), 1 => any::<u16>()];
    let attribute = (id, length, 0..4_u16, reserved, place());
    (
        any::<usize>(),
        proptest::option::weighted(0.05, any::<(u16, u16)>()),
        prop_oneof![20 => Just(0), 1 => any::<i16>()],
        proptest::collection::vec(attribute, 0..14),
    )
        .prop_map(|(method, unknown, length, attributes)| Ioctl { method, unknown, length, attributes })
}

fn execute(file: &DeviceFile, arena: &Arena, ioctl: &Ioctl) -> Result<(), Errno> {
    let methods: Vec<_> = registry::Driver::default().methods().collect();
    let method = methods[ioctl.method % methods.len()];
    let (object_id, method_id) = ioctl.unknown.unwrap_or((method.object, method.id));
    let length = size_of::<Header>() + ioctl.attributes.len() * size_of::<Attribute>();
    let header = Header {
        length: (length as u16).wrapping_add_signed(ioctl.length),
        object_id,
        method_id,
        num_attrs: ioctl.attributes.len() as u16,
        reserved1: 0,
        driver_id: DriverId::RXE.0,
        reserved2: 0,
    };
    let mut bytes = header.as_bytes().to_vec();
    for (attr_id, len, flags, attr_data, place) in &ioctl.attributes {
        let flags = AttributeFlags::from_bits_retain(*flags);
        let data = arena.address(*place);
        let attribute = Attribute { attr_id: *attr_id, len: *len, flags, attr_data: *attr_data, data };
        bytes.extend_from_slice(attribute.as_bytes());
    }
    // SAFETY: addresses are of the arena or without memory. The device checks the header.
    let result = unsafe { file.execute_raw(&mut bytes) };
    close_new_channel(&bytes, &result, (object_id, method_id));
    result
}

/// Closes the descriptor of a successful `ASYNC_EVENT_ALLOC`.
fn close_new_channel(bytes: &[u8], result: &Result<(), Errno>, method: (u16, u16)) {
    use bareverbs_uapi::method::Method;
    use std::os::fd::{FromRawFd, OwnedFd};
    let info = bareverbs_uapi::uverbs::AsyncEventAlloc::INFO;
    if result.is_err() || method != (info.object, info.id) {
        return;
    }
    let attributes = bytes[size_of::<Header>()..].chunks_exact(size_of::<Attribute>());
    for attribute in attributes.filter(|attribute| attribute[..2] == [0, 0]) {
        let fd = u64::from_ne_bytes(attribute[8..].try_into().unwrap()) as i32;
        // SAFETY: the call made the descriptor.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

/// A write command: its number, whether its header is right, and its words.
#[derive(Clone, Debug)]
struct Command {
    number: u32,
    header: Option<[u16; 2]>,
    words: Vec<Place>,
    output: u16,
}

fn write_command() -> impl Strategy<Value = Command> {
    // No channel is made: its descriptor would leak.
    let classic = (1..42_u32).prop_filter("no channel", |number| *number != 17);
    let number = prop_oneof![
        8 => classic,
        4 => (0..60_u32).prop_map(|number| number | EXTENDED),
        1 => any::<u32>().prop_filter("no channel", |number| number & 0xff != 17 && number & 0xff != 0),
    ];
    let header = proptest::option::weighted(0.1, any::<[u16; 2]>());
    let words = proptest::collection::vec(place(), 0..24);
    (number, header, words, 0..64_u16).prop_map(|(number, header, words, output)| Command {
        number,
        header,
        words,
        output,
    })
}

fn write(file: &DeviceFile, arena: &Arena, command: &Command) -> Result<(), Errno> {
    let mut bytes = command.number.to_ne_bytes().to_vec();
    let is_extended = command.number & EXTENDED != 0;
    let right = match is_extended {
        true => [command.words.len().saturating_sub(2) as u16, command.output],
        false => [2 + 2 * command.words.len() as u16, command.output],
    };
    let header = command.header.unwrap_or(right);
    bytes.extend(header.iter().flat_map(|words| words.to_ne_bytes()));
    for (at, word) in command.words.iter().enumerate() {
        // The second word of an extended header has sizes.
        let word = if is_extended && at == 1 { 0 } else { arena.address(*word) };
        bytes.extend(word.to_ne_bytes());
    }
    // SAFETY: addresses are of the arena or without memory. The device checks the header.
    unsafe { file.write_raw(&bytes) }
}

fn context(device: &SoftDevice) -> DeviceFile {
    let file = device.open().unwrap();
    // SAFETY: no payload.
    unsafe { command::get_context(&file, DriverPayload::default()) }.unwrap();
    file
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_calls_neither_panic_nor_break_the_device(
        calls in proptest::collection::vec(prop_oneof![
            ioctl().prop_map(Ok),
            write_command().prop_map(Err),
        ], 1..60)
    ) {
        let device = SoftDevice::new(&Fabric::new());
        let (file, arena) = (context(&device), Arena::new());
        for call in &calls {
            let result = match call {
                Ok(ioctl) => execute(&file, &arena, ioctl),
                Err(command) => write(&file, &arena, command),
            };
            // What a panic leaves.
            prop_assert_ne!(result, Err(Errno::IO), "{:?}", call);
        }
        prop_assert!(command::query_device(&file).is_ok());
    }

    #[test]
    fn arbitrary_bytes_are_no_calls(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let device = SoftDevice::new(&Fabric::new());
        let file = context(&device);
        let mut call = bytes.clone();
        // SAFETY: the driver id is one of 2^32, so the device reads no attribute.
        let result = unsafe { file.execute_raw(&mut call) };
        prop_assert!(result.is_err());
        prop_assert_eq!(&call, &bytes);
        prop_assert!(command::query_device(&file).is_ok());
    }
}
