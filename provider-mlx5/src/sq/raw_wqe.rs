//! WQEs that the caller builds segment by segment.

use bareverbs_provider::work::{PushError, SendFlags, WcOpcode};

use super::{Head, Mlx5Sq, PLAIN};
use crate::wqe::{Opcode, SEGMENTS_PER_BLOCK, Segment};

/// A WQE without its control segment. [`Mlx5Sq::push_raw_wqe`] fills in the WQE counter and the
/// number of segments.
#[derive(Clone, Copy, Debug)]
pub struct RawWqe<'a> {
    /// Work request id of the completion.
    pub wr_id: u64,
    /// Operation.
    pub opcode: Opcode,
    /// The control segment's immediate data, in memory order.
    pub imm: u32,
    /// Flags of the request.
    pub flags: SendFlags,
    /// Segments behind the control segment: those of the functions in [`wqe`](crate::wqe), or any
    /// others.
    pub segments: &'a [Segment],
}

impl Mlx5Sq {
    /// Maximum segments of a WQE that always fits, the control segment included. It grows with the
    /// SGEs and inline data that the queue pair was created for.
    #[must_use]
    pub fn max_segments(&self) -> usize {
        let room = ((self.mask + 1) / self.limits.requests) as usize * SEGMENTS_PER_BLOCK;
        // The control segment counts segments by 8 bits.
        room.min(u8::MAX.into())
    }

    /// Writes a WQE that the caller built into the next free blocks, as
    /// [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does. The segments are not
    /// checked.
    ///
    /// # Errors
    /// [`PushError::QueueFull`]; [`PushError::Unsupported`] for more segments than
    /// [`Mlx5Sq::max_segments`].
    ///
    /// # Safety
    ///
    /// The device executes the segments. Memory that they name must stay registered and unaliased,
    /// as the operation requires, until the request is complete or the queue pair is destroyed.
    #[doc(alias = "mlx5dv_wr_raw_wqe")]
    pub unsafe fn push_raw_wqe(&mut self, request: &RawWqe<'_>) -> Result<(), PushError> {
        let RawWqe { wr_id, opcode, imm, flags, segments } = *request;
        // The control segment counts as well.
        if segments.len() >= self.max_segments() {
            return Err(PushError::Unsupported { operation: "a WQE of that many segments" });
        }
        if self.is_full() {
            return Err(self.full());
        }
        let mut writer = self.writer();
        for segment in segments {
            writer.put(*segment);
        }
        // The CQE does not determine the operation, or the operation returns data.
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
