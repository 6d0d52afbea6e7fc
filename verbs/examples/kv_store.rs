//! A key-value store on one-sided operations. The server exposes a table in its memory and does
//! nothing else. Clients read it by RDMA reads, lock a slot by an atomic operation, and write it by
//! an RDMA write.
//!
//! ```text
//! host 1: cargo run --example kv_store
//! host 2: cargo run --example kv_store -- HOST1 put colour green
//!         cargo run --example kv_store -- HOST1 get colour
//!         cargo run --example kv_store -- HOST1 add visits 10
//! ```
//!
//! A client that dies between lock and unlock leaves its slot locked.

#![forbid(unsafe_code)]

mod common;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::{str, thread};

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::{
    Access, Buffer, Endpoint, EndpointOptions, Op, Pd, Pool, PoolBuffer, RegionMut, Remote, RemoteRegion,
};
use clap::{Parser, Subcommand};
use common::{Ends, Lines};

/// A slot: a version of 8 bytes, which is odd while the slot is locked; the key; the value.
const SLOT: usize = 64;
const KEY: std::ops::Range<usize> = 8..32;
const VALUE: std::ops::Range<usize> = 32..64;
const SLOTS: usize = 1024;
/// What clients may do with the table.
const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// The server ends after so many clients.
    #[arg(long)]
    clients: Option<usize>,
    #[command(subcommand)]
    request: Option<Request>,
}

#[derive(Subcommand)]
enum Request {
    /// Sets the value of a key.
    Put { key: String, value: String },
    /// Prints the value of a key.
    Get { key: String },
    /// Adds 1 to a number, this many times.
    Add { key: String, times: u32 },
}

fn main() -> Result<()> {
    let Options { ends, clients, request } = Options::parse();
    let pd = ends.open()?.alloc_pd()?;
    match (&ends.host, request) {
        (None, _) => serve(&pd, &ends, clients.unwrap_or(usize::MAX)),
        (Some(host), Some(request)) => ask(&pd, Lines::connect(host, ends.port)?, request),
        (Some(_), None) => bail!("a client needs one of put, get and add"),
    }
}

/// The options of both ends.
fn options() -> EndpointOptions {
    Endpoint::options().access(RIGHTS).inline(SLOT as u32)
}

fn serve(pd: &Pd, ends: &Ends, clients: usize) -> Result<()> {
    let table = RegionMut::register(pd, Buffer::zeroed(SLOTS * SLOT)?)?.expose(RIGHTS)?;
    let table = Arc::new(table);
    let mut threads = Vec::new();
    for stream in ends.listen()?.incoming().take(clients) {
        let (stream, pd, table) = (stream?, pd.clone(), Arc::clone(&table));
        threads.push(thread::spawn(move || {
            if let Err(error) = admit(&pd, stream, &table) {
                eprintln!("a client failed: {error:#}");
            }
        }));
    }
    for thread in threads {
        thread.join().expect("the thread does not panic");
    }
    // No peer has access afterwards, so the bytes can be looked at.
    let table = Arc::into_inner(table).context("all clients have left")?.revoke()?;
    let used = table.bytes().chunks(SLOT).filter(|slot| slot[KEY.start] != 0).count();
    println!("the table has {used} keys");
    Ok(())
}

/// Connects a client and waits until it leaves. The device serves its operations.
fn admit(pd: &Pd, mut stream: TcpStream, table: &RemoteRegion) -> Result<()> {
    let mut client = Lines::new(stream.try_clone()?);
    let mut endpoint: Endpoint = options().build(pd)?;
    endpoint.connect(&client.receive()?)?;
    client.send(endpoint.address())?;
    client.send(table.remote(0)?)?;
    // The end of the TCP connection is the end of the client.
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}

