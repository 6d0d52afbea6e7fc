//! The page that compares kernels: rules × kernels, and the decoded calls of each rule.
//!
//! It is one file without scripts. A cell links to the first failing check of its rule on its
//! kernel, to the first that shows a known bug, or to the rule's first check. Browsers open the section
//! that a link leads into.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{counts, known_bugs};
use crate::page::{escape, page};
use crate::{Outcome, Results, Rule, Verdict};

/// Answers (`.p` passed, `.f` failed, `.s` skipped, `.b` known bug), checks (`.k`) and calls.
const STYLE: &str = "\
:root{--pass:#176f2c;--fail:#b3261e;--bug:#8a5300}
@media(prefers-color-scheme:dark){:root{--pass:#7bd88f;--fail:#ff8a80;--bug:#f0b460}}
.p{color:var(--pass)}.f{color:var(--fail);font-weight:600}.s{color:var(--muted)}.b{color:var(--bug)}
code,.id{font:13px/1.45 ui-monospace,monospace}code{overflow-wrap:anywhere}.id{overflow-wrap:break-word}
thead th{position:sticky;top:0;background:Canvas}
details{border-bottom:1px solid var(--line)}summary{padding:.4rem 0;cursor:pointer}
.k{padding:.5rem 0 .5rem .75rem;border-top:1px solid var(--soft)}.k:target{background:var(--soft)}
.k>b{font-weight:600;overflow-wrap:anywhere}.a{margin-right:.75rem;white-space:nowrap}.w{white-space:normal}
.k code{display:block;background:var(--soft);padding:.25rem .5rem;margin-top:.25rem;border-radius:4px}
@media(max-width:40rem){.m.t{display:none}.id{font-size:12px}
th.n{font-size:12px;overflow-wrap:break-word;white-space:normal}}
";

/// A page with rules × kernels. Each cell links to the calls of the rule.
#[must_use]
pub fn html(runs: &[Results]) -> String {
    let mut body = "<p class=\"m\">Rules of the ABI, and the number of checks that each kernel passes (✓), \
                    fails (✗) or skips (–). ! marks the passed checks that show a known bug of the kernel.\n"
        .to_owned();
    let (anchors, names) = (Anchors::new(runs), names(runs));
    body.push_str("<table><thead><tr><th>Rule");
    for (run, name) in runs.iter().zip(&names) {
        let _ = write!(
            body,
            "<th class=\"n\">{}<br><span class=\"m t\">{} {}</span>",
            escape(name),
            escape(&run.kernel[name.len()..]),
            escape(&run.device)
        );
    }
    body.push_str("\n<tbody><tr><td><b>All</b>");
    for run in runs {
        let _ = write!(body, "<td class=\"n\">{}", cell(counts(run), known_bugs(&run.checks)));
    }
    body.push('\n');
    for rule in anchors.rules() {
        row(&mut body, rule, runs, &anchors);
    }
    body.push_str("</table>\n<h2>Calls</h2>\n");
    for rule in anchors.rules() {
        section(&mut body, rule, &names, &anchors);
    }
    page("RDMA user ABI", STYLE, &body)
}

/// The releases without the suffixes of a distribution: `6.12.118` of `6.12.118+deb13-amd64`. Whole
/// releases if two of them would be the same.
fn names(runs: &[Results]) -> Vec<&str> {
    let short = |run: &'_ Results| {
        run.kernel.split('+').next().map_or(0, |text| text.strip_suffix("-amd64").unwrap_or(text).len())
    };
    let names: Vec<&str> = runs.iter().map(|run| &run.kernel[..short(run)]).collect();
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        return runs.iter().map(|run| run.kernel.as_str()).collect();
    }
    names
}

