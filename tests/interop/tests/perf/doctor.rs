//! `bareverbs perf doctor` on healthy and on faulty devices and paths.
//!
//! The control connection is on the loopback interface, so that faults of the path do not reach it.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use bareverbs::device::GidType;
use bareverbs::qp::QpState;
use bareverbs_interop_tests::pingpong::wait_until_listening;
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_netlink::RdmaNetlink;
use bareverbs_test_support::device::{self, Requirement};
use bareverbs_test_support::kernel_test;
use bareverbs_test_support::wire::{End, Wire, lossy_wire, stopped_gsi_qp_is_in_error, wait_for_gid, wire};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Timeout of a doctor. Without contention it takes a few seconds.
const LIMIT: Duration = Duration::from_secs(90);
const LOCALHOST: &str = "127.0.0.1";
const PORT: u16 = 18516;
/// A user without rights.
const NOBODY: u32 = 65534;

fn doctor(options: &[&str]) -> Command {
    let mut command = Command::new("bareverbs");
    command.args(["perf", "doctor"]).args(options);
    command
}

/// The doctor of this device alone.
fn examine(options: &[&str]) -> Finished {
    Program::start(&mut doctor(options)).finish_within(LIMIT)
}

/// The doctor at the near end of the wire, with the one at the far end. Returns its results.
fn examine_wire(options: &[&str]) -> (Finished, Value) {
    examine_ends(options, &mut doctor(&["-d", End::Far.device(), "--serve"]))
}

fn examine_ends(options: &[&str], server: &mut Command) -> (Finished, Value) {
    let mut server = Program::start(server);
    wait_until_listening(&mut server, PORT);
    let near = ["-d", End::Near.device(), "--json", LOCALHOST];
    let client = Program::start(&mut doctor(&[&near, options].concat())).finish_within(LIMIT);
    let json = serde_json::from_str(&client.stdout).unwrap_or_else(|error| panic!("{error}: {client:#?}"));
    (client, json)
}

/// The findings of this level, as `place check: text (remedy)`.
fn findings(json: &Value, level: &str) -> Vec<String> {
    let all = json["findings"].as_array().expect("findings are an array").iter();
    let found = all.filter(|finding| finding["level"] == level).map(|finding| {
        let word = |name: &str| finding[name].as_str().unwrap_or_default().to_owned();
        format!("{} {}: {} ({})", word("place"), word("check"), word("text"), word("remedy"))
    });
    found.collect()
}

/// Asserts that the doctor fails with a fault that has all these words.
fn expect_fault((finished, json): &(Finished, Value), words: &[&str]) {
    let faults = findings(json, "fault");
    let found = faults.iter().any(|fault| words.iter().all(|word| fault.contains(word)));
    assert!(found, "no fault with {words:?}: {json:#}");
    assert_eq!((finished.status.code(), json["verdict"].as_str()), (Some(1), Some("fault")), "{finished:#?}");
    assert!(finished.stderr.contains("bareverbs: the doctor found"), "{finished:#?}");
}

#[kernel_test]
fn short_doctor_checks_a_device_and_its_peer() {
    let name = device::name();
    let alone = examine(&["-d", name]);
    assert!(alone.status.success() && alone.stdout.contains("is ACTIVE"), "{alone:#?}");
    let mut server = Program::start(&mut doctor(&["-d", name, "--serve"]));
    wait_until_listening(&mut server, PORT);
    let both = examine(&["-d", name, "--json", LOCALHOST]);
    let json: Value = serde_json::from_str(&both.stdout).unwrap_or_else(|error| panic!("{error}: {both:#?}"));
    assert!(both.status.success(), "{json:#}");
    assert!(json["path"]["bandwidth"].as_f64().is_some_and(|rate| rate > 0.0), "{json:#}");
    let ok = findings(&json, "ok");
    for check in ["path mtu", "path rc", "path ud", "peer port"] {
        assert!(ok.iter().any(|finding| finding.starts_with(check)), "no {check}: {json:#}");
    }
    let absent = examine(&["-d", name, "-p", "18517", LOCALHOST]);
    assert_eq!(absent.status.code(), Some(1), "{absent:#?}");
    assert!(absent.stdout.contains("start `bareverbs perf doctor --serve` there"), "{absent:#?}");
}

#[kernel_test(wire)]
fn doctor_finds_a_healthy_wire_healthy() {
    let _wire = Wire::new();
    let (finished, json) = examine_wire(&[]);
    assert!(finished.status.success(), "{json:#}");
}

#[kernel_test(wire)]
fn doctor_names_a_port_that_is_down() {
    let wire = Wire::new();
    wire.take_down(End::Near);
    let netdev = format!("ip link set up dev {}", End::Near.netdev());
    expect_fault(&examine_wire(&[]), &["local port", "is DOWN", &netdev]);
}

