//! Commands about memory keys.

use super::bits::Layout;
use super::layout::command::CreateMkeyIn;
use super::layout::object::Mkc;
use super::queues::PAGES;
use super::{Firmware, Reply, Request, Result, Status};
use crate::engine::Engine;
use crate::engine::mkey::{Context, Mkey};

/// A key has at most as many translation entries as a region of 64 GiB in 4 KiB pages needs.
const MOST_ENTRIES: u32 = 1 << 23;

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
        if !key.free {
            self.resources.require_pd(key.pd)?;
        }
        let given = input.get(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE) as usize * 16;
        if given > 0 {
            let list = &request.input[PAGES..];
            // The last entry's padding may be absent.
            let list = &list[..list.len().min(given) / 8 * 8];
            key.capacity = key.capacity.max(given.div_ceil(16) as u32);
            if key.capacity > MOST_ENTRIES || !key.translate_from(0, list) {
                return Err(Status::BadParameter);
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
            .set(Mkc::LOG_PAGE_SIZE, key.log_page);
        Ok(())
    }

    pub(super) fn destroy_mkey(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let index = request.object()?;
        engine.destroy_mkey(index)?;
        self.keys.remove(&index);
        Ok(())
    }
}
