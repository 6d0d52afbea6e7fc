//! `bareverbs trace` of the C programs of rdma-core and of `bareverbs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bareverbs_interop_tests::pingpong::{Bareverbs, HOST, PORT, Pingpong, RdmaCore, wait_until_listening};
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// A file of one test.
fn file(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("bareverbs-trace-{test}"))
}

/// `bareverbs trace` with JSON to a file.
fn trace(test: &str, target: &[&str]) -> Command {
    let mut command = Command::new("bareverbs");
    command.args(["trace", "--format", "json", "-o"]).arg(file(test)).args(target);
    command
}

/// The calls in the file of a test, which is removed.
fn calls(test: &str) -> Vec<Value> {
    let text = fs::read_to_string(file(test)).unwrap();
    fs::remove_file(file(test)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn traced(test: &str, program: &[&str]) -> (Finished, Vec<Value>) {
    let finished = Program::start(&mut trace(test, program)).finish();
    (finished, calls(test))
}

/// The calls of a method or command.
fn named<'a>(calls: &'a [Value], names: &[&str]) -> Vec<&'a Value> {
    calls.iter().filter(|call| names.iter().any(|name| call["name"] == *name)).collect()
}

fn names(calls: &[Value]) -> BTreeSet<&str> {
    calls.iter().filter_map(|call| call["name"].as_str()).collect()
}

/// The value of an attribute of an ioctl.
fn attribute<'a>(decoded: &'a Value, name: &str) -> &'a Value {
    let attributes = decoded["attributes"].as_array().unwrap_or_else(|| panic!("no attributes: {decoded}"));
    let found = attributes.iter().find(|attribute| attribute["name"] == name);
    &found.unwrap_or_else(|| panic!("no {name}: {decoded}"))["value"]
}

/// All calls have times, a known file and a decoded message.
fn expect_decoded(calls: &[Value]) {
    for call in calls {
        assert!(call["duration_ns"].as_u64().is_some_and(|time| time > 0), "{call}");
        let file = call["file"].as_str().unwrap();
        assert!([device::name(), "rdma_cm", "netlink", "events"].contains(&file), "{call}");
        let decoded = [&call["before"], &call["after"]];
        let text = decoded.iter().find_map(|decoded| decoded["text"].as_str());
        let failed = call["result"].as_i64() < Some(0);
        assert!(failed || text.is_some_and(|text| !text.contains("malformed")), "{call}");
    }
}

#[kernel_test]
fn devinfo_of_rdma_core_is_decoded() {
    let plain = Program::start(Command::new("ibv_devinfo").arg("-v")).finish().expect_success();
    let (finished, calls) = traced("devinfo", &["ibv_devinfo", "-v"]);
    assert_eq!(finished.expect_success().stdout, plain.stdout);
    expect_decoded(&calls);
    let names = names(&calls);
    assert!(names.contains("GetContext"), "{names:?}");
    let queries = named(&calls, &["QueryDevice", "ex::QueryDevice"]);
    assert!(queries.iter().any(|call| call["result"].as_i64() >= Some(0)), "{names:?}");
    assert!(!named(&calls, &["QueryPort"]).is_empty(), "{names:?}");
    // The device is found by RDMA netlink, whose answer has its name.
    let netlink: Vec<_> = calls.iter().filter(|call| call["file"] == "netlink").collect();
    let text: String = netlink.iter().filter_map(|call| call["after"]["text"].as_str()).collect();
    assert!(text.contains(device::name()), "{netlink:?}");
}

#[kernel_test]
fn own_devinfo_is_decoded() {
    let (finished, calls) = traced("own", &["bareverbs", "devinfo", "-v"]);
    finished.expect_success();
    expect_decoded(&calls);
    let context = named(&calls, &["GetContext"])[0];
    assert_eq!((&context["call"], &context["result"]), (&"ioctl".into(), &0.into()));
    let vectors = attribute(&context["after"], "NUM_COMP_VECTORS").as_u64();
    assert!(vectors.is_some_and(|vectors| vectors > 0), "{context}");
    assert!(attribute(&context["before"], "NUM_COMP_VECTORS")["address"].is_string(), "{context}");
}

struct Traced<'a> {
    test: &'a str,
    program: Pingpong<'a>,
}

impl Traced<'_> {
    fn run(self, host: Option<&str>) -> Program {
        let command = self.program.command(host);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
        Program::start(&mut trace(self.test, &words))
    }
}

