//! The lab's scheduler: several guests in parallel, each running the next test of its kernel.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, iter, mem, thread};

use anyhow::{Result, bail};
use bareverbs_lab::{
    Accelerator, Cache, Exec, Failure, Guests, HcaPort, Kernel, NotFetched, Programs, RdmaCore, Series,
    Setup, Tools, fetch_headers,
};

use super::selection::{Selection, is_waiting};
use crate::examples::{self, Example};
use crate::experiment::{self, Tested, ceilings::Ceilings};
use crate::filter::Filter;
use crate::guest_tests::{GuestTest, PROFILE_FILE, guest_tests};
use crate::hca::{self, Testbed, Tier};
use crate::outcome::{Outcome, Table, judge};
use crate::print::heading;
use crate::{build, dropin, fastpath, two_hosts, wqe_diff};

/// Link types of the tested HCAs.
const PORTS: [HcaPort; 2] = [HcaPort::Ib, HcaPort::Roce];
/// The folder of the test binaries in the guest.
const GUEST_FOLDER: &str = "/lab/tests";
/// Timeout of one test in a guest. It is far longer than any test takes, for machines whose
/// processors are shared.
const LIMIT: Duration = Duration::from_secs(300);
/// The name of the check of a guest's kernel at power-off.
const SOUND: &str = "the kernel stays sound";

/// The profiles in a guest: one file per program. Each process adds its counts when it exits.
const GUEST_PROFILES: &str = "/tmp/bareverbs-%m.profraw";

/// With more failed tests, none is run once more: the cause is no chance.
const MOST_RERUNS: usize = 10;
/// Tests that check what other tests have left. Alone, they say nothing.
const JUDGES_OTHERS: [&str; 2] = [SOUND, "dmesg_is_clean"];

/// Prefix of the scale tests.
const ENDURANCE: &str = "endurance::";

impl Tested {
    /// The name of a run on this kernel.
    fn run_name(self, kernel: &str) -> String {
        match self {
            Self::Rxe => kernel.to_owned(),
            Self::Ib => format!("{kernel} ib"),
            Self::Roce => format!("{kernel} roce"),
            Self::Siw => format!("{kernel} siw"),
        }
    }

    /// Why a test is not run on it, if so.
    fn leaves_out(self, test: &GuestTest) -> Option<Outcome> {
        let slow = self.port().is_some() && test.title().starts_with(ENDURANCE);
        slow.then(|| Outcome::Skipped("the software HCA is slow: `cargo xtask soak --hca`".into()))
    }
}

/// The parts of a guest.
pub(crate) struct Lab {
    pub(crate) cache: Cache,
    tools: Tools,
    kernels: Vec<(String, Kernel)>,
    pub(super) rdma_core: RdmaCore,
}

impl Lab {
    pub(crate) fn fetch(wanted: &[String]) -> Result<Self> {
        let cache = Cache::open()?;
        let tools = Tools::fetch(&cache, false)?;
        println!("QEMU {}", tools.version);
        let wanted = if wanted.is_empty() {
            Series::RELEASED.iter().map(Series::to_string).collect()
        } else {
            wanted.to_vec()
        };
        let mut kernels = Vec::new();
        for name in wanted {
            let mut kernel = experiment::kernel(&cache, &tools, &name)?;
            println!("kernel {}", kernel.version);
            match experiment::add_siw(&cache, &mut kernel, &name) {
                // The tests of siw skip themselves.
                Err(error) if error.is::<NotFetched>() => println!("without siw: {error:#}"),
                result => result?,
            }
            kernels.push((name, kernel));
        }
        let rdma_core = RdmaCore::fetch(&cache, false)?;
        println!("rdma-core {}", rdma_core.version);
        rdma_core.headers(&cache)?;
        for series in Series::RELEASED {
            println!("headers {}", fetch_headers(&cache, series, false)?.version);
        }
        Ok(Self { cache, tools, kernels, rdma_core })
    }
}

