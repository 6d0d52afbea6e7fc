//! `bareverbs cmtime`: the time of each step of many connections, interoperable with `cmtime` of
//! librdmacm.
//!
//! The peers meet at a controller over TCP. Then those that connect make a warm-up connection to
//! each that listens, all connections with queue pairs, and all without.

mod baseline;
mod client;
mod conn;
pub(crate) mod mesh;
mod server;
mod steps;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bareverbs_rdmacm::{CmId, EventChannel, PortSpace};

use self::client::{Client, Plan};
use self::conn::QueuePairs;
use self::mesh::{Mesh, Peer, listeners};
use self::server::Server;
use self::steps::Report;
use crate::cli::connected::Cmtime;
use crate::output;
use crate::session::address;
use crate::signal::Stop;

/// The barriers: before a round, before its connections are made, after that, and after their end.
/// The C program uses the numbers of its steps.
const RESET: u8 = 0;
const INITIALIZED: u8 = 7;
const CONNECTED: u8 = 12;
const DISCONNECTED: u8 = 14;

/// The lines about the progress, which `--json` omits.
#[derive(Clone, Copy, Debug)]
struct Progress {
    json: bool,
}

impl Progress {
    fn say(self, text: &str) -> Result<()> {
        if !self.json {
            output::line(text)?;
        }
        Ok(())
    }

    fn report(self, report: &Report) -> Result<()> {
        match self.json {
            true => output::line(&serde_json::to_string(report)?)?,
            false => output::write(&report.table())?,
        }
        Ok(())
    }
}

/// `bareverbs cmtime`.
pub(crate) fn run(options: &Cmtime) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let progress = Progress { json: options.json };
    let source = source(options, progress)?;
    let controller = address::first(&options.controller, options.port)?;
    if options.sockets {
        return baseline::run(options, source, controller, progress, stop);
    }
    let is_iwarp = is_iwarp(source)?;
    ensure!(
        !is_iwarp || options.mimic.is_none(),
        "-m: the device of {} is one of iWARP, whose connections need queue pairs",
        source.ip()
    );
    let listener = options.listen.then(|| listen(source)).transpose()?;
    let own = match &listener {
        Some((_, listener)) => {
            let local = listener.addresses()?.local.and_then(|addr| addr.ip());
            Peer::Listens(local.context("the listener has no IP address")?)
        }
        None => Peer::Connects,
    };
    let mut mesh = join(options, controller, progress, stop)?;
    let peers = mesh.exchange(own, options.peers)?;
    let listeners = listeners(&peers)?;
    let (listening, connecting) = (listeners.len() as u32, options.peers - listeners.len() as u32);
    match listener {
        Some((channel, _listener)) => {
            let mut server = Server::new(channel, options.threads, progress, stop);
            let (warm_up, all) = (connecting, options.connections * connecting);
            rounds(options, is_iwarp, "Server", "Accept", [warm_up, all], progress, |count, queues| {
                server.round(count, queues, &mut mesh)
            })
        }
        None => {
            let timeout = Duration::from_millis(options.timeout.into());
            let plan = Plan { source, listeners, timeout, retries: options.retries };
            let mut client = Client::new(&plan, options.threads, progress, stop)?;
            let (warm_up, all) = (listening, options.connections * listening);
            rounds(options, is_iwarp, "Client", "Connect", [warm_up, all], progress, |count, queues| {
                client.round(count, queues, &mut mesh)
            })
        }
    }
}

/// The address of the device.
fn source(options: &Cmtime, progress: Progress) -> Result<SocketAddr> {
    if let Some(name) = &options.bind_interface {
        let source = address::of_interface(name)?;
        progress.say(&format!("Picking source address {} for interface {name}", source.ip()))?;
        return Ok(source);
    }
    address::first(options.bind.as_deref().context("no address of the device (-b)")?, 0)
}

/// The peers, at the controller.
fn join<'a>(
    options: &Cmtime,
    controller: SocketAddr,
    progress: Progress,
    stop: &'a Stop,
) -> Result<Mesh<'a>> {
    Mesh::join(controller, options.peers - 1, stop, || progress.say("Running as OOB root"))
}

/// Whether an address is of an iWARP device.
fn is_iwarp(source: SocketAddr) -> Result<bool> {
    let id = CmId::new(&EventChannel::new()?, PortSpace::Tcp)?;
    id.bind_addr(source)?;
    Ok(id.is_iwarp()?)
}

/// A listener at a free port.
fn listen(source: SocketAddr) -> Result<(EventChannel, CmId)> {
    let channel = EventChannel::new()?;
    let listener = CmId::new(&channel, PortSpace::Tcp)?;
    listener.bind_addr(source)?;
    listener.listen(0)?;
    Ok((channel, listener))
}

/// The rounds: a warm-up, the test, and for two peers the same without queue pairs. iWARP connects queue
/// pairs of the device only.
fn rounds(
    options: &Cmtime,
    is_iwarp: bool,
    role: &str,
    verb: &str,
    [warm_up, all]: [u32; 2],
    progress: Progress,
    mut round: impl FnMut(u32, &QueuePairs) -> Result<Report>,
) -> Result<()> {
    progress.say(&format!("{role} warmup"))?;
    round(warm_up, &QueuePairs::Real)?;
    let queues = match options.mimic {
        None => {
            progress.say(&format!("{verb} ({all}) QPs test"))?;
            QueuePairs::Real
        }
        Some(delay) => {
            progress.say(&format!("{verb} ({all}) simulated QPs test (delay {delay} us)"))?;
            QueuePairs::simulated(Duration::from_micros(delay.into()), options.base_qpn)
        }
    };
    progress.report(&round(all, &queues)?)?;
    if options.peers == 2 && !is_iwarp {
        progress.say(&format!("{verb} ({all}) test - no QPs"))?;
        progress.report(&round(all, &QueuePairs::simulated(Duration::ZERO, options.base_qpn))?)?;
    }
    Ok(())
}
