//! `cargo xtask deny`: the policy for dependencies.
//!
//! `deny.toml` lists the allowed licenses, sources and crates; cargo-deny checks it for the whole
//! workspace. Its advisory database has a separate host, which some machines can't reach;
//! `--advisories` adds that check. This module checks, from `cargo metadata`, that the product
//! contains no C.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use crate::build;
use crate::crates::{self, Tables};
use crate::installed::installed;
use crate::print::heading;

const TOOL: &str = "cargo-deny";
const VERSION: &str = "0.20.2";

/// Crates that compile C, generate code from C headers or look for C libraries.
const C_TOOLS: [&str; 8] =
    ["autotools", "bindgen", "cbindgen", "cc", "cmake", "nasm-rs", "pkg-config", "vcpkg"];

/// Crates named `-sys` that hold only Rust: constants and types of the kernel's headers.
const PURE_SYS: [&str; 1] = ["linux-raw-sys"];

/// Extensions of files that C compilers read or write.
const C_FILES: [&str; 10] = ["a", "asm", "c", "cc", "cpp", "cxx", "h", "o", "s", "so"];

#[derive(Args)]
pub(crate) struct Deny {
    /// Also look for known vulnerabilities; fetches the advisory database.
    #[arg(long)]
    advisories: bool,
}

impl Deny {
    pub(crate) fn run(self) -> Result<ExitCode> {
        heading("No C in the product");
        let (packages, faults) = c_in_the_product()?;
        for fault in &faults {
            println!("{fault}");
        }
        println!("{packages} crates, {} faults", faults.len());
        heading("Licenses, crates, sources");
        let mut deny = Command::new(installed(TOOL, TOOL, VERSION)?);
        deny.current_dir(build::workspace()).args(["check", "--hide-inclusion-graph"]);
        deny.args(["bans", "licenses", "sources"]).args(self.advisories.then_some("advisories"));
        let passed = deny.status().context("running cargo-deny")?.success();
        Ok(if passed && faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The used fields of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    id: String,
    links: Option<String>,
    manifest_path: PathBuf,
    metadata: Option<Tables>,
}

impl Package {
    /// Whether users build it. The other crates of the workspace are for tests.
    fn is_product(&self) -> bool {
        self.metadata.as_ref().and_then(Tables::group).is_some()
    }
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// The number of crates in the product on Linux, with all features, and the violations.
fn c_in_the_product() -> Result<(usize, Vec<String>)> {
    let metadata: Metadata =
        crates::metadata(&["--all-features", "--filter-platform=x86_64-unknown-linux-gnu"])?;
    let product = product(&metadata)?;
    let mut faults = Vec::new();
    for package in &product {
        faults.extend(fault(package));
        let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
        for file in c_files(folder)? {
            faults.push(format!("{} {} has {}", package.name, package.version, file.display()));
        }
    }
    Ok((product.len(), faults))
}

/// The product's crates and all their dependencies, those of build scripts included.
fn product(metadata: &Metadata) -> Result<Vec<&Package>> {
    let nodes: BTreeMap<_, _> = metadata.resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let roots = metadata.packages.iter().filter(|package| package.is_product());
    let mut waiting: Vec<_> = roots.map(|package| &package.id).collect();
    ensure!(!waiting.is_empty(), "no manifest names a crate of the product");
    let mut reached = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !reached.insert(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("{id} is not resolved"))?;
        let built = |dependency: &&Dependency| {
            dependency.dep_kinds.iter().any(|kind| kind.kind.as_deref() != Some("dev"))
        };
        waiting.extend(node.deps.iter().filter(built).map(|dependency| &dependency.pkg));
    }
    Ok(metadata.packages.iter().filter(|package| reached.contains(&package.id)).collect())
}

fn fault(package: &Package) -> Option<String> {
    let Package { name, version, links, .. } = package;
    if let Some(library) = links {
        return Some(format!("{name} {version} links the library {library}"));
    }
    if C_TOOLS.contains(&name.as_str()) {
        return Some(format!("{name} {version} is for building with C"));
    }
    let bindings = name.ends_with("-sys") && !PURE_SYS.contains(&name.as_str());
    bindings.then(|| format!("{name} {version} is named as bindings to C"))
}

/// Input and output files of C compilers in a crate, except for its tests.
fn c_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                if !["test", "tests", "target"].iter().any(|folder| path.ends_with(folder)) {
                    waiting.push(path);
                }
            } else if path.extension().is_some_and(|end| C_FILES.iter().any(|c| end.eq_ignore_ascii_case(c)))
            {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_contains_no_c() {
        let (packages, faults) = c_in_the_product().unwrap();
        assert!(packages > 20);
        assert!(faults.is_empty(), "{faults:#?}");
    }

    #[test]
    fn libraries_bindings_and_c_compilers_are_faults() {
        let package = |name: &str, links: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            id: name.to_owned(),
            links: links.map(str::to_owned),
            manifest_path: PathBuf::new(),
            metadata: None,
        };
        assert_eq!(fault(&package("libc", None)), None);
        assert_eq!(fault(&package("linux-raw-sys", None)), None);
        assert!(fault(&package("rdma-mummy-sys", None)).is_some());
        assert!(fault(&package("cc", None)).is_some());
        assert!(fault(&package("plain", Some("ibverbs"))).is_some());
    }

    #[test]
    fn build_dependencies_count_and_dev_dependencies_do_not() {
        let packages = ["product", "build", "dev", "deep"].map(|name| {
            let group = if name == "product" { r#"{"bareverbs":{"group":"library"}}"# } else { "null" };
            format!(
                r#"{{"name":"{name}","id":"{name}","version":"1","links":null,"manifest_path":"","metadata":{group}}}"#
            )
        });
        let nodes = r#"{"id":"product","deps":[
                {"pkg":"build","dep_kinds":[{"kind":"build"}]},
                {"pkg":"dev","dep_kinds":[{"kind":"dev"}]}]},
            {"id":"build","deps":[{"pkg":"deep","dep_kinds":[{"kind":null}]}]},
            {"id":"dev","deps":[]},{"id":"deep","deps":[]}"#;
        let text = format!(r#"{{"packages":[{}],"resolve":{{"nodes":[{nodes}]}}}}"#, packages.join(","));
        let metadata: Metadata = serde_json::from_str(&text).unwrap();
        let names: Vec<_> = product(&metadata).unwrap().iter().map(|package| package.name.as_str()).collect();
        assert!(names.contains(&"deep") && names.contains(&"build") && !names.contains(&"dev"));
    }
}
