//! Many connections of several threads on one completion queue. Each thread waits for its own
//! operations; a thread that polls delivers the completions of the others.
//!
//! ```text
//! host 1: cargo run --example shared_cq
//! host 2: cargo run --example shared_cq -- HOST1
//! ```

#![forbid(unsafe_code)]

mod common;

use std::thread;

use anyhow::{Context as _, Result, ensure};
use bareverbs::{Hub, Op, Pool, PoolBuffer};
use clap::Parser;
use common::{Ends, Lines};

/// The port of the device.
const PORT: u8 = 1;
/// Operations of a connection in each direction.
const DEPTH: u32 = 4;
/// The longest message in bytes.
const LEN: usize = 64;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Threads, each with a connection of its own; the same on both hosts.
    #[arg(long, default_value_t = 8)]
    threads: u32,
    /// Messages of each connection; the same on both hosts.
    #[arg(short = 'n', long, default_value_t = 100)]
    messages: u32,
}

fn main() -> Result<()> {
    let Options { ends, threads, messages } = Options::parse();
    let pd = ends.open()?.alloc_pd()?;
    // The CQ has room for the operations of all connections.
    let hub = Hub::new(&pd, threads * 2 * DEPTH)?;
    let pool = Pool::new(&pd, threads as usize * 2, LEN)?;
    let listener = if ends.host.is_none() { Some(ends.listen()?) } else { None };
    thread::scope(|scope| {
        let work = |number: u32| match (&listener, &ends.host) {
            (Some(listener), _) => answer(&hub, &pool, Lines::new(listener.accept()?.0), messages),
            (_, host) => {
                let server = Lines::connect(host.as_deref().unwrap_or_default(), ends.port)?;
                ask(&hub, &pool, server, number, messages)
            }
        };
        let running: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })?;
    println!("{threads} threads exchanged {messages} messages each");
    Ok(())
}

/// The server's end of a connection.
fn answer(hub: &Hub, pool: &Pool, mut client: Lines, messages: u32) -> Result<()> {
    let connection = hub.connection(PORT, DEPTH)?;
    // The client sends when it has the address. By then, this end is connected and has a receive.
    let mut incoming = connection.post(Op::recv(buffer(pool)?));
    connection.connect(&client.receive()?)?;
    client.send(connection.address())?;
    for _ in 0..messages {
        let question = incoming.wait()?;
        incoming = connection.post(Op::recv(buffer(pool)?));
        let len = question.len as usize;
        connection.post(Op::send(question.into_buffer(), ..len)).wait()?;
    }
    client.send("all answers are acknowledged")
}

/// The client's end of a connection.
fn ask(hub: &Hub, pool: &Pool, mut server: Lines, thread: u32, messages: u32) -> Result<()> {
    let connection = hub.connection(PORT, DEPTH)?;
    server.send(connection.address())?;
    connection.connect(&server.receive()?)?;
    for number in 0..messages {
        let text = format!("message {number} of thread {thread}");
        let answer = connection.post(Op::recv(buffer(pool)?));
        let mut question = buffer(pool)?;
        question.bytes_mut()[..text.len()].copy_from_slice(text.as_bytes());
        connection.post(Op::send(question, ..text.len())).wait()?;
        ensure!(answer.wait()?.message() == Some(text.as_bytes()), "a wrong answer to `{text}`");
    }
    // The QP acknowledges the last answer, too, so it must not be destroyed before.
    server.receive::<String>()?;
    Ok(())
}

fn buffer(pool: &Pool) -> Result<PoolBuffer> {
    pool.take().context("a free buffer")
}
