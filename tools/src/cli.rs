//! The command line.

use std::fmt::Display;

use bareverbs::Mtu;
use clap::{Args, Parser, Subcommand};

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

#[derive(Debug, Subcommand)]
pub(crate) enum Pingpong {
    /// Over a reliable connection; speaks with ibv_rc_pingpong
    Rc(RcPingpong),
}

/// The options of ibv_rc_pingpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct RcPingpong {
    /// Server to connect to; without it, be the server and wait for one client
    pub(crate) host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value = "18515", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Use this device (default: the first one found)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = number::<u8>(1, 255))]
    pub(crate) ib_port: u8,
    /// Bytes of a message
    #[arg(short, long, default_value = "4096", value_parser = number::<u32>(1, u32::MAX))]
    pub(crate) size: u32,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "SIZE", default_value = "1024", value_parser = mtu)]
    pub(crate) mtu: Mtu,
    /// Receives to post at a time
    #[arg(short, long, value_name = "DEPTH", default_value = "500", value_parser = number::<u32>(1, i32::MAX as u32 - 1))]
    pub(crate) rx_depth: u32,
    /// Number of exchanges
    #[arg(short = 'n', long, default_value = "1000", value_parser = number::<u32>(1, i32::MAX as u32))]
    pub(crate) iters: u32,
    /// Service level
    #[arg(short = 'l', long, default_value = "0", value_parser = number::<u8>(0, 15))]
    pub(crate) sl: u8,
    /// Sleep on completion events (default: poll)
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Local GID index (default: on RoCE the best one, elsewhere none)
    #[arg(short, long, value_name = "INDEX", allow_negative_numbers = true, value_parser = gid_index)]
    pub(crate) gid_idx: Option<i32>,
    /// Register the memory for on-demand paging
    #[arg(short = 'o', long)]
    pub(crate) odp: bool,
    /// Register the whole address space for on-demand paging
    #[arg(short = 'O', long)]
    pub(crate) iodp: bool,
    /// Prefetch the on-demand memory
    #[arg(short = 'P', long)]
    pub(crate) prefetch: bool,
    /// Take completion timestamps
    #[arg(short, long)]
    pub(crate) ts: bool,
    /// Send changing data and check every byte received
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Use device memory
    #[arg(short = 'j', long)]
    pub(crate) dm: bool,
    /// Post sends one by one through a batch instead of as a list
    #[arg(short = 'N', long = "new_send")]
    pub(crate) new_send: bool,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

impl RcPingpong {
    /// On-demand paging, explicit or implied.
    pub(crate) fn on_demand(&self) -> bool {
        self.odp || self.iodp
    }

    /// The pairs of options that exclude each other.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        if self.on_demand() && self.dm {
            Some("device memory (-j) can't be on demand (-o, -O)")
        } else if self.prefetch && !self.on_demand() {
            Some("prefetch (-P) is valid only with an on-demand memory region (-o, -O)")
        } else {
            None
        }
    }
}

/// A whole number as C's `strtol(…, 0)` reads it: decimal, `0x` hexadecimal or `0` octal.
fn integer(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let (radix, digits) = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        (16, hex)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, &digits[1..])
    } else {
        (10, digits)
    };
    if !digits.chars().all(|c| c.is_digit(radix)) || digits.is_empty() {
        return Err("not a whole number".into());
    }
    i64::from_str_radix(digits, radix).map(|value| sign * value).map_err(|_| "far too large".into())
}

fn number<T>(min: T, max: T) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: TryFrom<i64> + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let value = T::try_from(integer(text)?).ok().filter(|value| (min..=max).contains(value));
        value.ok_or_else(|| format!("must be between {min} and {max}"))
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let bytes = integer(text)?;
    let mtu = u32::try_from(bytes).ok().and_then(Mtu::from_bytes);
    mtu.ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

