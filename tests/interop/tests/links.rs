//! `bareverbs link`, `dev`, `system`, `stat`, `status` and `monitor`, against `rdma` of iproute2; and a
//! link that goes down under `bareverbs perf` and `bareverbs pingpong`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_interop_tests::pingpong::{HOST, PORT, wait_until_listening};
use bareverbs_interop_tests::program::{Finished, LIMIT, Program};
use bareverbs_test_support::child::NOBODY;
use bareverbs_test_support::iproute2::attempt;
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{Completion, Outcome, Verdict, device, kernel_test, skip};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::unistd::chroot;
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// The name of the device that tests create.
const NEW: &str = "rxe_new";
/// The pair of network interfaces below it.
const NETDEV: &str = "bv0";
const PEER: &str = "bv1";

fn bareverbs(arguments: &[&str]) -> Finished {
    Program::start(Command::new("bareverbs").args(arguments)).finish()
}

fn succeed(program: &str, arguments: &[&str]) -> String {
    Program::start(Command::new(program).args(arguments)).finish().expect_success().stdout
}

fn json(program: &str, arguments: &[&str]) -> Value {
    let text = succeed(program, arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error} in {text}"))
}

/// The program's message as an unprivileged user.
fn as_nobody(arguments: &[&str]) -> Finished {
    Program::start(Command::new("bareverbs").args(arguments).uid(NOBODY).gid(NOBODY)).finish()
}

/// A pair of network interfaces, up and without an address. Drop removes the devices over it too.
struct Netdev;

impl Netdev {
    fn down() -> Self {
        succeed("ip", &["link", "add", NETDEV, "type", "veth", "peer", "name", PEER]);
        Self
    }

    fn up() -> Self {
        let made = Self::down();
        for name in [NETDEV, PEER] {
            succeed("ip", &["link", "set", "dev", name, "up"]);
        }
        made
    }
}

impl Drop for Netdev {
    fn drop(&mut self) {
        let _ = attempt("ip", &format!("link del {NETDEV}"));
    }
}

/// The names of the devices, as `rdma` lists them.
fn names() -> Vec<String> {
    let list = json("rdma", &["-j", "dev", "show"]);
    list.as_array().unwrap().iter().map(|row| row["ifname"].as_str().unwrap().to_owned()).collect()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        sleep(Duration::from_millis(20));
    }
}

/// A root file system with the program, `/dev` and `/sys`, and nothing else.
struct EmptyRoot(PathBuf);

impl EmptyRoot {
    fn new() -> Self {
        let root = Self(PathBuf::from("/tmp/empty-root"));
        for (folder, kind) in [("dev", "devtmpfs"), ("sys", "sysfs")] {
            let folder = root.0.join(folder);
            fs::create_dir_all(&folder).unwrap();
            mount(None::<&Path>, &folder, Some(kind), MsFlags::empty(), None::<&Path>).unwrap();
        }
        let path = std::env::var("PATH").unwrap_or_else(|_| "/bin:/usr/bin".into());
        let program = path.split(':').map(|folder| Path::new(folder).join("bareverbs"));
        let program = program.into_iter().find(|program| program.exists()).expect("the program is in PATH");
        fs::copy(program, root.0.join("bareverbs")).unwrap();
        root
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("/bareverbs");
        let root = self.0.clone();
        // SAFETY: chroot and chdir are system calls, which the child of a fork may make.
        unsafe {
            command.args(arguments).env_clear().pre_exec(move || {
                chroot(&root)?;
                std::env::set_current_dir("/")
            });
        }
        command
    }

    fn run(&self, arguments: &[&str]) -> String {
        Program::start(&mut self.command(arguments)).finish().expect_success().stdout
    }
}

impl Drop for EmptyRoot {
    fn drop(&mut self) {
        for folder in ["dev", "sys"] {
            let _ = umount2(&self.0.join(folder), MntFlags::MNT_DETACH);
        }
        // The mounts are gone, so only the program and empty folders are removed.
        let _ = fs::remove_file(self.0.join("bareverbs"));
        for folder in ["dev", "sys", ""] {
            let _ = fs::remove_dir(self.0.join(folder));
        }
    }
}

