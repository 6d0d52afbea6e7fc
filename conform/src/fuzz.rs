//! Fuzzing of the verbs ABI by system call.
//!
//! Programs are sequences of calls: methods, write commands through `INVOKE_WRITE` and by `write()`,
//! opening and closing of files and descriptors. They are generated from the tables of
//! [`bareverbs_uapi`], mostly valid, with a few changes that make calls invalid. A model of the
//! objects predicts what must happen to handles and to the kernel's counts of objects. proptest
//! generates the programs and shrinks those that fail.
//!
//! A program fails if one of the [`Rule`]s is broken. The kernel may crash: run it in a
//! disposable guest.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use bareverbs_conform::fuzz::{Options, fuzz};
//!
//! let options = Options { duration: Duration::from_secs(60), seed: 1, ..Options::default() };
//! let report = fuzz(None, &options, |_| {})?;
//! println!("{report}");
//! # Ok::<(), bareverbs_conform::fuzz::FuzzError>(())
//! ```

mod build;
mod exclusions;
mod facts;
mod faults;
mod machine;
mod memory;
mod places;
mod program;
mod recorder;
mod values;
mod written;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bareverbs_trace::trace::Record;
use bareverbs_uapi::abi::Since;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::SuiteError;
use crate::generate::alone;
use crate::kernel::KernelDevice;
use crate::probe;
use crate::session::Session;
use crate::step::Stop;
use crate::target::Target;
use crate::write_buffer::WriteBuffer;

use machine::Machine;
use places::Places;
#[cfg(any(test, feature = "test-utils"))]
pub(crate) use places::{created, destroyed};
use program::{Action, programs};
use recorder::Recorder;

/// How to fuzz.
#[derive(Clone, Debug)]
pub struct Options {
    /// The duration of the run, without the time to shrink a failure.
    pub duration: Duration,
    /// The seed of the programs.
    pub seed: u64,
    /// The longest duration of one call.
    pub call_limit: Duration,
    /// The file for the running program, in the format of [`replay`](bareverbs_trace::replay). It has the
    /// shrunk program after a failure, and the last one if the kernel kills the process.
    pub out: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { duration: Duration::from_secs(60), seed: 0, call_limit: Duration::from_secs(10), out: None }
    }
}

/// A rule that a program of calls broke. `Display` states the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Rule {
    /// The device can't be opened.
    Open,
    /// A call succeeded with the handle of no object, or the kernel's handles are not those of the
    /// model.
    Handle,
    /// A file got a second context.
    Context,
    /// A used object was destroyed.
    Busy,
    /// A valid call did not destroy an unused object.
    Destroy,
    /// The device's counts of objects are not those of the model.
    Counts,
    /// Objects remain after all files were closed.
    Leak,
    /// A call took too long.
    TimeLimit,
    /// The kernel logged a warning or an oops.
    KernelLog,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "the device can be opened",
            Self::Handle => "handles are those of live objects",
            Self::Context => "a file has one context",
            Self::Busy => "used objects are not destroyed",
            Self::Destroy => "unused objects can be destroyed",
            Self::Counts => "the device counts the objects that exist",
            Self::Leak => "closing releases all objects",
            Self::TimeLimit => "calls end",
            Self::KernelLog => "the kernel logs no fault",
        })
    }
}

/// A program that broke a rule.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    rule: Rule,
    reason: String,
    log: Vec<String>,
}

impl Broken {
    fn new(rule: Rule, reason: String) -> Self {
        Self { rule, reason, log: Vec::new() }
    }
}

/// The failure of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The broken rule.
    pub rule: Rule,
    /// The call and its answer, or the difference, as text.
    pub reason: String,
    /// The calls of the shrunk program. [`replay::write`](bareverbs_trace::replay::write) makes a
    /// recording of them.
    pub program: Vec<Record>,
    /// Messages of the kernel that report a fault.
    pub kernel_log: Vec<String>,
    /// Whether the shrunk program failed again. The kernel reports some faults only once.
    pub reproducible: bool,
}

