//! The progress of a run, on a terminal.

use indicatif::{ProgressBar, ProgressStyle};

use super::measure::Interval;
use super::plan::{Length, Plan};
use super::report::{IntervalFigures, Labels};

/// A bar on standard error, if that is a terminal. It is drawn at the end of each interval only, so
/// that it does not disturb the measurement.
pub(crate) struct Progress {
    bar: ProgressBar,
    timed: bool,
}

impl Progress {
    /// The progress of runs with `peers` peers.
    pub(crate) fn new(plan: &Plan<'_>, peers: usize) -> Self {
        let (steps, timed) = match plan.length {
            Length::Messages(messages) => {
                let runs = plan.sizes.len() * peers;
                (messages.saturating_mul(u64::from(plan.num_qp)).saturating_mul(runs as u64), false)
            }
            Length::Time { total, .. } => (total.as_millis() as u64, true),
        };
        let bar = ProgressBar::new(steps);
        let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {msg}");
        bar.set_style(style.expect("the template is valid"));
        Self { bar, timed }
    }

    /// Shows an interval that ended.
    pub(crate) fn show(&self, interval: &Interval, labels: &Labels) {
        let figures = IntervalFigures::new(interval, labels);
        self.bar.set_message(format!("{} bytes: {:.3} Gbit/s", figures.size, figures.gbit_per_second));
        match self.timed {
            true => self.bar.set_position(interval.end / 1_000_000),
            false => self.bar.inc(interval.messages),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
