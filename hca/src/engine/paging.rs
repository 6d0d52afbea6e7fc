//! On-demand paging. An access without a present page raises a page-fault event. The driver faults
//! the page in and answers, and the QP continues (`struct mlx5_eqe_page_fault` in
//! `include/linux/mlx5/device.h`). The transport scheme is modelled, which all drivers support.
//!
//! A fault stays in the table until it is answered, even if its QP has been reset. The driver
//! answers every event that it has read, and the answer to an event must not fail with
//! `EngineError::Missing`.

use super::core::Core;
use super::layout::page_fault;
use super::table::Table;
use super::{Engine, EngineError, EventKind, requester, responder};

/// Fault types, as in the event and in the driver's answer.
pub(crate) mod kind {
    /// `MLX5_WQE_PF_TYPE_*`: the WQE whose SGE lacks a page.
    pub(crate) const SHARED_RECEIVE: u8 = 0;
    pub(crate) const SEND_OR_WRITE: u8 = 1;
    pub(crate) const RECEIVE: u8 = 2;
    pub(crate) const READ_OR_ATOMIC: u8 = 3;
    /// `MLX5_PFAULT_*`: the fault is in memory behind an R_Key, and whether the access writes.
    pub(crate) const REMOTE: u8 = 4;
    pub(crate) const WRITTEN: u8 = 2;
}

/// The faulting access.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PageFaultInfo {
    /// An SGE of a WQE: fault type, number of the queue, WQE index.
    List { kind: u8, queue: u32, index: u16 },
    /// Memory behind an R_Key.
    Remote { key: u32, address: u64, length: u32, written: bool },
}

/// A fault that was reported to the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    token: u32,
    kind: u8,
    /// The number in the driver's answer: that of the work queue, or the token for an R_Key fault.
    queue: u32,
    qp: u32,
}

/// Unanswered faults by token.
pub(crate) type Faults = Table<Fault>;

impl Core {
    /// Posts a page-fault event for the QP `qp`. `committed` is the number of bytes of the message
    /// that are done, and `packet` the length of the faulting packet. Returns the token, or `None`
    /// if no page-fault EQ took the event.
    pub(crate) fn page_fault(
        &mut self,
        qp: u32,
        info: PageFaultInfo,
        committed: u32,
        packet: usize,
    ) -> Option<u32> {
        const IN_LIST: u8 = 0;
        const REMOTE: u8 = 1;
        const COMMITTED: usize = 0;
        let mut data = [0; page_fault::SIZE];
        let mut put = |at: usize, bytes: &[u8]| data[at..at + bytes.len()].copy_from_slice(bytes);
        let packet = u16::try_from(packet).unwrap_or(u16::MAX).to_be_bytes();
        put(COMMITTED, &committed.to_be_bytes());
        let token = match info {
            PageFaultInfo::List { kind, queue, index } => {
                let token = self.faults.insert_with(|token| Fault { token, kind, queue, qp })?;
                put(page_fault::WQE_INDEX, &index.to_be_bytes());
                put(page_fault::WQE_PACKET_LENGTH, &packet);
                put(page_fault::TOKEN, &token.to_be_bytes());
                put(page_fault::PFTYPE_WQ, &(u32::from(kind) << 24 | queue).to_be_bytes());
                token
            }
            PageFaultInfo::Remote { key, address, length, written } => {
                let kind = if written { kind::REMOTE | kind::WRITTEN } else { kind::REMOTE };
                let token = self.faults.insert_with(|token| Fault { token, kind, queue: token, qp })?;
                put(page_fault::R_KEY, &key.to_be_bytes());
                put(page_fault::RDMA_PACKET_LENGTH, &packet);
                put(page_fault::RDMA_OP_LEN, &length.to_be_bytes());
                put(page_fault::RDMA_VA, &address.to_be_bytes());
                put(page_fault::PFTYPE_TOKEN, &(u32::from(kind) << 24 | token).to_be_bytes());
                token
            }
        };
        let sub_kind = if let PageFaultInfo::List { .. } = info { IN_LIST } else { REMOTE };
        if self.event(EventKind::PageFault, sub_kind, &data) {
            Some(token)
        } else {
            self.faults.remove(token);
            None
        }
    }

    /// Discards the faults for which `gone` returns `true`.
    fn remove_faults(&mut self, gone: impl Fn(&Fault) -> bool) {
        let tokens: Vec<u32> =
            self.faults.iter().filter(|fault| gone(fault)).map(|fault| fault.token).collect();
        for token in tokens {
            self.faults.remove(token);
        }
    }
}

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
        if let Some(qp) = self.qps.get_mut(fault.qp) {
            requester::resume(qp, &mut self.core, fault.token, failed);
            responder::resume(qp, &mut self.core, fault.token, failed);
            self.wake(fault.qp);
        }
    }

    /// Discards the faults of a destroyed QP's own WQEs. The driver doesn't answer those that it
    /// had not read yet.
    pub(super) fn remove_faults_of_qp(&mut self, qp: u32) {
        self.core.remove_faults(|fault| {
            let own = matches!(fault.kind, kind::SEND_OR_WRITE | kind::RECEIVE | kind::READ_OR_ATOMIC);
            own && fault.qp == qp
        });
    }

    /// Discards the faults of a destroyed SRQ's WQEs and resumes the QPs that waited for them.
    pub(super) fn remove_faults_of_srq(&mut self, srq: u32) {
        let of_srq = |fault: &Fault| fault.kind == kind::SHARED_RECEIVE && fault.queue == srq;
        let faults: Vec<Fault> = self.core.faults.iter().filter(|fault| of_srq(fault)).copied().collect();
        self.core.remove_faults(of_srq);
        for fault in faults {
            self.release(fault, false);
        }
    }
}
