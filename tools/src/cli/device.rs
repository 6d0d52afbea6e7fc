//! The commands for devices: `link`, `dev`, `system`, `monitor`, `status`.

use std::net::IpAddr;
use std::str::FromStr;

use bareverbs::PortNum;
use clap::{Args, Subcommand, ValueEnum};

use super::values::seconds;

#[derive(Debug, Args)]
pub(crate) struct Link {
    #[command(subcommand)]
    pub(crate) action: Option<LinkAction>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LinkAction {
    /// Show ports, their states and network interfaces
    #[command(visible_alias = "list")]
    Show {
        /// Show this device or port (default: all)
        #[arg(value_name = "DEV[/PORT]")]
        link: Option<LinkName>,
    },
    /// Create a software device over a network interface
    #[command(override_usage = "bareverbs link add [OPTIONS] NAME type TYPE netdev NETDEV")]
    Add(LinkAdd),
    /// Remove a software device
    #[command(visible_alias = "delete")]
    Del {
        /// The device
        name: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct LinkAdd {
    /// The name of the new device
    pub(crate) name: String,
    /// The word `type`
    #[arg(value_name = "type", value_parser = ["type"], hide_possible_values = true)]
    type_word: String,
    /// The type: rxe (Soft-RoCE), siw (Soft-iWARP) or another type of the kernel
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// The word `netdev`
    #[arg(value_name = "netdev", value_parser = ["netdev"], hide_possible_values = true)]
    netdev_word: String,
    /// The network interface
    #[arg(value_name = "NETDEV")]
    pub(crate) netdev: String,
    /// Set the network interface up first
    #[arg(long)]
    pub(crate) up: bool,
    /// Add an address to the network interface first; can be given several times
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    pub(crate) address: Vec<Network>,
    /// Wait until the device can be used, up to SECS seconds (default: 10)
    #[arg(
        long,
        value_name = "SECS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "10",
        value_parser = seconds,
    )]
    pub(crate) wait: Option<f64>,
}

#[derive(Debug, Args)]
pub(crate) struct Dev {
    #[command(subcommand)]
    pub(crate) action: Option<DevAction>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevAction {
    /// Show devices
    #[command(visible_alias = "list")]
    Show {
        /// Show this device (default: all)
        #[arg(value_parser = listed_device)]
        dev: Option<String>,
    },
    /// Change a setting of a device
    Set {
        /// The device
        #[arg(value_parser = listed_device)]
        dev: String,
        #[command(subcommand)]
        setting: DevSetting,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DevSetting {
    /// Rename the device
    Name {
        /// The new name
        name: String,
    },
    /// Move the device to a network namespace
    Netns {
        /// The path of its file, its name in /run/netns, or the id of a process in it
        #[arg(value_name = "PATH|NAME|PID")]
        netns: String,
    },
    /// Turn adaptive moderation of the kernel's CQs on or off
    AdaptiveModeration {
        #[arg(value_enum)]
        switch: Switch,
    },
}

#[derive(Debug, Args)]
pub(crate) struct System {
    #[command(subcommand)]
    pub(crate) action: Option<SystemAction>,
    /// Print JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SystemAction {
    /// Show the settings
    #[command(visible_alias = "list")]
    Show,
    /// Change a setting
    #[command(subcommand)]
    Set(SystemSetting),
}

#[derive(Debug, Subcommand)]
pub(crate) enum SystemSetting {
    /// Set the visibility of devices in network namespaces
    Netns {
        /// Whether devices belong to one network namespace or are shared by all
        #[arg(value_enum)]
        mode: NetnsMode,
    },
    /// Allow or forbid privileged Q_Keys in unprivileged processes
    PrivilegedQkey {
        #[arg(value_enum)]
        switch: Switch,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NetnsMode {
    /// A device is visible in its network namespace only
    Exclusive,
    /// A device is visible in all network namespaces
    Shared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

#[derive(Debug, Args)]
pub(crate) struct Monitor {
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Show this device or port (default: all)
    #[arg(value_name = "DEV[/PORT]")]
    pub(crate) link: Option<LinkName>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A device, or one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkName {
    pub(crate) device: String,
    pub(crate) port: Option<PortNum>,
}

impl FromStr for LinkName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, port) = match text.split_once('/') {
            Some((device, port)) => {
                let number = port.parse().ok().filter(|port| *port > PortNum(0));
                (device, Some(number.ok_or_else(|| format!("{port:?} is not a port number"))?))
            }
            None => (text, None),
        };
        if device.is_empty() {
            return Err("the name of the device is missing".into());
        }
        Ok(Self { device: listed_device(device)?, port })
    }
}

/// The name of a device that the kernel may list.
pub(crate) fn listed_device(name: &str) -> Result<String, String> {
    if name.starts_with("soft:") {
        return Err("a soft device exists only in the process that opens it, so no other lists it; \
                    `bareverbs devinfo -d` opens one"
            .into());
    }
    Ok(name.to_owned())
}

impl LinkName {
    pub(crate) fn matches(&self, port: PortNum) -> bool {
        self.port.is_none_or(|wanted| wanted == port)
    }
}

/// An address with the length of its prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix) = text.split_once('/').ok_or("the length of the prefix is missing")?;
        let address: IpAddr = address.parse().map_err(|_| format!("{address:?} is not an IP address"))?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= max);
        Ok(Self { address, prefix: prefix.ok_or_else(|| format!("the prefix must be between 0 and {max}"))? })
    }
}
