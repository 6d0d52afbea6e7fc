//! Ping-pong, wire-compatible with ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong,
//! ibv_srq_pingpong and ibv_xsrq_pingpong.

mod check;
pub(crate) mod exchange;
mod latency;
mod limits;
mod memory;
mod over_cm;
mod queues;
pub(crate) mod record;
mod report;
mod run;
mod run_error;
mod state;
mod wait;
pub(crate) mod xsrq;

use anyhow::{Context as _, Result};

use self::limits::DeviceLimits;
use self::over_cm::Manager;
use self::queues::{Datagrams, Queues, Reliable, Unreliable};
use self::record::Record;
use self::report::{Addresses, Checked, Figures, Report, address_line};
use self::run::Endpoint;
use self::state::Side;
use crate::cli::pingpong::{CommonOptions, Config, Kind, Pingpong, SingleClient};
use crate::session::exchange::{Peer, Server};
use crate::session::path::select_gid;
use crate::signal::Stop;
use crate::{devices, output};

/// Records in an exchange between endpoints with several queue pairs.
const SRQ_RECORDS: usize = 256;

/// How the two sides exchange their addresses: over TCP, or by the connection manager.
enum Session<'a, 's> {
    Listen(Server),
    Connect(&'a str),
    Manager(&'a mut Manager<'s>),
}

/// `bareverbs pingpong`.
pub(crate) fn run(options: &Pingpong) -> Result<()> {
    match options {
        Pingpong::SingleClient(options) => run_single_client(options),
        Pingpong::Xsrq(options) => xsrq::run(options),
    }
}

fn run_single_client(options: &SingleClient) -> Result<()> {
    let config = options.config();
    match config.kind {
        Kind::Rc | Kind::Srq => run_transport::<Reliable>(config),
        Kind::Uc => run_transport::<Unreliable>(config),
        Kind::Ud => run_transport::<Datagrams>(config),
    }
}

fn run_transport<Q: Queues>(config: Config<'_>) -> Result<()> {
    if let Some(conflict) = config.conflict() {
        anyhow::bail!("{conflict}");
    }
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let mut manager = if config.common.cm { Some(Manager::open(&config, stop)?) } else { None };
    let (context, ib_port) = match &manager {
        Some(manager) => manager.open_device()?,
        None => {
            let CommonOptions { ib_dev, ib_port, .. } = config.common;
            (devices::open(ib_dev.as_deref(), *ib_port)?, *ib_port)
        }
    };
    let common = &CommonOptions { ib_port, ..config.common.clone() };
    let config = Config { common, ..config };
    let device = context.device();
    let attr = context.query_device()?;
    let port = context.query_port(common.ib_port)?;
    DeviceLimits::new(device.name(), &attr, common.ib_port, &port).check(&config)?;
    let gid = match &manager {
        Some(manager) => manager.gid(&context, ib_port, &port)?,
        None => select_gid(common.gid_idx, ib_port, &context, &port)?,
    };

    let mut endpoint = Endpoint::<Q>::new(config, &context, &port, gid, stop)?;
    // The server listens before it prints its first line, so a reader of this line can start the
    // client.
    let session = match (&mut manager, &common.host) {
        (Some(manager), _) => Session::Manager(manager),
        (None, None) => Session::Listen(Server::listen(common.port)?),
        (None, Some(host)) => Session::Connect(host),
    };
    if !common.json {
        show_addresses(config.kind, "local", endpoint.local())?;
    }
    let places = if config.kind == Kind::Srq { SRQ_RECORDS } else { 1 };
    let remote = match session {
        Session::Listen(server) => exchange_as_server(&mut endpoint, server, places, stop)?,
        Session::Connect(host) => exchange_as_client(&endpoint, host, common.port, places, stop)?,
        Session::Manager(manager) => manager.exchange(&mut endpoint)?,
    };
    if !common.json {
        show_addresses(config.kind, "remote", &remote)?;
    }
    if endpoint.side() == Side::Client {
        endpoint.connect(&remote)?;
        manager.as_ref().map_or(Ok(()), Manager::establish)?;
    }
    let outcome = endpoint.run()?;

    let report = Report {
        transport: config.kind,
        side: endpoint.side(),
        device: device.name().into(),
        port: common.ib_port,
        gid_index: gid.map(|(index, _)| index.into()),
        mtu: config.mtu.unwrap_or(port.active_mtu).bytes(),
        local: Addresses::new(config.kind, endpoint.local()),
        remote: Addresses::new(config.kind, &remote),
        size: config.size,
        iters: common.iters,
        inline: endpoint.inline(),
        events: outcome.events,
        figures: Figures::new(config.size, common.iters, outcome.time),
        timestamps: outcome.latency,
        check: endpoint
            .checker()
            .map(|checker| Checked { messages: checker.checked(), data: checker.source() }),
    };
    if common.json {
        output::line(&serde_json::to_string_pretty(&report)?)?;
    } else {
        output::line(&report.lines().join("\n"))?;
        if let Some(latency) = &report.timestamps {
            output::line(&latency.lines().join("\n"))?;
        }
        if let Some(line) = report.check_line() {
            output::diagnostic(&line);
        }
    }
    // The program exits here. The kernel releases all RDMA objects at once, which replaces a dozen
    // commands. With ODP they are destroyed explicitly: at exit the address space is torn down
    // before the queue pairs, and a late message of the peer would be answered with a fault.
    if !config.on_demand() {
        std::mem::forget((endpoint, context));
    }
    Ok(())
}

fn show_addresses(kind: Kind, whose: &str, records: &[Record]) -> Result<()> {
    let lines: Vec<_> = records.iter().map(|record| address_line(kind, whose, record)).collect();
    Ok(output::line(&lines.join("\n"))?)
}

/// The server's part of the exchange. Its queue pairs are ready to receive before it sends its
/// records to the client.
fn exchange_as_server<Q: Queues>(
    endpoint: &mut Endpoint<'_, Q>,
    server: Server,
    places: usize,
    stop: &Stop,
) -> Result<Vec<Record>> {
    let peer = server.accept(stop)?.with_queue_pairs(endpoint.local().len() as u32);
    // No further client is accepted.
    drop(server);
    let remote = peer.receive_records(endpoint.local().len(), places)?;
    endpoint.connect(&remote)?;
    peer.send_records(endpoint.local(), places)?;
    peer.receive_done()?;
    Ok(remote)
}

/// The client's part of the exchange.
fn exchange_as_client<Q: Queues>(
    endpoint: &Endpoint<'_, Q>,
    host: &str,
    port: u16,
    places: usize,
    stop: &Stop,
) -> Result<Vec<Record>> {
    let peer = Peer::connect(host, port, stop)?.with_queue_pairs(endpoint.local().len() as u32);
    peer.send_records(endpoint.local(), places)?;
    let remote = peer.receive_records(endpoint.local().len(), places)?;
    peer.send_done()?;
    Ok(remote)
}