/// For tests of a QP 1 in ERR.
pub(crate) fn gsi_errors() -> Requirement {
    wire()?;
    match stopped_gsi_qp_is_in_error() {
        true => Ok(()),
        false => Err("this kernel reports a stopped QP 1 in RTS".into()),
    }
}

fn gsi_qp_is_in_error(end: End) -> bool {
    let queue_pairs = RdmaNetlink::open().and_then(|mut netlink| netlink.queue_pairs(end.device()));
    let queue_pairs = queue_pairs.expect("the kernel lists queue pairs");
    queue_pairs.iter().any(|qp| qp.qp_num == 1 && qp.state == Some(QpState::ERR))
}

#[kernel_test(gsi_errors)]
fn doctor_names_a_gsi_qp_in_error() {
    let wire = Wire::new();
    wire.take_down(End::Far);
    // The kernel can't send the request of the CM, and QP 1 ends in ERR.
    let mut client = Command::new("bareverbs");
    client.args(["rping", "-c", "-C", "1", "-a", &End::Far.ip().to_string()]);
    let client = Program::start(&mut client);
    let begin = Instant::now();
    while !gsi_qp_is_in_error(End::Near) {
        assert!(begin.elapsed() < LIMIT, "QP 1 does not end in ERR");
        std::thread::sleep(Duration::from_millis(20));
    }
    client.signal(Signal::SIGKILL);
    client.finish();
    wire.bring_up(End::Far);
    let words = ["local port", "QP 1 (GSI)", "ERR", "rdma link delete"];
    expect_fault(&examine_wire(&[]), &words);
}

#[kernel_test(wire)]
fn doctor_names_a_peer_whose_port_is_down() {
    let wire = Wire::new();
    wire.take_down(End::Far);
    expect_fault(&examine_wire(&[]), &["peer port", "is DOWN"]);
}

#[kernel_test(wire)]
fn doctor_names_a_port_without_an_ip_address() {
    let _wire = Wire::new();
    run("ip", &format!("address del {}/32 dev {}", End::Near.ip(), End::Near.netdev()));
    wait_for_gid(End::Near, End::Near.ip(), false);
    let result = examine_wire(&[]);
    expect_fault(&result, &["local gid", "ip address add"]);
}

#[kernel_test(wire)]
fn doctor_names_wrong_gid_indices() {
    let _wire = Wire::new();
    expect_fault(&examine_wire(&["-x", "200"]), &["local gid", "GID index 200", "use GID index"]);
    // The link-local GID, while the far end has its IPv4 one.
    expect_fault(&examine_wire(&["-x", "0"]), &["path ends", "different families", "(-x)"]);
}

#[kernel_test(wire)]
fn doctor_names_different_mtus_of_the_ends() {
    let _wire = Wire::new();
    run("ip", &format!("link set dev {} mtu 4200", End::Near.netdev()));
    let (finished, json) = examine_wire(&[]);
    assert!(finished.status.success(), "{json:#}");
    let warnings = findings(&json, "warning");
    assert!(warnings.iter().any(|text| text.contains("the MTU is 4096 here and 1024 there")), "{json:#}");
}

#[kernel_test(lossy_wire)]
fn doctor_names_lost_packets() {
    let wire = Wire::new();
    wire.impair(End::Near, "loss 10%");
    let result = examine_wire(&[]);
    expect_fault(&result, &["path ud", "datagrams", "loses packets"]);
}

#[kernel_test(lossy_wire)]
fn doctor_names_the_direction_of_lost_packets() {
    let wire = Wire::new();
    for (end, words) in [(End::Near, "on the way to the peer only"), (End::Far, "on the way back only")] {
        wire.impair(end, "loss 10%");
        expect_fault(&examine_wire(&[]), &["path ud", "datagrams", words]);
        wire.heal();
    }
}

/// The peer drops the packets of RoCE v2 that arrive, as a firewall does.
#[kernel_test(wire)]
fn doctor_names_a_firewall_of_the_peer() {
    let _wire = Wire::new();
    let rule = format!("pref 5 iif {} ipproto udp dport 4791 blackhole", End::Far.netdev());
    run("ip", &format!("rule add {rule}"));
    let result = examine_wire(&[]);
    run("ip", &format!("rule del {rule}"));
    expect_fault(&result, &["path rc", "no packet was acknowledged", "UDP port 4791 is open"]);
    expect_fault(&result, &["path ud", "0 arrived", "UDP port 4791 is open"]);
}

