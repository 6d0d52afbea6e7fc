//! The programs of rdma-core with our `libibverbs.so.1`, beside the same programs with their own.

use std::process::Command;

use bareverbs_interop_tests::link::cut_the_link;
use bareverbs_interop_tests::pingpong::{Kind, PORT, PingpongRun, RdmaCoreOf, wait_until_listening};
use bareverbs_interop_tests::program::{Finished, Program};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{device, kernel_test};

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

#[kernel_test]
fn pingpongs_run_with_either_library_on_each_side() {
    use Library::{Bareverbs, RdmaCore};

    nothing_leaks(|| {
        for kind in [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq] {
            let (size, size_text) = if kind == Kind::Ud { (1000, "1000") } else { (5000, "5000") };
            let pairs = [(Bareverbs, Bareverbs), (Bareverbs, RdmaCore), (RdmaCore, Bareverbs)];
            for (at, (server, client)) in pairs.into_iter().enumerate() {
                let events: &[&str] = if at == 0 { &["-e"] } else { &[] };
                let options = [&["-c", "-n", "50", "-s", size_text], events].concat();
                let program = RdmaCoreOf(kind, &options);
                let mut serving = Program::start(&mut server.load(program.command(None)));
                wait_until_listening(&mut serving, PORT);
                let client = client.load(program.command(Some("localhost")));
                let client = Program::start(&mut { client }).finish().expect_success();
                PingpongRun { kind, server: serving.finish(), client }.expect_regular(size, 50);
            }
        }
    });
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
