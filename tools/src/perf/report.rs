//! The results of a run, as JSON has them.

mod figures;
mod table;

use std::fs;
use std::path::Path;

use anyhow::Result;
use bareverbs::device::{DriverId, FoundBy, PortAttr};
use bareverbs::values::GidIndex;
use bareverbs::{Context, Device, Gid};
use serde::{Deserialize, Serialize};

use super::counters::Change;
use super::exchange::{Preamble, Role};
use super::plan::{Length, Plan};
use super::wire::KeyRecord;
use crate::cli::perf::choice::{AtomicType, Connection, CqUse, Measure, Verb};
use crate::session::path::gid_type;

pub(crate) use self::figures::{
    Bandwidth, Bucket, Cpu, IntervalFigures, KindResult, Labels, Latency, SizeResult, Sized, Unit,
    print_interval,
};
pub(crate) use self::table::align;

/// What the device is, so that no one takes the figures of one for those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Nature {
    #[serde(rename = "Soft-RoCE")]
    SoftRoce,
    #[serde(rename = "software iWARP")]
    SoftIwarp,
    #[serde(rename = "software model")]
    Model,
    #[serde(rename = "soft device")]
    Soft,
    #[serde(rename = "hardware")]
    Hardware,
}

/// The start of the board id of the software ConnectX.
const MODEL_BOARD: &str = "BRV";

impl Nature {
    fn of(device: &Device, driver: DriverId, board: &str) -> Self {
        match driver {
            _ if device.found_by() == FoundBy::Soft => Self::Soft,
            DriverId::RXE => Self::SoftRoce,
            DriverId::SIW => Self::SoftIwarp,
            _ if board.starts_with(MODEL_BOARD) => Self::Model,
            _ => Self::Hardware,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SoftRoce => "Soft-RoCE",
            Self::SoftIwarp => "software iWARP",
            Self::Model => "software model",
            Self::Soft => "soft device",
            Self::Hardware => "hardware",
        }
    }
}

/// The device and the machine of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Environment {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) nature: Nature,
    pub(crate) driver: String,
    pub(crate) firmware: String,
    pub(crate) kernel: String,
    /// The processors' frequency governor, if there is one.
    pub(crate) governor: Option<String>,
    pub(crate) link_layer: String,
    /// The rate of the port in Gbit/s, if it is known.
    pub(crate) rate: Option<f64>,
    pub(crate) active_mtu: u32,
    pub(crate) gid: Option<String>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) gid_type: Option<String>,
}

impl Environment {
    /// The environment of a port, and the entry of its GID table that the run uses.
    pub(crate) fn new(
        context: &Context,
        port: u8,
        attr: &PortAttr,
        gid: Option<(GidIndex, Gid)>,
    ) -> Result<Self> {
        let (device, driver) = (context.device(), context.driver());
        let entry = gid.map(|(index, _)| context.gid(port, index)).transpose()?;
        let read = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
        let board = read(&Path::new("/sys/class/infiniband").join(device.name()).join("board_id"));
        Ok(Self {
            device: device.name().into(),
            port,
            nature: Nature::of(device, driver, &board.unwrap_or_default()),
            driver: driver.name().map_or_else(|| driver.0.to_string(), str::to_lowercase),
            firmware: device.fw_ver().into(),
            kernel: read(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default(),
            governor: read(Path::new("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            link_layer: if attr.link_layer == bareverbs::device::LinkLayer::ETHERNET {
                "Ethernet"
            } else {
                "InfiniBand"
            }
            .into(),
            rate: crate::status::rate(attr),
            active_mtu: attr.active_mtu.bytes(),
            gid: gid.map(|(_, gid)| gid.to_string()),
            gid_index: gid.map(|(index, _)| index.into()),
            gid_type: entry.map(|entry| gid_type(entry.gid_type).to_string()),
        })
    }

    fn line(&self) -> String {
        let gid = match (&self.gid, self.gid_index, &self.gid_type) {
            (Some(gid), Some(index), Some(kind)) => format!(", GID index {index} ({gid}, {kind})"),
            _ => String::new(),
        };
        format!(
            "{}/{}: {} (driver {}), firmware {}, Linux {}{gid}",
            self.device,
            self.port,
            self.nature.name(),
            self.driver,
            if self.firmware.is_empty() { "-" } else { &self.firmware },
            self.kernel,
        )
    }
}

/// The program at the other end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerInfo {
    pub(crate) program: String,
    /// The version of perftest's exchange.
    pub(crate) version: String,
    pub(crate) addresses: Vec<KeyRecord>,
}

/// The options of a run, resolved.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    messages: Option<u64>,
    duration: Option<f64>,
    margin: Option<f64>,
    queue_pairs: u32,
    tx_depth: u32,
    rx_depth: u32,
    cq_mod: u32,
    post_list: u32,
    bidirectional: bool,
    events: bool,
    mtu: u32,
    outstanding_reads: u16,
    /// The kind of the atomic operations, if there are any.
    pub(crate) atomic_type: Option<AtomicType>,
    /// Whether the connection manager connected the queue pairs.
    #[serde(default)]
    cm: bool,
    /// Whether messages were sent to a multicast group, and the group that was chosen.
    #[serde(default)]
    mcg: bool,
    mgid: Option<String>,
    tclass: Option<u8>,
    /// The flow labels of the queue pairs, in turn.
    #[serde(default)]
    flow_label: Vec<u32>,
    pkey_index: Option<u16>,
    #[serde(default)]
    odp: bool,
    #[serde(default)]
    huge_pages: bool,
    #[serde(default)]
    dma_buf: bool,
    pub(crate) threads: u32,
    cq: CqUse,
    srq: bool,
    verify: bool,
    /// Messages per second that were to be started.
    pub(crate) rate: Option<f64>,
    mix: Option<String>,
    /// The clients of a server, or the hosts of `--all-to-all`.
    clients: Option<u32>,
    all_to_all: Option<u32>,
}

