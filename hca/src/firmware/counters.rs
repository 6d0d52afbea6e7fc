//! Counter sets.

use super::command::{Reply, Request, Result, Status};
use super::layout::command::{QueryQCounterIn, QueryQCounterOut};
use super::state::Firmware;
use crate::engine::{Counters, Engine};

impl Firmware {
    pub(super) fn alloc_counters(&mut self, engine: &mut Engine, reply: &mut Reply<'_>) -> Result<()> {
        let number = self.resources.counters.insert_with(|_| ()).ok_or(Status::Limit)?;
        *engine.counters(number as u8) = Counters::default();
        reply.object(number)
    }

    pub(super) fn dealloc_counters(&mut self, request: Request<'_>) -> Result<()> {
        let number = request.object()? & 0xff;
        self.resources.counters.remove(number).map(drop).ok_or(Status::BadResource)
    }

    pub(super) fn query_counters(
        &self,
        engine: &mut Engine,
        request: Request<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<()> {
        let query = request.view::<QueryQCounterIn>()?;
        let number = query.get32(QueryQCounterIn::COUNTER_SET_ID);
        if number != 0 && self.resources.counters.get(number).is_none() {
            return Err(Status::BadResource);
        }
        let counters = engine.counters(number as u8);
        reply
            .view::<QueryQCounterOut>()?
            .set(QueryQCounterOut::RX_WRITE_REQUESTS, counters.writes)
            .set(QueryQCounterOut::RX_READ_REQUESTS, counters.reads)
            .set(QueryQCounterOut::RX_ATOMIC_REQUESTS, counters.atomics)
            .set(QueryQCounterOut::OUT_OF_BUFFER, counters.out_of_buffer)
            .set(QueryQCounterOut::OUT_OF_SEQUENCE, counters.out_of_sequence)
            .set(QueryQCounterOut::DUPLICATE_REQUEST, counters.duplicates)
            .set(QueryQCounterOut::RNR_NAK_RETRY_ERR, counters.rnr_naks)
            .set(QueryQCounterOut::PACKET_SEQ_ERR, counters.sequence_naks)
            .set(QueryQCounterOut::IMPLIED_NAK_SEQ_ERR, counters.implied_naks)
            .set(QueryQCounterOut::LOCAL_ACK_TIMEOUT_ERR, counters.timeouts);
        if query.flag(QueryQCounterIn::CLEAR) {
            *counters = Counters::default();
        }
        Ok(())
    }
}
