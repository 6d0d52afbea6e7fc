//! `cargo xtask fastpath`: the instructions of the data path, compared with rdma-core in the same
//! guest.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bareverbs_lab::{Guests, RdmaCore, Setup, Since};
use clap::Args;

use crate::build;
use crate::experiment::ceilings::Ceilings;
use crate::experiment::programs::Folder;
use crate::experiment::{self, Files, Tested, command};

/// The kernel of the check.
pub(crate) const KERNEL: &str = Since::V7_2.name();
/// The name of a check among the tests, and its device.
pub(crate) type Check = (&'static str, Tested);

pub(crate) const CHECKS: [Check; 3] = [
    ("fastpath::data_path_stays_below_ceilings", Tested::Rxe),
    ("fastpath::mlx5_data_path_takes_a_third_of_libmlx5", Tested::Ib),
    ("fastpath::siw_data_path_stays_below_ceilings", Tested::Siw),
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
    /// The device: rxe, siw, or an HCA with a port of ib or roce, bound by the kernel's mlx5 driver.
    #[arg(long, visible_alias = "hca", value_enum, default_value = "rxe")]
    device: Tested,
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
const FLUSH: &str = "32 deferred, 1 flush";
const FLUSH_AND_POLL: &str = "32 deferred, 1 flush_and_poll";
/// The figures that include the kernel's part of rxe's doorbell. In some boots a few runs of these take
/// a path of the kernel that is a thousand instructions shorter, so the smallest would depend on the
/// boot.
const DOORBELLS: [&str; 4] = [SINGLE, LIST, FLUSH, FLUSH_AND_POLL];

const MESSAGE: &str = "message by Qp";
const WRITES: &str = "writes by Qp";

const RXE: [Row; 24] = [
    row("a request of a list of 32, without the doorbell", REQUEST, Some(REQUEST), At(60.0)),
    row("post_send_deferred of 1, 8 bytes inline", "deferred inline", None, At(60.0)),
    row("post_send_deferred of 1, one element", "deferred sge", None, At(60.0)),
    row("start_send, write_inline, defer", "deferred in place", None, At(60.0)),
    row("post_send of 1, doorbell and all", SINGLE, Some(SINGLE), At(4000.0)),
    row("post_send of 32, doorbell and all, each", LIST, Some(LIST), At(185.0)),
    row("32 deferred one by one, flush, each", FLUSH, None, At(185.0)),
    row("32 deferred one by one, flush_and_poll, each", FLUSH_AND_POLL, None, At(185.0)),
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

/// The doorbell is a system call, in which the kernel sends.
const SIW: [Row; 17] = [
    row("post_send of 1, doorbell and all", SINGLE, Some(SINGLE), At(15000.0)),
    row("the same, of a request known where it is posted", "post_send 1 in place", Some(SINGLE), At(15000.0)),
    row("post_send of 32, doorbell and all, each", LIST, Some(LIST), At(16000.0)),
    row("start_send, 32 times write_inline, ring, each", "start_send 32 in place", Some(LIST), At(16000.0)),
    row("post_send_deferred of 1, 8 bytes inline", "deferred inline", None, Ceiling::None),
    row("poll_one that finds one: id, status, opcode, length", "poll_one", Some("poll_into 1"), At(56.0)),
    row("poll, next, that finds one", "poll, next", Some("poll_into 1"), At(48.0)),
    row("poll_into that finds one", "poll_into 1", Some("poll_into 1"), At(67.0)),
    row("poll_into with room for 32 that finds one", "poll_into 1 of 32", None, Ceiling::None),
    row("poll_into that finds 32, each", "poll_into 32", Some("poll_into 32"), At(53.0)),
    row("empty poll_one", "empty poll_one", Some("empty poll_into"), At(21.0)),
    row("empty poll, next", "empty poll, next", Some("empty poll_into"), At(21.0)),
    row("empty poll_into", "empty poll_into", Some("empty poll_into"), At(27.0)),
    row("post_recv of 1", "post_recv 1", Some("post_recv 1"), At(75.0)),
    row("post_recv of 32, each", "post_recv 32", Some("post_recv 32"), At(45.0)),
    row("Srq::post_recv of 1", "srq post_recv 1", Some("srq post_recv 1"), At(63.0)),
    row("Srq::post_recv of 32, each", "srq post_recv 32", Some("srq post_recv 32"), At(44.0)),
];

/// The measured device.
struct Subject {
    /// The name of its provider's own types.
    types: &'static str,
    rows: &'static [Row],
    /// The figures that are the median of many runs. All others are the smallest.
    medians: &'static [&'static str],
    device: &'static str,
    /// Arguments of the C program.
    arguments: &'static [&'static str],
}

const SOFT: Subject =
    Subject { types: "Rxe", rows: &RXE, medians: &DOORBELLS, device: "rxe0", arguments: &["rxe0", "1"] };
const HCA: Subject = Subject {
    types: "Mlx5",
    rows: &MLX5,
    medians: &[],
    device: "mlx5_0",
    arguments: &["mlx5_0", "0", "awake"],
};

const IWARP: Subject =
    Subject { types: "Siw", rows: &SIW, medians: &DOORBELLS, device: "siw0", arguments: &["10.1.0.1"] };

impl Subject {
    fn of(device: Tested) -> Self {
        match device {
            Tested::Rxe => SOFT,
            Tested::Ib | Tested::Roce => HCA,
            Tested::Siw => IWARP,
        }
    }
}

/// The smallest or the median of many runs, by name.
type Figures = BTreeMap<String, f64>;

/// The figures with a ceiling: over `AnyProvider`, and over the provider's own types.
const OURS: [&str; 2] = ["any", "own"];

impl Fastpath {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let mut files = Files::with_rdma_core(&self.kernel, build::guest_programs()?)?;
        if self.device == Tested::Siw {
            files.add_siw(&self.kernel)?;
        }
        let rdma_core = files.rdma_core()?;
        Ok(measure(&files.setup(), rdma_core, self.device)?.print())
    }
}

