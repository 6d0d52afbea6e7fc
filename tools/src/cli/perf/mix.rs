//! Messages of several sizes or operations in one run: `--mix write/64:70,read/4096:30`.

use std::fmt;
use std::str::FromStr;

use super::choice::Verb;

/// The operation and the size of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) verb: Verb,
    /// Bytes.
    pub(crate) size: u32,
}

/// The distribution on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    /// As on the command line.
    text: String,
    parts: Vec<Part>,
}

/// A part of the distribution. An operation or a size that is not given is that of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    verb: Option<Verb>,
    size: Option<u32>,
    weight: u32,
}

/// Largest size of a message: that of `-s`.
const LARGEST: u32 = 1 << 31;
/// Largest number of parts.
const PARTS: usize = 64;

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(part).collect::<Result<Vec<_>, _>>()?;
        if parts.len() > PARTS {
            return Err(format!("has {} parts; the limit is {PARTS}", parts.len()));
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn part(text: &str) -> Result<Part, String> {
    let form = "a part is OPERATION/SIZE:WEIGHT, SIZE:WEIGHT or OPERATION:WEIGHT";
    let (kind, weight) = text.split_once(':').ok_or_else(|| format!("\"{text}\" has no weight: {form}"))?;
    let weight = weight.parse().ok().filter(|weight| (1..=1_000_000).contains(weight));
    let weight = weight.ok_or_else(|| format!("the weight of \"{text}\" is not from 1 to 1000000"))?;
    let (verb, size) = match kind.split_once('/') {
        Some((verb, size)) => (Some(verb), Some(size)),
        None if kind.starts_with(|c: char| c.is_ascii_digit()) => (None, Some(kind)),
        None => (Some(kind), None),
    };
    let verb = verb.map(|name| {
        let found = Verb::ALL.into_iter().find(|verb| verb.name() == name);
        found.ok_or_else(|| format!("there is no operation \"{name}\": {form}"))
    });
    let size = size.map(|size| {
        let bytes = size.parse().ok().filter(|bytes| (1..=LARGEST).contains(bytes));
        bytes.ok_or_else(|| format!("the size \"{size}\" is not from 1 to {LARGEST} bytes"))
    });
    Ok(Part { verb: verb.transpose()?, size: size.transpose()?, weight })
}

impl Mix {
    /// The kinds of messages and their weights, in a run of `verb` with messages of `size` bytes.
    pub(crate) fn kinds(&self, verb: Verb, size: u32) -> Vec<(Kind, u32)> {
        let kind = |part: &Part| {
            let verb = part.verb.unwrap_or(verb);
            let size = if verb == Verb::Atomic { Verb::ATOMIC_SIZE } else { part.size.unwrap_or(size) };
            (Kind { verb, size }, part.weight)
        };
        self.parts.iter().map(kind).collect()
    }

    /// Whether a part names this operation.
    pub(crate) fn has(&self, verb: Verb) -> bool {
        self.parts.iter().any(|part| part.verb == Some(verb))
    }

    /// Whether a part names an atomic operation with a size other than 8.
    pub(crate) fn has_wrong_atomic(&self) -> bool {
        let wrong = |part: &Part| {
            part.verb == Some(Verb::Atomic) && part.size.is_some_and(|size| size != Verb::ATOMIC_SIZE)
        };
        self.parts.iter().any(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Verb, u32, u32)> {
        let mix: Mix = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        mix.kinds(Verb::Write, 512).into_iter().map(|(kind, weight)| (kind.verb, kind.size, weight)).collect()
    }

    #[test]
    fn parts_name_an_operation_a_size_or_both() {
        assert_eq!(kinds("64:70,4096:30"), [(Verb::Write, 64, 70), (Verb::Write, 4096, 30)]);
        assert_eq!(kinds("write:80,read:20"), [(Verb::Write, 512, 80), (Verb::Read, 512, 20)]);
        assert_eq!(
            kinds("write-imm/64:1,read/4096:2,atomic:3"),
            [(Verb::WriteImm, 64, 1), (Verb::Read, 4096, 2), (Verb::Atomic, 8, 3)]
        );
        assert!("atomic/16:1".parse::<Mix>().unwrap().has_wrong_atomic());
    }

    #[test]
    fn wrong_parts_are_explained() {
        for (text, words) in [
            ("64", "has no weight"),
            ("64:0", "weight of \"64:0\""),
            ("64:x", "weight of \"64:x\""),
            ("swap:1", "no operation \"swap\""),
            ("write/0:1", "the size \"0\""),
            ("64:1,,8:1", "has no weight"),
        ] {
            let error = text.parse::<Mix>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
