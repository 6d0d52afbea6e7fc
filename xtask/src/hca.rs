//! Tests of the software ConnectX with the kernel's own driver and the C programs, for each link
//! type: one host for the short tier, else two on one fabric.

mod cqe_version_0;
mod interop;
mod migration;
mod resets;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Exec, Failure, Finished, Guests, Hca, HcaPort, Setup, Since};

use crate::build;
use crate::filter::Filter;

/// Prefix of the tests' names.
pub(crate) const PREFIX: &str = "hca::";
/// The kernels of the short tier, each with a link type.
pub(crate) const SHORT_ON: [(&str, HcaPort); 1] = [(Since::V6_1.name(), HcaPort::Ib)];
/// Timeout of one script, also for its end after it is killed.
const LIMIT: Duration = Duration::from_secs(240);
const GRACE: Duration = Duration::from_secs(15);
/// The line that a script prints when the other side may start.
const READY: &str = "ready to play";
/// The CQE versions. On the second host's HCA, CQEs name queues by QPN instead of user index.
const VERSIONS: &str = "--cqe-version=1,0";
/// The kernel on which each of two hosts has an HCA in a separate process.
const APART_ON: &str = Since::V7_2.name();
/// The folder of the examples in the guests.
const EXAMPLES: &str = "/lab/examples";
/// The start of each script: the GID, and functions that start servers and clients.
const PRELUDE: &str = include_str!("hca/prelude.sh");

/// A test.
pub(crate) type Test = fn(&mut Testbed<'_>) -> Result<()>;

/// How much is tested. Each tier includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tier {
    /// Quick enough for every test run.
    Short,
    /// Tests whose result may differ between kernels.
    Kernel,
    /// Also tests that reboot hosts. They take long and differ little between kernels.
    All,
}

/// All tests in order, by name.
const TESTS: [(&str, Test, Tier); 16] = [
    ("interop_within_one_host", interop::within, Tier::Short),
    ("interop_between_hosts", interop::between, Tier::Kernel),
    ("bareverbs_interop_between_hosts", interop::bareverbs_between, Tier::Kernel),
    ("connection_manager_tools_interop_between_hosts", interop::tools_between, Tier::Kernel),
    ("dmesg_is_clean", interop::dmesg_clean, Tier::Short),
    ("pyverbs_subset_passes", interop::pyverbs, Tier::Kernel),
    ("link_down_and_up_raise_events", resets::cable, Tier::Kernel),
    (NETDEV_DOWN, resets::netdev_down, Tier::Kernel),
    ("perf_doctor_names_a_link_that_is_down", resets::doctor, Tier::Kernel),
    (MIGRATION, migration::failing_path, Tier::Kernel),
    ("driver_rebinds_under_traffic", resets::unbind, Tier::Kernel),
    ("devlink_reload_under_traffic", resets::reload, Tier::Kernel),
    ("driver_recovers_from_function_reset", resets::function_reset, Tier::Kernel),
    ("cqe_version_0_interop", cqe_version_0::run, Tier::Kernel),
    ("killed_guest_reconnects", resets::killed_guest, Tier::All),
    ("replaced_hca_reconnects", resets::replaced_hcas, Tier::All),
];

/// A test for InfiniBand only.
const MIGRATION: &str = "writes_survive_the_failure_of_their_path";

/// A test for RoCE only.
const NETDEV_DOWN: &str = "netdev_down_stops_traffic_until_it_is_up";

/// The tests of this tier for a link type whose names contain the filter.
pub(crate) fn tests(port: HcaPort, tier: Tier, filter: Filter<'_>) -> Vec<(String, Test)> {
    let kind = kind(port);
    let fits = |name: &str| match port {
        HcaPort::Ib => name != NETDEV_DOWN,
        HcaPort::Roce => name != MIGRATION,
    };
    let within = TESTS.iter().filter(|(name, _, from)| *from <= tier && fits(name));
    let named = within.map(|(name, test, _)| (format!("{PREFIX}{kind}::{name}"), *test));
    named.filter(|(title, _)| filter.takes(title)).collect()
}

/// The names of the tests of the short tier.
pub(crate) fn short() -> String {
    let names = SHORT_ON.iter().flat_map(|(kernel, port)| {
        let tests = tests(*port, Tier::Short, Filter(&[]));
        tests.into_iter().map(move |(title, _)| format!("{title} on {kernel}"))
    });
    names.collect::<Vec<_>>().join(", ")
}

fn kind(port: HcaPort) -> &'static str {
    match port {
        HcaPort::Ib => "ib",
        HcaPort::Roce => "roce",
    }
}

/// Hosts with one HCA each.
pub(crate) struct Testbed<'a> {
    setup: &'a Setup<'a>,
    pub(crate) port: HcaPort,
    hosts: u8,
    hca: Hca,
    /// The folder of the examples, for two hosts.
    examples: Option<PathBuf>,
    guests: Option<Guests>,
}

impl<'a> Testbed<'a> {
    /// Starts the HCAs. The first test boots the hosts.
    pub(crate) fn new(setup: &'a Setup<'a>, name: &str, port: HcaPort, tier: Tier) -> Result<Self> {
        let hosts = if tier == Tier::Short { 1 } else { 2 };
        let start = if name == APART_ON { Hca::start_separately } else { Hca::start };
        let hca = start(&build::hca()?, port, hosts, &[VERSIONS.to_owned()])?;
        let examples = (hosts == 2).then(build::examples).transpose()?;
        Ok(Self { setup, port, hosts, hca, examples, guests: None })
    }

