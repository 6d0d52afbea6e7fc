//! What a benchmark is chosen from: operation, figure, transport, atomic, use of completion queues.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How queue pairs use completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CqUse {
    /// The queue pairs of a thread share a CQ for sends and one for receives
    Shared,
    /// Each queue pair has a CQ for sends and one for receives
    Own,
}

/// The operation of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verb {
    Send,
    Write,
    WriteImm,
    Read,
    Atomic,
}

impl Verb {
    pub(crate) const ALL: [Self; 5] = [Self::Send, Self::Write, Self::WriteImm, Self::Read, Self::Atomic];
    /// Bytes of an atomic operation.
    pub(crate) const ATOMIC_SIZE: u32 = 8;

    /// Whether a message consumes a receive of the peer.
    pub(crate) fn consumes_receives(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

/// The operation of `atomic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum AtomicType {
    /// Adds 1
    #[default]
    FetchAndAdd,
    /// Replaces 0 by 0, as perftest does; with --verify, each number by the next one
    CmpAndSwap,
}

impl AtomicType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::FetchAndAdd => "FETCH_AND_ADD",
            Self::CmpAndSwap => "CMP_AND_SWAP",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    #[serde(rename = "bw")]
    Bandwidth,
    #[serde(rename = "lat")]
    Latency,
}

impl Measure {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Latency => "lat",
        }
    }
}

/// The transport of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Connection {
    /// Reliable connection
    Rc,
    /// Unreliable connection: send, write, write-imm
    Uc,
    /// Unreliable datagrams: send
    Ud,
    /// Extended reliable connections, which receive into one SRQ for each thread (ConnectX)
    Xrc,
}

impl Connection {
    /// Whether lost messages are sent again, and messages without a receive wait for one.
    pub(crate) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        })
    }
}
