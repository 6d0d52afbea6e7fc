//! The way to a peer.

use bareverbs_uapi::verbs_values::Rate;
use bareverbs_uapi::write::structs::{self, QpDest};

use crate::Gid;

/// A global route.
#[doc(alias = "ibv_global_route")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of the own GID in the port's table.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// How many routers a packet may pass, plus 1.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// The way to a peer.
#[doc(alias = "ibv_ah_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// The own port, counted from 1.
    pub port: u8,
    /// The peer's LID; only InfiniBand has them, and needs them: 0 leads to an own GID only.
    pub dlid: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Low bits of the own LID; only InfiniBand has them.
    pub src_path_bits: u8,
    /// Static rate as the kernel numbers it; 0 is the port's own.
    pub static_rate: u8,
    /// The global route; RoCE cannot do without.
    pub grh: Option<GlobalRoute>,
}

impl AhAttr {
    /// To `dgid` from the own GID at `sgid_index`, on the same link or subnet. InfiniBand wants the
    /// peer's LID besides, as [`query_port`](crate::Context::query_port) tells it there, unless the
    /// GID is the port's own: `AhAttr { dlid, ..AhAttr::global(port, dgid, sgid_index) }`.
    #[must_use]
    pub fn global(port: u8, dgid: Gid, sgid_index: u8) -> Self {
        let grh = GlobalRoute { dgid, sgid_index, flow_label: 0, hop_limit: 1, traffic_class: 0 };
        Self { port, grh: Some(grh), ..Self::default() }
    }

    /// To the LID `dlid` of the same InfiniBand subnet.
    #[must_use]
    pub fn local(port: u8, dlid: u16) -> Self {
        Self { port, dlid, ..Self::default() }
    }

    /// The form that address handles are made from.
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
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
        });
        QpDest {
            dgid: grh.dgid.0,
            flow_label: grh.flow_label,
            dlid: self.dlid,
            reserved: 0,
            sgid_index: grh.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: Rate(self.static_rate),
            is_global: self.grh.is_some().into(),
            port_num: self.port,
        }
    }

    pub(super) fn from_kernel(dest: &QpDest) -> Self {
        let grh = GlobalRoute {
            dgid: Gid(dest.dgid),
            sgid_index: dest.sgid_index,
            flow_label: dest.flow_label,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
        };
        Self {
            port: dest.port_num,
            dlid: dest.dlid,
            sl: dest.sl,
            src_path_bits: dest.src_path_bits,
            static_rate: dest.static_rate.0,
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
