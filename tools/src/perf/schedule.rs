//! The order of exchanges, connection and runs: that of perftest's programs.

use super::plan::{Length, Plan};
use crate::cli::perf::choice::{Measure, Verb};

/// A step of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Exchange the record of the first queue pair: both sides are at this place.
    Barrier,
    /// Exchange the records of all queue pairs.
    Keys,
    Connect,
    /// Exchange an empty record: both sides are at this place, before there are queue pairs.
    Sync,
    /// Connect the queue pairs by the connection manager.
    Manage,
    /// Write the memory that the peer reads or writes, for `--verify`.
    Fill,
    PostReceives,
    Run,
    /// Compare the memory that the peer wrote, and exchange the outcome.
    Compare,
    /// Exchange the bandwidth reports.
    Report,
    /// Keep the queue pairs until the peer has ended, because they acknowledge its last message.
    WaitForEnd,
}

/// The properties of a test that decide the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    verb: Verb,
    bandwidth: bool,
    client: bool,
    both: bool,
    several_sizes: bool,
    timed: bool,
    /// Whether the peer is this program.
    bareverbs: bool,
    /// Both sides are this program.
    verify: bool,
    /// Whether the connection manager connects.
    cm: bool,
}

impl Shape {
    pub(crate) fn new(plan: &Plan<'_>, bareverbs: bool) -> Self {
        Self {
            verb: plan.verb,
            bandwidth: plan.measure == Measure::Bandwidth,
            client: plan.is_client(),
            both: plan.bidirectional(),
            several_sizes: plan.options.all,
            timed: matches!(plan.length, Length::Time { .. }),
            bareverbs,
            verify: plan.options.verify,
            cm: plan.options.cm,
        }
    }

    /// The steps before the tests.
    pub(crate) fn setup(self) -> Vec<Step> {
        use Step::{Barrier, Connect, Keys, Manage, Sync};
        let managed: &[Step] = if self.cm { &[Sync, Manage, Sync] } else { &[] };
        let steps: &[Step] = match (self.verb, self.bandwidth) {
            (Verb::Send, _) => &[Keys, Connect, Barrier, Keys],
            (_, true) => &[Keys, Connect, Keys, Barrier],
            (_, false) => &[Barrier, Keys, Connect, Keys, Barrier],
        };
        [managed, steps].concat()
    }

    /// Whether this side only serves its memory.
    pub(crate) fn is_passive(self) -> bool {
        let one_sided = !self.verb.consumes_receives();
        let answers = self.verb == Verb::Write && !self.bandwidth;
        one_sided && !answers && !self.client && !self.both
    }

    /// The steps of each size.
    pub(crate) fn size(self) -> Vec<Step> {
        let receives = self.verb.consumes_receives();
        let synchronised = self.bandwidth && (self.both || receives);
        let report = self.bandwidth && self.both && !(receives && self.timed);
        let send = self.verb == Verb::Send;
        let again = synchronised && self.several_sizes;
        let steps = [
            (self.verify, Step::Fill),
            (receives && (!self.bandwidth || self.both || !self.client), Step::PostReceives),
            (synchronised || receives || self.verify, Step::Barrier),
            (!self.is_passive(), Step::Run),
            (report && send, Step::Report),
            (again, Step::Barrier),
            (report && !send, Step::Report),
            (self.verify, Step::Compare),
        ];
        steps.into_iter().filter_map(|(wanted, step)| wanted.then_some(step)).collect()
    }

    /// Whether the tests begin with a barrier after the setup.
    pub(crate) fn begins_with_barrier(self) -> bool {
        self.size().into_iter().take_while(|&step| step != Step::Run).any(|step| step == Step::Barrier)
    }

