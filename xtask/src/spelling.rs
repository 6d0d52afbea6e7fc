//! Checks the spelling of code and prose with typos. `typos.toml` lists exceptions.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::installed::installed;

/// The newest version that builds with the project's minimum Rust version.
const VERSION: &str = "1.40.0";

/// Fails if a word of a tracked file is misspelt.
pub(crate) fn check() -> Result<()> {
    let mut typos = Command::new(installed("typos-cli", "typos", VERSION)?);
    let status = typos.current_dir(build::workspace()).arg("--hidden").status().context("running typos")?;
    ensure!(status.success(), "misspelt words: correct them, or add them to typos.toml");
    Ok(())
}
