//! `cargo xtask imports`: the directions of imports between the files of each crate.
//!
//! The modules of one folder import each other in one direction: there is no circle between them. A
//! module is a file and the folder of the same name, so a circle may lead through any files of these.
//! A file and those in its folder may import each other.
//!
//! An import counts for the file that defines the name, also if another one re-exports it. Tests, loom
//! models and what the feature `test-utils` adds don't count.
//!
//! A file that has to import against this order gives the reason on its own page. The module and
//! those in its folder are allowed then:
//!
//! ```text
//! //! Imports up: `owned::hub`, the reason in the rest of the line and in the next ones.
//! ```
//!
//! A reason without such an import is a fault too.

mod graph;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use self::graph::Verdict;
use self::tree::{ModulePath, Tree};
use crate::{build, crates};

#[derive(Args)]
pub(crate) struct Check {
    /// Only these crates, such as bareverbs-uapi.
    packages: Vec<String>,
}

/// A crate of the workspace.
#[derive(Deserialize)]
struct Crate {
    name: String,
    targets: Vec<Target>,
}

/// A library, program, test, benchmark or example.
#[derive(Deserialize)]
struct Target {
    src_path: PathBuf,
}

impl Check {
    pub(crate) fn run(self) -> Result<ExitCode> {
        Ok(if judge(&self.packages)? == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Fails if imports run in a circle.
pub(crate) fn check() -> Result<()> {
    let faults = judge(&[])?;
    ensure!(faults == 0, "{faults} faults");
    Ok(())
}

/// Prints the circles in the named crates, or in all, and returns the number of faults.
fn judge(packages: &[String]) -> Result<usize> {
    let crates: Vec<Crate> = crates::read()?;
    for package in packages {
        ensure!(crates.iter().any(|found| found.name == *package), "there is no crate {package}");
    }
    let (mut files, mut circles, mut up, mut stated, mut faults) = (0, 0, 0, 0, 0);
    for Crate { name, targets } in crates {
        if !packages.is_empty() && !packages.contains(&name) {
            continue;
        }
        for target in targets {
            let tree = Tree::read(&target.src_path)?;
            let verdict = Verdict::of(&tree.imports(), &tree.stated);
            print(&target, &verdict)?;
            files += tree.files;
            circles += verdict.circles.len();
            up += verdict.circles.iter().map(|circle| circle.up.len()).sum::<usize>();
            stated += verdict.stated;
            faults += verdict.circles.len() + verdict.needless.len();
        }
    }
    println!("{files} files, {circles} circles with {up} imports up; {stated} more have a reason");
    Ok(faults)
}

fn print(target: &Target, verdict: &Verdict) -> Result<()> {
    let root = target.src_path.strip_prefix(build::workspace()).context("a crate of the workspace")?;
    for circle in &verdict.circles {
        let modules: Vec<_> = circle.modules.iter().map(name).collect();
        println!("{}: circle of {}: {}", root.display(), modules.len(), modules.join(", "));
        for ((from, to), names) in &circle.up {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            println!("    {} imports from {}: {}", name(from), name(to), names.join(", "));
        }
    }
    for reason in &verdict.needless {
        println!("{}: {} has a needless reason for {}", root.display(), name(&reason.from), name(&reason.to));
    }
    Ok(())
}

fn name(module: &ModulePath) -> String {
    module.join("::")
}
