//! The path between two sides: the local port with its GID, the first PSN, and the address of the
//! peer's port.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use bareverbs::ah::AhAttr;
use bareverbs::device::{GidType, LinkLayer, PortAttr, PortState};
use bareverbs::values::GidIndex;
use bareverbs::{Context, Device, Gid};
use bareverbs_rdmacm::CmId;

use crate::output;

/// The port of an open device that a run uses.
#[derive(Debug)]
pub(crate) struct LocalPort {
    pub(crate) context: Context,
    pub(crate) number: u8,
    pub(crate) attr: PortAttr,
    /// `None` before [`Self::choose_gid`], and on InfiniBand without a GID index.
    pub(crate) gid: Option<(GidIndex, Gid)>,
}

impl LocalPort {
    /// The port of the device of this name, or of the one that [`open_device`] finds.
    pub(crate) fn open(device: Option<&str>, number: u8) -> Result<Self> {
        let context = open_device(device, number)?;
        let attr = context.query_port(number)?;
        Ok(Self { context, number, attr, gid: None })
    }

    /// Chooses the GID by [`select_gid`]. It is named to the user after the device was found to be
    /// able to do the run.
    pub(crate) fn choose_gid(&mut self, index: Option<i32>) -> Result<()> {
        check_records(&self.context)?;
        self.gid = select_gid(index, self.number, &self.context, &self.attr)?;
        Ok(())
    }

    /// The port and the GID of an identifier's route.
    pub(crate) fn of_route(id: &CmId) -> Result<Self> {
        let device = id.addresses()?.device.context("the route to the address has no RDMA device")?;
        let (context, number) = (device.find()?.open()?, device.port.0);
        check_records(&context)?;
        let attr = context.query_port(number)?;
        let gid = match attr.link_layer {
            LinkLayer::ETHERNET => Some(gid_of_route(id, &context, number)?),
            _ => None,
        };
        Ok(Self { context, number, attr, gid })
    }

    /// The GID in the form of address records: all zero if there is none.
    pub(crate) fn record_gid(&self) -> Ipv6Addr {
        self.gid.map_or(Ipv6Addr::UNSPECIFIED, |(_, gid)| gid.0.into())
    }
}

/// Rejects devices whose queue pairs are not connected by address records.
fn check_records(context: &Context) -> Result<()> {
    ensure!(
        !context.capabilities().iwarp,
        "{} is an iWARP device, whose queue pairs only the connection manager connects: use perf --cm, rping \
         or rstream",
        context.device().name()
    );
    Ok(())
}

/// The GID of an identifier's local address and its index.
fn gid_of_route(id: &CmId, context: &Context, port: u8) -> Result<(GidIndex, Gid)> {
    let [local, _] = id.gids()?;
    let local = local.context("the connection has no local GID")?.gid;
    let table = context.gid_table()?;
    let entries = table.iter().filter(|entry| entry.port.0 == port && entry.gid == local);
    // A GID may be in the table for RoCE v1, too, which the connection manager does not use.
    let entry = entries.max_by_key(|entry| entry.gid_type == GidType::ROCE_V2);
    let address = IpAddr::from(local.0).to_canonical();
    let entry = entry.with_context(|| format!("port {port} has no GID {address}"))?;
    Ok((entry.index, entry.gid))
}

/// Opens the device named `name`. Without a name, it opens the first device whose port is active,
/// or the first device that can be opened if the port of none is active.
pub(crate) fn open_device(name: Option<&str>, port: u8) -> bareverbs::Result<Context> {
    if let Some(name) = name {
        return Device::find(name)?.open();
    }
    let is_active =
        |context: &Context| context.query_port(port).is_ok_and(|port| port.state == PortState::ACTIVE);
    let devices = bareverbs::devices()?;
    let active = devices.iter().filter_map(|device| device.open().ok()).find(is_active);
    active.map_or_else(Context::open_first, Ok)
}

/// The common name of a GID type.
pub(crate) fn gid_type(kind: GidType) -> &'static str {
    match kind {
        GidType::IB => "IB",
        GidType::ROCE_V1 => "RoCE v1",
        GidType::ROCE_V2 => "RoCE v2",
        _ => "Invalid gid type",
    }
}

/// The local GID and its index: the entry at `index` if it is not negative, else the port's default
/// GID on RoCE. `None` on InfiniBand, which needs no GID.
fn select_gid(
    index: Option<i32>,
    ib_port: u8,
    context: &Context,
    port: &PortAttr,
) -> Result<Option<(GidIndex, Gid)>> {
    match index.map(u32::try_from) {
        Some(Ok(index)) => {
            let entry = context.gid(ib_port, GidIndex::try_from(index)?)?;
            Ok(Some((entry.index, entry.gid)))
        }
        _ if port.link_layer == LinkLayer::ETHERNET => {
            let entry = context.default_gid(ib_port)?;
            let kind = gid_type(entry.gid_type);
            output::diagnostic(&format!("using GID index {} ({}, {kind})", entry.index, entry.gid));
            Ok(Some((entry.index, entry.gid)))
        }
        _ => {
            anyhow::ensure!(
                port.lid != 0,
                "port {ib_port} has no LID: check that a subnet manager is running"
            );
            Ok(None)
        }
    }
}

/// A random first PSN of 24 bits.
pub(crate) fn random_psn() -> Result<u32> {
    let mut psn = [0; 4];
    rustix::rand::getrandom(&mut psn, rustix::rand::GetRandomFlags::empty())
        .context("the random number generator failed")?;
    Ok(u32::from_ne_bytes(psn) & 0xff_ffff)
}

/// The path to a peer's port: by its GID if it has one, else by its LID.
pub(crate) fn ah_attr(
    (port, sl): (u8, u8),
    sgid_index: Option<GidIndex>,
    lid: u16,
    gid: Option<Gid>,
) -> Result<AhAttr> {
    let ah_attr = match (sgid_index, gid) {
        (Some(index), Some(gid)) => AhAttr { dlid: lid, ..AhAttr::global(port, gid, index) },
        _ => AhAttr::local(port, lid),
    };
    Ok(AhAttr { sl, ..ah_attr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_a_gid_has_the_lid_too() {
        let gid: Gid = "fe80::1".parse().unwrap();
        let index = GidIndex(3);
        let address = ah_attr((1, 5), Some(index), 7, Some(gid)).unwrap();
        assert_eq!(address, AhAttr { dlid: 7, sl: 5, ..AhAttr::global(1, gid, index) });
        for (index, gid) in [(Some(index), None), (None, Some(gid)), (None, None)] {
            let address = ah_attr((1, 5), index, 7, gid).unwrap();
            assert_eq!(address, AhAttr { sl: 5, ..AhAttr::local(1, 7) });
        }
    }

    #[test]
    fn psns_have_24_bits_and_differ() {
        let psns: Vec<u32> = (0..64).map(|_| random_psn().unwrap()).collect();
        assert!(psns.iter().all(|&psn| psn < 1 << 24) && psns.iter().any(|&psn| psn != psns[0]), "{psns:?}");
    }
}
