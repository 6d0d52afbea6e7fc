//! Runs checks, and finds leaks and kernel warnings after each.

use std::fmt::Write as _;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_netlink::ResourceSummary;
use bareverbs_trace::ResourceChange;
use bareverbs_uapi::abi::Since;
#[cfg(any(test, feature = "test-utils"))]
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::uverbs::types::QpType;
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::generate;
use crate::generate::pair::{Options, Pair};
use crate::kernel::KernelDevice;
use crate::probe;
use crate::rules::Rule;
use crate::session::{Judged, Session};
use crate::step::{Step, Stop, skip};
use crate::target::Target;
use crate::{Filter, SuiteError};

/// Timeout of the release of objects after a check. Drivers release some of them in a worker.
const SETTLE: Duration = Duration::from_secs(5);

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The kernel follows the rule.
    Passed,
    /// The kernel breaks the rule, leaks or warns.
    Failed,
    /// The check can't run here; the reason says why.
    Skipped,
}

/// One check's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The name of the check.
    pub name: String,
    /// The short name of its rule; that of leaks if the check leaked and its rule is another.
    pub rule: String,
    /// The result.
    pub verdict: Verdict,
    /// The expected answer of the judged call.
    pub expected: String,
    /// The kernel's answer; empty if no call was judged.
    pub got: String,
    /// The judged call, decoded; empty if there was none.
    pub call: String,
    /// Why the check failed or was skipped.
    pub reason: String,
    /// The change of the kernel that decides the expected answer, or the known bug that the kernel
    /// shows; empty if there is none.
    pub change: String,
    /// Whether the kernel's answer is that since the documented change, or that before it; `None` if the
    /// check has no such change, or for any other answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_changed: Option<bool>,
    /// Whether the kernel's answer is that of a known bug.
    #[serde(default)]
    pub known_bug: bool,
    /// Messages of the kernel that report a fault.
    pub kernel_log: Vec<String>,
}

/// The results of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// The kernel's release.
    pub kernel: String,
    /// The series whose rules were applied.
    pub series: String,
    /// The name of the device.
    pub device: String,
    /// The seed of the order of the checks; 0 for the order of their names.
    pub seed: u64,
    /// Duration of the run in milliseconds.
    pub milliseconds: u64,
    /// The results of the checks.
    pub checks: Vec<Outcome>,
}

impl Results {
    /// The number of checks with a result.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|outcome| outcome.verdict == verdict).count()
    }

    /// The rule that the failures have in common best: a missing method or attribute, a leak, a
    /// valid call that fails, or the rule with the largest share of failures. `None` without failures.
    #[must_use]
    pub fn broken_rule(&self) -> Option<String> {
        let share = |rule: &Rule| {
            let of = self.checks.iter().filter(|outcome| outcome.rule == rule.id());
            let ran: Vec<_> = of.filter(|outcome| outcome.verdict != Verdict::Skipped).collect();
            let failed = ran.iter().filter(|outcome| outcome.verdict == Verdict::Failed).count();
            (failed * 1000).checked_div(ran.len()).unwrap_or(0)
        };
        // Each explains failures of other rules.
        let causes =
            [Rule::MethodPresent, Rule::AttributePresent, Rule::CloseFrees, Rule::Undo, Rule::GoodCall];
        let cause = causes.into_iter().find(|rule| share(rule) > 0);
        let largest = || Rule::ALL.iter().copied().rev().max_by_key(share).filter(|rule| share(rule) > 0);
        cause.or_else(largest).map(|rule| rule.id().to_owned())
    }

    /// The exit status of a program that ran the suite: 0 if nothing unexpected happened, 4 if all
    /// checks were skipped (`KSFT_SKIP` of the kernel's selftests), else 1.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match (self.count(Verdict::Failed), self.count(Verdict::Passed)) {
            (0, 0) => 4,
            (0, _) => 0,
            _ => 1,
        }
    }
}

/// The checks for one device, and the device.
pub struct Suite {
    target: Box<dyn Target>,
    series: Since,
    checks: Vec<Check>,
    /// Checks that run on request only.
    hazardous: Vec<Check>,
    device_option: String,
    records_passed: bool,
}

impl std::fmt::Debug for Suite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (series, checks) = (self.series, self.checks.len());
        f.debug_struct("Suite").field("series", &series).field("checks", &checks).finish_non_exhaustive()
    }
}

