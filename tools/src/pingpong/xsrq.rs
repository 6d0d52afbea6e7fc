//! `bareverbs pingpong xsrq`, on the wire the same as ibv_xsrq_pingpong: one server and several clients over extended
//! reliable connections.
//!
//! All clients are on one host and share an XRC domain there, by a file: the server sends to each client's queue over any
//! of its connections in turn.

mod player;
pub(crate) mod record;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context as _, Result};
use bareverbs::Gid;
use serde::Serialize;

use self::player::Player;
use self::record::XrcRecord;
use super::choose_gid;
use super::exchange::{Peer, Server};
use super::limits::Offer;
use super::rally::Side;
use crate::cli::pingpong::XsrqPingpong;
use crate::stop::Stop;
use crate::{devices, say};

/// The file that the programs of a host find each other's domain by; that of the C program.
const DOMAIN: &str = "/tmp/xrc_domain";

/// A finished run.
#[derive(Debug, Serialize)]
struct Report<'a> {
    transport: &'static str,
    side: Side,
    device: &'a str,
    port: u8,
    gid_index: Option<u32>,
    mtu: u32,
    local: &'a [XrcRecord],
    remote: &'a [XrcRecord],
    size: u32,
    /// Messages sent, and as many received.
    messages: u64,
    /// Completion events slept for; absent when polling.
    events: Option<u64>,
}

/// Plays to the end.
pub(super) fn play(options: &XsrqPingpong) -> Result<()> {
    let stop = Stop::on_signals().context("couldn't prepare for signals")?;
    let device = devices::choose(options.ib_dev.as_deref())?;
    let context = device.open()?;
    let attr = context.query_device()?;
    let port = context.query_port(options.ib_port.into())?;
    Offer::new(device.name(), &attr, options.ib_port, &port).admit_xrc(options)?;
    let gid = choose_gid(options.gid_idx, options.ib_port, &context, &port)?;

    let mut player = Player::new(options, &context, &port, gid, domain_file().as_ref(), stop)?;
    let peers = match &options.host {
        None => serve(options, &mut player, stop)?,
        Some(host) => vec![call(options, &mut player, host, stop)?],
    };
    player.play()?;
    // What a client's connection carried for another client is seen through before it goes.
    match player.side() {
        Side::Client => {
            peers.iter().try_for_each(Peer::send_end)?;
            peers.iter().try_for_each(Peer::receive_end)?;
        }
        Side::Server => {
            peers.iter().try_for_each(Peer::receive_end)?;
            peers.iter().try_for_each(Peer::send_end)?;
        }
    }
    if !options.json {
        return Ok(say::line("success")?);
    }
    let report = Report {
        transport: "xsrq",
        side: player.side(),
        device: device.name(),
        port: options.ib_port,
        gid_index: gid.map(|(index, _): (u32, Gid)| index),
        mtu: options.mtu.bytes(),
        local: player.local(),
        remote: player.remote(),
        size: options.size,
        messages: player.received(),
        events: player.events(),
    };
    Ok(say::line(&serde_json::to_string_pretty(&report)?)?)
}

/// The file that names the host's domain; without it, the domain is this program's own.
fn domain_file() -> Option<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::CREATE.bits() as i32)
        .mode(0o440)
        .open(DOMAIN);
    file.inspect_err(|error| {
        say::remark(&format!("couldn't open {DOMAIN}: {error}; the XRC domain is not shared"));
    })
    .ok()
}

/// The server's part of the exchange, with all clients one after the other.
fn serve<'s>(options: &XsrqPingpong, player: &mut Player<'_>, stop: &'s Stop) -> Result<Vec<Peer<'s>>> {
    let server = Server::listen_for(options.port, options.clients.try_into()?)?;
    let mut peers = Vec::new();
    for place in 0..player.local().len() {
        let peer = server.accept(stop)?;
        let remote = peer.receive_xrc_record()?;
        show(options, "remote", &remote)?;
        show(options, "local", &player.local()[place])?;
        player.connect(remote)?;
        peer.send_xrc_record(&player.local()[place])?;
        peers.push(peer);
    }
    Ok(peers)
}

/// The client's part of the exchange.
fn call<'s>(options: &XsrqPingpong, player: &mut Player<'_>, host: &str, stop: &'s Stop) -> Result<Peer<'s>> {
    let peer = Peer::connect(host, options.port, stop)?;
    show(options, "local", &player.local()[0])?;
    peer.send_xrc_record(&player.local()[0])?;
    let remote = peer.receive_xrc_record()?;
    show(options, "remote", &remote)?;
    player.connect(remote)?;
    Ok(peer)
}

fn show(options: &XsrqPingpong, whose: &str, record: &XrcRecord) -> Result<()> {
    if options.json { Ok(()) } else { Ok(say::line(&record.line(whose))?) }
}
