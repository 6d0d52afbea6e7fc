//! Connections by IP address, made and ended one after the other.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use bareverbs::{Access, Buffer, Context, Endpoint, EndpointOptions, Mr, Op};
use bareverbs_rdmacm::{Connector, Listener};
use bareverbs_test_support::{TIMEOUT, device};

/// What the rounds took and left.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Connections that were made and ended.
    pub rounds: usize,
    /// The duration of all.
    pub time: Duration,
    /// Bytes by which the memory of the process has grown since a tenth of the rounds.
    pub growth: usize,
}

/// The IP address of the device.
pub(crate) fn ip(context: &Context) -> Result<Ipv4Addr> {
    let gids = context.gid_table()?;
    gids.iter().find_map(|entry| entry.gid.ipv4()).context("the device has no IPv4 address")
}

fn options() -> EndpointOptions {
    Endpoint::options().sends(1).recvs(1)
}

/// Bytes of memory that the process uses.
fn resident() -> Result<usize> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages: usize = statm.split(' ').nth(1).context("a number of pages")?.parse()?;
    Ok(pages * 4096)
}

fn descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}

fn memory(endpoint: &Endpoint<Mr<Buffer>>) -> Result<Mr<Buffer>> {
    Ok(endpoint.qp().pd().register(Buffer::zeroed(8)?, Access::LOCAL_WRITE)?)
}

/// Serves one round: a message, and the end by the peer.
fn serve(listener: &Listener, round: usize) -> Result<()> {
    let mut peer = listener.accept(&options()).wait_timeout(TIMEOUT).context("in time")??;
    let room = memory(&peer.queue)?;
    peer.queue.post(Op::recv(room))?;
    let done = peer.queue.next().wait()?;
    ensure!(done.message() == Some(&round.to_le_bytes()[..]), "another message than that of round {round}");
    peer.link.ended().wait_timeout(TIMEOUT).context("in time")??;
    Ok(())
}

fn request(connector: &Connector, addr: SocketAddr, round: usize) -> Result<()> {
    let mut server = connector.connect(addr, &options()).wait_timeout(TIMEOUT).context("in time")??;
    let mut message = memory(&server.queue)?;
    message.write(0, &round.to_le_bytes())?;
    server.queue.post(Op::send(message, ..8))?;
    server.queue.next().wait()?;
    // One in four ends without waiting for the answer.
    if !round.is_multiple_of(4) {
        server.link.disconnect().wait_timeout(TIMEOUT).context("in time")??;
    }
    Ok(())
}

/// Connects, sends a message and disconnects, `rounds` times.
///
/// # Errors
/// If a round fails, or descriptors are left.
pub fn run(rounds: usize) -> Result<Report> {
    let addr = SocketAddr::new(ip(&device::open())?.into(), 0);
    let before = descriptors()?;
    let begin = Instant::now();
    let growth = {
        let listener = Listener::bind(addr)?;
        let connector = Connector::with_domains(listener.domains());
        let addr = listener.local_addr()?;
        let warm = rounds / 10;
        thread::scope(|scope| -> Result<usize> {
            let server = scope.spawn(|| (0..rounds).try_for_each(|round| serve(&listener, round)));
            let mut start = 0;
            for round in 0..rounds {
                request(&connector, addr, round).with_context(|| format!("round {round}"))?;
                if round == warm {
                    start = resident()?;
                }
            }
            server.join().expect("the server does not panic")?;
            Ok(resident()?.saturating_sub(start))
        })?
    };
    let left = descriptors()?;
    ensure!(left == before, "{left} descriptors are open, {before} were before");
    Ok(Report { rounds, time: begin.elapsed(), growth })
}
