//! Programs under test. Their output is collected, and they are killed on drop.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Default timeout of a program. It is many times the usual duration, for busy machines.
pub const LIMIT: Duration = Duration::from_secs(100);
const STEP: Duration = Duration::from_millis(5);

/// A running program. Drop kills it.
#[derive(Debug)]
pub struct Program {
    title: String,
    child: Child,
    lines: Receiver<String>,
    seen: String,
    stderr: Option<JoinHandle<String>>,
}

/// The results of a program that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The command line.
    pub title: String,
    /// The exit status, or the signal that killed the program.
    pub status: ExitStatus,
    /// The whole standard output.
    pub stdout: String,
    /// The whole standard error.
    pub stderr: String,
}

impl Program {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Self {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let title = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap_or_else(|error| panic!("starting `{title}`: {error}"));
        let stdout = child.stdout.take().expect("the output is piped");
        let mut errors = child.stderr.take().expect("the errors are piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = String::new();
            while matches!(reader.read_line(&mut line), Ok(1..)) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    return;
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            // Reading stops at invalid UTF-8. The test then fails, because the expected text is
            // missing.
            let _ = errors.read_to_string(&mut text);
            text
        });
        Self { title, child, lines, seen: String::new(), stderr: Some(stderr) }
    }

    /// Waits for a line of standard output that begins with `start`, and returns it.
    ///
    /// # Panics
    /// If the program exits, or the timeout expires, before the line is printed.
    pub fn line(&mut self, start: &str) -> String {
        self.line_or_end(start).unwrap_or_else(|| {
            let rest = self.end(LIMIT);
            panic!("it ended without a line `{start}…`: {rest:#?}")
        })
    }

    /// The same, or `None` if the program exits before the line is printed.
    ///
    /// # Panics
    /// If the timeout expires.
    pub fn line_or_end(&mut self, start: &str) -> Option<String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen += &line;
                    if line.starts_with(start) {
                        return Some(line.trim_end().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("`{}` printed no line `{start}…`", self.title),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// The process id.
    pub fn id(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("process ids are positive"))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.id(), signal)
            .unwrap_or_else(|error| panic!("sending {signal} to `{}`: {error}", self.title));
    }

    /// Whether the program has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits until the program exits.
    ///
    /// # Panics
    /// If the program runs longer than `limit`. The program is killed.
    pub fn finish_within(mut self, limit: Duration) -> Finished {
        self.end(limit)
    }

    /// Waits until the program exits, up to the default timeout.
    ///
    /// # Panics
    /// If the program runs longer than [`LIMIT`]. The program is killed.
    pub fn finish(self) -> Finished {
        self.finish_within(LIMIT)
    }

    fn end(&mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        let mut in_time = true;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                in_time = false;
                let _ = self.child.kill();
                break self.child.wait().expect("a child can be waited for");
            }
            std::thread::sleep(STEP);
        };
        self.seen.extend(self.lines.iter());
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        let stdout = std::mem::take(&mut self.seen);
        let finished = Finished { title: self.title.clone(), status, stdout, stderr };
        assert!(in_time, "it ran longer than {limit:?}: {finished:#?}");
        finished
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Most programs have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// Asserts success.
    ///
    /// # Panics
    /// If the program failed.
    pub fn expect_success(self) -> Self {
        assert!(self.status.success(), "it should succeed: {self:#?}");
        self
    }

    /// Asserts that the program exited with status 1 and an error message on standard error that
    /// contains `words`.
    ///
    /// # Panics
    /// If the program succeeded, crashed, or printed another message.
    pub fn expect_failure(self, words: &str) -> Self {
        assert_eq!((self.status.code(), self.status.signal()), (Some(1), None), "{self:#?}");
        let complaint = self.stderr.lines().find(|line| line.starts_with("bareverbs: "));
        assert!(complaint.is_some_and(|line| line.contains(words)), "it should say `{words}`: {self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }
}
