//! The sources of the guest tests: their names, and which words a test contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::build;
use crate::sources::rust_files;

/// The folders with a folder or a file for each test binary.
const FOLDERS: [&str; 3] = ["tests/kernel/tests", "tests/interop/tests", "tests/soak/tests"];

/// A test binary.
#[derive(Default)]
struct Binary {
    tests: BTreeSet<String>,
    /// The words of each function, its name among them.
    functions: BTreeMap<String, BTreeSet<String>>,
}

/// By the name of the test binary.
#[derive(Default)]
pub(crate) struct GuestSources(BTreeMap<String, Binary>);

impl GuestSources {
    pub(crate) fn read() -> Result<Self> {
        let mut sources = Self::default();
        for folder in FOLDERS {
            let folder = build::workspace().join(folder);
            let mut files = Vec::new();
            rust_files(&folder, &mut files)?;
            for file in files {
                let first = file.strip_prefix(&folder)?.iter().next().context("a file in the folder")?;
                let binary = Path::new(first).with_extension("").display().to_string();
                let text =
                    fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
                sources.add(&binary, &text).with_context(|| format!("parsing {}", file.display()))?;
            }
        }
        Ok(sources)
    }

    pub(crate) fn add(&mut self, binary: &str, text: &str) -> Result<()> {
        let tokens = TokenStream::from_str(text).map_err(|error| anyhow::anyhow!("{error}"))?;
        self.0.entry(binary.to_owned()).or_default().read(tokens);
        Ok(())
    }

    /// The names of the tests, with their binaries.
    #[cfg(test)]
    pub(crate) fn tests(&self) -> impl Iterator<Item = String> {
        let names = |(binary, tests): (&String, &Binary)| {
            tests.tests.iter().map(|test| format!("{binary}::{test}")).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(names)
    }

    /// Whether a test, or a function of its binary that it calls, contains a word that contains one
    /// of `parts`, in any case.
    pub(crate) fn mentions(&self, title: &str, parts: &[&str]) -> bool {
        let Some((binary, test)) = title.split_once("::") else { return false };
        let Some(binary) = self.0.get(binary) else { return false };
        let has = |word: &String| parts.iter().any(|part| word.to_lowercase().contains(part));
        binary.reached(test.rsplit("::").next().unwrap_or(test)).iter().any(has)
    }
}

impl Binary {
    /// Enters the functions.
    fn read(&mut self, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut function = None;
        let mut is_test = false;
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "fn" => {
                    function = tokens.get(at + 1).map(ToString::to_string);
                    if std::mem::take(&mut is_test) {
                        self.tests.extend(function.clone());
                    }
                }
                TokenTree::Group(group) if is_attribute(group, "kernel_test") => is_test = true,
                TokenTree::Group(group) => match &function {
                    Some(name) => {
                        let words = self.functions.entry(name.clone()).or_default();
                        words.insert(name.clone());
                        collect(group.stream(), words);
                    }
                    None => self.read(group.stream()),
                },
                _ => {}
            }
            let ends = matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
            if ends {
                function = None;
            }
        }
    }

    /// The words of a function and of the functions of this binary that it names.
    fn reached(&self, function: &str) -> BTreeSet<String> {
        let mut reached = BTreeSet::new();
        let mut open = vec![function.to_owned()];
        while let Some(name) = open.pop() {
            for word in self.functions.get(&name).into_iter().flatten() {
                if reached.insert(word.clone()) && self.functions.contains_key(word) {
                    open.push(word.clone());
                }
            }
        }
        reached
    }
}

/// Whether the brackets of an attribute begin with this word.
fn is_attribute(group: &Group, name: &str) -> bool {
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket && matches!(first, Some(TokenTree::Ident(word)) if word == name)
}

fn collect(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => {
                words.insert(word.to_string());
            }
            TokenTree::Literal(text) => {
                words.insert(text.to_string());
            }
            TokenTree::Group(group) => collect(group.stream(), words),
            TokenTree::Punct(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_tests_and_their_helpers_are_found() {
        let mut sources = GuestSources::default();
        let module = "#[kernel_test] fn plain() { nothing_leaks(|| { helper(); }); }
            fn helper() { context.port_speed(1) }
            #[kernel_test(dma_handles)] fn hinted() -> Outcome { other(\"Words\") }";
        sources.add("verbs", module).unwrap();
        assert!(sources.tests().eq(["verbs::hinted", "verbs::plain"]));
        assert!(sources.mentions("verbs::plain", &["port_speed"]));
        assert!(sources.mentions("verbs::hinted", &["words"]));
        assert!(!sources.mentions("verbs::hinted", &["port_speed"]));
        assert!(!sources.mentions("verbs::gone", &["port_speed"]));
    }
}
