//! Initialization and teardown: ENABLE_HCA, pages, capabilities, INIT_HCA.

use super::caps;
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{ManagePagesIn, ManagePagesOut, QueryIssiOut, QueryPagesOut};
use super::lifecycle::Lifecycle;
use super::state::Firmware;
use crate::engine::Engine;

/// Pages requested before and during initialization. The device stores nothing in them. They are
/// requested so that the driver's page management is exercised.
const BOOT_PAGES: u32 = 64;
const INIT_PAGES: u32 = 256;
/// Maximum number of pages, more than a driver gives.
const MOST_PAGES: usize = 1 << 16;

impl Firmware {
    pub(super) fn enable(&mut self) -> Result<()> {
        self.lifecycle = Lifecycle::Enabled;
        Ok(())
    }

    pub(super) fn disable(&mut self, engine: &mut Engine) -> Result<()> {
        engine.reset();
        *self = Self::of_version(self.link, self.cqe_version);
        Ok(())
    }

    pub(super) fn init(&mut self) -> Result<()> {
        self.lifecycle = Lifecycle::Initialized;
        Ok(())
    }

    /// Discards all objects. The driver must still reclaim its pages.
    pub(super) fn teardown(&mut self, engine: &mut Engine) -> Result<()> {
        engine.reset();
        let pages = std::mem::take(&mut self.pages);
        *self =
            Self { lifecycle: Lifecycle::Enabled, pages, ..Self::of_version(self.link, self.cqe_version) };
        Ok(())
    }

    pub(super) fn query_issi(&self, reply: &mut Reply<'_>) -> Result<()> {
        const ISSI_1: u32 = 1 << 1;
        reply.view::<QueryIssiOut>()?.set(QueryIssiOut::SUPPORTED_ISSI_DW0, ISSI_1);
        Ok(())
    }

    pub(super) fn set_issi(&self, request: Request<'_>) -> Result<()> {
        if request.word(8)? & 0xffff == 1 { Ok(()) } else { Err(Status::BadParameter) }
    }

    pub(super) fn query_pages(&self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let wanted = match request.modifier() {
            1 => BOOT_PAGES,
            2 => INIT_PAGES,
            3 => 0,
            _ => return Err(Status::BadParameter),
        };
        reply.view::<QueryPagesOut>()?.set(QueryPagesOut::NUM_PAGES, wanted);
        Ok(())
    }

    pub(super) fn manage_pages(&mut self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        let count = request.view::<ManagePagesIn>()?.get(ManagePagesIn::INPUT_NUM_ENTRIES) as usize;
        match request.modifier() {
            // The driver can't give pages.
            0 => Ok(()),
            1 => {
                let pages = request.pages(16)?;
                if pages.len() < count || self.pages.len() + count > MOST_PAGES {
                    return Err(Status::BadParameter);
                }
                self.pages.extend_from_slice(&pages[..count]);
                Ok(())
            }
            2 => {
                let room = reply.length().saturating_sub(16) / 8;
                let count = count.min(room).min(self.pages.len());
                reply.view::<ManagePagesOut>()?.set(ManagePagesOut::OUTPUT_NUM_ENTRIES, count as u64);
                let keep = self.pages.len() - count;
                for (index, page) in self.pages.drain(keep..).enumerate() {
                    reply.put(16 + 8 * index, &page.to_be_bytes());
                }
                Ok(())
            }
            _ => Err(Status::BadParameter),
        }
    }

    pub(super) fn query_hca_cap(&self, request: Request<'_>, reply: &mut Reply<'_>) -> Result<()> {
        request.bytes(0, 16)?;
        let block =
            caps::block(self.link, self.cqe_version, request.modifier() >> 1).ok_or(Status::BadParameter)?;
        if reply.length() < 16 {
            return Err(Status::BadOutputLength);
        }
        reply.put(16, &block);
        Ok(())
    }

    /// The driver may lower limits below the maximum. The model ignores them and keeps the maximum.
    pub(super) fn set_hca_cap(&self, request: Request<'_>) -> Result<()> {
        request.bytes(0, 16)?;
        caps::block(self.link, self.cqe_version, request.modifier() >> 1)
            .map(drop)
            .ok_or(Status::BadParameter)
    }
}
