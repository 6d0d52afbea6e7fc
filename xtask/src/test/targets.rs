//! Checks for targets other than the host's: `bareverbs-uapi` compiles for any platform, and the
//! documentation of `bareverbs`, `bareverbs-netlink` and `bareverbs-rdmacm` builds for each
//! architecture that docs.rs shows.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, bail};

use super::succeed;
use crate::build;
use crate::outcome::Totals;

/// Windows, macOS, and no operating system with 32-bit pointers.
const FOREIGN: [&str; 3] = ["x86_64-pc-windows-gnu", "aarch64-apple-darwin", "wasm32-unknown-unknown"];

/// The other target of `package.metadata.docs.rs`.
const DOCUMENTED: &str = "aarch64-unknown-linux-gnu";

/// Checks each target, and counts as skipped those whose standard library is missing. With `CI=true`
/// in the environment, which CI systems set, a missing one is an error.
pub(super) fn check(totals: &mut Totals) -> Result<()> {
    for target in FOREIGN {
        if available(target, "bareverbs-uapi compiles", totals)? {
            succeed(build::cargo().args([
                "check",
                "--package",
                "bareverbs-uapi",
                "--quiet",
                "--target",
                target,
            ]))?;
        }
    }
    if available(DOCUMENTED, "the documentation of the library builds", totals)? {
        succeed(
            build::cargo()
                .args([
                    "doc",
                    "--package",
                    "bareverbs",
                    "--package",
                    "bareverbs-netlink",
                    "--package",
                    "bareverbs-rdmacm",
                ])
                .args(["--all-features", "--no-deps", "--quiet", "--target", DOCUMENTED])
                .env("RUSTDOCFLAGS", "-D warnings"),
        )?;
    }
    Ok(())
}

/// Whether the target's standard library is installed, after an attempt to install it. Prints and
/// counts the check as skipped otherwise.
fn available(target: &str, check: &str, totals: &mut Totals) -> Result<bool> {
    let available = is_installed(target) || is_added(target);
    if available {
        println!("{target}: {check}");
    } else if env::var_os("CI").is_some_and(|ci| ci == "true") {
        bail!("{check} for {target}: requires `rustup target add {target}`");
    } else {
        println!("skipped: {check} for {target}: requires `rustup target add {target}`");
        totals.skipped += 1;
    }
    Ok(available)
}

/// Whether the compiler has the target's standard library.
fn is_installed(target: &str) -> bool {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    output.is_ok_and(|output| {
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        output.status.success() && folder.is_dir()
    })
}

/// Whether rustup installs the target's standard library.
fn is_added(target: &str) -> bool {
    let output = Command::new("rustup").args(["target", "add", target]).output();
    output.is_ok_and(|output| output.status.success()) && is_installed(target)
}