/// Tests that boot their own guests.
enum Special {
    FastPath(Vec<fastpath::Check>),
    WqeDiff(wqe_diff::Check),
    Hosts(&'static str, two_hosts::Test),
    Examples(Option<HcaPort>, Vec<&'static Example>),
    Hca(HcaPort, Tier, Vec<(String, hca::Test)>),
}

impl Special {
    /// The part of it that is the test with this name.
    fn only(self, title: &str) -> Option<Self> {
        let (only, is_empty) = match self {
            Self::FastPath(mut checks) => {
                checks.retain(|(name, _)| *name == title);
                let is_empty = checks.is_empty();
                (Self::FastPath(checks), is_empty)
            }
            Self::WqeDiff(check) => (Self::WqeDiff(check), check.0 != title),
            Self::Hosts(name, test) => (Self::Hosts(name, test), name != title),
            Self::Examples(port, mut tests) => {
                tests.retain(|test| test.title() == title);
                let is_empty = tests.is_empty();
                (Self::Examples(port, tests), is_empty)
            }
            Self::Hca(port, tier, mut tests) => {
                tests.retain(|(name, _)| name == title);
                let is_empty = tests.is_empty();
                (Self::Hca(port, tier, tests), is_empty)
            }
        };
        (!is_empty).then_some(only)
    }
}

/// The tests of one kernel and device that mostly sleep, or the others.
struct TestRun<'a> {
    name: String,
    kernel: &'a Kernel,
    device: Tested,
    waiting: bool,
    tests: VecDeque<&'a GuestTest>,
    specials: VecDeque<Special>,
    /// How many guests run `tests`.
    guests: usize,
}

impl TestRun<'_> {
    fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.specials.is_empty()
    }

    /// Keeps the test with this name only.
    fn keep_only(mut self, title: &str) -> Self {
        self.tests.retain(|test| test.title() == title);
        self.specials = self.specials.into_iter().filter_map(|special| special.only(title)).collect();
        self
    }
}

/// The next job of a worker without a guest.
enum Job<'a> {
    /// Tests of a test run, in a guest.
    Guest(usize),
    Special(String, &'a Kernel, Special),
}

/// The selected tests.
pub(crate) struct Plan<'a> {
    lab: &'a Lab,
    programs: Programs,
    folder: PathBuf,
    tests: Vec<GuestTest>,
    devices: &'a [Tested],
    selection: Selection<'a>,
    hca_only: bool,
    /// The folder of the coverage profiles of instrumented programs.
    profiles: Option<PathBuf>,
}

/// Instrumented programs, and the folder of their profiles.
pub(crate) struct Instrumented {
    pub(crate) programs: Programs,
    /// The folder with the test binaries.
    pub(crate) folder: PathBuf,
    pub(crate) tests: Vec<GuestTest>,
    pub(crate) profiles: PathBuf,
}

impl<'a> Plan<'a> {
    /// Builds the programs of the tests.
    pub(super) fn new(lab: &'a Lab, devices: &'a [Tested], selection: Selection<'a>) -> Result<Self> {
        let Selection { filter, .. } = selection;
        let mut programs = build::guest_programs()?;
        // Tests of HCAs and examples need no test binaries.
        let hca_only = filter.only(hca::PREFIX);
        let needs_none = hca_only || filter.only(examples::PREFIX);
        let (folder, tests) = if needs_none { Default::default() } else { guest_tests(filter)? };
        if tests.iter().any(|test| test.title().starts_with(dropin::PREFIX)) {
            programs = dropin::guest_programs()?;
        }
        Ok(Self { lab, programs, folder, tests, devices, selection, hca_only, profiles: None })
    }

    /// The tests of instrumented programs, without those that boot their own guests.
    pub(crate) fn instrumented(
        lab: &'a Lab,
        devices: &'a [Tested],
        filter: Filter<'a>,
        instrumented: Instrumented,
    ) -> Self {
        let Instrumented { programs, folder, mut tests, profiles } = instrumented;
        tests.retain(|test| filter.takes(&test.title()));
        let selection = Selection { filter, everything: false };
        Self { lab, programs, folder, tests, devices, selection, hca_only: false, profiles: Some(profiles) }
    }

    /// How many processors a guest keeps busy.
    pub(crate) fn processors(&self) -> usize {
        // Hosts with HCAs run in pairs with one processor each, and mostly one of the two works.
        if self.hca_only { 1 } else { 2 }
    }

