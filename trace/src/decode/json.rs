//! ABI values as JSON, by the declarations of `bareverbs-uapi`.
//!
//! Bytes are hexadecimal strings. A named value is `{"value": 2, "name": "RC"}`, a flag set
//! `{"value": 5, "flags": ["A", "C"]}` with `unknown` for other bits. A GUID of RDMA netlink has
//! `value` and `guid`. A struct is an object of its
//! fields; `trailing` has the bytes behind it. Truncated values are `{"truncated": "0x…"}`.

use bareverbs_uapi::abi::{EnumInfo, FieldKind, StructInfo};
use bareverbs_uapi::decode::{DecodedAttribute, DecodedCall, DecodedValue, Layout, Payload};
use bareverbs_uapi::ioctl::AttributeFlags;
use bareverbs_uapi::method::Access;
use bareverbs_uapi::netlink::{self, Attributes, Content, Message, MessageFlags, Report, messages};
use bareverbs_uapi::nldev::{self, ValueKind};
use bareverbs_uapi::print::{Guid, Hex, Named, native, signed, size_of_kind};
use bareverbs_uapi::registry::Driver;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::write::structs::Sge;
use serde_json::{Map, Value, json};

/// The greatest depth of netlink attributes that is decoded. nldev has no deeper nesting.
const MAX_DEPTH: usize = 8;

pub(super) type Object = Map<String, Value>;

