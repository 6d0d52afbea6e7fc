//! Protection domains, memory regions and buffers.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex};

use bareverbs::dm::DmMr;
use bareverbs::error::Refused;
use bareverbs::mr::{Advice, AdviceList, DmabufMr};
use bareverbs::qp::Sge;
use bareverbs::raw::uapi::uverbs::types::AdviseMrFlag;
use bareverbs::{Access, Buffer, Error, Mr, Pd, RawMemory};

use crate::abi::memory::{ibv_mr, ibv_mr_init_attr, ibv_parent_domain_init_attr, ibv_pd};
use crate::abi::values::{
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD,
    IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION, has,
};
use crate::context::ContextArgument;
use crate::convention::{
    Failure, OrErrno, OrMinusOne, OrNull, OrReregCode, Value, callback, check_mask, export, required,
};
use crate::device_memory::DmObject;
use crate::dma_handle::DmahObject;
use crate::domain::ParentDomain;
use crate::object::{Object, lock, pointer};

/// The struct of C, and the on-demand regions of the PD by their L_Keys, by which `ibv_advise_mr` names
/// them. A region leaves the map before it is destroyed.
#[repr(C)]
pub(crate) struct PdHead {
    abi: ibv_pd,
    on_demand: Arc<Mutex<HashMap<u32, *const MrObject>>>,
    parent: Option<Arc<ParentDomain>>,
}

impl Deref for PdHead {
    type Target = ibv_pd;

    fn deref(&self) -> &ibv_pd {
        &self.abi
    }
}

impl PdHead {
    pub(crate) fn new(context: ContextArgument<'_>, pd: &Pd) -> Self {
        let abi = ibv_pd { context: context.pointer(), handle: pd.handle() };
        Self { abi, on_demand: Arc::default(), parent: None }
    }

    /// The head of a parent domain of this PD.
    pub(crate) fn with_parent(&self, parent: ParentDomain) -> Self {
        let abi = ibv_pd { context: self.context, handle: self.handle };
        Self { abi, on_demand: Arc::clone(&self.on_demand), parent: Some(Arc::new(parent)) }
    }

    /// What the PD adds to that of the kernel, if it is a parent domain.
    pub(crate) fn parent(&self) -> Option<&Arc<ParentDomain>> {
        self.parent.as_ref()
    }

    /// Whether a region of the map has this PD, which is that of C.
    pub(crate) fn has_on_demand(&self, pd: *const ibv_pd) -> bool {
        // SAFETY: the regions of the map exist.
        lock(&self.on_demand).values().any(|region| ptr::eq(unsafe { &**region }.abi.pd, pd))
    }
}

pub(crate) type PdObject = Object<PdHead, Pd>;
pub(crate) type MrObject = Object<ibv_mr, Region>;

/// What an MR of C stands for.
pub(crate) enum Region {
    /// Memory of the program.
    Memory(Mr<RawMemory>),
    Dmabuf(DmabufMr),
    /// Device memory.
    Device(DmMr),
    /// The null MR, which has this L_Key and no object in the kernel.
    Null(u32),
    /// The region of another context with the same device file.
    Imported(Mr<RawMemory>),
}

impl Region {
    /// Its handle, its L_Key and its R_Key.
    fn keys(&self) -> (u32, u32, u32) {
        match self {
            Self::Memory(mr) | Self::Imported(mr) => (mr.handle(), mr.lkey(), mr.rkey()),
            Self::Dmabuf(mr) => (mr.handle(), mr.lkey(), mr.rkey()),
            Self::Device(mr) => (mr.handle(), mr.lkey(), mr.rkey()),
            Self::Null(lkey) => (0, *lkey, 0),
        }
    }

