//! The items of the product crates and the C names that they are aliases of.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::build;
use crate::crates;
use crate::sources::{first_word, group_of, implemented, is_punct, rust_files};

/// Words that begin an item, before its name.
const ITEM: [&str; 9] = ["const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union"];
/// Words that may stand before [`ITEM`] or a field's name.
const MODIFIERS: [&str; 5] = ["async", "extern", "mut", "pub", "unsafe"];

/// The keywords of [`ITEM`] whose braces hold items.
const WITH_ITEMS: [&str; 5] = ["enum", "mod", "struct", "trait", "union"];

/// An item: its crate, by the order of [`Items::read`], and its path with the crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) krate: usize,
    path: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)
    }
}

/// What the sources declare.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// By the C name.
    pub(super) aliases: BTreeMap<String, BTreeSet<Place>>,
    /// Every item, with or without an alias.
    pub(super) all: BTreeSet<String>,
}

impl Items {
    /// Reads the crates of the library, the safest first: those with the most of the others below them.
    pub(super) fn read() -> Result<Self> {
        let mut items = Self::default();
        let library = crates::library()?;
        let mut sorted: Vec<_> = library.iter().collect();
        sorted.sort_by_key(|found| Reverse(found.count_dependencies(&library)));
        for (krate, found) in sorted.into_iter().enumerate() {
            let root = build::workspace().join(found.folder()).join("src");
            let mut files = Vec::new();
            rust_files(&root, &mut files)?;
            for file in files {
                let text =
                    fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
                items
                    .add((krate, &found.name), &file, &text)
                    .with_context(|| format!("parsing {}", file.display()))?;
            }
        }
        Ok(items)
    }

    /// Adds the items of a file of a crate: its place in the order, and its name.
    pub(super) fn add(&mut self, krate: (usize, &str), file: &Path, text: &str) -> Result<()> {
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
        let module = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Walk { items: self, krate, module: &module }.within("", tokens);
        Ok(())
    }
}

/// What the tokens read so far say about the next ones.
#[derive(Default)]
struct State {
    /// The aliases of the next item.
    aliases: Vec<String>,
    /// The type or module that the next braces belong to.
    inner: Option<String>,
    /// The same in a macro without keywords: the first word that begins like a type.
    guess: Option<String>,
}

struct Walk<'a> {
    items: &'a mut Items,
    krate: (usize, &'a str),
    /// The name of the file.
    module: &'a str,
}

impl Walk<'_> {
    /// Enters the items of a type, or of a file, for which `scope` is empty.
    fn within(&mut self, scope: &str, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut state = State::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            at += 1 + self.token(scope, &mut state, token, &tokens[at + 1..]);
        }
    }

    /// Reads a token. Returns how many of the following tokens it has read, too.
    fn token(&mut self, scope: &str, state: &mut State, token: &TokenTree, rest: &[TokenTree]) -> usize {
        match token {
            TokenTree::Punct(hash) if hash.as_char() == '#' => {
                let attribute = group_of(rest.first(), Delimiter::Bracket);
                state.aliases.extend(attribute.and_then(alias));
                return usize::from(attribute.is_some());
            }
            TokenTree::Ident(word) => return self.word(scope, state, &word.to_string(), rest),
            TokenTree::Group(group) => {
                let braces = group.delimiter() == Delimiter::Brace;
                let inner = braces.then(|| state.inner.take().or(state.guess.take())).flatten();
                self.within(inner.as_deref().unwrap_or(scope), group.stream());
            }
            token if is_punct(token, ';') => (state.inner, state.guess) = (None, None),
            token if is_punct(token, ',') => state.guess = None,
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        0
    }

    fn word(&mut self, scope: &str, state: &mut State, word: &str, rest: &[TokenTree]) -> usize {
        if word == "impl" {
            state.inner = Some(implemented(rest));
        } else if ITEM.contains(&word) {
            let name = first_word(rest);
            // `const fn`
            if name == "fn" {
                return 0;
            }
            let module = if word == "fn" { self.module } else { "" };
            self.enter(if scope.is_empty() { module } else { scope }, &name, &mut state.aliases);
            state.inner = WITH_ITEMS.contains(&word).then_some(name);
            return 1;
        } else if !MODIFIERS.contains(&word) {
            // A field, a variant or a macro's own syntax.
            if !state.aliases.is_empty() {
                self.enter(scope, word, &mut state.aliases);
            }
            let type_like = word.starts_with(|first: char| first.is_ascii_uppercase());
            if type_like && state.guess.is_none() {
                state.guess = Some(word.to_owned());
            }
        }
        0
    }

    fn enter(&mut self, scope: &str, name: &str, aliases: &mut Vec<String>) {
        let item =
            if ["", "lib", "mod"].contains(&scope) { name.to_owned() } else { format!("{scope}::{name}") };
        let (krate, crate_name) = self.krate;
        let place = Place { krate, path: format!("{}::{item}", crate_name.replace('-', "_")) };
        self.items.all.insert(place.to_string());
        for alias in aliases.drain(..) {
            self.items.aliases.entry(alias).or_default().insert(place.clone());
        }
    }
}

