//! Copies a file to another host. The file's bytes are read into registered memory and written from
//! registered memory, without a copy in between. Many parts of it are in flight at a time.
//!
//! ```text
//! host 1: cargo run --release --example file_copy -- copy.bin
//! host 2: cargo run --release --example file_copy -- file.bin HOST1
//! ```

#![forbid(unsafe_code)]

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::{Buffer, Endpoint, Op, RegionMut};
use clap::Parser;
use common::{Ends, Lines};

/// Length of a message in bytes.
const PART: usize = 1 << 20;
/// Messages in flight.
const PARTS: usize = 16;

#[derive(Parser)]
struct Options {
    /// The file that is sent, or that the server creates.
    file: PathBuf,
    #[command(flatten)]
    ends: Ends,
}

fn main() -> Result<()> {
    let options = Options::parse();
    let pd = options.ends.open()?.alloc_pd()?;
    // One registration. Each operation has a part of it.
    let parts = RegionMut::register(&pd, Buffer::zeroed(PARTS * PART)?)?.chunks(PART);
    let endpoint = Endpoint::options().sends(PARTS as u32).recvs(PARTS as u32).build(&pd)?;
    match &options.ends.host {
        None => receive(&options, endpoint, parts),
        Some(host) => send(&options, host, endpoint, parts.collect()),
    }
}

fn send(
    options: &Options,
    host: &str,
    mut endpoint: Endpoint<RegionMut>,
    mut free: Vec<RegionMut>,
) -> Result<()> {
    let mut file = File::open(&options.file).context("opening the file")?;
    let mut left = file.metadata()?.len();
    let mut server = Lines::connect(host, options.ends.port)?;
    server.send(left)?;
    server.send(endpoint.address())?;
    endpoint.connect(&server.receive()?)?;

    while left > 0 || endpoint.pending() > 0 {
        match free.pop() {
            Some(mut part) if left > 0 => {
                let len = left.min(PART as u64);
                file.read_exact(&mut part.bytes_mut()[..len as usize])?;
                endpoint.post(Op::send(part, ..len as usize))?;
                left -= len;
            }
            // All parts are in flight, or the rest of them.
            part => {
                free.extend(part);
                free.push(endpoint.next().wait()?.into_buffer());
            }
        }
    }
    // A completed send is in the peer's memory. The line says that it is in the file.
    let report: String = server.receive()?;
    println!("{report}");
    Ok(())
}

fn receive(
    options: &Options,
    mut endpoint: Endpoint<RegionMut>,
    parts: impl Iterator<Item = RegionMut>,
) -> Result<()> {
    let mut file = File::create(&options.file).context("creating the file")?;
    let mut client = Lines::new(options.ends.listen()?.accept()?.0);
    let length: u64 = client.receive()?;
    let remote = client.receive()?;
    // Receives complete in the order of posting, and messages arrive in the order of sending.
    for part in parts {
        endpoint.post(Op::recv(part))?;
    }
    endpoint.connect(&remote)?;
    client.send(endpoint.address())?;

    let (begin, mut received) = (Instant::now(), 0);
    while received < length {
        let done = endpoint.next().wait()?;
        let Some(message) = done.message() else { bail!("{:?} is no message", done.opcode) };
        file.write_all(message)?;
        received += message.len() as u64;
        // If the sender is faster than the disk, its device retries until a receive is posted.
        endpoint.post(Op::recv(done.into_buffer()))?;
    }
    ensure!(received == length, "{received} bytes of {length} arrived");
    file.sync_all()?;
    let seconds = begin.elapsed().as_secs_f64();
    let report = format!("copied {length} bytes, {:.0} MB/s", length as f64 / 1e6 / seconds);
    println!("{report}");
    client.send(report)
}
