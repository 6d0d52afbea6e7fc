//! Protection domains, memory regions and windows.

use bareverbs_provider::Errno;
use bareverbs_uapi::uverbs::types::AccessFlags;
use bareverbs_uapi::uverbs::{ObjectClass, QueryMr, RegMr};
use bareverbs_uapi::verbs_values::{MrReregFlags, MwType};
use bareverbs_uapi::write::structs::{
    AllocMwReq, AllocMwResp, AllocPdReq, AllocPdResp, RegMrReq, RegMrResp, ReregMrReq, ReregMrResp,
};
use zerocopy::IntoBytes;

use super::write_command::Command;
use crate::call::Call;
use crate::engine::{Mr, MrAttr, check_rights, known_rights};
use crate::objects::{Object, Transaction};

/// A region's address and its IOVA have the same offset in a page.
const PAGE_MASK: u64 = 4095;

pub(super) fn allocate_pd(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    command.request::<AllocPdReq>()?;
    let handle = txn.reserve(ObjectClass::PD)?;
    let pd = txn.state.port.new_protection_domain();
    txn.state.fill(handle, Object::Pd(pd), &[]);
    command.respond(&AllocPdResp { pd_handle: handle, driver_data: [] })
}

fn create(txn: &mut Transaction<'_>, handle: u32, pd_handle: u32, attr: MrAttr) -> Result<Mr, Errno> {
    // Page faults may take long: other calls don't wait for them.
    let prepared = attr.prepare()?;
    let mr = txn.state.port.with(|engine| engine.register(prepared))?;
    txn.state.fill(handle, Object::Mr(mr.id), &[pd_handle]);
    Ok(mr)
}

pub(super) fn register_by_command(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: RegMrReq = command.request()?;
    if (request.start ^ request.hca_va) & PAGE_MASK != 0 {
        return Err(Errno::INVAL);
    }
    let handle = txn.reserve(ObjectClass::MR)?;
    check_rights(request.access_flags)?;
    let attr = MrAttr {
        pd: *txn.state.pd(request.pd_handle)?,
        start: request.start,
        length: request.length,
        iova: request.hca_va,
        access: request.access_flags,
    };
    let mr = create(txn, handle, request.pd_handle, attr)?;
    command.respond(&RegMrResp { mr_handle: handle, lkey: mr.lkey, rkey: mr.rkey, driver_data: [] })
}

/// The ioctl method.
pub(super) fn register(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let pd_handle = call.handle(RegMr::PD_HANDLE.id())?;
    let iova = call.value(RegMr::IOVA.id())?;
    let length = call.value(RegMr::LENGTH.id())?;
    let access = AccessFlags::from_bits_retain(call.flags(RegMr::ACCESS_FLAGS.id(), known_rights().into())?);
    check_rights(access)?;
    if call.has(RegMr::FD.id()) || call.has(RegMr::FD_OFFSET.id()) {
        // A dma-buf.
        let both = call.has(RegMr::FD.id()) && call.has(RegMr::FD_OFFSET.id());
        let valid = both && !call.has(RegMr::ADDR.id());
        return Err(if valid { Errno::OPNOTSUPP } else { Errno::INVAL });
    }
    let start: u64 = call.value(RegMr::ADDR.id()).map_err(|errno| match errno {
        Errno::NOENT => Errno::INVAL,
        errno => errno,
    })?;
    if (start ^ iova) & PAGE_MASK != 0 {
        return Err(Errno::INVAL);
    }
    let attr = MrAttr { pd: *txn.state.pd(pd_handle)?, start, length, iova, access };
    let mr = create(txn, call.handle(RegMr::HANDLE.id())?, pd_handle, attr)?;
    call.write(RegMr::RESP_LKEY.id(), mr.lkey.as_bytes())?;
    call.write(RegMr::RESP_RKEY.id(), mr.rkey.as_bytes())
}

pub(super) fn reregister(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: ReregMrReq = command.request()?;
    let flags = request.flags;
    if flags.is_empty() {
        return Err(Errno::INVAL);
    }
    // The kernel knows a translation too, but refuses it for rxe.
    if flags.bits() & !(MrReregFlags::PD | MrReregFlags::ACCESS).bits() != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mr = *txn.state.mr(request.mr_handle)?;
    let access = flags.contains(MrReregFlags::ACCESS).then_some(request.access_flags);
    if let Some(access) = access {
        check_rights(access)?;
    }
    let pd = match flags.contains(MrReregFlags::PD) {
        true => Some(*txn.state.pd(request.pd_handle)?),
        false => None,
    };
    let mr = txn.state.port.with(|engine| engine.reregister(mr, pd, access))?;
    if pd.is_some() {
        txn.state.replace_pd(request.mr_handle, request.pd_handle);
    }
    command.respond(&ReregMrResp { lkey: mr.lkey, rkey: mr.rkey, driver_data: [] })
}

pub(super) fn query(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let mr = *txn.state.mr(call.handle(QueryMr::HANDLE.id())?)?;
    let (mr, attr) = txn.state.port.with(|engine| engine.mr(mr).ok_or(Errno::INVAL))?;
    call.write(QueryMr::RESP_LKEY.id(), mr.lkey.as_bytes())?;
    call.write(QueryMr::RESP_RKEY.id(), mr.rkey.as_bytes())?;
    call.write(QueryMr::RESP_LENGTH.id(), attr.length.as_bytes())?;
    call.write_optional(QueryMr::RESP_IOVA.id(), attr.iova.as_bytes())
}

pub(super) fn allocate_window(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let request: AllocMwReq = command.request()?;
    let handle = txn.reserve(ObjectClass::MW)?;
    let pd = *txn.state.pd(request.pd_handle)?;
    let ty = request.mw_type;
    if ty != MwType::TYPE_1 && ty != MwType::TYPE_2 {
        return Err(Errno::INVAL);
    }
    let (mw, rkey) = txn.state.port.with(|engine| engine.allocate_window(pd, ty))?;
    txn.state.fill(handle, Object::Mw(mw), &[request.pd_handle]);
    command.respond(&AllocMwResp { mw_handle: handle, rkey, driver_data: [] })
}
