//! Address vectors.

use bareverbs_uapi::write::structs::{self, QpDest};

use bareverbs_uapi::verbs_values::Rate;

use crate::gid::Gid;
use crate::values::{GidIndex, PortNum};

/// Global route (GRH fields).
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID.
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table.
    pub sgid_index: GidIndex,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit: the number of routers that a packet may pass, plus 1; TTL of RoCE v2 packets.
    ///
    /// On RoCE, `MODIFY_QP` (RC, UC, XRC) replaces it by the hop limit of the IP route. `CREATE_AH`
    /// does so for unicast in the kernel's address handle, which rxe uses. Datagrams of a
    /// ConnectX carry the value given here.
    pub hop_limit: u8,
    /// Traffic class; TOS (DSCP and ECN) of RoCE v2 packets.
    pub traffic_class: u8,
}

/// Address vector of a peer.
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhAttr {
    /// Local port.
    pub port: PortNum,
    /// LID of the peer. InfiniBand only; required, except for a GID of the local port.
    pub dlid: u16,
    /// Service level, 0 to 15; on RoCE the VLAN priority, 0 to 7. mlx5 uses the low 3 bits.
    pub sl: u8,
    /// Source path bits: low bits of the local LID, on InfiniBand only.
    pub src_path_bits: u8,
    /// Static rate; [`Rate::PORT_CURRENT`], the default, is the port's rate.
    pub static_rate: Rate,
    /// Global route. Required on RoCE.
    pub grh: Option<GlobalRoute>,
}

impl Default for AhAttr {
    /// Port 0, LID 0, no global route: for `..AhAttr::default()`.
    fn default() -> Self {
        Self {
            port: PortNum(0),
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: Rate::PORT_CURRENT,
            grh: None,
        }
    }
}

impl AhAttr {
    /// Address vector to `dgid` from the local GID at `sgid_index`, on the same link or subnet: the
    /// [hop limit](GlobalRoute::hop_limit) is 1.
    /// InfiniBand also requires the peer's LID, unless the GID belongs to the local port: `AhAttr {
    /// dlid, ..AhAttr::global(port, dgid, sgid_index) }`. The peer queries its LID with
    /// [`query_port`](crate::Context::query_port).
    #[must_use]
    pub fn global(port: impl Into<PortNum>, dgid: Gid, sgid_index: impl Into<GidIndex>) -> Self {
        let sgid_index = sgid_index.into();
        let grh = GlobalRoute { dgid, sgid_index, flow_label: 0, hop_limit: 1, traffic_class: 0 };
        Self { port: port.into(), grh: Some(grh), ..Self::default() }
    }

    /// Address vector to the LID `dlid` in the same InfiniBand subnet.
    #[must_use]
    pub fn local(port: impl Into<PortNum>, dlid: u16) -> Self {
        Self { port: port.into(), dlid, ..Self::default() }
    }

    /// Encodes the attributes for the creation of an address handle.
    pub(crate) fn to_handle(self) -> structs::AhAttr {
        let QpDest {
            dgid,
            flow_label,
            dlid,
            sgid_index,
            hop_limit,
            traffic_class,
            sl,
            src_path_bits,
            static_rate,
            is_global,
            port_num,
            ..
        } = self.to_kernel();
        structs::AhAttr {
            grh: structs::GlobalRoute { dgid, flow_label, sgid_index, hop_limit, traffic_class, reserved: 0 },
            dlid,
            sl,
            src_path_bits,
            static_rate,
            is_global,
            port_num,
            reserved: 0,
        }
    }

    pub(super) fn to_kernel(self) -> QpDest {
        let grh = self.grh.unwrap_or(GlobalRoute {
            dgid: Gid::default(),
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
        });
        QpDest {
            dgid: grh.dgid.0,
            flow_label: grh.flow_label,
            dlid: self.dlid,
            reserved: 0,
            sgid_index: grh.sgid_index.0,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.grh.is_some().into(),
            port_num: self.port.0,
        }
    }

    pub(super) fn from_kernel(dest: &QpDest) -> Self {
        let grh = GlobalRoute {
            dgid: Gid(dest.dgid),
            sgid_index: GidIndex(dest.sgid_index),
            flow_label: dest.flow_label,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        };
        Self {
            port: PortNum(dest.port_num),
            dlid: dest.dlid,
            sl: dest.sl,
            src_path_bits: dest.src_path_bits,
            static_rate: dest.static_rate,
            grh: (dest.is_global != 0).then_some(grh),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ah_attr_with_grh_sets_is_global() {
        let gid = Gid([7; 16]);
        let dest = AhAttr::global(1, gid, 3).to_kernel();
        assert_eq!((dest.is_global, dest.sgid_index, dest.dgid, dest.port_num), (1, 3, gid.0, 1));
        assert_eq!(AhAttr::from_kernel(&dest), AhAttr::global(1, gid, 3));
        let handle = AhAttr::global(1, gid, 3).to_handle();
        assert_eq!((handle.is_global, handle.grh.sgid_index, handle.grh.dgid), (1, 3, gid.0));
        assert_eq!((handle.port_num, handle.grh.hop_limit), (1, 1));

        let dest = AhAttr::local(2, 0x1234).to_kernel();
        assert_eq!((dest.is_global, dest.dlid, dest.port_num), (0, 0x1234, 2));
        assert_eq!(AhAttr::from_kernel(&dest), AhAttr::local(2, 0x1234));
    }
}