/// Calls of one method or command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Calls that were made.
    pub made: u64,
    /// Calls that succeeded.
    pub succeeded: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// The device.
    pub device: String,
    /// The seed.
    pub seed: u64,
    /// Duration in milliseconds.
    pub milliseconds: u64,
    /// Number of programs.
    pub programs: u64,
    /// The calls, by method or command.
    pub calls: BTreeMap<String, Calls>,
    /// Number of methods and commands that the device has.
    pub places: usize,
    /// Duration of the slowest call in milliseconds.
    pub slowest_ms: u64,
    /// Calls that were not made because of a known bug of the kernel, by the bug.
    pub excluded: BTreeMap<String, u64>,
    /// The failure that ended the run.
    pub failure: Option<Failure>,
}

impl Report {
    /// All calls.
    #[must_use]
    pub fn total(&self) -> Calls {
        self.calls.values().fold(Calls::default(), |sum, calls| Calls {
            made: sum.made + calls.made,
            succeeded: sum.succeeded + calls.succeeded,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Calls { made, succeeded } = self.total();
        let rate = made * 1000 / self.milliseconds.max(1);
        let covered = self.calls.values().filter(|calls| calls.succeeded > 0).count();
        writeln!(
            f,
            "{} on {}, seed {}: {} programs, {made} calls ({rate}/s, {}% succeeded) in {:.1} s",
            self.device,
            self.kernel,
            self.seed,
            self.programs,
            succeeded * 100 / made.max(1),
            self.milliseconds as f64 / 1000.0,
        )?;
        writeln!(
            f,
            "{} of {} methods and commands called, {covered} with success; slowest call {} ms",
            self.calls.len(),
            self.places,
            self.slowest_ms
        )?;
        for (bug, count) in &self.excluded {
            writeln!(f, "{count} calls not made: {bug}")?;
        }
        let Some(failure) = &self.failure else { return Ok(()) };
        writeln!(f, "FAILED: {}\n  rule: {}", failure.reason, failure.rule)?;
        if !failure.reproducible {
            writeln!(f, "  the program did not fail again")?;
        }
        for (number, call) in failure.program.iter().enumerate() {
            writeln!(f, "  {:3} {}", number + 1, call.text())?;
        }
        failure.kernel_log.iter().try_for_each(|line| writeln!(f, "  kernel: {line}"))
    }
}

/// A run can't start, or its file can't be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuzzError {
    /// There is no device to fuzz.
    #[error(transparent)]
    Device(#[from] SuiteError),
    /// The first calls fail.
    #[error("the device does not work: {0}")]
    Start(String),
    /// The file for programs can't be written.
    #[error("cannot write the program: {0}")]
    Out(#[from] io::Error),
}

/// The state of a run, for its progress.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Time since the start.
    pub elapsed: Duration,
    /// Programs that ran.
    pub programs: u64,
}

/// Fuzzes a device of the running kernel: the one with that name, or the first one whose node can be
/// opened. The run ends with the first failure. `progress` is called after each program.
///
/// # Errors
/// [`FuzzError`]. A broken rule is not an error: it is [`Report::failure`].
pub fn fuzz(
    device: Option<&str>,
    options: &Options,
    progress: impl FnMut(&Progress),
) -> Result<Report, FuzzError> {
    let device = KernelDevice::open(device)?;
    run(&device, options, usize::MAX, progress)
}

/// Runs at most `most` programs.
fn run(
    target: &dyn Target,
    options: &Options,
    most: usize,
    mut progress: impl FnMut(&Progress),
) -> Result<Report, FuzzError> {
    let begin = Instant::now();
    let series = series(target)?;
    let places = {
        let mut session =
            Session::open(target, series).map_err(|stop| FuzzError::Start(format!("{stop:?}")))?;
        // SAFETY: without a command, there is no address.
        let has_write = unsafe { session.file().write(&WriteBuffer::new(&[])) } != Err(Errno::NOSYS);
        Places::new(target.driver_id(), has_write, |method| {
            method.attributes.first().is_some_and(|first| alone::is_known(&mut session, method, first.id))
        })
    };
    let recorder = Recorder::new(options.out.as_deref())?;
    let machine =
        Machine::new(target, series, &places, options.call_limit, recorder).map_err(FuzzError::Start)?;
    let machine = RefCell::new(machine);
    machine.borrow_mut().warm_up().map_err(|broken| FuzzError::Start(broken.reason))?;
    // What was logged before is not of the programs.
    target.warnings();
    machine.borrow_mut().forget_calls();

    let mut runner = runner(options.seed);
    let strategy = programs(&places);
    let mut count = 0;
    let mut failure = None;
    while begin.elapsed() < options.duration && count < most as u64 && failure.is_none() {
        let program =
            strategy.new_tree(&mut runner).map_err(|reason| FuzzError::Start(reason.to_string()))?;
        count += 1;
        let result = machine.borrow_mut().run(&program.current());
        failure = result.err().map(|broken| shrink(&mut runner, program, broken, &machine));
        progress(&Progress { elapsed: begin.elapsed(), programs: count });
    }
    let mut machine = machine.into_inner();
    if let Some(error) = machine.recorder.error() {
        return Err(error.into());
    }
    let calls = std::mem::take(&mut machine.counts).into_iter();
    Ok(Report {
        kernel: target.kernel(),
        device: target.name(),
        seed: options.seed,
        milliseconds: begin.elapsed().as_millis() as u64,
        programs: count,
        calls: calls.map(|(place, (made, succeeded))| (place, Calls { made, succeeded })).collect(),
        places: places.all.len(),
        slowest_ms: machine.slowest.as_millis() as u64,
        excluded: machine.excluded.iter().map(|(bug, count)| ((*bug).to_owned(), *count)).collect(),
        failure,
    })
}

fn series(target: &dyn Target) -> Result<Since, FuzzError> {
    probe::series(target).map_err(|stop| match stop {
        Stop::Skip(reason) | Stop::Fail(reason) => {
            FuzzError::Device(SuiteError::Probe { device: target.name(), reason })
        }
    })
}

/// The most programs and the longest time to shrink a failure, in milliseconds.
const SHRINK: (u32, u32) = (4000, 120_000);

fn runner(seed: u64) -> TestRunner {
    let config = Config {
        failure_persistence: None,
        max_shrink_iters: SHRINK.0,
        max_shrink_time: SHRINK.1,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// Shrinks a program that broke a rule to a small one that breaks the same rule, and runs that once
/// more for its calls.
fn shrink(
    runner: &mut TestRunner,
    program: impl ValueTree<Value = Vec<Action>>,
    first: Broken,
    machine: &RefCell<Machine<'_>>,
) -> Failure {
    let original = program.current();
    let rule = first.rule;
    let fails = |program: Vec<Action>| match machine.borrow_mut().run(&program) {
        Err(broken) if broken.rule == rule => Err(TestCaseError::fail(broken.reason)),
        _ => Ok(()),
    };
    let smallest = match runner.run_one(program, fails) {
        Err(TestError::Fail(_, smallest)) => smallest,
        // It did not fail again.
        _ => original,
    };
    let smallest = without_needless(smallest, |program| fails(program).is_err());
    let mut machine = machine.borrow_mut();
    machine.recorder.enable();
    let again = machine.run(&smallest).err().filter(|broken| broken.rule == rule);
    let reproducible = again.is_some();
    let Broken { reason, log, .. } = again.unwrap_or(first);
    Failure { rule, reason, program: machine.recorder.records().to_vec(), kernel_log: log, reproducible }
}

/// Removes actions and faults as long as the program still fails. proptest tries to remove each
/// action once, before it simplifies the others.
fn without_needless(mut program: Vec<Action>, fails: impl Fn(Vec<Action>) -> bool) -> Vec<Action> {
    loop {
        let smaller = smaller(&program).into_iter().find(|smaller| fails(smaller.clone()));
        match smaller {
            Some(smaller) => program = smaller,
            None => return program,
        }
    }
}

/// The programs with one action, one fault or the choices of one call less.
fn smaller(program: &[Action]) -> Vec<Vec<Action>> {
    let mut all = Vec::new();
    for index in 0..program.len() {
        let mut without = program.to_vec();
        let action = without.remove(index);
        all.push(without);
        let Action::Call(call) = action else { continue };
        let mut replace = |call| {
            let mut changed = program.to_vec();
            changed[index] = Action::Call(call);
            all.push(changed);
        };
        for fault in 0..call.faults.len() {
            let mut call = call.clone();
            call.faults.remove(fault);
            replace(call);
        }
        if !call.choices.is_empty() {
            replace(program::CallAction { choices: Vec::new(), ..call });
        }
    }
    all
}

#[cfg(test)]
mod tests;
