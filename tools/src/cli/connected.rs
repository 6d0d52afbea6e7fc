//! The command lines of the tools for connections by IP address.

use bareverbs::values::AckTimeout;
use bareverbs_rdmacm::{CmId, PortSpace};
use clap::Args;

use super::soft::SoftDevice;
use super::values::number;
use crate::session::address::AddressFormat;

/// The port spaces of connected queue pairs.
fn port_space(text: &str) -> Result<PortSpace, String> {
    match text.to_ascii_lowercase().as_str() {
        "tcp" => Ok(PortSpace::Tcp),
        "ib" => Ok(PortSpace::Ib),
        _ => Err("must be tcp or ib".into()),
    }
}

fn ack_timeout(text: &str) -> Result<AckTimeout, String> {
    let exponent = number::<u8>(0, 31)(text)?;
    AckTimeout::new(exponent).ok_or_else(|| "must be between 0 and 31".into())
}

/// The options of ucmatose.
#[derive(Clone, Debug, Args)]
pub(crate) struct Ucmatose {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Connect to this server; without it, run as server
    #[arg(short, long, value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// Listen at, or connect from, this address
    #[arg(short, long, value_name = "ADDR")]
    pub(crate) bind: Option<String>,
    /// Form of addresses
    #[arg(short, long, value_enum, default_value = "name")]
    pub(crate) format: AddressFormat,
    /// Port space: tcp or ib
    #[arg(short = 'P', long, value_name = "SPACE", default_value = "tcp", value_parser = port_space)]
    pub(crate) space: PortSpace,
    /// Number of connections
    #[arg(short, long, default_value = "1", value_parser = number::<u32>(1, 4096))]
    pub(crate) connections: u32,
    /// Number of messages in each direction of a connection
    #[arg(short = 'C', long, default_value = "10", value_parser = number::<u32>(0, 1 << 20))]
    count: u32,
    /// Bytes of a message
    #[arg(short = 'S', long, default_value = "100", value_parser = number::<u32>(0, 1 << 30))]
    pub(crate) size: u32,
    /// Type of service
    #[arg(short, long, value_parser = number::<u8>(0, 255))]
    tos: Option<u8>,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Move the connections to another event channel before their end
    #[arg(short, long)]
    pub(crate) migrate: bool,
    /// Local ACK timeout of the queue pairs: 4.096 µs × 2^N; 0: infinite
    #[arg(short, long, value_name = "N", value_parser = ack_timeout)]
    pub(crate) ack_timeout: Option<AckTimeout>,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl Ucmatose {
    /// Messages of 0 bytes are none, as in the C program.
    pub(crate) fn count(&self) -> u32 {
        if self.size == 0 { 0 } else { self.count }
    }

    /// Sets the options of an identifier that connects.
    pub(crate) fn set_on(&self, id: &CmId) -> bareverbs_rdmacm::Result<()> {
        self.tos.map_or(Ok(()), |tos| id.set_tos(tos))?;
        self.ack_timeout.map_or(Ok(()), |timeout| id.set_ack_timeout(timeout))
    }
}

/// The options of rdma-server.
#[derive(Clone, Debug, Args)]
pub(crate) struct RdmaServer {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Listen at this address (default: every IPv4 address)
    #[arg(short = 's', long, value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of rdma-client.
#[derive(Clone, Debug, Args)]
pub(crate) struct RdmaClient {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Connect to this server; on RoCE, the default address has no route
    #[arg(short, long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) server: String,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The transport of rdma-xserver and rdma-xclient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum XTransport {
    Rc,
    Xrc,
}

/// The first letter counts, as in the C programs.
fn x_transport(text: &str) -> Result<XTransport, String> {
    match text.as_bytes().first().map(u8::to_ascii_lowercase) {
        Some(b'r') => Ok(XTransport::Rc),
        Some(b'x') => Ok(XTransport::Xrc),
        _ => Err("must be r (RC) or x (XRC)".into()),
    }
}

/// The options of rdma-xserver.
#[derive(Clone, Debug, Args)]
pub(crate) struct RdmaXserver {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Transport: r (RC) or x (XRC)
    #[arg(short = 'c', long, value_name = "TYPE", default_value = "r", value_parser = x_transport)]
    pub(crate) transport: XTransport,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of rdma-xclient.
#[derive(Clone, Debug, Args)]
pub(crate) struct RdmaXclient {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Connect to this server; on RoCE, the default address has no route
    #[arg(short, long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) server: String,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Transport: r (RC) or x (XRC)
    #[arg(short = 'c', long, value_name = "TYPE", default_value = "r", value_parser = x_transport)]
    pub(crate) transport: XTransport,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of cmtime.
#[derive(Clone, Debug, Args)]
pub(crate) struct Cmtime {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// IP address of the device
    #[arg(short, long, value_name = "ADDR", required_unless_present = "bind_interface")]
    pub(crate) bind: Option<String>,
    /// Network interface of the device, whose first IP address is used
    #[arg(short = 'B', long, value_name = "INTERFACE", conflicts_with = "bind")]
    pub(crate) bind_interface: Option<String>,
    /// IP address of the controller; the peer that can bind to it is the controller
    #[arg(short = 'C', long, value_name = "HOST")]
    pub(crate) controller: String,
    /// Number of connections to each listening peer
    #[arg(short, long, default_value = "100", value_parser = number::<u32>(1, 65536))]
    pub(crate) connections: u32,
    /// Run as listening peer (default: connect)
    #[arg(short = 'L', long)]
    pub(crate) listen: bool,
    /// Simulate queue pairs: each of their calls takes this many microseconds
    #[arg(short, long, value_name = "MICROSECONDS", value_parser = number::<u32>(0, 1_000_000))]
    pub(crate) mimic: Option<u32>,
    /// Number of threads
    #[arg(short = 'n', long, default_value = "1", value_parser = number::<u32>(1, 256))]
    pub(crate) threads: u32,
    /// Number of peers, including this one
    #[arg(short = 'P', long, default_value = "2", value_parser = number::<u32>(2, 1024))]
    pub(crate) peers: u32,
    /// TCP port of the controller
    #[arg(short, long, default_value = "7471", value_parser = number::<u16>(1, 65535))]
    pub(crate) port: u16,
    /// QPN of the first simulated queue pair
    #[arg(short = 'q', long, value_name = "QPN", default_value = "1000", value_parser = number::<u32>(2, 0xff_ffff))]
    pub(crate) base_qpn: u32,
    /// Retries of address and route resolution
    #[arg(short, long, default_value = "2", value_parser = number::<u32>(0, 1000))]
    pub(crate) retries: u32,
    /// Measure connections over TCP, for comparison; two peers only
    #[arg(short = 'S', long)]
    pub(crate) sockets: bool,
    /// Time limit of address and route resolution, in milliseconds
    #[arg(short, long, value_name = "MILLISECONDS", default_value = "2000", value_parser = number::<u32>(1, 3_600_000))]
    pub(crate) timeout: u32,
    /// Print a line of JSON for each round
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn parse(line: &str) -> Result<Command, clap::Error> {
        let words = std::iter::once("bareverbs").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command)
    }

