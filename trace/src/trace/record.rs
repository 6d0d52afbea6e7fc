//! One traced call, as bytes: it can be printed, stored and replayed.

use bareverbs_uapi::decode::{DecodedValue, Memory, decode};
use bareverbs_uapi::registry::{self, Driver};
use bareverbs_uapi::uverbs::types::DriverId;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::files::Interface;
use super::hex;
use crate::decode::{Decoded, Message, decode_with, guess, response};

/// Bytes in the memory of the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// Their address.
    pub address: u64,
    /// The bytes.
    #[serde(with = "hex")]
    pub bytes: Vec<u8>,
}

/// The kind of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    /// `ioctl`.
    Ioctl,
    /// `write`.
    Write,
    /// `read`.
    Read,
    /// `sendto` or `sendmsg`.
    Send,
    /// `recvfrom` or `recvmsg`.
    Receive,
    /// `close` of a device file, or of a descriptor that a call made. Only recordings of
    /// `bareverbs conform --fuzz` have it.
    Close,
}

/// A call of an RDMA interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Time of its start in nanoseconds since the start of the trace.
    pub time: u64,
    /// Its duration in nanoseconds, including the stops for the tracer.
    pub duration: u64,
    /// The process.
    pub process: i32,
    /// The thread.
    pub thread: i32,
    /// The system call.
    pub call: CallKind,
    /// The descriptor.
    pub fd: i32,
    /// The interface that the descriptor belongs to.
    pub interface: Interface,
    /// The result; negative for an errno. `None` if the program ended during the call.
    pub result: Option<i64>,
    /// The bytes passed to the kernel: those of an ioctl before the call, of a command or a datagram.
    #[serde(with = "hex")]
    pub request: Vec<u8>,
    /// The bytes behind a written command that the kernel reads: 8 bytes of a `DESTROY_CQ` with 16.
    #[serde(default, with = "hex", skip_serializing_if = "Vec::is_empty")]
    pub overread: Vec<u8>,
    /// The payloads that the request points to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Chunk>,
    /// The bytes from the kernel: those of the ioctl after the call, a response, events, a datagram.
    #[serde(default, with = "hex", skip_serializing_if = "Vec::is_empty")]
    pub answer: Vec<u8>,
    /// The payloads that the kernel wrote.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Chunk>,
}

/// The payloads of a record as memory.
struct Payloads<'a>(&'a [&'a [Chunk]]);

impl Memory for Payloads<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let fits = |chunk: &&Chunk| chunk.address == address && chunk.bytes.len() >= buffer.len();
        let found = self.0.iter().flat_map(|chunks| chunks.iter()).find(fits);
        found.is_some_and(|chunk| {
            buffer.copy_from_slice(&chunk.bytes[..buffer.len()]);
            true
        })
    }
}

impl Record {
    /// The kind of its message; `None` for a call that transfers none, such as a read without events.
    #[must_use]
    pub fn message(&self) -> Option<Message> {
        match (&self.interface, self.call) {
            (Interface::Uverbs { .. }, CallKind::Ioctl) => Some(Message::Ioctl),
            (Interface::Uverbs { .. }, CallKind::Write) => Some(Message::Write),
            (Interface::RdmaCm, CallKind::Write) => Some(Message::RdmaCm),
            (Interface::Events, CallKind::Read) if self.is_async() => Some(Message::AsyncEvent),
            (Interface::Events, CallKind::Read) => Some(Message::CompletionEvent),
            (Interface::Netlink, CallKind::Send | CallKind::Receive | CallKind::Write | CallKind::Read) => {
                Some(Message::Nldev)
            }
            _ => guess(&self.request),
        }
    }

    /// Two completion events have the length of one asynchronous event, whose reserved word is zero
    /// and whose type is small.
    fn is_async(&self) -> bool {
        self.answer.len().is_multiple_of(16)
            && self
                .answer
                .chunks_exact(16)
                .all(|event| event[9..].iter().all(|&byte| byte == 0) && event[8] < 32)
    }

    /// The additions of its driver.
    #[must_use]
    pub fn driver(&self) -> Driver {
        match self.interface {
            Interface::Uverbs { driver, .. } => registry::driver(driver),
            _ => Driver::default(),
        }
    }