    /// Runs all tests, in `jobs` guests (or groups of guests) in parallel, and one more for the tests
    /// that mostly sleep. After `stop`, no other test starts.
    pub(crate) fn run(&self, accelerator: Accelerator, jobs: usize, stop: &AtomicBool) -> Result<Table> {
        let test_runs = self.test_runs();
        if test_runs.iter().all(TestRun::is_empty) {
            bail!("no kernel test is named like `{}`", self.selection.filter);
        }
        if self.devices.iter().any(|device| device.port().is_some()) {
            build::hca()?;
        }
        let specials = || test_runs.iter().flat_map(|test_run| &test_run.specials);
        let measures = specials().any(|special| matches!(special, Special::FastPath(..)));
        let compares = specials().any(|special| matches!(special, Special::WqeDiff(..)));
        let needs_hca = measures || compares || specials().any(|special| matches!(special, Special::Hca(..)));
        thread::scope(|scope| {
            // Their programs are built while the first tests run. If the build fails, it fails
            // again for the tests that need it.
            scope.spawn(move || {
                build::with_low_priority(|| {
                    let _ = (
                        needs_hca.then(build::hca),
                        compares.then(|| build::wqe_diff().and_then(|_| dropin::tested_library())),
                        measures.then(|| build::fastpath("")),
                    );
                });
            });
            self.work(test_runs, accelerator, jobs, stop)
        })
    }

    /// Runs each failed test once more, alone, and enters those that pass as flaky.
    pub(crate) fn classify(
        &self,
        table: &mut Table,
        accelerator: Accelerator,
        stop: &AtomicBool,
    ) -> Result<()> {
        let failed = table.failed();
        if failed.is_empty() || failed.len() > MOST_RERUNS {
            return Ok(());
        }
        heading("Failed tests once more, each alone");
        for (name, title) in failed {
            if JUDGES_OTHERS.iter().any(|judge| title.ends_with(judge)) {
                continue;
            }
            let of_kernel = self.test_runs().into_iter().filter(|test_run| test_run.name == name);
            let only = of_kernel.map(|test_run| test_run.keep_only(&title)).collect();
            table.classify(&self.work(only, accelerator, 1, stop)?);
        }
        Ok(())
    }

