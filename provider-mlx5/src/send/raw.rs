//! Whole frames.

use bareverbs_provider::work::{Frame, Payload, Refusal, SendRequest};
use bareverbs_uapi::uverbs::types::QpType;

use super::{Head, Mlx5Sq, PLAIN, Writer};
use crate::wqe::{self, Opcode, SEGMENT};

/// Most bytes of a frame that stand in the Ethernet segment and behind it: a header with a VLAN tag.
#[doc(alias = "MLX5_ETH_L2_INLINE_HEADER_SIZE")]
pub(crate) const FRAME_HEADER: usize = 18;

/// Where in the Ethernet segment they begin.
const HEADER: usize = SEGMENT - 2;

impl Mlx5Sq {
    /// Writes a request as [`SendQueue::push`](bareverbs_provider::contract::SendQueue::push) does, with the Ethernet
    /// segment behind the control segment.
    pub(super) fn push_whole_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), Refusal> {
        let Frame { header, checksums } = request.operation;
        if self.limits.qp_type != QpType::RAW_PACKET {
            return Err(Refusal::Unsupported { operation: "a frame" });
        }
        if header.len() > FRAME_HEADER {
            return Err(Refusal::Unsupported { operation: "a frame with a header of more than 18 bytes" });
        }
        if self.is_full() {
            return Err(self.full());
        }
        let mut writer = self.writer();
        let missing = self.limits.frame_header.saturating_sub(header.len());
        match request.payload {
            Payload::Inline(parts) if missing > 0 => {
                self.check_inline(parts)?;
                self.frame_inline(&mut writer, request.operation, parts);
            }
            Payload::Sges(_) if missing > 0 => {
                return Err(Refusal::Unsupported {
                    operation: "a frame of registered memory without its first 18 bytes in `header`",
                });
            }
            payload => {
                begin(&mut writer, checksums, header.len());
                writer.copy(1, HEADER, header);
                self.payload(&mut writer, payload)?;
            }
        }
        let head =
            Head { opcode: Opcode::SEND, imm: 0, flags: request.flags, wr_id: request.wr_id, purpose: PLAIN };
        self.finish(&writer, &head);
        Ok(())
    }

    fn check_inline(&self, parts: &[&[u8]]) -> Result<(), Refusal> {
        let max = self.limits.max_inline as usize;
        let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
        if given > max { Err(Refusal::InlineTooLong { given, max }) } else { Ok(()) }
    }

    /// Writes a frame that is all inline, with as much of it in front as the device wants there.
    fn frame_inline(&self, writer: &mut Writer, frame: Frame<'_>, parts: &[&[u8]]) {
        let total: usize = frame.header.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        let front = total.min(self.limits.frame_header);
        begin(writer, frame.checksums, front);
        let (rest, first) = (total - front, writer.segments);
        let mut at = 0;
        for part in std::iter::once(&frame.header).chain(parts) {
            let (before, behind) = part.split_at(part.len().min(front.saturating_sub(at)));
            writer.copy(1, HEADER + at, before);
            writer.copy(first, 4 + (at + before.len()).saturating_sub(front), behind);
            at += part.len();
        }
        if rest > 0 {
            // SAFETY: the first word of a segment of the request.
            unsafe { writer.at(first).cast::<u32>().write(wqe::inline_header(rest as u32)) };
            writer.segments += wqe::inline_segments(rest);
        }
    }
}

/// Writes the Ethernet segment, and makes room for so many bytes of a header in and behind it.
fn begin(writer: &mut Writer, checksums: bool, header: usize) {
    writer.put(wqe::ethernet(checksums, header as u16));
    writer.segments += (HEADER + header).div_ceil(SEGMENT) - 1;
}
