//! Requests and replies as datagrams (UD): one QP of the server answers any number of clients.
//!
//! ```text
//! host 1: cargo run --example datagram
//! host 2: cargo run --example datagram -- HOST1
//! ```
//!
//! A client learns the server's address over TCP. The server learns that of a client from its first
//! request. Datagrams may be lost: a client sends a request again until its reply arrives.

#![forbid(unsafe_code)]

mod common;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use bareverbs::qp::GRH_BYTES;
use bareverbs::{Datagrams, Op, Pd, Pool};
use clap::Parser;
use common::{Ends, Lines};

/// The longest message in bytes.
const LEN: usize = 64;
/// Posted receives.
const RECEIVES: u32 = 64;
/// After this time without a reply, a client sends its request again.
const AGAIN: Duration = Duration::from_millis(500);
/// A client gives up after so many requests without a reply.
const ATTEMPTS: u32 = 20;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Clients that the server waits for.
    #[arg(long, default_value_t = 1)]
    clients: u32,
    /// Requests of a client.
    #[arg(short = 'n', long, default_value_t = 100)]
    requests: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pd = options.ends.open()?.alloc_pd()?;
    match &options.ends.host {
        None => serve(&pd, &options),
        Some(host) => ask(&pd, host, &options),
    }
}

/// Datagrams with all of their receives posted.
fn datagrams(pd: &Pd) -> Result<Datagrams> {
    let mut datagrams: Datagrams = Datagrams::options().recvs(RECEIVES).inline(LEN as u32).build(pd)?;
    let pool = Pool::new(pd, RECEIVES as usize, GRH_BYTES + LEN)?;
    while let Some(buffer) = pool.take() {
        datagrams.post(Op::recv(buffer))?;
    }
    Ok(datagrams)
}

fn serve(pd: &Pd, options: &Options) -> Result<()> {
    let mut datagrams = datagrams(pd)?;
    let (listener, address, clients) = (options.ends.listen()?, datagrams.address(), options.clients);
    // The other thread ends when all clients have their replies.
    let ended = thread::spawn(move || -> Result<()> {
        let accept = |_| {
            let mut client = Lines::new(listener.accept()?.0);
            client.send(address)?;
            Ok(client)
        };
        let mut clients = (0..clients).map(accept).collect::<Result<Vec<_>>>()?;
        clients.iter_mut().try_for_each(|client| client.receive::<String>().map(drop))
    });
    let (mut peers, mut replies) = (HashMap::new(), 0);
    while !ended.is_finished() {
        // Replies whose send has ended leave room for others.
        while let Some(sent) = datagrams.poll_send() {
            sent?;
        }
        let Some(request) = datagrams.next_recv().wait_timeout(Duration::from_millis(100)).transpose()?
        else {
            continue;
        };
        // The path to a sender is resolved once.
        let peer = match peers.entry(request.sender()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(request.reply_to(&datagrams).wait()?),
        };
        datagrams.post(Op::send_to_inline(peer, &request.message().to_ascii_uppercase()))?;
        datagrams.post(Op::recv(request.into_buffer()))?;
        replies += 1;
    }
    ended.join().expect("no panic")?;
    ensure!(replies >= options.clients * options.requests, "only {replies} replies");
    println!("answered {} clients", peers.len());
    Ok(())
}

fn ask(pd: &Pd, host: &str, options: &Options) -> Result<()> {
    let mut datagrams = datagrams(pd)?;
    let mut tcp = Lines::connect(host, options.ends.port)?;
    let server = datagrams.destination(&tcp.receive()?).wait()?;
    for number in 1..=options.requests {
        let request = format!("request {number} of client {}", std::process::id());
        let expected = request.to_ascii_uppercase();
        let mut attempts = 0;
        loop {
            ensure!(attempts < ATTEMPTS, "no reply to {request}");
            attempts += 1;
            datagrams.post(Op::send_to_inline(&server, request.as_bytes()))?;
            datagrams.next_send().wait()?;
            if has_reply(&mut datagrams, expected.as_bytes())? {
                break;
            }
        }
    }
    tcp.send("all replies have arrived")?;
    println!("{} requests were answered", options.requests);
    Ok(())
}

/// Waits for a reply. Replies to requests that were sent twice may come twice.
fn has_reply(datagrams: &mut Datagrams, expected: &[u8]) -> Result<bool> {
    while let Some(reply) = datagrams.next_recv().wait_timeout(AGAIN).transpose()? {
        let is_expected = reply.message() == expected;
        datagrams.post(Op::recv(reply.into_buffer()))?;
        if is_expected {
            return Ok(true);
        }
    }
    Ok(false)
}
