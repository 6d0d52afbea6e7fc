//! ODP regions whose pages are discarded repeatedly.

mod everything;
mod operations;
mod prefetch;

use bareverbs::{Access, Buffer, Mr, Pd};
use bareverbs_kernel_tests::exchange::RcEndpoint;
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, domain};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Completion, Outcome, skip};
use nix::sys::mman::{MmapAdvise, madvise};

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}

const ROUNDS: usize = 20;
const PAGE: usize = 4096;
/// One packet from the start of a page, which Soft-RoCE transfers correctly on all kernels with
/// ODP.
const LEN: usize = 1024;

/// All rights, with ODP.
const ON_DEMAND: Access = ALL_REMOTE.union(Access::ON_DEMAND);

/// Runs `test` if the device supports ODP.
fn on_demand(test: impl FnOnce(&Pd) -> Outcome) -> Outcome {
    nothing_leaks(|| {
        let pd = domain();
        match pd.context().capabilities().odp {
            true => test(&pd),
            false => skip("the device does not page on demand"),
        }
    })
}

fn passed() -> Outcome {
    Ok(Completion::Completed)
}

/// Discards the pages of a region: its bytes are 0 afterwards, and the next access faults.
fn evict_pages(region: &Mr<Buffer>) {
    let start = std::ptr::NonNull::new(region.as_ptr()).expect("an address").cast();
    // SAFETY: the region owns the pages and starts at a page boundary. Its bytes are only copied.
    unsafe { madvise(start, region.len(), MmapAdvise::MADV_DONTNEED) }
        .expect("private memory can be dropped");
}

/// Discards the pages of both endpoints of a round.
fn faults_await(from: &RcEndpoint, to: &RcEndpoint) {
    evict_pages(&from.memory);
    evict_pages(&to.memory);
}
