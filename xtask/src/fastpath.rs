//! `cargo xtask fastpath`: the instructions of the data path, compared with rdma-core in the same
//! guest.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{
    Accelerator, Cache, Exec, Guests, Hca, HcaPort, Kernel, RdmaCore, Series, Setup, Since, Tools,
    fetch_headers,
};
use clap::Args;

use crate::{build, lab};

/// The kernel of the check.
pub(crate) const KERNEL: &str = Since::V7_2.name();
/// The name of a check among the tests, and its HCA port; `None` for Soft-RoCE.
pub(crate) type Check = (&'static str, Option<HcaPort>);

pub(crate) const CHECKS: [Check; 2] = [
    ("fastpath::data_path_stays_below_ceilings", None),
    ("fastpath::mlx5_data_path_takes_a_third_of_libmlx5", Some(HcaPort::Ib)),
];
/// The folder of the two programs in the guest.
const GUEST_FOLDER: &str = "/lab/fastpath";
/// Timeout of each program.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(crate) struct Fastpath {
    /// A series such as 6.12, rc or a folder.
    #[arg(long, default_value = KERNEL)]
    kernel: String,
    /// Measure an HCA, bound by the kernel's mlx5 driver, instead of rxe: ib or roce.
    #[arg(long, value_enum)]
    hca: Option<lab::Port>,
}

/// A row of the table: its name, the figure of each program, and our ceiling.
struct Row {
    what: &'static str,
    ours: &'static str,
    theirs: Option<&'static str>,
    ceiling: Ceiling,
}

#[derive(Clone, Copy)]
enum Ceiling {
    /// Instructions.
    At(f64),
    /// A third of rdma-core's.
    Third,
    /// A tenth above another figure of ours.
    TenthAbove(&'static str),
    None,
}

use Ceiling::{At, TenthAbove, Third};

const fn row(what: &'static str, ours: &'static str, theirs: Option<&'static str>, ceiling: Ceiling) -> Row {
    Row { what, ours, theirs, ceiling }
}

/// The cost of a request without a doorbell. rdma-core's is computed from the difference of two
/// lists.
const REQUEST: &str = "request in a list";

const SINGLE: &str = "post_send 1 inline";
const LIST: &str = "post_send 32 inline";

const MESSAGE: &str = "message by Qp";
const WRITES: &str = "writes by Qp";

const RXE: [Row; 24] = [
    row("a request of a list of 32, without the doorbell", REQUEST, Some(REQUEST), At(95.0)),
    row("post_send_deferred of 1, 8 bytes inline", "deferred inline", None, At(60.0)),
    row("post_send_deferred of 1, one element", "deferred sge", None, At(60.0)),
    row("start_send, write_inline, defer", "deferred in place", None, At(60.0)),
    row("post_send of 1, doorbell and all", SINGLE, Some(SINGLE), At(3000.0)),
    row("post_send of 32, doorbell and all, each", LIST, Some(LIST), At(185.0)),
    row("32 deferred one by one, flush, each", "32 deferred, 1 flush", None, At(185.0)),
    row("32 deferred one by one, flush_and_poll, each", "32 deferred, 1 flush_and_poll", None, At(185.0)),
    row("poll_one that finds one: id, status, opcode, length", "poll_one", Some("poll_into 1"), At(40.0)),
    row("poll, next, that finds one", "poll, next", None, At(40.0)),
    row("poll_into that finds one", "poll_into 1", Some("poll_into 1"), At(40.0)),
    row("poll_into with room for 32 that finds one", "poll_into 1 of 32", None, Ceiling::None),
    row("poll_into that finds 32, each", "poll_into 32", Some("poll_into 32"), At(40.0)),
    row("empty poll_one", "empty poll_one", Some("empty poll_into"), At(15.0)),
    row("empty poll, next", "empty poll, next", None, At(15.0)),
    row("empty poll_into", "empty poll_into", Some("empty poll_into"), At(15.0)),
    row("post_recv of 1", "post_recv 1", Some("post_recv 1"), At(40.0)),
    row("post_recv of 32, each", "post_recv 32", Some("post_recv 32"), At(40.0)),
    row("Srq::post_recv of 1", "srq post_recv 1", Some("srq post_recv 1"), At(40.0)),
    row("Srq::post_recv of 32, each", "srq post_recv 32", Some("srq post_recv 32"), At(40.0)),
    row("a message by Qp: both posts, events, polls", MESSAGE, None, Ceiling::None),
    row("the same by Endpoint", "message by Endpoint", None, TenthAbove(MESSAGE)),
    row("16 writes of one batch by Qp, event, polls, each", WRITES, None, Ceiling::None),
    row("the same by Endpoint", "writes by Endpoint", None, TenthAbove(WRITES)),
];

const MLX5: [Row; 17] = [
    row("post_send of 1, doorbell and all", SINGLE, Some(SINGLE), Third),
    row("the same, of a request known where it is posted", "post_send 1 in place", Some(SINGLE), Third),
    row("post_send of 32, doorbell and all, each", LIST, Some(LIST), Third),
    row("start_send, 32 times write_inline, ring, each", "start_send 32 in place", Some(LIST), Third),
    row("a request of a list of 32, without the doorbell", REQUEST, Some(REQUEST), Third),
    row("poll_one that finds one: id, status, opcode, length", "poll_one", Some("poll_into 1"), Third),
    row("poll, next, that finds one", "poll, next", Some("poll_into 1"), Third),
    row("poll_into that finds one", "poll_into 1", Some("poll_into 1"), Third),
    row("poll_into with room for 32 that finds one", "poll_into 1 of 32", None, Ceiling::None),
    row("poll_into that finds 32, each", "poll_into 32", Some("poll_into 32"), Ceiling::None),
    row("empty poll_one", "empty poll_one", Some("empty poll_into"), Third),
    row("empty poll, next", "empty poll, next", Some("empty poll_into"), Third),
    row("empty poll_into", "empty poll_into", Some("empty poll_into"), Third),
    row("post_recv of 1", "post_recv 1", Some("post_recv 1"), Third),
    row("post_recv of 32, each", "post_recv 32", Some("post_recv 32"), Ceiling::None),
    row("Srq::post_recv of 1", "srq post_recv 1", Some("srq post_recv 1"), At(57.0)),
    row("Srq::post_recv of 32, each", "srq post_recv 32", Some("srq post_recv 32"), At(53.0)),
];

/// The measured device.
struct Subject {
    /// The name of its provider's own types.
    types: &'static str,
    rows: &'static [Row],
    device: &'static str,
    /// Arguments of the C program.
    arguments: &'static [&'static str],
}