    /// The message before the kernel has seen it; `None` for a call that only receives.
    #[must_use]
    pub fn before(&self) -> Option<Decoded> {
        let sends = matches!(self.call, CallKind::Ioctl | CallKind::Write | CallKind::Send);
        let message = self.message().filter(|_| sends)?;
        if self.overread.is_empty() {
            return Some(decode_with(message, &self.request, self.driver(), &Payloads(&[&self.inputs])));
        }
        // The kernel changes the length in the header too.
        let mut request = [&self.request[..], &self.overread].concat();
        let words = u16::try_from(request.len() / 4).unwrap_or(u16::MAX);
        request.get_mut(4..6)?.copy_from_slice(&words.to_ne_bytes());
        let mut decoded = decode_with(message, &request, self.driver(), &Payloads(&[&self.inputs]));
        let (behind, sent) = (self.overread.len(), self.request.len());
        decoded.text += &format!(" <{behind} bytes read behind the {sent} that are written>");
        decoded.value.insert("overread_len".to_owned(), behind.into());
        Some(decoded)
    }

    /// The answer of the kernel: the ioctl with its outputs, a response, events, a datagram. `None`
    /// if there is none.
    #[must_use]
    pub fn after(&self) -> Option<Decoded> {
        if self.answer.is_empty() {
            return None;
        }
        let message = self.message()?;
        match self.call {
            CallKind::Write if message != Message::Nldev => {
                response(message, &self.request, &self.answer, self.driver())
            }
            _ => {
                let payloads = [&self.outputs[..], &self.inputs[..]];
                Some(decode_with(message, &self.answer, self.driver(), &Payloads(&payloads)))
            }
        }
    }

    /// The method, the command, or else the kind of the message.
    #[must_use]
    pub fn name(&self) -> String {
        let decoded = self.before().or_else(|| self.after());
        match decoded {
            Some(Decoded { name: Some(name), .. }) => name,
            Some(Decoded { kind: Message::Nldev, value, .. }) => {
                let first = &value["messages"][0];
                let kind = first["type"]["name"].as_str().unwrap_or("netlink");
                if self.call == CallKind::Receive { format!("{kind} (receive)") } else { kind.to_owned() }
            }
            Some(Decoded { kind: Message::CompletionEvent, .. }) => "completion event".to_owned(),
            Some(Decoded { kind: Message::AsyncEvent, .. }) => "asynchronous event".to_owned(),
            _ => format!("{:?}", self.call).to_lowercase(),
        }
    }

    /// The file that it is made on.
    #[must_use]
    pub fn file(&self) -> &str {
        match &self.interface {
            Interface::Uverbs { device, .. } => device,
            Interface::RdmaCm => "rdma_cm",
            Interface::Events => "events",
            Interface::Netlink => "netlink",
        }
    }

    /// The call in one line: process and thread, time in seconds, interface and descriptor, the
    /// message, what the kernel returned, the result, and the duration in seconds.
    #[must_use]
    pub fn text(&self) -> String {
        let thread = match self.process == self.thread {
            true => format!("{}", self.process),
            false => format!("{}/{}", self.process, self.thread),
        };
        let before = self.before().map(|decoded| one_line(&decoded, self));
        let after = self.after().map(|decoded| one_line(&decoded, self));
        let message = match (before, after, self.call) {
            // The ioctl after the call has its inputs as well.
            (_, Some(after), CallKind::Ioctl) => after,
            (Some(before), Some(after), _) => format!("{before} -> {after}"),
            (Some(only), None, _) | (None, Some(only), _) => only,
            (None, None, call) => format!("{call:?}").to_lowercase(),
        };
        let result = self.result_text();
        format!(
            "[{thread}] {}.{:06} {}({}) {message} = {result} <{}.{:06}>",
            self.time / 1_000_000_000,
            self.time / 1000 % 1_000_000,
            self.file(),
            self.fd,
            self.duration / 1_000_000_000,
            self.duration / 1000 % 1_000_000,
        )
    }

    /// The result as text: `-1` and the name of an error, `?` if there is none.
    pub(crate) fn result_text(&self) -> String {
        match self.result {
            None => "?".to_owned(),
            Some(error @ ..0) => format!("-1 {}", error_name(-error)),
            Some(result) => result.to_string(),
        }
    }

