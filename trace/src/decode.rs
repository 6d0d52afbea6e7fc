//! Messages of the kernel's RDMA interfaces as names and values, by the declarations of
//! [`bareverbs_uapi`].
//!
//! ```
//! use bareverbs_trace::decode::{Form, Message, decode, messages_of_text};
//!
//! // DEALLOC_PD of handle 7, as strace prints a write.
//! let text = r#"write(3, "\4\0\0\0\3\0\0\0\7\0\0\0", 12) = 12"#;
//! let found = messages_of_text(text, Form::of(text))?.remove(0);
//! assert_eq!(found.message, Some(Message::Write));
//! assert_eq!(decode(Message::Write, &found.bytes).text, "DeallocPd: DeallocPdReq { pd_handle: 7 }");
//! # Ok::<(), bareverbs_trace::decode::TextError>(())
//! ```

mod json;
mod text;

use bareverbs_uapi::abi::AbiStruct;
use bareverbs_uapi::decode::{Memory, NoMemory};
use bareverbs_uapi::ioctl::{Attribute, Header};
use bareverbs_uapi::netlink::{MessageHeader, messages};
use bareverbs_uapi::print::{Hex, Struct};
use bareverbs_uapi::rdma_cm::{self, GetEvent};
use bareverbs_uapi::registry::{self, Driver};
use bareverbs_uapi::write::structs::{AsyncEventDesc, CmdHdr, CompEventDesc, ExCmdHdr};
use bareverbs_uapi::write::{EXTENDED, WriteCommandInfo};
use bareverbs_uapi::{decode as ioctl, nldev};
use serde::Serialize;
use zerocopy::{FromBytes, IntoBytes};

use crate::overread_len;

pub use text::{Form, Found, TextError, messages_of_text};

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Message {
    /// An ioctl of a uverbs file: header and attributes. Payloads of more than 8 bytes are
    /// elsewhere in memory.
    Ioctl,
    /// A command that was written to a uverbs file.
    Write,
    /// A command that was written to `/dev/infiniband/rdma_cm`.
    RdmaCm,
    /// The response of rdma_cm's `GET_EVENT`.
    RdmaCmEvent,
    /// A datagram of RDMA netlink.
    Nldev,
    /// Events read from a completion channel.
    CompletionEvent,
    /// Events read from an asynchronous event file.
    AsyncEvent,
}

impl Message {
    /// The kind of one event of this length in bytes, read from an event file.
    #[must_use]
    pub const fn event(len: usize) -> Option<Self> {
        match len {
            COMPLETION_EVENT => Some(Self::CompletionEvent),
            ASYNC_EVENT => Some(Self::AsyncEvent),
            _ => None,
        }
    }
}

const COMPLETION_EVENT: usize = size_of::<CompEventDesc>();
const ASYNC_EVENT: usize = size_of::<AsyncEventDesc>();

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decoded {
    /// The kind of the message.
    pub kind: Message,
    /// The method or command, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The message as text.
    pub text: String,
    /// Its attributes and fields, typed. Bytes are hexadecimal strings, named values and flags have
    /// their number and names, structs are objects. Bytes behind a struct or a message are
    /// `trailing`.
    #[serde(flatten)]
    pub value: serde_json::Map<String, serde_json::Value>,
}

/// Decodes a message without the memory of its process and for no particular driver. Malformed bytes
/// are decoded as far as possible and marked as such.
#[must_use]
pub fn decode(message: Message, bytes: &[u8]) -> Decoded {
    decode_with(message, bytes, Driver::default(), &NoMemory)
}

/// Decodes a message with the memory of its process. `driver` names the driver's part of commands
/// that are written; ioctls name their driver themselves.
#[must_use]
pub fn decode_with(message: Message, bytes: &[u8], driver: Driver, memory: &dyn Memory) -> Decoded {
    match message {
        Message::Ioctl => of_ioctl(bytes, memory),
        Message::Write => of_write(bytes, driver),
        Message::RdmaCm => of_rdma_cm(bytes),
        Message::RdmaCmEvent => of_event(bytes),
        Message::Nldev => new(message, None, nldev::decode(bytes).to_string(), json::datagram(bytes)),
        Message::CompletionEvent => events(message, bytes, &CompEventDesc::INFO),
        Message::AsyncEvent => events(message, bytes, &AsyncEventDesc::INFO),
    }
}

