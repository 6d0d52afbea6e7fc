//! Serves devices over vfio-user: one socket per device, all devices on one fabric.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bareverbs_hca::engine::{Queue, Recorder};
use bareverbs_hca::{Control, Fabric, Fault, FaultInjector, Link, Server, Setup};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, ValueEnum)]
enum PortType {
    /// InfiniBand.
    Ib,
    /// RDMA over Ethernet, with a netdev.
    Roce,
}

/// A software ConnectX for QEMU's vfio-user-pci.
#[derive(Parser)]
#[command(name = "bareverbs-hca", version, args_override_self = true)]
struct Arguments {
    /// Link layer of all ports.
    #[arg(long, value_enum, default_value = "ib")]
    port: PortType,
    /// Log commands and mappings to standard error.
    #[arg(long)]
    verbose: bool,
    /// Packets to drop, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    loss: u16,
    /// Packets to duplicate, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    duplication: u16,
    /// Packets to reorder, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    reordering: u16,
    /// Packets to delay, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    delay: u16,
    /// Longest delay, in microseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    longest_delay: u64,
    /// Seed of the fault sequence.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Record packets as RoCE v2 and frames as they are.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Record fetched work requests, one line each: `send`, `receive` or `shared`, queue number,
    /// WQE index, bytes.
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// The control socket; it accepts commands: `1 link down`, `1 link up`, `1 lid 7`,
    /// `1 prefix 0xfec0000000000000`, `1 objects`.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Let the devices of other processes join through this socket.
    #[arg(long, value_name = "SOCKET")]
    listen: Option<PathBuf>,
    /// Join the devices of another process, which listens on this socket.
    #[arg(long, value_name = "SOCKET")]
    join: Option<PathBuf>,
    /// The first device's index among all joined devices; LIDs, GUIDs and MACs are derived from it.
    #[arg(long, default_value_t = 0)]
    first: u8,
    /// CQE version: 1, or 0, where CQEs name QPs and SRQs by the device's numbers. The n-th value
    /// of a list applies to the n-th of all joined devices; the last value applies to the rest.
    #[arg(long, default_value = "1", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(..=1))]
    cqe_version: Vec<u8>,
    /// A socket for each device.
    #[arg(required = true, value_name = "SOCKET")]
    sockets: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bareverbs-hca: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The faults that the options ask for, in thousandths of all packets.
fn injector(arguments: &Arguments) -> FaultInjector {
    let mut injector = FaultInjector::new(arguments.seed);
    let longest_delay = Duration::from_micros(arguments.longest_delay);
    for (fault, thousandths) in [
        (Fault::drop(), arguments.loss),
        (Fault::duplicate(), arguments.duplication),
        (Fault::reorder(), arguments.reordering),
        (Fault::jitter(longest_delay), arguments.delay),
    ] {
        if thousandths > 0 {
            injector.inject(fault.probability(f64::from(thousandths) / 1000.0));
        }
    }
    injector
}

fn run(arguments: &Arguments) -> Result<()> {
    let link = match arguments.port {
        PortType::Ib => Link::InfiniBand,
        PortType::Roce => Link::Ethernet,
    };
    let injector = injector(arguments);
    // The worker threads run at high priority, because a guest's vCPU spins while it waits for the
    // device. Without the privilege the priority stays as it is.
    let _ = rustix::process::nice(-20);
    let fabric = Fabric::with(injector, arguments.pcap.as_deref()).context("recording")?;
    if let Some(path) = &arguments.listen {
        fabric.listen(path, link).with_context(|| format!("listening at {}", path.display()))?;
    }
    if let Some(path) = &arguments.join {
        fabric.join(path, link).with_context(|| format!("joining {}", path.display()))?;
    }
    let mut servers = Vec::new();
    for (index, path) in arguments.sockets.iter().enumerate() {
        let index = u8::try_from(index).ok().and_then(|index| index.checked_add(arguments.first));
        let index = index.context("a fabric has at most 256 devices")?;
        let versions = &arguments.cqe_version;
        let cqe_version = versions.get(usize::from(index)).or(versions.last()).copied().unwrap_or(1);
        let setup = Setup { link, index, cqe_version, verbose: arguments.verbose };
        servers
            .push(Server::bind(path, setup, &fabric).with_context(|| format!("serving {}", path.display()))?);
    }
    if let Some(path) = &arguments.requests {
        let file = File::create(path).with_context(|| format!("recording to {}", path.display()))?;
        for server in &servers {
            server.record(request_lines(file.try_clone()?));
        }
    }
    let control =
        arguments.control.as_deref().map(Control::bind).transpose().context("creating the control socket")?;
    println!("ready");
    std::thread::scope(|scope| {
        if let Some(control) = &control {
            scope.spawn(|| eprintln!("bareverbs-hca: control: {}", control.serve(&servers)));
        }
        for server in &servers {
            scope.spawn(|| eprintln!("bareverbs-hca: {}", server.serve()));
        }
    });
    Ok(())
}

/// Returns a recorder that writes one line per work request.
fn request_lines(mut file: File) -> Recorder {
    Box::new(move |queue, place, bytes| {
        let (kind, number) = match queue {
            Queue::Send(number) => ("send", number),
            Queue::Receive(number) => ("receive", number),
            Queue::Shared(number) => ("shared", number),
        };
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        // One write per line, so a reader never sees part of a line.
        let written = file.write_all(format!("{kind} {number:#x} {place:#x} {bytes}\n").as_bytes());
        if let Err(error) = written {
            eprintln!("bareverbs-hca: a work request was not recorded: {error}");
        }
    })
}
