//! User memory of DEVX, which holds queues and doorbell records.

use super::command::{Request, Result, Status};
use super::layout::command::{CreateUmemIn, Umem};
use super::work_queue::LOG_PAGE;
use crate::engine::Ring;

/// User memory: a list of pages.
pub(super) struct UserMemory {
    pages: Vec<u64>,
    shift: u32,
    /// Where the memory begins in the first page.
    start: u64,
}

/// Size and alignment of a doorbell record in bytes.
const RECORD: u64 = 8;
/// Maximum size of a page, log2.
const LOG_LARGEST_PAGE: u32 = 31;

impl UserMemory {
    pub(super) fn new(request: Request<'_>) -> Result<Self> {
        /// Offset of the page list.
        const LIST: usize = 0x30;
        let umem = request.view::<CreateUmemIn>()?.part(CreateUmemIn::UMEM);
        let pages = request.pages(LIST)?;
        let shift = umem.get32(Umem::LOG_PAGE_SIZE) + LOG_PAGE;
        let start = umem.get(Umem::PAGE_OFFSET);
        let count = umem.get(Umem::NUM_OF_MTT);
        if shift > LOG_LARGEST_PAGE || start >> shift != 0 || count == 0 || count > pages.len() as u64 {
            return Err(Status::BadParameter);
        }
        Ok(Self { pages: pages[..count as usize].to_vec(), shift, start })
    }

    /// The buffer of a queue.
    pub(super) fn ring(&self, offset: u64, length: u64) -> Result<Ring> {
        let start = self.start.checked_add(offset).ok_or(Status::BadParameter)?;
        Ring::new(self.pages.clone(), self.shift, start, length).ok_or(Status::BadParameter)
    }

    /// The address of a doorbell record.
    pub(super) fn record(&self, offset: u64) -> Result<u64> {
        let at = self.start.checked_add(offset).ok_or(Status::BadParameter)?;
        let page = self.pages.get((at >> self.shift) as usize).ok_or(Status::BadParameter)?;
        if !at.is_multiple_of(RECORD) {
            return Err(Status::BadParameter);
        }
        // An address beyond the memory of the machine fails when it is accessed.
        Ok(page.wrapping_add(at & ((1 << self.shift) - 1)))
    }
}