impl Found {
    /// Decodes it as a message of that kind. Its text, and `truncated` of its fields, say whether
    /// strace left out a part. The buffer after the call follows `=>` in the text and is the field
    /// `after`.
    #[must_use]
    pub fn decode(&self, message: Message) -> Decoded {
        let mut decoded = match message {
            _ if !self.truncated => decode(message, &self.bytes),
            Message::Ioctl => of_truncated_ioctl(&self.bytes),
            _ => marked(decode(message, &self.bytes), TRUNCATED),
        };
        if let Some(after) = &self.after {
            let found = Self { message: None, bytes: after.clone(), after: None, truncated: self.truncated };
            let after = found.decode(message);
            decoded.text += &format!(" => {}", after.text);
            decoded.value.insert("after".to_owned(), serde_json::json!(after));
        }
        decoded
    }
}

/// The remark at a message whose end strace left out.
const TRUNCATED: &str = "truncated by strace: use its option -s 65536";

fn marked(mut decoded: Decoded, remark: &str) -> Decoded {
    decoded.text += &format!(" <{remark}>");
    decoded.value.insert("truncated".to_owned(), true.into());
    decoded
}

/// An ioctl without some of its attributes. `strace -v` prints the header only, else the address.
fn of_truncated_ioctl(bytes: &[u8]) -> Decoded {
    if bytes.is_empty() {
        let nothing = new(Message::Ioctl, None, "ioctl".to_owned(), json::Object::new());
        return marked(nothing, "strace printed only its address");
    }
    let Ok((mut header, attributes)) = Header::read_from_prefix(bytes) else {
        return marked(of_ioctl(bytes, &NoMemory), TRUNCATED);
    };
    let all = header.num_attrs;
    header.num_attrs = all.min((attributes.len() / size_of::<Attribute>()) as u16);
    let attributes = &attributes[..usize::from(header.num_attrs) * size_of::<Attribute>()];
    header.length = (size_of::<Header>() + attributes.len()) as u16;
    let remark =
        format!("strace printed {} of {all} attributes: `bareverbs trace` records all", header.num_attrs);
    marked(of_ioctl(&[header.as_bytes(), attributes].concat(), &NoMemory), &remark)
}

/// The kind of a message by its header: its lengths and numbers must fit. Events have none.
#[must_use]
pub fn guess(bytes: &[u8]) -> Option<Message> {
    let netlink = || {
        let mut all = messages(bytes);
        let mut ours = false;
        let valid = all.all(|message| {
            message.is_ok_and(|message| {
                let kind = message.header.kind;
                ours = true;
                nldev::Command::from_message_type(kind).is_some() || (1..5).contains(&kind)
            })
        });
        valid && ours
    };
    let ioctl = || {
        let header = Header::read_from_prefix(bytes).is_ok_and(|(header, _)| header.reserved1 == 0);
        header && ioctl::decode(bytes, &NoMemory).is_ok()
    };
    let write = || {
        CmdHdr::read_from_prefix(bytes).is_ok_and(|(header, rest)| {
            let expected = match ExCmdHdr::read_from_prefix(rest) {
                Ok((extra, _)) if header.command & EXTENDED != 0 => {
                    24 + 8 * (usize::from(header.in_words) + usize::from(extra.provider_in_words))
                }
                _ => 4 * usize::from(header.in_words),
            };
            registry::command(header.command).is_some() && expected == bytes.len()
        })
    };
    let rdma_cm = || {
        let decoded = rdma_cm::decode(bytes);
        let fits =
            |header: rdma_cm::Header| size_of::<rdma_cm::Header>() + usize::from(header.input) == bytes.len();
        decoded.command().is_some() && decoded.header().is_some_and(fits)
    };
    match () {
        () if ioctl() => Some(Message::Ioctl),
        // NLMSG_OVERRUN. DEALLOC_MW of 16 bytes has the same header, but its length is 12.
        () if bytes.len() == size_of::<MessageHeader>() && netlink() => Some(Message::Nldev),
        () if write() => Some(Message::Write),
        () if rdma_cm() => Some(Message::RdmaCm),
        () if netlink() => Some(Message::Nldev),
        () => None,
    }
}

