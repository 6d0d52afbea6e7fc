//! The clock page, by which the kernel converts the device's clock to nanoseconds.

use std::mem::offset_of;
use std::sync::OnceLock;

use bareverbs_provider::Errno;
use bareverbs_provider::barrier;
use bareverbs_provider::clock::ClockInfo;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::mlx5::{self, AllocUcontextResp, CLOCK_INFO_KERNEL_UPDATING, CLOCK_INFO_V1, MmapCommand};

use super::clock::offset_of as mmap_offset;
use crate::doorbell::PAGE;

/// Attempts to read the page between two updates. An update takes a few stores, and the kernel makes
/// less than one in a second, unless a PTP daemon adjusts the clock.
const ATTEMPTS: u32 = 1 << 16;

/// The clock page, mapped at the first read.
#[derive(Debug, Default)]
pub(crate) struct ClockPage(OnceLock<Result<Mapping, CreateError>>);

impl ClockPage {
    pub(crate) fn read(&self, file: &DeviceFile, resp: &AllocUcontextResp) -> Result<ClockInfo, CreateError> {
        let page = self.0.get_or_init(|| map(file, resp));
        page.as_ref().map_err(|error| *error).and_then(|page| {
            let busy = IoctlError::new("clock page", Errno::BUSY);
            Ok(read(page).ok_or(busy)?)
        })
    }
}

fn map(file: &DeviceFile, resp: &AllocUcontextResp) -> Result<Mapping, CreateError> {
    if resp.clock_info_versions >> CLOCK_INFO_V1 & 1 == 0 {
        return Err(CreateError::Unsupported { feature: Feature::ClockInfo });
    }
    let memory =
        file.map(mmap_offset(MmapCommand::CLOCK_INFO, CLOCK_INFO_V1 as u16), PAGE, Protection::Read)?;
    if memory.len() < size_of::<mlx5::ClockInfo>() {
        return Err(IoctlError::new("mmap", Errno::INVAL).into());
    }
    Ok(memory)
}

/// Reads a consistent state of the page. `None` if the kernel updates it all the time.
///
/// The kernel (`mlx5_update_clock_info_page`) sets a flag in `sign` before an update, and increments
/// the count in it afterwards.
fn read(page: &Mapping) -> Option<ClockInfo> {
    debug_assert!(page.len() >= size_of::<mlx5::ClockInfo>());
    let start = page.as_ptr();
    // SAFETY: the page has the whole struct, as `map` checked, and each field is aligned in it. The
    // kernel writes each field by one store.
    let word = |at: usize| unsafe { start.add(at).cast::<u32>().read_volatile() };
    // SAFETY: as above.
    let long = |at: usize| unsafe { start.add(at).cast::<u64>().read_volatile() };
    for _ in 0..ATTEMPTS {
        let sign = word(offset_of!(mlx5::ClockInfo, sign));
        barrier::between_reads();
        let info = ClockInfo {
            nsec: long(offset_of!(mlx5::ClockInfo, nsec)),
            cycles: long(offset_of!(mlx5::ClockInfo, cycles)),
            frac: long(offset_of!(mlx5::ClockInfo, frac)),
            mult: word(offset_of!(mlx5::ClockInfo, mult)),
            shift: word(offset_of!(mlx5::ClockInfo, shift)),
            mask: long(offset_of!(mlx5::ClockInfo, mask)),
        };
        barrier::between_reads();
        if sign & CLOCK_INFO_KERNEL_UPDATING == 0 && sign == word(offset_of!(mlx5::ClockInfo, sign)) {
            return Some(info);
        }
        std::hint::spin_loop();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

    use super::*;

    /// The other side of the page, as the kernel accesses it.
    fn words(page: &Mapping) -> (&AtomicU32, [&AtomicU64; 3]) {
        // SAFETY: within the page, aligned, and never accessed non-atomically by this test.
        let sign = unsafe { AtomicU32::from_ptr(page.as_ptr().as_ptr().cast()) };
        let at = [
            offset_of!(mlx5::ClockInfo, nsec),
            offset_of!(mlx5::ClockInfo, cycles),
            offset_of!(mlx5::ClockInfo, mask),
        ];
        // SAFETY: as above.
        (sign, at.map(|at| unsafe { AtomicU64::from_ptr(page.as_ptr().as_ptr().add(at).cast()) }))
    }

    #[test]
    fn page_under_update_is_not_read() {
        let page = Mapping::anonymous(PAGE).unwrap();
        let (sign, [nsec, cycles, mask]) = words(&page);
        nsec.store(7, Ordering::Relaxed);
        cycles.store(8, Ordering::Relaxed);
        mask.store(9, Ordering::Relaxed);
        let expected = ClockInfo { nsec: 7, cycles: 8, mask: 9, ..ClockInfo::default() };
        assert_eq!(read(&page), Some(expected));
        sign.store(5, Ordering::Relaxed);
        assert_eq!(read(&page), None);
        sign.store(6, Ordering::Relaxed);
        assert_eq!(read(&page), Some(expected));
    }

    #[test]
    fn concurrent_updates_are_read_whole() {
        let page = Mapping::anonymous(PAGE).unwrap();
        let (sign, fields) = words(&page);
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for number in 1..=100_000_u64 {
                    let old = sign.load(Ordering::Relaxed);
                    sign.swap(old | CLOCK_INFO_KERNEL_UPDATING, Ordering::SeqCst);
                    for field in fields {
                        field.store(number, Ordering::Release);
                    }
                    sign.store(old.wrapping_add(2), Ordering::Release);
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let Some(info) = read(&page) else { continue };
                assert_eq!((info.nsec, info.nsec), (info.cycles, info.mask));
                assert!(info.nsec >= last);
                last = info.nsec;
            }
        });
    }
}
