//! Options of atomics, of the path and of the memory, with perftest and with itself.

use std::fs;
use std::path::Path;
use std::process::Command;

use bareverbs_interop_tests::perf::{Benchmark, PAIRINGS, Run, Side};
use bareverbs_interop_tests::pingpong::HOST;
use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::device::{self, Requirement};
use bareverbs_test_support::kernel_test;
use serde_json::Value;

use crate::{OPERATIONS, SOON, WITH_PERFTEST, expect_latencies, expect_measured, options};

pub(crate) const OURS: (Side, Side) = (Side::Bareverbs, Side::Bareverbs);

/// What the result says about an option.
pub(crate) fn option<'j>(json: &'j Value, name: &str) -> &'j Value {
    json["options"].get(name).unwrap_or_else(|| panic!("no {name}: {json:#}"))
}

/// The JSON of the sides that are `bareverbs`.
pub(crate) fn ours(run: &Run) -> impl Iterator<Item = Value> {
    [run.server_json(), run.client_json()].into_iter().flatten()
}

/// Runs `bareverbs perf` as a server, and returns what it says when it refuses to run.
pub(crate) fn refusal(line: &str) -> String {
    let mut command = Command::new("bareverbs");
    command.arg("perf").args(line.split(' ')).args(["-d", device::name()]);
    let finished = Program::start(&mut command).finish_within(SOON);
    assert_ne!(finished.status.code(), Some(0), "{finished:#?}");
    finished.stderr
}

#[kernel_test]
fn short_compare_and_swap_interoperates_with_perftest() {
    for pairing in WITH_PERFTEST {
        let options = ["-A", "CMP_AND_SWAP", "-n", "20", "--pkey_index", "0"];
        let run = Benchmark { operation: "atomic", test: "bw" }.run(*pairing, &options);
        for json in ours(&run) {
            assert_eq!(option(&json, "atomic_type"), "CMP_AND_SWAP");
            assert_eq!(option(&json, "pkey_index"), 0);
        }
    }
}

#[kernel_test]
fn compare_and_swap_interoperates_in_every_mode() {
    for (test, others) in [("bw", &["-q", "2", "-b", "-n", "100"][..]), ("lat", &["-n", "50"])] {
        for pairing in PAIRINGS {
            let options = [&["-A", "CMP_AND_SWAP"], others].concat();
            let run = Benchmark { operation: "atomic", test }.run(pairing, &options);
            if let Some(json) = run.client_json() {
                expect_latencies(&json, 8);
                if test == "bw" {
                    expect_measured(&json, 8, 200);
                }
            }
        }
    }
}

/// Each compare-and-swap replaces the number that the one before it has left, so a wrong one shows.
#[kernel_test]
fn compare_and_swap_is_verified() {
    for others in [&["-q", "2", "-b"][..], &["--mix", "atomic:1,atomic:3"]] {
        let options = [&["-A", "cmp_and_swap", "--verify", "-n", "1000"], others].concat();
        let run = Benchmark { operation: "atomic", test: "bw" }.run(OURS, &options);
        for json in ours(&run) {
            assert!(json["results"][0]["compared"].as_u64().unwrap() > 100, "{json:#}");
        }
    }
}

#[kernel_test(device::xrc)]
fn compare_and_swap_is_verified_on_xrc() {
    let options = ["-A", "CMP_AND_SWAP", "--verify", "-n", "100", "-c", "XRC"];
    Benchmark { operation: "atomic", test: "bw" }.run(OURS, &options);
}

