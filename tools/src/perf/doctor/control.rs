//! The control connection of two doctors: messages of JSON over TCP, each behind its length.
//!
//! The client asks, and the server answers each question with one message.

use std::io;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::finding::Finding;
use super::judge::Facts;
use super::probe::Invitation;
use crate::perf::counters::Change;
use crate::session::exchange::Peer;
use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// The first bytes of each message, and the version of the protocol.
const MAGIC: &[u8; 4] = b"bvd2";
/// Bytes before the JSON: the magic and the length of the JSON, big-endian.
const HEAD: usize = 8;
/// Longest JSON of a message.
const LONGEST: usize = 1 << 20;

/// A question of the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// Check your machine.
    Examine,
    /// Connect a QP to the one at this address, with this path MTU in bytes. `Disconnect` follows.
    Connect { address: String, mtu: u32 },
    /// Destroy the QP of `Connect`.
    Disconnect,
    /// Prepare to echo so many datagrams. `Echo` follows.
    Datagrams { count: u32 },
    /// Echo the datagrams from this address, and say how many arrived.
    Echo { address: String },
    /// The counters that changed since `Examine`, and whether the port and the GID did.
    Counters,
}

/// An answer of the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The findings, and the facts if the device can be used.
    Examined {
        findings: Vec<Finding>,
        facts: Option<Box<Facts>>,
        /// The clock of the server, in seconds since 1970.
        #[serde(default)]
        clock: Option<f64>,
    },
    Connected(Invitation),
    Disconnected,
    Datagrams {
        address: String,
    },
    Echoed {
        received: u32,
    },
    Counters {
        counters: Vec<Change>,
        /// What no longer is as `Examine` found it.
        findings: Vec<Finding>,
    },
    /// The question could not be answered: what failed.
    Failed(String),
}

/// Why a message was not exchanged.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("the other end does not run this version of `perf doctor`: it sent {0:?}")]
    NoDoctor(String),
    #[error("the other end has protocol {0} of `perf doctor`, this one {own}", own = char::from(MAGIC[3]))]
    OtherProtocol(char),
    #[error("the other end sent a message of {0} bytes, above the limit of {LONGEST}")]
    TooLong(usize),
    #[error("the other end sent a message that can't be read: {0}")]
    Message(#[from] serde_json::Error),
    #[error("the other end gave an unexpected answer: {0}")]
    Unexpected(String),
    #[error("the other end closed the connection")]
    Closed,
    #[error("the other end sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the control connection failed: {0}")]
    Connection(#[from] io::Error),
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Decodes the start of a message: the length of its JSON.
pub(crate) fn decode_head(head: [u8; HEAD]) -> Result<usize, ControlError> {
    let (magic, length) = head.split_at(MAGIC.len());
    if let [b'b', b'v', b'd', version @ b'0'..=b'9'] = magic
        && *version != MAGIC[3]
    {
        return Err(ControlError::OtherProtocol((*version).into()));
    }
    if magic != MAGIC {
        return Err(ControlError::NoDoctor(head.escape_ascii().to_string()));
    }
    let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
    if length > LONGEST { Err(ControlError::TooLong(length)) } else { Ok(length) }
}

/// The control connection.
pub(crate) struct Control<'s> {
    peer: Peer<'s>,
    stop: &'s Stop,
}

impl<'s> Control<'s> {
    pub(crate) fn new(peer: Peer<'s>, stop: &'s Stop) -> Self {
        Self { peer, stop }
    }

    /// Asks the server, which answers within the time.
    pub(crate) fn ask(&self, question: &Question, within: Duration) -> Result<Answer, ControlError> {
        self.send(question)?;
        self.receive(within)
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: &impl Serialize) -> Result<(), ControlError> {
        let json = serde_json::to_vec(message)?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend((json.len() as u32).to_be_bytes());
        bytes.extend(json);
        let limit = Duration::from_secs(10);
        let mut timeout = Timeout::after(limit);
        let mut sent = 0;
        while sent < bytes.len() {
            match send(self.peer.as_fd(), &bytes[sent..], SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, &mut timeout, limit)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        Ok(())
    }

    /// Receives a message.
    pub(crate) fn receive<T: DeserializeOwned>(&self, within: Duration) -> Result<T, ControlError> {
        let mut timeout = Timeout::after(within);
        let mut head = [0; HEAD];
        self.fill(&mut head, &mut timeout, within)?;
        let mut json = vec![0; decode_head(head)?];
        self.fill(&mut json, &mut timeout, within)?;
        Ok(serde_json::from_slice(&json)?)
    }

    fn fill(&self, bytes: &mut [u8], timeout: &mut Timeout, within: Duration) -> Result<(), ControlError> {
        let mut received = 0;
        while received < bytes.len() {
            match recv(self.peer.as_fd(), &mut bytes[received..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(ControlError::Closed),
                Ok((count, _)) => received += count,
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, timeout, within)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(io::Error::from(errno).into()),
            }
        }
        Ok(())
    }

    fn wait(&self, events: PollFlags, timeout: &mut Timeout, within: Duration) -> Result<(), ControlError> {
        match self.stop.wait(self.peer.as_fd(), events, Some(timeout))? {
            Wake::Ready => Ok(()),
            Wake::TimedOut => Err(ControlError::Silent(within)),
            Wake::Stopped => Err(Interrupted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn other_protocols_are_told_apart() {
        for bytes in [*b"6.24\0\0\0\0", *b"GET / HT", *b"SSH-2.0-", *b"bvdx\0\0\0\x02"] {
            assert!(matches!(decode_head(bytes), Err(ControlError::NoDoctor(_))));
        }
        let older = decode_head(*b"bvd1\0\0\0\x02").unwrap_err().to_string();
        assert_eq!(older, "the other end has protocol 1 of `perf doctor`, this one 2");
        assert!(matches!(decode_head(*b"bvd2\0\0\x01\x02"), Ok(258)));
        assert!(matches!(decode_head(*b"bvd2\xff\xff\xff\xff"), Err(ControlError::TooLong(_))));
    }

    proptest! {
        #[test]
        fn no_message_of_a_peer_panics(bytes: Vec<u8>, head: [u8; HEAD]) {
            let _ = decode_head(head);
            let _ = serde_json::from_slice::<Answer>(&bytes);
            let _ = serde_json::from_slice::<Question>(&bytes);
        }
    }

    #[test]
    fn answers_of_an_older_version_are_read() {
        let text = r#"{"Examined":{"findings":[],"facts":{"device":"rxe0","port":1,"nature":"Soft-RoCE",
            "ethernet":true,"rate":null,"mtu":1024,"gid":"::1","gid_index":1,"gid_type":"RoCE v2",
            "loopback":null}}}"#;
        let answer: Answer = serde_json::from_str(text).unwrap();
        let Answer::Examined { facts: Some(facts), clock: None, .. } = answer else { panic!("{answer:?}") };
        assert_eq!((facts.program.as_str(), facts.pkey), ("", None));
    }

    #[test]
    fn questions_round_trip() {
        let question = Question::Connect { address: "17@fe80::1".into(), mtu: 1024 };
        let bytes = serde_json::to_vec(&question).unwrap();
        let again: Question = serde_json::from_slice(&bytes).unwrap();
        assert!(matches!(again, Question::Connect { mtu: 1024, .. }));
    }
}
