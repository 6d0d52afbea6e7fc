//! `bareverbs dump`: decodes queue entries of a ConnectX.

use std::fs::File;
use std::io::{Read, stdin};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs_mlx5::cqe::{CQE, Cqe};
use bareverbs_mlx5::wqe::{BLOCK, WqeDisplay};

use crate::cli::{Dump, EntryKind};
use crate::output;

/// The largest input, in bytes. No queue is larger.
const MAX_BYTES: u64 = 64 << 20;

/// Prints the entries in a file.
pub(crate) fn show(options: &Dump) -> Result<()> {
    let text = describe(read(options.file.as_deref())?, options.entries)?;
    Ok(output::line(text.trim_end())?)
}

/// Decodes the entries in `bytes`, which are raw or hexadecimal text.
pub(crate) fn describe(bytes: Vec<u8>, entries: EntryKind) -> Result<String> {
    let bytes = match from_text(&bytes) {
        Some(bytes) => bytes?,
        None => bytes,
    };
    ensure!(!bytes.is_empty(), "the input is empty");
    match entries {
        EntryKind::Cqe => completions(&bytes),
        EntryKind::Wqe => Ok(requests(&bytes)),
    }
}

pub(crate) fn read(file: Option<&Path>) -> Result<Vec<u8>> {
    let (mut source, name): (Box<dyn Read>, _) = match file {
        Some(path) if path != Path::new("-") => {
            let name = path.display().to_string();
            (Box::new(File::open(path).with_context(|| format!("cannot open {name}"))?), name)
        }
        _ => (Box::new(stdin()), "standard input".to_owned()),
    };
    let mut bytes = Vec::new();
    source
        .by_ref()
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{name} is longer than {} MiB", MAX_BYTES >> 20);
    }
    Ok(bytes)
}

/// Parses hexadecimal text into bytes. `None` if `bytes` is not text. A line may have a prefix that
/// ends with an offset and a colon, as the kernel prints it: `[   12.3] 00000030: 00 00 00 01 5e 00
/// …`. Lines without bytes are skipped.
fn from_text(bytes: &[u8]) -> Option<Result<Vec<u8>>> {
    let text = std::str::from_utf8(bytes).ok()?;
    if text.contains('\0') {
        return None;
    }
    let mut found = Vec::new();
    for line in text.lines() {
        let digits = line.rsplit_once(": ").map_or(line, |(_, digits)| digits);
        let words: Option<Vec<_>> = digits.split_whitespace().map(from_word).collect();
        found.extend(words.into_iter().flatten().flatten());
    }
    Some(match found.is_empty() && !text.is_empty() {
        true => Err(anyhow::anyhow!("the text has no line of hexadecimal bytes")),
        false => Ok(found),
    })
}

/// Parses an even number of hexadecimal digits.
fn from_word(word: &str) -> Option<Vec<u8>> {
    let digits = word.as_bytes();
    let pairs = digits.len().is_multiple_of(2).then(|| digits.chunks(2))?;
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

fn completions(bytes: &[u8]) -> Result<String> {
    let (entries, rest) = bytes.as_chunks::<CQE>();
    ensure!(
        rest.is_empty(),
        "the size is not a multiple of the {CQE} bytes of a CQE: {} bytes are left over",
        rest.len()
    );
    let mut text = String::new();
    for (number, entry) in entries.iter().enumerate() {
        #[repr(align(64))]
        struct Aligned([u8; CQE]);
        let aligned = Aligned(*entry);
        // SAFETY: the entry is aligned, and does not move while it is formatted.
        let shown = unsafe { Cqe::new(aligned.0.as_ptr()) };
        text += &format!("entry {number}: {shown}\n");
    }
    Ok(text)
}

fn requests(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while !bytes.is_empty() {
        let shown = WqeDisplay::new(bytes);
        text += &shown.to_string();
        bytes = &bytes[(shown.blocks() * BLOCK).min(bytes.len())..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_hex_dump_lines_are_parsed() {
        let text = "[   12.345678] infiniband mlx5_0: dump_cqe:273:(pid 0): dump error cqe\n\
                    [   12.345679] 00000000: 00 00 00 00\n00000010: 0a0b 0c0d\n";
        assert_eq!(from_text(text.as_bytes()).unwrap().unwrap(), [0, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
        assert!(from_text(b"no digits here\n").unwrap().is_err());
        assert!(from_text(&[0, 1, 2]).is_none());
    }

    #[test]
    fn error_cqe_is_printed_with_its_syndrome() {
        let mut entry = [0; CQE];
        (entry[55], entry[54], entry[58], entry[59], entry[61], entry[63]) = (0x15, 0x81, 0, 0x4d, 3, 0xd0);
        let text = completions(&entry).unwrap();
        let start =
            "entry 0: send 3 of QP 0x4d failed: RETRY_EXC_ERR (syndrome 0x15, vendor 0x81), owner 0\n";
        assert!(text.starts_with(start), "{text}");
        assert!(completions(&entry[1..]).is_err());
    }

    #[test]
    fn wqes_are_printed_in_order() {
        let mut ring = vec![0; 3 * BLOCK];
        // A WQE of two 64-byte blocks, and a NOP.
        (ring[3], ring[7]) = (0x0a, 5);
        (ring[2 * BLOCK + 2], ring[2 * BLOCK + 7]) = (2, 1);
        let text = requests(&ring);
        let heads: Vec<_> = text.lines().filter(|line| line.contains(" of QP ")).collect();
        assert_eq!(heads, ["0: SEND of QP 0x0, 5 segments", "2: NOP of QP 0x0, 1 segments"]);
    }
}
