//! Compares the entries of our provider with those of rdma-core.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::fields::fields;
use crate::record::{Entries, ProgramValues, Queue};

/// Fields, or prefixes of their names, that may differ, and why. A device reads none of them.
pub const ALLOWED_DIFFS: [(&str, &str); 5] = [
    (
        "inline.padding",
        "behind inline data, up to the end of their segment, lies what was in the ring before; ours is that of \
         other requests",
    ),
    ("eth.padding", "so it does behind the headers of a large send"),
    (
        "elements of no bytes",
        "a device takes a length of 0 for two gigabytes, so we leave such elements out; the C library writes them into \
         shared receive queues, though not elsewhere",
    ),
    (
        "atomic.unused",
        "a fetch and add compares with nothing; we write zero there, the C library leaves what was in the ring",
    ),
    (
        "unchanged.",
        "of a key's context only what the mask names changes; we write zeros elsewhere, the C library leaves what \
         was in the ring",
    ),
];

fn reason(field: &str) -> Option<&'static str> {
    ALLOWED_DIFFS.iter().find(|(allowed, _)| field.starts_with(allowed)).map(|(_, reason)| *reason)
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Report {
    /// Compared entries.
    pub entries: usize,
    /// Compared fields.
    pub fields: usize,
    /// The number of allowed differences, by field.
    pub allowed: BTreeMap<String, usize>,
    /// All other differences.
    pub differences: Vec<String>,
}

/// Compares both, entry by entry.
#[must_use]
pub fn compare(ours: (&Entries, &ProgramValues), theirs: (&Entries, &ProgramValues)) -> Report {
    let mut report = Report::default();
    let none = Vec::new();
    let queues: std::collections::BTreeSet<&Queue> = ours.0.keys().chain(theirs.0.keys()).collect();
    for queue in queues {
        let (mine, other) = (ours.0.get(queue).unwrap_or(&none), theirs.0.get(queue).unwrap_or(&none));
        if mine.len() != other.len() {
            report.differences.push(format!(
                "{queue:?}: {} entries of ours and {} of theirs",
                mine.len(),
                other.len()
            ));
        }
        for (number, (mine, other)) in mine.iter().zip(other).enumerate() {
            report.entries += 1;
            let (mine, other) = (fields(queue, mine, ours.1), fields(queue, other, theirs.1));
            let names =
                |fields: &[(String, String)]| fields.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
            if names(&mine) != names(&other) {
                report
                    .differences
                    .push(format!("{queue:?} {number}: other fields\n  ours   {mine:?}\n  theirs {other:?}"));
                continue;
            }
            for ((name, mine), (_, other)) in mine.iter().zip(&other) {
                report.fields += 1;
                if mine == other {
                    continue;
                }
                if reason(name).is_some() {
                    *report.allowed.entry(name.clone()).or_default() += 1;
                } else {
                    report.differences.push(format!("{queue:?} {number}: {name} is {mine}, theirs {other}"));
                }
            }
        }
    }
    report
}

impl Report {
    /// The result as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} entries with {} fields compared\n", self.entries, self.fields);
        for (field, count) in &self.allowed {
            let reason = reason(field).unwrap_or_default();
            let _ = writeln!(text, "{field} differs {count} times: {reason}");
        }
        // The first differences suffice.
        for difference in self.differences.iter().take(20) {
            let _ = writeln!(text, "DIFFERS: {difference}");
        }
        if self.differences.len() > 20 {
            let _ = writeln!(text, "and {} differences more", self.differences.len() - 20);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(lkey: u32, entry: Vec<u8>) -> (Entries, ProgramValues) {
        let program = ProgramValues::parse(&format!(
            "qp rc 0x4c\nregion 0x1000 {lkey:#x} {lkey:#x}\nwindows 0x1300 0x1400\n"
        ))
        .unwrap();
        (Entries::from([(Queue::Receive("rc".into()), vec![entry])]), program)
    }

    fn entry(length: u8, lkey: u8) -> Vec<u8> {
        vec![0, 0, 0, length, 0, 0, 0, lkey, 0, 0, 0, 0, 0, 0, 0x10, 0]
    }

    #[test]
    fn keys_may_differ_but_lengths_must_match() {
        let (mine, program) = side(0x11, entry(64, 0x11));
        let (other, others) = side(0x22, entry(64, 0x22));
        let report = compare((&mine, &program), (&other, &others));
        assert_eq!((report.entries, report.fields, report.differences.len()), (1, 4, 0), "{}", report.text());

        let (other, others) = side(0x22, entry(65, 0x22));
        let report = compare((&mine, &program), (&other, &others));
        assert_eq!(report.differences, ["Receive(\"rc\") 0: data.byte_count is 64, theirs 65"]);
        let report = compare((&mine, &program), (&Entries::new(), &others));
        assert_eq!(report.differences.len(), 1);
    }
}
