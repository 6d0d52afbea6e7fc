//! rdma-core's suite on the software ConnectX: no test fails, and each skipped test is in the list
//! with its reason. With our libraries, no test that passes with the C libraries is skipped but for
//! those of a second list.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Accelerator, Exec, Guests, HcaPort, Series, Setup, Since};

use super::{End, suite};
use crate::experiment::{self, command};
use crate::print::heading;
use crate::{build, dropin};

/// The kernel of the list. Other kernels lack some features; there, only tests that also fail on
/// Soft-RoCE may fail.
const LISTED: Series = Series::Released(Since::V7_2);
const INTRODUCTION: &str = "\
# pyverbs on the software ConnectX: skipped tests

The tests of rdma-core's suite that skip on the software ConnectX, with the reason that they report.
None fails. `cargo xtask pyverbs --hca ib` and `--hca roce` run the suite on 7.2 and fail if the
results differ from this page. `--record` writes the page. `--kernel` selects other kernels: tests
that fail on Soft-RoCE too may fail there (`tests/kernel/pyverbs.md`), and no others.
";

/// Reserves huge pages; some tests use up to four.
const HUGE_PAGES: &str = "echo 8 > /proc/sys/vm/nr_hugepages && grep -qx 8 /proc/sys/vm/nr_hugepages";

/// Prints what `mlx5dv_query_device` returns for all bits: each byte, but the address of the clock, of
/// which only whether there is one.
const ATTRIBUTES: &str = r#"
import ctypes
verbs, mlx5 = ctypes.CDLL("libibverbs.so.1"), ctypes.CDLL("libmlx5.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.argtypes, verbs.ibv_open_device.restype = [ctypes.c_void_p], ctypes.c_void_p
mlx5.mlx5dv_query_device.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
context = verbs.ibv_open_device(verbs.ibv_get_device_list(None)[0])
attributes = ctypes.create_string_buffer(bytes(16) + (0x1ffff).to_bytes(8, "little") + bytes(176), 200)
result = mlx5.mlx5dv_query_device(context, attributes)
print(result, attributes.raw[:88].hex(), any(attributes.raw[88:96]), attributes.raw[96:].hex())"#;

/// Skipped tests by link type, each with its reason.
type Skips = BTreeMap<String, BTreeMap<String, String>>;

/// Whose libraries the suite loads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Library {
    C,
    Ours,
}

impl Library {
    /// The list of the tests that are skipped with this library. That of ours has those that pass with
    /// the C library, and a section of those that fail on Soft-RoCE; it is written by hand.
    fn path(self) -> PathBuf {
        build::workspace().join(if self == Self::C { "hca/pyverbs.md" } else { "dropin/pyverbs.md" })
    }

    pub(super) fn list(self) -> Result<Skips> {
        let path = self.path();
        Ok(parse(&fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?))
    }
}

/// Runs the suite on an HCA on each kernel. Compares the skipped tests with the list, or writes the
/// list.
pub(super) fn run(
    library: Library,
    port: HcaPort,
    kernels: &[Series],
    names: &[&str],
    record: bool,
    accelerator: Accelerator,
) -> Result<()> {
    let kernels = if kernels.is_empty() { &[LISTED] } else { kernels };
    ensure!(!record || kernels == [LISTED], "the list is of {LISTED}");
    let soft = super::read()?;
    let mut disagreements = Vec::new();
    for kernel in kernels {
        let mut ends = run_suite(library, port, *kernel, names, accelerator)?;
        ends.retain(|id, end| {
            let excused = *end == End::Failed && soft.fails(id, *kernel);
            if excused {
                println!("{id} fails, as it does on Soft-RoCE under {kernel}");
            }
            !excused
        });
        let name = name(port);
        if record {
            let mut known = Library::C.list().unwrap_or_default();
            known.insert(name.to_owned(), skips(&ends));
            fs::write(Library::C.path(), print(&known)).context("writing the list")?;
        }
        let mut found = failures(&ends);
        if *kernel == LISTED {
            let list =
                |library: Library| -> Result<_> { Ok(library.list()?.remove(name).unwrap_or_default()) };
            let (mut listed, also) = match library {
                Library::C => (list(Library::C)?, BTreeMap::new()),
                Library::Ours => (list(Library::Ours)?, list(Library::C)?),
            };
            if !names.is_empty() {
                listed.retain(|id, _| ends.contains_key(id));
            }
            found.extend(changed_skips(&ends, &listed, &also));
        }
        for line in found {
            println!("{line}");
            disagreements.push(line);
        }
    }
    ensure!(
        disagreements.is_empty(),
        "the outcomes of {} tests differ from {}",
        disagreements.len(),
        library.path().display()
    );
    Ok(())
}

fn name(port: HcaPort) -> &'static str {
    if port == HcaPort::Ib { "ib" } else { "roce" }
}

