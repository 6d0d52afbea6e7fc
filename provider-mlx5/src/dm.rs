//! Memory on the device.

use bareverbs_provider::Errno;
use bareverbs_provider::command;
use bareverbs_provider::contract::{CreateError, DmRequest};
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_provider::dm::DeviceMemory;
use bareverbs_provider::mapping::Protection;
use bareverbs_provider::unfinished::Unfinished;
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::{DmQuery, MmapCommand, attributes};
use bareverbs_uapi::uverbs::DmAlloc;

use crate::clock::offset_of;
use crate::doorbell::PAGE;

/// Takes memory that queues and regions can use (`MEMIC`), and maps it.
pub(crate) fn alloc(file: &DeviceFile, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
    let (mut start, mut page) = (0, 0);
    let mut call = Call::<DmAlloc>::new(file.driver_id());
    call.make(DmAlloc::HANDLE);
    call.input(DmAlloc::LENGTH, &request.len);
    call.input(DmAlloc::ALIGNMENT, &request.log_align);
    call.output(attributes::DmAlloc::RESP_START_OFFSET, &mut start);
    call.output(attributes::DmAlloc::RESP_PAGE_INDEX, &mut page);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    let destroy = |file: &DeviceFile, handle| {
        // SAFETY: `Unfinished` calls it for the memory taken above, which nothing else knows of.
        let _ = unsafe { command::free_dm(file, handle) };
    };
    // SAFETY: the memory was taken just now, and nothing else knows its handle.
    let unfinished = unsafe { Unfinished::new(file, call.made(DmAlloc::HANDLE), destroy) };
    let len = usize::try_from(request.len).map_err(|_| Refused { method: "mmap", errno: Errno::NOMEM })?;
    let memory = map(file, start, page, len)?;
    Ok((unfinished.finished(), memory))
}

/// Maps memory that somebody took in this context.
pub(crate) fn import(file: &DeviceFile, handle: u32) -> Result<DeviceMemory, CreateError> {
    let (mut start, mut page, mut length) = (0, 0, 0);
    let mut call = Call::<DmQuery>::new(file.driver_id());
    call.handle(DmQuery::REQ_HANDLE, handle);
    call.output(DmQuery::RESP_START_OFFSET, &mut start);
    call.output(DmQuery::RESP_PAGE_INDEX, &mut page);
    call.output(DmQuery::RESP_LENGTH, &mut length);
    // SAFETY: the method writes nothing but its attributes.
    unsafe { file.execute(&mut call) }?;
    let wrong = CreateError::Layout { queue: "device memory", problem: "an odd length", value: length };
    let len = usize::try_from(length).ok().filter(|len| (1..=isize::MAX as usize - 2 * PAGE).contains(len));
    map(file, start, page, len.ok_or(wrong)?)
}

fn map(file: &DeviceFile, start: u64, page: u16, len: usize) -> Result<DeviceMemory, CreateError> {
    // It starts in its first page, wherever that is.
    let within = start as usize % PAGE;
    let whole = (within + len).next_multiple_of(PAGE);
    let mapping = file.map(offset_of(MmapCommand::DEVICE_MEM, page), whole, Protection::ReadWrite)?;
    let wrong = CreateError::Layout { queue: "device memory", problem: "an odd start", value: start };
    // SAFETY: the kernel maps the pages of this memory there, and other values over them access
    // them by words too.
    unsafe { DeviceMemory::new(mapping, within, len) }.ok_or(wrong)
}
