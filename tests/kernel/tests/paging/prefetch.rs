//! Prefetch.

use bareverbs::mr::Advice;
use bareverbs::qp::Operation;
use bareverbs::{Access, Buffer, Error, Mr};
use bareverbs_kernel_tests::exchange::{exchange_rounds, rc_endpoints};
use bareverbs_kernel_tests::loopback::{domain, region};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{Outcome, kernel_test};

use super::{LEN, ON_DEMAND, PAGE, ROUNDS, evict_pages, faults_await, on_demand, passed};

type Advise = fn(&Mr<Buffer>, Advice) -> bareverbs::Result<()>;

const WAITING: Advise = |region, advice| region.advise(.., advice);
const LATER: Advise = |region, advice| region.advise_async(.., advice);

/// Whether each page of the region is present.
fn resident(region: &Mr<Buffer>) -> Vec<bool> {
    let mut reported = vec![0_u8; region.len() / PAGE];
    // SAFETY: the range is mapped, and there is a byte for each of its pages.
    let answer = unsafe { nix::libc::mincore(region.as_ptr().cast(), region.len(), reported.as_mut_ptr()) };
    assert_eq!(answer, 0, "mincore: {}", std::io::Error::last_os_error());
    reported.iter().map(|page| page & 1 != 0).collect()
}

#[kernel_test]
fn advise_mr_prefetches_synchronously_and_asynchronously() -> Outcome {
    on_demand(|pd| {
        let alone = region(pd, &[1; 3 * PAGE], ON_DEMAND);
        evict_pages(&alone);
        assert!(!resident(&alone).contains(&true), "they were just taken away");
        alone.advise(PAGE..2 * PAGE, Advice::PREFETCH_WRITE).unwrap();
        assert_eq!(resident(&alone), [false, true, false]);
        alone.prefetch(..).unwrap();
        assert!(!resident(&alone).contains(&false), "all pages were asked for");

        for advice in [Advice::PREFETCH, Advice::PREFETCH_WRITE] {
            for advise in [WAITING, LATER] {
                exchange_rounds(&mut rc_endpoints(pd, LEN, ON_DEMAND), ROUNDS / 4, LEN, |from, to, text| {
                    faults_await(from, to);
                    advise(&from.memory, advice).unwrap();
                    advise(&to.memory, advice).unwrap();
                    from.send_to(to, Operation::Send, text);
                });
            }
        }
        passed()
    })
}

#[kernel_test]
fn prefetch_no_fault_skips_absent_pages() -> Outcome {
    on_demand(|pd| {
        let mut alone = region(pd, &[1; 3 * PAGE], ON_DEMAND);
        evict_pages(&alone);
        alone.write(PAGE, b"here").unwrap();
        for advise in [WAITING, LATER] {
            advise(&alone, Advice::PREFETCH_NO_FAULT).unwrap();
            assert_eq!(resident(&alone), [false, true, false]);
            exchange_rounds(&mut rc_endpoints(pd, LEN, ON_DEMAND), ROUNDS / 4, LEN, |from, to, text| {
                faults_await(from, to);
                advise(&from.memory, Advice::PREFETCH_NO_FAULT).unwrap();
                advise(&to.memory, Advice::PREFETCH_NO_FAULT).unwrap();
                from.send_to(to, Operation::Send, text);
            });
        }
        passed()
    })
}

#[kernel_test]
fn advise_mr_on_pinned_memory_is_rejected() {
    nothing_leaks(|| {
        let pd = domain();
        let pinned = region(&pd, &[0; LEN], Access::LOCAL_WRITE);
        for advice in [Advice::PREFETCH, Advice::PREFETCH_WRITE, Advice::PREFETCH_NO_FAULT] {
            for advise in [WAITING, LATER] {
                let refused = advise(&pinned, advice).unwrap_err();
                match pd.context().capabilities().advise_mr {
                    true => assert!(matches!(refused, Error::Invalid { .. }), "{refused}"),
                    false => assert!(matches!(refused, Error::Unsupported { .. }), "{refused}"),
                }
            }
        }
    });
}
