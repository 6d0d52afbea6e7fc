//! Contexts that another process made, and what is in them.

use bareverbs_provider::command::ContextInfo;
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::{AllocUcontextResp, PdQuery, attributes};
use bareverbs_uapi::uverbs::QueryContext;
use bareverbs_uapi::uverbs::types::CoreSupport;

/// Asks what who made the context was told.
pub(crate) fn query_context(file: &DeviceFile) -> Result<(ContextInfo, AllocUcontextResp), Refused> {
    let mut num_comp_vectors = 0;
    let mut core_support = CoreSupport::empty();
    let mut told = AllocUcontextResp::zeroed();
    let mut call = Call::<QueryContext>::new(file.driver_id());
    call.output(QueryContext::NUM_COMP_VECTORS, &mut num_comp_vectors);
    call.output(QueryContext::CORE_SUPPORT, &mut core_support);
    call.output_struct(attributes::QueryContext::RESP_UCTX, &mut told);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok((ContextInfo { num_comp_vectors, core_support }, told))
}

/// Asks the firmware's number of a protection domain, which it only has if it exists.
pub(crate) fn query_pd(file: &DeviceFile, handle: u32) -> Result<u32, Refused> {
    let mut number = 0;
    let mut call = Call::<PdQuery>::new(file.driver_id());
    call.handle(PdQuery::HANDLE, handle);
    call.output(PdQuery::RESP_PDN, &mut number);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(number)
}