#[kernel_test(device::soft_roce)]
fn empty_root_brings_up_soft_roce_and_runs_traffic() {
    let root = EmptyRoot::new();
    let _netdev = Netdev::down();
    let add = ["link", "add", "--up", "--address", "10.9.0.1/24", "--wait", NEW, "type", "rxe", "netdev"];
    // The interface has no carrier while its peer is down.
    root.run(&["link", "add", "--up", "rxe_peer", "type", "rxe", "netdev", PEER]);
    root.run(&[&add[..], &[NETDEV]].concat());
    let status = root.run(&["status", NEW]);
    let line = status.lines().nth(1).expect("a line of the port");
    for word in [&format!("{NEW}/1"), "ACTIVE", NETDEV, "::ffff:10.9.0.1", "rxe"] {
        assert!(line.split_whitespace().any(|found| found == word), "no {word} in {status}");
    }
    let server = ["pingpong", "rc", "-d", NEW, "-p", "4790", "-n", "100", "-c"];
    let mut serving = Program::start(&mut root.command(&server));
    serving.line("  local address:");
    root.run(&[&server[..], &["127.0.0.1"]].concat());
    serving.finish().expect_success();
    root.run(&["link", "del", NEW]);
    root.run(&["link", "del", "rxe_peer"]);
    assert!(!names().iter().any(|name| name == NEW), "{:?}", names());
}

#[kernel_test(device::soft_roce)]
fn device_commands_run_in_an_empty_root() {
    let root = EmptyRoot::new();
    let _netdev = Netdev::up();
    let mut monitor = Program::start(&mut root.command(&["monitor", "--json"]));
    event(&mut monitor, &[("source", "monitor".into())]);
    root.run(&["link", "add", NEW, "type", "rxe", "netdev", NETDEV]);
    event(&mut monitor, &[("source", "port".into()), ("device", NEW.into())]);
    let port = format!("{NEW}/1");
    for (arguments, word) in [
        (&["link", "show", NEW][..], NETDEV),
        (&["dev", "show", NEW], "node_guid"),
        (&["system", "show"], "netns"),
        (&["stat", "show", "link", &port], "rcvd_pkts"),
        (&["stat", "qp", "show"], ""),
        (&["stat", "mr"], ""),
        (&["status", &port], NETDEV),
        (&["devices"], NEW),
        (&["devinfo", "-d", NEW], "PORT_ACTIVE"),
        (&["resources", "-d", NEW], NEW),
        (&["completions", "bash"], "complete -F"),
        (&["completions", "zsh"], "#compdef bareverbs"),
        (&["man"], ".TH bareverbs"),
    ] {
        let output = root.run(arguments);
        assert!(output.contains(word), "no {word} of {arguments:?} in {output}");
    }
    let pages = root.0.join("pages");
    root.run(&["man", "--dir", "/pages"]);
    let written = fs::read_dir(&pages).unwrap().count();
    fs::remove_dir_all(&pages).unwrap();
    assert!(written > 10, "{written} pages");
    root.run(&["dev", "set", NEW, "name", "rxe_other"]);
    root.run(&["link", "del", "rxe_other"]);
    event(
        &mut monitor,
        &[("source", "uevent".into()), ("action", "remove".into()), ("subsystem", "infiniband".into())],
    );
    end(monitor);
    assert!(!names().iter().any(|name| name == "rxe_other"), "{:?}", names());
}

#[kernel_test]
fn link_show_matches_rdma_link_show() {
    let mine = json("bareverbs", &["link", "--json"]);
    let theirs = json("rdma", &["-j", "-d", "link", "show"]);
    let (mine, theirs) = (mine.as_array().unwrap(), theirs.as_array().unwrap());
    assert_eq!(mine.len(), theirs.len(), "{mine:#?} and {theirs:#?}");
    for (mine, theirs) in mine.iter().zip(theirs) {
        for (field, value) in mine.as_object().unwrap() {
            assert_eq!(value, &theirs[field], "{field}: {mine:#} and {theirs:#}");
        }
        for field in ["ifindex", "ifname", "port", "state", "physical_state"] {
            assert!(!mine[field].is_null(), "{field}: {mine:#}");
        }
    }
    let one = format!("{}/1", device::name());
    let text = succeed("bareverbs", &["link", "show", &one]);
    let theirs = succeed("rdma", &["link", "show", &one]);
    assert_eq!(text.trim_end(), theirs.trim_end());
}

