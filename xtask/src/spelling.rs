//! The spelling of code and prose, checked by typos. `typos.toml` lists what it does not know.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::build;
use crate::installed::installed;

/// The newest version that the project's minimum Rust version builds.
const VERSION: &str = "1.40.0";

/// Fails if a word of a tracked file is misspelt.
pub(crate) fn check() -> Result<()> {
    let mut typos = Command::new(installed("typos-cli", "typos", VERSION)?);
    let status = typos.current_dir(build::workspace()).arg("--hidden").status().context("running typos")?;
    ensure!(status.success(), "misspelt words: correct them, or add them to typos.toml");
    Ok(())
}