/// The outcomes on an HCA under this kernel.
fn run_suite(
    library: Library,
    port: HcaPort,
    kernel: Series,
    names: &[&str],
    accelerator: Accelerator,
) -> Result<BTreeMap<String, End>> {
    let (programs, variables, kind) = match library {
        Library::C => (build::guest_programs()?, &[][..], name(port).to_owned()),
        Library::Ours => (dropin::guest_programs()?, &suite::OURS[..], format!("dropin-{}", name(port))),
    };
    let files = super::files(kernel, programs)?;
    let hca = experiment::start_hca(Some(port), 1, &[])?;
    heading(&format!("pyverbs on the HCA, {}, kernel {}", name(port), files.kernel.version));
    let setup = Setup { accelerator, ..files.setup() };
    experiment::run(&setup, hca.as_ref(), |guests| {
        command::script(guests, HUGE_PAGES, &[], Duration::from_secs(60))
            .context("the guest has no room for huge pages")?;
        if library == Library::Ours {
            compare_attributes(guests, [variables, &[]])?;
        }
        suite::run(guests, "mlx5_0", &kind, names, variables)
    })
}

/// Compares the attributes of the device by either library.
fn compare_attributes(guests: &mut Guests, libraries: [&[(&str, &str)]; 2]) -> Result<()> {
    let mut attributes = |variables: &[(&str, &str)]| -> Result<String> {
        let argv = ["python3", "-c", ATTRIBUTES].map(str::to_owned).into();
        let env = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let finished = guests.run(0, Exec { argv, env, ..Exec::default() }, Duration::from_secs(60))?;
        let printed = String::from_utf8_lossy(&finished.stdout).into_owned();
        ensure!(printed.starts_with("0 "), "mlx5dv_query_device fails: {finished:?}");
        Ok(printed)
    };
    let (ours, theirs) = (attributes(libraries[0])?, attributes(libraries[1])?);
    ensure!(ours == theirs, "mlx5dv_query_device returns\n{ours}with the C library\n{theirs}");
    Ok(())
}

fn skips(ends: &BTreeMap<String, End>) -> BTreeMap<String, String> {
    let skipped = ends.iter().filter_map(|(id, end)| match end {
        End::Skipped(reason) => Some((id.clone(), reason.clone())),
        _ => None,
    });
    skipped.collect()
}

/// The tests that failed, one per line.
fn failures(ends: &BTreeMap<String, End>) -> Vec<String> {
    let failed = ends.iter().filter(|(_, end)| **end == End::Failed);
    failed.map(|(id, _)| format!("{id} failed")).collect()
}

/// The tests that are skipped without an entry in one of the lists, and the entries of `listed` that are
/// not skipped, one per line.
fn changed_skips(
    ends: &BTreeMap<String, End>,
    listed: &BTreeMap<String, String>,
    also: &BTreeMap<String, String>,
) -> Vec<String> {
    let skipped = skips(ends);
    let new = skipped.iter().filter(|(id, _)| !listed.contains_key(*id) && !also.contains_key(*id));
    let new = new.map(|(id, reason)| format!("{id} is skipped now: {reason}"));
    let stale = listed.keys().filter(|id| !skipped.contains_key(*id) || also.contains_key(*id));
    new.chain(stale.map(|id| format!("{id} is no longer skipped: remove it from the list"))).collect()
}

fn print(skips: &Skips) -> String {
    let mut text = INTRODUCTION.to_owned();
    for (port, tests) in skips {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (id, reason) in tests {
            reasons.entry(reason).or_default().push(id);
        }
        let _ = write!(text, "\n## {port}: {}\n", tests.len());
        for (reason, ids) in reasons {
            let _ = write!(text, "\n{reason}:\n\n");
            for id in ids {
                let _ = writeln!(text, "- {id}");
            }
        }
    }
    text
}

fn parse(text: &str) -> Skips {
    let mut skips = Skips::new();
    let (mut port, mut reason) = (String::new(), String::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            port = title.split(':').next().unwrap_or_default().to_owned();
            skips.entry(port.clone()).or_default();
        } else if let Some(id) = line.strip_prefix("- ") {
            skips.entry(port.clone()).or_default().insert(id.to_owned(), reason.clone());
        } else if let Some(said) = line.strip_suffix(':') {
            said.clone_into(&mut reason);
        }
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> BTreeMap<String, End> {
        BTreeMap::from([
            ("test_a.A.test_1".to_owned(), End::Passed),
            ("test_a.A.test_2".to_owned(), End::Skipped("no ODP".to_owned())),
            ("test_b.B.test_3".to_owned(), End::Skipped("no ODP".to_owned())),
        ])
    }

    #[test]
    fn skip_list_round_trips() {
        let all = Skips::from([("ib".to_owned(), skips(&ends())), ("roce".to_owned(), BTreeMap::new())]);
        assert_eq!(parse(&print(&all)), all);
    }

    #[test]
    fn failures_and_changed_skips_are_reported() {
        let mut ends = ends();
        let listed = skips(&ends);
        assert!(changed_skips(&ends, &listed, &BTreeMap::new()).is_empty());
        assert!(changed_skips(&ends, &BTreeMap::new(), &listed).is_empty());
        ends.insert("test_a.A.test_1".to_owned(), End::Failed);
        ends.insert("test_a.A.test_2".to_owned(), End::Passed);
        ends.insert("test_c.C.test_4".to_owned(), End::Skipped("no DEVX".to_owned()));
        assert_eq!(changed_skips(&ends, &listed, &BTreeMap::new()).len(), 2);
        assert_eq!(failures(&ends), ["test_a.A.test_1 failed"]);
    }
}
