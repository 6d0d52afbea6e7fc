//! Datagrams. A WQE names its address handle by the kernel's number.

use bareverbs_provider::work::{Datagram, PushError, SendRequest};
use bareverbs_uapi::rxe::{SendWqe, UdWr};
use bareverbs_uapi::write::types::WrOpcode;

use super::RxeSq;
use super::slot::{Common, DATA, kernel_flags, write_common};
use crate::memory::QueueMemory;
use bareverbs_provider::doorbell::Doorbell;

/// The kernel's number of an address handle (AH).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxeAh {
    /// The number, which is not 0.
    pub number: u32,
}

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Writes a request as [`SendQueue::push`](bareverbs_provider::traits::SendQueue::push) does.
    ///
    /// # Safety
    ///
    /// As there.
    #[inline]
    pub(super) unsafe fn push_to_handle(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, RxeAh>>,
    ) -> Result<(), PushError> {
        let Some(max) = self.limits.max_datagram else {
            return Err(PushError::Unsupported { operation: "a datagram" });
        };
        let Some(slot) = self.ring.next_slot() else {
            return Err(PushError::QueueFull { capacity: self.ring.capacity() });
        };
        let wqe = slot.as_ptr().cast::<SendWqe>();
        // SAFETY: `locate` checked that a slot has room for a request and for the data that the
        // limits allow after it.
        let data = unsafe { slot.as_ptr().add(DATA) };
        // SAFETY: `locate` checked that a slot has room for the data that the limits allow after
        // the request. `DATA` is a multiple of 8. No Rust slice references ring memory, by the
        // contract of `QueueMemory`.
        let (length, num_sge, inline) = unsafe { self.write_payload(data, request.payload) }?;
        if length > max {
            return Err(PushError::DatagramTooLong { given: length.into(), max });
        }
        let Datagram { ah, qp_num, qkey, imm, header } = request.operation;
        if !header.is_empty() {
            return Err(PushError::Unsupported { operation: "a datagram with a header" });
        }
        if qp_num > 0xff_ffff {
            return Err(PushError::QpNumber { qp_num });
        }
        let (opcode, key_or_imm) = match imm {
            None => (WrOpcode::SEND, 0),
            Some(imm) => (WrOpcode::SEND_WITH_IMM, imm.to_be()),
        };
        // SAFETY: the form fits into the slot's `wr`, which is aligned to 8. The address vector
        // after the number stays unchanged: the kernel reads it only if the number is 0
        // (`rxe_get_av` in `rxe_av.c`).
        unsafe {
            let form = (&raw mut (*wqe).wr.wr).cast::<UdWr>();
            (&raw mut (*form).remote_qpn).write(qp_num);
            (&raw mut (*form).remote_qkey).write(qkey);
            (&raw mut (*form).pkey_index).write(0);
            (&raw mut (*form).reserved).write(0);
            (&raw mut (*form).ah_num).write(ah.number);
        }
        let flags = kernel_flags(request.flags, inline);
        let common = Common {
            wr_id: request.wr_id,
            opcode,
            flags,
            key_or_imm: Some(key_or_imm),
            iova: 0,
            length,
            num_sge,
        };
        // SAFETY: `locate` checked that a slot has room for a `SendWqe`; slots are aligned to 64
        // bytes.
        unsafe { write_common(wqe, &common) };
        // SAFETY: `next_slot` returned the slot, and it holds a complete request. The caller
        // guarantees its memory.
        unsafe { self.ring.advance() };
        Ok(())
    }
}
