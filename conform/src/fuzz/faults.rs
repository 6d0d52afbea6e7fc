//! Changes of valid calls.

use bareverbs_uapi::abi::{FieldKind, StructInfo};
use bareverbs_uapi::ioctl::AttributeFlags;
use bareverbs_uapi::method::{AttributeKind, Method};
use bareverbs_uapi::registry::{self, Driver};
use bareverbs_uapi::uverbs::InvokeWrite;

use crate::call::{Call, Payload, Slot};

use super::facts::Name;
use super::program::Fault;
use super::values::{Environment, extreme, is_confined, leaves};

/// Objects that a fault can name.
pub(super) struct Objects {
    /// Live objects of the file.
    pub(super) live: Vec<Name>,
    /// Destroyed objects of the file whose handles are free.
    pub(super) gone: Vec<Name>,
    /// Live objects of other files.
    pub(super) foreign: Vec<Name>,
}

/// One of the items.
pub(super) fn pick<T>(items: &[T], choice: u8) -> Option<&T> {
    items.get(usize::from(choice) % items.len().max(1))
}

/// The longest payload that a changed length states, in bytes.
const MAX_LENGTH: u16 = 8192;

/// Changes a call.
pub(super) fn apply_all(
    call: &mut Call,
    faults: &[Fault],
    driver: Driver,
    objects: &Objects,
    environment: &Environment,
) {
    faults.iter().for_each(|fault| apply(call, fault, driver, objects, environment));
    if faults.iter().any(|fault| matches!(fault, Fault::Method(_) | Fault::Object(_))) {
        confine(call, environment);
    }
}

fn apply(call: &mut Call, fault: &Fault, driver: Driver, objects: &Objects, environment: &Environment) {
    let count = call.slots.len();
    let slot = |at: u8| usize::from(at) % count.max(1);
    match *fault {
        Fault::Driver(id) => call.header.driver_id = id,
        Fault::Header(bits) => {
            call.header.reserved1 = (bits & 0xf).into();
            call.header.reserved2 = (bits >> 4).into();
        }
        Fault::Method(id) => call.header.method_id = id,
        Fault::Object(id) => call.header.object_id = id,
        Fault::Unknown { id, mandatory } => {
            let mut slot = Slot::word(id, 0);
            if !mandatory {
                slot.raw.flags = AttributeFlags::empty();
            }
            call.slots.push(slot);
        }
        Fault::Words(..) => {}
        _ if count == 0 => {}
        Fault::Drop(at) => drop(call.slots.remove(slot(at))),
        Fault::Repeat(at) => call.slots.push(call.slots[slot(at)].clone()),
        Fault::Swap(a, b) => call.slots.swap(slot(a), slot(b)),
        Fault::Flags(at, flags) => call.slots[slot(at)].raw.flags = AttributeFlags::from_bits_retain(flags),
        Fault::Reserved(at, data) => call.slots[slot(at)].raw.attr_data = data,
        Fault::Length(at, len) => resize(&mut call.slots[slot(at)], len.min(MAX_LENGTH)),
        Fault::Unmap(at) => {
            let slot = &mut call.slots[slot(at)];
            // Inputs of up to 8 bytes have no address.
            if matches!(&slot.payload, Payload::Output(_)) || slot.raw.len > 8 {
                slot.unmap();
            }
        }
        Fault::Value(at, field, choice) => {
            let info = layout(call, slot(at), driver);
            value(&mut call.slots[slot(at)], info, field, choice, environment);
        }
        Fault::Stale(at, which) => name(call, at, driver, pick(&objects.gone, which)),
        Fault::OtherClass(at, which) => name(call, at, driver, pick(&objects.live, which)),
        Fault::Foreign(at, which) => name(call, at, driver, pick(&objects.foreign, which)),
    }
}

/// Changes the stated length of a payload. An input keeps its form: bytes in the attribute, or an
/// address. A longer one would have its first bytes as an address.
fn resize(slot: &mut Slot, len: u16) {
    match slot.payload {
        Payload::None => slot.raw.len = len.min(8),
        Payload::Input(_) | Payload::Output(_) => slot.set_len(len),
    }
}

/// Numbers in attributes of another method may become addresses that the kernel writes to.
fn confine(call: &mut Call, environment: &Environment) {
    for slot in &mut call.slots {
        match &mut slot.payload {
            Payload::None if !is_confined(slot.raw.data, environment) => slot.raw.data &= 0xfff,
            Payload::Input(bytes) if slot.raw.len <= 8 => {
                bytes.resize(8, 0);
                let number = u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
                if !is_confined(number, environment) {
                    bytes.copy_from_slice(&(number & 0xfff).to_ne_bytes());
                }
            }
            _ => {}
        }
    }
}

