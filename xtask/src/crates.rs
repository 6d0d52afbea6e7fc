//! The crates of the workspace, as `cargo metadata` describes them.
//!
//! The manifest of a product crate names its group, and how mutants of it are judged:
//!
//! ```toml
//! [package.metadata.bareverbs]
//! group = "library"           # or "programs"
//! mutants-judged-by = []      # crates whose tests judge its mutants, besides its own tests
//! ```
//!
//! Without `mutants-judged-by`, no test without a kernel covers the crate. The other lists of crates are
//! derived: a crate with loom models depends on loom, and a provider lies in a folder `provider-NAME`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::build;

/// A group of crates of the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Group {
    Library,
    Programs,
}

/// The table `package.metadata` of a manifest.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Tables {
    bareverbs: Option<Table>,
}

/// The table `package.metadata.bareverbs`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Table {
    group: Group,
    mutants_judged_by: Option<Vec<String>>,
}

impl Tables {
    /// The group of a product crate.
    pub(crate) fn group(&self) -> Option<Group> {
        self.bareverbs.as_ref().map(|table| table.group)
    }
}

/// A crate of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Crate {
    pub(crate) name: String,
    manifest_path: PathBuf,
    features: BTreeMap<String, IgnoredAny>,
    dependencies: Vec<Dependency>,
    metadata: Option<Tables>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
}

impl Crate {
    /// Its folder in the workspace.
    pub(crate) fn folder(&self) -> &str {
        let folder =
            self.manifest_path.parent().and_then(|folder| folder.strip_prefix(build::workspace()).ok());
        folder.and_then(|folder| folder.to_str()).expect("a crate of the workspace")
    }

    /// How many of these crates it depends on.
    pub(crate) fn count_dependencies(&self, among: &[Crate]) -> usize {
        let depends_on = |other: &&Crate| self.dependencies.iter().any(|it| it.name == other.name);
        among.iter().filter(depends_on).count()
    }

    fn is_in_library(&self) -> bool {
        self.metadata.as_ref().and_then(Tables::group) == Some(Group::Library)
    }

    /// The cargo feature of a built-in provider.
    fn provider(&self) -> Option<&str> {
        self.folder().strip_prefix("provider-")
    }

    /// Its public features.
    pub(crate) fn features(&self) -> impl Iterator<Item = &str> {
        let features = self.features.keys().map(String::as_str);
        features.filter(|feature| !["default", "test-utils"].contains(feature))
    }

    /// The crates whose tests judge its mutants. None: no test without a kernel covers it.
    pub(crate) fn judges(&self) -> Option<Vec<String>> {
        let others = self.metadata.as_ref()?.bareverbs.as_ref()?.mutants_judged_by.as_ref()?;
        Some([self.name.clone()].into_iter().chain(others.iter().cloned()).collect())
    }
}

/// The crates of the library, sorted by their names.
pub(crate) fn library() -> Result<Vec<Crate>> {
    let mut crates: Vec<Crate> = read()?;
    crates.retain(Crate::is_in_library);
    crates.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(crates)
}

/// The features of the built-in providers.
pub(crate) fn providers() -> Result<Vec<String>> {
    Ok(library()?.iter().filter_map(|found| found.provider().map(str::to_owned)).collect())
}

/// The names of the crates with loom models.
pub(crate) fn with_models() -> Result<Vec<String>> {
    let has_models = |found: &Crate| found.dependencies.iter().any(|dependency| dependency.name == "loom");
    Ok(library()?.into_iter().filter(has_models).map(|found| found.name).collect())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_name_the_crates_of_each_list() {
        let library = library().unwrap();
        let named = |name: &str| library.iter().find(|found| found.name == name);
        assert_eq!(named("bareverbs").unwrap().folder(), "verbs");
        assert!(named("bareverbs-tools").is_none() && named("bareverbs-hca").is_none());
        assert_eq!(
            named("bareverbs-provider").unwrap().judges().unwrap(),
            ["bareverbs-provider", "bareverbs-rxe", "bareverbs-siw"]
        );
        assert_eq!(named("bareverbs").unwrap().judges(), None);
        let features: Vec<_> = named("bareverbs").unwrap().features().collect();
        assert!(features.contains(&"tokio") && !features.contains(&"test-utils"), "{features:?}");
        assert!(library.is_sorted_by_key(|found| &found.name));
        let dependencies = |name: &str| named(name).unwrap().count_dependencies(&library);
        assert_eq!((dependencies("bareverbs-uapi"), dependencies("bareverbs-netlink")), (0, 1));
        let providers = providers().unwrap();
        assert!(["mlx5", "rxe", "siw"].iter().all(|wanted| providers.iter().any(|name| name == wanted)));
        let with_models = with_models().unwrap();
        assert!(with_models.contains(&"bareverbs-mlx5".to_owned()));
        assert!(!with_models.contains(&"bareverbs-netlink".to_owned()));
    }
}