fn ask(pd: &Pd, mut server: Lines, request: Request) -> Result<()> {
    let mut endpoint = options().build(pd)?;
    server.send(endpoint.address())?;
    endpoint.connect(&server.receive()?)?;
    let mut table = Table { endpoint, pool: Pool::new(pd, 1, SLOT)?, base: server.receive()? };
    match request {
        Request::Put { key, value } => table.update(&key, |_| value.clone()),
        Request::Get { key } => {
            let (_, slot) = table.find(&key)?;
            println!("{}", slot.value()?);
            Ok(())
        }
        Request::Add { key, times } => {
            let next = |value: &str| (value.parse().unwrap_or(0) + 1).to_string();
            (0..times).try_for_each(|_| table.update(&key, next))
        }
    }
}

/// A copy of a slot.
struct Slot([u8; SLOT]);

impl Slot {
    fn value(&self) -> Result<&str> {
        Ok(str::from_utf8(&self.0[VALUE])?.trim_end_matches('\0'))
    }
}

/// The server's table, as a client sees it.
struct Table {
    endpoint: Endpoint<PoolBuffer>,
    pool: Pool,
    base: Remote,
}

impl Table {
    fn remote(&self, index: usize, offset: usize) -> Remote {
        self.base.offset((index * SLOT + offset) as u64)
    }

    fn buffer(&self) -> PoolBuffer {
        self.pool.take().expect("one operation at a time, which has the buffer")
    }

    /// Reads the first `len` bytes of a slot.
    fn read(&mut self, index: usize, len: usize) -> Result<PoolBuffer> {
        self.endpoint.post(Op::read(self.buffer(), ..len, self.remote(index, 0)))?;
        Ok(self.endpoint.next().wait()?.into_buffer())
    }

    fn version(&mut self, index: usize) -> Result<u64> {
        Ok(version(self.read(index, 8)?.bytes()))
    }

    /// Reads a slot as it was at one moment: it was unlocked, and had the same version before and
    /// after.
    fn read_slot(&mut self, index: usize) -> Result<Slot> {
        loop {
            let before = self.version(index)?;
            let slot = Slot(self.read(index, SLOT)?.bytes().try_into()?);
            if before.is_multiple_of(2) && self.version(index)? == before {
                return Ok(slot);
            }
        }
    }

    /// The slot of a key, or the free slot for it.
    fn find(&mut self, key: &str) -> Result<(usize, Slot)> {
        let wanted = padded::<{ KEY.end - KEY.start }>(key)?;
        ensure!(!key.is_empty(), "the key is empty");
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let first = hasher.finish() as usize % SLOTS;
        for index in (first..SLOTS).chain(0..first) {
            let slot = self.read_slot(index)?;
            if slot.0[KEY] == wanted || slot.0[KEY.start] == 0 {
                return Ok((index, slot));
            }
        }
        bail!("the table is full")
    }

    /// Replaces the value of a key. No change of another client is lost.
    fn update(&mut self, key: &str, change: impl Fn(&str) -> String) -> Result<()> {
        loop {
            let (index, slot) = self.find(key)?;
            let value = padded::<{ VALUE.end - VALUE.start }>(&change(slot.value()?))?;
            let version = version(&slot.0);
            let lock = self.remote(index, 0);
            self.endpoint.post(Op::compare_swap(self.buffer(), lock, version, version + 1))?;
            let before = self.endpoint.next().wait()?.into_buffer();
            if before.bytes()[..8] != version.to_ne_bytes() {
                continue; // Another client was faster.
            }
            let body = [&padded::<{ KEY.end - KEY.start }>(key)?[..], &value].concat();
            self.endpoint.post(Op::write_inline(&body, self.remote(index, KEY.start)))?;
            // Operations of a connection are executed in order: the unlock follows the write.
            drop(before);
            self.endpoint.post(Op::fetch_add(self.buffer(), lock, 1))?;
            self.endpoint.next().wait()?;
            self.endpoint.next().wait()?;
            return Ok(());
        }
    }
}

fn version(slot: &[u8]) -> u64 {
    u64::from_ne_bytes(slot[..8].try_into().expect("8 bytes"))
}

fn padded<const N: usize>(text: &str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    ensure!(text.len() <= N, "`{text}` is longer than {N} bytes");
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    Ok(bytes)
}
