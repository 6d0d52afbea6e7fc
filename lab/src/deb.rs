//! Unpacks Debian packages without installing them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};

use crate::process::bind_to_parent;

/// Unpacks every package in `from` into `root`, then removes the packages.
pub(crate) fn unpack_all(what: &str, from: &Path, root: &Path) -> Result<()> {
    let mut packages: Vec<PathBuf> =
        fs::read_dir(from)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    packages.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    packages.sort();
    fs::create_dir_all(root)?;
    eprintln!("lab: unpacking the {what} ({} packages)", packages.len());
    let bar = ProgressBar::new(packages.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{msg:40} {wide_bar} {pos}/{len}").expect("the template is well-formed"),
    );
    bar.set_message(format!("unpacking the {what}"));
    for package in &packages {
        unpack(package, root)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    fs::remove_dir_all(from)?;
    Ok(())
}

fn unpack(package: &Path, root: &Path) -> Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg("--extract").arg(package).arg(root);
    let output = bind_to_parent(&mut command).output().context("running dpkg-deb")?;
    if !output.status.success() {
        bail!("unpacking {}: {}", package.display(), String::from_utf8_lossy(&output.stderr).trim_end());
    }
    Ok(())
}
