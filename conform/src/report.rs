//! Reports of a run: a summary, KTAP, JUnit, JSON and HTML; and the difference of two runs.

mod html;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

pub use html::html;

use crate::junit::{self, Case, CaseResult};
use crate::{Outcome, Results, Verdict};

/// A summary in a line.
#[must_use]
pub fn summary(results: &Results) -> String {
    let (passed, failed, skipped) = counts(results);
    let known = match known_bugs(&results.checks) {
        0 => String::new(),
        known => format!(" ({known} with a known bug)"),
    };
    format!(
        "{} on {}, checked against the rules of Linux {}: {passed} passed{known}, {failed} failed, {skipped} skipped in {:.1} s\n",
        results.device,
        results.kernel,
        results.series,
        results.milliseconds as f64 / 1000.0
    )
}

/// The differences between two runs, by method and attribute.
#[must_use]
pub fn diff(before: &Results, after: &Results) -> String {
    let by_name = |results: &Results| -> BTreeMap<String, Outcome> {
        results.checks.iter().map(|outcome| (outcome.name.clone(), outcome.clone())).collect()
    };
    let (old, new) = (by_name(before), by_name(after));
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let line = match (old.get(name), new.get(name)) {
            (Some(_), None) => "no longer checked".to_owned(),
            (None, Some(_)) => "checked now".to_owned(),
            (Some(a), Some(b)) if (a.verdict, &a.got) != (b.verdict, &b.got) => {
                let change = if b.change.is_empty() { String::new() } else { format!(" ({})", b.change) };
                format!("{} → {}{change}", shown(a), shown(b))
            }
            _ => continue,
        };
        let mut parts = name.rsplitn(2, "::");
        let rule = parts.next().unwrap_or_default();
        let place = parts.next().unwrap_or_default().to_owned();
        places.entry(place).or_default().push(format!("  {rule}: {line}"));
    }
    let mut text = format!("{} → {}\n", before.kernel, after.kernel);
    for (place, lines) in &places {
        let _ = writeln!(text, "{place}\n{}", lines.join("\n"));
    }
    if places.is_empty() {
        text.push_str("no difference\n");
    }
    text
}

fn shown(outcome: &Outcome) -> String {
    match outcome.verdict {
        Verdict::Skipped => "skipped".to_owned(),
        Verdict::Passed => outcome.got.clone(),
        Verdict::Failed => format!("{} (failed, expected {})", outcome.got, outcome.expected),
    }
}

/// KTAP, version 1, as the kernel's selftests print it: one subtest for each family of checks, the first
/// part of their names.
#[must_use]
pub fn ktap(results: &Results) -> String {
    let mut families: BTreeMap<&str, Vec<&Outcome>> = BTreeMap::new();
    for outcome in &results.checks {
        let family = outcome.name.split("::").next().unwrap_or_default();
        families.entry(family).or_default().push(outcome);
    }
    let mut text = format!("KTAP version 1\n1..{}\n", families.len());
    for (number, (family, outcomes)) in families.iter().enumerate() {
        ktap_family(&mut text, family, outcomes);
        let of = |verdict| outcomes.iter().any(|outcome| outcome.verdict == verdict);
        let (result, directive) = match (of(Verdict::Failed), of(Verdict::Passed)) {
            (true, _) => ("not ok", ""),
            (false, true) => ("ok", ""),
            (false, false) => ("ok", " # SKIP all checks were skipped"),
        };
        let _ = writeln!(text, "{result} {} {family}{directive}", number + 1);
    }
    let (passed, failed, skipped) = counts(results);
    let xfail = known_bugs(&results.checks);
    let _ = writeln!(
        text,
        "# Totals: pass:{} fail:{failed} xfail:{xfail} xpass:0 skip:{skipped} error:0",
        passed - xfail
    );
    text
}

/// The subtests of one family, indented.
fn ktap_family(text: &mut String, family: &str, outcomes: &[&Outcome]) {
    let _ = writeln!(text, "    KTAP version 1\n    # Subtest: {family}\n    1..{}", outcomes.len());
    for (number, outcome) in outcomes.iter().enumerate() {
        let (result, directive) = match outcome.verdict {
            Verdict::Passed if outcome.known_bug => ("ok", " # XFAIL known bug of the kernel".to_owned()),
            Verdict::Passed => ("ok", String::new()),
            Verdict::Failed => ("not ok", String::new()),
            Verdict::Skipped => ("ok", format!(" # SKIP {}", one_line(&outcome.reason))),
        };
        if outcome.verdict == Verdict::Failed {
            let log = outcome.kernel_log.iter().map(String::as_str);
            for line in outcome.reason.lines().chain([outcome.call.as_str()]).chain(log) {
                let _ = writeln!(text, "    # {line}");
            }
        }
        let _ = writeln!(text, "    {result} {} {}{directive}", number + 1, outcome.name);
    }
}

/// KTAP of a run without a device: everything is skipped.
#[must_use]
pub fn ktap_skipped(reason: &str) -> String {
    format!("KTAP version 1\n1..0 # SKIP {}\n", one_line(reason))
}

fn counts(results: &Results) -> (usize, usize, usize) {
    (results.count(Verdict::Passed), results.count(Verdict::Failed), results.count(Verdict::Skipped))
}

