//! Automatic path migration (InfiniBand specification, volume 1, 17.2.8).
//!
//! The driver loads an alternate path and moves the QP to REARM. The QP is ARMED once the peer is in
//! REARM or ARMED too, as the migration bit of its packets says. An armed QP migrates when the
//! driver asks, when the retries on its path are exceeded, or after the peer.

use super::Qp;
use crate::device::{Device, Event};
use crate::packet::{Packet, Route};

/// Path migration states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Migration {
    /// The alternate path can be used.
    Armed,
    /// The alternate path is loaded; the peer is not known to have loaded its own.
    Rearm,
    /// There is no alternate path.
    #[default]
    Migrated,
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
pub(crate) fn migrate<D: Device>(qp: &mut Qp<D>, device: &mut D) -> bool {
    let attributes = &mut qp.attributes;
    if attributes.migration != Migration::Armed {
        return false;
    }
    let Some(path) = attributes.alternate.take() else { return false };
    attributes.route = path.route;
    // The port's LID may have changed since the path was loaded.
    attributes.route.source_lid = device.lid();
    attributes.pkey = path.pkey;
    attributes.ack_timeout = path.ack_timeout;
    attributes.migration = Migration::Migrated;
    attributes.on_alternate = true;
    let attributes = attributes.clone();
    qp.requester.refill(&attributes);
    device.event(&qp.queues, Event::PathMigrated);
    true
}

/// Handles the migration bit of a packet from the peer. Returns `false` if the packet is dropped: it
/// asks for a migration to another path than the alternate one.
pub(crate) fn received<D: Device>(qp: &mut Qp<D>, device: &mut D, packet: &Packet) -> bool {
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
                device.event(&qp.queues, Event::PathMigrationFailed);
                return false;
            }
            migrate(qp, device);
        }
        _ => {}
    }
    true
}
