//! Automatic path migration (InfiniBand specification, volume 1, 17.2.8).
//!
//! The driver loads an alternate path and moves the QP to REARM. The QP is ARMED once the peer is in
//! REARM or ARMED too, as the migration bit of its packets says. An armed QP migrates when the
//! driver asks, when the retries on its path are exceeded, or after the peer.

use super::Qp;
use crate::engine::core::Core;
use crate::engine::eq::EventKind;
use crate::engine::packet::{Link, Packet, Route};

/// Path migration states, numbered as in the firmware interface (`MLX5_QP_PM_*` in
/// `include/linux/mlx5/qp.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Migration {
    /// The alternate path can be used.
    Armed = 0,
    /// The alternate path is loaded; the peer is not known to have loaded its own.
    Rearm = 1,
    /// There is no alternate path.
    #[default]
    Migrated = 3,
}

/// An alternate path.
#[derive(Clone, Copy, Debug)]
pub struct AlternatePath {
    /// Addressing.
    pub route: Route,
    /// The P_Key.
    pub pkey: u16,
    /// Local ACK timeout code.
    pub ack_timeout: u8,
}

/// Moves an armed QP to its alternate path and raises the event. Returns `false` if it isn't armed.
pub(crate) fn migrate(qp: &mut Qp, core: &mut Core) -> bool {
    let attributes = &mut qp.attributes;
    if attributes.migration != Migration::Armed {
        return false;
    }
    let Some(path) = attributes.alternate.take() else { return false };
    attributes.route = path.route;
    if core.port.link == Link::InfiniBand {
        // The port's LID may have changed since the path was loaded.
        attributes.route.source_lid = core.port.lid;
    }
    attributes.pkey = path.pkey;
    attributes.ack_timeout = path.ack_timeout;
    attributes.migration = Migration::Migrated;
    attributes.on_alternate = true;
    let attributes = attributes.clone();
    qp.requester.refill(&attributes);
    core.qp_event(EventKind::PathMigrated, qp.number);
    true
}

/// Handles the migration bit of a packet from the peer. Returns `false` if the packet is dropped: it
/// asks for a migration to another path than the alternate one.
pub(crate) fn received(qp: &mut Qp, core: &mut Core, packet: &Packet) -> bool {
    if !qp.state.receives() {
        return true;
    }
    match (qp.attributes.migration, packet.migrated) {
        (Migration::Rearm, false) => qp.attributes.migration = Migration::Armed,
        (Migration::Armed, true) => {
            let from = &packet.route;
            let expected = qp.attributes.alternate.as_ref().is_some_and(|path| {
                let source = |route: &Route| route.global.map(|global| global.source);
                let peer = |route: &Route| route.global.map(|global| global.destination);
                from.source_lid == path.route.destination_lid && source(from) == peer(&path.route)
            });
            if !expected {
                core.qp_event(EventKind::PathMigrationFailed, qp.number);
                return false;
            }
            migrate(qp, core);
        }
        _ => {}
    }
    true
}
