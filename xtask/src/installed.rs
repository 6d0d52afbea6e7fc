//! Programs from crates.io, each of a fixed version, installed on first use.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Cache;

use crate::build;

/// The path of a crate's program. If it is missing, it is built into the user's cache, which takes
/// minutes.
pub(crate) fn installed(name: &str, program: &str, version: &str) -> Result<PathBuf> {
    let root = Cache::open()?.root().join(format!("{name}-{version}"));
    let program = root.join("bin").join(program);
    if program.is_file() {
        return Ok(program);
    }
    eprintln!("installing {name} {version} into {}", root.display());
    let mut cargo = build::cargo();
    // It runs for seconds: optimization takes longer than it saves. So do debug symbols.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    cargo.args(["install", "--quiet", "--locked", "--debug", "--version", version, "--root"]);
    cargo.arg(&root).arg(name);
    if !cargo.status().context("running cargo")?.success() {
        bail!("{name} {version} could not be installed");
    }
    Ok(program)
}