    fn work(
        &self,
        test_runs: Vec<TestRun<'_>>,
        accelerator: Accelerator,
        jobs: usize,
        stop: &AtomicBool,
    ) -> Result<Table> {
        let mut names: Vec<_> = test_runs.iter().map(|test_run| test_run.name.clone()).collect();
        names.dedup();
        let is_waiting = |test_run: &TestRun<'_>| test_run.waiting && !test_run.is_empty();
        let lanes = iter::repeat_n(false, jobs).chain(test_runs.iter().any(is_waiting).then_some(true));
        let lanes: Vec<_> = lanes.collect();
        let queue = &Mutex::new(SharedQueue { test_runs, table: Table::new(names) });
        thread::scope(|scope| {
            let work = |waiting| move || Worker { plan: self, accelerator, queue, stop, waiting }.work();
            let workers: Vec<_> = lanes.into_iter().map(|waiting| scope.spawn(work(waiting))).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("workers don't panic"))
        })?;
        Ok(mem::take(&mut queue.lock().unwrap_or_else(PoisonError::into_inner).table))
    }

    /// All tests that the plan has, by name, also those that it does not run on some kernel.
    pub(crate) fn titles(&self) -> Vec<String> {
        let others = fastpath::CHECKS.into_iter().map(|(title, _)| title);
        let others = others.chain(wqe_diff::CHECKS.into_iter().map(|(title, _)| title));
        let others = others.chain(two_hosts::TESTS.into_iter().map(|(title, _)| title));
        let hca = PORTS.into_iter().flat_map(|port| hca::tests(port, Tier::All, self.selection.filter));
        let examples = [false, true].map(|is_ib| examples::tests(self.selection.filter, is_ib));
        self.tests
            .iter()
            .map(GuestTest::title)
            .chain(others.map(str::to_owned))
            .chain(hca.map(|(title, _)| title))
            .chain(examples.into_iter().flatten().map(Example::title))
            .collect()
    }

    /// What the selection leaves out, one line each.
    pub(crate) fn left_out(&self) -> Vec<String> {
        if !self.selection.is_short() {
            return Vec::new();
        }
        let kernels: Vec<_> = self.lab.kernels.iter().map(|(name, _)| name.as_str()).collect();
        let examples = examples::tests(self.selection.filter, false);
        let titles = self.tests.iter().map(GuestTest::title).chain(examples.into_iter().map(Example::title));
        let titles: Vec<_> = titles.collect();
        let mut lines = self.selection.left_out(titles.iter().map(String::as_str), &kernels);
        let devices = Tested::ALL.into_iter().filter(|device| !self.devices.contains(device));
        lines.extend(
            devices.map(|device| {
                format!("on {}: the kernel tests and examples", device.run_name("each kernel"))
            }),
        );
        lines.push(format!("on each kernel: {}, but for {}", hca::PREFIX, hca::short()));
        lines
    }

    fn test_runs(&self) -> Vec<TestRun<'_>> {
        let runs =
            self.lab.kernels.iter().flat_map(|kernel| self.devices.iter().map(move |at| (kernel, *at)));
        runs.flat_map(|((name, kernel), device)| {
            [false, true].map(|waiting| self.test_run(name, kernel, device, waiting))
        })
        .collect()
    }

    fn test_run<'b>(&'b self, name: &str, kernel: &'b Kernel, device: Tested, waiting: bool) -> TestRun<'b> {
        let tests = self.tests.iter().filter(|test| {
            let title = test.title();
            is_waiting(&title) == waiting && self.selection.runs_on(name, &title)
        });
        let specials = if self.profiles.is_some() {
            VecDeque::new()
        } else if waiting {
            self.specials_that_wait(name, device)
        } else {
            self.specials(name, device)
        };
        let (name, tests) = (device.run_name(name), tests.collect());
        TestRun { name, kernel, device, waiting, tests, specials, guests: 0 }
    }

    /// Whether tests that choose their devices themselves run for this device.
    fn has_own_devices(&self, device: Tested) -> bool {
        device == self.devices[0]
    }

    fn specials_that_wait(&self, name: &str, device: Tested) -> VecDeque<Special> {
        let selected = name == two_hosts::KERNEL && device == Tested::Rxe && self.has_own_devices(device);
        let tests =
            two_hosts::TESTS.into_iter().filter(|(title, _)| selected && self.selection.filter.takes(title));
        tests.map(|(title, test)| Special::Hosts(title, test)).collect()
    }

    fn specials(&self, name: &str, device: Tested) -> VecDeque<Special> {
        let filter = self.selection.filter;
        let mut specials = VecDeque::new();
        let mut examples = examples::tests(filter, device == Tested::Ib);
        // They exchange addresses of QPs, which iWARP's connection manager doesn't use.
        examples.retain(|example| device != Tested::Siw && self.selection.runs_on(name, &example.title()));
        if !examples.is_empty() {
            specials.push_back(Special::Examples(device.port(), examples));
        }
        if !self.has_own_devices(device) {
            return specials;
        }
        for port in PORTS {
            let Some(tier) = self.tier(name, port) else { continue };
            let tests = hca::tests(port, tier, filter);
            if !tests.is_empty() {
                specials.push_back(Special::Hca(port, tier, tests));
            }
        }
        let wanted = |title: &str| device == Tested::Rxe && filter.takes(title);
        if name == fastpath::KERNEL {
            // Those of the HCA run beside those of rxe.
            let runs = |on: Tested| if on == Tested::Siw { device == on } else { device == Tested::Rxe };
            let checks: Vec<_> =
                fastpath::CHECKS.into_iter().filter(|(title, on)| runs(*on) && filter.takes(title)).collect();
            if !checks.is_empty() {
                specials.push_back(Special::FastPath(checks));
            }
        }
        if name == wqe_diff::KERNEL {
            let checks = wqe_diff::CHECKS.into_iter().filter(|(title, _)| wanted(title));
            specials.extend(checks.map(Special::WqeDiff));
        }
        specials
    }

    /// The tests of HCAs on a kernel. All take minutes for each kernel and link type, so they run only
    /// if selected.
    fn tier(&self, kernel: &str, port: HcaPort) -> Option<Tier> {
        let in_full = self.hca_only || self.selection.everything;
        match kernel {
            two_hosts::KERNEL if in_full => Some(Tier::All),
            _ if in_full => Some(Tier::Kernel),
            _ if self.selection.filter.takes_all() && hca::SHORT_ON.contains(&(kernel, port)) => {
                Some(Tier::Short)
            }
            _ => None,
        }
    }
}

/// The shared state of the workers.
struct SharedQueue<'a> {
    test_runs: Vec<TestRun<'a>>,
    table: Table,
}