/// Number of checks that passed with the answer of a known bug.
fn known_bugs<'o>(outcomes: impl IntoIterator<Item = &'o Outcome>) -> usize {
    let known = |outcome: &&Outcome| outcome.known_bug && outcome.verdict == Verdict::Passed;
    outcomes.into_iter().filter(known).count()
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}

/// JUnit's XML.
#[must_use]
pub fn junit(results: &Results) -> String {
    let details = |outcome: &Outcome| format!("{}\n{}", outcome.call, outcome.kernel_log.join("\n"));
    let details: Vec<String> = results.checks.iter().map(details).collect();
    let cases = results.checks.iter().zip(&details).map(|(outcome, details)| {
        let (class, name) = outcome.name.rsplit_once("::").unwrap_or(("", &outcome.name));
        let reason = outcome.reason.as_str();
        let result = match outcome.verdict {
            Verdict::Passed => CaseResult::Passed,
            Verdict::Skipped => CaseResult::Skipped { reason },
            Verdict::Failed => CaseResult::Failed { reason, details },
        };
        Case { class, name, result }
    });
    let cases: Vec<Case<'_>> = cases.collect();
    let suite = format!("bareverbs conform {} {}", results.device, results.kernel);
    junit::junit(&suite, Some(results.milliseconds as f64 / 1000.0), &cases)
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
            is_changed: None,
            known_bug: false,
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
    fn ktap_has_a_subtest_for_each_family() {
        let mut results = results();
        results.checks.push(Outcome { name: "other::b::c::skips".into(), ..results.checks[2].clone() });
        let text = ktap(&results);
        let family = "KTAP version 1\n1..2\n    KTAP version 1\n    # Subtest: a\n    1..3\n    ok 1 a::b::c::passes\n";
        assert!(text.starts_with(family), "{text}");
        assert!(text.contains("\n    not ok 2 a::b::c::fails\n"), "{text}");
        assert!(text.contains("\n    ok 3 a::b::c::skips # SKIP not here\nnot ok 1 a\n"), "{text}");
        assert!(text.contains("\nok 2 other # SKIP all checks were skipped\n"), "{text}");
        assert!(text.contains("# Totals: pass:1 fail:1 xfail:0 xpass:0 skip:2 error:0"), "{text}");
    }

    #[test]
    fn known_bugs_are_expected_failures_in_ktap() {
        let mut results = results();
        results.checks[0].known_bug = true;
        let text = ktap(&results);
        assert!(text.contains("\n    ok 1 a::b::c::passes # XFAIL known bug of the kernel\n"), "{text}");
        assert!(text.contains("# Totals: pass:0 fail:1 xfail:1 xpass:0 skip:1 error:0"), "{text}");
    }

    #[test]
    fn run_without_device_is_an_empty_plan_with_the_reason() {
        assert_eq!(ktap_skipped("no\ndevice"), "KTAP version 1\n1..0 # SKIP no device\n");
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
    fn diff_shows_changed_answers_by_place() {
        let (before, mut after) = (results(), results());
        assert!(diff(&before, &before).ends_with("no difference\n"));
        after.checks[0].got = "EFAULT".into();
        after.checks.remove(2);
        let text = diff(&before, &after);
        assert!(text.contains("a::b::c\n  passes: success → EFAULT\n  skips: no longer checked"), "{text}");
    }

    #[test]
    fn page_links_each_cell_and_loads_nothing() {
        let mut passing = results();
        passing.checks[1].verdict = Verdict::Passed;
        let page = html(&[results(), passing]);
        assert!(page.contains("✗ 1") && page.contains("&lt;more&gt;"), "{page}");
        assert!(!page.contains("http") && !page.contains("<script"), "{page}");
        // Each link has its target, and the failing kernel's cell leads to the failing check.
        let links: Vec<_> =
            page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert_eq!(links.len(), 3, "{page}");
        for link in &links {
            assert!(page.contains(&format!("id=\"{link}\"")), "{link} in {page}");
        }
        assert!(page.contains(&format!("id=\"{}\"><b>a::b::c::fails", links[1])), "{page}");
        assert!(page.contains(&format!("id=\"{}\"><b>a::b::c::fails", links[2])), "{page}");
    }

    #[test]
    fn page_counts_known_bugs_and_leads_to_them() {
        let mut results = results();
        results.checks.remove(1);
        results.checks.push(Outcome {
            name: "a::b::c::with a bug".into(),
            known_bug: true,
            ..results.checks[0].clone()
        });
        let page = html(&[results]);
        assert!(page.contains("✓ 2</span><br><span class=\"b\">! 1</span>"), "{page}");
        let link = page.split("href=\"#").nth(2).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(page.contains(&format!("id=\"{link}\"><b>a::b::c::with a bug")), "{page}");
    }

    #[test]
    fn page_has_short_releases_where_they_differ() {
        let of = |kernel: &str| Results { kernel: kernel.into(), ..results() };
        let page = html(&[of("6.12.118+deb13-amd64"), of("7.3-amd64")]);
        assert!(page.contains(">6.12.118<br>") && page.contains(">7.3<br>"), "{page}");
        let page = html(&[of("7.3+before"), of("7.3+after")]);
        assert!(page.contains(">7.3+before<br>") && page.contains(">7.3+after<br>"), "{page}");
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
