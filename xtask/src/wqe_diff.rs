//! `cargo xtask wqe-diff`: compares the WQEs of bareverbs and of rdma-core as fetched by an HCA,
//! field by field.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Guests, HcaPort, RdmaCore, Setup, Since};
use bareverbs_wqe_diff::compare::{Report, compare};
use bareverbs_wqe_diff::generate::generate;
use bareverbs_wqe_diff::record::{ProgramValues, entries};
use bareverbs_wqe_diff::request::Request;
use clap::Args;

use crate::experiment::programs::Folder;
use crate::experiment::{self, Files, command};
use crate::{build, dropin};

/// The kernel of the check.
pub(crate) const KERNEL: &str = Since::V7_2.name();
/// A check in the test run: its name and its port.
pub(crate) type Check = (&'static str, HcaPort);

/// The checks in the test run. Raw frames need Ethernet; address handles without a GRH need
/// InfiniBand.
pub(crate) const CHECKS: [Check; 2] = [
    ("wqe_diff::wqes_match_libmlx5", HcaPort::Ib),
    ("wqe_diff::raw_packet_wqes_match_libmlx5", HcaPort::Roce),
];
/// The folder of the two programs and their list in the guest.
const GUEST_FOLDER: &str = "/lab/wqe-diff";
/// Timeout of each program.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Args)]
pub(crate) struct WqeDiff {
    /// A series such as 6.12, rc or a folder.
    #[arg(long, default_value = KERNEL)]
    kernel: String,
    /// The kind of the HCA's port: ib or roce.
    #[arg(long, value_enum, default_value = "ib")]
    hca: experiment::Port,
    /// The seed of the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minimum number of requests.
    #[arg(long, default_value_t = 400)]
    count: usize,
}

impl WqeDiff {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let files = Files::with_rdma_core(&self.kernel, build::guest_programs()?)?;
        let wanted = (self.seed, self.count);
        let reports = measure(&files.setup(), files.rdma_core()?, self.hca.into(), wanted)?;
        print!("{}", reports.text());
        Ok(if reports.are_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Our libraries, each compared with libmlx5.
pub(crate) struct Reports([(&'static str, Report); 2]);

impl Reports {
    pub(crate) fn are_equal(&self) -> bool {
        self.0.iter().all(|(_, report)| report.differences.is_empty())
    }

    pub(crate) fn text(&self) -> String {
        self.0.iter().map(|(library, report)| format!("{library}: {}", report.text())).collect()
    }
}

/// A check among the tests.
pub(crate) fn check(setup: &Setup<'_>, rdma_core: &RdmaCore, port: HcaPort) -> Result<Reports> {
    measure(setup, rdma_core, port, (1, 400))
}

/// Posts the requests by the Rust library and by the C program with the drop-in library and libmlx5, in a
/// guest of their own, and compares.
fn measure(
    setup: &Setup<'_>,
    rdma_core: &RdmaCore,
    port: HcaPort,
    (seed, count): (u64, usize),
) -> Result<Reports> {
    let requests = generate(seed, count, port == HcaPort::Roce);
    let folder = Folder::new(&Path::new("wqe-diff").join(format!("{port:?}")), GUEST_FOLDER)?;
    folder.copy(&build::wqe_diff()?)?;
    folder.copy(&dropin::tested_library()?)?;
    folder.compile(setup.cache, rdma_core, "bench/wqe-diff/c/wqe-diff.c", "wqe-diff-c")?;
    let lines: String = requests.iter().map(Request::line).map(|line| line + "\n").collect();
    fs::write(folder.file("list"), lines)?;
    let recording = folder.file("recording");
    let hca = experiment::start_hca(Some(port), 1, &[format!("--requests={}", recording.display())])?;
    let setup = Setup { shares: vec![folder.share()], ..setup.clone() };
    let runs = experiment::run(&setup, hca.as_ref(), |guests| {
        let mut run = |before: &[&str], program, arguments: &[&str]| {
            let from = recorded(&recording)?.len();
            let values = run(guests, before, &folder, program, arguments)?;
            let all = recorded(&recording)?;
            let entries = entries(all.get(from..).unwrap_or_default(), &values)?;
            Ok::<_, anyhow::Error>((entries, values))
        };
        let ours = run(&[], "wqe-diff", &[])?;
        let index = ours.1.gid_index.to_string();
        let path = format!("LD_LIBRARY_PATH={GUEST_FOLDER}");
        let dropin = run(&["env", &path], "wqe-diff-c", &[&index])?;
        Ok([ours, dropin, run(&[], "wqe-diff-c", &[&index])?])
    })?;
    let [ours, dropin, theirs] = runs.each_ref().map(|(entries, values)| (entries, values));
    let reports = [("bareverbs", compare(ours, theirs)), ("drop-in library", compare(dropin, theirs))];
    let receives = requests.iter().filter(|request| request.receive.is_some()).count();
    let expected = requests.len() + receives;
    for (library, report) in &reports {
        ensure!(report.entries == expected, "{library}: {} of {expected} entries", report.entries);
    }
    Ok(Reports(reports))
}

fn recorded(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn run(
    guests: &mut Guests,
    before: &[&str],
    folder: &Folder,
    program: &str,
    arguments: &[&str],
) -> Result<ProgramValues> {
    let command = [folder.in_guest(program), "mlx5_0".to_owned(), folder.in_guest("list")];
    let command = [before, &command.each_ref().map(String::as_str), arguments].concat();
    ProgramValues::parse(&command::run(guests, &command, LIMIT)?)
}