/// Measures in a guest of its own.
pub(crate) fn measure(setup: &Setup<'_>, rdma_core: &RdmaCore, device: Tested) -> Result<Ceilings> {
    let subject = Subject::of(device);
    let folder = Folder::new(&Path::new("fastpath").join(subject.device), GUEST_FOLDER)?;
    folder.copy(&build::fastpath(if device == Tested::Siw { "siw" } else { "" })?)?;
    let (source, program) = ("bench/fastpath/c/fastpath.c", "fastpath-c");
    match device {
        Tested::Siw => folder.compile_with_rdmacm(setup.cache, rdma_core, source, program)?,
        _ => folder.compile(setup.cache, rdma_core, source, program)?,
    }
    let hca = experiment::start_hca(device.port(), 1, &[])?;
    let (shares, link_type) = (vec![folder.share()], device.link_type());
    let setup = Setup { shares, link_type, instruction_clock: true, ..setup.clone() };
    let mut figures = experiment::run(&setup, hca.as_ref(), |guests| {
        let mut figures = run(guests, &subject, &folder.in_guest("fastpath"), &[subject.device])?;
        figures.append(&mut run(guests, &subject, &folder.in_guest("fastpath-c"), subject.arguments)?);
        Ok(figures)
    })?;
    for whose in OURS.iter().chain(&["c"]) {
        let total = |name: &str, parts: f64| figures.get(&format!("{whose}.{name}")).map(|each| each * parts);
        let lists = total(LIST, 32.0).zip(total(SINGLE, 1.0));
        let (list, single) = lists.context("a program measured no lists")?;
        figures.insert(format!("{whose}.{REQUEST}"), (list - single) / 31.0);
    }
    table(&subject, &figures)
}

/// Runs a program with a priority above the kernel's workers, so that only the caller's
/// instructions are measured.
fn run(guests: &mut Guests, subject: &Subject, program: &str, arguments: &[&str]) -> Result<Figures> {
    let text = command::run(guests, &[&["chrt", "--fifo", "1", program], arguments].concat(), LIMIT)?;
    text.lines().map(|line| subject.figure(line).with_context(|| format!("{program}: {line}"))).collect()
}

impl Subject {
    /// The figure of a line `WHOSE.NAME<TAB>SMALLEST<TAB>MEDIAN`.
    fn figure(&self, line: &str) -> Option<(String, f64)> {
        let [name, smallest, median] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        let (_, what) = name.split_once('.')?;
        let figure = if self.medians.contains(&what) { median } else { smallest };
        Some((name.to_owned(), figure.parse().ok()?))
    }
}

fn table(subject: &Subject, figures: &Figures) -> Result<Ceilings> {
    let Subject { types, rows, .. } = subject;
    let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    let mut table = Ceilings::new(format!(
        "{:width$}  AnyProvider {types:>9}         C   ceiling",
        "instructions of many runs"
    ));
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
        let line = format!("{what:width$}  {any:11.1} {own:9.1} {theirs:>9} {limit:>9}");
        table.row(what, &line, ceiling.is_some_and(|ceiling| any.max(own) > ceiling));
    }
    Ok(table)
}
