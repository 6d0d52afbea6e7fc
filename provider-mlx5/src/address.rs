//! Address vectors.

use bareverbs_uapi::uverbs::types::GidType;
use bareverbs_uapi::write::structs::AhAttr;

use crate::wqe::AddressVector;

/// The link layer, with the parts of an address vector that the path does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Ethernet {
        /// MAC address of the next hop.
        mac: [u8; 6],
        /// RoCE version of the source GID.
        gid_type: GidType,
    },
}

/// First UDP source port of RoCE v2.
const FIRST_PORT: u16 = 0xc000;

/// UDP source port of datagrams. It folds the 20 bits of the flow label to 14, so that flows spread
/// over the paths of a network.
///
/// If the flow label is 0, a hash of the destination GID replaces it.
fn source_port(flow_label: u32, gid: &[u8; 16]) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => gid
            .chunks(2)
            .fold(0u32, |sum, pair| sum.wrapping_mul(31) ^ u32::from(pair[0]) << 8 ^ u32::from(pair[1])),
        label => label,
    };
    FIRST_PORT | ((label & 0x3fff) ^ (label >> 14 & 0x3f)) as u16
}

/// The device's encoding of a static rate: the kernel's `ib_rate` plus 5, or 0 for the port's rate.
fn rate(rate: u8) -> u8 {
    if (2..=10).contains(&rate) { rate + 5 } else { 0 }
}

/// The address vector of a path.
pub(crate) fn vector(attr: &AhAttr, link: Link) -> AddressVector {
    let rate = u32::from(rate(attr.static_rate.0)) << 28;
    let global = attr.is_global != 0;
    let grh = attr.grh;
    let index = u32::from(grh.sgid_index) << 20 | grh.flow_label & 0xf_ffff;
    let (path, rmac, flag) = match link {
        Link::InfiniBand => (
            u32::from(attr.sl & 0xf) << 24
                | u32::from(attr.src_path_bits & 0x7f) << 16
                | u32::from(attr.dlid),
            [0; 6],
            1 << 30,
        ),
        Link::Ethernet { mac, gid_type } => {
            let port = if gid_type == GidType::ROCE_V2 { source_port(grh.flow_label, &grh.dgid) } else { 0 };
            (u32::from(attr.sl & 7) << 25 | u32::from(port), mac, 0)
        }
    };
    let mut vector =
        AddressVector { path: rate | path, rmac, traffic_class: 0, hop_limit: 0, grh: 0, rgid: [0; 16] };
    if global {
        vector.traffic_class = grh.traffic_class;
        vector.hop_limit = grh.hop_limit;
        vector.grh = flag | index;
        vector.rgid = grh.dgid;
    }
    vector
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::write::structs::GlobalRoute;

    use super::*;

    fn path() -> AhAttr {
        AhAttr {
            grh: GlobalRoute {
                dgid: *b"0123456789abcdef",
                flow_label: 0x12345,
                sgid_index: 3,
                hop_limit: 64,
                traffic_class: 9,
                ..GlobalRoute::zeroed()
            },
            dlid: 0x1234,
            sl: 5,
            src_path_bits: 0x81,
            is_global: 1,
            port_num: 1,
            ..AhAttr::zeroed()
        }
    }

    #[test]
    fn infiniband_vector_has_lid_and_grh_flag() {
        let vector = vector(&path(), Link::InfiniBand);
        assert_eq!((vector.path, vector.grh), (0x0501_1234, 0x4031_2345));
        assert_eq!((vector.traffic_class, vector.hop_limit, vector.rmac), (9, 64, [0; 6]));

        let local = super::vector(&AhAttr { is_global: 0, ..path() }, Link::InfiniBand);
        assert_eq!((local.grh, local.rgid), (0, [0; 16]));
    }

    #[test]
    fn ethernet_vector_has_dmac_and_flow_source_port() {
        let link = Link::Ethernet { mac: [2, 0, 0, 0, 0, 1], gid_type: GidType::ROCE_V2 };
        let vector = vector(&path(), link);
        assert_eq!(vector.rmac, [2, 0, 0, 0, 0, 1]);
        assert_eq!(vector.grh, 0x0031_2345);
        // Service level 5; port 0xc000 | 0x2345 ^ 4.
        assert_eq!(vector.path, 0x0a00_e341);
    }

    #[test]
    fn source_port_without_flow_label_is_in_range() {
        let port = source_port(0, b"0123456789abcdef");
        assert!(port >= FIRST_PORT);
        assert_ne!(port, source_port(0, b"0123456789abcdeg"));
    }
}
