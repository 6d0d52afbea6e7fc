//! The layout comparison. It is skipped with a message if a kernel's headers are not in the cache.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{LazyLock, OnceLock};

use bareverbs_abi_tests::compiler::Kernel;
use bareverbs_abi_tests::declared::{Declared, Value};
use bareverbs_abi_tests::{compare, complete, exempt, methods};
use bareverbs_uapi::abi::{Since, StructInfo};
use bareverbs_uapi::kernels::{KERNELS, KernelSeries};
use libtest_mimic::{Arguments, Failed, Trial};

/// One kernel series. The first test that needs the headers parses them.
struct Series {
    since: Since,
    kernel: OnceLock<Result<Kernel, String>>,
}

impl Series {
    const fn new(series: KernelSeries) -> Series {
        Series { since: series.since, kernel: OnceLock::new() }
    }

    const fn debian(&self) -> bareverbs_lab::Series {
        bareverbs_lab::Series::Released(self.since)
    }

    const fn name(&self) -> &'static str {
        self.since.name()
    }

    fn kernel(&self) -> Result<&Kernel, Failed> {
        let read = || {
            let headers = bareverbs_lab::headers(self.debian())
                .ok_or("no headers: `cargo xtask lab fetch --headers`")?;
            let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
            Kernel::read(
                self.name(),
                self.since,
                &headers.include,
                &headers.kernel,
                &Declared::from_registry(),
                &scratch,
            )
            .map_err(|error| format!("{error:#}"))
        };
        self.kernel.get_or_init(read).as_ref().map_err(Failed::from)
    }
}

static SERIES: LazyLock<[Series; KERNELS.len()]> = LazyLock::new(|| KERNELS.map(Series::new));

fn verdict(differences: Vec<String>) -> Result<(), Failed> {
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n").into()) }
}

fn declarations_match_headers(series: &Series) -> Result<(), Failed> {
    verdict(compare::compare(series.kernel()?, &Declared::from_registry()))
}

fn headers_are_declared(series: &Series) -> Result<(), Failed> {
    verdict(complete::missing(series.kernel()?, &Declared::from_registry()))
}

fn method_attributes_match(series: &Series) -> Result<(), Failed> {
    verdict(methods::misplaced(series.kernel()?, &Declared::from_registry()))
}

/// Tests the comparison: alters each number in turn and expects a difference with its name.
fn alterations_are_reported(series: &Series) -> Result<(), Failed> {
    let (kernel, declared) = (series.kernel()?, Declared::from_registry());
    let mut unseen = Vec::new();
    let mut expect = |altered: Declared, report: String| {
        if !compare::compare(kernel, &altered).iter().any(|difference| difference.starts_with(&report)) {
            unseen.push(format!("not reported: {report}"));
        }
    };
    let mut altered = 0;
    for info in declared.structs.iter().filter(|info| info.since <= series.since) {
        for (index, field) in info.fields.iter().enumerate() {
            if field.c.is_empty() || field.since > series.since {
                continue;
            }
            let mut fields = info.fields.to_vec();
            fields[index].offset += 1;
            let info = StructInfo { fields: fields.leak(), ..*info };
            let report = format!("{}: field {}: offset {} in C", info.c, field.c, field.offset);
            expect(Declared { structs: vec![info], ..Declared::default() }, report);
            altered += 1;
        }
    }
    for value in declared.values.iter().filter(|value| value.since <= series.since) {
        let (report, next) = (format!("{} (", value.c), value.value.wrapping_add(1));
        let values = vec![Value { value: next, ..*value }];
        expect(Declared { values, ..Declared::default() }, report);
        altered += 1;
    }
    if altered < 2000 {
        unseen.push(format!("only {altered} alterations: the registry was not read"));
    }
    verdict(unseen)
}

fn exemptions_are_needed() -> Result<(), Failed> {
    let declared = Declared::from_registry();
    for series in SERIES.iter() {
        let kernel = series.kernel()?;
        compare::compare(kernel, &declared);
        complete::missing(kernel, &declared);
        methods::misplaced(kernel, &declared);
    }
    verdict(exempt::unused())
}

fn trial(name: String, needs: &[Series], run: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let lacking: Vec<_> = needs
        .iter()
        .filter(|series| bareverbs_lab::headers(series.debian()).is_none())
        .map(Series::name)
        .collect();
    let trial = Trial::test(name, run);
    if lacking.is_empty() {
        return trial;
    }
    trial
        .with_ignored_flag(true)
        .with_kind(format!("no headers of {}: cargo xtask lab fetch --headers", lacking.join(", ")))
}

type Check = fn(&Series) -> Result<(), Failed>;

const CHECKS: [(&str, Check); 4] = [
    ("every declared item is as the C compiler sees it", declarations_match_headers),
    ("every item of the headers is declared", headers_are_declared),
    ("every method has the attributes of its enumeration", method_attributes_match),
    ("any offset or value altered by hand is reported", alterations_are_reported),
];

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for series in SERIES.iter() {
        for (name, check) in CHECKS {
            let needs = std::slice::from_ref(series);
            trials.push(trial(format!("{}: {name}", series.name()), needs, move || check(series)));
        }
    }
    trials.push(trial("every exemption is needed".into(), &*SERIES, exemptions_are_needed));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
