//! The soft device of a program that connects by IP address.

use std::net::IpAddr;

use clap::Args;

/// The name of a soft device.
pub(crate) fn soft_device(name: &str) -> Result<String, String> {
    if name.starts_with("soft:") {
        Ok(name.to_owned())
    } else {
        Err("must be a soft device with an address, such as soft:127.0.0.2; the address chooses a device of \
             the kernel"
            .into())
    }
}

/// The option `-d` of programs over the connection manager.
#[derive(Clone, Debug, Args)]
pub(crate) struct SoftDevice {
    /// Open this soft device first, such as soft:127.0.0.2: its address and others are reached by it
    #[arg(short = 'd', long, value_name = "DEV", value_parser = soft_device)]
    pub(super) ib_dev: Option<String>,
}

impl SoftDevice {
    /// The address of the device. Datagrams from an unspecified address have that of the kernel's route,
    /// which is another one to addresses of this host.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.ib_dev.as_deref()?.strip_prefix("soft:")?.parse().ok()
    }
}