#[kernel_test]
fn dev_show_matches_rdma_dev_show() {
    let mine = json("bareverbs", &["dev", "--json"]);
    let theirs = json("rdma", &["-j", "-d", "dev", "show"]);
    for (mine, theirs) in mine.as_array().unwrap().iter().zip(theirs.as_array().unwrap()) {
        for (field, value) in mine.as_object().unwrap() {
            // iproute2 prints settings as words in some versions.
            let same = match value {
                Value::Bool(on) => theirs[field] == *on || theirs[field] == if *on { "on" } else { "off" },
                value => value == &theirs[field],
            };
            assert!(same, "{field}: {mine:#} and {theirs:#}");
        }
        assert_eq!(mine["node_type"], "ca");
    }
    let shown = succeed("bareverbs", &["dev", "show", device::name()]);
    assert!(shown.contains(&format!(": {}: node_type ca ", device::name())), "{shown}");
}

#[kernel_test]
fn system_show_matches_rdma_system_show() {
    let mine = json("bareverbs", &["system", "--json"]);
    let words = |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
    let text = succeed("bareverbs", &["system", "show"]);
    // `rdma` prints no JSON here, and older versions know fewer settings.
    let theirs = words(&succeed("rdma", &["system", "show"]));
    let ours = words(&text);
    for setting in theirs.chunks(2) {
        assert!(ours.chunks(2).any(|own| own == setting), "{setting:?}: {ours:?} and {theirs:?}");
    }
    for (name, value) in mine.as_object().unwrap() {
        let word = match value {
            Value::Bool(on) => {
                if *on {
                    "on"
                } else {
                    "off"
                }
            }
            value => value.as_str().unwrap(),
        };
        assert!(ours.chunks(2).any(|own| own == [name.as_str(), word]), "{name}: {ours:?} and {mine:#}");
    }
}

#[kernel_test]
fn stat_show_matches_rdma_statistic_show() {
    let one = format!("{}/1", device::name());
    let before = json("rdma", &["-j", "statistic", "show", "link", &one]);
    let mine = json("bareverbs", &["stat", "show", "link", &one, "--json"]);
    let counters = mine[0]["counters"].as_object().unwrap();
    assert!(!counters.is_empty(), "{mine:#}");
    assert_eq!((&mine[0]["ifname"], &mine[0]["port"]), (&device::name().into(), &1.into()));
    for (name, value) in counters {
        let before = before[0][name].as_u64().unwrap_or_else(|| panic!("no {name} in {before:#}"));
        assert!(value.as_u64() >= Some(before), "{name}: {value}, and {before} before");
    }
    let text = succeed("bareverbs", &["stat"]);
    assert!(text.starts_with(&format!("link {one}\n    ")), "{text}");
}

#[kernel_test]
fn optional_counters_are_switched_or_refused() -> Outcome {
    let one = format!("{}/1", device::name());
    // The enabled optional counters: none by default.
    let optional = json("bareverbs", &["stat", "mode", "--json"]);
    assert_eq!(optional[0]["optional-counters"], Value::Array(vec![]));
    let supported = json("bareverbs", &["stat", "mode", "supported", "--json"]);
    let theirs = succeed("rdma", &["statistic", "mode", "supported"]);
    for name in supported[0]["optional-counters"].as_array().unwrap() {
        assert!(theirs.contains(name.as_str().unwrap()), "no {name} in {theirs}");
    }
    match supported[0]["optional-counters"][0].as_str() {
        Some(name) => {
            let set = bareverbs(&["stat", "set", "link", &one, "optional-counters", name]);
            if !set.status.success() {
                set.expect_failure("Operation not supported");
                return skip("the driver lists optional counters that the device can't count");
            }
            let on = json("bareverbs", &["stat", "mode", "link", &one, "--json"]);
            assert_eq!(on[0]["optional-counters"], serde_json::json!([name]));
            succeed("bareverbs", &["stat", "unset", "link", &one, "optional-counters"]);
            let off = json("bareverbs", &["stat", "mode", "link", &one, "--json"]);
            assert_eq!(off[0]["optional-counters"], Value::Array(vec![]));
        }
        None => {
            succeed("bareverbs", &["stat", "unset", "link", &one, "optional-counters"]);
            let refused = bareverbs(&["stat", "set", "link", &one, "optional-counters", "cc_rx_ce_pkts"])
                .expect_failure("has no optional counter \"cc_rx_ce_pkts\"");
            assert!(refused.stderr.contains("it has no optional counters"), "{refused:#?}");
        }
    }
    Ok(Completion::Completed)
}

