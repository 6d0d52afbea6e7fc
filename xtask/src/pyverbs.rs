//! `cargo xtask pyverbs`: compares rdma-core's test suite with ours, case by case.

mod dropin;
mod hca;
mod keywords;
mod passing;
mod reasons;
mod suite;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Accelerator, Cache, Guests, Kernel, Programs, RdmaCore, Series, Setup, Tools};
use clap::Args;

use crate::experiment::{self, Files};
use crate::guest_sources::GuestSources;
use crate::print::heading;
use crate::{build, c_functions, guest_tests};
use keywords::KEYWORDS;
use passing::Passing;
pub(crate) use passing::refuted;
use reasons::REASONS;
use table::{KERNELS, OwnTests, Row, Table};

#[derive(Args)]
pub(crate) struct Pyverbs {
    /// Run the suite and record the outcomes (default: only check the table).
    #[arg(long)]
    record: bool,
    /// Run the suite on the software ConnectX instead, and compare the skipped tests with the list.
    #[arg(long, alias = "card", value_enum)]
    hca: Option<experiment::Port>,
    /// Run the suite with our libibverbs.so.1, and fail if a test has a worse outcome than with the C
    /// library.
    #[arg(long, conflicts_with = "record")]
    dropin: bool,
    /// Run it on a soft device of this machine instead, and compare with Soft-RoCE of the newest kernel.
    #[arg(long, requires = "dropin", conflicts_with_all = ["kernels"])]
    soft: bool,
    /// Kernels to run the suite on, such as 6.12; may be given more than once (default: all series;
    /// with --hca the newest, for which the list is made).
    #[arg(long = "kernel", value_name = "KERNEL")]
    kernels: Vec<Series>,
    /// The accelerator: auto, kvm or tcg.
    #[arg(long, default_value = "auto")]
    accel: Accelerator,
    /// Run the tests whose names contain one of these only; with --dropin or --hca.
    #[arg(value_name = "NAME", conflicts_with = "record")]
    names: Vec<String>,
}

