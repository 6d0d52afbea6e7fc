//! The command lines of the ping-pongs, and the `Config` that all transports share.

use bareverbs::values::Mtu;
use clap::{Args, Subcommand};

use super::soft::soft_device;
use super::values::{gid_index, mtu, number};

/// Maximum number of queue pairs on one shared receive queue: one fewer than the records in the
/// exchange.
const MAX_QPS: u32 = 255;

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Pingpong {
    #[command(flatten)]
    SingleClient(SingleClient),
    /// Over extended reliable connections (XRC) of one server to several clients; interoperates
    /// with ibv_xsrq_pingpong
    Xsrq(XsrqPingpong),
}

/// The ping-pongs of one client.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum SingleClient {
    /// Over a reliable connection; interoperates with ibv_rc_pingpong
    Rc(RcPingpong),
    /// Over an unreliable connection; interoperates with ibv_uc_pingpong
    Uc(UcPingpong),
    /// With unreliable datagrams; interoperates with ibv_ud_pingpong
    Ud(UdPingpong),
    /// Over reliable connections that share a receive queue; interoperates with ibv_srq_pingpong
    Srq(SrqPingpong),
}

/// The options of every ping-pong.
#[derive(Clone, Debug, Args)]
pub(crate) struct CommonOptions {
    /// Server to connect to; without it, run as server and wait for one client
    pub(crate) host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value = "18515", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Use this device, such as rxe0 or soft:127.0.0.2 (default: the first one with an active port)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = number::<u8>(1, 255))]
    pub(crate) ib_port: u8,
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
    /// Send changing data and check every byte received
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Exchange addresses by the connection manager; HOST is an address of the server's RDMA
    /// device. Both sides need it. It chooses the device: only a soft device can be named by -d
    #[arg(long, conflicts_with_all = ["ib_port", "gid_idx"])]
    pub(crate) cm: bool,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The options of every connection.
#[derive(Clone, Debug, Args)]
pub(crate) struct Path {
    /// Bytes of a message
    #[arg(short, long, default_value = "4096", value_parser = number::<u32>(1, u32::MAX))]
    size: u32,
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "SIZE", default_value = "1024", value_parser = mtu)]
    mtu: Mtu,
}

/// The options of ibv_rc_pingpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct RcPingpong {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    path: Path,
    /// Register the memory for on-demand paging (ODP)
    #[arg(short = 'o', long)]
    odp: bool,
    /// Register the whole address space for on-demand paging (implicit ODP)
    #[arg(short = 'O', long)]
    iodp: bool,
    /// Prefetch the on-demand memory
    #[arg(short = 'P', long)]
    prefetch: bool,
    /// Take completion timestamps
    #[arg(short, long)]
    ts: bool,
    /// Use device memory
    #[arg(short = 'j', long)]
    dm: bool,
    /// Post sends by a batch, as ibv_wr_start does, instead of as a list
    #[arg(short = 'N', long = "new_send")]
    new_send: bool,
    /// Allow memory that a confidential guest shares with its host; rejected on devices that need such
    /// memory
    #[arg(short = 'U', long)]
    allow_cc_unprotected: bool,
}

/// The options of ibv_uc_pingpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct UcPingpong {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    path: Path,
}

/// The options of ibv_ud_pingpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct UdPingpong {
    #[command(flatten)]
    common: CommonOptions,
    /// Bytes of a message
    #[arg(short, long, default_value = "1024", value_parser = number::<u32>(1, u32::MAX))]
    size: u32,
}

/// The options of ibv_srq_pingpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct SrqPingpong {
    #[command(flatten)]
    common: CommonOptions,
    #[command(flatten)]
    path: Path,
    /// Queue pairs on the shared receive queue
    #[arg(short = 'q', long, value_name = "NUM", default_value = "16", value_parser = number::<u32>(1, MAX_QPS))]
    num_qp: u32,
    /// Register the memory for on-demand paging (ODP)
    #[arg(short = 'o', long)]
    odp: bool,
}

