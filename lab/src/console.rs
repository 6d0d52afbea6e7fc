//! The guest kernel's console, and detection of kernel failures in it.

use std::collections::VecDeque;

/// Number of lines kept for a report.
const KEPT: usize = 60;

/// Texts that show a failure of the kernel or of the processor.
const FAILURES: [&str; 12] = [
    "KVM internal error",
    "Kernel panic - not syncing",
    "Oops:",
    " BUG: ",
    "kernel BUG at",
    "general protection fault",
    "Unable to handle kernel",
    "blocked for more than",
    "soft lockup",
    "hard LOCKUP",
    "detected stall",
    "Unable to mount root fs",
];

/// The console output of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Console {
    partial: Vec<u8>,
    lines: VecDeque<String>,
    failure: Option<String>,
    warnings: Vec<String>,
}

impl Console {
    /// Adds output.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                _ => self.partial.push(byte),
            }
        }
    }

    /// The first line that shows a kernel failure.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Warnings with a stack trace (`WARN_ON`), which don't stop the kernel.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The last lines, as a block of text.
    pub(crate) fn tail(&self) -> String {
        let rest = String::from_utf8_lossy(&self.partial);
        let lines = self.lines.iter().map(String::as_str).chain((!rest.is_empty()).then_some(rest.as_ref()));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&std::mem::take(&mut self.partial)).into_owned();
        if self.failure.is_none() && is_failure(&line) {
            self.failure = Some(line.clone());
        }
        if line.contains("WARNING: ") && line.contains(" at ") {
            self.warnings.push(line.clone());
        }
        if self.lines.len() == KEPT && self.failure.is_none() {
            self.lines.pop_front();
        }
        // After a failure the first lines are the most important, so none are dropped.
        if self.lines.len() < 3 * KEPT {
            self.lines.push_back(line);
        }
    }
}

fn is_failure(line: &str) -> bool {
    line.starts_with("BUG: ") || FAILURES.iter().any(|sign| line.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console(text: &str) -> Console {
        let mut console = Console::default();
        for chunk in text.as_bytes().chunks(7) {
            console.feed(chunk);
        }
        console
    }

    #[test]
    fn kernel_failures_are_detected() {
        for line in [
            "[    3.1] BUG: kernel NULL pointer dereference, address: 0000000000000008",
            "[    3.1] Oops: 0000 [#1] PREEMPT SMP NOPTI",
            "[   22.0] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [pingpong:88]",
            "[  243.1] INFO: task ibv_rc_pingpong:99 blocked for more than 120 seconds.",
            "[    1.0] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100",
            "[    1.0] kernel BUG at drivers/infiniband/sw/rxe/rxe_qp.c:12!",
            "[   30.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
        ] {
            assert_eq!(console(&format!("fine\r\n{line}\r\n")).failure(), Some(line));
        }
    }

    #[test]
    fn warnings_are_not_failures() {
        let text = "[    2.0] rdma_rxe: loaded\n[ 3.0] WARNING: CPU: 0 PID: 9 at drivers/x.c:1 f+0x1/0x2\nDEBUG: BUGS: none\n";
        let console = console(text);
        assert_eq!(console.failure(), None);
        assert_eq!(console.warnings().len(), 1);
    }

    #[test]
    fn console_tail_keeps_last_and_partial_lines() {
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect::<String>() + "half";
        let tail = console(&text).tail();
        assert!(tail.starts_with("line 40\n") && tail.ends_with("line 99\nhalf"));
    }

    #[test]
    fn lines_around_a_failure_stay_in_the_tail() {
        let mut text = String::from("before\nOops: 0000\n");
        text.extend((0..500).map(|n| format!("trace {n}\n")));
        let tail = console(&text).tail();
        assert!(tail.starts_with("before\nOops: 0000\ntrace 0\n"));
    }
}
