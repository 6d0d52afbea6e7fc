//! Verdicts on facts and figures. Nothing here accesses a device.

use bareverbs::values::Mtu;
use serde::{Deserialize, Serialize};

use super::finding::{Check, Finding, Level, Place};
use crate::perf::counters::Change;

/// Part of the port's rate that a healthy path of hardware carries.
const RATE_PART: f64 = 0.8;
/// Part of the loopback bandwidth that a healthy path between software devices carries.
const LOOPBACK_PART: f64 = 0.1;
/// Part of the port's rate that RDMA reads of a healthy path of hardware carry.
const READ_PART: f64 = 0.5;
/// A latency of this many times the loopback's is that of a delayed path.
const LATENCY_FACTOR: f64 = 20.0;
/// Latencies below these are never delayed, in microseconds: of hardware, of software.
const LATENCY_FLOOR: [f64; 2] = [100.0, 3000.0];
/// Delayed latencies up to these are a warning only: machines that share processors, as guests do, are
/// slow to wake up.
const LATENCY_FAULT: [f64; 2] = [100.0, 10_000.0];
/// The same of 99th percentiles.
const P99_FLOOR: [f64; 2] = [500.0, 15_000.0];
/// Part of lost datagrams, and of packets with errors, above which a path is faulty.
const LOSS_LIMIT: f64 = 0.01;

/// Figures of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Median of RDMA reads of 8 bytes, from request to response, in microseconds.
    pub(crate) latency: f64,
    /// The 99th percentile of the same.
    pub(crate) latency_p99: f64,
    /// Of RDMA writes of 64 KiB, in Gbit/s.
    pub(crate) bandwidth: f64,
    /// Of RDMA reads of 64 KiB, in Gbit/s. An older version of the program has none.
    #[serde(default)]
    pub(crate) bandwidth_back: Option<f64>,
}

impl Figures {
    /// The better ones of two measurements.
    pub(crate) fn best(self, other: Self) -> Self {
        let fast = if self.latency <= other.latency { self } else { other };
        Self {
            bandwidth: self.bandwidth.max(other.bandwidth),
            bandwidth_back: self.bandwidth_back.into_iter().chain(other.bandwidth_back).reduce(f64::max),
            ..fast
        }
    }
}

/// The facts about an end that the other one needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) device: String,
    pub(crate) port: u8,
    /// `Soft-RoCE`, `software iWARP`, `software model`, `soft device` or `hardware`.
    pub(crate) nature: String,
    pub(crate) ethernet: bool,
    /// The rate of the port in Gbit/s.
    pub(crate) rate: Option<f64>,
    /// The active MTU in bytes.
    pub(crate) mtu: u32,
    pub(crate) gid: String,
    pub(crate) gid_index: u8,
    pub(crate) gid_type: String,
    /// The GUID of the device.
    #[serde(default)]
    pub(crate) node_guid: String,
    /// The P_Key that connections use, of InfiniBand.
    #[serde(default)]
    pub(crate) pkey: Option<u16>,
    /// The version of the program.
    #[serde(default)]
    pub(crate) program: String,
    pub(crate) loopback: Option<Figures>,
}

impl Facts {
    fn is_software(&self) -> bool {
        self.nature != "hardware"
    }

    /// Whether the ends are different devices, if both GUIDs are known.
    fn is_other_device(&self, other: &Self) -> bool {
        let known = !self.node_guid.is_empty() && !other.node_guid.is_empty();
        known && self.node_guid != other.node_guid
    }

    fn is_ipv4(&self) -> bool {
        let gid = self.gid.parse::<std::net::Ipv6Addr>();
        gid.is_ok_and(|gid| gid.to_ipv4_mapped().is_some())
    }
}

fn path(level: Level, check: Check, text: impl Into<String>) -> Finding {
    Finding::new(level, Place::Path, check, text)
}

