//! Sends of XRC initiator QPs.

use bareverbs_provider::work::{Operation, PushError, SendRequest, XrcOperation};
use bareverbs_uapi::uverbs::types::QpType;

use super::{Head, Mlx5Sq, PLAIN, supports, unsupported};
use crate::wqe::{self, Opcode};

impl Mlx5Sq {
    /// Writes a request as [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does.
    /// The XRC segment follows the control segment.
    pub(super) fn push_to_srq(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError> {
        let XrcOperation { remote_srq, operation } = request.operation;
        // Only RC and UC queue pairs bind and invalidate windows.
        let is_window = matches!(operation, Operation::LocalInv(_) | Operation::BindMw(_));
        if self.limits.qp_type != QpType::XRC_INI || is_window || !supports(QpType::RC, &operation) {
            return Err(unsupported(&operation));
        }
        if remote_srq > 0xff_ffff {
            return Err(PushError::SrqNumber { srq_num: remote_srq });
        }
        if self.is_full() {
            return Err(self.full());
        }
        let mut writer = self.writer();
        writer.put(wqe::xrc(remote_srq));
        let mut head =
            Head { opcode: Opcode::SEND, imm: 0, flags: request.flags, wr_id: request.wr_id, wr_data: PLAIN };
        self.operation(&mut writer, &request.with(operation), &mut head)?;
        self.payload(&mut writer, request.payload)?;
        self.finish(&writer, &head);
        Ok(())
    }
}
