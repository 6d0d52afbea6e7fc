//! Completion queues.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_transport::packet::{Operation, Packet};
use bareverbs_transport::{RecvOutcome, Status};
use bareverbs_uapi::verbs_values::{WcFlags, WcStatus};
use bareverbs_uapi::write::structs::Wc;
use bareverbs_uapi::write::types::WcOpcode;
use zerocopy::{FromZeros, IntoBytes};

use super::queue::{QueueMemory, Ring};
use crate::channel::CqSink;

/// A completion queue.
#[derive(Debug)]
pub(super) struct Cq {
    ring: Ring,
    /// Number of completions posted to this ring.
    position: u64,
    /// Whether the next completion raises an event.
    armed: bool,
    /// Whether the next solicited completion raises an event.
    armed_solicited: bool,
    /// Whether completions were lost.
    overrun: bool,
    sink: Arc<CqSink>,
}

impl Cq {
    pub(super) fn new(entries: u32, sink: Arc<CqSink>) -> Result<Self, Errno> {
        let ring = Ring::new(entries, size_of::<Wc>())?;
        Ok(Self { ring, position: 0, armed: false, armed_solicited: false, overrun: false, sink })
    }

    pub(super) fn memory(&self) -> QueueMemory {
        self.ring.memory()
    }

    /// Moves the completions that were not polled to a new ring.
    pub(super) fn resize(&mut self, entries: u32) -> Result<QueueMemory, Errno> {
        let count = self.ring.unread_to(self.position);
        if entries < count {
            return Err(Errno::INVAL);
        }
        let new = Ring::new(entries, size_of::<Wc>())?;
        self.ring.copy_to(&new, self.position.wrapping_sub(count.into()), count);
        new.set_producer(count.into());
        // The old ring is empty, also for a program that keeps polling it.
        self.ring.set_consumer(self.position);
        (self.ring, self.position) = (new, count.into());
        Ok(self.memory())
    }

    pub(super) fn arm(&mut self, solicited_only: bool) {
        if solicited_only { self.armed_solicited = true } else { self.armed = true }
    }

    /// Adds a completion. Returns where to raise an event, if the CQ was armed. If the ring is full, the
    /// completion is lost, and the CQ fails once.
    pub(super) fn post(&mut self, completion: &Wc, solicited: bool) -> Option<&Arc<CqSink>> {
        if self.ring.unread_to(self.position) == self.ring.capacity() {
            if !std::mem::replace(&mut self.overrun, true) {
                self.sink.failed();
            }
            return None;
        }
        self.ring.store(self.position, 0, completion.as_bytes());
        self.position += 1;
        self.ring.set_producer(self.position);
        let notable = solicited || completion.status != WcStatus::SUCCESS;
        let raises = self.armed || self.armed_solicited && notable;
        if raises {
            (self.armed, self.armed_solicited) = (false, false);
        }
        raises.then_some(&self.sink)
    }
}

/// The completion of a send.
pub(super) fn of_send(qp: u32, wr_id: u64, opcode: WcOpcode, length: u32, failure: Option<WcStatus>) -> Wc {
    // A request that fails before it is sent completes by the flush of its queue. Its slot has the reason.
    let local = [WcStatus::LOC_LEN_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::MW_BIND_ERR];
    let status = match failure {
        Some(failure) if local.contains(&failure) => WcStatus::WR_FLUSH_ERR,
        other => other.unwrap_or(WcStatus::SUCCESS),
    };
    Wc { wr_id, status, opcode, byte_len: length, qp_num: qp, ..Wc::new_zeroed() }
}

/// The completion of a receive, and whether it is solicited.
pub(super) fn of_receive(qp: u32, wr_id: u64, placed: u32, outcome: &RecvOutcome<'_>) -> (Wc, bool) {
    let mut completion = Wc { wr_id, qp_num: qp, opcode: WcOpcode::RECV, ..Wc::new_zeroed() };
    match outcome {
        RecvOutcome::Failed(failure) => {
            // A receive that is too short or not writable is malformed.
            completion.status = match failure {
                Status::LocalLength | Status::LocalProtection => WcStatus::LOC_QP_OP_ERR,
                other => status(*other),
            };
            (completion, true)
        }
        RecvOutcome::Message { packet, .. } => {
            describe(&mut completion, packet);
            completion.byte_len = placed;
            (completion, packet.solicited)
        }
    }
}

fn describe(completion: &mut Wc, packet: &Packet) {
    completion.wc_flags = WcFlags::GRH;
    completion.port_num = 1;
    if packet.operation.is_write() {
        completion.opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    }
    match (packet.headers.immediate, packet.operation) {
        (Some(immediate), operation) if operation.has_immediate() => {
            completion.wc_flags |= WcFlags::WITH_IMM;
            completion.ex = immediate.to_be();
        }
        (Some(key), Operation::SendOnlyInvalidate | Operation::SendLastInvalidate) => {
            completion.wc_flags |= WcFlags::WITH_INVALIDATE;
            completion.ex = key;
        }
        _ => {}
    }
    if let Some(datagram) = packet.headers.datagram {
        completion.src_qp = datagram.source_qp;
    }
}

/// The status of a failed send. Soft-RoCE tells a key that doesn't allow an access from another error only
/// where a response arrives.
pub(super) fn status_of_send(opcode: WcOpcode, failure: Status) -> WcStatus {
    let has_response = matches!(opcode, WcOpcode::RDMA_READ | WcOpcode::COMP_SWAP | WcOpcode::FETCH_ADD);
    match failure {
        Status::LocalProtection if !has_response => WcStatus::LOC_QP_OP_ERR,
        other => status(other),
    }
}

fn status(status: Status) -> WcStatus {
    match status {
        Status::LocalLength => WcStatus::LOC_LEN_ERR,
        Status::LocalQpOperation => WcStatus::LOC_QP_OP_ERR,
        Status::LocalProtection => WcStatus::LOC_PROT_ERR,
        Status::Flushed => WcStatus::WR_FLUSH_ERR,
        Status::MemoryWindowBind => WcStatus::MW_BIND_ERR,
        Status::BadResponse => WcStatus::BAD_RESP_ERR,
        Status::RemoteInvalidRequest => WcStatus::REM_INV_REQ_ERR,
        Status::RemoteAccess => WcStatus::REM_ACCESS_ERR,
        Status::RemoteOperation => WcStatus::REM_OP_ERR,
        Status::RetriesExceeded => WcStatus::RETRY_EXC_ERR,
        Status::RnrRetriesExceeded => WcStatus::RNR_RETRY_EXC_ERR,
    }
}
