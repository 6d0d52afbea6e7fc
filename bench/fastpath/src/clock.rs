//! A clock that counts instructions, in a guest whose time does.

use std::arch::x86_64::{_mm_lfence, _rdtsc};

/// The time stamp counter, after everything before it and before everything after it.
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
    /// What a sample of nothing takes.
    empty: u64,
    values: Vec<u64>,
}

impl Samples {
    /// Room for `count` samples, so that taking them allocates nothing.
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

    /// Leaves the last sample out.
    pub(crate) fn discard_last(&mut self) {
        self.values.pop();
    }

    /// The smallest and the median, of each of `parts` equal parts of a sample.
    pub(crate) fn smallest_and_median(mut self, parts: usize) -> Option<(f64, f64)> {
        self.values.sort_unstable();
        let each = |value: u64| value.saturating_sub(self.empty) as f64 / parts as f64;
        Some((each(*self.values.first()?), each(self.values[self.values.len() / 2])))
    }
}
