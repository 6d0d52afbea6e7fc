//! DEVX: commands of the firmware, and the objects, user memory, doorbell pages and events of such
//! commands. Each function is a call of the kernel's method. What a command does is the program's matter.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use bareverbs::Access;
use bareverbs::raw::uapi::method::{Attr, Call, Method, NewDescriptor, Object as ObjectClass};
use bareverbs::raw::uapi::mlx5::verbs::{DevxEventChannelFlags, PpFlags, UarType, VarFlags};
use bareverbs::raw::uapi::mlx5::{
    DevxAsyncCmdFdAlloc, DevxAsyncEventFdAlloc, DevxObj, DevxObjAsyncQuery, DevxObjCreate, DevxObjModify,
    DevxObjQuery, DevxOther, DevxQueryEqn, DevxSubscribeEvent, DevxUmem, DevxUmemReg, Pp, PpObjAlloc, Uar,
    UarObjAlloc, Var, VarObjAlloc,
};
use bareverbs::raw::uapi::uverbs::DmabufAlloc;
use bareverbs::raw::{Protection, RawContext, RawObject};

use super::{bytes, bytes_mut, context, export};
use crate::abi::device::ibv_context;
use crate::abi::mlx5::{
    mlx5dv_devx_cmd_comp, mlx5dv_devx_event_channel, mlx5dv_devx_uar, mlx5dv_devx_umem, mlx5dv_devx_umem_in,
    mlx5dv_pp, mlx5dv_var,
};
use crate::abi::values::{MLX5DV_UAR_ALLOC_TYPE_NC, MLX5DV_UMEM_MASK_DMABUF};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, Value, check_mask, required};
use crate::cq::CqObject;
use crate::driver_object::{DriverObject, make};
use crate::qp::QpObject;
use crate::srq::SrqObject;
use crate::wq::{TableObject, WqObject};

pub(crate) type DevxObject = DriverObject<()>;
pub(crate) type UmemObject = DriverObject<mlx5dv_devx_umem>;
pub(crate) type UarObject = DriverObject<mlx5dv_devx_uar>;
pub(crate) type VarObject = DriverObject<mlx5dv_var>;
pub(crate) type PpObject = DriverObject<mlx5dv_pp>;

/// A descriptor of C, and the context that it belongs to.
#[repr(C)]
pub(crate) struct Channel<A> {
    abi: A,
    file: File,
    raw: RawContext,
}

impl<A> Channel<A> {
    /// Creates the channel of the descriptor that `call` makes; `abi` gets it.
    ///
    /// # Safety
    ///
    /// The method only creates a descriptor.
    unsafe fn create<M: Method, O: ObjectClass>(
        raw: RawContext,
        mut call: Call<'_, M>,
        handle: Attr<M, NewDescriptor<O>>,
        abi: impl FnOnce(c_int) -> A,
    ) -> Result<*mut Self, Failure> {
        call.make_descriptor(handle);
        // SAFETY: by the contract. Nothing else has the descriptor.
        let file = unsafe {
            raw.execute(&mut call)?;
            File::from_raw_fd(call.made_descriptor(handle))
        };
        Ok(Box::into_raw(Box::new(Self { abi: abi(file.as_raw_fd()), file, raw })))
    }

    /// # Safety
    ///
    /// [`create`](Self::create) made the channel, and the program uses it no longer.
    unsafe fn destroy(channel: Option<NonNull<Self>>) -> Result<(), Failure> {
        // SAFETY: by the contract.
        drop(unsafe { Box::from_raw(required(channel)?.as_ptr()) });
        Ok(())
    }
}

pub(crate) type CommandChannel = Channel<mlx5dv_devx_cmd_comp>;
pub(crate) type EventChannel = Channel<mlx5dv_devx_event_channel>;

/// What another process needs to import an object: as much memory as in libmlx5, which has more fields.
#[repr(C)]
pub(crate) struct Exported {
    handle: u32,
    numbers: [u32; 2],
    mmap_off: i64,
    reserved: u64,
}

/// A command or a response: the kernel counts its bytes with 16 bits.
///
/// # Safety
///
/// As for [`bytes`].
unsafe fn command<'a>(start: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: by the contract.
    if length > u16::MAX.into() { Err(Failure::INVALID) } else { unsafe { bytes(start, length) } }
}

