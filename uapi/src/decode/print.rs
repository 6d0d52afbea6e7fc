use core::fmt::{self, Display, Formatter};

use super::{DecodedAttribute, DecodedCall, DecodedValue, Driver, Layout, Payload};
use crate::abi::{FieldKind, StructInfo};
use crate::method::Access;
use crate::print::{DebugAsDisplay, Hex, List, Named, Struct, Value, number_of};
use crate::uverbs::types::DriverId;
use crate::write::EXTENDED;
use crate::write::structs::Sge;

/// Maximum number of bytes of a payload that are printed. Of the rest only the number is printed.
const PRINTED_BYTES: usize = 1024;

/// Class id that means any class in some driver-specific attributes.
const ANY_CLASS: u16 = u16::MAX;

impl Display for DecodedCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (self.method(), self.object()) {
            (Some(method), _) => f.write_str(method.rust)?,
            (None, Some(object)) => write!(f, "{} method {:#x}", object.rust, self.header.method_id)?,
            (None, None) => {
                write!(f, "object {:#x} method {:#x}", self.header.object_id, self.header.method_id)?;
            }
        }
        write!(f, " on {:?} ", DriverId(self.header.driver_id))?;
        let mut map = f.debug_map();
        for attribute in self.attributes() {
            map.entry(&DebugAsDisplay(Name(&attribute)), &DebugAsDisplay(&attribute));
        }
        map.finish()
    }
}

impl fmt::Debug for DecodedCall<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

struct Name<'a>(&'a DecodedAttribute<'a>);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0.raw.attr_id),
        }
    }
}

impl Display for DecodedAttribute<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.value() {
            DecodedValue::Handle { object, access, handle } => {
                write!(f, "{}{} {handle}", verb(access), Class(self.driver, object))
            }
            DecodedValue::Descriptor { object, access, fd } => {
                write!(f, "{}{} fd {fd}", verb(access), Class(self.driver, object))
            }
            DecodedValue::RawDescriptor(fd) => write!(f, "fd {fd}"),
            DecodedValue::Number { names: Some(info), value } => Named { info, value }.fmt(f),
            DecodedValue::Number { names: None, value } => write!(f, "{value}"),
            DecodedValue::Command { info: Some(info), .. } => {
                write!(f, "{}{}", if info.number & EXTENDED == 0 { "" } else { "ex::" }, info.rust)
            }
            DecodedValue::Command { number, info: None } => write!(f, "{number:#x}"),
            DecodedValue::Element { element, names, payload } => {
                match names {
                    Some(info) => Named { info, value: element.into() }.fmt(f)?,
                    None => write!(f, "{element}")?,
                }
                if payload.is_empty() { Ok(()) } else { write!(f, " {payload}") }
            }
            DecodedValue::Input(payload) | DecodedValue::Output { payload, written: true } => payload.fmt(f),
            DecodedValue::Output { payload, written: false } => payload.place(f),
            DecodedValue::Unknown { len, data } => write!(f, "{len} bytes, data {data:#x}"),
        }
    }
}

impl fmt::Debug for DecodedAttribute<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Name(self))?;
        Display::fmt(self, f)
    }
}

const fn verb(access: Access) -> &'static str {
    match access {
        Access::New => "new ",
        Access::Read => "",
        Access::Write => "change ",
        Access::Destroy => "destroy ",
    }
}

struct Class(Driver, u16);

impl Display for Class {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0.objects().find(|object| object.id == self.1) {
            Some(object) => f.write_str(object.rust),
            None if self.1 == ANY_CLASS => f.write_str("object"),
            None => write!(f, "object of class {:#x},", self.1),
        }
    }
}

impl Payload<'_> {
    fn place(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len)?;
        self.address().map_or(Ok(()), |address| write!(f, " at {address:#x}"))
    }
}

impl Display for Payload<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut buffer = [0; PRINTED_BYTES];
        let Some(bytes) = self.read(&mut buffer) else {
            return self.place(f);
        };
        match self.layout {
            Layout::One(FieldKind::Struct(info)) => {
                print_struct(f, info, bytes)?;
                let flexible =
                    matches!(info.fields.last().map(|field| field.kind), Some(FieldKind::Array(_, 0)));
                if let Some(beyond) = bytes.get(info.size..).filter(|beyond| !beyond.is_empty() && !flexible)
                {
                    write!(f, " and {}", Hex(beyond))?;
                }
            }
            Layout::One(ref kind) => Value { kind, bytes }.fmt(f)?,
            Layout::Elements(ref kind) => List { kind, bytes }.fmt(f)?,
            Layout::Bytes => Hex(bytes).fmt(f)?,
        }
        match self.len - bytes.len() {
            0 => Ok(()),
            rest => write!(f, " and {rest} bytes more"),
        }
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

/// A struct. After a struct with work requests follow its requests, then their SGEs.
fn print_struct(f: &mut Formatter<'_>, info: &'static StructInfo, bytes: &[u8]) -> fmt::Result {
    let field =
        |name| info.fields.iter().find(|field| field.rust == name).and_then(|field| number_of(field, bytes));
    let (Some(count), Some(stride), Some(FieldKind::Array(request, 0))) =
        (field("wr_count"), field("wqe_size"), info.fields.last().map(|field| field.kind))
    else {
        return Struct { info, bytes }.fmt(f);
    };
    let (head, tail) = bytes.split_at(bytes.len().min(info.size));
    let requests = usize::try_from(count.saturating_mul(stride)).map_or(tail.len(), |n| n.min(tail.len()));
    let (requests, sges) = tail.split_at(requests);
    let stride = usize::try_from(stride).unwrap_or(usize::MAX).max(1);
    let mut out = f.debug_struct(info.rust);
    Struct { info, bytes: head }.add_fields(&mut out);
    if !requests.is_empty() {
        out.field("wr", &DebugAsDisplay(Requests { kind: request, stride, bytes: requests }));
    }
    if !sges.is_empty() {
        out.field("sge", &DebugAsDisplay(List { kind: &<Sge as crate::abi::AbiField>::KIND, bytes: sges }));
    }
    out.finish()
}

struct Requests<'a> {
    kind: &'a FieldKind,
    stride: usize,
    bytes: &'a [u8],
}

impl Display for Requests<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let values =
            self.bytes.chunks(self.stride).map(|bytes| DebugAsDisplay(Value { kind: self.kind, bytes }));
        f.debug_list().entries(values).finish()
    }
}
