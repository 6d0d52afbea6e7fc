//! Matchers of root tables.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::mlx5::steering::{FlowType, MatchParams};
use bareverbs::raw::uapi::mlx5::verbs::FlowTableType;
use bareverbs::raw::uapi::mlx5::{FlowMatcher, FlowMatcherCreate};
use bareverbs::raw::uapi::verbs_values::{FlowAttrType, FlowFlags};
use zerocopy::IntoBytes;

use super::{bytes, check_mask, context, export, refuse};
use crate::abi::mlx5::{mlx5dv_flow_match_parameters, mlx5dv_flow_matcher_attr};
use crate::abi::values::{MLX5DV_FLOW_MATCHER_MASK_FT_TYPE, MLX5DV_FLOW_MATCHER_MASK_IB_PORT};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, required};

/// A matcher of C, which programs do not look into.
pub(super) struct MatcherObject(Option<RawObject>);

/// The parameters of a mask or a value. Zeros stand for those behind its end.
///
/// # Safety
///
/// The pointer is null or that of parameters, which have as many bytes as they say.
unsafe fn parameters(given: *const mlx5dv_flow_match_parameters) -> Result<MatchParams, Failure> {
    // SAFETY: by the contract.
    let given = unsafe {
        let length = required(given.as_ref())?.match_sz;
        bytes((&raw const (*given).match_buf).cast(), length)?
    };
    let mut parameters = MatchParams::zeroed();
    parameters.as_mut_bytes().get_mut(..given.len()).ok_or(Failure::INVALID)?.copy_from_slice(given);
    Ok(parameters)
}

export! {
    fn mlx5dv_create_flow_matcher(
        argument: ContextArgument<'_>,
        attr: Option<&mlx5dv_flow_matcher_attr>,
    ) -> OrNull<MatcherObject> {
        let (raw, attr) = (context(argument)?.context.raw(), required(attr)?);
        let known = (MLX5DV_FLOW_MATCHER_MASK_FT_TYPE | MLX5DV_FLOW_MATCHER_MASK_IB_PORT) as u64;
        check_mask(attr.comp_mask, known, Failure::UNSUPPORTED)?;
        let has = |bit: c_int| attr.comp_mask & bit as u64 != 0;
        let has_port = has(MLX5DV_FLOW_MATCHER_MASK_IB_PORT);
        if attr.r#type != FlowAttrType::NORMAL.0 {
            return Err(Failure::UNSUPPORTED);
        }
        // Fields behind `comp_mask` exist if their bit is set.
        let table = has(MLX5DV_FLOW_MATCHER_MASK_FT_TYPE).then_some(FlowTableType(attr.ft_type));
        let is_transport =
            matches!(table, Some(FlowTableType::RDMA_TRANSPORT_RX | FlowTableType::RDMA_TRANSPORT_TX));
        match (is_transport, has_port) {
            (true, false) => return Err(Failure::INVALID),
            (false, true) => return Err(Failure::UNSUPPORTED),
            _ => {}
        }
        // SAFETY: the mask is that of the program.
        let mask = unsafe { parameters(attr.match_mask) }?;
        let (priority, port) = (attr.priority.to_ne_bytes(), attr.ib_port);
        let mut call = raw.call::<FlowMatcherCreate>();
        call.make(FlowMatcherCreate::HANDLE)
            .input_part(FlowMatcherCreate::MATCH_MASK, &mask)
            .input(FlowMatcherCreate::MATCH_CRITERIA, &attr.match_criteria_enable)
            .enumeration(FlowMatcherCreate::FLOW_TYPE, FlowType::NORMAL, &priority);
        if let Some(table) = table {
            call.constant(FlowMatcherCreate::FT_TYPE, table);
        }
        if has_port {
            call.input(FlowMatcherCreate::IB_PORT, &port);
        }
        if attr.flags != 0 {
            call.flags(FlowMatcherCreate::FLOW_FLAGS, FlowFlags::from_bits_retain(attr.flags));
        }
        // SAFETY: the method reads its attributes. The object is new, and nothing else has its handle.
        let object = unsafe {
            raw.execute(&mut call)?;
            RawObject::of::<FlowMatcher>(&raw, call.made(FlowMatcherCreate::HANDLE))
        };
        Ok(Box::into_raw(Box::new(MatcherObject(Some(object)))))
    }

    fn mlx5dv_destroy_flow_matcher(matcher: Option<NonNull<MatcherObject>>) -> OrErrno {
        let matcher = required(matcher)?;
        // SAFETY: the argument is a live matcher, and nothing else uses it.
        let object = unsafe { &mut (*matcher.as_ptr()).0 };
        if let Some(Err(refused)) = object.take().map(RawObject::destroy) {
            *object = Some(refused.object);
            return Err(refused.errno.into());
        }
        // SAFETY: `mlx5dv_create_flow_matcher` leaked the box.
        drop(unsafe { Box::from_raw(matcher.as_ptr()) });
        Ok(())
    }
}

refuse! {
    OrNull<c_void>: __mlx5dv_create_flow mlx5dv_create_flow;
}
