//! Packet pacing: rate limits of send queues.

use super::Qp;
use crate::engine::core::Core;

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

/// The number of packets and frames that wait to be transmitted.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    packets: usize,
    frames: usize,
}

impl Mark {
    pub(crate) fn new(core: &Core) -> Self {
        Self { packets: core.outgoing.len(), frames: core.frames.len() }
    }
}

/// Accounts for what the QP has sent since the mark. Pauses the QP if it is ahead of its rate.
pub(crate) fn sent_since(qp: &mut Qp, core: &Core, mark: Mark) {
    let Some(rate) = qp.attributes.rate else { return };
    let packets = core.outgoing[mark.packets..].iter().map(|packet| packet.payload.len() as u64);
    let frames = core.frames[mark.frames..].iter().map(|frame| frame.len() as u64);
    let bytes: u64 = packets.chain(frames).sum();
    let end = qp.requester.paced_end.max(core.now) + rate.nanos(bytes);
    qp.requester.paced_end = end;
    let ahead = rate.nanos(rate.burst.into());
    qp.requester.pace_until = Some(end.saturating_sub(ahead)).filter(|until| *until > core.now);
}