/// # Safety
///
/// As for [`bytes_mut`].
unsafe fn response<'a>(start: *mut c_void, length: usize) -> Result<&'a mut [u8], Failure> {
    // SAFETY: by the contract.
    if length > u16::MAX.into() { Err(Failure::INVALID) } else { unsafe { bytes_mut(start, length) } }
}

/// Buffers of the program: a command, and the place for its response.
type Buffers = (*const c_void, usize, *mut c_void, usize);

/// Queries an object of any class by a command.
pub(super) fn query_object(
    raw: &RawContext,
    handle: u32,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Failure> {
    let mut call = raw.call::<DevxObjQuery>();
    call.handle(DevxObjQuery::HANDLE, handle);
    call.input_slice(DevxObjQuery::CMD_IN, input).output_slice(DevxObjQuery::CMD_OUT, output);
    // SAFETY: the buffers exist during the call. The program answers for the command.
    Ok(unsafe { raw.execute(&mut call) }?)
}

/// Modifies an object of any class by a command.
pub(super) fn modify_object(
    raw: &RawContext,
    handle: u32,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Failure> {
    let mut call = raw.call::<DevxObjModify>();
    call.handle(DevxObjModify::HANDLE, handle);
    call.input_slice(DevxObjModify::CMD_IN, input).output_slice(DevxObjModify::CMD_OUT, output);
    // SAFETY: as in `query_object`.
    Ok(unsafe { raw.execute(&mut call) }?)
}

/// Executes a command that is about no object.
pub(super) fn execute_general(raw: &RawContext, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
    let mut call = raw.call::<DevxOther>();
    call.input_slice(DevxOther::CMD_IN, input).output_slice(DevxOther::CMD_OUT, output);
    // SAFETY: as in `query_object`.
    Ok(unsafe { raw.execute(&mut call) }?)
}

/// [`query_object`] with buffers of the program.
///
/// # Safety
///
/// The buffers are those of the program.
unsafe fn query(
    raw: &RawContext,
    handle: u32,
    (input, in_len, output, out_len): Buffers,
) -> Result<(), Failure> {
    // SAFETY: by the contract.
    let (input, output) = unsafe { (command(input, in_len)?, response(output, out_len)?) };
    query_object(raw, handle, input, output)
}

/// [`modify_object`] with buffers of the program.
///
/// # Safety
///
/// As for [`query`].
unsafe fn modify(
    raw: &RawContext,
    handle: u32,
    (input, in_len, output, out_len): Buffers,
) -> Result<(), Failure> {
    // SAFETY: by the contract.
    let (input, output) = unsafe { (command(input, in_len)?, response(output, out_len)?) };
    modify_object(raw, handle, input, output)
}

/// The device file of a verbs object.
fn raw_of(context_of_object: *mut ibv_context) -> Result<RawContext, Failure> {
    Ok(context(ContextArgument::of(context_of_object))?.context.raw())
}

fn register(
    raw: &RawContext,
    memory: &mlx5dv_devx_umem_in,
    is_first: bool,
) -> Result<*mut mlx5dv_devx_umem, Failure> {
    check_mask(memory.comp_mask, MLX5DV_UMEM_MASK_DMABUF.cast_unsigned().into(), Failure::UNSUPPORTED)?;
    let (addr, length) = (memory.addr.expose_provenance() as u64, memory.size as u64);
    let mut umem_id = 0;
    let mut call = raw.call::<DevxUmemReg>();
    call.make(DevxUmemReg::HANDLE).input(DevxUmemReg::ADDR, &addr).input(DevxUmemReg::LEN, &length);
    call.flags(DevxUmemReg::ACCESS, Access::from_bits_retain(memory.access));
    call.output(DevxUmemReg::OUT_ID, &mut umem_id);
    if memory.comp_mask != 0 {
        call.raw_descriptor(DevxUmemReg::DMABUF_FD, memory.dmabuf_fd);
    }
    call.constant(DevxUmemReg::PGSZ_BITMAP, memory.pgsz_bitmap);
    if is_first {
        call.optional();
    }
    // SAFETY: the program registers memory of its own.
    let object = unsafe { make::<_, DevxUmem>(raw, &mut call, DevxUmemReg::HANDLE) }?;
    Ok(UmemObject::create(mlx5dv_devx_umem { umem_id }, object, None))
}

export! {
    fn mlx5dv_devx_general_cmd(
        argument: ContextArgument<'_>,
        input: *const c_void,
        in_len: usize,
        output: *mut c_void,
        out_len: usize,
    ) -> OrErrno {
        let raw = context(argument)?.context.raw();
        // SAFETY: the buffers are those of the program.
        let (input, output) = unsafe { (command(input, in_len)?, response(output, out_len)?) };
        execute_general(&raw, input, output)
    }

    fn mlx5dv_devx_query_eqn(argument: ContextArgument<'_>, vector: u32, eqn: Option<&mut u32>) -> OrErrno {
        let (raw, eqn) = (context(argument)?.context.raw(), required(eqn)?);
        let query = raw.query::<DevxQueryEqn>().input(DevxQueryEqn::USER_VEC, &vector);
        Ok(query.output(DevxQueryEqn::DEV_EQN, eqn).execute()?)
    }

    fn mlx5dv_devx_obj_create(
        argument: ContextArgument<'_>,
        input: *const c_void,
        in_len: usize,
        output: *mut c_void,
        out_len: usize,
    ) -> OrNull<DevxObject> {
        let raw = context(argument)?.context.raw();
        // SAFETY: the buffers are those of the program.
        let (input, output) = unsafe { (command(input, in_len)?, response(output, out_len)?) };
        let mut call = raw.call::<DevxObjCreate>();
        call.make(DevxObjCreate::HANDLE);
        call.input_slice(DevxObjCreate::CMD_IN, input).output_slice(DevxObjCreate::CMD_OUT, output);
        // SAFETY: the buffers exist during the call. The program answers for the command.
        let object = unsafe { make::<_, DevxObj>(&raw, &mut call, DevxObjCreate::HANDLE) }?;
        Ok(DevxObject::create((), object, None))
    }

    fn mlx5dv_devx_obj_query(
        object: Option<&DevxObject>,
        input: *const c_void,
        in_len: usize,
        output: *mut c_void,
        out_len: usize,
    ) -> OrErrno {
        let object = required(object)?.object()?;
        // SAFETY: the buffers are those of the program.
        unsafe { query(object.context(), object.handle(), (input, in_len, output, out_len)) }
    }

    fn mlx5dv_devx_obj_modify(
        object: Option<&DevxObject>,
        input: *const c_void,
        in_len: usize,
        output: *mut c_void,
        out_len: usize,
    ) -> OrErrno {
        let object = required(object)?.object()?;
        // SAFETY: the buffers are those of the program.
        unsafe { modify(object.context(), object.handle(), (input, in_len, output, out_len)) }
    }

    fn mlx5dv_devx_obj_destroy(object: Option<NonNull<DevxObject>>) -> OrErrno {
        // SAFETY: the argument is a live object.
        unsafe { DriverObject::destroy(object) }
    }

    fn mlx5dv_devx_umem_reg(
        argument: ContextArgument<'_>,
        addr: *mut c_void,
        size: usize,
        access: u32,
    ) -> OrNull<mlx5dv_devx_umem> {
        // All pages of the device: 4 KiB and more.
        let pgsz_bitmap = !0xfff;
        let memory = mlx5dv_devx_umem_in { addr, size, access, pgsz_bitmap, comp_mask: 0, dmabuf_fd: -1 };
        register(&context(argument)?.context.raw(), &memory, true)
    }

    fn mlx5dv_devx_umem_reg_ex(
        argument: ContextArgument<'_>,
        memory: Option<&mlx5dv_devx_umem_in>,
    ) -> OrNull<mlx5dv_devx_umem> {
        register(&context(argument)?.context.raw(), required(memory)?, false)
    }

    fn mlx5dv_devx_umem_dereg(umem: Option<NonNull<UmemObject>>) -> OrErrno {
        // SAFETY: the argument is live memory.
        unsafe { DriverObject::destroy(umem) }
    }

    /// A page of `MLX5DV_UAR_ALLOC_TYPE_NC` is a new one too, where libmlx5 returns one for all calls.
    fn mlx5dv_devx_alloc_uar(argument: ContextArgument<'_>, flags: u32) -> OrNull<mlx5dv_devx_uar> {
        let raw = context(argument)?.context.raw();
        let kind = match flags {
            0 => UarType::BF,
            NON_CACHED | NON_CACHED_DEDICATED => UarType::NC,
            _ => return Err(Failure::UNSUPPORTED),
        };
        let (mut offset, mut length, mut page_id) = (0, 0, 0);
        let mut call = raw.call::<UarObjAlloc>();
        call.make(UarObjAlloc::HANDLE).constant(UarObjAlloc::TYPE, kind);
        call.output(UarObjAlloc::MMAP_OFFSET, &mut offset);
        call.output(UarObjAlloc::MMAP_LENGTH, &mut length);
        call.output(UarObjAlloc::PAGE_ID, &mut page_id);
        // SAFETY: the method names no memory but its outputs.
        let object = unsafe { make::<_, Uar>(&raw, &mut call, UarObjAlloc::HANDLE) }?;
        let mapping = raw.map(offset, length as usize, Protection::Write)?;
        let base = mapping.as_ptr().as_ptr();
        let abi = mlx5dv_devx_uar {
            reg_addr: base.wrapping_add(SEND_REGISTER).cast(),
            base_addr: base.cast(),
            page_id,
            mmap_off: offset.cast_signed(),
            comp_mask: 0,
        };
        Ok(UarObject::create(abi, object, Some(mapping)))
    }

    fn mlx5dv_devx_free_uar(uar: Option<NonNull<UarObject>>) -> Value<()> {
        // SAFETY: the argument is a live page.
        unsafe { DriverObject::destroy(uar) }
    }

    fn mlx5dv_devx_uar_export_dmabuf_fd(uar: Option<&UarObject>) -> OrMinusOne {
        let uar = required(uar)?;
        let (raw, offset) = (uar.object()?.context(), uar.abi.mmap_off.cast_unsigned());
        let mut call = raw.call::<DmabufAlloc>();
        call.make_descriptor(DmabufAlloc::HANDLE).input(DmabufAlloc::PGOFF, &offset);
        // SAFETY: the method only creates a descriptor.
        unsafe { raw.execute(&mut call) }?;
        Ok(call.made_descriptor(DmabufAlloc::HANDLE))
    }

    fn mlx5dv_devx_create_cmd_comp(argument: ContextArgument<'_>) -> OrNull<CommandChannel> {
        let raw = context(argument)?.context.raw();
        let call = raw.call::<DevxAsyncCmdFdAlloc>();
        // SAFETY: the method only creates a descriptor.
        unsafe { Channel::create(raw, call, DevxAsyncCmdFdAlloc::HANDLE, |fd| mlx5dv_devx_cmd_comp { fd }) }
    }

    fn mlx5dv_devx_destroy_cmd_comp(channel: Option<NonNull<CommandChannel>>) -> Value<()> {
        // SAFETY: the argument is a live channel, which the program uses no longer.
        unsafe { Channel::destroy(channel) }
    }

    fn mlx5dv_devx_obj_query_async(
        object: Option<&DevxObject>,
        input: *const c_void,
        in_len: usize,
        out_len: usize,
        wr_id: u64,
        channel: Option<&CommandChannel>,
    ) -> OrErrno {
        let (object, channel) = (required(object)?.object()?, required(channel)?);
        // SAFETY: the buffer is that of the program.
        let input = unsafe { command(input, in_len) }?;
        let raw = object.context();
        let mut call = raw.call::<DevxObjAsyncQuery>();
        call.handle(DevxObjAsyncQuery::HANDLE, object.handle());
        call.input_slice(DevxObjAsyncQuery::CMD_IN, input);
        call.constant(DevxObjAsyncQuery::OUT_LEN, u16::try_from(out_len).map_err(|_| Failure::INVALID)?);
        call.input(DevxObjAsyncQuery::WR_ID, &wr_id).descriptor(DevxObjAsyncQuery::FD, channel.abi.fd);
        // SAFETY: the buffer exists during the call. The program answers for the command.
        Ok(unsafe { raw.execute(&mut call) }?)
    }

    fn mlx5dv_devx_get_async_cmd_comp(
        channel: Option<&CommandChannel>,
        into: *mut c_void,
        length: usize,
    ) -> OrErrno {
        // SAFETY: the buffer is that of the program.
        read(&required(channel)?.file, unsafe { bytes_mut(into, length) }?).map(drop)
    }

    fn mlx5dv_devx_create_event_channel(argument: ContextArgument<'_>, flags: u32) -> OrNull<EventChannel> {
        let raw = context(argument)?.context.raw();
        let mut call = raw.call::<DevxAsyncEventFdAlloc>();
        call.flags(DevxAsyncEventFdAlloc::FLAGS, DevxEventChannelFlags::from_bits_retain(flags));
        let abi = |fd| mlx5dv_devx_event_channel { fd };
        // SAFETY: the method only creates a descriptor.
        unsafe { Channel::create(raw, call, DevxAsyncEventFdAlloc::HANDLE, abi) }
    }

    fn mlx5dv_devx_destroy_event_channel(channel: Option<NonNull<EventChannel>>) -> Value<()> {
        // SAFETY: the argument is a live channel, which the program uses no longer.
        unsafe { Channel::destroy(channel) }
    }

    /// `size` is that of the list in bytes.
    fn mlx5dv_devx_subscribe_devx_event(
        channel: Option<&EventChannel>,
        object: Option<&DevxObject>,
        size: u16,
        events: *const u16,
        cookie: u64,
    ) -> OrErrno {
        if events.is_null() || !size.is_multiple_of(2) {
            return Err(Failure::INVALID);
        }
        // SAFETY: the list is that of the program.
        let events = unsafe { std::slice::from_raw_parts(events, usize::from(size) / 2) };
        subscribe(required(channel)?, object, events, Some(cookie), None)
    }

    fn mlx5dv_devx_subscribe_devx_event_fd(
        channel: Option<&EventChannel>,
        fd: c_int,
        object: Option<&DevxObject>,
        event: u16,
    ) -> OrErrno {
        subscribe(required(channel)?, object, &[event], None, Some(fd))
    }

    /// The number of bytes of the event.
    fn mlx5dv_devx_get_event(
        channel: Option<&EventChannel>,
        into: *mut c_void,
        length: usize,
    ) -> OrMinusOne<isize> {
        // SAFETY: the buffer is that of the program.
        let length = read(&required(channel)?.file, unsafe { bytes_mut(into, length) }?)?;
        Ok(length.cast_signed())
    }
}

const NON_CACHED: u32 = MLX5DV_UAR_ALLOC_TYPE_NC.cast_unsigned();

/// `MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED`, which is no `int`.
const NON_CACHED_DEDICATED: u32 = 1 << 31;

/// Offset of the first register for sends in a page.
const SEND_REGISTER: usize = 0x800;

/// Reads one record, which begins with 8 bytes of the program's: the id of a query, or a cookie.
fn read(mut file: &File, into: &mut [u8]) -> Result<usize, Failure> {
    let length = file.read(into).map_err(|error| Failure::of(&error))?;
    if length < 8 { Err(Failure::INVALID) } else { Ok(length) }
}

/// Subscribes to events of an object, or of the device.
fn subscribe(
    channel: &EventChannel,
    object: Option<&DevxObject>,
    events: &[u16],
    cookie: Option<u64>,
    fd: Option<c_int>,
) -> Result<(), Failure> {
    let fd = fd.map(c_int::cast_unsigned);
    let mut call = channel.raw.call::<DevxSubscribeEvent>();
    call.descriptor(DevxSubscribeEvent::FD_HANDLE, channel.abi.fd);
    if let Some(object) = object {
        call.handle(DevxSubscribeEvent::OBJ_HANDLE, object.object()?.handle());
    }
    call.input_slice(DevxSubscribeEvent::TYPE_NUM_LIST, events);
    if let Some(cookie) = &cookie {
        call.input(DevxSubscribeEvent::COOKIE, cookie);
    }
    if let Some(fd) = &fd {
        call.input(DevxSubscribeEvent::FD_NUM, fd);
    }
    // SAFETY: the method reads its attributes only.
    Ok(unsafe { channel.raw.execute(&mut call) }?)
}

/// Defines functions that query and modify the firmware's object behind a verbs object.
macro_rules! of_verbs {
    ($($query:ident $modify:ident: $object:ty;)*) => { export! { $(
        fn $query(
            object: Option<&$object>,
            input: *const c_void,
            in_len: usize,
            output: *mut c_void,
            out_len: usize,
        ) -> OrErrno {
            let (context_of_object, handle) = required(object)?.kernel_object();
            // SAFETY: the buffers are those of the program.
            unsafe { query(&raw_of(context_of_object)?, handle, (input, in_len, output, out_len)) }
        }

        fn $modify(
            object: Option<&$object>,
            input: *const c_void,
            in_len: usize,
            output: *mut c_void,
            out_len: usize,
        ) -> OrErrno {
            let (context_of_object, handle) = required(object)?.kernel_object();
            // SAFETY: the buffers are those of the program.
            unsafe { modify(&raw_of(context_of_object)?, handle, (input, in_len, output, out_len)) }
        }
    )* } };
}

of_verbs! {
    mlx5dv_devx_cq_query mlx5dv_devx_cq_modify: CqObject;
    mlx5dv_devx_qp_query mlx5dv_devx_qp_modify: QpObject;
    mlx5dv_devx_srq_query mlx5dv_devx_srq_modify: SrqObject;
    mlx5dv_devx_wq_query mlx5dv_devx_wq_modify: WqObject;
    mlx5dv_devx_ind_tbl_query mlx5dv_devx_ind_tbl_modify: TableObject;
}

/// Writes what an import needs.
///
/// # Safety
///
/// `into` is null, or has the size of `_mlx5dv_get_export_sizes`.
unsafe fn export_to(
    into: *mut Exported,
    handle: u32,
    numbers: [u32; 2],
    mmap_off: i64,
) -> Result<(), Failure> {
    // SAFETY: by the contract.
    let into = required(unsafe { into.as_mut() })?;
    *into = Exported { handle, numbers, mmap_off, reserved: 0 };
    Ok(())
}

/// The object that another process of this device file has exported.
fn import<O: ObjectClass>(raw: &RawContext, exported: &Exported) -> RawObject {
    // SAFETY: the program says that the object exists. It is not destroyed by the struct's end, but by the
    // program's wish.
    unsafe { RawObject::of::<O>(raw, exported.handle) }
}

export! {
    fn mlx5dv_devx_obj_export(object: Option<&DevxObject>, into: *mut Exported) -> OrErrno {
        // SAFETY: the program has this much memory.
        unsafe { export_to(into, required(object)?.object()?.handle(), [0; 2], 0) }
    }

    fn mlx5dv_devx_obj_import(argument: ContextArgument<'_>, from: Option<&Exported>) -> OrNull<DevxObject> {
        let raw = context(argument)?.context.raw();
        Ok(DevxObject::create((), import::<DevxObj>(&raw, required(from)?), None))
    }

    fn mlx5dv_devx_obj_unimport(object: Option<NonNull<DevxObject>>) -> Value<()> {
        // SAFETY: the argument is a live object.
        unsafe { DriverObject::release(object) }
    }

    fn mlx5dv_devx_umem_export(umem: Option<&UmemObject>, into: *mut Exported) -> OrErrno {
        let umem = required(umem)?;
        // SAFETY: the program has this much memory.
        unsafe { export_to(into, umem.object()?.handle(), [umem.abi.umem_id, 0], 0) }
    }

    fn mlx5dv_devx_umem_import(
        argument: ContextArgument<'_>,
        from: Option<&Exported>,
    ) -> OrNull<mlx5dv_devx_umem> {
        let (raw, from) = (context(argument)?.context.raw(), required(from)?);
        let abi = mlx5dv_devx_umem { umem_id: from.numbers[0] };
        Ok(UmemObject::create(abi, import::<DevxUmem>(&raw, from), None))
    }

    fn mlx5dv_devx_umem_unimport(umem: Option<NonNull<UmemObject>>) -> Value<()> {
        // SAFETY: the argument is live memory.
        unsafe { DriverObject::release(umem) }
    }

    fn mlx5dv_alloc_var(argument: ContextArgument<'_>, flags: u32) -> OrNull<mlx5dv_var> {
        let raw = context(argument)?.context.raw();
        let (mut offset, mut length, mut page_id) = (0, 0, 0);
        let mut call = raw.call::<VarObjAlloc>();
        call.make(VarObjAlloc::HANDLE);
        call.output(VarObjAlloc::MMAP_OFFSET, &mut offset);
        call.output(VarObjAlloc::MMAP_LENGTH, &mut length);
        call.output(VarObjAlloc::PAGE_ID, &mut page_id);
        if flags != 0 {
            call.flags(VarObjAlloc::FLAGS, VarFlags::from_bits_retain(flags));
        }
        // SAFETY: the method names no memory but its outputs.
        let object = unsafe { make::<_, Var>(&raw, &mut call, VarObjAlloc::HANDLE) }?;
        let abi = mlx5dv_var { page_id, length, mmap_off: offset.cast_signed(), comp_mask: 0 };
        Ok(VarObject::create(abi, object, None))
    }

    fn mlx5dv_free_var(var: Option<NonNull<VarObject>>) -> Value<()> {
        // SAFETY: the argument is a live object.
        unsafe { DriverObject::destroy(var) }
    }

    fn mlx5dv_var_export(var: Option<&VarObject>, into: *mut Exported) -> OrErrno {
        let var = required(var)?;
        let numbers = [var.abi.page_id, var.abi.length];
        // SAFETY: the program has this much memory.
        unsafe { export_to(into, var.object()?.handle(), numbers, var.abi.mmap_off) }
    }

    fn mlx5dv_var_import(argument: ContextArgument<'_>, from: Option<&Exported>) -> OrNull<mlx5dv_var> {
        let (raw, from) = (context(argument)?.context.raw(), required(from)?);
        let [page_id, length] = from.numbers;
        let abi = mlx5dv_var { page_id, length, mmap_off: from.mmap_off, comp_mask: 0 };
        Ok(VarObject::create(abi, import::<Var>(&raw, from), None))
    }

    fn mlx5dv_var_unimport(var: Option<NonNull<VarObject>>) -> Value<()> {
        // SAFETY: the argument is a live object.
        unsafe { DriverObject::release(var) }
    }

    fn _mlx5dv_get_export_sizes(into: *mut c_void, length: usize) -> Value<()> {
        const SIZE: u32 = size_of::<Exported>() as u32;
        // SAFETY: the program has memory of this length.
        let into = unsafe { bytes_mut(into, length) }?;
        into.fill(0);
        // One size for each kind of object.
        for word in into.chunks_exact_mut(4).take(3) {
            word.copy_from_slice(&SIZE.to_ne_bytes());
        }
        Ok(())
    }

    fn mlx5dv_pp_alloc(
        argument: ContextArgument<'_>,
        length: usize,
        packet_pacing: *const c_void,
        flags: u32,
    ) -> OrNull<mlx5dv_pp> {
        let raw = context(argument)?.context.raw();
        // SAFETY: the program has memory of this length.
        let given = unsafe { bytes(packet_pacing, length) }?;
        let mut pacing = [0; 48];
        // A shorter one stands for zeros at its end.
        pacing.get_mut(..given.len()).ok_or(Failure::INVALID)?.copy_from_slice(given);
        let flags = PpFlags::from_bits_retain(flags);
        let mut index = 0;
        let mut call = raw.call::<PpObjAlloc>();
        call.make(PpObjAlloc::HANDLE).input_part(PpObjAlloc::CTX, &pacing).flags(PpObjAlloc::FLAGS, flags);
        call.output(PpObjAlloc::INDEX, &mut index);
        // SAFETY: the method names no memory but its attributes.
        let object = unsafe { make::<_, Pp>(&raw, &mut call, PpObjAlloc::HANDLE) }?;
        Ok(PpObject::create(mlx5dv_pp { index }, object, None))
    }

    fn mlx5dv_pp_free(pp: Option<NonNull<PpObject>>) -> Value<()> {
        // SAFETY: the argument is a live entry.
        unsafe { DriverObject::destroy(pp) }
    }
}
