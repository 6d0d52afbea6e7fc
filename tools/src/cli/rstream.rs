//! The command lines of the stream tools.

use clap::{Args, ValueEnum};

use super::soft::SoftDevice;
use super::values::number;
use crate::session::address::AddressFormat;
use crate::session::socket::Waiting;

/// A transfer size, or all standard sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Bytes(u32),
    All,
}

fn size(text: &str) -> Result<Size, String> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(Size::All);
    }
    number::<u32>(1, i32::MAX as u32)(text).map(Size::Bytes)
}

/// A variation of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestOption {
    /// TCP instead of RDMA
    #[value(name = "s", aliases = ["socket", "sockets"])]
    Sockets,
    /// Non-blocking calls, and poll() until they are possible
    #[value(name = "a", aliases = ["async", "asynchronous"])]
    Async,
    /// Blocking calls; with TCP as `a`
    #[value(name = "b", aliases = ["block", "blocking"])]
    Blocking,
    /// TCP as `s`; rstream also forks for the connection
    #[value(name = "f", aliases = ["fork"])]
    Fork,
    /// Non-blocking calls, repeated until they succeed (default)
    #[value(name = "n", aliases = ["nonblock", "nonblocking"])]
    Nonblocking,
    /// Accepted for compatibility: the connection manager always resolves the address
    #[value(name = "r", aliases = ["resolve"])]
    Resolve,
    /// Verify the data
    #[value(name = "v", aliases = ["verify"])]
    Verify,
}

/// The options of rstream.
#[derive(Clone, Debug, Args)]
pub(crate) struct Rstream {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Connect to this server; without it, run as server
    #[arg(short, long, value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// Listen at this address (default: every IPv4 address)
    #[arg(short, long, value_name = "ADDR", conflicts_with = "server")]
    pub(crate) bind: Option<String>,
    /// Form of addresses; a stream has no GID
    #[arg(short, long, value_enum, default_value = "name")]
    pub(crate) format: AddressFormat,
    /// Bytes of the send buffer and of the receive buffer (default: 512 KiB)
    #[arg(short = 'B', long, value_name = "BYTES", value_parser = number::<u32>(2048, 1 << 30))]
    pub(crate) buffer: Option<u32>,
    /// Largest inline data of the latency tests, in bytes
    #[arg(short, long, value_name = "BYTES", default_value = "64", value_parser = number::<u32>(0, 4096))]
    pub(crate) inline: u32,
    /// Iterations of a custom test (default: 1)
    #[arg(short = 'I', long, value_parser = number::<u32>(1, i32::MAX as u32))]
    iterations: Option<u32>,
    /// Transfers in each direction of an iteration (default of a custom test: 1000)
    #[arg(short = 'C', long, value_name = "TRANSFERS", value_parser = number::<u32>(1, i32::MAX as u32))]
    count: Option<u32>,
    /// Bytes of a transfer (default of a custom test: 1000), or `all` standard sizes
    #[arg(short = 'S', long, value_parser = size)]
    pub(crate) size: Option<Size>,
    /// Port of the connection manager, or of TCP
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Probe the connection each time it is idle for this many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = number::<u32>(1, 32767))]
    pub(crate) keepalive: Option<u32>,
    /// A variation of the tests; may be repeated
    #[arg(short = 'T', long = "test", value_name = "OPTION", value_enum)]
    tests: Vec<TestOption>,
    /// Print a line of JSON for each test
    #[arg(long)]
    pub(crate) json: bool,
}

impl Rstream {
    /// Size, transfers and iterations of a custom test.
    pub(crate) fn custom(&self) -> Option<(u32, u32, u32)> {
        let bytes = match self.size {
            Some(Size::Bytes(bytes)) => Some(bytes),
            _ => None,
        };
        (bytes.is_some() || self.count.is_some() || self.iterations.is_some())
            .then(|| (bytes.unwrap_or(1000), self.count.unwrap_or(1000), self.iterations.unwrap_or(1)))
    }

    pub(crate) fn uses_sockets(&self) -> bool {
        self.tests.iter().any(|test| matches!(test, TestOption::Sockets | TestOption::Fork))
    }

    /// How calls wait. The last option counts.
    pub(crate) fn waiting(&self) -> Waiting {
        let waiting = self.tests.iter().rev().find_map(|test| match test {
            TestOption::Async => Some(Waiting::Poll),
            TestOption::Blocking => Some(Waiting::Block),
            TestOption::Nonblocking => Some(Waiting::Spin),
            _ => None,
        });
        waiting.unwrap_or(Waiting::Spin)
    }

    pub(crate) fn verifies(&self) -> bool {
        self.tests.contains(&TestOption::Verify)
    }
}

/// The options of riostream.
#[derive(Clone, Debug, Args)]
pub(crate) struct Riostream {
    #[command(flatten)]
    pub(super) stream: Rstream,
}

impl Riostream {
    /// The options of a stream.
    ///
    /// # Errors
    /// If they are for TCP, which maps no memory.
    pub(crate) fn stream(&self) -> anyhow::Result<&Rstream> {
        anyhow::ensure!(
            !self.stream.uses_sockets(),
            "riostream has no form for TCP: leave out -T s and -T f"
        );
        Ok(&self.stream)
    }
}
