//! Expectations of the results: `--expect 'p99<5us'`.

use bareverbs_conform::junit::{self, Case, CaseResult};

use super::report::{Latency, Report, SizeResult};
use crate::cli::perf::expectation::{Comparison, Expectation, Figure, Limit, Statistic};

impl Statistic {
    fn of(self, latency: &Latency) -> f64 {
        match self {
            Self::Min => latency.min,
            Self::Max => latency.max,
            Self::Mean => latency.mean,
            Self::Stdev => latency.stdev,
            Self::P50 => latency.p50,
            Self::P90 => latency.p90,
            Self::P99 => latency.p99,
            Self::P99_9 => latency.p99_9,
            Self::P99_99 => latency.p99_99,
        }
    }
}

impl Expectation {
    /// The value that was measured, as text, and whether it meets the expectation. The rate of the
    /// port is in Gbit/s.
    fn check(&self, result: &SizeResult, rate: Option<f64>) -> Result<(String, bool), String> {
        let none = || "it was not measured on this side".to_owned();
        let (value, text) = match self.figure {
            Figure::Bandwidth => {
                let gbits = result.bandwidth.as_ref().ok_or_else(none)?.gbit_per_second;
                (gbits * 125e6, format!("{gbits:.3} Gbit/s"))
            }
            Figure::MessageRate => {
                let rate = result.bandwidth.as_ref().ok_or_else(none)?.messages_per_second;
                (rate, format!("{rate:.0} messages/s"))
            }
            Figure::Latency(statistic) => {
                let micros = statistic.of(result.latency.as_ref().ok_or_else(none)?);
                (micros, format!("{micros:.3} us"))
            }
        };
        let (limit, text) = match (self.limit, rate) {
            (Limit::Value(limit), _) => (limit, text),
            (Limit::OfRate(percent), Some(rate)) => {
                let part = 100.0 * value / (rate * 125e6);
                (percent / 100.0 * rate * 125e6, format!("{text}, {part:.1} % of {rate} Gbit/s"))
            }
            (Limit::OfRate(_), None) => return Err("the rate of the port is not known".into()),
        };
        let met = match self.comparison {
            Comparison::Less => value < limit,
            Comparison::AtMost => value <= limit,
            Comparison::Greater => value > limit,
            Comparison::AtLeast => value >= limit,
        };
        Ok((text, met))
    }
}

/// An expectation on a message size, checked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checked {
    name: String,
    /// Why it is not met.
    failure: Option<String>,
}

/// Results did not meet expectations.
#[derive(Debug, thiserror::Error)]
#[error("not as expected: {0}")]
pub(crate) struct NotMet(String);

/// Checks every expectation on every message size.
pub(crate) fn check(report: &Report, expectations: &[Expectation]) -> Vec<Checked> {
    let mut checked = Vec::new();
    for result in &report.results {
        for expectation in expectations {
            let failure = match expectation.check(result, report.environment.rate) {
                Ok((_, true)) => None,
                Ok((found, false)) => Some(format!("it is {found}")),
                Err(reason) => Some(reason),
            };
            checked.push(Checked { name: format!("{expectation} at {} bytes", result.size), failure });
        }
    }
    checked
}

/// An error that lists what is not met.
pub(crate) fn verdict(checked: &[Checked]) -> Result<(), NotMet> {
    let failures: Vec<_> = checked
        .iter()
        .filter_map(|one| one.failure.as_ref().map(|failure| format!("{}: {failure}", one.name)))
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(NotMet(failures.join("; "))) }
}

