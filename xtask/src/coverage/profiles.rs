//! Coverage profiles, read with LLVM's tools.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use bareverbs_lab::Llvm;

use super::instrument::{Built, profile_folder, target_folder};
use crate::build;
use crate::crates::Crate;

/// Counts by file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Coverage {
    files: BTreeMap<PathBuf, File>,
}

/// Counts by line.
#[derive(Debug, Default, PartialEq, Eq)]
struct File {
    /// Calls of the functions that begin at a line: the sum over their instances in a program.
    functions: BTreeMap<usize, u64>,
    /// How often lines of code were reached.
    lines: BTreeMap<usize, u64>,
}

impl Coverage {
    /// Merges the profiles and reads the counts of the product crates.
    pub(super) fn read(llvm: &Llvm, built: &Built, library: &[Crate]) -> Result<Self> {
        let merged = target_folder().join("merged.profdata");
        let mut profiles = Vec::new();
        for entry in fs::read_dir(profile_folder())? {
            profiles.push(entry?.path());
        }
        if profiles.is_empty() {
            bail!("no profiles in {}", profile_folder().display());
        }
        output(llvm.profdata().args(["merge", "--sparse", "--output"]).arg(&merged).args(profiles))?;
        let mut all = Self::default();
        // One program at a time: given several, llvm-cov keeps the first record of a function, even
        // if that record is of a program without the function and counts nothing.
        for program in built.programs() {
            let mut export = llvm.cov();
            export.args(["export", "--format=lcov", "--skip-branches", "--instr-profile"]).arg(&merged);
            export.arg(program).arg("--sources");
            export.args(library.iter().map(|found| build::workspace().join(found.folder()).join("src")));
            all.add(Self::parse(&output(&mut export)?)?);
        }
        Ok(all)
    }

    /// Adds the counts of another program. They cover all programs already.
    fn add(&mut self, other: Self) {
        for (path, other) in other.files {
            let file = self.files.entry(path).or_default();
            let pairs = [(&mut file.functions, other.functions), (&mut file.lines, other.lines)];
            for (counts, others) in pairs {
                for (line, other) in others {
                    let count = counts.entry(line).or_default();
                    *count = other.max(*count);
                }
            }
        }
    }

    /// Reads the tracefile format of lcov.
    fn parse(text: &str) -> Result<Self> {
        let mut files: BTreeMap<PathBuf, File> = BTreeMap::new();
        let mut file = File::default();
        let mut path = PathBuf::new();
        let mut begins: BTreeMap<String, usize> = BTreeMap::new();
        for line in text.lines() {
            let pair = |rest: &'_ str| rest.split_once(',').map(|(a, b)| (a.to_owned(), b.to_owned()));
            let bad = || format!("a line that lcov's format does not have: {line}");
            match line.split_once(':') {
                Some(("SF", name)) => path = PathBuf::from(name),
                Some(("FN", rest)) => {
                    let (begin, name) = pair(rest).with_context(bad)?;
                    begins.insert(name, begin.parse().with_context(bad)?);
                }
                Some(("FNDA", rest)) => {
                    let (count, name) = pair(rest).with_context(bad)?;
                    let begin = *begins.get(&name).with_context(bad)?;
                    let count: u64 = count.parse().with_context(bad)?;
                    let sum = file.functions.entry(begin).or_default();
                    *sum = sum.saturating_add(count);
                }
                Some(("DA", rest)) => {
                    let (number, count) = pair(rest).with_context(bad)?;
                    let sum = file.lines.entry(number.parse().with_context(bad)?).or_default();
                    *sum = sum.saturating_add(count.parse().with_context(bad)?);
                }
                _ if line == "end_of_record" => {
                    files.insert(std::mem::take(&mut path), std::mem::take(&mut file));
                    begins.clear();
                }
                _ => {}
            }
        }
        Ok(Self { files })
    }

    /// Calls of the functions that begin within these lines; `None` if no function begins there.
    pub(super) fn calls(&self, file: &PathBuf, lines: RangeInclusive<usize>) -> Option<u64> {
        let counts = self.files.get(file)?.functions.range(lines);
        counts.map(|(_, count)| *count).reduce(u64::saturating_add)
    }

    /// The number of lines of a crate that were reached, and of all its lines, without those of
    /// which `is_test` is true.
    pub(super) fn lines(&self, name: &str, is_test: impl Fn(&Path, usize) -> bool) -> (usize, usize) {
        let folder = build::workspace().join(name);
        let files = self.files.iter().filter(|(path, _)| path.starts_with(&folder));
        let counts = files.flat_map(|(path, file)| {
            file.lines.iter().filter(|(line, _)| !is_test(path, **line)).map(|(_, count)| *count)
        });
        counts.fold((0, 0), |(reached, all), count| (reached + usize::from(count > 0), all + 1))
    }
}

fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let run = command.output().with_context(|| format!("running {program}"))?;
    if !run.status.success() {
        bail!("reading the profiles: {}", String::from_utf8_lossy(&run.stderr).trim_end());
    }
    String::from_utf8(run.stdout).context("the output of llvm is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "SF:/x/a.rs\nFN:3,one\nFN:3,two\nFN:9,three\nFNDA:0,one\nFNDA:5,two\nFNDA:0,three\n\
        FNF:3\nFNH:1\nDA:3,5\nDA:4,0\nLF:2\nLH:1\nend_of_record\nSF:/x/b.rs\nend_of_record\n";

    #[test]
    fn instance_call_counts_are_summed() {
        let coverage = Coverage::parse(TRACE).unwrap();
        let file = PathBuf::from("/x/a.rs");
        assert_eq!(coverage.calls(&file, 2..=4), Some(5));
        assert_eq!(coverage.calls(&file, 9..=9), Some(0));
        assert_eq!(coverage.calls(&file, 4..=8), None);
        assert_eq!(coverage.calls(&PathBuf::from("/x/c.rs"), 0..=9), None);
    }

    #[test]
    fn nonzero_count_of_any_program_wins() {
        let mut coverage = Coverage::parse(TRACE).unwrap();
        coverage
            .add(Coverage::parse("SF:/x/a.rs\nFN:9,three\nFNDA:2,three\nDA:3,0\nend_of_record\n").unwrap());
        let file = PathBuf::from("/x/a.rs");
        assert_eq!(coverage.calls(&file, 9..=9), Some(2));
        assert_eq!(coverage.files[&file].lines[&3], 5);
    }

    #[test]
    fn lcov_counts_of_unnamed_functions_are_rejected() {
        assert!(Coverage::parse("SF:/x/a.rs\nFNDA:1,one\n").is_err());
        assert!(Coverage::parse("SF:/x/a.rs\nDA:one,1\n").is_err());
    }
}
