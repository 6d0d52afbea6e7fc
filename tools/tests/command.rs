//! Tests of the program's command line that need no device.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(args).output().expect("the program starts")
}

fn complaint(args: &[&str], status: i32) -> String {
    let output = run(args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} printed a result");
    text
}

#[test]
fn invalid_command_line_exits_with_2() {
    for args in [
        &[][..],
        &["pingpong"],
        &["pingpong", "rc", "-p", "70000"],
        &["pingpong", "rc", "-i", "0"],
        &["pingpong", "rc", "-m", "1500"],
        &["pingpong", "rc", "-n", "0"],
        &["pingpong", "rc", "-r", "0"],
        &["pingpong", "rc", "-s", "0"],
        &["pingpong", "rc", "-x"],
        &["pingpong", "rc", "one", "two"],
        &["devinfo", "-i", "0"],
    ] {
        assert!(complaint(args, 2).contains("--help"), "{args:?}");
    }
}

#[test]
fn contradicting_options_are_refused_with_or_without_a_device() {
    for (args, words) in [
        (["pingpong", "rc", "-o", "-j"], "cannot be on demand"),
        (["pingpong", "rc", "-O", "-j"], "cannot be on demand"),
        (["pingpong", "rc", "-P", "-c"], "requires on-demand memory"),
    ] {
        assert!(complaint(&args, 1).contains(words), "{args:?}");
    }
}

#[test]
fn unknown_device_is_reported() {
    for args in [&["pingpong", "rc", "-d", "nosuch7"][..], &["devinfo", "-d", "nosuch7"]] {
        assert!(complaint(args, 1).contains("nosuch7"), "{args:?}");
    }
}

#[test]
fn device_listing_prints_its_header_without_devices() {
    let output = run(&["devices"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        text.starts_with("    device          \t   node GUID\n    ------          \t----------------\n"),
        "{text}"
    );
    let json = run(&["devices", "--json"]).stdout;
    assert!(serde_json::from_slice::<serde_json::Value>(&json).unwrap().is_array());
}

#[test]
fn help_shows_every_option() {
    let text = String::from_utf8(run(&["pingpong", "rc", "--help"]).stdout).unwrap();
    for option in ["-p, --port", "-d, --ib-dev", "-s, --size", "-g, --gid-idx", "-N, --new_send", "--json"] {
        assert!(text.contains(option), "{text}");
    }
}
