//! Fault injection by rules; the same seed gives the same faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::packet::{Operation, Packet};
use crate::random::SplitMix64;

/// A rule that injects a fault into packets: the kind of fault, the packets that match, and which of
/// these it affects. Without a filter, all packets match. Without [`nth`](Self::nth),
/// [`every`](Self::every) or [`probability`](Self::probability), all matching packets are affected.
///
/// ```
/// use bareverbs_transport::Fault;
/// use bareverbs_transport::packet::Operation;
///
/// // One ACK in ten of those to QP 17 is lost.
/// let fault = Fault::drop().qp(17).opcode(Operation::Acknowledge).probability(0.1);
/// # drop(fault);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a fault has an effect once it is injected"]
pub struct Fault {
    kind: Kind,
    qp: Option<u32>,
    /// None: all.
    operations: Vec<Operation>,
    from: Option<Vec<[u8; 16]>>,
    to: Option<Vec<[u8; 16]>>,
    selection: Selection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Drop,
    Duplicate,
    Reorder,
    Delay(Duration),
    Jitter(Duration),
    Corrupt,
    Rnr,
}

/// Which of the matching packets are affected.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Selection {
    All,
    Nth(u64),
    Every(u64),
    Probability(f64),
}

impl Fault {
    fn new(kind: Kind) -> Self {
        Self { kind, qp: None, operations: Vec::new(), from: None, to: None, selection: Selection::All }
    }

    /// The packet is lost.
    pub fn drop() -> Self {
        Self::new(Kind::Drop)
    }

    /// The packet is delivered twice.
    pub fn duplicate() -> Self {
        Self::new(Kind::Duplicate)
    }

    /// The packet is delivered after the packet that follows it, or when the wire has no other work.
    pub fn reorder() -> Self {
        Self::new(Kind::Reorder)
    }

    /// The packet is delivered after this time. Others may overtake it.
    pub fn delay(time: Duration) -> Self {
        Self::new(Kind::Delay(time))
    }

    /// The packet is delivered after a random time below `longest`. Others may overtake it.
    pub fn jitter(longest: Duration) -> Self {
        Self::new(Kind::Jitter(longest))
    }

    /// The packet is damaged on the wire. The receiver drops it, because its ICRC is wrong.
    pub fn corrupt() -> Self {
        Self::new(Kind::Corrupt)
    }

    /// The receiver has no receive WQE for the packet. An RC QP sends an RNR NAK, others drop the
    /// message. Only packets that take a receive WQE match: the first of a SEND, and the last of a
    /// WRITE with immediate data.
    pub fn rnr() -> Self {
        Self::new(Kind::Rnr)
    }

    /// Packets to this QP match: requests to it, and responses to its requests.
    pub fn qp(mut self, number: u32) -> Self {
        self.qp = Some(number);
        self
    }

    /// Packets with this opcode match. Several calls add opcodes.
    pub fn opcode(mut self, operation: Operation) -> Self {
        self.operations.push(operation);
        self
    }

    /// Packets from one of these GIDs match, such as those of a device.
    pub fn from(mut self, gids: &impl AsRef<[[u8; 16]]>) -> Self {
        self.from = Some(gids.as_ref().to_vec());
        self
    }

    /// Packets to one of these GIDs match, such as those of a device or a multicast group.
    pub fn to(mut self, gids: &impl AsRef<[[u8; 16]]>) -> Self {
        self.to = Some(gids.as_ref().to_vec());
        self
    }

    /// Affects the n-th matching packet only. The first is 1; 0 affects none.
    pub fn nth(mut self, n: u64) -> Self {
        self.selection = Selection::Nth(n);
        self
    }

    /// Affects each n-th matching packet; 0 affects none.
    pub fn every(mut self, n: u64) -> Self {
        self.selection = Selection::Every(n);
        self
    }

    /// Affects each matching packet with this probability, from 0.0 to 1.0, by the seed of the injector.
    pub fn probability(mut self, probability: f64) -> Self {
        self.selection = Selection::Probability(probability);
        self
    }

    fn matches(&self, packet: &Packet) -> bool {
        let is_in = |gids: &Option<Vec<[u8; 16]>>, gid: Option<[u8; 16]>| {
            gids.as_ref().is_none_or(|gids| gid.is_some_and(|gid| gids.contains(&gid)))
        };
        let global = packet.route.global;
        self.qp.is_none_or(|qp| packet.destination == qp)
            && (self.operations.is_empty() || self.operations.contains(&packet.operation))
            && is_in(&self.from, global.map(|global| global.source))
            && is_in(&self.to, global.map(|global| global.destination))
            && (self.kind != Kind::Rnr || packet.operation.takes_receive())
    }
}