/// Compares both ends. A fault means that they can't be connected.
pub(crate) fn ends(local: &Facts, peer: &Facts) -> Vec<Finding> {
    if let Some(fault) = unusable(local, peer) {
        return vec![fault];
    }
    let differences = [mtus(local, peer), partitions(local, peer), rates(local, peer), programs(local, peer)];
    std::iter::once(gids(local, peer)).chain(differences.into_iter().flatten()).collect()
}

/// A fault that makes further comparisons meaningless.
fn unusable(local: &Facts, peer: &Facts) -> Option<Finding> {
    if local.ethernet != peer.ethernet {
        let name = |ethernet| if ethernet { "Ethernet" } else { "InfiniBand" };
        let text = format!("this end is {}, the peer {}", name(local.ethernet), name(peer.ethernet));
        return Some(path(Level::Fault, Check::Ends, text).remedy("choose devices of one network (-d)"));
    }
    (local.ethernet && local.gid == peer.gid && local.is_other_device(peer)).then(|| {
        let text = format!("both ends have the GID {}: their interfaces have the same IP address", local.gid);
        path(Level::Fault, Check::Ends, text).remedy(
            "give one of the interfaces another address (ip address show; arping -D finds other owners)",
        )
    })
}

fn gids(local: &Facts, peer: &Facts) -> Finding {
    let gids = format!(
        "GID index {} here ({}, {}), {} there ({}, {})",
        local.gid_index, local.gid, local.gid_type, peer.gid_index, peer.gid, peer.gid_type
    );
    if local.ethernet && local.is_ipv4() != peer.is_ipv4() {
        let remedy = "choose GIDs of one family on both ends (-x), or give both interfaces IPv4 addresses";
        path(Level::Fault, Check::Ends, format!("the GIDs are of different families: {gids}")).remedy(remedy)
    } else if local.ethernet && local.gid_type != peer.gid_type {
        path(Level::Fault, Check::Ends, format!("the GIDs are of different types: {gids}"))
            .remedy("choose GIDs of one RoCE version on both ends (-x)")
    } else {
        path(Level::Ok, Check::Ends, gids)
    }
}

fn mtus(local: &Facts, peer: &Facts) -> Option<Finding> {
    (local.mtu != peer.mtu).then(|| {
        let text = format!("the MTU is {} here and {} there", local.mtu, peer.mtu);
        let remedy = if local.ethernet {
            "connections use the smaller one; give both network interfaces and the switch the same MTU"
        } else {
            "connections use the smaller one; check the subnet manager"
        };
        path(Level::Warning, Check::Ends, text).remedy(remedy)
    })
}

fn partitions(local: &Facts, peer: &Facts) -> Option<Finding> {
    let (ours, theirs) = local.pkey.zip(peer.pkey)?;
    let reason = different_partitions(ours, theirs)?;
    let text = format!("the P_Key is {ours:#06x} here and {theirs:#06x} there: {reason}");
    let remedy = "let the subnet manager make both ports members of one partition, at least one of them a \
                  full member (partitions.conf of opensm)";
    Some(path(Level::Fault, Check::Ends, text).remedy(remedy))
}

fn rates(local: &Facts, peer: &Facts) -> Option<Finding> {
    let (ours, theirs) = local.rate.zip(peer.rate)?;
    (ours != theirs).then(|| {
        let text = format!("the rate is {ours} Gbit/s here and {theirs} Gbit/s there: the slower one limits");
        // The rate of a software device is nominal.
        match local.is_software() || peer.is_software() {
            true => path(Level::Note, Check::Ends, text),
            false => path(Level::Warning, Check::Ends, text).remedy(
                "if both ports can do more, check cable, switch port and negotiation of the slower one \
                 (ethtool, ibstat)",
            ),
        }
    })
}

