//! Building our programs for the guest: static, in a target folder of their own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Programs;

/// The target must be named, or the flags would apply to build scripts and macros too.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The workspace's root folder.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// A cargo command that builds static programs.
pub(crate) fn static_cargo(subcommand: &str) -> Command {
    let mut cargo = cargo();
    cargo.arg(subcommand).args(["--target", TARGET, "--target-dir"]).arg(target_folder());
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo
}

/// The cargo that runs us, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    cargo.current_dir(workspace());
    cargo
}

/// Builds the guest's init and our tool.
pub(crate) fn guest_programs() -> Result<Programs> {
    let mut cargo = static_cargo("build");
    cargo.args(["--quiet", "--release", "--package", "bareverbs-lab-init"]);
    let tool = workspace().join("tools/Cargo.toml").exists();
    if tool {
        cargo.args(["--package", "bareverbs-tools"]);
    }
    if !cargo.status().context("running cargo")?.success() {
        bail!("the guest's programs could not be built");
    }
    let folder = target_folder().join(TARGET).join("release");
    let mut on_path = BTreeMap::new();
    if tool {
        on_path.insert("bareverbs".to_owned(), folder.join("bareverbs"));
    }
    Ok(Programs { init: folder.join("bareverbs-lab-init"), on_path })
}

/// Bytes of the tool.
pub(crate) fn size(programs: &Programs) -> Result<u64> {
    let tool = programs.on_path.get("bareverbs").context("the workspace has no tool `bareverbs`")?;
    Ok(tool.metadata()?.len())
}

fn target_folder() -> PathBuf {
    workspace().join("target/lab")
}
