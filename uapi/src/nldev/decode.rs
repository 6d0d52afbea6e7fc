use core::fmt::{self, Display};

use super::{Attribute, Command, ValueKind};
use crate::netlink::{self, Attributes, Content, Malformed, Message, Report, messages};
use crate::print::{Guid, Hex, Named};

/// Maximum nesting depth that is printed. nldev has no deeper nesting.
const MAX_DEPTH: usize = 8;

/// Decodes a datagram of RDMA netlink, request or response. It prints one line per message, with
/// names and values.
#[must_use]
pub const fn decode(datagram: &[u8]) -> Decoded<'_> {
    Decoded { datagram }
}

/// The result of [`decode`]. Printing never fails; malformed bytes are marked as such.
#[derive(Clone, Copy, Debug)]
pub struct Decoded<'a> {
    datagram: &'a [u8],
}

impl fmt::Display for Decoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, message) in messages(self.datagram).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match message {
                Ok(message) => print_message(f, &message)?,
                Err(error) => malformed(f, error)?,
            }
        }
        Ok(())
    }
}

fn malformed(f: &mut fmt::Formatter<'_>, error: Malformed) -> fmt::Result {
    write!(f, "<malformed: {error}>")
}

fn print_message(f: &mut fmt::Formatter<'_>, message: &Message<'_>) -> fmt::Result {
    match message.content() {
        Ok(Content::Noop) => f.write_str("noop"),
        Ok(Content::Overrun) => f.write_str("overrun"),
        Ok(Content::Acknowledged(report)) => print_report(f, "acknowledged", message, &report),
        Ok(Content::Error(report)) => print_report(f, "refused", message, &report),
        Ok(Content::Done(report)) => print_report(f, "done", message, &report),
        Ok(Content::Data) => {
            print_command(f, message.header.kind)?;
            write!(f, " {:?} seq {} ", message.header.flags, message.header.seq)?;
            print_attributes(f, message.attributes(), message.header.kind, 0)
        }
        Err(error) => malformed(f, error),
    }
}

fn print_command(f: &mut fmt::Formatter<'_>, kind: u16) -> fmt::Result {
    match Command::from_message_type(kind) {
        Some(command) => write!(f, "{command:?}"),
        None => write!(f, "type {kind:#x}"),
    }
}

fn print_report(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    message: &Message<'_>,
    report: &Report<'_>,
) -> fmt::Result {
    write!(f, "{what} seq {}", message.header.seq)?;
    if let Some(request) = report.request {
        f.write_str(" ")?;
        print_command(f, request.kind)?;
    }
    if report.errno != 0 {
        write!(f, " errno {}", report.errno)?;
    }
    if let Some(text) = report.message {
        write!(f, " {text:?}")?;
    }
    if let Some(offset) = report.offset {
        write!(f, " at byte {offset}")?;
    }
    if let Some(missing) = report.missing.and_then(|missing| u16::try_from(missing).ok()) {
        write!(f, " missing {:?}", Attribute(missing))?;
    }
    Ok(())
}

fn print_attributes(
    f: &mut fmt::Formatter<'_>,
    attributes: Attributes<'_>,
    message_type: u16,
    depth: usize,
) -> fmt::Result {
    if depth == MAX_DEPTH {
        return f.write_str("{ .. }");
    }
    f.write_str("{")?;
    let mut separator = " ";
    for attribute in attributes {
        match attribute {
            Ok(attribute) if attribute.kind == Attribute::PAD.0 => continue,
            Ok(attribute) => {
                f.write_str(separator)?;
                print_attribute(f, &attribute, message_type, depth)?;
            }
            Err(error) => {
                f.write_str(separator)?;
                malformed(f, error)?;
            }
        }
        separator = ", ";
    }
    f.write_str(" }")
}

fn print_attribute(
    f: &mut fmt::Formatter<'_>,
    attribute: &netlink::Attribute<'_>,
    message_type: u16,
    depth: usize,
) -> fmt::Result {
    let number = Attribute(attribute.kind);
    write!(f, "{number:?} ")?;
    let Some(info) = number.info() else {
        return Hex(attribute.payload).fmt(f);
    };
    let value = match info.value {
        ValueKind::Padding | ValueKind::Binary | ValueKind::SocketAddress => {
            return Hex(attribute.payload).fmt(f);
        }
        ValueKind::Nested => return print_attributes(f, attribute.attributes(), message_type, depth + 1),
        ValueKind::String => {
            return match attribute.str() {
                Ok(text) => write!(f, "{text:?}"),
                Err(error) => malformed(f, error),
            };
        }
        ValueKind::S32 => attribute.i32().map(|value| value as u64),
        ValueKind::S64 => attribute.i64().map(|value| value as u64),
        ValueKind::U8 => attribute.u8().map(u64::from),
        ValueKind::U32 => attribute.u32().map(u64::from),
        ValueKind::U64 | ValueKind::Guid => attribute.u64(),
    };
    match (value, info.value) {
        (Err(error), _) => malformed(f, error),
        (Ok(value), ValueKind::S32 | ValueKind::S64) => write!(f, "{}", value.cast_signed()),
        (Ok(value), ValueKind::Guid) => Guid(value).fmt(f),
        (Ok(value), _) => match info.names_in(message_type) {
            Some(info) => Named { info, value }.fmt(f),
            None => write!(f, "{value}"),
        },
    }
}
