//! Packet pacing.

use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::request::Burst;
use bareverbs_uapi::mlx5::{BurstInfo, ModifyQpReq};
use bareverbs_uapi::write::structs::ExModifyQp;
use zerocopy::IntoBytes;

/// Modifies a QP with a rate limit and its burst parameters.
///
/// # Safety
///
/// As for [`QpControl::modify`](bareverbs_provider::traits::QpControl::modify).
pub(super) unsafe fn modify(file: &DeviceFile, request: &ExModifyQp, burst: Burst) -> Result<(), IoctlError> {
    let Burst { max_size, typical_packet } = burst;
    let burst_info =
        BurstInfo { max_burst_sz: max_size, typical_pkt_sz: typical_packet, ..BurstInfo::zeroed() };
    let driver = ModifyQpReq { burst_info, ..ModifyQpReq::zeroed() };
    let payload = DriverPayload { input: driver.as_bytes(), output: &mut [] };
    // SAFETY: the caller owns the QP, and the payload has no address fields.
    unsafe { command::modify_qp_ex(file, request, payload) }
}
