//! The memory of the messages: base pages or huge pages, pinned or on demand, or a dma-buf.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result, ensure};
use bareverbs::device::OdpTransportCaps;
use bareverbs::mr::DmabufMr;
use bareverbs::{Access, Context, Mr, Pd};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::plan::Plan;
use crate::cli::perf::choice::{Connection, Verb};

/// The registered memory of a thread.
pub(crate) struct Memory {
    lkey: u32,
    rkey: u32,
    addr: u64,
    region: Region,
}

enum Region {
    Mapped(Mr<MmapMut>),
    /// A dma-buf of the pages of a file, which is not mapped: the device writes to them.
    DmaBuf {
        _mr: DmabufMr,
        file: File,
    },
}

impl Memory {
    /// Registers memory that `fill` has written.
    pub(crate) fn register(
        plan: &Plan<'_>,
        pd: &Pd,
        len: usize,
        access: Access,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let mut memory = if plan.options.huge_pages { huge_pages(len)? } else { MmapMut::map_anon(len)? };
        fill(&mut memory);
        if plan.options.dma_buf {
            return Self::register_dma_buf(pd, &memory, access);
        }
        let on_demand = if plan.options.odp { Access::ON_DEMAND } else { Access::empty() };
        let mr = pd.register(memory, access | on_demand)?;
        Ok(Self { lkey: mr.lkey(), rkey: mr.rkey(), addr: mr.addr(), region: Region::Mapped(mr) })
    }

    /// Registers a dma-buf with these bytes.
    fn register_dma_buf(pd: &Pd, bytes: &[u8], access: Access) -> Result<Self> {
        let (file, buffer) = dma_buf(bytes.len())?;
        file.write_all_at(bytes, 0)?;
        let mr = pd.register_dmabuf(&buffer, 0, bytes.len(), 0, access).context("--dma-buf")?;
        let (lkey, rkey, addr) = (mr.lkey(), mr.rkey(), mr.addr());
        Ok(Self { lkey, rkey, addr, region: Region::DmaBuf { _mr: mr, file } })
    }

    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its address in requests.
    #[inline]
    pub(crate) fn addr(&self) -> u64 {
        self.addr
    }

    /// Copies the bytes at `offset`.
    #[inline]
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        match &self.region {
            Region::Mapped(mr) => mr.read(offset, into)?,
            Region::DmaBuf { file, .. } => file.read_exact_at(into, offset as u64)?,
        }
        Ok(())
    }

    /// Copies `from` to `offset`.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        match &mut self.region {
            Region::Mapped(mr) => mr.write(offset, from)?,
            Region::DmaBuf { file, .. } => file.write_all_at(from, offset as u64)?,
        }
        Ok(())
    }
}

/// A file in memory of at least `len` bytes, and a dma-buf of its pages.
fn dma_buf(len: usize) -> Result<(File, OwnedFd)> {
    /// `struct udmabuf_create` of `linux/udmabuf.h`.
    #[repr(C)]
    struct Create {
        memfd: u32,
        flags: u32,
        offset: u64,
        size: u64,
    }
    const CLOEXEC: u32 = 1;
    nix::ioctl_write_ptr!(create, b'u', 0x42, Create);
    let device = File::options().read(true).write(true).open("/dev/udmabuf").context(
        "--dma-buf: cannot open /dev/udmabuf, by which the kernel makes dma-bufs of memory (CONFIG_UDMABUF)",
    )?;
    let file = memfd_create("bareverbs-perf", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let len = len.checked_next_multiple_of(rustix::param::page_size());
    let size = len.context("the buffers exceed the address space")? as u64;
    ftruncate(&file, size)?;
    // The kernel requires that the pages stay.
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let request = Create { memfd: file.as_raw_fd().unsigned_abs(), flags: CLOEXEC, offset: 0, size };
    // SAFETY: the kernel reads the request.
    let made = unsafe { create(device.as_raw_fd(), &raw const request) }.with_context(|| {
        let mib = size.div_ceil(1 << 20);
        format!(
            "--dma-buf: the kernel makes no dma-buf of {mib} MiB: its limit is in \
             /sys/module/udmabuf/parameters/size_limit_mb; use a smaller size (-s) or fewer queue pairs (-q)"
        )
    })?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let buffer = unsafe { OwnedFd::from_raw_fd(made) };
    Ok((file.into(), buffer))
}

/// Memory of at least `len` bytes in huge pages of the default size.
fn huge_pages(len: usize) -> Result<MmapMut> {
    let info = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let size = huge_page_size(&info).context("--huge-pages: the kernel has no huge pages")?;
    let len = len.checked_next_multiple_of(size).context("the buffers exceed the address space")?;
    MmapOptions::new().len(len).huge(None).map_anon().with_context(|| {
        let (pages, kib) = (len / size, size >> 10);
        format!(
            "--huge-pages needs {pages} free huge pages of {kib} KiB: reserve some, for example with `sysctl \
             vm.nr_hugepages={pages}`"
        )
    })
}

/// The default size of huge pages in bytes, from `/proc/meminfo`.
fn huge_page_size(info: &str) -> Option<usize> {
    let line = info.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024).filter(|size| size.is_power_of_two())
}

/// Rejects kinds of memory that the kernel or the device lacks, before a peer waits.
pub(crate) fn check(plan: &Plan<'_>, context: &Context) -> Result<()> {
    if plan.options.huge_pages {
        // The size of all memory is known only when the peer has connected.
        huge_pages(1)?;
    }
    if plan.options.dma_buf {
        let access = Access::LOCAL_WRITE | plan.remote_access();
        Memory::register_dma_buf(&context.alloc_pd()?, &vec![0; rustix::param::page_size()], access)?;
    }
    if plan.options.odp { check_odp(plan, context) } else { Ok(()) }
}

/// Rejects `--odp` on a device that lacks it for an operation of the run.
fn check_odp(plan: &Plan<'_>, context: &Context) -> Result<()> {
    let device = context.device().name();
    ensure!(context.capabilities().odp, "--odp: {device} has no on-demand paging");
    let attr = context.query_device()?;
    let connection = plan.options.connection;
    let has = match connection {
        Connection::Rc => attr.rc_odp_caps,
        Connection::Uc => attr.uc_odp_caps,
        Connection::Ud => attr.ud_odp_caps,
        Connection::Xrc => attr.xrc_odp_caps,
    };
    let receive = if plan.shares_receives() { OdpTransportCaps::SRQ_RECV } else { OdpTransportCaps::RECV };
    for verb in plan.verbs() {
        let needed = match verb {
            Verb::Send => OdpTransportCaps::SEND | receive,
            Verb::Write | Verb::WriteImm => OdpTransportCaps::WRITE,
            Verb::Read => OdpTransportCaps::READ,
            Verb::Atomic => OdpTransportCaps::ATOMIC,
        };
        ensure!(
            has.contains(needed),
            "--odp: {device} has no on-demand paging for {} on {connection}",
            verb.name()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::huge_page_size;

    #[test]
    fn huge_page_size_is_read_in_kib() {
        let info = "HugePages_Total:       0\nHugepagesize:       2048 kB\nHugetlb: 0 kB\n";
        assert_eq!(huge_page_size(info), Some(2 << 20));
        for bad in
            ["", "Hugepagesize: 2048 MB\n", "Hugepagesize: 99999999999999999999 kB\n", "Hugepagesize: 0 kB\n"]
        {
            assert_eq!(huge_page_size(bad), None, "{bad:?}");
        }
    }
}
