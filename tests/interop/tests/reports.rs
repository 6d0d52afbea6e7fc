//! The reports of `bareverbs` about devices and runs, compared with the C programs, and as JSON.

use std::collections::BTreeMap;
use std::process::Command;

use bareverbs_interop_tests::pingpong::{Bareverbs, HOST, PORT, run_pingpong};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::{device, kernel_test};
use serde_json::Value;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

fn run(program: &str, arguments: &[&str]) -> Finished {
    Program::start(Command::new(program).args(arguments)).finish()
}

fn output(program: &str, arguments: &[&str]) -> String {
    run(program, arguments).expect_success().stdout
}

fn json(arguments: &[&str]) -> Value {
    let text = output("bareverbs", arguments);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error} in {text}"))
}

#[kernel_test]
fn devices_output_equals_ibv_devices() {
    assert_eq!(output("bareverbs", &["devices"]), output("ibv_devices", &[]));
}

/// `name: value` lines, and lines without a value under the name `""`.
fn fields(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut fields = BTreeMap::<String, Vec<String>>::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap_or(("", line));
        fields.entry(name.into()).or_default().push(value.trim().into());
    }
    fields
}

#[kernel_test]
fn devinfo_prints_the_values_of_ibv_devinfo() {
    for arguments in [&[][..], &["-v"], &["-d", device::name(), "-i", "1", "-v"]] {
        let ours = output("bareverbs", &[&["devinfo"], arguments].concat());
        let theirs = output("ibv_devinfo", arguments);
        let lines = |text: &str| text.lines().map(str::trim).filter(|line| !line.is_empty()).count();
        assert_eq!(lines(&ours), lines(&theirs), "{arguments:?}:\n{ours}\n{theirs}");
        let ours = fields(&ours);
        for (name, others) in fields(&theirs) {
            let values = ours.get(&name).unwrap_or_else(|| panic!("{arguments:?}: no {name}: {ours:#?}"));
            // Newer versions of the C program also print the network interface of a GID.
            let same = |(ours, theirs): (&String, &String)| {
                ours == theirs || name.starts_with("GID[") && ours.starts_with(&format!("{theirs}, "))
            };
            let all = values.len() == others.len() && values.iter().zip(&others).all(same);
            assert!(all, "{arguments:?}: {name}: {values:?} instead of {others:?}");
        }
    }
}

#[kernel_test]
fn devinfo_prints_the_fields_in_the_order_of_ibv_devinfo() {
    let names = |program: &str, arguments: &[&str]| -> Vec<String> {
        let text = output(program, arguments);
        let names = text.lines().map(|line| line.split_once(':').map_or(line, |(name, _)| name).to_owned());
        names.filter(|name| !name.trim().is_empty()).collect()
    };
    assert_eq!(names("bareverbs", &["devinfo", "-v"]), names("ibv_devinfo", &["-v"]));
}

#[kernel_test(device::ethernet)]
fn gids_are_shown_with_type_and_network_interface() {
    let port = &json(&["devinfo", "--json"])[0]["ports"][0];
    let gids = port["gids"].as_array().unwrap();
    let netdev = device::netdev();
    for gid in gids {
        assert!(["RoCE v2", "RoCE v1", "IB/RoCE v1"].contains(&gid["type"].as_str().unwrap()), "{gid}");
        assert_eq!(gid["netdev"], netdev);
    }
    let text = output("bareverbs", &["devinfo", "-v"]);
    let index = device::gid_index();
    assert!(text.contains(&format!("GID[{index:3}]:\t\t::ffff:{HOST}, RoCE v2, {netdev}\n")), "{text}");
}

#[kernel_test]
fn devinfo_lists_and_selects_devices() {
    assert_eq!(fields(&output("bareverbs", &["devinfo", "-l"])), fields(&output("ibv_devinfo", &["-l"])));
    run("bareverbs", &["devinfo", "-d", "rxe7"]).expect_failure("rxe7");
    run("bareverbs", &["devinfo", "-i", "3"]).expect_failure("port 3");
}

