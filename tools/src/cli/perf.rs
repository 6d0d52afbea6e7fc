//! The command lines of the benchmarks, and the `Plan` that they resolve to.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bareverbs::values::{AckTimeout, Mtu};
use clap::{Args, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use super::doctor::DoctorOptions;
use super::values::{gid_index, mtu, number, rate, seconds};
use crate::perf::expect::Expectation;
use crate::perf::hosts::Hosts;
use crate::perf::mix::{Kind, Mix, Order};

/// The benchmarks, the comparison of their results, and the checks before them.
#[expect(clippy::large_enum_variant, reason = "a process parses one")]
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PerfCommand {
    #[command(flatten)]
    Benchmark(Perf),
    /// Compare the JSON of several runs
    Report(ReportOptions),
    /// Check this machine and the path to HOST, and report faults with remedies
    Doctor(DoctorOptions),
}

/// The benchmarks.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Perf {
    /// Messages into receives; interoperates with ib_send_bw and ib_send_lat
    Send {
        #[command(subcommand)]
        test: PerfTest,
    },
    /// RDMA writes; interoperates with ib_write_bw and ib_write_lat
    Write {
        #[command(subcommand)]
        test: PerfTest,
    },
    /// RDMA writes with immediate data; interoperates with perftest's --write_with_imm
    WriteImm {
        #[command(subcommand)]
        test: PerfTest,
    },
    /// RDMA reads; interoperates with ib_read_bw and ib_read_lat
    Read {
        #[command(subcommand)]
        test: PerfTest,
    },
    /// Fetch-and-add on 8 bytes; interoperates with ib_atomic_bw and ib_atomic_lat
    Atomic {
        #[command(subcommand)]
        test: PerfTest,
    },
}

/// The options of `bareverbs perf report`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReportOptions {
    /// Files with the output of --json, or of --json-lines
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Write the comparison as a page with charts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PerfTest {
    /// Bandwidth and message rate, with many messages outstanding
    Bw(PerfOptions),
    /// Latency, with one message outstanding
    Lat(PerfOptions),
}