    /// The steps after the tests.
    pub(crate) fn end(self) -> Vec<Step> {
        use Step::{Barrier, Report, WaitForEnd};
        let receives = self.verb.consumes_receives();
        match (self.verb, self.bandwidth) {
            (_, true) if !receives && !self.both => vec![Barrier, Report, Barrier],
            // perftest ends without an exchange.
            (Verb::Write | Verb::WriteImm, false) if !self.bareverbs => vec![WaitForEnd],
            _ => vec![Barrier],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(steps: &[Step]) -> String {
        let words = steps.iter().map(|step| match step {
            Step::Barrier => "R",
            Step::Keys => "R*n",
            Step::Connect => "connect",
            Step::Fill => "fill",
            Step::PostReceives => "receives",
            Step::Run => "run",
            Step::Report => "report",
            Step::WaitForEnd => "wait",
            Step::Compare => "compare",
            Step::Sync => "sync",
            Step::Manage => "manage",
        });
        words.collect::<Vec<_>>().join(" ")
    }

    /// The steps as text; of a test, `b` is both directions, `a` all sizes, `D` timed.
    fn order(verb: Verb, test: &str, options: &str, client: bool) -> String {
        let shape = Shape {
            verb,
            bandwidth: test == "bw",
            client,
            both: options.contains('b'),
            several_sizes: options.contains('a'),
            timed: options.contains('D'),
            bareverbs: false,
            verify: options.contains('v'),
            cm: options.contains('R'),
        };
        format!("{} | {} | {}", words(&shape.setup()), words(&shape.size()), words(&shape.end()))
    }

    #[test]
    fn order_is_perftests() {
        use Verb::{Atomic, Read, Send, Write, WriteImm};
        for (verb, test, options, client, expected) in [
            (Write, "bw", "", true, "R*n connect R*n R | run | R report R"),
            (Write, "bw", "", false, "R*n connect R*n R |  | R report R"),
            (Read, "bw", "a", true, "R*n connect R*n R | run | R report R"),
            (Atomic, "bw", "D", false, "R*n connect R*n R |  | R report R"),
            (Write, "bw", "b", true, "R*n connect R*n R | R run report | R"),
            (Write, "bw", "b", false, "R*n connect R*n R | R run report | R"),
            (Read, "bw", "ba", true, "R*n connect R*n R | R run R report | R"),
            (Write, "bw", "bD", true, "R*n connect R*n R | R run report | R"),
            (WriteImm, "bw", "", true, "R*n connect R*n R | R run | R"),
            (WriteImm, "bw", "", false, "R*n connect R*n R | receives R run | R"),
            (WriteImm, "bw", "a", true, "R*n connect R*n R | R run R | R"),
            (WriteImm, "bw", "ba", true, "R*n connect R*n R | receives R run R report | R"),
            (WriteImm, "bw", "bD", true, "R*n connect R*n R | receives R run | R"),
            (Send, "bw", "", true, "R*n connect R R*n | R run | R"),
            (Send, "bw", "", false, "R*n connect R R*n | receives R run | R"),
            (Send, "bw", "ba", false, "R*n connect R R*n | receives R run report R | R"),
            (Send, "bw", "bD", true, "R*n connect R R*n | receives R run | R"),
            (Send, "bw", "R", true, "sync manage sync R*n connect R R*n | R run | R"),
            (Read, "lat", "R", true, "sync manage sync R R*n connect R*n R | run | R"),
            (Send, "lat", "a", true, "R*n connect R R*n | receives R run | R"),
            (Send, "lat", "", false, "R*n connect R R*n | receives R run | R"),
            (Write, "lat", "a", true, "R R*n connect R*n R | run | wait"),
            (Write, "lat", "", false, "R R*n connect R*n R | run | wait"),
            (WriteImm, "lat", "", true, "R R*n connect R*n R | receives R run | wait"),
            (Read, "lat", "a", true, "R R*n connect R*n R | run | R"),
            (Read, "lat", "", false, "R R*n connect R*n R |  | R"),
            (Atomic, "lat", "D", true, "R R*n connect R*n R | run | R"),
        ] {
            assert_eq!(order(verb, test, options, client), expected, "{verb:?} {test} {options} {client}");
        }
    }

    #[test]
    fn verified_runs_fill_before_and_compare_after_each_size() {
        use Verb::{Read, Send, Write};
        for (verb, test, options, client, expected) in [
            (Write, "bw", "va", true, "fill R run compare"),
            (Write, "bw", "va", false, "fill R compare"),
            (Send, "bw", "v", false, "fill receives R run compare"),
            (Read, "lat", "v", true, "fill R run compare"),
            (Write, "bw", "vb", true, "fill R run report compare"),
        ] {
            let order = order(verb, test, options, client);
            assert_eq!(order.split(" | ").nth(1), Some(expected), "{verb:?} {test} {options}");
        }
    }

    #[test]
    fn two_sides_of_this_program_end_write_latency_tests_together() {
        let shape = Shape {
            verb: Verb::Write,
            bandwidth: false,
            client: true,
            both: false,
            several_sizes: false,
            timed: false,
            bareverbs: true,
            verify: false,
            cm: false,
        };
        assert_eq!(words(&shape.end()), "R");
    }
}
