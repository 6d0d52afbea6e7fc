//! The command line of `udpong`.

use clap::{Args, ValueEnum};

use super::soft::SoftDevice;
use super::values::number;

/// A variation of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TestOption {
    /// UDP instead of RDMA
    #[value(name = "s", aliases = ["socket", "sockets"])]
    Sockets,
    /// Non-blocking calls, and poll() until they are possible
    #[value(name = "a", aliases = ["async", "asynchronous"])]
    Async,
    /// As `a`
    #[value(name = "b", aliases = ["block", "blocking"])]
    Blocking,
    /// Non-blocking calls, repeated until they succeed (default)
    #[value(name = "n", aliases = ["nonblock", "nonblocking"])]
    Nonblocking,
    /// The server answers each message of a custom test
    #[value(name = "e", aliases = ["echo"])]
    Echo,
}

/// The options of udpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct Udpong {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Send to this server; without it, run as server
    #[arg(short, long, value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// Receive at this address (default: that of the soft device, or every IPv4 address)
    #[arg(short, long, value_name = "ADDR", conflicts_with = "server")]
    pub(crate) bind: Option<String>,
    /// Bytes of the send buffer and of the receive buffer (default: 512 KiB)
    #[arg(short = 'B', long, value_name = "BYTES", value_parser = number::<u32>(2048, 64 << 20))]
    pub(crate) buffer: Option<u32>,
    /// Messages of a custom test (default: 1000)
    #[arg(short = 'C', long, value_name = "MESSAGES", value_parser = number::<u32>(1, i32::MAX as u32))]
    count: Option<u32>,
    /// Bytes of a message of a custom test (default: 1000)
    #[arg(short = 'S', long, value_parser = number::<u32>(16, 2032))]
    size: Option<u32>,
    /// UDP port
    #[arg(short, long, default_value = "7174", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// A variation of the tests; may be repeated
    #[arg(short = 'T', long = "test", value_name = "OPTION", value_enum)]
    tests: Vec<TestOption>,
    /// Print a line of JSON for each test
    #[arg(long)]
    pub(crate) json: bool,
}

impl Udpong {
    /// Size and number of the messages of a custom test.
    pub(crate) fn custom(&self) -> Option<(u32, u32)> {
        (self.size.is_some() || self.count.is_some())
            .then(|| (self.size.unwrap_or(1000), self.count.unwrap_or(1000)))
    }

    pub(crate) fn uses_sockets(&self) -> bool {
        self.tests.contains(&TestOption::Sockets)
    }

    /// Whether calls poll, and do not sleep.
    pub(crate) fn spins(&self) -> bool {
        !self.tests.iter().any(|test| matches!(test, TestOption::Async | TestOption::Blocking))
    }

    pub(crate) fn echoes(&self) -> bool {
        self.tests.contains(&TestOption::Echo)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Udpong,
    }

    fn parse(line: &str) -> Result<Udpong, clap::Error> {
        let words = std::iter::once("udpong").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.options)
    }

    #[test]
    fn options_are_those_of_the_c_program() {
        let standard = parse("-s host").unwrap();
        assert_eq!((standard.custom(), standard.port), (None, 7174));
        assert!(standard.spins() && !standard.uses_sockets() && !standard.echoes());
        let custom = parse("-s host -C 5 -T e -T async -T socket").unwrap();
        assert_eq!(custom.custom(), Some((1000, 5)));
        assert!(!custom.spins() && custom.uses_sockets() && custom.echoes());
        assert_eq!(parse("-S 16").unwrap().custom(), Some((16, 1000)));
        for wrong in ["-S 15", "-S 2033", "-T x", "-B 2047", "-s host -b addr"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