#[kernel_test]
fn qp_counter_modes_match_rdma_statistic_qp_mode() {
    let text = succeed("bareverbs", &["stat", "qp", "mode"]);
    let theirs = succeed("rdma", &["statistic", "qp", "mode"]);
    // iproute2 doesn't print the optional counters in manual mode and without a mode.
    let ours: Vec<_> = text.lines().map(|line| line.split(" optional-counters").next().unwrap()).collect();
    let theirs: Vec<_> = theirs.lines().map(str::trim_end).collect();
    assert_eq!(ours, theirs);
}

#[kernel_test]
fn qp_counters_are_bound_or_refused() {
    let one = format!("{}/1", device::name());
    let no_port = bareverbs(&["stat", "qp", "set", "link", device::name(), "auto", "type", "on"])
        .expect_failure("the port is missing");
    assert!(no_port.stdout.is_empty());
    let port = format!("{}/7", device::name());
    bareverbs(&["stat", "qp", "set", "link", &port, "auto", "type", "on"]).expect_failure("has no port 7");
    bareverbs(&["stat", "qp", "unbind", "link", &one, "cntn", "4711"])
        .expect_failure("has no QP counter 4711");
    let no_qp = bareverbs(&["stat", "qp", "bind", "link", &one, "lqpn", "16777214"])
        .expect_failure("binding QP 16777214 of port 1");
    assert!(no_qp.stdout.is_empty());
    assert_eq!(json("bareverbs", &["stat", "qp", "show", "--json"]), Value::Array(vec![]));
    assert_eq!(json("bareverbs", &["stat", "mr", "--json"]).as_array().map(Vec::len), Some(0));
}

#[kernel_test]
fn status_has_a_line_per_port() {
    nothing_leaks(|| {
        let rows = json("bareverbs", &["status", "--json"]);
        let row = &rows[0];
        assert_eq!((&row["device"], &row["port"]), (&device::name().into(), &1.into()));
        assert_eq!(row["state"], "ACTIVE");
        let gid = device::gid().to_string();
        assert_eq!((&row["gid"], &row["gid_index"]), (&gid.into(), &device::gid_index().into()));
        let mtu = device::open().query_port(1).unwrap().active_mtu.bytes();
        assert_eq!(row["mtu"], mtu);
        let rate = device::read_sysfs("ports/1/rate");
        let rate: f64 = rate.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(row["rate"].as_f64(), Some(rate));
        assert_eq!(row["driver"], if device::is_soft_roce() { "rxe" } else { "mlx5" });
        if device::is_infiniband() {
            assert!(row["netdev"].is_null(), "{row:#}");
        } else {
            assert_eq!(row["netdev"], device::netdev());
        }
        let text = succeed("bareverbs", &["status", &format!("{}/1", device::name())]);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("DEVICE/PORT"), "{text}");
        // An unprivileged user may not open the device everywhere; the line is there anyway.
        let shown = as_nobody(&["status"]).expect_success().stdout;
        assert!(shown.contains(&format!("{}/1", device::name())), "{shown}");
    });
}

#[kernel_test(device::soft_roce)]
fn links_are_interchangeable_with_rdma() {
    let _netdev = Netdev::up();
    succeed("bareverbs", &["link", "add", NEW, "type", "rxe", "netdev", NETDEV]);
    let shown = json("rdma", &["-j", "link", "show", &format!("{NEW}/1")]);
    assert_eq!((&shown[0]["ifname"], &shown[0]["netdev"]), (&NEW.into(), &NETDEV.into()));
    succeed("rdma", &["link", "delete", NEW]);
    assert!(!names().iter().any(|name| name == NEW));
    succeed("rdma", &["link", "add", NEW, "type", "rxe", "netdev", NETDEV]);
    let shown = json("bareverbs", &["link", "show", NEW, "--json"]);
    assert_eq!((&shown[0]["ifname"], &shown[0]["netdev"]), (&NEW.into(), &NETDEV.into()));
    succeed("bareverbs", &["link", "delete", NEW]);
    assert!(!names().iter().any(|name| name == NEW));
}

