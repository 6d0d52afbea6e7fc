//! Benchmarks between two hosts, wire-compatible with perftest.

mod counters;
pub(crate) mod doctor;
mod endpoint;
mod error;
pub(crate) mod expect;
mod measure;
mod report;
mod run;
mod schedule;
pub(crate) mod session;
mod transport;
mod watch;
pub(crate) mod wire;

use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bareverbs::{Context, Gid, GlobalRoute, LinkLayer, Mtu, PortAttr, Rc, Uc, Ud};

use self::counters::Snapshot;
use self::endpoint::{Endpoint, Posting, Steps};
use self::measure::{CpuTime, Recorder};
use self::report::{Environment, Options, PeerInfo, Report, SizeResult, Unit};
use self::run::Flow;
use self::schedule::{Shape, Step};
use self::session::{Preamble, Role, Session};
use self::transport::{Path, Service};
use self::watch::Watch;
use self::wire::{KeyForm, KeyRecord, Version};
use crate::cli::perf::{Connection, Length, Measure, Perf, Plan, Verb};
use crate::devinfo::gid_type;
use crate::pingpong::exchange::{Peer, Server};
use crate::pingpong::queues::ah_attr;
use crate::signal::Stop;
use crate::{devices, output};

/// The hop limit of perftest.
const HOP_LIMIT: u8 = 255;
/// The time in which a perftest peer acknowledges the last message of `write lat`.
const LAST_ACK: Duration = Duration::from_secs(2);
/// Bytes of a cache line, if the kernel does not say.
const CACHE_LINE: u32 = 64;

/// `bareverbs perf`.
pub(crate) fn run(options: &Perf) -> Result<()> {
    let plan = options.plan().map_err(|conflict| anyhow!(conflict))?;
    match plan.options.connection {
        Connection::Rc => run_transport::<Rc>(plan),
        Connection::Uc => run_transport::<Uc>(plan),
        Connection::Ud => run_transport::<Ud>(plan),
    }
}

/// A side whose control connection is up.
struct Side<'a> {
    plan: &'a Plan<'a>,
    session: &'a Session<'a>,
    agreed: Preamble,
    stop: &'a Stop,
}

fn run_transport<T: Service>(mut plan: Plan<'_>) -> Result<()> {
    let options = plan.options;
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let device = devices::find_or_first(options.ib_dev.as_deref())?;
    let context = device.open()?;
    let port = context.query_port(options.ib_port)?;
    let gid = crate::pingpong::select_gid(options.gid_index, options.ib_port, &context, &port)?;
    let mut environment = Environment::new(&device, options.ib_port, context.driver(), &port);
    if let Some((index, gid)) = gid {
        let entry = context.gid(options.ib_port, index)?;
        environment.gid = Some(gid.to_string());
        environment.gid_index = Some(index.into());
        environment.gid_type = Some(gid_type(entry.gid_type).to_string());
    }
    plan.limit_to(port.active_mtu).map_err(|error| anyhow!(error))?;
    let size = plan.largest();
    anyhow::ensure!(
        size <= port.max_msg_sz,
        "{}: a message of {size} bytes (-s) exceeds the maximum of port {} (max_msg_sz {})",
        device.name(),
        options.ib_port,
        port.max_msg_sz
    );
    let out_reads = out_reads(&plan, &context)?;

    let (role, peer) = match &options.host {
        None => {
            let server = Server::listen(options.port)?;
            output::diagnostic(&format!("waiting for a client on TCP port {}", options.port));
            (Role::Server, server.accept(stop)?)
        }
        Some(host) => (Role::Client, Peer::connect(host, options.port, stop)?),
    };
    peer.keep_alive()?;
    let (form, name) = if gid.is_some() { (KeyForm::Gid, "GID") } else { (KeyForm::Lid, "LID") };
    let session = Session::new(peer.with_queue_pairs(plan.num_qp), role, form);
    let local = Preamble {
        peer: Version::OURS,
        cycle_buffer: rustix::param::page_size() as u32,
        cache_line: cache_line(),
        mtu: options.mtu.map_or(port.active_mtu, |mtu| mtu.min(port.active_mtu)),
    };
    let agreed = session.preamble(local, &plan.settings(name))?;
    plan.limit_to(agreed.mtu).map_err(|error| anyhow!(error))?;

    let address = KeyRecord { lid: port.lid, gid: gid.map(|(_, gid)| gid.0.into()), ..KeyRecord::default() };
    let mut endpoint = Endpoint::<T>::new(&plan, &context, &agreed, out_reads, &address)?;
    let side = Side { plan: &plan, session: &session, agreed, stop };
    let sgid_index = gid.map(|(index, _)| index);
    let remote = side.connect(
        &mut endpoint,
        |local, remote| path(&plan, &agreed, &port, sgid_index, local, remote),
        port.link_layer,
    )?;
    let mut report = Report {
        program: "bareverbs perf",
        version: env!("CARGO_PKG_VERSION"),
        operation: plan.verb,
        test: plan.measure,
        transport: T::CONNECTION,
        role,
        environment,
        options: Options::new(&plan, &agreed, out_reads.into()),
        peer: PeerInfo {
            program: if agreed.peer.bareverbs { "bareverbs" } else { "perftest" },
            version: agreed.peer.to_string(),
            addresses: remote,
        },
        addresses: endpoint.local.clone(),
        results: Vec::new(),
        counters: Vec::new(),
    };
    let lines = !options.json && !options.json_lines;
    if lines {
        output::line(&report.heading().join("\n"))?;
    }
    let before = Snapshot::take(device.name(), options.ib_port);
    report.results = side.run_all(&mut endpoint)?;
    report.counters = Snapshot::take(device.name(), options.ib_port).since(&before);
    let text = match (options.json, options.json_lines) {
        (true, _) => serde_json::to_string_pretty(&report)?,
        (_, true) => serde_json::to_string(&serde_json::json!({ "result": report }))?,
        (false, false) => report.table(Unit::of(&plan)).join("\n"),
    };
    output::line(&text)?;
    let checked = expect::check(&report, &options.expect);
    if let Some(file) = &options.junit {
        let suite = format!("bareverbs perf {} {}", plan.verb.name(), plan.measure.name());
        std::fs::write(file, expect::junit(&suite, &checked))
            .with_context(|| format!("cannot write {} (--junit)", file.display()))?;
    }
    Ok(expect::verdict(&checked)?)
}

