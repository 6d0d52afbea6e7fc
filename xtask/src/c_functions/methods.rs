//! The methods of the kernel's ABI that no verb calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};
use bareverbs_uapi::method::MethodInfo;
use bareverbs_uapi::registry::{self, Driver};
use proc_macro2::{TokenStream, TokenTree};

use crate::build;
use crate::crates::{self, Crate};
use crate::sources::rust_files;

/// The folder of the crate that declares the methods.
const ABI: &str = "uapi";

/// The methods without a verb: those of the core, then those of each driver that has any. Only the
/// driver's provider calls them.
pub(super) fn without_a_verb() -> Result<Vec<(String, Vec<&'static MethodInfo>)>> {
    let library = crates::library()?;
    let callers: Vec<_> = library.iter().map(Crate::folder).filter(|folder| *folder != ABI).collect();
    let mut all = vec![("core".to_owned(), uncalled(Driver::default().methods().collect(), &callers)?)];
    for (id, driver) in registry::DRIVERS {
        let methods: Vec<_> = driver.objects.iter().flat_map(|object| object.methods).copied().collect();
        if !methods.is_empty() {
            let name = id.name().unwrap_or_default().to_lowercase();
            let uncalled = uncalled(methods, &[&format!("provider-{name}")])?;
            all.push((name, uncalled));
        }
    }
    Ok(all)
}

/// The methods whose names the sources do not contain.
fn uncalled(mut methods: Vec<&'static MethodInfo>, folders: &[&str]) -> Result<Vec<&'static MethodInfo>> {
    let mut words = BTreeSet::new();
    for folder in folders {
        let mut files = Vec::new();
        rust_files(&build::workspace().join(folder).join("src"), &mut files)?;
        for file in files.into_iter().filter(|file| !is_of_raw_level(file)) {
            let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            let tokens = TokenStream::from_str(&text).map_err(|error| anyhow::anyhow!("{error}"))?;
            collect_words(tokens, &mut words);
        }
    }
    // `InvokeWrite` carries the write commands, by which most verbs work.
    methods.retain(|method| method.rust != "InvokeWrite" && !words.contains(method.rust));
    Ok(methods)
}

/// Whether a file belongs to `bareverbs::raw`, which calls any method.
fn is_of_raw_level(file: &Path) -> bool {
    file.with_extension("").ancestors().any(|path| path.ends_with("verbs/src/raw"))
}

/// The identifiers of the tokens, without those of comments and texts.
fn collect_words(tokens: TokenStream, words: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => {
                words.insert(word.to_string());
            }
            TokenTree::Group(group) => collect_words(group.stream(), words),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_that_the_provider_calls_are_left_out() {
        let all = without_a_verb().unwrap();
        let [(_, core), (_, mlx5)] = &all[..] else { panic!("{all:?}") };
        let has = |methods: &[&MethodInfo], name| methods.iter().any(|method| method.rust == name);
        assert!(has(core, "FlowActionDestroy") && has(mlx5, "DevxObjCreate"));
        assert!(!has(core, "QueryPort") && !has(core, "RegMr") && has(mlx5, "QueryPort"));
    }

    #[test]
    fn words_of_comments_and_texts_do_not_count() {
        let mut words = BTreeSet::new();
        collect_words(
            TokenStream::from_str("/* One */ f(\"Two\", [Call::<Three>::new()]) // Four").unwrap(),
            &mut words,
        );
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        assert_eq!(words, ["Call", "Three", "f", "new"]);
    }
}
