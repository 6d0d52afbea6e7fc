//! `bareverbs perf report`: runs side by side.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::facts::{Fact, different_natures, facts};
use super::report::{Report, SizeResult, align};
use super::svg::short;
use super::wire::LARGEST_FIGURE;
use super::{html, write};
use crate::cli::perf::ReportOptions;
use crate::output;

/// Columns of the longest bar.
const BAR: f64 = 30.0;

/// `bareverbs perf report`.
pub(crate) fn run(options: &ReportOptions) -> Result<()> {
    let reports = options.files.iter().map(|file| load(file)).collect::<Result<Vec<_>>>()?;
    let names: Vec<_> = options.files.iter().map(|file| file.display().to_string()).collect();
    let runs: Vec<_> = names.iter().map(String::as_str).zip(&reports).collect();
    output::line(&text(&runs).join("\n"))?;
    match &options.html {
        Some(file) => write(file, &html::page(&runs), "--html"),
        None => Ok(()),
    }
}

/// The report in a file with the output of `--json` or `--json-lines`.
fn load(file: &Path) -> Result<Report> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    parse(&text).with_context(|| format!("{} has no results of bareverbs perf --json", file.display()))
}

fn parse(text: &str) -> Result<Report> {
    let value = match serde_json::from_str(text) {
        Ok(value) => value,
        // The last line of --json-lines has the result.
        Err(error) => {
            let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
            serde_json::from_str::<Value>(last).map_err(|_| error)?
        }
    };
    let value = match value {
        Value::Object(mut fields) if fields.len() == 1 && fields.contains_key("result") => {
            fields.remove("result").unwrap_or_default()
        }
        value => value,
    };
    check_figures(&value, "")?;
    let report: Report = serde_json::from_value(value)?;
    ensure!(!report.results.is_empty(), "it has no message size");
    Ok(report)
}

