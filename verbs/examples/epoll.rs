//! An echo server with one thread, which sleeps in `epoll_wait`: for clients that connect, for
//! messages, and for clients that leave.
//!
//! ```text
//! host 1: cargo run --example epoll
//! host 2: cargo run --example epoll -- HOST1
//! ```

#![forbid(unsafe_code)]

mod common;

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result, ensure};
use bareverbs::{Endpoint, Op, Pd, Pool, PoolBuffer};
use clap::Parser;
use common::{Ends, Lines};
use rustix::event::epoll;

/// Buffers of a client's receives.
const RECEIVES: usize = 4;
/// The longest message in bytes.
const LEN: usize = 4096;

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// The server ends after so many clients.
    #[arg(long, default_value_t = usize::MAX)]
    clients: usize,
    /// Messages of a client.
    #[arg(short = 'n', long, default_value_t = 100)]
    messages: u32,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pd = options.ends.open()?.alloc_pd()?;
    match &options.ends.host {
        None => serve(&pd, &options),
        Some(host) => ask(&pd, host, &options),
    }
}

/// The number of the listener among the descriptors. Client `n` has 2n for messages and 2n + 1 for
/// its TCP connection.
const LISTENER: u64 = 0;

fn serve(pd: &Pd, options: &Options) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let watch = |fd: &dyn AsFd, number| {
        epoll::add(&poll, fd.as_fd(), epoll::EventData::new_u64(number), epoll::EventFlags::IN)
    };
    let listener = options.ends.listen()?;
    watch(&listener, LISTENER)?;
    let (mut clients, mut admitted, mut left) = (HashMap::new(), 0, 0);
    while left < options.clients {
        let mut events = [MaybeUninit::uninit(); 16];
        let (ready, _) = epoll::wait(&poll, &mut events, None)?;
        for event in ready {
            let number = event.data.u64();
            if number == LISTENER {
                let client = Client::admit(pd, listener.accept()?.0)?;
                admitted += 1;
                watch(&client.endpoint, 2 * admitted)?;
                watch(&client.stream, 2 * admitted + 1)?;
                clients.insert(admitted, client);
            } else if number.is_multiple_of(2) {
                if let Some(client) = clients.get_mut(&(number / 2)) {
                    client.echo()?;
                }
            } else if clients.remove(&(number / 2)).is_some() {
                // The end of the TCP connection. Closed descriptors leave the epoll.
                left += 1;
            }
        }
    }
    println!("{left} clients were served");
    Ok(())
}

struct Client {
    endpoint: Endpoint<PoolBuffer>,
    stream: TcpStream,
}

impl Client {
    fn admit(pd: &Pd, stream: TcpStream) -> Result<Self> {
        let mut lines = Lines::new(stream.try_clone()?);
        let mut endpoint = Endpoint::options().recvs(RECEIVES as u32).sends(RECEIVES as u32).build(pd)?;
        let pool = Pool::new(pd, RECEIVES, LEN)?;
        for _ in 0..RECEIVES {
            endpoint.post(Op::recv(pool.take().context("a buffer for each receive")?))?;
        }
        endpoint.connect(&lines.receive()?)?;
        let mut client = Self { endpoint, stream };
        // From here on, the descriptor becomes readable when a message arrives.
        client.echo()?;
        lines.send(client.endpoint.address())?;
        Ok(client)
    }

    /// Sends all messages back. Arms the CQ first, because it raises an event for later completions
    /// only.
    fn echo(&mut self) -> Result<()> {
        self.endpoint.arm()?;
        while let Some(done) = self.endpoint.poll().transpose()? {
            let len = done.len as usize;
            // A message goes back in its buffer. The buffer of a sent message receives the next.
            if done.is_recv() {
                self.endpoint.post(Op::send(done.into_buffer(), ..len))?;
            } else {
                self.endpoint.post(Op::recv(done.into_buffer()))?;
            }
        }
        Ok(())
    }
}

fn ask(pd: &Pd, host: &str, options: &Options) -> Result<()> {
    let pool = Pool::new(pd, 2, LEN)?;
    let mut endpoint: Endpoint<PoolBuffer> = Endpoint::options().build(pd)?;
    let mut server = Lines::connect(host, options.ends.port)?;
    server.send(endpoint.address())?;
    endpoint.connect(&server.receive()?)?;
    for number in 0..options.messages {
        let text = format!("message {number}");
        endpoint.post(Op::recv(pool.take().context("a free buffer")?))?;
        let mut question = pool.take().context("a free buffer")?;
        question.bytes_mut()[..text.len()].copy_from_slice(text.as_bytes());
        endpoint.post(Op::send(question, ..text.len()))?;
        // The answer may be complete before the send.
        for done in [endpoint.next().wait()?, endpoint.next().wait()?] {
            ensure!(done.message().is_none_or(|answer| answer == text.as_bytes()), "a wrong answer");
        }
    }
    println!("{} messages came back", options.messages);
    Ok(())
}
