//! The modules of a crate's target, and what each of its files imports from the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, File, ImplItemFn, Item, ItemMod, ItemUse, Lit, Macro, Meta, UseTree};

use crate::sources::{attributes, is_for_tests, is_punct};

/// A module by the names from the crate's root, which has none.
pub(super) type ModulePath = Vec<String>;

/// The names that a file imports from another, by the modules of both files.
pub(super) type Imports = BTreeMap<(ModulePath, ModulePath), BTreeSet<String>>;

/// A file's reason for its imports from a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) from: ModulePath,
    pub(super) to: ModulePath,
}

impl Stated {
    /// Whether it is a reason for an import of one file from another.
    pub(super) fn allows(&self, from: &ModulePath, to: &ModulePath) -> bool {
        self.from == *from && to.starts_with(&self.to)
    }
}

/// A module in a file of its own or in braces.
#[derive(Debug, Default)]
struct Module {
    /// The module of its file.
    file: ModulePath,
    /// The names that it imports or re-exports, and their paths.
    names: BTreeMap<String, ModulePath>,
    /// The modules from which it imports all names.
    globs: Vec<ModulePath>,
    /// All paths from the root that it uses.
    used: BTreeSet<ModulePath>,
    /// All its words, among them the names of its items.
    words: BTreeSet<String>,
    /// Its imports of paths that begin with a name of this module or of another crate.
    relative: Vec<(String, ModulePath)>,
}

impl Module {
    /// Adds an import of a name, or of all names, `*`.
    fn import(&mut self, name: String, path: ModulePath) {
        match name.as_str() {
            "*" => self.globs.push(path.clone()),
            _ => drop(self.names.insert(name, path.clone())),
        }
        self.used.insert(path);
    }
}

/// The modules of a target.
#[derive(Debug, Default)]
pub(super) struct Tree {
    modules: BTreeMap<ModulePath, Module>,
    pub(super) stated: Vec<Stated>,
    pub(super) files: usize,
}

impl Tree {
    /// Reads the files of a target, without tests and loom models.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        let folder = root.parent().context("a root file lies in a folder")?.to_owned();
        let mut waiting = vec![Declared { path: Vec::new(), file: root.to_owned(), folder }];
        while let Some(declared) = waiting.pop() {
            let file = &declared.file;
            let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
            let found = tree.add(&declared, &text);
            waiting.extend(found.with_context(|| format!("parsing {}", file.display()))?);
        }
        tree.import_relative();
        Ok(tree)
    }

    /// Adds the imports from modules that stand in the importing module. The others are of other crates.
    fn import_relative(&mut self) {
        let paths: BTreeSet<_> = self.modules.keys().cloned().collect();
        for (at, module) in &mut self.modules {
            for (name, path) in std::mem::take(&mut module.relative) {
                let path = [&at[..], &path].concat();
                if paths.contains(&path[..=at.len()]) {
                    module.import(name, path);
                }
            }
        }
    }

    /// Adds a file, and returns the files of the modules that it declares.
    fn add(&mut self, declared: &Declared, text: &str) -> Result<Vec<Declared>> {
        let path = declared.path.clone();
        let file = syn::parse_file(text)?;
        self.stated.extend(stated(&path, &file.attrs)?);
        self.files += 1;
        let module = Module { file: path.clone(), ..Module::default() };
        let beside = declared.file.parent().context("a file lies in a folder")?.to_owned();
        let folder = declared.folder.clone();
        let mut reader = Reader { path: path.clone(), module, folder, beside, ..Reader::default() };
        reader.visit_file(&file);
        reader.read.insert(path, reader.module);
        self.modules.append(&mut reader.read);
        Ok(reader.declared)
    }

    /// The imports of each file from the others.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for module in self.modules.values() {
            for path in &module.used {
                let Some(target) = self.definition(path, &mut BTreeSet::new()) else { continue };
                let target = &self.modules[&target].file;
                if *target != module.file {
                    let names = imports.entry((module.file.clone(), target.clone())).or_default();
                    names.extend(path.last().cloned());
                }
            }
        }
        imports
    }

    /// The module that defines what a path names. None if that is one of `seen`.
    fn definition(&self, path: &[String], seen: &mut BTreeSet<ModulePath>) -> Option<ModulePath> {
        if !seen.insert(path.to_vec()) {
            return None;
        }
        let inside = (0..=path.len()).rev().find(|&end| self.modules.contains_key(&path[..end]))?;
        let (at, rest) = path.split_at(inside);
        let Some((name, members)) = rest.split_first() else { return Some(at.to_vec()) };
        let module = &self.modules[at];
        let exported = match module.names.get(name) {
            Some(exported) => self.definition(&[exported, members].concat(), seen),
            None => module.globs.iter().find_map(|glob| {
                let found = self.definition(&[glob, rest].concat(), seen)?;
                self.modules[&found].words.contains(name).then_some(found)
            }),
        };
        exported.or_else(|| Some(at.to_vec()))
    }
}

