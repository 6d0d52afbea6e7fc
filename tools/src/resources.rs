//! `bareverbs resources`: what a device's objects are, whose they are, and what it counts.

mod rows;
mod text;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use bareverbs::netlink::{Counter, QpCounters, RdmaNetlink};
use serde::Serialize;

use self::rows::{Cell, Row};
use crate::cli::Resources;
use crate::say;
use crate::stop::{Interrupted, Stop, Wake};

/// Everything of a device.
#[derive(Debug, Serialize)]
struct Picture {
    device: String,
    /// How many objects of each sort there are, by the kernel's count.
    summary: Row,
    objects: Vec<Group>,
    ports: Vec<PortCounters>,
    /// Counters that queue pairs are bound to.
    qp_counters: Vec<Row>,
}

/// The objects of one sort.
#[derive(Debug, Serialize)]
struct Group {
    /// As in the summary.
    kind: &'static str,
    list: Vec<Row>,
}

/// What is counted of a port.
#[derive(Debug, Serialize)]
struct PortCounters {
    port: u32,
    /// How queue pairs come to counters of their own, where they can.
    qp_counter_mode: Option<String>,
    counters: Row,
}

/// A line of JSON while watching.
#[derive(Debug, Serialize)]
struct Moment<'a> {
    /// Seconds since 1970.
    time: f64,
    devices: &'a [Picture],
}

/// `bareverbs resources`.
pub(crate) fn show(options: &Resources) -> Result<()> {
    let mut netlink = RdmaNetlink::open()?;
    let Some(period) = options.watch.map(Duration::try_from_secs_f64).transpose()? else {
        let pictures = take(&mut netlink, options.dev.as_deref())?;
        let text = match options.json {
            true => serde_json::to_string_pretty(&pictures)? + "\n",
            false => text::render(&pictures, None),
        };
        return Ok(say::page(&text)?);
    };
    let stop = Stop::on_signals().context("couldn't prepare for signals")?;
    let redraws = !options.json && rustix::termios::isatty(std::io::stdout());
    let mut before: Option<Vec<Picture>> = None;
    let mut due = Instant::now();
    loop {
        let now = take(&mut netlink, options.dev.as_deref())?;
        if options.json {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            say::line(&serde_json::to_string(&Moment { time, devices: &now })?)?;
        } else {
            let page = text::render(&now, before.as_deref());
            say::page(&if redraws { format!("{}{page}", text::CLEAR) } else { format!("{page}\n") })?;
        }
        before = Some(now);
        due += period;
        if stop.sleep(due)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
    }
}

/// The devices as they are now.
fn take(netlink: &mut RdmaNetlink, only: Option<&str>) -> Result<Vec<Picture>> {
    let mut devices = netlink.devices()?;
    if let Some(name) = only {
        let known = devices.iter().map(|device| device.name.clone()).collect();
        devices.retain(|device| device.name == name);
        if devices.is_empty() {
            return Err(bareverbs::Error::UnknownDevice { name: name.to_owned(), known }.into());
        }
    }
    devices.iter().map(|device| picture(netlink, &device.name, device.index)).collect()
}

fn picture(netlink: &mut RdmaNetlink, device: &str, index: u32) -> Result<Picture> {
    let used = netlink.resources(device)?;
    let summary = [
        ("pd", used.pd),
        ("cq", used.cq),
        ("qp", used.qp),
        ("cm_id", used.cm_id),
        ("mr", used.mr),
        ("ctx", used.ctx),
        ("srq", used.srq),
    ];
    let objects = vec![
        Group { kind: "ctx", list: rows::of(&netlink.contexts(device)?) },
        Group { kind: "pd", list: rows::of(&netlink.protection_domains(device)?) },
        Group { kind: "mr", list: rows::of(&netlink.memory_regions(device)?) },
        Group { kind: "cq", list: rows::of(&netlink.completion_queues(device)?) },
        Group { kind: "qp", list: rows::of(&netlink.queue_pairs(device)?) },
        Group { kind: "srq", list: rows::of(&netlink.shared_receive_queues(device)?) },
        Group { kind: "cm_id", list: rows::of(&netlink.connection_ids(device)?) },
    ];
    let mut ports = Vec::new();
    for port in netlink.ports(index)? {
        let Some(counters) = netlink.port_counters(device, port.port)? else { continue };
        let binding = netlink.counter_binding(device, port.port)?;
        ports.push(PortCounters {
            port: port.port,
            qp_counter_mode: binding.and_then(|binding| rows::mode(binding.mode)),
            counters: counted(&counters),
        });
    }
    Ok(Picture {
        device: device.to_owned(),
        summary: Row(summary.map(|(name, count)| (name.into(), Cell::Number(count))).into()),
        objects,
        ports,
        qp_counters: bound_counters(&netlink.qp_counters(device)?),
    })
}

fn counted(counters: &[Counter]) -> Row {
    Row(counters.iter().map(|counter| (counter.name.clone().into(), Cell::Number(counter.value))).collect())
}

fn bound_counters(sets: &[QpCounters]) -> Vec<Row> {
    let mut rows = rows::of(sets);
    for (row, set) in rows.iter_mut().zip(sets) {
        row.0.extend(counted(&set.counters).0);
    }
    rows
}
