//! `cargo xtask dropin bench`: the instructions of the library's data path beside those of Debian's, by
//! one C program in one guest.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bareverbs_lab::{Guests, Programs, Setup};
use clap::Args;

use super::Glibc;
use crate::build;
use crate::experiment::ceilings::Ceilings;
use crate::experiment::programs::Folder;
use crate::experiment::{self, Files, Port, command};
use crate::fastpath::KERNEL;

/// The folder of the program and of the library in the guest.
const GUEST_FOLDER: &str = "/lab/dropin-bench";
/// Timeout of each run.
const LIMIT: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(crate) struct Bench {
    /// A series such as 6.12, rc or a folder.
    #[arg(long, default_value = KERNEL)]
    kernel: String,
    /// Measure an HCA, bound by the kernel's mlx5 driver, instead of rxe: ib or roce.
    #[arg(long, value_enum)]
    hca: Option<Port>,
}

/// A row of the table: its name, its figure, and the most that it may take of rdma-core's instructions on a
/// ConnectX, with locks and without. On rxe no row may take more than rdma-core's.
struct Row(&'static str, &'static str, [f64; 2]);

const ROWS: [Row; 14] = [
    Row("`ibv_post_send` of 8 bytes inline", "post_send 1 inline", [0.4, 0.35]),
    Row("`ibv_post_send` of a list of 32, each", "post_send 32 inline", [0.4, 0.4]),
    Row("`ibv_wr_send` of 8 bytes inline", "wr send inline", [0.6, 0.6]),
    Row("`ibv_wr_rdma_write` of one SGE", "wr write sge", [0.7, 0.7]),
    Row("`ibv_poll_cq` that finds one", "poll_into 1", [0.4, 0.35]),
    Row("`ibv_poll_cq` that finds 32, each", "poll_into 32", [0.6, 0.6]),
    Row("`ibv_poll_cq` that finds none", EMPTY, [0.35, 0.3]),
    Row("`ibv_start_poll`, four fields, `ibv_end_poll`", "start_poll", [0.45, 0.45]),
    Row("`ibv_start_poll` that finds none", "empty start_poll", [0.5, 0.5]),
    Row("`ibv_post_recv` of one", "post_recv 1", [0.5, 0.5]),
    Row("`ibv_post_recv` of a list of 32, each", "post_recv 32", [0.75, 0.75]),
    Row("`ibv_post_srq_recv` of one", "srq post_recv 1", [0.75, 0.8]),
    Row("`ibv_post_srq_recv` of a list of 32, each", "srq post_recv 32", [1.0, 1.0]),
    Row("KiB of private memory with an open device", "private memory", [1.0, 1.0]),
];

const EMPTY: &str = "empty poll_into";

/// The instructions that an uncontended lock and unlock may take.
const LOCK: f64 = 15.0;

/// Which of a line's figures counts: the smallest of many runs, or the median for sends of rxe. In some
/// boots a few runs of these take a path of the kernel that is a thousand instructions shorter.
fn counts_median(name: &str, is_hca: bool) -> bool {
    !is_hca && ["post_send", "wr "].iter().any(|send| name.starts_with(send))
}

/// The figures of one run by name.
type Figures = BTreeMap<String, f64>;

/// The figures of the library, and of Debian's.
type Both = [Figures; 2];

/// How the programs run, and the variable for it.
const RUNS: [(&str, &[&str]); 2] = [("with locks", &[]), ("single-threaded", &["MLX5_SINGLE_THREADED=1"])];

impl Bench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let is_hca = self.hca.is_some();
        let device = if is_hca { ["mlx5_0", "0", "awake"] } else { ["rxe0", "1", "asleep"] };
        let programs = Programs { init: build::guest_init()?, on_path: BTreeMap::new() };
        let files = Files::with_rdma_core(&self.kernel, programs)?;
        let folder = Folder::new(&Path::new("dropin-bench").join(device[0]), GUEST_FOLDER)?;
        folder.compile(&files.cache, files.rdma_core()?, "bench/fastpath/c/fastpath.c", "fastpath-c")?;
        folder.copy(&super::library("release", Glibc::Host)?)?;
        let hca = experiment::start_hca(self.hca, 1, &[])?;
        let setup = Setup { shares: vec![folder.share()], instruction_clock: true, ..files.setup() };
        let program = folder.in_guest("fastpath-c");
        let program = [&[&*program], &device[..], &["extended"]].concat();
        let path = format!("LD_LIBRARY_PATH={GUEST_FOLDER}");
        let runs = if is_hca { &RUNS[..] } else { &RUNS[..1] };
        let measured = experiment::run(&setup, hca.as_ref(), |guests| {
            let mut measured = Vec::new();
            for (_, variables) in runs {
                let mut run = |more: &[&str]| measure(guests, &[variables, more].concat(), &program, is_hca);
                measured.push([run(&[&path])?, run(&[])?]);
            }
            Ok(measured)
        })?;
        Ok(table(&measured)?.print())
    }
}

