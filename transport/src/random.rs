//! Random numbers by a seed.

/// A generator of random numbers (SplitMix64). The same seed gives the same numbers on each machine.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// A generator at the start of the sequence of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(
        clippy::should_implement_trait,
        reason = "an endless sequence is no `Iterator` that adapters fit"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`.
    ///
    /// # Panics
    ///
    /// If `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Whether an event of this probability, from 0.0 to 1.0, happens.
    pub fn happens(&mut self, probability: f64) -> bool {
        // 53 bits are exact in an `f64`.
        const SCALE: f64 = (1_u64 << 53) as f64;
        ((self.next() >> 11) as f64) < probability * SCALE
    }
}
