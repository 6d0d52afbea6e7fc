//! Builds our programs for the guest: statically linked, in a separate target folder.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use bareverbs_lab::Programs;

/// The target must be named; otherwise the flags apply to build scripts and macros too.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Debug builds are slow under TCG.
pub(crate) const GUEST_PROFILE: [&str; 2] = ["--config", "profile.dev.opt-level=1"];

/// Our tool's name.
pub(crate) const TOOL: &str = "bareverbs";
/// The guest's init.
const INIT: &str = "bareverbs-lab-init";

/// Runs `work`, and the processes it starts, with low priority.
pub(crate) fn with_low_priority<T>(work: impl FnOnce() -> T) -> T {
    let _ = rustix::process::nice(19);
    work()
}

/// The workspace's root folder.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Prints what is built, before the first build in this process. A first build takes minutes.
pub(crate) fn announce(what: &'static str) {
    static ANNOUNCED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if ANNOUNCED.lock().unwrap_or_else(PoisonError::into_inner).insert(what) {
        eprintln!("building {what}");
    }
}

/// A cargo command that builds static programs.
pub(crate) fn static_cargo(subcommand: &str) -> Command {
    static_cargo_in(workspace(), &target_folder(), subcommand)
}

/// The same for another copy of the workspace.
pub(crate) fn static_cargo_in(workspace: &Path, target_folder: &Path, subcommand: &str) -> Command {
    let mut cargo = cargo();
    cargo.current_dir(workspace);
    cargo.arg(subcommand).args(["--target", TARGET, "--target-dir"]).arg(target_folder);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

/// The cargo that runs this program, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(workspace());
    cargo
}

/// Builds the guest's init and our tool.
pub(crate) fn guest_programs() -> Result<Programs> {
    programs("quick")
}

/// The same, with the tool as it is published. It takes minutes more to build, and is for measurements.
pub(crate) fn released_guest_programs() -> Result<Programs> {
    programs("release")
}

fn programs(profile: &str) -> Result<Programs> {
    // In one call of cargo, they share their dependencies.
    let folder = static_programs(profile, &[(INIT, INIT), ("bareverbs-tools", TOOL)])?;
    Ok(Programs { init: folder.join(INIT), on_path: BTreeMap::from([(TOOL.to_owned(), folder.join(TOOL))]) })
}

/// Builds our tool for this machine. It shares most artifacts with this program.
pub(crate) fn native_tool() -> Result<PathBuf> {
    announce(TOOL);
    let arguments = ["build", "--quiet", "--package", "bareverbs-tools"];
    if !cargo().args(arguments).status().context("running cargo")?.success() {
        bail!("{TOOL} could not be built");
    }
    Ok(native_folder()?.join("debug").join(TOOL))
}

/// Builds the guest's init.
pub(crate) fn guest_init() -> Result<PathBuf> {
    Ok(static_programs("quick", &[(INIT, INIT)])?.join(INIT))
}

/// Builds these programs of packages. Returns their folder.
fn static_programs(profile: &str, programs: &[(&str, &'static str)]) -> Result<PathBuf> {
    let mut cargo = static_cargo("build");
    cargo.args(["--quiet", "--profile", profile]);
    for (package, name) in programs {
        announce(name);
        cargo.args(["--package", package]);
    }
    if !cargo.status().context("running cargo")?.success() {
        bail!("building programs of the guest failed");
    }
    Ok(target_folder().join(TARGET).join(profile))
}

/// Builds the program of the scale and endurance tests. Like the tests, it is a debug build with
/// some optimisation: it takes little time compared with the kernel, and shares most artifacts with
/// the tests.
pub(crate) fn soak() -> Result<PathBuf> {
    let folder = static_package("the soak program", &GUEST_PROFILE, "bareverbs-soak")?;
    Ok(folder.join("debug/bareverbs-soak"))
}

/// Builds the program of the scale and endurance tests for this machine.
pub(crate) fn native_soak() -> Result<PathBuf> {
    announce("the soak program");
    let arguments = ["build", "--quiet", "--profile", "quick", "--package", "bareverbs-soak"];
    if !cargo().args(arguments).status().context("running cargo")?.success() {
        bail!("the soak program could not be built");
    }
    Ok(native_folder()?.join("quick/bareverbs-soak"))
}

/// Builds a package for guests with these arguments of cargo. Returns the folder of the profiles.
fn static_package(what: &'static str, arguments: &[&str], package: &str) -> Result<PathBuf> {
    announce(what);
    let mut cargo = static_cargo("build");
    cargo.arg("--quiet").args(arguments).args(["--package", package]);
    if !cargo.status().context("running cargo")?.success() {
        bail!("{what} could not be built");
    }
    Ok(target_folder().join(TARGET))
}

/// Builds the examples of `verbs` for two hosts. Returns their folder.
pub(crate) fn examples() -> Result<PathBuf> {
    let arguments = [&GUEST_PROFILE[..], &["--examples", "--features", "tokio,async-io"]].concat();
    Ok(static_package("the examples", &arguments, "bareverbs")?.join("debug/examples"))
}

/// Builds the program that measures the data path, with these features.
pub(crate) fn fastpath(features: &str) -> Result<PathBuf> {
    let arguments = ["--release", "--features", features];
    let folder = static_package("the measuring program", &arguments, "bareverbs-fastpath")?;
    Ok(folder.join("release/fastpath"))
}

/// Builds the program that posts the requests of the WQE comparison.
pub(crate) fn wqe_diff() -> Result<PathBuf> {
    let what = "the program that posts for comparison";
    Ok(static_package(what, &GUEST_PROFILE, "bareverbs-wqe-diff")?.join("debug/wqe-diff"))
}

/// Builds the program whose instructions valgrind counts.
pub(crate) fn counts() -> Result<PathBuf> {
    announce("the program to be counted");
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--release", "--package", "bareverbs-counts"]);
    if !cargo.status().context("running cargo")?.success() {
        bail!("the program to be counted could not be built");
    }
    Ok(native_folder()?.join("release/counts"))
}

/// Builds the HCA.
pub(crate) fn hca() -> Result<PathBuf> {
    announce("the software ConnectX");
    let arguments = ["build", "--quiet", "--profile", "quick", "--package", "bareverbs-hca"];
    if !cargo().args(arguments).status().context("running cargo")?.success() {
        bail!("the HCA could not be built");
    }
    Ok(native_folder()?.join("quick/bareverbs-hca"))
}

/// Builds the archive that [`dropin`](crate::dropin) links, with a profile of cargo. Returns its path.
pub(crate) fn dropin_archive(profile: &str) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--profile", profile, "--package", "bareverbs-dropin"];
    if !cargo().args(arguments).status().context("running cargo")?.success() {
        bail!("the archive of the drop-in library could not be built");
    }
    // The folder of the profile `dev` has another name.
    let folder = native_folder()?.join(if profile == "dev" { "debug" } else { profile });
    Ok(folder.join("libbareverbs_dropin.a"))
}

/// The path of our tool.
pub(crate) fn tool(programs: &Programs) -> Result<&Path> {
    programs.on_path.get(TOOL).map(PathBuf::as_path).context("the guest's programs include the tool")
}

/// The folder of the profiles that cargo builds for this machine. It has this program, too, also with
/// `CARGO_TARGET_DIR` or `build.target-dir`.
fn native_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?;
    Ok(program.ancestors().nth(2).context("finding the target folder")?.to_owned())
}

/// The target folder of static programs and test records.
pub(crate) fn target_folder() -> PathBuf {
    workspace().join("target/lab")
}