/// Passed, failed and skipped checks in few characters, and how many of the passed show a known bug.
fn cell((passed, failed, skipped): (usize, usize, usize), known: usize) -> String {
    match (passed, failed) {
        (0, 0) => format!("<span class=\"s\">– {skipped}</span>"),
        (_, 0) if known > 0 => {
            format!("<span class=\"p\">✓ {passed}</span><br><span class=\"b\">! {known}</span>")
        }
        (_, 0) => format!("<span class=\"p\">✓ {passed}</span>"),
        _ => {
            format!("<span class=\"f\">✗ {failed}</span><br><span class=\"m\">of {}</span>", passed + failed)
        }
    }
}

fn row(page: &mut String, rule: Rule, runs: &[Results], anchors: &Anchors<'_>) {
    let id = rule.id();
    let _ = write!(
        page,
        "<tr><td><a class=\"id\" href=\"#{id}\">{id}</a><br><span class=\"m t\">{}</span>",
        escape(rule.text())
    );
    for (number, run) in runs.iter().enumerate() {
        let of: Vec<_> = run.checks.iter().filter(|outcome| outcome.rule == id).collect();
        if of.is_empty() {
            page.push_str("<td class=\"n s\">");
            continue;
        }
        let count = |verdict| of.iter().filter(|outcome| outcome.verdict == verdict).count();
        let counts = (count(Verdict::Passed), count(Verdict::Failed), count(Verdict::Skipped));
        let (anchor, text) = (anchors.of_cell(rule, number), cell(counts, known_bugs(of)));
        let _ = write!(page, "<td class=\"n\"><a href=\"#{anchor}\">{text}</a>");
    }
    page.push('\n');
}

/// The checks of a rule with their calls: first those that fail somewhere, then those that show a known
/// bug.
fn section(page: &mut String, rule: Rule, names: &[&str], anchors: &Anchors<'_>) {
    let checks = anchors.checks(rule);
    let failing = checks.iter().filter(|check| check.fails()).count();
    let fails =
        if failing == 0 { String::new() } else { format!(", <span class=\"f\">{failing} fail</span>") };
    let _ = writeln!(
        page,
        "<details id=\"section-{id}\"{open}><summary><span class=\"id\">{id}</span> <span class=\"m\">{} \
         {noun}{fails}</span></summary>\n<div id=\"{id}\"><p>{}<p class=\"m\"><code>{}</code></div>",
        checks.len(),
        escape(rule.text()),
        escape(&rule.path()),
        noun = if checks.len() == 1 { "check" } else { "checks" },
        id = rule.id(),
        open = if failing > 0 { " open" } else { "" },
    );
    for check in checks {
        let _ = write!(page, "<div class=\"k\" id=\"{}\"><b>{}</b><br>", check.anchor, escape(check.name));
        answers(page, check, names);
        if let Some(outcome) = check.outcomes.iter().flatten().find(|outcome| !outcome.change.is_empty()) {
            let label = if outcome.known_bug { "known bug" } else { "change" };
            let _ = write!(page, "<span class=\"m w\">{label}: {}</span>", escape(&outcome.change));
        }
        // The calls differ in addresses only, unless a kernel fails.
        let shown = check.outcomes.iter().flatten().find(|outcome| outcome.verdict != Verdict::Failed);
        let failed = check.outcomes.iter().flatten().filter(|outcome| outcome.verdict == Verdict::Failed);
        let mut calls = BTreeSet::new();
        for outcome in failed.chain(shown.filter(|_| !check.fails())) {
            if !outcome.call.is_empty() && calls.insert(&outcome.call) {
                let _ = write!(page, "<code>{}</code>", escape(&outcome.call));
            }
            for line in &outcome.kernel_log {
                let _ = write!(page, "<code class=\"f\">{}</code>", escape(line));
            }
        }
        page.push_str("</div>\n");
    }
    page.push_str("</details>\n");
}