/// The options of every benchmark. They have perftest's names and meanings.
#[derive(Clone, Debug, Args)]
pub(crate) struct PerfOptions {
    /// Server to connect to; without it, run as server and wait for one client
    pub(crate) host: Option<String>,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value = "18515", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Use this device (default: the first one with an active port)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = number::<u8>(1, 255))]
    pub(crate) ib_port: u8,
    /// Local GID index (default: on RoCE the best one, elsewhere none)
    #[arg(short = 'x', long, value_name = "INDEX", value_parser = gid_index)]
    pub(crate) gid_index: Option<i32>,
    /// Transport
    #[arg(
        short = 'c',
        long,
        visible_alias = "transport",
        value_enum,
        ignore_case = true,
        default_value = "rc"
    )]
    pub(crate) connection: Connection,
    /// Path MTU: 256, 512, 1024, 2048 or 4096 (default: that of the port)
    #[arg(short, long, value_name = "SIZE", value_parser = mtu)]
    pub(crate) mtu: Option<Mtu>,
    /// Bytes of a message (default: bw 65536, lat 2; atomic always 8)
    #[arg(short, long, value_parser = number::<u32>(1, 1 << 31))]
    pub(crate) size: Option<u32>,
    /// Run all sizes from 2 bytes to 8 MiB
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Messages of each queue pair (default: write bw 5000, otherwise 1000)
    #[arg(short = 'n', long, value_parser = number::<u32>(5, 100_000_000))]
    pub(crate) iters: Option<u32>,
    /// Run for this many seconds instead of a number of messages; the first and the last quarter
    /// are not measured
    #[arg(short = 'D', long, value_name = "SECS", value_parser = seconds)]
    pub(crate) duration: Option<f64>,
    /// With -D: seconds at the start and at the end that are not measured (default: a quarter)
    #[arg(short = 'f', long, value_name = "SECS", value_parser = seconds)]
    pub(crate) margin: Option<f64>,
    /// Number of queue pairs (bw only)
    #[arg(short = 'q', long = "qp", value_name = "NUM", default_value = "1", value_parser = number::<u32>(1, 16384))]
    pub(crate) num_qp: u32,
    /// Requests outstanding on a send queue (bw only; default 128)
    #[arg(short = 't', long, value_name = "DEPTH", value_parser = number::<u32>(1, 1 << 20))]
    pub(crate) tx_depth: Option<u32>,
    /// Receives of a queue pair (default 512; bw over UC and UD without -D: -n, at most 16000)
    #[arg(short = 'r', long, value_name = "DEPTH", value_parser = number::<u32>(1, 1 << 20))]
    pub(crate) rx_depth: Option<u32>,
    /// Measure both directions at once (bw only)
    #[arg(short, long)]
    pub(crate) bidirectional: bool,
    /// Sleep on completion events (default: poll)
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Request a completion every NUM messages (bw only; default 100, or 1 above 8192 bytes)
    #[arg(short = 'Q', long, value_name = "NUM", value_parser = number::<u32>(1, 1024))]
    pub(crate) cq_mod: Option<u32>,
    /// Post lists of NUM requests with one doorbell (bw only)
    #[arg(short = 'l', long = "post_list", value_name = "NUM", default_value = "1", value_parser = number::<u32>(1, 1 << 16))]
    pub(crate) post_list: u32,
    /// Send messages of up to SIZE bytes inline (default: 0; lat on ConnectX: send 236, over UD 188,
    /// write and write-imm 220)
    #[arg(short = 'I', long = "inline_size", value_name = "SIZE", value_parser = number::<u32>(0, 4096))]
    pub(crate) inline_size: Option<u32>,
    /// Outstanding reads and atomics (default: the maximum of the device)
    #[arg(short = 'o', long, value_name = "NUM", value_parser = number::<u8>(1, 128))]
    pub(crate) outs: Option<u8>,
    /// Service level
    #[arg(short = 'S', long, default_value = "0", value_parser = number::<u8>(0, 15))]
    pub(crate) sl: u8,
    /// ACK timeout: 4.096 µs × 2^EXP
    #[arg(short = 'u', long = "qp-timeout", value_name = "EXP", default_value = "16", value_parser = number::<u8>(0, 31))]
    pub(crate) qp_timeout: u8,
    /// Accepted for compatibility: the processor's frequency is not used
    #[arg(short = 'F', long = "CPU-freq")]
    pub(crate) cpu_freq: bool,
    /// Report Gbit/s instead of MiB/s
    #[arg(long = "report_gbits")]
    pub(crate) report_gbits: bool,
    /// Seconds of an interval in the results over time
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub(crate) interval: f64,
    /// Start NUM messages per second at fixed times, whether earlier ones have completed or not, and
    /// measure each latency from that time; for example 1000, 50k or 1.5M (bw only)
    #[arg(long, value_name = "NUM", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Threads that share the queue pairs, each with its own CQs and memory (bw only)
    #[arg(long, value_name = "NUM", default_value = "1", value_parser = number::<u32>(1, 1024))]
    pub(crate) threads: u32,
    /// Completion queues: one pair for each thread, or one pair for each queue pair
    #[arg(long, value_enum, default_value = "shared")]
    pub(crate) cq: CqUse,
    /// Receive into one SRQ for each thread; -r is its depth
    #[arg(long)]
    pub(crate) srq: bool,
    /// Mix sizes and operations by weight, for example 64:70,4096:30 or write/64:80,read/4096:20
    /// (bw only)
    #[arg(long, value_name = "PARTS")]
    pub(crate) mix: Option<Mix>,
    /// Compare all data with a pattern that depends on the message; both sides need it
    #[arg(long)]
    pub(crate) verify: bool,
    /// Server: wait for NUM clients and run with all of them at the same time
    #[arg(long, value_name = "NUM", value_parser = number::<u32>(1, 1024), conflicts_with = "host")]
    pub(crate) clients: Option<u32>,
    /// Run between all pairs of these hosts: HOST[:PORT],…, the same list on each of them
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["host", "clients"])]
    pub(crate) all_to_all: Option<Hosts>,
    /// This host's place in --all-to-all, from 0 (default: found by its IP addresses)
    #[arg(long, value_name = "NUM", requires = "all_to_all", value_parser = number::<u32>(0, 1023))]
    pub(crate) rank: Option<u32>,
    /// Fail unless a figure of every size meets a condition, such as 'p99<5us', 'bw>90%' (of the
    /// port's rate), 'bw>=20Gbit/s', 'rate>1Mpps'; may be given more than once
    #[arg(long, value_name = "CONDITION")]
    pub(crate) expect: Vec<Expectation>,
    /// Write the results of --expect to a JUnit file
    #[arg(long, value_name = "FILE", requires = "expect")]
    pub(crate) junit: Option<PathBuf>,
    /// Write the results as a page with charts
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Print a JSON object per line: each interval while it runs, then the result
    #[arg(long, conflicts_with = "json")]
    pub(crate) json_lines: bool,
}

