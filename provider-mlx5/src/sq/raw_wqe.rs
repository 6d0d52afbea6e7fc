//! WQEs that the caller builds segment by segment.

use bareverbs_provider::work::{PushError, SendFlags, WcOpcode};

use super::{Head, Mlx5Sq, PLAIN};
use crate::wqe::{Opcode, SEGMENTS_PER_BLOCK, Segment};

/// A request but for its control segment, whose place in the queue and length
/// [`Mlx5Sq::push_raw_wqe`] fills in.
#[derive(Clone, Copy, Debug)]
pub struct RawWqe<'a> {
    /// Comes back with the completion.
    pub wr_id: u64,
    /// What to do.
    pub opcode: Opcode,
    /// The control segment's immediate data, in memory order.
    pub imm: u32,
    /// How to do it.
    pub flags: SendFlags,
    /// What stands behind the control segment: what the functions of [`wqe`](crate::wqe) make, or
    /// anything else.
    pub segments: &'a [Segment],
}

impl Mlx5Sq {
    /// Segments of the longest request for which there is always room, the control segment
    /// included: more of them, the wider the queue pair was made.
    #[must_use]
    pub fn max_segments(&self) -> usize {
        let room = ((self.mask + 1) / self.limits.requests) as usize * SEGMENTS_PER_BLOCK;
        // The control segment counts them by 8 bits.
        room.min(u8::MAX.into())
    }

    /// Writes a request that the caller has built into the next free blocks, as
    /// [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does with those that it
    /// builds itself. Nothing of it is looked at.
    ///
    /// # Errors
    /// [`PushError::QueueFull`]; [`PushError::Unsupported`] for more segments than
    /// [`Mlx5Sq::max_segments`].
    ///
    /// # Safety
    ///
    /// The device does what the segments say: memory that it reads or writes by them must stay
    /// registered and unaliased as the operation requires until the request is complete or the
    /// queue pair is destroyed.
    pub unsafe fn push_raw_wqe(&mut self, request: &RawWqe<'_>) -> Result<(), PushError> {
        let RawWqe { wr_id, opcode, imm, flags, segments } = *request;
        // The control segment comes first.
        if segments.len() >= self.max_segments() {
            return Err(PushError::Unsupported { operation: "a request of so many segments" });
        }
        if self.is_full() {
            return Err(self.full());
        }
        let mut writer = self.writer();
        for segment in segments {
            writer.put(*segment);
        }
        // What the entry of a completion does not tell, or brings bytes back.
        let wr_data = match opcode {
            Opcode::RDMA_READ => WcOpcode::RDMA_READ,
            Opcode::ATOMIC_CS => WcOpcode::COMP_SWAP,
            Opcode::ATOMIC_FA => WcOpcode::FETCH_ADD,
            Opcode::UMR => WcOpcode::BIND_MW,
            _ => PLAIN,
        };
        self.finish(&writer, &Head { opcode, imm, flags, wr_id, wr_data });
        Ok(())
    }
}