impl Pyverbs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let rdma_core = RdmaCore::fetch(&Cache::open()?, false)?;
        let names: Vec<_> = self.names.iter().map(String::as_str).collect();
        if let Some(port) = self.hca {
            let library = if self.dropin { hca::Library::Ours } else { hca::Library::C };
            hca::run(library, port.into(), &self.kernels, &names, self.record, self.accel)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.soft {
            check_on_soft_device()?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.dropin {
            dropin::run(&self.kernels, &names, self.accel)?;
            return Ok(ExitCode::SUCCESS);
        }
        ensure!(
            self.record || (self.kernels.is_empty() && names.is_empty()),
            "--kernel and names need --record, --dropin or --hca: nothing runs otherwise"
        );
        if self.record {
            record(&rdma_core, &self.kernels, self.accel)?;
        }
        check(&rdma_core, &guest_tests::guest_test_titles()?)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Runs the suite with our library on a soft device.
pub(crate) fn check_on_soft_device() -> Result<()> {
    dropin::run_soft()
}

fn path() -> PathBuf {
    build::workspace().join("tests/kernel/pyverbs.md")
}

fn read() -> Result<Table> {
    let path = path();
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Table::parse(&text).with_context(|| path.display().to_string())
}

/// Fails if the table lacks a test of rdma-core's suite or has one that does not exist, or if a row
/// names neither tests of ours that run and contain the words of its subject, nor a true reason.
pub(crate) fn check(rdma_core: &RdmaCore, ours: &[String]) -> Result<()> {
    heading("rdma-core's suite, case by case");
    let table = read()?;
    let facts = Facts::read(ours)?;
    let disagreements = disagreements(&table, &suite::shipped(&rdma_core.root)?, &facts);
    for line in &disagreements {
        println!("{line}");
    }
    if !disagreements.is_empty() {
        bail!("{} does not match rdma-core {}", path().display(), rdma_core.version);
    }
    let rows = table.rows().count();
    let mapped = table.rows().filter(|row| matches!(row.ours, OwnTests::Tests(_))).count();
    println!(
        "rdma-core {}: {rows} tests, {} pass on some kernel, {mapped} have tests of ours, {} a reason for none",
        rdma_core.version,
        table.passing.len(),
        rows - mapped
    );
    Ok(())
}

/// What the rows are checked against.
#[derive(Default)]
struct Facts {
    /// The guest tests.
    ours: BTreeSet<String>,
    /// Where they pass.
    passing: Passing,
    sources: GuestSources,
    /// The C functions that have an item.
    implemented: BTreeSet<String>,
    /// The configurations of the released kernels.
    configs: Vec<String>,
}

impl Facts {
    fn read(ours: &[String]) -> Result<Self> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let config = |series: Series| Kernel::debian(&cache, &tools, series, false)?.config();
        Ok(Self {
            ours: ours.iter().cloned().collect(),
            passing: passing::read()?,
            sources: GuestSources::read()?,
            implemented: c_functions::implemented()?,
            configs: KERNELS.into_iter().map(config).collect::<Result<_>>()?,
        })
    }

    /// The violations of a row's tests.
    fn of_tests(&self, id: &str, names: &[String]) -> Vec<String> {
        let missing = names.iter().filter(|name| !self.ours.contains(*name));
        let mut faults: Vec<_> = missing.map(|name| format!("{id}: test {name} does not exist")).collect();
        let unrun = names.iter().filter(|name| !self.passing.contains_key(*name));
        faults.extend(unrun.map(|name| format!("{id}: passing.txt doesn't say where test {name} passes")));
        for (part, words) in KEYWORDS {
            if id.contains(part) && !names.iter().any(|name| self.sources.mentions(name, words)) {
                faults.push(format!("{id}: its tests contain none of {}", words.join(", ")));
            }
        }
        faults
    }

    /// The violations of the lists. `used` are the tests and the reasons of the rows.
    fn of_lists(&self, used: &BTreeSet<&str>) -> Vec<String> {
        let mut faults = Vec::new();
        for (reason, basis) in REASONS {
            if !used.contains(reason) {
                faults.push(format!("no row has the reason `{reason}`"));
            }
            if let Some(refutation) = reasons::refutation(basis, &self.implemented, &self.configs) {
                faults.push(format!("`{reason}` is no reason: {refutation}"));
            }
        }
        let unused = self.passing.keys().filter(|title| !used.contains(title.as_str()));
        faults.extend(unused.map(|title| format!("passing.txt: no row names {title}")));
        faults
    }
}

/// The violations of the table, one per line.
fn disagreements(table: &Table, shipped: &BTreeSet<String>, facts: &Facts) -> Vec<String> {
    let mut disagreements = Vec::new();
    let mut seen = BTreeSet::new();
    for row in table.rows() {
        if !seen.insert(row.id.clone()) {
            disagreements.push(format!("{} has two rows", row.id));
        }
    }
    disagreements.extend(shipped.difference(&seen).map(|id| format!("{id} has no row")));
    disagreements.extend(seen.difference(shipped).map(|id| format!("{id} is no longer in the suite")));
    let mut used = BTreeSet::new();
    for row in table.rows() {
        match &row.ours {
            OwnTests::Tests(names) => {
                used.extend(names.iter().map(String::as_str));
                disagreements.extend(facts.of_tests(&row.id, names));
            }
            OwnTests::None(reason) if REASONS.iter().any(|(known, _)| known == reason) => {
                used.insert(reason.as_str());
            }
            OwnTests::None(reason) => disagreements.push(format!("{}: `{reason}` is not in REASONS", row.id)),
            OwnTests::Unknown => {
                disagreements.push(format!("{}: the row names no test and no reason", row.id));
            }
        }
    }
    disagreements.extend(facts.of_lists(&used));
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
    let ends = suite::run(guests, device, kind, only, &[])?;
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
    let shipped = suite::shipped(&rdma_core.root)?;
    for series in kernels {
        let Some(column) = KERNELS.iter().position(|&known| known == series) else {
            bail!("the table has no column for {series}");
        };
        let files = files(series, build::guest_programs()?)?;
        let version = &files.kernel.version;
        heading(&format!("pyverbs on {version}"));
        let setup = Setup { accelerator, ..files.setup() };
        let ends = experiment::run(&setup, None, |guests| suite::run(guests, "rxe0", "rxe", &[], &[]))?;
        if let Some(id) = shipped.iter().find(|id| !ends.contains_key(*id)) {
            bail!("the suite reported no outcome of {id}");
        }
        // The run took minutes, and the last column may have been edited meanwhile.
        let mut table = if path().exists() { read()? } else { Table::default() };
        table.rdma_core.clone_from(&rdma_core.version);
        table.enter(column, version, &ends);
        fs::write(path(), table.to_string()).context("writing the table")?;
    }
    Ok(())
}

/// The files of a guest that runs the suite.
fn files(series: Series, programs: Programs) -> Result<Files> {
    Files::with_rdma_core(&series.to_string(), programs)
}

/// The outcome of one of their tests.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Skipped(String),
    Failed,
}

