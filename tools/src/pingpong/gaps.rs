//! Times between messages, by the device's clock.

use serde::Serialize;

/// What is noted while a run goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gaps {
    /// The bits that the clock counts with.
    mask: u64,
    last: Option<u64>,
    most: u64,
    least: u64,
    sum: u64,
    count: u64,
}

/// What comes of it, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct GapFigures {
    pub(crate) max_ticks: u64,
    pub(crate) min_ticks: u64,
    pub(crate) average_ticks: f64,
}

impl Gaps {
    pub(crate) fn new(mask: u64) -> Self {
        Self { mask, last: None, most: 0, least: u64::MAX, sum: 0, count: 0 }
    }

    /// A message came.
    pub(crate) fn note(&mut self, time: u64) {
        if let Some(last) = self.last.replace(time) {
            // The clock may have begun anew.
            let gap = time.wrapping_sub(last) & self.mask;
            self.most = self.most.max(gap);
            self.least = self.least.min(gap);
            self.sum = self.sum.saturating_add(gap);
            self.count += 1;
        }
    }

    /// The figures, where at least two messages came.
    pub(crate) fn figures(&self) -> Option<GapFigures> {
        (self.count > 0).then(|| GapFigures {
            max_ticks: self.most,
            min_ticks: self.least,
            average_ticks: self.sum as f64 / self.count as f64,
        })
    }
}

impl GapFigures {
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
    fn gaps_are_counted_also_where_the_clock_begins_anew() {
        let mut gaps = Gaps::new(0xffff);
        assert_eq!(gaps.figures(), None);
        gaps.note(0xfff0);
        assert_eq!(gaps.figures(), None);
        gaps.note(0x0010);
        gaps.note(0x0014);
        assert_eq!(
            gaps.figures().unwrap().lines(),
            [
                "Max receive completion clock cycles = 32",
                "Min receive completion clock cycles = 4",
                "Average receive completion clock cycles = 18.000000",
            ]
        );
    }
}