impl Options {
    pub(crate) fn new(plan: &Plan<'_>, agreed: &Preamble, outstanding_reads: u16) -> Self {
        let (messages, duration, margin) = match plan.length {
            Length::Messages(messages) => (Some(messages), None, None),
            Length::Time { total, margin } => (None, Some(total.as_secs_f64()), Some(margin.as_secs_f64())),
        };
        Self {
            messages,
            duration,
            margin,
            queue_pairs: plan.num_qp,
            tx_depth: plan.tx_depth,
            rx_depth: plan.rx_depth,
            cq_mod: plan.cq_mod,
            post_list: plan.options.post_list,
            bidirectional: plan.bidirectional(),
            events: plan.options.events,
            mtu: agreed.mtu.bytes(),
            outstanding_reads,
            atomic_type: plan.atomic_type(),
            cm: plan.options.cm,
            mcg: plan.options.mcg,
            mgid: plan.options.mgid.map(|group| group.to_string()),
            tclass: plan.options.tclass,
            flow_label: plan.options.flow_label.clone(),
            pkey_index: plan.options.pkey_index,
            odp: plan.options.odp,
            huge_pages: plan.options.huge_pages,
            dma_buf: plan.options.dma_buf,
            threads: plan.options.threads,
            cq: plan.options.cq,
            srq: plan.shares_receives(),
            verify: plan.options.verify,
            rate: plan.options.rate,
            mix: plan.options.mix.as_ref().map(ToString::to_string),
            clients: plan.options.clients,
            all_to_all: plan.options.all_to_all.as_ref().map(|hosts| hosts.members().len() as u32),
        }
    }
}

/// The results with one of several peers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PeerResults {
    /// The peer's IP address.
    pub(crate) host: String,
    pub(crate) peer: PeerInfo,
    pub(crate) addresses: Vec<KeyRecord>,
    pub(crate) results: Vec<SizeResult>,
}

/// A finished benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) program: String,
    pub(crate) version: String,
    pub(crate) operation: Verb,
    pub(crate) test: Measure,
    pub(crate) transport: Connection,
    pub(crate) role: Role,
    pub(crate) environment: Environment,
    pub(crate) options: Options,
    /// Whether a signal ended the run: the results are those up to then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) interrupted: bool,
    /// Absent if there are several peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<PeerInfo>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) addresses: Vec<KeyRecord>,
    /// The sums of all peers.
    pub(crate) results: Vec<SizeResult>,
    /// The peers, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) peers: Vec<PeerResults>,
    /// The counters of the port and the device that changed.
    pub(crate) counters: Vec<Change>,
}

/// A run with a peer that has ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) address: String,
    pub(crate) peer: PeerInfo,
    pub(crate) agreed: Preamble,
    pub(crate) addresses: Vec<KeyRecord>,
    pub(crate) sizes: Vec<Sized>,
}

impl Report {
    /// The report of runs with all peers.
    pub(crate) fn new(
        plan: &Plan<'_>,
        environment: Environment,
        options: Options,
        outcomes: Vec<Outcome>,
        counters: Vec<Change>,
    ) -> Self {
        let mut report = Self {
            program: "bareverbs perf".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            operation: plan.verb,
            test: plan.measure,
            transport: plan.options.connection,
            role: if plan.is_client() { Role::Client } else { Role::Server },
            environment,
            options,
            interrupted: false,
            peer: None,
            addresses: Vec::new(),
            results: sum(plan, &outcomes),
            peers: Vec::new(),
            counters,
        };
        let several = plan.options.clients.is_some() || plan.options.all_to_all.is_some();
        for Outcome { address, peer, addresses, sizes, .. } in outcomes {
            let results = sizes.into_iter().map(|one| one.result).collect();
            if several {
                report.peers.push(PeerResults { host: address, peer, addresses, results });
            } else {
                (report.peer, report.addresses, report.results) = (Some(peer), addresses, results);
            }
        }
        report
    }
}

/// The results with each peer, and their sums by size.
fn sum(plan: &Plan<'_>, outcomes: &[Outcome]) -> Vec<SizeResult> {
    let sizes = outcomes.iter().map(|outcome| outcome.sizes.len()).max().unwrap_or(0);
    let of_size =
        |index: usize| outcomes.iter().filter_map(|outcome| outcome.sizes.get(index)).collect::<Vec<_>>();
    (0..sizes).filter_map(|index| SizeResult::sum(plan, &of_size(index))).collect()
}
