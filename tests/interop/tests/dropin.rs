//! The programs of rdma-core with our `libibverbs.so.1`, beside the same programs with their own.

use std::process::Command;

use bareverbs_interop_tests::connect::run_client;
use bareverbs_interop_tests::link::cut_the_link;
use bareverbs_interop_tests::pingpong::{
    HOST, Kind, PORT, Pingpong, PingpongRun, RdmaCore, RdmaCoreOf, wait_until_listening,
};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::device;
use bareverbs_test_support::kernel_test;
use bareverbs_test_support::resources::nothing_leaks;

/// The folder of our library in the guest.
const FOLDER: &str = "/usr/local/bin";

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}

/// The library of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    Bareverbs,
    RdmaCore,
}

impl Library {
    fn load(self, mut command: Command) -> Command {
        if self == Self::Bareverbs {
            command.env("LD_LIBRARY_PATH", FOLDER);
        }
        command
    }

    fn run(self, program: &str, arguments: &[&str]) -> Finished {
        let mut command = Command::new(program);
        command.args(arguments);
        Program::start(&mut self.load(command)).finish().expect_success()
    }
}

#[kernel_test]
fn devinfo_output_equals_that_of_the_c_library() {
    nothing_leaks(|| {
        for (program, arguments) in
            [("ibv_devices", &[][..]), ("ibv_devinfo", &["-v"]), ("ibv_devinfo", &["-l"])]
        {
            let [ours, theirs] =
                [Library::Bareverbs, Library::RdmaCore].map(|library| library.run(program, arguments).stdout);
            assert_eq!(ours, theirs, "{program} {arguments:?}");
        }
    });
}

/// Prints what functions of libibverbs return.
const VERBS: &str = concat!(include_str!("dropin_common.py"), include_str!("dropin_verbs.py"));

/// Prints what functions of libmlx5 return.
const MLX5: &str = concat!(include_str!("dropin_common.py"), include_str!("dropin_mlx5.py"));

/// The output of a script in Python, which is the same with both libraries.
fn output_with_both(script: &str) -> String {
    let index = device::gid_index().to_string();
    let arguments = ["-c", script, device::name(), &index];
    let [ours, theirs] =
        [Library::Bareverbs, Library::RdmaCore].map(|library| library.run("python3", &arguments).stdout);
    let pairs = ours.lines().zip(theirs.lines());
    let differences: Vec<_> = pairs.filter(|(ours, theirs)| ours != theirs).collect();
    assert!(differences.is_empty() && ours == theirs, "{differences:#?}");
    ours
}

#[kernel_test]
fn verbs_return_what_the_c_library_returns() {
    nothing_leaks(|| {
        let output = output_with_both(VERBS);
        for line in ["query_device_ex 0\n", "destroy_qp in a group 16 16\n", "destroy_qp 0\n"] {
            assert!(output.contains(line), "{line}: {output}");
        }
        if device::has_rxe_abi() {
            return;
        }
        for line in ["set_ece 0\n", "wall clock 0 True\n"] {
            assert!(output.contains(line), "{line}: {output}");
        }
        // Linux 7.2 limits UC QPs.
        let limits = output.contains("rate limits of UC 1\n");
        assert_eq!(output.contains("modify_qp_rate_limit 0\n"), limits, "{output}");
    });
}

#[kernel_test(device::connectx)]
fn functions_of_libmlx5_return_what_the_c_library_returns() {
    nothing_leaks(|| {
        let output = output_with_both(MLX5);
        for line in ["query_device 0 0\n", "query QP 0 0\n", "dereg_mr 0\n"] {
            assert!(output.contains(line), "{line}: {output}");
        }
    });
}

/// Runs a server and a client with these libraries to completion.
fn run_pair([server, client]: [Library; 2], program: Pingpong<'_>) -> PingpongRun {
    let mut serving = Program::start(&mut server.load(program.command(None)));
    wait_until_listening(&mut serving, PORT);
    let client = Program::start(&mut client.load(program.command(Some(HOST)))).finish().expect_success();
    PingpongRun { kind: program.kind(), server: serving.finish().expect_success(), client }
}