impl<'a> SharedQueue<'a> {
    /// The next job of a lane. The lane of the tests that mostly sleep has only these; the others do
    /// them last.
    fn next(&mut self, waiting: bool) -> Option<Job<'a>> {
        let next = self.next_of(waiting);
        if waiting { next } else { next.or_else(|| self.next_of(true)) }
    }

    /// First a kernel without a guest, then tests that boot their own guests, then another guest for a
    /// kernel with many remaining tests.
    fn next_of(&mut self, waiting: bool) -> Option<Job<'a>> {
        let runs = self.test_runs.iter_mut().enumerate().filter(|(_, at)| at.waiting == waiting);
        let mut runs: Vec<_> = runs.collect();
        if let Some((alone, at)) = runs.iter_mut().find(|(_, at)| at.guests == 0 && !at.tests.is_empty()) {
            at.guests += 1;
            return Some(Job::Guest(*alone));
        }
        for (_, test_run) in &mut runs {
            if let Some(special) = test_run.specials.pop_front() {
                return Some(Job::Special(test_run.name.clone(), test_run.kernel, special));
            }
        }
        let started = runs.into_iter().filter(|(_, at)| !at.tests.is_empty());
        let (longest, test_run) = started.max_by_key(|(_, at)| at.tests.len() / at.guests)?;
        // Booting a guest takes as long as some tests.
        if test_run.tests.len() / test_run.guests < 8 {
            return None;
        }
        test_run.guests += 1;
        Some(Job::Guest(longest))
    }
}

/// A thread that boots guests and runs tests in them.
struct Worker<'a, 'b> {
    plan: &'b Plan<'b>,
    accelerator: Accelerator,
    queue: &'a Mutex<SharedQueue<'b>>,
    stop: &'a AtomicBool,
    /// Whether it runs the tests that mostly sleep.
    waiting: bool,
}

