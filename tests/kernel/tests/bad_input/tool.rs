//! The program `bareverbs` with arguments that do not exist.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use bareverbs::values::Mtu;
use bareverbs_kernel_tests::child::NOBODY;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::root_only::RootOnly;

fn error_line(args: &[&str], output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} printed a result");
    assert_eq!(text.lines().count(), 1, "{args:?}: not one line: {text}");
    text.trim_end().strip_prefix("bareverbs: ").unwrap_or_else(|| panic!("{args:?}: {text}")).to_owned()
}

/// The program's error message, which is one line.
pub(crate) fn tool_error(args: &[&str]) -> String {
    error_line(args, &Command::new("bareverbs").args(args).output().unwrap())
}

#[kernel_test(device::shared_between_processes, device::moves_qps)]
fn tool_rejects_unsupported_options() {
    let name = device::name();
    let attr = device::open().query_device().unwrap();
    let port = device::open().query_port(1).unwrap();
    let unknown = format!("no RDMA device is named \"mlx9_9\"; the only device is {name}");
    let no_port = format!("device {name} has no port 3: its only port is 1");
    let last = (port.gid_tbl_len - 1).min(255).to_string();
    let too_many = (attr.max_qp_wr + 1).to_string();
    let mut cases: Vec<(&[&str], String)> = vec![
        (&["pingpong", "rc", "-d", "mlx9_9"], unknown.clone()),
        (&["devinfo", "-d", "mlx9_9"], unknown),
        (&["pingpong", "rc", "-i", "3"], no_port.clone()),
        (&["devinfo", "-i", "3"], no_port),
        (&["pingpong", "rc", "-g", "100000"], "GID index 100000 is above the maximum of 255".to_owned()),
        (
            &["pingpong", "rc", "-s", "0xffffffff"],
            format!("{name}: a message of 4294967295 bytes (-s) exceeds the"),
        ),
    ];
    let empty = ["pingpong", "rc", "-g", &last];
    cases.push((&empty, format!("GID index {last} of port 1 of device {name} is empty; filled entries: 0")));
    let deep = ["pingpong", "rc", "-r", &too_many];
    cases.push((&deep, format!("{name}: {too_many} receives (-r) ")));
    if port.active_mtu < Mtu::Mtu4096 {
        let words = format!("path MTU 4096 (-m) exceeds the MTU of port 1 (active_mtu {})", port.active_mtu);
        cases.push((&["pingpong", "rc", "-m", "4096"], format!("{name}: {words}")));
    }
    if attr.completion_timestamp_mask == 0 {
        cases.push((&["pingpong", "rc", "-t"], format!("{name}: -t requires completion timestamps")));
    }
    for (args, words) in cases {
        let line = nothing_leaks(|| tool_error(args));
        assert!(line.starts_with(&words), "{args:?}: {line}");
    }
}

#[kernel_test(device::not_instrumented, device::shared_between_processes)]
fn tool_names_the_inaccessible_device_node() {
    let root_only = RootOnly::new();
    let [start, end] = root_only.words();
    for args in [&["pingpong", "rc"][..], &["devinfo"], &["devinfo", "-d", device::name()]] {
        let mut command = Command::new("bareverbs");
        let output = nothing_leaks(|| command.args(args).uid(NOBODY).gid(NOBODY).output().unwrap());
        let line = error_line(args, &output);
        assert!(line.starts_with(&start) && line.ends_with(&end), "{args:?}: {line}");
    }
    // Listing devices needs no permission.
    let list = Command::new("bareverbs").arg("devices").uid(NOBODY).gid(NOBODY).output().unwrap();
    let listed = String::from_utf8_lossy(&list.stdout);
    assert!(list.status.success() && listed.contains(device::name()), "{list:?}");
}
