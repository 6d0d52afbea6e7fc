//! `cargo xtask wqe-diff`: compares the WQEs of our provider and of rdma-core as fetched by an HCA,
//! field by field.

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Accelerator, Cache, Exec, Guests, Hca, HcaPort, Kernel, RdmaCore, Setup, Since, Tools};
use bareverbs_wqe_diff::compare::{Report, compare};
use bareverbs_wqe_diff::generate::generate;
use bareverbs_wqe_diff::record::{ProgramValues, entries};
use bareverbs_wqe_diff::request::Request;
use clap::Args;

use crate::{build, fastpath, lab};

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
    hca: lab::Port,
    /// The seed of the requests.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Minimum number of requests.
    #[arg(long, default_value_t = 400)]
    count: usize,
}

impl WqeDiff {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let kernel = lab::kernel(&cache, &tools, &self.kernel)?;
        let rdma_core = RdmaCore::fetch(&cache, false)?;
        let (port, wanted) = (self.hca.into(), (self.seed, self.count));
        let report = measure(&cache, &tools, &kernel, &rdma_core, port, wanted)?;
        print!("{}", report.text());
        Ok(if report.differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// A check among the tests.
pub(crate) fn check(
    cache: &Cache,
    tools: &Tools,
    kernel: &Kernel,
    rdma_core: &RdmaCore,
    port: HcaPort,
) -> Result<Report> {
    measure(cache, tools, kernel, rdma_core, port, (1, 400))
}

/// Posts the requests with both in a separate guest, and compares.
fn measure(
    cache: &Cache,
    tools: &Tools,
    kernel: &Kernel,
    rdma_core: &RdmaCore,
    port: HcaPort,
    (seed, count): (u64, usize),
) -> Result<Report> {
    let requests = generate(seed, count, port == HcaPort::Roce);
    let folder = build::target_folder().join("wqe-diff").join(format!("{port:?}"));
    fs::create_dir_all(&folder)?;
    fs::copy(build::wqe_diff()?, folder.join("wqe-diff")).context("copying the posting program")?;
    fastpath::compile(cache, rdma_core, "bench/wqe-diff/c/wqe-diff.c", &folder.join("wqe-diff-c"))?;
    let lines: String = requests.iter().map(Request::line).map(|line| line + "\n").collect();
    fs::write(folder.join("list"), lines)?;
    let recording = folder.join("recording");
    let programs = build::guest_programs()?;
    let hca = Hca::start(&build::hca()?, port, 1, &[format!("--requests={}", recording.display())])?;
    let setup = Setup {
        cache,
        tools,
        kernel,
        programs: &programs,
        hosts: 1,
        rdma_core: Some(rdma_core.root.clone()),
        shares: vec![(folder, GUEST_FOLDER.to_owned())],
        accelerator: Accelerator::Auto,
        instruction_clock: false,
        recording: None,
        hca: Some(&hca),
    };
    let mut guests = Guests::boot(&setup)?;
    let ours = run(&mut guests, &["wqe-diff", "mlx5_0"])?;
    let until = recorded(&recording)?.len();
    let theirs = run(&mut guests, &["wqe-diff-c", "mlx5_0", &ours.gid_index.to_string()])?;
    guests.shut_down()?;
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

fn run(guests: &mut Guests, command: &[&str]) -> Result<ProgramValues> {
    let mut argv: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
    argv[0] = format!("{GUEST_FOLDER}/{}", command[0]);
    argv.insert(2, format!("{GUEST_FOLDER}/list"));
    let finished = guests.run(0, Exec { argv, ..Exec::default() }, LIMIT)?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&finished.stderr));
    let well = !finished.timed_out && finished.status == 0;
    ensure!(well, "{} failed with status {}:\n{stdout}{stderr}", command[0], finished.status);
    ProgramValues::parse(&stdout)
}
