//! The memory of the messages: base pages or huge pages, pinned or on demand.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use bareverbs::device::OdpTransportCaps;
use bareverbs::{Access, Context, Mr, Pd};
use memmap2::{MmapMut, MmapOptions};

use super::plan::Plan;
use crate::cli::perf::choice::{Connection, Verb};

/// The registered memory of a thread.
pub(crate) type Memory = Mr<MmapMut>;

/// Registers memory that `fill` has written.
pub(crate) fn register(
    plan: &Plan<'_>,
    pd: &Pd,
    len: usize,
    access: Access,
    fill: impl FnOnce(&mut [u8]),
) -> Result<Memory> {
    let mut memory = if plan.options.huge_pages { huge_pages(len)? } else { MmapMut::map_anon(len)? };
    fill(&mut memory);
    let on_demand = if plan.options.odp { Access::ON_DEMAND } else { Access::empty() };
    Ok(pd.register(memory, access | on_demand)?)
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
