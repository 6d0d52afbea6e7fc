//! The command lines of the tools for datagrams.

use std::net::Ipv6Addr;

use bareverbs_rdmacm::PortSpace;
use clap::{ArgGroup, Args};

use super::soft::SoftDevice;
use super::values::number;
use crate::session::address::AddressFormat;
use crate::session::datagram::Messages;

/// The numbers of the port spaces (`RDMA_PS_IPOIB`, `RDMA_PS_UDP`), which the C programs take.
fn port_space(text: &str) -> Result<PortSpace, String> {
    match text.to_ascii_lowercase().as_str() {
        "udp" | "0x0111" | "0x111" | "273" => Ok(PortSpace::Udp),
        "ipoib" | "0x0002" | "0x2" | "2" => Ok(PortSpace::Ipoib),
        _ => Err("must be udp (0x111) or ipoib (2)".into()),
    }
}

/// The messages of both programs.
#[derive(Clone, Debug, Args)]
struct MessageOptions {
    /// Number of messages
    #[arg(short = 'C', long, default_value = "10", value_parser = number::<u32>(0, 1 << 20))]
    count: u32,
    /// Bytes of a message; at most the MTU of the port
    #[arg(short = 'S', long, default_value = "100", value_parser = number::<u32>(0, 4096))]
    size: u32,
}

impl MessageOptions {
    /// Messages of 0 bytes are none, as in the C programs.
    fn messages(&self) -> Messages {
        Messages { count: if self.size == 0 { 0 } else { self.count }, size: self.size }
    }
}

/// The options of udaddy.
#[derive(Clone, Debug, Args)]
pub(crate) struct Udaddy {
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
    /// Number of connections
    #[arg(short, long, default_value = "1", value_parser = number::<u32>(1, 4096))]
    pub(crate) connections: u32,
    #[command(flatten)]
    messages: MessageOptions,
    /// Type of service
    #[arg(short, long, value_parser = number::<u8>(0, 255))]
    pub(crate) tos: Option<u8>,
    /// Port space: udp or ipoib
    #[arg(short = 'P', long, visible_short_alias = 'p', default_value = "udp", value_parser = port_space)]
    space: PortSpace,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl Udaddy {
    pub(crate) fn messages(&self) -> Messages {
        self.messages.messages()
    }

    pub(crate) fn port_space(&self) -> PortSpace {
        self.space
    }
}

/// The options of mckey.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("to").required(true))]
pub(crate) struct Mckey {
    #[command(flatten)]
    pub(crate) device: SoftDevice,
    /// Address of the group
    #[arg(short = 'm', long, value_name = "ADDR", group = "to")]
    pub(crate) group: Option<String>,
    /// GID of the group, used without address resolution
    #[arg(short = 'M', long, value_name = "GID", group = "to", requires = "bind")]
    pub(crate) raw_group: Option<Ipv6Addr>,
    /// Send (default: receive)
    #[arg(short, long)]
    pub(crate) sender: bool,
    /// Address of the device (default: that of the soft device)
    #[arg(short, long, value_name = "ADDR")]
    pub(crate) bind: Option<String>,
    /// Number of queue pairs in the group
    #[arg(short, long, default_value = "1", value_parser = number::<u32>(1, 4096))]
    pub(crate) connections: u32,
    #[command(flatten)]
    messages: MessageOptions,
    /// Port space: udp or ipoib
    #[arg(short, long, default_value = "udp", value_parser = port_space)]
    port_space: PortSpace,
    /// Join as send-only full member
    #[arg(short = 'o', long)]
    pub(crate) send_only: bool,
    /// Block loopback of own messages; not supported by every device
    #[arg(short = 'l', long)]
    pub(crate) no_loopback: bool,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl Mckey {
    pub(crate) fn messages(&self) -> Messages {
        self.messages.messages()
    }

    pub(crate) fn port_space(&self) -> PortSpace {
        self.port_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_spaces_have_names_and_the_numbers_of_the_c_programs() {
        for text in ["udp", "UDP", "0x111", "273"] {
            assert_eq!(port_space(text), Ok(PortSpace::Udp));
        }
        assert_eq!(port_space("2"), Ok(PortSpace::Ipoib));
        port_space("tcp").unwrap_err();
    }
}
