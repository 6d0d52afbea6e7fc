//! `bareverbs rping`: RDMA reads and writes between two hosts, wire-compatible with `rping` of
//! librdmacm.
//!
//! One ping: the client sends the address of its text, the server reads the text and answers. The
//! client sends the address of its second buffer, the server writes the text there and answers.

use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::{Access, Buffer, Done, Endpoint, Op, Pd, RegionMut, Remote, RemoteRegion};
use bareverbs_rdmacm::connection::{ConnectOptions, Connected, Connector, Domains, Incoming, Listener};
use bareverbs_rdmacm::{Addr, IdOptions};
use serde::Serialize;

use crate::cli::rping::Rping;
use crate::output;
use crate::session::connected::{LIMIT, RESOLVE_LIMIT, next_request, within, without_access};
use crate::session::{address, connected};
use crate::signal::Stop;

/// Bytes of a message: address, R_Key and length of a buffer, big endian.
const MESSAGE: usize = 16;

/// Range of the letters that fill a ping.
const LETTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';

/// The result of a connection, for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    role: &'static str,
    peer: String,
    size: u32,
    pings: u64,
    seconds: f64,
}

/// `bareverbs rping`.
pub(crate) fn run(options: &Rping) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    if options.client { run_client(options, stop) } else { run_server(options, stop) }
}

fn debug(options: &Rping, text: impl FnOnce() -> String) {
    if options.debug {
        output::diagnostic(&text());
    }
}

/// A connection to a peer, and the buffer of its messages.
struct Peer<'a> {
    connection: Connected<Endpoint<RegionMut>>,
    options: &'a Rping,
    stop: &'a Stop,
}

/// An endpoint with a receive for the first message.
fn endpoint(pd: &Pd, port: bareverbs::PortNum) -> Result<Endpoint<RegionMut>> {
    let mut endpoint = Endpoint::options().port(port).sends(16).recvs(2).inline(MESSAGE as u32).build(pd)?;
    endpoint.post(Op::recv(RegionMut::register(pd, Buffer::zeroed(MESSAGE)?)?))?;
    Ok(endpoint)
}

impl Peer<'_> {
    /// The next completion. `None`: the peer has ended the connection.
    fn next(&mut self) -> Result<Option<Done<RegionMut>>> {
        connected::next_completion(&mut self.connection, self.stop)
    }

    /// Waits for an operation of this side, whose completion comes before the peer's next message.
    fn finish(&mut self) -> Result<RegionMut> {
        loop {
            let Some(done) = self.next()? else { bail!("the peer has ended the connection") };
            if done.is_recv() {
                bail!("the peer sent a message before its turn");
            }
            // Answers have no buffer.
            if let Some(part) = done.buffer {
                return Ok(part);
            }
        }
    }

    /// Waits for a message. `None`: the peer has ended the connection.
    fn receive(&mut self) -> Result<Option<[u8; MESSAGE]>> {
        loop {
            let Some(done) = self.next()? else { return Ok(None) };
            if !done.is_recv() {
                continue;
            }
            let message = done.message().and_then(|bytes| <[u8; MESSAGE]>::try_from(bytes).ok());
            let message = message
                .with_context(|| format!("the peer sent {} bytes, a message has {MESSAGE}", done.len))?;
            self.connection.queue.post(Op::recv(done.into_buffer()))?;
            return Ok(Some(message));
        }
    }

    fn send(&mut self, message: &[u8; MESSAGE]) -> Result<()> {
        Ok(self.connection.queue.post(Op::send_inline(message))?)
    }

    fn report(&self, role: &'static str, pings: u64, start: Instant) -> Result<()> {
        debug(self.options, || format!("{role}: {pings} pings"));
        if self.options.json {
            let peer = self.connection.link.peer_addr()?;
            let peer = peer.ip().map_or_else(|| format!("{peer:?}"), |addr| addr.to_string());
            let (size, seconds) = (self.options.size, start.elapsed().as_secs_f64());
            output::line(&serde_json::to_string(&Report { role, peer, size, pings, seconds })?)?;
        }
        Ok(())
    }
}

/// The message that describes a buffer.
fn message(remote: Remote, size: u32) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..8].copy_from_slice(&remote.addr.to_be_bytes());
    message[8..12].copy_from_slice(&remote.rkey.to_be_bytes());
    message[12..].copy_from_slice(&size.to_be_bytes());
    message
}

/// The buffer that a message describes, and its length.
fn described(message: [u8; MESSAGE]) -> (Remote, usize) {
    let [addr @ .., _, _, _, _, _, _, _, _] = message;
    let [_, _, _, _, _, _, _, _, rkey @ .., _, _, _, _] = message;
    let [_, _, _, _, _, _, _, _, _, _, _, _, len @ ..] = message;
    let remote = Remote { addr: u64::from_be_bytes(addr), rkey: u32::from_be_bytes(rkey) };
    (remote, u32::from_be_bytes(len) as usize)
}

/// The text up to its NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The text of a ping, which ends with a NUL.
fn ping_text(number: u64, size: usize) -> Vec<u8> {
    let letters = LETTERS.count() as u64;
    let mut text = format!("rdma-ping-{number}: ").into_bytes();
    let mut letter = number % letters;
    while text.len() < size {
        text.push(LETTERS.start() + letter as u8);
        letter = (letter + 1) % letters;
    }
    text.truncate(size - 1);
    text.push(0);
    text
}

