//! Tests of the program's command line that need no device.

use std::io::{BufRead, BufReader, Write};
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

/// A copy of a source to a server that does not exist.
fn refused_copy(source: &str) -> String {
    complaint(&["rcopy", "--json", source, "127.0.0.1:/nonexistent/copy"], 1)
}

#[test]
fn rcopy_refuses_what_has_no_size_before_it_connects() {
    assert!(refused_copy("/").contains("cannot copy /: it is a directory"));
    assert!(refused_copy("/dev/zero").contains("a character device has no size"));
    let socket = std::env::temp_dir().join(format!("bareverbs-socket-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let text = refused_copy(socket.to_str().unwrap());
    std::fs::remove_file(&socket).unwrap();
    drop(listener);
    assert!(text.contains("cannot open"), "{text}");
}

#[test]
fn rcopy_names_the_folder_that_has_no_room_for_a_pipe() {
    let script = "head -c 300000 /dev/zero | \"$1\" rcopy --json /dev/stdin 127.0.0.1:/nonexistent/copy";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_bareverbs")]).env("TMPDIR", "/nonexistent");
    let text = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(text.contains("cannot write /dev/stdin to /nonexistent (TMPDIR): No such file"), "{text}");
}

#[test]
fn errors_of_written_files_are_reported() {
    assert!(complaint(&["man", "--dir", "/dev/full"], 1).contains("cannot write the manual pages"));
    let output = run(&["trace", "-o", "/dev/full", "--summary", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("cannot write the trace: No space left"), "{text}");
    let output = run(&["trace", "--record", "/dev/full", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("cannot write"), "{text}");
}

/// Runs the program with a standard output whose reader has closed it. Returns its exit status and
/// standard error.
fn run_into_closed_pipe(args: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_bareverbs"));
    let output = command.args(args).stdout(writer).output().expect("the program starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn closed_output_ends_every_command_silently() {
    let file = std::env::temp_dir().join(format!("bareverbs-closed-{}", std::process::id()));
    std::fs::write(&file, [4, 0, 0, 0, 3, 0, 0, 0, 7, 0, 0, 0]).unwrap();
    let path = file.to_str().unwrap();
    for args in [
        &["devices"][..],
        &["devices", "--json"],
        &["devinfo", "--list"],
        &["devinfo", "--list", "--json"],
        &["completions", "bash"],
        &["man"],
        &["decode", "write", path],
        &["decode", "write", path, "--format", "json"],
        &["--help"],
        &["--version"],
        &["perf", "write", "bw", "--help"],
    ] {
        assert_eq!(run_into_closed_pipe(args), (Some(141), String::new()), "{args:?}");
    }
    std::fs::remove_file(&file).unwrap();
    let (status, text) = run_into_closed_pipe(&["devinfo", "-d", "nosuch7"]);
    assert_eq!((status, text.contains("nosuch7")), (Some(1), true), "an error is printed: {text}");
}

#[test]
fn trace_passes_on_output_exit_status_and_signals() {
    for (script, status, stdout) in [
        ("echo text; exit 7", 7, "text\n"),
        ("kill -9 $$", 137, ""),
        ("trap 'echo caught; exit 3' USR1; kill -USR1 $$; exit 4", 3, "caught\n"),
        // Children, one of which outlives the program's own calls.
        ("(sleep 0.1; echo late) & echo soon; wait; /bin/true && exit 5", 5, "soon\nlate\n"),
        ("trap '' PIPE; exec /bin/sh -c 'exit 6'", 6, ""),
    ] {
        let output = run(&["trace", "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(status), "{script}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{script}");
    }
    let output = run(&["trace", "no-such-program-7"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.contains("can't run")), (Some(127), true), "{text}");
}

#[test]
fn trace_of_a_missing_process_is_refused() {
    // Above the largest process id.
    let text = complaint(&["trace", "-p", "4194305"], 1);
    assert!(text.contains("it has ended"), "{text}");
}

#[test]
fn traced_processes_are_left_as_they_were() {
    let mut program = Command::new("sh")
        .args(["-c", "while read line; do echo $line; done"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = program.stdin.take().unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut echo = |text: &str| {
        writeln!(input, "{text}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), text);
    };
    echo("before");
    let id = program.id().to_string();
    let tracer = Command::new(env!("CARGO_BIN_EXE_bareverbs")).args(["trace", "-p", &id]).spawn().unwrap();
    let traced = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    };
    while !traced() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    echo("while");
    let second = complaint(&["trace", "-p", &id], 1);
    assert!(second.contains(&format!("process {} traces it already", tracer.id())), "{second}");
    assert!(Command::new("kill").args(["-INT", &tracer.id().to_string()]).status().unwrap().success());
    let output = tracer.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(!traced());
    echo("after");
    drop(input);
    assert!(program.wait().unwrap().success());
}
