//! The public functions of the product crates, found in their sources.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, ImplItemFn, Item, ItemFn, ItemImpl, ItemMod, ItemTrait, Macro, Signature, TraitItemFn};
use syn::{Type, Visibility};

use super::profiles::Coverage;
use crate::build;
use crate::crates::Crate;
use crate::sources::{attributes, first_word, group_of, implemented, is_for_tests, is_punct, rust_files};

/// A public function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// The crate's folder, the modules, the type and the function.
    pub(super) name: String,
    file: PathBuf,
    /// From the first line of the signature to the brace that opens the body.
    head: RangeInclusive<usize>,
}

impl Function {
    pub(super) fn is_in(&self, folder: &str) -> bool {
        self.name.split("::").next() == Some(folder)
    }

    /// File and line, in the format of compilers.
    pub(super) fn place(&self) -> String {
        let file = self.file.strip_prefix(build::workspace()).unwrap_or(&self.file);
        format!("{}:{}", file.display(), self.head.start())
    }
}

/// The result of parsing the product crates.
#[derive(Debug, Default)]
pub(super) struct Sources {
    functions: Vec<Function>,
    /// Lines of tests and of test-only code. An empty list means the whole file.
    tests: BTreeMap<PathBuf, Vec<RangeInclusive<usize>>>,
}

impl Sources {
    pub(super) fn read(library: &[Crate]) -> Result<Self> {
        let mut sources = Self::default();
        for name in library.iter().map(Crate::folder) {
            let root = build::workspace().join(name).join("src");
            let mut files = Vec::new();
            rust_files(&root, &mut files)?;
            for file in files {
                let text =
                    fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
                let module = module_of(name, file.strip_prefix(&root)?);
                sources.add(&file, &module, &text).with_context(|| format!("parsing {}", file.display()))?;
            }
        }
        let tests = sources.tests.clone();
        sources.functions.retain(|function| !is_test(&tests, &function.file, *function.head.start()));
        Ok(sources)
    }

    fn add(&mut self, file: &Path, module: &str, text: &str) -> syn::Result<()> {
        let parsed = syn::parse_file(text)?;
        let mut visitor = Visitor { sources: self, file, scope: vec![module.to_owned()] };
        visitor.visit_file(&parsed);
        Ok(())
    }

    /// Each function, and whether it was called. Functions that are not compiled for this platform
    /// are left out.
    pub(super) fn called(&self, coverage: &Coverage) -> Vec<(Function, bool)> {
        let calls = |function: &Function| coverage.calls(&function.file, function.head.clone());
        self.functions.iter().filter_map(|function| Some((function.clone(), calls(function)? > 0))).collect()
    }

    /// Whether a line belongs to a test or to test-only code.
    pub(super) fn is_test(&self, file: &Path, line: usize) -> bool {
        is_test(&self.tests, file, line)
    }
}

fn is_test(tests: &BTreeMap<PathBuf, Vec<RangeInclusive<usize>>>, file: &Path, line: usize) -> bool {
    let within = |lines: &Vec<RangeInclusive<usize>>| lines.iter().any(|lines| lines.contains(&line));
    // A test module in a file of its own includes the files in its folder.
    file.ancestors().any(|path| {
        tests.get(path).is_some_and(within) || tests.get(&path.with_extension("rs")).is_some_and(within)
    })
}

/// `verbs::qp::post` of `qp/post.rs`
fn module_of(name: &str, file: &Path) -> String {
    let path = file.with_extension("");
    let parts = path.iter().map(|part| part.to_string_lossy());
    let parts = parts.filter(|part| part != "mod" && part != "lib");
    std::iter::once(name.into()).chain(parts).collect::<Vec<_>>().join("::")
}

struct Visitor<'a> {
    sources: &'a mut Sources,
    file: &'a Path,
    scope: Vec<String>,
}

