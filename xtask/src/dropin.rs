//! `cargo xtask dropin`: the libraries `libibverbs.so.1` and `libmlx5.so.1` over bareverbs.
//!
//! rustc makes an archive. The C compiler links it, because the version script of a shared library that
//! rustc links has no effect: rustc passes another one first. `libmlx5.so.1` has stubs only.

mod bench;
pub(crate) mod native;
mod programs;
mod stubs;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Cache, OldGlibc, Programs, RdmaCore};
use clap::{Args, Subcommand, ValueEnum};
use native::NativePrograms;

use crate::c_functions::LIBRARY_FOLDER;
use crate::{build, exports};

/// The name by which programs load the library.
const LIBRARY: &str = "libibverbs.so.1";

/// The functions of ConnectX devices.
const MLX5_LIBRARY: &str = "libmlx5.so.1";

/// A second name, which some programs load first.
const DEVELOPMENT_LIBRARY: &str = "libibverbs.so";

/// Prefix of the tests in guests, which find the library beside our programs.
pub(crate) const PREFIX: &str = "dropin::";

/// In names with the versions of the functions for provider libraries.
const PRIVATE: &str = "@IBVERBS_PRIVATE_";

/// The folder of the library in guests.
pub(crate) const GUEST_FOLDER: &str = "/usr/local/bin";

/// Releases of Debian with an earlier version of the functions for provider libraries, whose names the
/// library has too.
const OLDER: [&str; 2] = ["bullseye", "trixie"];

/// The profile of tests. Its crates are those of this program, so most of them are built.
const TESTED: &str = "dev";

#[derive(Subcommand)]
pub(crate) enum Dropin {
    /// Build the libraries, and print their folder, which is one for LD_LIBRARY_PATH.
    Build(Build),
    /// Run a program of this machine with the libraries.
    Run(Run),
    /// Compare the exported names with those of Debian's libraries, and run Debian's programs on soft
    /// devices.
    Test,
    /// Run Debian's programs on Soft-RoCE, each in a guest with both libraries on either side; fails if one
    /// fails that runs with Debian's library.
    Programs(programs::RunPrograms),
    /// Count the instructions of its data path beside those of Debian's library, in a guest; fails above
    /// the limits.
    Bench(bench::Bench),
}

#[derive(Args)]
pub(crate) struct Profile {
    /// The profile of cargo: release, which takes minutes, quick or dev.
    #[arg(long, default_value = "release")]
    profile: String,
}

#[derive(Args)]
pub(crate) struct Build {
    #[command(flatten)]
    profile: Profile,
    /// The C library that the library needs at least.
    #[arg(long, value_enum, default_value_t = Glibc::Debian11)]
    glibc: Glibc,
}

#[derive(Clone, Copy, ValueEnum)]
enum Glibc {
    /// Version 2.31.
    Debian11,
    /// The version of this machine.
    Host,
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    profile: Profile,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl Dropin {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Self::Build(Build { profile: Profile { profile }, glibc }) => {
                println!("{}", folder_of(&library(&profile, glibc)?).display());
                Ok(ExitCode::SUCCESS)
            }
            Self::Run(Run { profile, command }) => {
                let library = library(&profile.profile, Glibc::Host)?;
                let [program, arguments @ ..] = &command[..] else { bail!("name a program") };
                let mut path = folder_of(&library).as_os_str().to_owned();
                if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
                    path.push(":");
                    path.push(others);
                }
                let status = Command::new(program).args(arguments).env("LD_LIBRARY_PATH", path).status();
                let status = status.with_context(|| format!("starting {}", program.display()))?;
                // A signal has no exit code.
                let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
                Ok(ExitCode::from(code))
            }
            Self::Programs(programs) => programs.run().map(|()| ExitCode::SUCCESS),
            Self::Test => check().map(|()| ExitCode::SUCCESS),
            Self::Bench(bench) => bench.run(),
        }
    }
}

fn folder_of(library: &Path) -> &Path {
    library.parent().expect("the library is in a folder")
}

/// Builds the libraries with a profile of cargo. Returns the path of the first one.
fn library(profile: &str, glibc: Glibc) -> Result<PathBuf> {
    build::announce(LIBRARY);
    let archive = build::dropin_archive(profile)?;
    let folder = build::workspace().join("target/dropin").join(profile);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let library = folder.join(LIBRARY);
    link(&archive, &library, glibc)?;
    stubs::link(&sources().join("libmlx5.map"), &library, MLX5_LIBRARY, &folder.join(MLX5_LIBRARY))?;
    let second = folder.join(DEVELOPMENT_LIBRARY);
    if !second.is_symlink() {
        symlink(LIBRARY, &second).with_context(|| format!("linking {}", second.display()))?;
    }
    Ok(library)
}

/// The library as the tests use it. It is linked once, because guests may read the file afterwards.
pub(crate) fn tested_library() -> Result<PathBuf> {
    static LINKED: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut linked = LINKED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = &*linked {
        return Ok(library.clone());
    }
    Ok(linked.insert(library(TESTED, Glibc::Host)?).clone())
}

