//! Fault injection; the same seed gives the same faults.

use std::time::Duration;

use crate::packet::Packet;

/// Fault rates in thousandths of all packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost.
    pub loss: u16,
    /// Delivered twice.
    pub duplication: u16,
    /// Delivered after the packet that follows it.
    pub reordering: u16,
    /// Delayed, each by a random time.
    pub delay: u16,
    /// The longest delay.
    pub longest_delay: Duration,
    /// Seed of the fault sequence.
    pub seed: u64,
}

impl Faults {
    /// Whether any rate is above zero.
    pub fn any(&self) -> bool {
        self.loss > 0 || self.duplication > 0 || self.reordering > 0 || self.delay > 0
    }
}

/// Injects faults into packets.
#[derive(Debug)]
pub struct FaultInjector {
    faults: Faults,
    state: u64,
    held: Option<Packet>,
}

impl FaultInjector {
    /// Creates an injector at the start of the sequence.
    pub fn new(faults: Faults) -> Self {
        Self { faults, state: faults.seed, held: None }
    }

    /// The next number of the sequence (SplitMix64).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn happens(&mut self, thousandths: u16) -> bool {
        self.next() % 1000 < u64::from(thousandths)
    }

    fn delay(&mut self) -> Duration {
        let longest = u64::try_from(self.faults.longest_delay.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.next() % longest.max(1))
    }

    /// Injects faults into a batch. A packet held for reordering is delivered with the next batch
    /// at the latest.
    pub fn pass(&mut self, packets: &mut Vec<Packet>, delayed: &mut Vec<(Duration, Packet)>) {
        if !self.faults.any() {
            return;
        }
        let mut passed = Vec::with_capacity(packets.len() + 1);
        for packet in packets.drain(..) {
            if self.happens(self.faults.loss) {
                continue;
            }
            let twice = self.happens(self.faults.duplication);
            if self.held.is_none() && self.happens(self.faults.reordering) {
                self.held = Some(packet);
                continue;
            }
            if self.happens(self.faults.delay) {
                delayed.push((self.delay(), packet.clone()));
                // Of a duplicated packet only one copy is delayed.
                if !twice {
                    continue;
                }
            } else if twice {
                passed.push(packet.clone());
            }
            passed.push(packet);
            passed.extend(self.held.take());
        }
        *packets = passed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Headers, Operation, Route, Transport};

    fn packets(count: u32) -> Vec<Packet> {
        let route = Route {
            source_lid: 1,
            destination_lid: 2,
            service_level: 0,
            source_mac: [0; 6],
            destination_mac: [0; 6],
            udp_source: 0,
            global: None,
        };
        (0..count)
            .map(|psn| Packet {
                route,
                transport: Transport::Rc,
                operation: Operation::SendOnly,
                solicited: false,
                migrated: true,
                ack_request: false,
                pkey: 0xffff,
                destination: 1,
                psn,
                headers: Headers::default(),
                payload: Vec::new(),
            })
            .collect()
    }

    fn passed(faults: Faults) -> Vec<u32> {
        let (mut batch, mut delayed) = (packets(10_000), Vec::new());
        FaultInjector::new(faults).pass(&mut batch, &mut delayed);
        let longest = faults.longest_delay;
        assert!(delayed.iter().all(|(delay, _)| *delay < longest.max(Duration::from_nanos(1))));
        let expected = 10_000 * usize::from(faults.delay) / 1000;
        assert!(delayed.len().abs_diff(expected) <= expected / 5, "{}", delayed.len());
        batch.iter().map(|packet| packet.psn).collect()
    }

    #[test]
    fn zero_fault_rates_pass_packets_unchanged() {
        assert_eq!(passed(Faults { seed: 7, ..Faults::default() }), (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn fault_sequence_is_deterministic_per_seed() {
        let longest_delay = Duration::from_millis(1);
        let faults = Faults { loss: 10, duplication: 10, reordering: 10, delay: 100, longest_delay, seed: 1 };
        assert_eq!(passed(faults), passed(faults));
        assert_ne!(passed(faults), passed(Faults { seed: 2, ..faults }));
    }

    #[test]
    fn fault_rates_match_configuration() {
        let lost = 10_000 - passed(Faults { loss: 100, ..Faults::default() }).len();
        assert!((800..1200).contains(&lost), "{lost}");
        let more = passed(Faults { duplication: 100, ..Faults::default() }).len() - 10_000;
        assert!((800..1200).contains(&more), "{more}");
        let order = passed(Faults { reordering: 100, ..Faults::default() });
        let swapped = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((700..1200).contains(&swapped), "{swapped}");
    }
}
