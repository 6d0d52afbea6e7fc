//! Delivery of packets, with injected faults.

use bareverbs_transport::packet::{Global, Packet};

use super::state::FabricState;
use super::transit::{InTransit, Origin};
use crate::engine::Engine;
use crate::wire;

impl FabricState {
    /// Transmits a packet to its receivers, with the faults that are injected.
    pub(super) fn transmit(&mut self, origin: Origin, mut packet: Packet) {
        if self.capture.is_some() {
            let (now, route) = (self.now(), packet.route);
            if self.leaves_by_wire(origin, &packet) {
                wire::set_fields(&mut packet.route);
            }
            self.capture.iter_mut().for_each(|capture| capture.record(now, &packet));
            packet.route = route;
        }
        if self.faults.injector.is_empty() && self.faults.held.is_empty() {
            self.deliver(origin, packet, false);
            return;
        }
        let verdict = self.faults.injector.judge(&packet);
        let rnr = verdict.rnr;
        let followed = self.faults.held.iter().position(|held| held.origin == origin);
        if verdict.drop {
            self.recycle(origin, packet);
        } else if verdict.corrupt {
            self.deliver_corrupt(origin, packet);
        } else if !verdict.delay.is_zero() {
            // Of a duplicated packet only one copy is delayed.
            let copy = verdict.duplicate.then(|| packet.clone());
            let delay = u64::try_from(verdict.delay.as_nanos()).unwrap_or(u64::MAX);
            let due = self.now().saturating_add(delay);
            self.faults.count += 1;
            self.faults.delayed.insert((due, self.faults.count), InTransit { origin, packet, rnr });
            if let Some(copy) = copy {
                self.deliver(origin, copy, rnr);
            }
        } else if verdict.reorder && followed.is_none() {
            self.faults.held.push(InTransit { origin, packet, rnr });
        } else {
            if verdict.duplicate {
                self.deliver(origin, packet.clone(), rnr);
            }
            self.deliver(origin, packet, rnr);
        }
        if let Some(followed) = followed {
            let InTransit { origin, packet, rnr } = self.faults.held.remove(followed);
            self.deliver(origin, packet, rnr);
        }
    }

    /// Whether a packet goes by UDP.
    fn leaves_by_wire(&self, origin: Origin, packet: &Packet) -> bool {
        let Origin::Device(sender) = origin else { return false };
        let has_wire =
            self.devices.get(sender).and_then(Option::as_ref).is_some_and(|at| at.wire().is_some());
        let destination = packet.route.global.map(|global| global.destination);
        has_wire && !destination.is_some_and(|gid| self.addresses.contains_key(&gid))
    }

    /// Delivers the next delayed packet that is due. Returns `false` if there is none.
    pub(super) fn deliver_due(&mut self, now: u64) -> bool {
        let Some(due) = self.faults.delayed.first_entry().filter(|entry| entry.key().0 <= now) else {
            return false;
        };
        let InTransit { origin, packet, rnr } = due.remove();
        self.deliver(origin, packet, rnr);
        true
    }

    /// Delivers a packet that no other one has overtaken. Returns `false` if there is none.
    pub(super) fn release_held(&mut self) -> bool {
        if self.faults.held.is_empty() {
            return false;
        }
        let InTransit { origin, packet, rnr } = self.faults.held.remove(0);
        self.deliver(origin, packet, rnr);
        true
    }

    /// Drops the packets in transit that a device has sent or received by its wire.
    pub(super) fn drop_packets_of(&mut self, device: usize) {
        let stays =
            |packet: &InTransit| ![Origin::Device(device), Origin::Wire(device)].contains(&packet.origin);
        self.faults.held.retain(stays);
        self.faults.delayed.retain(|_, packet| stays(packet));
        if let Some(time) = &mut self.virtual_time
            && let Some(sent) = time.sent.get_mut(device)
        {
            sent.clear();
        }
    }

    /// Returns the buffer of a packet to the device that it came from.
    fn recycle(&mut self, origin: Origin, packet: Packet) {
        let (Origin::Device(device) | Origin::Wire(device)) = origin;
        if let Some(Some(engine)) = self.devices.get_mut(device) {
            engine.recycle(packet.payload);
        }
    }

    fn deliver(&mut self, origin: Origin, packet: Packet, rnr: bool) {
        self.receivers(origin, &packet, false, |engine| {
            if rnr { engine.receive_without_wqes(&packet) } else { engine.receive(&packet) }
        });
        self.recycle(origin, packet);
    }

    fn deliver_corrupt(&mut self, origin: Origin, packet: Packet) {
        self.receivers(origin, &packet, true, Engine::drop_corrupt);
        self.recycle(origin, packet);
    }

    /// Calls `receive` with the devices that a packet arrives at, and sends it by the wire of its
    /// device if another process has its destination.
    fn receivers(&mut self, origin: Origin, packet: &Packet, corrupt: bool, receive: impl Fn(&mut Engine)) {
        let sender = match origin {
            Origin::Wire(device) => {
                if let Some(Some(engine)) = self.devices.get_mut(device) {
                    receive(engine);
                }
                return;
            }
            Origin::Device(sender) => sender,
        };
        let wire = self.devices.get(sender).and_then(Option::as_ref).and_then(|engine| engine.wire());
        if packet.route.is_multicast() {
            if let Some(wire) = wire {
                wire.send(packet, corrupt);
            }
            // The sockets of groups deliver packets of wires to wires.
            let by_wire = wire.is_some();
            for engine in self.devices.iter_mut().flatten() {
                if !(by_wire && engine.wire().is_some()) {
                    receive(engine);
                }
            }
            return;
        }
        let destination = packet.route.global.and_then(|global| self.addresses.get(&global.destination));
        if destination.is_none() {
            if let Some(wire) = wire {
                wire.send(packet, corrupt);
            }
            return;
        }
        if let Some(Some(engine)) = destination.and_then(|device| self.devices.get_mut(*device)) {
            receive(engine);
        }
    }

    /// Carries the packets that the wire of a device has received. The device withholds its events.
    pub(super) fn transmit_from_wire(&mut self, device: usize, packets: &mut Vec<Packet>) {
        if let Some(Some(engine)) = self.devices.get_mut(device) {
            engine.withhold_events();
        }
        for packet in packets.drain(..) {
            // Another process may have bound an address of the fabric.
            let is_of_fabric = |global: Global| self.addresses.contains_key(&global.source);
            if packet.route.is_multicast() || !packet.route.global.is_some_and(is_of_fabric) {
                self.transmit(Origin::Wire(device), packet);
            } else {
                self.recycle(Origin::Wire(device), packet);
            }
        }
    }
}
