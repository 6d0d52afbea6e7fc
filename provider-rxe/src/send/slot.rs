//! The WQE encoder.

use std::mem::offset_of;

use bareverbs_provider::work::{self, Operation, Remote, SendRequest};
use bareverbs_uapi::rxe::{RdmaWr, SendWqe, Sge};
use bareverbs_uapi::verbs_values::SendFlags;
use bareverbs_uapi::write::types::WrOpcode;

/// The offset of the SGEs or inline data in a slot, in bytes.
pub(super) const DATA: usize = size_of::<SendWqe>();

const _: () = assert!(size_of::<work::Sge>() == size_of::<Sge>());

/// Copies SGEs to `to`. Returns the sum of their lengths in bytes.
///
/// # Safety
///
/// `to` must have room for the SGEs and be aligned to 8.
#[inline(always)]
pub(crate) unsafe fn write_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    match sges {
        [sge] => {
            // SAFETY: the caller guarantees the room.
            unsafe { to.write(*sge) };
            u64::from(sge.length)
        }
        // SAFETY: the caller guarantees room for all SGEs at `to`.
        _ => unsafe { write_several_sges(to, sges) },
    }
}

/// Not inlined: the common request needs neither this loop nor its registers.
#[inline(never)]
unsafe fn write_several_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    let mut length = 0;
    for (i, sge) in sges.iter().enumerate() {
        // SAFETY: the caller of `write_sges` guarantees the room.
        unsafe { to.add(i).write(*sge) };
        length += u64::from(sge.length);
    }
    length
}

/// Copies inline data to `to`. Returns the length in bytes, or `None` if it is more than `max`.
///
/// # Safety
///
/// `to` must have room for `max` bytes, and they must not overlap the data.
#[inline(always)]
pub(super) unsafe fn write_inline(to: *mut u8, parts: &[&[u8]], max: u32) -> Option<u32> {
    match parts {
        [part] if part.len() > max as usize => None,
        [part] => {
            // SAFETY: the caller guarantees the room.
            unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            Some(part.len() as u32)
        }
        // SAFETY: the caller guarantees room for `max` bytes at `to` that do not overlap the parts.
        _ => unsafe { write_several_inline(to, parts, max) },
    }
}

/// Not inlined, like [`write_several_sges`].
#[inline(never)]
unsafe fn write_several_inline(to: *mut u8, parts: &[&[u8]], max: u32) -> Option<u32> {
    let mut length = 0;
    for part in parts {
        if part.len() > max as usize - length {
            return None;
        }
        // SAFETY: the caller of `write_inline` guarantees the room.
        unsafe { to.add(length).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
        length += part.len();
    }
    Some(length as u32)
}

/// Writes the remote address and R_Key.
///
/// # Safety
///
/// `to` must have room for an `RdmaWr` and be aligned to 8.
#[inline(always)]
pub(super) unsafe fn write_rdma(to: *mut RdmaWr, remote: Remote) {
    // The key and the adjacent zero are one store.
    let key: u64 = zerocopy::transmute!([remote.rkey, 0]);
    // SAFETY: the caller guarantees room at `to`, aligned to 8. The offset of the key is a multiple
    // of 8.
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
    /// `None` leaves the slot's value unchanged.
    pub(super) key_or_imm: Option<u32>,
    pub(super) iova: u64,
    pub(super) length: u32,
    pub(super) num_sge: u32,
}

/// Writes the common fields into a slot.
///
/// # Safety
///
/// `wqe` must have room for a `SendWqe` and be aligned to 8.
#[inline(always)]
pub(super) unsafe fn write_common(wqe: *mut SendWqe, common: &Common) {
    // SAFETY: the caller guarantees room for a `SendWqe`, aligned to 8.
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

/// Writes a SEND or RDMA WRITE into a slot whose payload is already written. Returns `false` for
/// other operations.
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
    // SAFETY: the caller guarantees room for a `SendWqe`, aligned to 8; every form fits into its
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

/// Keeps the caller's flags that the API defines. The queue itself sets INLINE.
#[inline(always)]
pub(super) fn kernel_flags(flags: work::SendFlags, inline: SendFlags) -> SendFlags {
    SendFlags::from_bits_retain((flags & work::SendFlags::all()).bits()) | inline
}