/// Reads and atomics that this side can have outstanding; 1 for other operations, as in perftest.
fn out_reads(plan: &Plan<'_>, context: &Context) -> Result<u8> {
    if !matches!(plan.verb, Verb::Read | Verb::Atomic) {
        return Ok(1);
    }
    let attr = context.query_device()?;
    let most = attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom);
    let most = u8::try_from(most).unwrap_or(u8::MAX);
    match plan.options.outs {
        Some(outs) if outs > most => Err(anyhow!(
            "{outs} outstanding reads (-o) exceed the limit of the device (max_qp_rd_atom {most})"
        )),
        Some(outs) => Ok(outs),
        None => Ok(most.max(1)),
    }
}

/// The cache line of the first level, which perftest exchanges.
fn cache_line() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size");
    let size = text.ok().and_then(|text| text.trim().parse().ok());
    size.filter(|size: &u32| size.is_power_of_two() && *size <= 4096).unwrap_or(CACHE_LINE)
}

fn path(
    plan: &Plan<'_>,
    agreed: &Preamble,
    port: &PortAttr,
    sgid_index: Option<bareverbs::GidIndex>,
    local: &KeyRecord,
    remote: &KeyRecord,
) -> Result<Path> {
    let options = plan.options;
    let gid = remote.gid.filter(|gid| *gid != Ipv6Addr::UNSPECIFIED);
    anyhow::ensure!(
        port.link_layer != LinkLayer::ETHERNET || gid.is_some(),
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
    let gid = gid.map(|gid| Gid(gid.octets()));
    let address = ah_attr((options.ib_port, options.sl), sgid_index, remote.lid, gid)?;
    let grh = address.grh.map(|grh| GlobalRoute { hop_limit: HOP_LIMIT, ..grh });
    let address = bareverbs::AhAttr { grh, ..address };
    let mtu: Mtu = agreed.mtu;
    Ok(Path { address, mtu, local: *local, remote: *remote, timeout: plan.timeout })
}

impl Side<'_> {
    fn shape(&self) -> Shape {
        Shape::new(self.plan, self.agreed.peer.bareverbs)
    }

    /// Exchanges the address records and connects the queue pairs.
    fn connect<T: Service>(
        &self,
        endpoint: &mut Endpoint<T>,
        path: impl Fn(&KeyRecord, &KeyRecord) -> Result<Path>,
        link_layer: LinkLayer,
    ) -> Result<Vec<KeyRecord>> {
        let local = endpoint.local.clone();
        let mut remote = Vec::new();
        for step in self.shape().setup() {
            match step {
                Step::Keys => remote = self.session.keys(&local)?,
                Step::Connect => {
                    let paths = local.iter().zip(&remote).map(|(local, remote)| path(local, remote));
                    endpoint.connect(&paths.collect::<Result<Vec<_>>>()?, link_layer)?;
                }
                _ => self.barrier(endpoint)?,
            }
        }
        Ok(remote)
    }

    fn barrier<T: Service>(&self, endpoint: &Endpoint<T>) -> Result<()> {
        self.session.barrier(&endpoint.local[0])?;
        Ok(())
    }

    /// Runs all sizes, and ends as perftest does.
    fn run_all<T: Service>(&self, endpoint: &mut Endpoint<T>) -> Result<Vec<SizeResult>> {
        let (plan, shape) = (self.plan, self.shape());
        let mut results = Vec::new();
        for &size in &plan.sizes {
            let posting = self.posting::<T>(size);
            endpoint.reset();
            for step in shape.size() {
                match step {
                    Step::PostReceives => endpoint.post_receives(&posting, plan.rx_depth)?,
                    Step::Run => results.push(self.run_size(endpoint, &posting)?),
                    Step::Report => self.report(&mut results, size)?,
                    _ => self.barrier(endpoint)?,
                }
            }
        }
        for step in shape.end() {
            match step {
                // Of several sizes in one direction, perftest reports the last one.
                Step::Report => self.report(&mut results, plan.largest())?,
                Step::WaitForEnd => {
                    Watch::new(self.stop, self.session.peer().as_fd()).wait_for_end(LAST_ACK)?;
                }
                _ => self.barrier(endpoint)?,
            }
        }
        Ok(results)
    }

    /// Exchanges the reports of the last result. A passive side has the peer's figures.
    fn report(&self, results: &mut Vec<SizeResult>, size: u32) -> Result<()> {
        let ours = results.last().map_or_else(Default::default, SizeResult::to_peer);
        let theirs = self.session.report(&ours)?;
        match results.last_mut() {
            None => results.push(SizeResult::of_peer(size, theirs)),
            Some(result) if self.plan.bidirectional() => result.peer = Some(theirs),
            // The report of a side that only served memory has no meaning.
            Some(_) => {}
        }
        Ok(())
    }

    fn posting<T: Service>(&self, size: u32) -> Posting {
        let plan = self.plan;
        let steps = |size| match plan.measure {
            Measure::Bandwidth => Steps::new(size, &self.agreed),
            Measure::Latency => Steps::NONE,
        };
        Posting {
            verb: plan.verb,
            size,
            send_steps: steps(size),
            recv_steps: steps(size + T::HEADROOM),
            cq_mod: plan.cq_mod.into(),
            limit: match plan.length {
                Length::Messages(messages) => messages,
                Length::Time { .. } => u64::MAX,
            },
        }
    }

    fn run_size<T: Service>(&self, endpoint: &mut Endpoint<T>, posting: &Posting) -> Result<SizeResult> {
        let plan = self.plan;
        let window = match plan.length {
            Length::Messages(_) => None,
            Length::Time { total, margin } => Some((margin, total)),
        };
        let print = if plan.options.json_lines { report::print_interval } else { |_: &_, _: &_| {} };
        let interval = Duration::from_secs_f64(plan.options.interval);
        let mut recorder = Recorder::new(window, interval, report::labels(plan, posting.size), print);
        let mut watch = Watch::new(self.stop, self.session.peer().as_fd());
        let (cpu, begun) = (CpuTime::now(), Instant::now());
        match (plan.measure, plan.verb) {
            (Measure::Bandwidth, _) => {
                run::bandwidth(endpoint, plan, Flow::new(plan), posting, &mut recorder, &mut watch)
            }
            (Measure::Latency, Verb::Send | Verb::WriteImm) => {
                run::message_latency(endpoint, plan, posting, &mut recorder, &mut watch)
            }
            (Measure::Latency, Verb::Write) => {
                run::write_latency(endpoint, plan, posting, &mut recorder, &mut watch)
            }
            (Measure::Latency, Verb::Read | Verb::Atomic) => {
                run::response_latency(endpoint, plan, posting, &mut recorder, &mut watch)
            }
        }?;
        let (cpu, elapsed) = (CpuTime::now().since(cpu), begun.elapsed().as_secs_f64());
        Ok(SizeResult::new(plan, posting.size, &recorder.finish(), cpu, elapsed))
    }
}
