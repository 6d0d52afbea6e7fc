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

use crate::build;
use crate::experiment::programs::Folder;
use crate::experiment::{self, Files, command};

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
        let report = measure(&files.setup(), files.rdma_core()?, self.hca.into(), wanted)?;
        print!("{}", report.text());
        Ok(if report.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// A check among the tests.
pub(crate) fn check(setup: &Setup<'_>, rdma_core: &RdmaCore, port: HcaPort) -> Result<Report> {
    measure(setup, rdma_core, port, (1, 400))
}

/// Posts the requests with both in a guest of its own, and compares.
fn measure(
    setup: &Setup<'_>,
    rdma_core: &RdmaCore,
    port: HcaPort,
    (seed, count): (u64, usize),
) -> Result<Report> {
    let requests = generate(seed, count, port == HcaPort::Roce);
    let folder = Folder::new(&Path::new("wqe-diff").join(format!("{port:?}")), GUEST_FOLDER)?;
    folder.copy(&build::wqe_diff()?)?;
    folder.compile(setup.cache, rdma_core, "bench/wqe-diff/c/wqe-diff.c", "wqe-diff-c")?;
    let lines: String = requests.iter().map(Request::line).map(|line| line + "\n").collect();
    fs::write(folder.file("list"), lines)?;
    let recording = folder.file("recording");
    let hca = experiment::start_hca(Some(port), 1, &[format!("--requests={}", recording.display())])?;
    let setup = Setup { shares: vec![folder.share()], ..setup.clone() };
    let (ours, until, theirs) = experiment::run(&setup, hca.as_ref(), |guests| {
        let ours = run(guests, &folder, "wqe-diff", &[])?;
        let until = recorded(&recording)?.len();
        let theirs = run(guests, &folder, "wqe-diff-c", &[&ours.gid_index.to_string()])?;
        Ok((ours, until, theirs))
    })?;
    let all = recorded(&recording)?;
    let (first, second) = all.split_at(until);
    let (mine, other) = (entries(first, &ours)?, entries(second, &theirs)?);
    let report = compare((&mine, &ours), (&other, &theirs));
    let receives = requests.iter().filter(|request| request.receive.is_some()).count();
    let expected = requests.len() + receives;
    ensure!(report.entries == expected, "{} of {expected} entries were fetched", report.entries);
    Ok(report)
}

fn recorded(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn run(guests: &mut Guests, folder: &Folder, program: &str, arguments: &[&str]) -> Result<ProgramValues> {
    let command = [folder.in_guest(program), "mlx5_0".to_owned(), folder.in_guest("list")];
    let command = [&command.each_ref().map(String::as_str), arguments].concat();
    ProgramValues::parse(&command::run(guests, &command, LIMIT)?)
}
