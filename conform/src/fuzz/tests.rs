use super::*;
use crate::fault::Faulty;
use crate::rules::Rule as Broken;
use crate::soft::SoftTarget;

fn fuzz_soft(broken: Option<Broken>, seed: u64, programs: usize) -> Report {
    let options = Options { duration: Duration::from_secs(60), seed, ..Options::default() };
    let device: Box<dyn Target> = Box::new(SoftTarget::new());
    let target = match broken {
        Some(rule) => Box::new(Faulty::new(device, rule)),
        None => device,
    };
    run(&*target, &options, programs, |_| {}).unwrap()
}

#[test]
fn device_without_fault_breaks_no_rule() {
    let report = fuzz_soft(None, 1, 800);
    assert_eq!(report.failure, None, "{report}");
    let Calls { made, succeeded } = report.total();
    assert!(made > 10_000 && succeeded > made / 4, "{report}");
}

#[test]
fn same_seed_gives_the_same_calls() {
    assert_eq!(fuzz_soft(None, 7, 50).calls, fuzz_soft(None, 7, 50).calls);
    assert_ne!(fuzz_soft(None, 7, 50).calls, fuzz_soft(None, 8, 50).calls);
}

#[test]
fn seeded_faults_are_found_and_shrunk() {
    // The fault, the rule that shows it, and the number of calls that are needed: a context, the
    // objects, the call, and the end of each file.
    let faults = [
        (Broken::Undo, Rule::Handle, 5),
        (Broken::HandleType, Rule::Handle, 7),
        (Broken::HandleWide, Rule::Handle, 6),
        (Broken::Busy, Rule::Busy, 8),
    ];
    for (fault, rule, calls) in faults {
        let failure = fuzz_soft(Some(fault), 1, 3000).failure;
        let failure = failure.unwrap_or_else(|| panic!("{fault:?} was not found"));
        assert_eq!(failure.rule, rule, "{fault:?}: {failure:?}");
        assert!(failure.reproducible, "{fault:?}: {failure:?}");
        let program: Vec<_> = failure.program.iter().map(Record::text).collect();
        assert!(program.len() <= calls, "{fault:?}: {program:#?}");
    }
}