/// The values of a member in the JSON of a trace, wherever it is.
fn members(json: &Value, name: &str, found: &mut Vec<u64>) {
    match json {
        Value::Object(fields) => {
            for (field, value) in fields {
                found.extend(value.as_u64().filter(|_| field == name));
                members(value, name, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| members(value, name, found)),
        _ => {}
    }
}

/// The path of each queue pair has its flow label and the traffic class.
#[kernel_test]
fn grh_has_the_traffic_class_and_the_flow_labels() {
    let file = std::env::temp_dir().join("bareverbs-perf-grh");
    let path = ["--tclass", "104", "--flow_label", "5,0xabcde", "-x", "0"];
    for (operation, transport) in [("write", "RC"), ("write", "UC"), ("send", "UD")] {
        let benchmark = Benchmark { operation, test: "bw" };
        let both = [&["-c", transport, "-s", "64", "-n", "20", "-q", "2"], &path[..]].concat();
        let server = benchmark.serve(Side::Bareverbs, &both);
        let client = benchmark.command(Side::Bareverbs, &both, Some(HOST));
        let mut trace = Command::new("bareverbs");
        trace.args(["trace", "--format", "json", "-o"]).arg(&file).arg(client.get_program());
        let client = Program::start(trace.args(client.get_args())).finish().expect_success();
        server.finish().expect_success();
        let json: Value = serde_json::from_str(&client.stdout).unwrap();
        assert_eq!(option(&json, "tclass"), 104);
        assert_eq!(option(&json, "flow_label"), &Value::from(vec![5, 0xa_bcde]));
        let (mut classes, mut labels) = (Vec::new(), Vec::new());
        for line in fs::read_to_string(&file).unwrap().lines() {
            let call: Value = serde_json::from_str(line).unwrap();
            members(&call, "traffic_class", &mut classes);
            members(&call, "flow_label", &mut labels);
        }
        for labels in [5, 0xa_bcde].map(|label| labels.iter().filter(|&&found| found == label).count()) {
            assert!(labels >= 1, "{transport}: {labels:?}");
        }
        assert!(classes.iter().filter(|&&class| class == 104).count() >= 2, "{transport}: {classes:?}");
    }
}

#[kernel_test]
fn path_options_interoperate_with_perftest() {
    for pairing in WITH_PERFTEST {
        for (operation, transport) in [("write", "RC"), ("send", "UD")] {
            let options = ["-c", transport, "-s", "64", "-n", "50", "-x", "0"];
            let options =
                [&options[..], &["--tclass", "16", "--flow_label", "7", "--pkey_index", "0"]].concat();
            Benchmark { operation, test: "bw" }.run(*pairing, &options);
        }
    }
}

#[kernel_test]
fn p_key_index_beyond_the_table_is_refused() {
    let port = device::open().query_port(1).unwrap();
    let text = refusal(&format!("write bw --pkey-index {}", port.pkey_tbl_len));
    assert!(text.contains(&format!("exceeds the table of {} entries", port.pkey_tbl_len)), "{text}");
}

#[kernel_test(device::infiniband)]
fn grh_options_without_a_gid_are_refused() {
    for option in ["--tclass 1", "--flow-label 1"] {
        let text = refusal(&format!("write bw {option}"));
        assert!(text.contains("packets have only with a GID index (-x)"), "{text}");
    }
}

#[kernel_test]
fn memory_on_demand_interoperates_with_perftest() {
    if !device::open().capabilities().odp {
        let text = refusal("write bw --odp");
        return assert!(text.contains("has no on-demand paging"), "{text}");
    }
    for (operation, test) in [("write", "bw"), ("send", "lat"), ("read", "bw")] {
        for pairing in PAIRINGS {
            let run = Benchmark { operation, test }.run(pairing, &["-s", "64", "-n", "50", "--odp"]);
            for json in ours(&run) {
                assert_eq!(option(&json, "odp"), true);
            }
        }
    }
}

/// Reserves huge pages until it is dropped.
struct HugePages;

impl HugePages {
    const RESERVED: &str = "/proc/sys/vm/nr_hugepages";

    fn reserve(count: u32) -> Self {
        fs::write(Self::RESERVED, count.to_string()).expect("the kernel has huge pages");
        Self
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(Self::RESERVED, "0");
    }
}

#[kernel_test]
fn huge_pages_interoperate_with_perftest() {
    drop(HugePages::reserve(0));
    let text = refusal("write bw --huge-pages");
    assert!(text.contains("reserve some, for example with `sysctl vm.nr_hugepages="), "{text}");
    let both = ["-s", "4096", "-n", "20", "--use_hugepages"];
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let _reserved = HugePages::reserve(24);
    for pairing in PAIRINGS {
        let run = benchmark.run(pairing, &both);
        for json in ours(&run) {
            assert_eq!(option(&json, "huge_pages"), true);
        }
    }
}

/// For tests with memory of dma-bufs.
///
/// # Errors
/// If the kernel makes none, or the driver takes none: mlx5 needs page faults of the device for memory that
/// its owner may move.
fn dma_bufs() -> Requirement {
    if !Path::new("/dev/udmabuf").exists() {
        return Err("this kernel has no /dev/udmabuf".into());
    }
    let takes = !device::is_soft_roce() && device::open().capabilities().odp;
    if takes { Ok(()) } else { Err("the driver takes no dma-bufs".into()) }
}

/// # Errors
/// If there can be memory of dma-bufs.
fn no_dma_bufs() -> Requirement {
    if dma_bufs().is_err() { Ok(()) } else { Err("the driver takes dma-bufs".into()) }
}

#[kernel_test(no_dma_bufs)]
fn dma_bufs_are_refused_where_there_are_none() {
    let kernel_lacks_it = !Path::new("/dev/udmabuf").exists();
    let words = if kernel_lacks_it { "cannot open /dev/udmabuf" } else { "--dma-buf: reg_dmabuf_mr: " };
    let text = refusal("write bw --dma-buf");
    assert!(text.contains(words), "{text}");
}

#[kernel_test(dma_bufs)]
fn dma_bufs_carry_every_operation() {
    for operation in OPERATIONS.into_iter().chain(["write-imm"]) {
        for (test, others) in [("bw", &["-q", "2", "-b", "-n", "100"][..]), ("lat", &["-n", "50"])] {
            if (operation, test) == ("write", "lat") {
                continue;
            }
            let options = options(operation, &[&["--dma-buf", "--verify"], others].concat());
            let run = Benchmark { operation, test }.run(OURS, &options);
            for json in ours(&run) {
                assert_eq!(option(&json, "dma_buf"), true);
            }
            let compared = run.client_json().unwrap()["results"][0]["compared"].as_u64();
            assert!(compared > Some(0), "{run:#?}");
        }
    }
}

/// Lowers the kernel's limit of dma-bufs until it is dropped.
struct LowLimit(String);

impl LowLimit {
    const FILE: &str = "/sys/module/udmabuf/parameters/size_limit_mb";

    fn of_mebibytes(count: u32) -> Self {
        let before = fs::read_to_string(Self::FILE).expect("the kernel makes dma-bufs");
        fs::write(Self::FILE, count.to_string()).unwrap();
        Self(before)
    }
}

impl Drop for LowLimit {
    fn drop(&mut self) {
        let _ = fs::write(Self::FILE, &self.0);
    }
}

/// The size of the memory is known when the peer has connected.
#[kernel_test(dma_bufs)]
fn dma_buf_above_the_limit_is_refused() {
    let _limit = LowLimit::of_mebibytes(1);
    let options = ["--dma-buf", "-s", "1048576"];
    let benchmark = Benchmark { operation: "write", test: "bw" };
    let server = benchmark.serve(Side::Bareverbs, &options);
    let client = Program::start(&mut benchmark.command(Side::Bareverbs, &options, Some(HOST)));
    for side in [client, server] {
        side.finish_within(SOON).expect_failure("the kernel makes no dma-buf of 2 MiB");
    }
}
