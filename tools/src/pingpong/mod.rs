//! Ping-pong over a reliable connection, on the wire the same as ibv_rc_pingpong.

mod check;
mod exchange;
mod limits;
mod rally;
mod record;
mod report;
mod run;
mod status;

use anyhow::{Context as _, Result};
use bareverbs::{Context, Gid, LinkLayer, PortAttr};

use self::exchange::{Peer, Server};
use self::limits::Offer;
use self::rally::Side;
use self::record::Record;
use self::report::{Checked, Figures, Report, address_line};
use self::run::Player;
use crate::cli::RcPingpong;
use crate::devinfo::gid_type;
use crate::stop::Stop;
use crate::{devices, say};

/// How the two sides find each other.
enum Meeting<'a> {
    Wait(Server),
    Call(&'a str),
}

/// `bareverbs pingpong rc`.
pub(crate) fn rc(options: &RcPingpong) -> Result<()> {
    if let Some(contradiction) = options.contradiction() {
        anyhow::bail!("{contradiction}");
    }
    let stop = Stop::on_signals().context("couldn't prepare for signals")?;
    let device = devices::choose(options.ib_dev.as_deref())?;
    let context = device.open()?;
    let attr = context.query_device()?;
    let port = context.query_port(options.ib_port.into())?;
    Offer::new(device.name(), &attr, options.ib_port, &port).admit(options)?;
    let gid = choose_gid(options, &context, &port)?;

    let mut player = Player::new(options, &context, &port, gid, stop)?;
    // Listening before the first line is out lets whoever reads it start the client.
    let meeting = match &options.host {
        None => Meeting::Wait(Server::listen(options.port)?),
        Some(host) => Meeting::Call(host),
    };
    if !options.json {
        say::line(&address_line("local", player.local()))?;
    }
    let remote = match meeting {
        Meeting::Wait(server) => serve(&mut player, server, stop)?,
        Meeting::Call(host) => call(&player, host, options.port, stop)?,
    };
    if !options.json {
        say::line(&address_line("remote", &remote))?;
    }
    if player.side() == Side::Client {
        player.connect(&remote)?;
    }
    let outcome = player.play()?;

    let report = Report {
        side: player.side(),
        device: device.name().into(),
        port: options.ib_port,
        gid_index: gid.map(|(index, _)| index),
        mtu: options.mtu.bytes(),
        local: *player.local(),
        remote,
        size: options.size,
        iters: options.iters,
        inline: player.inline(),
        events: outcome.events,
        figures: Figures::new(options.size, options.iters, outcome.time),
        check: player
            .checker()
            .map(|checker| Checked { messages: checker.checked(), data: checker.source() }),
    };
    if options.json {
        say::line(&serde_json::to_string_pretty(&report)?)?;
    } else {
        for line in report.lines() {
            say::line(&line)?;
        }
        if let Some(line) = report.check_line() {
            say::remark(&line);
        }
    }
    Ok(())
}

/// The local GID and its index: the given one, or on RoCE, which needs one, the device's best.
fn choose_gid(options: &RcPingpong, context: &Context, port: &PortAttr) -> Result<Option<(u32, Gid)>> {
    let number = u32::from(options.ib_port);
    match options.gid_idx.map(u32::try_from) {
        Some(Ok(index)) => {
            let entry = context.gid(number, index)?;
            Ok(Some((entry.index, entry.gid)))
        }
        _ if port.link_layer == LinkLayer::ETHERNET => {
            let entry = context.default_gid(number)?;
            let kind = gid_type(entry.gid_type);
            say::remark(&format!("using GID index {} ({}, {kind})", entry.index, entry.gid));
            Ok(Some((entry.index, entry.gid)))
        }
        _ => {
            anyhow::ensure!(port.lid != 0, "port {number} has no LID yet: is a subnet manager running?");
            Ok(None)
        }
    }
}

/// The server's part of the exchange: its queue pair must be able to receive before the client hears of it.
fn serve(player: &mut Player<'_>, server: Server, stop: &Stop) -> Result<Record> {
    let peer = server.accept(stop)?;
    let remote = peer.receive_record()?;
    player.connect(&remote)?;
    peer.send_record(player.local())?;
    peer.receive_done()?;
    Ok(remote)
}

/// The client's part of the exchange.
fn call(player: &Player<'_>, host: &str, port: u16, stop: &Stop) -> Result<Record> {
    let peer = Peer::connect(host, port, stop)?;
    peer.send_record(player.local())?;
    let remote = peer.receive_record()?;
    peer.send_done()?;
    Ok(remote)
}
