//! Completion queues.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_uapi::method::UHW_OUT;
use bareverbs_uapi::rxe::{CreateCqResp as DriverResp, MmapInfo};
use bareverbs_uapi::uverbs::{CqCreate, ObjectClass};
use bareverbs_uapi::write::structs::{
    CreateCqReq, CreateCqResp, DestroyCqResp, ExCreateCq, ExCreateCqResp, ReqNotifyCqReq, ResizeCqReq,
    ResizeCqResp,
};
use bareverbs_uapi::write::types::CqCreateFlags;
use zerocopy::IntoBytes;

use super::write_command::Command;
use crate::call::{Call, Sink, channel_of, named};
use crate::channel::{ChannelKind, ChannelUse, CqSink};
use crate::objects::{Cq, EventCounts, Object, Transaction};
use crate::port::{COMPLETION_VECTORS, MAX_CQE};

/// The numbers of events in the response of a destruction.
pub(super) fn reported(reported: EventCounts) -> DestroyCqResp {
    DestroyCqResp { comp_events_reported: reported.completions, async_events_reported: reported.asynchronous }
}

/// A CQ to create.
struct Request {
    user_handle: u64,
    entries: u32,
    flags: CqCreateFlags,
    completions: Option<ChannelUse>,
    events: Option<ChannelUse>,
}

fn check_entries(entries: u32) -> Result<(), Errno> {
    if (1..=MAX_CQE).contains(&entries) { Ok(()) } else { Err(Errno::INVAL) }
}

/// Creates a CQ. Returns its number of entries.
fn make(txn: &mut Transaction<'_>, handle: u32, request: Request, driver: Sink) -> Result<u32, Errno> {
    if driver.len < size_of::<DriverResp>() {
        return Err(Errno::INVAL);
    }
    if !request.flags.is_empty() {
        return Err(Errno::OPNOTSUPP);
    }
    check_entries(request.entries)?;
    let sink = Arc::new(CqSink::new(request.completions, request.events, request.user_handle));
    let (id, memory) = txn.state.port.with(|engine| engine.create_cq(request.entries, Arc::clone(&sink)))?;
    let mi = txn.state.add_ring(&memory);
    txn.state.fill(handle, Object::Cq(Cq { id, sink, ring: mi.offset }), &[]);
    driver.write(0, DriverResp { mi }.as_bytes())?;
    Ok(memory.capacity())
}

pub(super) fn create(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let vector: u32 = call.value(CqCreate::COMP_VECTOR.id())?;
    let entries: u32 = call.value(CqCreate::CQE.id())?;
    let user_handle: u64 = call.value(CqCreate::USER_HANDLE.id())?;
    let flags = call.flags(CqCreate::FLAGS.id(), named(&CqCreateFlags::INFO))?;
    let completions = call.channel(txn.state, CqCreate::COMP_CHANNEL.id(), ChannelKind::Completion)?;
    if vector >= COMPLETION_VECTORS || entries == 0 {
        return Err(Errno::INVAL);
    }
    let events = call.channel(txn.state, CqCreate::EVENT_FD.id(), ChannelKind::Async)?;
    let events = events.or_else(|| txn.state.default_events());
    let flags = CqCreateFlags::from_bits_retain(flags);
    let request = Request { user_handle, entries, flags, completions, events };
    let granted = make(txn, call.handle(CqCreate::HANDLE.id())?, request, call.sink(UHW_OUT))?;
    call.write(CqCreate::RESP_CQE.id(), granted.as_bytes())?;
    call.mark_written(UHW_OUT);
    Ok(())
}

fn create_of(txn: &mut Transaction<'_>, command: &mut Command<'_>, request: ExCreateCq) -> Result<(), Errno> {
    if request.comp_vector >= COMPLETION_VECTORS || request.cqe == 0 {
        return Err(Errno::INVAL);
    }
    let handle = txn.reserve(ObjectClass::CQ)?;
    let completions = match request.comp_channel {
        ..0 => None,
        fd => Some(channel_of(txn.state, ChannelKind::Completion, fd)?),
    };
    let events = txn.state.default_events();
    let ExCreateCq { user_handle, cqe: entries, flags, .. } = request;
    let request = Request { user_handle, entries, flags, completions, events };
    let cqe = make(txn, handle, request, command.driver_output)?;
    command.respond(&ExCreateCqResp {
        base: CreateCqResp { cq_handle: handle, cqe, driver_data: [] },
        comp_mask: 0,
        response_length: command.response_length(size_of::<ExCreateCqResp>()),
    })
}

pub(super) fn create_by_command(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let CreateCqReq { user_handle, cqe, comp_vector, comp_channel, .. } = command.request()?;
    let request = ExCreateCq { user_handle, cqe, comp_vector, comp_channel, ..ExCreateCq::zeroed() };
    create_of(txn, command, request)
}

pub(super) fn create_extended(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: ExCreateCq = command.request()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(Errno::INVAL);
    }
    create_of(txn, command, request)
}

pub(super) fn resize(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let ResizeCqReq { cq_handle, cqe, .. } = command.request()?;
    let id = txn.state.cq(cq_handle)?.id;
    if command.driver_output.len < size_of::<MmapInfo>() {
        return Err(Errno::INVAL);
    }
    check_entries(cqe)?;
    // After the resize, no error may keep the program from its new queue.
    command.driver_output.write(0, MmapInfo::zeroed().as_bytes())?;
    let memory = txn.state.port.with(|engine| engine.resize_cq(id, cqe))?;
    let mi = txn.state.add_ring(&memory);
    txn.state.replace_cq_ring(cq_handle, mi.offset);
    command.driver_output.write(0, mi.as_bytes())?;
    command.respond(&ResizeCqResp { cqe: memory.capacity(), reserved: 0, driver_data: [] })
}

pub(super) fn request_notification(
    txn: &mut Transaction<'_>,
    command: &mut Command<'_>,
) -> Result<(), Errno> {
    let ReqNotifyCqReq { cq_handle, solicited_only } = command.request()?;
    let cq = txn.state.cq(cq_handle)?;
    txn.state.port.run(|engine| engine.arm_cq(cq.id, solicited_only != 0))
}