#[kernel_test]
fn pingpong_of_rdma_core_is_decoded() {
    let mut server = Traced { test: "pingpong", program: RdmaCore(&["-n", "20"]) }.run(None);
    wait_until_listening(&mut server, PORT);
    let client = Program::start(&mut RdmaCore(&["-n", "20"]).command(Some(HOST)));
    client.finish().expect_success();
    server.finish().expect_success();
    let calls = calls("pingpong");
    expect_decoded(&calls);
    let modify = named(&calls, &["ModifyQp", "ex::ModifyQp"]);
    let text: Vec<_> = modify.iter().map(|call| call["before"].to_string()).collect();
    assert_eq!(text.len(), 3, "{:?}", names(&calls));
    for (text, state) in text.iter().zip(["INIT", "RTR", "RTS"]) {
        assert!(text.contains(&format!("\"name\":\"{state}\"")), "{text}");
    }
    // libibverbs tries the method REG_MR first, which kernels before 7.2 lack.
    let registered = named(&calls, &["RegMr"]).into_iter().filter(|call| call["error"].is_null());
    assert_eq!(registered.count(), 1, "{:?}", names(&calls));
    // The part of the driver is decoded by field.
    let create = named(&calls, &["CreateCq", "ex::CreateCq", "CqCreate"])[0];
    let field = if device::is_soft_roce() { "\"mi\":{" } else { "\"cqn\":" };
    assert!(create["after"].to_string().contains(field), "{create}");
    assert!(!named(&calls, &["DestroyQp", "QpDestroy"]).is_empty(), "{:?}", names(&calls));
}

