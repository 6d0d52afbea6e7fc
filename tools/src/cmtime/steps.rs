//! The steps of a connection, their times, and the table of the results.

use std::time::{Duration, Instant};

use serde::Serialize;

/// A step of a connection. The order is that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    FullConnect,
    CreateId,
    Bind,
    ResolveAddr,
    ResolveRoute,
    CreateQp,
    InitQpAttr,
    InitQp,
    RtrQpAttr,
    RtrQp,
    RtsQpAttr,
    RtsQp,
    Connect,
    Establish,
    Disconnect,
    DestroyId,
    DestroyQp,
}

const COUNT: usize = 17;

/// The names of the C program.
const NAMES: [&str; COUNT] = [
    "full connect",
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "init qp attr",
    "init qp",
    "rtr qp attr",
    "rtr qp",
    "rts qp attr",
    "rts qp",
    "cm connect",
    "establish",
    "disconnect",
    "destroy id",
    "destroy qp",
];

/// The times of the steps of one connection. Durations are computed when all steps are over.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    starts: [Option<Instant>; COUNT],
    ends: [Option<Instant>; COUNT],
}

impl Times {
    pub(super) fn start(&mut self, step: Step, at: Instant) {
        self.starts[step as usize] = Some(at);
    }

    pub(super) fn end(&mut self, step: Step, at: Instant) {
        self.ends[step as usize] = Some(at);
    }

    /// A step of known start and end.
    pub(super) fn took(&mut self, step: Step, start: Instant, end: Instant) {
        self.start(step, start);
        self.end(step, end);
    }

    /// The duration of a step that has started and ended.
    fn spent(&self, step: usize) -> Option<Duration> {
        Some(self.ends[step]? - self.starts[step]?)
    }
}

/// The times from the first to the last connection, by step.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals([Duration; COUNT]);

impl Totals {
    pub(super) fn set(&mut self, step: Step, time: Duration) {
        self.0[step as usize] = time;
    }
}

/// A row of the table. Times are in microseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Row {
    step: &'static str,
    /// Of all connections, from the first to the last.
    total: u64,
    /// Of the connections one by one.
    sum: u64,
    max: u64,
    min: u64,
}

/// The results of a round, also for `--json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Report {
    /// `qp_conn` with queue pairs, else `cm_conn`.
    test: &'static str,
    role: &'static str,
    connections: u32,
    threads: u32,
    steps: Vec<Row>,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Report {
    pub(super) fn new(
        has_qps: bool,
        role: &'static str,
        threads: u32,
        totals: &Totals,
        times: &[Times],
    ) -> Self {
        let row = |at: usize| {
            let spent: Vec<Duration> = times.iter().filter_map(|times| times.spent(at)).collect();
            // The sum of whole connections, which overlap, means nothing.
            let sum = if at == Step::FullConnect as usize { Duration::ZERO } else { spent.iter().sum() };
            Row {
                step: NAMES[at],
                total: micros(totals.0[at]),
                sum: micros(sum),
                max: micros(spent.iter().max().copied().unwrap_or_default()),
                min: micros(spent.iter().min().copied().unwrap_or_default()),
            }
        };
        Self {
            test: if has_qps { "qp_conn" } else { "cm_conn" },
            role,
            connections: u32::try_from(times.len()).unwrap_or(u32::MAX),
            threads,
            steps: (0..COUNT).map(row).collect(),
        }
    }

    /// The table of the C program.
    pub(super) fn table(&self) -> String {
        let connections = u64::from(self.connections.max(1));
        let mut text =
            format!("{:<15}{:>10}\n{:<15}{:>10}\n", self.test, self.connections, "threads", self.threads);
        text += "step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)\n";
        for Row { step, total, sum, max, min } in &self.steps {
            let (avg, each) = (total / connections, sum / connections);
            text += &format!("{step:<13}  {avg:>10} {total:>10} {each:>10} {sum:>10} {max:>10} {min:>10}\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let start = Instant::now();
        let after = |micros| start + Duration::from_micros(micros);
        let times: Vec<Times> = (1..=4)
            .map(|at| {
                let mut times = Times::default();
                times.start(Step::FullConnect, start);
                times.took(Step::CreateId, start, after(at * 10));
                times.end(Step::FullConnect, after(1000 * at));
                times
            })
            .collect();
        let mut totals = Totals::default();
        totals.set(Step::FullConnect, Duration::from_micros(4010));
        totals.set(Step::CreateId, Duration::from_micros(101));
        Report::new(true, "client", 1, &totals, &times)
    }

    #[test]
    fn rows_summarize_the_connections() {
        let report = report();
        assert_eq!(report.steps.len(), 17);
        assert_eq!(report.steps[0], Row { step: "full connect", total: 4010, sum: 0, max: 4000, min: 1000 });
        assert_eq!(report.steps[1], Row { step: "create id", total: 101, sum: 100, max: 40, min: 10 });
        assert_eq!(report.steps[16], Row { step: "destroy qp", total: 0, sum: 0, max: 0, min: 0 });
    }

    #[test]
    fn table_is_that_of_the_c_program() {
        let table = report().table();
        let lines: Vec<_> = table.lines().take(5).collect();
        assert_eq!(
            lines,
            [
                "qp_conn                 4",
                "threads                 1",
                "step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)",
                "full connect         1002       4010          0          0       4000       1000",
                "create id              25        101         25        100         40         10",
            ]
        );
        assert_eq!(table.lines().count(), 20);
    }

    #[test]
    fn end_without_a_start_is_ignored() {
        let mut times = Times::default();
        times.end(Step::Connect, Instant::now());
        assert_eq!(Report::new(false, "server", 1, &Totals::default(), &[times]).steps[12].max, 0);
    }
}
