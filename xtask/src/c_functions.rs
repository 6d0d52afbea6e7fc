//! `cargo xtask c-functions`: each function of libibverbs, librdmacm and libmlx5 with our item, or the
//! reason why there is none.

mod by_hand;
mod headers;
mod items;
mod methods;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use bareverbs_lab::{Cache, RdmaCore, Series, fetch_headers};
use bareverbs_uapi::method::MethodInfo;
use clap::Args;

use self::by_hand::{Entry, PARTIAL, Why};
use self::headers::Header;
use self::items::Items;
use crate::build;
use crate::exports;
use crate::print::heading;

const INTRODUCTION: &str = "\
# The functions of the C libraries

Each function of libibverbs, librdmacm and libmlx5 with the item of this project that does the same,
or the reason why there is none. A function is exported by the library, with its symbol versions, or
defined in a header. Names that begin with an underscore are listed if the library exports them.

`cargo xtask c-functions --write` writes this page from the libraries and headers of the lab's Debian
root, the `#[doc(alias)]` attributes of the sources, and `xtask/src/c_functions/by_hand.rs`. `cargo
xtask test` fails if the page differs, if a function has neither item nor reason, if an entry written
by hand matches no function, or if an alias is not a name of the headers.
";

/// A library and its headers.
struct Library {
    name: &'static str,
    file: &'static str,
    /// In the folder of the headers.
    headers: &'static [&'static str],
}

const LIBRARIES: [Library; 3] = [
    Library {
        name: "libibverbs",
        file: "libibverbs.so.1",
        headers: &[
            "infiniband/arch.h",
            "infiniband/ib_user_ioctl_verbs.h",
            "infiniband/opcode.h",
            "infiniband/sa-kern-abi.h",
            "infiniband/sa.h",
            "infiniband/tm_types.h",
            "infiniband/verbs.h",
            "infiniband/verbs_api.h",
        ],
    },
    Library {
        name: "librdmacm",
        file: "librdmacm.so.1",
        headers: &[
            "infiniband/ib.h",
            "rdma/rdma_cma.h",
            "rdma/rdma_cma_abi.h",
            "rdma/rdma_verbs.h",
            "rdma/rsocket.h",
        ],
    },
    Library {
        name: "libmlx5",
        file: "libmlx5.so.1",
        headers: &["infiniband/mlx5_api.h", "infiniband/mlx5_user_ioctl_verbs.h", "infiniband/mlx5dv.h"],
    },
];

/// The headers of other drivers' libraries.
const OTHER_DRIVERS: [&str; 5] = [
    "infiniband/efadv.h",
    "infiniband/hnsdv.h",
    "infiniband/ionic_dv.h",
    "infiniband/manadv.h",
    "infiniband/mlx4dv.h",
];

const METHODS: &str = "
## Methods of the kernel without a verb

The methods of uverbs that `bareverbs-uapi` declares and no verb calls. `bareverbs::raw` calls them.

| driver | methods |
|---|---|
";

/// The folder of the libraries in the Debian root.
pub(crate) const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// How many items of one function are named.
const NAMED: usize = 3;

#[derive(Args)]
pub(crate) struct CFunctions {
    /// Write the page (default: only check it).
    #[arg(long)]
    write: bool,
}

