//! `cargo xtask package`: builds the packages of the published crates.

use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;

use crate::{build, crates};

#[derive(Args)]
pub(crate) struct Package {
    /// Fail unless this is the tag of the workspace's version, such as v0.1.0.
    #[arg(long)]
    tag: Option<String>,
    /// Publish the crates to crates.io, in the order of their dependencies.
    #[arg(long)]
    publish: bool,
}

impl Package {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let crates = published()?;
        if let Some(tag) = self.tag {
            ensure!(
                tag.strip_prefix('v') == Some(env!("CARGO_PKG_VERSION")),
                "the tag is {tag}, the version {}",
                env!("CARGO_PKG_VERSION")
            );
        }
        if self.publish {
            succeed(&["publish", "--locked"], &crates)?;
        } else {
            check()?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Packages every published crate, without building the packages.
pub(crate) fn check() -> Result<()> {
    let crates = published()?;
    for found in &crates {
        let missing = found.missing();
        ensure!(missing.is_empty(), "{}: Cargo.toml has no {}", found.name, missing.join(", "));
    }
    succeed(&["package", "--quiet", "--locked", "--allow-dirty", "--no-verify"], &crates)?;
    println!("{} crates", crates.len());
    Ok(())
}

fn succeed(subcommand: &[&str], crates: &[Crate]) -> Result<()> {
    let mut cargo = build::cargo();
    cargo.args(subcommand);
    for found in crates {
        cargo.args(["--package", &found.name]);
    }
    if !cargo.status().context("running cargo")?.success() {
        bail!("cargo {} failed", subcommand.join(" "));
    }
    Ok(())
}

/// A crate of the workspace, as `cargo metadata` describes it.
#[derive(Deserialize)]
struct Crate {
    name: String,
    /// The registries of the manifest. `None`: all. Empty: none.
    publish: Option<Vec<String>>,
    description: Option<String>,
    documentation: Option<String>,
    readme: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
}

impl Crate {
    /// The fields that crates.io shows and that the manifest lacks.
    fn missing(&self) -> Vec<&'static str> {
        let fields = [
            ("description", self.description.is_some()),
            ("documentation", self.documentation.is_some()),
            ("readme", self.readme.is_some()),
            ("keywords", !self.keywords.is_empty()),
            ("categories", !self.categories.is_empty()),
        ];
        fields.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect()
    }
}

fn published() -> Result<Vec<Crate>> {
    Ok(crates::read::<Crate>()?.into_iter().filter(|found| found.publish.is_none()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_manifest_fields_are_reported() {
        let text = r#"{"name":"a","publish":null,"description":"d","documentation":null,
            "readme":"README.md","keywords":[],"categories":["c"]}"#;
        let found: Crate = serde_json::from_str(text).unwrap();
        assert_eq!(found.missing(), ["documentation", "keywords"]);
    }

    #[test]
    fn products_are_published_and_tests_are_not() {
        let names: Vec<_> = published().unwrap().into_iter().map(|found| found.name).collect();
        assert!(names.contains(&"bareverbs".to_owned()) && names.contains(&"bareverbs-hca".to_owned()));
        assert!(!names.iter().any(|name| name == "xtask" || name.ends_with("-tests")));
    }
}