/// An object of these members.
pub(super) fn object<const N: usize>(members: [(&str, Value); N]) -> Object {
    members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn hex(bytes: &[u8]) -> Value {
    Hex(bytes).to_string().into()
}

fn truncated(bytes: &[u8]) -> Value {
    json!({ "truncated": hex(bytes) })
}

pub(super) fn named(info: &'static EnumInfo, value: u64) -> Value {
    if !info.flags {
        return json!({ "value": value, "name": info.name(value) });
    }
    let mut flags = Named { info, value }.flags();
    let names: Vec<_> = flags.by_ref().map(|flag| flag.rust).collect();
    match flags.unknown() {
        0 => json!({ "value": value, "flags": names }),
        unknown => json!({ "value": value, "flags": names, "unknown": format!("{unknown:#x}") }),
    }
}

fn value(kind: &FieldKind, bytes: &[u8]) -> Value {
    let size = match kind {
        FieldKind::Named(_) => bytes.len().min(8),
        kind => size_of_kind(kind),
    };
    let Some(bytes) = bytes.get(..size) else {
        return match kind {
            FieldKind::Struct(info) => structure(info, bytes).into(),
            _ => truncated(bytes),
        };
    };
    match *kind {
        FieldKind::Unsigned(_) => native(bytes).into(),
        FieldKind::Signed(_) => signed(bytes).into(),
        FieldKind::BigEndian(_) => {
            bytes.iter().fold(0_u64, |value, &byte| value << 8 | u64::from(byte)).into()
        }
        FieldKind::Named(info) => named(info, native(bytes)),
        FieldKind::Struct(info) => structure(info, bytes).into(),
        FieldKind::Array(element, _) => list(element, size_of_kind(element), bytes),
    }
}

/// Elements of `stride` bytes. The last one may be truncated.
fn list(kind: &FieldKind, stride: usize, bytes: &[u8]) -> Value {
    match kind {
        FieldKind::Unsigned(1) => hex(bytes),
        _ => bytes.chunks(stride.max(1)).map(|bytes| value(kind, bytes)).collect(),
    }
}

/// The fields of a struct, and the bytes behind it. Padding and reserved fields are omitted if they
/// are zero, and fields beyond the bytes.
pub(super) fn structure(info: &StructInfo, bytes: &[u8]) -> Object {
    let mut members = Object::new();
    let mut end = info.size;
    for field in info.fields {
        let rest = bytes.get(field.offset..).unwrap_or_default();
        if let FieldKind::Array(kind, 0) = field.kind {
            if !rest.is_empty() {
                end = bytes.len();
                flexible(&mut members, field.rust, kind, rest);
            }
            continue;
        }
        let bytes = &rest[..rest.len().min(field.size)];
        let hidden = field.c.is_empty() || field.rust.starts_with("reserved");
        if bytes.is_empty() || hidden && bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        let shown = if bytes.len() < field.size && !matches!(field.kind, FieldKind::Struct(_)) {
            truncated(bytes)
        } else {
            value(&field.kind, bytes)
        };
        members.insert(field.rust.to_owned(), shown);
    }
    if let Some(trailing) = bytes.get(end..).filter(|trailing| !trailing.is_empty()) {
        members.insert("trailing".to_owned(), hex(trailing));
    }
    members
}

/// The array at the end of a struct. Posted work requests have their own stride, and their SGEs
/// follow them.
fn flexible(members: &mut Object, name: &str, kind: &FieldKind, bytes: &[u8]) {
    let number =
        |name| members.get(name).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    let (Some(count), Some(stride)) = (number("wr_count"), number("wqe_size")) else {
        members.insert(name.to_owned(), list(kind, size_of_kind(kind), bytes));
        return;
    };
    let (requests, sges) = bytes.split_at(count.saturating_mul(stride).min(bytes.len()));
    members.insert(name.to_owned(), list(kind, stride, requests));
    if !sges.is_empty() {
        let kind = <Sge as bareverbs_uapi::abi::AbiField>::KIND;
        members.insert("sge".to_owned(), list(&kind, size_of_kind(&kind), sges));
    }
}

/// The members of an ioctl: ids and names of the method, and its attributes.
pub(super) fn call(call: &DecodedCall<'_>, driver: Driver) -> Object {
    let header = call.header();
    let attributes: Vec<Value> = call.attributes().map(|found| attribute(&found, driver)).collect();
    let mut members = object([
        ("object_id", header.object_id.into()),
        ("method_id", header.method_id.into()),
        ("driver", named(&DriverId::INFO, header.driver_id.into())),
        ("attributes", attributes.into()),
    ]);
    if let Some(object) = call.object() {
        members.insert("object".to_owned(), object.rust.into());
    }
    if let Some(method) = call.method() {
        members.insert("method".to_owned(), method.rust.into());
    }
    if let Some(command) = call.command() {
        members.insert("command".to_owned(), super::command_name(command).into());
    }
    members
}

fn attribute(attribute: &DecodedAttribute<'_>, driver: Driver) -> Value {
    let raw = attribute.raw();
    let (kind, shown) = attribute_value(attribute, driver);
    json!({
        "name": attribute.name(),
        "id": raw.attr_id,
        "type": kind,
        "len": raw.len,
        "flags": named(&AttributeFlags::INFO, raw.flags.bits().into()),
        "value": shown,
    })
}

fn attribute_value(attribute: &DecodedAttribute<'_>, driver: Driver) -> (&'static str, Value) {
    let class = |id| driver.objects().find(|object| object.id == id).map(|object| object.rust);
    match attribute.value() {
        DecodedValue::Handle { object, access, handle } => (
            "handle",
            json!({ "class": class(object), "class_id": object, "access": verb(access), "handle": handle }),
        ),
        DecodedValue::Descriptor { object, access, fd } => (
            "descriptor",
            json!({ "class": class(object), "class_id": object, "access": verb(access), "fd": fd }),
        ),
        DecodedValue::RawDescriptor(fd) => ("raw_descriptor", json!({ "fd": fd })),
        DecodedValue::Number { names: Some(info), value } => ("number", named(info, value)),
        DecodedValue::Number { names: None, value } => ("number", json!({ "value": value })),
        DecodedValue::Command { number, info } => {
            ("command", json!({ "value": number, "name": info.map(super::command_name) }))
        }
        DecodedValue::Element { element, names, payload: bytes } => {
            let element = match names {
                Some(info) => named(info, element.into()),
                None => json!({ "value": element }),
            };
            ("element", json!({ "element": element, "payload": payload(&bytes) }))
        }
        DecodedValue::Input(bytes) => ("input", payload(&bytes)),
        DecodedValue::Output { payload: bytes, written: true } => ("output", payload(&bytes)),
        DecodedValue::Output { payload: bytes, written: false } => ("output", place(&bytes)),
        DecodedValue::Unknown { data, .. } => ("unknown", json!({ "data": format!("{data:#x}") })),
        _ => ("unknown", Value::Null),
    }
}

const fn verb(access: Access) -> &'static str {
    match access {
        Access::New => "new",
        Access::Read => "read",
        Access::Write => "write",
        Access::Destroy => "destroy",
    }
}

fn place(payload: &Payload<'_>) -> Value {
    match payload.address() {
        Some(address) => json!({ "address": format!("{address:#x}") }),
        None => Value::Null,
    }
}