#[kernel_test]
fn pingpongs_run_with_either_library_on_each_side() {
    let (ours, theirs) = (Library::Bareverbs, Library::RdmaCore);
    nothing_leaks(|| {
        for kind in [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq] {
            let (size, size_text) = if kind == Kind::Ud { (1000, "1000") } else { (5000, "5000") };
            let pairs = [([ours, ours], &["-e"][..]), ([ours, theirs], &[]), ([theirs, ours], &[])];
            for (libraries, events) in pairs {
                let options = [&["-c", "-n", "50", "-s", size_text], events].concat();
                run_pair(libraries, RdmaCoreOf(kind, &options)).expect_regular(size, 50);
            }
        }
    });
}

#[kernel_test]
fn pingpongs_run_with_extended_queues() {
    let has_timestamps = device::open().capabilities().completion_timestamps;
    nothing_leaks(|| {
        let posted = ["-c", "-n", "50", "-N"];
        run_pair([Library::Bareverbs; 2], RdmaCore(&posted)).expect_regular(4096, 50);
        if has_timestamps {
            // The last lines are the times.
            let run = run_pair([Library::Bareverbs; 2], RdmaCore(&["-c", "-n", "50", "-t"]));
            assert!(run.client.stdout.contains("Max receive completion clock cycles"), "{run:#?}");
        }
    });
}

#[kernel_test(device::xrc)]
fn xsrq_pingpong_runs_with_either_library_on_each_side() {
    let (ours, theirs) = (Library::Bareverbs, Library::RdmaCore);
    let index = device::gid_index().to_string();
    let gid = if device::is_infiniband() { vec![] } else { vec!["-g", &index] };
    nothing_leaks(|| {
        for ([server, client], event) in
            [([ours, ours], &["-e"][..]), ([ours, theirs], &[]), ([theirs, ours], &[])]
        {
            let command = |library: Library, more: &[&str]| {
                let mut command = Command::new("ibv_xsrq_pingpong");
                command.args(&gid).args(["-n", "50", "-s", "5000"]).args(event).args(more);
                library.load(command)
            };
            let mut serving = Program::start(&mut command(server, &[]));
            wait_until_listening(&mut serving, PORT);
            let client = Program::start(&mut command(client, &[HOST])).finish().expect_success();
            for side in [serving.finish().expect_success(), client] {
                assert_eq!(side.stdout.lines().last(), Some("success"), "{side:#?}");
            }
        }
    });
}

/// Runs a server and a client of the connection manager with these libraries to completion.
fn run_connected([server, client]: [Library; 2], name: &str, serves: &[&str], connects: &[&str]) {
    let command = |library: Library, options: &[&str]| {
        let mut command = Command::new(name);
        command.args(options);
        library.load(command)
    };
    let mut serving = Program::start(&mut command(server, serves));
    run_client(&mut serving, command(client, connects)).expect_success();
    serving.finish().expect_success();
}

#[kernel_test(device::ethernet)]
fn programs_of_librdmacm_run_with_either_library_on_each_side() {
    let (ours, theirs) = (Library::Bareverbs, Library::RdmaCore);
    nothing_leaks(|| {
        for libraries in [[ours, ours], [ours, theirs], [theirs, ours]] {
            let rping = ["-c", "-a", HOST, "-C", "10", "-V"];
            run_connected(libraries, "rping", &["-s", "-a", HOST, "-C", "10", "-V"], &rping);
            // One connection: a server that begins to listen between two counts one too few.
            run_connected(libraries, "ucmatose", &[], &["-s", HOST]);
            run_connected(libraries, "udaddy", &[], &["-s", HOST]);
        }
        let cmtime = |base| ["-b", HOST, "-C", HOST, "-c", "3", "-q", base];
        run_connected(
            [ours, theirs],
            "cmtime",
            &[&cmtime("0x6000")[..], &["-L"]].concat(),
            &cmtime("0x6100"),
        );
        run_connected(
            [ours, ours],
            "rstream",
            &["-S", "1000", "-C", "10"],
            &["-S", "1000", "-C", "10", "-s", HOST],
        );
    });
}

