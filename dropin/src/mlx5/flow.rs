//! Matchers of root tables, and their flows.

use std::mem::offset_of;
use std::ptr::NonNull;

use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::mlx5::steering::{CreateFlowFlags, FlowType};
use bareverbs::raw::uapi::mlx5::verbs::FlowTableType;
use bareverbs::raw::uapi::mlx5::{CreateFlow, FlowMatcher, FlowMatcherCreate};
use bareverbs::raw::uapi::uverbs::object::Flow;
use bareverbs::raw::uapi::verbs_values::{FlowAttrType, FlowFlags};

use super::devx::DevxObject;
use super::{bytes, context, export};
use crate::abi::device::ibv_context;
use crate::abi::flow::ibv_flow;
use crate::abi::mlx5::{mlx5dv_flow_action_attr, mlx5dv_flow_match_parameters, mlx5dv_flow_matcher_attr};
use crate::abi::values::{
    MLX5DV_FLOW_ACTION_COUNTERS_DEVX, MLX5DV_FLOW_ACTION_COUNTERS_DEVX_WITH_OFFSET,
    MLX5DV_FLOW_ACTION_DEFAULT_MISS, MLX5DV_FLOW_ACTION_DEST_DEVX, MLX5DV_FLOW_ACTION_DEST_IBV_QP,
    MLX5DV_FLOW_ACTION_DROP, MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION, MLX5DV_FLOW_ACTION_TAG,
    MLX5DV_FLOW_MATCHER_MASK_FT_TYPE, MLX5DV_FLOW_MATCHER_MASK_IB_PORT, has,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, check_mask, required};
use crate::driver_object::{DriverObject, make};
use crate::flow::Steered;
use crate::flow_action::FlowActionObject;
use crate::object::Object;
use crate::qp::QpObject;

/// A matcher, and its context. Programs do not look into it.
pub(crate) type MatcherObject = DriverObject<*mut ibv_context>;

/// Where the packets of a flow go. A flow has at most one of them.
enum Destination {
    Qp(u32),
    Devx(u32),
    Flags(CreateFlowFlags),
}

/// Actions that change headers in one flow: the kernel takes no more.
const MOST_CHANGES: usize = 2;

/// What the actions of a flow ask for.
#[derive(Default)]
struct Actions {
    destination: Option<Destination>,
    tag: Option<u32>,
    counter: Option<(u32, Option<u32>)>,
    changes: Vec<u32>,
}