    /// The region, if `ibv_advise_mr` may name it.
    fn on_demand(&self) -> Option<&Mr<RawMemory>> {
        match self {
            Self::Memory(mr) => Some(mr).filter(|mr| mr.access().contains(Access::ON_DEMAND)),
            _ => None,
        }
    }

    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    fn dereg(self) -> Result<(), Refused<Self>> {
        match self {
            Self::Memory(mr) => mr.dereg().map(drop).map_err(|refused| refused.map(Self::Memory)),
            Self::Imported(mr) => mr.dereg().map(drop).map_err(|refused| refused.map(Self::Imported)),
            Self::Dmabuf(mr) => mr.dereg().map_err(|refused| refused.map(Self::Dmabuf)),
            Self::Device(mr) => mr.dereg().map_err(|refused| refused.map(Self::Device)),
            Self::Null(_) => Ok(()),
        }
    }
}

/// The object of C of a new region.
pub(crate) fn create(
    pd: &PdObject,
    addr: *mut c_void,
    length: usize,
    region: Result<Region, Error>,
) -> Result<*mut ibv_mr, Failure> {
    let object = Object::create(|_| {
        let region = region?;
        let (handle, lkey, rkey) = region.keys();
        Ok((
            ibv_mr { context: pd.abi.context, pd: pointer(Some(pd)), addr, length, handle, lkey, rkey },
            region,
        ))
    })?;
    // SAFETY: the object was just created.
    list_on_demand(pd, unsafe { &*object });
    Ok(object.cast())
}

/// Lets `ibv_advise_mr` find the region, if it is on-demand.
fn list_on_demand(pd: &PdObject, object: &MrObject) {
    if let Some(mr) = object.inner.on_demand() {
        lock(&pd.abi.on_demand).insert(mr.lkey(), object);
    }
}

/// Hides the region from `ibv_advise_mr`.
fn unlist_on_demand(object: &MrObject) {
    // SAFETY: the PD of a region exists, or is null for none.
    let pd = unsafe { object.abi.pd.cast::<PdObject>().as_ref() };
    if let (Some(mr), Some(pd)) = (object.inner.on_demand(), pd) {
        lock(&pd.abi.on_demand).remove(&mr.lkey());
    }
}

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
    hints: Option<&DmahObject>,
) -> Result<*mut ibv_mr, Failure> {
    let pd = required(pd)?;
    let access = Access::from_bits_retain(access);
    // SAFETY: the program registers memory of its own, which stays mapped while it is registered. Nothing
    // makes a slice of it.
    let mr = unsafe {
        match hints {
            Some(hints) => {
                pd.inner.register_raw_with_hints(addr.cast(), length, Some(iova), access, &hints.inner)
            }
            None => pd.inner.register_raw(addr.cast(), length, Some(iova), access),
        }
    };
    create(pd, addr, length, mr.map(Region::Memory))
}

/// How the device reaches a dma-buf.
pub(crate) enum Reach<'a> {
    Usual,
    Hinted(&'a DmahObject),
    DataDirect,
}

/// The failure of a registration without a descriptor. NCCL and UCX ask by it whether the device supports
/// dma-bufs: the kernel answers that first. A file that is no dma-buf stands in for the descriptor.
fn without_dmabuf(pd: &PdObject) -> Failure {
    let file = pd.inner.context().as_fd();
    let refused = pd.inner.register_dmabuf(file, 0, 1, 0, Access::LOCAL_WRITE).err().map(Failure::from);
    refused.filter(|&failure| failure == Failure::UNSUPPORTED).unwrap_or(Failure::BAD_DESCRIPTOR)
}

pub(crate) fn register_dmabuf(
    pd: Option<&PdObject>,
    (offset, length): (u64, usize),
    iova: u64,
    fd: c_int,
    access: c_int,
    reach: Reach<'_>,
) -> Result<*mut ibv_mr, Failure> {
    let pd = required(pd)?;
    if fd == -1 {
        return Err(without_dmabuf(pd));
    }
    // SAFETY: the descriptor is one of the program. The kernel checks that it is open.
    let buffer = unsafe { BorrowedFd::borrow_raw(fd) };
    let access = Access::from_bits_retain(access.cast_unsigned());
    let mr = match reach {
        Reach::Hinted(hints) => {
            pd.inner.register_dmabuf_with_hints(buffer, offset, length, iova, access, &hints.inner)
        }
        Reach::Usual => pd.inner.register_dmabuf(buffer, offset, length, iova, access),
        Reach::DataDirect => pd.inner.register_dmabuf_data_direct(buffer, offset, length, iova, access),
    };
    create(pd, ptr::without_provenance_mut(offset as usize), length, mr.map(Region::Dmabuf))
}

