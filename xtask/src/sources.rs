//! Rust sources: their files, and tokens that no parser of items reads, such as those of macros.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenTree};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, ExprLit, Item, Lit, Meta, Token};

/// The Rust files below a folder, sorted.
pub(crate) fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

/// The token, if it is a group with this delimiter.
pub(crate) fn group_of(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

pub(crate) fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(found) if found.as_char() == wanted)
}

/// `name`, or `$name` if it is a macro parameter.
pub(crate) fn first_word(tokens: &[TokenTree]) -> String {
    let variable = tokens.first().is_some_and(|token| is_punct(token, '$'));
    tokens[..tokens.len().min(1 + usize::from(variable))].iter().map(ToString::to_string).collect()
}

/// The type of an `impl`: the word after `for`, or the first after the generic parameters.
pub(crate) fn implemented(tokens: &[TokenTree]) -> String {
    let braces = tokens.iter().position(|token| group_of(Some(token), Delimiter::Brace).is_some());
    let tokens = &tokens[..braces.unwrap_or(tokens.len())];
    let is_for = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "for");
    if let Some(at) = tokens.iter().position(is_for) {
        return first_word(&tokens[at + 1..]);
    }
    let mut depth = 0;
    let begin = tokens.iter().position(|token| {
        depth += i32::from(is_punct(token, '<'));
        let begins = depth == 0;
        depth -= i32::from(is_punct(token, '>'));
        begins
    });
    first_word(&tokens[begin.unwrap_or(tokens.len())..])
}

/// The attributes of the items that may be for tests.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether only tests, loom models and the feature `test-utils` have the attribute's item.
pub(crate) fn is_for_tests(attribute: &Attribute) -> bool {
    let Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && list.parse_args().is_ok_and(|condition| holds(&condition) == Some(false))
}

/// Whether the condition holds in a build for users. `None`: in some.
fn holds(condition: &Meta) -> Option<bool> {
    match condition {
        Meta::Path(path) if path.is_ident("test") || path.is_ident("loom") => Some(false),
        Meta::NameValue(pair) if pair.path.is_ident("feature") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) if name.value() == "test-utils" => Some(false),
            _ => None,
        },
        Meta::List(list) => {
            let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
            let inner: Vec<_> = inner.iter().map(holds).collect();
            // What decides `all` or `any`, whatever the others are.
            let deciding = list.path.is_ident("any");
            match &inner[..] {
                [one] if list.path.is_ident("not") => one.map(|holds| !holds),
                all if all.contains(&Some(deciding)) => Some(deciding),
                all if all.contains(&None) => None,
                _ => Some(!deciding),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_of_tests_are_known() {
        let is_for_tests = |condition: &str| {
            let item: Item = syn::parse_str(&format!("#[cfg({condition})] mod x;")).unwrap();
            attributes(&item).iter().any(is_for_tests)
        };
        for condition in [
            "test",
            "loom",
            "all(test, not(loom))",
            r#"all(test, feature = "tokio")"#,
            r#"feature = "test-utils""#,
            r#"any(test, feature = "test-utils")"#,
        ] {
            assert!(is_for_tests(condition), "{condition}");
        }
        for condition in [
            "not(loom)",
            r#"any(doc, feature = "test-utils")"#,
            r#"all(feature = "tokio", not(loom))"#,
            "any(not(loom), test)",
            "unix",
        ] {
            assert!(!is_for_tests(condition), "{condition}");
        }
    }
}
