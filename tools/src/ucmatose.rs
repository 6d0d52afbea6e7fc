//! `bareverbs ucmatose`: several connections on one event channel, interoperable with `ucmatose` of
//! librdmacm.
//!
//! The server sends messages on each connection, and the client as many back. Then the server ends
//! the connections.

use std::os::fd::AsFd;

use anyhow::{Context as _, Result, bail};
use bareverbs::values::{MinRnrTimer, RetryCount};
use bareverbs::{Buffer, Endpoint, Op, RegionMut};
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::event::{Event, EventKind};
use bareverbs_rdmacm::{Addr, CmId, ConnectOptions, ConnectRequest, EventChannel, Key};
use serde::Serialize;

use crate::cli::connected::Ucmatose;
use crate::output;
use crate::session::address;
use crate::session::connected::{RESOLVE_LIMIT, failure, next_event, without_access};
use crate::signal::{Interrupted, Stop, Wake};

/// The result, for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    role: &'static str,
    connections: u32,
    messages: u32,
    size: u32,
}

/// `bareverbs ucmatose`.
pub(crate) fn run(options: &Ucmatose) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let mut tool = Tool {
        options,
        stop,
        channel: EventChannel::new()?,
        domains: Domains::default(),
        ids: Vec::new(),
        nodes: Vec::new(),
    };
    let role = match &options.server {
        Some(host) => {
            tool.run_client(host)?;
            "client"
        }
        None => {
            tool.run_server()?;
            "server"
        }
    };
    if options.json {
        let (connections, messages, size) = (options.connections, options.count(), options.size);
        return Ok(output::line(&serde_json::to_string(&Report { role, connections, messages, size })?)?);
    }
    output::line("test complete")?;
    drop(tool);
    Ok(output::line("return status 0")?)
}

/// A connection and its messages.
struct Node {
    /// Dropped before the endpoint: the kernel sends the DREQ while the QP still exists.
    id: CmId,
    endpoint: Endpoint<RegionMut>,
    /// The buffers of messages that are not sent yet.
    unsent: Vec<RegionMut>,
    /// Completed sends and receives.
    sent: u32,
    received: u32,
    is_connected: bool,
}

/// The parameters of the C program.
fn connect_options() -> ConnectOptions<'static> {
    // The kernel's RNR timer is 655 ms.
    let (retry_count, min_rnr_timer) = (RetryCount::new(5).unwrap_or_default(), MinRnrTimer::MIN);
    ConnectOptions { retry_count, min_rnr_timer, ..without_access() }
}

impl Node {
    fn new(id: CmId, endpoint: Endpoint<RegionMut>, unsent: Vec<RegionMut>) -> Self {
        Self { id, endpoint, unsent, sent: 0, received: 0, is_connected: false }
    }

    /// Waits until `is_done`. The peer does not end the connection before.
    fn wait(&mut self, channel: &EventChannel, stop: &Stop, is_done: impl Fn(&Self) -> bool) -> Result<()> {
        while !is_done(self) {
            stop.check()?;
            if self.poll()? {
                continue;
            }
            self.endpoint.arm()?;
            // Completions before the arming raise no event.
            if self.poll()? {
                continue;
            }
            if let Some(event) = channel.try_wait()? {
                if let Some(reason) = failure(&event.kind, Some(&self.id)) {
                    bail!(reason);
                }
                continue;
            }
            if stop.wait_either(self.endpoint.as_fd(), channel.as_fd(), None)? == Wake::Stopped {
                return Err(Interrupted.into());
            }
        }
        Ok(())
    }

    /// Takes a completion. Returns whether there was one.
    fn poll(&mut self) -> Result<bool> {
        let Some(done) = self.endpoint.poll() else { return Ok(false) };
        match done?.is_recv() {
            true => self.received += 1,
            false => self.sent += 1,
        }
        Ok(true)
    }
}

struct Tool<'a> {
    options: &'a Ucmatose,
    stop: &'a Stop,
    channel: EventChannel,
    domains: Domains,
    /// Identifiers of the client without a QP: their route is not resolved.
    ids: Vec<CmId>,
    nodes: Vec<Node>,
}

