//! The command line.

pub(crate) mod pingpong;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use self::pingpong::Pingpong;
use self::values::{number, period};

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
    /// Show the attributes of devices and their ports, as ibv_devinfo does
    Devinfo(Devinfo),
    /// Print asynchronous events as they happen, as ibv_asyncwatch does
    Asyncwatch(Asyncwatch),
    /// Show the objects in use, their owners, and the counters
    Resources(Resources),
    /// Decode queue entries of a ConnectX
    Dump(Dump),
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
    /// Print all attributes
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Asyncwatch {
    /// Use this device (default: the first one found)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Resources {
    /// Show this device (default: all devices)
    #[arg(short, long)]
    pub(crate) dev: Option<String>,
    /// Repeat every SECS seconds (default: 1)
    #[arg(short, long, value_name = "SECS", num_args = 0..=1, default_missing_value = "1", value_parser = period)]
    pub(crate) watch: Option<f64>,
    /// Print JSON; with --watch, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// The type of the entries
    #[arg(value_enum)]
    pub(crate) entries: EntryKind,
    /// The file: raw bytes, or hexadecimal digits as the kernel prints them (default: standard
    /// input)
    pub(crate) file: Option<PathBuf>,
}

/// The type of queue entries.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum EntryKind {
    /// Completions
    Cqe,
    /// Send requests
    Wqe,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clap_definition_is_valid() {
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

    #[test]
    fn watch_has_a_default_period() {
        let watch = |args: &[&str]| {
            let line = ["bareverbs", "resources"].into_iter().chain(args.iter().copied());
            Cli::try_parse_from(line).map(|cli| match cli.command {
                Command::Resources(options) => (options.watch, options.json),
                other => panic!("parsed as {other:?}"),
            })
        };
        assert_eq!(watch(&[]).unwrap(), (None, false));
        assert_eq!(watch(&["--watch"]).unwrap(), (Some(1.0), false));
        assert_eq!(watch(&["--watch", "--json"]).unwrap(), (Some(1.0), true));
        assert_eq!(watch(&["-w", "0.25"]).unwrap(), (Some(0.25), false));
        for wrong in ["0", "-1", "NaN", "inf", "1e300", "soon"] {
            let text = watch(&[&format!("--watch={wrong}")]).unwrap_err().to_string();
            assert!(text.contains("must be between 0.01 and 86400"), "{text}");
        }
    }
}
