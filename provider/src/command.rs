//! The kernel's commands, one function each.
//!
//! A command uses its own ioctl method if it has one, and otherwise the method `InvokeWrite`. Each
//! function returns the kernel's response. The functions keep no state; [`RegMrMethod`] remembers
//! which method registers memory.
//!
//! # Which commands are `unsafe`
//!
//! | the command | is |
//! |---|---|
//! | destroys the object of a handle, or changes its state, keys or memory, or detaches it from a group | `unsafe`: the caller owns the object |
//! | takes addresses: memory to register, a driver's payload | `unsafe`: the caller guarantees the memory |
//! | queries, creates an object that refers to others, attaches to a group, arms or moderates | safe |
//!
//! Handles are small numbers that any code can guess. A safe type that owns an object relies on the
//! object's existence: the kernel accesses the memory of an MR until its owner deregisters it. So
//! no safe function destroys or changes an object by its handle:
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::command;
//! # use bareverbs_provider::device::{DeviceFile, IoctlError};
//! fn destroy_a_guess(file: &DeviceFile) -> Result<(), IoctlError> {
//!     command::dereg_mr(file, 7)
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::command;
//! # use bareverbs_provider::device::{DeviceFile, IoctlError};
//! # use bareverbs_uapi::write::structs::ModifyQpReq;
//! fn change_a_guess(file: &DeviceFile) -> Result<(), IoctlError> {
//!     command::modify_qp(file, &ModifyQpReq { qp_handle: 7, ..ModifyQpReq::zeroed() })
//! }
//! ```

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::{
    BufferDesc, CoreSupport, GidEntry, QpCap, QpCreateFlags, QpType, QueryPortRespEx,
};
use bareverbs_uapi::uverbs::{
    AsyncEventAlloc, CqCreate, CqDestroy, GetContext, InfoHandles, ObjectClass, PdDestroy, QpCreate,
    QpDestroy, QueryGidEntry, QueryGidTable, QueryPort,
};
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write;
use bareverbs_uapi::write::WriteCommand;
use bareverbs_uapi::write::structs::{
    AllocPdReq, AllocPdResp, CreateCompChannelReq, CreateCompChannelResp, DestroyCqResp, DestroyQpResp,
    ExModifyQp, ExModifyQpResp, ExQueryDevice, ExQueryDeviceResp, ModifyQpReq, QueryDeviceReq,
    QueryDeviceResp, QueryQpReq, QueryQpResp, ReqNotifyCqReq,
};
use rustix::io::Errno;

use crate::device::{DeviceFile, IoctlError};
use crate::request::{CqRequest, QpRequest};

/// A driver-specific request and response that accompany a command.
#[derive(Debug, Default)]
pub struct DriverPayload<'a> {
    /// Request read by the driver; empty for none.
    pub input: &'a [u8],
    /// Response written by the driver; empty for none.
    pub output: &'a mut [u8],
}

macro_rules! add_payload {
    ($call:ident, $payload:ident) => {
        if !$payload.input.is_empty() {
            $call.driver_input($payload.input);
        }
        if !$payload.output.is_empty() {
            $call.driver_output($payload.output);
        }
    };
}

/// Adds the event stream of the created object, unless it is the context's first one.
macro_rules! add_events {
    ($call:ident, $file:ident, $attribute:expr) => {
        if let Some(stream) = $file.events() {
            $call.descriptor($attribute, std::os::fd::AsRawFd::as_raw_fd(&stream));
        }
    };
}

mod ah;
mod comp_cntr;
mod dm;
mod dmabuf;
mod dmah;
mod flow;
mod memory;
mod mr;
mod qp_without_rings;
mod resize;
mod srq;
mod wq;
mod xrc;

