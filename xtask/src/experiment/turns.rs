//! Runs of our program and of librdmacm's or perftest's, in turns in one guest.

use anyhow::Result;
use bareverbs_lab::{Guests, Setup};
use clap::Args;

use super::{DEFAULT_KERNEL, Files, Port};
use crate::build;

/// The names of our program and of librdmacm's in tables.
pub(crate) const NAMES: [&str; 2] = ["bareverbs", "librdmacm"];

/// A guest with both programs, and how often they run.
#[derive(Args)]
pub(crate) struct Turns {
    /// A series such as 6.12, rc or a folder.
    #[arg(long, default_value = DEFAULT_KERNEL)]
    kernel: String,
    /// On an HCA instead of rxe: ib or roce.
    #[arg(long, value_enum)]
    hca: Option<Port>,
    /// Runs of each program, in turns.
    #[arg(long, default_value_t = 5)]
    pub(crate) pairs: u32,
}

/// What the time of a guest counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Instructions of its one processor.
    Instructions,
    Real,
}

impl Turns {
    /// Boots the guest and runs `work` in it.
    pub(crate) fn in_guest<T>(&self, time: Time, work: impl FnOnce(&mut Guests) -> Result<T>) -> Result<T> {
        let files = Files::with_rdma_core(&self.kernel, build::released_guest_programs()?)?;
        let hca = super::start_hca(self.hca, 1, &[])?;
        let setup = Setup { instruction_clock: time == Time::Instructions, ..files.setup() };
        super::run(&setup, hca.as_ref(), work)
    }

    /// The IP address of the guest's device.
    pub(crate) fn ip(&self) -> &'static str {
        if matches!(self.hca, Some(Port::Ib)) { "10.2.0.1" } else { "10.1.0.1" }
    }

    /// Runs the programs in turns. Returns the results of each, without those of its first run, which
    /// loads the program and the kernel's modules.
    pub(crate) fn run<P: Copy, T>(
        &self,
        programs: [P; 2],
        mut run: impl FnMut(P) -> Result<T>,
    ) -> Result<[Vec<T>; 2]> {
        let mut results = [Vec::new(), Vec::new()];
        for pair in 0..=self.pairs {
            for (program, results) in programs.into_iter().zip(&mut results) {
                let result = run(program)?;
                if pair > 0 {
                    results.push(result);
                }
            }
        }
        Ok(results)
    }
}

/// The geometric mean; `None` if there is no figure, or one is 0.
pub(crate) fn mean(figures: &[f64]) -> Option<f64> {
    let all = !figures.is_empty() && figures.iter().all(|figure| *figure > 0.0);
    all.then(|| (figures.iter().map(|figure| figure.ln()).sum::<f64>() / figures.len() as f64).exp())
}

/// The median; `None` if there is no figure.
pub(crate) fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], *upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_first_runs_are_left_out() {
        let turns = Turns { kernel: DEFAULT_KERNEL.to_owned(), hca: None, pairs: 2 };
        let mut order = Vec::new();
        let results = turns.run(["ours", "theirs"], |program| {
            order.push(program);
            Ok(order.len())
        });
        assert_eq!(results.unwrap(), [[3, 5], [4, 6]]);
        assert_eq!(order, ["ours", "theirs"].repeat(3));
    }

    #[test]
    fn median_of_an_even_number_is_between_the_middle_ones() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn mean_is_geometric() {
        assert_eq!(mean(&[2.0, 8.0]).map(f64::round), Some(4.0));
        assert_eq!((mean(&[]), mean(&[0.0])), (None, None));
    }
}
