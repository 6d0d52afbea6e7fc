//! `bareverbs udaddy`: datagrams to a service, wire-compatible with `udaddy` of librdmacm.
//!
//! The client asks the connection manager for the address of the server's QP. It sends messages,
//! whose immediate data is its QPN, and the server sends as many back.

use std::ops::ControlFlow;

use anyhow::{Context as _, Result};
use bareverbs::qp::{QpCreateFlags, SendFlags};
use bareverbs_rdmacm::event::{EstablishedParam, EventKind};
use bareverbs_rdmacm::{CmId, ConnParam, EventChannel};
use serde::Serialize;

use crate::cli::datagram::Udaddy;
use crate::output;
use crate::session::address;
use crate::session::connected::{RESOLVE_LIMIT, next_event};
use crate::session::datagram::{Messages, Node, step};
use crate::signal::Stop;

/// The port of the C program, which has no option for it.
const PORT: u16 = 7174;

/// The result, for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    role: &'static str,
    connections: u32,
    messages: u32,
    size: u32,
}

/// `bareverbs udaddy`.
pub(crate) fn run(options: &Udaddy) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let say = |text: &str| if options.json { Ok(()) } else { output::line(text) };
    let role = if options.server.is_some() { "client" } else { "server" };
    say(&format!("udaddy: starting {role}"))?;
    let messages = options.messages();
    let Messages { count, size } = messages;
    match &options.server {
        Some(host) => {
            say("udaddy: connecting")?;
            let mut nodes = connect(options, host, messages, stop)?;
            if count > 0 {
                say("initiating data transfers")?;
                for (_, node) in &mut nodes {
                    node.post_sends(SendFlags::empty())?;
                }
                say("receiving data transfers")?;
                nodes.iter_mut().try_for_each(|(_, node)| node.wait_all(stop))?;
                say("data transfers complete")?;
            }
        }
        None => {
            let mut nodes = accept(options, messages, stop)?;
            if count > 0 {
                say("receiving data transfers")?;
                nodes.iter_mut().try_for_each(|(_, node)| node.wait_all(stop))?;
                say("sending replies")?;
                for (_, node) in &mut nodes {
                    node.post_sends(SendFlags::SIGNALED)?;
                }
                nodes.iter_mut().try_for_each(|(_, node)| node.wait_all(stop))?;
                say("data transfers complete")?;
            }
        }
    }
    if options.json {
        let report = Report { role, connections: options.connections, messages: count, size };
        return Ok(output::line(&serde_json::to_string(&report)?)?);
    }
    Ok(output::line("test complete\nreturn status 0")?)
}

/// Resolves the server's queue pairs.
fn connect(options: &Udaddy, host: &str, messages: Messages, stop: &Stop) -> Result<Vec<(CmId, Node)>> {
    let of = |host: &str, port| address::of_format(options.format, host, port, options.port_space());
    let peer = of(host, PORT)?;
    let source = options.bind.as_deref().map(|host| of(host, 0)).transpose()?;
    let connect_one = || {
        let channel = EventChannel::new()?;
        let id = CmId::new(&channel, options.port_space())?;
        id.resolve_addr(source, peer, RESOLVE_LIMIT)?;
        step(&id, stop, "resolving the address", |kind| match kind {
            EventKind::AddrResolved => ControlFlow::Break(()),
            other => ControlFlow::Continue(other),
        })?;
        if let Some(tos) = options.tos {
            id.set_tos(tos)?;
        }
        id.resolve_route(RESOLVE_LIMIT)?;
        step(&id, stop, "resolving the route", |kind| match kind {
            EventKind::RouteResolved => ControlFlow::Break(()),
            other => ControlFlow::Continue(other),
        })?;
        let mut node = Node::new(&id, messages, QpCreateFlags::empty())?;
        node.post_recvs()?;
        id.connect(&ConnParam::new(0))?;
        let service = step(&id, stop, "asking for the server's queue pair", |kind| match kind {
            EventKind::Established(EstablishedParam::Datagram(peer)) => ControlFlow::Break(peer),
            other => ControlFlow::Continue(other),
        })?;
        node.set_peer(&service)?;
        Ok((id, node))
    };
    (0..options.connections).map(|_| connect_one()).collect()
}

/// Accepts as many clients as the options say.
fn accept(options: &Udaddy, messages: Messages, stop: &Stop) -> Result<Vec<(CmId, Node)>> {
    let channel = EventChannel::new()?;
    let listener = CmId::new(&channel, options.port_space())?;
    let (format, space) = (options.format, options.port_space());
    listener.bind_addr(match &options.bind {
        Some(host) => address::of_format(format, host, PORT, space)?,
        None => address::unspecified(format, PORT, space),
    })?;
    listener.listen(0)?;
    let mut nodes = Vec::new();
    while nodes.len() < options.connections as usize {
        let event = next_event(&channel, stop)?;
        let EventKind::ConnectRequest(request) = event.kind else { continue };
        let mut node = Node::new(request.id(), messages, QpCreateFlags::empty())?;
        node.post_recvs()?;
        let id = request.accept(&ConnParam::new(node.qp_num()))?;
        nodes.push((id, node));
    }
    Ok(nodes)
}
