//! The documentation's examples that compile and don't run, each with a reason.

use std::fs;
use std::process::Command;

use crate::build;

/// Files, the number of examples of each that don't run, and why they don't.
const ALLOWED: &[(&str, usize, &str)] = &[
    ("conform/src/fuzz.rs", 1, "fuzzes the kernel for a minute"),
    ("docs/choosing.md", 1, "definitions that fit to each other by their letters"),
    ("docs/cookbook.md", 5, "a peer, and tasks that serve until they are stopped"),
    ("netlink/README.md", 1, "the kernel's RDMA netlink"),
    ("netlink/src/counters.rs", 1, "changes a device"),
    ("netlink/src/events.rs", 1, "waits for a change of a device"),
    ("netlink/src/links.rs", 2, "changes devices"),
    ("netlink/src/route.rs", 1, "changes network interfaces"),
    ("provider-mlx5/src/lib.rs", 1, "a ConnectX"),
    ("provider/src/device.rs", 1, "a device of the kernel"),
    ("rdmacm/README.md", 1, "two processes"),
    ("rdmacm/src/channel/attached.rs", 1, "waits for events without end"),
    ("rdmacm/src/connection.rs", 1, "a server that runs without end"),
    ("rdmacm/src/datagram/socket.rs", 1, "two hosts"),
    ("rdmacm/src/id.rs", 2, "a peer that accepts"),
    ("rdmacm/src/request.rs", 1, "a peer that connects"),
    ("rdmacm/src/stream/blocking.rs", 1, "a peer that writes"),
    ("rdmacm/src/stream/options.rs", 1, "a server that runs without end"),
    ("trace/src/trace.rs", 1, "traces a program of rdma-core"),
    ("verbs/src/context/open.rs", 2, "a device of the kernel"),
    ("verbs/src/dmabuf.rs", 1, "a dma-buf and a DMA handle"),
    ("verbs/src/owned/server.rs", 2, "a server and its client, on two hosts"),
    ("verbs/src/qp/flow_counters.rs", 1, "a QP of raw Ethernet frames"),
    ("verbs/src/qp/rate_limit.rs", 1, "a QP of raw Ethernet frames"),
    ("verbs/src/qp/raw.rs", 1, "a QP of raw Ethernet frames"),
    ("verbs/src/qp/xrc.rs", 2, "XRC"),
    ("verbs/src/raw.rs", 2, "methods of mlx5"),
    ("verbs/src/raw/adopt.rs", 1, "device memory"),
    ("verbs/src/wq.rs", 1, "a WQ"),
    ("verbs/src/xrc.rs", 1, "XRC"),
];

/// Whether a line begins an example that doesn't run.
fn begins(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches("//").trim_start_matches(['/', '!']).trim_start();
    let attributes = line.strip_prefix("```").unwrap_or_default();
    attributes.split([',', ' ']).any(|attribute| attribute == "no_run")
}

/// The tracked files with such examples, and how many each has.
fn found() -> Vec<(String, usize)> {
    let list = Command::new("git").arg("ls-files").current_dir(build::workspace()).output().unwrap();
    assert!(list.status.success(), "git ls-files fails");
    let files = String::from_utf8(list.stdout).unwrap();
    let files = files.lines().filter(|file| file.ends_with(".rs") || file.ends_with(".md"));
    let count = |file: &str| {
        // A file may be deleted and not yet committed.
        let text = fs::read_to_string(build::workspace().join(file)).unwrap_or_default();
        text.lines().filter(|line| begins(line)).count()
    };
    files.map(|file| (file.to_owned(), count(file))).filter(|(_, count)| *count > 0).collect()
}

#[test]
fn fences_are_recognized() {
    for line in ["```no_run", "    /// ```no_run", "//! ```rust,no_run", "  ```rust,no_run"] {
        assert!(begins(line), "{line}");
    }
    for line in ["```", "/// ```", "fn begin_no_run() {", "the attribute `no_run`", "```compile_fail,E0308"] {
        assert!(!begins(line), "{line}");
    }
}

#[test]
fn examples_that_do_not_run_are_listed_with_a_reason() {
    let all = found();
    for (file, count) in &all {
        let allowed = ALLOWED.iter().find(|(allowed, ..)| allowed == file).map_or(0, |(_, count, _)| *count);
        assert_eq!(*count, allowed, "{file}: examples that are `no_run`, and those that are listed");
    }
    for (file, ..) in ALLOWED {
        assert!(
            all.iter().any(|(found, _)| found == file),
            "{file} has no `no_run`: remove it from the list"
        );
    }
    let sum: usize = ALLOWED.iter().map(|(_, count, _)| count).sum();
    assert!(sum <= 40, "{sum} examples may not run, and at most 40 should");
}
