//! A connection that survives the failure of its path: automatic path migration (APM).
//!
//! ```text
//! host 1: cargo run --example path_migration -- --alternate-lid LID1
//! host 2: cargo run --example path_migration -- --alternate-lid LID2 HOST1
//! ```
//!
//! InfiniBand only. Each end names a second LID by which the other end reaches it: a LID of the
//! same port (LMC), or of a second port. Without the option, it is the LID of the primary path.
//! The client writes numbers into the server's memory. When its retries on the primary path are
//! exceeded, the device sends the same requests on the alternate path, and no request fails.

#![forbid(unsafe_code)]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit};
use bareverbs::device::EventType;
use bareverbs::qp::{AlternatePath, ConnectAttr, MigState, Qp, QpCap, QpInit, Rc, SendFlags};
use bareverbs::values::AckTimeout;
use bareverbs::{Access, Address, AsyncEvent, Buffer, Context, Mr, Remote, WcStatus};
use clap::Parser;
use common::{Ends, Lines};

/// The port of the device. Ports are counted from 1.
const PORT: u8 = 1;
/// A path fails after 7 timeouts of 268 ms.
const TIMEOUT: Option<AckTimeout> = AckTimeout::new(16);
/// Longest wait for a completion, on both paths together.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Another LID of this end.
    #[arg(long)]
    alternate_lid: Option<u16>,
    /// Writes of the client.
    #[arg(short = 'n', long, default_value_t = 100)]
    writes: u64,
    /// Pause after each write, in milliseconds.
    #[arg(long, default_value_t = 10)]
    pause: u64,
}

fn main() -> Result<()> {
    let Options { ends, alternate_lid, writes, pause } = Options::parse();
    let context = ends.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(16))?;
    let cap = QpCap { max_inline_data: 8, ..QpCap::default() };
    let qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let memory = pd.register(Buffer::zeroed(8)?, access)?;
    let gid = context.default_gid(PORT)?;
    let local = qp.address(PORT, gid.index)?;
    let mut end = End { context, qp, cq, memory };

    let (mut peer, is_server) = match &ends.host {
        None => (Lines::new(ends.listen()?.accept()?.0), true),
        Some(host) => (Lines::connect(host, ends.port)?, false),
    };
    // The address, the other LID and the memory, one per line.
    peer.send(local)?;
    peer.send(alternate_lid.unwrap_or(local.lid))?;
    let region = end.memory.remote(0)?;
    peer.send(region.addr)?;
    peer.send(region.rkey)?;
    let (remote, lid): (Address, u16) = (peer.receive()?, peer.receive()?);
    let target = Remote { addr: peer.receive()?, rkey: peer.receive()? };

    let timeout = TIMEOUT.unwrap_or_default();
    let attr = ConnectAttr { access: Access::REMOTE_WRITE, timeout, ..ConnectAttr::new(PORT, gid.index) };
    end.qp.connect(&local, &remote, &attr)?;
    let address = AhAttr { dlid: lid, ..AhAttr::global(PORT, remote.gid, gid.index) };
    end.qp.load_alternate_path(&AlternatePath { timeout, ..AlternatePath::new(address) })?;
    // A QP is armed by a packet of a peer that has loaded its alternate path, too.
    peer.send("loaded")?;
    peer.receive::<String>()?;

    if is_server {
        peer.receive::<String>()?;
        let mut last = [0; 8];
        end.memory.read(0, &mut last)?;
        ensure!(u64::from_le_bytes(last) == writes, "the last write is not the client's number {writes}");
    } else {
        let mut state = end.qp.path_migration()?;
        for number in 1..=writes {
            end.write(number, target)?;
            let now = end.qp.path_migration()?;
            if now == MigState::ARMED && state != now {
                println!("the alternate path is armed");
            }
            if now != state && now == MigState::MIGRATED {
                println!("write {number} went over LID {}", end.qp.query()?.0.ah_attr.dlid);
            }
            state = now;
            thread::sleep(Duration::from_millis(pause));
        }
        peer.send("all writes are complete")?;
    }
    println!("{writes} writes are complete, {} migrations", end.migrations()?);
    Ok(())
}

/// One end of the connection. The QP is dropped before its memory.
struct End {
    context: Context,
    qp: Qp<Rc>,
    cq: Cq,
    memory: Mr<Buffer>,
}

impl End {
    /// Writes the number into the peer's memory and waits for the completion.
    fn write(&mut self, number: u64, to: Remote) -> Result<()> {
        let mut batch = self.qp.start_send();
        batch.write_inline(number, to, &number.to_le_bytes(), SendFlags::SIGNALED)?;
        batch.ring()?;
        let begin = Instant::now();
        loop {
            if let Some(done) = self.cq.poll_one() {
                ensure!(done.status == WcStatus::SUCCESS, "{}", self.context.explain(done.status));
                return Ok(());
            }
            ensure!(begin.elapsed() < LONGEST_WAIT, "write {number} does not complete");
            thread::yield_now();
        }
    }

    /// How often the QP has moved to its alternate path.
    fn migrations(&self) -> Result<usize> {
        let events = self.context.async_events();
        let mut count = 0;
        while let Some(event) = events.try_wait()? {
            count += usize::from(matches!(event, AsyncEvent::Qp { event: EventType::PATH_MIG, .. }));
        }
        Ok(count)
    }
}
