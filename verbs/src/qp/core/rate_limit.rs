//! Packet pacing.

use bareverbs_provider::request::Burst;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::QpState;

use super::QpCore;
use crate::error::{Error, Feature, Limit, Result};

/// A rate limit of a QP; see [`Qp::set_rate_limit`](crate::qp::Qp::set_rate_limit).
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// Rate in kbit/s; 0 for no limit.
    #[doc(alias = "rate_limit")]
    pub rate: u32,
    /// Maximum burst in bytes; 0 for the device's default.
    #[doc(alias = "max_burst_sz")]
    pub max_burst: u32,
    /// Typical size of a packet in bytes; 0 for the device's default.
    #[doc(alias = "typical_pkt_sz")]
    pub typical_packet: u16,
}

impl<P: Provider> QpCore<P> {
    /// As [`Qp::set_rate_limit`](crate::qp::Qp::set_rate_limit).
    ///
    /// # Errors
    /// As for [`Qp::set_rate_limit`](crate::qp::Qp::set_rate_limit).
    pub fn set_rate_limit(&mut self, limit: &RateLimit) -> Result<()> {
        const VERB: &str = "modify_qp_rate_limit";
        self.kernel.check_state(VERB, QpState::RTS)?;
        let caps = self.pd().context().provider().capabilities();
        if caps.rate_limit_supported_qpts >> self.qp_type().0 & 1 == 0 {
            return Err(Error::unsupported(VERB, Feature::RateLimit));
        }
        let RateLimit { rate, max_burst, typical_packet } = *limit;
        Error::check_limit(VERB, Limit::Rate, rate.into(), caps.qp_rate_limit_max.into())?;
        if rate != 0 && rate < caps.qp_rate_limit_min {
            let reason = format!(
                "rate {rate} kbit/s is below the device's minimum of {min} kbit/s: pass {min} or more, or 0 \
                 for no limit",
                min = caps.qp_rate_limit_min
            );
            return Err(Error::invalid(VERB, reason));
        }
        self.modify_rate(VERB, rate, Burst { max_size: max_burst, typical_packet })
    }
}
