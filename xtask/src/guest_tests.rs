//! The test binaries that run in guests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::build;
use crate::filter::Filter;

/// The environment variable with the profile's file name of an instrumented program.
pub(crate) const PROFILE_FILE: &str = "LLVM_PROFILE_FILE";

/// The crates whose test binaries run in the lab.
pub(crate) const GUEST_TEST_CRATES: [&str; 3] =
    ["bareverbs-kernel-tests", "bareverbs-interop-tests", "bareverbs-soak"];

/// A test in a binary.
pub(crate) struct GuestTest {
    pub(crate) binary: String,
    pub(crate) name: String,
}

impl GuestTest {
    pub(crate) fn title(&self) -> String {
        let crate_name = self.binary.rsplit_once('-').map_or(self.binary.as_str(), |(name, _)| name);
        format!("{crate_name}::{}", self.name)
    }
}

/// The used fields of a message of `cargo test --message-format=json`.
#[derive(Deserialize)]
struct Artifact {
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    /// Whether it is a test binary, and not a program that tests run.
    test: bool,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

/// A program with tests.
pub(crate) struct TestBinary {
    pub(crate) path: PathBuf,
    /// Whether its source is in a crate's `tests` folder.
    pub(crate) integration: bool,
    /// Its source file.
    pub(crate) source: PathBuf,
}

/// Builds the test programs of a `cargo test` command.
pub(crate) fn test_binaries(mut cargo: Command) -> Result<Vec<TestBinary>> {
    cargo.args(["--no-run", "--quiet", "--message-format=json"]);
    let output = cargo.stderr(Stdio::inherit()).output().context("running cargo")?;
    if !output.status.success() {
        bail!("the tests could not be built");
    }
    let messages =
        output.stdout.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let mut binaries: Vec<_> = messages
        .filter_map(|Artifact { executable, target, profile }| {
            let target = profile.filter(|profile| profile.test).and(target)?;
            let integration = target.kind == ["test"];
            Some(TestBinary { path: executable?, integration, source: target.src_path })
        })
        .collect();
    // Cargo reports them as it builds them. All runs on a kernel have one order, so that what a test
    // leaves behind meets the same tests.
    binaries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(binaries)
}

/// Builds the test binaries for the guest that the filter needs. Returns their folder and their selected
/// tests.
pub(crate) fn guest_tests(filter: Filter<'_>) -> Result<(PathBuf, Vec<GuestTest>)> {
    build::announce("the tests that run in guests");
    let mut cargo = build::static_cargo("test");
    for target in filter.targets(is_target).unwrap_or_default() {
        cargo.args(["--test", target]);
    }
    let (folder, mut tests) = guest_tests_of(cargo, &GUEST_TEST_CRATES)?;
    tests.retain(|test| filter.takes(&test.title()));
    Ok((folder, tests))
}

/// Whether a crate whose tests run in guests has this target.
fn is_target(name: &str) -> bool {
    ["kernel", "interop", "soak"].iter().any(|folder| {
        let tests = build::workspace().join("tests").join(folder).join("tests");
        tests.join(name).join("main.rs").exists() || tests.join(name).with_extension("rs").exists()
    })
}

/// The same for these crates, with a cargo command that has the subcommand `test`.
pub(crate) fn guest_tests_of(cargo: Command, crates: &[&str]) -> Result<(PathBuf, Vec<GuestTest>)> {
    listed(guest_test_binaries(cargo, crates)?.iter().filter(|binary| binary.integration))
}

/// The tests of the verbs, which also run on soft devices. They are built with those of the other crates,
/// so that all have the same features.
pub(crate) fn kernel_tests() -> Result<(PathBuf, Vec<GuestTest>)> {
    build::announce("the tests that run in guests");
    let binaries = guest_test_binaries(build::static_cargo("test"), &GUEST_TEST_CRATES)?;
    let folder = build::workspace().join("tests/kernel");
    listed(binaries.iter().filter(|binary| binary.integration && binary.source.starts_with(&folder)))
}

/// Builds the unit tests of the crates whose tests run in guests. They run anywhere.
pub(crate) fn guest_unit_tests() -> Result<Vec<PathBuf>> {
    let binaries = guest_test_binaries(build::static_cargo("test"), &GUEST_TEST_CRATES)?;
    Ok(binaries.into_iter().filter(|binary| !binary.integration).map(|binary| binary.path).collect())
}

fn guest_test_binaries(mut cargo: Command, crates: &[&str]) -> Result<Vec<TestBinary>> {
    cargo.args(build::GUEST_PROFILE);
    for name in crates {
        cargo.args(["--package", name]);
    }
    test_binaries(cargo)
}

/// The folder of test binaries, and their tests.
pub(crate) fn listed<'a>(
    binaries: impl Iterator<Item = &'a TestBinary>,
) -> Result<(PathBuf, Vec<GuestTest>)> {
    let mut folder = None;
    let mut tests = Vec::new();
    for TestBinary { path, .. } in binaries {
        folder = path.parent().map(Path::to_owned);
        tests.extend(list(path)?);
    }
    Ok((folder.context("no crate has kernel tests")?, tests))
}

/// The names of the tests that run in guests.
pub(crate) fn guest_test_titles() -> Result<Vec<String>> {
    Ok(guest_tests(Filter(&[]))?.1.iter().map(GuestTest::title).collect())
}

fn list(binary: &Path) -> Result<Vec<GuestTest>> {
    let output = Command::new(binary).arg("--list").env(PROFILE_FILE, "/dev/null").output();
    let output = output.with_context(|| format!("starting {}", binary.display()))?;
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .filter_map(listed_name)
        .map(|test| GuestTest { binary: name.clone().into_owned(), name: test.to_owned() })
        .collect())
}

/// `name: test`, or `[kind] name: test`
fn listed_name(line: &str) -> Option<&str> {
    let name = line.strip_suffix(": test")?;
    Some(name.rsplit_once("] ").map_or(name, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_tests_may_have_a_kind() {
        assert_eq!(listed_name("[left out, needs the lab] a::b: test"), Some("a::b"));
        assert_eq!(listed_name("plain: test"), Some("plain"));
        assert_eq!(listed_name("2 tests, 0 benchmarks"), None);
    }
}
