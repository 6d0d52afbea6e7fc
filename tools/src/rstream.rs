//! `bareverbs rstream`: latency and bandwidth of streams, wire-compatible with `rstream` of
//! librdmacm.
//!
//! A test begins with 16 bytes in each direction. Each iteration then sends a number of transfers
//! from the client to the server and back.
//!
//! `bareverbs riostream` makes its transfers by writes to memory that the peer has mapped.

mod mapped;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bareverbs_rdmacm::PortSpace;
use bareverbs_rdmacm::stream::StreamOptions;
use serde::Serialize;

use crate::cli::rstream::{Riostream, Rstream, Size};
use crate::output;
use crate::session::address;
use crate::session::socket::{Server, Socket};
use crate::signal::Stop;

/// Bytes of the buffers of a stream, unless `-B` sets them.
const BUFFER: usize = 1 << 19;

/// Bytes in each direction before a test.
const SYNC: usize = 16;

/// The sizes of the standard tests: those of `-S all` have the second half, too.
const FEW: [u32; 4] = [1 << 6, 1 << 12, 1 << 16, 1 << 20];
const FIRST_EXPONENT: u32 = 6;
const LAST_EXPONENT: u32 = 22;

/// A test of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Test {
    name: String,
    size: u32,
    transfers: u32,
    iterations: u32,
}

/// The result of a test, for `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    bytes: u32,
    xfers: u32,
    iters: u32,
    total: u64,
    seconds: f64,
    gbps: f64,
    usec_per_xfer: f64,
}

/// What a connection is optimized for. The sizes of inline data are those of the C program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Latency,
    Bandwidth,
    /// The tests of the options: the stream's default.
    Custom,
}

/// `bareverbs rstream`.
pub(crate) fn run(options: &Rstream) -> Result<()> {
    start(options, false)
}

/// `bareverbs riostream`.
pub(crate) fn run_mapped(options: &Riostream) -> Result<()> {
    start(options.stream()?, true)
}

fn start(options: &Rstream, is_mapped: bool) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let mut tool = Tool { options, is_mapped, stop, server: None, sent: 0, received: 0 };
    if !options.json {
        output::line(&format!(
            "{:<10}{:<8}{:<8}{:<8}{:<8}{:>8} {:>10}{:>13}",
            "name", "bytes", "xfers", "iters", "total", "time", "Gb/sec", "usec/xfer"
        ))?;
    }
    match options.custom() {
        Some((size, transfers, iterations)) => {
            let test = Test { name: "custom".into(), size, transfers, iterations };
            tool.run_tests(Goal::Custom, vec![test])
        }
        None => {
            let sizes = standard_sizes(options.size == Some(Size::All));
            tool.run_tests(Goal::Latency, sizes.iter().copied().map(latency_test).collect())?;
            tool.run_tests(Goal::Bandwidth, sizes.iter().copied().map(bandwidth_test).collect())
        }
    }
}

/// The address of a host in the form that the options name; without a host, every IPv4 address.
fn address_of(options: &Rstream, host: Option<&str>) -> Result<SocketAddr> {
    let Rstream { format, port, .. } = *options;
    let address = match host {
        Some(host) => address::of_format(format, host, port, PortSpace::Tcp)?,
        None => address::unspecified(format, port, PortSpace::Tcp),
    };
    address.ip().context("a stream has IP addresses, no GID (-f gid)")
}

/// The sizes of the standard tests.
fn standard_sizes(all: bool) -> Vec<u32> {
    if !all {
        return FEW.to_vec();
    }
    let powers = (FIRST_EXPONENT..=LAST_EXPONENT).map(|exponent| 1 << exponent);
    // Between the powers of two: their sums with the power before.
    powers.flat_map(|size| [Some(size), (size > 64).then_some(size + size / 2)]).flatten().collect()
}

/// Transfers of a size that take a while.
pub(crate) fn count(size: u32) -> u32 {
    match size {
        0x10_0000.. => 100,
        0x1_0000.. => 1000,
        0x400.. => 10_000,
        _ => 100_000,
    }
}

fn latency_test(size: u32) -> Test {
    Test {
        name: format!("{}_lat", short(&size_text(size.into()))),
        size,
        transfers: 1,
        iterations: count(size),
    }
}

fn bandwidth_test(size: u32) -> Test {
    Test {
        name: format!("{}_bw", short(&size_text(size.into()))),
        size,
        transfers: count(size),
        iterations: 1,
    }
}