impl Visitor<'_> {
    fn enter(&mut self, signature: &Signature, start: Span, body: &Block) {
        let lines = start.start().line..=body.brace_token.span.open().start().line;
        self.add(&signature.ident.to_string(), lines);
    }

    fn add(&mut self, name: &str, head: RangeInclusive<usize>) {
        let name = format!("{}::{name}", self.scope.join("::"));
        self.sources.functions.push(Function { name, file: self.file.to_owned(), head });
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.scope.push(name);
        visit(self);
        self.scope.pop();
    }

    /// Finds the functions in a macro's tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        // The line of the latest `pub`.
        let mut public = None;
        // The type of the latest `impl`.
        let mut of = None;
        for (at, token) in tokens.iter().enumerate() {
            let rest = &tokens[at + 1..];
            match token {
                TokenTree::Ident(word) if word == "pub" => {
                    let restricted = group_of(rest.first(), Delimiter::Parenthesis).is_some();
                    public = (!restricted).then(|| word.span().start().line);
                }
                TokenTree::Ident(word) if ["unsafe", "const", "async"].iter().any(|other| word == other) => {}
                TokenTree::Ident(word) if word == "fn" => {
                    let body = rest
                        .iter()
                        .take_while(|token| !is_punct(token, ';'))
                        .find_map(|token| group_of(Some(token), Delimiter::Brace));
                    if let (Some(start), Some(body)) = (public.take(), body) {
                        self.add(&first_word(rest), start..=body.span_open().start().line);
                    }
                }
                TokenTree::Ident(word) if word == "impl" => of = Some(implemented(rest)),
                TokenTree::Group(group) => {
                    public = None;
                    let braces = group.delimiter() == Delimiter::Brace;
                    match of.take_if(|_| braces) {
                        Some(name) => self.within(name, |this| this.tokens(group.stream())),
                        None => self.tokens(group.stream()),
                    }
                }
                _ => public = None,
            }
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_for_tests) {
            let lines = match item {
                Item::Mod(ItemMod { content: None, ident, .. }) => {
                    let folder = match self.file.file_stem().and_then(|stem| stem.to_str()) {
                        Some("lib" | "mod") => self.file.parent().unwrap_or(self.file).to_owned(),
                        _ => self.file.with_extension(""),
                    };
                    let file = folder.join(ident.to_string());
                    self.sources.tests.insert(file.with_extension("rs"), vec![0..=usize::MAX]);
                    self.sources.tests.insert(file, vec![0..=usize::MAX]);
                    return;
                }
                item => item.span().start().line..=item.span().end().line,
            };
            self.sources.tests.entry(self.file.to_owned()).or_default().push(lines);
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.within(module.ident.to_string(), |this| visit::visit_item_mod(this, module));
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if matches!(function.vis, Visibility::Public(_)) {
            self.enter(&function.sig, function.vis.span(), &function.block);
        }
    }

    fn visit_item_impl(&mut self, implementation: &'ast ItemImpl) {
        let name = type_name(&implementation.self_ty);
        self.within(name, |this| visit::visit_item_impl(this, implementation));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        let public = matches!(function.vis, Visibility::Public(_));
        if public && !function.attrs.iter().any(is_for_tests) {
            self.enter(&function.sig, function.vis.span(), &function.block);
        }
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        if matches!(item.vis, Visibility::Public(_)) {
            self.within(item.ident.to_string(), |this| visit::visit_item_trait(this, item));
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(body) = &function.default {
            self.enter(&function.sig, function.sig.span(), body);
        }
    }

    fn visit_macro(&mut self, macro_call: &'ast Macro) {
        self.tokens(macro_call.tokens.clone());
    }
}

/// The last word of a path without its parameters.
fn type_name(of: &Type) -> String {
    match of {
        Type::Path(path) => path.path.segments.last().map_or_else(String::new, |part| part.ident.to_string()),
        _ => "_".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Sources {
        let mut sources = Sources::default();
        sources.add(Path::new("/x/src/m.rs"), "x::m", text).unwrap();
        sources
    }

    fn names(text: &str) -> Vec<String> {
        read(text).functions.into_iter().map(|function| function.name).collect()
    }

    #[test]
    fn only_public_functions_are_listed() {
        let text = "pub fn a() {} fn b() {} pub(crate) fn c() {}
            impl<T> S<T> { pub const fn d(&self) {} fn e() {} }
            impl Clone for S { fn clone(&self) -> Self { S } }
            pub trait T { fn f(&self) {} fn g(&self); } trait U { fn h() {} }
            pub mod inner { pub unsafe fn i() {} }";
        assert_eq!(names(text), ["x::m::a", "x::m::S::d", "x::m::T::f", "x::m::inner::i"]);
    }

    #[test]
    fn functions_in_macros_are_listed_with_their_types() {
        let text = "macro_rules! m { ($name:ident, $t:ty) => {
            impl<P: Provider> Wrapper<P> { pub async fn $name(&self) -> [u8; 2] { [1, 2] } fn private() {} }
            impl Display for Other { fn fmt() {} }
            pub(crate) fn inside() {}
            impl $t { pub fn plain() {} }
            pub fn free<T>(t: T) {} }; }";
        assert_eq!(names(text), ["x::m::Wrapper::$name", "x::m::$t::plain", "x::m::free"]);
    }

    #[test]
    fn function_head_ends_at_body() {
        let text = "#[inline]\n#[must_use]\npub fn a(\n    b: u8,\n) -> u8 {\n    b\n}\n";
        assert_eq!(read(text).functions[0].head, 3..=5);
    }

    #[test]
    fn test_code_is_left_out() {
        let text =
            "pub fn a() {}\n#[cfg(test)]\nmod tests {\n    pub fn b() {}\n}\n#[cfg(feature = \"test-utils\")]
            impl S { pub fn c() {} }\n#[cfg(test)]\nmod more;\n";
        let sources = read(text);
        assert_eq!(sources.functions.len(), 1);
        let file = Path::new("/x/src/m.rs");
        assert_eq!([1, 3, 4, 7].map(|line| sources.is_test(file, line)), [false, true, true, true]);
        for file in ["/x/src/m/more.rs", "/x/src/m/more/deep.rs"] {
            assert!(sources.is_test(Path::new(file), 1), "{file}");
        }
        assert!(!sources.is_test(Path::new("/x/src/m/other.rs"), 1));
    }
}
