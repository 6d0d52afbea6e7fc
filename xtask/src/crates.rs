//! The crates of the workspace, as `cargo metadata` describes them.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::build;

#[derive(Deserialize)]
struct Metadata<T> {
    packages: Vec<T>,
}

/// The crates of the workspace, with the fields of `T`.
pub(crate) fn read<T: DeserializeOwned>() -> Result<Vec<T>> {
    Ok(metadata::<Metadata<T>>(&["--no-deps"])?.packages)
}

/// The output of `cargo metadata`.
pub(crate) fn metadata<T: DeserializeOwned>(options: &[&str]) -> Result<T> {
    let mut cargo = build::cargo();
    cargo.args(["metadata", "--format-version=1", "--locked"]).args(options);
    let output = cargo.output().context("running cargo")?;
    if !output.status.success() {
        bail!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("reading cargo metadata")
}
