//! The WQE encoder.

use std::mem::offset_of;

use bareverbs_provider::work::{self, Operation, Remote, SendRequest};
use bareverbs_uapi::rxe::{RdmaWr, SendWqe, Sge};
use bareverbs_uapi::verbs_values::SendFlags;
use bareverbs_uapi::write::types::WrOpcode;

/// Where a request's SGEs or inline bytes start in its slot.
pub(super) const DATA: usize = size_of::<SendWqe>();

const _: () = assert!(size_of::<work::Sge>() == size_of::<Sge>());

/// Copies SGEs behind a request; returns the sum of their bytes.
///
/// # Safety
///
/// There must be room for them at `to`, aligned to 8.
#[inline(always)]
pub(crate) unsafe fn write_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    match sges {
        [sge] => {
            // SAFETY: within the room that the caller promises.
            unsafe { to.write(*sge) };
            u64::from(sge.length)
        }
        // SAFETY: the caller promises room for all SGEs at `to`.
        _ => unsafe { write_several_sges(to, sges) },
    }
}

/// Kept out of line, so that the common request costs neither its loop nor the registers for it.
#[inline(never)]
unsafe fn write_several_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    let mut length = 0;
    for (i, sge) in sges.iter().enumerate() {
        // SAFETY: within the room that the caller of `write_sges` promises.
        unsafe { to.add(i).write(*sge) };
        length += u64::from(sge.length);
    }
    length
}

/// Copies inline data behind a request; returns their bytes, or nothing where they are more than
/// `max`.
///
/// # Safety
///
/// There must be room for `max` bytes at `to`, and none of it may overlap the data.
#[inline(always)]
pub(super) unsafe fn write_inline(to: *mut u8, parts: &[&[u8]], max: u32) -> Option<u32> {
    match parts {
        [part] if part.len() > max as usize => None,
        [part] => {
            // SAFETY: within the room that the caller promises.
            unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            Some(part.len() as u32)
        }
        // SAFETY: the caller promises room for `max` bytes at `to`, none of which overlaps the
        // parts.
        _ => unsafe { write_several_inline(to, parts, max) },
    }
}

/// Kept out of line like [`write_several_sges`].
#[inline(never)]
unsafe fn write_several_inline(to: *mut u8, parts: &[&[u8]], max: u32) -> Option<u32> {
    let mut length = 0;
    for part in parts {
        if part.len() > max as usize - length {
            return None;
        }
        // SAFETY: within the room that the caller of `write_inline` promises.
        unsafe { to.add(length).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
        length += part.len();
    }
    Some(length as u32)
}

/// Where a request goes in the peer's memory.
///
/// # Safety
///
/// There must be room at `to`, aligned to 8.
#[inline(always)]
pub(super) unsafe fn write_rdma(to: *mut RdmaWr, remote: Remote) {
    // With the zero beside it, the key is one store.
    let key: u64 = zerocopy::transmute!([remote.rkey, 0]);
    // SAFETY: the caller promises room at `to`, aligned to 8; the key lies at a multiple of 8.
    unsafe {
        (&raw mut (*to).remote_addr).write(remote.addr);
        (&raw mut (*to).rkey).cast::<u64>().write(key);
    }
}

const _: () = assert!(offset_of!(RdmaWr, rkey) == 8 && offset_of!(RdmaWr, reserved) == 12);

/// The fields that every WQE has.
pub(super) struct Common {
    pub(super) wr_id: u64,
    pub(super) opcode: WrOpcode,
    pub(super) flags: SendFlags,
    /// Left as it was where the operation has none.
    pub(super) key_or_imm: Option<u32>,
    pub(super) iova: u64,
    pub(super) length: u32,
    pub(super) num_sge: u32,
}

/// Writes it into a slot.
///
/// # Safety
///
/// There must be room for a `SendWqe` at `wqe`, aligned to 8.
#[inline(always)]
pub(super) unsafe fn write_common(wqe: *mut SendWqe, common: &Common) {
    // SAFETY: the caller promises room for a `SendWqe`, aligned to 8.
    unsafe {
        (&raw mut (*wqe).wr.wr_id).write(common.wr_id);
        (&raw mut (*wqe).wr.reserved).write(0);
        (&raw mut (*wqe).wr.opcode).write(common.opcode);
        (&raw mut (*wqe).wr.send_flags).write(common.flags);
        if let Some(key_or_imm) = common.key_or_imm {
            (&raw mut (*wqe).wr.ex).write(key_or_imm);
        }
        (&raw mut (*wqe).status).write(0);
        (&raw mut (*wqe).state).write(0);
        (&raw mut (*wqe).iova).write(common.iova);
        (&raw mut (*wqe).ssn).write(0);
        (&raw mut (*wqe).has_rd_atomic).write(0);
        (&raw mut (*wqe).dma.length).write(common.length);
        (&raw mut (*wqe).dma.resid).write(common.length);
        (&raw mut (*wqe).dma.cur_sge).write(0);
        (&raw mut (*wqe).dma.num_sge).write(common.num_sge);
        (&raw mut (*wqe).dma.sge_offset).write(0);
        (&raw mut (*wqe).dma.reserved).write(0);
    }
}

/// Writes a send or a write, whose data are written, into a slot; returns `false` for other
/// operations.
///
/// # Safety
///
/// As for [`write_common`].
#[inline(always)]
pub(super) unsafe fn write_fast(
    wqe: *mut SendWqe,
    request: &SendRequest<'_>,
    length: u32,
    num_sge: u32,
    inline: SendFlags,
) -> bool {
    let flags = kernel_flags(request.flags, inline);
    let common = |opcode, iova| Common {
        wr_id: request.wr_id,
        opcode,
        flags,
        key_or_imm: None,
        iova,
        length,
        num_sge,
    };
    // SAFETY: the caller promises room for a `SendWqe`, aligned to 8; every form fits into its
    // `wr`.
    unsafe {
        if let Operation::Write(remote) = request.operation {
            write_rdma((&raw mut (*wqe).wr.wr).cast(), remote);
            write_common(wqe, &common(WrOpcode::RDMA_WRITE, remote.addr));
            true
        } else if let Operation::Send = request.operation {
            write_common(wqe, &common(WrOpcode::SEND, 0));
            true
        } else {
            false
        }
    }
}

/// Of the caller's flags only those that the API knows: INLINE is for the queue to say.
#[inline(always)]
pub(super) fn kernel_flags(flags: work::SendFlags, inline: SendFlags) -> SendFlags {
    SendFlags::from_bits_retain((flags & work::SendFlags::all()).bits()) | inline
}