fn programs(local: &Facts, peer: &Facts) -> Option<Finding> {
    (local.program != peer.program).then(|| {
        let version = |end: &Facts| match end.program.as_str() {
            "" => "an older version".to_owned(),
            version => format!("version {version}"),
        };
        let text = format!("this program is {}, that of the peer {}", version(local), version(peer));
        path(Level::Note, Check::Ends, text).remedy("install the same version on both ends")
    })
}

/// Why ports with these P_Keys can't communicate.
fn different_partitions(ours: u16, theirs: u16) -> Option<&'static str> {
    const FULL: u16 = 0x8000;
    if (ours ^ theirs) & !FULL != 0 {
        Some("they are of different partitions")
    } else if (ours | theirs) & FULL == 0 {
        Some("limited members of a partition can't communicate with each other")
    } else {
        None
    }
}

/// Seconds by which clocks may differ. The message takes a part of that.
const SKEW_LIMIT: f64 = 2.0;

/// Compares the clocks of both ends, in seconds since 1970.
pub(crate) fn clocks(local: f64, peer: f64) -> Option<Finding> {
    let ahead = peer - local;
    (ahead.abs() > SKEW_LIMIT).then(|| {
        let direction = if ahead > 0.0 { "ahead" } else { "behind" };
        let text = format!("the peer's clock is {:.0} s {direction}", ahead.abs());
        path(Level::Warning, Check::Ends, text).remedy(
            "times in the logs of both ends don't match: synchronize the clocks (timedatectl, chronyc)",
        )
    })
}

/// The verdict on MTUs, which were tried from the largest one down. `passes` is the one that works.
pub(crate) fn mtu(largest: Mtu, passes: Mtu) -> Finding {
    if largest == passes {
        return path(Level::Ok, Check::Mtu, format!("packets of {largest} bytes pass in both directions"));
    }
    let text = format!("packets of {largest} bytes don't arrive, those of {passes} bytes do");
    path(Level::Fault, Check::Mtu, text).remedy(format!(
        "a link or a switch in between has a smaller MTU: raise it, or use MTU {passes} on both ends"
    ))
}

/// The verdict on the latency.
pub(crate) fn latency(figures: &Figures, local: &Facts, peer: &Facts) -> Finding {
    let text = format!(
        "RDMA reads of 8 bytes take {:.1} us (median), {:.1} us (p99)",
        figures.latency, figures.latency_p99
    );
    let software = usize::from(local.is_software() || peer.is_software());
    let slowest = |figure: fn(Figures) -> f64| {
        [local, peer].into_iter().filter_map(|end| end.loopback).map(figure).reduce(f64::max)
    };
    let (Some(own), Some(own_p99)) = (slowest(|own| own.latency), slowest(|own| own.latency_p99)) else {
        return path(Level::Note, Check::Latency, format!("{text}; there is no figure to compare with"));
    };
    let causes = "look for congestion, a long route, a traffic shaper (tc qdisc show) or power saving";
    if figures.latency > (LATENCY_FACTOR * own).max(LATENCY_FLOOR[software]) {
        let fault = figures.latency > LATENCY_FAULT[software];
        let level = if fault { Level::Fault } else { Level::Warning };
        return path(level, Check::Latency, format!("{text}, but {own:.1} us within one device"))
            .remedy(format!("the path or a busy machine delays packets: {causes}"));
    }
    if figures.latency_p99 > (LATENCY_FACTOR * own_p99).max(P99_FLOOR[software]) {
        let text = format!("{text}, but {own_p99:.1} us (p99) within one device");
        return path(Level::Warning, Check::Latency, text).remedy(format!(
            "the path delays some packets, or loses some, which are retried: {causes}, and for other traffic \
             and busy processors"
        ));
    }
    path(Level::Ok, Check::Latency, text)
}

