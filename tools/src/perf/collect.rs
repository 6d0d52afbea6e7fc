//! The intervals of several threads as one.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::measure::Interval;

/// Adds up the intervals of threads, and passes each sum on when all threads have passed it.
pub(crate) struct Collector<'c> {
    threads: usize,
    pending: Mutex<BTreeMap<u64, (Interval, usize)>>,
    sink: &'c (dyn Fn(&Interval) + Sync),
}

impl<'c> Collector<'c> {
    pub(crate) fn new(threads: usize, sink: &'c (dyn Fn(&Interval) + Sync)) -> Self {
        Self { threads, pending: Mutex::default(), sink }
    }

    /// Adds an interval of a thread.
    pub(crate) fn add(&self, interval: &Interval) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let (sum, count) = pending.entry(interval.start).or_insert((*interval, 0));
        if *count > 0 {
            *sum = Interval::merge(*sum, *interval);
        }
        *count += 1;
        while let Some(entry) = pending.first_entry().filter(|entry| entry.get().1 >= self.threads) {
            (self.sink)(&entry.remove().0);
        }
    }

    /// Passes on the intervals that some threads did not reach.
    pub(crate) fn finish(self) {
        let pending = self.pending.into_inner().unwrap_or_else(PoisonError::into_inner);
        pending.into_values().for_each(|(interval, _)| (self.sink)(&interval));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_passed_on_when_all_threads_have_them() {
        let passed = Mutex::new(Vec::new());
        let sink = |interval: &Interval| passed.lock().unwrap().push((interval.start, interval.messages));
        let collector = Collector::new(2, &sink);
        let interval = |start, messages| Interval { start, end: start + 10, messages, ..Interval::default() };
        collector.add(&interval(0, 1));
        collector.add(&interval(10, 2));
        assert!(passed.lock().unwrap().is_empty());
        collector.add(&interval(0, 4));
        assert_eq!(*passed.lock().unwrap(), [(0, 5)]);
        // The other thread ends before its second interval.
        collector.add(&interval(20, 8));
        collector.finish();
        assert_eq!(*passed.lock().unwrap(), [(0, 5), (10, 2), (20, 8)]);
    }
}
