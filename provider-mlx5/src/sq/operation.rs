//! The segments of operations.

use bareverbs_provider::work::{
    Operation, Payload, PushError, Remote, SendFlags, SendRequest, Sge, WcOpcode,
};
use bareverbs_uapi::uverbs::types::QpType;

use super::{Mlx5Sq, Writer};
use crate::wqe::{self, Opcode};

/// Fields of the control segment and of the poller's slot.
pub(super) struct Head {
    pub(super) opcode: Opcode,
    pub(super) imm: u32,
    pub(super) flags: SendFlags,
    pub(super) wr_id: u64,
    /// The operation of the completion where the CQE does not determine it (UMR), or where the
    /// operation returns data; else [`PLAIN`].
    pub(super) wr_data: WcOpcode,
}

/// For a request whose CQE determines the operation.
pub(super) const PLAIN: WcOpcode = WcOpcode(0);

/// Whether a QP type supports an operation.
#[inline(always)]
pub(super) fn supports(qp_type: QpType, operation: &Operation) -> bool {
    match operation {
        Operation::Send
        | Operation::SendImm(_)
        | Operation::Write(_)
        | Operation::WriteImm(..)
        | Operation::LocalInv(_)
        | Operation::BindMw(_) => matches!(qp_type, QpType::RC | QpType::UC),
        Operation::SendInv(_)
        | Operation::Read(_)
        | Operation::CmpSwp { .. }
        | Operation::FetchAdd { .. } => qp_type == QpType::RC,
        _ => false,
    }
}

impl Mlx5Sq {
    /// Writes the operation's segments, and sets the fields of the control segment.
    #[inline(always)]
    pub(super) fn operation(
        &self,
        writer: &mut Writer,
        request: &SendRequest<'_>,
        head: &mut Head,
    ) -> Result<(), PushError> {
        match request.operation {
            Operation::Send => {}
            Operation::SendImm(imm) => (head.opcode, head.imm) = (Opcode::SEND_IMM, imm.to_be()),
            Operation::SendInv(rkey) => (head.opcode, head.imm) = (Opcode::SEND_INVAL, rkey.to_be()),
            Operation::Write(remote) => {
                head.opcode = Opcode::RDMA_WRITE;
                writer.put(wqe::remote_address(remote));
            }
            Operation::WriteImm(remote, imm) => {
                (head.opcode, head.imm) = (Opcode::RDMA_WRITE_IMM, imm.to_be());
                writer.put(wqe::remote_address(remote));
            }
            Operation::Read(remote) => {
                registered(request.payload)?;
                (head.opcode, head.wr_data) = (Opcode::RDMA_READ, WcOpcode::RDMA_READ);
                writer.put(wqe::remote_address(remote));
            }
            Operation::CmpSwp { remote, compare, swap } => {
                result_of_atomic(request.payload, remote)?;
                (head.opcode, head.wr_data) = (Opcode::ATOMIC_CS, WcOpcode::COMP_SWAP);
                writer.put(wqe::remote_address(remote));
                writer.put(wqe::atomic(swap, compare));
            }
            Operation::FetchAdd { remote, add } => {
                result_of_atomic(request.payload, remote)?;
                (head.opcode, head.wr_data) = (Opcode::ATOMIC_FA, WcOpcode::FETCH_ADD);
                writer.put(wqe::remote_address(remote));
                writer.put(wqe::atomic(add, 0));
            }
            Operation::LocalInv(rkey) => {
                nothing(&request.operation, request.payload)?;
                (head.opcode, head.imm, head.wr_data) = (Opcode::UMR, rkey.to_be(), WcOpcode::LOCAL_INV);
                for segment in &wqe::invalidate(self.qp_num)[..wqe::UNBIND_SEGMENTS] {
                    writer.put(*segment);
                }
            }
            Operation::BindMw(bind) => {
                nothing(&request.operation, request.payload)?;
                (head.opcode, head.imm, head.wr_data) =
                    (Opcode::UMR, bind.mw_rkey.to_be(), WcOpcode::BIND_MW);
                let segments = if bind.length == 0 { wqe::UNBIND_SEGMENTS } else { wqe::BIND_SEGMENTS };
                for segment in &wqe::bind(&bind, self.qp_num)[..segments] {
                    writer.put(*segment);
                }
            }
            ref other => return Err(unsupported(other)),
        }
        Ok(())
    }
}

#[inline(always)]
fn registered(payload: Payload<'_>) -> Result<&[Sge], PushError> {
    match payload {
        Payload::Sges(sges) => Ok(sges),
        Payload::Inline(_) => Err(PushError::InlineResult),
    }
}

#[inline(always)]
fn result_of_atomic(payload: Payload<'_>, remote: Remote) -> Result<(), PushError> {
    let given = registered(payload)?.iter().map(|sge| u64::from(sge.length)).sum();
    if given != 8 {
        return Err(PushError::AtomicResult { given });
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(PushError::AtomicAddress { addr: remote.addr });
    }
    Ok(())
}

#[inline(always)]
fn nothing(operation: &Operation, payload: Payload<'_>) -> Result<(), PushError> {
    match payload {
        Payload::Sges([]) | Payload::Inline([]) => Ok(()),
        _ => Err(PushError::UnexpectedPayload { operation: operation.name() }),
    }
}

#[cold]
pub(super) fn unsupported(operation: &Operation) -> PushError {
    PushError::Unsupported { operation: operation.name() }
}
