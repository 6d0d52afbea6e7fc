//! `bareverbs resources`: a device's objects, their owners, and its counters.

pub(crate) mod rows;
mod text;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use bareverbs_netlink::{Counter, QpCounters, RdmaNetlink};
use serde::Serialize;

use self::rows::{Cell, Row};
use crate::cli::Resources;
use crate::output;
use crate::signal::{Interrupted, Stop, Wake};

/// The snapshot of a device.
#[derive(Debug, Serialize)]
struct Snapshot {
    device: String,
    /// The number of objects by type, as the kernel counts them.
    summary: Row,
    objects: Vec<Group>,
    ports: Vec<PortCounters>,
    /// Counters with bound queue pairs.
    qp_counters: Vec<Row>,
}

/// The objects of one type.
#[derive(Debug, Serialize)]
struct Group {
    /// The name of the type, as in the summary.
    kind: &'static str,
    list: Vec<Row>,
}

/// The counters of a port.
#[derive(Debug, Serialize)]
struct PortCounters {
    port: u32,
    /// The mode that binds queue pairs to counters, if the driver supports it.
    qp_counter_mode: Option<String>,
    counters: Row,
}

/// A line of JSON while watching.
#[derive(Debug, Serialize)]
struct Sample<'a> {
    /// Seconds since 1970.
    time: f64,
    devices: &'a [Snapshot],
}

/// `bareverbs resources`.
pub(crate) fn show(options: &Resources) -> Result<()> {
    let mut netlink = RdmaNetlink::open()?;
    let Some(period) = options.watch.map(Duration::try_from_secs_f64).transpose()? else {
        let snapshots = snapshots(&mut netlink, options.dev.as_deref())?;
        let text = match options.json {
            true => serde_json::to_string_pretty(&snapshots)? + "\n",
            false => text::render(&snapshots, None),
        };
        return Ok(output::write(&text)?);
    };
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let redraws = !options.json && rustix::termios::isatty(std::io::stdout());
    let mut before: Option<Vec<Snapshot>> = None;
    let mut due = Instant::now();
    loop {
        let now = snapshots(&mut netlink, options.dev.as_deref())?;
        if options.json {
            let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            output::line(&serde_json::to_string(&Sample { time, devices: &now })?)?;
        } else {
            let page = text::render(&now, before.as_deref());
            output::write(&if redraws { format!("{}{page}", text::CLEAR) } else { format!("{page}\n") })?;
        }
        before = Some(now);
        due += period;
        if stop.sleep(due)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
    }
}

/// Snapshots of the devices, taken now.
fn snapshots(netlink: &mut RdmaNetlink, only: Option<&str>) -> Result<Vec<Snapshot>> {
    let mut devices = netlink.devices()?;
    if let Some(name) = only {
        let known = devices.iter().map(|device| device.name.clone()).collect();
        devices.retain(|device| device.name == name);
        if devices.is_empty() {
            return Err(bareverbs::Error::UnknownDevice { name: name.to_owned(), known }.into());
        }
    }
    devices.iter().map(|device| snapshot(netlink, &device.name, device.index)).collect()
}

fn snapshot(netlink: &mut RdmaNetlink, device: &str, index: u32) -> Result<Snapshot> {
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
        Group { kind: "ctx", list: rows::from_objects(&netlink.contexts(device)?) },
        Group { kind: "pd", list: rows::from_objects(&netlink.protection_domains(device)?) },
        Group { kind: "mr", list: rows::from_objects(&netlink.memory_regions(device)?) },
        Group { kind: "cq", list: rows::from_objects(&netlink.completion_queues(device)?) },
        Group { kind: "qp", list: rows::from_objects(&netlink.queue_pairs(device)?) },
        Group { kind: "srq", list: rows::from_objects(&netlink.shared_receive_queues(device)?) },
        Group { kind: "cm_id", list: rows::from_objects(&netlink.cm_ids(device)?) },
    ];
    let mut ports = Vec::new();
    for port in netlink.ports(index)? {
        let Some(counters) = netlink.port_counters(device, port.port)? else { continue };
        let binding = netlink.counter_binding(device, port.port)?;
        ports.push(PortCounters {
            port: port.port.into(),
            qp_counter_mode: binding.and_then(|binding| rows::mode(binding.mode)),
            counters: counter_row(&counters),
        });
    }
    Ok(Snapshot {
        device: device.to_owned(),
        summary: Row(summary.map(|(name, count)| (name.into(), Cell::Number(count))).into()),
        objects,
        ports,
        qp_counters: bound_counters(&netlink.qp_counters(device)?),
    })
}

pub(crate) fn counter_row(counters: &[Counter]) -> Row {
    Row(counters.iter().map(|counter| (counter.name.clone().into(), Cell::Number(counter.value))).collect())
}

pub(crate) fn bound_counters(sets: &[QpCounters]) -> Vec<Row> {
    let mut rows = rows::from_objects(sets);
    for (row, set) in rows.iter_mut().zip(sets) {
        row.0.extend(counter_row(&set.counters).0);
    }
    rows
}