#[kernel_test(device::soft_roce)]
fn devices_are_renamed() {
    let _netdev = Netdev::up();
    succeed("bareverbs", &["link", "add", NEW, "type", "rxe", "netdev", NETDEV]);
    succeed("bareverbs", &["dev", "set", NEW, "name", "other"]);
    assert!(names().contains(&"other".to_owned()), "{:?}", names());
    bareverbs(&["dev", "set", "other", "name", device::name()]).expect_failure("the device name is taken");
    bareverbs(&["dev", "set", NEW, "name", "third"]).expect_failure("no RDMA device is named \"rxe_new\"");
    bareverbs(&["dev", "set", "other", "name", "a/b"]).expect_failure("it must not contain '/'");
    succeed("bareverbs", &["link", "del", "other"]);
}

#[kernel_test]
fn adaptive_moderation_is_switched() {
    let setting =
        || json("bareverbs", &["dev", "show", device::name(), "--json"])[0]["adaptive-moderation"].clone();
    let before = setting();
    let switch = |on: bool| {
        let word = if on { "on" } else { "off" };
        succeed("bareverbs", &["dev", "set", device::name(), "adaptive-moderation", word]);
        assert_eq!(setting(), on);
    };
    switch(true);
    switch(false);
    switch(before == true);
}

#[kernel_test]
fn privileged_qkeys_are_switched_or_unsupported() {
    let setting = || json("bareverbs", &["system", "--json"])["privileged-qkey"].clone();
    if setting().is_null() {
        bareverbs(&["system", "set", "privileged-qkey", "on"])
            .expect_failure("not supported by this kernel or device");
        return;
    }
    for (word, on) in [("on", true), ("off", false)] {
        succeed("bareverbs", &["system", "set", "privileged-qkey", word]);
        assert_eq!(setting(), on);
    }
}

/// A process in a network namespace of its own.
struct Namespace(Program);

impl Namespace {
    fn new() -> Self {
        let mut holder =
            Program::start(Command::new("unshare").args(["--net", "sh", "-c", "echo ready; exec sleep 600"]));
        holder.line("ready");
        Self(holder)
    }

    fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// The names of the devices that are visible in it.
    fn devices(&self) -> Vec<String> {
        let list = json("nsenter", &["--target", &self.id(), "--net", "bareverbs", "dev", "--json"]);
        list.as_array().unwrap().iter().map(|row| row["ifname"].as_str().unwrap().to_owned()).collect()
    }
}

#[kernel_test(device::soft_roce)]
fn devices_move_to_network_namespaces_or_the_reason_is_named() -> Outcome {
    let mode = || json("bareverbs", &["system", "--json"])["netns"].clone();
    assert_eq!(mode(), "shared");
    let _netdev = Netdev::up();
    succeed("bareverbs", &["link", "add", NEW, "type", "rxe", "netdev", NETDEV]);
    bareverbs(&["dev", "set", NEW, "netns", "nosuch"])
        .expect_failure("cannot open network namespace \"nosuch\" (/run/netns/nosuch)");
    bareverbs(&["dev", "set", NEW, "netns", "/proc/self/exe"])
        .expect_failure("the file is not a network namespace");
    {
        let other = Namespace::new();
        bareverbs(&["dev", "set", NEW, "netns", &other.id()]).expect_failure("set the mode to exclusive");
        bareverbs(&["system", "set", "netns", "exclusive"])
            .expect_failure("only while there is no network namespace beside the initial one");
    }
    // The kernel removes the namespace later.
    wait_for("the mode can't be changed", || {
        Program::start(Command::new("bareverbs").args(["system", "set", "netns", "exclusive"]))
            .finish()
            .status
            .success()
    });
    assert_eq!(mode(), "exclusive");
    let moved = {
        let other = Namespace::new();
        assert_eq!(other.devices(), Vec::<String>::new());
        let moved = bareverbs(&["dev", "set", NEW, "netns", &other.id()]);
        if moved.status.success() {
            assert_eq!(other.devices(), [NEW]);
            assert!(!names().iter().any(|name| name == NEW), "{:?}", names());
        }
        moved
    };
    wait_for("the mode can't be changed back", || {
        Program::start(Command::new("bareverbs").args(["system", "set", "netns", "shared"]))
            .finish()
            .status
            .success()
    });
    // The device of a removed namespace comes back.
    wait_for("the device does not come back", || names().iter().any(|name| name == NEW));
    succeed("bareverbs", &["link", "del", NEW]);
    if moved.status.success() {
        return ().outcome();
    }
    moved.expect_failure("the driver does not support it");
    skip("rxe of this kernel can't be moved")
}

