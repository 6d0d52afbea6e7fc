//! rdma-core's suite with our libibverbs.so.1, on Soft-RoCE: a test that passes with the C library
//! passes, and none fails that does not fail with it, but for those of a list with their reasons.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Accelerator, Series, Setup, Since};

use super::hca::Library;
use super::table::{KERNELS, Row, Table};
use super::{End, suite};
use crate::dropin::{self, native::addresses};
use crate::experiment;
use crate::print::heading;

/// The section of the list with the tests that fail on Soft-RoCE, and on soft devices as there.
const FAILING: &str = "rxe";

/// Runs the suite on each kernel, and compares the outcomes with the table and the list.
pub(super) fn run(kernels: &[Series], names: &[&str], accelerator: Accelerator) -> Result<()> {
    let kernels = if kernels.is_empty() { Series::RELEASED.to_vec() } else { kernels.to_vec() };
    let (table, failing) = (super::read()?, failing()?);
    let mut worse = Vec::new();
    for series in kernels {
        let column = KERNELS.iter().position(|&known| known == series);
        let column = column.with_context(|| format!("the table has no column for {series}"))?;
        let files = super::files(series, dropin::guest_programs()?)?;
        heading(&format!("pyverbs with our library on {}", files.kernel.version));
        let setup = Setup { accelerator, ..files.setup() };
        let ends = experiment::run(&setup, None, |guests| {
            suite::run(guests, "rxe0", "dropin", names, &suite::OURS)
        })?;
        let passed = ends.values().filter(|end| **end == End::Passed).count();
        println!("{passed} of {} tests pass", ends.len());
        for id in failing.keys().filter(|id| ends.get(*id) == Some(&End::Failed)) {
            println!("{id} fails, as listed");
        }
        worse.extend(
            unexpected(&table, column, &failing, &ends).into_iter().map(|line| format!("{series}: {line}")),
        );
    }
    ensure!(worse.is_empty(), "other outcomes than with the C library:\n{}", worse.join("\n"));
    Ok(())
}

/// The kernel whose Soft-RoCE has the features of soft devices.
const LIKE_SOFT: Series = Series::Released(Since::V7_2);

/// Prefixes of tests whose outcome on soft devices is none of Soft-RoCE with the C library.
const NOT_SOFT: [&str; 3] = [
    // No on-demand paging.
    "test_odp.",
    // librdmacm knows devices of the kernel only.
    "test_rdmacm.",
    // The descriptor of a soft device is no device file, so its import is `EINVAL`.
    "test_shared_pd.",
];

/// Runs the suite on a soft device, and compares the outcomes with those of Soft-RoCE.
pub(super) fn run_soft() -> Result<()> {
    heading("pyverbs with our library on a soft device");
    let table = super::read()?;
    let column =
        KERNELS.iter().position(|&known| known == LIKE_SOFT).context("the table has no such kernel")?;
    let [address, _] = addresses();
    let mut ends = suite::run_native(&dropin::native_programs()?, &address)?;
    ensure!(!ends.is_empty(), "the suite did not start");
    let passed = ends.values().filter(|end| **end == End::Passed).count();
    println!("{passed} of {} tests pass", ends.len());
    ends.retain(|id, _| !NOT_SOFT.iter().any(|module| id.starts_with(module)));
    let worse = unexpected(&table, column, &failing()?, &ends);
    ensure!(worse.is_empty(), "other outcomes than on Soft-RoCE of {LIKE_SOFT}:\n{}", worse.join("\n"));
    Ok(())
}

/// The listed tests, which fail where they run.
fn failing() -> Result<BTreeMap<String, String>> {
    Ok(Library::Ours.list()?.remove(FAILING).unwrap_or_default())
}

/// The tests whose outcome is worse than that of the table, and the listed ones that pass, one per line.
fn unexpected(
    table: &Table,
    column: usize,
    failing: &BTreeMap<String, String>,
    ends: &BTreeMap<String, End>,
) -> Vec<String> {
    let known = |row: &Row| (row.id.clone(), row.ends[column].clone());
    let known: BTreeMap<_, _> = table.rows().map(known).collect();
    let of_c = |id: &String| known.get(id).and_then(Option::as_ref);
    let unexpected = |(id, end): (&String, &End)| match end {
        End::Failed if failing.contains_key(id) => None,
        End::Passed if failing.contains_key(id) => Some(format!("{id} passes: remove it from the list")),
        End::Failed if of_c(id) != Some(&End::Failed) => Some(format!("{id} fails")),
        End::Skipped(reason) if of_c(id) == Some(&End::Passed) => Some(format!("{id} is skipped: {reason}")),
        _ => None,
    };
    ends.iter().filter_map(unexpected).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_outcomes_are_reported() {
        let skipped = || End::Skipped("no".to_owned());
        let row = |id: &str, end: End| {
            let mut row = Row::new(id);
            row.ends[0] = Some(end);
            row
        };
        let passing = vec![row("a", End::Passed), row("b", End::Passed), row("c", End::Passed)];
        let others = vec![row("d", skipped()), row("e", skipped()), row("f", End::Failed)];
        let table = Table { passing, others, ..Table::default() };
        let ends = [
            ("a", End::Passed),
            ("b", skipped()),
            ("c", End::Failed),
            ("d", End::Failed),
            ("e", End::Passed),
            ("f", End::Failed),
            ("g", End::Failed),
            ("h", End::Passed),
            ("i", skipped()),
            ("new", skipped()),
        ];
        let ends = ends.map(|(id, end)| (id.to_owned(), end)).into();
        let listed = ["g", "h", "i"].map(|id| (id.to_owned(), "a reason".to_owned())).into();
        let expected = ["b is skipped: no", "c fails", "d fails", "h passes: remove it from the list"];
        assert_eq!(unexpected(&table, 0, &listed, &ends), expected);
    }
}
