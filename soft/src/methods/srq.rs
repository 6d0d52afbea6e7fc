//! Shared receive queues.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_uapi::method::UHW_OUT;
use bareverbs_uapi::rxe::{CreateSrqResp as DriverResp, MmapInfo, ModifySrqCmd};
use bareverbs_uapi::uverbs::types::SrqType;
use bareverbs_uapi::uverbs::{ObjectClass, SrqCreate};
use bareverbs_uapi::verbs_values::SrqAttrMask;
use bareverbs_uapi::write::structs::{
    CreateSrqReq, CreateSrqResp, CreateXsrqReq, ModifySrqReq, QuerySrqReq, QuerySrqResp,
};
use zerocopy::{FromZeros, IntoBytes};

use super::write_command::Command;
use crate::call::{Call, Sink};
use crate::channel::{ChannelKind, ChannelUse, ObjectSink};
use crate::objects::{Object, Srq, Transaction};
use crate::port::{MAX_SRQ_SGE, MAX_WR};

/// An SRQ to create.
struct Request {
    pd_handle: u32,
    user_handle: u64,
    srq_type: SrqType,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    events: Option<ChannelUse>,
}

/// Creates an SRQ. Returns the maximum numbers of its receives and of their SGEs.
fn make(txn: &mut Transaction<'_>, handle: u32, request: Request, driver: Sink) -> Result<(u32, u32), Errno> {
    let pd = *txn.state.pd(request.pd_handle)?;
    if driver.len < size_of::<DriverResp>() {
        return Err(Errno::INVAL);
    }
    if request.srq_type != SrqType::BASIC {
        return Err(Errno::OPNOTSUPP);
    }
    if !(1..=MAX_WR).contains(&request.max_wr) || request.max_sge > MAX_SRQ_SGE {
        return Err(Errno::INVAL);
    }
    let max_sge = request.max_sge.max(1);
    let sink = Arc::new(ObjectSink::new(request.events, request.user_handle));
    let created = txn
        .state
        .port
        .with(|engine| engine.create_srq(pd, request.max_wr, max_sge, request.limit, Arc::clone(&sink)));
    let (id, memory) = created?;
    let mi = txn.state.add_ring(&memory);
    txn.state.fill(handle, Object::Srq(Srq { id, sink, ring: mi.offset }), &[request.pd_handle]);
    driver.write(0, DriverResp { mi, srq_num: id, reserved: 0 }.as_bytes())?;
    Ok((memory.capacity(), max_sge))
}

pub(super) fn create(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let max_sge = call.value(SrqCreate::MAX_SGE.id())?;
    let max_wr = call.value(SrqCreate::MAX_WR.id())?;
    let limit = call.value(SrqCreate::LIMIT.id())?;
    let user_handle = call.value(SrqCreate::USER_HANDLE.id())?;
    let srq_type = SrqType(call.constant(SrqCreate::TYPE.id())? as u32);
    match srq_type {
        SrqType::BASIC => {}
        // Types with a CQ.
        SrqType::XRC | SrqType::TM => {
            call.handle(SrqCreate::CQ_HANDLE.id())?;
            if srq_type == SrqType::XRC {
                call.handle(SrqCreate::XRCD_HANDLE.id())?;
            }
        }
        _ => return Err(Errno::INVAL),
    }
    let events = call.channel(txn.state, SrqCreate::EVENT_FD.id(), ChannelKind::Async)?;
    let events = events.or_else(|| txn.state.default_events());
    let pd_handle = call.handle(SrqCreate::PD_HANDLE.id())?;
    let request = Request { pd_handle, user_handle, srq_type, max_wr, max_sge, limit, events };
    let handle = call.handle(SrqCreate::HANDLE.id())?;
    let (max_wr, max_sge) = make(txn, handle, request, call.sink(UHW_OUT))?;
    call.write(SrqCreate::RESP_MAX_WR.id(), max_wr.as_bytes())?;
    call.write(SrqCreate::RESP_MAX_SGE.id(), max_sge.as_bytes())?;
    call.mark_written(UHW_OUT);
    Ok(())
}

fn create_of(
    txn: &mut Transaction<'_>,
    command: &mut Command<'_>,
    request: CreateXsrqReq,
) -> Result<(), Errno> {
    let handle = txn.reserve(ObjectClass::SRQ)?;
    let srq_type = request.srq_type;
    if srq_type == SrqType::XRC {
        // There are no XRC domains.
        return Err(Errno::INVAL);
    }
    if srq_type == SrqType::TM {
        txn.state.cq(request.cq_handle)?;
    }
    let CreateXsrqReq { user_handle, pd_handle, max_wr, max_sge, srq_limit: limit, .. } = request;
    let events = txn.state.default_events();
    let request = Request { pd_handle, user_handle, srq_type, max_wr, max_sge, limit, events };
    let (max_wr, max_sge) = make(txn, handle, request, command.driver_output)?;
    command.respond(&CreateSrqResp { srq_handle: handle, max_wr, max_sge, srqn: 0, driver_data: [] })
}

pub(super) fn create_by_command(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let CreateSrqReq { user_handle, pd_handle, max_wr, max_sge, srq_limit, .. } = command.request()?;
    let basic = CreateXsrqReq { srq_type: SrqType::BASIC, ..CreateXsrqReq::zeroed() };
    create_of(txn, command, CreateXsrqReq { user_handle, pd_handle, max_wr, max_sge, srq_limit, ..basic })
}

pub(super) fn create_of_type(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request = command.request()?;
    create_of(txn, command, request)
}

pub(super) fn modify(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let ModifySrqReq { srq_handle, attr_mask, max_wr, srq_limit, .. } = command.request()?;
    let id = txn.state.srq(srq_handle)?.id;
    let mut driver = ModifySrqCmd::new_zeroed();
    if command.driver_input.len() < size_of::<ModifySrqCmd>() {
        return Err(Errno::INVAL);
    }
    command.driver_input.read(0, driver.as_mut_bytes())?;
    let port = std::sync::Arc::clone(&txn.state.port);
    let (size, _, limit) = port.with(|engine| engine.srq(id).ok_or(Errno::INVAL))?;
    let resizes = attr_mask.contains(SrqAttrMask::MAX_WR);
    let limits = attr_mask.contains(SrqAttrMask::LIMIT);
    if resizes && (!(1..=MAX_WR).contains(&max_wr) || (limit != 0 && max_wr < limit)) {
        return Err(Errno::INVAL);
    }
    if limits && (srq_limit > MAX_WR || srq_limit > size) {
        return Err(Errno::INVAL);
    }
    if resizes {
        let sink = Sink { address: driver.mmap_info_addr, len: size_of::<MmapInfo>() };
        // After the resize, no error may keep the program from its new queue.
        sink.write(0, MmapInfo::zeroed().as_bytes())?;
        let memory = port.with(|engine| engine.resize_srq(id, max_wr))?;
        let mi = txn.state.add_ring(&memory);
        txn.state.replace_srq_ring(srq_handle, mi.offset);
        sink.write(0, mi.as_bytes())?;
    }
    if limits {
        port.with(|engine| engine.set_srq_limit(id, srq_limit))?;
    }
    Ok(())
}

pub(super) fn query(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let QuerySrqReq { srq_handle, .. } = command.request()?;
    let id = txn.state.srq(srq_handle)?.id;
    let (max_wr, max_sge, srq_limit) = txn.state.port.with(|engine| engine.srq(id).ok_or(Errno::INVAL))?;
    command.respond(&QuerySrqResp { max_wr, max_sge, srq_limit, reserved: 0 })
}
