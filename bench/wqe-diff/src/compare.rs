//! Compares the entries of our provider with those of rdma-core.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::fields::fields;
use crate::record::{Entries, ProgramValues, Queue};

/// Fields, or prefixes of their names, that may differ, and why. A device reads none of them.
pub const ALLOWED_DIFFS: [(&str, &str); 5] = [
    (
        "inline.padding",
        "padding after inline data keeps old bytes of the ring, which differ between the programs",
    ),
    ("eth.padding", "padding after the inline headers of a TSO send or of IPoIB keeps old bytes of the ring"),
    (
        "elements of no bytes",
        "a byte count of 0 means 2 GiB, so bareverbs omits SGEs of zero length; libmlx5 writes them into SRQs only",
    ),
    (
        "atomic.unused",
        "FETCH_ADD does not use the compare field: bareverbs writes zero, libmlx5 leaves old bytes",
    ),
    (
        "unchanged.",
        "mkey context fields outside the mask are ignored: bareverbs writes zeros, libmlx5 leaves old bytes",
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