/// The verdicts on the bandwidth to the peer, and from it.
pub(crate) fn bandwidths(figures: &Figures, local: &Facts, peer: &Facts) -> Vec<Finding> {
    let there = Carried {
        what: "RDMA writes of 64 KiB to the peer",
        bandwidth: figures.bandwidth,
        part: RATE_PART,
        own: |own| Some(own.bandwidth),
    };
    let back = figures.bandwidth_back.map(|bandwidth| Carried {
        what: "RDMA reads of 64 KiB from the peer",
        bandwidth,
        part: READ_PART,
        own: |own| own.bandwidth_back,
    });
    [Some(there), back].into_iter().flatten().map(|carried| carried.judge(local, peer)).collect()
}

/// The bandwidth of a direction.
struct Carried {
    what: &'static str,
    bandwidth: f64,
    /// Part of the port's rate that a healthy path of hardware carries.
    part: f64,
    /// The same of a device with itself.
    own: fn(Figures) -> Option<f64>,
}

impl Carried {
    fn judge(&self, local: &Facts, peer: &Facts) -> Finding {
        let text = format!("{} carry {:.3} Gbit/s", self.what, self.bandwidth);
        let least = |values: [Option<f64>; 2]| values.into_iter().flatten().reduce(f64::min);
        let (limit, of, remedy) = if local.is_software() || peer.is_software() {
            // The rate of a software device is nominal.
            let own = least([local, peer].map(|end| end.loopback.and_then(self.own)));
            (
                own.map(|own| own * LOOPBACK_PART),
                own.map(|own| format!("{own:.3} Gbit/s within one device")),
                "the path carries much less in this direction than the devices can send: look for a traffic \
                 shaper (tc qdisc show), a slow link, or lost packets",
            )
        } else {
            let rate = least([local.rate, peer.rate]);
            (
                rate.map(|rate| rate * self.part),
                rate.map(|rate| format!("the port's rate is {rate} Gbit/s")),
                "look for lost packets and pauses in the counters, a port of lower width or speed, PCIe \
                 limits and the processor's frequency governor",
            )
        };
        match (limit, of) {
            (Some(limit), Some(of)) if self.bandwidth < limit => {
                path(Level::Fault, Check::Bandwidth, format!("{text}; {of}")).remedy(remedy)
            }
            (Some(_), Some(of)) => path(Level::Ok, Check::Bandwidth, format!("{text}; {of}")),
            _ => path(Level::Note, Check::Bandwidth, format!("{text}; there is no figure to compare with")),
        }
    }
}

/// The verdict on datagrams: sent, received by the peer, and echoed.
pub(crate) fn datagrams(sent: u32, received: u32, echoed: u32) -> Finding {
    let text = format!("of {sent} datagrams, {received} arrived and {echoed} came back");
    let lost = f64::from(sent.saturating_sub(echoed)) / f64::from(sent.max(1));
    let (there, back) = (sent.saturating_sub(received), received.saturating_sub(echoed));
    let drops = "look at drops of switches and interfaces (ip -s link, tc -s qdisc)";
    let remedy = match (received, echoed) {
        (0, _) => {
            "no datagram arrives: check the GIDs (-x), that UDP port 4791 is open in both directions, that \
             the neighbour entry of the peer is right (ip neigh), and that no other host has its IP address \
             (arping -D)"
                .to_owned()
        }
        (_, 0) => "no datagram comes back: check the peer's firewall (UDP port 4791), its route and its \
                  neighbour table (ip neigh)"
            .to_owned(),
        _ if back == 0 => format!("the path loses packets on the way to the peer only: {drops}"),
        _ if there == 0 => format!("the path loses packets on the way back only: {drops}"),
        _ => format!("the path loses packets in both directions: {drops}"),
    };
    match lost {
        0.0 => path(Level::Ok, Check::Ud, text),
        lost if lost <= LOSS_LIMIT => path(Level::Warning, Check::Ud, text).remedy(remedy),
        _ => path(Level::Fault, Check::Ud, text).remedy(remedy),
    }
}