/// The options of ibv_xsrq_pingpong.
#[derive(Clone, Debug, Args)]
pub(crate) struct XsrqPingpong {
    /// Server to connect to; without it, be the server and wait for all clients
    pub(crate) host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value = "18515", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Use this device, such as rxe0 or soft:127.0.0.2 (default: the first one with an active port)
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
    /// Number of clients, for the server; a client counts as one
    #[arg(short, long, value_name = "NUM", default_value = "1", value_parser = number::<u32>(1, 4096))]
    pub(crate) clients: u32,
    /// Messages to each client, and as many back
    #[arg(short, long = "num_tests", value_name = "NUM", default_value = "5", value_parser = number::<u32>(1, i32::MAX as u32))]
    pub(crate) num_tests: u32,
    /// Service level
    #[arg(short = 'l', long, default_value = "0", value_parser = number::<u8>(0, 15))]
    pub(crate) sl: u8,
    /// Sleep on completion events (default: poll)
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Register the memory for on-demand paging (ODP)
    #[arg(short = 'o', long)]
    pub(crate) odp: bool,
    /// Local GID index (default: on RoCE the best one, elsewhere none)
    #[arg(short, long, value_name = "INDEX", allow_negative_numbers = true, value_parser = gid_index)]
    pub(crate) gid_idx: Option<i32>,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// The kind of a ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    Srq,
}

/// The options that all transports share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config<'a> {
    pub(crate) kind: Kind,
    pub(crate) common: &'a CommonOptions,
    pub(crate) size: u32,
    /// The path MTU. `None` for UD, which uses the port's MTU.
    pub(crate) mtu: Option<Mtu>,
    pub(crate) num_qp: u32,
    pub(crate) odp: bool,
    pub(crate) iodp: bool,
    pub(crate) prefetch: bool,
    pub(crate) ts: bool,
    pub(crate) dm: bool,
    pub(crate) new_send: bool,
    pub(crate) allow_cc_unprotected: bool,
}

impl SingleClient {
    /// The options as `Config`.
    pub(crate) fn config(&self) -> Config<'_> {
        let connected = |kind, common, path: &Path| Config {
            mtu: Some(path.mtu),
            ..Config::new(kind, common, path.size)
        };
        match self {
            Self::Rc(rc) => Config {
                odp: rc.odp,
                iodp: rc.iodp,
                prefetch: rc.prefetch,
                ts: rc.ts,
                dm: rc.dm,
                new_send: rc.new_send,
                allow_cc_unprotected: rc.allow_cc_unprotected,
                ..connected(Kind::Rc, &rc.common, &rc.path)
            },
            Self::Uc(UcPingpong { common, path }) => connected(Kind::Uc, common, path),
            Self::Ud(UdPingpong { common, size }) => Config::new(Kind::Ud, common, *size),
            Self::Srq(SrqPingpong { common, path, num_qp, odp }) => {
                Config { num_qp: *num_qp, odp: *odp, ..connected(Kind::Srq, common, path) }
            }
        }
    }
}

impl<'a> Config<'a> {
    fn new(kind: Kind, common: &'a CommonOptions, size: u32) -> Self {
        Self {
            kind,
            common,
            size,
            mtu: None,
            num_qp: 1,
            odp: false,
            iodp: false,
            prefetch: false,
            ts: false,
            dm: false,
            new_send: false,
            allow_cc_unprotected: false,
        }
    }

    /// On-demand paging, explicit or implied.
    pub(crate) fn on_demand(&self) -> bool {
        self.odp || self.iodp
    }

