//! Work queues in commands: offsets, states, page lists and rings.

use super::bits::View;
use super::command::{Request, Result, Status};
use super::layout::object::Wq;
use super::limits::LOG_WQ_SIZE;
use crate::engine::Ring;

/// Offset of the context in commands about RQs, SQs, RMPs, TIRs, TISes and RQTs.
pub(super) const CONTEXT: usize = 0x20;
/// Offset of the page list in commands that create queues or mkeys.
pub(super) const PAGES: usize = 0x110;
/// Size of the smallest page in bytes, log2.
pub(super) const LOG_PAGE: u32 = 12;

/// States of RQ and SQ objects.
pub(super) mod wq_state {
    pub(in crate::firmware) const RESET: u8 = 0;
    pub(in crate::firmware) const READY: u8 = 1;
    pub(in crate::firmware) const ERROR: u8 = 3;
}

/// Whether a state transition is legal.
pub(super) fn legal(from: u8, to: u8) -> bool {
    matches!(
        (from, to),
        (_, wq_state::RESET)
            | (wq_state::RESET | wq_state::READY, wq_state::READY)
            | (wq_state::READY | wq_state::ERROR, wq_state::ERROR)
    )
}

/// Whether a work queue type is a linked list.
pub(super) fn is_linked(wq_type: u8) -> Result<bool> {
    match wq_type {
        0 => Ok(true),
        1 => Ok(false),
        _ => Err(Status::BadParameter),
    }
}

/// The ring behind a page list. `log_page` is relative to 4 KiB, and `offset` is in units of 1/64
/// of a page.
pub(super) fn ring(pages: Vec<u64>, log_page: u32, offset: u64, length: u64) -> Result<Ring> {
    let shift = log_page + LOG_PAGE;
    if shift > 32 {
        return Err(Status::BadParameter);
    }
    Ring::new(pages, shift, offset << shift >> 6, length).ok_or(Status::BadParameter)
}

/// The ring of a work queue context.
pub(super) fn wq_ring(request: Request<'_>, wq: &View<'_, Wq>) -> Result<Ring> {
    let (log_size, log_stride) = (wq.get8(Wq::LOG_WQ_SZ), wq.get8(Wq::LOG_WQ_STRIDE));
    if log_size > LOG_WQ_SIZE || log_stride > 12 || wq.flag(Wq::WQ_SIGNATURE) {
        return Err(Status::BadParameter);
    }
    let length = 1 << (log_size + log_stride);
    ring(request.pages(PAGES)?, wq.get32(Wq::LOG_WQ_PG_SZ), wq.get(Wq::PAGE_OFFSET), length)
}