impl Suite {
    /// The checks for a device of the running kernel: the one with that name, or the first
    /// one whose node can be opened.
    ///
    /// # Errors
    /// If there is no such device, or the kernel's answers show no known series.
    pub fn for_device(name: Option<&str>) -> Result<Self, SuiteError> {
        #[cfg(any(test, feature = "soft"))]
        if let Some(name) = name
            && let Some(device) = bareverbs::Device::find(name)?.soft()
        {
            return Self::for_soft_device(device.clone());
        }
        Self::new(Box::new(KernelDevice::open(name)?))
    }

    #[cfg(any(test, feature = "soft"))]
    fn for_soft_device(device: bareverbs_soft::SoftDevice) -> Result<Self, SuiteError> {
        Self::new(Box::new(crate::soft::SoftTarget(device)))
    }

    fn new(target: Box<dyn Target>) -> Result<Self, SuiteError> {
        let checks = generate::checks(target.driver_id());
        Self::of(target, checks)
    }

    /// These checks for a device.
    pub(crate) fn of(target: Box<dyn Target>, checks: Vec<Check>) -> Result<Self, SuiteError> {
        let series = match probe::series(&*target) {
            Ok(series) => series,
            Err(Stop::Skip(reason) | Stop::Fail(reason)) => {
                return Err(SuiteError::Probe { device: target.name(), reason });
            }
        };
        let device_option = format!("--device {} ", target.name());
        let (hazardous, checks) = checks.into_iter().partition(|check| check.hazard.is_some());
        Ok(Self { target, series, checks, hazardous, device_option, records_passed: true })
    }

    /// Does not decode the calls of checks that pass, which takes most of the time on a soft device.
    #[cfg(test)]
    pub(crate) fn without_passed_calls(mut self) -> Self {
        self.records_passed = false;
        self
    }

    /// Also runs checks that crash or corrupt kernels which break their rule. Run them in a
    /// disposable guest.
    #[must_use]
    pub fn with_hazards(mut self) -> Self {
        self.checks.append(&mut self.hazardous);
        self
    }