/// The checks as a JUnit file.
pub(crate) fn junit(suite: &str, checked: &[Checked]) -> String {
    let cases = checked.iter().map(|Checked { name, failure }| {
        let result = match failure {
            None => CaseResult::Passed,
            Some(reason) => CaseResult::Failed { reason, details: "" },
        };
        Case { class: suite, name, result }
    });
    let cases: Vec<Case<'_>> = cases.collect();
    junit::junit(suite, None, &cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::report::{Bandwidth, Cpu};

    fn result() -> SizeResult {
        SizeResult {
            size: 64,
            messages: 1000,
            bytes: 64_000,
            seconds: 1.0,
            bandwidth: Some(Bandwidth {
                unit: "MiB/s".into(),
                average: 119.2,
                min: 119.2,
                max: 119.2,
                gbit_per_second: 1.0,
                messages_per_second: 2e6,
            }),
            latency: Some(Latency {
                of: "half round trip".into(),
                count: 1000,
                min: 1.0,
                mean: 2.0,
                stdev: 0.5,
                p50: 1.9,
                p90: 3.0,
                p99: 4.0,
                p99_9: 5.0,
                p99_99: 6.0,
                max: 7.0,
                histogram: Vec::new(),
            }),
            cpu: Cpu { user_seconds: 0.0, system_seconds: 0.0, percent: 0.0 },
            intervals: Vec::new(),
            mix: Vec::new(),
            compared: None,
            peer: None,
        }
    }

    fn met(text: &str) -> bool {
        let expectation: Expectation = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        expectation.check(&result(), Some(2.5)).unwrap().1
    }

    #[test]
    fn figures_are_compared_in_any_unit() {
        for text in [
            "p99<5us",
            "p99 <= 4",
            "p99.9<5001ns",
            "max<0.01ms",
            "min>0.5",
            "avg>=2",
            "median<2",
            "bw>900Mbit/s",
            "bw>=1Gbit/s",
            "bw<120MiB/s",
            "bw>39%",
            "bw<41 %",
            "rate>1.9Mpps",
            "rate<=2000kpps",
            "msgrate>1M",
            "msgrate<2001k",
            "bw>0.1GB/s",
            "bw<=125MB/s",
            "max<1s",
        ] {
            assert!(met(text), "{text}");
        }
        for text in ["p99<4us", "p99>4", "bw>1Gbit/s", "bw>90%", "bw>3GB/s", "rate>2Mpps", "stdev<=400ns"] {
            assert!(!met(text), "{text}");
        }
    }

    #[test]
    fn wrong_expectations_are_explained() {
        for (text, words) in [
            ("p99", "needs a comparison"),
            ("p42<5us", "no figure \"p42\""),
            ("p99<fast", "needs a number and a unit"),
            ("p99<5Gbit/s", "does not fit p99"),
            ("p99<5%", "does not fit p99"),
            ("bw>5", "use %, gbit/s"),
        ] {
            let error = text.parse::<Expectation>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn missing_figures_do_not_meet_expectations() {
        let served = SizeResult { bandwidth: None, latency: None, ..result() };
        for text in ["p99<5us", "bw>1%", "rate>1"] {
            let expectation: Expectation = text.parse().unwrap();
            assert!(expectation.check(&served, Some(1.0)).unwrap_err().contains("not measured"));
        }
        let percent: Expectation = "bw>1%".parse().unwrap();
        assert!(percent.check(&result(), None).unwrap_err().contains("rate of the port"));
    }

    #[test]
    fn junit_escapes_names_and_counts_failures() {
        let checked = [
            Checked { name: "p99<5us at 64 bytes".into(), failure: None },
            Checked { name: "bw>90% at 64 bytes".into(), failure: Some("it is \"low\"".into()) },
        ];
        let text = junit("write bw", &checked);
        assert!(text.contains("tests=\"2\" failures=\"1\""), "{text}");
        assert!(text.contains("name=\"p99&lt;5us at 64 bytes\"/>"), "{text}");
        assert!(text.contains("<failure message=\"it is &quot;low&quot;\"></failure>"), "{text}");
        let error = verdict(&checked).unwrap_err().to_string();
        assert_eq!(error, "not as expected: bw>90% at 64 bytes: it is \"low\"");
        assert!(verdict(&checked[..1]).is_ok());
    }
}
