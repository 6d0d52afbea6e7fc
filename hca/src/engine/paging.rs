//! Page faults: an access finds no page, the driver is told by an event and brings it in, and its
//! answer lets the queue pair go on (`struct mlx5_eqe_page_fault` in `include/linux/mlx5/device.h`;
//! the transport scheme, which all drivers know).
//!
//! A fault stays in the table until it is answered, even if its queue pair has long been reset: a
//! driver answers each that it has read, and must not be told that there was none.

use super::core::Core;
use super::layout::page_fault;
use super::table::Table;
use super::{Engine, EngineError, EventKind, requester, responder};

/// Kinds of faults, as a driver sees them and names them in its answer.
pub(crate) mod kind {
    /// `MLX5_WQE_PF_TYPE_*`: which work request's list of memory lacks a page.
    pub(crate) const SHARED_RECEIVE: u8 = 0;
    pub(crate) const SEND_OR_WRITE: u8 = 1;
    pub(crate) const RECEIVE: u8 = 2;
    pub(crate) const READ_OR_ATOMIC: u8 = 3;
    /// `MLX5_PFAULT_*`: memory that a peer named, and whether it is written.
    pub(crate) const REMOTE: u8 = 4;
    pub(crate) const WRITTEN: u8 = 2;
}

/// Where a page lacks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PageFaultInfo {
    /// In the list of a work request: its queue's number and its place there.
    List { kind: u8, queue: u32, index: u16 },
    /// In memory that a peer named.
    Remote { key: u32, address: u64, length: u32, written: bool },
}

/// A fault that the driver has been told of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    token: u32,
    kind: u8,
    /// The number by which the driver answers: the work queue's, or the token again.
    queue: u32,
    qp: u32,
}

/// Faults without an answer, by token.
pub(crate) type Faults = Table<Fault>;

impl Core {
    /// Tells the driver of a fault of the queue pair `qp`, after so many bytes of the message and
    /// under a packet of so many; the fault's token, or `None` if nobody hears of it.
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

    /// Forgets the faults of which `gone` says that no answer can come any more.
    fn forget_faults(&mut self, gone: impl Fn(&Fault) -> bool) {
        let tokens: Vec<u32> =
            self.faults.iter().filter(|fault| gone(fault)).map(|fault| fault.token).collect();
        for token in tokens {
            self.faults.remove(token);
        }
    }
}

impl Engine {
    /// The driver's answer to a page fault: the page is there now, or `failed`. Kind and queue are
    /// those of the event.
    pub fn resume(&mut self, token: u32, kind: u8, queue: u32, failed: bool) -> Result<(), EngineError> {
        let fault = *self.core.faults.get(token).ok_or(EngineError::Missing)?;
        if (fault.kind, fault.queue) != (kind, queue) {
            return Err(EngineError::Invalid);
        }
        self.core.faults.remove(token);
        self.release(fault, failed);
        Ok(())
    }

    /// Lets a queue pair go on that waits because of this fault. One that has been reset since
    /// doesn't.
    fn release(&mut self, fault: Fault, failed: bool) {
        if let Some(qp) = self.qps.get_mut(fault.qp) {
            requester::resume(qp, &mut self.core, fault.token, failed);
            responder::resume(qp, &mut self.core, fault.token, failed);
            self.wake(fault.qp);
        }
    }

    /// A queue pair is gone: drivers don't answer faults in its work requests that they had not
    /// read yet.
    pub(super) fn forget_faults_of_qp(&mut self, qp: u32) {
        self.core.forget_faults(|fault| {
            let own = matches!(fault.kind, kind::SEND_OR_WRITE | kind::RECEIVE | kind::READ_OR_ATOMIC);
            own && fault.qp == qp
        });
    }

    /// A shared receive queue is gone, and those who waited for a page of its work requests find
    /// that out.
    pub(super) fn forget_faults_of_srq(&mut self, srq: u32) {
        let of_srq = |fault: &Fault| fault.kind == kind::SHARED_RECEIVE && fault.queue == srq;
        let faults: Vec<Fault> = self.core.faults.iter().filter(|fault| of_srq(fault)).copied().collect();
        self.core.forget_faults(of_srq);
        for fault in faults {
            self.release(fault, false);
        }
    }
}