    /// The first pair of options that exclude each other, as an error message.
    pub(crate) fn conflict(&self) -> Option<String> {
        if self.on_demand() && self.dm {
            Some("device memory (-j) cannot be on demand (-o, -O)".into())
        } else if self.allow_cc_unprotected && (self.on_demand() || self.dm) {
            Some("unprotected memory (-U) cannot be on demand (-o, -O) or of the device (-j)".into())
        } else if self.prefetch && !self.on_demand() {
            Some("prefetch (-P) requires on-demand memory (-o, -O)".into())
        } else if self.num_qp > self.common.rx_depth {
            let (depth, qps) = (self.common.rx_depth, self.num_qp);
            Some(format!("{depth} receives (-r) are too few for {qps} QPs (-q): each QP needs at least one"))
        } else if self.common.cm {
            let device = self.common.ib_dev.as_deref();
            device.and_then(|device| soft_device(device).err()).map(|error| format!("-d with --cm {error}"))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    const KINDS: [(&str, Kind); 4] =
        [("rc", Kind::Rc), ("uc", Kind::Uc), ("ud", Kind::Ud), ("srq", Kind::Srq)];

    fn parse(kind: &str, args: &[&str]) -> Result<SingleClient, clap::Error> {
        let line = ["bareverbs", "pingpong", kind].into_iter().chain(args.iter().copied());
        match Cli::try_parse_from(line)?.command {
            Command::Pingpong(Pingpong::SingleClient(options)) => Ok(options),
            other => panic!("parsed as {other:?}"),
        }
    }

    fn complaint(kind: &str, args: &[&str]) -> String {
        parse(kind, args).expect_err("must be refused").to_string()
    }

    fn switches(config: &Config<'_>) -> [bool; 10] {
        let CommonOptions { events, chk, json, .. } = *config.common;
        let &Config { odp, iodp, prefetch, ts, dm, new_send, allow_cc_unprotected, .. } = config;
        [events, chk, json, odp, iodp, prefetch, ts, dm, new_send, allow_cc_unprotected]
    }

    #[test]
    fn defaults_match_the_c_programs() {
        for (name, kind) in KINDS {
            let options = parse(name, &[]).unwrap();
            let config = options.config();
            assert_eq!(config.kind, kind);
            let common = config.common;
            assert_eq!((&common.host, common.port, &common.ib_dev, common.ib_port), (&None, 18515, &None, 1));
            assert_eq!((common.rx_depth, common.iters, common.sl, common.gid_idx), (500, 1000, 0, None));
            assert_eq!(config.size, if kind == Kind::Ud { 1024 } else { 4096 });
            assert_eq!(config.mtu, (kind != Kind::Ud).then_some(Mtu::Mtu1024));
            assert_eq!(config.num_qp, if kind == Kind::Srq { 16 } else { 1 });
            assert_eq!(switches(&config), [false; 10]);
        }
    }

    /// An option: its short and long name, a value if it has one, the `Config` field that it
    /// changes, and the ping-pongs that accept it.
    type Case = (&'static str, &'static str, Option<&'static str>, fn(&Config<'_>) -> bool, &'static [Kind]);

    const ALL: &[Kind] = &[Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq];
    const CONNECTED: &[Kind] = &[Kind::Rc, Kind::Uc, Kind::Srq];
    const RC: &[Kind] = &[Kind::Rc];

    const OPTIONS: [Case; 19] = [
        ("-p", "--port", Some("4711"), |o| o.common.port == 4711, ALL),
        ("-d", "--ib-dev", Some("rxe0"), |o| o.common.ib_dev.as_deref() == Some("rxe0"), ALL),
        ("-i", "--ib-port", Some("2"), |o| o.common.ib_port == 2, ALL),
        ("-s", "--size", Some("128"), |o| o.size == 128, ALL),
        ("-m", "--mtu", Some("4096"), |o| o.mtu == Some(Mtu::Mtu4096), CONNECTED),
        ("-r", "--rx-depth", Some("17"), |o| o.common.rx_depth == 17, ALL),
        ("-n", "--iters", Some("7"), |o| o.common.iters == 7, ALL),
        ("-l", "--sl", Some("3"), |o| o.common.sl == 3, ALL),
        ("-e", "--events", None, |o| o.common.events, ALL),
        ("-g", "--gid-idx", Some("1"), |o| o.common.gid_idx == Some(1), ALL),
        ("-c", "--chk", None, |o| o.common.chk, ALL),
        ("-q", "--num-qp", Some("3"), |o| o.num_qp == 3, &[Kind::Srq]),
        ("-o", "--odp", None, |o| o.odp && o.on_demand() && !o.iodp, &[Kind::Rc, Kind::Srq]),
        ("-O", "--iodp", None, |o| o.iodp && o.on_demand(), RC),
        ("-P", "--prefetch", None, |o| o.prefetch, RC),
        ("-t", "--ts", None, |o| o.ts, RC),
        ("-j", "--dm", None, |o| o.dm, RC),
        ("-N", "--new_send", None, |o| o.new_send, RC),
        ("-U", "--allow-cc-unprotected", None, |o| o.allow_cc_unprotected, RC),
    ];

    #[test]
    fn every_option_has_its_short_and_its_long_name_where_the_c_program_has_it() {
        for (kind_name, kind) in KINDS {
            let defaults = parse(kind_name, &[]).unwrap();
            for (short, long, value, effect, kinds) in OPTIONS {
                assert!(!effect(&defaults.config()), "{kind_name} {short} is tested with its default");
                for name in [short, long] {
                    let args: Vec<&str> = std::iter::once(name).chain(value).collect();
                    match parse(kind_name, &args) {
                        Ok(options) => assert!(
                            effect(&options.config()) && kinds.contains(&kind),
                            "{kind_name} {name} has no effect, or should not be taken"
                        ),
                        Err(error) => assert!(!kinds.contains(&kind), "{kind_name} {name}: {error}"),
                    }
                }
            }
        }
    }

    #[test]
    fn host_argument_selects_the_client() {
        for (kind, _) in KINDS {
            for args in [["10.1.0.1", "-n", "1"], ["-n", "1", "10.1.0.1"]] {
                assert_eq!(parse(kind, &args).unwrap().config().common.host.as_deref(), Some("10.1.0.1"));
            }
            assert!(complaint(kind, &["one", "two"]).contains("unexpected argument 'two'"));
        }
    }

    #[test]
    fn values_and_switches_may_be_joined_as_getopt_allows() {
        let options = parse("rc", &["-s1048576", "-ecN", "-g1", "--iters=2"]).unwrap();
        let config = options.config();
        assert_eq!((config.size, config.common.iters, config.common.gid_idx), (1_048_576, 2, Some(1)));
        assert!(config.common.events && config.common.chk && config.new_send);
    }

    #[test]
    fn numbers_may_be_hexadecimal_and_octal_as_in_c() {
        assert_eq!(parse("rc", &["-s", "0x1000"]).unwrap().config().size, 4096);
        assert_eq!(parse("ud", &["-s", "010"]).unwrap().config().size, 8);
    }

    #[test]
    fn negative_gid_index_means_none() {
        assert_eq!(parse("uc", &["-g", "-1"]).unwrap().config().common.gid_idx, Some(-1));
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
            (["-q", "0"], "must be between 1 and 255"),
            (["-q", "256"], "must be between 1 and 255"),
            (["-n", "many"], "not a whole number"),
            (["-s", "0x"], "not a whole number"),
            (["-g", "4294967296"], "far too large"),
        ] {
            for (kind, _) in KINDS {
                let text = complaint(kind, &args);
                if !text.contains("unexpected argument") {
                    assert!(text.contains(words) && text.contains(args[1]), "{kind} {args:?} gave {text}");
                }
            }
            let text = complaint("srq", &args);
            assert!(text.contains(words), "srq takes every option of these: {text}");
        }
    }

    #[test]
    fn contradicting_options_are_named() {
        let conflict = |kind, args: &[&str]| parse(kind, args).unwrap().config().conflict();
        assert!(conflict("rc", &["-o", "-j"]).unwrap().contains("cannot be on demand"));
        assert!(conflict("rc", &["-O", "-j"]).unwrap().contains("cannot be on demand"));
        assert!(conflict("rc", &["-P"]).unwrap().contains("requires on-demand"));
        for memory in ["-o", "-O", "-j"] {
            assert!(conflict("rc", &["-U", memory]).unwrap().contains("unprotected memory (-U)"));
        }
        for fine in [&["-U"][..], &["-o", "-P"], &["-O", "-P"], &["-j"], &["-o"], &["-r", "1"], &[]] {
            assert_eq!(conflict("rc", fine), None, "{fine:?}");
        }
        assert_eq!(
            conflict("srq", &["-r", "4"]).unwrap(),
            "4 receives (-r) are too few for 16 QPs (-q): each QP needs at least one"
        );
        assert_eq!(conflict("srq", &["-r", "4", "-q", "4"]), None);
    }
}
