//! The conformance suite on this kernel, by the program.

use bareverbs_kernel_tests::kernel_test;
use std::process::{Command, Output};

use bareverbs_conform::{Filter, Rule, Suite};
use bareverbs_kernel_tests::device;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}

fn conform(args: &[&str]) -> Output {
    Command::new("bareverbs").arg("conform").args(args).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Number of lines that begin with these words.
fn lines(text: &str, start: &str) -> usize {
    text.lines().filter(|line| line.starts_with(start)).count()
}

/// The results of the checks in KTAP: the lines of subtests, without their indentation.
fn subtests(text: &str) -> Vec<&str> {
    let indented = text.lines().filter_map(|line| line.strip_prefix("    "));
    indented.filter(|line| line.starts_with("ok ") || line.starts_with("not ok ")).collect()
}

#[kernel_test(device::soft_roce)]
fn kernel_conforms() {
    conforms(5000);
}

fn conforms(least: usize) {
    let output = conform(&["--format", "ktap"]);
    let text = text(&output);
    let failed: Vec<_> = text
        .lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with("not ok") || line.starts_with("# "))
        .collect();
    assert_eq!(output.status.code(), Some(0), "{}", failed.join("\n"));
    assert_eq!(lines(&text, "not ok"), 0);
    let passed = subtests(&text).iter().filter(|line| !line.contains("# SKIP")).count();
    assert!(passed > least, "{passed} checks passed");
}

#[kernel_test(device::soft_roce)]
fn selected_checks_pass_in_any_order() {
    for seed in ["1", "2"] {
        let output = conform(&["--filter", "life::*", "--seed", seed]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }
    let name = "parser::QpCreate::PD_HANDLE::duplicate";
    let one = text(&conform(&["--filter", name, "--format", "ktap"]));
    assert!(one.contains(&format!("    1..1\n    ok 1 {name}\nok 1 parser\n")), "{one}");
    let none = conform(&["--filter", "no such check"]);
    assert_eq!(none.status.code(), Some(4), "{}", text(&none));
}

#[kernel_test(device::soft_roce)]
fn formats_have_the_same_checks() {
    let with = |format| text(&conform(&["--filter", "mmap::", "--format", format]));
    let ktap = subtests(&with("ktap")).len();
    assert_eq!(with("junit").matches("<testcase ").count(), ktap);
    assert_eq!(with("json").matches("\"verdict\"").count(), ktap);
    let list = text(&conform(&["--filter", "mmap::", "--list"]));
    assert_eq!(lines(&list, "mmap::"), ktap, "{list}");
}

#[kernel_test(device::connectx)]
fn mlx5_conforms() {
    conforms(1700);
}

/// Families of checks, and the beginnings of the names of their rules.
const FAMILIES: [(&str, &str); 7] = [
    ("cm::*", "cm-"),
    ("nldev::*", "netlink-"),
    ("limit::*", "limit"),
    ("mmap::*", "mmap"),
    ("event::*", "event-"),
    ("query::*", "query-"),
    ("qp::RC::*", "qp-"),
];

/// The rules of the environment of a process.
const ENVIRONMENT: [Rule; 6] =
    [Rule::Capability, Rule::Memlock, Rule::Cgroup, Rule::Namespace, Rule::ExclusiveNamespace, Rule::Fork];

/// Breaks rules one at a time by wrong answers of the device. The suite must name each.
fn names_broken_rules(family: &str, is_of_family: impl Fn(Rule) -> bool) {
    let suite = || {
        let suite = Suite::for_device(None).unwrap();
        // Those of the environment only take the device out of reach.
        if family.starts_with("environment") { suite.with_hazards() } else { suite }
    };
    let named = |suite: Suite| suite.run(&Filter::new(Some(family)), 0, |_, _, _| {}).broken_rule();
    assert_eq!(named(suite()), None, "{family} without a fault");
    let rules: Vec<Rule> = suite().faults().iter().copied().filter(|rule| is_of_family(*rule)).collect();
    assert!(!rules.is_empty(), "{family} has no faults");
    let wrong: Vec<_> = rules
        .into_iter()
        .map(|rule| (rule.id(), named(suite().with_fault(rule))))
        .filter(|(id, named)| named.as_deref() != Some(*id))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[kernel_test(device::soft_roce)]
fn suite_names_broken_rules_of_commands() {
    let is_of_others = |rule: Rule| FAMILIES.iter().any(|(_, start)| rule.id().starts_with(start));
    names_broken_rules("command::*", |rule| !is_of_others(rule) && !ENVIRONMENT.contains(&rule));
}

#[kernel_test(device::soft_roce)]
fn suite_names_broken_rules_of_the_environment() {
    names_broken_rules("environment::*", |rule| ENVIRONMENT.contains(&rule));
}

#[kernel_test(device::soft_roce)]
fn suite_names_broken_rules_of_queues_and_files() {
    for (family, start) in FAMILIES {
        names_broken_rules(family, |rule| rule.id().starts_with(start));
    }
}

#[kernel_test(device::connectx)]
fn suite_names_broken_rules_of_mlx5() {
    names_broken_rules("parser::*", |_| true);
}

#[kernel_test(device::shared_between_processes)]
fn decode_prints_names() {
    let input = std::env::temp_dir().join("bareverbs-decode");
    std::fs::write(&input, r#"write(3, "\4\0\0\0\3\0\0\0\7\0\0\0", 12) = 12"#).unwrap();
    let output = Command::new("bareverbs").args(["decode", "write"]).arg(&input).output().unwrap();
    assert_eq!(text(&output), "DeallocPd: DeallocPdReq { pd_handle: 7 }\n");
    std::fs::remove_file(input).unwrap();
}

#[kernel_test(device::shared_between_processes)]
fn fuzzed_calls_break_no_rule_and_replay() {
    let file = std::env::temp_dir().join("bareverbs-fuzz");
    let mut command = Command::new("bareverbs");
    command.args(["conform", "--fuzz", "15", "--seed", "1", "--fuzz-out"]).arg(&file);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(text(&output).contains("methods and commands called"), "{}", text(&output));
    let output = Command::new("bareverbs").arg("replay").arg(&file).output().unwrap();
    std::fs::remove_file(file).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}