/// How queue pairs use completion queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CqUse {
    /// The queue pairs of a thread share a CQ for sends and one for receives
    Shared,
    /// Each queue pair has a CQ for sends and one for receives
    Own,
}

/// The operation of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Verb {
    Send,
    Write,
    WriteImm,
    Read,
    Atomic,
}

impl Verb {
    pub(crate) const ALL: [Self; 5] = [Self::Send, Self::Write, Self::WriteImm, Self::Read, Self::Atomic];
    /// Bytes of an atomic operation.
    pub(crate) const ATOMIC_SIZE: u32 = 8;

    /// Whether a message consumes a receive of the peer.
    pub(crate) fn consumes_receives(self) -> bool {
        matches!(self, Self::Send | Self::WriteImm)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::WriteImm => "write-imm",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Measure {
    #[serde(rename = "bw")]
    Bandwidth,
    #[serde(rename = "lat")]
    Latency,
}

impl Measure {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bandwidth => "bw",
            Self::Latency => "lat",
        }
    }
}

/// The transport of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Connection {
    /// Reliable connection
    Rc,
    /// Unreliable connection: send, write, write-imm
    Uc,
    /// Unreliable datagrams: send
    Ud,
    /// Extended reliable connections, which receive into one SRQ for each thread (ConnectX)
    Xrc,
}

impl Connection {
    /// Whether lost messages are sent again, and messages without a receive wait for one.
    pub(crate) fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::Xrc)
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
        })
    }
}

/// When a run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    /// After this many messages of each queue pair.
    Messages(u64),
    /// After `total`; without the `margin` at each end, it is measured.
    Time { total: Duration, margin: Duration },
}

/// The resolved options of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) options: &'a PerfOptions,
    pub(crate) verb: Verb,
    pub(crate) measure: Measure,
    pub(crate) length: Length,
    /// The sizes to run, in order.
    pub(crate) sizes: Vec<u32>,
    pub(crate) num_qp: u32,
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    /// A request in so many is signalled. See [`Plan::cq_mod_of`].
    pub(crate) cq_mod: u32,
    pub(crate) timeout: AckTimeout,
    /// Whether this side connects to the other one.
    pub(crate) client: bool,
    /// The kinds of messages of `--mix`, and their weights.
    pub(crate) mix: Vec<(Kind, u32)>,
}

/// The depths of the queues of a run with messages of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Depths {
    pub(crate) send: u32,
    pub(crate) receive: u32,
}

/// The time without a completion after which a run has stalled, beside that of its large messages.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_STALL: Duration = Duration::from_secs(60);
/// The slowest path for which a run waits, in bytes per second.
const SLOWEST: u64 = 1 << 20;
/// Sizes above this have a completion for each message by default.
const CQ_MOD_LIMIT: u32 = 8192;
const RX_DEPTH: u32 = 512;
/// Default receives of a transport without RNR NAK, which drops messages that find no receive.
const RX_DEPTH_UNRELIABLE: u32 = 16000;
const LARGEST: u32 = 8 << 20;
/// Bytes of the messages of a queue pair in one direction that `--verify` compares.
const VERIFY_BUFFER: u32 = 4 << 20;

impl PerfTest {
    /// The plan of the command line.
    pub(crate) fn plan(&self, verb: Verb) -> Result<Plan<'_>, String> {
        let (measure, options) = match self {
            Self::Bw(options) => (Measure::Bandwidth, options),
            Self::Lat(options) => (Measure::Latency, options),
        };
        Plan::new(verb, measure, options)
    }
}