/// A fault that is injected, with its own count. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct InjectedFault(Arc<AtomicU64>);

impl InjectedFault {
    /// The number of packets that it has affected.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    matched: u64,
    injected: Arc<AtomicU64>,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// It is lost.
    pub drop: bool,
    /// It is delivered twice.
    pub duplicate: bool,
    /// It is delivered after the packet that follows it.
    pub reorder: bool,
    /// It is delivered after this time.
    pub delay: Duration,
    /// It arrives with a wrong ICRC.
    pub corrupt: bool,
    /// The receiver has no receive WQE for it.
    pub rnr: bool,
}

/// Injects faults into packets.
///
/// Each rule counts the packets that match it, also those that another rule drops.
#[derive(Debug)]
pub struct FaultInjector {
    rules: Vec<Rule>,
    random: SplitMix64,
    held: Option<Packet>,
}

impl FaultInjector {
    /// An injector without rules, at the start of the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { rules: Vec::new(), random: SplitMix64::new(seed), held: None }
    }

    /// Adds a rule.
    pub fn inject(&mut self, fault: Fault) -> InjectedFault {
        let injected = Arc::default();
        self.rules.push(Rule { fault, matched: 0, injected: Arc::clone(&injected) });
        InjectedFault(injected)
    }

    /// Removes the rule of an injected fault, if it is there.
    pub fn remove(&mut self, fault: &InjectedFault) {
        self.rules.retain(|rule| !Arc::ptr_eq(&rule.injected, &fault.0));
    }

    /// Whether there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Whether a rule delays packets.
    #[must_use]
    pub fn delays(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.fault.kind, Kind::Delay(_) | Kind::Jitter(_)))
    }

    /// Applies the rules to the next packet.
    pub fn judge(&mut self, packet: &Packet) -> Verdict {
        let mut verdict = Verdict::default();
        for Rule { fault, matched, injected } in &mut self.rules {
            if !fault.matches(packet) {
                continue;
            }
            *matched += 1;
            let is_affected = match fault.selection {
                Selection::All => true,
                Selection::Nth(n) => *matched == n,
                Selection::Every(n) => n > 0 && matched.is_multiple_of(n),
                Selection::Probability(probability) => self.random.happens(probability),
            };
            if !is_affected {
                continue;
            }
            injected.fetch_add(1, Ordering::Relaxed);
            match fault.kind {
                Kind::Drop => verdict.drop = true,
                Kind::Duplicate => verdict.duplicate = true,
                Kind::Reorder => verdict.reorder = true,
                Kind::Delay(time) => verdict.delay = verdict.delay.saturating_add(time),
                Kind::Jitter(longest) => {
                    let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
                    let time = Duration::from_nanos(self.random.below(longest.max(1)));
                    verdict.delay = verdict.delay.saturating_add(time);
                }
                Kind::Corrupt => verdict.corrupt = true,
                Kind::Rnr => verdict.rnr = true,
            }
        }
        verdict
    }

    /// Injects faults into a batch. A packet held for reordering is delivered with the next batch
    /// at the latest. A corrupt packet is dropped. RNR has no effect: it needs a device.
    pub fn pass(&mut self, packets: &mut Vec<Packet>, delayed: &mut Vec<(Duration, Packet)>) {
        if self.rules.is_empty() {
            return;
        }
        let mut passed = Vec::with_capacity(packets.len() + 1);
        for packet in packets.drain(..) {
            let verdict = self.judge(&packet);
            if verdict.drop || verdict.corrupt {
                continue;
            }
            if self.held.is_none() && verdict.reorder {
                self.held = Some(packet);
                continue;
            }
            if verdict.delay > Duration::ZERO {
                delayed.push((verdict.delay, packet.clone()));
                // Of a duplicated packet only one copy is delayed.
                if !verdict.duplicate {
                    continue;
                }
            } else if verdict.duplicate {
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
    use crate::packet::{Global, Headers, Network, Route, Transport};

    const GIDS: [[u8; 16]; 2] = [[1; 16], [2; 16]];

    fn packet(psn: u32) -> Packet {
        let [source, destination] = GIDS;
        let (flow_label, traffic_class, hop_limit) = (0, 0, 64);
        let network = Network::Grh;
        let global = Global { source, destination, flow_label, traffic_class, hop_limit, network };
        Packet {
            route: Route { global: Some(global), ..Route::default() },
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
            zero_copy: None,
        }
    }

    fn packets(count: u32) -> Vec<Packet> {
        (0..count).map(packet).collect()
    }

    fn injector(seed: u64, faults: impl IntoIterator<Item = Fault>) -> FaultInjector {
        let mut injector = FaultInjector::new(seed);
        for fault in faults {
            injector.inject(fault);
        }
        injector
    }

    fn passed(seed: u64, faults: impl IntoIterator<Item = Fault>) -> (Vec<u32>, Vec<Duration>) {
        let (mut batch, mut delayed) = (packets(10_000), Vec::new());
        injector(seed, faults).pass(&mut batch, &mut delayed);
        let psns = batch.iter().map(|packet| packet.psn).collect();
        (psns, delayed.into_iter().map(|(delay, _)| delay).collect())
    }

    #[test]
    fn packets_pass_unchanged_without_rules_and_with_probability_zero() {
        let all: Vec<_> = (0..10_000).collect();
        assert_eq!(passed(7, []).0, all);
        assert_eq!(
            passed(7, [Fault::drop().probability(0.0), Fault::drop().nth(0), Fault::drop().every(0)]).0,
            all
        );
    }

    #[test]
    fn fault_sequence_is_deterministic_per_seed() {
        let longest = Duration::from_millis(1);
        let faults = || {
            let kinds = [Fault::drop(), Fault::duplicate(), Fault::reorder(), Fault::jitter(longest)];
            kinds.map(|fault| fault.probability(0.05))
        };
        assert_eq!(passed(1, faults()), passed(1, faults()));
        assert_ne!(passed(1, faults()), passed(2, faults()));
        assert!(passed(1, faults()).1.iter().all(|delay| *delay < longest));
    }

    #[test]
    fn fault_rates_match_probabilities() {
        let lost = 10_000 - passed(0, [Fault::drop().probability(0.1)]).0.len();
        assert!((800..1200).contains(&lost), "{lost}");
        let more = passed(0, [Fault::duplicate().probability(0.1)]).0.len() - 10_000;
        assert!((800..1200).contains(&more), "{more}");
        let (order, _) = passed(0, [Fault::reorder().probability(0.1)]);
        let swapped = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((700..1200).contains(&swapped), "{swapped}");
        let delayed = passed(0, [Fault::delay(Duration::from_secs(1)).probability(0.1)]).1.len();
        assert!((800..1200).contains(&delayed), "{delayed}");
        assert_eq!(passed(0, [Fault::corrupt()]).0, []);
    }

    #[test]
    fn nth_affects_one_packet_and_every_each_nth() {
        let lost = |fault: Fault| {
            let (left, _) = passed(0, [fault]);
            (0..10_000).filter(|psn| !left.contains(psn)).take(4).collect::<Vec<_>>()
        };
        assert_eq!(lost(Fault::drop().nth(3)), [2]);
        assert_eq!(lost(Fault::drop().every(3)), [2, 5, 8, 11]);
    }

    #[test]
    fn filters_select_packets() {
        let ack = Packet { operation: Operation::Acknowledge, ..packet(0) };
        let affects = |fault: Fault, packet: &Packet| injector(0, [fault]).judge(packet).drop;
        let [one, two] = GIDS.map(|gid| [gid]);
        for (fault, expected) in [
            (Fault::drop().qp(1), [true, true]),
            (Fault::drop().qp(2), [false, false]),
            (Fault::drop().opcode(Operation::SendOnly), [true, false]),
            (Fault::drop().opcode(Operation::SendOnly).opcode(Operation::Acknowledge), [true, true]),
            (Fault::drop().from(&one).to(&two), [true, true]),
            (Fault::drop().from(&two), [false, false]),
            (Fault::drop().to(&one), [false, false]),
        ] {
            assert_eq!(
                [&packet(0), &ack].map(|packet| affects(fault.clone(), packet)),
                expected,
                "{fault:?}"
            );
        }
        let mut rnr = injector(0, [Fault::rnr()]);
        assert_eq!([&packet(0), &ack].map(|packet| rnr.judge(packet).rnr), [true, false]);
    }

    #[test]
    fn rules_are_counted_separately_and_can_be_removed() {
        let mut injector = FaultInjector::new(0);
        let lost = injector.inject(Fault::drop());
        let second = injector.inject(Fault::delay(Duration::from_secs(1)).nth(2));
        assert_eq!(injector.judge(&packet(0)), Verdict { drop: true, ..Verdict::default() });
        assert!(injector.delays() && !injector.is_empty());
        injector.remove(&lost);
        assert_eq!(
            injector.judge(&packet(1)),
            Verdict { delay: Duration::from_secs(1), ..Verdict::default() }
        );
        assert_eq!((lost.count(), second.count()), (1, 1));
        injector.remove(&second);
        assert!(injector.is_empty() && !injector.delays());
    }
}
