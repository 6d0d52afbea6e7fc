//! Mutants of the command functions, which only tests on a kernel exercise.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Cache, Exec, Failure, Guests, HcaPort, Kernel, Programs, RdmaCore, Setup, Tools};

use super::tree::Tree;
use super::{Mutant, Outcome, Tally, Verdict, list};
use crate::build;
use crate::experiment;
use crate::guest_tests::{GuestTest, guest_tests_of};
use crate::outcome::{self, judge};

/// The default of `--sample`.
const SAMPLE: u64 = 8;
/// The folder of the test binaries in the guest.
const GUEST_FOLDER: &str = "/lab/tests";
/// Timeout of one test in a guest.
const LIMIT: Duration = Duration::from_secs(60);
/// The crate with the tests.
const TESTS: &str = "bareverbs-kernel-tests";

/// The tests that judge the mutants of a file: on rxe, or on the software ConnectX with this port.
struct TestSet {
    file: &'static str,
    port: Option<HcaPort>,
    /// Parts of the names of the tests.
    tests: &'static [&'static str],
}

/// If a file has several functions, the tests of all of them are run until one fails.
const TEST_SETS: [TestSet; 12] = [
    TestSet {
        file: "provider/src/command.rs",
        port: None,
        tests: &[
            "query_device_reports_limits",
            "query_port_reports_state_and_mtu",
            "gid_table_contains_the_ip_address",
            "netlink_counts_objects_of_a_context",
            "pds_are_allocated_and_freed_repeatedly",
            "cqs_accept_any_depth_and_vector",
            "armed_cq_raises_one_event",
            "bring_up_states_match_query_qp",
            "every_drop_order_frees_all_objects",
            "cq_overrun_raises_an_async_event",
            "destroy_returns_the_count_of_read_events",
            "solicited_arm_wakes_on_solicited_messages_only",
            "open_without_free_descriptors_reports_emfile",
        ],
    },
    TestSet {
        file: "provider/src/command/ah.rs",
        port: None,
        tests: &[
            "ah_is_created_and_destroyed",
            "datagram_payload_follows_the_40_byte_grh",
            "multicast_datagram",
            "detached_qp_receives_no_multicast",
        ],
    },
    TestSet { file: "provider/src/command/dm.rs", port: Some(HcaPort::Roce), tests: &["device_memory"] },
    TestSet { file: "provider/src/command/dmabuf.rs", port: Some(HcaPort::Roce), tests: &["dmabuf"] },
    TestSet { file: "provider/src/command/flow.rs", port: Some(HcaPort::Roce), tests: &["flow"] },
    TestSet { file: "provider/src/command/memory.rs", port: None, tests: &["_mw_", "rereg_mr_changes"] },
    TestSet {
        file: "provider/src/command/qp_without_rings.rs",
        port: Some(HcaPort::Roce),
        tests: &["rss", "xrc"],
    },
    TestSet {
        file: "provider/src/command/mr.rs",
        port: None,
        tests: &["every_memory_owner", "mr_has_the_registered_range", "many_mrs", "memlock"],
    },
    TestSet {
        file: "provider/src/command/resize.rs",
        // rxe does not moderate events.
        port: Some(HcaPort::Roce),
        tests: &["cq_moderation", "cq_resize", "stays_armed_over_resize"],
    },
    TestSet { file: "provider/src/command/srq.rs", port: None, tests: &["srq"] },
    TestSet { file: "provider/src/command/wq.rs", port: Some(HcaPort::Roce), tests: &["rss"] },
    TestSet { file: "provider/src/command/xrc.rs", port: Some(HcaPort::Roce), tests: &["xrc"] },
];

