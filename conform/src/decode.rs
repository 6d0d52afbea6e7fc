//! Messages of the kernel's RDMA interfaces as names and values, by the declarations of
//! [`bareverbs_uapi`].
//!
//! ```
//! use bareverbs_conform::decode::{Message, bytes_of_text, decode};
//!
//! // DEALLOC_PD of handle 7, as strace prints a write.
//! let bytes = bytes_of_text(r#"write(3, "\4\0\0\0\3\0\0\0\7\0\0\0", 12) = 12"#).unwrap();
//! assert_eq!(decode(Message::Write, &bytes).text, "DeallocPd: DeallocPdReq { pd_handle: 7 }");
//! ```

use bareverbs_uapi::decode::{DecodedAttribute, NoMemory};
use bareverbs_uapi::print::{Hex, Struct};
use bareverbs_uapi::rdma_cm::{self, GetEvent};
use bareverbs_uapi::registry;
use bareverbs_uapi::write::EXTENDED;
use bareverbs_uapi::write::structs::{CmdHdr, ExCmdHdr};
use bareverbs_uapi::{decode as ioctl, nldev};
use serde::Serialize;
use zerocopy::{FromBytes, IntoBytes};

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An ioctl of a uverbs file: header and attributes. Payloads of more than 8 bytes are
    /// elsewhere in memory and printed as addresses.
    Ioctl,
    /// A command that was written to a uverbs file.
    Write,
    /// A command that was written to `/dev/infiniband/rdma_cm`.
    RdmaCm,
    /// The response of rdma_cm's `GET_EVENT`.
    RdmaCmEvent,
    /// A datagram of RDMA netlink.
    Nldev,
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// The message as text.
    pub text: String,
    /// The method or command, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The attributes of an ioctl.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<AttributeText>,
    /// Bytes behind the message, as hexadecimal text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trailing: Option<String>,
}

/// An attribute of an ioctl.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttributeText {
    /// Its name, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its id.
    pub id: u16,
    /// Length of its payload in bytes.
    pub len: u16,
    /// Its flags by name.
    pub flags: String,
    /// Its value as text.
    pub value: String,
}

impl AttributeText {
    fn of(attribute: &DecodedAttribute<'_>) -> Self {
        let raw = attribute.raw();
        Self {
            name: attribute.name().map(str::to_owned),
            id: raw.attr_id,
            len: raw.len,
            flags: raw.flags.to_string(),
            value: attribute.to_string(),
        }
    }
}

/// Decodes a message. Malformed bytes are decoded as far as possible and marked as such.
#[must_use]
pub fn decode(message: Message, bytes: &[u8]) -> Decoded {
    match message {
        Message::Ioctl => of_ioctl(bytes),
        Message::Write => of_write(bytes),
        Message::RdmaCm => {
            let decoded = rdma_cm::decode(bytes);
            let name = decoded.command().map(|command| command.rust.to_owned());
            Decoded { name, ..text(decoded.to_string()) }
        }
        Message::RdmaCmEvent => of_event(bytes),
        Message::Nldev => text(nldev::decode(bytes).to_string()),
    }
}

fn text(text: String) -> Decoded {
    Decoded { text, name: None, attributes: Vec::new(), trailing: None }
}

fn with_tail(mut decoded: Decoded, tail: &[u8]) -> Decoded {
    if !tail.is_empty() {
        let tail = Hex(tail).to_string();
        decoded.text += &format!(" and {tail} behind it");
        decoded.trailing = Some(tail);
    }
    decoded
}

fn of_ioctl(bytes: &[u8]) -> Decoded {
    match ioctl::decode(bytes, &NoMemory) {
        Ok(call) => {
            let decoded = Decoded {
                text: format!("{call:#}"),
                name: call.method().map(|method| method.rust.to_owned()),
                attributes: call.attributes().map(|attribute| AttributeText::of(&attribute)).collect(),
                trailing: None,
            };
            with_tail(decoded, &bytes[usize::from(call.header().length).min(bytes.len())..])
        }
        Err(error) => text(format!("<malformed: {error}>")),
    }
}

fn of_write(bytes: &[u8]) -> Decoded {
    let Ok((header, rest)) = CmdHdr::read_from_prefix(bytes) else {
        return text(format!("<malformed: {} bytes where the header has 8>", bytes.len()));
    };
    let extended = header.command & EXTENDED != 0;
    let (rest, extra) = match ExCmdHdr::read_from_prefix(rest) {
        Ok((extra, rest)) if extended => (rest, Some(extra)),
        _ => (rest, None),
    };
    let unit = if extended { 8 } else { 4 };
    let header_len = if extended { 0 } else { size_of::<CmdHdr>() };
    let len = (usize::from(header.in_words) * unit).saturating_sub(header_len);
    let Some(command) = registry::command(header.command) else {
        return text(format!("command {:#x}: {}", header.command, Hex(rest)));
    };
    let prefix = if extended { "ex::" } else { "" };
    let mut shown = format!("{prefix}{}", command.rust);
    let request = command.request.map_or(0, |info| info.size).min(rest.len());
    if let Some(info) = command.request {
        shown += &format!(": {}", Struct { info, bytes: &rest[..request] });
    }
    if let Some(ExCmdHdr { response, provider_in_words, provider_out_words, .. }) = extra {
        shown += &format!(
            ", response at {response:#x}, driver {} bytes in and {} out",
            provider_in_words * 8,
            provider_out_words * 8
        );
    }
    if header.out_words > 0 {
        shown += &format!(" room {}", usize::from(header.out_words) * unit);
    }
    let driver = extra.map_or(0, |extra| usize::from(extra.provider_in_words) * 8);
    if rest.len() != len + driver {
        shown += &format!(" <malformed: {} of {} bytes>", rest.len(), len + driver);
    }
    let decoded = Decoded { name: Some(format!("{prefix}{}", command.rust)), ..text(shown) };
    with_tail(decoded, &rest[request..])
}

