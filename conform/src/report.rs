//! Reports of a run: KTAP, JUnit and JSON.

use std::fmt::Write as _;

use crate::{Results, Verdict};

/// KTAP, version 1, as the kernel's selftests print it.
#[must_use]
pub fn ktap(results: &Results) -> String {
    let mut text = format!("KTAP version 1\n1..{}\n", results.checks.len());
    for (number, outcome) in results.checks.iter().enumerate() {
        let (result, directive) = match outcome.verdict {
            Verdict::Passed => ("ok", String::new()),
            Verdict::Failed => ("not ok", String::new()),
            Verdict::Skipped => ("ok", format!(" # SKIP {}", one_line(&outcome.reason))),
        };
        if outcome.verdict == Verdict::Failed {
            for line in outcome.reason.lines().chain([outcome.call.as_str()]).chain(
                outcome.kernel_log.iter().map(String::as_str),
            ) {
                let _ = writeln!(text, "# {line}");
            }
        }
        let _ = writeln!(text, "{result} {} {}{directive}", number + 1, outcome.name);
    }
    let (passed, failed, skipped) = counts(results);
    let _ = writeln!(text, "# Totals: pass:{passed} fail:{failed} xfail:0 xpass:0 skip:{skipped} error:0");
    text
}

fn counts(results: &Results) -> (usize, usize, usize) {
    (results.count(Verdict::Passed), results.count(Verdict::Failed), results.count(Verdict::Skipped))
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}

/// JUnit's XML.
#[must_use]
pub fn junit(results: &Results) -> String {
    let (_, failed, skipped) = counts(results);
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        text,
        "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\" time=\"{}\">",
        escape(&format!("bareverbs conform {} {}", results.device, results.kernel)),
        results.checks.len(),
        results.milliseconds as f64 / 1000.0,
    );
    for outcome in &results.checks {
        let (class, name) = outcome.name.rsplit_once("::").unwrap_or(("", &outcome.name));
        let _ = write!(text, "  <testcase classname=\"{}\" name=\"{}\"", escape(class), escape(name));
        match outcome.verdict {
            Verdict::Passed => text.push_str("/>\n"),
            Verdict::Skipped => {
                let _ = writeln!(text, "><skipped message=\"{}\"/></testcase>", escape(&outcome.reason));
            }
            Verdict::Failed => {
                let log = outcome.kernel_log.join("\n");
                let _ = writeln!(
                    text,
                    "><failure message=\"{}\">{}</failure></testcase>",
                    escape(&outcome.reason),
                    escape(&format!("{}\n{log}", outcome.call)),
                );
            }
        }
    }
    text + "</testsuite>\n"
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(char),
            char if char.is_control() => {}
            char => escaped.push(char),
        }
    }
    escaped
}

/// JSON: an object with the kernel, the device and a list of checks.
#[must_use]
pub fn json(results: &Results) -> String {
    serde_json::to_string_pretty(results).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    fn results() -> Results {
        let outcome = |name: &str, verdict, reason: &str| Outcome {
            name: name.into(),
            rule: "missing".into(),
            verdict,
            expected: "EINVAL".into(),
            got: "success".into(),
            call: "PdDestroy on RXE {HANDLE: destroy Pd 1}".into(),
            reason: reason.into(),
            change: String::new(),
            kernel_log: Vec::new(),
        };
        Results {
            kernel: "7.2.13".into(),
            series: "7.2".into(),
            device: "rxe0".into(),
            seed: 0,
            milliseconds: 1500,
            checks: vec![
                outcome("a::b::c::passes", Verdict::Passed, ""),
                outcome("a::b::c::fails", Verdict::Failed, "expected EINVAL, got \"success\" & <more>"),
                outcome("a::b::c::skips", Verdict::Skipped, "not here"),
            ],
        }
    }

    #[test]
    fn ktap_has_a_plan_and_a_line_per_check() {
        let text = ktap(&results());
        assert!(text.starts_with("KTAP version 1\n1..3\nok 1 a::b::c::passes\n"), "{text}");
        assert!(text.contains("\nnot ok 2 a::b::c::fails\n"), "{text}");
        assert!(text.contains("\nok 3 a::b::c::skips # SKIP not here\n"), "{text}");
        assert!(text.contains("# Totals: pass:1 fail:1 xfail:0 xpass:0 skip:1 error:0"), "{text}");
    }

    #[test]
    fn junit_is_escaped() {
        let text = junit(&results());
        assert!(text.contains("tests=\"3\" failures=\"1\" skipped=\"1\" time=\"1.5\""), "{text}");
        assert!(text.contains("got &quot;success&quot; &amp; &lt;more&gt;"), "{text}");
        assert!(text.contains("classname=\"a::b::c\" name=\"skips\""), "{text}");
    }

    #[test]
    fn json_is_read_back() {
        let read: Results = serde_json::from_str(&json(&results())).unwrap();
        assert_eq!(read, results());
    }

    #[test]
    fn exit_status_tells_failures_and_skipped_runs() {
        let mut results = results();
        assert_eq!(results.exit_status(), 1);
        results.checks.remove(1);
        assert_eq!(results.exit_status(), 0);
        results.checks.remove(0);
        assert_eq!(results.exit_status(), 4);
    }
}