/// The C program has room for four characters of a size.
pub(crate) fn short(text: &str) -> &str {
    &text[..text.len().min(4)]
}

/// A number of bytes with a binary unit, and a fraction if it is below 10 units.
pub(crate) fn size_text(bytes: u64) -> String {
    let (base, unit) = match bytes {
        0x4000_0000.. => (1 << 30, "g"),
        0x10_0000.. => (1 << 20, "m"),
        0x400.. => (1 << 10, "k"),
        _ => (1, ""),
    };
    let (whole, tenths) = (bytes / base, bytes % base * 10 / base);
    if whole < 10 && tenths > 0 { format!("{whole}.{tenths}{unit}") } else { format!("{whole}{unit}") }
}

/// A number with a decimal unit.
pub(crate) fn count_text(count: u32) -> String {
    match count {
        1_000_000_000.. => format!("{}b", count / 1_000_000_000),
        1_000_000.. => format!("{}m", count / 1_000_000),
        1000.. => format!("{}k", count / 1000),
        _ => count.to_string(),
    }
}

/// The state of the program over its connections.
struct Tool<'a> {
    options: &'a Rstream,
    /// Whether transfers are writes to mapped memory.
    is_mapped: bool,
    stop: &'static Stop,
    server: Option<Server>,
    /// Bytes that were sent and received with `-T v`, which counts them.
    sent: u64,
    received: u64,
}

