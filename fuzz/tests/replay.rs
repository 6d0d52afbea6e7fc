//! Runs every fuzz target on its corpus, with the stable compiler.

use std::fs;
use std::path::{Path, PathBuf};

use bareverbs_fuzz::TARGETS;

/// Limits of a target's corpus in the repository.
const FILES: usize = 50;
const BYTES: u64 = 200 << 10;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn names(folder: &Path) -> Vec<String> {
    files(folder).iter().map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let targets: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names(&folder("libfuzzer/fuzz_targets")), targets);
    assert_eq!(names(&folder("corpus")), targets);
}

#[test]
fn targets_pass_on_corpus() {
    for (name, run) in TARGETS {
        let corpus = files(&folder("corpus").join(name));
        assert!(!corpus.is_empty(), "the corpus of {name} is empty");
        for file in corpus {
            eprintln!("{}", file.display());
            run(&fs::read(&file).unwrap());
        }
        run(&[]);
    }
}

#[test]
fn corpus_is_within_its_size_limits() {
    for (name, _) in TARGETS {
        let corpus = files(&folder("corpus").join(name));
        let bytes: u64 = corpus.iter().map(|file| fs::metadata(file).unwrap().len()).sum();
        assert!(corpus.len() <= FILES && bytes <= BYTES, "{name}: {} files, {bytes} bytes", corpus.len());
    }
}
