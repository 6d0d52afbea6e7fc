//! Ping-pong, on the wire the same as ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong, ibv_srq_pingpong and
//! ibv_xsrq_pingpong.

mod arrivals;
mod check;
pub(crate) mod exchange;
mod gaps;
mod limits;
mod lost;
mod memory;
mod queues;
mod rally;
pub(crate) mod record;
mod report;
mod run;
mod status;
pub(crate) mod xsrq;

use anyhow::{Context as _, Result};
use bareverbs::{Context, Gid, LinkLayer, PortAttr};

use self::exchange::{Peer, Server};
use self::limits::Offer;
use self::queues::{Datagrams, Queues, Reliable, Unreliable};
use self::rally::Side;
use self::record::Record;
use self::report::{Addresses, Checked, Figures, Report, address_line};
use self::run::Player;
use crate::cli::pingpong::{Kind, Pingpong, Plan, Turns};
use crate::devinfo::gid_type;
use crate::stop::Stop;
use crate::{devices, say};

/// Places for records in the exchange between players of several queue pairs.
const PLACES_FOR_SEVERAL: usize = 256;

/// How the two sides find each other.
enum Meeting<'a> {
    Wait(Server),
    Call(&'a str),
}

/// `bareverbs pingpong`.
pub(crate) fn play(options: &Pingpong) -> Result<()> {
    match options {
        Pingpong::Turns(options) => take_turns(options),
        Pingpong::Xsrq(options) => xsrq::play(options),
    }
}

fn take_turns(options: &Turns) -> Result<()> {
    let plan = options.plan();
    match plan.kind {
        Kind::Rc | Kind::Srq => play_on::<Reliable>(plan),
        Kind::Uc => play_on::<Unreliable>(plan),
        Kind::Ud => play_on::<Datagrams>(plan),
    }
}

fn play_on<Q: Queues>(plan: Plan<'_>) -> Result<()> {
    if let Some(contradiction) = plan.contradiction() {
        anyhow::bail!("{contradiction}");
    }
    let game = plan.game;
    let stop = Stop::on_signals().context("couldn't prepare for signals")?;
    let device = devices::choose(game.ib_dev.as_deref())?;
    let context = device.open()?;
    let attr = context.query_device()?;
    let port = context.query_port(game.ib_port.into())?;
    Offer::new(device.name(), &attr, game.ib_port, &port).admit(&plan)?;
    let gid = choose_gid(game.gid_idx, game.ib_port, &context, &port)?;

    let mut player = Player::<Q>::new(plan, &context, &port, gid, stop)?;
    // Listening before the first line is out lets whoever reads it start the client.
    let meeting = match &game.host {
        None => Meeting::Wait(Server::listen(game.port)?),
        Some(host) => Meeting::Call(host),
    };
    if !game.json {
        show_addresses(plan.kind, "local", player.local())?;
    }
    let places = if plan.kind == Kind::Srq { PLACES_FOR_SEVERAL } else { 1 };
    let remote = match meeting {
        Meeting::Wait(server) => serve(&mut player, server, places, stop)?,
        Meeting::Call(host) => call(&player, host, game.port, places, stop)?,
    };
    if !game.json {
        show_addresses(plan.kind, "remote", &remote)?;
    }
    if player.side() == Side::Client {
        player.connect(&remote)?;
    }
    let outcome = player.play()?;

    let report = Report {
        transport: plan.kind,
        side: player.side(),
        device: device.name().into(),
        port: game.ib_port,
        gid_index: gid.map(|(index, _)| index),
        mtu: plan.mtu.unwrap_or(port.active_mtu).bytes(),
        local: Addresses::new(plan.kind, player.local()),
        remote: Addresses::new(plan.kind, &remote),
        size: plan.size,
        iters: game.iters,
        inline: player.inline(),
        events: outcome.events,
        figures: Figures::new(plan.size, game.iters, outcome.time),
        timestamps: outcome.gaps,
        check: player
            .checker()
            .map(|checker| Checked { messages: checker.checked(), data: checker.source() }),
    };
    if game.json {
        say::line(&serde_json::to_string_pretty(&report)?)?;
    } else {
        say::line(&report.lines().join("\n"))?;
        if let Some(gaps) = &report.timestamps {
            say::line(&gaps.lines().join("\n"))?;
        }
        if let Some(line) = report.check_line() {
            say::remark(&line);
        }
    }
    // The program ends here, and with it all that it holds of the device, in one step in place of a dozen calls. Not so
    // with memory on demand: a process loses its memory before its queue pairs, and what a peer still sends would be
    // answered with a fault.
    if !plan.on_demand() {
        std::mem::forget((player, context));
    }
    Ok(())
}

fn show_addresses(kind: Kind, whose: &str, records: &[Record]) -> Result<()> {
    let lines: Vec<_> = records.iter().map(|record| address_line(kind, whose, record)).collect();
    Ok(say::line(&lines.join("\n"))?)
}

/// The local GID and its index: the given one, or on RoCE, which needs one, the device's best.
fn choose_gid(
    index: Option<i32>,
    ib_port: u8,
    context: &Context,
    port: &PortAttr,
) -> Result<Option<(u32, Gid)>> {
    let number = u32::from(ib_port);
    match index.map(u32::try_from) {
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

/// The server's part of the exchange: its queue pairs must be able to receive before the client hears of them.
fn serve<Q: Queues>(
    player: &mut Player<'_, Q>,
    server: Server,
    places: usize,
    stop: &Stop,
) -> Result<Vec<Record>> {
    let peer = server.accept(stop)?.on_queue_pairs(player.local().len() as u32);
    // Nobody else shall come.
    drop(server);
    let remote = peer.receive_records(player.local().len(), places)?;
    player.connect(&remote)?;
    peer.send_records(player.local(), places)?;
    peer.receive_done()?;
    Ok(remote)
}

/// The client's part of the exchange.
fn call<Q: Queues>(
    player: &Player<'_, Q>,
    host: &str,
    port: u16,
    places: usize,
    stop: &Stop,
) -> Result<Vec<Record>> {
    let peer = Peer::connect(host, port, stop)?.on_queue_pairs(player.local().len() as u32);
    peer.send_records(player.local(), places)?;
    let remote = peer.receive_records(player.local().len(), places)?;
    peer.send_done()?;
    Ok(remote)
}
