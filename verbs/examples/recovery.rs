//! Messages to a receiver that may be killed at any time. The sender notices it, connects again,
//! and sends again what was not acknowledged. The receiver's file has each message once, in order.
//!
//! ```text
//! host 1: cargo run --example recovery -- log.txt          # kill it, and start it again
//! host 2: cargo run --example recovery -- log.txt HOST1
//! ```
//!
//! A completed send is in the memory of the peer, which may die before it has used it. So the
//! receiver acknowledges each message after it was written to the file, and the sender keeps the
//! messages until then.

#![forbid(unsafe_code)]

mod common;

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{str, thread};

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::server::{Client, Event, Handle, Server};
use bareverbs::{Pd, PoolBuffer};
use clap::Parser;
use common::{Ends, Lines};

/// How often idle peers are probed. A send to a dead peer fails by itself.
const PROBE: Duration = Duration::from_secs(1);
/// Messages that are sent and not acknowledged.
const OUTSTANDING: usize = 8;

#[derive(Parser)]
struct Options {
    /// The file of the receiver. It is created or continued.
    file: PathBuf,
    #[command(flatten)]
    ends: Ends,
    /// Messages of the sender.
    #[arg(short = 'n', long, default_value_t = 10_000)]
    messages: u64,
    /// Milliseconds between messages.
    #[arg(long, default_value_t = 0)]
    pause: u64,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pd = options.ends.open()?.alloc_pd()?;
    match &options.ends.host {
        None => receive(&pd, &options),
        Some(host) => send(&pd, host, &options),
    }
}

fn receive(pd: &Pd, options: &Options) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(&options.file)?;
    // A number was written whole or not at all.
    let mut last = fs::read_to_string(&options.file)?.lines().last().map_or(Ok(0), str::parse)?;
    let mut server = Server::options().build(pd)?;
    let (handle, listener) = (server.handle().clone(), options.ends.listen()?);
    thread::spawn(move || admit(&handle, &listener));
    let mut closing = None;
    loop {
        match server.next().wait_timeout(PROBE).transpose()? {
            Some(Event::Message(message)) => {
                let number: u64 = str::from_utf8(message.bytes())?.parse()?;
                // After a loss, the sender repeats messages that are in the file already.
                if number > last {
                    ensure!(number == last + 1, "message {number} follows {last}");
                    file.write_all(format!("{number}\n").as_bytes())?;
                    last = number;
                }
                let mut answer = server.handle().take().context("a buffer for each answer")?;
                answer.bytes_mut()[..8].copy_from_slice(&last.to_be_bytes());
                message.reply(answer, ..8).detach();
            }
            Some(Event::Failed(_, error)) => println!("the sender is gone: {error}"),
            // The sender has all answers.
            Some(Event::Closed(_)) => closing = Some(server.handle().shutdown()),
            Some(Event::Ended) => break,
            Some(_) => {}
            None => server.handle().probe(),
        }
    }
    let report = closing.context("the server was shut down")?.wait()?;
    println!("{} answers were sent", report.sent);
    Ok(())
}

/// Connects every sender that comes.
fn admit(handle: &Handle, listener: &TcpListener) {
    for stream in listener.incoming() {
        let admitted = || -> Result<()> {
            let mut client = Lines::new(stream?);
            let (_peer, address) = handle.admit(&client.receive()?)?;
            client.send(address)
        }();
        if let Err(error) = admitted {
            eprintln!("a sender was not admitted: {error:#}");
        }
    }
}

fn send(pd: &Pd, host: &str, options: &Options) -> Result<()> {
    let mut next = 1;
    let mut unacknowledged = VecDeque::new();
    let mut heard = Instant::now();
    loop {
        let mut client = connect_again(pd, host, options.ends.port)?;
        for number in &unacknowledged {
            let buffer = client.take().context("a new client has buffers for them")?;
            send_number(&client, buffer, *number);
        }
        let error = loop {
            while next <= options.messages && unacknowledged.len() < OUTSTANDING {
                // An answer may arrive before its message's send is complete and the buffer free.
                let Some(buffer) = client.take() else { break };
                unacknowledged.push_back(next);
                send_number(&client, buffer, next);
                next += 1;
            }
            if unacknowledged.is_empty() {
                // Until its last event, the receiver needs the connection.
                let closing = client.shutdown();
                while !matches!(client.next().wait()?, Event::Ended) {}
                closing.wait()?;
                println!("all {} messages are acknowledged", options.messages);
                return Ok(());
            }
            thread::sleep(Duration::from_millis(options.pause));
            match client.next().wait_timeout(PROBE).transpose()? {
                Some(Event::Message(answer)) => {
                    let last = u64::from_be_bytes(answer.bytes().try_into()?);
                    unacknowledged.retain(|number| *number > last);
                    heard = Instant::now();
                }
                Some(Event::Failed(_, error)) => break error,
                Some(_) => bail!("the receiver has closed the connection"),
                None => client.handle().probe(),
            }
        };
        let ms = heard.elapsed().as_millis();
        println!("lost the receiver {ms} ms after its last answer: {error}");
        println!("{} messages are sent again", unacknowledged.len());
    }
}

/// Queues a message. If the connection is lost, an event follows, and the message is sent again.
fn send_number(client: &Client, mut buffer: PoolBuffer, number: u64) {
    let text = number.to_string();
    buffer.bytes_mut()[..text.len()].copy_from_slice(text.as_bytes());
    client.send(buffer, ..text.len()).detach();
}

/// Connects. Tries for a minute if there is no receiver.
fn connect_again(pd: &Pd, host: &str, port: u16) -> Result<Client> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let connect = || -> Result<Client> {
            // Twice as many buffers, so that one is free when an answer arrives.
            let client = Client::options().sends(2 * OUTSTANDING as u32).build(pd)?;
            let mut server = Lines::connect(host, port)?;
            server.send(client.address())?;
            client.connect(&server.receive()?)?;
            Ok(client)
        };
        match connect() {
            Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(100)),
            connected => return connected,
        }
    }
}