impl<'a> Plan<'a> {
    fn new(verb: Verb, measure: Measure, options: &'a PerfOptions) -> Result<Self, String> {
        conflict(verb, measure, options).map_or(Ok(()), Err)?;
        let bandwidth = measure == Measure::Bandwidth;
        let iters = options.iters.unwrap_or(match (verb, measure) {
            (Verb::Write | Verb::WriteImm, Measure::Bandwidth) => 5000,
            _ => 1000,
        });
        let length = match options.duration {
            None => Length::Messages(iters.into()),
            Some(total) => {
                let margin = options.margin.unwrap_or(total / 4.0);
                let (total, margin) = (Duration::from_secs_f64(total), Duration::from_secs_f64(margin));
                if total <= 2 * margin {
                    return Err("the duration (-D) must exceed twice the margin (-f)".into());
                }
                Length::Time { total, margin }
            }
        };
        let most = match length {
            Length::Messages(_) => iters,
            Length::Time { .. } => u32::MAX,
        };
        let sizes = match (verb, options.all) {
            (Verb::Atomic, _) => vec![8],
            (_, true) => (1..=LARGEST.ilog2()).map(|bits| 1 << bits).collect(),
            (_, false) => vec![options.size.unwrap_or(if bandwidth { 65536 } else { 2 })],
        };
        let mix = options.mix.as_ref().map(|mix| mix.kinds(verb, sizes[0])).unwrap_or_default();
        check_mix(verb, options, &mix)?;
        let sizes = mix.iter().map(|(kind, _)| kind.size).max().map_or(sizes, |largest| vec![largest]);
        let tx_depth = if bandwidth { options.tx_depth.unwrap_or(128).min(most) } else { 1 };
        let rx_depth = match (verb.consumes_receives(), options.connection, options.rx_depth) {
            (false, ..) => 0,
            (true, _, Some(depth)) => depth,
            (true, connection, None) if connection.is_reliable() => RX_DEPTH.min(most),
            (true, _, None) if bandwidth && most != u32::MAX => most.min(RX_DEPTH_UNRELIABLE),
            (true, _, None) => RX_DEPTH.min(most),
        };
        let list = options.post_list;
        let datagrams = options.connection == Connection::Ud;
        let cq_mod = match options.cq_mod {
            _ if !bandwidth => 1,
            Some(cq_mod) => cq_mod,
            // Each latency is measured, and each message is compared when it completes.
            None if options.rate.is_some() || options.mix.is_some() || options.verify => list,
            None if list > 1 => list,
            None if sizes[0] > CQ_MOD_LIMIT && !datagrams && !options.events => 1,
            None => 100,
        };
        if list > tx_depth {
            return Err(format!("lists of {list} requests (-l) exceed the send queue (-t {tx_depth})"));
        }
        if !iters.is_multiple_of(list) && matches!(length, Length::Messages(_)) {
            return Err(format!(
                "the number of messages (-n {iters}) must be a multiple of the list (-l {list})"
            ));
        }
        // With fewer signalled requests, a full send queue would have none.
        let cq_mod = cq_mod.min(tx_depth / list * list);
        let timeout = AckTimeout::new(options.qp_timeout).ok_or("the timeout (-u) is above 31")?;
        let num_qp = options.num_qp;
        let threads = options.threads;
        if threads > num_qp {
            return Err(format!("{threads} threads (--threads) need as many queue pairs (-q {num_qp})"));
        }
        let client = options.host.is_some();
        let plan = Self {
            options,
            verb,
            measure,
            length,
            sizes,
            num_qp,
            tx_depth,
            rx_depth,
            cq_mod,
            timeout,
            client,
            mix,
        };
        let depth = plan.depths(plan.largest()).send;
        if list > depth {
            return Err(format!(
                "lists of {list} requests (-l) exceed the send queue with --verify ({depth})"
            ));
        }
        Ok(plan)
    }

