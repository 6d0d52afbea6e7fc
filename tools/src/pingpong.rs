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
use bareverbs::Device;

use self::check::Checker;
use self::limits::DeviceLimits;
use self::over_cm::Manager;
use self::queues::{Datagrams, Queues, Reliable, Unreliable};
use self::record::Record;
use self::report::{Addresses, Checked, Figures, Report, address_line};
use self::run::{Endpoint, Outcome};
use crate::cli::pingpong::{CommonOptions, Config, Kind, Pingpong, SingleClient};
use crate::output;
use crate::session::Role;
use crate::session::exchange::{Peer, Server};
use crate::session::path::LocalPort;
use crate::signal::Stop;

/// Records in an exchange between endpoints with several queue pairs.
const SRQ_RECORDS: usize = 256;

/// How the two sides exchange their addresses: over TCP, or by the connection manager.
enum Channel<'a, 's> {
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
    let common = config.common;
    let mut manager = if common.cm {
        // It serves the soft devices that there are by now.
        common.ib_dev.as_deref().map(Device::find).transpose()?;
        Some(Manager::open(&config, stop)?)
    } else {
        None
    };
    let mut port = match &manager {
        Some(manager) => manager.port()?,
        None => LocalPort::open(common.ib_dev.as_deref(), common.ib_port)?,
    };
    let common = &CommonOptions { ib_port: port.number, ..common.clone() };
    let config = Config { common, ..config };
    DeviceLimits::query(&port)?.check(&config)?;
    if manager.is_none() {
        port.choose_gid(common.gid_idx)?;
    }
    let mut endpoint = Endpoint::<Q>::new(config, &port, stop)?;
    let remote = exchange(&config, &mut endpoint, manager.as_mut(), stop)?;
    if endpoint.side() == Role::Client {
        endpoint.connect(&remote)?;
        manager.as_ref().map_or(Ok(()), Manager::establish)?;
    }
    let outcome = endpoint.run()?;
    let report = report(&config, &port, &endpoint, &remote, outcome);
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
    // before the queue pairs, and a late message of the peer would be answered with a fault. A soft
    // device, which ends with the process, still has to acknowledge the last message.
    if !config.on_demand() && port.context.device().soft().is_none() {
        std::mem::forget((endpoint, port));
    }
    Ok(())
}

/// Exchanges the addresses with the peer, and prints them. The queue pairs of a server are connected
/// then.
fn exchange<Q: Queues>(
    config: &Config<'_>,
    endpoint: &mut Endpoint<'_, Q>,
    manager: Option<&mut Manager<'_>>,
    stop: &Stop,
) -> Result<Vec<Record>> {
    let common = config.common;
    // The server listens before it prints its first line, so a reader of this line can start the
    // client.
    let channel = match (manager, &common.host) {
        (Some(manager), _) => Channel::Manager(manager),
        (None, None) => Channel::Listen(Server::listen(common.port)?),
        (None, Some(host)) => Channel::Connect(host),
    };
    show_addresses(config, "local", endpoint.local())?;
    let places = if config.kind == Kind::Srq { SRQ_RECORDS } else { 1 };
    let remote = match channel {
        Channel::Listen(server) => exchange_as_server(endpoint, server, places, stop)?,
        Channel::Connect(host) => exchange_as_client(endpoint, host, common.port, places, stop)?,
        Channel::Manager(manager) => manager.exchange(endpoint)?,
    };
    show_addresses(config, "remote", &remote)?;
    Ok(remote)
}

fn show_addresses(config: &Config<'_>, whose: &str, records: &[Record]) -> Result<()> {
    if config.common.json {
        return Ok(());
    }
    let lines: Vec<_> = records.iter().map(|record| address_line(config.kind, whose, record)).collect();
    Ok(output::line(&lines.join("\n"))?)
}

fn report<Q: Queues>(
    config: &Config<'_>,
    port: &LocalPort,
    endpoint: &Endpoint<'_, Q>,
    remote: &[Record],
    outcome: Outcome,
) -> Report {
    let checked = |checker: &Checker| Checked { messages: checker.checked(), data: checker.source() };
    Report {
        transport: config.kind,
        side: endpoint.side(),
        device: port.context.device().name().into(),
        port: port.number,
        gid_index: port.gid.map(|(index, _)| index.into()),
        mtu: config.mtu.unwrap_or(port.attr.active_mtu).bytes(),
        local: Addresses::new(config.kind, endpoint.local()),
        remote: Addresses::new(config.kind, remote),
        size: config.size,
        iters: config.common.iters,
        inline: endpoint.inline(),
        events: outcome.events,
        figures: Figures::new(config.size, config.common.iters, outcome.time),
        timestamps: outcome.latency,
        check: endpoint.checker().map(checked),
    }
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