/// The answers of a check: one if all kernels agree, else one for each kernel.
fn answers(page: &mut String, check: &CheckRow<'_>, names: &[&str]) {
    let answer = |outcome: &Outcome| match outcome.verdict {
        Verdict::Passed if outcome.got.is_empty() => ("p", "✓".to_owned()),
        Verdict::Passed if outcome.known_bug => ("b", format!("! {}", outcome.got)),
        Verdict::Passed => ("p", format!("✓ {}", outcome.got)),
        Verdict::Failed => ("f", format!("✗ {}", outcome.reason)),
        Verdict::Skipped => ("s", format!("– {}", outcome.reason)),
    };
    let all: Vec<_> = check.outcomes.iter().map(|outcome| outcome.map(answer)).collect();
    if let [Some(first), rest @ ..] = &all[..]
        && rest.iter().all(|other| other.as_ref() == Some(first))
    {
        let _ = write!(page, "<span class=\"a w {}\">{}</span>", first.0, escape(&first.1));
        return;
    }
    for (answer, name) in all.iter().zip(names) {
        if let Some((class, text)) = answer {
            let wide = if text.len() > 20 { " w" } else { "" };
            let _ = write!(
                page,
                "<span class=\"a{wide}\"><span class=\"m\">{}</span> <span class=\"{class}\">{}</span></span> ",
                escape(name),
                escape(text)
            );
        }
    }
}

/// A check of a rule, with its outcome on each kernel.
struct CheckRow<'r> {
    name: &'r str,
    anchor: String,
    outcomes: Vec<Option<&'r Outcome>>,
}

impl CheckRow<'_> {
    fn fails(&self) -> bool {
        self.outcomes.iter().flatten().any(|outcome| outcome.verdict == Verdict::Failed)
    }

    fn shows_known_bug(&self) -> bool {
        known_bugs(self.outcomes.iter().copied().flatten()) > 0
    }
}

/// The checks by rule, with their anchors.
struct Anchors<'r> {
    rules: BTreeMap<&'static str, Vec<CheckRow<'r>>>,
}

impl<'r> Anchors<'r> {
    fn new(runs: &'r [Results]) -> Self {
        let mut rules = BTreeMap::new();
        let mut number = 0;
        for rule in Rule::ALL {
            let mut names: BTreeMap<&str, Vec<Option<&Outcome>>> = BTreeMap::new();
            for (position, run) in runs.iter().enumerate() {
                for outcome in run.checks.iter().filter(|outcome| outcome.rule == rule.id()) {
                    names.entry(&outcome.name).or_insert_with(|| vec![None; runs.len()])[position] =
                        Some(outcome);
                }
            }
            let rows = names.into_iter().map(|(name, outcomes)| {
                number += 1;
                CheckRow { name, anchor: format!("c{number}"), outcomes }
            });
            let mut rows: Vec<_> = rows.collect();
            rows.sort_by_key(|row| (!row.fails(), !row.shows_known_bug()));
            if !rows.is_empty() {
                rules.insert(rule.id(), rows);
            }
        }
        Self { rules }
    }

    /// The rules with checks.
    fn rules(&self) -> impl Iterator<Item = Rule> {
        Rule::ALL.iter().copied().filter(|rule| self.rules.contains_key(rule.id()))
    }

    fn checks(&self, rule: Rule) -> &[CheckRow<'r>] {
        self.rules.get(rule.id()).map_or(&[], Vec::as_slice)
    }

    /// The check that the cell of a rule and a kernel leads to.
    fn of_cell(&self, rule: Rule, run: usize) -> &str {
        let checks = self.checks(rule);
        let has = |(verdict, known_bug)| {
            move |check: &&CheckRow<'_>| {
                check.outcomes[run]
                    .is_some_and(|outcome| (outcome.verdict, outcome.known_bug) == (verdict, known_bug))
            }
        };
        let order = [
            (Verdict::Failed, false),
            (Verdict::Failed, true),
            (Verdict::Passed, true),
            (Verdict::Passed, false),
            (Verdict::Skipped, false),
        ];
        let found = order.into_iter().find_map(|of| checks.iter().find(has(of)));
        found.map_or(rule.id(), |check| check.anchor.as_str())
    }
}