pub use ah::{AhHandle, attach_mcast, create_ah, destroy_ah, detach_mcast};
pub use comp_cntr::{
    CompCntrCaps, attach_comp_cntr, create_comp_cntr, destroy_comp_cntr, modify_comp_cntr,
    query_comp_cntr_caps, read_comp_cntr,
};
pub use dm::{free_dm, reg_dm_mr};
pub use dmabuf::{DmabufMrRequest, alloc_dmabuf, reg_dmabuf_mr};
pub use dmah::{DmahRequest, alloc_dmah, free_dmah};
pub use flow::{
    create_counters, create_flow, create_flow_with, destroy_counters, destroy_flow, read_counters,
};
pub use memory::{MwHandle, ReregMr, Translation, alloc_mw, dealloc_mw, rereg_mr};
pub use mr::{CreatedMr, MrInfo, MrPayload, MrRequest, RegMrMethod, dereg_mr, query_mr};
pub use resize::{moderate_cq, resize_cq};
pub use srq::{SrqHandle, create_srq, destroy_srq, modify_srq, query_srq};
pub use wq::{
    TableHandle, WqHandle, create_rss_qp, create_rwq_ind_table, create_wq, destroy_rwq_ind_table, destroy_wq,
    modify_wq,
};
pub use xrc::{close_xrcd, create_xrc_target, open_xrc_target, open_xrcd};

/// Capabilities of a new context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextInfo {
    /// Completion vectors: the interrupt sources that completion events can be spread over.
    pub num_comp_vectors: u32,
    /// Optional features of the kernel's core.
    pub core_support: CoreSupport,
}

/// Creates the file's context. A file has at most one; a second call gives `EINVAL`.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_open_device")]
pub unsafe fn get_context(file: &DeviceFile, payload: DriverPayload<'_>) -> Result<ContextInfo, IoctlError> {
    let mut num_comp_vectors = 0;
    let mut core_support = CoreSupport::empty();
    let mut call = Call::<GetContext>::new(file.driver_id());
    call.output(GetContext::NUM_COMP_VECTORS, &mut num_comp_vectors);
    call.output(GetContext::CORE_SUPPORT, &mut core_support);
    add_payload!(call, payload);
    // SAFETY: only the payload can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }?;
    Ok(ContextInfo { num_comp_vectors, core_support })
}

/// Creates a stream of asynchronous events. The first stream of a context receives the events of
/// all objects that were created without a stream of their own.
///
/// # Errors
///
/// The kernel's error.
pub fn async_event_alloc(file: &DeviceFile) -> Result<OwnedFd, IoctlError> {
    let mut call = Call::<AsyncEventAlloc>::new(file.driver_id());
    call.make_descriptor(AsyncEventAlloc::FD_HANDLE);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }?;
    let fd = call.made_descriptor(AsyncEventAlloc::FD_HANDLE);
    // SAFETY: the number is -1 if the kernel wrote none. Otherwise the kernel's uverbs driver,
    // which serves every `DeviceFile`, has installed the descriptor for this call.
    unsafe { own_descriptor("AsyncEventAlloc", fd) }
}

/// Takes ownership of a descriptor that the kernel created for a call. A negative number gives
/// `EBADF`: the kernel wrote none.
///
/// # Safety
///
/// A number that is not negative must be a descriptor that nothing else owns.
unsafe fn own_descriptor(method: &'static str, number: RawFd) -> Result<OwnedFd, IoctlError> {
    if number < 0 {
        return Err(IoctlError::new(method, Errno::BADF));
    }
    // SAFETY: it is not -1, and the caller owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Reads the device's attributes.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_query_device")]
pub fn query_device(file: &DeviceFile) -> Result<QueryDeviceResp, IoctlError> {
    let mut response = QueryDeviceResp::zeroed();
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::QueryDevice>(&QueryDeviceReq::zeroed(), &mut response) }?;
    Ok(response)
}

/// Reads the device's attributes, including the extended ones. Attributes unknown to the kernel are
/// zero.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_query_device_ex")]
pub fn query_device_ex(file: &DeviceFile) -> Result<ExQueryDeviceResp, IoctlError> {
    let mut response = ExQueryDeviceResp::zeroed();
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::ex::QueryDevice>(&ExQueryDevice::zeroed(), &mut response) }?;
    Ok(response)
}