/// Decodes the response to a command that was written to a uverbs file or to rdma_cm, for the bytes
/// of the request and of the response. `None` for commands without a response.
#[must_use]
pub fn response(message: Message, request: &[u8], response: &[u8], driver: Driver) -> Option<Decoded> {
    match message {
        Message::RdmaCm => {
            let decoded = rdma_cm::decode(request);
            let command = decoded.command()?;
            if command.number == <GetEvent as rdma_cm::Command>::INFO.number {
                return Some(Decoded { kind: message, ..of_event(response) });
            }
            let info = decoded.response_info()?;
            let text = decoded.response(response).to_string();
            Some(new(message, Some(command.rust.to_owned()), text, json::structure(info, response)))
        }
        Message::Write => {
            let (header, _) = CmdHdr::read_from_prefix(request).ok()?;
            let command = registry::command(header.command)?;
            let info = command.response?;
            // The response of the driver follows in the same buffer.
            let (core, beyond) = response.split_at(info.size.min(response.len()));
            let mut text = Struct { info, bytes: core }.to_string();
            let mut value = json::structure(info, core);
            add_driver(&mut text, &mut value, command, beyond, driver, Direction::Out);
            Some(new(message, Some(command_name(command)), text, value))
        }
        _ => None,
    }
}

fn new(kind: Message, name: Option<String>, text: String, value: json::Object) -> Decoded {
    Decoded { kind, name, text, value }
}

fn malformed(kind: Message, text: String, bytes: &[u8]) -> Decoded {
    new(kind, None, text, json::object([("malformed", json::hex(bytes))]))
}

/// The name of a write command; extended ones begin with `ex::`.
fn command_name(command: &WriteCommandInfo) -> String {
    format!("{}{}", if command.number & EXTENDED == 0 { "" } else { "ex::" }, command.rust)
}

fn of_ioctl(bytes: &[u8], memory: &dyn Memory) -> Decoded {
    let call = match ioctl::decode(bytes, memory) {
        Ok(call) => call,
        Err(error) => return malformed(Message::Ioctl, format!("<malformed: {error}>"), bytes),
    };
    let name = match (call.command(), call.method()) {
        (Some(command), _) => Some(command_name(command)),
        (None, method) => method.map(|method| method.rust.to_owned()),
    };
    let driver = registry::driver(call.header().driver_id);
    let mut decoded = new(Message::Ioctl, name, format!("{call:#}"), json::call(&call, driver));
    let tail = &bytes[usize::from(call.header().length).min(bytes.len())..];
    if !tail.is_empty() {
        decoded.text += &format!(" and {} behind it", Hex(tail));
        decoded.value.insert("trailing".to_owned(), json::hex(tail));
    }
    decoded
}

fn of_rdma_cm(bytes: &[u8]) -> Decoded {
    let decoded = rdma_cm::decode(bytes);
    let name = decoded.command().map(|command| command.rust.to_owned());
    let rest = bytes.get(size_of::<rdma_cm::Header>()..).unwrap_or_default();
    let mut value = json::Object::new();
    if let Some(header) = decoded.header() {
        value.insert("command".to_owned(), header.command.into());
        value.insert("response_len".to_owned(), header.output.into());
        let (request, beyond) = rest.split_at(usize::from(header.input).min(rest.len()));
        let request = match decoded.command() {
            Some(command) => json::structure(command.request, request).into(),
            None => json::hex(request),
        };
        value.insert("request".to_owned(), request);
        if !beyond.is_empty() {
            value.insert("trailing".to_owned(), json::hex(beyond));
        }
    }
    new(Message::RdmaCm, name, decoded.to_string(), value)
}

/// The direction of a driver's part of a command.
#[derive(Clone, Copy)]
enum Direction {
    In,
    Out,
}

/// Adds the driver's part of a command: a struct that the driver declares, or bytes.
fn add_driver(
    text: &mut String,
    value: &mut json::Object,
    command: &WriteCommandInfo,
    bytes: &[u8],
    driver: Driver,
    direction: Direction,
) {
    let payload = driver.command_payload(command.number);
    let info = payload.and_then(|payload| match direction {
        Direction::In => payload.request,
        Direction::Out => payload.response,
    });
    let has = match direction {
        Direction::In => command.driver_input,
        Direction::Out => command.driver_output,
    };
    match info {
        _ if bytes.is_empty() => {}
        Some(info) if has => {
            *text += &format!(", driver {}", Struct { info, bytes });
            value.insert("driver".to_owned(), json::structure(info, bytes).into());
        }
        _ if has => {
            *text += &format!(", driver {}", Hex(bytes));
            value.insert("driver".to_owned(), json::hex(bytes));
        }
        _ => {
            *text += &format!(" and {} behind it", Hex(bytes));
            value.insert("trailing".to_owned(), json::hex(bytes));
        }
    }
}