const SOFT: Subject = Subject { types: "Rxe", rows: &RXE, device: "rxe0", arguments: &["rxe0", "1"] };
const HCA: Subject =
    Subject { types: "Mlx5", rows: &MLX5, device: "mlx5_0", arguments: &["mlx5_0", "0", "awake"] };

/// The minimum of many runs, by name.
type Figures = BTreeMap<String, f64>;

/// The figures with a ceiling: over `AnyProvider`, and over the provider's own types.
const OURS: [&str; 2] = ["any", "own"];

impl Fastpath {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        let kernel = lab::kernel(&cache, &tools, &self.kernel)?;
        let rdma_core = RdmaCore::fetch(&cache, false)?;
        let (table, over) = measure(&cache, &tools, &kernel, &rdma_core, self.hca.map(Into::into))?;
        print!("{table}");
        Ok(if over.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Measures in a separate guest, on Soft-RoCE or an HCA. Returns the table, and the rows above
/// their ceiling.
pub(crate) fn measure(
    cache: &Cache,
    tools: &Tools,
    kernel: &Kernel,
    rdma_core: &RdmaCore,
    port: Option<HcaPort>,
) -> Result<(String, Vec<&'static str>)> {
    let subject = if port.is_some() { HCA } else { SOFT };
    let folder = build::target_folder().join("fastpath").join(subject.device);
    std::fs::create_dir_all(&folder)?;
    let ours = build::fastpath()?;
    std::fs::copy(&ours, folder.join("fastpath")).context("copying the measuring program")?;
    compile(cache, rdma_core, "bench/fastpath/c/fastpath.c", &folder.join("fastpath-c"))?;
    let programs = build::guest_programs()?;
    let hca = port.map(|port| Hca::start(&build::hca()?, port, 1, &[])).transpose()?;
    let setup = Setup {
        cache,
        tools,
        kernel,
        programs: &programs,
        hosts: 1,
        rdma_core: Some(rdma_core.root.clone()),
        shares: vec![(folder, GUEST_FOLDER.to_owned())],
        accelerator: Accelerator::Auto,
        instruction_clock: true,
        recording: None,
        hca: hca.as_ref(),
    };
    let mut guests = Guests::boot(&setup)?;
    let mut figures = run(&mut guests, &["fastpath", subject.device])?;
    figures.append(&mut run(&mut guests, &[&["fastpath-c"], subject.arguments].concat())?);
    guests.shut_down()?;
    for whose in OURS.iter().chain(&["c"]) {
        let total = |name: &str, parts: f64| figures.get(&format!("{whose}.{name}")).map(|each| each * parts);
        let lists = total(LIST, 32.0).zip(total(SINGLE, 1.0));
        let (list, single) = lists.context("a program measured no lists")?;
        figures.insert(format!("{whose}.{REQUEST}"), (list - single) / 31.0);
    }
    table(&subject, &figures)
}

/// Compiles a C program against the guest's rdma-core.
pub(crate) fn compile(cache: &Cache, rdma_core: &RdmaCore, source: &str, to: &Path) -> Result<()> {
    let source = build::workspace().join(source);
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-o"]).arg(to).arg(source).arg("-I").arg(rdma_core.headers(cache)?);
    for folder in fetch_headers(cache, Series::NEWEST, false)?.include {
        cc.arg("-I").arg(folder);
    }
    let library: PathBuf = rdma_core.root.join("usr/lib/x86_64-linux-gnu/libibverbs.so.1");
    // The library's own dependencies exist in the guest only.
    cc.arg(library).arg("-Wl,--allow-shlib-undefined");
    ensure!(cc.status().context("running cc")?.success(), "the C program could not be compiled");
    Ok(())
}

/// Runs a program with a priority above the kernel's workers, so that only the caller's
/// instructions are measured.
fn run(guests: &mut Guests, command: &[&str]) -> Result<Figures> {
    let program = format!("{GUEST_FOLDER}/{}", command[0]);
    let argv = ["chrt", "--fifo", "1", &program].into_iter().chain(command[1..].iter().copied());
    let exec = Exec { argv: argv.map(str::to_owned).collect(), ..Exec::default() };
    let finished = guests.run(0, exec, LIMIT)?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&finished.stderr));
    if finished.timed_out || finished.status != 0 {
        bail!("{} failed with status {}:\n{stdout}{stderr}", command[0], finished.status);
    }
    stdout.lines().map(|line| figure(line).with_context(|| format!("{}: {line}", command[0]))).collect()
}

