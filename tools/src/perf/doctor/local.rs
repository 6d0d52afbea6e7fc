//! The checks of this machine: device, port, GIDs, memory, and the device with itself.

use bareverbs::device::{FoundBy, GidEntry, GidType, LinkLayer, PortAttr, PortState};
use bareverbs::qp::QpState;
use bareverbs::values::{GidIndex, Mtu};
use bareverbs::{Access, Buffer, Context, Errno, Error, Pd};
use bareverbs_netlink::RdmaNetlink;

use super::finding::{Check, Finding, Level, Place};
use super::judge::Facts;
use super::probe::{self, Origin};
use crate::cli::doctor::DoctorOptions;
use crate::perf::report::Environment;
use crate::session::path::{gid_type, open_device};
use crate::signal::Stop;
use crate::{link, status};

/// Memory that a benchmark registers, in bytes.
const MEMORY: usize = 4 << 20;

/// The end of a path that this machine can be.
pub(crate) struct End {
    pub(crate) pd: Pd,
    pub(crate) port: u8,
    pub(crate) gid_index: GidIndex,
    pub(crate) mtu: Mtu,
    pub(crate) facts: Facts,
    /// The port's network interface, if it is known.
    netdev: Option<String>,
}

impl End {
    pub(crate) fn origin<'a>(&'a self, stop: &'a Stop) -> Origin<'a> {
        Origin { pd: &self.pd, port: self.port, gid_index: self.gid_index, stop }
    }

    /// What no longer is as it was examined: a port that went down, or a GID that was removed.
    pub(crate) fn changes(&self) -> Vec<Finding> {
        let context = self.pd.context();
        let name = format!("{}/{}", self.facts.device, self.port);
        let meanwhile = |finding: Finding| Finding {
            text: format!("{} since the checks began", finding.text),
            ..finding
        };
        let port = match context.query_port(self.port) {
            Ok(port) => port_state(&name, &port, self.netdev.as_deref()),
            Err(error) => here(Level::Fault, Check::Port, error.to_string()),
        };
        let gid =
            context.gid(self.port, self.gid_index).is_ok_and(|entry| entry.gid.to_string() == self.facts.gid);
        let mut changes = Vec::new();
        if port.level == Level::Fault {
            changes.push(meanwhile(port));
        }
        if !gid {
            let text = format!("{name} has lost GID index {} ({})", self.gid_index, self.facts.gid);
            let finding = here(Level::Fault, Check::Gid, text).remedy(ip_address(self.netdev.as_deref()));
            changes.push(meanwhile(finding));
        }
        changes
    }
}

fn here(level: Level, check: Check, text: impl Into<String>) -> Finding {
    Finding::new(level, Place::Local, check, text)
}

/// Checks this machine. Each finding is passed to `report`. Returns the end of a path, if this
/// machine can be one.
pub(crate) fn examine(
    options: &DoctorOptions,
    stop: &Stop,
    report: &mut dyn FnMut(Finding),
) -> anyhow::Result<Option<End>> {
    let netdevs = Netdevs::read();
    let Some(context) = open(options, report) else { return Ok(None) };
    let device = context.device();
    if device.found_by() == FoundBy::Soft {
        let text = format!(
            "{} is a soft device of this process, with no network interface and no entry in the kernel: \
             its port, GID, memory and path to itself are checked",
            device.name()
        );
        report(here(Level::Ok, Check::Device, text));
    }
    let port = match context.query_port(options.ib_port) {
        Ok(port) => port,
        Err(error) => {
            report(here(Level::Fault, Check::Port, error.to_string()));
            return Ok(None);
        }
    };
    let name = format!("{}/{}", device.name(), options.ib_port);
    let netdev = netdevs.of(device.name(), options.ib_port);
    let state = port_state(&name, &port, netdev);
    let is_active = state.level < Level::Fault;
    report(state);
    gsi_qp(device.name(), options.ib_port, netdev).into_iter().for_each(&mut *report);
    let Some(gid) = gid(options, &context, &port, &name, netdev, report) else { return Ok(None) };
    let Some(pd) = memory(&context, report) else { return Ok(None) };
    if !is_active {
        return Ok(None);
    }
    let facts = facts(options.ib_port, &context, &port, &gid)?;
    let (port, mtu, netdev) = (options.ib_port, port.active_mtu, netdev.map(str::to_owned));
    let mut end = End { pd, port, gid_index: gid.index, mtu, facts, netdev };
    loopback(&mut end, stop, report)?;
    Ok(Some(end))
}

