//! Intervals between messages, by the device's clock.

use serde::Serialize;

/// Samples during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    /// The bits of the device's clock.
    mask: u64,
    last: Option<u64>,
    max: u64,
    min: u64,
    sum: u64,
    count: u64,
}

/// The results, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct LatencyFigures {
    pub(crate) max_ticks: u64,
    pub(crate) min_ticks: u64,
    pub(crate) average_ticks: f64,
}

impl Latency {
    pub(crate) fn new(mask: u64) -> Self {
        Self { mask, last: None, max: 0, min: u64::MAX, sum: 0, count: 0 }
    }

    /// Records the timestamp of a received message.
    pub(crate) fn note(&mut self, time: u64) {
        if let Some(last) = self.last.replace(time) {
            // The clock may have wrapped.
            let delta = time.wrapping_sub(last) & self.mask;
            self.max = self.max.max(delta);
            self.min = self.min.min(delta);
            self.sum = self.sum.saturating_add(delta);
            self.count += 1;
        }
    }

    /// The results; `None` with fewer than two messages.
    pub(crate) fn figures(&self) -> Option<LatencyFigures> {
        (self.count > 0).then(|| LatencyFigures {
            max_ticks: self.max,
            min_ticks: self.min,
            average_ticks: self.sum as f64 / self.count as f64,
        })
    }
}

impl LatencyFigures {
    /// The lines of ibv_rc_pingpong.
    pub(crate) fn lines(&self) -> [String; 3] {
        let Self { max_ticks, min_ticks, average_ticks } = self;
        [
            format!("Max receive completion clock cycles = {max_ticks}"),
            format!("Min receive completion clock cycles = {min_ticks}"),
            format!("Average receive completion clock cycles = {average_ticks:.6}"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_deltas_handle_clock_wrap() {
        let mut latency = Latency::new(0xffff);
        assert_eq!(latency.figures(), None);
        latency.note(0xfff0);
        assert_eq!(latency.figures(), None);
        latency.note(0x0010);
        latency.note(0x0014);
        assert_eq!(
            latency.figures().unwrap().lines(),
            [
                "Max receive completion clock cycles = 32",
                "Min receive completion clock cycles = 4",
                "Average receive completion clock cycles = 18.000000",
            ]
        );
    }
}
