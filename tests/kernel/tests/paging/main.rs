//! Regions on demand, whose pages are taken away again and again.

mod everything;
mod operations;
mod prefetch;

use bareverbs::{Access, Buffer, Mr, Pd};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, domain};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::rounds::Player;
use bareverbs_kernel_tests::{Completion, Outcome, kernel_tests, skip};
use everything::*;
use nix::sys::mman::{MmapAdvise, madvise};
use operations::*;
use prefetch::*;

kernel_tests! {
    messages_go_between_regions_on_demand_whose_pages_are_taken_away,
    datagrams_are_sent_from_a_region_on_demand,
    elements_on_demand_and_pinned_ones_make_one_message,
    a_region_on_demand_is_read_and_written,
    atomics_reach_a_region_on_demand,
    an_atomic_write_reaches_a_region_on_demand,
    a_region_on_demand_is_flushed,
    a_region_on_demand_is_written_wherever_in_its_pages,

    one_region_covers_all_memory,
    peers_reach_all_memory_through_one_region,
    parts_of_a_region_over_all_memory_keep_its_rights_and_their_bytes,

    pages_are_prefetched_with_and_without_waiting,
    only_pages_that_are_there_are_prefetched_without_faults,
    advice_about_pinned_memory_is_refused,
}

const ROUNDS: usize = 20;
const PAGE: usize = 4096;
/// One packet from the start of a page: what Soft-RoCE carries right on every kernel that pages on demand.
const LEN: usize = 1024;

/// Everything, on demand.
const ON_DEMAND: Access = ALL_REMOTE.union(Access::ON_DEMAND);

/// Runs `test` where the device pages on demand.
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

/// Gives the pages of a region back to the kernel: its bytes are 0 afterwards, and the next who needs them faults.
fn take_pages_away(region: &Mr<Buffer>) {
    let start = std::ptr::NonNull::new(region.as_ptr()).expect("an address").cast();
    // SAFETY: the pages are the region's own, begin with it, and are looked at by copies only.
    unsafe { madvise(start, region.len(), MmapAdvise::MADV_DONTNEED) }
        .expect("private memory can be dropped");
}

/// The same for both sides of a round.
fn faults_await(from: &Player, to: &Player) {
    take_pages_away(&from.memory);
    take_pages_away(&to.memory);
}