/// The verdict on the counters of an end that changed during the checks.
pub(crate) fn counters(place: Place, changes: &[Change]) -> Finding {
    let trouble: Vec<_> = changes.iter().filter(|change| change.trouble).collect();
    if trouble.iter().all(|change| change.change == 0) {
        let text = "no counter of errors, retries or losses changed";
        return Finding::new(Level::Ok, place, Check::Counters, text);
    }
    let packets: u64 =
        changes.iter().filter(|change| change.name.contains("pkts")).map(|change| change.change).sum();
    let names: Vec<_> = trouble.iter().map(|change| format!("{} +{}", change.name, change.change)).collect();
    // A single late acknowledgement repeats all packets that are under way.
    let single = trouble.iter().filter(|change| !change.name.contains("duplicate"));
    let sum: u64 = single.map(|change| change.change).sum();
    let level =
        if packets > 0 && sum as f64 / packets as f64 > LOSS_LIMIT { Level::Fault } else { Level::Warning };
    let text =
        if packets > 0 { format!("{} in {packets} packets", names.join(", ")) } else { names.join(", ") };
    Finding::new(level, place, Check::Counters, text)
        .remedy("packets were lost, reordered, duplicated or late: look at the links and switches in between")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            device: "rxe0".into(),
            port: 1,
            nature: "Soft-RoCE".into(),
            ethernet: true,
            rate: Some(10.0),
            mtu: 1024,
            gid: "::ffff:10.1.0.1".into(),
            gid_index: 1,
            gid_type: "RoCE v2".into(),
            node_guid: "0200:00ff:fe00:0001".into(),
            pkey: None,
            program: "0.1.0".into(),
            loopback: Some(Figures {
                latency: 50.0,
                latency_p99: 60.0,
                bandwidth: 2.0,
                bandwidth_back: Some(2.0),
            }),
        }
    }

    fn worst(findings: &[Finding]) -> &Finding {
        findings.iter().max_by_key(|finding| finding.level).unwrap()
    }

    #[test]
    fn equal_ends_are_ok() {
        assert_eq!(worst(&ends(&facts(), &facts())).level, Level::Ok);
    }

    #[test]
    fn unknown_guid_is_not_that_of_another_device() {
        for (ours, theirs) in [("", "b"), ("b", ""), ("", "")] {
            let [ours, theirs] = [ours, theirs].map(|guid| Facts { node_guid: guid.into(), ..facts() });
            assert_eq!(worst(&ends(&ours, &theirs)).level, Level::Ok);
        }
    }

    #[test]
    fn differences_between_the_ends_are_named() {
        for (peer, level, words) in [
            (Facts { mtu: 4096, ..facts() }, Level::Warning, "the MTU is 1024 here and 4096 there"),
            (Facts { gid: "fe80::1".into(), ..facts() }, Level::Fault, "of different families"),
            (Facts { gid_type: "RoCE v1".into(), ..facts() }, Level::Fault, "of different types"),
            (Facts { ethernet: false, ..facts() }, Level::Fault, "the peer InfiniBand"),
            (Facts { rate: Some(2.5), ..facts() }, Level::Note, "2.5 Gbit/s there"),
            (Facts { node_guid: "b".into(), ..facts() }, Level::Fault, "the same IP address"),
            (Facts { program: "0.2.0".into(), ..facts() }, Level::Note, "that of the peer version 0.2.0"),
            (Facts { program: String::new(), ..facts() }, Level::Note, "that of the peer an older version"),
        ] {
            let findings = ends(&facts(), &peer);
            let worst = worst(&findings);
            assert!(worst.level == level && worst.text.contains(words), "{findings:#?}");
        }
    }

    #[test]
    fn different_rates_of_hardware_are_a_warning() {
        let hardware = Facts { nature: "hardware".into(), ..facts() };
        let findings = ends(&hardware, &Facts { rate: Some(2.5), ..hardware.clone() });
        let worst = worst(&findings);
        assert!(worst.level == Level::Warning && worst.remedy.is_some(), "{findings:#?}");
    }

    #[test]
    fn ends_of_one_partition_need_a_full_member() {
        let infiniband = |pkey| Facts { ethernet: false, pkey: Some(pkey), ..facts() };
        for (ours, theirs, words) in [
            (0xffff, 0xffff, None),
            (0xffff, 0x7fff, None),
            (0x8001, 0x8001, None),
            (0x7fff, 0x7fff, Some("limited members")),
            (0x8001, 0xffff, Some("different partitions")),
            (0x8001, 0x8002, Some("different partitions")),
        ] {
            let findings = ends(&infiniband(ours), &infiniband(theirs));
            let worst = worst(&findings);
            match words {
                None => assert_eq!(worst.level, Level::Ok, "{findings:#?}"),
                Some(words) => {
                    assert!(worst.level == Level::Fault && worst.text.contains(words), "{findings:#?}");
                }
            }
        }
    }

    #[test]
    fn clocks_that_differ_are_named() {
        assert_eq!(clocks(1000.0, 1001.0), None);
        assert!(clocks(1000.0, 4600.0).unwrap().text.contains("3600 s ahead"));
        assert!(clocks(4600.0, 1000.0).unwrap().text.contains("3600 s behind"));
    }

    #[test]
    fn smaller_mtu_of_the_path_is_a_fault() {
        assert_eq!(mtu(Mtu::Mtu1024, Mtu::Mtu1024).level, Level::Ok);
        let finding = mtu(Mtu::Mtu4096, Mtu::Mtu1024);
        assert_eq!(finding.level, Level::Fault);
        assert_eq!(finding.text, "packets of 4096 bytes don't arrive, those of 1024 bytes do");
    }

    #[test]
    fn delay_is_judged_by_the_loopback_latency() {
        let of = |latency| Figures { latency, latency_p99: latency, bandwidth: 1.0, bandwidth_back: None };
        assert_eq!(latency(&of(900.0), &facts(), &facts()).level, Level::Ok);
        assert_eq!(latency(&of(8_000.0), &facts(), &facts()).level, Level::Warning);
        let finding = latency(&of(50_000.0), &facts(), &facts());
        assert!(finding.level == Level::Fault && finding.remedy.unwrap().contains("delays packets"));
        let unknown = Facts { loopback: None, ..facts() };
        assert_eq!(latency(&of(50_000.0), &unknown, &unknown).level, Level::Note);
        let fast = Figures { latency: 2.0, latency_p99: 3.0, bandwidth: 90.0, bandwidth_back: Some(80.0) };
        let hardware = Facts { nature: "hardware".into(), loopback: Some(fast), ..facts() };
        assert_eq!(latency(&of(60.0), &hardware, &hardware).level, Level::Ok);
        assert_eq!(latency(&of(200.0), &hardware, &hardware).level, Level::Fault);
    }

    #[test]
    fn delay_of_some_packets_is_a_warning() {
        let of = |latency_p99| Figures { latency: 50.0, latency_p99, bandwidth: 1.0, bandwidth_back: None };
        assert_eq!(latency(&of(10_000.0), &facts(), &facts()).level, Level::Ok);
        let finding = latency(&of(40_000.0), &facts(), &facts());
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.text.contains("60.0 us (p99) within one device"), "{finding:?}");
        assert!(finding.remedy.unwrap().contains("delays some packets"));
    }

    #[test]
    fn bandwidth_is_judged_by_the_rate_or_the_loopback() {
        let of = |there, back| Figures {
            latency: 1.0,
            latency_p99: 1.0,
            bandwidth: there,
            bandwidth_back: Some(back),
        };
        let levels = |figures: &Figures, end: &Facts| {
            let findings = bandwidths(figures, end, end);
            <[Level; 2]>::try_from(findings.iter().map(|finding| finding.level).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(levels(&of(1.0, 1.0), &facts()), [Level::Ok; 2]);
        assert_eq!(levels(&of(0.005, 1.0), &facts()), [Level::Fault, Level::Ok]);
        assert_eq!(levels(&of(1.0, 0.005), &facts()), [Level::Ok, Level::Fault]);
        let hardware = Facts { nature: "hardware".into(), ..facts() };
        assert_eq!(levels(&of(9.0, 6.0), &hardware), [Level::Ok; 2]);
        assert_eq!(levels(&of(7.0, 4.0), &hardware), [Level::Fault; 2]);
        let finding = &bandwidths(&of(7.0, 6.0), &hardware, &hardware)[0];
        assert!(finding.text.contains("rate is 10 Gbit/s"), "{finding:?}");
        let unknown = Facts { rate: None, ..hardware };
        assert_eq!(levels(&of(7.0, 6.0), &unknown), [Level::Note; 2]);
        // A peer of an older version.
        let figures = Figures { bandwidth_back: None, ..of(1.0, 1.0) };
        assert_eq!(bandwidths(&figures, &facts(), &facts()).len(), 1);
    }

    #[test]
    fn path_is_judged_by_its_slower_end() {
        let of =
            |latency, bandwidth| Figures { latency, latency_p99: latency, bandwidth, bandwidth_back: None };
        let carried = |figures: &Figures, ours: &Facts, theirs: &Facts| {
            let findings = bandwidths(figures, ours, theirs);
            findings.into_iter().map(|finding| finding.level).collect::<Vec<_>>()
        };
        let slow = Facts { loopback: Some(of(5000.0, 0.2)), ..facts() };
        let hardware = Facts { nature: "hardware".into(), ..facts() };
        let fast = Facts { rate: Some(100.0), ..hardware.clone() };
        for (ours, theirs) in [(&slow, &facts()), (&facts(), &slow)] {
            assert_eq!(latency(&of(50_000.0, 1.0), ours, theirs).level, Level::Ok);
            assert_eq!(carried(&of(1.0, 0.03), ours, theirs), [Level::Ok]);
        }
        for (ours, theirs) in [(&hardware, &fast), (&fast, &hardware)] {
            assert_eq!(carried(&of(1.0, 9.0), ours, theirs), [Level::Ok]);
        }
    }

    #[test]
    fn lost_datagrams_are_counted() {
        assert_eq!(datagrams(200, 200, 200).level, Level::Ok);
        assert_eq!(datagrams(200, 200, 199).level, Level::Warning);
        assert!(datagrams(200, 190, 180).remedy.unwrap().contains("loses packets in both directions"));
        assert!(datagrams(200, 180, 180).remedy.unwrap().contains("on the way to the peer only"));
        assert!(datagrams(200, 200, 180).remedy.unwrap().contains("on the way back only"));
        assert!(datagrams(200, 0, 0).remedy.unwrap().contains("UDP port 4791"));
        assert!(datagrams(200, 200, 0).remedy.unwrap().contains("comes back"));
    }

    #[test]
    fn counters_of_trouble_are_weighed_by_the_packets() {
        let change = |name: &str, change, trouble| Change { name: name.into(), change, trouble };
        let packets = change("sent_pkts", 10_000, false);
        assert_eq!(counters(Place::Local, std::slice::from_ref(&packets)).level, Level::Ok);
        let few = [packets.clone(), change("completer_retry_err", 3, true)];
        assert_eq!(counters(Place::Local, &few).level, Level::Warning);
        let many = [packets, change("rcvd_seq_err", 500, true)];
        let repeated = [change("sent_pkts", 10_000, false), change("duplicate_request", 500, true)];
        assert_eq!(counters(Place::Peer, &repeated).level, Level::Warning);
        let finding = counters(Place::Peer, &many);
        assert_eq!((finding.level, finding.place), (Level::Fault, Place::Peer));
        assert!(finding.text.contains("rcvd_seq_err +500 in 10000 packets"), "{finding:?}");
    }
}
