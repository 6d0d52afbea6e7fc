//! UMR WQEs: updates of mkeys in the order of the SQ (`struct mlx5_wqe_umr_ctrl_seg` and
//! `MLX5_MKEY_MASK_*` in `include/linux/mlx5/`). The driver implements memory registration, memory
//! windows and local invalidation with them.

use bareverbs_transport::Status;

use super::core::Core;
use super::layout::{be32, be64, control, data, key_update};
use super::mkey::{self, ANY_QP, Accessor, Context, access};
use super::wqe::{Work, slice};

mod flag {
    pub(super) const OFFSET: u8 = 0x10;
    pub(super) const MUST_BE_FREE: u8 = 0x20;
    pub(super) const MUST_BE_VALID: u8 = 0x40;
    pub(super) const INLINE: u8 = 0x80;
}

mod mask {
    pub(super) const LENGTH: u64 = 1 << 0;
    pub(super) const PAGE_SIZE: u64 = 1 << 1;
    pub(super) const START: u64 = 1 << 6;
    pub(super) const PD: u64 = 1 << 7;
    pub(super) const REMOTE_INVALIDATE: u64 = 1 << 8;
    pub(super) const KEY: u64 = 1 << 13;
    pub(super) const QP: u64 = 1 << 14;
    /// First of five mask bits: local read, local write, remote read, remote write, atomic.
    pub(super) const ACCESS_SHIFT: u32 = 17;
    pub(super) const RELAXED_ORDERING_WRITE: u64 = 1 << 25;
    pub(super) const FREE: u64 = 1 << 29;
    pub(super) const RELAXED_ORDERING_READ: u64 = 1 << 47;
    /// Mask bits that are accepted without effect: a fence hint, which the engine doesn't model,
    /// and the sixth bit of the page size.
    const WITHOUT_EFFECT: u64 = 1 << 23 | 1 << 42;
    /// All supported mask bits. Signatures, among others, are unsupported.
    pub(super) const KNOWN: u64 = LENGTH
        | PAGE_SIZE
        | START
        | PD
        | REMOTE_INVALIDATE
        | KEY
        | QP
        | 0x1f << ACCESS_SHIFT
        | RELAXED_ORDERING_WRITE
        | FREE
        | RELAXED_ORDERING_READ
        | WITHOUT_EFFECT;
}

/// Executes a UMR WQE.
pub(crate) fn execute(core: &mut Core, who: Accessor, work: &Work) -> Result<(), Status> {
    const CONTROL: usize = control::SIZE;
    const CONTEXT: usize = CONTROL + key_update::SIZE;
    const DATA: usize = 128;
    let malformed = |_| Status::LocalQpOperation;
    let control = slice(work, CONTROL, key_update::SIZE).map_err(malformed)?;
    let context: &[u8; 64] =
        slice(work, CONTEXT, 64).map_err(malformed)?.try_into().map_err(|_| Status::LocalQpOperation)?;
    let short = |at: usize| u16::from_be_bytes([control[at], control[at + 1]]);
    let (flags, changes) = (control[key_update::FLAGS], be64(control, key_update::MKEY_MASK));
    if changes & !mask::KNOWN != 0 {
        return Err(Status::LocalQpOperation);
    }
    let length = usize::from(short(key_update::XLT_OCTOWORDS)) * 16;
    let offset = if flags & flag::OFFSET != 0 {
        (u64::from(be32(control, key_update::XLT_OFFSET_47_16)) << 16
            | u64::from(short(key_update::XLT_OFFSET)))
            * 16
    } else {
        0
    };
    let translation = if length == 0 {
        Vec::new()
    } else if flags & flag::INLINE != 0 {
        // Libraries pad inline data to a full block, and the padding may be missing from the WQE.
        let available = work.bytes.len().saturating_sub(DATA).min(length);
        slice(work, DATA, available).map_err(malformed)?.to_vec()
    } else {
        let pointer = slice(work, DATA, data::SIZE).map_err(malformed)?;
        let mut bytes = vec![0; length.min(be32(pointer, data::BYTE_COUNT) as usize)];
        let place = (be32(pointer, data::LKEY), be64(pointer, data::ADDR));
        mkey::read(&core.mkeys, &core.memory, who, place, access::LOCAL_READ, &mut bytes)
            .map_err(|_| Status::LocalProtection)?;
        bytes
    };
    let key = core.mkeys.get_mut(work.immediate >> 8).ok_or(Status::MemoryWindowBind)?;
    let allowed = key.umr && (key.pd == who.pd || who.any_pd);
    let free_as_wanted =
        !(flags & flag::MUST_BE_FREE != 0 && !key.free || flags & flag::MUST_BE_VALID != 0 && key.free);
    let context = Context(context);
    let bound_elsewhere =
        flags & flag::MUST_BE_VALID != 0 && !who.any_pd && key.qp != ANY_QP && key.qp != who.qp;
    if !allowed || !free_as_wanted || bound_elsewhere || !key.translate_from(offset, &translation) {
        return Err(Status::MemoryWindowBind);
    }
    let wants = |bit: u64| changes & bit != 0;
    if wants(mask::LENGTH) {
        key.length = context.length();
        key.unbounded = (who.any_pd || who.reserved_lkey) && context.unbounded();
    }
    if wants(mask::PAGE_SIZE) {
        key.log_page = context.log_page();
    }
    if wants(mask::START) {
        key.start = context.start();
    }
    if wants(mask::PD) && who.any_pd {
        key.pd = context.pd();
    }
    if wants(mask::REMOTE_INVALIDATE) {
        key.remote_invalidate = context.remote_invalidate();
    }
    if wants(mask::KEY) {
        key.variant = context.variant();
    }
    if wants(mask::QP) {
        key.qp = context.qp();
    }
    let rights = (changes >> mask::ACCESS_SHIFT & 0x1f) as u8;
    key.access = key.access & !rights | context.access() & rights;
    if wants(mask::RELAXED_ORDERING_WRITE) {
        key.relaxed_ordering_write = context.relaxed_ordering_write();
    }
    if wants(mask::RELAXED_ORDERING_READ) {
        key.relaxed_ordering_read = context.relaxed_ordering_read();
    }
    if wants(mask::FREE) {
        key.free = context.free();
    }
    Ok(())
}
