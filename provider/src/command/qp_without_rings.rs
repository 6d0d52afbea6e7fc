//! QPs without rings of their own: XRC targets and RSS QPs.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::QpCreate;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use super::{DriverPayload, QpHandle};
use crate::device::{DeviceFile, IoctlError};

/// Creates a QP without rings. `add_handles` adds the handles that its type needs to the call.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires, and `add_handles` must add no
/// addresses to the call.
pub(super) unsafe fn create_qp_without_rings(
    file: &DeviceFile,
    qp_type: QpType,
    user_handle: u64,
    add_handles: impl FnOnce(&mut Call<'_, QpCreate>),
    payload: DriverPayload<'_>,
) -> Result<QpHandle, IoctlError> {
    let (mut cap, mut qp_num) = (QpCap::zeroed(), 0);
    let none = QpCap::zeroed();
    let mut call = Call::<QpCreate>::new(file.driver_id());
    call.make(QpCreate::HANDLE);
    add_handles(&mut call);
    call.input(QpCreate::USER_HANDLE, &user_handle);
    call.input_struct(QpCreate::CAP, &none);
    call.constant(QpCreate::TYPE, qp_type);
    add_events!(call, file, QpCreate::EVENT_FD);
    call.output_struct(QpCreate::RESP_CAP, &mut cap);
    call.output(QpCreate::RESP_QP_NUM, &mut qp_num);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(QpCreate::HANDLE);
    Ok(QpHandle { handle, qp_num, cap })
}