#[kernel_test(device::soft_roce)]
fn refused_changes_name_the_reason() {
    let netdev = device::netdev();
    let add = |name: &str, kind: &str, netdev: &str| {
        bareverbs(&["link", "add", name, "type", kind, "netdev", netdev])
    };
    add(NEW, "rxe", "nosuch0").expect_failure("there is no such network interface");
    add(NEW, "nosuch", &netdev).expect_failure("the kernel does not have this type");
    add(NEW, "rxe", &netdev).expect_failure("the network interface has a device of this type already");
    let free = Netdev::up();
    add(device::name(), "rxe", NETDEV).expect_failure("the device name is taken");
    drop(free);
    add(NEW, "rxe", "an_interface_name").expect_failure("has 17 bytes; the maximum is 15");
    bareverbs(&["link", "del", NEW]).expect_failure("no RDMA device is named \"rxe_new\"");
    bareverbs(&["link", "show", &format!("{}/2", device::name())]).expect_failure("has no port 2");
    bareverbs(&["dev", "show", NEW]).expect_failure("no RDMA device is named \"rxe_new\"");
    bareverbs(&["status", NEW]).expect_failure("no RDMA device is named \"rxe_new\"");
    bareverbs(&["link", "add", "--address", "10.9.0.1/24", NEW, "type", "rxe", "netdev", "nosuch0"])
        .expect_failure("adding 10.9.0.1/24 to network interface nosuch0");
    // The interface is down, so the port does not become active.
    let _netdev = Netdev::down();
    let late = bareverbs(&["link", "add", "--wait=0.2", NEW, "type", "rxe", "netdev", NETDEV])
        .expect_failure("was created, but is not usable after 0.2 s");
    assert!(late.stderr.contains("no port is ACTIVE"), "{late:#?}");
    succeed("bareverbs", &["link", "del", NEW]);
}

#[kernel_test]
fn changes_need_privileges() {
    let one = format!("{}/1", device::name());
    for arguments in [
        &["link", "add", NEW, "type", "rxe", "netdev", "lo"][..],
        &["link", "add", "--up", NEW, "type", "rxe", "netdev", "lo"],
        &["link", "del", device::name()],
        &["dev", "set", device::name(), "name", NEW],
        &["dev", "set", device::name(), "adaptive-moderation", "on"],
        &["system", "set", "netns", "exclusive"],
        &["stat", "qp", "set", "link", &one, "auto", "off"],
        &["stat", "unset", "link", &one, "optional-counters"],
    ] {
        as_nobody(arguments).expect_failure("CAP_NET_ADMIN");
    }
    for arguments in [&["link"][..], &["dev"], &["system"], &["stat"], &["stat", "qp", "mode"]] {
        as_nobody(arguments).expect_success();
    }
}

/// The next line of a monitor that has these values.
fn event(monitor: &mut Program, wanted: &[(&str, Value)]) -> Value {
    loop {
        let line = monitor.line("{");
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(event["time"].as_f64().is_some_and(|time| time > 1e9), "{event:#}");
        if wanted.iter().all(|(field, value)| &event[*field] == value) {
            return event;
        }
    }
}

fn monitor() -> (Program, Value) {
    let mut monitor = Program::start(Command::new("bareverbs").args(["monitor", "--json"]));
    let start = event(&mut monitor, &[("source", "monitor".into())]);
    (monitor, start)
}

fn end(monitor: Program) -> Finished {
    monitor.signal(Signal::SIGINT);
    let finished = monitor.finish();
    assert_eq!(finished.status.code(), Some(130), "{finished:#?}");
    finished
}

#[kernel_test(device::soft_roce)]
fn monitor_prints_devices_that_come_and_go() {
    let _netdev = Netdev::up();
    let (mut monitor, start) = monitor();
    let rdma = start["watching"].as_array().unwrap().contains(&"rdma".into());
    assert_eq!(rdma, json("bareverbs", &["system", "--json"])["monitor"] == true);
    succeed("bareverbs", &["link", "add", NEW, "type", "rxe", "netdev", NETDEV]);
    let name: Value = NEW.into();
    event(&mut monitor, &[("source", "port".into()), ("device", name.clone())]);
    // The lines of the sources come in no fixed order, so one monitor reads each.
    let removed = if rdma {
        vec![("source", Value::from("rdma")), ("event", "UNREGISTER".into()), ("device", name)]
    } else {
        vec![
            ("source", Value::from("uevent")),
            ("action", "remove".into()),
            ("subsystem", "infiniband".into()),
            ("name", name),
        ]
    };
    succeed("bareverbs", &["link", "del", NEW]);
    event(&mut monitor, &removed);
    let text = end(monitor).stdout;
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |wanted: &[(&str, &str)]| {
        lines.iter().any(|line| wanted.iter().all(|(field, value)| line[*field] == **value))
    };
    assert!(
        has(&[("source", "uevent"), ("action", "add"), ("name", NEW), ("subsystem", "infiniband")]),
        "{text}"
    );
    if rdma {
        assert!(has(&[("source", "rdma"), ("event", "REGISTER"), ("device", NEW)]), "{text}");
    }
}