impl CFunctions {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let cache = Cache::open()?;
        let rdma_core = RdmaCore::fetch(&cache, false)?;
        if self.write {
            let list = List::read(&cache, &rdma_core)?;
            fs::write(path(), list.page()).with_context(|| format!("writing {}", path().display()))?;
        }
        check(&cache, &rdma_core)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn path() -> PathBuf {
    build::workspace().join("docs/c-functions.md")
}

/// Fails if a function has neither item nor reason, an entry or alias is stale, or the page differs.
pub(crate) fn check(cache: &Cache, rdma_core: &RdmaCore) -> Result<()> {
    heading("Functions of the C libraries");
    let list = List::read(cache, rdma_core)?;
    let mut faults = list.faults();
    let page = list.page();
    if fs::read_to_string(path()).unwrap_or_default() != page {
        faults.push(format!("{} is out of date: run `cargo xtask c-functions --write`", path().display()));
    }
    for fault in &faults {
        println!("{fault}");
    }
    ensure!(faults.is_empty(), "the list of C functions has {} faults", faults.len());
    for (library, functions) in &list.functions {
        println!("rdma-core {}: {}", rdma_core.version, list.count(library, functions));
    }
    Ok(())
}

/// The C functions that have an item, by alias or by hand.
pub(crate) fn implemented() -> Result<BTreeSet<String>> {
    let by_hand = by_hand::entries().into_iter().filter(|entry| matches!(entry.why, Why::Items(_)));
    let aliases = Items::read()?.aliases.into_keys();
    Ok(aliases.chain(by_hand.map(|entry| entry.pattern.to_owned())).collect())
}

/// The functions of a library, each with its symbol versions, `inline` or `macro`.
type Functions = BTreeMap<String, BTreeSet<String>>;

struct List {
    functions: Vec<(&'static str, Functions)>,
    /// All identifiers of the headers, and the functions.
    names: BTreeSet<String>,
    items: Items,
    entries: Vec<Entry>,
    /// By driver.
    methods: Vec<(String, Vec<&'static MethodInfo>)>,
}

impl List {
    fn read(cache: &Cache, rdma_core: &RdmaCore) -> Result<Self> {
        let headers = rdma_core.headers(cache)?;
        ensure_headers_are_known(&headers)?;
        let mut list = Self {
            functions: Vec::new(),
            names: kernel_names(cache)?,
            items: Items::read()?,
            entries: by_hand::entries(),
            methods: methods::without_a_verb()?,
        };
        for library in &LIBRARIES {
            let mut functions = exports::functions(&rdma_core.root.join(LIBRARY_FOLDER).join(library.file))?;
            for header in library.headers {
                let header = read_header(&headers.join(header))?;
                for (kind, names) in [("inline", header.inline), ("macro", header.macros)] {
                    for name in names.into_iter().filter(|name| is_function(name)) {
                        functions.entry(name).or_default().insert(kind.to_owned());
                    }
                }
                list.names.extend(header.names);
            }
            list.names.extend(functions.keys().cloned());
            list.functions.push((library.name, functions));
        }
        Ok(list)
    }

    /// The items that are aliases of a function, of the first crate that has any.
    fn aliased(&self, function: &str) -> Vec<String> {
        let places = self.items.aliases.get(function).into_iter().flatten();
        let mut places: Vec<_> = places.collect();
        let first = places.first().map(|place| place.krate);
        places.retain(|place| Some(place.krate) == first);
        places.into_iter().map(ToString::to_string).collect()
    }

    fn entry(&self, function: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.matches(function))
    }

    /// The items of a function, or the reason why there is none.
    fn answer(&self, function: &str) -> Option<Why> {
        let aliased = self.aliased(function);
        if aliased.is_empty() {
            return Some(self.entry(function)?.why.clone());
        }
        Some(Why::Items(aliased))
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        self.functions.iter().flat_map(|(_, functions)| functions.keys().map(String::as_str))
    }

    /// The violations, one per line.
    fn faults(&self) -> Vec<String> {
        let unanswered = self.all().filter(|function| self.answer(function).is_none());
        let mut faults: Vec<_> =
            unanswered.map(|function| format!("{function} has neither an item nor a reason")).collect();
        let needed = |function: &str| self.aliased(function).is_empty();
        for entry in &self.entries {
            if !self.all().any(|function| entry.matches(function) && needed(function)) {
                faults.push(format!(
                    "the entry `{}` written by hand matches no function without an alias",
                    entry.pattern
                ));
            }
            let Why::Items(items) = &entry.why else { continue };
            let missing = items.iter().filter(|item| !self.items.all.contains(*item));
            faults.extend(missing.map(|item| format!("`{}`: {item} does not exist", entry.pattern)));
        }
        for (function, _) in PARTIAL {
            if !self.all().any(|known| known == *function)
                || !matches!(self.answer(function), Some(Why::Items(_)))
            {
                faults.push(format!("{function} has no item, so that nothing of it can be missing"));
            }
        }
        let unknown =
            self.items.aliases.iter().filter(|(alias, _)| is_c_name(alias) && !self.names.contains(*alias));
        faults.extend(unknown.map(|(alias, places)| {
            let places: Vec<_> = places.iter().map(ToString::to_string).collect();
            format!("{alias}, an alias of {}, is not a name of the headers", places.join(", "))
        }));
        faults
    }

    fn count(&self, library: &str, functions: &Functions) -> String {
        let has_items = |function: &&String| matches!(self.answer(function), Some(Why::Items(_)));
        let ours = functions.keys().filter(has_items).count();
        let partial = functions.keys().filter(|function| missing(function).is_some()).count();
        format!(
            "{library} has {} functions: {ours} have an item ({partial} of them without some options), {} have none",
            functions.len(),
            functions.len() - ours
        )
    }

    fn page(&self) -> String {
        let mut page = INTRODUCTION.to_owned();
        for (library, functions) in &self.functions {
            let _ = write!(page, "\n## {library}\n\n{}.\n\n", self.count(library, functions));
            page.push_str("| C | versions | bareverbs |\n|---|---|---|\n");
            for (function, versions) in functions {
                let versions: Vec<_> = versions.iter().map(String::as_str).collect();
                let _ =
                    writeln!(page, "| `{function}` | {} | {} |", versions.join(", "), self.cell(function));
            }
        }
        page.push_str(METHODS);
        for (driver, methods) in &self.methods {
            let names: Vec<_> = methods.iter().map(|method| format!("`{}`", method.rust)).collect();
            let _ = writeln!(page, "| {driver} | {} |", names.join(", "));
        }
        page
    }

    fn cell(&self, function: &str) -> String {
        let items = match self.answer(function) {
            Some(Why::Items(items)) => items,
            Some(Why::None(reason)) => return format!("none: {reason}"),
            None => return String::new(),
        };
        let named: Vec<_> = items.iter().take(NAMED).map(|item| format!("`{item}`")).collect();
        let mut cell = named.join(", ");
        if items.len() > NAMED {
            let _ = write!(cell, " and {} more", items.len() - NAMED);
        }
        if let Some(missing) = missing(function) {
            let _ = write!(cell, "; missing: {missing}");
        }
        cell
    }
}

/// What our items lack of a function.
fn missing(function: &str) -> Option<&'static str> {
    PARTIAL.iter().find(|(partial, _)| *partial == function).map(|(_, missing)| *missing)
}

/// Fails if the folder has a header that belongs to none of the listed libraries.
fn ensure_headers_are_known(folder: &Path) -> Result<()> {
    let known: Vec<_> = LIBRARIES.iter().flat_map(|library| library.headers).chain(&OTHER_DRIVERS).collect();
    for part in ["infiniband", "rdma"] {
        for entry in fs::read_dir(folder.join(part)).context("reading rdma-core's headers")? {
            let header = format!("{part}/{}", entry?.file_name().display());
            ensure!(known.iter().any(|known| **known == header), "rdma-core has a new header, {header}");
        }
    }
    Ok(())
}

fn read_header(path: &Path) -> Result<Header> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Header::parse(&text))
}