    /// The rules that [`Suite::with_fault`] breaks on this device.
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn faults(&self) -> &'static [Rule] {
        match self.target.driver_id() {
            id if id == DriverId::RXE.0 => crate::fault::SOFT_ROCE,
            id if id == DriverId::MLX5.0 => crate::fault::CONNECTX,
            _ => &[],
        }
    }

    /// Replaces answers of the device so that they break one of [`Suite::faults`].
    #[cfg(any(test, feature = "test-utils"))]
    #[must_use]
    pub fn with_fault(mut self, broken: Rule) -> Self {
        self.target = Box::new(crate::fault::Faulty::new(self.target, broken));
        self
    }

    /// The checks.
    #[must_use]
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// The series whose rules apply, found by calls.
    #[must_use]
    pub fn series(&self) -> Since {
        self.series
    }

    /// The command that repeats one check.
    #[must_use]
    pub fn repeat(&self, name: &str) -> String {
        let hazardous = self.checks.iter().any(|check| check.name == name && check.hazard.is_some());
        let hazard = if hazardous { "--hazard " } else { "" };
        format!("bareverbs conform {}{hazard}--filter '{name}'", self.device_option)
    }

    /// Runs the selected checks in the order of the seed. `progress` gets each result, its position
    /// and the number of checks.
    pub fn run(
        &self,
        filter: &Filter,
        seed: u64,
        mut progress: impl FnMut(&Outcome, usize, usize),
    ) -> Results {
        let begin = Instant::now();
        let mut selected = filter.select(&self.checks);
        shuffle(&mut selected, seed);
        self.warm_up();
        let mut baseline = self.target.resources();
        let mut checks = Vec::with_capacity(selected.len());
        for (position, check) in selected.iter().enumerate() {
            let outcome = self.run_one(check, &mut baseline);
            progress(&outcome, position + 1, selected.len());
            checks.push(outcome);
        }
        Results {
            kernel: self.target.kernel(),
            series: self.series.name().to_owned(),
            device: self.target.name(),
            seed,
            milliseconds: u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX),
            checks,
        }
    }

    /// Makes an object of each class, so that the driver makes what it makes once only.
    fn warm_up(&self) {
        let make = || -> Step<()> {
            let mut session = Session::open(&*self.target, self.series)?;
            if session.is_rxe() {
                for class in [1, 3, 4, 5, 6, 7, 8] {
                    session.object(class)?;
                }
                return Ok(());
            }
            let options = Options { srq: true, ..Options::of(QpType::RC) };
            Pair::with(&mut session, &options).map(drop)
        };
        // A failure is that of the checks too.
        let _ = make();
        self.target.warnings();
    }

    fn run_one(&self, check: &Check, baseline: &mut Result<ResourceSummary, String>) -> Outcome {
        let (mut judged, mut leaks, mut known_bug) = (None, false, false);
        let opened = match self.target.difference(&check.name) {
            Some(reason) => skip(reason),
            None => Session::open(&*self.target, self.series),
        };
        let mut result = opened.and_then(|mut session| {
            session.records_passed = self.records_passed;
            session.bug = check.bug.and_then(|bug| bug.on(self.series));
            let result = (check.body)(&mut session);
            judged = session.judged.take();
            known_bug = session.shows_bug;
            if result.is_ok() { session.check_handles().inspect_err(|_| leaks = true) } else { result }
        });
        if let (Ok(()), Err(leak)) = (&result, self.settle(baseline)) {
            leaks = true;
            result = Err(Stop::Fail(leak));
        }
        let kernel_log = self.target.warnings();
        if let (Ok(()), Some(first), false) = (&result, kernel_log.first(), known_bug) {
            result = Err(Stop::Fail(format!("the kernel reports: {first}")));
        }
        let (verdict, reason) = match result {
            Ok(()) => (Verdict::Passed, String::new()),
            Err(Stop::Skip(reason)) => (Verdict::Skipped, reason),
            Err(Stop::Fail(reason)) => (Verdict::Failed, reason),
        };
        let expected = check.expect.on(self.series);
        let is_changed = judged.as_ref().and_then(|judged| check.expect.is_changed(judged.got));
        let (expected, got, call) = match judged {
            Some(Judged { call, expected, got }) => (expected, got.to_string(), call),
            None => (expected, String::new(), String::new()),
        };
        Outcome {
            name: check.name.clone(),
            rule: if leaks && check.rule != Rule::CloseFrees { Rule::Undo } else { check.rule }
                .id()
                .to_owned(),
            verdict,
            expected: expected.to_string(),
            got,
            call,
            reason,
            change: match (check.bug, check.expect.change()) {
                (Some(bug), _) if known_bug => bug.page.to_owned(),
                (_, Some(change)) => change.name.to_owned(),
                _ => String::new(),
            },
            is_changed,
            known_bug,
            kernel_log,
        }
    }

    /// Waits until the device has as many objects as before the check.
    fn settle(&self, baseline: &mut Result<ResourceSummary, String>) -> Result<(), String> {
        let before = baseline.clone()?;
        let begin = Instant::now();
        let timeout = if self.target.releases_late() { SETTLE } else { Duration::ZERO };
        loop {
            let now = self.target.resources()?;
            if now == before {
                return Ok(());
            }
            if begin.elapsed() > timeout {
                let leak = format!("the device's objects: {}", ResourceChange(before, now));
                *baseline = Ok(now);
                return Err(leak);
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// A failed check as text: the call, the answers, the rule and how to repeat it.
    #[must_use]
    pub fn explain(&self, outcome: &Outcome) -> String {
        let mut text = format!("FAILED {}\n  {}\n", outcome.name, outcome.reason);
        if !outcome.call.is_empty() {
            let _ = writeln!(text, "  call:     {}", outcome.call);
            let _ = writeln!(text, "  expected: {}\n  got:      {}", outcome.expected, outcome.got);
        }
        if let Some(check) = self.checks.iter().find(|check| check.name == outcome.name) {
            let _ = writeln!(text, "  rule:     {}", check.rule.text());
            let _ = writeln!(text, "  source:   {}", check.rule.path());
            if let Some(hazard) = check.hazard {
                let _ = writeln!(text, "  hazard:   {hazard}");
            }
            if let Some(bug) = check.bug {
                let _ = writeln!(text, "  bug:      docs/kernel-bugs.md#{}", bug.page);
            }
            if let Some(change) = check.expect.change() {
                let _ = writeln!(
                    text,
                    "  change:   {}, since {}: {}",
                    change.name,
                    change.since.name(),
                    change.why
                );
            }
        }
        for line in &outcome.kernel_log {
            let _ = writeln!(text, "  kernel:   {line}");
        }
        let _ = writeln!(text, "  repeat:   {}", self.repeat(&outcome.name));
        text
    }
}

/// A permutation that depends on the seed only. Seed 0 keeps the order.
fn shuffle<T>(items: &mut [T], seed: u64) {
    if seed == 0 {
        return;
    }
    let mut state = seed;
    for last in (1..items.len()).rev() {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        let other = mixed % (last as u64 + 1);
        items.swap(last, usize::try_from(other).unwrap_or(last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_is_a_permutation_that_depends_on_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..100).collect();
            shuffle(&mut items, seed);
            items
        };
        assert_eq!(shuffled(0), (0..100).collect::<Vec<_>>());
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        let mut sorted = shuffled(7);
        sorted.sort_unstable();
        assert_eq!(sorted, shuffled(0));
    }
}
