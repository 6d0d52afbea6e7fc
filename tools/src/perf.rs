//! Benchmarks between two or more hosts, wire-compatible with perftest.

mod collect;
pub(crate) mod compare;
mod connections;
pub(crate) mod control;
mod counters;
pub(crate) mod doctor;
mod endpoint;
mod error;
pub(crate) mod exchange;
pub(crate) mod expect;
mod facts;
mod group;
mod html;
mod link;
mod measure;
mod memory;
mod multicast;
mod order;
mod pace;
mod plan;
mod posting;
mod progress;
mod rendezvous;
mod report;
mod run;
mod schedule;
mod svg;
mod transport;
mod verify;
mod watch;
pub(crate) mod wire;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow};
use bareverbs::device::AtomicCap;
use bareverbs::qp::{Rc, Uc, Ud};
use bareverbs::xrc::{XrcSend, XrcdShare};

use self::counters::Snapshot;
use self::link::Local;
use self::multicast::Group;
use self::plan::Plan;
use self::progress::Progress;
use self::rendezvous::Rendezvous;
use self::report::{Environment, Options, Report, Unit};
use self::transport::Service;
use crate::cli::perf::Perf;
use crate::cli::perf::choice::{Connection, Verb};
use crate::output;
use crate::session::path::LocalPort;
use crate::signal::Stop;

/// `bareverbs perf`.
pub(crate) fn run(perf: &Perf) -> Result<()> {
    let plan = Plan::new(perf).map_err(|conflict| anyhow!(conflict))?;
    match plan.options.connection {
        Connection::Rc => run_transport::<Rc>(plan),
        Connection::Uc => run_transport::<Uc>(plan),
        Connection::Ud => run_transport::<Ud>(plan),
        Connection::Xrc => run_transport::<XrcSend>(plan),
    }
}

fn run_transport<T: Service>(mut plan: Plan<'_>) -> Result<()> {
    let options = plan.options;
    let stop = Stop::on_signals_with_results().context("cannot set up signal handling")?;
    let number = options.ib_port;
    let mut port = LocalPort::open(options.ib_dev.as_deref(), number)?;
    if T::HAS_TARGETS {
        // A device without XRC is refused before a peer waits.
        port.context.open_xrcd(XrcdShare::Private)?;
    }
    check_verbs(&plan, &port)?;
    // The connection manager chooses the GID by the route to the address.
    if !options.cm {
        port.choose_gid(options.gid_index)?;
    }
    let environment = Environment::new(&port.context, number, &port.attr, port.gid)?;
    check_path(&plan, &port)?;
    let group = Group::new(&plan, &port)?;
    memory::check(&plan, &port.context)?;
    plan.limit_to(port.attr.active_mtu).map_err(|error| anyhow!(error))?;
    check_size(&plan, &port)?;
    let out_reads = out_reads(&plan, &port)?;
    let rendezvous = Rendezvous::new(group::size(&plan));
    let local = Local {
        port: &port,
        group,
        out_reads,
        stop,
        prints: options.json_lines,
        progress: Progress::new(&plan, group::size(&plan)),
        rendezvous: &rendezvous,
        partial: Mutex::default(),
    };
    let device = port.context.device().name();
    let before = Snapshot::take(device, number);
    let outcomes = group::run::<T>(&plan, &local);
    local.progress.finish();
    let (outcomes, interruption) = match outcomes {
        Ok(outcomes) => (outcomes, None),
        // A signal ends a run early. Its results are those up to then.
        Err(error) => match local.partial.into_inner().unwrap_or_else(PoisonError::into_inner) {
            measured if measured.is_empty() => return Err(error),
            measured => (measured, Some(error)),
        },
    };
    let counters = Snapshot::take(device, number).since(&before);
    let agreed = outcomes.first().context("there is no peer")?.agreed;
    let options = Options::new(&plan, &agreed, out_reads.into());
    let report = Report::new(&plan, environment, options, outcomes, counters);
    let report = Report { interrupted: interruption.is_some(), ..report };
    let published = publish(&plan, &report);
    match interruption {
        // Whether it meets `--expect` says nothing about a whole run.
        Some(error) => {
            let is_verdict = |error: &anyhow::Error| error.is::<expect::NotMet>();
            published.or_else(|other| if is_verdict(&other) { Ok(()) } else { Err(other) })?;
            Err(error)
        }
        None => published,
    }
}

