//! The command line.

pub(crate) mod conform;
pub(crate) mod connected;
pub(crate) mod datagram;
pub(crate) mod device;
pub(crate) mod doctor;
pub(crate) mod perf;
pub(crate) mod pingpong;
pub(crate) mod rcopy;
pub(crate) mod rping;
pub(crate) mod rstream;
mod soft;
pub(crate) mod stat;
pub(crate) mod trace;
pub(crate) mod udpong;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use self::conform::{Conform, Decode};
use self::connected::{Cmtime, RdmaClient, RdmaServer, RdmaXclient, RdmaXserver, Ucmatose};
use self::datagram::{Mckey, Udaddy};
use self::device::{Dev, Link, Monitor, Status, System, listed_device};
use self::perf::PerfCommand;
use self::pingpong::Pingpong;
use self::rcopy::Rcopy;
use self::rping::Rping;
use self::rstream::{Riostream, Rstream};
use self::stat::Stat;
use self::trace::{Replay, Trace};
use self::udpong::Udpong;
use self::values::{number, period};

/// Why the commands that list the kernel's devices have no soft device.
const NOT_LISTED: &str =
    "Soft devices, such as soft:127.0.0.2, exist only in the process that opens them: they are not listed.";

/// RDMA from one static program, without a C library underneath.
#[derive(Debug, Parser)]
#[command(name = "bareverbs", version, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process parses one")]
pub(crate) enum Command {
    /// List the RDMA devices, as ibv_devices does
    Devices(Devices),
    /// Show the attributes of devices and their ports, as ibv_devinfo does
    Devinfo(Devinfo),
    /// Show each port in a line: state, network interface, GID, rate, MTU, driver
    #[command(after_help = NOT_LISTED)]
    Status(Status),
    /// Show ports; create and remove software devices, as rdma link does
    #[command(after_help = NOT_LISTED)]
    Link(Link),
    /// Show, rename and move devices, as rdma dev does
    #[command(after_help = NOT_LISTED)]
    Dev(Dev),
    /// Show and change system-wide settings, as rdma system does
    #[command(after_help = NOT_LISTED)]
    System(System),
    /// Show counters; enable and bind them, as rdma statistic does
    #[command(after_help = NOT_LISTED)]
    Stat(Stat),
    /// Print devices and ports that come, go and change, as rdma monitor does
    #[command(after_help = NOT_LISTED)]
    Monitor(Monitor),
    /// Print asynchronous events as they happen, as ibv_asyncwatch does
    Asyncwatch(Asyncwatch),
    /// Show the objects in use, their owners, and the counters
    #[command(after_help = NOT_LISTED)]
    Resources(Resources),
    /// Decode queue entries of a ConnectX
    Dump(Dump),
    /// Check the kernel's ABI: exit status 0 if it conforms, 1 if not, 4 if all checks were skipped
    Conform(Conform),
    /// Decode ioctls, commands and messages of the kernel's RDMA interfaces
    Decode(Decode),
    /// Decode the RDMA calls of a program as it makes them; exits with the program's status
    Trace(Trace),
    /// Repeat the recorded RDMA calls of a program: exit status 1 if an answer differs
    Replay(Replay),
    /// Bounce messages between two hosts
    #[command(subcommand)]
    Pingpong(Pingpong),
    /// Measure bandwidth and latency between two hosts, as perftest does
    #[command(subcommand)]
    Perf(PerfCommand),
    /// RDMA reads and writes over a connection by IP address, as rping does
    Rping(Rping),
    /// Send messages over several connections and back, as ucmatose does
    Ucmatose(Ucmatose),
    /// Measure the steps of many connections, as cmtime does
    Cmtime(Cmtime),
    /// Answer a message of a client, as rdma_server does
    RdmaServer(RdmaServer),
    /// Send a message to a server and wait for the answer, as rdma_client does
    RdmaClient(RdmaClient),
    /// Receive a message of a client over RC or XRC, as rdma_xserver does
    RdmaXserver(RdmaXserver),
    /// Send a message to a server over RC or XRC, as rdma_xclient does
    RdmaXclient(RdmaXclient),
    /// Send datagrams to a service and back, as udaddy does
    Udaddy(Udaddy),
    /// Send datagrams to a multicast group, as mckey does
    Mckey(Mckey),
    /// Measure the latency and bandwidth of streams, as rstream does
    Rstream(Rstream),
    /// Measure the latency and bandwidth of writes to mapped memory, as riostream does
    Riostream(Riostream),
    /// Measure the latency and bandwidth of datagram sockets, as udpong does
    Udpong(Udpong),
    /// Copy a file over a stream, as rcopy does
    Rcopy(Rcopy),
    /// Print the completions for a shell
    Completions(Completions),
    /// Print the manual page, or write all manual pages
    Man(Man),
}

