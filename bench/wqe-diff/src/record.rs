//! The device's recording, and a program's description of its queues.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

/// A queue of a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Queue {
    /// The send queue of the named queue pair.
    Send(String),
    /// The receive queue of the named queue pair.
    Receive(String),
    /// The SRQ; a program has one.
    Shared,
}

/// The meaning of a program's numbers. It makes two programs comparable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramValues {
    /// Queue pairs by number.
    pub queue_pairs: BTreeMap<u32, String>,
    /// The index of the used GID in the GID table.
    pub gid_index: u32,
    /// The start address of the region.
    pub base: u64,
    /// Its local key.
    pub lkey: u32,
    /// Its remote key.
    pub rkey: u32,
    /// The keys of the windows at allocation.
    pub windows: [u32; 2],
}

fn number(word: &str) -> Result<u64> {
    word.strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .with_context(|| format!("`{word}` is not a number"))
}

impl ProgramValues {
    /// Parses the output of a program: `qp NAME N`, `gid N`, `region BASE LKEY RKEY`, `windows KEY
    /// KEY`.
    ///
    /// # Errors
    /// If the text has another format.
    pub fn parse(text: &str) -> Result<Self> {
        let mut program = Self::default();
        for line in text.lines() {
            let small = |word: &str| Ok::<_, anyhow::Error>(u32::try_from(number(word)?)?);
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["qp", name, word] => drop(program.queue_pairs.insert(small(word)?, name.to_owned())),
                ["gid", word] => program.gid_index = small(word)?,
                ["region", base, lkey, rkey] => {
                    (program.base, program.lkey, program.rkey) = (number(base)?, small(lkey)?, small(rkey)?);
                }
                ["windows", first, second] => program.windows = [small(first)?, small(second)?],
                _ => bail!("a program said `{line}`"),
            }
        }
        Ok(program)
    }
}

/// The entries of each queue, in the order in which the device fetched them.
pub type Entries = BTreeMap<Queue, Vec<Vec<u8>>>;

/// Extracts a program's entries from a recording: lines of `send`, `receive` or `shared`, queue
/// number, index and bytes.
///
/// # Errors
/// If the text is not a recording.
pub fn entries(recording: &str, program: &ProgramValues) -> Result<Entries> {
    let mut all = Entries::new();
    for line in recording.lines() {
        let [kind, queue, _place, bytes] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            bail!("the device recorded `{line}`");
        };
        let queue = u32::try_from(number(queue)?)?;
        let name = program.queue_pairs.get(&queue).cloned();
        let queue = match (kind, name) {
            ("send", Some(name)) => Queue::Send(name),
            ("receive", Some(name)) => Queue::Receive(name),
            ("shared", _) => Queue::Shared,
            // A queue of the kernel.
            _ => continue,
        };
        let bytes = (0..bytes.len() / 2)
            .map(|at| u8::from_str_radix(bytes.get(2 * at..2 * at + 2).unwrap_or_default(), 16))
            .collect::<Result<_, _>>()
            .with_context(|| format!("the device recorded `{line}`"))?;
        all.entry(queue).or_default().push(bytes);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: &str = "qp rc 0x4c\nqp ud 0x4e\nregion 0x7f00 0x11 0x12\nwindows 0x1300 0x1401\n";

    #[test]
    fn entries_of_other_queues_are_ignored() {
        let program = ProgramValues::parse(FACTS).unwrap();
        let recording = "send 0x4c 0x0 0a0b\nsend 0x7 0x0 ff\nshared 0x2 0x1 01\nreceive 0x4e 0x0 02\n";
        let all = entries(recording, &program).unwrap();
        let expected = Entries::from([
            (Queue::Send("rc".into()), vec![vec![10, 11]]),
            (Queue::Receive("ud".into()), vec![vec![2]]),
            (Queue::Shared, vec![vec![1]]),
        ]);
        assert_eq!(all, expected);
        assert!(entries("send 0x4c 0x0 0g\n", &program).is_err());
        assert!(ProgramValues::parse("anything else\n").is_err());
    }
}
