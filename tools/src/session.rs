//! Shared by the programs with two sides: the exchange over TCP, the addresses of both sides, the
//! connection manager, and the causes of failures.

use bareverbs::values::RetryCount;
use serde::{Deserialize, Serialize};

pub(crate) mod address;
pub(crate) mod connected;
pub(crate) mod datagram;
pub(crate) mod exchange;
pub(crate) mod hex;
pub(crate) mod path;
pub(crate) mod socket;
pub(crate) mod status;

/// Retries before a message counts as lost. The 7 of perftest, the maximum, is not used: with 7, Soft-RoCE
/// retries without limit (rxe_comp.c, COMPST_ERROR_RETRY) and never reports a lost peer.
pub(crate) const RETRY_CNT: RetryCount = RetryCount::new(6).unwrap();

/// The Q_Key of ibv_ud_pingpong and of perftest.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// The side of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// It was given a host, which it connects to.
    Client,
    /// It waits for its peer.
    Server,
}

impl Role {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}
