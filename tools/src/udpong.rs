//! `bareverbs udpong`: latency and bandwidth of datagram sockets, wire-compatible with `udpong` of
//! librdmacm.
//!
//! A client gets a number from the server. In a latency test the server answers each message. In a
//! bandwidth test it counts them, and sends the number at the end. Datagrams may be lost: the client
//! repeats a message until the answer to it arrives.

mod message;
mod socket;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use self::message::{CONTROL_BYTES, HEAD, Head, Op};
use self::socket::Socket;
use crate::cli::udpong::Udpong;
use crate::output;
use crate::rstream::{count, count_text, short, size_text};
use crate::session::address;
use crate::signal::Stop;

/// The sizes of the standard tests.
const SIZES: [u32; 9] = [64, 128, 192, 256, 384, 512, 768, 1024, 1536];

/// How long the client waits for an answer before it repeats a message: at the start of a test, and
/// within it.
const PATIENT: Duration = Duration::from_secs(1);
const BRISK: Duration = Duration::from_millis(1);

/// How long the server may be silent.
const SILENCE: Duration = Duration::from_secs(30);

/// The longest message that a peer can send.
const LONGEST: usize = 2048;

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    name: String,
    size: u32,
    count: u32,
    /// Whether the server answers each message.
    echo: bool,
}

impl Test {
    fn standard() -> Vec<Self> {
        let of = |kind: &str, size: u32, count, echo| {
            let name = format!("{}_{kind}", short(&size_text(size.into())));
            Self { name, size, count, echo }
        };
        let latency = SIZES.map(|size| of("lat", size, count(size) / 10, true));
        let bandwidth = SIZES.map(|size| of("bw", size, count(size), false));
        latency.into_iter().chain(bandwidth).collect()
    }
}

/// The result of a test, for `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    bytes: u32,
    xfers: u64,
    total: u64,
    seconds: f64,
    gbps: f64,
    usec_per_xfer: f64,
}

/// A client that has logged in, for `--json`.
#[derive(Debug, Serialize)]
struct Login {
    login: String,
}

/// `bareverbs udpong`.
pub(crate) fn run(options: &Udpong) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    match &options.server {
        Some(host) => Client::run(options, host, stop),
        None => serve(options, stop),
    }
}

/// Serves clients until a signal arrives.
fn serve(options: &Udpong, stop: &Stop) -> Result<()> {
    let addr = match options.device.address() {
        Some(address) if options.bind.is_none() => (address, options.port).into(),
        _ => address::to_bind(options.bind.as_deref(), options.port)?,
    };
    let mut socket = Socket::bind(addr, options, stop)?;
    // Messages of each client since its last test began.
    let mut received = [0u32; 256];
    let mut next_client = 0u8;
    let mut buffer = [0; LONGEST];
    loop {
        let (len, sender) = socket.recv_from(&mut buffer)?;
        let message = &mut buffer[..len];
        let Some(mut head) = Head::parse(message) else { continue };
        match head.op {
            Op::Login => {
                head.client = next_client;
                next_client = next_client.wrapping_add(1);
                let ip = sender.ip().to_string();
                output::line(&match options.json {
                    true => serde_json::to_string(&Login { login: ip })?,
                    false => format!("client login from {ip}"),
                })?;
                received[usize::from(head.client)] = 0;
            }
            Op::Start => received[usize::from(head.client)] = 0,
            Op::Echo => received[usize::from(head.client)] += 1,
            Op::End => head.data = received[usize::from(head.client)],
            Op::Data => {
                received[usize::from(head.client)] += 1;
                continue;
            }
        }
        head.put(message);
        socket.send_to(message, sender)?;
    }
}

/// A client that is connected to a server.
struct Client<'a> {
    socket: Socket<'a>,
    options: &'a Udpong,
    /// The number that the server has given it.
    number: u8,
    /// The number of the next message that is answered.
    sequence: u8,
    message: [u8; LONGEST],
}