/// Our programs for guests, and the libraries in [`GUEST_FOLDER`].
pub(crate) fn guest_programs() -> Result<Programs> {
    let mut programs = build::guest_programs()?;
    let library = tested_library()?;
    programs.on_path.insert(MLX5_LIBRARY.to_owned(), library.with_file_name(MLX5_LIBRARY));
    programs.on_path.insert(LIBRARY.to_owned(), library);
    Ok(programs)
}

/// Links the archive as a shared library with the versions of its symbols.
fn link(archive: &Path, library: &Path, glibc: Glibc) -> Result<()> {
    let script = sources().join("libibverbs.map");
    let mut cc = Command::new("cc");
    // Without the unwinder of GCC as a second library.
    cc.args(["-shared", "-static-libgcc", "-s", "-o"]).arg(library);
    // The script alone takes no member out of an archive.
    cc.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    // Threads of soft devices run its code after `dlclose`.
    cc.arg(format!("-Wl,-soname,{LIBRARY},-z,now,-z,defs,-z,nodelete,--gc-sections"));
    if let Glibc::Debian11 = glibc {
        cc.args(["-nodefaultlibs", "-Wl,--as-needed"]).args(OldGlibc::fetch(&Cache::open()?)?.inputs());
    }
    let status = cc.status().context("starting the C compiler")?;
    ensure!(status.success(), "{LIBRARY} could not be linked");
    Ok(())
}

fn sources() -> PathBuf {
    build::workspace().join("dropin")
}

/// The exported names of a library with their versions, as `name@version`.
fn names(library: &Path) -> Result<BTreeSet<String>> {
    let all = exports::functions(library)?.into_iter().chain(exports::variables(library)?);
    let pairs =
        all.flat_map(|(name, versions)| versions.into_iter().map(move |version| format!("{name}@{version}")));
    Ok(pairs.collect())
}

/// Checks the exported names against those of Debian's libraries, and runs Debian's programs on soft
/// devices.
pub(crate) fn check() -> Result<()> {
    let (cache, programs) = (Cache::open()?, native_programs()?);
    let older = OLDER.map(|release| RdmaCore::libraries_of(release, &cache));
    let older: Vec<_> = older.into_iter().collect::<Result<_>>()?;
    let list = sources().join("left-out.txt");
    let text = fs::read_to_string(&list).with_context(|| format!("reading {}", list.display()))?;
    let left_out = text.lines().map(str::to_owned).collect();
    for (name, left_out) in [(LIBRARY, left_out), (MLX5_LIBRARY, BTreeSet::new())] {
        let mut own = names(&programs.library.join(name))?;
        // The functions that the stubs of the other library jump to.
        own.retain(|name| !name.starts_with(stubs::PREFIX));
        let mut theirs = names(&programs.root.join(LIBRARY_FOLDER).join(name))?;
        for folder in older.iter().filter(|_| name == LIBRARY) {
            let of_providers =
                names(&folder.join(LIBRARY))?.into_iter().filter(|name| name.contains(PRIVATE));
            theirs.extend(of_providers);
        }
        let faults = faults(&own, &theirs, &left_out);
        ensure!(faults.is_empty(), "the exported names of {name}:\n{}", faults.join("\n"));
    }
    native::check(&programs, &older)
}

/// The library, and the programs of the lab's Debian root for this machine.
pub(crate) fn native_programs() -> Result<NativePrograms> {
    let library = folder_of(&tested_library()?).to_owned();
    Ok(NativePrograms { root: RdmaCore::fetch(&Cache::open()?, false)?.root, library })
}

/// What is wrong with the exported names.
fn faults(own: &BTreeSet<String>, theirs: &BTreeSet<String>, left_out: &BTreeSet<String>) -> Vec<String> {
    let missing = theirs.difference(own).filter(|name| !left_out.contains(*name));
    let missing = missing.map(|name| format!("{name} is missing"));
    let added = own.difference(theirs).map(|name| format!("{name} is none of rdma-core"));
    let stale = left_out.iter().filter(|name| !theirs.contains(*name) || own.contains(*name));
    missing.chain(added).chain(stale.map(|name| format!("left-out.txt names {name} without need"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn differences_of_exported_names_are_faults() {
        let (own, theirs) = (set(&["a@1.1", "b@1.1"]), set(&["a@1.1", "a@1.0", "b@1.1"]));
        assert!(faults(&own, &theirs, &set(&["a@1.0"])).is_empty());
        assert_eq!(faults(&own, &theirs, &set(&[])), ["a@1.0 is missing"]);
        assert_eq!(faults(&set(&["c@1.0"]), &set(&[]), &set(&[])), ["c@1.0 is none of rdma-core"]);
        for stale in ["b@1.1", "d@1.0"] {
            let found = faults(&own, &theirs, &set(&["a@1.0", stale]));
            assert_eq!(found, [format!("left-out.txt names {stale} without need")]);
        }
    }
}