impl<'b> Worker<'_, 'b> {
    fn work(&self) -> Result<()> {
        while !self.stopped()
            && let Some(job) = { self.queue().next(self.waiting) }
        {
            let done = match job {
                Job::Guest(test_run) => self.tests_of(test_run),
                Job::Special(name, kernel, special) => self.special(&name, kernel, special),
            };
            if done.is_err() {
                self.stop.store(true, Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, SharedQueue<'b>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One host with the Debian root.
    fn setup<'c>(&'c self, kernel: &'c Kernel) -> Setup<'c> {
        let lab = self.plan.lab;
        Setup {
            rdma_core: Some(lab.rdma_core.root.clone()),
            accelerator: self.accelerator,
            ..experiment::one_host(&lab.cache, &lab.tools, kernel, &self.plan.programs)
        }
    }

    /// Reports the outcome of a test.
    fn report(&self, kernel: &str, title: &str, outcome: Outcome, log: &str, begin: Instant) {
        self.queue().table.enter(kernel, title, outcome, log, begin.elapsed());
    }

    /// Reports the outcome of a test that returns a result.
    fn judged(&self, kernel: &str, title: &str, result: Result<()>, begin: Instant) {
        let log = result.as_ref().err().map_or_else(String::new, |error| format!("{error:#}"));
        let outcome = if result.is_ok() { Outcome::Passed } else { Outcome::Failed };
        self.report(kernel, title, outcome, &log, begin);
    }

    /// Reports the outcome of a comparison.
    fn compared(&self, kernel: &str, title: &str, passed: bool, log: &str, begin: Instant) {
        let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
        self.report(kernel, title, outcome, log, begin);
    }

    /// Runs the tests of a run in one guest, and in a new one after a test has broken it.
    fn tests_of(&self, test_run: usize) -> Result<()> {
        let (name, kernel, device) = {
            let at = &self.queue().test_runs[test_run];
            (at.name.clone(), at.kernel, at.device)
        };
        let hca = experiment::start_hca(device.port(), 1, &[])?;
        let shares = vec![(self.plan.folder.clone(), GUEST_FOLDER.to_owned())];
        let setup = Setup { shares, link_type: device.link_type(), hca: hca.as_ref(), ..self.setup(kernel) };
        let mut guests = None;
        while let Some(test) = self.take(test_run) {
            let begin = Instant::now();
            if let Some(outcome) = device.leaves_out(test) {
                self.report(&name, &test.title(), outcome, "", begin);
                continue;
            }
            let booted = match guests.take() {
                Some(booted) => booted,
                None => {
                    let booted = Guests::boot(&setup)?;
                    println!("{name}: {} is up in {:.1} s", kernel.version, begin.elapsed().as_secs_f64());
                    booted
                }
            };
            let begin = Instant::now();
            let (outcome, log) = self.run(booted, test, &mut guests)?;
            self.report(&name, &test.title(), outcome, &log, begin);
        }
        if let (Some(folder), Some(guests)) = (&self.plan.profiles, &mut guests) {
            collect_profiles(guests, folder)?;
        }
        self.queue().test_runs[test_run].guests -= 1;
        if let Some(Err(error)) = guests.map(Guests::shut_down) {
            self.judged(&name, SOUND, Err(error), Instant::now());
        }
        Ok(())
    }

    fn take(&self, test_run: usize) -> Option<&'b GuestTest> {
        if self.stopped() { None } else { self.queue().test_runs[test_run].tests.pop_front() }
    }

    fn special(&self, name: &str, kernel: &Kernel, special: Special) -> Result<()> {
        let setup = self.setup(kernel);
        let begin = Instant::now();
        match special {
            // In parallel: a guest that counts instructions has one processor, and its counts do
            // not depend on its speed.
            Special::FastPath(checks) => {
                let rdma_core = &self.plan.lab.rdma_core;
                let measure = |device| fastpath::measure(&setup, rdma_core, device);
                let measured: Vec<_> = thread::scope(|scope| {
                    let running: Vec<_> =
                        checks.iter().map(|(_, device)| scope.spawn(|| measure(*device))).collect();
                    running.into_iter().map(|one| one.join().expect("measuring does not panic")).collect()
                });
                for ((title, _), measured) in checks.into_iter().zip(measured) {
                    let Ceilings { text, above } = measured?;
                    self.compared(name, title, above.is_empty(), &text, begin);
                }
            }
            Special::WqeDiff((title, port)) => {
                let reports = wqe_diff::check(&setup, &self.plan.lab.rdma_core, port)?;
                self.compared(name, title, reports.are_equal(), &reports.text(), begin);
            }
            Special::Hosts(title, test) => self.judged(name, title, test(&setup), begin),
            Special::Examples(port, tests) => {
                let mut hosts = examples::Hosts::new(&setup, port)?;
                for example in tests {
                    let begin = Instant::now();
                    let result = hosts.run(example);
                    self.judged(name, &example.title(), result, begin);
                }
                if let Err(error) = hosts.end() {
                    self.judged(name, SOUND, Err(error), Instant::now());
                }
            }
            Special::Hca(port, tier, tests) => {
                let mut testbed = Testbed::new(&setup, name, port, tier)?;
                for (title, test) in tests {
                    let begin = Instant::now();
                    let result = testbed.run(test);
                    self.judged(name, &title, result, begin);
                }
                if let Err(error) = testbed.end() {
                    self.judged(name, SOUND, Err(error), Instant::now());
                }
            }
        }
        Ok(())
    }

    /// Runs one test. Returns the guest unless it is lost.
    fn run(
        &self,
        mut booted: Guests,
        test: &GuestTest,
        guests: &mut Option<Guests>,
    ) -> Result<(Outcome, String)> {
        let program = format!("{GUEST_FOLDER}/{}", test.binary);
        let argv = [&program, "--exact", &test.name, "--test-threads=1", "--color=never"].map(str::to_owned);
        let env = self.plan.profiles.iter().map(|_| (PROFILE_FILE.to_owned(), GUEST_PROFILES.to_owned()));
        match booted.run(0, Exec { argv: argv.into(), env: env.collect(), ..Exec::default() }, LIMIT) {
            Ok(finished) => {
                *guests = Some(booted);
                let log = format!(
                    "{}{}",
                    String::from_utf8_lossy(&finished.stdout),
                    String::from_utf8_lossy(&finished.stderr)
                );
                Ok(if finished.timed_out {
                    (Outcome::Failed, format!("{log}killed after {} s", LIMIT.as_secs()))
                } else {
                    judge(finished.status, &log)
                })
            }
            // The guest is lost; the next tests get a new one.
            Err(error) if error.is::<Failure>() => Ok((Outcome::Failed, error.to_string())),
            Err(error) => Err(error),
        }
    }
}

/// Copies the profiles of a guest's programs into the folder. The profiles of a lost guest are
/// lost.
fn collect_profiles(guests: &mut Guests, folder: &Path) -> Result<()> {
    let mut output = |script: &str| -> Result<Vec<u8>> {
        let argv = ["sh", "-c", script].map(str::to_owned).into();
        let finished = guests.run(0, Exec { argv, ..Exec::default() }, LIMIT)?;
        if finished.status != 0 {
            bail!("`{script}` in the guest: {}", String::from_utf8_lossy(&finished.stderr));
        }
        Ok(finished.stdout)
    };
    fs::create_dir_all(folder)?;
    let number = fs::read_dir(folder)?.count();
    let names = String::from_utf8(output("cd /tmp; ls | grep '\\.profraw$' || true")?)?;
    for name in names.lines() {
        let profile = output(&format!("cat '/tmp/{name}'"))?;
        fs::write(folder.join(format!("guest-{number}-{name}")), profile)?;
    }
    Ok(())
}