impl<'a> Client<'a> {
    fn run(options: &'a Udpong, host: &str, stop: &'a Stop) -> Result<()> {
        if !options.json {
            output::line(&format!(
                "{:<10}{:<8}{:<8}{:<8}{:>8} {:>10}{:>13}",
                "name", "bytes", "xfers", "total", "time", "Gb/sec", "usec/xfer"
            ))?;
        }
        let socket = Socket::connect(address::first(host, options.port)?, options, stop)?;
        let message = [0; LONGEST];
        let mut client = Self { socket, options, number: 0, sequence: 0, message };
        client.number = client.ask(Op::Login, CONTROL_BYTES, PATIENT)?.client;
        if let Some((size, count)) = options.custom() {
            let test = Test { name: "custom".into(), size, count, echo: options.echoes() };
            return client.test(&test);
        }
        let max = client.socket.max_message()?;
        for test in Test::standard() {
            if test.size as usize > max {
                output::diagnostic(&format!(
                    "bareverbs: {} is left out: the port carries at most {max} bytes",
                    test.name
                ));
                continue;
            }
            client.test(&test)?;
        }
        Ok(())
    }

    fn test(&mut self, test: &Test) -> Result<()> {
        let size = test.size as usize;
        self.ask(Op::Start, CONTROL_BYTES, PATIENT)?;
        let start = Instant::now();
        for _ in 0..test.count {
            if test.echo {
                self.ask(Op::Echo, size, BRISK)?;
            } else {
                self.put(Op::Data);
                self.socket.send(&self.message[..size])?;
            }
        }
        let end = self.ask(Op::End, CONTROL_BYTES, BRISK)?;
        let transfers = if test.echo { u64::from(test.count) * 2 } else { end.data.into() };
        self.report(test, transfers, start.elapsed().as_secs_f64())
    }

    /// Writes the head of a message.
    fn put(&mut self, op: Op) {
        let head = Head { op, client: self.number, sequence: self.sequence, data: 0 };
        head.put(&mut self.message);
    }

    /// Sends a message until the answer to it arrives. Returns its head.
    fn ask(&mut self, op: Op, size: usize, limit: Duration) -> Result<Head> {
        self.put(op);
        let give_up = Instant::now() + SILENCE;
        loop {
            self.socket.send(&self.message[..size])?;
            let mut answer = [0; LONGEST];
            while let Some(len) = self.socket.recv(&mut answer, limit)? {
                // Answers to earlier messages, and to the same one again, may be late.
                let head = Head::parse(&answer[..len]);
                if let Some(head) = head.filter(|head| head.sequence == self.sequence && head.op == op) {
                    ensure!(len == size, "the server has answered {size} bytes with {len}");
                    self.sequence = self.sequence.wrapping_add(1);
                    return Ok(head);
                }
            }
            if Instant::now() > give_up {
                bail!("the server has not answered for {} s", SILENCE.as_secs());
            }
        }
    }

    fn report(&self, test: &Test, xfers: u64, seconds: f64) -> Result<()> {
        let Test { name, size, .. } = test;
        let total = xfers * u64::from(*size);
        let gbps = total as f64 * 8.0 / seconds / 1e9;
        let usec_per_xfer = if xfers == 0 { 0.0 } else { seconds * 1e6 / xfers as f64 };
        if self.options.json {
            let report = Report { name, bytes: *size, xfers, total, seconds, gbps, usec_per_xfer };
            return Ok(output::line(&serde_json::to_string(&report)?)?);
        }
        let (bytes, all) = (size_text((*size).into()), size_text(total));
        let transfers = count_text(u32::try_from(xfers).unwrap_or(u32::MAX));
        Ok(output::line(&format!(
            "{name:<10}{bytes:<8}{transfers:<8}{all:<8}{seconds:>8.2}s{gbps:>10.2}{usec_per_xfer:>11.2}"
        ))?)
    }
}

const _: () = assert!(HEAD <= CONTROL_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_tests_are_those_of_the_c_program() {
        let tests = Test::standard();
        let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(
            names[..9].join(" "),
            "64_lat 128_lat 192_lat 256_lat 384_lat 512_lat 768_lat 1k_lat 1.5k_lat"
        );
        assert_eq!((names.len(), names[9], names[17]), (18, "64_bw", "1.5k_bw"));
        let counts = [0, 7, 9, 17].map(|at| tests[at].count);
        assert_eq!(counts, [10_000, 1000, 100_000, 10_000]);
    }
}
