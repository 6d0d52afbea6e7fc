//! On-demand paging. An access without a present page raises a page-fault event. The driver faults
//! the page in and answers, and the QP continues (`struct mlx5_eqe_page_fault` in
//! `include/linux/mlx5/device.h`). The transport scheme is modelled, which all drivers support.
//!
//! A fault stays in the table until it is answered, even if its QP has been reset. The driver
//! answers every event that it has read, and the answer to an event must not fail with
//! `EngineError::Missing`.

use super::page_fault::{Fault, Faults, kind};
use super::{Engine, EngineError};

impl Engine {
    /// The driver's answer to a page fault: the page is present, or the fault-in `failed`. `kind`
    /// and `queue` must be those of the event.
    ///
    /// `EngineError::Missing` for an unknown token, `EngineError::Invalid` for another kind or
    /// queue.
    pub fn resume(&mut self, token: u32, kind: u8, queue: u32, failed: bool) -> Result<(), EngineError> {
        let fault = *self.core.faults.get(token).ok_or(EngineError::Missing)?;
        if (fault.kind, fault.queue) != (kind, queue) {
            return Err(EngineError::Invalid);
        }
        self.core.faults.remove(token);
        self.release(fault, failed);
        Ok(())
    }

    /// Resumes the QP that waits for this fault. A QP that was reset since isn't waiting and is
    /// unaffected.
    fn release(&mut self, fault: Fault, failed: bool) {
        self.qps.resume(&mut self.core, fault.qp, fault.token, failed);
    }

    /// Discards the faults of a destroyed QP's own WQEs. The driver doesn't answer those that it
    /// had not read yet.
    pub(super) fn remove_faults_of_qp(&mut self, qp: u32) {
        remove_faults(&mut self.core.faults, |fault| {
            let own = matches!(fault.kind, kind::SEND_OR_WRITE | kind::RECEIVE | kind::READ_OR_ATOMIC);
            own && fault.qp == qp
        });
    }

    /// Discards the faults of a destroyed SRQ's WQEs and resumes the QPs that waited for them.
    pub(super) fn remove_faults_of_srq(&mut self, srq: u32) {
        let of_srq = |fault: &Fault| fault.kind == kind::SHARED_RECEIVE && fault.queue == srq;
        let faults: Vec<Fault> = self.core.faults.iter().filter(|fault| of_srq(fault)).copied().collect();
        remove_faults(&mut self.core.faults, of_srq);
        for fault in faults {
            self.release(fault, false);
        }
    }
}

/// Discards the faults for which `gone` returns `true`.
fn remove_faults(faults: &mut Faults, gone: impl Fn(&Fault) -> bool) {
    let tokens: Vec<u32> = faults.iter().filter(|fault| gone(fault)).map(|fault| fault.token).collect();
    for token in tokens {
        faults.remove(token);
    }
}
