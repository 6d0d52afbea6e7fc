//! The path between two sides: the local GID, the first PSN, and the address of the peer's port.

use anyhow::{Context as _, Result};
use bareverbs::ah::AhAttr;
use bareverbs::device::{LinkLayer, PortAttr};
use bareverbs::values::GidIndex;
use bareverbs::{Context, Gid};

use crate::devinfo::gid_type;
use crate::output;

/// The local GID and its index: the entry at `index` if it is not negative, else the port's default
/// GID on RoCE. `None` on InfiniBand, which needs no GID.
pub(crate) fn select_gid(
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
