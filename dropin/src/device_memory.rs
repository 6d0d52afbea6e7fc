//! Device memory.

use std::ffi::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::Mutex;

use bareverbs::Error;
use bareverbs::dm::{Dm, DmInit};
use bareverbs::error::InvalidCause;

use crate::abi::Function;
use crate::abi::memory::{ibv_alloc_dm_attr, ibv_dm};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, callback, export, required};
use crate::object::{Object, lock};

/// Bytes of a word.
const WORD: usize = 4;

pub(crate) type DmObject = Object<ibv_dm, Mutex<Dm>>;

/// The object of C of device memory.
pub(crate) fn create(context: ContextArgument<'_>, dm: Result<Dm, Error>) -> Result<*mut ibv_dm, Failure> {
    Object::create(|_| {
        let dm = dm?;
        let abi = ibv_dm {
            context: context.pointer(),
            memcpy_to_dm: Function::new(memcpy_to_dm as *const ()),
            memcpy_from_dm: Function::new(memcpy_from_dm as *const ()),
            comp_mask: 0,
            handle: dm.handle(),
        };
        Ok((abi, Mutex::new(dm)))
    })
}

/// Allocates device memory.
pub(crate) fn allocate(
    context: ContextArgument<'_>,
    attr: &ibv_alloc_dm_attr,
) -> Result<*mut ibv_dm, Failure> {
    let found = context.required()?.of_process()?;
    if attr.comp_mask != 0 {
        return Err(Failure::INVALID);
    }
    create(context, found.alloc_dm(&DmInit { len: attr.length, log_align: attr.log_align_req }))
}

/// The errno of a copy: a range that exceeds the memory is `EFAULT`, as in C.
fn copied(result: Result<(), Error>) -> Result<(), Failure> {
    result.map_err(|error| match error {
        Error::Invalid { cause: InvalidCause::OutOfBounds(_), .. } => Failure::FAULT,
        error => error.into(),
    })
}

/// The offset of a copy. In C, both directions copy whole words of 4 bytes.
fn check_copy(dm: &Dm, offset: u64, length: usize) -> Result<usize, Failure> {
    let offset = usize::try_from(offset).map_err(|_| Failure::FAULT)?;
    if length > dm.len() {
        return Err(Failure::FAULT);
    }
    if offset.is_multiple_of(WORD) && length.is_multiple_of(WORD) {
        Ok(offset)
    } else {
        Err(Failure::INVALID)
    }
}

callback! {
    /// `ibv_alloc_dm`.
    fn alloc_dm(context: ContextArgument<'_>, attr: Option<&ibv_alloc_dm_attr>) -> OrNull<ibv_dm> {
        allocate(context, required(attr)?)
    }

    /// `ibv_free_dm`.
    fn free_dm(dm: Option<NonNull<DmObject>>) -> OrErrno {
        // SAFETY: the argument is live device memory, which the program uses no longer.
        unsafe { Object::destroy(required(dm)?, Dm::free, |_, ()| ()) }
    }

    /// `ibv_memcpy_to_dm`.
    fn memcpy_to_dm(dm: Option<&DmObject>, at: u64, from: *const c_void, length: usize) -> OrErrno {
        let (dm, from) = (required(dm)?, required(NonNull::new(from.cast_mut()))?);
        let mut dm = lock(&dm.inner);
        let at = check_copy(&dm, at, length)?;
        // SAFETY: the memory of the program has this length.
        let from = unsafe { slice::from_raw_parts(from.as_ptr().cast(), length) };
        copied(dm.write(at, from))
    }

    /// `ibv_memcpy_from_dm`.
    fn memcpy_from_dm(into: *mut c_void, dm: Option<&DmObject>, at: u64, length: usize) -> OrErrno {
        let (dm, into) = (required(dm)?, required(NonNull::new(into))?);
        let dm = lock(&dm.inner);
        let at = check_copy(&dm, at, length)?;
        // SAFETY: as above.
        let into = unsafe { slice::from_raw_parts_mut(into.as_ptr().cast(), length) };
        copied(dm.read(at, into))
    }
}

export! {
    /// The descriptor of a dma-buf of whole pages.
    fn ibv_dm_export_dmabuf_fd(dm: Option<&DmObject>) -> OrMinusOne {
        let exported = lock(&required(dm)?.inner).export_dmabuf()?;
        Ok(c_int::from(exported.buffer.into_raw_fd()))
    }
}