    /// The call as JSON: `process`, `thread`, `time_ns`, `duration_ns`, `call`, `fd`, `file`, `name`,
    /// `result`, `error` by name, and `before` and `after` as [`Decoded`] has them.
    #[must_use]
    pub fn json(&self) -> Map<String, Value> {
        let error = self.result.filter(|result| *result < 0).map(|error| error_name(-error));
        let all = json!({
            "process": self.process,
            "thread": self.thread,
            "time_ns": self.time,
            "duration_ns": self.duration,
            "call": self.call,
            "fd": self.fd,
            "file": self.file(),
            "name": self.name(),
            "result": self.result,
            "error": error,
            "before": self.before(),
            "after": self.after(),
        });
        match all {
            Value::Object(members) => members.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => Map::new(),
        }
    }
}

/// The name of an error number. Those of interrupted calls, which only a tracer sees, included.
fn error_name(errno: i64) -> String {
    let restarts =
        ["ERESTARTSYS", "ERESTARTNOINTR", "ERESTARTNOHAND", "ENOIOCTLCMD", "ERESTART_RESTARTBLOCK"];
    let restart = usize::try_from(errno - 512).ok().and_then(|index| restarts.get(index));
    match (restart, i32::try_from(errno).map(Errno::from_raw)) {
        (Some(name), _) => (*name).to_owned(),
        (None, Err(_) | Ok(Errno::UnknownErrno)) => errno.to_string(),
        (None, Ok(known)) => format!("{known:?}"),
    }
}

/// The text of an ioctl has a line for each attribute; here it has none.
fn one_line(decoded: &Decoded, record: &Record) -> String {
    if decoded.kind != Message::Ioctl {
        return decoded.text.replace('\n', "; ");
    }
    let bytes = if record.answer.is_empty() { &record.request } else { &record.answer };
    let payloads = [&record.outputs[..], &record.inputs[..]];
    let memory = Payloads(&payloads);
    decode(bytes, &memory).map_or_else(|_| decoded.text.clone(), |call| call.to_string())
}

/// The payloads of an ioctl that `memory` has: the inputs, or the outputs that the kernel wrote.
pub(super) fn payloads(bytes: &[u8], memory: &dyn Memory, written: bool) -> Vec<Chunk> {
    let Ok(call) = decode(bytes, memory) else { return Vec::new() };
    let chunk = |payload: bareverbs_uapi::decode::Payload<'_>| {
        let mut bytes = vec![0; payload.len()];
        let address = payload.address().filter(|_| !bytes.is_empty())?;
        memory.read(address, &mut bytes).then_some(Chunk { address, bytes })
    };
    call.attributes()
        .filter_map(|attribute| match attribute.value() {
            DecodedValue::Input(payload) | DecodedValue::Element { payload, .. } if !written => {
                chunk(payload)
            }
            DecodedValue::Output { payload, written: true } if written => chunk(payload),
            _ => None,
        })
        .collect()
}

/// The driver id in the header of an ioctl.
pub(super) fn driver_of(bytes: &[u8]) -> Option<DriverId> {
    decode(bytes, &bareverbs_uapi::decode::NoMemory).ok().map(|call| DriverId(call.header().driver_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_behind_a_short_destroy_cq_are_decoded() {
        let mut record = Record {
            time: 0,
            duration: 0,
            process: 1,
            thread: 1,
            call: CallKind::Write,
            fd: 3,
            interface: Interface::Uverbs { device: "rxe0".to_owned(), driver: DriverId::RXE.0 },
            result: Some(16),
            request: vec![20, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            overread: vec![7, 0, 0, 0, 0, 0, 0, 0],
            inputs: Vec::new(),
            answer: Vec::new(),
            outputs: Vec::new(),
        };
        let decoded = record.before().unwrap();
        assert_eq!(
            decoded.text,
            "DestroyCq: DestroyCqReq { response: 0, cq_handle: 7 } \
             <8 bytes read behind the 16 that are written>"
        );
        assert_eq!(
            (&decoded.value["request"]["cq_handle"], &decoded.value["overread_len"]),
            (&7.into(), &8.into())
        );
        let line = serde_json::to_string(&record).unwrap();
        assert!(line.contains(r#""overread":"0700000000000000""#), "{line}");
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
        // Without the bytes, as in the output of strace.
        record.overread.clear();
        let text = record.before().unwrap().text;
        assert!(text.ends_with(" <the kernel reads 8 bytes behind it>"), "{text}");
    }
}