#[kernel_test(wire)]
fn doctor_names_an_ip_address_of_both_ends() {
    let _wire = Wire::new();
    let far = End::Far.netdev();
    run("ip", &format!("address del {}/32 dev {far}", End::Far.ip()));
    run("ip", &format!("address add {}/32 dev {far}", End::Near.ip()));
    wait_for_gid(End::Far, End::Far.ip(), false);
    wait_for_gid(End::Far, End::Near.ip(), true);
    expect_fault(&examine_wire(&[]), &["path ends", "the same IP address", "arping"]);
}

/// For tests with GIDs of RoCE v1, which Soft-RoCE does not have.
///
/// # Errors
/// If the port has no GID of RoCE v1, or none of RoCE v2.
pub(crate) fn both_roce_versions() -> Requirement {
    let missing = [GidType::ROCE_V1, GidType::ROCE_V2].into_iter().find(|kind| gid_index(*kind).is_none());
    missing.map_or(Ok(()), |kind| Err(format!("{} has no GID of type {kind:?}", device::name())))
}

/// The last GID of the type: that of an IP address, if there is one.
fn gid_index(kind: GidType) -> Option<u8> {
    let gids = device::open().gid_table().expect("the device has a GID table");
    gids.iter().rfind(|entry| entry.gid_type == kind).map(|entry| entry.index.into())
}

#[kernel_test(both_roce_versions)]
fn short_doctor_names_different_roce_versions() {
    let name = device::name();
    let [one, two] = [GidType::ROCE_V1, GidType::ROCE_V2]
        .map(|kind| gid_index(kind).expect("the port has such a GID").to_string());
    let mut server = Program::start(&mut doctor(&["-d", name, "--serve", "-x", &one]));
    wait_until_listening(&mut server, PORT);
    let client = examine(&["-d", name, "--json", "-x", &two, LOCALHOST]);
    let json = serde_json::from_str(&client.stdout).unwrap_or_else(|error| panic!("{error}: {client:#?}"));
    expect_fault(&(client, json), &["path ends", "different types", "RoCE v1", "RoCE v2", "(-x)"]);
}

#[kernel_test(lossy_wire)]
fn doctor_names_a_cut_path() {
    let wire = Wire::new();
    wire.cut(End::Near);
    let result = examine_wire(&[]);
    expect_fault(&result, &["path rc", "no packet was acknowledged", "UDP port 4791"]);
    expect_fault(&result, &["path ud", "0 arrived"]);
}

#[kernel_test(lossy_wire)]
fn doctor_names_a_delayed_path() {
    let wire = Wire::new();
    wire.impair(End::Near, "delay 60ms");
    expect_fault(&examine_wire(&[]), &["path latency", "delays packets"]);
}

#[kernel_test(lossy_wire)]
fn doctor_names_a_slow_path() {
    let wire = Wire::new();
    wire.impair(End::Near, "rate 1mbit");
    expect_fault(&examine_wire(&[]), &["path bandwidth", "traffic shaper"]);
}

#[kernel_test(lossy_wire)]
fn doctor_names_a_smaller_mtu_of_the_path() {
    let _wire = Wire::new();
    for end in [End::Near, End::Far] {
        run("ip", &format!("link set dev {} mtu 4200", end.netdev()));
    }
    // Packets above the burst are dropped. The MTU of an interface would show.
    let netdev = End::Near.netdev();
    run("tc", &format!("qdisc replace dev {netdev} root tbf rate 1gbit burst 2000 latency 50ms"));
    let result = examine_wire(&[]);
    expect_fault(&result, &["path mtu", "packets of 4096 bytes don't arrive, those of 1024 bytes do"]);
}

