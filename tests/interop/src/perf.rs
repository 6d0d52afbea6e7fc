//! Benchmarks between two programs in one guest.

use std::process::Command;
use std::time::Duration;

use bareverbs_test_support::device;
use serde_json::Value;

use crate::pingpong::{HOST, PORT, wait_until_listening};
use crate::program::{Finished, LIMIT, Program};

/// A benchmark: the words of `bareverbs perf`, and the program of perftest with the option that it
/// needs for the same.
#[derive(Clone, Copy, Debug)]
pub struct Benchmark {
    /// The operation.
    pub operation: &'static str,
    /// `bw` or `lat`.
    pub test: &'static str,
}

/// A side of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `bareverbs perf`.
    Bareverbs,
    /// The program of perftest.
    Perftest,
}

/// The pairings of a server and a client in which `bareverbs` takes part.
pub const PAIRINGS: [(Side, Side); 3] = [
    (Side::Perftest, Side::Bareverbs),
    (Side::Bareverbs, Side::Perftest),
    (Side::Bareverbs, Side::Bareverbs),
];

impl Benchmark {
    /// The command of a server, or of a client with the server's host, on the device of the tests.
    pub fn command(self, side: Side, options: &[&str], host: Option<&str>) -> Command {
        self.command_on(device::name(), side, options, host)
    }

    /// The command on another device.
    pub fn command_on(self, device: &str, side: Side, options: &[&str], host: Option<&str>) -> Command {
        let Self { operation, test } = self;
        let mut command = match side {
            Side::Bareverbs => {
                let mut command = Command::new("bareverbs");
                command.args(["perf", operation, test, "--json"]);
                command
            }
            Side::Perftest => {
                let base = operation.trim_end_matches("-imm");
                let mut command = Command::new(format!("ib_{base}_{test}"));
                command.arg("-F").args((operation == "write-imm").then_some("--write_with_imm"));
                command
            }
        };
        command.args(["-d", device]).args(options).args(host);
        command
    }

    /// Starts a server and waits until it listens.
    pub fn serve(self, side: Side, options: &[&str]) -> Program {
        let mut server = Program::start(&mut self.command(side, options, None));
        wait_until_listening(&mut server, PORT);
        server
    }

    /// Runs a server and a client to success.
    pub fn run(self, pairing: (Side, Side), options: &[&str]) -> Run {
        self.run_within(LIMIT, pairing, options)
    }

    /// The same with another timeout of each program.
    pub fn run_within(self, limit: Duration, (server, client): (Side, Side), options: &[&str]) -> Run {
        let running = self.serve(server, options);
        let started = Program::start(&mut self.command(client, options, Some(HOST)));
        let client_end = started.finish_within(limit);
        let server_end = running.finish_within(limit);
        let run = Run { sides: (server, client), server: server_end, client: client_end };
        assert!(run.server.status.success() && run.client.status.success(), "{run:#?}");
        run
    }
}

/// Both sides of a run that has ended.
#[derive(Clone, Debug)]
pub struct Run {
    /// The programs of the server and of the client.
    pub sides: (Side, Side),
    /// The side that listened.
    pub server: Finished,
    /// The side that connected.
    pub client: Finished,
}

/// The JSON that `bareverbs perf` printed.
///
/// # Panics
/// If the output is not JSON.
pub fn json(side: &Finished) -> Value {
    serde_json::from_str(&side.stdout).unwrap_or_else(|error| panic!("{error}: {side:#?}"))
}

/// The rows of the table that perftest printed: size and iterations first.
pub fn rows(side: &Finished) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    for line in side.stdout.lines() {
        let numbers = line.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
        rows.extend(numbers.ok().filter(|numbers| numbers.len() >= 4));
    }
    rows
}

impl Run {
    /// The server's JSON, if it is `bareverbs`.
    pub fn server_json(&self) -> Option<Value> {
        (self.sides.0 == Side::Bareverbs).then(|| json(&self.server))
    }

    /// The client's JSON, if it is `bareverbs`.
    pub fn client_json(&self) -> Option<Value> {
        (self.sides.1 == Side::Bareverbs).then(|| json(&self.client))
    }
}