/// On a ConnectX, `cargo xtask dropin programs --hca` runs them with either library.
#[kernel_test(device::soft_roce)]
fn programs_of_perftest_run() {
    let index = device::gid_index().to_string();
    let (ours, theirs) = (Library::Bareverbs, Library::RdmaCore);
    for (name, [server, client], options) in [
        ("ib_send_bw", [ours, ours], &["-q", "4", "-e"][..]),
        ("ib_write_lat", [ours, theirs], &[]),
        ("ib_read_bw", [theirs, ours], &["-q", "4"]),
        // Connected by librdmacm.
        ("ib_atomic_lat", [ours, ours], &["-R"]),
    ] {
        let command = |library: Library, host: Option<&str>| {
            let mut command = Command::new(name);
            command.args(["-d", device::name(), "-x", &index, "-F", "-n", "10"]).args(options).args(host);
            library.load(command)
        };
        let mut serving = Program::start(&mut command(server, None));
        let client = command(client, Some(HOST));
        let finished = if options.contains(&"-R") {
            run_client(&mut serving, client)
        } else {
            wait_until_listening(&mut serving, PORT);
            Program::start(&mut { client }).finish()
        };
        finished.expect_success();
        serving.finish().expect_success();
    }
}

/// Lists and opens devices while another program adds and removes one.
const LIST_DEVICES: &str = "
import subprocess, sys
import pyverbs.device as device
from pyverbs.pyverbs_error import PyverbsRDMAError
changes = subprocess.Popen(['sh', '-c', sys.argv[1]])
lists = set()
while changes.poll() is None:
    names = [found.name.decode() for found in device.get_device_list()]
    lists.add(len(names))
    for name in names:
        try:
            device.Context(name=name).close()
        except PyverbsRDMAError:
            assert name == 'rxe_dropin', name
assert changes.returncode == 0 and len(lists) == 2, (changes.returncode, lists)
";

#[kernel_test(device::soft_roce)]
fn devices_are_listed_while_one_is_removed() {
    let changes = "set -e; ip link add dropin0 type veth peer name dropin1; ip link set dropin0 up
        for round in 1 2 3 4 5; do
            bareverbs link add rxe_dropin type rxe netdev dropin0; bareverbs link delete rxe_dropin
        done; ip link delete dropin0";
    nothing_leaks(|| Library::Bareverbs.run("python3", &["-c", LIST_DEVICES, changes]));
}

/// The loader ignores LD_LIBRARY_PATH for a setuid program, so the library takes the place of the other one.
const SETUID: &str = "set -e
    mount --bind /usr/local/bin/libibverbs.so.1 \"$(readlink -f /usr/lib/x86_64-linux-gnu/libibverbs.so.1)\"
    mkdir -p /tmp/setuid; mount -t tmpfs none /tmp/setuid; chmod 755 /tmp/setuid
    cp \"$(command -v ibv_devices)\" /tmp/setuid; chmod u+s /tmp/setuid/ibv_devices
    export BAREVERBS_SOFT=127.0.0.9
    /tmp/setuid/ibv_devices 2>&1; echo setuid; setpriv --reuid 1000 --clear-groups /tmp/setuid/ibv_devices 2>&1";

#[kernel_test(device::has_device_node)]
fn setuid_program_ignores_the_environment() {
    let output = Library::RdmaCore.run("unshare", &["-m", "sh", "-c", SETUID]).stdout;
    let (same_user, setuid) = output.split_once("setuid\n").expect("both programs run");
    for (printed, reads) in [(same_user, true), (setuid, false)] {
        // With rxe the address can't be used, which is reported.
        let has_read = printed.contains("soft0") || printed.contains("BAREVERBS_SOFT");
        assert!(printed.contains(device::name()) && has_read == reads, "{output}");
    }
}

#[kernel_test(device::ethernet)]
fn asyncwatch_prints_events_of_the_port() {
    let mut command = Command::new("ibv_asyncwatch");
    command.args(["-d", device::name()]);
    let mut watcher = Program::start(&mut Library::Bareverbs.load(command));
    watcher.line(&format!("{}: async event FD ", device::name()));
    cut_the_link();
    for event in ["IBV_EVENT_PORT_ERR (10)", "IBV_EVENT_PORT_ACTIVE (9)"] {
        watcher.line(&format!("  event_type {event}, port 1"));
    }
}
