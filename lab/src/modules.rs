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

    /// The kernel's release.
    pub(crate) fn release(&self) -> String {
        self.tree.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Adds a module that is outside of the tree. It names the modules that it depends on itself.
    pub(crate) fn add(&mut self, file: &Path) -> Result<()> {
        let content = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let path = file.display().to_string();
        let needs = dependencies(&content).with_context(|| format!("{path} is not a kernel module"))?;
        self.known.insert(module_name(&path), (path, needs));
        Ok(())
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

/// The modules in the field `depends` of a module's `.modinfo`. Fields end with a zero.
fn dependencies(module: &[u8]) -> Option<Vec<String>> {
    let mut fields = module.split(|byte| *byte == 0);
    let depends = fields.find_map(|field| field.strip_prefix(b"depends="))?;
    let names = depends.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
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
    fn module_names_its_dependencies() {
        let fields = |text: &str| dependencies(text.as_bytes());
        assert_eq!(
            fields("\x7fELF\0license=GPL\0depends=ib_core,libcrc32c\0name=siw\0"),
            Some(vec!["ib_core".to_owned(), "libcrc32c".to_owned()])
        );
        assert_eq!(fields("\0depends=\0"), Some(Vec::new()));
        assert_eq!(fields("\x7fELF\0"), None);
    }

    #[test]
    fn module_outside_of_the_tree_is_loaded_after_its_dependencies() {
        let folder = std::env::temp_dir().join(format!("bareverbs-modules-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("siw.ko");
        fs::write(&file, "\0depends=ib_uverbs\0").unwrap();
        let mut modules = Modules::parse(Path::new("/m"), DEP, "");
        modules.add(&file).unwrap();
        assert_eq!(names(&modules, &["siw"]), ["ib_core", "ib_uverbs", "siw"]);
        assert_eq!(modules.in_order(&["siw"]).unwrap().last(), Some(&file));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn dependency_cycle_terminates() {
        let modules = Modules::parse(Path::new("/m"), "a.ko: b.ko\nb.ko: a.ko\n", "");
        assert_eq!(modules.in_order(&["a"]).unwrap().len(), 2);
    }
}
