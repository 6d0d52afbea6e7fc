//! A condition on a figure of the results, as `--expect` has it: `p99<5us`.

use std::fmt;
use std::str::FromStr;

/// A condition on a figure of each message size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expectation {
    /// As on the command line.
    text: String,
    pub(crate) figure: Figure,
    pub(crate) comparison: Comparison,
    pub(crate) limit: Limit,
}

/// A figure of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    Bandwidth,
    MessageRate,
    Latency(Statistic),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// The value that a figure is compared with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// In the figure's base unit: microseconds, bytes or messages per second.
    Value(f64),
    /// Percent of the rate of the port.
    OfRate(f64),
}

/// A latency of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statistic {
    Min,
    Max,
    Mean,
    Stdev,
    P50,
    P90,
    P99,
    P99_9,
    P99_99,
}

/// The names of latencies.
const LATENCIES: [(&str, Statistic); 11] = [
    ("min", Statistic::Min),
    ("max", Statistic::Max),
    ("mean", Statistic::Mean),
    ("avg", Statistic::Mean),
    ("stdev", Statistic::Stdev),
    ("p50", Statistic::P50),
    ("median", Statistic::P50),
    ("p90", Statistic::P90),
    ("p99", Statistic::P99),
    ("p99.9", Statistic::P99_9),
    ("p99.99", Statistic::P99_99),
];

/// Units of times, in microseconds.
const TIMES: [(&str, f64); 6] = [("", 1.0), ("us", 1.0), ("µs", 1.0), ("ns", 1e-3), ("ms", 1e3), ("s", 1e6)];
/// Units of bandwidths, in bytes per second.
const BANDWIDTHS: [(&str, f64); 6] = [
    ("gbit/s", 125e6),
    ("mbit/s", 125e3),
    ("gb/s", 1e9),
    ("mb/s", 1e6),
    ("mib/s", 1_048_576.0),
    ("gib/s", 1_073_741_824.0),
];
/// Units of message rates, in messages per second.
const RATES: [(&str, f64); 6] =
    [("", 1.0), ("k", 1e3), ("m", 1e6), ("pps", 1.0), ("kpps", 1e3), ("mpps", 1e6)];

impl FromStr for Expectation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.find(['<', '>']).ok_or("needs a comparison: <, <=, > or >=")?;
        let (name, rest) = text.split_at(at);
        let (comparison, value) = match rest.as_bytes() {
            [b'<', b'=', ..] => (Comparison::AtMost, &rest[2..]),
            [b'>', b'=', ..] => (Comparison::AtLeast, &rest[2..]),
            [b'<', ..] => (Comparison::Less, &rest[1..]),
            _ => (Comparison::Greater, &rest[1..]),
        };
        let name = name.trim().to_lowercase();
        let (figure, units): (_, &[(&str, f64)]) = match name.as_str() {
            "bw" | "bandwidth" => (Figure::Bandwidth, &BANDWIDTHS),
            "rate" | "msgrate" => (Figure::MessageRate, &RATES),
            name => {
                let latency = LATENCIES.iter().find(|(known, _)| *known == name);
                let (_, latency) = latency.ok_or_else(|| {
                    let known: Vec<_> = LATENCIES.iter().map(|(name, _)| *name).collect();
                    format!("there is no figure \"{name}\": use bw, rate, {}", known.join(", "))
                })?;
                (Figure::Latency(*latency), &TIMES)
            }
        };
        let value = value.trim();
        let end = value.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(value.len());
        let (number, unit) = value.split_at(end);
        let number: f64 = number
            .parse()
            .map_err(|_| format!("{value:?} needs a number and a unit, as in 'bw>90%' or 'p99<5us'"))?;
        let unit = unit.trim().to_lowercase();
        let limit = if unit == "%" && figure == Figure::Bandwidth {
            Limit::OfRate(number)
        } else {
            let factor = units.iter().find(|(known, _)| *known == unit).ok_or_else(|| {
                let known: Vec<_> =
                    units.iter().map(|(unit, _)| *unit).filter(|unit| !unit.is_empty()).collect();
                let percent = if figure == Figure::Bandwidth { "%, " } else { "" };
                format!("the unit \"{unit}\" does not fit {name}: use {percent}{}", known.join(", "))
            })?;
            Limit::Value(number * factor.1)
        };
        Ok(Self { text: text.trim().to_owned(), figure, comparison, limit })
    }
}

impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