/// Changes a region by the commands of `flags`. The keys of the struct follow also if a later one fails.
fn reregister(
    mr: &mut Mr<RawMemory>,
    flags: c_int,
    pd: Option<&Pd>,
    (addr, length): (*mut c_void, usize),
    access: c_int,
) -> Result<(), Failure> {
    let has = |flag| flags & flag != 0;
    let access = has(IBV_REREG_MR_CHANGE_ACCESS).then(|| Access::from_bits_retain(access.cast_unsigned()));
    if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
        let iova = Some(addr.addr() as u64);
        // SAFETY: the program registers memory of its own, as in `register`. It keeps the old memory until
        // the call has succeeded.
        return Ok(unsafe { mr.replace_raw(addr.cast(), length, iova, pd, access) }?);
    }
    // A driver that fails to change the access may have changed the PD, if one command asks for both.
    if let Some(access) = access {
        // SAFETY: as in `register`, with the new rights.
        unsafe { mr.set_raw_access(access) }?;
    }
    pd.map_or(Ok(()), |pd| Ok(mr.move_to(pd)?))
}

export! {
    fn ibv_alloc_pd(context: ContextArgument<'_>) -> OrNull<ibv_pd> {
        Object::create(|_| {
            let pd = context.required()?.of_process()?.alloc_pd()?;
            Ok((PdHead::new(context, &pd), pd))
        })
    }

    /// Deallocates a PD or a parent domain, unless objects use it.
    fn ibv_dealloc_pd(pd: Option<NonNull<PdObject>>) -> OrErrno {
        let pd = required(pd)?;
        // SAFETY: the argument is a live PD.
        let head = unsafe { &(*pd.as_ptr()).abi };
        let Some(parent) = head.parent() else {
            // SAFETY: as above, and the program uses it no longer.
            return unsafe { Object::destroy(pd, Pd::dealloc, |_, ()| ()) };
        };
        if Arc::strong_count(parent) > 1 || head.has_on_demand(pd.as_ptr().cast()) {
            return Err(Failure::BUSY);
        }
        // SAFETY: as for a PD. Nothing else has a reference to the parent domain.
        unsafe { Object::free(pd) };
        Ok(())
    }

    fn ibv_reg_mr(pd: Option<&PdObject>, addr: *mut c_void, length: usize, access: c_int) -> OrNull<ibv_mr> {
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned(), None)
    }

    fn ibv_reg_mr_iova(
        pd: Option<&PdObject>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: c_int,
    ) -> OrNull<ibv_mr> {
        register(pd, addr, length, iova, access.cast_unsigned(), None)
    }

    fn ibv_reg_mr_iova2(
        pd: Option<&PdObject>,
        addr: *mut c_void,
        length: usize,
        iova: u64,
        access: u32,
    ) -> OrNull<ibv_mr> {
        register(pd, addr, length, iova, access, None)
    }

    fn ibv_reg_dmabuf_mr(
        pd: Option<&PdObject>,
        offset: u64,
        length: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> OrNull<ibv_mr> {
        register_dmabuf(pd, (offset, length), iova, fd, access, Reach::Usual)
    }

    fn ibv_dereg_mr(mr: Option<NonNull<MrObject>>) -> OrErrno {
        let mr = required(mr)?;
        // SAFETY: the argument is a live region.
        let object = unsafe { mr.as_ref() };
        unlist_on_demand(object);
        // SAFETY: the program uses the region no longer.
        unsafe { Object::destroy(mr, Region::dereg, |_, ()| ()) }.inspect_err(|_| {
            // SAFETY: the region was not destroyed, and its PD exists.
            unsafe { list_on_demand(&*object.abi.pd.cast(), mr.as_ref()) };
        })
    }

    /// Makes one command of a new range, and else one for each change.
    fn ibv_rereg_mr(
        mr: Option<NonNull<MrObject>>,
        flags: c_int,
        pd: Option<&PdObject>,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> OrReregCode {
        let has = |flag| flags & flag != 0;
        let known = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        let pd = if has(IBV_REREG_MR_CHANGE_PD) { Some(required(pd)?) } else { None };
        // SAFETY: the argument is a live region, which no other call uses.
        let object = unsafe { required(mr)?.as_mut() };
        let has_no_range = has(IBV_REREG_MR_CHANGE_TRANSLATION) && (length == 0 || addr.is_null());
        let has_unselected_access = access != 0 && !has(IBV_REREG_MR_CHANGE_ACCESS);
        let is_memory = matches!(object.inner, Region::Memory(_));
        if !is_memory || has(!known) || has_no_range || has_unselected_access {
            return Err(Failure::INVALID);
        }
        if flags == 0 {
            // The kernel rejects a command without a change.
            return Ok(Err(Failure::INVALID));
        }
        unlist_on_demand(object);
        let Region::Memory(mr) = &mut object.inner else { return Err(Failure::INVALID) };
        let changed = reregister(mr, flags, pd.map(|pd| &pd.inner), (addr, length), access);
        (object.abi.lkey, object.abi.rkey) = (mr.lkey(), mr.rkey());
        if changed.is_ok() {
            if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
                (object.abi.addr, object.abi.length) = (addr, length);
            }
            if pd.is_some() {
                object.abi.pd = pointer(pd);
            }
        }
        // SAFETY: the PD of a region exists.
        list_on_demand(unsafe { &*object.abi.pd.cast() }, object);
        Ok(changed)
    }

    fn ibv_reg_mr_ex(pd: Option<&PdObject>, init: Option<&ibv_mr_init_attr>) -> OrNull<ibv_mr> {
        let init = required(init)?;
        let has = |flag| has(init.comp_mask, flag);
        let known = IBV_REG_MR_MASK_IOVA
            | IBV_REG_MR_MASK_ADDR
            | IBV_REG_MR_MASK_FD
            | IBV_REG_MR_MASK_FD_OFFSET
            | IBV_REG_MR_MASK_DMAH
            | IBV_REG_MR_MASK_BUF;
        let has_addr = has(IBV_REG_MR_MASK_ADDR);
        let has_file = has(IBV_REG_MR_MASK_FD);
        if init.comp_mask & !u64::from(known.cast_unsigned()) != 0
            || has_addr == has_file
            || has_file != has(IBV_REG_MR_MASK_FD_OFFSET)
            || has_file && !has(IBV_REG_MR_MASK_IOVA)
        {
            return Err(Failure::INVALID);
        }
        let hints = if has(IBV_REG_MR_MASK_DMAH) {
            // SAFETY: the pointer is null or that of a DMA handle.
            let hints = unsafe { init.dmah.cast::<DmahObject>().as_ref() };
            Some(required(hints)?)
        } else {
            None
        };
        if has(IBV_REG_MR_MASK_BUF) {
            // SAFETY: the pointer is null or that of a buffer.
            let buffer = unsafe { init.buf.cast::<BufferObject>().as_ref() };
            if has_file {
                return Err(Failure::INVALID);
            }
            required(buffer)?.check(pd, init.addr, init.length)?;
        }
        if has_file {
            let reach = hints.map_or(Reach::Usual, Reach::Hinted);
            return register_dmabuf(pd, (init.fd_offset, init.length), init.iova, init.fd, init.access, reach);
        }
        let iova = if has(IBV_REG_MR_MASK_IOVA) { init.iova } else { init.addr.addr() as u64 };
        register(pd, init.addr, init.length, iova, init.access.cast_unsigned(), hints)
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
        register(pd, addr, length, addr.addr() as u64, access.cast_unsigned(), None)
    }

    /// No buffer is one of a dma-buf.
    fn ibv_export_buf_dmabuf_fd(_buffer: *mut BufferObject) -> OrMinusOne {
        Err(Failure::NO_DATA)
    }
}

