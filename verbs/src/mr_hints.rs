//! Likely causes of failed registrations.

use std::fs;

use bareverbs_provider::command::MrRequest;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::{Access, Capabilities};

/// Remote rights that the kernel grants only together with `LOCAL_WRITE`.
const NEEDS_LOCAL_WRITE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// Rights that kernels ignore if they do not know them (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
pub(crate) const OPTIONAL_ACCESS: Access = Access::from_bits_retain(0x3ff0_0000);

/// Rights that have a name.
const KNOWN_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND)
    .union(Access::ZERO_BASED)
    .union(Access::ON_DEMAND)
    .union(Access::HUGETLB)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// The likely cause of `errno` for `request`, as text.
pub(crate) fn hint(errno: Errno, request: &MrRequest, capabilities: &Capabilities) -> Option<String> {
    let access = request.access;
    if matches!(errno, Errno::INVAL | Errno::OPNOTSUPP)
        && let Some(hint) = access_hint(access, capabilities)
    {
        return Some(hint);
    }
    match errno {
        Errno::OPNOTSUPP if request.dmah.is_some() && access.contains(Access::ON_DEMAND) => {
            Some("ON_DEMAND memory can't have the hints of a DMA handle: register it without one".into())
        }
        Errno::INVAL if (request.addr ^ request.iova) & 0xfff != 0 => {
            Some("iova and address must have the same offset within their page".into())
        }
        Errno::FAULT | Errno::INVAL | Errno::NOMEM => {
            let writable = access.intersects(NEEDS_LOCAL_WRITE | Access::LOCAL_WRITE);
            let maps = fs::read_to_string("/proc/self/maps").ok()?;
            let gap = first_unusable_range(&maps, request.addr, request.addr + request.length, writable);
            match gap {
                Some((start, end, what)) => Some(format!("{start:#x} to {end:#x} is {what}")),
                None if errno == Errno::NOMEM => Some(locked_memory(request.length)),
                None => None,
            }
        }
        _ => None,
    }
}

/// The error in the access rights, independent of the memory.
pub(crate) fn access_hint(access: Access, capabilities: &Capabilities) -> Option<String> {
    let unknown = access.difference(KNOWN_ACCESS.union(OPTIONAL_ACCESS));
    if access.contains(Access::ON_DEMAND) && !capabilities.odp {
        Some("the device has no on-demand paging: register without ON_DEMAND".into())
    } else if access.intersects(NEEDS_LOCAL_WRITE) && !access.contains(Access::LOCAL_WRITE) {
        Some("remote write access requires LOCAL_WRITE: add it".into())
    } else if !unknown.is_empty() {
        Some(format!("unknown access flags {unknown:?}"))
    } else {
        None
    }
}

fn locked_memory(length: u64) -> String {
    match getrlimit(Resource::Memlock).current {
        Some(limit) => format!(
            "{length} bytes may exceed the limit on locked memory, RLIMIT_MEMLOCK = {limit} bytes: \
             raise it with `ulimit -l` or LimitMEMLOCK="
        ),
        None => "not enough lockable memory".into(),
    }
}

/// The first part of `start..end` that is not mapped with the needed permissions, and the reason.
fn first_unusable_range(
    maps: &str,
    start: u64,
    end: u64,
    writable: bool,
) -> Option<(u64, u64, &'static str)> {
    let mut covered = start;
    for line in maps.lines() {
        let mut words = line.split(' ');
        let Some((from, to)) = words.next().and_then(|range| range.split_once('-')) else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else {
            continue;
        };
        if to <= covered {
            continue;
        }
        if covered >= end {
            return None;
        }
        if from > covered {
            return Some((covered, from.min(end), "not mapped"));
        }
        let permissions = words.next().unwrap_or_default().as_bytes();
        if permissions.first() != Some(&b'r') {
            return Some((covered, to.min(end), "not readable"));
        }
        if writable && permissions.get(1) != Some(&b'w') {
            return Some((covered, to.min(end), "not writable"));
        }
        covered = to;
    }
    (covered < end).then_some((covered, end, "not mapped"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
00400000-00500000 r-xp 00000000 fe:00 12 /bin/it
00500000-00600000 rw-p 00000000 00:00 0
00700000-00800000 ---p 00000000 00:00 0
";

    #[test]
    fn accessible_range_has_no_unusable_part() {
        assert_eq!(first_unusable_range(MAPS, 0x50_0000, 0x60_0000, true), None);
        assert_eq!(first_unusable_range(MAPS, 0x40_1000, 0x50_1000, false), None);
    }

    #[test]
    fn first_unusable_range_names_the_cause() {
        let unusable = |start, end, writable| first_unusable_range(MAPS, start, end, writable);
        assert_eq!(unusable(0x40_1000, 0x50_1000, true), Some((0x40_1000, 0x50_0000, "not writable")));
        assert_eq!(unusable(0x5f_f000, 0x70_0000, true), Some((0x60_0000, 0x70_0000, "not mapped")));
        assert_eq!(unusable(0x70_0000, 0x70_1000, false), Some((0x70_0000, 0x70_1000, "not readable")));
        assert_eq!(unusable(0x90_0000, 0x90_1000, false), Some((0x90_0000, 0x90_1000, "not mapped")));
        assert_eq!(unusable(0x1000, 0x2000, false), Some((0x1000, 0x2000, "not mapped")));
    }

    fn request(access: Access) -> MrRequest {
        MrRequest { pd: 0, addr: 0x1000, length: 4096, iova: 0x1000, access, dmah: None }
    }

    const CAPABILITIES: Capabilities = Capabilities {
        port_speed: false,
        odp: false,
        odp_implicit: false,
        advise_mr: false,
        completion_timestamps: false,
        compressed_completions: false,
        queue_buffers: false,
        device_memory: false,
        memory_windows: false,
        flush: false,
        atomic_write: false,
        null_mr: false,
        ece: false,
        raw_packets: false,
        work_queues: false,
        rss: false,
        xrc: false,
        import: false,
        num_comp_vectors: 1,
    };

    #[test]
    fn invalid_access_flags_are_named() {
        let hint_for = |access| hint(Errno::INVAL, &request(access), &CAPABILITIES).unwrap();
        assert!(hint_for(Access::ON_DEMAND).contains("ON_DEMAND"));
        assert!(hint_for(Access::REMOTE_WRITE).contains("requires LOCAL_WRITE: add it"));
        assert_eq!(hint_for(Access::from_bits_retain(1 << 31)), "unknown access flags 0x80000000");
    }

    #[test]
    fn hints_for_on_demand_memory_are_named() {
        let odp = Capabilities { odp: true, ..CAPABILITIES };
        let plain = request(Access::ON_DEMAND);
        let with_hints = MrRequest { dmah: Some(1), ..plain };
        assert!(hint(Errno::OPNOTSUPP, &with_hints, &odp).unwrap().contains("DMA handle"));
        assert_eq!(hint(Errno::OPNOTSUPP, &plain, &odp), None);
        let pinned = MrRequest { dmah: Some(1), ..request(Access::LOCAL_WRITE) };
        assert_eq!(hint(Errno::OPNOTSUPP, &pinned, &odp), None);
    }

    #[test]
    fn iova_page_offset_mismatch_is_named() {
        let shifted = MrRequest { iova: 0x1008, ..request(Access::empty()) };
        assert!(hint(Errno::INVAL, &shifted, &CAPABILITIES).unwrap().contains("same offset"));
    }
}