#[kernel_test]
fn devices_as_json() {
    let devices = json(&["devices", "--json"]);
    let guid = devices[0]["node_guid"].as_str().unwrap();
    assert_eq!(devices[0]["name"], device::name());
    assert!(output("ibv_devices", &[]).contains(guid), "{guid}");

    let report = &json(&["devinfo", "--json"])[0];
    let theirs = fields(&output("ibv_devinfo", &["-v"]));
    let number = |name: &str| theirs[name][0].parse::<u64>().unwrap();
    assert_eq!(report["name"], device::name());
    assert_eq!(report["driver"], if device::is_soft_roce() { "rxe" } else { "mlx5" });
    assert_eq!(report["transport"], "InfiniBand");
    assert_eq!(report["node_guid"], theirs["node_guid"][0]);
    for name in ["max_qp", "max_qp_wr", "max_cqe", "max_mr", "max_srq_wr"] {
        assert_eq!(report["limits"][name], number(name), "{name}");
    }
    let port = &report["ports"][0];
    assert_eq!((&port["port"], &port["state"]["name"]), (&1.into(), &"PORT_ACTIVE".into()));
    assert_eq!(port["active_mtu"].as_u64(), theirs["active_mtu"][0].split(' ').next().unwrap().parse().ok());
    assert_eq!(port["link_layer"], theirs["link_layer"][0]);
    let gids = port["gids"].as_array().unwrap();
    let chosen = gids.iter().find(|gid| gid["index"] == device::gid_index()).unwrap();
    assert_eq!(chosen["gid"], device::gid().to_string());
    if device::ethernet().is_ok() {
        assert_eq!(chosen["type"], "RoCE v2");
    }
    assert_eq!(json(&["devinfo", "-l", "--json"]), serde_json::json!([device::name()]));
}

/// With one SGE, a send WQE of Soft-RoCE has room for 16 bytes of inline data.
#[kernel_test(device::soft_roce)]
fn small_messages_go_inline() {
    for (size, inline) in [("1", true), ("16", true), ("17", false), ("64", false)] {
        let options = &["--json", "-n", "5", "-s", size][..];
        let run = run_pingpong(Bareverbs(options), Bareverbs(options));
        for side in [run.server, run.client].map(Finished::expect_success) {
            let report: Value = serde_json::from_str(&side.stdout).unwrap();
            assert_eq!(report["inline"], inline, "{size} bytes: {side:#?}");
        }
    }
}

#[kernel_test]
fn rc_json_output() {
    let options = &["--json", "-n", "100", "-s", "16", "-e", "-c"][..];
    // The server prints its lines when it exits, so the test does not wait for them.
    let run = run_pingpong(Bareverbs(options), Bareverbs(options));
    let sides = [run.server, run.client].map(|side| {
        let side = side.expect_success();
        serde_json::from_str::<Value>(&side.stdout).unwrap_or_else(|error| panic!("{error} in {side:#?}"))
    });
    for (side, name) in sides.iter().zip(["server", "client"]) {
        assert_eq!(side["side"], name);
        assert_eq!(side["device"], device::name());
        for (field, value) in [("port", 1), ("mtu", 1024), ("size", 16), ("iters", 100), ("bytes", 3200)] {
            assert_eq!(side[field], value, "{field} of {side:#}");
        }
        let (index, gid) = match device::is_infiniband() {
            true => (Value::Null, "::".to_owned()),
            false => (device::gid_index().into(), format!("::ffff:{HOST}")),
        };
        assert_eq!((&side["gid_index"], &side["local"]["gid"]), (&index, &gid.into()));
        assert_eq!(side["inline"], true);
        assert_eq!(side["check"], serde_json::json!({ "messages": 100, "data": "pattern" }));
        for field in ["seconds", "mbit_per_second", "usec_per_iter"] {
            assert!(side[field].as_f64().is_some_and(|value| value > 0.0), "{field} of {side:#}");
        }
    }
    // A side whose peer is always faster finds its completions without sleeping.
    let slept = sides.iter().map(|side| side["events"].as_u64().expect("a number")).sum::<u64>();
    assert!(slept > 0, "{sides:#?}");
    assert_eq!(sides[0]["local"], sides[1]["remote"]);
    assert_eq!(sides[1]["local"], sides[0]["remote"]);
    // An error is not JSON: standard output is empty, and standard error has the message.
    let failed = Program::start(&mut Bareverbs(&["--json", "-p", "1"]).command(Some(HOST))).finish();
    assert_eq!(failed.expect_failure("cannot connect").stdout, "", "port {PORT} was not meant");
}
