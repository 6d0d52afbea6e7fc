//! Flow rules of raw packet QPs.

use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{CreateFlowReq, CreateFlowResp, DestroyFlowReq, FlowAttr};
use zerocopy::IntoBytes;

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
    let size = u16::try_from(specs.len())
        .map_err(|_| IoctlError { method: "ex::CreateFlow", errno: rustix::io::Errno::INVAL })?;
    let flow_attr = FlowAttr { size, ..flow };
    let head = CreateFlowReq { qp_handle: qp, flow_attr, ..CreateFlowReq::zeroed() };
    let request = [head.as_bytes(), specs].concat();
    let mut response = CreateFlowResp::zeroed();
    let mut call =
        write::invoke_bytes::<write::ex::CreateFlow>(file.driver_id(), &request, response.as_mut_bytes());
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: "ex::CreateFlow", ..refused })?;
    Ok(response.flow_handle)
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
