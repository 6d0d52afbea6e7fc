//! Datagrams of QPs with a source QPN, for packets of IPoIB.

use bareverbs_provider::work::{Datagram, Payload, PushError, SendRequest};

use super::raw_packet::{begin, check_inline, put_parts};
use super::{Datagrams, FRAME_HEADER, Head, Mlx5Ah, Mlx5Sq, PLAIN};
use crate::wqe::{HEADER_START, Opcode};

/// Minimum bytes of a datagram's start that the WQE holds inline: the header of IPoIB.
#[doc(alias = "MLX5_IPOIB_INLINE_MIN_HEADER_SIZE")]
const SHORTEST_HEADER: usize = 4;

/// Maximum bytes of the same.
#[doc(alias = "MLX5_SOURCE_QPN_INLINE_MAX_HEADER_SIZE")]
const LONGEST_HEADER: usize = FRAME_HEADER;

impl Mlx5Sq {
    /// Writes a datagram as [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does. Address
    /// vector, pad and Ethernet segment follow the control segment.
    #[cold]
    pub(super) fn push_with_header(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, Mlx5Ah>>,
    ) -> Result<(), PushError> {
        let Datagram { ah, qp_num, qkey, imm, header } = request.operation;
        match self.limits.datagrams {
            Datagrams::None => return Err(PushError::Unsupported { operation: "a datagram" }),
            Datagrams::Plain => {
                return Err(PushError::Unsupported { operation: "a datagram with a header" });
            }
            Datagrams::Ipoib => {}
        }
        // libmlx5 rejects it too.
        if imm.is_some() {
            return Err(PushError::Unsupported { operation: "immediate data of a QP with a source QPN" });
        }
        if self.is_full() {
            return Err(self.full());
        }
        if qp_num >> 24 != 0 {
            return Err(PushError::QpNumber { qp_num });
        }
        let mut writer = self.writer();
        for segment in ah.vector.segments(qp_num, qkey) {
            writer.put(segment);
        }
        // The pad.
        writer.put([0; 2]);
        let ethernet = writer.segments;
        let length = match request.payload {
            Payload::Inline(parts) if header.is_empty() => {
                check_inline(parts, self.limits.max_inline as usize)?;
                let total: usize = parts.iter().map(|part| part.len()).sum();
                // As libmlx5, by the length of the first part.
                let is_long = parts.first().is_some_and(|first| first.len() >= LONGEST_HEADER);
                let front = if is_long { LONGEST_HEADER } else { SHORTEST_HEADER };
                if total < front {
                    return Err(SHORT);
                }
                begin(&mut writer, false, 0, front);
                put_parts(&mut writer, ethernet, front, parts.iter().copied());
                total as u64
            }
            payload => {
                if !(SHORTEST_HEADER..=LONGEST_HEADER).contains(&header.len()) {
                    return Err(SHORT);
                }
                begin(&mut writer, false, 0, header.len());
                writer.copy(ethernet, HEADER_START, header);
                self.payload(&mut writer, payload)? + header.len() as u64
            }
        };
        if length > self.limits.max_message {
            return Err(self.too_long(length));
        }
        let head =
            Head { opcode: Opcode::SEND, imm: 0, flags: request.flags, wr_id: request.wr_id, wr_data: PLAIN };
        self.finish(&writer, &head);
        Ok(())
    }
}

const SHORT: PushError = PushError::Unsupported {
    operation: "a datagram of a QP with a source QPN without its first 4 to 18 bytes in `header` or inline",
};
