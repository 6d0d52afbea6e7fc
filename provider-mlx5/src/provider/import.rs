//! Import of contexts of other processes.

use bareverbs_provider::command::ContextInfo;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::{AllocUcontextResp, PdQuery, attributes};
use bareverbs_uapi::uverbs::QueryContext;
use bareverbs_uapi::uverbs::types::CoreSupport;

/// Queries the response to the context's creation.
pub(crate) fn query_context(file: &DeviceFile) -> Result<(ContextInfo, AllocUcontextResp), IoctlError> {
    let mut num_comp_vectors = 0;
    let mut core_support = CoreSupport::empty();
    let mut resp = AllocUcontextResp::zeroed();
    let mut call = Call::<QueryContext>::new(file.driver_id());
    call.output(QueryContext::NUM_COMP_VECTORS, &mut num_comp_vectors);
    call.output(QueryContext::CORE_SUPPORT, &mut core_support);
    call.output_struct(attributes::QueryContext::RESP_UCTX, &mut resp);
    // SAFETY: the method writes only to its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok((ContextInfo { num_comp_vectors, core_support }, resp))
}

/// Queries the PDN of a protection domain. Fails if the PD does not exist.
pub(crate) fn query_pd(file: &DeviceFile, handle: u32) -> Result<u32, IoctlError> {
    let mut number = 0;
    let mut call = Call::<PdQuery>::new(file.driver_id());
    call.handle(PdQuery::HANDLE, handle);
    call.output(PdQuery::RESP_PDN, &mut number);
    // SAFETY: the method writes only to its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(number)
}
