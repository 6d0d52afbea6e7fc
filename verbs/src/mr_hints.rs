//! Likely causes of failed registrations.

use std::fs::{self, Metadata};

use bareverbs_provider::command::MrRequest;
use rustix::io::Errno;
use rustix::param::page_size;

use crate::context::Capabilities;
use crate::{Access, locked_memory};

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
        Errno::PERM => locked_memory::hint(errno, Some(request.length)),
        Errno::FAULT | Errno::INVAL | Errno::NOMEM => {
            let writable = access.intersects(NEEDS_LOCAL_WRITE | Access::LOCAL_WRITE);
            let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
            let (start, end) = (request.addr, request.addr.saturating_add(request.length));
            unusable(&maps, start, end, writable)
                .or_else(|| (errno == Errno::FAULT).then(|| unpinnable(&maps, start, end, writable))?)
                .or_else(|| locked_memory::hint(errno, Some(request.length)))
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

/// A line of `/proc/self/maps`.
#[derive(Clone, Copy)]
struct Mapping<'a> {
    start: u64,
    end: u64,
    /// `rwxp` or `rwxs`, with `-` for a missing permission.
    permissions: &'a [u8],
    /// The offset of its first byte in the file.
    offset: u64,
    /// 0 for memory without a file.
    inode: u64,
    path: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self {
            start: number(start)?,
            end: number(end)?,
            permissions: words.next()?.as_bytes(),
            offset: number(words.next()?)?,
            inode: words.nth(1)?.parse().ok()?,
            path: words.next().unwrap_or_default().trim_start(),
        })
    }

    fn permits(&self, permission: u8) -> bool {
        self.permissions.contains(&permission)
    }

    /// The cause for which the kernel can't pin the pages from `start` to `end` of this mapping,
    /// although its permissions allow the access. The causes are those of `check_vma_flags` of the
    /// kernel's `mm/gup.c`, and of the page fault.
    fn unpinnable(&self, start: u64, end: u64, writable: bool) -> Option<String> {
        let Self { offset, inode, path, .. } = *self;
        let is_shared = self.permits(b's');
        let begin = self.start;
        // A file that was deleted, or is of another mount namespace, has no length here.
        let file = (inode != 0).then(|| fs::metadata(path).ok().filter(Metadata::is_file)).flatten();
        let file_len = file.map(|file| file.len());
        if let Some(len) = file_len
            && offset + (end - begin) > len.next_multiple_of(page_size() as u64)
        {
            let first = begin + len.next_multiple_of(page_size() as u64).saturating_sub(offset);
            let first = first.max(start);
            return Some(format!("{first:#x} to {end:#x} is beyond the end of {path} ({len} bytes)"));
        }
        if is_shared && !writable && !self.permits(b'w') {
            return Some(format!(
                "{start:#x} to {end:#x} is a shared mapping that is not writable, and this kernel pins \
                 memory for writing, also for read access (before Linux 6.2): map it writable or private"
            ));
        }
        let is_device = path.starts_with("/dev/")
            && !["/dev/shm", "/dev/zero", "/dev/hugepages"].iter().any(|memory| path.starts_with(memory));
        if is_device || path == "/secretmem (deleted)" {
            return Some(format!("{start:#x} to {end:#x} is a mapping of {path}, which can't be pinned"));
        }
        (is_shared && writable && file_len.is_some()).then(|| {
            format!(
                "{start:#x} to {end:#x} is a shared mapping of the file {path}; the kernel can't pin it for \
                 writing if its file system tracks changes: use a file of tmpfs or hugetlbfs, or a private \
                 mapping"
            )
        })
    }
}

/// The mappings that overlap `start..end`, in order.
fn mappings(maps: &str, start: u64, end: u64) -> impl Iterator<Item = Mapping<'_>> {
    let all = maps.lines().filter_map(Mapping::parse);
    all.filter(move |mapping| mapping.start < end && mapping.end > start)
}

