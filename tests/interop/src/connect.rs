//! Clients of the connection manager that may come before their server listens.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::program::{Finished, LIMIT, Program};

/// Runs a client, again if it comes before the server listens.
pub fn run_client(server: &mut Program, mut client: Command) -> Finished {
    let deadline = Instant::now() + LIMIT;
    loop {
        let finished = Program::start(&mut client).finish();
        let ended = !was_rejected(&finished) || server.has_ended();
        if finished.status.success() || ended || Instant::now() > deadline {
            return finished;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the program says that its peer does not listen.
pub fn was_rejected(finished: &Finished) -> bool {
    let text = format!("{}{}", finished.stdout, finished.stderr).to_lowercase();
    // The programs of librdmacm print the event, or ECONNREFUSED. `rstream -T s` prints the errno of its
    // `connect`, which did not wait, when the poll reports that the server doesn't listen. perftest prints
    // the number of the event `RDMA_CM_EVENT_REJECTED`.
    let words = [
        "reject",
        "refused",
        "unreachable",
        "rpoll: operation now in progress",
        "unexpected cm event bl blka 8",
    ];
    words.iter().any(|word| text.contains(word))
}