/// Mutates one function at a time, builds the kernel tests and runs those of its file.
pub(super) fn run(
    tool: &Path,
    tree: &Tree,
    kernel: &str,
    files: &[String],
    sample: Option<u64>,
) -> Result<ExitCode> {
    let mutants = sampled(tool, tree, files, sample.unwrap_or(SAMPLE))?;
    let cache = Cache::open()?;
    let tools = Tools::fetch(&cache, false)?;
    let kernel = experiment::kernel(&cache, &tools, kernel)?;
    let rdma_core = RdmaCore::fetch(&cache, false)?;
    // Only tested files are mutated.
    let programs = build::guest_programs()?;
    let lab = Lab { cache, tools, kernel, rdma_core, programs };
    let (folder, tests) = build(tree)?;
    // A test that fails without the mutation, or is skipped on this kernel, can't judge.
    let mut useful = BTreeMap::new();
    for file in mutants.iter().map(|mutant| &mutant.file).collect::<BTreeSet<_>>() {
        let test_set = test_set_of(file)?;
        let mut passed = Vec::new();
        lab.run(test_set, &folder, &tests, |test, outcome| {
            if outcome == outcome::Outcome::Passed {
                passed.push(test.title());
            }
            true
        })?;
        println!("{file}: {} tests of it pass on {}", passed.len(), lab.kernel.version);
        ensure!(!passed.is_empty(), "nothing can notice a mutant of {file}");
        useful.insert(file, passed);
    }
    let mut outcomes = Vec::new();
    for (at, mutant) in mutants.iter().enumerate() {
        let begin = Instant::now();
        let (verdict, failed) = lab.try_mutant(tree, mutant, &useful[&mutant.file])?;
        let seconds = begin.elapsed().as_secs();
        let (count, all) = (at + 1, mutants.len());
        println!("{count}/{all} {verdict:?} in {seconds} s: {}{failed}", mutant.name);
        outcomes.push(Outcome { name: mutant.name.clone(), verdict });
    }
    println!("\non {}: {}", lab.kernel.version, Tally::of(&outcomes));
    let unexplained = super::Explained::read()?.report(&outcomes);
    Ok(if unexplained == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn test_set_of(file: &str) -> Result<&'static TestSet> {
    let test_set = TEST_SETS.iter().find(|test_set| test_set.file == file);
    test_set.with_context(|| format!("no tests are named for {file}"))
}

/// Mutants of the command functions, evenly spread over them.
fn sampled(tool: &Path, tree: &Tree, files: &[String], sample: u64) -> Result<Vec<Mutant>> {
    let all = ["provider/src/command.rs".to_owned(), "provider/src/command/*.rs".to_owned()];
    let files = if files.is_empty() { &all[..] } else { files };
    let mut select = vec!["--no-config".to_owned(), "--package=bareverbs-provider".to_owned()];
    select.extend(files.iter().map(|file| format!("--file={file}")));
    let there = list(tool, tree, &select)?;
    if there.is_empty() {
        bail!("no command function in {}", files.join(", "));
    }
    let step = there.len().div_ceil(sample as usize);
    Ok(there.into_iter().step_by(step).collect())
}

/// Builds the kernel tests of the copy.
fn build(tree: &Tree) -> Result<(PathBuf, Vec<GuestTest>)> {
    // In the target folder of the other programs for the lab, where their dependencies are built
    // already.
    let cargo = build::static_cargo_in(&tree.root(), &build::target_folder(), "test");
    guest_tests_of(cargo, &[TESTS])
}

/// The parts of a guest.
struct Lab {
    cache: Cache,
    tools: Tools,
    kernel: Kernel,
    rdma_core: RdmaCore,
    programs: Programs,
}

impl Lab {
    /// Makes the change, runs the tests that passed without it, and reverts the change. Returns the
    /// test that noticed.
    fn try_mutant(&self, tree: &Tree, mutant: &Mutant, useful: &[String]) -> Result<(Verdict, String)> {
        tree.mutate(mutant)?;
        let built = build(tree);
        tree.restore(Path::new(&mutant.file))?;
        let Ok((folder, tests)) = built else { return Ok((Verdict::Unviable, String::new())) };
        let mut failed = None;
        self.run(test_set_of(&mutant.file)?, &folder, &tests, |test, outcome| {
            if outcome == outcome::Outcome::Failed && useful.contains(&test.title()) {
                failed = Some(test.title());
            }
            failed.is_none()
        })?;
        Ok(match failed {
            Some(title) => (Verdict::Caught, format!("\n    noticed by {title}")),
            None => (Verdict::Survived, format!("\n    {} tests passed", useful.len())),
        })
    }

    /// Runs the tests in a fresh guest until `go_on` returns false.
    fn run(
        &self,
        test_set: &TestSet,
        folder: &Path,
        tests: &[GuestTest],
        mut go_on: impl FnMut(&GuestTest, outcome::Outcome) -> bool,
    ) -> Result<()> {
        let hca = experiment::start_hca(test_set.port, 1, &[])?;
        let setup = Setup {
            rdma_core: Some(self.rdma_core.root.clone()),
            shares: vec![(folder.to_owned(), GUEST_FOLDER.to_owned())],
            hca: hca.as_ref(),
            ..experiment::one_host(&self.cache, &self.tools, &self.kernel, &self.programs)
        };
        let mut guests = Guests::boot(&setup)?;
        let named = |part: &'static str| tests.iter().filter(move |test| test.title().contains(part));
        for test in test_set.tests.iter().flat_map(|part| named(part)) {
            let program = format!("{GUEST_FOLDER}/{}", test.binary);
            let argv = [&program, "--exact", &test.name, "--test-threads=1", "--color=never"];
            let exec = Exec { argv: argv.map(str::to_owned).into(), ..Exec::default() };
            let outcome = match guests.run(0, exec, LIMIT) {
                Ok(finished) if finished.timed_out => outcome::Outcome::Failed,
                Ok(finished) => judge(finished.status, &String::from_utf8_lossy(&finished.stdout)).0,
                // The guest is lost.
                Err(error) if error.is::<Failure>() => {
                    go_on(test, outcome::Outcome::Failed);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            if !go_on(test, outcome) {
                break;
            }
        }
        // A kernel failure is reported, but the mutant is judged by the tests.
        let _ = guests.shut_down();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_sources::GuestSources;

    #[test]
    fn every_test_set_names_existing_kernel_tests() {
        let sources = GuestSources::read().unwrap();
        let names: String = sources.tests().map(|name| name + "\n").collect();
        for TestSet { file, tests, .. } in &TEST_SETS {
            assert!(build::workspace().join(file).exists(), "{file}");
            for part in *tests {
                assert!(names.contains(part), "{file}: no kernel test has `{part}` in its name");
            }
        }
    }
}
