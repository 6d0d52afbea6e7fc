//! The copy of the workspace in which mutations are made.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

use super::Mutant;
use crate::build;

/// A copy of the workspace with its own target folder. Only this process uses it.
pub(super) struct Tree {
    folder: PathBuf,
    _lock: File,
}

impl Tree {
    /// Brings the copy up to date. Unchanged files keep their modification times, so that cargo
    /// rebuilds only changes.
    pub(super) fn open() -> Result<Self> {
        let folder = build::workspace().join("target/mutants");
        fs::create_dir_all(&folder)?;
        let lock = File::create(folder.join("lock"))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            println!("waiting for another `cargo xtask mutants`");
            flock(&lock, FlockOperation::LockExclusive).context("locking target/mutants")?;
        }
        let tree = Self { folder, _lock: lock };
        let files = tracked()?;
        for file in &files {
            tree.restore(file)?;
        }
        let kept = tree.folder.join("files");
        for old in fs::read_to_string(&kept).unwrap_or_default().lines().map(Path::new) {
            if !files.contains(old) {
                let _ = fs::remove_file(tree.root().join(old));
            }
        }
        let lines: String = files.iter().map(|file| format!("{}\n", file.display())).collect();
        fs::write(kept, lines)?;
        Ok(tree)
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.join("tree")
    }

    /// The folder of cargo-mutants' results.
    pub(super) fn outcomes(&self) -> PathBuf {
        self.folder.clone()
    }

    /// Copies one file of the workspace, unless the copy has the same content.
    pub(super) fn restore(&self, file: &Path) -> Result<()> {
        let (from, to) = (build::workspace().join(file), self.root().join(file));
        let contents = fs::read(&from).with_context(|| format!("reading {}", from.display()))?;
        if fs::read(&to).is_ok_and(|there| there == contents) {
            return Ok(());
        }
        fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
        // The modification time must be newer than that of the mutated file.
        File::options().append(true).open(&to)?.set_modified(std::time::SystemTime::now())?;
        Ok(())
    }

    /// Makes a mutant's change.
    pub(super) fn mutate(&self, mutant: &Mutant) -> Result<()> {
        let path = self.root().join(&mutant.file);
        let text = fs::read_to_string(&path)?;
        fs::write(&path, mutated(&text, mutant)?).with_context(|| format!("writing {}", path.display()))
    }
}

/// The tracked and the untracked files of the workspace, without ignored ones.
fn tracked() -> Result<BTreeSet<PathBuf>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(arguments).current_dir(build::workspace()).output();
    let output = output.context("running git")?;
    ensure!(output.status.success(), "git ls-files failed");
    let names = output.stdout.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let paths = names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    // A tracked file may have been deleted.
    Ok(paths.filter(|path| build::workspace().join(path).is_file()).collect())
}

fn mutated(text: &str, mutant: &Mutant) -> Result<String> {
    let at = |line: usize, column: usize| -> Option<usize> {
        let before: usize = text.split_inclusive('\n').take(line - 1).map(str::len).sum();
        let (offset, _) = text[before..].char_indices().nth(column - 1)?;
        Some(before + offset)
    };
    let (start, end) = (mutant.span.start, mutant.span.end);
    let (Some(start), Some(end)) = (at(start.line, start.column), at(end.line, end.column)) else {
        bail!("{} is outside its file", mutant.name);
    };
    Ok(format!("{}{}{}", &text[..start], mutant.replacement, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::super::{Position, Span};
    use super::*;

    #[test]
    fn mutated_span_is_replaced() {
        let mutant = |start: (usize, usize), end: (usize, usize)| {
            let position = |(line, column)| Position { line, column };
            let span = Span { start: position(start), end: position(end) };
            Mutant { name: "a".into(), file: "a".into(), span, replacement: "()".into() }
        };
        let text = "fn a() {\n    µ + b\n}\n";
        assert_eq!(mutated(text, &mutant((2, 5), (2, 10))).unwrap(), "fn a() {\n    ()\n}\n");
        assert_eq!(mutated(text, &mutant((1, 8), (3, 2))).unwrap(), "fn a() ()\n");
        assert!(mutated(text, &mutant((9, 1), (9, 2))).is_err());
    }
}
