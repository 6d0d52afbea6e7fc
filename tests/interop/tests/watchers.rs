//! `bareverbs asyncwatch` and `bareverbs resources`, against `ibv_asyncwatch` and `rdma`.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use bareverbs_interop_tests::link::cut_the_link;
use bareverbs_interop_tests::pingpong::{Bareverbs, BareverbsOf, Kind, PORT, run_pingpong};
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

fn bareverbs(arguments: &[&str]) -> Program {
    Program::start(Command::new("bareverbs").args(arguments))
}

fn run(program: &str, arguments: &[&str]) -> Finished {
    Program::start(Command::new(program).args(arguments)).finish().expect_success()
}

fn json(program: &str, arguments: &[&str]) -> Value {
    let text = run(program, arguments).stdout;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error} in {text}"))
}

#[kernel_test(device::ethernet)]
fn asyncwatch_output_equals_ibv_asyncwatch() {
    nothing_leaks(|| {
        let mut watchers = [
            bareverbs(&["asyncwatch"]),
            bareverbs(&["asyncwatch", "-d", device::name()]),
            Program::start(Command::new("ibv_asyncwatch").args(["-d", device::name()])),
        ];
        let mut lines = bareverbs(&["asyncwatch", "--json"]);
        for watcher in &mut watchers {
            watcher.line(&format!("{}: async event FD ", device::name()));
        }
        assert_eq!(lines.line("{"), format!(r#"{{"device":"{}","watching":true}}"#, device::name()));
        cut_the_link();
        for event in ["IBV_EVENT_PORT_ERR (10)", "IBV_EVENT_PORT_ACTIVE (9)"] {
            for watcher in &mut watchers {
                watcher.line(&format!("  event_type {event}, port 1"));
            }
        }
        for (name, number) in [("PORT_ERR", 10), ("PORT_ACTIVE", 9)] {
            let line = lines.line(&format!(r#"{{"device":"{}","event":"{name}""#, device::name()));
            let event: Value = serde_json::from_str(&line).unwrap();
            assert_eq!((&event["number"], &event["port"]), (&number.into(), &1.into()));
        }
    });
}

#[kernel_test]
fn asyncwatch_ends_on_signals() {
    nothing_leaks(|| {
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            let mut watcher = bareverbs(&["asyncwatch"]);
            watcher.line(device::name());
            watcher.signal(signal);
            let finished = watcher.finish();
            assert_eq!(finished.status.code(), Some(128 + signal as i32), "{finished:#?}");
        }
    });
}

/// The rows of `bareverbs` of one type, by a unique number.
fn rows<'a>(list: impl Iterator<Item = &'a Value>, key: &str) -> BTreeMap<u64, &'a Value> {
    list.filter_map(|row| Some((row[key].as_u64()?, row))).collect()
}

#[kernel_test]
fn resources_match_rdma_resource_show() {
    nothing_leaks(|| {
        let connected = Bareverbs(&[]).serve(PORT);
        let shared = BareverbsOf(Kind::Srq, &["-q", "3", "-p", "4711"]).serve(4711);
        let report = json("bareverbs", &["resources", "--json", "-d", device::name()]);
        let device = &report[0];
        assert_eq!(device["device"], device::name());
        for (kind, number, fields) in [
            ("ctx", "ctxn", &["pid", "comm"][..]),
            ("pd", "pdn", &["users", "ctxn", "pid", "comm"]),
            ("mr", "mrn", &["mrlen", "pdn", "pid", "comm"]),
            // The polling context is left out: `rdma` uses the names of kernels before 5.1.
            ("cq", "cqn", &["cqe", "users", "ctxn", "pid", "comm"]),
            (
                "qp",
                "lqpn",
                &["pdn", "rqpn", "type", "state", "rq-psn", "sq-psn", "path-mig-state", "pid", "comm"],
            ),
            ("srq", "srqn", &["type", "pdn", "pid", "comm"]),
            ("cm_id", "cm-idn", &["state", "ps", "pid", "comm"]),
        ] {
            let groups = device["objects"].as_array().unwrap();
            let group = groups.iter().find(|group| group["kind"] == kind).unwrap();
            let list = group["list"].as_array().unwrap();
            let mine = rows(list.iter(), number);
            assert_eq!(mine.len(), list.len(), "{kind}: each has its number: {list:?}");
            assert_eq!(device["summary"][kind], list.len(), "{kind}");
            let shown = json("rdma", &["-j", "-d", "resource", "show", kind]);
            let theirs = rows(shown.as_array().unwrap().iter(), number);
            assert_eq!(mine.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{kind}");
            for (number, row) in &mine {
                // A kernel QP may have sent more packets before the second read.
                let moving = |field: &str| field == "sq-psn" && row["pid"].is_null();
                for &field in fields.iter().filter(|field| !moving(field)) {
                    assert_eq!(row[field], theirs[number][field], "{kind} {number}: {field}: {shown:#}");
                }
            }
        }
        let page = run("bareverbs", &["resources"]).stdout;
        for process in [&connected, &shared] {
            let owner = format!("pid {} comm bareverbs", process.id());
            for kind in ["ctx", "pd", "mr", "cq", "qp"] {
                let start = format!("  {kind:<5} ");
                let mut lines = page.lines().filter(|line| line.starts_with(&start));
                assert!(lines.any(|line| line.ends_with(&owner)), "no {kind} of {owner} in\n{page}");
            }
        }
        assert!(page.contains("comm [ib_core]"), "{page}");
        for process in [connected, shared] {
            process.signal(Signal::SIGTERM);
            process.finish();
        }
    });
}

#[kernel_test]
fn counters_match_rdma_statistic() {
    let shown = json("rdma", &["-j", "statistic", "show", "link", &format!("{}/1", device::name())]);
    let report = json("bareverbs", &["resources", "--json"]);
    let port = &report[0]["ports"][0];
    assert_eq!(port["port"], 1);
    let counters = port["counters"].as_object().unwrap();
    assert_eq!(counters.contains_key("sent_pkts"), device::is_soft_roce(), "{port:#}");
    assert!(!counters.is_empty(), "{port:#}");
    for (name, value) in counters {
        let before = shown[0][name].as_u64().unwrap_or_else(|| panic!("no {name} in {shown:#}"));
        assert!(value.as_u64() >= Some(before), "{name}: {value}, and {before} before");
    }
}

#[kernel_test(device::soft_roce)]
fn watch_appends_json_lines() {
    let mut watcher = bareverbs(&["resources", "--json", "--watch", "0.2"]);
    let mut moment =
        || -> Value { serde_json::from_str(&watcher.line("{")).expect("each line is an object") };
    let sent = |moment: &Value| moment["devices"][0]["ports"][0]["counters"]["sent_pkts"].as_u64().unwrap();
    let first = moment();
    run_pingpong(Bareverbs(&["-n", "20"]), Bareverbs(&["-n", "20"])).expect_regular(4096, 20);
    let mut last = moment();
    let begin = Instant::now();
    while sent(&last) < sent(&first) + 40 {
        assert!(begin.elapsed() < LIMIT, "{first:#} and then {last:#}");
        let next = moment();
        let [then, now] = [&last, &next].map(|moment| moment["time"].as_f64().unwrap());
        assert!(now > then + 0.1, "{now} after {then}");
        last = next;
    }
    watcher.signal(Signal::SIGINT);
    assert_eq!(watcher.finish().status.code(), Some(130));
}

#[kernel_test]
fn watch_redraws_on_terminals_only() {
    const CLEAR: &str = "\u{1b}[H\u{1b}[2J";
    let draws_twice = |program: &str, arguments: &[&str], begin: &str| {
        let mut watcher = Program::start(Command::new(program).args(arguments));
        watcher.line(begin);
        watcher.line(begin);
        watcher.signal(Signal::SIGTERM);
        watcher.finish().stdout
    };
    let table = format!("{}: pd ", device::name());
    let page = draws_twice("bareverbs", &["resources", "-w", "0.3"], &table);
    assert!(!page.contains(CLEAR), "{page:?}");
    let terminal = "import pty; pty.spawn(['bareverbs', 'resources', '-w', '0.3'])";
    draws_twice("python3", &["-c", terminal], CLEAR);
}

#[kernel_test]
fn absent_device_is_refused() {
    for command in ["asyncwatch", "resources"] {
        let finished = bareverbs(&[command, "-d", "rxe7"]).finish();
        let known = finished.expect_failure("rxe7");
        assert!(known.stderr.contains(device::name()), "{known:#?}");
    }
}
