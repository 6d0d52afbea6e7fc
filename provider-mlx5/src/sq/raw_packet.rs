//! Raw Ethernet frames and TSO.

use bareverbs_provider::work::{Frame, Payload, PushError, SendRequest};
use bareverbs_uapi::uverbs::types::QpType;

use super::{Head, Mlx5Sq, PLAIN, Writer};
use crate::wqe::{self, HEADER_START, MAX_MSS, Opcode, SEGMENT};

/// Maximum bytes of a frame's inline header: an Ethernet header with a VLAN tag.
#[doc(alias = "MLX5_ETH_L2_INLINE_HEADER_SIZE")]
pub(crate) const FRAME_HEADER: usize = 18;

/// Minimum bytes of a TSO header: an Ethernet header.
#[doc(alias = "MLX5_ETH_L2_MIN_HEADER_SIZE")]
const SHORTEST_HEADER: usize = 14;

impl Mlx5Sq {
    /// Writes a frame as [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does. The
    /// Ethernet segment follows the control segment.
    pub(super) fn push_whole_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
        if self.limits.qp_type != QpType::RAW_PACKET {
            return Err(PushError::Unsupported { operation: "a frame" });
        }
        if self.is_full() {
            return Err(self.full());
        }
        let mut writer = self.writer();
        let opcode = match request.operation.mss {
            None => {
                self.one_frame(&mut writer, request)?;
                Opcode::SEND
            }
            Some(mss) => {
                self.large_send(&mut writer, request, mss)?;
                Opcode::TSO
            }
        };
        let head = Head { opcode, imm: 0, flags: request.flags, wr_id: request.wr_id, wr_data: PLAIN };
        self.finish(&writer, &head);
        Ok(())
    }

    fn one_frame(&self, writer: &mut Writer, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
        let header = request.operation.header;
        if header.len() > FRAME_HEADER {
            return Err(PushError::Unsupported {
                operation: "a frame with an inline header of more than 18 bytes",
            });
        }
        let missing = self.limits.frame_header.saturating_sub(header.len());
        match request.payload {
            Payload::Inline(parts) if missing > 0 => {
                check_inline(parts, self.limits.max_inline as usize)?;
                self.frame_inline(writer, request.operation, parts);
            }
            Payload::Sges(_) if missing > 0 => {
                return Err(PushError::Unsupported {
                    operation: "a frame of registered memory without its first 18 bytes in `header`",
                });
            }
            payload => {
                begin(writer, request.operation.checksums, 0, header.len());
                writer.copy(1, HEADER_START, header);
                self.payload(writer, payload)?;
            }
        }
        Ok(())
    }

    fn large_send(
        &self,
        writer: &mut Writer,
        request: &SendRequest<'_, Frame<'_>>,
        mss: u16,
    ) -> Result<(), PushError> {
        let header = request.operation.header;
        let (longest, max) = (self.limits.tso_header, self.limits.max_tso);
        if longest == 0 {
            return Err(PushError::Unsupported { operation: "a TSO send without `max_tso_header`" });
        }
        if !(SHORTEST_HEADER..=longest).contains(&header.len()) {
            return Err(PushError::TsoHeader { given: header.len(), max: longest });
        }
        if !(1..=MAX_MSS).contains(&mss) {
            return Err(PushError::SegmentSize { given: mss, max: MAX_MSS });
        }
        begin(writer, request.operation.checksums, mss, header.len());
        writer.copy(1, HEADER_START, header);
        if let Payload::Inline(parts) = request.payload {
            // A long header reduces the room for inline data.
            let room = (self.max_segments() - writer.segments) * SEGMENT;
            check_inline(parts, room.saturating_sub(4).min(self.limits.max_inline as usize))?;
        }
        let given = self.payload(writer, request.payload)?;
        if given > max { Err(PushError::MessageTooLong { given, max }) } else { Ok(()) }
    }

    /// Writes an inline frame. The Ethernet segment holds as much of it as the device requires.
    fn frame_inline(&self, writer: &mut Writer, frame: Frame<'_>, parts: &[&[u8]]) {
        let total: usize = frame.header.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        let front = total.min(self.limits.frame_header);
        begin(writer, frame.checksums, 0, front);
        put_parts(writer, 1, front, std::iter::once(frame.header).chain(parts.iter().copied()));
    }
}

pub(super) fn check_inline(parts: &[&[u8]], max: usize) -> Result<(), PushError> {
    let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
    if given > max { Err(PushError::InlineTooLong { given, max }) } else { Ok(()) }
}

/// Writes the Ethernet segment, and reserves `header` bytes for the inline header.
pub(super) fn begin(writer: &mut Writer, checksums: bool, mss: u16, header: usize) {
    writer.put(wqe::ethernet(checksums, mss, header as u16));
    writer.segments += wqe::header_segments(header) - 1;
}

/// Writes inline data: the first `front` bytes to the Ethernet segment, whose index is `ethernet`, and the
/// others to a data segment. There must be `front` bytes.
pub(super) fn put_parts<'a>(
    writer: &mut Writer,
    ethernet: usize,
    front: usize,
    parts: impl Iterator<Item = &'a [u8]>,
) {
    let (first, mut at) = (writer.segments, 0);
    for part in parts {
        let (before, behind) = part.split_at(part.len().min(front.saturating_sub(at)));
        writer.copy(ethernet, HEADER_START + at, before);
        writer.copy(first, 4 + (at + before.len()).saturating_sub(front), behind);
        at += part.len();
    }
    let rest = at - front;
    if rest > 0 {
        // SAFETY: the first word of one of the request's segments.
        unsafe { writer.at(first).cast::<u32>().write(wqe::inline_header(rest as u32)) };
        writer.segments += wqe::inline_segments(rest);
    }
}