impl Tool<'_> {
    fn say(&self, text: &str) -> Result<()> {
        if !self.options.json {
            output::line(text)?;
        }
        Ok(())
    }

    fn address(&self, host: &str, port: u16) -> Result<Addr> {
        address::of_format(self.options.format, host, port, self.options.space)
    }

    fn run_server(&mut self) -> Result<()> {
        self.say("cmatose: starting server")?;
        let options = self.options;
        let listener = CmId::new(&self.channel, options.space)?;
        let addr = match &options.bind {
            Some(host) => self.address(host, options.port)?,
            None => address::unspecified(options.format, options.port, options.space),
        };
        listener.bind_addr(addr)?;
        listener.listen(0)?;
        self.connect_all()?;
        let count = options.count();
        if count > 0 {
            self.say("initiating data transfers")?;
            self.post_sends()?;
            self.say("completing sends")?;
            self.wait_all(|node| node.sent == count)?;
            self.say("receiving data transfers")?;
            self.wait_all(|node| node.received == count)?;
            self.say("data transfers complete")?;
        }
        // A listener is not migrated.
        drop(listener);
        self.migrate()?;
        self.say("cmatose: disconnecting")?;
        self.nodes.iter().try_for_each(|node| node.id.disconnect())?;
        self.disconnect_all()?;
        self.say("disconnected")
    }

    fn run_client(&mut self, host: &str) -> Result<()> {
        self.say("cmatose: starting client")?;
        let options = self.options;
        let peer = self.address(host, options.port)?;
        let source = options.bind.as_deref().map(|host| self.address(host, 0)).transpose()?;
        self.say("cmatose: connecting")?;
        for _ in 0..options.connections {
            let id = CmId::new(&self.channel, options.space)?;
            id.resolve_addr(source, peer, RESOLVE_LIMIT)?;
            self.ids.push(id);
        }
        self.connect_all()?;
        let count = options.count();
        if count > 0 {
            self.say("receiving data transfers")?;
            self.wait_all(|node| node.received == count)?;
            self.say("sending replies")?;
            self.post_sends()?;
            self.say("data transfers complete")?;
        }
        self.migrate()?;
        self.disconnect_all()
    }

    /// Handles events until all connections are established.
    fn connect_all(&mut self) -> Result<()> {
        let mut left = self.options.connections;
        while left > 0 {
            let event = next_event(&self.channel, self.stop)?;
            let mut ids = self.ids.iter().chain(self.nodes.iter().map(|node| &node.id));
            if let Some(reason) = failure(&event.kind, ids.find(|id| id.key() == event.key)) {
                bail!(reason);
            }
            if self.advance(event)? {
                left -= 1;
            }
        }
        Ok(())
    }

    /// Takes a connection to its next step. Returns whether it is established.
    fn advance(&mut self, event: Event) -> Result<bool> {
        let options = self.options;
        match event.kind {
            EventKind::AddrResolved => {
                if let Some(id) = self.ids.iter().find(|id| id.key() == event.key) {
                    options.set_on(id)?;
                    id.resolve_route(RESOLVE_LIMIT)?;
                }
            }
            EventKind::RouteResolved => {
                if let Some(at) = self.ids.iter().position(|id| id.key() == event.key) {
                    let id = self.ids.swap_remove(at);
                    let (endpoint, unsent) = self.prepare(&id)?;
                    id.connect_qp(&endpoint, &connect_options())?;
                    self.nodes.push(Node::new(id, endpoint, unsent));
                }
            }
            EventKind::ConnectRequest(request) => self.accept(request)?,
            kind => {
                let Some(node) = self.node(event.key) else { return Ok(false) };
                let Node { id, endpoint, is_connected, .. } = node;
                *is_connected = id.establish_qp(endpoint, &connect_options(), kind)?;
                return Ok(*is_connected);
            }
        }
        Ok(false)
    }

    /// Accepts a request, unless there are enough connections.
    fn accept(&mut self, request: ConnectRequest) -> Result<()> {
        if self.nodes.len() == self.options.connections as usize {
            return Ok(request.reject(&[])?);
        }
        if let Some(timeout) = self.options.ack_timeout {
            request.id().set_ack_timeout(timeout)?;
        }
        let (mut endpoint, unsent) = self.prepare(request.id())?;
        let id = request.accept_qp(&mut endpoint, &connect_options())?;
        self.nodes.push(Node::new(id, endpoint, unsent));
        Ok(())
    }

    fn node(&mut self, key: Key) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.id.key() == key)
    }

    /// An endpoint on the device of an identifier, with the receives of all messages, and the buffers of
    /// those to be sent.
    fn prepare(&self, id: &CmId) -> Result<(Endpoint<RegionMut>, Vec<RegionMut>)> {
        let device = id.addresses()?.device.context("the identifier has no device")?;
        let pd = self.domains.pd(device)?;
        let (count, size) = (self.options.count(), self.options.size as usize);
        let options = Endpoint::options().port(device.port).sends(count.max(1)).recvs(count.max(1));
        let mut endpoint = options.build(&pd)?;
        let mut unsent = Vec::new();
        if count > 0 {
            let messages = || -> Result<_> {
                Ok(RegionMut::register(&pd, Buffer::zeroed(count as usize * size)?)?.chunks(size))
            };
            for buffer in messages()? {
                endpoint.post(Op::recv(buffer))?;
            }
            unsent.extend(messages()?);
        }
        Ok((endpoint, unsent))
    }

    fn post_sends(&mut self) -> Result<()> {
        for node in &mut self.nodes {
            for buffer in node.unsent.drain(..) {
                node.endpoint.post(Op::send(buffer, ..))?;
            }
        }
        Ok(())
    }

    fn wait_all(&mut self, is_done: impl Fn(&Node) -> bool) -> Result<()> {
        let Self { channel, stop, nodes, .. } = self;
        nodes.iter_mut().try_for_each(|node| node.wait(channel, stop, &is_done))
    }

    /// Moves the connections to another channel, if the options say so.
    fn migrate(&mut self) -> Result<()> {
        if self.options.migrate {
            self.say("migrating to new event channel")?;
            let channel = EventChannel::new()?;
            self.nodes.iter_mut().try_for_each(|node| node.id.migrate(&channel))?;
            self.channel = channel;
        }
        Ok(())
    }

    /// Waits for the end of all connections, and answers it.
    fn disconnect_all(&mut self) -> Result<()> {
        let mut left = self.nodes.iter().filter(|node| node.is_connected).count();
        while left > 0 {
            let event = next_event(&self.channel, self.stop)?;
            match event.kind {
                EventKind::Disconnected(_) => {
                    let Some(node) = self.node(event.key) else { continue };
                    if std::mem::take(&mut node.is_connected) {
                        node.id.disconnect()?;
                        left -= 1;
                    }
                }
                EventKind::DeviceRemoval => bail!("the device was removed"),
                _ => {}
            }
        }
        Ok(())
    }
}
