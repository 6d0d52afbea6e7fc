//! The baseline: TCP connections in place of RDMA connections (`-S`).

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, accept_with, connect, listen, socket_with};

use super::conn::{Over, in_threads};
use super::mesh::{Peer, listeners};
use super::steps::{Report, Step, Times, Totals};
use super::{Progress, join};
use crate::cli::connected::Cmtime;
use crate::signal::{Interrupted, Stop, Wake};

/// A connection. Its socket is created in the first step and closed in the last.
#[derive(Default)]
struct Conn {
    socket: Option<OwnedFd>,
    times: Times,
}

/// Connects two peers.
pub(super) fn run(
    options: &Cmtime,
    source: SocketAddr,
    controller: SocketAddr,
    progress: Progress,
    stop: &Stop,
) -> Result<()> {
    ensure!(options.peers == 2, "sockets (-S) connect two peers, not {} (-P)", options.peers);
    let role = if options.listen { "Server" } else { "Client" };
    progress.say(&format!("{role} baseline socket setup"))?;
    let listener = options.listen.then(|| TcpListener::bind(source)).transpose()?;
    let own = match &listener {
        Some(listener) => {
            // The backlog of all connections, as in the C program.
            listen(listener, options.connections as i32)?;
            listener.set_nonblocking(true)?;
            Peer::Listens(listener.local_addr()?)
        }
        None => Peer::Connects,
    };
    // The server listens before the client has its address.
    let peers = join(options, controller, progress, stop)?.exchange(own, options.peers)?;
    let report = match (listener, listeners(&peers)?.as_slice()) {
        (Some(listener), _) => serve(&listener, options.connections, progress, stop)?,
        (None, [server, ..]) => make(*server, options, progress)?,
        (None, []) => bail!("no peer listens (-L)"),
    };
    progress.say(&format!("{role} baseline socket results:"))?;
    progress.report(&report)
}

/// Accepts the connections and closes them.
fn serve(listener: &TcpListener, connections: u32, progress: Progress, stop: &Stop) -> Result<Report> {
    progress.say("Accept sockets")?;
    let (mut totals, mut first) = (Totals::default(), None);
    let mut conns = vec![Vec::new()];
    while conns[0].len() < connections as usize {
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => {
                first.get_or_insert_with(Instant::now);
                conns[0].push(Conn { socket: Some(socket), times: Times::default() });
            }
            Err(Errno::AGAIN) => {
                if stop.wait(listener.as_fd(), PollFlags::IN, None)? == Wake::Stopped {
                    return Err(Interrupted.into());
                }
            }
            Err(errno) => return Err(errno).context("cannot accept a connection"),
        }
    }
    totals.set(Step::FullConnect, first.map(|first| first.elapsed()).unwrap_or_default());
    close(&mut conns, &mut totals, progress)?;
    Ok(report("server", &totals, &conns))
}

/// Makes the connections and closes them.
fn make(server: SocketAddr, options: &Cmtime, progress: Progress) -> Result<Report> {
    let (connections, threads) = (options.connections as usize, options.threads as usize);
    let share = |at| connections / threads + usize::from(at < connections % threads);
    let mut conns: Vec<Vec<Conn>> =
        (0..threads).map(|at| std::iter::repeat_with(Conn::default).take(share(at)).collect()).collect();
    let family = if server.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let (mut totals, start) = (Totals::default(), Instant::now());
    progress.say("Creating sockets")?;
    phase(&mut conns, Step::CreateId, &mut totals, |conn| {
        conn.socket = Some(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?);
        Ok(())
    })?;
    progress.say("Connecting sockets")?;
    phase(&mut conns, Step::Connect, &mut totals, |conn| {
        let socket = conn.socket.as_ref().context("the connection has no socket")?;
        connect(socket, &server).with_context(|| format!("cannot connect to {server}"))
    })?;
    totals.set(Step::FullConnect, start.elapsed());
    close(&mut conns, &mut totals, progress)?;
    Ok(report("client", &totals, &conns))
}

fn close(conns: &mut [Vec<Conn>], totals: &mut Totals, progress: Progress) -> Result<()> {
    progress.say("Closing sockets")?;
    phase(conns, Step::DestroyId, totals, |conn| {
        conn.socket = None;
        Ok(())
    })
}

/// A step of all connections, in a thread for each share.
fn phase(
    conns: &mut [Vec<Conn>],
    step: Step,
    totals: &mut Totals,
    call: impl Fn(&mut Conn) -> Result<()> + Sync,
) -> Result<()> {
    let (over, start) = (Over::new()?, Instant::now());
    in_threads(conns, &over, |share| {
        share.iter_mut().try_for_each(|conn| {
            let start = Instant::now();
            call(conn)?;
            conn.times.took(step, start, Instant::now());
            Ok(())
        })
    })?;
    totals.set(step, start.elapsed());
    Ok(())
}

fn report(role: &'static str, totals: &Totals, conns: &[Vec<Conn>]) -> Report {
    let times: Vec<Times> = conns.iter().flatten().map(|conn| conn.times.clone()).collect();
    Report::new(false, role, conns.len() as u32, totals, &times)
}
