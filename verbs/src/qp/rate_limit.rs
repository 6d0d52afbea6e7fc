//! Packet pacing.

use bareverbs_provider::request::Burst;
use bareverbs_provider::traits::Provider;

use super::{Qp, Transport};
use crate::error::{Feature, Limit};
use crate::qp::QpState;
use crate::{Error, Result};

/// A rate limit of a QP; see [`Qp::set_rate_limit`].
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

impl<T: Transport, P: Provider> Qp<T, P> {
    /// Limits the rate of sends (packet pacing), in RTS. A rate of 0 removes the limit.
    ///
    /// ```no_run
    /// # fn slow_down(qp: &mut bareverbs::qp::Qp<bareverbs::qp::RawPacket>) -> bareverbs::Result<()> {
    /// use bareverbs::qp::RateLimit;
    ///
    /// // 1 Gbit/s, in bursts of at most 64 KiB of full frames.
    /// qp.set_rate_limit(&RateLimit { rate: 1_000_000, max_burst: 65536, typical_packet: 1500 })
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the device has no packet pacing for QPs of this transport
    ///   ([`DeviceAttr::rate_limit_supported_qpts`](crate::device::DeviceAttr)). mlx5 has it for raw
    ///   packet QPs, and from Linux 7.2 on for UC and UD.
    /// - [`Error::Invalid`]: the state is not RTS, or the rate is below the device's minimum.
    /// - [`Error::Limit`]: the rate is above the device's maximum.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    #[doc(alias = "ibv_packet_pacing_caps")]
    pub fn set_rate_limit(&mut self, limit: &RateLimit) -> Result<()> {
        const VERB: &str = "modify_qp_rate_limit";
        self.check_state(VERB, QpState::RTS)?;
        let caps = self.pd().context().provider().capabilities();
        if caps.rate_limit_supported_qpts >> T::QP_TYPE.0 & 1 == 0 {
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