impl Tool<'_> {
    /// Runs tests on a connection of their own.
    fn run_tests(&mut self, goal: Goal, tests: Vec<Test>) -> Result<()> {
        let mut socket = self.connect(goal)?;
        let largest = tests.iter().map(|test| test.size).max().unwrap_or_default();
        let mut buffer = vec![0; SYNC.max(largest as usize)];
        for test in &tests {
            match self.is_mapped {
                true => self.run_mapped_test(&mut socket, test)?,
                false => self.run_test(&mut socket, test, &mut buffer)?,
            }
        }
        socket.end()
    }

    /// A connection with the options of the program.
    fn connect(&mut self, goal: Goal) -> Result<Socket<'static>> {
        let socket = self.open(goal)?;
        if let Some(seconds) = self.options.keepalive {
            socket.set_keepalive(Duration::from_secs(seconds.into()))?;
            if !self.options.json {
                output::line(&format!("Keepalive: ON\n  time: {seconds}"))?;
            }
        }
        Ok(socket)
    }

    fn open(&mut self, goal: Goal) -> Result<Socket<'static>> {
        let Rstream { server: host, bind, .. } = self.options;
        let (waiting, stop) = (self.options.waiting(), self.stop);
        let stream = self.stream_options(goal);
        if let Some(host) = host {
            let peer = address_of(self.options, Some(host))?;
            if self.options.uses_sockets() {
                let connecting = || format!("connecting to {peer} by TCP");
                return Socket::connect_tcp(peer, waiting, stop).with_context(connecting);
            }
            return Ok(Socket::rdma(stream.connect(peer).wait()?, waiting, stop));
        }
        let addr = address_of(self.options, bind.as_deref())?;
        let server = match &mut self.server {
            Some(server) => server,
            none if self.options.uses_sockets() => none.insert(Server::tcp(addr)?),
            none => none.insert(Server::rdma(addr, &stream)?),
        };
        if let Server::Rdma(listener) = server {
            listener.set_options(stream)?;
        }
        Ok(server.accept(waiting, stop)?.0)
    }

    fn stream_options(&self, goal: Goal) -> StreamOptions {
        let bytes = self.options.buffer.map_or(BUFFER, |bytes| bytes as usize);
        let stream = StreamOptions::default().send_buffer(bytes).recv_buffer(bytes);
        let stream = if self.is_mapped { stream.iomap_size(1) } else { stream };
        match goal {
            Goal::Latency => stream.inline(self.options.inline),
            Goal::Bandwidth => stream.inline(0),
            Goal::Custom => stream,
        }
    }

    fn run_test(&mut self, socket: &mut Socket<'_>, test: &Test, buffer: &mut [u8]) -> Result<()> {
        self.exchange(socket, &mut buffer[..SYNC], 1)?;
        let start = Instant::now();
        for _ in 0..test.iterations {
            self.exchange(socket, &mut buffer[..test.size as usize], test.transfers)?;
        }
        self.report(test, start.elapsed().as_secs_f64())
    }

    /// Transfers in both directions, those of the client first.
    fn exchange(&mut self, socket: &mut Socket<'_>, buffer: &mut [u8], transfers: u32) -> Result<()> {
        let is_client = self.options.server.is_some();
        for sends in [is_client, !is_client] {
            for _ in 0..transfers {
                if sends {
                    self.fill(buffer);
                    socket.send(buffer)?;
                } else {
                    socket.recv(buffer)?;
                    self.verify(buffer)?;
                }
            }
        }
        Ok(())
    }

    /// Fills the buffer with bytes that count on from those that were sent.
    fn fill(&mut self, buffer: &mut [u8]) {
        if self.options.verifies() {
            let start = self.sent;
            (start..).zip(&mut *buffer).for_each(|(count, byte)| *byte = count as u8);
            self.sent += buffer.len() as u64;
        }
    }

    fn verify(&mut self, buffer: &[u8]) -> Result<()> {
        if self.options.verifies() {
            let wrong = (self.received..).zip(buffer).find(|(count, byte)| **byte != *count as u8);
            ensure!(
                wrong.is_none(),
                "data verification failed at byte {}",
                wrong.map_or(0, |(count, _)| count)
            );
            self.received += buffer.len() as u64;
        }
        Ok(())
    }

    fn report(&self, test: &Test, seconds: f64) -> Result<()> {
        let transfers = u64::from(test.iterations) * u64::from(test.transfers) * 2;
        let total = transfers * u64::from(test.size);
        let gbps = total as f64 * 8.0 / seconds / 1e9;
        let usec_per_xfer = seconds * 1e6 / transfers as f64;
        let Test { name, size, transfers, iterations } = test;
        if self.options.json {
            let (bytes, xfers, iters) = (*size, *transfers, *iterations);
            let report = Report { name, bytes, xfers, iters, total, seconds, gbps, usec_per_xfer };
            return Ok(output::line(&serde_json::to_string(&report)?)?);
        }
        let (bytes, all) = (size_text((*size).into()), size_text(total));
        let (transfers, iterations) = (count_text(*transfers), count_text(*iterations));
        Ok(output::line(&format!(
            "{name:<10}{bytes:<8}{transfers:<8}{iterations:<8}{all:<8}{seconds:>8.2}s{gbps:>10.2}{usec_per_xfer:>11.2}"
        ))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn format_selects_the_form_of_addresses() {
        let address = |format: &str, host: Option<&str>| {
            let line = ["bareverbs", "rstream", "-f", format];
            let Command::Rstream(options) = Cli::try_parse_from(line).unwrap().command else {
                panic!("not a stream")
            };
            address_of(&options, host).map_err(|error| error.to_string())
        };
        let loopback = Ok("127.0.0.1:7471".parse().unwrap());
        assert_eq!(address("ip", Some("127.0.0.1")), loopback);
        assert_eq!(address("ipv6", Some("::1")), Ok("[::1]:7471".parse().unwrap()));
        assert_eq!(address("name", Some("127.0.0.1")), loopback);
        assert_eq!(address("ip", None), Ok("0.0.0.0:7471".parse().unwrap()));
        assert_eq!(address("ip", Some("localhost")), Err("localhost is not an IP address".into()));
        for host in [Some("fe80::1"), None] {
            assert!(address("gid", host).unwrap_err().contains("-f gid"), "{host:?}");
        }
    }

    #[test]
    fn numbers_have_the_units_of_the_c_program() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1 << 10, "1k"),
            (1536, "1.5k"),
            (10 << 10, "10k"),
            (3 << 19, "1.5m"),
            (12_800_000, "12m"),
            (5 << 29, "2.5g"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
        for (count, text) in [(999, "999"), (1000, "1k"), (1_999_999, "1m"), (2_000_000_000, "2b")] {
            assert_eq!(count_text(count), text);
        }
    }

    #[test]
    fn standard_tests_are_those_of_the_c_program() {
        let names: Vec<_> = standard_sizes(false).into_iter().map(|size| latency_test(size).name).collect();
        assert_eq!(names, ["64_lat", "4k_lat", "64k_lat", "1m_lat"]);
        let all = standard_sizes(true);
        assert_eq!(
            (all.len(), all[..4].to_vec(), all.last()),
            (33, vec![64, 128, 192, 256], Some(&(6 << 20)))
        );
        assert_eq!(
            bandwidth_test(6 << 20),
            Test { name: "6m_bw".into(), size: 6 << 20, transfers: 100, iterations: 1 }
        );
    }
}
