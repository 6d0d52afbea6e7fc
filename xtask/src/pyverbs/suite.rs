//! rdma-core's suite: its tests and their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bareverbs_lab::{Exec, Guests};

use super::End;
use crate::build;
use crate::dropin::GUEST_FOLDER;
use crate::dropin::native::{NativePrograms, SOFT, finish};

/// The folder of the suite in Debian's package. Long files are compressed.
const FOLDER: &str = "usr/share/doc/rdma-core/tests";
/// The environment in which programs of a guest load our library.
pub(super) const OURS: [(&str, &str); 1] = [("LD_LIBRARY_PATH", GUEST_FOLDER)];
/// Timeout of a run.
const LIMIT: Duration = Duration::from_secs(1800);
/// Timeout of a run on a soft device, many times the usual duration.
const NATIVE_LIMIT: Duration = Duration::from_secs(300);
/// Unpacks the suite to a folder from which it can be imported, and runs it. Modules without a
/// selected test are removed, unless others import them, because compiling them takes longer than many
/// tests.
const RUN: &str = r#"rm -rf /tmp/tests && cp -r "/$1" /tmp/tests && cd /tmp/tests && gunzip -f *.gz && shift &&
imported=$(grep -ohE 'tests\.test_[a-z0-9_]+' test_*.py | sed 's/tests\.\(.*\)/\1.py/') &&
if [ -n "$1" ]; then rm -f $(grep -LE "$1" test_*.py | grep -vE "$1" | grep -vxF "$imported"); fi && shift &&
exec python3 -c "$RUNNER" -v --dev "$@""#;
/// The suite requires that Python starts processes by fork, which is not the default from 3.14 on.
/// It asks `rdma` and `ip` for the same names and addresses before each test; the answers are
/// cached.
const RUNNER: &str = r#"
import multiprocessing, runpy, subprocess
multiprocessing.set_start_method("fork")
ask, answers = subprocess.check_output, {}
def ask_once(command, *more, **options):
    if more or options or command[0] not in ("rdma", "ls", "ip"):
        return ask(command, *more, **options)
    key = tuple(command)
    if key not in answers:
        answers[key] = ask(command)
    return answers[key]
subprocess.check_output = ask_once
runpy.run_path("/tmp/tests/run_tests.py", run_name="__main__")"#;
/// Runs the suite in the folder of the variable TESTS on a soft device. It asks the programs of iproute2 and
/// sysfs about the device, which the kernel does not know.
const SOFT_RUNNER: &str = r#"
import json, multiprocessing, os, runpy, subprocess
multiprocessing.set_start_method("fork")
ask = subprocess.check_output
answers = {
    "rdma": json.dumps([{"ifname": "soft0", "port": 1, "netdev": "soft0"}]).encode(),
    "ip": json.dumps([{"address": "02:00:00:00:00:01", "addr_info": [{"local": os.environ["BAREVERBS_SOFT"]}]}]).encode(),
    "cat": "0xffff\n",
}
def ask_soft(command, *more, **options):
    return answers[command[0]] if command[0] in answers else ask(command, *more, **options)
subprocess.check_output = ask_soft
runpy.run_path(os.path.join(os.environ["TESTS"], "run_tests.py"), run_name="__main__")"#;

/// The ids of all tests: module, class and method.
pub(super) fn shipped(root: &Path) -> Result<BTreeSet<String>> {
    let folder = root.join(FOLDER);
    let mut ids = BTreeSet::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(module) = name.trim_end_matches(".gz").strip_suffix(".py") else { continue };
        if module.starts_with("test_") {
            let source = source(&path)?;
            ids.extend(tests_in(&source).map(|test| format!("{module}.{test}")));
        }
    }
    if ids.is_empty() {
        bail!("{} holds no tests", folder.display());
    }
    Ok(ids)
}

fn source(path: &Path) -> Result<String> {
    if path.extension().is_none_or(|extension| extension != "gz") {
        return fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    }
    let unpacked = Command::new("gzip").args(["-dc", "--"]).arg(path).output().context("running gzip")?;
    if !unpacked.status.success() {
        bail!("gzip could not unpack {}", path.display());
    }
    String::from_utf8(unpacked.stdout).with_context(|| format!("reading {}", path.display()))
}

/// Class and method of a module's test methods.
fn tests_in(source: &str) -> impl Iterator<Item = String> {
    let mut class = "";
    source.lines().filter_map(move |line| {
        if let Some(rest) = line.strip_prefix("class ") {
            class = rest.split(['(', ':']).next().unwrap_or_default().trim();
        }
        let method = line.strip_prefix("    def ")?.split('(').next()?;
        method.starts_with("test_").then(|| format!("{class}.{method}"))
    })
}

