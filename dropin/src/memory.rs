//! Protection domains, memory regions and buffers.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use bareverbs::{Access, Buffer, Mr, Pd, RawMemory};

use crate::abi::device::ibv_context;
use crate::abi::memory::{ibv_mr, ibv_pd};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, Value, export, refuse, required};
use crate::object::{Object, pointer};

pub(crate) type PdObject = Object<ibv_pd, Pd>;
pub(crate) type MrObject = Object<ibv_mr, Mr<RawMemory>>;

fn register(
    pd: Option<&PdObject>,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr, Failure> {
    let pd = required(pd)?;
    let created = Object::create(|_| {
        let access = Access::from_bits_retain(access);
        // SAFETY: the program registers memory of its own, which stays mapped while it is registered.
        // Nothing makes a slice of it.
        let mr = unsafe { pd.inner.register_raw(addr.cast(), length, Some(iova), access) }?;
        let (handle, lkey, rkey) = (mr.handle(), mr.lkey(), mr.rkey());
        Ok((ibv_mr { context: pd.abi.context, pd: pointer(Some(pd)), addr, length, handle, lkey, rkey }, mr))
    });
    created.map(<*mut MrObject>::cast)
}

export! {
    fn ibv_alloc_pd(context: ContextArgument<'_>) -> OrNull<ibv_pd> {
        let created = Object::create(|_| {
            let pd = context.required()?.context.alloc_pd()?;
            Ok((ibv_pd { context: context.pointer(), handle: pd.handle() }, pd))
        });
        created.map(<*mut PdObject>::cast)
    }

    fn ibv_dealloc_pd(pd: Option<NonNull<PdObject>>) -> OrErrno {
        // SAFETY: the argument is a live PD, which the program uses no longer.
        unsafe { Object::destroy(required(pd)?, Pd::dealloc, |_, ()| ()) }
    }

    fn ibv_reg_mr(pd: Option<&PdObject>, addr: *mut c_void, length: usize, access: c_int) -> OrNull<ibv_mr> {
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
    }

    fn ibv_reg_mr_iova(
        pd: Option<&PdObject>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> OrNull<ibv_mr> {
        register(pd, addr, length, iova, access.cast_unsigned())
    }

    fn ibv_reg_mr_iova2(
        pd: Option<&PdObject>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> OrNull<ibv_mr> {
        register(pd, addr, length, iova, access)
    }

    fn ibv_dereg_mr(mr: Option<NonNull<MrObject>>) -> OrErrno {
        // SAFETY: the argument is a live region, which the program uses no longer.
        unsafe { Object::destroy(required(mr)?, Mr::into_inner, |_, _| ()) }
    }

    /// Zeroed memory at a page boundary.
    fn ibv_alloc_buf(
        pd: Option<&PdObject>,
        size: usize,
        buffer: Option<&mut *mut Buffer>,
    ) -> OrNull<c_void> {
        required(pd)?;
        let (into, memory) = (required(buffer)?, Buffer::zeroed(size)?);
        let start = memory.as_ptr().cast_mut().cast();
        *into = Box::into_raw(Box::new(memory));
        Ok(start)
    }

    fn ibv_free_buf(buffer: *mut Buffer) -> Value<()> {
        if !buffer.is_null() {
            // SAFETY: the argument is a buffer of `ibv_alloc_buf`, which the program uses no longer.
            drop(unsafe { Box::from_raw(buffer) });
        }
        Ok(())
    }

    /// The range is one of the buffer.
    fn ibv_reg_buf_mr(
        pd: Option<&PdObject>,
        buffer: Option<&Buffer>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> OrNull<ibv_mr> {
        let memory = required(buffer)?;
        let offset = addr.addr().checked_sub(memory.as_ptr().addr());
        let end = offset.and_then(|offset| offset.checked_add(length));
        if end.is_none_or(|end| end > memory.len()) {
            return Err(Failure::INVALID);
        }
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
    }
}

refuse! {
    OrNull<ibv_mr>: ibv_reg_mr_ex ibv_reg_dmabuf_mr ibv_import_mr;
    OrNull<ibv_pd>: ibv_import_pd;
    OrNull<ibv_context>: ibv_import_device;
    OrNull<c_void>: ibv_import_dm ibv_alloc_dmah;
    OrErrno: ibv_dealloc_dmah;
    crate::convention::OrMinusOne: ibv_rereg_mr ibv_dm_export_dmabuf_fd ibv_export_buf_dmabuf_fd;
    Value<()>: ibv_unimport_mr ibv_unimport_pd ibv_unimport_dm;
}