#[kernel_test(device::ethernet)]
fn threads_and_connection_manager_are_followed() {
    let mut server = Program::start(&mut trace("threads", &["rping", "-s", "-C", "3", "-p", "7411"]));
    let address = "10.1.0.1";
    let deadline = Instant::now() + LIMIT;
    // The server listens when a client reaches it.
    loop {
        let client =
            Program::start(Command::new("rping").args(["-c", "-a", address, "-C", "3", "-p", "7411"]))
                .finish();
        if client.status.success() {
            break;
        }
        assert!(!server.has_ended() && Instant::now() < deadline, "{client:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.finish();
    let calls = calls("threads");
    expect_decoded(&calls);
    let names = names(&calls);
    for name in ["CreateId", "Listen", "GetEvent", "Accept"] {
        assert!(names.contains(name), "no {name}: {names:?}");
    }
    let threads: BTreeSet<_> = calls.iter().map(|call| call["thread"].as_i64()).collect();
    let processes: BTreeSet<_> = calls.iter().map(|call| call["process"].as_i64()).collect();
    assert!(threads.len() > 1 && processes.len() == 1, "{threads:?} of {processes:?}");
    let events: Vec<_> = named(&calls, &["GetEvent"]).iter().map(|call| call["after"].to_string()).collect();
    assert!(events.iter().any(|event| event.contains("CONNECT_REQUEST")), "{events:?}");
}

#[kernel_test]
fn children_are_followed() {
    let script = "ibv_devinfo >/dev/null & bareverbs devinfo >/dev/null && wait";
    let (finished, calls) = traced("children", &["sh", "-c", script]);
    finished.expect_success();
    expect_decoded(&calls);
    let contexts = named(&calls, &["GetContext"]);
    let processes: BTreeSet<_> = contexts.iter().map(|call| call["process"].as_i64()).collect();
    assert!(processes.len() >= 2, "{contexts:?}");
}

#[kernel_test]
fn killed_program_ends_the_trace() {
    let script = "echo pid $$; exec bareverbs asyncwatch";
    let mut tracer = Program::start(&mut trace("killed", &["sh", "-c", script]));
    let pid: i32 = tracer.line("pid ").trim_start_matches("pid ").parse().unwrap();
    let deadline = Instant::now() + LIMIT;
    // The file has the calls up to now.
    while !fs::read_to_string(file("killed")).unwrap_or_default().contains("GetContext") {
        assert!(!tracer.has_ended() && Instant::now() < deadline, "the program opens its device");
        std::thread::sleep(Duration::from_millis(5));
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let finished = tracer.finish();
    assert_eq!(finished.status.code(), Some(128 + 9), "{finished:?}");
    let calls = calls("killed");
    assert!(!named(&calls, &["GetContext"]).is_empty());
}

#[kernel_test]
fn running_process_is_traced_until_it_ends() {
    let program = RdmaCore(&["-n", "20"]);
    let server = program.serve(PORT);
    let id = server.id().to_string();
    let tracer = Program::start(&mut trace("running", &["-p", &id]));
    let is_traced = || {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        status.contains(&format!("TracerPid:\t{}\n", tracer.id()))
    };
    let deadline = Instant::now() + LIMIT;
    while !is_traced() {
        assert!(Instant::now() < deadline, "the tracer attaches");
        std::thread::sleep(Duration::from_millis(5));
    }
    Program::start(&mut program.command(Some(HOST))).finish().expect_success();
    tracer.finish().expect_success();
    server.finish().expect_success();
    let calls = calls("running");
    expect_decoded(&calls);
    // INIT was before the tracer.
    assert_eq!(named(&calls, &["ModifyQp", "ex::ModifyQp"]).len(), 2, "{:?}", names(&calls));
}

#[kernel_test]
fn summary_counts_each_method() {
    let output = file("summary");
    let mut command = Command::new("bareverbs");
    command
        .args(["trace", "--summary", "--format", "json", "-o"])
        .arg(&output)
        .args(["bareverbs", "devinfo"]);
    Program::start(&mut command).finish().expect_success();
    let text = fs::read_to_string(&output).unwrap();
    fs::remove_file(output).unwrap();
    let summary: Value = serde_json::from_str(&text).unwrap();
    let context = &summary["methods"]["GetContext"];
    assert!(context["calls"].as_u64() >= Some(1) && context["errors"] == 0, "{summary}");
    assert!(context["total_ns"].as_u64() >= context["max_ns"].as_u64(), "{summary}");
}

/// Records a program, and returns the recording, which the test removes.
fn record(test: &str, program: &Command) -> (Program, PathBuf) {
    let recording = file(test);
    let mut command = Command::new("bareverbs");
    command.args(["trace", "-o", "/dev/null", "--record"]).arg(&recording);
    command.arg(program.get_program()).args(program.get_args());
    (Program::start(&mut command), recording)
}

/// Replays a recording and removes it.
fn replay(recording: &PathBuf) -> (Finished, Value) {
    let mut command = Command::new("bareverbs");
    let finished = Program::start(command.args(["replay", "--format", "json"]).arg(recording)).finish();
    fs::remove_file(recording).unwrap();
    let result =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    (finished, result)
}

fn expect_same(recording: &PathBuf, least: u64) {
    let (finished, result) = replay(recording);
    assert_eq!(finished.status.code(), Some(0), "{result}");
    assert!(result["same"].as_u64() >= Some(least) && result["difference"].is_null(), "{result}");
}

#[kernel_test]
fn recorded_devinfo_replays() {
    for (program, test) in [("bareverbs devinfo -v", "record-own"), ("ibv_devinfo -v", "record-c")] {
        let mut words = program.split(' ');
        let mut command = Command::new(words.next().unwrap());
        let (program, recording) = record(test, command.args(words));
        program.finish().expect_success();
        expect_same(&recording, 3);
    }
}

#[kernel_test]
fn recorded_pingpong_replays() {
    for (test, program) in [
        ("record-own-pingpong", Bareverbs(&["-n", "20", "-e"])),
        ("record-c-pingpong", RdmaCore(&["-n", "20", "-e"])),
    ] {
        let (mut server, recording) = record(test, &program.command(None));
        wait_until_listening(&mut server, PORT);
        Program::start(&mut program.command(Some(HOST))).finish().expect_success();
        server.finish().expect_success();
        nothing_leaks(|| expect_same(&recording, 15));
    }
}

#[kernel_test(device::ethernet)]
fn recorded_rping_replays_up_to_its_peer() {
    let mut command = Command::new("rping");
    let (mut server, recording) = record("record-rping", command.args(["-s", "-C", "3", "-p", "7412"]));
    let deadline = Instant::now() + LIMIT;
    // The server listens when a client reaches it.
    while !Program::start(Command::new("rping").args(["-c", "-a", "10.1.0.1", "-C", "3", "-p", "7412"]))
        .finish()
        .status
        .success()
    {
        assert!(!server.has_ended() && Instant::now() < deadline, "the server listens");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.finish();
    let (finished, result) = replay(&recording);
    assert_eq!(finished.status.code(), Some(0), "{result}");
    assert!(result["same"].as_u64() >= Some(10), "{result}");
    // Events and ACCEPT are not replayed; creation of the identifier, address and listening are.
    let skipped = |reason: &str| result["skipped"][reason].as_u64().unwrap_or(0);
    assert!(skipped("peer") >= 1 && skipped("time") >= 2, "{result}");
}

#[kernel_test]
fn recording_of_another_driver_is_refused() {
    let mut command = Command::new("bareverbs");
    let (program, recording) = record("record-driver", command.args(["devinfo"]));
    program.finish().expect_success();
    let text = fs::read_to_string(&recording).unwrap();
    let driver = if device::is_soft_roce() { "\"driver\":14}" } else { "\"driver\":1}" };
    assert!(text.contains(driver), "{text}");
    fs::write(&recording, text.replace(driver, "\"driver\":6}")).unwrap();
    let finished = Program::start(Command::new("bareverbs").arg("replay").arg(&recording)).finish();
    fs::remove_file(&recording).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains("use a device of the recorded driver"), "{finished:?}");
}

#[kernel_test]
fn changed_answer_is_reported() {
    let mut command = Command::new("bareverbs");
    let (program, recording) = record("record-changed", command.args(["devinfo", "-v"]));
    program.finish().expect_success();
    let text = fs::read_to_string(&recording).unwrap();
    // The last successful ioctl fails with EINVAL in the changed recording.
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    let is_ioctl = |line: &String| line.contains("\"call\":\"ioctl\"") && line.contains("\"result\":0");
    let changed = lines.iter().rposition(is_ioctl).unwrap();
    lines[changed] = lines[changed].replace("\"result\":0", "\"result\":-22");
    fs::write(&recording, lines.join("\n")).unwrap();
    let (finished, result) = replay(&recording);
    assert_eq!(finished.status.code(), Some(1), "{result}");
    let difference = &result["difference"];
    assert_eq!(difference["line"], changed + 1, "{result}");
    assert_eq!(
        (&difference["place"], &difference["recorded"], &difference["here"]),
        (&"result".into(), &"-1 EINVAL".into(), &"0".into())
    );
}
