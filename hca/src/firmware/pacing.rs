//! The rate table of packet pacing.

use super::bits::View;
use super::command::{Request, Result, Status};
use super::layout::command::{SetPpRateLimitContext, SetPpRateLimitIn};
use super::layout::object::{Qpc, Sqc};
use super::limits::{LARGEST_RATE, RATES, SMALLEST_RATE};
use super::state::Firmware;
use crate::engine::{Engine, Rate};

impl Firmware {
    /// SET_PP_RATE_LIMIT: sets or clears an entry. Queues that use the entry change their rate.
    pub(super) fn set_rate_limit(&mut self, engine: &mut Engine, request: Request<'_>) -> Result<()> {
        let view = request.view::<SetPpRateLimitIn>()?;
        let index = view.get(SetPpRateLimitIn::RATE_LIMIT_INDEX) as u16;
        if !(1..RATES).contains(&index) {
            return Err(Status::BadIndex);
        }
        let context = view.part(SetPpRateLimitIn::CTX);
        let rate = match context.get32(SetPpRateLimitContext::RATE_LIMIT) {
            0 => None,
            kilobits if (SMALLEST_RATE..=LARGEST_RATE).contains(&kilobits) => {
                let burst = context.get32(SetPpRateLimitContext::BURST_UPPER_BOUND);
                Some(Rate { kilobits, burst })
            }
            _ => return Err(Status::BadParameter),
        };
        match rate {
            Some(rate) => self.rates.insert(index, rate),
            None => self.rates.remove(&index),
        };
        let qps = self.qps.iter().filter(|(_, entry)| {
            let context = View::<Qpc>::new(&entry.context);
            context.is_some_and(|context| context.get(Qpc::PACKET_PACING_RATE_LIMIT_INDEX) as u16 == index)
        });
        let sqs = self.nic.sqs.iter().filter(|(_, (context, ..))| {
            let context = View::<Sqc>::new(context);
            context.is_some_and(|context| context.get(Sqc::PACKET_PACING_RATE_LIMIT_INDEX) as u16 == index)
        });
        for number in qps.map(|(number, _)| *number).chain(sqs.map(|(number, _)| *number)) {
            engine.set_rate(number, rate)?;
        }
        Ok(())
    }

    /// The rate of an entry. Index 0 stands for no limit.
    pub(super) fn rate(&self, index: u64) -> Result<Option<Rate>> {
        match index as u16 {
            0 => Ok(None),
            index => self.rates.get(&index).copied().map(Some).ok_or(Status::BadIndex),
        }
    }
}
