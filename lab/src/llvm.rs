//! LLVM's coverage tools of the compiler's LLVM version, for machines whose Rust lacks them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;
use crate::tools::unpacked_program;

/// How many newer major versions than the compiler's LLVM are tried. A newer LLVM reads the files
/// of an older one.
const NEWER: u32 = 2;

/// `llvm-profdata` and `llvm-cov`, unpacked with their dependencies.
#[derive(Clone, Debug)]
pub struct Llvm {
    root: PathBuf,
    major: u32,
    /// Debian's package version.
    pub version: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    major: u32,
    version: String,
}

impl Llvm {
    /// The tools for the output of a compiler with LLVM `major`, fetched if they aren't cached.
    ///
    /// # Errors
    /// If Debian has neither this version nor one of the next two, or fetching fails.
    pub fn fetch(cache: &Cache, major: u32, refresh: bool) -> Result<Self> {
        let (folder, manifest) = cache.ensure(&format!("llvm-{major}"), refresh, |folder| {
            let apt = Apt::open(cache, Channel::SID)?;
            let newest = major + NEWER;
            for candidate in major..=newest {
                let name = format!("llvm-{candidate}");
                if apt.show(&name)?.is_empty() {
                    continue;
                }
                let (what, debs) = (format!("LLVM {candidate}"), folder.join("debs"));
                let packages = apt.download_closure(&what, &[&name], None, &debs)?;
                deb::unpack_all(&what, &debs, &folder.join("root"))?;
                let llvm = packages.into_iter().find(|package| package.name == name);
                let version = llvm.with_context(|| format!("apt planned no {name}"))?.version;
                return Ok(Manifest { major: candidate, version });
            }
            bail!("Debian has none of llvm-{major} to llvm-{newest}");
        })?;
        Ok(Self { root: folder.join("root"), major: manifest.major, version: manifest.version })
    }

    /// `llvm-profdata`, without arguments.
    pub fn profdata(&self) -> Command {
        self.program("llvm-profdata")
    }

    /// `llvm-cov`, without arguments.
    pub fn cov(&self) -> Command {
        self.program("llvm-cov")
    }

    fn program(&self, name: &str) -> Command {
        unpacked_program(&self.root, &format!("usr/lib/llvm-{}/bin/{name}", self.major), name)
    }
}