impl Command {
    /// The soft device that a program over the connection manager opens first.
    pub(crate) fn soft_device(&self) -> Option<&str> {
        let device = match self {
            Self::Rping(options) => &options.ib_dev,
            Self::Ucmatose(options) => &options.device.ib_dev,
            Self::Cmtime(options) => &options.device.ib_dev,
            Self::RdmaServer(options) => &options.device.ib_dev,
            Self::RdmaClient(options) => &options.device.ib_dev,
            Self::RdmaXserver(options) => &options.device.ib_dev,
            Self::RdmaXclient(options) => &options.device.ib_dev,
            Self::Udaddy(options) => &options.device.ib_dev,
            Self::Mckey(options) => &options.device.ib_dev,
            Self::Rstream(options) => &options.device.ib_dev,
            Self::Riostream(options) => &options.stream.device.ib_dev,
            Self::Udpong(options) => &options.device.ib_dev,
            Self::Rcopy(options) => &options.device.ib_dev,
            _ => &None,
        };
        device.as_deref()
    }
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write the pages of all commands to this folder (default: print the main page)
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Devices {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Devinfo {
    /// Use this device, such as rxe0 or soft:127.0.0.2 (default: all devices of the kernel)
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
    /// Use this device, such as rxe0 (default: the first one found)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Print JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Resources {
    /// Show this device (default: all devices)
    #[arg(short, long, value_parser = listed_device)]
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

    fn parse(line: &str) -> Result<Command, clap::Error> {
        let words = std::iter::once("bareverbs").chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.command)
    }

    #[test]
    fn commands_accept_the_syntax_of_rdma() {
        for line in [
            "link",
            "link show",
            "link show rxe0/1 --json",
            "link --json list",
            "link add rxe0 type rxe netdev eth0",
            "link add --up --wait --address 10.1.0.1/24 rxe0 type rxe netdev eth0",
            "link add rxe0 type rxe netdev eth0 --wait=3",
            "link del rxe0",
            "link delete rxe0",
            "dev show rxe0",
            "dev set rxe0 name rxe1",
            "dev set rxe0 netns 4711",
            "dev set rxe0 adaptive-moderation on",
            "system show",
            "system set netns exclusive",
            "system set privileged-qkey off",
            "stat",
            "stat show link rxe0/1",
            "stat mode",
            "stat mode link rxe0/1",
            "stat mode supported link rxe0/1",
            "stat set link mlx5_0/1 optional-counters cc_rx_ce_pkts,cc_rx_cnp_pkts",
            "stat unset link mlx5_0/1 optional-counters",
            "stat qp show link mlx5_0/1 --json",
            "stat qp mode",
            "stat qp set link mlx5_0/1 auto type,pid on",
            "stat qp set link mlx5_0/1 auto type on --optional-counters on",
            "stat qp set link mlx5_0/1 auto off",
            "stat qp bind link mlx5_0/1 lqpn 178",
            "stat qp bind link mlx5_0/1 lqpn 178 cntn 4",
            "stat qp unbind link mlx5_0/1 cntn 4 lqpn 178",
            "stat qp unbind link mlx5_0/1 cntn 4",
            "stat mr",
            "monitor --json",
            "status rxe0",
            "completions bash",
            "man --dir /tmp/pages",
            "conform --device rxe0 --filter parser::* --format ktap --html /tmp/page.html --seed 7",
            "conform --list",
            "conform diff a.json b.json",
            "conform page a.json b.json",
            "decode ioctl",
            "decode",
            "decode rdma-cm-event --format json /tmp/bytes",
            "decode auto --from strace /tmp/lines",
            "decode Cargo.toml",
            "trace -p 4711 --summary",
            "trace -o /tmp/out --format json --record /tmp/calls ibv_devinfo -v",
            "trace -- ibv_rc_pingpong -g 0",
            "replay -d rxe0 --format json /tmp/calls",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
        for (line, reason) in [
            ("link add rxe0 kind rxe netdev eth0", "'kind' for '<type>'"),
            ("link add rxe0 type rxe", "link add [OPTIONS] NAME type TYPE netdev NETDEV"),
            ("link show rxe0/0", "\"0\" is not a port number"),
            ("link add --address 10.1.0.1 rxe0 type rxe netdev eth0", "the length of the prefix is missing"),
            ("link add --address 10.1.0.1/33 rxe0 type rxe netdev eth0", "between 0 and 32"),
            ("decode no-such-kind", "possible values: auto"),
            ("trace", "required"),
            ("trace -p 4711 ibv_devinfo", "cannot be used with"),
            ("trace -p 0", "0 is not in 1.."),
            ("system set netns private", "exclusive, shared"),
            ("stat qp bind link mlx5_0/1 lqpn 178 cntn", "COUNTER"),
            ("stat set link mlx5_0/1 optional-counters", "COUNTER"),
        ] {
            let text = parse(line).expect_err(line).to_string();
            assert!(text.contains(reason), "{line}: {text}");
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
