//! The corpus in the repository: few files with most of the coverage.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::program::Program;

/// Maximum files and bytes of a target's corpus.
const FILES: usize = 50;
const BYTES: u64 = 200 << 10;
/// Maximum bytes of a file.
const LONGEST: u64 = 16 << 10;

/// An input, and the numbers of its features.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Input {
    path: PathBuf,
    bytes: u64,
    covers: BTreeSet<u64>,
}

/// Replaces the repository's corpus of a target with the inputs, of it and of all runs, that cover
/// most. Returns a summary.
pub(super) fn merge(program: &Program) -> Result<String> {
    let folder = program.corpus.with_extension("merge");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let merged = folder.join("merged");
    fs::create_dir_all(&merged)?;
    let control = folder.join("control");
    let mut command = program.command()?;
    command.arg("-merge=1").arg(format!("-merge_control_file={}", control.display()));
    command.arg(&merged).arg(&program.seeds).arg(&program.corpus);
    let output = command.stderr(std::process::Stdio::piped()).output().context("running the target")?;
    if !output.status.success() {
        bail!("{}: the merge failed:\n{}", program.target, String::from_utf8_lossy(&output.stderr));
    }
    let inputs = read_control(&fs::read_to_string(&control)?)?;
    let (by_hand, found) = inputs.into_iter().partition(|input| is_by_hand(&input.path, &program.seeds));
    let chosen = choose(by_hand, found);
    let covered: BTreeSet<u64> = chosen.iter().flat_map(|input| input.covers.iter().copied()).collect();
    let mut kept: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for input in &chosen {
        kept.insert(name(&input.path, &program.seeds), fs::read(&input.path)?);
    }
    fs::remove_dir_all(&program.seeds)?;
    fs::create_dir_all(&program.seeds)?;
    for (name, bytes) in &kept {
        fs::write(program.seeds.join(name), bytes)?;
    }
    fs::remove_dir_all(&folder)?;
    let bytes: usize = kept.values().map(Vec::len).sum();
    Ok(format!("{}: {} files of {bytes} bytes, {} features", program.target, kept.len(), covered.len()))
}

/// Prefix of the names of inputs that a run has found.
const FOUND: &str = "found-";

/// Whether an input was written by hand. Such inputs are always kept.
fn is_by_hand(path: &Path, seeds: &Path) -> bool {
    path.starts_with(seeds) && !path.file_name().unwrap_or_default().to_string_lossy().starts_with(FOUND)
}

/// A seed keeps its name. A found input is named after the first digits of its hash.
fn name(path: &Path, seeds: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.starts_with(seeds) {
        name.into_owned()
    } else {
        format!("{FOUND}{}", &name[..name.len().min(12)])
    }
}

/// Parses libFuzzer's merge control file: the number of inputs, the number of those in the first
/// folder, their names, and for each index, after `FT`, the features it covers.
fn read_control(text: &str) -> Result<Vec<Input>> {
    let mut lines = text.lines();
    let count: usize =
        lines.next().and_then(|line| line.parse().ok()).context("libFuzzer noted no inputs")?;
    lines.next();
    let paths: Vec<PathBuf> = lines.by_ref().take(count).map(PathBuf::from).collect();
    let mut covers = vec![BTreeSet::new(); count];
    for line in lines {
        let mut words = line.split_whitespace();
        if words.next() == Some("FT")
            && let Some(place) = words.next().and_then(|word| word.parse::<usize>().ok())
            && let Some(covers) = covers.get_mut(place)
        {
            covers.extend(words.filter_map(|word| word.parse::<u64>().ok()));
        }
    }
    let inputs = paths.into_iter().zip(covers).map(|(path, covers)| {
        let bytes = fs::metadata(&path).map_or(0, |file| file.len());
        Input { path, bytes, covers }
    });
    Ok(inputs.collect())
}

/// Adds to `chosen` the inputs that add most features, one after the other. Of two that add the
/// same, the shorter is added.
fn choose(mut chosen: Vec<Input>, mut inputs: Vec<Input>) -> Vec<Input> {
    let mut covered: BTreeSet<u64> = chosen.iter().flat_map(|input| input.covers.iter().copied()).collect();
    let mut bytes: u64 = chosen.iter().map(|input| input.bytes).sum();
    inputs.retain(|input| input.bytes <= LONGEST);
    while chosen.len() < FILES {
        let adds = |input: &Input| input.covers.difference(&covered).count();
        let best = (0..inputs.len())
            .filter(|&at| bytes + inputs[at].bytes <= BYTES)
            .max_by_key(|&at| (adds(&inputs[at]), std::cmp::Reverse(inputs[at].bytes)));
        let Some(best) = best.filter(|&at| adds(&inputs[at]) > 0) else { break };
        let input = inputs.swap_remove(best);
        covered.extend(&input.covers);
        bytes += input.bytes;
        chosen.push(input);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(path: &str, bytes: u64, covers: &[u64]) -> Input {
        Input { path: path.into(), bytes, covers: covers.iter().copied().collect() }
    }

    #[test]
    fn corpus_prefers_coverage_then_size() {
        let inputs = vec![
            input("subset", 1, &[1, 2]),
            input("long", 90, &[1, 2, 3]),
            input("short", 10, &[1, 2, 3]),
            input("other", 5, &[4]),
            input("too long", LONGEST + 1, &[5]),
        ];
        let names: Vec<_> = choose(Vec::new(), inputs).into_iter().map(|input| input.path).collect();
        assert_eq!(names, [PathBuf::from("short"), PathBuf::from("other")]);
    }

    #[test]
    fn handwritten_inputs_are_kept_and_counted() {
        let chosen =
            choose(vec![input("by hand", 9, &[1])], vec![input("same", 1, &[1]), input("more", 1, &[2])]);
        let names: Vec<_> = chosen.into_iter().map(|input| input.path).collect();
        assert_eq!(names, [PathBuf::from("by hand"), PathBuf::from("more")]);
        let seeds = Path::new("/seeds");
        assert!(is_by_hand(Path::new("/seeds/device"), seeds));
        assert!(!is_by_hand(Path::new("/seeds/found-0123"), seeds));
        assert!(!is_by_hand(Path::new("/found/0123"), seeds));
    }

    #[test]
    fn merge_control_file_is_parsed() {
        let text = "2\n0\n/a\n/b\nSTARTED 0 4\nFT 0 7 9\nCOV 0 1\nSTARTED 1 4\nFT 1 9\nCOV 1 1\n";
        assert_eq!(read_control(text).unwrap(), [input("/a", 0, &[7, 9]), input("/b", 0, &[9])]);
    }

    #[test]
    fn seed_inputs_keep_their_names() {
        let seeds = Path::new("/seeds");
        assert_eq!(name(Path::new("/seeds/device"), seeds), "device");
        assert_eq!(name(Path::new("/found/0123456789abcdef"), seeds), "found-0123456789ab");
    }
}