/// A module whose file is still to be read.
struct Declared {
    path: ModulePath,
    file: PathBuf,
    /// The folder of its modules.
    folder: PathBuf,
}

/// The lines `Imports up: ...` of a file's page.
fn stated(from: &ModulePath, page: &[Attribute]) -> Result<Vec<Stated>> {
    let mut stated = Vec::new();
    for line in page.iter().filter_map(text_of) {
        let Some(reason) = line.trim_start().strip_prefix("Imports up: ") else { continue };
        let module = reason.strip_prefix('`').and_then(|rest| rest.split_once("`, "));
        let (module, reason) = module.with_context(|| format!("`{line}` has no module and reason"))?;
        ensure!(!reason.is_empty(), "`{line}` has no reason");
        stated.push(Stated { from: from.clone(), to: module.split("::").map(str::to_owned).collect() });
    }
    Ok(stated)
}

/// The text of `#[name = "text"]`.
fn text_of(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}

/// Reads a file.
#[derive(Default)]
struct Reader {
    /// The module at this place of the file, and the folder of its modules.
    path: ModulePath,
    module: Module,
    folder: PathBuf,
    /// The folder to which `#[path]` is relative here.
    beside: PathBuf,
    read: BTreeMap<ModulePath, Module>,
    declared: Vec<Declared>,
}

impl Reader {
    /// The path from the root, if this one begins with `crate`, `self` or `super`.
    fn absolute(&self, path: &[String]) -> Option<ModulePath> {
        let (first, mut rest) = path.split_first()?;
        let mut above = match first.as_str() {
            "crate" => 0,
            "self" => self.path.len(),
            "super" => self.path.len().checked_sub(1)?,
            _ => return None,
        };
        while let Some(("super", after)) = rest.split_first().map(|(first, after)| (first.as_str(), after)) {
            (above, rest) = (above.checked_sub(1)?, after);
        }
        Some([&self.path[..above], rest].concat())
    }

    fn use_path(&mut self, path: &[String]) {
        // `self.field` and the type of `self: Self` are not paths.
        if let Some(path) = self.absolute(path).filter(|_| path.len() > 1) {
            self.module.used.insert(path);
        }
    }

