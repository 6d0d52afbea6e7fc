//! A run with one peer: the exchange, the queue pairs of all threads, and the tests.

use std::net::Ipv6Addr;
use std::sync::atomic::AtomicBool;
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs::Gid;
use bareverbs::ah::{AhAttr, GlobalRoute};
use bareverbs::device::LinkLayer;

use super::collect::Collector;
use super::connections::{Connections, Request};
use super::control::Control;
use super::endpoint::{Endpoint, Setup};
use super::error::RunError;
use super::exchange::{Exchange, Preamble, ProtocolError, Role};
use super::measure::{CpuTime, Interval, Measured, Recorder, Window};
use super::multicast::{Group, Target};
use super::pace::Pace;
use super::plan::{Length, Plan};
use super::posting::Posting;
use super::progress::Progress;
use super::rendezvous::{Rendezvous, cause};
use super::report::{self, Labels, Outcome, PeerInfo, SizeResult, Sized};
use super::run::{self, Flow};
use super::schedule::{Shape, Step};
use super::transport::{Path, Service};
use super::watch::Watch;
use super::wire::{KeyForm, KeyRecord, Version};
use crate::cli::perf::choice::{Measure, Verb};
use crate::session::exchange::EXCHANGE_TIMEOUT;
use crate::session::path::{LocalPort, ah_attr};
use crate::signal::Stop;

/// The hop limit of perftest.
const HOP_LIMIT: u8 = 255;
/// The time in which a perftest peer acknowledges the last message of `write lat`.
const LAST_ACK: Duration = Duration::from_secs(2);
/// Bytes of a cache line, if the kernel does not say.
const CACHE_LINE: u32 = 64;

/// The exchange of many records takes longer than its timeout if a side connects in between.
const _: () = assert!(EXCHANGE_TIMEOUT.as_secs() >= 10);

/// What all runs of this side have in common.
pub(crate) struct Local<'l> {
    pub(crate) port: &'l LocalPort,
    /// The multicast group that this side receives from.
    pub(crate) group: Option<Group>,
    /// Reads and atomics that a queue pair can have outstanding.
    pub(crate) out_reads: u8,
    pub(crate) stop: &'l Stop,
    /// Whether intervals are printed while the run lasts.
    pub(crate) prints: bool,
    pub(crate) progress: Progress,
    pub(crate) rendezvous: &'l Rendezvous,
    /// What runs have measured that a signal ended.
    pub(crate) partial: Mutex<Vec<Outcome>>,
}

/// A run whose control connection is up.
struct Link<'l> {
    plan: Plan<'l>,
    local: &'l Local<'l>,
    exchange: Exchange<'l>,
    agreed: Preamble,
    shape: Shape,
    /// The peer's address, if there are several peers.
    name: Option<String>,
}

/// Runs all sizes with a peer.
pub(crate) fn run<T: Service>(plan: &Plan<'_>, local: &Local<'_>, control: Control<'_>) -> Result<Outcome> {
    let mut plan = plan.clone();
    let options = plan.options;
    let address =
        control.address().map_or_else(String::new, |address| address.ip().to_canonical().to_string());
    let (form, name) = match local.port.gid {
        _ if options.cm => (KeyForm::Binary, "CM"),
        Some(_) => (KeyForm::Gid, "GID"),
        None => (KeyForm::Lid, "LID"),
    };
    let role = if plan.is_client() { Role::Client } else { Role::Server };
    let exchange = Exchange::new(control.with_load(plan.num_qp, plan.largest()), role, form);
    let agreed = exchange.preamble(preamble(&plan, local), &plan.settings(name))?;
    if let Some(option) = plan.needs_bareverbs().filter(|_| !agreed.peer.bareverbs) {
        return Err(ProtocolError::OnlyBareverbs(agreed.peer, option).into());
    }
    plan.limit_to(agreed.mtu).map_err(anyhow::Error::msg)?;
    let gid = local.port.gid.map(|(_, gid)| gid).or_else(|| exchange.control().gid());
    let group = local.group.as_ref();
    let record = KeyRecord {
        lid: group.map_or(local.port.attr.lid, Group::lid),
        gid: group.map(|group| group.gid).or(gid).map(Into::into),
        ..KeyRecord::default()
    };
    let setup = Setup {
        plan: &plan,
        context: &local.port.context,
        agreed: &agreed,
        out_reads: local.out_reads,
        address: &record,
        group,
    };
    let mut endpoints =
        plan.shares().map(|ids| Endpoint::<T>::new(&setup, ids)).collect::<Result<Vec<_>>>()?;
    let shape = Shape::new(&plan, agreed.peer.bareverbs);
    let several = options.clients.is_some() || options.all_to_all.is_some();
    let name = several.then(|| address.clone());
    let link = Link { plan, local, exchange, agreed, shape, name };
    // Dropped before the endpoints.
    let mut connections = link.connections()?;
    // The membership of a sender ends with the run.
    let (remote, _target) = link.connect(&mut endpoints, connections.as_mut())?;
    let mut sizes = Vec::new();
    let ended = link.run_all(&mut endpoints, &mut sizes);
    let program = if agreed.peer.bareverbs { "bareverbs" } else { "perftest" };
    let outcome = Outcome {
        address,
        peer: PeerInfo { program: program.into(), version: agreed.peer.to_string(), addresses: remote },
        agreed,
        addresses: records(&endpoints),
        sizes,
    };
    match ended {
        Ok(()) => Ok(outcome),
        Err(error) => {
            if local.stop.check().is_err() {
                // The results come first: the kernel takes its time, and releases all at the exit.
                std::mem::forget(endpoints);
                if !outcome.sizes.is_empty() {
                    local.partial.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                }
            }
            Err(error)
        }
    }
}

