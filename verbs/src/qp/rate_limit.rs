//! Packet pacing.

use bareverbs_provider::traits::Provider;

use super::{Qp, RateLimit, Transport};
#[cfg(doc)]
use crate::Error;
use crate::error::Result;

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
        self.core.set_rate_limit(limit)
    }
}
