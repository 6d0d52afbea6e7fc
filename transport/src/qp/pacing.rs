//! Packet pacing: rate limits of send queues.

use super::Qp;
use crate::device::Device;

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Rate in kbit/s; not 0.
    pub kilobits: u32,
    /// Bytes that may be sent ahead of the rate.
    pub burst: u32,
}

impl Rate {
    /// The time of so many bytes at this rate in nanoseconds.
    fn nanos(self, bytes: u64) -> u64 {
        const BITS_PER_BYTE: u64 = 8;
        const NANOS_PER_MILLI: u64 = 1_000_000;
        bytes * BITS_PER_BYTE * NANOS_PER_MILLI / u64::from(self.kilobits.max(1))
    }
}

/// Accounts for `bytes` that the QP has sent. Pauses the QP if it is ahead of its rate.
pub(crate) fn sent<D: Device>(qp: &mut Qp<D>, now: u64, bytes: u64) {
    let Some(rate) = qp.attributes.rate else { return };
    let end = qp.requester.paced_end.max(now) + rate.nanos(bytes);
    qp.requester.paced_end = end;
    let ahead = rate.nanos(rate.burst.into());
    qp.requester.pace_until = Some(end.saturating_sub(ahead)).filter(|until| *until > now);
}
