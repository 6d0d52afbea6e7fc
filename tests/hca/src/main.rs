//! Serves cards over vfio-user: one socket per card, all cards on one fabric.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bareverbs_hca::{Control, Fabric, Faults, Link, Server, Setup};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, ValueEnum)]
enum PortType {
    /// InfiniBand.
    Ib,
    /// RDMA over Ethernet, with a netdev.
    Roce,
}

/// A ConnectX in software, for QEMU's vfio-user-pci.
#[derive(Parser)]
#[command(name = "bareverbs-hca", version)]
struct Arguments {
    /// The kind of all ports.
    #[arg(long, value_enum, default_value = "ib")]
    port: PortType,
    /// Log commands and mappings to standard error.
    #[arg(long)]
    verbose: bool,
    /// Packets to lose, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    loss: u16,
    /// Packets to deliver twice, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    duplication: u16,
    /// Packets to deliver late, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    reordering: u16,
    /// Packets to hold back, in thousandths.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    delay: u16,
    /// For how long at most, in microseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=10_000_000))]
    longest_delay: u64,
    /// Which of all sequences of faults.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Record packets as RoCE v2 and frames as they are.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// A socket that takes wishes: `1 link down`, `1 link up`, `1 lid 7`, `1 prefix 0xfec0000000000000`, `1 objects`.
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Let the cards of other processes join through this socket.
    #[arg(long, value_name = "SOCKET")]
    listen: Option<PathBuf>,
    /// Join the cards of another process, which listens there.
    #[arg(long, value_name = "SOCKET")]
    join: Option<PathBuf>,
    /// The first card's place among all that are joined; LIDs, GUIDs and MACs follow from it.
    #[arg(long, default_value_t = 0)]
    first: u8,
    /// A socket for each card.
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

fn run(arguments: &Arguments) -> Result<()> {
    let link = match arguments.port {
        PortType::Ib => Link::InfiniBand,
        PortType::Roce => Link::Ethernet,
    };
    let faults = Faults {
        loss: arguments.loss,
        duplication: arguments.duplication,
        reordering: arguments.reordering,
        delay: arguments.delay,
        longest_delay: Duration::from_micros(arguments.longest_delay),
        seed: arguments.seed,
    };
    let fabric = Fabric::with(faults, arguments.pcap.as_deref()).context("recording")?;
    if let Some(path) = &arguments.listen {
        fabric.listen(path, link).with_context(|| format!("listening at {}", path.display()))?;
    }
    if let Some(path) = &arguments.join {
        fabric.join(path, link).with_context(|| format!("joining {}", path.display()))?;
    }
    let mut servers = Vec::new();
    for (index, path) in arguments.sockets.iter().enumerate() {
        let index = u8::try_from(index).ok().and_then(|index| index.checked_add(arguments.first));
        let index = index.context("a fabric has at most 256 cards")?;
        let setup = Setup { link, index, verbose: arguments.verbose };
        servers
            .push(Server::bind(path, setup, &fabric).with_context(|| format!("serving {}", path.display()))?);
    }
    let control =
        arguments.control.as_deref().map(Control::bind).transpose().context("making the control socket")?;
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
