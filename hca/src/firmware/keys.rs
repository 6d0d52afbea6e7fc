//! Commands about mkeys.

use super::bits::Layout;
use super::command::{Reply, Request, Result, Status};
use super::layout::command::{CreateMkeyIn, PageFaultResumeIn, TransPageFaultInfo};
use super::layout::object::Mkc;
use super::state::Firmware;
use super::work_queue::PAGES;
use crate::engine::Engine;
use crate::engine::mkey::{AccessMode, Context, Mkey, access, present};

/// Maximum number of translation entries of an mkey, enough for 64 GiB in 4 KiB pages.
const MOST_ENTRIES: u32 = 1 << 23;
/// Offset of the translation in the output of QUERY_MKEY. It is truncated to the output's length.
const TRANSLATION: usize = 0x110;

impl Firmware {
    pub(super) fn create_mkey(
        &mut self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let input = request.view::<CreateMkeyIn>()?;
        let context: &[u8; Mkc::SIZE] = input
            .part(CreateMkeyIn::MEMORY_KEY_MKEY_ENTRY)
            .raw()
            .try_into()
            .map_err(|_| Status::BadInputLength)?;
        let mut key = Mkey::from_context(Context(context)).ok_or(Status::BadParameter)?;
        if key.capacity > MOST_ENTRIES {
            return Err(Status::Limit);
        }
        // Mkeys have no user memory here, only a page list or a list of keys.
        if input.flag(CreateMkeyIn::MKEY_UMEM_VALID) {
            return Err(Status::BadParameter);
        }
        if !key.free {
            self.resources.require_pd(key.pd)?;
        }
        let given = input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize * 16;
        if given > 0 {
            let list = &request.input[PAGES..];
            // The padding of the last entry may be missing.
            let list = &list[..list.len().min(given) / 8 * 8];
            key.capacity = key.capacity.max(given.div_ceil(16) as u32);
            if key.capacity > MOST_ENTRIES || !key.translate_from(0, list) {
                return Err(Status::BadParameter);
            }
            if key.mode == AccessMode::Mtt && !input.flag(CreateMkeyIn::PG_ACCESS) {
                // Without PG_ACCESS the list has no presence bits: all pages are present.
                key.translation.iter_mut().for_each(|entry| *entry |= present::WHOLLY);
            }
        }
        let index = engine.create_mkey(key)?;
        self.keys.insert(index, *context);
        reply.object(index)
    }

    pub(super) fn query_mkey(
        &self,
        engine: &Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let index = request.object()?;
        let key = engine.mkey(index)?;
        let context = self.keys.get(&index).ok_or(Status::BadResource)?;
        reply
            .view_at::<Mkc>(16)?
            .fill(context)
            .set(Mkc::FREE, u8::from(key.free))
            .set(Mkc::PD, key.pd)
            .set(Mkc::QPN, key.qp)
            .set(Mkc::MKEY_7_0, key.variant)
            .set(Mkc::START_ADDR, key.start)
            .set(Mkc::LEN, key.length)
            .set(Mkc::LOG_PAGE_SIZE, key.log_page)
            .set(Mkc::LR, key.access & access::LOCAL_READ != 0)
            .set(Mkc::LW, key.access & access::LOCAL_WRITE != 0)
            .set(Mkc::RR, key.access & access::REMOTE_READ != 0)
            .set(Mkc::RW, key.access & access::REMOTE_WRITE != 0)
            .set(Mkc::A, key.access & access::ATOMIC != 0)
            .set(Mkc::EN_RINVAL, key.remote_invalidate)
            .set(Mkc::RELAXED_ORDERING_WRITE, key.relaxed_ordering_write)
            .set(Mkc::RELAXED_ORDERING_READ, key.relaxed_ordering_read);
        // The driver reads here the keys behind a memory window when it resolves a page fault.
        for (index, word) in key.translation.iter().enumerate() {
            let at = TRANSLATION + 8 * index;
            if at + 8 > reply.length() {
                break;
            }
            reply.put(at, &word.to_be_bytes());
        }
        Ok(())
    }

    /// PAGE_FAULT_RESUME: the driver's answer to a page fault.
    pub(super) fn resume_page_fault(&self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let fault = request.view::<PageFaultResumeIn>()?.part(PageFaultResumeIn::PAGE_FAULT_INFO);
        Ok(engine.resume(
            fault.get32(TransPageFaultInfo::FAULT_TOKEN),
            fault.get8(TransPageFaultInfo::PAGE_FAULT_TYPE),
            fault.get32(TransPageFaultInfo::WQ_NUMBER),
            fault.flag(TransPageFaultInfo::ERROR),
        )?)
    }

    pub(super) fn destroy_mkey(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let index = request.object()?;
        engine.destroy_mkey(index)?;
        self.keys.remove(&index);
        Ok(())
    }
}
