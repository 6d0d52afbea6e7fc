//! The trace: a line of JSON for each posted request and each completion, with the members of
//! `bareverbs trace --format json`.
//!
//! Each line is written at once, by one system call at the end of the file. So nothing is kept in memory, a
//! program that is killed loses nothing, and several processes share a file.

use std::ffi::{CStr, c_int};
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::slice;
use std::time::{Duration, Instant};

use bareverbs::qp::QpType;
use bareverbs::raw::uapi::verbs_values::WcStatus;
use bareverbs::raw::uapi::write::types::{WcOpcode, WrOpcode};

use crate::abi::device::{ibv_context, ibv_device};
use crate::abi::qp::ibv_qp;
use crate::abi::work::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::faults::errno_name;

pub(super) struct Trace {
    file: File,
    begin: Instant,
}

/// What all lines have.
pub(super) struct Line {
    /// When the call began.
    pub(super) begin: Instant,
    pub(super) call: &'static str,
    pub(super) context: *mut ibv_context,
    /// A number, or the negative errno.
    pub(super) result: c_int,
}

/// A message of a line, and its name.
pub(super) struct Message {
    name: String,
    json: String,
}

impl Trace {
    /// Opens the file, which may have lines. A file that can't be opened is reported on standard error.
    pub(super) fn create(path: &Path) -> Option<Self> {
        match OpenOptions::new().append(true).create(true).open(path) {
            Ok(file) => Some(Self { file, begin: Instant::now() }),
            Err(error) => {
                eprintln!("libibverbs: BAREVERBS_TRACE: {}: {error}", path.display());
                None
            }
        }
    }

