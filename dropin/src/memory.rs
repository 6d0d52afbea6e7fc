//! Protection domains, memory regions and buffers.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use bareverbs::mr::Advice;
use bareverbs::raw::uapi::uverbs::AdviseMr;
use bareverbs::raw::uapi::uverbs::types::AdviseMrFlag;
use bareverbs::raw::uapi::write::structs::Sge as Range;
use bareverbs::{Access, Buffer, Mr, Pd, RawMemory};

use crate::abi::device::ibv_context;
use crate::abi::memory::{ibv_mr, ibv_mr_init_attr, ibv_pd};
use crate::abi::values::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD,
    IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, Value, callback, export, refuse, required};
use crate::object::{Object, pointer};

pub(crate) type PdObject = Object<ibv_pd, Pd>;
pub(crate) type MrObject = Object<ibv_mr, Mr<RawMemory>>;

/// A buffer of `ibv_alloc_buf`, for regions of one PD.
pub(crate) struct BufferObject {
    memory: Buffer,
    /// The handle of the PD.
    pd: u32,
}

impl BufferObject {
    /// Fails if the range is none of the buffer, or the PD another one.
    fn check(&self, pd: Option<&PdObject>, addr: *const c_void, length: usize) -> Result<(), Failure> {
        let offset = addr.addr().checked_sub(self.memory.as_ptr().addr());
        let end = offset.and_then(|offset| offset.checked_add(length));
        let is_inside = end.is_some_and(|end| end <= self.memory.len());
        if is_inside && required(pd)?.inner.handle() == self.pd { Ok(()) } else { Err(Failure::INVALID) }
    }
}

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

    fn ibv_reg_mr_ex(pd: Option<&PdObject>, init: Option<&ibv_mr_init_attr>) -> OrNull<ibv_mr> {
        let init = required(init)?;
        let has = |flag: c_int| init.comp_mask & u64::from(flag.cast_unsigned()) != 0;
        if has(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET | IBV_REG_MR_MASK_DMAH) {
            return Err(Failure::UNSUPPORTED);
        }
        let known = IBV_REG_MR_MASK_IOVA | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF;
        if init.comp_mask & !u64::from(known.cast_unsigned()) != 0 || !has(IBV_REG_MR_MASK_ADDR) {
            return Err(Failure::INVALID);
        }
        if has(IBV_REG_MR_MASK_BUF) {
            // SAFETY: the pointer is null or that of a buffer.
            let buffer: Option<&BufferObject> = unsafe { init.buf.cast::<BufferObject>().as_ref() };
            required(buffer)?.check(pd, init.addr, init.length)?;
        }
        let iova = if has(IBV_REG_MR_MASK_IOVA) { init.iova } else { init.addr.addr() as u64 };
        register(pd, init.addr, init.length, iova, init.access.cast_unsigned())
    }

    /// Zeroed memory at a page boundary.
    fn ibv_alloc_buf(
        pd: Option<&PdObject>,
        size: usize,
        buffer: Option<&mut *mut BufferObject>,
    ) -> OrNull<c_void> {
        let (pd, into) = (required(pd)?, required(buffer)?);
        let memory = Buffer::zeroed(size)?;
        let start = memory.as_ptr().cast_mut().cast();
        *into = Box::into_raw(Box::new(BufferObject { memory, pd: pd.inner.handle() }));
        Ok(start)
    }

    fn ibv_free_buf(buffer: *mut BufferObject) -> Value<()> {
        if !buffer.is_null() {
            // SAFETY: the argument is a buffer of `ibv_alloc_buf`, which the program uses no longer.
            drop(unsafe { Box::from_raw(buffer) });
        }
        Ok(())
    }

    fn ibv_reg_buf_mr(
        pd: Option<&PdObject>,
        buffer: Option<&BufferObject>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> OrNull<ibv_mr> {
        required(buffer)?.check(pd, addr, length)?;
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned())
    }

    /// No buffer is one of a dma-buf.
    fn ibv_export_buf_dmabuf_fd(_buffer: *mut BufferObject) -> OrMinusOne {
        Err(Failure::NO_DATA)
    }
}

callback! {
    /// `ibv_advise_mr`.
    fn advise_mr(
        pd: Option<&PdObject>,
        advice: u32,
        flags: u32,
        ranges: *const Range,
        count: u32,
    ) -> OrErrno {
        let pd = required(pd)?;
        let context = pd.inner.context();
        if !context.capabilities().advise_mr {
            return Err(Failure::UNSUPPORTED);
        }
        let count = count as usize;
        if count == 0 || ranges.is_null() || count > usize::from(u16::MAX) / size_of::<Range>() {
            return Err(Failure::INVALID);
        }
        // SAFETY: the list has this length. Both types have the same layout.
        let ranges = unsafe { std::slice::from_raw_parts(ranges, count) };
        let raw = context.raw();
        let mut call = raw.call::<AdviseMr>();
        call.handle(AdviseMr::PD_HANDLE, pd.inner.handle());
        call.constant(AdviseMr::ADVICE, Advice(advice));
        call.flags(AdviseMr::FLAGS, AdviseMrFlag::from_bits_retain(flags));
        call.input_slice(AdviseMr::SGE_LIST, ranges);
        // SAFETY: the method reads its attributes, and prefetching changes no data.
        Ok(unsafe { raw.execute(&mut call) }?)
    }
}

refuse! {
    OrNull<ibv_mr>: ibv_reg_dmabuf_mr ibv_import_mr;
    OrNull<ibv_pd>: ibv_import_pd;
    OrNull<ibv_context>: ibv_import_device;
    OrNull<c_void>: ibv_import_dm ibv_alloc_dmah;
    OrErrno: ibv_dealloc_dmah;
    OrMinusOne: ibv_rereg_mr ibv_dm_export_dmabuf_fd;
    Value<()>: ibv_unimport_mr ibv_unimport_pd ibv_unimport_dm;
}
