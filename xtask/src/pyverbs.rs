//! `cargo xtask pyverbs`: compares rdma-core's test suite with ours, case by case.

mod hca;
mod suite;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Accelerator, Cache, Guests, Hca, Kernel, Programs, RdmaCore, Series, Setup, Tools};
use clap::Args;

use crate::print::heading;
use crate::{build, guest_tests, lab};
use table::{KERNELS, OwnTests, Row, Table};

#[derive(Args)]
pub(crate) struct Pyverbs {
    /// Run the suite and record the outcomes (default: only check the table).
    #[arg(long)]
    record: bool,
    /// Run the suite on the software ConnectX instead, and compare the skipped tests with the list.
    #[arg(long, alias = "card", value_enum)]
    hca: Option<lab::Port>,
    /// Kernels to run the suite on, such as 6.12; may be given more than once (default: all series;
    /// with --hca the newest, for which the list is made).
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<Series>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
}

impl Pyverbs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let rdma_core = RdmaCore::fetch(&Cache::open()?, false)?;
        if let Some(port) = self.hca {
            hca::run(&rdma_core, port.into(), &self.kernels, self.record, self.accel)?;
            return Ok(ExitCode::SUCCESS);
        }
        ensure!(
            self.record || self.kernels.is_empty(),
            "--kernel needs --record or --hca: nothing runs otherwise"
        );
        if self.record {
            record(&rdma_core, &self.kernels, self.accel)?;
        }
        check(&rdma_core, &guest_tests::guest_test_titles()?)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn path() -> PathBuf {
    build::workspace().join("tests/kernel/pyverbs.md")
}

fn read() -> Result<Table> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Table::parse(&text).with_context(|| path.display().to_string())
}

/// Fails if the table lacks a test of rdma-core's suite, has one that does not exist, or names none
/// of our tests for one that passes.
pub(crate) fn check(rdma_core: &RdmaCore, ours: &[String]) -> Result<()> {
    heading("rdma-core's suite, case by case");
    let table = read()?;
    let disagreements =
        disagreements(&table, &suite::shipped(&rdma_core.root)?, &ours.iter().cloned().collect());
    for line in &disagreements {
        println!("{line}");
    }
    if !disagreements.is_empty() {
        bail!("{} does not match rdma-core {}", path().display(), rdma_core.version);
    }
    let mapped = table.passing.iter().filter(|row| matches!(row.ours, OwnTests::Tests(_))).count();
    println!(
        "rdma-core {}: {} tests, {} pass on some kernel, {mapped} of these have tests of ours, {} a reason for none",
        rdma_core.version,
        table.passing.len() + table.others.len(),
        table.passing.len(),
        table.passing.len() - mapped
    );
    Ok(())
}

/// The violations of the table, one per line.
fn disagreements(table: &Table, shipped: &BTreeSet<String>, ours: &BTreeSet<String>) -> Vec<String> {
    let mut disagreements = Vec::new();
    let mut seen = BTreeSet::new();
    for id in table.ids() {
        if !seen.insert(id.to_owned()) {
            disagreements.push(format!("{id} has two rows"));
        }
    }
    disagreements.extend(shipped.difference(&seen).map(|id| format!("{id} has no row")));
    disagreements.extend(seen.difference(shipped).map(|id| format!("{id} is no longer in the suite")));
    for row in table.passing.iter().chain(&table.others) {
        if let OwnTests::Tests(names) = &row.ours {
            let missing = names.iter().filter(|name| !ours.contains(*name));
            disagreements.extend(missing.map(|name| format!("{}: test {name} does not exist", row.id)));
        }
    }
    let unknown = table.passing.iter().filter(|row| row.ours == OwnTests::Unknown);
    disagreements
        .extend(unknown.map(|row| format!("{} passes, but its row names no test of this project", row.id)));
    disagreements
}

/// Runs a part of the suite in `root` on a device of this type. Each selected test must pass or be
/// skipped, and at least one must pass.
pub(crate) fn run_part(
    guests: &mut Guests,
    root: &Path,
    device: &str,
    kind: &str,
    only: &[&str],
) -> Result<()> {
    let ends = suite::run(guests, device, kind, only)?;
    let meant = |id: &String| only.iter().any(|word| id.contains(word));
    if let Some(id) = suite::shipped(root)?.into_iter().find(|id| meant(id) && !ends.contains_key(id)) {
        bail!("the suite reported no outcome of {id}");
    }
    let failed: Vec<_> =
        ends.iter().filter(|(_, end)| **end == End::Failed).map(|(id, _)| id.as_str()).collect();
    if !failed.is_empty() {
        bail!("{} of {} tests failed: {}", failed.len(), ends.len(), failed.join(", "));
    }
    if !ends.values().any(|end| *end == End::Passed) {
        bail!("none of {} tests passed", ends.len());
    }
    Ok(())
}

/// Runs the suite on each kernel and rewrites the table. The column of our tests is kept.
fn record(rdma_core: &RdmaCore, kernels: &[Series], accelerator: Accelerator) -> Result<()> {
    let kernels = if kernels.is_empty() { Series::RELEASED.to_vec() } else { kernels.to_vec() };
    let lab = Lab::open(rdma_core, accelerator)?;
    let shipped = suite::shipped(&rdma_core.root)?;
    for series in kernels {
        let Some(column) = KERNELS.iter().position(|&known| known == series) else {
            bail!("the table has no column for {series}");
        };
        let kernel = lab.kernel(series)?;
        heading(&format!("pyverbs on {}", kernel.version));
        let mut guests = lab.boot(&kernel, None)?;
        let ends = suite::run(&mut guests, "rxe0", "rxe", &[])?;
        guests.shut_down()?;
        if let Some(id) = shipped.iter().find(|id| !ends.contains_key(*id)) {
            bail!("the suite reported no outcome of {id}");
        }
        // The run took minutes, and the last column may have been edited meanwhile.
        let mut table = if path().exists() { read()? } else { Table::default() };
        table.rdma_core.clone_from(&rdma_core.version);
        table.enter(column, &kernel.version, &ends);
        fs::write(path(), table.to_string()).context("writing the table")?;
    }
    Ok(())
}