    /// The option that needs a peer of this program, if any was given.
    pub(crate) fn needs_bareverbs(&self) -> Option<&'static str> {
        let mixed = self.verbs().any(|verb| verb != self.verb);
        let option = self.options.verify.then_some("--verify");
        option.or(mixed.then_some("--mix of several operations"))
    }

    /// The queue pairs of each thread.
    pub(crate) fn shares(&self) -> impl Iterator<Item = std::ops::Range<u32>> {
        let (threads, count) = (u64::from(self.options.threads), u64::from(self.num_qp));
        let start = move |thread: u64| (thread * count / threads) as u32;
        (0..threads).map(move |thread| start(thread)..start(thread + 1))
    }

    /// The operations of the run.
    pub(crate) fn verbs(&self) -> impl Iterator<Item = Verb> {
        let base = self.mix.is_empty().then_some(self.verb);
        self.mix.iter().map(|(kind, _)| kind.verb).chain(base)
    }

    /// The messages of a run of this size, in order.
    pub(crate) fn order(&self, size: u32) -> Order {
        if self.mix.is_empty() {
            return Order::single(Kind { verb: self.verb, size });
        }
        Order::weighted(&self.mix)
    }

    /// The depths of the queues: with `--verify`, as many messages as have memory of their own.
    pub(crate) fn depths(&self, size: u32) -> Depths {
        let limit = if self.options.verify { (VERIFY_BUFFER / size.max(64)).max(1) } else { u32::MAX };
        Depths { send: self.tx_depth.min(limit), receive: self.rx_depth.min(limit) }
    }

    /// A request in so many is signalled in a run with messages of a size. With all sizes (`-a`), each
    /// large message is: many of them take longer than a peer that has stopped is waited for.
    pub(crate) fn cq_mod_of(&self, size: u32) -> u32 {
        let chosen = self.options.cq_mod.is_some() || self.options.events;
        let each = if chosen || size <= CQ_MOD_LIMIT {
            self.cq_mod
        } else {
            self.cq_mod.min(self.options.post_list)
        };
        let list = self.options.post_list;
        each.min(self.depths(size).send / list * list)
    }

    /// The time without a completion after which a run with messages of a size has stalled. Large
    /// messages take a while on a slow path.
    pub(crate) fn stall_timeout(&self, size: u32) -> Duration {
        let directions = if self.bidirectional() { 2 } else { 1 };
        let messages = u64::from(self.cq_mod_of(size)) * u64::from(self.num_qp) * directions;
        let bytes = messages.saturating_mul(size.into());
        (STALL_TIMEOUT + Duration::from_secs(bytes / SLOWEST)).min(LONGEST_STALL)
    }

    pub(crate) fn is_client(&self) -> bool {
        self.client
    }

    /// Whether this side sends requests. In a latency test, both sides are set up alike.
    pub(crate) fn requests(&self) -> bool {
        self.client || self.bidirectional() || self.measure == Measure::Latency
    }

    /// Whether this side executes the peer's requests.
    pub(crate) fn responds(&self) -> bool {
        !self.client || self.bidirectional() || self.measure == Measure::Latency
    }

    /// Whether the queue pairs of a thread receive into an SRQ.
    pub(crate) fn shares_receives(&self) -> bool {
        self.options.srq || self.verb.consumes_receives() && self.options.connection == Connection::Xrc
    }

    pub(crate) fn bidirectional(&self) -> bool {
        self.options.bidirectional
    }

    pub(crate) fn datagrams(&self) -> bool {
        self.options.connection == Connection::Ud
    }

    /// The largest size of a message.
    pub(crate) fn largest(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Limits the messages to datagrams of one packet, if the transport has only these.
    pub(crate) fn limit_to(&mut self, mtu: Mtu) -> Result<(), String> {
        if !self.datagrams() || self.largest() <= mtu.bytes() {
            return Ok(());
        }
        match (self.options.all, self.options.size) {
            (true, _) => self.sizes.retain(|&size| size <= mtu.bytes()),
            (false, None) => self.sizes = vec![mtu.bytes()],
            (false, Some(size)) => {
                return Err(format!("a datagram of {size} bytes (-s) exceeds the MTU of {mtu} bytes"));
            }
        }
        Ok(())
    }

    /// What both sides must have in common, as words.
    pub(crate) fn settings(&self, form: &str) -> Vec<String> {
        let options = self.options;
        let mut words = vec![
            format!("op={}", self.verb.name()),
            format!("test={}", self.measure.name()),
            format!("-c={}", options.connection),
            format!("-q={}", self.num_qp),
            format!("-b={}", options.bidirectional),
            format!("--report_gbits={}", options.report_gbits),
            format!("address={form}"),
        ];
        words.push(match options.all {
            true => "-a".into(),
            false => format!("-s={}", self.largest()),
        });
        // A server that only serves memory does not count.
        let passive = self.measure == Measure::Bandwidth && !options.bidirectional
            || matches!(self.verb, Verb::Read | Verb::Atomic);
        if let Some(mix) = &options.mix {
            words.push(format!("--mix={mix}"));
        }
        if options.verify {
            words.extend([
                "--verify".into(),
                format!("-t={}", self.tx_depth),
                format!("-r={}", self.rx_depth),
            ]);
        }
        if self.verb.consumes_receives() || !passive {
            words.push(match self.length {
                Length::Messages(messages) => format!("-n={messages}"),
                Length::Time { total, .. } => format!("-D={}", total.as_secs_f64()),
            });
        }
        words
    }
}

/// Rejects mixes that both sides can't run alike.
fn check_mix(verb: Verb, options: &PerfOptions, mix: &[(Kind, u32)]) -> Result<(), String> {
    if options.mix.as_ref().is_some_and(Mix::has_wrong_atomic) {
        return Err("atomic operations have 8 bytes: omit their size in --mix".into());
    }
    for (kind, _) in mix {
        if kind.verb.consumes_receives() != verb.consumes_receives() {
            return Err(format!(
                "--mix: {} and {} can't be mixed: only one of them consumes receives",
                verb.name(),
                kind.verb.name()
            ));
        }
        if options.verify && kind.verb != verb {
            return Err(
                "--verify compares the data of one operation: --mix may have several sizes only".into()
            );
        }
        if let Some(conflict) = transport_conflict(options.connection, kind.verb) {
            return Err(conflict);
        }
    }
    Ok(())
}

