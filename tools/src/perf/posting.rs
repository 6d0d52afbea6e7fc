//! How the messages of a run are posted, and where they lie in memory.

use super::exchange::Preamble;
use super::order::Order;
use super::plan::{Length, Plan};
use super::transport::{Atomic, Service};
use crate::cli::perf::choice::{AtomicType, Measure, Verb};

/// Where messages of a size are placed in a buffer: one after the other, in cache lines, until the
/// cycle buffer is full; large messages all at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    distance: u64,
    end: u64,
}

impl Steps {
    pub(crate) fn new(size: u32, agreed: &Preamble) -> Self {
        let (cycle, line) = (u64::from(agreed.cycle_buffer), u64::from(agreed.cache_line));
        let distance = u64::from(size).next_multiple_of(line);
        if u64::from(size) > cycle / 2 || distance > cycle {
            return Self::NONE;
        }
        Self { distance, end: cycle / distance * distance }
    }

    /// All messages at the start.
    pub(crate) const NONE: Self = Self { distance: 0, end: u64::MAX };

    /// So many places, which do not share cache lines.
    pub(crate) fn apart(size: u32, places: u32) -> Self {
        let distance = u64::from(size).next_multiple_of(64);
        Self { distance, end: distance * u64::from(places) }
    }

    /// Bytes from the start of the first place to the end of the last one, for messages of `size`.
    pub(crate) fn bytes(self, size: u32) -> u64 {
        if self.distance == 0 { size.into() } else { self.end }
    }

    /// The number of places.
    pub(crate) fn places(self) -> u64 {
        self.end.checked_div(self.distance).unwrap_or(1)
    }

    /// The place of a message.
    pub(crate) fn place_of(self, number: u64) -> u64 {
        number % self.places() * self.distance
    }

    #[inline]
    pub(crate) fn next(self, offset: u64) -> u64 {
        let next = offset + self.distance;
        if next == self.end { 0 } else { next }
    }
}

/// How messages of a run are posted.
#[derive(Clone, Debug)]
pub(crate) struct Posting {
    pub(crate) order: Order,
    /// The largest size.
    pub(crate) size: u32,
    pub(crate) send_steps: Steps,
    pub(crate) recv_steps: Steps,
    /// One request in `cq_mod` is signalled.
    pub(crate) cq_mod: u64,
    /// Messages and receives of each queue pair; `u64::MAX` without a limit.
    pub(crate) limit: u64,
    /// Requests and receives that each queue has outstanding.
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    atomic: AtomicType,
    /// Whether compare-and-swap counts the messages of each place.
    counts: bool,
    /// Whether the messages consume receives and have their length checked.
    pub(crate) sends: bool,
    /// Whether messages may be lost.
    pub(crate) lossy: bool,
    /// Whether the peer polls the last byte of each message.
    pub(crate) polled: bool,
}

impl Posting {
    /// The messages of a run of this size.
    pub(crate) fn new<T: Service>(plan: &Plan<'_>, agreed: &Preamble, size: u32) -> Self {
        let depths = plan.depths(size);
        // One place more than outstanding messages: a write with immediate data begins before it
        // consumes a receive.
        let places = depths.send.max(depths.receive).saturating_add(1);
        let steps = |size| match (plan.measure, plan.options.verify) {
            (Measure::Latency, _) => Steps::NONE,
            (Measure::Bandwidth, true) => Steps::apart(size, places),
            (Measure::Bandwidth, false) => Steps::new(size, agreed),
        };
        Self {
            order: plan.order(size),
            size,
            send_steps: steps(size),
            recv_steps: steps(size + T::HEADROOM),
            cq_mod: plan.cq_mod_of(size).into(),
            limit: match plan.length {
                Length::Messages(messages) => messages,
                Length::Time { .. } => u64::MAX,
            },
            tx_depth: depths.send,
            rx_depth: depths.receive,
            atomic: plan.atomic_type().unwrap_or_default(),
            counts: plan.options.verify,
            sends: plan.verb == Verb::Send,
            lossy: !plan.options.connection.is_reliable(),
            polled: plan.verb == Verb::Write && plan.measure == Measure::Latency,
        }
    }

