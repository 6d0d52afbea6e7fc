//! `bareverbs pingpong xsrq`, wire-compatible with ibv_xsrq_pingpong: one server and several
//! clients over XRC.
//!
//! All clients are on one host and share an XRC domain, which a file identifies. The server sends
//! to each client's SRQ over all connections in turn.

mod endpoint;
pub(crate) mod record;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context as _, Result};
use serde::Serialize;

use self::endpoint::Endpoint;
use self::record::XrcRecord;
use super::limits::DeviceLimits;
use crate::cli::pingpong::XsrqPingpong;
use crate::output;
use crate::session::Role;
use crate::session::exchange::{Peer, Server};
use crate::session::path::LocalPort;
use crate::signal::Stop;

/// The file that identifies the XRC domain of a host's programs, as in the C program.
const XRC_DOMAIN_FILE: &str = "/tmp/xrc_domain";

/// A finished run.
#[derive(Debug, Serialize)]
struct Report<'a> {
    transport: &'static str,
    side: Role,
    device: &'a str,
    port: u8,
    gid_index: Option<u8>,
    mtu: u32,
    local: &'a [XrcRecord],
    remote: &'a [XrcRecord],
    size: u32,
    /// Messages sent, and the same number received.
    messages: u64,
    /// Completion events that ended a sleep; absent when polling.
    events: Option<u64>,
}

/// Runs to the end.
pub(super) fn run(options: &XsrqPingpong) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let mut port = LocalPort::open(options.ib_dev.as_deref(), options.ib_port)?;
    DeviceLimits::query(&port)?.check_xrc(options)?;
    port.choose_gid(options.gid_idx)?;
    let mut endpoint = Endpoint::new(options, &port, domain_file().as_ref(), stop)?;
    let peers = match &options.host {
        None => exchange_as_server(options, &mut endpoint, stop)?,
        Some(host) => vec![exchange_as_client(options, &mut endpoint, host, stop)?],
    };
    endpoint.run()?;
    // A client's connection may carry messages for other clients, so they complete before the
    // connection is destroyed.
    match endpoint.side() {
        Role::Client => {
            peers.iter().try_for_each(Peer::send_end)?;
            peers.iter().try_for_each(Peer::receive_end)?;
        }
        Role::Server => {
            peers.iter().try_for_each(Peer::receive_end)?;
            peers.iter().try_for_each(Peer::send_end)?;
        }
    }
    if !options.json {
        return Ok(output::line("success")?);
    }
    let report = Report {
        transport: "xsrq",
        side: endpoint.side(),
        device: port.context.device().name(),
        port: options.ib_port,
        gid_index: port.gid.map(|(index, _)| index.into()),
        mtu: options.mtu.bytes(),
        local: endpoint.local(),
        remote: endpoint.remote(),
        size: options.size,
        messages: endpoint.received(),
        events: endpoint.events(),
    };
    Ok(output::line(&serde_json::to_string_pretty(&report)?)?)
}

/// Opens the file that identifies the host's XRC domain. Without it, the domain is private to this
/// program.
fn domain_file() -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::CREATE.bits() as i32)
        .mode(0o440)
        .open(XRC_DOMAIN_FILE);
    file.inspect_err(|error| {
        output::diagnostic(&format!("cannot open {XRC_DOMAIN_FILE}: {error}; the XRC domain is not shared"));
    })
    .ok()
}

/// The server's part of the exchange, with one client after the other.
fn exchange_as_server<'s>(
    options: &XsrqPingpong,
    endpoint: &mut Endpoint<'_>,
    stop: &'s Stop,
) -> Result<Vec<Peer<'s>>> {
    let server = Server::listen_for(options.port, options.clients.try_into()?)?;
    let mut peers = Vec::new();
    for place in 0..endpoint.local().len() {
        let peer = server.accept(stop)?;
        let remote = peer.receive_xrc_record()?;
        show(options, "remote", &remote)?;
        show(options, "local", &endpoint.local()[place])?;
        endpoint.connect(remote)?;
        peer.send_xrc_record(&endpoint.local()[place])?;
        peers.push(peer);
    }
    Ok(peers)
}

/// The client's part of the exchange.
fn exchange_as_client<'s>(
    options: &XsrqPingpong,
    endpoint: &mut Endpoint<'_>,
    host: &str,
    stop: &'s Stop,
) -> Result<Peer<'s>> {
    let peer = Peer::connect(host, options.port, stop)?;
    show(options, "local", &endpoint.local()[0])?;
    peer.send_xrc_record(&endpoint.local()[0])?;
    let remote = peer.receive_xrc_record()?;
    show(options, "remote", &remote)?;
    endpoint.connect(remote)?;
    Ok(peer)
}

fn show(options: &XsrqPingpong, whose: &str, record: &XrcRecord) -> Result<()> {
    if options.json { Ok(()) } else { Ok(output::line(&record.line(whose))?) }
}
