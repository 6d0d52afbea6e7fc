//! Rust sources: their files, and tokens that no parser of items reads, such as those of macros.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenTree};

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
