//! The device's port: addresses and tables.

use bareverbs_transport::AddressVector;

use super::packet::{Global, Link, Network, Route};

/// Size of the GID table of an Ethernet port.
pub(crate) const GIDS: usize = 64;
/// Size of the P_Key table.
pub(crate) const PKEYS: usize = 128;
/// The default P_Key, with full membership.
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;

/// The initial subnet prefix.
const LINK_LOCAL: u64 = 0xfe80_0000_0000_0000;

/// The GUID of a fabric's first port, and the distance between the GUIDs of successive ports.
const FIRST_GUID: u64 = 0x0002_c903_00fa_4e00;
const GUIDS_APART: u64 = 1 << 8;

/// The LID of the InfiniBand port with this GUID. Returns `None` for a GUID of no possible port.
pub(crate) fn lid_of(guid: u64) -> Option<u16> {
    let from_first = guid.checked_sub(FIRST_GUID)?;
    let index = u8::try_from(from_first / GUIDS_APART).ok()?;
    (from_first % GUIDS_APART == 0).then_some(u16::from(index) + 1)
}

/// A GID of an Ethernet port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gid {
    pub(crate) address: [u8; 16],
    pub(crate) mac: [u8; 6],
    /// RoCE version in the firmware's encoding: 0 for v1, 2 for v2.
    pub(crate) version: u8,
}

/// The port.
#[derive(Clone, Debug)]
pub struct Port {
    /// The link layer.
    pub link: Link,
    /// The LID; 0 on Ethernet.
    pub lid: u16,
    /// The port GUID.
    pub guid: u64,
    /// The subnet prefix of the GIDs on InfiniBand.
    pub prefix: u64,
    /// The MAC.
    pub mac: [u8; 6],
    /// Whether a cable connects it to the fabric.
    pub(crate) cable: bool,
    /// The administrative status, which the driver sets by PAOS.
    pub(crate) enabled: bool,
    pub(crate) gids: Vec<Option<Gid>>,
    pub(crate) pkeys: [u16; PKEYS],
    pub(crate) qkey_violations: u16,
    pub(crate) pkey_violations: u16,
}

impl Port {
    /// The port of the `index`th device of a fabric, counted from 0.
    pub fn new(link: Link, index: u8) -> Self {
        let mut pkeys = [0; PKEYS];
        pkeys[0] = DEFAULT_PKEY;
        Self {
            link,
            lid: if link == Link::InfiniBand { u16::from(index) + 1 } else { 0 },
            guid: FIRST_GUID + u64::from(index) * GUIDS_APART,
            prefix: LINK_LOCAL,
            mac: [0x00, 0x02, 0xc9, 0xfa, 0x4e, index],
            cable: true,
            enabled: true,
            gids: vec![None; GIDS],
            pkeys,
            qkey_violations: 0,
            pkey_violations: 0,
        }
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.cable && self.enabled
    }

    /// The port GID of an InfiniBand port: subnet prefix and GUID.
    pub(crate) fn own_gid(&self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&self.prefix.to_be_bytes());
        gid[8..].copy_from_slice(&self.guid.to_be_bytes());
        gid
    }

    /// The addresses in the GID table.
    pub(crate) fn gid_addresses(&self) -> Vec<[u8; 16]> {
        self.gids.iter().flatten().map(|gid| gid.address).collect()
    }

    /// Whether the port accepts packets with this destination.
    pub(crate) fn answers_to(&self, route: &Route) -> bool {
        match (self.link, &route.global) {
            _ if route.is_multicast() => true,
            (Link::InfiniBand, _) => route.destination_lid == self.lid,
            (Link::Ethernet, Some(global)) => {
                self.gids.iter().flatten().any(|gid| gid.address == global.destination)
            }
            (Link::Ethernet, None) => false,
        }
    }

    /// The route of an address vector. Returns `None` if its source GID index is invalid.
    pub(crate) fn route(&self, address: &AddressVector) -> Option<Route> {
        let global = |source, network| Global {
            source,
            destination: address.gid,
            flow_label: address.flow_label,
            traffic_class: address.traffic_class,
            hop_limit: address.hop_limit,
            network,
        };
        match self.link {
            Link::InfiniBand => Some(Route {
                source_lid: self.lid,
                destination_lid: address.lid,
                service_level: address.service_level,
                source_mac: [0; 6],
                destination_mac: [0; 6],
                udp_source: 0,
                global: address.global.then(|| global(self.own_gid(), Network::Grh)),
            }),
            Link::Ethernet => {
                let gid = (*self.gids.get(usize::from(address.gid_index))?)?;
                let network = match gid.version {
                    2 if is_ipv4(&gid.address) => Network::Ipv4,
                    2 => Network::Ipv6,
                    _ => Network::Grh,
                };
                Some(Route {
                    source_lid: 0,
                    destination_lid: 0,
                    service_level: address.service_level,
                    source_mac: gid.mac,
                    destination_mac: address.mac,
                    udp_source: address.lid,
                    global: Some(global(gid.address, network)),
                })
            }
        }
    }
}

/// Whether a GID holds an IPv4 address.
pub(crate) fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff]
}
