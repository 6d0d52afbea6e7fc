//! Actions of flows that change headers, and steering anchors: tables of the kernel as destinations of
//! other programs' tables.

use std::ffi::c_void;
use std::ptr::NonNull;

use bareverbs::raw::RawObject;
use bareverbs::raw::uapi::mlx5::verbs::{FlowTableType, PacketReformatType};
use bareverbs::raw::uapi::mlx5::{
    FlowActionCreateModifyHeader, FlowActionCreatePacketReformat, SteeringAnchor, SteeringAnchorCreate,
};
use bareverbs::raw::uapi::uverbs::object::FlowAction;

use super::{bytes, context, export};
use crate::abi::flow::ibv_flow_action;
use crate::abi::mlx5::{mlx5dv_steering_anchor, mlx5dv_steering_anchor_attr};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, check_mask, required};
use crate::driver_object::{DriverObject, make};
use crate::flow_action::FlowActionObject;

pub(crate) type AnchorObject = DriverObject<mlx5dv_steering_anchor>;

/// A list of an attribute: the kernel counts its bytes with 16 bits.
///
/// # Safety
///
/// As for [`bytes`].
unsafe fn list<'a>(start: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: by the contract.
    if length > u16::MAX.into() { Err(Failure::INVALID) } else { unsafe { bytes(start, length) } }
}

/// The action of C of this object.
fn create(argument: ContextArgument<'_>, object: RawObject) -> *mut FlowActionObject {
    FlowActionObject::create(ibv_flow_action { context: argument.pointer() }, object, None)
}

export! {
    /// `length` is that of the modifications in bytes, each of which has 8.
    fn mlx5dv_create_flow_action_modify_header(
        argument: ContextArgument<'_>,
        length: usize,
        modifications: *const u64,
        table: u32,
    ) -> OrNull<FlowActionObject> {
        let raw = context(argument)?.context.raw();
        // SAFETY: the list is that of the program.
        let given = unsafe { list(modifications.cast(), length) }?;
        if given.is_empty() || !length.is_multiple_of(8) {
            return Err(Failure::INVALID);
        }
        let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let words: Vec<u64> = given.chunks_exact(8).map(word).collect();
        let mut call = raw.call::<FlowActionCreateModifyHeader>();
        call.make(FlowActionCreateModifyHeader::HANDLE);
        call.input_slice(FlowActionCreateModifyHeader::ACTIONS_PRM, &words);
        call.constant(FlowActionCreateModifyHeader::FT_TYPE, FlowTableType(table));
        // SAFETY: the method reads its attributes only.
        let object = unsafe { make::<_, FlowAction>(&raw, &mut call, FlowActionCreateModifyHeader::HANDLE) }?;
        Ok(create(argument, object))
    }

    /// Data of no length are none.
    fn mlx5dv_create_flow_action_packet_reformat(
        argument: ContextArgument<'_>,
        length: usize,
        data: *const c_void,
        kind: u32,
        table: u32,
    ) -> OrNull<FlowActionObject> {
        let raw = context(argument)?.context.raw();
        if data.is_null() != (length == 0) {
            return Err(Failure::INVALID);
        }
        // SAFETY: the data are those of the program.
        let data = if length == 0 { &[] } else { unsafe { list(data, length) }? };
        let mut call = raw.call::<FlowActionCreatePacketReformat>();
        call.make(FlowActionCreatePacketReformat::HANDLE);
        if !data.is_empty() {
            call.input_slice(FlowActionCreatePacketReformat::DATA_BUF, data);
        }
        call.constant(FlowActionCreatePacketReformat::TYPE, PacketReformatType(kind));
        call.constant(FlowActionCreatePacketReformat::FT_TYPE, FlowTableType(table));
        // SAFETY: the method reads its attributes only.
        let object =
            unsafe { make::<_, FlowAction>(&raw, &mut call, FlowActionCreatePacketReformat::HANDLE) }?;
        Ok(create(argument, object))
    }

    fn mlx5dv_create_steering_anchor(
        argument: ContextArgument<'_>,
        attr: Option<&mlx5dv_steering_anchor_attr>,
    ) -> OrNull<mlx5dv_steering_anchor> {
        let (raw, attr) = (context(argument)?.context.raw(), required(attr)?);
        check_mask(attr.comp_mask, 0, Failure::UNSUPPORTED)?;
        let mut id = 0;
        let mut call = raw.call::<SteeringAnchorCreate>();
        call.make(SteeringAnchorCreate::HANDLE);
        call.constant(SteeringAnchorCreate::FT_TYPE, FlowTableType(attr.ft_type));
        call.input(SteeringAnchorCreate::PRIORITY, &attr.priority);
        call.output(SteeringAnchorCreate::FT_ID, &mut id);
        // SAFETY: the method names no memory but its attributes.
        let object = unsafe { make::<_, SteeringAnchor>(&raw, &mut call, SteeringAnchorCreate::HANDLE) }?;
        Ok(AnchorObject::create(mlx5dv_steering_anchor { id }, object, None))
    }

    fn mlx5dv_destroy_steering_anchor(anchor: Option<NonNull<AnchorObject>>) -> OrErrno {
        // SAFETY: the argument is a live anchor.
        unsafe { DriverObject::destroy(anchor) }
    }
}