/// The environment of the suite.
struct Lab<'a> {
    cache: Cache,
    tools: Tools,
    programs: Programs,
    rdma_core: &'a RdmaCore,
    accelerator: Accelerator,
}

impl<'a> Lab<'a> {
    fn open(rdma_core: &'a RdmaCore, accelerator: Accelerator) -> Result<Self> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        Ok(Self { cache, tools, programs: build::guest_programs()?, rdma_core, accelerator })
    }

    fn kernel(&self, series: Series) -> Result<Kernel> {
        Kernel::debian(&self.cache, &self.tools, series, false)
    }

    /// A host with the Debian root, and with an HCA instead of rxe if given.
    fn boot(&self, kernel: &Kernel, hca: Option<&Hca>) -> Result<Guests> {
        Guests::boot(&Setup {
            cache: &self.cache,
            tools: &self.tools,
            kernel,
            programs: &self.programs,
            hosts: 1,
            rdma_core: Some(self.rdma_core.root.clone()),
            shares: Vec::new(),
            accelerator: self.accelerator,
            instruction_clock: false,
            recording: None,
            hca,
        })
    }
}

/// The outcome of one of their tests.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Skipped(String),
    Failed,
}

impl Table {
    fn ids(&self) -> impl Iterator<Item = &str> {
        let others = self.others.iter().map(|row| row.id.as_str());
        self.passing.iter().map(|row| row.id.as_str()).chain(others)
    }

    /// Enters the outcomes on one kernel.
    fn enter(&mut self, column: usize, version: &str, ends: &BTreeMap<String, End>) {
        version.clone_into(&mut self.versions[column]);
        let known: BTreeMap<_, _> =
            self.passing.drain(..).chain(self.others.drain(..)).map(|row| (row.id.clone(), row)).collect();
        for (id, end) in ends {
            let mut row = known.get(id).cloned().unwrap_or_else(|| Row::new(id));
            row.ends[column] = Some(end.clone());
            if row.ends.contains(&Some(End::Passed)) {
                self.passing.push(row);
            } else {
                self.others.push(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn row(id: &str, ours: OwnTests) -> Row {
        Row { ours, ..Row::new(id) }
    }

    #[test]
    fn complete_table_is_accepted() {
        let table = Table {
            passing: vec![
                row("test_a.A.test_1", OwnTests::Tests(vec!["verbs::one".into()])),
                row("test_a.A.test_2", OwnTests::None("about Python".into())),
            ],
            others: vec![Row::new("test_b.B.test_3")],
            ..Table::default()
        };
        let shipped = ids(&["test_a.A.test_1", "test_a.A.test_2", "test_b.B.test_3"]);
        assert_eq!(
            disagreements(&table, &shipped, &ids(&["verbs::one", "verbs::two"])),
            Vec::<String>::new()
        );
    }

    #[test]
    fn every_table_error_is_reported() {
        let table = Table {
            passing: vec![
                row("test_a.A.test_1", OwnTests::Tests(vec!["verbs::gone".into()])),
                row("test_a.A.test_2", OwnTests::Unknown),
            ],
            others: vec![Row::new("test_a.A.test_1"), Row::new("test_a.A.test_old")],
            ..Table::default()
        };
        let shipped = ids(&["test_a.A.test_1", "test_a.A.test_2", "test_a.A.test_new"]);
        assert_eq!(
            disagreements(&table, &shipped, &ids(&["verbs::one"])),
            [
                "test_a.A.test_1 has two rows",
                "test_a.A.test_new has no row",
                "test_a.A.test_old is no longer in the suite",
                "test_a.A.test_1: test verbs::gone does not exist",
                "test_a.A.test_2 passes, but its row names no test of this project",
            ]
        );
    }

    #[test]
    fn recording_keeps_test_mapping() {
        let mut table = Table::default();
        let first = BTreeMap::from([("t.A.a".to_owned(), End::Passed), ("t.A.b".to_owned(), End::Failed)]);
        table.enter(0, "6.1.1-1", &first);
        table.passing[0].ours = OwnTests::Tests(vec!["verbs::one".into()]);
        let second = BTreeMap::from([
            ("t.A.a".to_owned(), End::Skipped("not here".to_owned())),
            ("t.A.b".to_owned(), End::Passed),
        ]);
        let last = KERNELS.len() - 1;
        table.enter(last, "7.2.1-1", &second);
        let [a, b] = &table.passing[..] else { panic!("both pass somewhere") };
        assert_eq!(a.ours, OwnTests::Tests(vec!["verbs::one".into()]));
        assert_eq!(
            (&a.ends[0], &a.ends[last]),
            (&Some(End::Passed), &Some(End::Skipped("not here".to_owned())))
        );
        assert!(a.ends[1..last].iter().all(Option::is_none));
        assert_eq!(b.ours, OwnTests::Unknown);
        assert_eq!((table.versions[0].as_str(), table.versions[last].as_str()), ("6.1.1-1", "7.2.1-1"));
    }
}