/// The struct in the payload of an attribute.
fn layout(call: &Call, at: usize, driver: Driver) -> Option<&'static StructInfo> {
    let id = call.slots[at].raw.attr_id;
    let (object, method) = (call.header.object_id, call.header.method_id);
    let command = ((object, method) == (InvokeWrite::INFO.object, InvokeWrite::INFO.id)).then(|| {
        let number = call.slot(InvokeWrite::WRITE_CMD.id())?.bytes().first_chunk().copied()?;
        registry::command(u32::from_ne_bytes(number))
    });
    if id == bareverbs_uapi::method::UHW_IN {
        let payload = match command {
            Some(command) => driver.command_payload(command?.number),
            None => driver.method_payload(object, method),
        };
        return payload?.request;
    }
    if let Some(command) = command {
        return command?.request.filter(|_| id == InvokeWrite::CORE_IN.id());
    }
    let method = driver.method(object, method)?;
    match driver.attributes(method).find(|info| info.id == id)?.kind {
        AttributeKind::Input { payload: Some(FieldKind::Struct(info)), .. } => Some(info),
        _ => None,
    }
}

/// Sets a handle, a number or a field of a struct to an extreme value.
fn value(
    slot: &mut Slot,
    info: Option<&'static StructInfo>,
    field: u8,
    choice: u8,
    environment: &Environment,
) {
    match &mut slot.payload {
        // A handle of more than 32 bits, or an extreme value.
        Payload::None if choice & 0xc0 == 0xc0 => slot.raw.data |= 1 << 32,
        Payload::None => {
            slot.raw.data = extreme(if choice & 0x80 == 0 { 4 } else { 8 }, choice, environment);
        }
        Payload::Output(_) => {}
        Payload::Input(bytes) => match info {
            Some(info) => set_field(info, bytes, field, choice, environment),
            None if bytes.len() <= 8 => {
                let value = extreme(bytes.len(), choice, environment).to_le_bytes();
                let len = bytes.len();
                bytes.copy_from_slice(&value[..len]);
            }
            // The layout is unknown. Eight equal bytes are not an address of user space.
            None => bytes.fill(if choice & 1 == 0 { 0xff } else { 0 }),
        },
    }
}

/// Sets a field of a struct to an extreme value. Whole fields only: a part of an address must not
/// change.
pub(super) fn set_field(
    info: &'static StructInfo,
    bytes: &mut [u8],
    field: u8,
    choice: u8,
    environment: &Environment,
) {
    let mut fields = Vec::new();
    leaves(info, 0, &mut |_, field, at| {
        if !matches!(field.kind, FieldKind::Array(..)) && at + field.size <= bytes.len() {
            fields.push((at, field.size));
        }
    });
    if let Some(&(at, size)) = pick(&fields, field) {
        let value = extreme(size, choice, environment).to_le_bytes();
        bytes[at..at + size].copy_from_slice(&value[..size]);
    }
}

/// Puts the handle of an object into an attribute that names one, or into the request's first field
/// with a handle.
fn name(call: &mut Call, at: u8, driver: Driver, object: Option<&Name>) {
    let Some((_, handle)) = object else { return };
    let method = driver.method(call.header.object_id, call.header.method_id);
    let is_handle = |slot: &Slot| {
        let info =
            method.and_then(|method| driver.attributes(method).find(|info| info.id == slot.raw.attr_id));
        info.is_some_and(|info| matches!(info.kind, AttributeKind::Handle { .. }))
    };
    let handles: Vec<usize> = (0..call.slots.len()).filter(|index| is_handle(&call.slots[*index])).collect();
    if let Some(&index) = pick(&handles, at) {
        call.slots[index].raw.data = *handle;
        return;
    }
    let core = call.slots.iter().position(|slot| slot.raw.attr_id == InvokeWrite::CORE_IN.id());
    let Some((core, info)) = core.and_then(|core| Some((core, layout(call, core, driver)?))) else { return };
    if let Payload::Input(bytes) = &mut call.slots[core].payload {
        name_in(info, bytes, *handle);
    }
}

/// Puts a handle into the first field of a request that has one.
pub(super) fn name_in(info: &'static StructInfo, bytes: &mut [u8], handle: u64) {
    let mut first = None;
    leaves(info, 0, &mut |_, field, at| {
        if first.is_none() && super::places::class_of(field.rust).is_some() {
            first = Some(at);
        }
    });
    if let Some(target) = first.and_then(|at| bytes.get_mut(at..at + 4)) {
        target.copy_from_slice(&handle.to_le_bytes()[..4]);
    }
}
