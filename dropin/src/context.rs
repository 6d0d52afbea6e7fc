//! Open devices, as objects and as arguments.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicPtr;
use std::sync::{Arc, Mutex, OnceLock};

use bareverbs::Context;
use bareverbs::raw::Mapping;

use crate::abi::device::{ibv_context, verbs_context};
use crate::convention::Failure;
use crate::data_path::DataPaths;
use crate::device::DeviceObject;
use crate::firmware::ReservedQpns;
use crate::hooks::{ContextHooks, Hooked};

/// An open device of C, which has a pointer to `abi.context`.
#[repr(C)]
pub(crate) struct ContextObject {
    pub(crate) abi: verbs_context,
    /// Behind the struct: see [`Hooked`].
    pub(crate) hooks: Option<Box<ContextHooks>>,
    pub(crate) context: Context,
    pub(crate) data_paths: &'static DataPaths,
    /// Whether the locks of all queues are elided.
    pub(crate) is_single_threaded: bool,
    /// The descriptor of an imported context, of which `context` has a copy.
    pub(crate) _imported: Option<OwnedFd>,
    /// The process that opened it.
    pub(crate) process: u32,
    /// A device exists while it is open.
    pub(crate) _device: Arc<DeviceObject>,
    /// The doorbell page of CQs, of which `mlx5dv_init_obj` of `MLX5_1.0` returns the address.
    pub(crate) cq_uar: AtomicPtr<c_void>,
    /// The page of the device's clock, whose address `mlx5dv_query_device` returns; `None` without one.
    pub(crate) core_clock: OnceLock<Option<Mapping>>,
    /// QPNs that the program reserves.
    pub(crate) reserved_qpns: Mutex<Vec<ReservedQpns>>,
}

const _: () =
    assert!(offset_of!(ContextObject, hooks) == offset_of!(Hooked<verbs_context, ContextHooks>, hooks));

impl ContextObject {
    /// The context for new objects. A forked child shares the device file of its parent, in which the
    /// handles of the parent are none of its own: it imports the context.
    pub(crate) fn of_process(&self) -> Result<Context, Failure> {
        if self.process == std::process::id() {
            return Ok(self.context.clone());
        }
        let file = self.context.as_fd().try_clone_to_owned();
        Ok(Context::import(file.map_err(|error| Failure::of(&error))?)?)
    }
}

/// An argument: a pointer of C to a context, or null.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct ContextArgument<'a>(*mut ibv_context, PhantomData<&'a ContextObject>);

impl<'a> ContextArgument<'a> {
    pub(crate) fn required(self) -> Result<&'a ContextObject, Failure> {
        // SAFETY: the argument of a function for C is a live context, by its contract.
        Ok(unsafe { &*self.object()? })
    }

    /// The whole object.
    pub(crate) fn object(self) -> Result<*mut ContextObject, Failure> {
        if self.0.is_null() {
            return Err(Failure::INVALID);
        }
        Ok(self.0.wrapping_byte_sub(offset_of!(ContextObject, abi.context)).cast())
    }

    /// That of an object of the context.
    pub(crate) fn of(context: *mut ibv_context) -> Self {
        Self(context, PhantomData)
    }

    pub(crate) fn pointer(self) -> *mut ibv_context {
        self.0
    }
}