fn of_write(bytes: &[u8], driver: Driver) -> Decoded {
    let Ok((header, rest)) = CmdHdr::read_from_prefix(bytes) else {
        let text = format!("<malformed: {} bytes where the header has 8>", bytes.len());
        return malformed(Message::Write, text, bytes);
    };
    let extended = header.command & EXTENDED != 0;
    let (rest, extra) = match ExCmdHdr::read_from_prefix(rest) {
        Ok((extra, rest)) if extended => (rest, Some(extra)),
        _ => (rest, None),
    };
    let unit = if extended { 8 } else { 4 };
    let header_len = if extended { 0 } else { size_of::<CmdHdr>() };
    let len = (usize::from(header.in_words) * unit).saturating_sub(header_len);
    let mut value = json::object([
        ("command", header.command.into()),
        ("response_len", (usize::from(header.out_words) * unit).into()),
    ]);
    let Some(command) = registry::command(header.command) else {
        value.insert("request".to_owned(), json::hex(rest));
        return new(Message::Write, None, format!("command {:#x}: {}", header.command, Hex(rest)), value);
    };
    let mut shown = command_name(command);
    // The struct of an extended command has the stated length, that of others its own.
    let core = if extended { len } else { command.request.map_or(0, |info| info.size) };
    let core = if command.driver_input { core } else { len };
    let (request, beyond) = rest.split_at(core.min(rest.len()));
    if let Some(info) = command.request {
        shown += &format!(": {}", Struct { info, bytes: request });
        value.insert("request".to_owned(), json::structure(info, request).into());
    }
    if let Some(ExCmdHdr { response, provider_in_words, provider_out_words, .. }) = extra {
        shown += &format!(
            ", response at {response:#x}, driver {} bytes in and {} out",
            u32::from(provider_in_words) * 8,
            u32::from(provider_out_words) * 8
        );
        value.insert("response".to_owned(), format!("{response:#x}").into());
        value.insert("driver_response_len".to_owned(), (u32::from(provider_out_words) * 8).into());
    }
    if header.out_words > 0 {
        shown += &format!(" room {}", usize::from(header.out_words) * unit);
    }
    let driver_len = extra.map_or(0, |extra| usize::from(extra.provider_in_words) * 8);
    if rest.len() != len + driver_len {
        shown += &format!(" <malformed: {} of {} bytes>", rest.len(), len + driver_len);
    }
    add_driver(&mut shown, &mut value, command, beyond, driver, Direction::In);
    match overread_len(bytes) {
        0 => {}
        behind => {
            shown += &format!(" <the kernel reads {behind} bytes behind it>");
            value.insert("overread_len".to_owned(), behind.into());
        }
    }
    new(Message::Write, Some(command_name(command)), shown, value)
}

fn of_event(bytes: &[u8]) -> Decoded {
    // The response is printed by the command that asks for it.
    let header =
        rdma_cm::Header { command: <GetEvent as rdma_cm::Command>::INFO.number, ..rdma_cm::Header::zeroed() };
    let command = rdma_cm::decode(header.as_bytes());
    let text = command.response(bytes).to_string();
    let value = json::structure(&rdma_cm::structs::EventResp::INFO, bytes);
    new(Message::RdmaCmEvent, Some("GetEvent".to_owned()), text, value)
}

