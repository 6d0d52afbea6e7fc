//! The command lines of the benchmarks.

pub(crate) mod choice;
pub(crate) mod expectation;
pub(crate) mod hosts;
pub(crate) mod mix;

use std::path::PathBuf;

use bareverbs::Gid;
use bareverbs::values::Mtu;
use clap::builder::ArgPredicate;
use clap::{Args, Subcommand};

use self::choice::{AtomicType, Connection, CqUse, Measure, Verb};
use self::expectation::Expectation;
use self::hosts::Hosts;
use self::mix::Mix;
use super::doctor::DoctorOptions;
use super::values::{gid_index, mtu, multicast_gid, number, rate, seconds};

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
    /// Fetch-and-add or compare-and-swap on 8 bytes; interoperates with ib_atomic_bw and ib_atomic_lat
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
    /// Use this device, such as rxe0 or soft:127.0.0.2 (default: the first one with an active port)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = number::<u8>(1, 255))]
    pub(crate) ib_port: u8,
    /// Local GID index (default: on RoCE the best one, elsewhere none)
    #[arg(short = 'x', long, value_name = "INDEX", value_parser = gid_index)]
    pub(crate) gid_index: Option<i32>,
    /// Transport (with -g: ud)
    #[arg(
        short = 'c',
        long,
        visible_alias = "transport",
        value_enum,
        ignore_case = true,
        default_value = "rc",
        default_value_if("mcg", ArgPredicate::IsPresent, "ud")
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
    /// Connect the queue pairs and exchange their addresses by the connection manager, as perftest's -R
    /// does: HOST is an IP address of the device (RC only)
    #[arg(short = 'R', long, visible_alias = "rdma_cm")]
    pub(crate) cm: bool,
    /// Send to a multicast group, which the queue pair of the receiver is attached to (send over UD, one
    /// queue pair; InfiniBand needs -x)
    #[arg(short = 'g', long)]
    pub(crate) mcg: bool,
    /// With -g: the group that this side receives from, as an IP address or as 16 bytes B:B:… (default:
    /// 239.2.201.133, with the GID of an IPv6 address ff02::2:c985, on InfiniBand ff01:0:2:c985::; client
    /// of lat: the next one)
    #[arg(
        short = 'M',
        long,
        visible_alias = "MGID",
        value_name = "GROUP",
        requires = "mcg",
        value_parser = multicast_gid
    )]
    pub(crate) mgid: Option<Gid>,
    /// Traffic class in the GRH; TOS (DSCP and ECN) of RoCE v2 packets (default 0)
    #[arg(long, value_name = "NUM", value_parser = number::<u8>(0, 255))]
    pub(crate) tclass: Option<u8>,
    /// Flow labels in the GRH, for the queue pairs in turn: NUM,… (default 0)
    #[arg(
        long,
        visible_alias = "flow_label",
        value_name = "NUM",
        value_delimiter = ',',
        value_parser = number::<u32>(0, (1 << 20) - 1)
    )]
    pub(crate) flow_label: Vec<u32>,
    /// Index of the P_Key in the table of the port (default 0)
    #[arg(long, visible_alias = "pkey_index", value_name = "INDEX", value_parser = number::<u16>(0, 65535))]
    pub(crate) pkey_index: Option<u16>,
    /// Atomic operation (default FETCH_AND_ADD)
    #[arg(
        short = 'A',
        long,
        visible_alias = "atomic_type",
        value_name = "TYPE",
        value_enum,
        ignore_case = true
    )]
    pub(crate) atomic_type: Option<AtomicType>,
    /// ACK timeout: 4.096 µs × 2^EXP
    #[arg(short = 'u', long = "qp-timeout", value_name = "EXP", default_value = "16", value_parser = number::<u8>(0, 31))]
    pub(crate) qp_timeout: u8,
    /// Register the memory for on-demand paging: its pages are not pinned
    #[arg(long)]
    pub(crate) odp: bool,
    /// Use huge pages of the kernel's default size for the memory
    #[arg(long, visible_alias = "use_hugepages")]
    pub(crate) huge_pages: bool,
    /// Use a dma-buf for the memory, made of memory of this machine by /dev/udmabuf
    #[arg(long)]
    pub(crate) dma_buf: bool,
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

impl Perf {
    /// The operation, the figure that is measured, and the options.
    pub(crate) fn parts(&self) -> (Verb, Measure, &PerfOptions) {
        let (verb, test) = match self {
            Self::Send { test } => (Verb::Send, test),
            Self::Write { test } => (Verb::Write, test),
            Self::WriteImm { test } => (Verb::WriteImm, test),
            Self::Read { test } => (Verb::Read, test),
            Self::Atomic { test } => (Verb::Atomic, test),
        };
        match test {
            PerfTest::Bw(options) => (verb, Measure::Bandwidth, options),
            PerfTest::Lat(options) => (verb, Measure::Latency, options),
        }
    }
}