/// Reads the device's attributes for the driver's part of the response.
///
/// # Errors
///
/// The kernel's error; the driver's error for an invalid payload.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
pub unsafe fn query_driver(file: &DeviceFile, payload: DriverPayload<'_>) -> Result<(), IoctlError> {
    let request = ExQueryDevice::zeroed();
    let mut response = ExQueryDeviceResp::zeroed();
    let mut call = write::invoke::<write::ex::QueryDevice>(file.driver_id(), &request, &mut response);
    add_payload!(call, payload);
    // SAFETY: only the payload can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }.map_err(|refused| IoctlError { method: "ex::QueryDevice", ..refused })
}

/// Reads a port's attributes; ports count from 1.
///
/// # Errors
///
/// The kernel's error, `EINVAL` for a port that the device does not have.
#[doc(alias = "ibv_query_port")]
pub fn query_port(file: &DeviceFile, port: u8) -> Result<QueryPortRespEx, IoctlError> {
    let mut response = QueryPortRespEx::zeroed();
    let mut call = Call::<QueryPort>::new(file.driver_id());
    call.constant(QueryPort::PORT_NUM, port);
    call.output_struct(QueryPort::RESP, &mut response);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(response)
}

/// Reads the valid entries of the GID tables of all ports; returns their number.
///
/// # Errors
///
/// The kernel's error, `EINVAL` if `into` is too short.
#[doc(alias = "ibv_query_gid_table")]
pub fn query_gid_table(file: &DeviceFile, into: &mut [GidEntry]) -> Result<usize, IoctlError> {
    let mut count = 0;
    let room = into.len();
    let mut call = Call::<QueryGidTable>::new(file.driver_id());
    call.constant(QueryGidTable::ENTRY_SIZE, size_of::<GidEntry>() as u64);
    call.output_slice(QueryGidTable::RESP_ENTRIES, into);
    call.output(QueryGidTable::RESP_NUM_ENTRIES, &mut count);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(usize::try_from(count).unwrap_or(room).min(room))
}

/// Reads one entry of a port's GID table.
///
/// # Errors
///
/// The kernel's error, `ENODATA` for an empty entry.
#[doc(alias = "ibv_query_gid_ex")]
pub fn query_gid_entry(file: &DeviceFile, port: u32, index: u32) -> Result<GidEntry, IoctlError> {
    let mut entry = GidEntry::zeroed();
    let mut call = Call::<QueryGidEntry>::new(file.driver_id());
    call.constant(QueryGidEntry::PORT, port);
    call.constant(QueryGidEntry::GID_INDEX, index);
    call.flags(QueryGidEntry::FLAGS, 0u32);
    call.output_struct(QueryGidEntry::RESP_ENTRY, &mut entry);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(entry)
}

/// Lists the handles of the context's objects of one class; returns the number written.
///
/// # Errors
///
/// The kernel's error.
pub fn info_handles(file: &DeviceFile, class: ObjectClass, into: &mut [u32]) -> Result<usize, IoctlError> {
    let mut total = 0;
    let room = into.len();
    let mut call = Call::<InfoHandles>::new(file.driver_id());
    call.constant(InfoHandles::OBJECT_ID, class);
    call.output(InfoHandles::TOTAL_HANDLES, &mut total);
    call.output_slice(InfoHandles::HANDLES_LIST, into);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok((total as usize).min(room))
}

/// Creates a protection domain; returns its handle.
///
/// # Errors
///
/// The kernel's error.
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires.
#[doc(alias = "ibv_alloc_pd")]
pub unsafe fn alloc_pd(file: &DeviceFile, payload: DriverPayload<'_>) -> Result<u32, IoctlError> {
    let request = AllocPdReq::zeroed();
    let mut response = AllocPdResp::zeroed();
    let mut call = write::invoke::<write::AllocPd>(file.driver_id(), &request, &mut response);
    add_payload!(call, payload);
    // SAFETY: only the payload can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }.map_err(|refused| IoctlError { method: "AllocPd", ..refused })?;
    Ok(response.pd_handle)
}