    /// Runs a test. After a kernel failure the next test gets new hosts.
    pub(crate) fn run(&mut self, test: Test) -> Result<()> {
        let result = self.boot_if_needed().and_then(|()| test(self));
        if result.as_ref().is_err_and(|error| error.is::<Failure>()) {
            self.guests = None;
        }
        result
    }

    /// Powers the hosts off.
    pub(crate) fn end(&mut self) -> Result<()> {
        match self.guests.take() {
            Some(guests) => {
                let warnings = guests.shut_down()?;
                ensure!(warnings.is_empty(), "{}", warnings.join("\n"));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn boot_if_needed(&mut self) -> Result<()> {
        if self.guests.is_none() {
            let begin = Instant::now();
            self.guests = Some(Guests::boot(&self.with_hca())?);
            let hosts = if self.hosts == 1 { "host" } else { "hosts" };
            let (kernel, seconds) = (&self.setup.kernel.version, begin.elapsed().as_secs_f64());
            println!("{kernel}: {} {hosts} up in {seconds:.1} s", self.kind());
        }
        Ok(())
    }

    fn with_hca(&self) -> Setup<'_> {
        let shares = self.examples.iter().map(|folder| (folder.clone(), EXAMPLES.to_owned())).collect();
        Setup { hosts: self.hosts, hca: Some(&self.hca), shares, ..self.setup.clone() }
    }

    fn guests(&mut self) -> Result<&mut Guests> {
        self.guests.as_mut().context("the hosts were booted")
    }

    /// The link type in test names.
    fn kind(&self) -> &'static str {
        kind(self.port)
    }

    /// Sends a command to the control socket.
    fn control(&self, command: &str) -> Result<String> {
        self.hca.control(command)
    }

    /// Runs a script on a host (by index, from 0) to its end.
    fn script(&mut self, host: usize, script: &str) -> Result<String> {
        let exec = self.exec(script, host);
        let Finished { status, timed_out, stdout, stderr } = self.guests()?.run(host, exec, LIMIT)?;
        let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        if status != 0 || timed_out {
            bail!("host {}: status {status}{}:\n{text}", host + 1, if timed_out { ", killed" } else { "" });
        }
        Ok(text)
    }

    /// Runs a script on one host and, once it is ready, another on the other host. Both must
    /// succeed.
    fn run_pair(&mut self, server: usize, serving: &str, playing: &str) -> Result<()> {
        let client = 1 - server;
        let mut waiting = Some(self.exec(playing, server));
        let serving = self.exec(serving, server);
        let guests = self.guests()?;
        guests.start(server, serving)?;
        let mut output = [String::new(), String::new()];
        let (mut deadline, mut hurried) = (Instant::now() + LIMIT, false);
        while (0..2).any(|host| guests.is_running(host)) {
            let step = guests.step(Some(deadline), &mut |host, _, bytes| {
                output[host] += &String::from_utf8_lossy(bytes);
                Ok(())
            });
            match step {
                Err(error) if matches!(error.downcast_ref(), Some(Failure::TimedOut(_))) && !hurried => {
                    for host in (0..2).filter(|host| guests.is_running(*host)).collect::<Vec<_>>() {
                        guests.end_command(host)?;
                    }
                    (deadline, hurried) = (Instant::now() + GRACE, true);
                }
                stepped => stepped?,
            }
            if output[server].contains(READY)
                && let Some(exec) = waiting.take()
            {
                guests.start(client, exec)?;
            }
            // If one script has failed, the other may wait without end.
            let failed = |host| !guests.is_running(host) && guests.status(host) != Some(0);
            if waiting.is_none() && (0..2).any(failed) {
                deadline = deadline.min(Instant::now() + GRACE);
            }
        }
        let statuses = [0, 1].map(|host| guests.status(host));
        let [first, second] = &output;
        ensure!(
            waiting.is_none() && statuses == [Some(0); 2],
            "statuses {statuses:?}\nhost 1:\n{first}\nhost 2:\n{second}"
        );
        Ok(())
    }

    /// Starts a script on a host and waits until it prints `sign`.
    fn until(&mut self, host: usize, script: &str, sign: &str) -> Result<()> {
        let exec = self.exec(script, host);
        let deadline = Some(Instant::now() + LIMIT);
        let guests = self.guests()?;
        guests.start(host, exec)?;
        let mut output = String::new();
        while guests.is_running(host) && !output.contains(sign) {
            guests.step(deadline, &mut |_, _, bytes| {
                output += &String::from_utf8_lossy(bytes);
                Ok(())
            })?;
        }
        ensure!(output.contains(sign), "host {} printed no `{sign}`:\n{output}", host + 1);
        Ok(())
    }

    /// A script with the number of the serving host.
    fn exec(&self, script: &str, server: usize) -> Exec {
        let server = (server + 1).to_string();
        let argv = ["bash", "-c", &format!("{PRELUDE}\n{script}")].map(str::to_owned).into();
        Exec {
            argv,
            env: vec![("PORT".to_owned(), self.kind().to_owned()), ("PEER".to_owned(), server)],
            ..Exec::default()
        }
    }
}
