//! Contexts of another process's device file, and its objects.
//!
//! An imported object is one of the kernel like another: `ibv_dereg_mr` and the like destroy it.
//! `ibv_unimport_mr` and the like release it only.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};

use bareverbs::dm::Dm;
use bareverbs::error::Refused;
use bareverbs::raw::RawMr;
use bareverbs::{Access, Context, Error, Mr, Pd};

use crate::abi::device::ibv_context;
use crate::abi::memory::{ibv_dm, ibv_mr, ibv_pd};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrNull, Value, export, required};
use crate::device_memory::{self, DmObject};
use crate::memory::{self, MrObject, PdHead, PdObject, Region};
use crate::object::Object;
use crate::{device, open};

/// Whether the descriptor is open, and that of a character device.
fn is_character_device(fd: c_int) -> bool {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the call fills the struct, in which any bits are valid.
    let (answer, status) = unsafe { (libc::fstat(fd, status.as_mut_ptr()), status.assume_init()) };
    answer == 0 && status.st_mode & libc::S_IFMT == libc::S_IFCHR
}

/// Frees an object of C, whose value `release` takes.
///
/// # Safety
///
/// As for [`Object::destroy`].
unsafe fn release<A, T>(object: NonNull<Object<A, T>>, release: impl FnOnce(T)) -> Result<(), Failure> {
    let released = |value| {
        release(value);
        Ok::<(), Refused<T>>(())
    };
    // SAFETY: the caller's contract is the same.
    unsafe { Object::destroy(object, released, |_, ()| ()) }
}

export! {
    /// The context owns the descriptor, unless the call fails.
    fn ibv_import_device(fd: c_int) -> OrNull<ibv_context> {
        if !is_character_device(fd) {
            return Err(Failure::INVALID);
        }
        // SAFETY: the descriptor is open, as the check shows.
        let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
        let copy = copy.map_err(|error| Failure::of(&error))?;
        let context = Context::import(copy).map_err(|error| match error {
            // No device has the file.
            Error::Invalid { .. } => Failure::NO_DEVICE,
            error => error.into(),
        })?;
        let device = device::listed(context.device())?;
        // SAFETY: the program gives the descriptor to the context.
        open::create(context, device, Some(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn ibv_import_pd(context: ContextArgument<'_>, handle: u32) -> OrNull<ibv_pd> {
        let found = &context.required()?.context;
        Object::create(|_| {
            found.import_pd(handle)?;
            // SAFETY: the domain exists, and the program decides which context deallocates it.
            let pd = unsafe { Pd::from_handle(found, handle) };
            Ok((PdHead::new(context, &pd), pd))
        })
    }

    /// A parent domain is not imported.
    fn ibv_unimport_pd(pd: Option<NonNull<PdObject>>) -> Value<()> {
        let pd = required(pd)?;
        // SAFETY: the argument is a live PD.
        if unsafe { &(*pd.as_ptr()).abi }.parent().is_some() {
            return Err(Failure::INVALID);
        }
        // SAFETY: as above, and the program uses it no longer.
        unsafe { release(pd, |pd: Pd| _ = pd.into_handle()) }
    }

    /// The region has no address, because its memory is that of another process.
    fn ibv_import_mr(pd: Option<&PdObject>, handle: u32) -> OrNull<ibv_mr> {
        let pd = required(pd)?;
        let keys = pd.inner.import_mr(handle)?;
        let (lkey, rkey, iova) = (keys.lkey(), keys.rkey(), keys.addr());
        let object = RawMr { handle, lkey, rkey, iova, access: Access::empty() };
        // SAFETY: the region exists, and the program decides which context deregisters it. Nothing copies
        // bytes of it, because it has none here.
        let mr = unsafe { Mr::from_handle(&pd.inner, &object, ptr::null_mut(), 0) };
        memory::create(pd, ptr::null_mut(), keys.len(), Ok(Region::Imported(mr)))
    }

    fn ibv_unimport_mr(mr: Option<NonNull<MrObject>>) -> Value<()> {
        let unimport = |region| {
            if let Region::Imported(mr) = region {
                // It is no part of an implicit region.
                drop(mr.into_handle());
            }
        };
        // SAFETY: the argument is a live region, which the program uses no longer.
        unsafe { release(required(mr)?, unimport) }
    }

    fn ibv_import_dm(context: ContextArgument<'_>, handle: u32) -> OrNull<ibv_dm> {
        // SAFETY: the memory exists if the call succeeds, and the program decides which context frees it.
        device_memory::create(context, unsafe { Dm::from_handle(&context.required()?.context, handle) })
    }

    fn ibv_unimport_dm(dm: Option<NonNull<DmObject>>) -> Value<()> {
        let unimport = |dm: Mutex<Dm>| {
            _ = dm.into_inner().unwrap_or_else(PoisonError::into_inner).into_handle();
        };
        // SAFETY: the argument is live device memory, which the program uses no longer.
        unsafe { release(required(dm)?, unimport) }
    }
}
