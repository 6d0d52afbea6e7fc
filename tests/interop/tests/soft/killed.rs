//! A program that is killed: its peer fails in bounded time, and the next one can use the address.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use bareverbs_interop_tests::namespace::{Namespace, RXE, RXE_IP, SOFT};
use bareverbs_interop_tests::pingpong::{Bareverbs, PORT};
use bareverbs_interop_tests::program::Program;
use bareverbs_test_support::{device, kernel_test};
use nix::sys::signal::Signal;

/// Time limit of the error. The program probes its peer after 10 s without a completion.
const BOUND: Duration = Duration::from_secs(40);
/// Seconds before each attempt to kill a program in the middle of a run.
const KILL_AFTER: [u64; 3] = [1, 4, 12];

/// A server on rxe and a client on the soft device.
fn start(namespace: &Namespace, iters: &str) -> [Program; 2] {
    let server = Bareverbs(&["-d", RXE, "-c", "-n", iters]).serve(PORT);
    let mut client = Bareverbs(&["-d", SOFT, "-c", "-n", iters]).command(Some(RXE_IP));
    [server, namespace.run(|| Program::start(&mut client))]
}

/// Kills one program in the middle of an endless run, and returns what the other one printed as error.
fn kill_one(namespace: &Namespace, victim: usize) -> String {
    let survivors = KILL_AFTER.into_iter().map(|seconds| {
        let mut programs = start(namespace, "1000000000");
        programs[1 - victim].line("  remote address:");
        std::thread::sleep(Duration::from_secs(seconds));
        let [server, client] = programs;
        let (killed, survivor) = if victim == 0 { (server, client) } else { (client, server) };
        killed.signal(Signal::SIGKILL);
        assert_eq!(killed.finish().status.signal(), Some(Signal::SIGKILL as i32));
        survivor.finish_within(BOUND)
    });
    // On a busy machine, an early kill comes before the first message.
    let is_in_the_middle = |text: &String| !text.contains("; 0 messages were sent");
    let words = "Failed status transport retry counter exceeded (12)";
    let errors = survivors.map(|survivor| survivor.expect_failure(words).stderr);
    errors.into_iter().find(is_in_the_middle).expect("a message is sent before the kill")
}

#[kernel_test(device::soft_roce)]
fn peer_of_a_killed_program_fails_and_the_address_is_free() {
    let namespace = Namespace::new();
    for victim in [0, 1] {
        kill_one(&namespace, victim);
        for program in start(&namespace, "20") {
            let finished = program.finish().expect_success();
            assert!(finished.stderr.contains("all bytes of 20 messages"), "{finished:#?}");
        }
    }
}