fn payload(payload: &Payload<'_>) -> Value {
    let mut buffer = vec![0; payload.len()];
    let Some(bytes) = payload.read(&mut buffer) else {
        return place(payload);
    };
    match payload.layout() {
        Layout::One(FieldKind::Struct(info)) => structure(info, bytes).into(),
        Layout::One(kind) => {
            let size = if let FieldKind::Named(_) = kind { bytes.len() } else { size_of_kind(kind) };
            match bytes.get(size..).filter(|trailing| !trailing.is_empty()) {
                Some(trailing) => json!({ "value": value(kind, bytes), "trailing": hex(trailing) }),
                None => value(kind, bytes),
            }
        }
        Layout::Elements(kind) => list(kind, size_of_kind(kind), bytes),
        Layout::Bytes => hex(bytes),
    }
}

/// The messages of a datagram of RDMA netlink.
pub(super) fn datagram(datagram: &[u8]) -> Object {
    let shown = messages(datagram).map(|message| match message {
        Ok(message) => Value::from(netlink_message(&message)),
        Err(error) => json!({ "malformed": error.to_string() }),
    });
    object([("messages", shown.collect())])
}

fn netlink_message(message: &Message<'_>) -> Object {
    let header = &message.header;
    let mut members = object([
        ("type", command(header.kind)),
        ("flags", named(&MessageFlags::INFO, header.flags.bits().into())),
        ("seq", header.seq.into()),
        ("port", header.port.into()),
    ]);
    let (name, value) = match message.content() {
        Ok(Content::Noop) => ("noop", Value::Bool(true)),
        Ok(Content::Overrun) => ("overrun", Value::Bool(true)),
        Ok(Content::Acknowledged(found)) => ("acknowledged", report(&found)),
        Ok(Content::Error(found)) => ("error", report(&found)),
        Ok(Content::Done(found)) => ("done", report(&found)),
        Ok(Content::Data) => ("attributes", netlink_attributes(message.attributes(), header.kind, 0)),
        Err(error) => ("malformed", error.to_string().into()),
    };
    members.insert(name.to_owned(), value);
    members
}

fn command(kind: u16) -> Value {
    let name = nldev::Command::from_message_type(kind).and_then(nldev::Command::name);
    json!({ "value": kind, "name": name })
}

fn report(report: &Report<'_>) -> Value {
    json!({
        "errno": report.errno,
        "request": report.request.map(|request| command(request.kind)),
        "message": report.message,
        "offset": report.offset,
        "missing": report.missing,
    })
}

fn netlink_attributes(attributes: Attributes<'_>, message_type: u16, depth: usize) -> Value {
    attributes
        .filter(|attribute| !matches!(attribute, Ok(found) if found.kind == nldev::Attribute::PAD.0))
        .map(|attribute| match attribute {
            Ok(attribute) => netlink_attribute(&attribute, message_type, depth),
            Err(error) => json!({ "malformed": error.to_string() }),
        })
        .collect()
}

fn netlink_attribute(attribute: &netlink::Attribute<'_>, message_type: u16, depth: usize) -> Value {
    let number = nldev::Attribute(attribute.kind);
    let info = number.info();
    let bytes = attribute.payload;
    let unsigned = |size: usize| match bytes.len() == size {
        true => match info.and_then(|info| info.names_in(message_type)) {
            Some(names) => named(names, native(bytes)),
            None => native(bytes).into(),
        },
        false => truncated(bytes),
    };
    let value = match info.map(|info| info.value) {
        Some(ValueKind::Nested) if depth < MAX_DEPTH => {
            netlink_attributes(attribute.attributes(), message_type, depth + 1)
        }
        Some(ValueKind::String) => attribute.str().map_or_else(|_| hex(bytes), Value::from),
        Some(ValueKind::S32) if bytes.len() == 4 => signed(bytes).into(),
        Some(ValueKind::S64) if bytes.len() == 8 => signed(bytes).into(),
        Some(ValueKind::U8) => unsigned(1),
        Some(ValueKind::U32) => unsigned(4),
        Some(ValueKind::U64) => unsigned(8),
        Some(ValueKind::Guid) if bytes.len() == 8 => {
            json!({ "value": native(bytes), "guid": Guid(native(bytes)).to_string() })
        }
        Some(ValueKind::Guid) => truncated(bytes),
        _ => hex(bytes),
    };
    json!({ "name": number.name(), "id": attribute.kind, "len": bytes.len(), "value": value })
}
