//! The device's clock.

use std::sync::OnceLock;

use bareverbs_provider::Errno;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::mlx5::{AllocUcontextResp, AllocUcontextRespMask, MmapCommand};

use crate::doorbell::PAGE;

/// Bytes of the clock: two words, the high word first.
const CLOCK: usize = 8;

/// The page with the clock, mapped at the first read.
#[derive(Debug, Default)]
pub(crate) struct Clock(OnceLock<Result<Page, CreateError>>);

#[derive(Debug)]
struct Page {
    memory: Mapping,
    /// Offset of the clock in the page.
    offset: usize,
}

impl Clock {
    pub(crate) fn read(&self, file: &DeviceFile, resp: &AllocUcontextResp) -> Result<u64, CreateError> {
        let page = self.0.get_or_init(|| Page::new(file, resp));
        page.as_ref().map(Page::read).map_err(|error| *error)
    }
}

/// The mmap offset of a page. The page number of the offset is the command, with the index in the
/// bits around it.
pub(crate) fn offset_of(command: MmapCommand, index: u16) -> u64 {
    let index = u64::from(index);
    (u64::from(command.0) << 8 | index & 0xff | (index >> 8) << 16) * PAGE as u64
}

impl Page {
    fn new(file: &DeviceFile, resp: &AllocUcontextResp) -> Result<Self, CreateError> {
        // The kernel reports no offset if its pages are larger than the device's.
        if !resp.comp_mask.contains(AllocUcontextRespMask::CORE_CLOCK_OFFSET) {
            return Err(CreateError::Unsupported { feature: Feature::DeviceClock });
        }
        let offset = usize::try_from(resp.hca_core_clock_offset).unwrap_or(usize::MAX);
        if offset > PAGE - CLOCK || !offset.is_multiple_of(CLOCK) {
            let (problem, value) = ("the clock is outside its page", resp.hca_core_clock_offset);
            return Err(CreateError::Layout { queue: "clock", problem, value });
        }
        let memory = file.map(offset_of(MmapCommand::CORE_CLOCK, 0), PAGE, Protection::Read)?;
        if memory.len() < PAGE {
            return Err(IoctlError::new("mmap", Errno::INVAL).into());
        }
        Ok(Self { memory, offset })
    }

    fn read(&self) -> u64 {
        let word = |index: usize| {
            // SAFETY: the clock lies in the page, as `new` checked. The device updates each word
            // atomically.
            u32::from_be(unsafe {
                self.memory.as_ptr().add(self.offset).cast::<u32>().add(index).read_volatile()
            })
        };
        // The high word may change between its read and that of the low word. It changes at most
        // once, because the low word takes seconds to wrap around.
        let (mut high, mut low) = (word(0), word(1));
        let again = word(0);
        if again != high {
            (high, low) = (again, word(1));
        }
        u64::from(high) << 32 | u64::from(low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mmap_offset_encodes_command_and_index() {
        assert_eq!(offset_of(MmapCommand::CORE_CLOCK, 0), 0x500 << 12);
        assert_eq!(offset_of(MmapCommand::DEVICE_MEM, 0x1234), 0x12_0834 << 12);
    }

    #[test]
    fn clock_is_read_high_word_first() {
        let memory = Mapping::anonymous(PAGE).unwrap();
        // SAFETY: within the page, which this test owns.
        unsafe { memory.as_ptr().add(16).cast::<u64>().write(0x0102_0304_0506_0708u64.to_be()) };
        assert_eq!(Page { memory, offset: 16 }.read(), 0x0102_0304_0506_0708);
    }
}
