//! The command line of `bareverbs rping`.

use clap::{ArgGroup, Args};

use super::soft::soft_device;
use super::values::number;

/// The options of rping.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("role").required(true))]
pub(crate) struct Rping {
    /// Run as server
    #[arg(short, long, group = "role")]
    pub(crate) server: bool,
    /// Run as client
    #[arg(short, long, group = "role")]
    pub(crate) client: bool,
    /// Address to connect to, or to listen at (default of a server: every IPv4 address)
    #[arg(short, long)]
    pub(crate) addr: Option<String>,
    /// Connect from this address
    #[arg(short = 'I', long, value_name = "ADDR", conflicts_with = "server")]
    pub(crate) source: Option<String>,
    /// Port of the connection manager
    #[arg(short, long, default_value = "7174", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Number of pings; 0: until a signal
    #[arg(short = 'C', long, default_value = "0", value_parser = number::<u32>(0, i32::MAX as u32))]
    pub(crate) count: u32,
    /// Bytes of a ping, including its NUL
    #[arg(short = 'S', long, default_value = "64", value_parser = number::<u32>(26, 65535))]
    pub(crate) size: u32,
    /// Print the data
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Compare the data of each ping with what was sent
    #[arg(short = 'V', long)]
    pub(crate) validate: bool,
    /// Print the steps to standard error
    #[arg(short, long)]
    pub(crate) debug: bool,
    /// Serve any number of clients, until a signal
    #[arg(short = 'P', long, conflicts_with = "client")]
    pub(crate) persistent: bool,
    /// Accepted for compatibility: the QP is always moved by the program, as with -q of rping
    #[arg(short = 'q', long)]
    pub(crate) self_modify: bool,
    /// Open this soft device first, such as soft:127.0.0.2: its address and others are reached by it
    #[arg(long, value_name = "DEV", value_parser = soft_device)]
    pub(crate) ib_dev: Option<String>,
    /// Print a line of JSON for each connection
    #[arg(long)]
    pub(crate) json: bool,
}
