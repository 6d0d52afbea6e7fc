//! The program `bareverbs`, asked for what is not there.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use bareverbs_kernel_tests::child::NOBODY;
use bareverbs_kernel_tests::resources::nothing_leaks;

use crate::devices::RootOnly;

fn judge(args: &[&str], output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?} printed a result");
    assert_eq!(text.lines().count(), 1, "{args:?}: not one line: {text}");
    text.trim_end().strip_prefix("bareverbs: ").unwrap_or_else(|| panic!("{args:?}: {text}")).to_owned()
}

/// The one line that the program ends with.
pub(crate) fn complaint(args: &[&str]) -> String {
    judge(args, &Command::new("bareverbs").args(args).output().unwrap())
}

pub(crate) fn the_tool_refuses_what_the_device_does_not_have() {
    let cases: [(&[&str], &str); 10] = [
        (&["pingpong", "rc", "-d", "mlx5_9"], "no RDMA device is named \"mlx5_9\"; there is rxe0"),
        (&["devinfo", "-d", "mlx5_9"], "no RDMA device is named \"mlx5_9\"; there is rxe0"),
        (&["pingpong", "rc", "-i", "3"], "device rxe0 has no port 3: its ports are 1 only"),
        (&["devinfo", "-i", "3"], "device rxe0 has no port 3: its ports are 1 only"),
        (
            &["pingpong", "rc", "-g", "77"],
            "GID index 77 of port 1 of device rxe0 is empty; filled entries: 0, 1",
        ),
        (
            &["pingpong", "rc", "-g", "100000"],
            "GID index 100000 of port 1 of device rxe0 is outside the table of",
        ),
        (
            &["pingpong", "rc", "-m", "4096"],
            "rxe0: a path MTU of 4096 (-m) is above that of port 1 (active_mtu 1024)",
        ),
        (&["pingpong", "rc", "-s", "0xffffffff"], "rxe0: a message of 4294967295 bytes (-s) is longer than"),
        (
            &["pingpong", "rc", "-r", "40000"],
            "rxe0: 40000 receives (-r) and a send complete into more entries",
        ),
        (&["pingpong", "rc", "-t"], "rxe0: no completion timestamps"),
    ];
    for (args, words) in cases {
        let line = nothing_leaks(|| complaint(args));
        assert!(line.starts_with(words), "{args:?}: {line}");
    }
}

pub(crate) fn the_tool_tells_an_ordinary_user_of_the_node() {
    let root_only = RootOnly::new();
    let [start, end] = root_only.words();
    for args in [&["pingpong", "rc"][..], &["devinfo"], &["devinfo", "-d", "rxe0"]] {
        let mut command = Command::new("bareverbs");
        let output = nothing_leaks(|| command.args(args).uid(NOBODY).gid(NOBODY).output().unwrap());
        let line = judge(args, &output);
        assert!(line.starts_with(&start) && line.ends_with(&end), "{args:?}: {line}");
    }
    // The list needs no permission.
    let list = Command::new("bareverbs").arg("devices").uid(NOBODY).gid(NOBODY).output().unwrap();
    assert!(list.status.success() && String::from_utf8_lossy(&list.stdout).contains("rxe0"), "{list:?}");
}