/// Prints and writes the results, and checks `--expect`.
fn publish(plan: &Plan<'_>, report: &Report) -> Result<()> {
    let options = plan.options;
    let text = match (options.json, options.json_lines) {
        (true, _) => serde_json::to_string_pretty(report)?,
        (_, true) => serde_json::to_string(&serde_json::json!({ "result": report }))?,
        (false, false) => [report.heading(), report.table(Unit::of(plan))].concat().join("\n"),
    };
    output::line(&text)?;
    if let Some(file) = &options.html {
        write(file, &html::page(&[("", report)]), "--html")?;
    }
    let checked = expect::check(report, &options.expect);
    if let Some(file) = &options.junit {
        let suite = format!("bareverbs perf {} {}", plan.verb.name(), plan.measure.name());
        write(file, &expect::junit(&suite, &checked), "--junit")?;
    }
    Ok(expect::verdict(&checked)?)
}

fn write(file: &Path, text: &str, option: &str) -> Result<()> {
    output::file(file, text.as_bytes()).with_context(|| format!("cannot write {} ({option})", file.display()))
}

/// Rejects operations that the device lacks, before a peer waits.
fn check_verbs(plan: &Plan<'_>, port: &LocalPort) -> Result<()> {
    let attr = port.context.query_device()?;
    let is_iwarp = port.context.capabilities().iwarp;
    let lacks = |verb: &Verb| match verb {
        Verb::Atomic => attr.atomic_cap == AtomicCap::NONE,
        Verb::WriteImm => is_iwarp,
        Verb::Send | Verb::Write | Verb::Read => false,
    };
    match plan.verbs().find(lacks) {
        Some(verb) => Err(anyhow!(
            "{}: the device has no operation `{}`: choose another one",
            port.context.device().name(),
            verb.name()
        )),
        None => Ok(()),
    }
}

/// Rejects messages that the port does not carry.
fn check_size(plan: &Plan<'_>, port: &LocalPort) -> Result<()> {
    let (size, max) = (plan.largest(), port.attr.max_msg_sz);
    anyhow::ensure!(
        size <= max,
        "{}: a message of {size} bytes (-s) exceeds the maximum of port {} (max_msg_sz {max})",
        port.context.device().name(),
        port.number
    );
    Ok(())
}

/// Rejects options of the path that the port can't apply, before a peer waits.
fn check_path(plan: &Plan<'_>, port: &LocalPort) -> Result<()> {
    let options = plan.options;
    for (given, option) in
        [(options.tclass.is_some(), "--tclass"), (!options.flow_label.is_empty(), "--flow-label")]
    {
        anyhow::ensure!(
            port.gid.is_some() || !given,
            "{option} is a field of the GRH, which packets have only with a GID index (-x)"
        );
    }
    if let Some(index) = options.pkey_index {
        let (pkey, number) = (port.context.pkey(port.number, index).context("--pkey-index")?, port.number);
        anyhow::ensure!(
            pkey != 0,
            "--pkey-index: entry {index} of the P_Key table of port {number} is empty"
        );
    }
    Ok(())
}

/// Reads and atomics that this side can have outstanding; 1 for other operations, as in perftest.
fn out_reads(plan: &Plan<'_>, port: &LocalPort) -> Result<u8> {
    if !plan.verbs().any(|verb| matches!(verb, Verb::Read | Verb::Atomic)) {
        return Ok(1);
    }
    let attr = port.context.query_device()?;
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
