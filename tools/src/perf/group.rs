//! The peers of a run: one, N clients of a server, or all pairs of hosts.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::control::{CmPeer, Control};
use super::link::{self, Local};
use super::plan::Plan;
use super::rendezvous::cause;
use super::report::Outcome;
use super::transport::Service;
use crate::cli::perf::hosts::Hosts;
use crate::output;
use crate::session::exchange::{Peer, Server};
use crate::signal::Stop;

/// The time in which the hosts of `--all-to-all` have to be started.
const START: Duration = Duration::from_secs(60);
/// The time between two attempts to connect to one of them.
const RETRY: Duration = Duration::from_millis(100);

/// The number of peers of the plan.
pub(crate) fn size(plan: &Plan<'_>) -> usize {
    let options = plan.options;
    let others = options.all_to_all.as_ref().map(|hosts| hosts.members().len() - 1);
    others.unwrap_or(options.clients.unwrap_or(1) as usize)
}

/// Connects to the peers and runs with all of them at the same time.
pub(crate) fn run<T: Service>(plan: &Plan<'_>, local: &Local<'_>) -> Result<Vec<Outcome>> {
    let options = plan.options;
    let (tcp_port, stop) = (options.port, local.stop);
    match (&options.host, options.clients, &options.all_to_all) {
        (_, _, Some(hosts)) => {
            let place = hosts.place(options.rank)?;
            together::<T>(local, mesh(hosts, place, plan, stop)?)
        }
        (Some(host), ..) if options.cm => {
            let server = (host.as_str(), tcp_port);
            let peer = CmPeer::connect(&local.port.context, local.port.number, server, stop)?;
            Ok(vec![link::run::<T>(plan, local, Control::Cm(Box::new(peer)))?])
        }
        (Some(host), ..) => {
            let peer = Peer::connect(host, tcp_port, stop)?;
            Ok(vec![link::run::<T>(plan, local, Control::tcp(peer)?)?])
        }
        (None, Some(clients), None) => {
            let server = Server::listen_for(tcp_port, clients as i32)?;
            output::diagnostic(&format!("waiting for {clients} clients on TCP port {tcp_port}"));
            let plan = || plan.clone();
            serve::<T>(local, clients, &server, plan)
        }
        (None, None, None) if options.cm => {
            output::diagnostic(&format!("waiting for a client on port {tcp_port} of the connection manager"));
            let peer = CmPeer::accept(&local.port.context, local.port.number, tcp_port, stop)?;
            Ok(vec![link::run::<T>(plan, local, Control::Cm(Box::new(peer)))?])
        }
        (None, None, None) => {
            let server = Server::listen(tcp_port)?;
            output::diagnostic(&format!("waiting for a client on TCP port {tcp_port}"));
            let peer = server.accept(stop)?;
            // No further client is accepted.
            drop(server);
            Ok(vec![link::run::<T>(plan, local, Control::tcp(peer)?)?])
        }
    }
}

/// Serves clients as they come. Their runs begin together.
fn serve<'p, T: Service>(
    local: &Local<'_>,
    clients: u32,
    server: &Server,
    plan: impl Fn() -> Plan<'p>,
) -> Result<Vec<Outcome>> {
    in_threads(local, |start| {
        for _ in 0..clients {
            // A client that has failed ends the wait for the others.
            let peer = loop {
                local.rendezvous.check()?;
                if let Some(peer) = server.accept_within(local.stop, Some(RETRY))? {
                    break peer;
                }
            };
            let plan = plan();
            start(Box::new(move || link::run::<T>(&plan, local, Control::tcp(peer)?)));
        }
        Ok(())
    })
}

/// Connects to the hosts before `place` and accepts those after it.
fn mesh<'p, 's>(
    hosts: &Hosts,
    place: usize,
    plan: &Plan<'p>,
    stop: &'s Stop,
) -> Result<Vec<(Plan<'p>, Peer<'s>)>> {
    let (members, default) = (hosts.members(), plan.options.port);
    let server = Server::listen_for(members[place].port(default), members.len() as i32)?;
    let deadline = Instant::now() + START;
    let mut peers = Vec::new();
    for member in &members[..place] {
        let peer = loop {
            match Peer::connect(&member.host, member.port(default), stop) {
                Ok(peer) => break peer,
                Err(_) if Instant::now() < deadline => {
                    stop.check()?;
                    std::thread::sleep(RETRY);
                }
                Err(error) => return Err(error).context("a host of --all-to-all is missing"),
            }
        };
        peers.push((Plan { client: true, ..plan.clone() }, peer));
    }
    for _ in &members[place + 1..] {
        peers.push((Plan { client: false, ..plan.clone() }, server.accept(stop)?));
    }
    Ok(peers)
}

/// Runs with all peers, each in a thread.
fn together<T: Service>(local: &Local<'_>, peers: Vec<(Plan<'_>, Peer<'_>)>) -> Result<Vec<Outcome>> {
    in_threads(local, |start| {
        for (plan, peer) in peers {
            start(Box::new(move || link::run::<T>(&plan, local, Control::tcp(peer)?)));
        }
        Ok(())
    })
}

/// A run with a peer.
type Job<'j> = Box<dyn FnOnce() -> Result<Outcome> + Send + 'j>;

/// Runs jobs in threads until all have ended. The first failure aborts the others.
fn in_threads<'j>(
    local: &Local<'_>,
    jobs: impl FnOnce(&mut dyn FnMut(Job<'j>)) -> Result<()>,
) -> Result<Vec<Outcome>> {
    let results = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut start = |job: Job<'j>| {
            threads.push(scope.spawn(move || {
                let result = job();
                if result.is_err() {
                    local.rendezvous.abort();
                }
                result
            }));
        };
        let started = jobs(&mut start);
        if started.is_err() {
            local.rendezvous.abort();
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let mut results: Vec<Result<Outcome>> = threads.into_iter().map(join).collect();
        results.extend(started.err().map(Err));
        results
    });
    let (mut outcomes, mut errors) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => errors.push(error),
        }
    }
    cause(errors).map_or(Ok(outcomes), Err)
}
