//! Device memory.

use bareverbs_provider::Errno;
use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::dm::DeviceMemory;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::handle_guard::HandleGuard;
use bareverbs_provider::mapping::Protection;
use bareverbs_provider::request::DmRequest;
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::{DmQuery, MmapCommand, attributes};
use bareverbs_uapi::uverbs::DmAlloc;

use super::clock::offset_of;
use crate::doorbell::PAGE;

/// Allocates device memory that queues and MRs can use (`MEMIC`), and maps it.
pub(crate) fn alloc(file: &DeviceFile, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
    let (mut start, mut page) = (0, 0);
    let mut call = Call::<DmAlloc>::new(file.driver_id());
    call.make(DmAlloc::HANDLE);
    call.input(DmAlloc::LENGTH, &request.len);
    call.input(DmAlloc::ALIGNMENT, &request.log_align);
    call.output(attributes::DmAlloc::RESP_START_OFFSET, &mut start);
    call.output(attributes::DmAlloc::RESP_PAGE_INDEX, &mut page);
    // SAFETY: the method writes only to its attributes.
    unsafe { file.execute(&mut call) }?;
    // SAFETY: the memory was just allocated and has no other user.
    let guard = unsafe { HandleGuard::new(file, call.made(DmAlloc::HANDLE), command::free_dm, ()) };
    let len = usize::try_from(request.len).map_err(|_| IoctlError::new("mmap", Errno::NOMEM))?;
    let memory = map(file, start, page, len)?;
    Ok((guard.disarm().0, memory))
}

/// Maps device memory of this context by its handle.
pub(crate) fn import(file: &DeviceFile, handle: u32) -> Result<DeviceMemory, CreateError> {
    let (mut start, mut page, mut length) = (0, 0, 0);
    let mut call = Call::<DmQuery>::new(file.driver_id());
    call.handle(DmQuery::REQ_HANDLE, handle);
    call.output(DmQuery::RESP_START_OFFSET, &mut start);
    call.output(DmQuery::RESP_PAGE_INDEX, &mut page);
    call.output(DmQuery::RESP_LENGTH, &mut length);
    // SAFETY: the method writes only to its attributes.
    unsafe { file.execute(&mut call) }?;
    let wrong = CreateError::Layout { queue: "device memory", problem: "an invalid length", value: length };
    let len = usize::try_from(length).ok().filter(|len| (1..=isize::MAX as usize - 2 * PAGE).contains(len));
    map(file, start, page, len.ok_or(wrong)?)
}

/// Offset of the memory in its first page, and the bytes of all its pages.
fn extent(start: u64, len: usize) -> Result<(usize, usize), CreateError> {
    let within = start as usize % PAGE;
    let whole = within.checked_add(len).and_then(|end| end.checked_next_multiple_of(PAGE));
    // A mapping has at most `isize::MAX` bytes.
    let whole = whole.filter(|whole| isize::try_from(*whole).is_ok());
    let wrong =
        CreateError::Layout { queue: "device memory", problem: "an invalid length", value: len as u64 };
    Ok((within, whole.ok_or(wrong)?))
}

fn map(file: &DeviceFile, start: u64, page: u16, len: usize) -> Result<DeviceMemory, CreateError> {
    let (within, whole) = extent(start, len)?;
    let offset = offset_of(MmapCommand::DEVICE_MEM, page);
    let mapping = file.map(offset, whole, Protection::ReadWrite)?;
    let wrong = CreateError::Layout { queue: "device memory", problem: "an invalid start", value: start };
    // SAFETY: the kernel maps the pages of this memory there. Other mappings of them are accessed
    // by words as well.
    let memory = unsafe { DeviceMemory::new(mapping, within, len) }.ok_or(wrong)?;
    Ok(memory.at_file_offset(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alloc_dm_rejects_length_overflow() {
        assert_eq!(extent(0x1010, 0xff0), Ok((0x10, 0x1000)));
        assert_eq!(extent(0x1010, 0xff1), Ok((0x10, 0x2000)));
        for len in [usize::MAX, usize::MAX - 0xfff, isize::MAX as usize] {
            let value = len as u64;
            let wrong = CreateError::Layout { queue: "device memory", problem: "an invalid length", value };
            assert_eq!(extent(0x1010, len), Err(wrong), "{len:#x}");
        }
    }
}
