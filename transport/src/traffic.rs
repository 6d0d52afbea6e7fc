//! Port counters.

use crate::packet::{Link, Network, Packet};

/// A count of packets and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of packets or frames.
    pub packets: u64,
    /// Their length on the wire in bytes.
    pub octets: u64,
}

impl Tally {
    fn add(&mut self, octets: usize) {
        self.packets += 1;
        self.octets += octets as u64;
    }

    fn sum(tallies: &[Self]) -> Self {
        tallies.iter().fold(Self::default(), |sum, tally| Self {
            packets: sum.packets + tally.packets,
            octets: sum.octets + tally.octets,
        })
    }
}

/// The maximum frame length of each length class, FCS included (RFC 2819 and further classes of the
/// device).
const LENGTHS: [usize; 10] = [64, 127, 255, 511, 1023, 1518, 2047, 4095, 8191, 10239];

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// RDMA packets to one port.
    pub rdma_unicast: Tally,
    /// RDMA packets to a multicast group.
    pub rdma_multicast: Tally,
    /// Other frames to one port.
    pub unicast: Tally,
    /// Other frames to a multicast group.
    pub multicast: Tally,
    /// Other frames to all ports.
    pub broadcast: Tally,
    /// Frames of all kinds by length class.
    pub by_length: [u64; LENGTHS.len()],
}

impl DirectionCounters {
    /// Counts an RDMA packet.
    pub fn packet(&mut self, packet: &Packet) {
        let octets = octets(packet);
        let tally =
            if packet.route.is_multicast() { &mut self.rdma_multicast } else { &mut self.rdma_unicast };
        tally.add(octets);
        self.length(octets);
    }

    /// Counts a frame that is not RDMA.
    pub fn frame(&mut self, frame: &[u8]) {
        let tally = match frame {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => &mut self.broadcast,
            [first, ..] if first & 1 != 0 => &mut self.multicast,
            _ => &mut self.unicast,
        };
        tally.add(frame.len());
        self.length(frame.len());
    }

    /// The total.
    pub fn all(&self) -> Tally {
        Tally::sum(&[self.rdma_unicast, self.rdma_multicast, self.unicast, self.multicast, self.broadcast])
    }

    /// All unicast packets and frames.
    pub fn all_unicast(&self) -> Tally {
        Tally::sum(&[self.rdma_unicast, self.unicast])
    }

    /// All multicast packets and frames.
    pub fn all_multicast(&self) -> Tally {
        Tally::sum(&[self.rdma_multicast, self.multicast])
    }

    fn length(&mut self, octets: usize) {
        const CHECK: usize = 4;
        let class = LENGTHS.iter().position(|longest| octets + CHECK <= *longest);
        self.by_length[class.unwrap_or(LENGTHS.len() - 1)] += 1;
    }
}

/// Counters of both directions and of the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Outgoing packets and frames.
    pub sent: DirectionCounters,
    /// Incoming packets and frames.
    pub received: DirectionCounters,
    /// Number of link downs.
    pub link_downs: u32,
}

/// Length of a packet on the wire in bytes, from LRH or Ethernet header to ICRC.
pub(crate) fn octets(packet: &Packet) -> usize {
    const BASE: usize = 12;
    const CHECK: usize = 4;
    const LOCAL_ROUTE: usize = 8;
    const GLOBAL_ROUTE: usize = 40;
    const ETHERNET: usize = 14;
    const UDP: usize = 8;
    let outer = match packet.route.global.map(|global| global.network) {
        None => LOCAL_ROUTE,
        Some(Network::Grh) if packet.route.link() == Link::InfiniBand => LOCAL_ROUTE + GLOBAL_ROUTE,
        Some(Network::Grh) => ETHERNET + GLOBAL_ROUTE,
        Some(Network::Ipv4) => ETHERNET + 20 + UDP,
        Some(Network::Ipv6) => ETHERNET + 40 + UDP,
    };
    outer + BASE + packet.headers.length() + packet.payload.len().next_multiple_of(4) + CHECK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_by_cast_and_length() {
        let mut counters = DirectionCounters::default();
        let frame = |first: [u8; 6], length: usize| {
            let mut frame = vec![0; length];
            frame[..6].copy_from_slice(&first);
            frame
        };
        counters.frame(&frame([0, 2, 0xc9, 0, 0, 1], 60));
        counters.frame(&frame([0xff; 6], 61));
        counters.frame(&frame([0x33, 0x33, 0, 0, 0, 1], 1514));
        counters.frame(&frame([0, 2, 0xc9, 0, 0, 1], 1515));
        counters.frame(&frame([0, 2, 0xc9, 0, 0, 1], 60000));
        assert_eq!(counters.unicast, Tally { packets: 3, octets: 60 + 1515 + 60000 });
        assert_eq!(counters.broadcast, Tally { packets: 1, octets: 61 });
        assert_eq!(counters.multicast, Tally { packets: 1, octets: 1514 });
        assert_eq!(counters.by_length, [1, 1, 0, 0, 0, 1, 1, 0, 0, 1]);
        assert_eq!(counters.all(), Tally { packets: 5, octets: 60 + 61 + 1514 + 1515 + 60000 });
    }
}