/// `NAME<TAB>SMALLEST<TAB>MEDIAN`
fn figure(line: &str) -> Option<(String, f64)> {
    let mut words = line.split('\t');
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

fn table(subject: &Subject, figures: &Figures) -> Result<(String, Vec<&'static str>)> {
    let Subject { types, rows, .. } = subject;
    let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    let mut text = format!(
        "{:width$}  AnyProvider {types:>9}         C   ceiling\n",
        "instructions, the smallest of many runs"
    );
    let mut over = Vec::new();
    for Row { what, ours, theirs, ceiling } in *rows {
        let get = |whose: &str, name: &str| figures.get(&format!("{whose}.{name}")).copied();
        let ours: Vec<f64> = OURS.iter().filter_map(|whose| get(whose, ours)).collect();
        let [any, own] = ours[..] else { bail!("nothing was measured for `{what}`") };
        let theirs = theirs.and_then(|name| get("c", name));
        let ceiling = match ceiling {
            At(ceiling) => Some(*ceiling),
            Third => {
                Some(theirs.with_context(|| format!("the C library's `{what}` was not measured"))? / 3.0)
            }
            TenthAbove(name) => {
                let raw = get("any", name).with_context(|| format!("`{name}` was not measured"))?;
                Some(raw * 1.1)
            }
            Ceiling::None => None,
        };
        let theirs = theirs.map_or("-".to_owned(), |each| format!("{each:.1}"));
        let limit = ceiling.map_or("-".to_owned(), |ceiling| format!("{ceiling:.0}"));
        write!(text, "{what:width$}  {any:11.1} {own:9.1} {theirs:>9} {limit:>9}")?;
        if ceiling.is_some_and(|ceiling| any.max(own) > ceiling) {
            text.push_str("  ABOVE");
            over.push(*what);
        }
        text.push('\n');
    }
    Ok((text, over))
}