/// What the other end of a path has to know of this one.
fn facts(number: u8, context: &Context, port: &PortAttr, gid: &GidEntry) -> anyhow::Result<Facts> {
    let (device, ethernet) = (context.device(), port.link_layer == LinkLayer::ETHERNET);
    let environment = Environment::new(context, number, port, None)?;
    Ok(Facts {
        device: device.name().into(),
        port: number,
        nature: environment.nature.name().into(),
        ethernet,
        rate: environment.rate,
        mtu: port.active_mtu.bytes(),
        gid: gid.gid.to_string(),
        gid_index: gid.index.into(),
        gid_type: gid_type(gid.gid_type).into(),
        node_guid: device.node_guid().to_string(),
        // The probes use the first P_Key of the port.
        pkey: (!ethernet).then(|| context.pkey(number, 0).ok()).flatten(),
        program: env!("CARGO_PKG_VERSION").into(),
        loopback: None,
    })
}

/// Measures the path of a device to itself.
fn loopback(end: &mut End, stop: &Stop, report: &mut dyn FnMut(Finding)) -> anyhow::Result<()> {
    match probe::loopback(end.origin(stop), end.mtu) {
        Ok(figures) => {
            let text = format!(
                "{}: RDMA reads of 8 bytes take {:.1} us, RDMA writes carry {:.3} Gbit/s",
                end.facts.nature, figures.latency, figures.bandwidth
            );
            report(here(Level::Ok, Check::Loopback, text));
            end.facts.loopback = Some(figures);
        }
        Err(error) => {
            stop.check()?;
            // Rules of the network may forbid it, while peers are reachable.
            let text = format!("the device can't reach itself: {error:#}");
            let remedy = "check the GID (-x) and the route to its own address; figures have no reference now";
            report(here(Level::Warning, Check::Loopback, text).remedy(remedy));
        }
    }
    Ok(())
}

/// Network interfaces by device and port.
struct Netdevs(Vec<(String, u8, String)>);

impl Netdevs {
    /// Without RDMA netlink, none is known.
    fn read() -> Self {
        let ports = RdmaNetlink::open().map_err(anyhow::Error::from);
        let ports = ports.and_then(|mut netlink| link::ports(&mut netlink, None)).unwrap_or_default();
        let named = ports
            .into_iter()
            .filter_map(|(device, port)| Some((device.name, u8::from(port.port), port.netdev_name?)));
        Self(named.collect())
    }

    fn of(&self, device: &str, port: u8) -> Option<&str> {
        let found = self.0.iter().find(|(name, number, _)| name == device && *number == port);
        found.map(|(_, _, netdev)| netdev.as_str())
    }
}

/// Opens the device. Reports why each device can't be opened.
fn open(options: &DoctorOptions, report: &mut dyn FnMut(Finding)) -> Option<Context> {
    let reasons = match open_device(options.ib_dev.as_deref(), options.ib_port) {
        Ok(context) => return Some(context),
        Err(Error::NoneOpened { reasons }) => reasons,
        Err(error) => vec![error],
    };
    reasons.iter().map(not_opened).for_each(report);
    None
}

fn not_opened(error: &Error) -> Finding {
    let remedy = match error {
        Error::Open { errno: Errno::NOENT, .. } => {
            Some("load ib_uverbs (modprobe ib_uverbs), or pass /dev/infiniband into the container".to_owned())
        }
        Error::Open { path, errno: Errno::ACCESS, .. } => Some(format!(
            "let this user read and write {}: join the group that owns it, or run as root",
            path.display()
        )),
        _ => None,
    };
    Finding { remedy, ..here(Level::Fault, Check::Device, error.to_string()) }
}

fn port_state(name: &str, port: &PortAttr, netdev: Option<&str>) -> Finding {
    let ethernet = port.link_layer == LinkLayer::ETHERNET;
    let over = netdev.map_or_else(String::new, |netdev| format!(" over {netdev}"));
    if port.state == PortState::ACTIVE {
        let rate = status::rate(port).map_or_else(
            || format!("unknown rate (width {}, speed {})", port.active_width.0, port.active_speed.0),
            |rate| format!("{}, {rate} Gbit/s", width(port)),
        );
        let layer = if ethernet { "Ethernet" } else { "InfiniBand" };
        let text = format!("{name}{over} is ACTIVE: {layer}, {rate}, MTU {}", port.active_mtu);
        return here(Level::Ok, Check::Port, text);
    }
    let state = link::state_name(port.state);
    let remedy = match (port.state, netdev) {
        (PortState::DOWN, Some(netdev)) if ethernet => {
            format!("set the interface up (ip link set up dev {netdev}); if it is, check cable and switch port")
        }
        (PortState::DOWN, _) => "check the cable and the port of the switch".into(),
        (PortState::INIT | PortState::ARMED, _) => {
            "the link is up, but no subnet manager has configured the port: start opensm, or check the switch's"
                .into()
        }
        _ => "check the kernel log".into(),
    };
    here(Level::Fault, Check::Port, format!("{name}{over} is {state}")).remedy(remedy)
}