/// The first part of `start..end` that is not mapped with the needed permissions, and the reason.
fn unusable(maps: &str, start: u64, end: u64, writable: bool) -> Option<String> {
    let text = |start: u64, end: u64, what| Some(format!("{start:#x} to {end:#x} is {what}"));
    if maps.is_empty() {
        return None;
    }
    let mut covered = start;
    for mapping in mappings(maps, start, end) {
        if mapping.start > covered {
            return text(covered, mapping.start, "not mapped");
        }
        let last = mapping.end.min(end);
        if !mapping.permits(b'r') {
            return text(covered, last, "not readable");
        }
        if writable && !mapping.permits(b'w') {
            return text(covered, last, "not writable");
        }
        covered = last;
    }
    if covered < end { text(covered, end, "not mapped") } else { None }
}

/// The first part of `start..end` whose pages can't be pinned, and the likely reason.
fn unpinnable(maps: &str, start: u64, end: u64, writable: bool) -> Option<String> {
    mappings(maps, start, end)
        .find_map(|mapping| mapping.unpinnable(mapping.start.max(start), mapping.end.min(end), writable))
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
        assert_eq!(unusable(MAPS, 0x50_0000, 0x60_0000, true), None);
        assert_eq!(unusable(MAPS, 0x40_1000, 0x50_1000, false), None);
        assert_eq!(unpinnable(MAPS, 0x40_1000, 0x50_1000, false), None);
        // `/proc/self/maps` was not read.
        assert_eq!(unusable("", 0x40_1000, 0x50_1000, true), None);
    }

    #[test]
    fn first_unusable_range_names_the_cause() {
        let unusable = |start, end, writable| unusable(MAPS, start, end, writable).unwrap();
        assert_eq!(unusable(0x40_1000, 0x50_1000, true), "0x401000 to 0x500000 is not writable");
        assert_eq!(unusable(0x5f_f000, 0x70_0000, true), "0x600000 to 0x700000 is not mapped");
        assert_eq!(unusable(0x70_0000, 0x70_1000, false), "0x700000 to 0x701000 is not readable");
        assert_eq!(unusable(0x90_0000, 0x90_1000, false), "0x900000 to 0x901000 is not mapped");
        assert_eq!(unusable(0x1000, 0x2000, false), "0x1000 to 0x2000 is not mapped");
    }

    #[test]
    fn mappings_that_cannot_be_pinned_are_named() {
        let this = std::env::current_exe().unwrap();
        let file = this.to_str().unwrap();
        let line = |permissions, offset: u64, inode, path| {
            format!("00400000-00500000 {permissions} {offset:08x} fe:00 {inode} {path}\n")
        };
        let cause = |maps: &str, writable| unpinnable(maps, 0x40_1000, 0x40_3000, writable);
        let read_only = cause(&line("r--s", 0, 12, "/nonexistent/file"), false).unwrap();
        assert!(read_only.starts_with("0x401000 to 0x403000 is a shared mapping that is not writable"));
        let device = cause(&line("rw-s", 0, 12, "/dev/mem"), true).unwrap();
        assert_eq!(device, "0x401000 to 0x403000 is a mapping of /dev/mem, which can't be pinned");
        let secret = cause(&line("rw-s", 0, 12, "/secretmem (deleted)"), true).unwrap();
        assert!(secret.ends_with(" is a mapping of /secretmem (deleted), which can't be pinned"), "{secret}");
        let shared = cause(&line("rw-s", 0, 12, file), true).unwrap();
        assert!(shared.contains(&format!("a shared mapping of the file {file}; ")), "{shared}");
        let beyond = cause(&line("rw-p", 1 << 40, 12, file), true).unwrap();
        assert!(
            beyond.starts_with(&format!("0x401000 to 0x403000 is beyond the end of {file} (")),
            "{beyond}"
        );
        for usable in [
            line("rw-p", 0, 0, ""),
            line("rw-s", 0, 12, "/dev/zero (deleted)"),
            line("rw-s", 0, 12, "/dev/shm/nonexistent"),
            line("rw-p", 0, 12, "/dev/hugepages/nonexistent"),
            line("r--p", 0, 12, file),
        ] {
            assert_eq!(cause(&usable, false), None, "{usable}");
        }
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
        queue_dmabufs: false,
        device_memory: false,
        memory_windows: false,
        flush: false,
        atomic_write: false,
        null_mr: false,
        ece: false,
        raw_packets: false,
        iwarp: false,
        work_queues: false,
        rss: false,
        xrc: false,
        import: false,
        devx: false,
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
