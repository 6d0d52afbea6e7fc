//! Packets that injected faults hold.

use std::collections::BTreeMap;

use bareverbs_transport::FaultInjector;
use bareverbs_transport::packet::Packet;

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A device has sent it.
    Device(usize),
    /// The UDP wire of a device has received it.
    Wire(usize),
}

/// A packet on the wire.
#[derive(Debug)]
pub(super) struct InTransit {
    pub(super) origin: Origin,
    pub(super) packet: Packet,
    /// Whether its receiver is to have no receive WQE.
    pub(super) rnr: bool,
}

/// Injected faults, and the packets that they hold.
#[derive(Debug)]
pub(super) struct Faults {
    pub(super) injector: FaultInjector,
    /// Those that the next packet of their origin overtakes. At most one of each origin.
    pub(super) held: Vec<InTransit>,
    /// Delayed ones, by the time of their delivery and their order.
    pub(super) delayed: BTreeMap<(u64, u64), InTransit>,
    /// The number of packets delayed so far.
    pub(super) count: u64,
}

impl Faults {
    pub(super) fn new(seed: u64) -> Self {
        let injector = FaultInjector::new(seed);
        Self { injector, held: Vec::new(), delayed: BTreeMap::new(), count: 0 }
    }

    /// The time of the next delayed packet.
    pub(super) fn next_delayed(&self) -> Option<u64> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }
}