/// Rejects figures that no run has: negative and too large ones. JSON has neither NaN nor infinity.
fn check_figures(value: &Value, place: &str) -> Result<()> {
    match value {
        Value::Number(number) => {
            let figure = number.as_f64().unwrap_or(f64::NAN);
            // Numbers of messages and addresses have up to 64 bits.
            let valid = number.is_u64() || (0.0..=LARGEST_FIGURE).contains(&figure);
            ensure!(valid, "{place} is {number}: figures are from 0 to {LARGEST_FIGURE:e}");
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                check_figures(value, &format!("{place}[{index}]"))?;
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let dot = if place.is_empty() { "" } else { "." };
                check_figures(value, &format!("{place}{dot}{name}"))?;
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
    Ok(())
}

/// A figure of a size.
type Figure = (&'static str, fn(&SizeResult) -> Option<f64>);

/// The figures that are compared.
const FIGURES: [Figure; 6] = [
    ("Gbit/s", |result| result.bandwidth.as_ref().map(|one| one.gbit_per_second)),
    ("messages/s", |result| result.bandwidth.as_ref().map(|one| one.messages_per_second)),
    ("p50 us", |result| result.latency.as_ref().map(|one| one.p50)),
    ("p99 us", |result| result.latency.as_ref().map(|one| one.p99)),
    ("p99.9 us", |result| result.latency.as_ref().map(|one| one.p99_9)),
    ("max us", |result| result.latency.as_ref().map(|one| one.max)),
];

fn text(runs: &[(&str, &Report)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, run) in runs {
        let environment = &run.environment;
        lines.push(format!(
            "{name}: {} on {} ({}), Linux {}",
            run.title(),
            environment.device,
            environment.nature.name(),
            environment.kernel
        ));
    }
    lines.extend(different_natures(runs));
    lines.push(String::new());
    let mut sizes: Vec<u32> =
        runs.iter().flat_map(|(_, run)| run.results.iter().map(|result| result.size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        lines.push(format!("{size} bytes"));
        for (unit, figure) in FIGURES {
            let value = |run: &Report| run.results.iter().find(|result| result.size == size).and_then(figure);
            let values: Vec<_> = runs.iter().map(|(name, run)| (*name, value(run))).collect();
            lines.extend(bars(unit, &values));
        }
    }
    let different: Vec<_> = facts(runs).into_iter().filter(Fact::differs).collect();
    if different.is_empty() {
        lines.push("environment and options are equal".into());
        return lines;
    }
    lines.push("environment and options that differ".into());
    let rows = different.into_iter().map(|fact| [vec![fact.name], fact.values].concat());
    lines.extend(align(&rows.collect::<Vec<_>>()));
    lines
}

/// A figure of all runs: value, ratio to the first run, bar.
fn bars(unit: &str, values: &[(&str, Option<f64>)]) -> Vec<String> {
    let most = values.iter().filter_map(|(_, value)| *value).fold(0.0, f64::max);
    if most <= 0.0 {
        return Vec::new();
    }
    let first = values.first().and_then(|(_, value)| *value);
    let row = |(index, (name, value)): (usize, &(&str, Option<f64>))| {
        let ratio = first.zip(*value).map(|(first, value)| value / first);
        let ratio = match (index, ratio) {
            (1.., Some(ratio)) if ratio.is_finite() => format!("x {ratio:.3}"),
            _ => String::new(),
        };
        let bar = "#".repeat(value.map_or(0.0, |value| (value / most * BAR).ceil()) as usize);
        let value = value.map_or_else(|| "-".to_owned(), short);
        vec![if index == 0 { unit.to_owned() } else { String::new() }, (*name).to_owned(), value, ratio, bar]
    };
    align(&values.iter().enumerate().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// The report of a run of two seconds.
    pub(crate) fn report(nature: &str, gbit: f64) -> Report {
        let interval = |start: f64| {
            json!({"start": start, "seconds": 1.0, "size": 64, "messages": 10, "gbit_per_second": gbit,
                   "latency_min": 1.0, "latency_max": 9.0})
        };
        let value = json!({
            "program": "bareverbs perf", "version": "0.1.0", "operation": "write", "test": "bw",
            "transport": "rc", "role": "client",
            "environment": {
                "device": "rxe0", "port": 1, "nature": nature, "driver": "rxe", "firmware": "",
                "kernel": "6.12.1", "governor": null, "link_layer": "Ethernet", "rate": 2.5,
                "active_mtu": 1024, "gid": null, "gid_index": null, "gid_type": null
            },
            "options": {
                "messages": 20, "duration": null, "margin": null, "queue_pairs": 1, "tx_depth": 128,
                "rx_depth": 0, "cq_mod": 1, "post_list": 1, "bidirectional": false, "events": false,
                "mtu": 1024, "outstanding_reads": 1, "threads": 1, "cq": "shared", "srq": false,
                "verify": false, "rate": null, "mix": null, "clients": null, "all_to_all": null
            },
            "results": [{
                "size": 64, "messages": 20, "bytes": 1280, "seconds": 2.0,
                "bandwidth": {"unit": "MiB/s", "average": 1.0, "min": 0.5, "max": 1.5,
                              "gbit_per_second": gbit, "messages_per_second": 10.0},
                "latency": {
                    "of": "post to completion", "count": 20, "min": 1.0, "mean": 2.0, "stdev": 0.5,
                    "p50": 2.0, "p90": 3.0, "p99": 4.0, "p99.9": 5.0, "p99.99": 6.0, "max": 9.0,
                    "histogram": [{"from": 1.0, "to": 2.0, "count": 15}, {"from": 2.0, "to": 9.5, "count": 5}]
                },
                "cpu": {"user_seconds": 0.1, "system_seconds": 0.2, "percent": 15.0},
                "intervals": [interval(0.0), interval(1.0)],
                "peer": null
            }],
            "counters": [{"name": "sent_pkts", "change": 20, "trouble": false}]
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn report_round_trips_through_json() {
        let report = report("Soft-RoCE", 2.0);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(parse(&text).unwrap().results, report.results);
        let lines = format!("{{\"interval\":{{}}}}\n{{\"result\":{text}}}\n");
        assert_eq!(parse(&lines).unwrap().results, report.results);
        assert!(parse("{}").is_err() && parse("").is_err() && parse("[1]").is_err());
    }

    #[test]
    fn runs_are_compared_with_the_first_one() {
        let (first, second) = (report("Soft-RoCE", 2.0), report("Soft-RoCE", 5.0));
        let text = text(&[("a", &first), ("b", &second)]).join("\n");
        assert!(text.contains("x 2.500") && text.contains(&"#".repeat(30)), "{text}");
        assert!(text.contains("environment and options are equal"), "{text}");
    }

    #[test]
    fn figures_that_no_run_has_are_refused_with_their_place() {
        let json = serde_json::to_value(report("Soft-RoCE", 2.0)).unwrap();
        for (place, value, words) in [
            ("/results/0/bandwidth/average", json!(-1.0), "results[0].bandwidth.average is -1.0"),
            ("/results/0/bandwidth/gbit_per_second", json!(1e300), "gbit_per_second is 1e+300"),
            ("/results/0/latency/histogram/1/from", json!(-0.5), "results[0].latency.histogram[1].from"),
            ("/results/0/intervals/0/seconds", json!(-3), "results[0].intervals[0].seconds is -3"),
            ("/environment/rate", json!(-2.5), "environment.rate is -2.5"),
        ] {
            let mut json = json.clone();
            *json.pointer_mut(place).unwrap() = value;
            let error = parse(&json.to_string()).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("figures are from 0 to 1e18"), "{error}");
        }
        // A figure that is not a number is written as null.
        for figure in ["null", "NaN", "1e999"] {
            let text = json.to_string().replace("\"average\":1.0", &format!("\"average\":{figure}"));
            assert!(text.contains(figure) && parse(&text).is_err(), "{text}");
        }
    }

    /// The places of all numbers of a report.
    fn places(value: &Value, place: &str, found: &mut Vec<String>) {
        match value {
            Value::Number(_) => found.push(place.to_owned()),
            Value::Array(values) => {
                values
                    .iter()
                    .enumerate()
                    .for_each(|(index, one)| places(one, &format!("{place}/{index}"), found));
            }
            Value::Object(fields) => {
                fields.iter().for_each(|(name, one)| places(one, &format!("{place}/{name}"), found));
            }
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn figures_of_a_file_are_shown_or_refused(index: prop::sample::Index, other: prop::sample::Index, bits: [u64; 2]) {
            let mut json = serde_json::to_value(report("Soft-RoCE", 2.0)).unwrap();
            let mut found = Vec::new();
            places(&json, "", &mut found);
            for (index, bits) in [index, other].into_iter().zip(bits) {
                *json.pointer_mut(&found[index.index(found.len())]).unwrap() = json!(f64::from_bits(bits));
            }
            if let Ok(changed) = parse(&json.to_string()) {
                let first = report("Soft-RoCE", 2.0);
                for runs in [[("a", &first), ("b", &changed)], [("b", &changed), ("a", &first)]] {
                    let text = text(&runs).join("\n");
                    let page = html::page(&runs);
                    for word in ["NaN", "inf"] {
                        prop_assert!(!text.contains(word) && !page.contains(&format!("{word}<")), "{} {}", text, page);
                        prop_assert!(!page.contains(&format!("{word}\"")), "{}", page);
                    }
                }
            }
        }
    }

    #[test]
    fn differences_of_the_environment_are_named() {
        let (first, mut second) = (report("Soft-RoCE", 2.0), report("hardware", 5.0));
        second.environment.kernel = "7.2.0".into();
        let text = text(&[("a", &first), ("b", &second)]).join("\n");
        assert!(text.contains("Soft-RoCE and hardware: they can't be compared"), "{text}");
        let differs = text.split("that differ").nth(1).unwrap();
        assert!(
            differs.contains("kernel") && differs.contains("7.2.0") && differs.contains("nature"),
            "{text}"
        );
        assert!(!differs.contains("firmware"), "{text}");
    }
}
