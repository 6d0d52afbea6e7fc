//! State shared by all QPs of a device: memory, keys, CQs, EQs and the port.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bareverbs_transport::{Counters, Pool, RecvFetch, Table, Traffic};

use super::cq::{Completion, Cq, Outcome};
use super::eq::{Eq, EventKind, Interrupts};
use super::mkey::Mkeys;
use super::packet::{Link, Packet};
use super::page_fault::{Faults, PageFaultInfo};
use super::port::Port;
use super::recorder::Recording;
use super::srq::Srq;
use crate::memory::DmaMap;

pub(crate) struct Core {
    pub(crate) memory: DmaMap,
    pub(crate) mkeys: Mkeys,
    pub(crate) faults: Faults,
    pub(crate) eqs: Table<Eq>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) port: Port,
    pub(crate) interrupts: Box<dyn Interrupts>,
    /// The CQs whose moderation ends at a time.
    pub(crate) timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Packets to transmit.
    pub(crate) outgoing: Vec<Packet>,
    /// The buffers of payloads.
    pub(crate) pool: Pool,
    /// Frames to transmit.
    pub(crate) frames: Vec<Vec<u8>>,
    /// The send queue of each frame in `frames`.
    pub(crate) senders: Vec<u32>,
    /// CQs that have just been overrun. Their QPs must move to ERR.
    pub(crate) failed_cqs: Vec<u32>,
    /// CQs that hold CQEs back for compression.
    pub(crate) holding: Vec<u32>,
    pub(crate) counters: Box<[Counters; 256]>,
    pub(crate) traffic: Traffic,
    pub(crate) now: u64,
    pub(crate) recording: Recording,
}

impl Core {
    pub(crate) fn complete(&mut self, cq: u32, completion: &Completion<'_>) {
        let now = self.now;
        let Some(queue) = self.cqs.get_mut(cq) else { return };
        let outcome = queue.post(&self.memory, now, completion);
        self.follow(cq, outcome);
    }

    /// Writes the CQEs that CQs hold back for compression.
    pub(crate) fn end_runs(&mut self) {
        for cq in std::mem::take(&mut self.holding) {
            let now = self.now;
            if let Some(queue) = self.cqs.get_mut(cq) {
                let outcome = queue.end_run(&self.memory, now);
                self.follow(cq, outcome);
            }
        }
    }

    /// Acts on the outcome of a CQ operation.
    pub(crate) fn follow(&mut self, cq: u32, outcome: Outcome) {
        match outcome {
            Outcome::Quiet => {}
            Outcome::Held => {
                if !self.holding.contains(&cq) {
                    self.holding.push(cq);
                }
            }
            Outcome::Event => self.completion_event(cq),
            Outcome::Delayed => {
                if let Some(deadline) = self.cqs.get(cq).and_then(|queue| queue.moderation.deadline) {
                    self.timers.push(Reverse((deadline, cq)));
                }
            }
            Outcome::Overrun => {
                const OVERRUN: u8 = 1;
                self.failed_cqs.push(cq);
                let mut data = [0; 28];
                data[..4].copy_from_slice(&cq.to_be_bytes());
                data[11] = OVERRUN;
                self.event(EventKind::CqError, 0, &data);
            }
        }
    }

    fn completion_event(&mut self, cq: u32) {
        let Some(eq) = self.cqs.get(cq).map(|queue| queue.setup.eq) else { return };
        let Some(eq) = self.eqs.get_mut(eq) else { return };
        let mut data = [0; 28];
        data[24..].copy_from_slice(&cq.to_be_bytes());
        eq.post(&self.memory, &*self.interrupts, EventKind::Completion, 0, &data);
    }

    /// Posts an asynchronous event to the first EQ that is subscribed to its type. Returns whether
    /// such an EQ exists and had room.
    pub(crate) fn event(&mut self, kind: EventKind, sub_kind: u8, data: &[u8; 28]) -> bool {
        self.eqs
            .iter_mut()
            .find(|eq| eq.wants(kind))
            .is_some_and(|eq| eq.post(&self.memory, &*self.interrupts, kind, sub_kind, data))
    }

    /// Posts an event about a QP.
    pub(crate) fn qp_event(&mut self, kind: EventKind, number: u32) {
        let mut data = [0; 28];
        data[24..].copy_from_slice(&number.to_be_bytes());
        self.event(kind, 0, &data);
    }

    /// Posts an event about an SRQ.
    fn srq_event(&mut self, kind: EventKind, number: u32) {
        self.qp_event(kind, number);
    }

    /// Posts a page-fault event for the QP `qp`. `committed` is the number of bytes of the message
    /// that are done, and `packet` the length of the faulting packet. Returns the token, or `None`
    /// if no page-fault EQ took the event.
    pub(crate) fn page_fault_event(
        &mut self,
        qp: u32,
        info: PageFaultInfo,
        committed: u32,
        packet: usize,
    ) -> Option<u32> {
        let token = self.faults.insert_with(|token| info.fault(token, qp))?;
        let data = info.event(token, committed, packet);
        if self.event(EventKind::PageFault, info.sub_kind(), &data) {
            Some(token)
        } else {
            self.faults.remove(token);
            None
        }
    }

    /// Takes a receive work request from an SRQ.
    pub(crate) fn take_shared(&mut self, number: u32) -> RecvFetch<u16> {
        let Some(srq) = self.srqs.get_mut(number).filter(|srq| !srq.failed) else { return RecvFetch::Fault };
        let (taken, limit_crossed) = srq.take(&self.memory, &mut self.recording);
        if let RecvFetch::Fault = taken {
            srq.failed = true;
            self.srq_event(EventKind::SrqCatastrophic, number);
        } else if limit_crossed {
            self.srq_event(EventKind::SrqLimit, number);
        }
        taken
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.port.link == Link::Ethernet
    }
}