    #[test]
    fn defaults_are_those_of_the_c_programs() {
        let Command::Ucmatose(ucmatose) = parse("ucmatose").unwrap() else { panic!("not ucmatose") };
        assert_eq!(
            (ucmatose.connections, ucmatose.count(), ucmatose.size, ucmatose.port),
            (1, 10, 100, 7471)
        );
        assert_eq!((ucmatose.space, ucmatose.format), (PortSpace::Tcp, AddressFormat::Name));
        let Command::RdmaClient(client) = parse("rdma-client").unwrap() else { panic!("not rdma-client") };
        assert_eq!((&*client.server, client.port), ("127.0.0.1", 7471));
        let Command::Cmtime(cmtime) = parse("cmtime -b 10.1.0.1 -C 10.1.0.1").unwrap() else {
            panic!("not cmtime")
        };
        assert_eq!((cmtime.connections, cmtime.threads, cmtime.peers, cmtime.port), (100, 1, 2, 7471));
        assert_eq!((cmtime.base_qpn, cmtime.retries, cmtime.timeout, cmtime.mimic), (1000, 2, 2000, None));
    }

    #[test]
    fn first_letter_names_the_transport() {
        for (line, transport) in [
            ("rdma-xclient", XTransport::Rc),
            ("rdma-xclient -c RC", XTransport::Rc),
            ("rdma-xclient -c x", XTransport::Xrc),
            ("rdma-xclient -c XRC", XTransport::Xrc),
        ] {
            let Command::RdmaXclient(client) = parse(line).unwrap() else { panic!("not rdma-xclient") };
            assert_eq!(
                (client.transport, &*client.server, client.port),
                (transport, "127.0.0.1", 7471),
                "{line}"
            );
        }
    }

    #[test]
    fn messages_of_no_bytes_are_none() {
        let Command::Ucmatose(options) = parse("ucmatose -S 0 -C 7").unwrap() else { panic!("not ucmatose") };
        assert_eq!(options.count(), 0);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for (line, reason) in [
            ("ucmatose -P udp", "must be tcp or ib"),
            ("ucmatose -a 32", "between 0 and 31"),
            ("ucmatose -f lid", "[possible values: name, ip, gid]"),
            ("cmtime -b 10.1.0.1 -C 10.1.0.1 -P 1", "between 2 and 1024"),
            ("cmtime -b 10.1.0.1 -C 10.1.0.1 -q 1", "between 2 and 16777215"),
            ("rdma-xserver -c u", "must be r (RC) or x (XRC)"),
            ("cmtime -b 10.1.0.1", "--controller <HOST>"),
            ("cmtime -C 10.1.0.1", "--bind <ADDR>"),
            ("cmtime -b 10.1.0.1 -B eth0 -C 10.1.0.1", "cannot be used with"),
        ] {
            let text = parse(line).expect_err(line).to_string();
            assert!(text.contains(reason), "{line}: {text}");
        }
    }
}