/// A fault if QP 1 (GSI), which carries the MADs of the CM, is in ERR. Soft-RoCE sets it to ERR if a
/// MAD is sent while the interface is down; 6.1 reports RTS all the same. Without RDMA netlink,
/// nothing is known.
fn gsi_qp(device: &str, port: u8, netdev: Option<&str>) -> Option<Finding> {
    let qps = RdmaNetlink::open().and_then(|mut netlink| netlink.queue_pairs(device)).ok()?;
    let gsi = qps.into_iter().find(|qp| qp.qp_num == 1 && qp.port.is_none_or(|of| u8::from(of) == port))?;
    let state = gsi.state.filter(|state| *state == QpState::ERR)?;
    let text = format!("QP 1 (GSI) of {device}/{port} is in {state}: connections of rdma_cm time out");
    let netdev = netdev.unwrap_or("NETDEV");
    Some(here(Level::Fault, Check::Port, text).remedy(format!(
        "create the device again when no program uses it (Soft-RoCE: rdma link delete {device}; rdma link add \
         {device} type rxe netdev {netdev}), or load its driver again"
    )))
}

/// The number of lanes in words.
fn width(port: &PortAttr) -> &'static str {
    match port.active_width.0 {
        1 => "1X",
        16 => "2X",
        2 => "4X",
        4 => "8X",
        8 => "12X",
        _ => "unknown width",
    }
}

fn is_link_local(entry: &GidEntry) -> bool {
    entry.gid.0.starts_with(&[0xfe, 0x80])
}

/// The remedy if a GID of an IP address is missing.
fn ip_address(netdev: Option<&str>) -> String {
    netdev.map_or_else(
        || "give the network interface an IP address".to_owned(),
        |netdev| format!("give {netdev} an IP address (ip address add ADDRESS/PREFIX dev {netdev})"),
    )
}

/// Chooses the GID, and says whether a better one exists.
fn gid(
    options: &DoctorOptions,
    context: &Context,
    port: &PortAttr,
    name: &str,
    netdev: Option<&str>,
    report: &mut dyn FnMut(Finding),
) -> Option<GidEntry> {
    let index = match options.gid_index.map(u32::try_from) {
        Some(Ok(index)) => Some(GidIndex::try_from(index)),
        _ => None,
    };
    let best = context.default_gid(options.ib_port).ok();
    let chosen = match index {
        Some(Ok(index)) => context.gid(options.ib_port, index),
        Some(Err(error)) => Err(error.into()),
        None => context.default_gid(options.ib_port),
    };
    let ethernet = port.link_layer == LinkLayer::ETHERNET;
    let address = ip_address(netdev);
    let entry = match chosen {
        Ok(entry) => entry,
        Err(error) => {
            let finding = here(Level::Fault, Check::Gid, error.to_string());
            let remedy = match best {
                // The one of an IP address may have been removed with it.
                Some(best) if ethernet && is_link_local(&best) => address,
                Some(best) => format!("use GID index {} ({}), or omit -x", best.index, best.gid),
                None if ethernet => address,
                None => "check the subnet manager".into(),
            };
            report(finding.remedy(remedy));
            return None;
        }
    };
    let words =
        |entry: &GidEntry| format!("GID index {} ({}, {})", entry.index, entry.gid, gid_type(entry.gid_type));
    let finding = here(Level::Ok, Check::Gid, format!("{name} uses {}", words(&entry)));
    let better = best.filter(|best| {
        best.index != entry.index
            && (is_link_local(&entry) && !is_link_local(best)
                || entry.gid_type == GidType::ROCE_V1 && best.gid_type == GidType::ROCE_V2)
    });
    report(match better {
        _ if !ethernet => finding,
        Some(better) => Finding { level: Level::Warning, ..finding }
            .remedy(format!("{} is reachable from more hosts: omit -x, or use that index", words(&better))),
        None if is_link_local(&entry) => {
            let text = format!("{name} has no GID of an IPv4 or a global IPv6 address: {}", words(&entry));
            here(Level::Fault, Check::Gid, text).remedy(address)
        }
        None => finding,
    });
    Some(entry)
}

/// Registers memory, as every program does.
fn memory(context: &Context, report: &mut dyn FnMut(Finding)) -> Option<Pd> {
    let registered = context.alloc_pd().and_then(|pd| {
        pd.register(Buffer::zeroed(MEMORY)?, Access::LOCAL_WRITE)?;
        Ok(pd)
    });
    let mebibytes = MEMORY >> 20;
    match registered {
        Ok(pd) => {
            report(here(Level::Ok, Check::Memory, format!("{mebibytes} MiB can be registered")));
            Some(pd)
        }
        Err(error) => {
            let finding =
                here(Level::Fault, Check::Memory, format!("{mebibytes} MiB can't be registered: {error}"));
            report(
                finding.remedy("raise the limit on locked memory (ulimit -l, limits.conf, LimitMEMLOCK=)"),
            );
            None
        }
    }
}