/// Deallocates a protection domain.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while objects use it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on
/// the domain any more.
#[doc(alias = "ibv_dealloc_pd")]
pub unsafe fn dealloc_pd(file: &DeviceFile, handle: u32) -> Result<(), IoctlError> {
    let mut call = Call::<PdDestroy>::new(file.driver_id());
    call.destroy(PdDestroy::HANDLE, handle);
    // SAFETY: the call names no memory.
    unsafe { file.execute(&mut call) }
}

/// Creates a channel of completion events.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_create_comp_channel")]
pub fn create_comp_channel(file: &DeviceFile) -> Result<OwnedFd, IoctlError> {
    // No descriptor, if the kernel writes none.
    let mut response = CreateCompChannelResp { fd: u32::MAX };
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::CreateCompChannel>(&CreateCompChannelReq::zeroed(), &mut response) }?;
    // SAFETY: the number is -1 if the kernel wrote none. Otherwise the kernel's uverbs driver,
    // which serves every `DeviceFile`, has installed the descriptor for this call.
    unsafe { own_descriptor("CreateCompChannel", response.fd as RawFd) }
}

/// A created completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqHandle {
    /// The handle.
    pub handle: u32,
    /// Its depth in CQEs, as the kernel reports it.
    pub entries: u32,
}

/// Creates a completion queue. `buffer` describes its memory in place of an address in the driver's
/// payload.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for a depth that the device does not support, `EPROTONOSUPPORT` for
/// a buffer on a kernel without [`queue_buffers`].
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires, also that of the buffer.
#[doc(alias = "ibv_create_cq")]
pub unsafe fn create_cq(
    file: &DeviceFile,
    request: &CqRequest<'_>,
    buffer: Option<&BufferDesc>,
    payload: DriverPayload<'_>,
) -> Result<CqHandle, IoctlError> {
    let mut entries = 0;
    let mut call = Call::<CqCreate>::new(file.driver_id());
    call.make(CqCreate::HANDLE);
    call.input(CqCreate::CQE, &request.entries);
    call.input(CqCreate::USER_HANDLE, &request.user_handle);
    if let Some(channel) = request.channel {
        call.descriptor(CqCreate::COMP_CHANNEL, channel.as_raw_fd());
    }
    call.input(CqCreate::COMP_VECTOR, &request.vector);
    if !request.flags.is_empty() {
        call.flags(CqCreate::FLAGS, request.flags);
    }
    call.output(CqCreate::RESP_CQE, &mut entries);
    if let Some(buffer) = buffer {
        call.input(CqCreate::BUF_UMEM, buffer);
    }
    add_events!(call, file, CqCreate::EVENT_FD);
    add_payload!(call, payload);
    // SAFETY: only the payload and the buffer can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(CqCreate::HANDLE);
    Ok(CqHandle { handle, entries })
}

/// Destroys a completion queue; returns the number of its events that were delivered.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while a queue pair uses it.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on
/// the queue any more.
#[doc(alias = "ibv_destroy_cq")]
pub unsafe fn destroy_cq(file: &DeviceFile, handle: u32) -> Result<DestroyCqResp, IoctlError> {
    let mut response = DestroyCqResp::zeroed();
    let mut call = Call::<CqDestroy>::new(file.driver_id());
    call.destroy(CqDestroy::HANDLE, handle);
    call.output(CqDestroy::RESP, &mut response);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(response)
}

/// Requests one event for the next completion, or for the next solicited one. For drivers whose CQs
/// are armed by the kernel.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_req_notify_cq")]
pub fn req_notify_cq(file: &DeviceFile, handle: u32, solicited_only: bool) -> Result<(), IoctlError> {
    let request = ReqNotifyCqReq { cq_handle: handle, solicited_only: u32::from(solicited_only) };
    // SAFETY: the command reads only its struct.
    unsafe { file.invoke::<write::ReqNotifyCq>(&request, &mut ()) }
}

/// A created queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpHandle {
    /// The handle.
    pub handle: u32,
    /// QP number.
    pub qp_num: u32,
    /// Its depths and widths, as the kernel reports them.
    pub cap: QpCap,
}