/// Why a transport does not have an operation.
fn transport_conflict(connection: Connection, verb: Verb) -> Option<String> {
    match (connection, verb) {
        (Connection::Rc | Connection::Xrc, _) | (Connection::Ud, Verb::Send) => None,
        (Connection::Uc, Verb::Send | Verb::Write | Verb::WriteImm) => None,
        (transport, verb) => Some(format!("{transport} has no {} operation (-c)", verb.name())),
    }
}

/// Why options contradict each other.
fn conflict(verb: Verb, measure: Measure, options: &PerfOptions) -> Option<String> {
    let latency = measure == Measure::Latency;
    let given = |given: bool, option: &str| given.then(|| option.to_owned());
    if latency {
        let wrong = given(options.num_qp > 1, "-q")
            .or_else(|| given(options.bidirectional, "-b"))
            .or_else(|| given(options.tx_depth.is_some(), "-t"))
            .or_else(|| given(options.cq_mod.is_some(), "-Q"))
            .or_else(|| given(options.post_list > 1, "-l"))
            .or_else(|| given(options.threads > 1, "--threads"))
            .or_else(|| given(options.rate.is_some(), "--rate"))
            .or_else(|| given(options.mix.is_some(), "--mix"));
        if let Some(option) = wrong {
            return Some(format!(
                "{option} is for bandwidth tests only: a latency test has one message outstanding"
            ));
        }
    }
    if let Some(conflict) = transport_conflict(options.connection, verb) {
        return Some(conflict);
    }
    // A latency test waits for each message.
    if options.verify && !options.connection.is_reliable() && verb != Verb::Send && !latency {
        return Some(format!(
            "--verify of {} bw needs RC or XRC: a write that {} loses can't be noticed",
            verb.name(),
            options.connection
        ));
    }
    if options.verify && latency && verb == Verb::Write && options.size == Some(1) {
        return Some("--verify of write lat needs 2 bytes (-s): the last byte counts the messages".into());
    }
    if options.verify && options.cq_mod.is_some() {
        return Some("--verify compares each message when it completes: omit -Q".into());
    }
    if options.rate.is_some() && options.post_list > 1 {
        return Some("--rate starts single messages: omit -l".into());
    }
    if options.mix.is_some() && options.all {
        return Some("--mix has the sizes: omit -a".into());
    }
    if options.srq && !verb.consumes_receives() {
        return Some(format!("--srq is for send and write-imm: {} consumes no receives", verb.name()));
    }
    if options.all_to_all.is_some() && (latency || !options.bidirectional) {
        return Some("--all-to-all needs a bandwidth test in both directions (bw -b)".into());
    }
    if verb == Verb::Atomic && (options.all || options.size.is_some_and(|size| size != 8)) {
        return Some("atomic operations have 8 bytes: omit -s and -a".into());
    }
    if options.all && options.size.is_some() {
        return Some("-a runs all sizes: omit -s".into());
    }
    if options.duration.is_some() && (options.all || options.iters.is_some()) {
        return Some("a duration (-D) excludes -n and -a".into());
    }
    if options.duration == Some(0.0) || options.interval == 0.0 {
        return Some("a time of 0 s measures nothing".into());
    }
    if options.margin.is_some() && options.duration.is_none() {
        return Some("a margin (-f) needs a duration (-D)".into());
    }
    if options.events && verb == Verb::Write && latency {
        return Some("write lat polls memory, so it has no completion events (-e)".into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// A parsed command line of a benchmark.
    struct Parsed(Verb, PerfTest);

    impl Parsed {
        fn plan(&self) -> Result<Plan<'_>, String> {
            self.1.plan(self.0)
        }
    }

    fn perf(line: &str) -> Parsed {
        let words = ["bareverbs", "perf"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).command {
            Command::Perf(PerfCommand::Benchmark(perf)) => match perf {
                Perf::Send { test } => Parsed(Verb::Send, test),
                Perf::Write { test } => Parsed(Verb::Write, test),
                Perf::WriteImm { test } => Parsed(Verb::WriteImm, test),
                Perf::Read { test } => Parsed(Verb::Read, test),
                Perf::Atomic { test } => Parsed(Verb::Atomic, test),
            },
            other => panic!("parsed as {other:?}"),
        }
    }

    #[test]
    fn defaults_are_perftests() {
        for (line, size, iters, tx, rx, cq_mod) in [
            ("write bw", 65536, 5000, 128, 0, 1),
            ("read bw", 65536, 1000, 128, 0, 1),
            ("send bw", 65536, 1000, 128, 512, 1),
            ("send bw -s 4096", 4096, 1000, 128, 512, 100),
            ("send bw -n 10", 65536, 10, 10, 10, 1),
            ("atomic bw", 8, 1000, 128, 0, 100),
            ("write bw -s 8 -t 16", 8, 5000, 16, 0, 16),
            ("write bw -s 8 -l 20 -t 50", 8, 5000, 50, 0, 20),
            ("send lat", 2, 1000, 1, 512, 1),
            ("write lat", 2, 1000, 1, 0, 1),
            ("atomic lat", 8, 1000, 1, 0, 1),
        ] {
            let perf = perf(line);
            let plan = perf.plan().unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(plan.sizes, [size], "{line}");
            assert_eq!(plan.length, Length::Messages(iters), "{line}");
            assert_eq!((plan.tx_depth, plan.rx_depth, plan.cq_mod), (tx, rx, cq_mod), "{line}");
        }
    }

    #[test]
    fn large_messages_are_signalled_and_have_time() {
        for (line, size, cq_mod, seconds) in [
            ("write bw -a -b", 4096, 100, 10),
            ("write bw -a -b", 16384, 1, 10),
            ("write bw -a -b", 8 << 20, 1, 26),
            ("write bw -a -l 20", 8 << 20, 20, 60),
            ("write bw -a -Q 4", 8 << 20, 4, 42),
            ("write bw -s 8388608 -e", 8 << 20, 100, 60),
            ("write bw -s 8388608 -q 2", 8 << 20, 1, 26),
            ("write bw -q 2000", 65536, 1, 60),
            ("write lat -s 8388608", 8 << 20, 1, 18),
        ] {
            let perf = perf(line);
            let plan = perf.plan().unwrap();
            let found = (plan.cq_mod_of(size), plan.stall_timeout(size));
            assert_eq!(found, (cq_mod, Duration::from_secs(seconds)), "{line}");
        }
    }

    #[test]
    fn every_option_of_perftest_is_accepted() {
        let perf = perf(
            "send bw -d rxe0 -i 1 -x 1 -s 64 -n 100 -q 2 -t 16 -r 32 -b -e -c UC -F -p 4711 -m 1024 -S 3 -u 14 -I 16 \
             -Q 5 -l 10 10.1.0.1",
        );
        let plan = perf.plan().unwrap();
        assert!(plan.is_client() && plan.bidirectional());
        assert_eq!((plan.num_qp, plan.tx_depth, plan.rx_depth, plan.cq_mod), (2, 16, 32, 5));
    }

    #[test]
    fn expectations_are_parsed() {
        let perf = perf("write lat --expect p99<5us --expect max<=1ms --junit /tmp/x.xml");
        assert_eq!(perf.plan().unwrap().options.expect.len(), 2);
        let words = ["bareverbs", "perf", "write", "lat", "--expect", "p98<5us"];
        let error = Cli::try_parse_from(words).unwrap_err().to_string();
        assert!(error.contains("there is no figure \"p98\""), "{error}");
    }

    #[test]
    fn all_sizes_are_perftests() {
        let perf = perf("write bw -a");
        let sizes = perf.plan().unwrap().sizes;
        assert_eq!((sizes.len(), sizes[0], sizes[22]), (23, 2, 8 << 20));
    }

    #[test]
    fn duration_has_a_margin_of_a_quarter() {
        let margin = |line: &str| match perf(line).plan().map(|plan| plan.length) {
            Ok(Length::Time { total, margin }) => Ok((total.as_millis(), margin.as_millis())),
            Ok(other) => panic!("{line} gives {other:?}"),
            Err(message) => Err(message),
        };
        assert_eq!(margin("read bw -D 10"), Ok((10_000, 2500)));
        assert_eq!(margin("read bw -D 2 -f 0.5"), Ok((2000, 500)));
        assert!(margin("read bw -D 2 -f 1").unwrap_err().contains("twice the margin"));
    }

    #[test]
    fn contradictions_are_named() {
        for (line, words) in [
            ("write lat -q 2", "-q is for bandwidth tests only"),
            ("send lat -b", "-b is for bandwidth tests only"),
            ("read bw -c UC", "UC has no read operation"),
            ("write bw -c ud", "UD has no write operation"),
            ("atomic bw -s 16", "atomic operations have 8 bytes"),
            ("write bw -a -s 8", "-a runs all sizes"),
            ("write bw -D 5 -n 10", "excludes -n and -a"),
            ("write bw -f 1", "needs a duration"),
            ("write bw -D 0", "measures nothing"),
            ("write bw -l 200", "exceed the send queue"),
            ("write bw -l 3 -n 100", "must be a multiple"),
            ("write lat -e", "polls memory"),
            ("write lat --rate 10k", "--rate is for bandwidth tests only"),
            ("write bw --rate 1k -l 4", "omit -l"),
            ("write bw --threads 4 -q 3", "need as many queue pairs"),
            ("read bw --srq", "consumes no receives"),
            ("write bw --mix 8:1,send:1", "can't be mixed"),
            ("write bw --mix atomic/16:1", "atomic operations have 8 bytes"),
            ("write bw --mix 8:1 -a", "omit -a"),
            ("write bw -c uc --mix read:1,write:1", "UC has no read"),
            ("write bw --verify --mix read:1,write:1", "one operation"),
            ("write-imm bw -c uc --verify", "--verify of write-imm bw needs RC or XRC"),
            ("write lat --verify -s 1", "needs 2 bytes"),
            ("write bw --verify -l 100", "exceed the send queue with --verify"),
            ("write bw --verify -Q 4", "omit -Q"),
            ("write bw --all-to-all a,b", "both directions"),
        ] {
            let message = perf(line).plan().expect_err(line);
            assert!(message.contains(words), "{line}: {message}");
        }
    }

    #[test]
    fn mix_decides_the_size_and_the_operations() {
        let perf = perf("write bw --mix write/64:3,read/4096:1");
        let plan = perf.plan().unwrap();
        assert_eq!((plan.largest(), plan.cq_mod), (4096, 1));
        assert_eq!(plan.verbs().collect::<Vec<_>>(), [Verb::Write, Verb::Read]);
        assert_eq!(plan.order(4096).kinds()[1], Kind { verb: Verb::Read, size: 4096 });
        assert!(plan.settings("gid").contains(&"--mix=write/64:3,read/4096:1".to_owned()));
    }

    #[test]
    fn sides_of_xrc_have_requesters_and_targets_where_perftest_has() {
        for (line, requests, responds, shares) in [
            ("send bw -c XRC a", true, false, true),
            ("send bw -c XRC", false, true, true),
            ("write bw -c xrc", false, true, false),
            ("write bw -c xrc -b a", true, true, false),
            ("write-imm lat --transport xrc", true, true, true),
            ("read lat -c xrc a", true, true, false),
        ] {
            let perf = perf(line);
            let plan = perf.plan().unwrap_or_else(|error| panic!("{line}: {error}"));
            let found = (plan.requests(), plan.responds(), plan.shares_receives());
            assert_eq!(found, (requests, responds, shares), "{line}");
        }
        let perf = perf("send bw -c xrc --verify");
        assert_eq!(perf.plan().unwrap().rx_depth, 512);
    }

    #[test]
    fn threads_share_all_queue_pairs() {
        let perf = perf("write bw -q 8 --threads 3");
        assert_eq!(perf.plan().unwrap().shares().collect::<Vec<_>>(), [0..2, 2..5, 5..8]);
    }

    #[test]
    fn verified_messages_have_memory_of_their_own() {
        let perf = perf("write bw --verify -a");
        let plan = perf.plan().unwrap();
        assert_eq!(plan.depths(64), Depths { send: 128, receive: 0 });
        assert_eq!(plan.depths(1 << 20).send, 4);
        assert_eq!(plan.depths(8 << 20).send, 1);
    }

    #[test]
    fn datagrams_are_limited_to_the_mtu() {
        let limited = |line: &str| {
            let perf = perf(line);
            let mut plan = perf.plan().unwrap();
            plan.limit_to(Mtu::Mtu1024).map(|()| plan.sizes)
        };
        assert_eq!(limited("send bw -c ud"), Ok(vec![1024]));
        assert_eq!(limited("send bw -c ud -a").unwrap().last(), Some(&1024));
        assert!(limited("send bw -c ud -s 4096").unwrap_err().contains("exceeds the MTU"));
        assert_eq!(limited("send bw"), Ok(vec![65536]));
    }

    #[test]
    fn settings_have_what_both_sides_need() {
        let settings = |line: &str| perf(line).plan().unwrap().settings("gid").join(" ");
        assert!(settings("send bw -n 10").ends_with("address=gid -s=65536 -n=10"));
        assert!(!settings("write bw -n 10").contains("-n="));
        assert!(settings("write bw -b -n 10").contains("-n=10"));
        assert!(settings("write lat -D 2").contains("-D=2"));
        assert_eq!(settings("send bw -n 10"), settings("send bw -n 10 10.1.0.1"));
    }
}
