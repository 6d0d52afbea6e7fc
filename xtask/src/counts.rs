//! `cargo xtask counts`: the instructions of the mlx5 data path, on the software HCA in the same
//! process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::build;
use crate::experiment::ceilings::Ceilings;

/// The name of the check among the tests.
pub(crate) const TITLE: &str = "counts::mlx5_data_path_stays_below_ceilings";

/// The program that counts instructions, and its Debian package.
const VALGRIND: &str = "valgrind";

#[derive(Args)]
pub(crate) struct Counts {
    /// Only compare a BlueFlame register with one of plain doorbells, by the size of a batch.
    #[arg(long)]
    blueflame: bool,
}

/// Sizes of the batches that are posted to both registers.
const BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// A row of the table: its name, the figure, and its ceiling over each of [`TYPES`].
struct Row(&'static str, Figure, [f64; 2]);

enum Figure {
    /// Instructions of a whole sample.
    One(&'static str),
    /// Instructions of a sample, divided by this number.
    Each(&'static str, f64),
    /// Instructions of each further operation: the difference of two samples, divided by the number
    /// of operations that the second has more.
    Further(&'static str, &'static str, f64),
}

use Figure::{Each, Further, One};

/// `AnyProvider`, and the provider's own types.
const TYPES: [&str; 2] = ["any", "own"];

const ROWS: [Row; 42] = [
    Row(
        "post_send of a write of 8 bytes, known where it is posted",
        One("post_send 1 in place"),
        [59.0, 57.0],
    ),
    Row("start_send, write_inline, ring", One("start_send 1"), [134.0, 114.0]),
    Row("each further write_inline of a batch", Further("start_send 1", "start_send 32", 31.0), [40.0, 40.0]),
    Row("post_send of a list of one", One("post_send 1"), [94.0, 90.0]),
    Row("post_send of a list of 32, each", Each("post_send 32", 32.0), [69.0, 68.0]),
    Row("poll, next: id, status and length of a send", One("poll send"), [45.0, 35.0]),
    Row("the same of a receive", One("poll receive"), [45.0, 35.0]),
    Row("the same of a receive with immediate data", One("poll receive imm"), [63.0, 58.0]),
    Row("the same of a write with immediate data", One("poll write imm"), [63.0, 58.0]),
    Row("poll_one, of a send", One("poll_one send"), [52.0, 50.0]),
    Row("poll, next, that finds none", One("poll nothing"), [23.0, 20.0]),
    Row(
        "post_recv of one buffer of 64 bytes, known where it is posted",
        One("post_recv 1 in place"),
        [25.0, 20.0],
    ),
    Row("the same of an element that lies in memory", One("post_recv 1 sge"), [32.0, 29.0]),
    Row("post_recv of a list of one", One("post_recv 1"), [46.0, 40.0]),
    Row("post_recv of a list of 32, each", Each("post_recv 32", 32.0), [34.0, 33.0]),
    Row("each further of a list of 32", Further("post_recv 1", "post_recv 32", 31.0), [34.0, 33.0]),
    Row("post_send of a write of one element", One("post_send 1 sge"), [72.0, 69.0]),
    Row("the same, unsignalled", One("post_send 1 unsignaled"), [72.0, 69.0]),
    Row("safe, `PoolBuffer`: post of the same", One("safe post PoolBuffer"), [120.0, 117.0]),
    Row("safe, `PoolBuffer`: poll, of a send", One("safe poll send PoolBuffer"), [75.0, 70.0]),
    Row("safe, `PoolBuffer`: post of a receive", One("safe post_recv PoolBuffer"), [70.0, 67.0]),
    Row("safe, `PoolBuffer`: poll, of a receive", One("safe poll receive PoolBuffer"), [80.0, 75.0]),
    Row("safe, `RegionMut`: post of the same", One("safe post RegionMut"), [120.0, 117.0]),
    Row("safe, `RegionMut`: poll, of a send", One("safe poll send RegionMut"), [75.0, 70.0]),
    Row("safe, `RegionMut`: post of a receive", One("safe post_recv RegionMut"), [70.0, 67.0]),
    Row("safe, `RegionMut`: poll, of a receive", One("safe poll receive RegionMut"), [80.0, 75.0]),
    Row("safe, `Mr`: post of the same", One("safe post Mr"), [120.0, 117.0]),
    Row("safe, `Mr`: poll, of a send", One("safe poll send Mr"), [75.0, 70.0]),
    Row("safe, `Mr`: post of a receive", One("safe post_recv Mr"), [70.0, 67.0]),
    Row("safe, `Mr`: poll, of a receive", One("safe poll receive Mr"), [80.0, 75.0]),
    Row("endpoint: post of an inline write of 8 bytes", One("end inline"), [90.0, 87.0]),
    Row("endpoint: post of an unsignalled write", One("end unsignaled"), [120.0, 117.0]),
    Row("endpoint: batch of one inline write", One("end batch 1"), [190.0, 165.0]),
    Row("endpoint: batch of 32, each", Each("end batch 32", 32.0), [85.0, 82.0]),
    Row("endpoint: poll, of a receive with immediate data", One("end poll imm"), [95.0, 90.0]),
    Row("endpoint: poll, of a write with immediate data", One("end poll write imm"), [95.0, 90.0]),
    Row("endpoint: wait of a send whose completion is in the CQ", One("end wait send"), [75.0, 70.0]),
    Row("endpoint: await of a send whose completion is in the CQ", One("end await send"), [80.0, 73.0]),
    Row("endpoint: the same of a receive", One("end await receive"), [80.0, 73.0]),
    Row("scope: post of a write of one element", One("scope post"), [120.0, 117.0]),
    Row("hub, `PoolBuffer`: post of the same", One("hub post"), [220.0, 210.0]),
    Row("hub: await of a completion in the CQ", One("hub await"), [126.0, 119.0]),
];

/// Instructions that an operation of an endpoint may take more than the raw one beside it.
const DIFFERENCE: f64 = 45.0;

/// Samples of the safe layer and of the raw path whose difference is limited, and the number of their
/// operations.
const PAIRS: [(&str, &str, f64); 19] = [
    ("safe post PoolBuffer", "post_send 1 sge", 1.0),
    ("safe post RegionMut", "post_send 1 sge", 1.0),
    ("safe post Mr", "post_send 1 sge", 1.0),
    ("safe post_recv PoolBuffer", "post_recv 1 sge", 1.0),
    ("safe post_recv RegionMut", "post_recv 1 sge", 1.0),
    ("safe post_recv Mr", "post_recv 1 sge", 1.0),
    ("safe poll send PoolBuffer", "poll send", 1.0),
    ("safe poll send RegionMut", "poll send", 1.0),
    ("safe poll send Mr", "poll send", 1.0),
    ("safe poll receive PoolBuffer", "poll receive", 1.0),
    ("safe poll receive RegionMut", "poll receive", 1.0),
    ("safe poll receive Mr", "poll receive", 1.0),
    ("end inline", "post_send 1 in place", 1.0),
    ("end unsignaled", "post_send 1 unsignaled", 1.0),
    ("end poll imm", "poll receive imm", 1.0),
    ("end poll write imm", "poll write imm", 1.0),
    ("scope post", "post_send 1 sge", 1.0),
    ("end batch 32", "start_send 32", 32.0),
    ("end wait send", "poll send", 1.0),
];

/// Instructions that the await of an operation whose completion is in the CQ may take more than the raw
/// poll beside it.
const AWAIT_DIFFERENCE: f64 = 40.0;

/// Awaits and raw polls whose difference is limited.
const AWAITS: [(&str, &str, f64); 2] =
    [("end await send", "poll send", 1.0), ("end await receive", "poll receive", 1.0)];

impl Counts {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.blueflame {
            print!("{}", registers(&counted()?)?);
            return Ok(ExitCode::SUCCESS);
        }
        Ok(measure()?.print())
    }
}

/// Whether instructions can be counted on this machine.
pub(crate) fn possible() -> bool {
    cfg!(target_arch = "x86_64")
        && Command::new(VALGRIND).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Runs the measurement.
pub(crate) fn measure() -> Result<Ceilings> {
    table(&counted()?)
}

/// Runs the program under valgrind. Returns the instructions of each sample.
fn counted() -> Result<BTreeMap<String, f64>> {
    ensure!(possible(), "counting requires x86-64 and {VALGRIND}: apt-get install {VALGRIND}");
    let program = build::counts()?;
    let folder = build::target_folder().join("counts");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let output = Command::new(VALGRIND)
        .args(["--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", folder.join("out").display()))
        .arg(program)
        .output()
        .context("running valgrind")?;
    if !output.status.success() {
        bail!("valgrind failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    figures(&folder)
}

/// The instructions of a post, per request, with each register.
fn registers(figures: &BTreeMap<String, f64>) -> Result<String> {
    let mut text = format!(
        "{:32}  {:>21}  {:>21}\n{:32}  {:>10} {:>10}  {:>10} {:>10}\n",
        "instructions per request",
        "AnyProvider",
        "Mlx5",
        "",
        "BlueFlame",
        "doorbell",
        "BlueFlame",
        "doorbell"
    );
    let single = ("one, known where it is posted".to_owned(), "in place".to_owned(), 1);
    let batches = BATCHES.map(|count| (format!("a batch of {count}"), count.to_string(), count));
    for (what, sample, count) in std::iter::once(single).chain(batches) {
        write!(text, "{what:32}")?;
        for types in TYPES {
            text.push(' ');
            for register in ["blueflame", "doorbell"] {
                let name = format!("{types}.{register} {sample}");
                let figure = figures.get(&name).with_context(|| format!("`{name}` was not counted"))?;
                write!(text, " {:10.1}", figure / f64::from(count))?;
            }
        }
        text.push('\n');
    }
    Ok(text)
}

/// Instructions of a sample by name, without those of the marks.
fn figures(folder: &Path) -> Result<BTreeMap<String, f64>> {
    let mut figures = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        figures.extend(dump(&text));
    }
    for types in TYPES {
        let marks = *figures.get(&format!("{types}.nothing")).context("valgrind wrote no counts")?;
        let of_types = figures.iter_mut().filter(|(name, _)| name.starts_with(types));
        of_types.for_each(|(_, each)| *each -= marks);
    }
    Ok(figures)
}

/// Parses a file that callgrind dumped at the program's request: `NAME/SAMPLES` and their
/// instructions.
fn dump(text: &str) -> Option<(String, f64)> {
    let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let (name, samples) = of("desc: Trigger: Client Request: ")?.rsplit_once('/')?;
    let instructions: f64 = of("totals: ")?.trim().parse().ok()?;
    Some((name.to_owned(), instructions / samples.parse::<f64>().ok()?))
}

fn table(figures: &BTreeMap<String, f64>) -> Result<Ceilings> {
    let get = |types: &str, name: &str| {
        let figure = figures.get(&format!("{types}.{name}")).copied();
        figure.with_context(|| format!("`{name}` was not counted"))
    };
    let width = ROWS.iter().map(|Row(what, ..)| what.len()).max().unwrap_or(0);
    let heading = "instructions, the mean of many runs";
    let mut table = Ceilings::new(format!("{heading:width$}  AnyProvider      Mlx5  ceilings"));
    for Row(what, figure, ceilings) in &ROWS {
        let of = |types: &str| -> Result<f64> {
            Ok(match figure {
                One(name) => get(types, name)?,
                Each(name, count) => get(types, name)? / count,
                Further(one, more, count) => (get(types, more)? - get(types, one)?) / count,
            })
        };
        let (any, own) = (of(TYPES[0])?, of(TYPES[1])?);
        let line = format!("{what:width$}  {any:11.1} {own:9.1} {:5.0} {:3.0}", ceilings[0], ceilings[1]);
        table.row(what, &line, any > ceilings[0] || own > ceilings[1]);
    }
    let pairs = PAIRS.map(|pair| (pair, DIFFERENCE));
    let awaits = AWAITS.map(|pair| (pair, AWAIT_DIFFERENCE));
    for ((safe, raw, count), limit) in pairs.into_iter().chain(awaits) {
        for types in TYPES {
            let more = (get(types, safe)? - get(types, raw)?) / count;
            if more > limit {
                writeln!(table.text, "{types}: `{safe}` takes {more:.1} more than `{raw}`  ABOVE {limit}")?;
                table.above.push(safe);
            }
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::dump;

    #[test]
    fn callgrind_dump_is_parsed() {
        let text = "version: 1\ndesc: Trigger: Client Request: own.poll send/100\nevents: Ir\ntotals: 3400\n";
        assert_eq!(dump(text), Some(("own.poll send".to_owned(), 34.0)));
        assert_eq!(dump("desc: Trigger: Program termination\ntotals: 3400\n"), None);
    }
}