/// What this side offers in the preamble.
fn preamble(plan: &Plan<'_>, local: &Local<'_>) -> Preamble {
    let active_mtu = local.port.attr.active_mtu;
    Preamble {
        peer: Version::OURS,
        cycle_buffer: rustix::param::page_size() as u32,
        cache_line: cache_line(),
        mtu: plan.options.mtu.map_or(active_mtu, |mtu| mtu.min(active_mtu)),
    }
}

/// The cache line of the first level, which perftest exchanges.
fn cache_line() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size");
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.filter(|size: &u32| size.is_power_of_two() && *size <= 4096).unwrap_or(CACHE_LINE)
}

/// The address records of all threads: of the queue pairs that send, then of the XRC targets.
fn records<T: Service>(endpoints: &[Endpoint<T>]) -> Vec<KeyRecord> {
    let requesters = endpoints.iter().flat_map(|endpoint| &endpoint.local);
    requesters.chain(endpoints.iter().flat_map(|endpoint| &endpoint.targets)).copied().collect()
}

/// The place of the peer's record for a local one. The requesters of XRC come before the targets, and
/// connect to those of the peer.
fn peer_of(index: usize, requesters: usize, records: usize) -> usize {
    let both = requesters > 0 && requesters < records;
    if both { (index + requesters) % records } else { index }
}

