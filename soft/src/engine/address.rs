//! Addresses: GIDs of the port, address handles, routes.

use bareverbs_transport::packet::{Global, Network, Route};
use bareverbs_transport::{AddressVector, Table};
use bareverbs_uapi::rxe::{Av, NetworkType, UdWr};

/// An address handle.
#[derive(Debug)]
pub(super) struct Ah {
    pub(super) pd: u32,
    pub(super) av: Av,
}

/// The addresses of a port.
#[derive(Clone, Debug)]
pub(super) struct PortAddress {
    pub(super) gids: Vec<[u8; 16]>,
    pub(super) mac: [u8; 6],
    /// MTU in bytes.
    pub(super) mtu: u32,
}

/// The first UDP source port of RoCE v2.
const UDP_SOURCE: u16 = 0xc000;

/// The UDP source port of a QP: the packets of a QP are one flow.
pub(super) fn udp_source(qp: u32) -> u16 {
    UDP_SOURCE | (qp ^ qp >> 14) as u16 & 0x3fff
}

impl PortAddress {
    /// The route to an address. `None` if the port has no such source GID.
    pub(super) fn route(&self, address: &AddressVector) -> Option<Route> {
        let source = *self.gids.get(usize::from(address.gid_index))?;
        let is_ipv4 = address.gid[..10] == [0; 10] && address.gid[10..12] == [0xff; 2];
        Some(Route {
            service_level: address.service_level,
            source_mac: self.mac,
            destination_mac: address.mac,
            udp_source: address.lid,
            global: Some(Global {
                source,
                destination: address.gid,
                flow_label: address.flow_label & 0xf_ffff,
                traffic_class: address.traffic_class,
                hop_limit: address.hop_limit,
                network: if is_ipv4 { Network::Ipv4 } else { Network::Ipv6 },
            }),
            ..Route::default()
        })
    }
}

/// The transport's form of a path.
pub(super) fn address_vector(av: &Av) -> AddressVector {
    let grh = &av.grh;
    let mut gid = grh.dgid;
    if gid == [0; 16] && av.network_type == NetworkType::IPV4 {
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&av.dgid_addr.ipv4);
    }
    AddressVector {
        lid: UDP_SOURCE,
        mac: av.dmac,
        traffic_class: grh.traffic_class,
        hop_limit: grh.hop_limit,
        global: true,
        gid_index: grh.sgid_index,
        flow_label: grh.flow_label,
        gid,
        ..AddressVector::default()
    }
}

/// The address handles that a QP may use.
#[derive(Debug)]
pub(super) struct Addresses<'a> {
    pub(super) handles: &'a Table<Ah>,
    pub(super) pd: u32,
    pub(super) qp: u32,
    /// The largest datagram in bytes: the MTU of the port.
    pub(super) mtu: u32,
}

impl Addresses<'_> {
    /// The destination of a datagram. `None` if its address handle is none of the QP's PD.
    pub(super) fn find(&self, wr: &UdWr) -> Option<AddressVector> {
        let mut address = match wr.ah_num {
            0 => address_vector(&wr.av),
            number => address_vector(&self.handles.get(number).filter(|ah| ah.pd == self.pd)?.av),
        };
        address.qp = wr.remote_qpn & 0xff_ffff;
        address.qkey = wr.remote_qkey;
        address.lid = udp_source(self.qp);
        Some(address)
    }
}