fn events(kind: Message, bytes: &[u8], info: &'static bareverbs_uapi::abi::StructInfo) -> Decoded {
    let each = || bytes.chunks(info.size);
    let text: Vec<_> = each().map(|bytes| Struct { info, bytes }.to_string()).collect();
    let events: Vec<_> = each().map(|bytes| json::structure(info, bytes)).collect();
    new(kind, None, text.join("\n"), json::object([("events", events.into())]))
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::method::Call;
    use bareverbs_uapi::uverbs::PdDestroy;
    use bareverbs_uapi::uverbs::types::DriverId;
    use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
    use bareverbs_uapi::write::structs::{CreateCqReq, CreateCqResp, ModifyQpReq};
    use bareverbs_uapi::{rxe, write};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const KINDS: [Message; 7] = [
        Message::Ioctl,
        Message::Write,
        Message::RdmaCm,
        Message::RdmaCmEvent,
        Message::Nldev,
        Message::CompletionEvent,
        Message::AsyncEvent,
    ];

    #[test]
    fn ioctls_have_typed_attributes() {
        let mut call = Call::<PdDestroy>::new(DriverId::RXE.0);
        call.destroy(PdDestroy::HANDLE, 7);
        let mut bytes = [call.as_bytes(), &[1, 2]].concat();
        let decoded = decode(Message::Ioctl, &bytes);
        assert_eq!(decoded.name.as_deref(), Some("PdDestroy"));
        assert!(decoded.text.ends_with(" and 0x0102 behind it"), "{}", decoded.text);
        assert_eq!(decoded.value["trailing"], "0x0102");
        assert_eq!(decoded.value["driver"], json!({ "value": 14, "name": "RXE" }));
        assert_eq!(
            decoded.value["attributes"],
            json!([{
                "name": "HANDLE", "id": 0, "type": "handle", "len": 0,
                "flags": { "value": 1, "flags": ["MANDATORY"] },
                "value": { "class": "Pd", "class_id": 1, "access": "destroy", "handle": 7 },
            }])
        );
        // An unknown attribute keeps its data.
        (bytes[24], bytes[26]) = (0x55, 8);
        let unknown = &decode(Message::Ioctl, &bytes).value["attributes"][0];
        assert_eq!(
            (&unknown["name"], &unknown["type"], &unknown["id"]),
            (&Value::Null, &"unknown".into(), &0x55.into())
        );
        assert_eq!(unknown["value"], json!({ "data": "0x7" }));
        assert!(decode(Message::Ioctl, &[1]).text.starts_with("<malformed"));
    }

    #[test]
    fn responses_have_the_part_of_the_driver() {
        let words = (size_of::<CmdHdr>() + size_of::<CreateCqReq>()) / 4;
        let header = CmdHdr { command: 18, in_words: words as u16, out_words: 6 };
        let request = [header.as_bytes(), CreateCqReq::zeroed().as_bytes()].concat();
        let core = CreateCqResp { cq_handle: 3, cqe: 255, ..CreateCqResp::zeroed() };
        let driver = rxe::CreateCqResp { mi: rxe::MmapInfo { size: 4096, ..rxe::MmapInfo::zeroed() } };
        let bytes = [core.as_bytes(), driver.as_bytes()].concat();
        let rxe = registry::driver(DriverId::RXE.0);
        let decoded = response(Message::Write, &request, &bytes, rxe).unwrap();
        assert_eq!(decoded.name.as_deref(), Some("CreateCq"));
        assert_eq!(decoded.value["cq_handle"], 3);
        assert_eq!(decoded.value["driver"]["mi"]["size"], 4096);
        let unknown = response(Message::Write, &request, &bytes, Driver::default()).unwrap();
        assert!(unknown.value["driver"].as_str().unwrap().starts_with("0x0000"));
    }

    #[test]
    fn flags_and_enumerations_have_names_and_numbers() {
        let request = ModifyQpReq {
            qp_handle: 5,
            attr_mask: QpAttrMask::from_bits_retain(1 | 1 << 31),
            qp_state: QpState(1),
            ..ModifyQpReq::zeroed()
        };
        let words = (size_of::<CmdHdr>() + size_of::<ModifyQpReq>()) / 4;
        let header = CmdHdr { command: 26, in_words: words as u16, out_words: 0 };
        let decoded = decode(Message::Write, &[header.as_bytes(), request.as_bytes()].concat());
        let request = &decoded.value["request"];
        assert_eq!(
            request["attr_mask"],
            json!({ "value": 0x8000_0001_u32, "flags": ["STATE"], "unknown": "0x80000000" })
        );
        assert_eq!(request["qp_state"], json!({ "value": 1, "name": "INIT" }));
    }

    #[test]
    fn kinds_are_known_by_their_headers() {
        let mut call = Call::<PdDestroy>::new(DriverId::RXE.0);
        call.destroy(PdDestroy::HANDLE, 7);
        assert_eq!(guess(call.as_bytes()), Some(Message::Ioctl));
        assert_eq!(guess(&[4, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0]), Some(Message::Write));
        let mut response = rdma_cm::structs::CreateIdResp::zeroed();
        let call =
            rdma_cm::Call::<rdma_cm::CreateId>::new(rdma_cm::structs::CreateIdReq::zeroed(), &mut response);
        assert_eq!(guess(call.as_bytes()), Some(Message::RdmaCm));
        assert_eq!(guess(&[16, 0, 0, 0, 1, 0x14, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0]), Some(Message::Nldev));
        for other in [&b""[..], b"a line of text", &[0; 40]] {
            assert_eq!(guess(other), None);
        }
    }

    #[test]
    fn unknown_commands_and_short_requests_are_shown() {
        let shown = decode(Message::Write, &[0xc8, 0, 0, 0, 2, 0, 0, 0]).text;
        assert!(shown.starts_with("command 0xc8"), "{shown}");
        let short = decode(Message::Write, &[4, 0, 0, 0, 3, 0, 0, 0, 7, 0]);
        assert!(short.text.contains("<malformed: 2 of 4 bytes>"), "{}", short.text);
        assert_eq!(short.value["request"]["pd_handle"], json!({ "truncated": "0x0700" }));
        assert!(decode(Message::Write, &[4]).text.contains("malformed"));
    }

    #[test]
    fn netlink_attributes_are_typed() {
        let mut buffer = [0; 64];
        let mut writer = bareverbs_uapi::netlink::MessageWriter::new(&mut buffer);
        let flags = bareverbs_uapi::netlink::MessageFlags::REQUEST;
        writer.begin(nldev::Command::GET.message_type(), flags, 9).put_u32(1, 3).put_str(2, "rxe0");
        let decoded = decode(Message::Nldev, writer.finish().unwrap());
        let message = &decoded.value["messages"][0];
        assert_eq!((&message["type"]["name"], &message["seq"]), (&"GET".into(), &9.into()));
        assert_eq!(message["attributes"][0], json!({ "name": "DEV_INDEX", "id": 1, "len": 4, "value": 3 }));
        assert_eq!(message["attributes"][1]["value"], "rxe0");
    }

    #[test]
    fn guids_and_capabilities_of_netlink_have_numbers_and_text() {
        let attributes = |command: nldev::Command| {
            let mut buffer = [0; 64];
            let mut writer = bareverbs_uapi::netlink::MessageWriter::new(&mut buffer);
            let flags = bareverbs_uapi::netlink::MessageFlags::empty();
            writer
                .begin(command.message_type(), flags, 9)
                .put_u64(nldev::Attribute::SYS_IMAGE_GUID.0, 0x5054_00ff_fe12_3456)
                .put_u64(nldev::Attribute::CAP_FLAGS.0, 1 << 10);
            let decoded = decode(Message::Nldev, writer.finish().unwrap());
            decoded.value["messages"][0]["attributes"].clone()
        };
        let device = attributes(nldev::Command::GET);
        let guid = json!({ "value": 0x5054_00ff_fe12_3456_u64, "guid": "5054:00ff:fe12:3456" });
        assert_eq!(device[0]["value"], guid);
        assert_eq!(device[1]["value"], json!({ "value": 1024, "flags": ["PORT_ACTIVE_EVENT"] }));
        let port = attributes(nldev::Command::PORT_GET);
        assert_eq!(port[1]["value"], json!({ "value": 1024, "flags": ["SM_DISABLED"] }));
    }

    #[test]
    fn control_messages_of_netlink_are_recognized() {
        let message = |kind: u8, len: u8| {
            let mut bytes = vec![0; len.into()];
            (bytes[0], bytes[4]) = (len, kind);
            bytes
        };
        // NLMSG_NOOP, NLMSG_ERROR, NLMSG_DONE, NLMSG_OVERRUN.
        for (kind, len, text) in
            [(1, 16, "noop"), (2, 36, "acknowledged"), (3, 20, "done"), (4, 16, "overrun")]
        {
            let bytes = message(kind, len);
            assert_eq!(guess(&bytes), Some(Message::Nldev), "type {kind}");
            assert!(decode(Message::Nldev, &bytes).text.starts_with(text), "type {kind}");
        }
        for kind in [0, 5, 15] {
            assert_eq!(guess(&message(kind, 16)), None, "type {kind}");
        }
        // DEALLOC_MW of 3 words.
        assert_eq!(guess(&[16, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0]), Some(Message::Write));
    }

    /// The same byte everywhere.
    struct Filled(u8);

    impl Memory for Filled {
        fn read(&self, _: u64, buffer: &mut [u8]) -> bool {
            buffer.fill(self.0);
            true
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_as_every_kind(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            fill: u8,
            driver in prop::sample::select(vec![DriverId::UNKNOWN, DriverId::RXE, DriverId::MLX5]),
        ) {
            for kind in KINDS {
                let driver = registry::driver(driver.0);
                let decoded = decode_with(kind, &bytes, driver, &Filled(fill));
                prop_assert!(serde_json::to_string(&decoded).is_ok());
                if let Some(response) = response(kind, &bytes, &[fill; 64], driver) {
                    prop_assert!(serde_json::to_string(&response).is_ok());
                }
            }
            let _ = guess(&bytes);
        }

        #[test]
        fn any_attributes_of_any_command_decode(
            number in prop::sample::select(registry::COMMANDS.to_vec()),
            rest in prop::collection::vec(any::<u8>(), 0..300),
            driver in prop::sample::select(vec![DriverId::RXE, DriverId::MLX5]),
        ) {
            let header = CmdHdr { command: number.number, in_words: 9, out_words: 3 };
            let bytes = [header.as_bytes(), &rest].concat();
            let decoded = decode_with(Message::Write, &bytes, registry::driver(driver.0), &NoMemory);
            prop_assert_eq!(decoded.name.is_some(), true);
            // The same request as an ioctl.
            let mut call = Call::<bareverbs_uapi::uverbs::InvokeWrite>::new(driver.0);
            call.constant(bareverbs_uapi::uverbs::InvokeWrite::WRITE_CMD, number.number);
            call.input_slice(bareverbs_uapi::uverbs::InvokeWrite::CORE_IN, &rest);
            call.driver_input(&rest);
            let decoded = decode_with(Message::Ioctl, call.as_bytes(), Driver::default(), &Filled(1));
            prop_assert_eq!(&decoded.value["command"], &command_name(number));
        }
    }

    #[test]
    fn lengths_of_extended_commands_are_in_words_of_8_bytes() {
        for command in registry::COMMANDS.into_iter().filter(|command| command.number & EXTENDED != 0) {
            let words = command.request.map_or(0, |info| info.size).div_ceil(8);
            let header = CmdHdr { command: command.number, in_words: words as u16, out_words: 5 };
            let extra = ExCmdHdr { provider_in_words: 1, provider_out_words: 3, ..ExCmdHdr::zeroed() };
            let bytes = [header.as_bytes(), extra.as_bytes(), &vec![0; 8 * words], &[1; 8]].concat();
            assert_eq!(guess(&bytes), Some(Message::Write), "{}", command.rust);
            assert_ne!(guess(&bytes[..bytes.len() - 8]), Some(Message::Write), "{}", command.rust);
            let Decoded { text, value, .. } = decode(Message::Write, &bytes);
            assert!(text.contains("driver 8 bytes in and 24 out room 40"), "{text}");
            assert!(!text.contains("malformed"), "{text}");
            assert_eq!((&value["response_len"], &value["driver_response_len"]), (&40.into(), &24.into()));
            let part = if command.driver_input { "driver" } else { "trailing" };
            assert_eq!(value[part], "0x0101010101010101", "{text}");
        }
    }

    #[test]
    fn bytes_behind_a_request_belong_to_the_driver_if_the_command_permits_it() {
        // DEALLOC_PD takes none.
        let decoded = decode(Message::Write, &[4, 0, 0, 0, 4, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(decoded.value["request"], json!({ "pd_handle": 7, "trailing": "0x01000000" }));
        let words = (size_of::<CmdHdr>() + size_of::<CreateCqReq>() + 4) / 4;
        let header = CmdHdr { command: 18, in_words: words as u16, out_words: 0 };
        let bytes = [header.as_bytes(), CreateCqReq::zeroed().as_bytes(), &[1, 0, 0, 0]].concat();
        let decoded = decode(Message::Write, &bytes);
        assert_eq!(decoded.value["driver"], "0x01000000", "{}", decoded.text);
    }

    #[test]
    fn ex_commands_are_marked() {
        assert_eq!(command_name(&<write::ex::CreateQp as write::WriteCommand>::INFO), "ex::CreateQp");
        assert_eq!(command_name(&<write::CreateQp as write::WriteCommand>::INFO), "CreateQp");
    }
}
