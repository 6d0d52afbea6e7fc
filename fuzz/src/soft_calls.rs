//! Ioctls and write commands to a soft device, with attributes, handles and addresses of any kind. No
//! call fails with `EIO`, which a panic would leave. The queue pairs of another program still work.
//! Closing the file leaves no object.

use std::os::fd::{FromRawFd, OwnedFd};

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::mapping::Mapping;
use bareverbs_soft::{Fabric, SoftDevice};
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::{Method, MethodInfo};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::AsyncEventAlloc;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::write::EXTENDED;
use zerocopy::IntoBytes;

use crate::input::Input;
use crate::soft_program::{Honest, Program};

const STEPS: usize = 120;
/// Bytes that calls may name. A length has 16 bits, so outputs that begin in the first half are within.
const ARENA: usize = 256 << 10;
/// The command that creates a completion channel, whose descriptor would be lost.
const CREATE_COMP_CHANNEL: u32 = 17;
/// The command that creates a context, and its descriptor.
const GET_CONTEXT: u32 = 0;

/// A number that may be an address: of the arena, or one without memory.
fn number(input: &mut Input<'_>, arena: &Mapping) -> u64 {
    let start = arena.as_ptr().as_ptr().expose_provenance() as u64;
    match input.byte() % 8 {
        0..4 => u64::from(input.byte() % 40),
        4..7 => start + u64::from(input.word()) % (ARENA as u64 / 2),
        _ => input.long() | 1 << 63,
    }
}

/// Closes the descriptor of a successful `ASYNC_EVENT_ALLOC`.
fn close_channel(bytes: &[u8]) {
    let info = AsyncEventAlloc::INFO;
    if bytes[2..6] != [info.object.to_ne_bytes(), info.id.to_ne_bytes()].concat() {
        return;
    }
    let attributes = bytes[size_of::<Header>()..].chunks_exact(size_of::<Attribute>());
    for attribute in attributes.filter(|attribute| attribute[..2] == [0, 0]) {
        let fd = attribute.last_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)) as i32;
        // SAFETY: the call created the descriptor.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

fn ioctl(input: &mut Input<'_>, file: &DeviceFile, arena: &Mapping, methods: &[&MethodInfo]) -> Result<(), Errno> {
    let method = input.one_of(methods);
    let declared: Vec<_> = method.attributes.iter().map(|info| info.id).collect();
    let count = usize::from(input.byte() % 14);
    let mut bytes = Vec::new();
    for position in 0..count {
        let attr_id = match input.byte() % 8 {
            0 => input.half(),
            1 => 0x1000 + u16::from(input.byte() % 3),
            _ => declared.get(position % declared.len().max(1)).copied().unwrap_or(0),
        };
        let len = match input.byte() % 8 {
            0..4 => 0,
            4..7 => u16::from(input.byte() % 64),
            _ => input.half(),
        };
        let flags = AttributeFlags::from_bits_retain(u16::from(input.byte() % 4));
        let attr_data = if input.one_in(20) { input.half() } else { 0 };
        let data = number(input, arena);
        bytes.extend(Attribute { attr_id, len, flags, attr_data, data }.as_bytes());
    }
    let wrong = if input.one_in(20) { input.half() } else { 0 };
    let header = Header {
        length: ((size_of::<Header>() + bytes.len()) as u16).wrapping_add(wrong),
        object_id: method.object,
        method_id: method.id,
        num_attrs: count as u16,
        driver_id: DriverId::RXE.0,
        ..Header::zeroed()
    };
    let mut call = [header.as_bytes(), &bytes].concat();
    // SAFETY: addresses are of the arena or without memory. The device checks the header.
    let result = unsafe { file.execute_raw(&mut call) };
    if result.is_ok() {
        close_channel(&call);
    }
    result
}

fn write(input: &mut Input<'_>, file: &DeviceFile, arena: &Mapping) -> Result<(), Errno> {
    let number_of = u32::from(input.byte() % 64);
    let is_extended = input.one_in(3);
    if [CREATE_COMP_CHANNEL, GET_CONTEXT].contains(&number_of) {
        return Ok(());
    }
    let count = usize::from(input.byte() % 24);
    let output = u16::from(input.byte() % 64);
    let words = match (is_extended, input.one_in(10)) {
        (_, true) => input.half(),
        (true, _) => count.saturating_sub(2) as u16,
        (false, _) => 2 + 2 * count as u16,
    };
    let mut bytes = (number_of | if is_extended { EXTENDED } else { 0 }).to_ne_bytes().to_vec();
    bytes.extend(words.to_ne_bytes());
    bytes.extend(output.to_ne_bytes());
    for at in 0..count {
        // The second word of an extended header has sizes.
        let word = if is_extended && at == 1 { 0 } else { number(input, arena) };
        bytes.extend(word.to_ne_bytes());
    }
    // SAFETY: as in `ioctl`.
    unsafe { file.write_raw(&bytes) }
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let fabric = Fabric::new();
    let device = SoftDevice::new(&fabric);
    let arena = Mapping::anonymous(ARENA).expect("memory");
    let file = device.open().expect("a device");
    // SAFETY: no payload.
    unsafe { command::get_context(&file, DriverPayload::default()) }.expect("a context");
    let methods: Vec<_> = registry::Driver::default().methods().collect();
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let result = match input.byte() % 3 {
            0 => write(&mut input, &file, &arena),
            _ => ioctl(&mut input, &file, &arena, &methods),
        };
        assert_ne!(result, Err(Errno::IO), "the device has failed");
    }
    assert!(command::query_device(&file).is_ok());
    let mut honest = Honest::new(Program::on(device.clone()), Program::new(&fabric));
    honest.exchange();
    drop(file);
    honest.destroy();
    assert_eq!(device.resources(), bareverbs_soft::Resources::default(), "objects are left");
}
