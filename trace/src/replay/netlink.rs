//! Replay of requests to RDMA netlink.
//!
//! Requests that only read are replayed. The error that ends the answer is compared, not the
//! messages before it: they describe the machine.

use std::collections::HashMap;
use std::time::Duration;

use bareverbs_uapi::netlink::{Content, messages};
use bareverbs_uapi::nldev::{Attribute, Command};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

use super::Unsupported;
use crate::trace::{CallKind, Record};

/// The outcome of requests whose answer was not compared yet, by recorded socket.
#[derive(Default)]
pub(super) struct Netlink {
    outcomes: HashMap<(i32, i32), i64>,
}

/// Timeout of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Length of the header of a message.
const HEADER: usize = 16;

impl Netlink {
    /// Makes a recorded request, or compares a recorded answer with that of this run. `None` for parts
    /// of an answer.
    pub(super) fn call(
        &mut self,
        record: &Record,
        index: u32,
    ) -> Result<Option<(Record, Record)>, Unsupported> {
        let key = (record.process, record.fd);
        match record.call {
            CallKind::Send | CallKind::Write => {
                let outcome = request(&record.request, index)?;
                self.outcomes.insert(key, outcome);
                Ok(None)
            }
            _ => {
                let Some(recorded) = ended(&record.answer) else { return Ok(None) };
                let Some(here) = self.outcomes.remove(&key) else { return Err(Unsupported::Time) };
                let with = |result| Record { result: Some(result), answer: Vec::new(), ..record.clone() };
                Ok(Some((with(recorded), with(here))))
            }
        }
    }
}

/// Whether a message only reads.
fn only_reads(kind: u16) -> bool {
    // The client is in the upper bits: 5 is nldev.
    kind >> 10 == 5 && Command(kind & 0x3ff).name().is_some_and(|name| name.ends_with("GET"))
}

/// The result that ends an answer: 0, or a negative errno. A single message without that is its own
/// end.
fn ended(datagram: &[u8]) -> Option<i64> {
    const MULTI: u16 = 2;
    let mut last = None;
    for message in messages(datagram) {
        let message = message.ok()?;
        let multi = datagram.get(6..8).is_some_and(|flags| flags[0] & MULTI as u8 != 0);
        last = match message.content() {
            Ok(Content::Acknowledged(_)) => Some(0),
            Ok(Content::Error(report) | Content::Done(report)) => Some(-i64::from(report.errno)),
            Ok(_) => (!multi).then_some(0),
            Err(_) => None,
        };
    }
    last
}

/// Sends a request on a socket of its own, and waits for the end of the answer.
fn request(datagram: &[u8], index: u32) -> Result<i64, Unsupported> {
    let mut bytes = datagram.to_vec();
    let kind =
        bytes.get(4..6).and_then(|kind| kind.first_chunk()).map_or(0, |kind| u16::from_ne_bytes(*kind));
    if !only_reads(kind) {
        return Err(Unsupported::Changes);
    }
    set_device(&mut bytes, index);
    let failed = |_: Errno| Unsupported::NoNetlink;
    let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    let socket = socket_with(kind.0, kind.1, kind.2, Some(netlink::RDMA)).map_err(failed)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT)).map_err(failed)?;
    send(&socket, &bytes, SendFlags::empty()).map_err(failed)?;
    let mut answer = vec![0; 1 << 16];
    loop {
        let (len, _) = recv(&socket, &mut answer[..], RecvFlags::empty()).map_err(failed)?;
        if let Some(result) = ended(&answer[..len]) {
            return Ok(result);
        }
    }
}

/// Puts the device's index here into the request, if it names a device.
fn set_device(bytes: &mut [u8], index: u32) {
    let mut at = HEADER;
    while let Some(header) = bytes.get(at..at + 4).and_then(|header| header.first_chunk::<4>()).copied() {
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        if len < 4 {
            return;
        }
        if kind == Attribute::DEV_INDEX.0
            && let Some(value) = bytes.get_mut(at + 4..at + 8)
        {
            value.copy_from_slice(&index.to_ne_bytes());
        }
        at += len.next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
        bytes.extend([kind.to_ne_bytes(), flags.to_ne_bytes()].concat());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn only_requests_that_read_are_replayed() {
        let nldev = |command: u16| (5 << 10) | command;
        assert!(only_reads(nldev(Command::GET.0)) && only_reads(nldev(Command::RES_QP_GET.0)));
        assert!(!only_reads(nldev(Command::SET.0)) && !only_reads(nldev(Command::SYS_SET.0)));
        assert!(!only_reads(Command::GET.0), "a message of another client");
    }

    #[test]
    fn device_of_a_request_is_that_of_the_replay() {
        let mut request = message(5 << 10 | 1, 1, &[[8, 0, 1, 0], [7, 0, 0, 0]].concat());
        set_device(&mut request, 9);
        assert_eq!(request[20..24], [9, 0, 0, 0]);
        // An attribute without a valid length ends the search.
        set_device(&mut message(5 << 10 | 1, 1, &[0; 8]), 9);
    }

    #[test]
    fn answer_ends_with_its_error_or_its_only_message() {
        let error = message(2, 0, &[(-19_i32).to_ne_bytes().to_vec(), vec![0; 16]].concat());
        assert_eq!(ended(&error), Some(-19));
        assert_eq!(ended(&message(5 << 10 | 1, 0, &[])), Some(0));
        assert_eq!(ended(&message(5 << 10 | 1, 2, &[])), None);
        assert_eq!(ended(&message(3, 2, &[0; 4])), Some(0));
    }
}