/// The identifiers of the kernel's RDMA headers: those for programs and its own.
fn kernel_names(cache: &Cache) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let headers = fetch_headers(cache, Series::NEWEST, false)?;
    for folder in headers.include.into_iter().chain([headers.kernel]) {
        let Ok(entries) = fs::read_dir(folder.join("rdma")) else { continue };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "h") {
                names.extend(read_header(&path)?.names);
            }
        }
    }
    ensure!(!names.is_empty(), "the kernel's headers have no folder `rdma`");
    Ok(names)
}

/// Whether a name of a header is a function for programs.
fn is_function(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Whether an alias is a name of the three libraries, by its prefix.
fn is_c_name(alias: &str) -> bool {
    let prefixes = ["ibv_", "IBV_", "rdma_", "RDMA_", "mlx5dv_", "MLX5DV_"];
    prefixes.iter().any(|prefix| alias.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A library with these functions, and a source text.
    fn list(functions: &[&str], source: &str, entries: Vec<Entry>) -> List {
        let functions: Functions =
            functions.iter().map(|&name| (name.to_owned(), BTreeSet::from(["V_1".to_owned()]))).collect();
        let mut items = Items::default();
        items.add((0, "bareverbs"), Path::new("/x/qp.rs"), source).unwrap();
        let names = functions.keys().cloned().collect();
        List { functions: vec![("lib", functions)], names, items, entries, methods: Vec::new() }
    }

    fn entry(pattern: &'static str, why: Why) -> Entry {
        Entry { pattern, why }
    }

    const SOURCE: &str =
        r#"impl Qp { #[doc(alias = "ibv_a")] pub fn a() {} #[doc(alias = "ibv_a")] pub fn b() {} }"#;

    #[test]
    fn functions_have_items_or_reasons() {
        let entries = vec![
            entry("ibv_b", Why::Items(vec!["bareverbs::Qp::b".into()])),
            entry("ibv_c*", Why::None("not implemented".into())),
        ];
        let list = list(&["ibv_a", "ibv_b", "ibv_c1", "ibv_c2"], SOURCE, entries);
        assert!(list.page().contains("| `ibv_a` | V_1 | `bareverbs::Qp::a`, `bareverbs::Qp::b` |\n"));
        assert!(list.page().contains("| `ibv_b` | V_1 | `bareverbs::Qp::b` |\n"));
        assert!(list.page().contains("| `ibv_c2` | V_1 | none: not implemented |\n"));
        assert!(list.page().contains("lib has 4 functions: 2 have an item"));
    }

    #[test]
    fn every_fault_of_the_list_is_reported() {
        let entries = vec![
            entry("ibv_a", Why::None("it has an alias since".into())),
            entry("ibv_b", Why::Items(vec!["bareverbs::Qp::gone".into()])),
            entry("ibv_gone*", Why::None("the function is gone".into())),
        ];
        let source = SOURCE.replacen("ibv_a", "ibv_typo", 1);
        let faults = list(&["ibv_a", "ibv_b", "ibv_new"], &source, entries).faults();
        let partial = |fault: &&String| fault.ends_with("nothing of it can be missing");
        assert_eq!(faults.iter().filter(partial).count(), PARTIAL.len());
        let others: Vec<_> = faults.iter().filter(|fault| !partial(fault)).collect();
        assert_eq!(
            others,
            [
                "ibv_new has neither an item nor a reason",
                "the entry `ibv_a` written by hand matches no function without an alias",
                "`ibv_b`: bareverbs::Qp::gone does not exist",
                "the entry `ibv_gone*` written by hand matches no function without an alias",
                "ibv_typo, an alias of bareverbs::Qp::a, is not a name of the headers",
            ]
        );
    }
}
