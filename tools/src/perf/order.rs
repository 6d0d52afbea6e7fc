//! The order of the messages of a run.

use std::sync::Arc;

use crate::cli::perf::mix::Kind;

/// Entries of the table that a distribution is drawn from. A power of two.
const TABLE: usize = 4096;
/// Distance in the table between two queue pairs.
const DISTANCE: u64 = 1031;

/// The kinds of messages of a run, in the order in which each queue pair sends them.
///
/// The order depends on the distribution only, so that both sides know the kind of each message.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    kinds: Arc<[Kind]>,
    /// Indices of kinds. Its length is a power of two.
    table: Arc<[u8]>,
}

impl Order {
    /// All messages of one kind.
    pub(crate) fn single(kind: Kind) -> Self {
        Self { kinds: [kind].into(), table: [0].into() }
    }

    /// Messages in the ratio of the weights, up to one in [`TABLE`], in a pseudorandom order.
    pub(crate) fn weighted(parts: &[(Kind, u32)]) -> Self {
        let total: u64 = parts.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let mut table = Vec::with_capacity(TABLE);
        let mut upto = 0;
        for (index, &(_, weight)) in parts.iter().enumerate() {
            upto += u64::from(weight);
            let end = (upto * TABLE as u64).div_ceil(total.max(1)) as usize;
            table.resize(end.max(table.len()), index as u8);
        }
        // The shuffle of Fisher and Yates.
        let mut state = 0;
        for index in (1..table.len()).rev() {
            state = next_random(state);
            table.swap(index, (state >> 33) as usize % (index + 1));
        }
        Self { kinds: parts.iter().map(|&(kind, _)| kind).collect(), table: table.into() }
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The index of the kind of a queue pair's message. The first message has the number 0.
    #[inline]
    pub(crate) fn index(&self, queue_pair: u32, number: u64) -> usize {
        let at = number.wrapping_add(u64::from(queue_pair) * DISTANCE) as usize & (self.table.len() - 1);
        self.table[at].into()
    }

    /// The kind of a queue pair's message.
    #[inline]
    pub(crate) fn kind(&self, queue_pair: u32, number: u64) -> Kind {
        self.kinds[self.index(queue_pair, number)]
    }

    /// Whether a message may have this size.
    pub(crate) fn has_size(&self, size: u32) -> bool {
        self.kinds.iter().any(|kind| kind.size == size)
    }
}

/// The next state of a linear congruential generator (the multiplier of Knuth's MMIX).
fn next_random(state: u64) -> u64 {
    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::perf::choice::Verb;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn messages_have_the_ratio_of_the_weights(
            weights in proptest::collection::vec(1..1000u32, 1..9), queue_pair in 0..5000u32, from in 0..1u64 << 40,
        ) {
            let parts: Vec<_> =
                weights.iter().zip(1..).map(|(&weight, size)| (Kind { verb: Verb::Write, size }, weight)).collect();
            let order = Order::weighted(&parts);
            let mut counts = vec![0u64; weights.len()];
            for number in from..from + TABLE as u64 {
                counts[order.index(queue_pair, number)] += 1;
            }
            let total: u32 = weights.iter().sum();
            for (count, weight) in counts.into_iter().zip(weights) {
                let expected = f64::from(weight) / f64::from(total) * TABLE as f64;
                prop_assert!((count as f64 - expected).abs() <= 1.0, "{count} for {expected}");
            }
        }
    }
}