callback! {
    /// `ibv_alloc_parent_domain`. Programs pass a parent domain wherever they pass a PD.
    fn alloc_parent_domain(
        context: ContextArgument<'_>,
        init: Option<&ibv_parent_domain_init_attr>,
    ) -> OrNull<ibv_pd> {
        let context = &context.required()?.context;
        if !context.capabilities().queue_buffers {
            return Err(Failure::UNSUPPORTED);
        }
        let init = required(init)?;
        // SAFETY: the pointer is null or that of a PD.
        let pd = unsafe { init.pd.cast::<PdObject>().as_ref() };
        let pd = required(pd)?;
        Object::create(|address| {
            let address = ptr::with_exposed_provenance_mut(address as usize);
            // SAFETY: the pointers of the attributes are those of the program's objects and functions.
            let parent = unsafe { ParentDomain::new(init, address, context.driver().0) }?;
            Ok((pd.abi.with_parent(parent), pd.inner.clone()))
        })
    }

    /// `ibv_alloc_null_mr`.
    fn alloc_null_mr(pd: Option<&PdObject>) -> OrNull<ibv_mr> {
        let pd = required(pd)?;
        let null = pd.inner.alloc_null_mr();
        create(pd, ptr::null_mut(), usize::MAX, null.map(|mr| Region::Null(mr.lkey())))
    }

    /// `ibv_reg_dm_mr`. The addresses of the region begin at 0, with each access.
    fn reg_dm_mr(
        pd: Option<&PdObject>,
        dm: Option<&DmObject>,
        offset: u64,
        length: usize,
        access: u32,
    ) -> OrNull<ibv_mr> {
        let (pd, dm) = (required(pd)?, required(dm)?);
        let start = usize::try_from(offset).map_err(|_| Failure::INVALID)?;
        let end = start.checked_add(length).ok_or(Failure::INVALID)?;
        let access = Access::from_bits_retain(access);
        let mr = pd.inner.register_dm(&lock(&dm.inner), start..end, access);
        create(pd, ptr::null_mut(), length, mr.map(Region::Device))
    }

    /// `ibv_advise_mr`, of on-demand regions of the PD.
    fn advise_mr(
        pd: Option<&PdObject>,
        advice: u32,
        flags: u32,
        ranges: *const Sge,
        count: u32,
    ) -> OrErrno {
        let pd = required(pd)?;
        if !pd.inner.context().capabilities().advise_mr {
            return Err(Failure::UNSUPPORTED);
        }
        check_mask(flags.into(), AdviseMrFlag::FLUSH.into(), Failure::INVALID)?;
        if count == 0 || ranges.is_null() {
            return Err(Failure::INVALID);
        }
        // SAFETY: the list has this length. `ibv_sge` has the layout of `Sge`.
        let ranges = unsafe { std::slice::from_raw_parts(ranges, count as usize) };
        // The lock keeps the regions.
        let regions = lock(&pd.abi.on_demand);
        let mut list = pd.inner.advise(Advice(advice));
        for &Sge { addr, length, lkey } in ranges {
            let region = *regions.get(&lkey).ok_or(Failure::INVALID)?;
            // SAFETY: a region in the map exists.
            let region = unsafe { &*region }.inner.on_demand();
            list = list.with_addr(required(region)?, addr, length)?;
        }
        let execute = if AdviseMrFlag::from_bits_retain(flags) == AdviseMrFlag::FLUSH {
            AdviceList::execute
        } else {
            AdviceList::execute_async
        };
        Ok(execute(list)?)
    }
}