impl Link<'_> {
    /// The connections of the queue pairs, with `--cm`. A server listens from here on.
    fn connections(&self) -> Result<Option<Connections<'_>>> {
        let (plan, options) = (&self.plan, self.plan.options);
        if !options.cm {
            return Ok(None);
        }
        let request = Request {
            access: plan.remote_access(),
            rd_atomic: if plan.has_responses() { self.local.out_reads } else { 0 },
            timeout: plan.timeout,
        };
        let server = (options.host.as_deref(), options.port);
        Connections::new(server, request, self.exchange.control(), self.local.stop).map(Some)
    }

    /// Joins the group of a peer that this side sends to, with `-g`.
    fn join(&self, peer: &KeyRecord) -> Result<Option<Target>> {
        let (plan, local) = (&self.plan, self.local);
        if !plan.options.mcg || !plan.requests() {
            return Ok(None);
        }
        let peer = peer.gid.map(Gid::from);
        Target::new(plan, local.port, local.group.as_ref(), peer, local.stop).map(Some)
    }

    /// Exchanges the address records and connects the queue pairs. Returns the peer's records, and the
    /// group that this side sends to, if it is one.
    fn connect<T: Service>(
        &self,
        endpoints: &mut [Endpoint<T>],
        mut connections: Option<&mut Connections<'_>>,
    ) -> Result<(Vec<KeyRecord>, Option<Target>)> {
        let local = records(endpoints);
        let (mut remote, mut target) = (Vec::new(), None);
        let steps = self.shape.setup();
        let last = steps.iter().rposition(|&step| step == Step::Barrier);
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Step::Keys => remote = self.exchange.keys(&local)?,
                Step::Sync => self.exchange.sync()?,
                Step::Manage => {
                    let connections = connections.as_mut().context("there are no connections")?;
                    let queue_pairs = endpoints.iter_mut().flat_map(Endpoint::queue_pairs);
                    connections.connect(queue_pairs.filter_map(T::managed).collect())?;
                }
                Step::Connect => {
                    target = self.join(remote.first().context("the peer has no queue pair")?)?;
                    let requesters: usize = endpoints.iter().map(|endpoint| endpoint.local.len()).sum();
                    let peer = |index| peer_of(index, requesters, local.len());
                    let path = |(index, local)| self.path(index, local, &remote[peer(index)]);
                    let paths = local.iter().enumerate().map(path).collect::<Result<Vec<_>>>()?;
                    let (mut paths, mut targets) = paths.split_at(requesters);
                    for endpoint in &mut *endpoints {
                        let (own, others) = paths.split_at(endpoint.local.len());
                        let (own_targets, other_targets) = targets.split_at(endpoint.targets.len());
                        endpoint.connect(own, own_targets, self.local.port.attr.link_layer)?;
                        (paths, targets) = (others, other_targets);
                    }
                }
                _ => {
                    if Some(index) == last && !self.shape.begins_with_barrier() {
                        self.local.rendezvous.wait(self.local.stop)?;
                    }
                    self.barrier(endpoints)?;
                }
            }
        }
        Ok((remote, target))
    }

    /// The path of the queue pair with this index.
    fn path(&self, index: usize, local: &KeyRecord, remote: &KeyRecord) -> Result<Path> {
        let managed = self.plan.options.cm;
        let address = if managed { AhAttr::default() } else { self.address(index, local, remote)? };
        let (mtu, timeout) = (self.agreed.mtu, self.plan.timeout);
        Ok(Path { address, mtu, local: *local, remote: *remote, timeout, managed })
    }

    /// The address that a queue pair sends to.
    fn address(&self, index: usize, local: &KeyRecord, remote: &KeyRecord) -> Result<AhAttr> {
        let options = self.plan.options;
        let gid = remote.gid.filter(|gid| *gid != Ipv6Addr::UNSPECIFIED);
        anyhow::ensure!(
            self.local.port.attr.link_layer != LinkLayer::ETHERNET || gid.is_some(),
            "the peer sent no GID, which RoCE requires: choose its GID index (-x)"
        );
        if let (Some(ours), Some(theirs)) = (local.gid, gid) {
            let is_ipv4 = |gid: Ipv6Addr| gid.to_ipv4_mapped().is_some();
            anyhow::ensure!(
                is_ipv4(ours) == is_ipv4(theirs),
                "the GIDs are of different families: this side has {ours}, the peer {theirs}; choose the GID \
                 index (-x) on both sides"
            );
        }
        let gid = gid.map(Gid::from);
        let sgid_index = self.local.port.gid.map(|(index, _)| index);
        let address = ah_attr((options.ib_port, options.sl), sgid_index, remote.lid, gid)?;
        let labels = &options.flow_label;
        let grh = address.grh.map(|grh| GlobalRoute {
            hop_limit: HOP_LIMIT,
            traffic_class: options.tclass.unwrap_or(0),
            flow_label: labels.get(index % labels.len().max(1)).copied().unwrap_or(0),
            ..grh
        });
        Ok(AhAttr { grh, ..address })
    }

    fn barrier<T: Service>(&self, endpoints: &[Endpoint<T>]) -> Result<()> {
        let first = endpoints.first().and_then(Endpoint::first_record);
        self.exchange.barrier(first.context("there is no queue pair")?)?;
        Ok(())
    }

    fn watch(&self, size: u32) -> Watch<'_> {
        let stall_timeout = self.plan.stall_timeout(size);
        Watch::new(self.local.stop, self.exchange.control().end(), self.abort(), stall_timeout)
    }

    fn abort(&self) -> &AtomicBool {
        &self.local.rendezvous.abort
    }

    /// Runs all sizes, and ends as perftest does. After an error, `results` has what was measured.
    fn run_all<T: Service>(&self, endpoints: &mut [Endpoint<T>], results: &mut Vec<Sized>) -> Result<()> {
        let (plan, shape) = (&self.plan, self.shape);
        let mut started = !shape.begins_with_barrier();
        for &size in &plan.sizes {
            let posting = Posting::new::<T>(plan, &self.agreed, size);
            endpoints.iter_mut().for_each(Endpoint::reset);
            for step in shape.size() {
                match step {
                    Step::Fill => endpoints.iter_mut().try_for_each(|one| one.fill_targets(&posting))?,
                    Step::PostReceives => {
                        endpoints.iter_mut().try_for_each(|one| one.post_receives(&posting))?;
                    }
                    Step::Run => self.run_size(endpoints, &posting, results)?,
                    Step::Report => self.report(results, size)?,
                    Step::Compare => self.compare(endpoints, &posting, results)?,
                    _ => {
                        if !started {
                            self.local.rendezvous.wait(self.local.stop)?;
                            started = true;
                        }
                        self.barrier(endpoints)?;
                    }
                }
            }
        }
        for step in shape.end() {
            match step {
                // Of several sizes in one direction, perftest reports the last one.
                Step::Report => self.report(results, plan.largest())?,
                Step::WaitForEnd => self.watch(plan.largest()).wait_for_end(LAST_ACK)?,
                _ => self.barrier(endpoints)?,
            }
        }
        // A side that only served memory has a result from here on.
        if let Some(last) = results.last_mut().filter(|last| last.result.compared.is_none()) {
            last.result.compared = endpoints.iter_mut().map(Endpoint::take_compared).sum();
        }
        Ok(())
    }

    /// Exchanges the reports of the last result. A passive side has the peer's figures.
    fn report(&self, results: &mut Vec<Sized>, size: u32) -> Result<()> {
        let ours = results.last().map_or_else(Default::default, |last| last.result.to_peer());
        let theirs = self.exchange.report(&ours)?;
        match results.last_mut() {
            None => {
                let result = SizeResult::of_peer(size, theirs.checked()?);
                results.push(Sized { result, measured: None });
            }
            Some(last) if self.plan.bidirectional() => last.result.peer = Some(theirs.checked()?),
            // The report of a side that only served memory has no meaning.
            Some(_) => {}
        }
        Ok(())
    }

    /// Compares what the peer wrote, and lets both sides know.
    fn compare<T: Service>(
        &self,
        endpoints: &mut [Endpoint<T>],
        posting: &Posting,
        results: &mut [Sized],
    ) -> Result<()> {
        let sent: Vec<_> = endpoints.iter().flat_map(Endpoint::sent).collect();
        let theirs = self.exchange.counts(&sent)?;
        let mut rest = &theirs[..];
        let correct = endpoints.iter_mut().try_for_each(|endpoint| {
            let (own, others) = rest.split_at(endpoint.count());
            rest = others;
            endpoint.compare_targets(posting, own)
        });
        let at_peer = self.exchange.outcome(correct.is_ok())?;
        correct?;
        anyhow::ensure!(at_peer, RunError::CorruptAtPeer);
        if let Some(last) = results.last_mut() {
            last.result.compared = endpoints.iter_mut().map(Endpoint::take_compared).sum();
        }
        Ok(())
    }

    /// Runs a size on all threads. `results` gets what was measured, also if a signal ends the run.
    fn run_size<T: Service>(
        &self,
        endpoints: &mut [Endpoint<T>],
        posting: &Posting,
        results: &mut Vec<Sized>,
    ) -> Result<()> {
        let labels = Labels::new(&self.plan, posting.size);
        let sink = |interval: &Interval| {
            self.local.progress.show(interval, &labels);
            if self.local.prints {
                report::print_interval(interval, &labels, self.name.as_deref());
            }
        };
        let collector = Collector::new(endpoints.len(), &sink);
        let on_interval = |interval: &Interval| collector.add(interval);
        let window = match self.plan.length {
            Length::Messages(_) => None,
            Length::Time { total, margin } => Some((margin, total)),
        };
        let window = Window::new(window, Duration::from_secs_f64(self.plan.options.interval));
        let origin = OnceLock::new();
        let recorder = || Recorder::new(window, posting.order.kinds().len(), &origin, &on_interval);
        let (cpu, begun) = (CpuTime::now(), Instant::now());
        let (measured, ended) = match endpoints {
            [endpoint] => {
                let recorder = recorder();
                let pace = self.pace(endpoint, 0);
                self.run_thread(endpoint, pace, posting, recorder)
            }
            _ => self.run_threads(endpoints, posting, &recorder)?,
        };
        let (cpu, elapsed) = (CpuTime::now().since(cpu), begun.elapsed().as_secs_f64());
        collector.finish();
        let stopped = self.local.stop.check().is_err() && measured.messages > 0;
        if ended.is_ok() || stopped {
            let result = SizeResult::new(&self.plan, &posting.order, posting.size, &measured, cpu, elapsed);
            results.push(Sized { result, measured: Some(measured) });
        }
        ended
    }

    /// Runs threads that begin together, and adds up what they measured. The inner error is that of a
    /// thread.
    fn run_threads<'r, T: Service>(
        &self,
        endpoints: &mut [Endpoint<T>],
        posting: &Posting,
        recorder: &(impl Fn() -> Recorder<'r> + Sync),
    ) -> Result<(Measured, Result<()>)> {
        let start = Barrier::new(endpoints.len());
        let results = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut before = 0;
            for endpoint in endpoints {
                let (start, pace) = (&start, self.pace(endpoint, before));
                before += endpoint.count();
                threads.push(scope.spawn(move || {
                    let recorder = recorder();
                    start.wait();
                    let (measured, ended) = self.run_thread(endpoint, pace, posting, recorder);
                    if ended.is_err() {
                        self.local.rendezvous.abort();
                    }
                    (measured, ended)
                }));
            }
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Vec<(Measured, Result<()>)>>()
        });
        let mut errors = Vec::new();
        let mut sum: Option<Measured> = None;
        for (measured, ended) in results {
            errors.extend(ended.err());
            match &mut sum {
                Some(sum) => sum.add(measured),
                None => sum = Some(measured),
            }
        }
        Ok((sum.context("there are no threads")?, cause(errors).map_or(Ok(()), Err)))
    }

    /// The pace of a thread's share of `--rate`. `before` queue pairs are of earlier threads.
    fn pace<T: Service>(&self, endpoint: &Endpoint<T>, before: usize) -> Option<Pace> {
        let of_all = |count: usize| count as f64 / f64::from(self.plan.num_qp);
        let rate = self.plan.options.rate?;
        Some(Pace::new(rate, of_all(endpoint.count()), of_all(before)))
    }

    fn run_thread<T: Service>(
        &self,
        endpoint: &mut Endpoint<T>,
        pace: Option<Pace>,
        posting: &Posting,
        mut recorder: Recorder<'_>,
    ) -> (Measured, Result<()>) {
        let (plan, mut watch) = (&self.plan, self.watch(posting.size));
        let (watch, measuring) = (&mut watch, &mut recorder);
        let ended = match (plan.measure, plan.verb) {
            (Measure::Bandwidth, _) => {
                run::bandwidth(endpoint, plan, Flow::new(plan), pace, posting, measuring, watch)
            }
            (Measure::Latency, Verb::Send | Verb::WriteImm) => {
                run::message_latency(endpoint, plan, posting, measuring, watch)
            }
            (Measure::Latency, Verb::Write) => run::write_latency(endpoint, plan, posting, measuring, watch),
            (Measure::Latency, Verb::Read | Verb::Atomic) => {
                run::response_latency(endpoint, plan, posting, measuring, watch)
            }
        };
        if ended.is_err() {
            recorder.end_early();
        }
        (recorder.finish(), ended)
    }
}

#[cfg(test)]
mod tests {
    use super::peer_of;

    #[test]
    fn requesters_of_xrc_connect_to_targets() {
        let peers = |requesters, records| {
            (0..records).map(|index| peer_of(index, requesters, records)).collect::<Vec<_>>()
        };
        // Both directions: requesters come first.
        assert_eq!(peers(3, 6), [3, 4, 5, 0, 1, 2]);
        assert_eq!(peers(1, 2), [1, 0]);
        // One direction, as client and as server; other transports.
        assert_eq!(peers(3, 3), [0, 1, 2]);
        assert_eq!(peers(0, 3), [0, 1, 2]);
    }
}