/// Runs the program with these variables. Its priority is above that of the kernel's workers, so that only
/// the caller's instructions are measured.
fn measure(guests: &mut Guests, variables: &[&str], program: &[&str], is_hca: bool) -> Result<Figures> {
    let command = [&["env"], variables, &["chrt", "--fifo", "1"], program].concat();
    let text = command::run(guests, &command, LIMIT)?;
    text.lines().map(|line| figure(line, is_hca).with_context(|| format!("the program: {line}"))).collect()
}

/// The figure of a line `c.NAME<TAB>SMALLEST<TAB>MEDIAN`.
fn figure(line: &str, is_hca: bool) -> Option<(String, f64)> {
    let [name, smallest, median] =
        line.strip_prefix("c.")?.split('\t').collect::<Vec<_>>().try_into().ok()?;
    let figure = if counts_median(name, is_hca) { median } else { smallest };
    Some((name.to_owned(), figure.parse().ok()?))
}

/// A Markdown table. One run is of rxe, two are of a ConnectX.
fn table(measured: &[Both]) -> Result<Ceilings> {
    let is_hca = measured.len() > 1;
    let mut heading = "| instructions |".to_owned();
    for (how, _) in &RUNS[..measured.len()] {
        heading.push_str(&format!(" {how} | rdma-core | ratio | limit |"));
    }
    let mut table = Ceilings::new(heading + "\n|---|" + &"---|".repeat(4 * measured.len()));
    let get = |figures: &Figures, name: &str| {
        figures.get(name).copied().with_context(|| format!("`{name}` was not measured"))
    };
    for Row(what, name, limits) in &ROWS {
        let mut line = format!("| {what} |");
        let mut is_above = false;
        for ([ours, theirs], limit) in measured.iter().zip(limits) {
            let (ours, theirs) = (get(ours, name)?, get(theirs, name)?);
            let limit = if is_hca { *limit } else { 1.0 };
            line.push_str(&format!(" {ours:.1} | {theirs:.1} | {:.2} | {limit} |", ours / theirs));
            is_above |= ours > theirs * limit;
        }
        table.row(what, &line, is_above);
    }
    if let [[locked, _], [elided, _]] = measured {
        let lock = get(locked, EMPTY)? - get(elided, EMPTY)?;
        let line = format!(
            "\nA lock and its unlock take {lock:.0} instructions more than elided ones (limit {LOCK})."
        );
        table.row("lock and unlock", &line, lock > LOCK);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_above_their_limits_fail() {
        let line = "c.post_send 1 inline\t70.0\t80.5";
        assert_eq!(figure(line, true), Some(("post_send 1 inline".to_owned(), 70.0)));
        assert_eq!(figure(line, false), Some(("post_send 1 inline".to_owned(), 80.5)));
        assert_eq!(figure("bad: EINVAL", true), None);

        let figures = |each: f64| -> Figures { ROWS.iter().map(|row| (row.1.to_owned(), each)).collect() };
        let above = |ours: f64, elided: f64| {
            table(&[[figures(ours), figures(100.0)], [figures(elided), figures(100.0)]]).unwrap().above
        };
        assert_eq!(above(35.0, 25.0), Vec::<&str>::new());
        assert_eq!(above(36.0, 30.0), ["`ibv_poll_cq` that finds none"]);
        assert_eq!(above(35.0, 19.0), ["lock and unlock"]);
        assert_eq!(table(&[[figures(100.0), figures(100.0)]]).unwrap().above, Vec::<&str>::new());
        assert_eq!(table(&[[figures(101.0), figures(100.0)]]).unwrap().above.len(), ROWS.len());
    }
}
