//! The command line.

pub(crate) mod pingpong;
mod values;

use clap::{Args, Parser, Subcommand};

use self::pingpong::Pingpong;
use self::values::number;

/// RDMA from one static program, without a C library underneath.
#[derive(Debug, Parser)]
#[command(name = "bareverbs", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the RDMA devices, as ibv_devices does
    Devices(Devices),
    /// Show what devices and their ports can do, as ibv_devinfo does
    Devinfo(Devinfo),
    /// Bounce messages between two hosts
    #[command(subcommand)]
    Pingpong(Pingpong),
}

#[derive(Debug, Args)]
pub(crate) struct Devices {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Devinfo {
    /// Use this device (default: all devices)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port of the device (default: all ports)
    #[arg(short = 'i', long, value_name = "PORT", value_parser = number::<u8>(1, 255))]
    pub(crate) ib_port: Option<u8>,
    /// Print only the names of the devices
    #[arg(short, long)]
    pub(crate) list: bool,
    /// Print everything that is known
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn devinfo_takes_the_options_of_ibv_devinfo() {
        let parse = |args: &[&str]| match Cli::try_parse_from(["bareverbs", "devinfo"].iter().chain(args))
            .unwrap()
            .command
        {
            Command::Devinfo(options) => options,
            other => panic!("parsed as {other:?}"),
        };
        for args in [
            &["-d", "rxe0", "-i", "1", "-l", "-v"][..],
            &["--ib-dev=rxe0", "--ib-port=1", "--list", "--verbose"],
        ] {
            let options = parse(args);
            assert_eq!((options.ib_dev.as_deref(), options.ib_port), (Some("rxe0"), Some(1)));
            assert!(options.list && options.verbose && !options.json);
        }
    }
}