/// `NAME` of `[doc(alias = "NAME")]`
fn alias(attribute: &Group) -> Option<String> {
    let text = attribute.stream().to_string().replace(' ', "");
    Some(text.strip_prefix("doc(alias=\"")?.strip_suffix("\")")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Vec<(String, String)> {
        let mut items = Items::default();
        items.add((0, "bareverbs"), Path::new("/x/qp.rs"), text).unwrap();
        let places = items
            .aliases
            .iter()
            .flat_map(|(alias, places)| places.iter().map(|place| (alias.clone(), place.to_string())));
        places.collect()
    }

    #[test]
    fn aliased_items_are_named_by_type() {
        let text = r#"
            #[doc(alias = "c_struct")] #[derive(Debug)]
            pub struct Qp<T> { /// A field.
                #[doc(alias = "c_field")] pub(crate) depth: u32, plain: u8 }
            impl<P: Provider> Display for Qp<P> { fn fmt() {} }
            impl<P: Provider> Qp<P> {
                /// Words.
                #[doc(alias = "c_post")] #[doc(alias = "c_list")]
                pub unsafe fn post(&self) { let inner = 1; }
                #[doc(alias = "c_limit")] pub const LIMIT: u32 = 1;
                #[doc(alias = "c_const_fn")] pub const fn id(&self) -> u32 { 1 }
            }
            #[doc(alias = "c_free")] pub async fn free() {}
            pub enum E { #[doc(alias = "C_ONE")] One = 1, Two }
        "#;
        let expected = [
            ("C_ONE", "bareverbs::E::One"),
            ("c_const_fn", "bareverbs::Qp::id"),
            ("c_field", "bareverbs::Qp::depth"),
            ("c_free", "bareverbs::qp::free"),
            ("c_limit", "bareverbs::Qp::LIMIT"),
            ("c_list", "bareverbs::Qp::post"),
            ("c_post", "bareverbs::Qp::post"),
            ("c_struct", "bareverbs::Qp"),
        ];
        assert_eq!(places(text), expected.map(|(alias, place)| (alias.to_owned(), place.to_owned())));
    }

    #[test]
    fn aliases_in_macros_are_found() {
        let text = r#"macro_rules! m { ($name:ident) => { impl Wr { #[doc(alias = "c_a")] pub fn $name() {} } } }
            options! { Id { #[doc(alias = "c_b")] tos(u8), } }"#;
        let expected = [("c_a", "bareverbs::Wr::$name"), ("c_b", "bareverbs::Id::tos")];
        assert_eq!(places(text), expected.map(|(alias, place)| (alias.to_owned(), place.to_owned())));
    }
}
