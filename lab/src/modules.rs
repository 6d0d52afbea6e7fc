//! The kernel modules to load, in dependency order.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A kernel's modules and their dependencies.
#[derive(Clone, Debug)]
pub struct Modules {
    tree: PathBuf,
    /// Module name → file below the tree, and the files that it depends on.
    known: HashMap<String, (String, Vec<String>)>,
    built_in: HashSet<String>,
    /// Whether every driver that the kernel has is built in.
    all_built_in: bool,
}

impl Modules {
    /// The modules of a kernel with all drivers built in.
    pub fn built_in() -> Self {
        Self { all_built_in: true, ..Self::parse(Path::new(""), "", "") }
    }

    /// Reads `modules.dep` in `dependencies` for the tree `…/lib/modules/RELEASE`.
    pub fn read(tree: &Path, dependencies: &Path) -> Result<Self> {
        let path = dependencies.join("modules.dep");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let built_in = fs::read_to_string(tree.join("modules.builtin")).unwrap_or_default();
        Ok(Self::parse(tree, &text, &built_in))
    }

    fn parse(tree: &Path, dep: &str, built_in: &str) -> Self {
        let mut known = HashMap::new();
        for (file, needs) in dep.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_whitespace().map(str::to_owned).collect();
            known.insert(module_name(file), (file.to_owned(), needs));
        }
        let built_in = built_in.lines().map(module_name).collect();
        Self { tree: tree.to_owned(), known, built_in, all_built_in: false }
    }

    /// The files of these modules and of their dependencies, dependencies first.
    pub fn in_order(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let mut order = Vec::new();
        let mut placed = HashSet::new();
        for name in names {
            self.place(name, &mut placed, &mut order)?;
        }
        Ok(order)
    }

    /// Whether the kernel has this module, as a file or built in.
    pub fn has(&self, name: &str) -> bool {
        self.all_built_in || self.known.contains_key(name) || self.built_in.contains(name)
    }

    fn place(&self, name: &str, placed: &mut HashSet<String>, order: &mut Vec<PathBuf>) -> Result<()> {
        if !placed.insert(name.to_owned()) || self.all_built_in || self.built_in.contains(name) {
            return Ok(());
        }
        let Some((file, needs)) = self.known.get(name) else {
            bail!("the kernel in {} has no module {name}", self.tree.display());
        };
        for need in needs {
            self.place(&module_name(need), placed, order)?;
        }
        order.push(self.tree.join(file));
        Ok(())
    }
}

/// `kernel/drivers/net/virtio-net.ko.xz` is the module `virtio_net`.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "kernel/rxe/rdma_rxe.ko.xz: kernel/core/ib_uverbs.ko.xz kernel/net/udp-tunnel.ko.xz kernel/core/ib_core.ko.xz\n\
                       kernel/core/ib_uverbs.ko.xz: kernel/core/ib_core.ko.xz\n\
                       kernel/core/ib_core.ko.xz:\n\
                       kernel/net/udp-tunnel.ko.xz:\n";

    fn names(modules: &Modules, wanted: &[&str]) -> Vec<String> {
        let files = modules.in_order(wanted).unwrap();
        files.iter().map(|path| module_name(path.to_str().unwrap())).collect()
    }

    #[test]
    fn modules_load_once_after_dependencies() {
        let modules = Modules::parse(Path::new("/m"), DEP, "");
        assert_eq!(
            names(&modules, &["rdma_rxe", "ib_uverbs"]),
            ["ib_core", "ib_uverbs", "udp_tunnel", "rdma_rxe"]
        );
    }

    #[test]
    fn built_in_modules_need_no_file() {
        let modules = Modules::parse(Path::new("/m"), DEP, "kernel/drivers/virtio/virtio_pci.ko\n");
        assert!(names(&modules, &["virtio_pci"]).is_empty());
        assert!(modules.has("virtio_pci") && modules.has("ib_core") && !modules.has("siw"));
    }

    #[test]
    fn kernel_without_modules_needs_no_files() {
        let modules = Modules::built_in();
        assert!(names(&modules, &["rdma_rxe", "ib_uverbs"]).is_empty());
        assert!(modules.has("siw"));
    }

    #[test]
    fn missing_module_is_named_in_error() {
        let modules = Modules::parse(Path::new("/m"), DEP, "");
        assert!(modules.in_order(&["siw"]).unwrap_err().to_string().contains("siw"));
    }

    #[test]
    fn dependency_cycle_terminates() {
        let modules = Modules::parse(Path::new("/m"), "a.ko: b.ko\nb.ko: a.ko\n", "");
        assert_eq!(modules.in_order(&["a"]).unwrap().len(), 2);
    }
}