/// Runs the suite in a guest on a device of this type: all tests, or those whose names contain one
/// of the words, with these variables of the environment. The last report for this type and kernel is
/// kept in our target folder.
pub(super) fn run(
    guests: &mut Guests,
    device: &str,
    kind: &str,
    only: &[&str],
    variables: &[(&str, &str)],
) -> Result<BTreeMap<String, End>> {
    let any = only.join("|");
    let patterns = only.iter().flat_map(|word| ["-k", word]);
    let argv: Vec<_> = ["sh", "-c", RUN, "sh", FOLDER, &any, device].into_iter().chain(patterns).collect();
    let argv = argv.into_iter().map(str::to_owned).collect();
    let variables = variables.iter().chain(&[("RUNNER", RUNNER)]);
    let env = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let finished = guests.run(0, Exec { argv, env, ..Exec::default() }, LIMIT)?;
    // The exit status adds nothing to the report, which is on standard error.
    let report = String::from_utf8_lossy(&finished.stderr);
    if finished.timed_out {
        bail!("the suite did not end within {} s", LIMIT.as_secs());
    }
    let name = format!("pyverbs-{}-{kind}", guests.release());
    let path = build::target_folder().join(format!("{name}.log"));
    fs::write(&path, report.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    let end: Vec<_> = report.lines().rev().take(3).filter(|line| !line.is_empty()).collect();
    let end: Vec<_> = end.into_iter().rev().collect();
    println!("{name}: {}; the output of the suite is in {}", end.join(": "), path.display());
    Ok(ends(&report))
}

/// Runs the suite on this machine, on a soft device with this address.
pub(super) fn run_native(programs: &NativePrograms, address: &str) -> Result<BTreeMap<String, End>> {
    let folder = build::target_folder().join("pyverbs-soft");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    for entry in fs::read_dir(programs.root.join(FOLDER))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(name) = name.strip_suffix(".gz").or(Some(&name)).filter(|name| name.ends_with(".py")) {
            fs::write(folder.join(name), source(&path)?)?;
        }
    }
    let mut python = programs.python(SOFT_RUNNER, &["-v", "--dev", "soft0"]);
    python.env("TESTS", &folder).env(SOFT, address).current_dir(&folder);
    let output = finish("rdma-core's suite", python.spawn().context("starting Python")?, NATIVE_LIMIT)?;
    let report = String::from_utf8_lossy(&output.stderr);
    let path = build::target_folder().join("pyverbs-soft.log");
    fs::write(&path, report.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    println!("the output of the suite is in {}", path.display());
    Ok(ends(&report))
}

/// Parses unittest's verbose report: a line with the test's name, optionally one with its
/// description, then ` ... ` and the outcome. Output of the test may come in between.
fn ends(report: &str) -> BTreeMap<String, End> {
    let mut ends = BTreeMap::new();
    let mut running = None;
    for line in report.lines() {
        if let Some(id) = started(line) {
            running = Some(id);
        }
        let said = line.rsplit_once(" ... ").map_or(line, |(_, said)| said);
        let end = match said.strip_prefix("skipped ") {
            Some(reason) => End::Skipped(reason.trim_matches(['\'', '"']).to_owned()),
            None if said == "ok" => End::Passed,
            None if ["FAIL", "ERROR"].contains(&said) => End::Failed,
            None => continue,
        };
        if let Some(id) = running.take() {
            ends.insert(id, end);
        }
    }
    ends
}

/// The id in `test_it (tests.test_module.Class.test_it)`.
fn started(line: &str) -> Option<String> {
    let (method, rest) = line.split_once(" (tests.")?;
    let (id, _) = rest.split_once(')')?;
    (method.starts_with("test_") && id.ends_with(method)).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_methods_are_found_with_their_classes() {
        let source = "\
def test_like_but_no_method():
    pass

class Resources(Base):
    def create_cq(self):
        pass

class CqTest(RDMATestCase):
    @u.requires_root()
    def test_create(self):
        def test_nested():
            pass

    def test_resize(self, depth=3):
        pass
class Plain:
    def test_it(self): pass
";
        let found: Vec<_> = tests_in(source).collect();
        assert_eq!(found, ["CqTest.test_create", "CqTest.test_resize", "Plain.test_it"]);
    }

    #[test]
    fn unittest_report_is_parsed() {
        let report = "\
test_create_ah (tests.test_addr.AHTest.test_create_ah)
Test ibv_create_ah. ... ok
test_plain (tests.test_a.A.test_plain) ... ok
test_noisy (tests.test_a.A.test_noisy)
It prints. ... some warning
of two lines
ok
test_skipped (tests.test_a.A.test_skipped)
Skips. ... skipped 'Device \"x\" is not there'
test_fails (tests.test_a.A.test_fails) ... FAIL
test_breaks (tests.test_a.A.test_breaks) ... ERROR

======================================================================
FAIL: test_fails (tests.test_a.A.test_fails)
----------------------------------------------------------------------
Ran 6 tests in 1.000s
";
        let ends = ends(report);
        assert_eq!(ends["test_addr.AHTest.test_create_ah"], End::Passed);
        assert_eq!(ends["test_a.A.test_plain"], End::Passed);
        assert_eq!(ends["test_a.A.test_noisy"], End::Passed);
        assert_eq!(ends["test_a.A.test_skipped"], End::Skipped("Device \"x\" is not there".to_owned()));
        assert_eq!(ends["test_a.A.test_fails"], End::Failed);
        assert_eq!(ends["test_a.A.test_breaks"], End::Failed);
        assert_eq!(ends.len(), 6);
    }
}