#[kernel_test(device::ethernet)]
fn monitor_prints_port_states() {
    let (mut monitor, _) = monitor();
    let (link, gid) = (device::netdev(), device::gid());
    for (word, state) in [("down", "DOWN"), ("up", "ACTIVE")] {
        succeed("ip", &["link", "set", "dev", &link, word]);
        event(
            &mut monitor,
            &[("source", "port".into()), ("device", device::name().into()), ("state", state.into())],
        );
    }
    // Later tests need the address at the same index.
    let context = device::open();
    wait_for("the address did not come back", || {
        context.default_gid(1).map(|entry| entry.gid).ok() == Some(gid)
    });
    let text = end(monitor).stdout;
    assert!(text.contains(r#""source":"netdev""#), "{text}");
    assert_eq!(text.contains(r#""source":"async""#), !device::is_soft_roce(), "{text}");
}

#[kernel_test]
fn monitor_works_without_privileges() {
    let mut monitor = Program::start(Command::new("bareverbs").arg("monitor").uid(NOBODY).gid(NOBODY));
    let start = monitor.line("monitor watching ");
    assert!(start.contains("uevent, netdev"), "{start}");
    end(monitor);
}

/// Packets that the port has sent.
fn sent_packets() -> u64 {
    let counters = ["hw_counters/sent_pkts", "counters/port_xmit_packets"].map(|file| {
        let path = device::sysfs(&format!("ports/1/{file}"));
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok())
    });
    counters.into_iter().flatten().sum()
}

/// Waits until traffic runs.
fn wait_for_traffic(client: &mut Program) {
    let (before, deadline) = (sent_packets(), Instant::now() + LIMIT);
    while sent_packets() < before + 1000 {
        assert!(!client.has_ended(), "the client has ended before the link goes down");
        assert!(Instant::now() < deadline, "there is no traffic");
        sleep(Duration::from_millis(5));
    }
}

#[kernel_test(device::ethernet)]
fn running_tools_name_a_link_that_goes_down() {
    let (netdev, address) = (device::netdev(), device::gid());
    let set = |state| succeed("ip", &["link", "set", "dev", &netdev, state]);
    let cause =
        format!("the link is down: port 1 of {} is DOWN: set its network interface up", device::name());
    let endless = &["-n", "1000000000"][..];
    let write = ["perf", "write", "bw", "-D", "90"];
    let send = ["perf", "send", "lat", "-D", "90"];
    let [rc, ud] = ["rc", "ud"].map(|kind| [&["pingpong", kind], endless].concat());
    for words in [&write[..], &send, &rc, &ud] {
        nothing_leaks(|| {
            let command = |host: &[&str]| {
                let mut command = Command::new("bareverbs");
                command.args(words).args(["-d", device::name()]).args(host);
                command
            };
            let mut server = Program::start(&mut command(&[]));
            wait_until_listening(&mut server, PORT);
            let mut client = Program::start(&mut command(&[HOST]));
            wait_for_traffic(&mut client);
            set("down");
            // The side that waits for a message notices nothing for 10 seconds.
            while !client.has_ended() && !server.has_ended() {
                sleep(Duration::from_millis(5));
            }
            let (ended, other) = if client.has_ended() { (client, server) } else { (server, client) };
            // A side may also end because the other has ended their connection.
            let mut ended = ended.finish();
            if !ended.stderr.contains(&cause) {
                ended = other.finish();
            }
            set("up");
            let begin = Instant::now();
            while device::open().default_gid(1).map(|entry| entry.gid).ok() != Some(address) {
                assert!(begin.elapsed() < LIMIT, "the address did not come back");
            }
            assert!(ended.stderr.contains(&cause), "{ended:#?}");
            assert_eq!(ended.status.code(), Some(1), "{ended:#?}");
        });
    }
}