/// The memory of a queue pair, in place of addresses in the driver's payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QpBuffers {
    /// The driver's payload has the addresses.
    #[default]
    None,
    /// One buffer for both queues.
    Both(BufferDesc),
    /// A buffer for each queue: raw packet queue pairs of mlx5.
    Each {
        /// The receive queue; `None` if the queue pair has none.
        recv: Option<BufferDesc>,
        /// The send queue.
        send: BufferDesc,
    },
}

/// Whether the kernel's core takes the buffers of [`create_cq`] and [`create_qp`] (since Linux 7.2).
/// A driver may still ignore them. The calls create nothing: they lack mandatory attributes.
#[must_use]
pub fn queue_buffers(file: &DeviceFile) -> bool {
    let desc = BufferDesc::zeroed();
    let is_known = |refused: Result<(), IoctlError>| matches!(refused, Err(IoctlError { errno, .. }) if errno == Errno::INVAL);
    let mut cq = Call::<CqCreate>::new(file.driver_id());
    cq.input(CqCreate::BUF_UMEM, &desc);
    let mut qp = Call::<QpCreate>::new(file.driver_id());
    qp.input(QpCreate::BUF_UMEM, &desc);
    qp.input(QpCreate::RQ_BUF_UMEM, &desc);
    qp.input(QpCreate::SQ_BUF_UMEM, &desc);
    // SAFETY: the kernel rejects a call without its mandatory attributes before the driver uses
    // any attribute.
    is_known(unsafe { file.execute(&mut cq) })
        // SAFETY: as above.
        && is_known(unsafe { file.execute(&mut qp) })
}

/// Creates a queue pair.
///
/// # Errors
///
/// The kernel's error: `EINVAL` for depths or widths that the device does not support,
/// `EPROTONOSUPPORT` for buffers on a kernel without [`queue_buffers`].
///
/// # Safety
///
/// Addresses in the driver's payload must be as the driver requires, also those of the buffers.
#[doc(alias = "ibv_create_qp")]
pub unsafe fn create_qp(
    file: &DeviceFile,
    request: &QpRequest<'_>,
    buffers: &QpBuffers,
    payload: DriverPayload<'_>,
) -> Result<QpHandle, IoctlError> {
    let mut cap = QpCap::zeroed();
    let mut qp_num = 0;
    let mut call = Call::<QpCreate>::new(file.driver_id());
    call.make(QpCreate::HANDLE);
    call.handle(QpCreate::PD_HANDLE, request.pd);
    call.handle(QpCreate::SEND_CQ_HANDLE, request.send_cq);
    if request.qp_type != QpType::XRC_INI {
        call.handle(QpCreate::RECV_CQ_HANDLE, request.recv_cq);
    }
    if let Some(srq) = request.srq {
        call.handle(QpCreate::SRQ_HANDLE, srq);
    }
    call.input(QpCreate::USER_HANDLE, &request.user_handle);
    call.input_struct(QpCreate::CAP, &request.cap);
    call.constant(QpCreate::TYPE, request.qp_type);
    if request.flags != QpCreateFlags::empty() {
        call.flags(QpCreate::FLAGS, request.flags);
    }
    if let Some(source_qpn) = &request.source_qpn {
        call.input(QpCreate::SOURCE_QPN, source_qpn);
    }
    match buffers {
        QpBuffers::None => {}
        QpBuffers::Both(both) => {
            call.input(QpCreate::BUF_UMEM, both);
        }
        QpBuffers::Each { recv, send } => {
            if let Some(recv) = recv {
                call.input(QpCreate::RQ_BUF_UMEM, recv);
            }
            call.input(QpCreate::SQ_BUF_UMEM, send);
        }
    }
    add_events!(call, file, QpCreate::EVENT_FD);
    call.output_struct(QpCreate::RESP_CAP, &mut cap);
    call.output(QpCreate::RESP_QP_NUM, &mut qp_num);
    add_payload!(call, payload);
    // SAFETY: only the payload and the buffers can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }?;
    let handle = call.made(QpCreate::HANDLE);
    Ok(QpHandle { handle, qp_num, cap })
}

