//! The functions that a shared library exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM, STT_FUNC};
use object::read::elf::{FileHeader, Sym};

/// The exported functions of a library, each with its symbol versions.
pub(super) fn exported(library: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let bytes = fs::read(library).with_context(|| format!("reading {}", library.display()))?;
    let functions = functions(&bytes).with_context(|| format!("parsing {}", library.display()))?;
    ensure!(!functions.is_empty(), "{} exports no function", library.display());
    Ok(functions)
}

fn functions(bytes: &[u8]) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let versions = sections.versions(endian, bytes)?.context("the library has no symbol versions")?;
    let mut functions: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.st_type() != STT_FUNC || symbol.is_undefined(endian) {
            continue;
        }
        let name = String::from_utf8(symbol.name(endian, symbols.strings())?.to_owned())?;
        let version = versions.version(versions.version_index(endian, index).index())?;
        let version = version.with_context(|| format!("{name} has no version"))?.name();
        functions.entry(name).or_default().insert(String::from_utf8(version.to_owned())?);
    }
    Ok(functions)
}
