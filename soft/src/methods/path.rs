//! Address handles, paths and multicast groups.

use std::net::Ipv6Addr;

use bareverbs_provider::Errno;
use bareverbs_uapi::rxe::{Av, CreateAhResp, GlobalRoute, NetworkType, SocketAddress};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::{
    AttachMcastReq, CreateAhReq, CreateAhResp as AhResp, DetachMcastReq, QpDest,
};
use zerocopy::IntoBytes;

use super::device::check_port;
use super::write_command::Command;
use crate::mac::mac_of_gid;
use crate::objects::{Object, Transaction};
use crate::port::{PORT, Port};

/// The path of an address (`rdma_fill_sgid_attr`, `rxe_av_from_attr`).
///
/// # Errors
///
/// `EINVAL` for a wrong port or without a GRH, `ENODATA` for an empty GID index.
pub(super) fn resolve(port: &Port, dest: &QpDest) -> Result<Av, Errno> {
    check_port(dest.port_num.into())?;
    if dest.is_global == 0 {
        return Err(Errno::INVAL);
    }
    let source = port.gid(dest.sgid_index.into())?;
    // The network is that of the source GID.
    let (is_ipv4, address) = (source[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff], |gid: [u8; 16]| {
        if gid[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] {
            SocketAddress::from_ipv4([gid[12], gid[13], gid[14], gid[15]])
        } else {
            SocketAddress::from_ipv6(gid)
        }
    });
    Ok(Av {
        port_num: PORT as u8,
        network_type: if is_ipv4 { NetworkType::IPV4 } else { NetworkType::IPV6 },
        dmac: mac_of_gid(dest.dgid),
        grh: GlobalRoute {
            dgid: dest.dgid,
            flow_label: dest.flow_label,
            sgid_index: dest.sgid_index,
            hop_limit: dest.hop_limit,
            traffic_class: dest.traffic_class,
            ..GlobalRoute::zeroed()
        },
        sgid_addr: address(source),
        dgid_addr: address(dest.dgid),
    })
}

pub(super) fn create_ah(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let CreateAhReq { pd_handle, attr, .. } = command.request()?;
    let handle = txn.reserve(ObjectClass::AH)?;
    check_port(attr.port_num.into())?;
    let pd = *txn.state.pd(pd_handle)?;
    let dest = QpDest {
        dgid: attr.grh.dgid,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        is_global: attr.is_global,
        port_num: attr.port_num,
        ..QpDest::zeroed()
    };
    let av = resolve(&txn.state.port, &dest)?;
    let ah = txn.state.port.with(|engine| engine.create_ah(pd, av))?;
    txn.state.fill(handle, Object::Ah(ah), &[pd_handle]);
    if command.driver_output.len >= size_of::<CreateAhResp>() {
        command.driver_output.write(0, ah.as_bytes())?;
    }
    command.respond(&AhResp { ah_handle: handle, driver_data: [] })
}

/// `rdma_is_multicast_addr`.
fn is_multicast(gid: [u8; 16]) -> bool {
    let address = Ipv6Addr::from(gid);
    address.to_ipv4_mapped().map_or(address.is_multicast(), |address| address.is_multicast())
}

pub(super) fn attach(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let AttachMcastReq { gid, qp_handle, mlid, .. } = command.request()?;
    let qp = txn.state.qp(qp_handle)?;
    if qp.groups.contains(&(gid, mlid)) {
        return Ok(());
    }
    if !is_multicast(gid) || qp.qp_type != QpType::UD {
        return Err(Errno::INVAL);
    }
    let qpn = qp.qpn;
    txn.state.port.with(|engine| engine.attach(qpn, gid))?;
    txn.state.qp_mut(qp_handle)?.groups.insert((gid, mlid));
    Ok(())
}

pub(super) fn detach(txn: &mut Transaction<'_>, command: &mut Command<'_>) -> Result<(), Errno> {
    let DetachMcastReq { gid, qp_handle, mlid, .. } = command.request()?;
    let qp = txn.state.qp_mut(qp_handle)?;
    let qpn = qp.qpn;
    if !qp.groups.remove(&(gid, mlid)) {
        return Err(Errno::INVAL);
    }
    // rxe ignores the LID: the QP has left the group with the first one, and later ones are EINVAL.
    txn.state.port.with(|engine| engine.detach(qpn, gid))
}
