//! Completions that fail by fault injection.

use bareverbs_uapi::verbs_values::WcStatus;

/// The completions of a device that fail.
#[derive(Debug, Default)]
pub(super) struct CompletionFaults {
    /// QPNs, the number of completions until each fails, and the status.
    faults: Vec<(u32, u64, WcStatus)>,
    /// QPs with a failed completion, which are to be in ERR.
    failed: Vec<u32>,
}

impl CompletionFaults {
    /// Makes the n-th completion of a QP from now on fail. The first is 1; 0 is none.
    pub(super) fn add(&mut self, qp: u32, nth: u64, status: WcStatus) {
        if nth > 0 {
            self.faults.push((qp, nth, status));
        }
    }

    /// The failure of the next completion of a QP, which would be a success.
    pub(super) fn next(&mut self, qp: u32) -> Option<WcStatus> {
        if self.failed.contains(&qp) {
            return Some(WcStatus::WR_FLUSH_ERR);
        }
        let mut due = None;
        self.faults.retain_mut(|(of, left, status)| {
            if *of != qp {
                return true;
            }
            *left -= 1;
            if *left == 0 {
                due = due.or(Some(*status));
            }
            *left > 0
        });
        if due.is_some() {
            self.failed.push(qp);
        }
        due
    }

    /// Takes a QP that is to be in ERR.
    pub(super) fn take_failed(&mut self) -> Option<u32> {
        self.failed.pop()
    }

    /// Forgets a destroyed QP.
    pub(super) fn forget(&mut self, qp: u32) {
        self.faults.retain(|(of, ..)| *of != qp);
        self.failed.retain(|of| *of != qp);
    }
}
