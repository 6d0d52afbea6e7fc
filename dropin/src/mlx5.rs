//! `libmlx5.so.1`: the functions of ConnectX devices.
//!
//! The library has stubs that jump to these functions. They are exported under names with a prefix.
//!
//! A function refuses a device of another driver with `EOPNOTSUPP`.

pub(crate) mod commands;
pub(crate) mod create;
pub(crate) mod devx;
pub(crate) mod dr;
pub(crate) mod flow;
pub(crate) mod flow_action;
mod hca_caps;
pub(crate) mod objects;
pub(crate) mod query;
mod refused;

use std::ffi::c_void;

use bareverbs::device::DriverId;

use crate::context::{ContextArgument, ContextObject};
use crate::convention::Failure;

/// Defines functions that the stubs of `libmlx5.so.1` jump to.
macro_rules! export {
    ($($functions:tt)*) => { $crate::convention::export! { prefix "bareverbs_"; $($functions)* } };
}

/// Defines such functions that refuse each call with `EOPNOTSUPP`, in the way of a convention.
macro_rules! refuse {
    ($($functions:tt)*) => { $crate::convention::refuse! { prefix "bareverbs_"; $($functions)* } };
}

use {export, refuse};

/// The context of a ConnectX device.
fn context(argument: ContextArgument<'_>) -> Result<&ContextObject, Failure> {
    let object = argument.required()?;
    if object.context.driver() == DriverId::MLX5 { Ok(object) } else { Err(Failure::UNSUPPORTED) }
}

/// Bytes of C, to read.
///
/// # Safety
///
/// The memory is null or has this length, and does not change for `'a`.
unsafe fn bytes<'a>(start: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if start.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: by the contract.
    Ok(unsafe { std::slice::from_raw_parts(start.cast(), length) })
}

/// Bytes of C, to write.
///
/// # Safety
///
/// The memory is null or has this length, and nothing else accesses it for `'a`.
unsafe fn bytes_mut<'a>(start: *mut c_void, length: usize) -> Result<&'a mut [u8], Failure> {
    if start.is_null() {
        return Err(Failure::INVALID);
    }
    // SAFETY: by the contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), length) })
}
