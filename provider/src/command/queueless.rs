//! Queue pairs without queues of their own.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::QpCreate;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use super::{DriverPayload, QpHandle};
use crate::device::{DeviceFile, Refused};

/// Makes one, of what `names` puts into the call.
///
/// # Errors
///
/// The kernel's refusal.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires, and `names` must put no addresses into the call.
pub(super) unsafe fn create_queueless_qp(
    file: &DeviceFile,
    qp_type: QpType,
    user_handle: u64,
    names: impl FnOnce(&mut Call<'_, QpCreate>),
    payload: DriverPayload<'_>,
) -> Result<QpHandle, Refused> {
    let (mut cap, mut qp_num) = (QpCap::zeroed(), 0);
    let none = QpCap::zeroed();
    let mut call = Call::<QpCreate>::new(file.driver_id());
    call.make(QpCreate::HANDLE);
    names(&mut call);
    call.input(QpCreate::USER_HANDLE, &user_handle);
    call.input_struct(QpCreate::CAP, &none);
    call.constant(QpCreate::TYPE, qp_type);
    add_events!(call, file, QpCreate::EVENT_FD);
    call.output_struct(QpCreate::RESP_CAP, &mut cap);
    call.output(QpCreate::RESP_QP_NUM, &mut qp_num);
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller answers for that.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(QpCreate::HANDLE);
    Ok(QpHandle { handle, qp_num, cap })
}
