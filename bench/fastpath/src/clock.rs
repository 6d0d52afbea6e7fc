//! A clock that counts instructions, in a guest whose time counts instructions.

use std::arch::x86_64::{_mm_lfence, _rdtsc};

/// Reads the time stamp counter, ordered after all earlier and before all later instructions.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: every x86-64 processor has these instructions.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        now
    }
}

/// Samples of one quantity.
pub(crate) struct Samples {
    /// The duration of an empty sample.
    empty: u64,
    values: Vec<u64>,
}

impl Samples {
    /// Reserves memory for `count` samples, so that sampling does not allocate.
    pub(crate) fn new(count: usize) -> Self {
        let mut nothing: Vec<u64> = (0..count)
            .map(|_| {
                let begin = now();
                now() - begin
            })
            .collect();
        nothing.sort_unstable();
        Self { empty: nothing[count / 2], values: Vec::with_capacity(count) }
    }

    /// Takes a sample of `work`.
    #[inline(always)]
    pub(crate) fn take<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let begin = now();
        let result = work();
        let end = now();
        self.values.push(end - begin);
        result
    }

    /// Discards the last sample.
    pub(crate) fn discard_last(&mut self) {
        self.values.pop();
    }

    /// The minimum and the median, per each of `parts` equal parts of a sample.
    pub(crate) fn smallest_and_median(mut self, parts: usize) -> Option<(f64, f64)> {
        self.values.sort_unstable();
        let each = |value: u64| value.saturating_sub(self.empty) as f64 / parts as f64;
        Some((each(*self.values.first()?), each(self.values[self.values.len() / 2])))
    }
}