impl Actions {
    /// Parses actions, each of `size` bytes: older programs have none of the offset at the end.
    ///
    /// # Safety
    ///
    /// There are `count` actions of this size. Their pointers are those of live objects, or null.
    unsafe fn new(start: *const mlx5dv_flow_action_attr, count: usize, size: usize) -> Result<Self, Failure> {
        let mut actions = Self::default();
        if size < offset_of!(mlx5dv_flow_action_attr, offset) || start.is_null() && count > 0 {
            return Err(Failure::INVALID);
        }
        for index in 0..count {
            let action = start.wrapping_byte_add(index * size);
            // SAFETY: by the contract. The offset is there if the size says so.
            unsafe {
                let (kind, object) =
                    ((&raw const (*action).r#type).read(), (&raw const (*action).object).read());
                let devx = || required(object.cast::<DevxObject>().as_ref())?.object().map(RawObject::handle);
                match kind.cast_signed() {
                    MLX5DV_FLOW_ACTION_DEST_IBV_QP => {
                        let qp = required(object.cast::<QpObject>().as_ref())?;
                        actions.go_to(Destination::Qp(qp.kernel_object().1))?;
                    }
                    MLX5DV_FLOW_ACTION_DEST_DEVX => actions.go_to(Destination::Devx(devx()?))?,
                    MLX5DV_FLOW_ACTION_DROP => actions.go_to(Destination::Flags(CreateFlowFlags::DROP))?,
                    MLX5DV_FLOW_ACTION_DEFAULT_MISS => {
                        actions.go_to(Destination::Flags(CreateFlowFlags::DEFAULT_MISS))?;
                    }
                    MLX5DV_FLOW_ACTION_TAG if actions.tag.is_some() => return Err(Failure::INVALID),
                    MLX5DV_FLOW_ACTION_TAG => {
                        actions.tag = Some((&raw const (*action).object).cast::<u32>().read());
                    }
                    MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION => {
                        if actions.changes.len() == MOST_CHANGES {
                            return Err(Failure::UNSUPPORTED);
                        }
                        let action = required(object.cast::<FlowActionObject>().as_ref())?;
                        actions.changes.push(action.object()?.handle());
                    }
                    MLX5DV_FLOW_ACTION_COUNTERS_DEVX if actions.counter.is_none() => {
                        actions.counter = Some((devx()?, None));
                    }
                    MLX5DV_FLOW_ACTION_COUNTERS_DEVX_WITH_OFFSET
                        if actions.counter.is_none() && size >= size_of::<mlx5dv_flow_action_attr>() =>
                    {
                        actions.counter = Some((devx()?, Some((&raw const (*action).offset).read())));
                    }
                    _ => return Err(Failure::UNSUPPORTED),
                }
            }
        }
        Ok(actions)
    }

    fn go_to(&mut self, destination: Destination) -> Result<(), Failure> {
        if self.destination.is_some() {
            return Err(Failure::UNSUPPORTED);
        }
        self.destination = Some(destination);
        Ok(())
    }
}

/// Creates a flow.
///
/// # Safety
///
/// As for [`Actions::new`] and [`parameters`].
unsafe fn create(
    matcher: &MatcherObject,
    value: *const mlx5dv_flow_match_parameters,
    start: *const mlx5dv_flow_action_attr,
    count: usize,
    size: usize,
) -> Result<*mut ibv_flow, Failure> {
    let found = matcher.object()?;
    // SAFETY: by the contract.
    let (value, actions) = unsafe { (parameters(value)?, Actions::new(start, count, size)?) };
    let (counter, offset) = match actions.counter {
        Some((counter, offset)) => (Some([counter]), offset.map(|offset| [offset])),
        None => (None, None),
    };
    let raw = found.context();
    Object::create(|_| {
        let mut call = raw.call::<CreateFlow>();
        call.make(CreateFlow::HANDLE);
        call.input_prefix(CreateFlow::MATCH_VALUE, value).handle(CreateFlow::MATCHER, found.handle());
        match actions.destination {
            Some(Destination::Qp(qp)) => drop(call.handle(CreateFlow::DEST_QP, qp)),
            Some(Destination::Devx(object)) => drop(call.handle(CreateFlow::DEST_DEVX, object)),
            Some(Destination::Flags(flags)) => drop(call.flags(CreateFlow::FLAGS, flags)),
            None => {}
        }
        if !actions.changes.is_empty() {
            call.handles(CreateFlow::ARR_FLOW_ACTIONS, &actions.changes);
        }
        if let Some(tag) = &actions.tag {
            call.input(CreateFlow::TAG, tag);
        }
        if let Some(counter) = &counter {
            call.handles(CreateFlow::ARR_COUNTERS_DEVX, counter);
        }
        if let Some(offset) = &offset {
            call.input_slice(CreateFlow::ARR_COUNTERS_DEVX_OFFSET, offset);
        }
        // SAFETY: the method reads its attributes only.
        let object = unsafe { make::<_, Flow>(raw, &mut call, CreateFlow::HANDLE) }?;
        let abi = ibv_flow { comp_mask: 0, context: matcher.abi, handle: object.handle() };
        Ok((abi, Steered::Matched(Some(object))))
    })
}

/// Bytes of a mask or a value that all kernels have room for. They copy as many as there are, without a
/// check.
const MAX_PARAMETERS: usize = 512;

/// The parameters of a mask or a value.
///
/// # Safety
///
/// The pointer is null or that of parameters, which have as many bytes as they say.
unsafe fn parameters<'a>(given: *const mlx5dv_flow_match_parameters) -> Result<&'a [u8], Failure> {
    // SAFETY: by the contract.
    unsafe {
        let length = required(given.as_ref())?.match_sz;
        if length > MAX_PARAMETERS {
            Err(Failure::INVALID)
        } else {
            bytes((&raw const (*given).match_buf).cast(), length)
        }
    }
}

export! {
    fn mlx5dv_create_flow_matcher(
        argument: ContextArgument<'_>,
        attr: Option<&mlx5dv_flow_matcher_attr>,
    ) -> OrNull<MatcherObject> {
        let (raw, attr) = (context(argument)?.context.raw(), required(attr)?);
        let known = (MLX5DV_FLOW_MATCHER_MASK_FT_TYPE | MLX5DV_FLOW_MATCHER_MASK_IB_PORT).cast_unsigned().into();
        check_mask(attr.comp_mask, known, Failure::UNSUPPORTED)?;
        let has = |bit| has(attr.comp_mask, bit);
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
            .input_prefix(FlowMatcherCreate::MATCH_MASK, mask)
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
        // SAFETY: the method reads its attributes only.
        let object = unsafe { make::<_, FlowMatcher>(&raw, &mut call, FlowMatcherCreate::HANDLE) }?;
        Ok(MatcherObject::create(argument.pointer(), object, None))
    }

    fn mlx5dv_destroy_flow_matcher(matcher: Option<NonNull<MatcherObject>>) -> OrErrno {
        // SAFETY: the argument is a live matcher.
        unsafe { DriverObject::destroy(matcher) }
    }
}

export! {
    /// `size` is that of an action.
    fn __mlx5dv_create_flow(
        matcher: Option<&MatcherObject>,
        value: *const mlx5dv_flow_match_parameters,
        count: usize,
        actions: *const mlx5dv_flow_action_attr,
        size: usize,
    ) -> OrNull<ibv_flow> {
        // SAFETY: the value and the actions are those of the program.
        unsafe { create(required(matcher)?, value, actions, count, size) }
    }

    /// That of programs that were compiled with older headers.
    fn mlx5dv_create_flow(
        matcher: Option<&MatcherObject>,
        value: *const mlx5dv_flow_match_parameters,
        count: usize,
        actions: *const mlx5dv_flow_action_attr,
    ) -> OrNull<ibv_flow> {
        let size = offset_of!(mlx5dv_flow_action_attr, offset);
        // SAFETY: as above.
        unsafe { create(required(matcher)?, value, actions, count, size) }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::ptr;

    use super::*;

    fn parse(kinds: &[c_int], size: usize) -> Result<Actions, Failure> {
        let action = |kind: &c_int| mlx5dv_flow_action_attr {
            r#type: kind.cast_unsigned(),
            object: ptr::null_mut(),
            offset: 0,
        };
        let actions: Vec<_> = kinds.iter().map(action).collect();
        // SAFETY: there are as many actions. A size that is not theirs is rejected, or there is one only.
        unsafe { Actions::new(actions.as_ptr(), actions.len(), size) }
    }

    #[test]
    fn actions_are_known_once_or_refused() {
        const SIZE: usize = size_of::<mlx5dv_flow_action_attr>();
        let flow = parse(&[MLX5DV_FLOW_ACTION_TAG, MLX5DV_FLOW_ACTION_DROP], SIZE).unwrap();
        assert!(matches!(flow.destination, Some(Destination::Flags(CreateFlowFlags::DROP))));
        assert_eq!((flow.tag, flow.counter.is_some()), (Some(0), false));
        for (kinds, size, failure) in [
            (&[MLX5DV_FLOW_ACTION_TAG, MLX5DV_FLOW_ACTION_TAG][..], SIZE, Failure::INVALID),
            (&[MLX5DV_FLOW_ACTION_DROP, MLX5DV_FLOW_ACTION_DEFAULT_MISS], SIZE, Failure::UNSUPPORTED),
            (&[MLX5DV_FLOW_ACTION_DEST_IBV_QP], SIZE, Failure::INVALID),
            (&[MLX5DV_FLOW_ACTION_DEST_DEVX], SIZE, Failure::INVALID),
            (&[MLX5DV_FLOW_ACTION_COUNTERS_DEVX], SIZE, Failure::INVALID),
            (&[MLX5DV_FLOW_ACTION_IBV_FLOW_ACTION], SIZE, Failure::INVALID),
            (&[9], SIZE, Failure::UNSUPPORTED),
            (&[-1], SIZE, Failure::UNSUPPORTED),
            (&[MLX5DV_FLOW_ACTION_DROP], 0, Failure::INVALID),
            // There is no room for the offset.
            (&[MLX5DV_FLOW_ACTION_COUNTERS_DEVX_WITH_OFFSET], 16, Failure::UNSUPPORTED),
        ] {
            assert_eq!(parse(kinds, size).err(), Some(failure), "{kinds:?}");
        }
        // SAFETY: there is no action.
        assert_eq!(unsafe { Actions::new(ptr::null(), 1, SIZE) }.err(), Some(Failure::INVALID));
    }
}
