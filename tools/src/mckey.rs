//! `bareverbs mckey`: datagrams to a multicast group, interoperable with `mckey` of librdmacm.

use std::net::Ipv6Addr;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::Gid;
use bareverbs::qp::{QpCreateFlags, SendFlags};
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{Addr, CmId, EventChannel, IbAddr, JoinMode};
use serde::Serialize;

use crate::cli::datagram::Mckey;
use crate::output;
use crate::session::address;
use crate::session::connected::RESOLVE_LIMIT;
use crate::session::datagram::{Messages, Node, step};
use crate::signal::{Interrupted, Stop, Wake};

/// Time for the subnet manager to configure switches, as in the C program.
const SETTLE: Duration = Duration::from_secs(3);

/// The result, for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    role: &'static str,
    group: String,
    mlid: u16,
    connections: u32,
    messages: u32,
    size: u32,
}

/// `bareverbs mckey`.
pub(crate) fn run(options: &Mckey) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let say = |text: &str| if options.json { Ok(()) } else { output::line(text) };
    let role = if options.sender { "client" } else { "server" };
    say(&format!("mckey: starting {role}"))?;
    say("mckey: joining")?;
    let mut nodes = Vec::new();
    let mut joined = (Gid([0; 16]), 0);
    for _ in 0..options.connections {
        let (id, node, group) = join(options, stop)?;
        let grh = group.address.grh.context("the group has no GID")?;
        joined = (grh.dgid, group.address.dlid);
        let gid = Ipv6Addr::from(grh.dgid.0);
        say(&format!("mckey: joined dgid: {gid} mlid 0x{:x} sl {}", joined.1, group.address.sl))?;
        nodes.push((id, node));
    }
    if stop.sleep(Instant::now() + SETTLE)? == Wake::Stopped {
        return Err(Interrupted.into());
    }
    let Messages { count, size } = options.messages();
    if count > 0 {
        if options.sender {
            say("initiating data transfers")?;
            nodes.iter_mut().try_for_each(|(_, node)| node.post_sends(SendFlags::SIGNALED))?;
            // Destroying the address handle and the QP discards messages that are not sent yet.
            nodes
                .iter_mut()
                .try_for_each(|(_, node)| node.wait_all(stop))
                .context("waiting for the completions of the sends")?;
        } else {
            say("receiving data transfers")?;
            nodes.iter_mut().try_for_each(|(_, node)| node.wait_all(stop))?;
        }
        say("data transfers complete")?;
    }
    if options.json {
        let (group, mlid) = (Ipv6Addr::from(joined.0.0).to_string(), joined.1);
        let report = Report { role, group, mlid, connections: options.connections, messages: count, size };
        return Ok(output::line(&serde_json::to_string(&report)?)?);
    }
    Ok(output::line("test complete\nreturn status 0")?)
}

/// An identifier that has joined the group, with its queue pair.
fn join(options: &Mckey, stop: &Stop) -> Result<(CmId, Node, bareverbs_rdmacm::event::UdPeer)> {
    let channel = EventChannel::new()?;
    let id = CmId::new(&channel, options.port_space())?;
    let source = match &options.bind {
        Some(host) => Some(address::first(host, 0)?),
        None => options.device.address().map(|address| (address, 0).into()),
    };
    if let Some(source) = source {
        id.bind_addr(source)?;
    }
    let group: Addr = match (&options.group, options.raw_group) {
        (Some(host), _) => {
            let group = address::first(host, 0)?;
            id.resolve_addr(source.map(Into::into), group, RESOLVE_LIMIT)?;
            step(&id, stop, "resolving the address", |kind| match kind {
                EventKind::AddrResolved => ControlFlow::Break(()),
                other => ControlFlow::Continue(other),
            })?;
            group.into()
        }
        (None, Some(gid)) => IbAddr::new(Gid(gid.octets()), options.port_space(), 0).into(),
        (None, None) => bail!("the group is missing (-m or -M)"),
    };
    let flags = match options.no_loopback {
        true => QpCreateFlags::BLOCK_MULTICAST_LOOPBACK,
        false => QpCreateFlags::empty(),
    };
    let mut node = Node::new(&id, options.messages(), flags)?;
    if !options.sender {
        node.post_recvs()?;
    }
    let mode = if options.send_only { JoinMode::SendOnly } else { JoinMode::Full };
    id.join_multicast(group, mode)?;
    let group = step(&id, stop, "joining the group", |kind| match kind {
        EventKind::MulticastJoin(group) => ControlFlow::Break(group),
        other => ControlFlow::Continue(other),
    })?;
    // The sender receives nothing; the C program attaches its queue pair all the same.
    if !options.sender {
        node.attach(&group)?;
    }
    node.set_peer(&group)?;
    Ok((id, node, group))
}
