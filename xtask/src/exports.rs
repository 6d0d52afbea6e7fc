//! What a shared library exports.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use object::Endianness;
use object::elf::{FileHeader64, SHN_ABS, SHT_DYNSYM, STT_FUNC, STT_OBJECT, SymbolType};
use object::read::elf::{FileHeader, Sym};

/// The exported functions of a library, each with its symbol versions.
pub(crate) fn functions(library: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let functions = exported(library, STT_FUNC)?;
    ensure!(!functions.is_empty(), "{} exports no function", library.display());
    Ok(functions)
}

/// The exported variables of a library, each with its symbol versions.
pub(crate) fn variables(library: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    exported(library, STT_OBJECT)
}

fn exported(library: &Path, kind: SymbolType) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let bytes = fs::read(library).with_context(|| format!("reading {}", library.display()))?;
    symbols(&bytes, kind).with_context(|| format!("parsing {}", library.display()))
}

fn symbols(bytes: &[u8], kind: SymbolType) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let symbols = sections.symbols(endian, bytes, SHT_DYNSYM)?;
    let versions = sections.versions(endian, bytes)?.context("the library has no symbol versions")?;
    let mut exported: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (index, symbol) in symbols.enumerate() {
        // The versions themselves are absolute symbols.
        if symbol.st_type() != kind || symbol.is_undefined(endian) || symbol.st_shndx(endian) == SHN_ABS {
            continue;
        }
        let name = String::from_utf8(symbol.name(endian, symbols.strings())?.to_owned())?;
        let version = versions.version(versions.version_index(endian, index).index())?;
        let version = version.with_context(|| format!("{name} has no version"))?.name();
        exported.entry(name).or_default().insert(String::from_utf8(version.to_owned())?);
    }
    Ok(exported)
}