    fn import(&mut self, tree: &UseTree, mut prefix: ModulePath) {
        let name = match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                return self.import(&path.tree, prefix);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, prefix.clone()));
            }
            UseTree::Name(name) => {
                prefix.push(name.ident.to_string());
                name.ident.to_string()
            }
            UseTree::Rename(rename) => {
                prefix.push(rename.ident.to_string());
                rename.rename.to_string()
            }
            UseTree::Glob(_) => "*".to_owned(),
        };
        if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
            prefix.pop();
        }
        let name = if name == "self" { prefix.last().cloned().unwrap_or_default() } else { name };
        match self.absolute(&prefix) {
            Some(path) => self.module.import(name, path),
            None => self.module.relative.push((name, prefix)),
        }
    }

    /// Finds the paths in a macro's tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut separators = 0;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    separators += 1;
                    continue;
                }
                TokenTree::Ident(ref word) => {
                    self.module.words.insert(word.to_string());
                    if separators != 2 {
                        self.use_path(&std::mem::take(&mut path));
                    }
                    path.push(word.to_string());
                }
                TokenTree::Group(group) => {
                    self.use_path(&std::mem::take(&mut path));
                    self.tokens(group.stream());
                }
                ref token if is_punct(token, '$') => {}
                _ => self.use_path(&std::mem::take(&mut path)),
            }
            separators = 0;
        }
        self.use_path(&path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_file(&mut self, file: &'ast File) {
        file.items.iter().for_each(|item| self.visit_item(item));
    }

    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let name = item.ident.to_string();
        let path = [&self.path[..], std::slice::from_ref(&name)].concat();
        let folder = self.folder.join(&name);
        let Some((_, items)) = &item.content else {
            let elsewhere = item.attrs.iter().filter(|attribute| attribute.path().is_ident("path"));
            let file = match elsewhere.filter_map(text_of).next() {
                Some(file) => self.beside.join(file),
                None if folder.join("mod.rs").exists() => folder.join("mod.rs"),
                None => folder.with_extension("rs"),
            };
            self.declared.push(Declared { path, file, folder });
            return;
        };
        let module = Module { file: self.module.file.clone(), ..Module::default() };
        let outer = Self {
            path: std::mem::replace(&mut self.path, path),
            module: std::mem::replace(&mut self.module, module),
            beside: std::mem::replace(&mut self.beside, folder.clone()),
            folder: std::mem::replace(&mut self.folder, folder),
            ..Self::default()
        };
        items.iter().for_each(|item| self.visit_item(item));
        let path = std::mem::replace(&mut self.path, outer.path);
        self.read.insert(path, std::mem::replace(&mut self.module, outer.module));
        (self.folder, self.beside) = (outer.folder, outer.beside);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.import(&item.tree, Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.use_path(&words);
        visit::visit_path(self, path);
    }

    fn visit_ident(&mut self, word: &'ast proc_macro2::Ident) {
        self.module.words.insert(word.to_string());
    }

    fn visit_macro(&mut self, called: &'ast Macro) {
        self.visit_path(&called.path);
        self.tokens(called.tokens.clone());
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    /// `pub(super)` and `pub(in path)` import nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ModulePath {
        text.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn declared(module: &str) -> Declared {
        let folder = Path::new("/src").join(path(module).join("/"));
        Declared { path: path(module), file: folder.with_extension("rs"), folder }
    }

    /// A tree of the files, each with the path of its module.
    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (module, text) in files {
            tree.add(&declared(module), text).unwrap();
        }
        tree.import_relative();
        tree
    }

    /// `importing > defining: names` of each import.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let line = |((from, to), names): ((ModulePath, ModulePath), BTreeSet<String>)| {
            let names: Vec<_> = names.into_iter().collect();
            format!("{} > {}: {}", from.join("::"), to.join("::"), names.join(" "))
        };
        tree(files).imports().into_iter().map(line).collect()
    }

    #[test]
    fn imports_and_paths_lead_to_files() {
        let a = "use crate::b::{self, One, deep::{Two as Three}};
            use std::fmt; use serde::Serialize;
            fn f(x: super::c::Four) -> Vec<crate::c::Five> { crate::b::six::<self::Seven>(x) }";
        assert_eq!(
            imports(&[("", "mod a; mod b; mod c;"), ("a", a), ("b", ""), ("b::deep", ""), ("c", "")]),
            ["a > b: One b six", "a > b::deep: Two", "a > c: Five Four"]
        );
    }

    #[test]
    fn name_counts_for_the_file_that_defines_it() {
        let root = "mod a; mod b; mod c; pub use a::One; pub use b::*; pub use serde::Serialize;";
        let b = "mod deep; pub use deep::Two; use crate::a::One as Other; pub struct Four;";
        let c = "use crate::{One, Two, Three, Four, Serialize}; use super::b::Other;";
        assert_eq!(
            imports(&[
                ("", root),
                ("a", "pub struct One;"),
                ("b", b),
                ("b::deep", "pub struct Two;"),
                ("c", c)
            ]),
            [
                " > a: One",
                " > b: b",
                "b > a: One",
                "b > b::deep: Two",
                "c > : Serialize Three",
                "c > a: One Other",
                "c > b: Four",
                "c > b::deep: Two"
            ]
        );
    }

    #[test]
    fn modules_in_braces_belong_to_their_file() {
        let a =
            "pub mod inner { use super::super::b::One; pub use super::Two; pub struct Three; } struct Two;";
        let b = "use crate::a::inner::{Two, Three};";
        assert_eq!(imports(&[("", ""), ("a", a), ("b", b)]), ["a > b: One", "b > a: Three Two"]);
    }

    #[test]
    fn macros_have_paths_in_their_tokens() {
        let a = "macro_rules! m { ($name:ident) => { impl $crate::b::One for $name {} } }
            m!(x, crate::c::Two::new(super::c::three!()), self.field: self, a::crate::d::Not);";
        let files = [("", ""), ("a", a), ("b", ""), ("c", "pub struct Two;"), ("d", "")];
        assert_eq!(imports(&files), ["a > b: One", "a > c: new three"]);
    }

    #[test]
    fn tests_do_not_count() {
        let a = "#[cfg(test)] mod tests { use crate::b::One; } #[cfg(test)] use crate::b::Two;
            #[cfg(loom)] use crate::b::Three; #[cfg(not(loom))] use crate::c::Four;
            impl A { #[cfg(test)] fn f() { crate::b::f() } }";
        assert_eq!(imports(&[("", ""), ("a", a), ("b", ""), ("c", "")]), ["a > c: Four"]);
    }

    #[test]
    fn other_crates_import_nothing() {
        let root = "use bitflags::bitflags; use proptest::prelude::*; use other::*;";
        assert_eq!(
            imports(&[("", root), ("a", "use crate::bitflags; use super::Strategy;")]),
            ["a > : Strategy bitflags"]
        );
    }

    #[test]
    fn files_of_modules_are_found_by_their_names() {
        let mut tree = Tree::default();
        let text = "mod b; #[cfg(test)] mod tests; #[path = \"../x.rs\"] mod c; mod d { mod e; }";
        let found = tree.add(&declared("a"), text).unwrap();
        let found: Vec<_> = found
            .into_iter()
            .map(|found| (found.path.join("::"), found.file.display().to_string()))
            .collect();
        let wanted = [("a::b", "/src/a/b.rs"), ("a::c", "/src/../x.rs"), ("a::d::e", "/src/a/d/e.rs")];
        assert_eq!(found, wanted.map(|(path, file)| (path.to_owned(), file.to_owned())));
    }

    #[test]
    fn page_states_reasons() {
        let tree =
            tree(&[("a", "//! Text.\n//!\n//! Imports up: `b::c`, for a reason\n//! of two lines.\n")]);
        assert_eq!(tree.stated, [Stated { from: path("a"), to: path("b::c") }]);
        assert!(tree.stated[0].allows(&path("a"), &path("b::c::d")));
        assert!(!tree.stated[0].allows(&path("a"), &path("b")));
        for page in ["Imports up: `b`", "Imports up: b, for a reason", "Imports up: `b`, "] {
            let page = format!("//! {page}\n");
            assert!(Tree::default().add(&declared("a"), &page).is_err(), "{page}");
        }
    }
}