/// Destroys a queue pair; returns the number of its events that were delivered.
///
/// # Errors
///
/// The kernel's error, `EBUSY` while it is in a multicast group.
///
/// # Safety
///
/// The caller must own the handle: no other code of this process uses or relies on
/// the queue pair any more.
#[doc(alias = "ibv_destroy_qp")]
pub unsafe fn destroy_qp(file: &DeviceFile, handle: u32) -> Result<DestroyQpResp, IoctlError> {
    let mut response = DestroyQpResp::zeroed();
    let mut call = Call::<QpDestroy>::new(file.driver_id());
    call.destroy(QpDestroy::HANDLE, handle);
    call.output(QpDestroy::RESP, &mut response);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(response)
}

/// Modifies a queue pair's attributes, including its state.
///
/// # Errors
///
/// The kernel's error, `EINVAL` for an invalid transition or for attributes that the transition
/// does not take.
///
/// # Safety
///
/// 1. `request.qp_handle` must be the handle of a queue pair that the caller owns: nothing else in
///    this process relies on its state or attributes.
/// 2. After a change to RESET, no request may be pushed before the queue pair's queues were
///    [reset](crate::traits::SendQueue::reset). A device that restarts at slot 0 would otherwise
///    execute stale WQEs.
#[doc(alias = "ibv_modify_qp")]
pub unsafe fn modify_qp(file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
    // SAFETY: the command reads only its struct.
    unsafe { file.invoke::<write::ModifyQp>(request, &mut ()) }
}

/// [`modify_qp`] with a driver payload.
///
/// # Errors
///
/// As for [`modify_qp`].
///
/// # Safety
///
/// As for [`modify_qp`]. Addresses in the driver's payload must be as the driver requires.
pub unsafe fn modify_qp_with(
    file: &DeviceFile,
    request: &ModifyQpReq,
    payload: DriverPayload<'_>,
) -> Result<(), IoctlError> {
    let mut call = write::invoke_without_response::<write::ModifyQp>(file.driver_id(), request);
    add_payload!(call, payload);
    // SAFETY: only the payload can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: write::ModifyQp::INFO.rust, ..refused })
}

/// [`modify_qp`] by the extended command, which has a rate limit.
///
/// # Errors
///
/// As for [`modify_qp`].
///
/// # Safety
///
/// As for [`modify_qp_with`].
#[doc(alias = "ibv_modify_qp_rate_limit")]
pub unsafe fn modify_qp_ex(
    file: &DeviceFile,
    request: &ExModifyQp,
    payload: DriverPayload<'_>,
) -> Result<(), IoctlError> {
    let mut response = ExModifyQpResp::zeroed();
    let mut call = write::invoke::<write::ex::ModifyQp>(file.driver_id(), request, &mut response);
    add_payload!(call, payload);
    // SAFETY: only the payload can contain addresses. The caller guarantees them.
    unsafe { file.execute(&mut call) }
        .map_err(|refused| IoctlError { method: write::ex::ModifyQp::INFO.rust, ..refused })
}

/// Queries a queue pair's attributes. Most drivers return all of them, regardless of `mask`.
///
/// # Errors
///
/// The kernel's error.
#[doc(alias = "ibv_query_qp")]
pub fn query_qp(file: &DeviceFile, handle: u32, mask: QpAttrMask) -> Result<QueryQpResp, IoctlError> {
    let request = QueryQpReq { qp_handle: handle, attr_mask: mask, ..QueryQpReq::zeroed() };
    let mut response = QueryQpResp::zeroed();
    // SAFETY: the command reads and writes only its structs.
    unsafe { file.invoke::<write::QueryQp>(&request, &mut response) }?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_descriptor_gives_ebadf() {
        for number in [-1, RawFd::MIN] {
            // SAFETY: the numbers are negative.
            let refused = unsafe { own_descriptor("AsyncEventAlloc", number) }.unwrap_err();
            assert_eq!(refused, IoctlError::new("AsyncEventAlloc", Errno::BADF));
        }
    }
}
