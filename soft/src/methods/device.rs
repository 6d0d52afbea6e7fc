//! Context, device, port, GID table and channels.

use bareverbs_provider::Errno;
use bareverbs_uapi::uverbs::types::{CoreSupport, GidEntry};
use bareverbs_uapi::uverbs::{GetContext, InfoHandles, ObjectClass, QueryGidEntry, QueryGidTable, QueryPort};
use bareverbs_uapi::write::structs::{
    CreateCompChannelReq, CreateCompChannelResp, ExQueryDevice, ExQueryDeviceResp, GetContextReq,
    GetContextResp, QueryDeviceReq, QueryPortReq,
};
use zerocopy::IntoBytes;

use super::write_command::Command;
use crate::call::Call;
use crate::channel::ChannelKind;
use crate::objects::{Transaction, is_class};
use crate::port::{COMPLETION_VECTORS, PORT};

pub(super) fn get_context(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    call.write_optional(GetContext::NUM_COMP_VECTORS.id(), COMPLETION_VECTORS.as_bytes())?;
    call.write_optional(GetContext::CORE_SUPPORT.id(), CoreSupport::OPTIONAL_MR_ACCESS.as_bytes())?;
    // Descriptors of other contexts: of devices that share contexts only.
    if call.has(GetContext::FD_ARR.id()) {
        return Err(Errno::BADF);
    }
    txn.create_context()
}

pub(super) fn get_context_by_command(
    txn: &mut Transaction<'_>,
    command: &mut Command<'_>,
) -> Result<(), Errno> {
    command.request::<GetContextReq>()?;
    if command.by_ioctl {
        command.respond(&GetContextResp::zeroed())?;
        // Linux 7.2 takes the command number for descriptors of other contexts.
        return Err(Errno::BADF);
    }
    txn.create_context()?;
    let async_fd = txn.new_channel(ChannelKind::Async)?.cast_unsigned();
    command.respond(&GetContextResp { async_fd, num_comp_vectors: COMPLETION_VECTORS, driver_data: [] })
}

pub(super) fn info_handles(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    let class = call.constant(InfoHandles::OBJECT_ID.id())? as u16;
    let room = call.sink(InfoHandles::HANDLES_LIST.id()).len / size_of::<u32>();
    if !call.has(InfoHandles::HANDLES_LIST.id()) {
        return Err(Errno::INVAL);
    }
    if !is_class(class) {
        return Err(Errno::NOENT);
    }
    let mut handles = txn.state.handles(ObjectClass(class));
    handles.truncate(room);
    call.write(InfoHandles::HANDLES_LIST.id(), handles.as_bytes())?;
    call.write(InfoHandles::TOTAL_HANDLES.id(), (handles.len() as u32).as_bytes())
}

pub(super) fn query_port(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    txn.state.need_context()?;
    check_port(call.constant(QueryPort::PORT_NUM.id())?)?;
    let response = txn.state.port.query_port();
    call.write_struct(QueryPort::RESP.id(), response.as_bytes())
}

/// # Errors
///
/// `EINVAL` for a port that the device doesn't have.
pub(super) fn check_port(port: u64) -> Result<(), Errno> {
    if port == u64::from(PORT) { Ok(()) } else { Err(Errno::INVAL) }
}

pub(super) fn query_gid_table(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    call.flags(QueryGidTable::FLAGS.id(), 0)?;
    let size = call.constant(QueryGidTable::ENTRY_SIZE.id())?;
    let size = usize::try_from(size).ok().filter(|size| *size > 0).ok_or(Errno::INVAL)?;
    let room = call.sink(QueryGidTable::RESP_ENTRIES.id()).len;
    if !room.is_multiple_of(size) || room == 0 {
        return Err(Errno::INVAL);
    }
    txn.state.need_context()?;
    let port = &txn.state.port;
    let count = port.gids.len();
    if room / size < count {
        return Err(Errno::INVAL);
    }
    let mut bytes = vec![0; count * size];
    for (index, entry) in bytes.chunks_exact_mut(size).enumerate() {
        let from = port.gid_entry(index as u32)?;
        let len = size.min(size_of::<GidEntry>());
        entry[..len].copy_from_slice(&from.as_bytes()[..len]);
    }
    call.write(QueryGidTable::RESP_ENTRIES.id(), &bytes)?;
    call.write(QueryGidTable::RESP_NUM_ENTRIES.id(), (count as u64).as_bytes())
}

pub(super) fn query_gid_entry(txn: &mut Transaction<'_>, call: &mut Call<'_>) -> Result<(), Errno> {
    call.flags(QueryGidEntry::FLAGS.id(), 0)?;
    let port = call.constant(QueryGidEntry::PORT.id())?;
    let index = call.constant(QueryGidEntry::GID_INDEX.id())?;
    txn.state.need_context()?;
    check_port(port)?;
    let entry = txn.state.port.gid_entry(index as u32)?;
    call.write_struct(QueryGidEntry::RESP_ENTRY.id(), entry.as_bytes())
}

pub(super) fn query(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    txn.state.need_context()?;
    command.request::<QueryDeviceReq>()?;
    command.respond(&txn.state.port.query_device())
}

pub(super) fn query_extended(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    txn.state.need_context()?;
    let request: ExQueryDevice = command.request()?;
    if request.comp_mask != 0 || request.reserved != 0 {
        return Err(Errno::INVAL);
    }
    if !command.driver_input.is_zero_from(0)? {
        return Err(Errno::OPNOTSUPP);
    }
    let mut response = txn.state.port.query_device_extended();
    response.response_length = command.response_length(size_of::<ExQueryDeviceResp>());
    command.respond(&response)
}

pub(super) fn query_port_by_command(
    txn: &mut Transaction<'_>,
    command: &mut Command<'_>,
) -> Result<(), Errno> {
    txn.state.need_context()?;
    let request: QueryPortReq = command.request()?;
    check_port(request.port_num.into())?;
    command.respond(&txn.state.port.query_port().legacy_resp)
}

pub(super) fn create_comp_channel(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    command.request::<CreateCompChannelReq>()?;
    let fd = txn.new_channel(ChannelKind::Completion)?;
    command.respond(&CreateCompChannelResp { fd: fd.cast_unsigned() })
}
