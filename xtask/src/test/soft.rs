//! The kernel tests on soft devices: on this machine, without a guest and without root, each in a
//! process of its own.

use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::filter::Filter;
use crate::guest_tests::{GuestTest, kernel_tests};
use crate::outcome::{Outcome, Table, judge};
use crate::print::heading;

/// What precedes each line of a test's output, as the kernel's name does for tests in guests.
pub(super) const NAME: &str = "soft";

/// The environment variable with the device's name, and its value (`tests/support/src/harness.rs`).
const DEVICE: (&str, &str) = ("BAREVERBS_TEST_DEVICE", "soft0");

/// Timeout of one test, far longer than any test takes.
const LIMIT: Duration = Duration::from_secs(120);

/// With more failed tests, none is run once more: the cause is no chance.
const MOST_RERUNS: usize = 10;

/// Runs the selected tests, as many in parallel as there are processors, until all have run, or until
/// `stop`. Those that fail are run once more, one by one.
pub(super) fn run(filter: Filter<'_>, stop: &AtomicBool) -> Result<Table> {
    let (folder, mut tests) = kernel_tests()?;
    tests.retain(|test| filter.takes(&test.title()));
    if tests.is_empty() {
        bail!("no kernel test is named like `{filter}`");
    }
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let mut table = run_all(&folder, &tests, processors, stop)?;
    let failed = table.failed();
    if !failed.is_empty() && failed.len() <= MOST_RERUNS {
        heading("Failed tests once more, one by one");
        tests.retain(|test| failed.iter().any(|(_, title)| *title == test.title()));
        table.classify(&run_all(&folder, &tests, 1, stop)?);
    }
    Ok(table)
}

fn run_all(folder: &Path, tests: &[GuestTest], jobs: usize, stop: &AtomicBool) -> Result<Table> {
    let queue: Mutex<VecDeque<&GuestTest>> = Mutex::new(tests.iter().collect());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let (sender, results) = mpsc::channel();
    let mut table = Table::new(vec![NAME.to_owned()]);
    thread::scope(|scope| {
        for _ in 0..jobs {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(test) = next().filter(|_| !stop.load(Ordering::Relaxed)) {
                    let begin = Instant::now();
                    let result = run_test(&folder.join(&test.binary), &test.name);
                    // The receiver waits for all senders.
                    let _ = sender.send((test.title(), result, begin.elapsed()));
                }
            });
        }
        drop(sender);
        for (title, result, time) in results {
            let (outcome, log) = result?;
            table.enter(NAME, &title, outcome, &log, time);
        }
        Ok(table)
    })
}

/// Runs one test. Returns its outcome and its output.
fn run_test(program: &PathBuf, name: &str) -> Result<(Outcome, String)> {
    let mut command = Command::new(program);
    command.args(["--exact", name, "--test-threads=1", "--color=never"]).env(DEVICE.0, DEVICE.1);
    let Some(output) = output_within(&mut command, LIMIT)? else {
        return Ok((Outcome::Failed, format!("killed after {} s", LIMIT.as_secs())));
    };
    let log =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // A signal has no exit code.
    let status = output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
    Ok(judge(status, &log))
}

/// Runs a command with its children. Returns `None` if it was killed after `limit`.
fn output_within(command: &mut Command, limit: Duration) -> Result<Option<Output>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().with_context(|| format!("starting {}", command.get_program().display()))?;
    let group = Pid::from_raw(child.id().cast_signed());
    let (sender, output) = mpsc::channel();
    thread::scope(|scope| {
        // The receiver waits until this thread has sent.
        scope.spawn(move || drop(sender.send(child.wait_with_output())));
        let within = output.recv_timeout(limit).ok();
        // Children may have survived the command.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        within.transpose().context("waiting for a test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn output_of_a_command_is_returned() {
        let output = output_within(&mut shell("echo one; echo two >&2; exit 3"), LIMIT).unwrap().unwrap();
        assert_eq!((output.stdout, output.stderr), (b"one\n".to_vec(), b"two\n".to_vec()));
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn command_is_killed_with_its_children_at_the_limit() {
        let mut command = shell("sleep 1000 & sleep 1000");
        assert!(output_within(&mut command, Duration::from_millis(10)).unwrap().is_none());
    }
}
