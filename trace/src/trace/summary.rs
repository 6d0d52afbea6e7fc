//! Counts and times of traced calls.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::Record;

/// Counts and times by file kind and method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The rows by name of the method or command.
    pub methods: BTreeMap<String, Row>,
}

/// The calls of one method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Number of calls.
    pub calls: u64,
    /// Number of those that failed.
    pub errors: u64,
    /// Total duration in nanoseconds.
    pub total_ns: u64,
    /// The longest duration in nanoseconds.
    pub max_ns: u64,
}

impl Summary {
    /// Adds a call.
    pub fn add(&mut self, record: &Record) {
        let row = self.methods.entry(record.name()).or_default();
        row.calls += 1;
        row.errors += u64::from(record.result.is_none_or(|result| result < 0));
        row.total_ns += record.duration;
        row.max_ns = row.max_ns.max(record.duration);
    }
}

impl fmt::Display for Summary {
    /// A table, the longest total first. Times are in microseconds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<_> = self.methods.iter().collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.total_ns));
        writeln!(
            f,
            "{:>12} {:>10} {:>10} {:>8} {:>7}  method",
            "total us", "mean us", "max us", "calls", "errors"
        )?;
        for (name, row) in rows {
            let us = |nanoseconds: u64| nanoseconds as f64 / 1000.0;
            writeln!(
                f,
                "{:>12.1} {:>10.1} {:>10.1} {:>8} {:>7}  {name}",
                us(row.total_ns),
                us(row.total_ns / row.calls.max(1)),
                us(row.max_ns),
                row.calls,
                row.errors
            )?;
        }
        Ok(())
    }
}