#[kernel_test(wire)]
fn doctor_names_a_peer_without_permission() {
    let _wire = Wire::new();
    let nodes: Vec<_> =
        std::fs::read_dir("/dev/infiniband").unwrap().map(|node| node.unwrap().path()).collect();
    let permit = |mode: u32| {
        for node in nodes.iter().filter(|node| node.to_string_lossy().contains("uverbs")) {
            std::fs::set_permissions(node, std::fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    permit(0o600);
    let mut server = doctor(&["-d", End::Far.device(), "--serve"]);
    server.uid(NOBODY);
    let result = examine_ends(&[], &mut server);
    permit(0o666);
    expect_fault(&result, &["peer device", "cannot open /dev/infiniband/uverbs", "join the group"]);
}

/// As in a container without the device nodes.
#[kernel_test]
fn doctor_names_missing_device_nodes() {
    let (nodes, aside) = ("/dev/infiniband", "/dev/infiniband-aside");
    std::fs::rename(nodes, aside).unwrap();
    let alone = examine(&["-d", device::name()]);
    std::fs::rename(aside, nodes).unwrap();
    assert_eq!(alone.status.code(), Some(1), "{alone:#?}");
    assert!(alone.stdout.contains("pass /dev/infiniband into the container"), "{alone:#?}");
}

#[kernel_test(lossy_wire)]
fn doctor_names_a_path_that_is_cut_on_the_way_back() {
    let wire = Wire::new();
    wire.cut(End::Far);
    let result = examine_wire(&[]);
    expect_fault(&result, &["path rc", "no packet was acknowledged", "in both directions"]);
    expect_fault(&result, &["path ud", "200 arrived and 0 came back", "the peer's firewall (UDP port 4791)"]);
}

#[kernel_test(lossy_wire)]
fn doctor_names_a_loss_of_five_percent() {
    let wire = Wire::new();
    wire.impair(End::Near, "loss 5%");
    wire.impair(End::Far, "loss 5%");
    expect_fault(&examine_wire(&[]), &["path ud", "datagrams", "loses packets"]);
}

#[kernel_test(wire)]
fn doctor_names_the_gid_of_a_removed_address() {
    let _wire = Wire::new();
    run("ip", &format!("address del {}/32 dev {}", End::Near.ip(), End::Near.netdev()));
    wait_for_gid(End::Near, End::Near.ip(), false);
    let address = format!("ip address add ADDRESS/PREFIX dev {}", End::Near.netdev());
    expect_fault(&examine_wire(&["-x", "1"]), &["local gid", "GID index 1", &address]);
}

/// RDMA writes to the peer do not show it.
#[kernel_test(lossy_wire)]
fn doctor_names_a_slow_path_back() {
    let wire = Wire::new();
    wire.impair(End::Far, "rate 1mbit");
    expect_fault(&examine_wire(&[]), &["path bandwidth", "reads of 64 KiB from the peer", "traffic shaper"]);
}

/// Packets go to a machine that is not the peer.
#[kernel_test(wire)]
fn doctor_names_a_wrong_neighbour_entry() {
    let _wire = Wire::new();
    let (peer, netdev) = (End::Far.ip(), End::Near.netdev());
    run("ip", &format!("neigh replace {peer} lladdr 02:00:00:00:77:99 nud permanent dev {netdev}"));
    let result = examine_wire(&[]);
    expect_fault(&result, &["path rc", "no packet was acknowledged", "ip neigh"]);
    expect_fault(&result, &["path ud", "0 arrived", "ip neigh"]);
}

/// The far end loses its port, or the near one its address, while the path is measured.
#[kernel_test(lossy_wire)]
fn doctor_names_what_changes_during_the_checks() {
    for (fault, words) in [
        (format!("link set down dev {}", End::Far.netdev()), "is DOWN since the checks began"),
        (
            format!("address del {}/32 dev {}", End::Near.ip(), End::Near.netdev()),
            "has lost GID index 1 (::ffff:10.77.0.1) since the checks began",
        ),
    ] {
        let wire = Wire::new();
        // The measurements last, and a lost packet is noticed late.
        wire.impair(End::Near, "delay 40ms");
        let mut server = Program::start(&mut doctor(&["-d", End::Far.device(), "--serve"]));
        wait_until_listening(&mut server, PORT);
        let mut client = Program::start(&mut doctor(&["-d", End::Near.device(), LOCALHOST]));
        client.line("ok       path ends");
        run("ip", &fault);
        let finished = client.finish_within(LIMIT);
        assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
        let faults: Vec<_> = finished.stdout.lines().filter(|line| line.starts_with("FAULT")).collect();
        assert!(faults.iter().any(|line| line.contains(words)), "no fault with {words:?}: {finished:#?}");
    }
}

#[kernel_test]
fn doctor_rejects_peers_of_other_protocols() {
    use std::io::Write;
    for (bytes, words) in [
        (&b"6.24\0\0\0\0\0\0\0\0\0\0\0\0"[..], "does not run this version of `perf doctor`"),
        (b"bvd1\0\0\0\x02{}", "has protocol 1 of `perf doctor`, this one 2"),
        (b"bvd2\xff\xff\xff\xff", "above the limit"),
        (b"bvd2\0\0\0\x02{}", "can't be read"),
        (b"bvd2", "closed the connection"),
    ] {
        let listener = std::net::TcpListener::bind((LOCALHOST, PORT)).unwrap();
        let client = Program::start(&mut doctor(&["-d", device::name(), LOCALHOST]));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let finished = client.finish_within(LIMIT);
        assert_eq!(finished.status.code(), Some(1), "{finished:#?}");
        assert!(finished.stdout.contains(words), "{words}: {finished:#?}");
    }
}

fn run(program: &str, arguments: &str) {
    let output = Command::new(program).args(arguments.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{program} {arguments}: {output:?}");
}
