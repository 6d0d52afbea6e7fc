//! `bareverbs rdma-server` and `bareverbs rdma-client`: one message in each direction, interoperable
//! with `rdma_server` and `rdma_client` of librdmacm.

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::{Buffer, Endpoint, Op, Pd, PortNum, RegionMut};
use bareverbs_rdmacm::IdOptions;
use bareverbs_rdmacm::connection::{Connected, Connector, Listener, Route};
use serde::Serialize;

use crate::cli::connected::{RdmaClient, RdmaServer};
use crate::output;
use crate::session::address;
use crate::session::connected::{
    LIMIT, RESOLVE_LIMIT, next_completion, next_request, within, without_access,
};
use crate::signal::Stop;

/// Bytes of a message.
pub(crate) const MESSAGE: usize = 16;

/// The result, for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    role: &'static str,
    peer: String,
    size: usize,
}

/// An endpoint with a receive for the message of the peer.
pub(crate) fn endpoint(pd: &Pd, port: PortNum) -> Result<Endpoint<RegionMut>> {
    let mut endpoint = Endpoint::options().port(port).sends(1).recvs(1).inline(MESSAGE as u32).build(pd)?;
    endpoint.post(Op::recv(RegionMut::register(pd, Buffer::zeroed(MESSAGE)?)?))?;
    Ok(endpoint)
}

/// `bareverbs rdma-server`.
pub(crate) fn serve(options: &RdmaServer) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let RdmaServer { address, port, json, .. } = options;
    say(*json, "rdma_server: start")?;
    let listener = Listener::bind(address::to_bind(address.as_deref(), *port)?)?;
    let incoming = next_request(&listener, stop)?;
    let device = incoming.device()?;
    let endpoint = endpoint(&listener.domains().pd(device)?, device.port)?;
    let options = without_access();
    let mut connection = within(LIMIT, "accept", incoming.accept(endpoint, &options))?;
    receive(&mut connection, stop)?;
    send(&mut connection, stop)?;
    end(connection, "rdma_server", "server", *json)
}

/// `bareverbs rdma-client`.
pub(crate) fn connect(options: &RdmaClient) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let RdmaClient { server, port, json, .. } = options;
    say(*json, "rdma_client: start")?;
    let route = resolve(&IdOptions::default(), server, *port)?;
    let device = route.device()?;
    let pd = device.find()?.open()?.alloc_pd()?;
    let options = without_access();
    let mut connection = within(LIMIT, "connect", route.connect(endpoint(&pd, device.port)?, &options))?;
    send(&mut connection, stop)?;
    receive(&mut connection, stop)?;
    end(connection, "rdma_client", "client", *json)
}

/// The route to a server.
pub(crate) fn resolve(options: &IdOptions, server: &str, port: u16) -> Result<Route> {
    let addr = address::first(server, port)?;
    let connector = Connector::new().id_options(*options);
    let route = within(RESOLVE_LIMIT, "resolve_addr", connector.resolve(addr));
    match addr.ip().is_loopback() {
        true => route
            .context("a loopback address has no route on RoCE: name an address of the server's device (-s)"),
        false => route,
    }
}

/// Prints a line, unless the result is JSON.
pub(crate) fn say(json: bool, text: &str) -> Result<()> {
    if !json {
        output::line(text)?;
    }
    Ok(())
}

/// Sends the message. Its completion is waited for with the receive, or by the end.
pub(crate) fn send(connection: &mut Connected<Endpoint<RegionMut>>, stop: &Stop) -> Result<()> {
    connection.queue.post(Op::send_inline(&[0; MESSAGE]))?;
    while connection.queue.pending_sends() > 0 {
        if next_completion(connection, stop)?.is_none() {
            // The peer has received the message then, or the send fails.
            break;
        }
    }
    Ok(())
}

/// Receives the message.
pub(crate) fn receive(connection: &mut Connected<Endpoint<RegionMut>>, stop: &Stop) -> Result<()> {
    while connection.queue.pending_recvs() > 0 {
        let Some(done) = next_completion(connection, stop)? else {
            bail!("the peer has ended the connection without a message");
        };
        if done.is_recv() {
            ensure!(
                done.len as usize == MESSAGE,
                "the peer sent {} bytes, a message has {MESSAGE}",
                done.len
            );
        }
    }
    Ok(())
}

/// Ends the connection and prints the result of a program in a role.
pub(crate) fn end<Q>(mut connection: Connected<Q>, name: &str, role: &'static str, json: bool) -> Result<()> {
    let peer = connection.link.peer_addr()?;
    within(LIMIT, "disconnect", connection.link.disconnect())?;
    if json {
        let peer = peer.ip().map_or_else(|| format!("{peer:?}"), |addr| addr.to_string());
        return Ok(output::line(&serde_json::to_string(&Report { role, peer, size: MESSAGE })?)?);
    }
    Ok(output::line(&format!("{name}: end 0"))?)
}
