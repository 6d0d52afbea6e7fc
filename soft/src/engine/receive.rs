//! Receive queues: that of a QP, and the SRQ.

use std::mem::offset_of;
use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_transport::{Receive, RecvFetch, Sge};
use bareverbs_uapi::rxe::{self, RecvWqe};
use bareverbs_uapi::verbs_values::EventType;
use zerocopy::{FromZeros, IntoBytes};

use super::queue::{QueueMemory, Ring};
use crate::channel::ObjectSink;

/// A receive WQE that was copied out of its ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvWqeRef {
    pub(super) wr_id: u64,
    pub(super) position: u64,
}

/// A ring of receive WQEs.
#[derive(Debug)]
pub(super) struct RecvRing {
    ring: Ring,
    /// Number of WQEs taken.
    position: u64,
    max_sge: u32,
}

fn element(max_sge: u32) -> usize {
    size_of::<RecvWqe>() + max_sge as usize * size_of::<rxe::Sge>()
}

impl RecvRing {
    pub(super) fn new(max_wr: u32, max_sge: u32) -> Result<Self, Errno> {
        Ok(Self { ring: Ring::new(max_wr, element(max_sge))?, position: 0, max_sge })
    }

    pub(super) fn memory(&self) -> QueueMemory {
        self.ring.memory()
    }

    pub(super) fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Takes the next WQE. Its slot stays in use until [`release`](Self::release).
    pub(super) fn take(&mut self, srq: Option<u32>) -> RecvFetch<RecvWqeRef> {
        if self.ring.posted_from(self.position) == 0 {
            return RecvFetch::Empty;
        }
        let mut wqe = RecvWqe::new_zeroed();
        self.ring.load(self.position, 0, wqe.as_mut_bytes());
        if wqe.dma.num_sge > self.max_sge {
            return RecvFetch::Fault;
        }
        let sges = load_sges(&self.ring, self.position, offset_of!(RecvWqe, dma.sge), wqe.dma.num_sge);
        let wqe = RecvWqeRef { wr_id: wqe.wr_id, position: self.position };
        self.position += 1;
        RecvFetch::Receive(Receive { wqe, srq, sges: sges.collect(), placed: 0 })
    }

    /// Releases the slots up to that of a WQE.
    pub(super) fn release(&self, position: u64) {
        self.ring.set_consumer(position + 1);
    }

    /// Discards all WQEs.
    pub(super) fn reset(&mut self) {
        self.position += u64::from(self.ring.posted_from(self.position));
        self.ring.set_consumer(self.position);
    }
}

/// Copies the SGEs of a slot.
pub(super) fn load_sges(
    ring: &Ring,
    position: u64,
    offset: usize,
    count: u32,
) -> impl Iterator<Item = Sge> + '_ {
    (0..count as usize).map(move |which| {
        let mut sge = rxe::Sge::new_zeroed();
        ring.load(position, offset + which * size_of::<rxe::Sge>(), sge.as_mut_bytes());
        Sge { length: sge.length, key: sge.lkey, address: sge.addr }
    })
}

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct Srq {
    pub(super) pd: u32,
    queue: RecvRing,
    limit: u32,
    sink: Arc<ObjectSink>,
}

impl Srq {
    pub(super) fn new(
        pd: u32,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
        sink: Arc<ObjectSink>,
    ) -> Result<Self, Errno> {
        let queue = RecvRing::new(max_wr, max_sge)?;
        Ok(Self { pd, queue, limit, sink })
    }

    pub(super) fn memory(&self) -> QueueMemory {
        self.queue.memory()
    }

    /// The maximum number of WQEs and of SGEs, and the limit.
    pub(super) fn attributes(&self) -> (u32, u32, u32) {
        (self.queue.capacity(), self.queue.max_sge, self.limit)
    }

    /// Takes the next WQE. Raises the event if fewer than the limit are left.
    pub(super) fn take(&mut self, number: u32) -> RecvFetch<RecvWqeRef> {
        let taken = self.queue.take(Some(number));
        if let RecvFetch::Receive(receive) = &taken {
            self.queue.release(receive.wqe.position);
            if self.queue.ring.posted_from(self.queue.position) < self.limit {
                self.limit = 0;
                self.sink.raise(EventType::SRQ_LIMIT_REACHED);
            }
        }
        taken
    }

    pub(super) fn set_limit(&mut self, limit: u32) -> Result<(), Errno> {
        if limit > self.queue.capacity() {
            return Err(Errno::INVAL);
        }
        self.limit = limit;
        Ok(())
    }

    /// Moves the WQEs to a new ring.
    pub(super) fn resize(&mut self, max_wr: u32) -> Result<QueueMemory, Errno> {
        let old = &mut self.queue;
        let count = old.ring.posted_from(old.position);
        if max_wr < self.limit || max_wr < count {
            return Err(Errno::INVAL);
        }
        let new = RecvRing::new(max_wr, old.max_sge)?;
        old.ring.copy_to(&new.ring, old.position, count);
        new.ring.set_producer(count.into());
        old.reset();
        self.queue = new;
        Ok(self.memory())
    }
}