fn gid_index(text: &str) -> Result<i32, String> {
    i32::try_from(integer(text)?).map_err(|_| "far too large".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rc(args: &[&str]) -> Result<RcPingpong, clap::Error> {
        let line = ["bareverbs", "pingpong", "rc"].iter().chain(args);
        match Cli::try_parse_from(line)?.command {
            Command::Pingpong(Pingpong::Rc(options)) => Ok(options),
            other => panic!("parsed as {other:?}"),
        }
    }

    fn complaint(args: &[&str]) -> String {
        rc(args).expect_err("must be refused").to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_are_those_of_ibv_rc_pingpong() {
        let options = rc(&[]).unwrap();
        assert_eq!(options.host, None);
        assert_eq!(options.port, 18515);
        assert_eq!(options.ib_dev, None);
        assert_eq!(options.ib_port, 1);
        assert_eq!(options.size, 4096);
        assert_eq!(options.mtu, Mtu::Mtu1024);
        assert_eq!(options.rx_depth, 500);
        assert_eq!(options.iters, 1000);
        assert_eq!(options.sl, 0);
        assert_eq!(options.gid_idx, None);
        let switches = [
            options.events,
            options.odp,
            options.iodp,
            options.prefetch,
            options.ts,
            options.chk,
            options.dm,
            options.new_send,
            options.json,
        ];
        assert_eq!(switches, [false; 9]);
    }

    /// An option's short and long name, a value for those that take one, and what it changes.
    type Case = (&'static str, &'static str, Option<&'static str>, fn(&RcPingpong) -> bool);

    const OPTIONS: [Case; 17] = [
        ("-p", "--port", Some("4711"), |o| o.port == 4711),
        ("-d", "--ib-dev", Some("rxe0"), |o| o.ib_dev.as_deref() == Some("rxe0")),
        ("-i", "--ib-port", Some("2"), |o| o.ib_port == 2),
        ("-s", "--size", Some("128"), |o| o.size == 128),
        ("-m", "--mtu", Some("4096"), |o| o.mtu == Mtu::Mtu4096),
        ("-r", "--rx-depth", Some("1"), |o| o.rx_depth == 1),
        ("-n", "--iters", Some("7"), |o| o.iters == 7),
        ("-l", "--sl", Some("3"), |o| o.sl == 3),
        ("-e", "--events", None, |o| o.events),
        ("-g", "--gid-idx", Some("1"), |o| o.gid_idx == Some(1)),
        ("-o", "--odp", None, |o| o.odp && o.on_demand() && !o.iodp),
        ("-O", "--iodp", None, |o| o.iodp && o.on_demand()),
        ("-P", "--prefetch", None, |o| o.prefetch),
        ("-t", "--ts", None, |o| o.ts),
        ("-c", "--chk", None, |o| o.chk),
        ("-j", "--dm", None, |o| o.dm),
        ("-N", "--new_send", None, |o| o.new_send),
    ];

    #[test]
    fn every_option_has_its_short_and_its_long_name() {
        let defaults = rc(&[]).unwrap();
        for (short, long, value, effect) in OPTIONS {
            assert!(!effect(&defaults), "{short} is tested with its default");
            for name in [short, long] {
                let args: Vec<&str> = std::iter::once(name).chain(value).collect();
                let options = rc(&args).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert!(effect(&options), "{name}");
            }
        }
    }

    #[test]
    fn a_host_makes_it_a_client_wherever_it_stands() {
        assert_eq!(rc(&["10.1.0.1", "-n", "1"]).unwrap().host.as_deref(), Some("10.1.0.1"));
        assert_eq!(rc(&["-n", "1", "10.1.0.1"]).unwrap().host.as_deref(), Some("10.1.0.1"));
        assert!(complaint(&["one", "two"]).contains("unexpected argument 'two'"));
    }

    #[test]
    fn values_and_switches_may_be_joined_as_getopt_allows() {
        let options = rc(&["-s1048576", "-ecN", "-g1", "--iters=2"]).unwrap();
        assert_eq!((options.size, options.iters, options.gid_idx), (1_048_576, 2, Some(1)));
        assert!(options.events && options.chk && options.new_send);
    }

    #[test]
    fn numbers_may_be_hexadecimal_and_octal_as_in_c() {
        assert_eq!(rc(&["-s", "0x1000"]).unwrap().size, 4096);
        assert_eq!(rc(&["-s", "010"]).unwrap().size, 8);
    }

    #[test]
    fn a_negative_gid_index_is_taken_and_means_none() {
        assert_eq!(rc(&["-g", "-1"]).unwrap().gid_idx, Some(-1));
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        for (args, words) in [
            (["-p", "70000"], "must be between 0 and 65535"),
            (["-i", "0"], "must be between 1 and 255"),
            (["-s", "0"], "must be between 1 and 4294967295"),
            (["-s", "99999999999"], "must be between 1 and 4294967295"),
            (["-s", "99999999999999999999999"], "far too large"),
            (["-n", "0"], "must be between 1 and 2147483647"),
            (["-r", "0"], "must be between 1 and 2147483646"),
            (["-l", "16"], "must be between 0 and 15"),
            (["-m", "1000"], "must be 256, 512, 1024, 2048 or 4096"),
            (["-m", "0"], "must be 256, 512, 1024, 2048 or 4096"),
            (["-n", "many"], "not a whole number"),
            (["-s", "0x"], "not a whole number"),
            (["-g", "4294967296"], "far too large"),
        ] {
            let text = complaint(&args);
            assert!(text.contains(words), "{args:?} gave {text}");
            assert!(text.contains(args[1]), "{args:?} gave {text}");
        }
    }

    #[test]
    fn contradicting_options_are_named() {
        let contradiction = |args: &[&str]| rc(args).unwrap().contradiction();
        assert!(contradiction(&["-o", "-j"]).unwrap().contains("can't be on demand"));
        assert!(contradiction(&["-O", "-j"]).unwrap().contains("can't be on demand"));
        assert!(contradiction(&["-P"]).unwrap().contains("valid only with an on-demand"));
        for fine in [&["-o", "-P"][..], &["-O", "-P"], &["-j"], &["-o"], &[]] {
            assert_eq!(contradiction(fine), None, "{fine:?}");
        }
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
