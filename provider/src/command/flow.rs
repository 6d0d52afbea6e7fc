//! Flow rules of raw packet QPs.

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::ReadCountersFlags;
use bareverbs_uapi::uverbs::{CountersCreate, CountersDestroy, CountersRead};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{CreateFlowReq, CreateFlowResp, DestroyFlowReq, FlowAttr};
use zerocopy::IntoBytes;

use super::DriverPayload;
use crate::device::{DeviceFile, IoctlError};

/// Steers matching packets to the QP `qp`. Returns the flow's handle. `specs` holds
/// `flow.num_of_specs` specifications back to back; the function sets their total size.
///
/// # Errors
///
/// The kernel's error: `EPERM` without `CAP_NET_RAW`, `EINVAL` for a specification that the device
/// does not support.
#[doc(alias = "ibv_create_flow")]
pub fn create_flow(file: &DeviceFile, qp: u32, flow: FlowAttr, specs: &[u8]) -> Result<u32, IoctlError> {
    // SAFETY: there is no payload.
    unsafe { create_flow_with(file, qp, flow, specs, DriverPayload::default()) }
}

/// As [`create_flow`], with a payload for the driver.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
pub unsafe fn create_flow_with(
    file: &DeviceFile,
    qp: u32,
    flow: FlowAttr,
    specs: &[u8],
    payload: DriverPayload<'_>,
) -> Result<u32, IoctlError> {
    let size = u16::try_from(specs.len())
        .map_err(|_| IoctlError::new("ex::CreateFlow", rustix::io::Errno::INVAL))?;
    let flow_attr = FlowAttr { size, ..flow };
    let head = CreateFlowReq { qp_handle: qp, flow_attr, ..CreateFlowReq::zeroed() };
    let request = [head.as_bytes(), specs].concat();
    let mut response = CreateFlowResp::zeroed();
    let mut call =
        write::invoke_bytes::<write::ex::CreateFlow>(file.driver_id(), &request, response.as_mut_bytes());
    add_payload!(call, payload);
    // SAFETY: only the payload could name other memory, and the caller guarantees its addresses.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: "ex::CreateFlow", ..refused })?;
    Ok(response.flow_handle)
}

/// Creates a counters object. Returns its handle.
///
/// # Errors
///
/// The kernel's error: `EOPNOTSUPP` or `EPROTONOSUPPORT` if the driver has no counters.
#[doc(alias = "ibv_create_counters")]
pub fn create_counters(file: &DeviceFile) -> Result<u32, IoctlError> {
    let mut call = Call::<CountersCreate>::new(file.driver_id());
    call.make(CountersCreate::HANDLE);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }?;
    Ok(call.made(CountersCreate::HANDLE))
}

/// Reads the values of a counters object into `values`, in the order in which the first flow
/// described them.
///
/// # Errors
///
/// The kernel's error: `EINVAL` if no flow uses the object, or `values` is too short.
#[doc(alias = "ibv_read_counters")]
pub fn read_counters(file: &DeviceFile, handle: u32, values: &mut [u64]) -> Result<(), IoctlError> {
    let mut call = Call::<CountersRead>::new(file.driver_id());
    call.handle(CountersRead::HANDLE, handle)
        .output_slice(CountersRead::BUFF, values)
        .flags(CountersRead::FLAGS, ReadCountersFlags::empty());
    // SAFETY: the call borrows the values.
    unsafe { file.execute(&mut call) }
}

/// Destroys a counters object.
///
/// # Errors
///
/// The kernel's error: `EBUSY` while a flow uses it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the object.
#[doc(alias = "ibv_destroy_counters")]
pub unsafe fn destroy_counters(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<CountersDestroy>::new(file.driver_id());
    call.destroy(CountersDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Destroys a flow.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on the flow.
#[doc(alias = "ibv_destroy_flow")]
pub unsafe fn destroy_flow(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let request = DestroyFlowReq { flow_handle: handle, ..DestroyFlowReq::zeroed() };
    // SAFETY: the command reads only its struct.
    unsafe { file.invoke::<write::ex::DestroyFlow>(&request, &mut ()) }
}