fn run_server(options: &Rping, stop: &'static Stop) -> Result<()> {
    let addr = address::to_bind(options.addr.as_deref(), options.port)?;
    let listener = Listener::bind(addr)?;
    debug(options, || format!("server: listening at {addr}"));
    loop {
        let incoming = next_request(&listener, stop)?;
        let domains = listener.domains().clone();
        if !options.persistent {
            return serve(incoming, &domains, options, stop);
        }
        let options = options.clone();
        thread::spawn(move || {
            if let Err(error) = serve(incoming, &domains, &options, stop) {
                output::diagnostic(&format!("bareverbs: {error:#}"));
            }
        });
    }
}

/// Serves a client until it ends the connection.
fn serve(incoming: Incoming, domains: &Domains, options: &Rping, stop: &Stop) -> Result<()> {
    let device = incoming.device()?;
    let pd = domains.pd(device)?;
    let endpoint = endpoint(&pd, device.port)?;
    let mut buffer = RegionMut::register(&pd, Buffer::zeroed(options.size as usize)?)?;
    let accept = without_access();
    let mut connection = within(LIMIT, "accept", incoming.accept(endpoint, &accept))?;
    // The thread of the listener reads the shared channel.
    connection.link.own_channel()?;
    let mut peer = Peer { connection, options, stop };
    let (start, mut pings) = (Instant::now(), 0);
    while let Some(source) = peer.receive()? {
        let (source, len) = described(source);
        let room = buffer.len();
        ensure!(len <= room, "the client's buffer has {len} bytes, the server's has {room}: use -S {len}");
        debug(options, || format!("server: reading {len} bytes at {:#x}", source.addr));
        peer.connection.queue.post(Op::read(buffer, ..len, source))?;
        buffer = peer.finish()?;
        if options.verbose && !options.json {
            output::line(&format!("server ping data: {}", text(&buffer.bytes()[..len])))?;
        }
        peer.send(&[0; MESSAGE])?;
        let Some(sink) = peer.receive()? else { bail!("the client has ended the connection during a ping") };
        let (sink, room) = described(sink);
        let len = buffer.bytes()[..len].iter().position(|byte| *byte == 0).map_or(len, |end| end + 1);
        ensure!(len <= room, "the ping has {len} bytes, the client's second buffer has {room}");
        debug(options, || format!("server: writing {len} bytes at {:#x}", sink.addr));
        peer.connection.queue.post(Op::write(buffer, ..len, sink))?;
        buffer = peer.finish()?;
        peer.send(&[0; MESSAGE])?;
        pings += 1;
    }
    peer.report("server", pings, start)
}

/// Memory that the peer accesses.
fn expose(pd: &Pd, size: u32, access: Access) -> Result<RemoteRegion> {
    let part = RegionMut::register(pd, Buffer::zeroed(size as usize)?)?;
    Ok(part.expose(access).map_err(|refused| refused.error)?)
}

fn run_client(options: &Rping, stop: &'static Stop) -> Result<()> {
    let Some(host) = &options.addr else { bail!("a client needs the address of the server (-a)") };
    let addr = address::first(host, options.port)?;
    let source = options.source.as_deref().map(|host| address::first(host, 0)).transpose()?;
    let id_options = IdOptions { source: source.map(Addr::from), ..IdOptions::default() };
    let connector = Connector::new().id_options(id_options);
    let route = within(RESOLVE_LIMIT, "resolve_addr", connector.resolve(addr))?;
    let device = route.device()?;
    let pd = device.find()?.open()?.alloc_pd()?;
    let text_memory = expose(&pd, options.size, Access::REMOTE_READ)?;
    let sink = expose(&pd, options.size, Access::REMOTE_WRITE)?;
    let connect = ConnectOptions::default();
    let connection = within(LIMIT, "connect", route.connect(endpoint(&pd, device.port)?, &connect))?;
    debug(options, || format!("client: connected to {addr}"));
    let mut peer = Peer { connection, options, stop };
    let (start, mut pings) = (Instant::now(), 0);
    while options.count == 0 || pings < u64::from(options.count) {
        ping(&mut peer, pings, &text_memory, &sink)?;
        pings += 1;
    }
    within(LIMIT, "disconnect", peer.connection.link.disconnect())?;
    peer.report("client", pings, start)
}

/// One ping.
fn ping(peer: &mut Peer<'_>, number: u64, source: &RemoteRegion, sink: &RemoteRegion) -> Result<()> {
    let options = peer.options;
    let sent = ping_text(number, options.size as usize);
    source.write(0, &sent)?;
    for memory in [source, sink] {
        peer.send(&message(memory.remote(0)?, options.size))?;
        if peer.receive()?.is_none() {
            bail!("the server has ended the connection");
        }
    }
    let mut echoed = vec![0; sent.len()];
    sink.read(0, &mut echoed)?;
    if options.validate && sent != echoed {
        let at = sent.iter().zip(&echoed).position(|(sent, echoed)| sent != echoed).unwrap_or_default();
        bail!("data mismatch in ping {number} at byte {at}");
    }
    if options.verbose && !options.json {
        output::line(&format!("ping data: {}", text(&echoed)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_big_endian() {
        let remote = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c };
        let bytes = message(remote, 0x0d0e_0f10);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        let (described, len) = described(bytes);
        assert_eq!((described.addr, described.rkey, len), (remote.addr, remote.rkey, 0x0d0e_0f10));
    }

    #[test]
    fn letters_begin_with_the_number_of_the_ping_and_wrap() {
        assert_eq!(ping_text(0, 26), b"rdma-ping-0: ABCDEFGHIJKL\0");
        assert_eq!(ping_text(57, 26), b"rdma-ping-57: zABCDEFGHIJ\0");
        assert_eq!(ping_text(58, 26), b"rdma-ping-58: ABCDEFGHIJK\0");
        assert_eq!(text(&ping_text(1, 64)).len(), 63);
        assert_eq!(ping_text(u64::MAX, 26).len(), 26);
    }
}