    pub(super) fn write(&self, line: &Line, before: Option<&Message>, after: Option<&Message>) {
        let name = before.or(after).map_or("", |message| &message.name);
        // SAFETY: the context is live, and its device exists.
        let (device, fd) =
            unsafe { (&(*(*line.context).device.cast::<ibv_device>()).name, (*line.context).cmd_fd) };
        // SAFETY: the name ends with a zero byte.
        let device = unsafe { CStr::from_ptr(device.as_ptr()) }.to_string_lossy();
        // SAFETY: the calls have no arguments.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (time, duration) = (line.begin.saturating_duration_since(self.begin), line.begin.elapsed());
        let (time, duration) = (nanoseconds(time), nanoseconds(duration));
        let (call, file, result) = (line.call, quoted(&device), line.result);
        let mut text = format!(r#"{{"process":{process},"thread":{thread}"#);
        let _ = write!(text, r#","time_ns":{time},"duration_ns":{duration},"call":"{call}","fd":{fd}"#);
        let _ = write!(text, r#","file":{file},"name":"{name}","result":{result}"#);
        if line.result < 0 {
            let _ = write!(text, r#","error":"{}""#, errno_name(-line.result));
        }
        for (member, message) in [("before", before), ("after", after)] {
            if let Some(message) = message {
                let _ = write!(text, r#","{member}":{}"#, message.json);
            }
        }
        text.push_str("}\n");
        // A trace that can't be written changes nothing else.
        let _ = (&self.file).write_all(text.as_bytes());
    }
}

/// A string of JSON. Names of devices are the only ones that others choose.
fn quoted(text: &str) -> String {
    let plain =
        |character: char| if character.is_control() || "\"\\".contains(character) { '?' } else { character };
    format!("\"{}\"", text.chars().map(plain).collect::<String>())
}

/// A number, with its name if it is known.
fn named(value: u32, name: Option<&str>) -> String {
    match name {
        Some(name) => format!(r#"{{"value":{value},"name":"{name}"}}"#),
        None => format!(r#"{{"value":{value},"name":null}}"#),
    }
}

/// The flags of a send, with their names.
pub(super) fn send_flags(flags: u32) -> String {
    const NAMES: [&str; 5] = ["FENCE", "SIGNALED", "SOLICITED", "INLINE", "IP_CSUM"];
    let names = NAMES.iter().enumerate().filter(|(bit, _)| flags & 1 << bit != 0);
    let names: Vec<_> = names.map(|(_, name)| format!("\"{name}\"")).collect();
    format!(r#"{{"value":{flags},"flags":[{}]}}"#, names.join(","))
}

/// A request to send, of members that it has beside those of all.
pub(super) fn request(name: &str, qp_num: u32, wr_id: u64, flags: u32, members: &str) -> Message {
    let flags = send_flags(flags);
    let common = format!(r#""name":"{name}","qp_num":{qp_num},"wr_id":{wr_id},"flags":{flags}"#);
    let json = format!(r#"{{"kind":"send-request",{common}{members}}}"#);
    Message { name: name.to_owned(), json }
}

/// Adds a number.
pub(super) fn add(members: &mut String, name: &str, value: impl Display) {
    let _ = write!(members, r#","{name}":{value}"#);
}

pub(super) fn add_sges(members: &mut String, sges: &[ibv_sge]) {
    let json =
        |sge: &ibv_sge| format!(r#"{{"addr":{},"length":{},"lkey":{}}}"#, sge.addr, sge.length, sge.lkey);
    add(members, "sges", format_args!("[{}]", sges.iter().map(json).collect::<Vec<_>>().join(",")));
}

/// # Safety
///
/// The list has this length, if it is read.
unsafe fn add_list(members: &mut String, list: *const ibv_sge, length: c_int, is_read: bool) {
    let length = usize::try_from(length).unwrap_or(0);
    if is_read && !list.is_null() {
        // SAFETY: by the contract.
        add_sges(members, unsafe { slice::from_raw_parts(list, length) });
    }
}

/// A request of `ibv_post_send`.
///
/// # Safety
///
/// The SGEs are valid, if they are read.
pub(super) unsafe fn send(qp: &ibv_qp, request_of_c: &ibv_send_wr, reads_sges: bool) -> Message {
    let opcode = WrOpcode(request_of_c.opcode);
    let mut members = String::new();
    // SAFETY: all bits of the three are valid, and the union is as long as the longest one.
    let (rdma, atomic, ud) = unsafe { (request_of_c.wr.rdma, request_of_c.wr.atomic, request_of_c.wr.ud) };
    match opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM | WrOpcode::RDMA_READ => {
            add(&mut members, "remote_addr", rdma.remote_addr);
            add(&mut members, "rkey", rdma.rkey);
        }
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => {
            add(&mut members, "remote_addr", atomic.remote_addr);
            add(&mut members, "rkey", atomic.rkey);
            add(&mut members, "compare_add", atomic.compare_add);
            add(&mut members, "swap", atomic.swap);
        }
        // The peer of a datagram. For other QPs, the fields may be anything.
        WrOpcode::SEND | WrOpcode::SEND_WITH_IMM if qp.qp_type == QpType::UD.0 => {
            add(&mut members, "remote_qpn", ud.remote_qpn);
            add(&mut members, "remote_qkey", ud.remote_qkey);
        }
        _ => {}
    }
    match opcode {
        WrOpcode::SEND_WITH_IMM | WrOpcode::RDMA_WRITE_WITH_IMM => {
            add(&mut members, "imm_data", u32::from_be(request_of_c.imm_data));
        }
        WrOpcode::SEND_WITH_INV | WrOpcode::LOCAL_INV => {
            add(&mut members, "invalidate_rkey", request_of_c.imm_data);
        }
        _ => {}
    }
    // SAFETY: by the contract.
    unsafe { add_list(&mut members, request_of_c.sg_list, request_of_c.num_sge, reads_sges) };
    let name = opcode.name().map_or_else(|| request_of_c.opcode.to_string(), str::to_owned);
    request(&name, qp.qp_num, request_of_c.wr_id, request_of_c.send_flags, &members)
}

/// A request to receive: to a QP, or to an SRQ.
///
/// # Safety
///
/// The SGEs are valid, if they are read.
pub(super) unsafe fn receive(qp_num: Option<u32>, request: &ibv_recv_wr, reads_sges: bool) -> Message {
    let mut members = String::new();
    if let Some(qp_num) = qp_num {
        add(&mut members, "qp_num", qp_num);
    }
    add(&mut members, "wr_id", request.wr_id);
    // SAFETY: by the contract.
    unsafe { add_list(&mut members, request.sg_list, request.num_sge, reads_sges) };
    Message {
        name: "RECV".to_owned(),
        json: format!(r#"{{"kind":"receive-request","name":"RECV"{members}}}"#),
    }
}

/// A completion. The opcode and other members of a failed one are undefined.
pub(super) fn completion(wr_id: u64, status: u32, opcode: Option<u32>, members: &str) -> Message {
    let name = WcStatus(status).name();
    let mut json = String::new();
    add(&mut json, "wr_id", wr_id);
    add(&mut json, "status", named(status, name));
    if let Some(opcode) = opcode.filter(|_| WcStatus(status) == WcStatus::SUCCESS) {
        add(&mut json, "opcode", named(opcode, WcOpcode(opcode).name()));
    }
    let name = name.map_or_else(|| status.to_string(), str::to_owned);
    Message { json: format!(r#"{{"kind":"completion","name":"{name}"{json}{members}}}"#), name }
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use super::*;

    #[test]
    fn send_has_a_remote_qp_number_if_it_is_a_datagram() {
        for (qp_type, has_peer) in [(QpType::UD, true), (QpType::RC, false)] {
            // SAFETY: the structs of the ABI have numbers and pointers only.
            let (mut qp, mut request): (ibv_qp, ibv_send_wr) = unsafe { MaybeUninit::zeroed().assume_init() };
            (qp.qp_type, request.opcode) = (qp_type.0, WrOpcode::SEND.0);
            // Programs leave the fields of other QPs as they are.
            request.wr.ud.ah = std::ptr::without_provenance_mut(1);
            // SAFETY: the request has no SGEs.
            let message = unsafe { send(&qp, &request, true) };
            assert_eq!(message.json.contains("remote_qpn"), has_peer, "{}", message.json);
        }
    }
}
