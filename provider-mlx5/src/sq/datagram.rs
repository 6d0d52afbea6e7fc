//! Datagrams of UD queue pairs.

use bareverbs_provider::work::{Datagram, PushError, SendRequest};

use super::{Datagrams, Head, Mlx5Sq, PLAIN};
use crate::wqe::{AddressVector, Opcode};

/// An address handle: the address vector of a destination.
#[derive(Clone, Copy, Debug)]
pub struct Mlx5Ah {
    pub(crate) vector: AddressVector,
}

impl Mlx5Ah {
    /// The address vector of the datagrams.
    #[must_use]
    pub fn vector(&self) -> &AddressVector {
        &self.vector
    }
}

impl Mlx5Sq {
    /// Writes a datagram as [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does.
    /// The address vector follows the control segment.
    #[inline(always)]
    pub(super) fn push_to_handle(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, Mlx5Ah>>,
    ) -> Result<(), PushError> {
        let Datagram { ah, qp_num, qkey, imm, header } = request.operation;
        if self.limits.datagrams != Datagrams::Plain || !header.is_empty() {
            return self.push_with_header(request);
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
        self.payload(&mut writer, request.payload)?;
        let (opcode, imm) = match imm {
            None => (Opcode::SEND, 0),
            Some(imm) => (Opcode::SEND_IMM, imm.to_be()),
        };
        let head = Head { opcode, imm, flags: request.flags, wr_id: request.wr_id, wr_data: PLAIN };
        self.finish(&writer, &head);
        Ok(())
    }
}
