//! Names of objects and memory in a recording, and what they are in the replay.

use std::collections::HashMap;
use std::ptr;

use bareverbs_uapi::abi::StructInfo;
use bareverbs_uapi::print::native;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{UNMAPPED, fields};

/// The largest region that is mapped for a recorded address, in bytes.
const MAX_REGION: u64 = 1 << 30;
const PAGE: u64 = 4096;
/// The length that is mapped for a queue of mlx5, whose request has only its address. It is more than
/// the largest queue of a device, and takes memory only as far as it is used.
const QUEUE: u64 = 1 << 26;

/// Memory for a recorded range of addresses.
struct Region {
    recorded: u64,
    length: u64,
    /// The first page.
    start: *mut std::ffi::c_void,
    mapped: usize,
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `start` and `mapped` are those of a mapping that this value owns. No reference to it
        // exists: only the kernel accesses it, which keeps pages that a device still uses.
        let _ = unsafe { munmap(self.start, self.mapped) };
    }
}

/// The names of one open file. Handles of all classes share one space of numbers.
#[derive(Default)]
pub(super) struct Names {
    handles: HashMap<u64, u64>,
    numbers: HashMap<u64, u64>,
    /// Page indices of UARs of mlx5.
    uars: HashMap<u64, u64>,
    regions: Vec<Region>,
}

/// Fields of responses with numbers that later requests repeat.
const NUMBERS: [&str; 5] = ["qpn", "lkey", "rkey", "srqn", "wqn"];
/// Fields of requests with such numbers.
const USES: [&str; 2] = ["dest_qp_num", "remote_qpn"];

fn is_handle(field: &str, size: usize) -> bool {
    size == 4 && (field.ends_with("handle") || field == "ah")
}

impl Names {
    pub(super) fn handle(&self, recorded: u64) -> u64 {
        self.handles.get(&recorded).copied().unwrap_or(recorded)
    }

    pub(super) fn learn_handle(&mut self, recorded: u64, here: u64) {
        self.handles.insert(recorded, here);
    }

    pub(super) fn learn_number(&mut self, recorded: u64, here: u64) {
        self.numbers.insert(recorded, here);
    }

    pub(super) fn learn_uar(&mut self, recorded: u64, here: u64) {
        self.uars.insert(recorded, here);
    }

    /// Replaces an array of handles.
    pub(super) fn handles(&self, bytes: &mut [u8]) {
        for handle in bytes.chunks_exact_mut(4) {
            let here = self.handle(native(handle));
            handle.copy_from_slice(&(here as u32).to_ne_bytes());
        }
    }

    /// Replaces the address in 8 bytes by one of memory with the same offset in a page.
    pub(super) fn memory(&mut self, address: &mut [u8], length: u64) {
        let here = self.address(native(address), length);
        address.copy_from_slice(&here.to_ne_bytes());
    }

    fn address(&mut self, recorded: u64, length: u64) -> u64 {
        // No address of memory: below `vm.mmap_min_addr`, or not of user space.
        if recorded < PAGE || recorded >> 47 != 0 {
            return recorded;
        }
        let within = |region: &&Region| {
            let end = region.recorded.checked_add(region.length);
            let wanted = recorded.checked_add(length);
            region.recorded <= recorded && wanted.zip(end).is_some_and(|(wanted, end)| wanted <= end)
        };
        if let Some(region) = self.regions.iter().find(within) {
            let first = region.start.expose_provenance() as u64 + region.recorded % PAGE;
            return first + (recorded - region.recorded);
        }
        if length > MAX_REGION {
            return UNMAPPED;
        }
        let mapped = (recorded % PAGE + length).next_multiple_of(PAGE).max(PAGE) as usize;
        // SAFETY: a new anonymous mapping overlaps no other.
        let start = unsafe {
            mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let Ok(start) = start else { return UNMAPPED };
        self.regions.push(Region { recorded, length, start, mapped });
        start.expose_provenance() as u64 + recorded % PAGE
    }

    /// Replaces the handles, descriptors, numbers and addresses in a struct at the start of `bytes`.
    pub(super) fn translate(
        &mut self,
        info: &'static StructInfo,
        bytes: &mut [u8],
        descriptor: &dyn Fn(i32) -> Option<i32>,
    ) {
        let mut found = Vec::new();
        fields(info, 0, &mut |field, at, size| {
            if at + size <= bytes.len() {
                found.push((field, at, size));
            }
        });
        let number = |bytes: &[u8], name: &str| {
            let (_, at, size) = found.iter().find(|(field, ..)| *field == name)?;
            Some(native(&bytes[*at..at + size]))
        };
        let (length, first) = (number(bytes, "length").unwrap_or(PAGE), number(bytes, "start"));
        for (field, at, size) in &found {
            let bytes = &mut bytes[*at..at + size];
            let recorded = native(bytes);
            let here = match *field {
                field if is_handle(field, *size) => self.handle(recorded),
                field if USES.contains(&field) => self.numbers.get(&recorded).copied().unwrap_or(recorded),
                // An index of a UAR if a flag says so; else an index that no UAR has.
                "uar_page_index" | "bfreg_index" => self.uars.get(&recorded).copied().unwrap_or(recorded),
                "comp_channel" | "fd" if *size == 4 => {
                    let recorded = recorded as u32 as i32;
                    let here = if recorded < 0 { recorded } else { descriptor(recorded).unwrap_or(-1) };
                    u64::from(here as u32)
                }
                // The ioctl ignores it, and a write command sets it afterwards.
                "response" => 0,
                "start" | "addr" => self.address(recorded, length),
                "hca_va" if first == Some(recorded) => self.address(recorded, length),
                "buf_addr" | "sq_buf_addr" => self.address(recorded, QUEUE),
                "db_addr" => self.address(recorded, 8),
                "mmap_info_addr" | "val_ptr" | "next_ptr" => self.address(recorded, PAGE),
                _ => continue,
            };
            bytes.copy_from_slice(&here.to_ne_bytes()[..*size]);
        }
    }

    /// Notes the names in a response, and the descriptors that the call made.
    pub(super) fn learn(
        &mut self,
        info: &'static StructInfo,
        recorded: &[u8],
        here: &[u8],
        made: &mut Vec<(i32, i32)>,
    ) {
        fields(info, 0, &mut |field, at, size| {
            let (Some(was), Some(is)) = (recorded.get(at..at + size), here.get(at..at + size)) else {
                return;
            };
            let (was, is) = (native(was), native(is));
            match field {
                field if is_handle(field, size) => self.learn_handle(was, is),
                field if NUMBERS.contains(&field) => self.learn_number(was, is),
                "fd" | "async_fd" if size == 4 && is as i32 >= 0 => made.push((was as i32, is as i32)),
                _ => {}
            }
        });
    }
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("handles", &self.handles).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::registry;

    use super::*;

    #[test]
    fn numbers_are_fields_of_structs() {
        let structs = || registry::MODULES.iter().flat_map(|module| module.structs);
        for name in NUMBERS.iter().chain(&USES) {
            let has = |info: &&&StructInfo| info.fields.iter().any(|field| field.rust == *name);
            assert!(structs().any(|info| has(&info)), "{name}");
        }
    }
}
