//! XRC target QPs (`XRC_TGT`), which have no queues.

use bareverbs_provider::command::{self, DriverPayload, QpHandle};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::request::XrcTargetRequest;
use bareverbs_uapi::mlx5::{CreateQpReq, CreateQpResp};
use zerocopy::IntoBytes;

use crate::uidx_table::DEFAULT_UIDX;

/// Creates an XRC target QP. The driver requires its payload nevertheless, and a user index, which
/// no CQE carries.
pub(super) fn create_target(
    file: &DeviceFile,
    cqe_version: u8,
    request: &XrcTargetRequest,
) -> Result<QpHandle, CreateError> {
    let uidx = if cqe_version == 0 { DEFAULT_UIDX } else { 0 };
    let driver = CreateQpReq { uidx, ..CreateQpReq::zeroed() };
    let mut response = CreateQpResp::zeroed();
    let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
    // SAFETY: the driver reads no addresses from the request of such a QP (`create_xrc_tgt_qp` of
    // its `qp.c`).
    Ok(unsafe { command::create_xrc_target(file, request, payload) }?)
}