    /// The operands of a message, if it is an atomic operation. perftest compares with 0 and swaps in 0.
    #[inline(always)]
    pub(crate) fn atomic_of(&self, number: u64) -> Atomic {
        match (self.atomic, self.counts) {
            (AtomicType::FetchAndAdd, _) => Atomic::Add(1),
            (AtomicType::CmpAndSwap, false) => Atomic::Swap { compare: 0, swap: 0 },
            (AtomicType::CmpAndSwap, true) => {
                let earlier = number / self.send_steps.places();
                Atomic::Swap { compare: earlier, swap: earlier + 1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::perf::PerfCommand;
    use crate::cli::{Cli, Command};
    use crate::perf::wire::Version;
    use bareverbs::qp::Rc;
    use bareverbs::values::Mtu;
    use clap::Parser;
    use proptest::prelude::*;

    fn agreed(cycle_buffer: u32, cache_line: u32) -> Preamble {
        Preamble { peer: Version::OURS, cycle_buffer, cache_line, mtu: Mtu::Mtu1024 }
    }

    /// The messages of a command line.
    fn posting(line: &str, size: u32) -> Posting {
        let words = ["bareverbs", "perf"].into_iter().chain(line.split_whitespace());
        let Command::Perf(PerfCommand::Benchmark(perf)) = Cli::parse_from(words).command else {
            unreachable!("the command is a benchmark")
        };
        Posting::new::<Rc>(&Plan::new(&perf).unwrap(), &agreed(4096, 64), size)
    }

    #[test]
    fn peer_polls_messages_in_the_latency_test_of_writes_only() {
        for (line, polled) in
            [("write lat", true), ("write bw", false), ("write-imm lat", false), ("send lat", false)]
        {
            assert_eq!(posting(line, 2).polled, polled, "{line}");
        }
    }

    #[test]
    fn short_messages_cycle_and_long_ones_stay() {
        let offsets = |size| {
            let steps = Steps::new(size, &agreed(4096, 64));
            std::iter::successors(Some(0), move |&offset| Some(steps.next(offset)))
        };
        assert_eq!(offsets(8).take(3).collect::<Vec<_>>(), [0, 64, 128]);
        assert_eq!(offsets(8).nth(64), Some(0));
        assert_eq!(offsets(1300).take(5).collect::<Vec<_>>(), [0, 1344, 2688, 0, 1344]);
        assert_eq!(offsets(2048).take(3).collect::<Vec<_>>(), [0, 2048, 0]);
        assert!(offsets(2049).take(9).all(|offset| offset == 0));
        assert!(offsets(1 << 20).take(9).all(|offset| offset == 0));
    }

    /// perftest swaps 0 for 0. With `--verify`, the operations of a place count.
    #[test]
    fn compare_and_swap_counts_the_messages_of_a_place_if_verified() {
        for (line, operands) in [
            ("atomic bw -A CMP_AND_SWAP", [(0, 0), (0, 0), (0, 0)]),
            ("atomic bw -A CMP_AND_SWAP --verify -t 2", [(0, 1), (0, 1), (1, 2)]),
        ] {
            let posting = posting(line, 8);
            // Two outstanding messages have three places.
            for (number, (compare, swap)) in [0, 2, 3].into_iter().zip(operands) {
                assert_eq!(posting.atomic_of(number), Atomic::Swap { compare, swap }, "{line}: {number}");
            }
        }
    }

    proptest! {
        #[test]
        fn messages_stay_within_the_buffer(size in 1..100_000u32, cycle in 1..100_000u32, line in 1..4096u32) {
            let steps = Steps::new(size, &agreed(cycle, line));
            let mut offset = 0;
            for _ in 0..300 {
                prop_assert!(offset + u64::from(size) <= u64::from(size.max(cycle)));
                offset = steps.next(offset);
            }
        }
    }
}