fn of_event(bytes: &[u8]) -> Decoded {
    // The response is printed by the command that asks for it.
    let header =
        rdma_cm::Header { command: <GetEvent as rdma_cm::Command>::INFO.number, ..rdma_cm::Header::zeroed() };
    let command = rdma_cm::decode(header.as_bytes());
    Decoded { name: Some("GetEvent".to_owned()), ..text(command.response(bytes).to_string()) }
}

/// The bytes in a text: hexadecimal digits, the lines of a hex dump with or without offsets, or the
/// strings of strace with their escapes. `None` if the text has none.
#[must_use]
pub fn bytes_of_text(text: &str) -> Option<Vec<u8>> {
    if text.contains('"') {
        return strings(text);
    }
    let mut bytes = Vec::new();
    for line in text.lines() {
        // An offset with a colon, and the characters behind a bar, are not bytes.
        let line = line.rsplit_once(": ").map_or(line, |(_, digits)| digits);
        let line = line.split('|').next().unwrap_or_default();
        let words = line.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let words: Option<Vec<Vec<u8>>> = words.map(word).collect();
        bytes.extend(words.into_iter().flatten().flatten());
    }
    (!bytes.is_empty()).then_some(bytes)
}

/// An even number of hexadecimal digits, with `0x` or `\x` before each byte or none.
fn word(word: &str) -> Option<Vec<u8>> {
    let digits = word.replace("\\x", "").replace("0x", "");
    let pairs = digits.as_bytes().chunks(2);
    let even = digits.len().is_multiple_of(2) && !digits.is_empty();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    pairs.map(pair).collect::<Option<Vec<u8>>>().filter(|_| even)
}

/// The bytes of all strings in a text with C's escapes.
fn strings(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chars = text.bytes().peekable();
    while let Some(char) = chars.next() {
        if char != b'"' {
            continue;
        }
        loop {
            match chars.next()? {
                b'"' => break,
                b'\\' => match chars.next()? {
                    b'n' => bytes.push(b'\n'),
                    b't' => bytes.push(b'\t'),
                    b'r' => bytes.push(b'\r'),
                    b'v' => bytes.push(0x0b),
                    b'f' => bytes.push(0x0c),
                    b'x' => {
                        let digits = [chars.next()?, chars.next()?];
                        bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                    }
                    digit @ b'0'..=b'7' => {
                        let mut value = u32::from(digit - b'0');
                        for _ in 0..2 {
                            match chars.peek() {
                                Some(digit @ b'0'..=b'7') => value = value * 8 + u32::from(digit - b'0'),
                                _ => break,
                            }
                            chars.next();
                        }
                        bytes.push(u8::try_from(value).ok()?);
                    }
                    other => bytes.push(other),
                },
                other => bytes.push(other),
            }
        }
    }
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::method::Call;
    use bareverbs_uapi::uverbs::PdDestroy;
    use bareverbs_uapi::uverbs::types::DriverId;

    use super::*;

    #[test]
    fn texts_of_several_tools_have_the_same_bytes() {
        let bytes = Some(vec![0x18, 0, 0x1b, 0xff]);
        for text in [
            "18001bff",
            "18 00 1b ff",
            "0x18, 0x00, 0x1b, 0xff",
            "[   12.3] 00000000: 18 00 1b ff",
            "00000000: 1800 1bff |....|",
            r#"write(3, "\30\0\33\377", 4) = 4"#,
            r#"write(3, "\x18\x00\x1b\xff", 4) = 4"#,
        ] {
            assert_eq!(bytes_of_text(text), bytes, "{text}");
        }
        assert_eq!(bytes_of_text("no bytes here"), None);
        assert_eq!(bytes_of_text("\"unfinished"), None);
    }

    #[test]
    fn ioctls_have_attributes_by_name() {
        let mut call = Call::<PdDestroy>::new(DriverId::RXE.0);
        call.destroy(PdDestroy::HANDLE, 7);
        let bytes = [call.as_bytes(), &[1, 2]].concat();
        let decoded = decode(Message::Ioctl, &bytes);
        assert_eq!(decoded.name.as_deref(), Some("PdDestroy"));
        assert_eq!(decoded.attributes[0].name.as_deref(), Some("HANDLE"));
        assert_eq!(decoded.attributes[0].value, "destroy Pd 7");
        assert!(decoded.trailing.is_some_and(|tail| tail.contains("0102")));
        assert!(decode(Message::Ioctl, &[1]).text.starts_with("<malformed"));
    }

    #[test]
    fn unknown_commands_and_short_requests_are_shown() {
        let shown = decode(Message::Write, &[0xc8, 0, 0, 0, 2, 0, 0, 0]).text;
        assert!(shown.starts_with("command 0xc8"), "{shown}");
        let short = decode(Message::Write, &[4, 0, 0, 0, 3, 0, 0, 0, 7, 0]).text;
        assert!(short.contains("<malformed: 2 of 4 bytes>"), "{short}");
        assert!(decode(Message::Write, &[4]).text.contains("malformed"));
    }

    #[test]
    fn every_kind_takes_any_bytes() {
        let kinds = [Message::Ioctl, Message::Write, Message::RdmaCm, Message::RdmaCmEvent, Message::Nldev];
        for kind in kinds {
            for len in 0..64 {
                for fill in [0, 1, 0x18, 0xff] {
                    assert!(
                        !decode(kind, &vec![fill; len]).text.is_empty() || len == 0 || kind == Message::Nldev
                    );
                }
            }
        }
    }
}