impl Table {
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.passing.iter().chain(&self.others)
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

    /// The tests `verbs::one`, and `verbs::hinted`, which passes nowhere.
    fn facts() -> Facts {
        let mut facts = Facts { ours: ids(&["verbs::one", "verbs::hinted"]), ..Facts::default() };
        facts.passing.insert("verbs::one".to_owned(), vec!["7.2".to_owned()]);
        let source = "fn one() { srq.resize() } fn hinted() { alloc_dmah() }";
        facts.sources.add("verbs", source).unwrap();
        facts
    }

    /// The violations of rows that the suite has, without those of the lists.
    fn faults_of(rows: Vec<Row>) -> Vec<String> {
        let shipped = rows.iter().map(|row| row.id.clone()).collect();
        let mut faults = disagreements(&Table { passing: rows, ..Table::default() }, &shipped, &facts());
        faults.retain(|fault| {
            !fault.starts_with("no row has the reason") && !fault.starts_with("passing.txt:")
        });
        faults
    }

    #[test]
    fn complete_table_is_accepted() {
        let rows = vec![
            row("test_a.A.test_resize_srq", OwnTests::Tests(vec!["verbs::one".into()])),
            row("test_a.A.test_2", OwnTests::None("needs an NVIDIA GPU".into())),
        ];
        assert_eq!(faults_of(rows), Vec::<String>::new());
    }

    #[test]
    fn rows_and_tests_of_the_suite_must_agree() {
        let table = Table {
            passing: vec![row("test_a.A.test_1", OwnTests::Tests(vec!["verbs::one".into()]))],
            others: vec![
                row("test_a.A.test_1", OwnTests::Tests(vec!["verbs::one".into()])),
                row("test_a.A.test_old", OwnTests::Tests(vec!["verbs::one".into()])),
            ],
            ..Table::default()
        };
        let faults = disagreements(&table, &ids(&["test_a.A.test_1", "test_a.A.test_new"]), &facts());
        let expected = [
            "test_a.A.test_1 has two rows",
            "test_a.A.test_new has no row",
            "test_a.A.test_old is no longer in the suite",
        ];
        assert_eq!(faults[..3], expected);
    }

    #[test]
    fn rows_without_tests_that_run_or_a_listed_reason_are_reported() {
        let rows = vec![
            row("test_a.A.test_1", OwnTests::Tests(vec!["verbs::gone".into()])),
            row("test_a.A.test_2", OwnTests::Unknown),
            row("test_a.A.test_3", OwnTests::None("rdma_cm is not implemented".into())),
            row("test_a.A.test_4", OwnTests::Tests(vec!["verbs::hinted".into()])),
            row("test_a.A.test_query_port_speed", OwnTests::Tests(vec!["verbs::one".into()])),
        ];
        let expected = [
            "test_a.A.test_1: test verbs::gone does not exist",
            "test_a.A.test_1: passing.txt doesn't say where test verbs::gone passes",
            "test_a.A.test_2: the row names no test and no reason",
            "test_a.A.test_3: `rdma_cm is not implemented` is not in REASONS",
            "test_a.A.test_4: passing.txt doesn't say where test verbs::hinted passes",
            "test_a.A.test_query_port_speed: its tests contain none of query_port, port_speed",
            "test_a.A.test_query_port_speed: its tests contain none of port_speed",
        ];
        assert_eq!(faults_of(rows), expected);
    }

    #[test]
    fn reasons_that_are_unused_or_untrue_are_reported() {
        let facts = Facts {
            implemented: ids(&["ibv_post_srq_ops"]),
            configs: vec!["CONFIG_PCIE_TPH=y".into()],
            ..facts()
        };
        let faults = facts.of_lists(&BTreeSet::new());
        for fault in [
            "passing.txt: no row names verbs::one",
            "no row has the reason `needs an NVIDIA GPU`",
            "`tag matching is not implemented` is no reason: ibv_post_srq_ops has an item",
            "`DMA handles need CONFIG_PCIE_TPH, which the lab's kernels lack` is no reason: a kernel has \
             CONFIG_PCIE_TPH",
        ] {
            assert!(faults.iter().any(|found| found == fault), "{fault}");
        }
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
