//! WQEs that the caller builds segment by segment.

use bareverbs_provider::work::{PushError, SendFlags, WcOpcode};

use super::{Head, Mlx5Sq, PLAIN, Writer};
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
        let writer = self.put_segments(segments)?;
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

    /// Writes a WQE that the caller built with its control segment, of which only the WQE counter is
    /// filled in. The completion has this opcode, whatever the WQE does.
    ///
    /// # Errors
    /// As for [`Mlx5Sq::push_raw_wqe`]; [`PushError::Unsupported`] for a WQE without segments.
    ///
    /// # Safety
    ///
    /// As for [`Mlx5Sq::push_raw_wqe`]. The control segment names this queue and the number of segments.
    #[doc(alias = "mlx5dv_wr_raw_wqe")]
    pub unsafe fn push_whole_wqe(
        &mut self,
        wr_id: u64,
        wqe: &[Segment],
        wc_opcode: WcOpcode,
    ) -> Result<(), PushError> {
        let [control, segments @ ..] = wqe else {
            return Err(PushError::Unsupported { operation: "a WQE without segments" });
        };
        let writer = self.put_segments(segments)?;
        // Opcode modifier, WQE counter (16 bits) and opcode.
        let [first, rest] = *control;
        let counter = u64::from(self.next.block as u16) << 40;
        let first = (u64::from_be(first) & !(0xffff << 40) | counter).to_be();
        let opcode = Opcode((u64::from_be(first) >> 32) as u8);
        let head = Head { opcode, imm: 0, flags: SendFlags::empty(), wr_id, wr_data: wc_opcode };
        self.finish_with(&writer, [first, rest], &head);
        Ok(())
    }

    /// Writes the segments behind the control segment.
    fn put_segments(&mut self, segments: &[Segment]) -> Result<Writer, PushError> {
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
        Ok(writer)
    }
}
