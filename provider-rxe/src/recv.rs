//! Receive queues: the RQ of a QP, and the SRQ.

use std::ptr::NonNull;

use bareverbs_provider::error::CreateError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::ring::Producer;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{self, PushError, RecvRequest};
use bareverbs_uapi::rxe::{RecvWqe, Sge};

use crate::memory::{KernelQueue, QueueMemory, locate};
use crate::send::{MAX_MESSAGE, too_long, too_many_sges, write_sges};

/// The offset of the SGEs in a slot, in bytes.
const DATA: usize = size_of::<RecvWqe>();

/// A receive queue.
///
/// There is no doorbell: the kernel reads the queue when a packet arrives. A receive that is posted
/// after the QP entered ERR and was flushed therefore does not complete.
#[derive(Debug)]
pub struct RxeRq<M: QueueMemory = KernelQueue> {
    ring: Producer,
    max_sge: u32,
    /// Whether the fast path is enabled: a request was written since creation or reset, and
    /// requests may have an SGE.
    fast_path: bool,
    /// Whether the kernel has moved to a ring that is not mapped.
    lost: bool,
    /// Keeps the ring in place.
    _memory: M,
}

/// A shared receive queue (SRQ). It works like the receive queue of a QP.
pub type RxeSrq<M = KernelQueue> = RxeRq<M>;

impl<M: QueueMemory> RxeRq<M> {
    /// Creates the queue from `memory`, whose ring must hold `depth` requests of up to `max_sge`
    /// SGEs.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] if the header in `memory` describes a ring that does not fit.
    ///
    /// # Safety
    ///
    /// 1. The memory must be the ring of a receive queue that the kernel, or a simulated kernel,
    ///    shares.
    /// 2. Until the value is dropped, nothing else in this process may write to the memory or act
    ///    as the ring's producer, including through another mapping of the same pages.
    pub unsafe fn new(memory: M, depth: u32, max_sge: u32) -> Result<Self, CreateError> {
        let element = (max_sge as usize).saturating_mul(size_of::<Sge>()).saturating_add(DATA);
        let ring = locate(&memory, "RQ", depth, element)?;
        // SAFETY: `locate` checked that the ring lies within the memory. The memory stays valid
        // while the value owns it, by the contract of `QueueMemory`. The caller guarantees that
        // this is the only producer.
        let ring = unsafe { Producer::new(ring) };
        Ok(Self { ring, max_sge, fast_path: false, lost: false, _memory: memory })
    }

    /// Switches to `memory`, to which the kernel has moved the queue and whose ring must hold
    /// `depth` requests. Requests that were pushed but not published are discarded; the kernel
    /// never read them.
    ///
    /// # Errors
    ///
    /// The error of the mapping, or [`CreateError::Layout`] if the header in `memory` describes a
    /// ring that does not fit. The queue is then lost: it rejects requests with
    /// [`PushError::QueueLost`] until a later resize succeeds.
    ///
    /// # Safety
    ///
    /// The kernel must have moved the queue and must no longer read the old memory. The new memory
    /// must be as for [`RxeRq::new`].
    pub unsafe fn finish_resize(
        &mut self,
        memory: Result<M, CreateError>,
        depth: u32,
    ) -> Result<(), CreateError> {
        // SAFETY: the caller guarantees for the new memory what `new` requires.
        match memory.and_then(|memory| unsafe { Self::new(memory, depth, self.max_sge) }) {
            Ok(moved) => *self = moved,
            Err(error) => {
                // SAFETY: the caller guarantees that the kernel no longer uses the old memory.
                unsafe { self.ring.close() };
                self.fast_path = false;
                self.lost = true;
                return Err(error);
            }
        }
        Ok(())
    }

    #[cold]
    fn full(&self) -> PushError {
        if self.lost { PushError::QueueLost } else { PushError::QueueFull { capacity: self.ring.capacity() } }
    }
}

/// Writes the fields before the SGEs, except the two words that are always zero.
///
/// # Safety
///
/// `slot` must have room for a `RecvWqe` and be aligned to 8.
#[inline(always)]
unsafe fn write(slot: NonNull<u8>, wr_id: u64, length: u32, num_sge: u32) {
    let wqe = slot.as_ptr().cast::<RecvWqe>();
    // SAFETY: the caller guarantees room for the whole struct, with its alignment.
    unsafe {
        (&raw mut (*wqe).wr_id).write(wr_id);
        (&raw mut (*wqe).dma.length).write(length);
        (&raw mut (*wqe).dma.resid).write(length);
        (&raw mut (*wqe).dma.cur_sge).write(0);
        (&raw mut (*wqe).dma.num_sge).write(num_sge);
        (&raw mut (*wqe).dma.sge_offset).write(0);
        (&raw mut (*wqe).dma.reserved).write(0);
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `_memory` keeps the ring, by the contract of `QueueMemory`.
// 2. A request's SGEs are copied into a slot unchanged, and the kernel writes to their memory when
//    a message arrives. `advance` and `fill` make a slot part of a batch. They are the last calls
//    in `push` and `try_push`, so a rejected or declined request is in no batch.
// 3. `next_slot` and `cached_free_slot` return free slots only. A lost queue has none.
// 4. The kernel reads slots up to the producer index, and only `publish` stores this index. In a
//    lost queue, `ring` stores it in memory that the kernel no longer reads, as the caller of
//    `finish_resize` guaranteed.
// 5. `Producer::abort` discards the slots that were not published.
// 6. `resync` reloads the indices that the kernel left when it emptied the ring, as the caller of
//    `reset` guarantees, and discards slots that were not published. Nothing panics between the
//    first write to a slot and `advance`.
// 7. Only the kernel writes to the memory of receives. No method of this type accesses that memory,
//    so `abandon` and drop have nothing to stop.
unsafe impl<M: QueueMemory> RecvQueue for RxeRq<M> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn layout(&self) -> Option<QueueLayout> {
        Some(self.ring.layout())
    }

    fn posted(&self) -> u32 {
        if self.lost { 0 } else { self.ring.outstanding() }
    }

    /// Encodes requests of one SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        let [sge] = request.sges else { return false };
        if !self.fast_path || sge.length > i32::MAX as u32 {
            return false;
        }
        let Some(slot) = self.ring.cached_free_slot() else { return false };
        // SAFETY: `locate` checked that a slot has room for a request and, since `fast_path` is
        // set, for one SGE. Slots are aligned to 64 bytes, and nothing else accesses this slot
        // before it is published.
        unsafe {
            write(slot.start(), request.wr_id, sge.length, 1);
            slot.start().add(DATA).cast::<work::Sge>().write(*sge);
        }
        // SAFETY: the slot holds a complete request. The caller guarantees its memory.
        unsafe { slot.fill() };
        true
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        let Some(slot) = self.ring.next_slot() else {
            return Err(self.full());
        };
        let sges = request.sges;
        if sges.len() > self.max_sge as usize {
            return Err(too_many_sges(sges, self.max_sge));
        }
        // SAFETY: `locate` checked that a slot has room for `max_sge` SGEs after the request. The
        // slot size and `DATA` are multiples of 8.
        let length = unsafe { write_sges(slot.as_ptr().add(DATA).cast(), sges) };
        if length > MAX_MESSAGE {
            return Err(too_long(length));
        }
        // SAFETY: a slot has room for a `RecvWqe` and is aligned to 64 bytes. Nothing else accesses
        // it before it is published.
        unsafe {
            let wqe = slot.as_ptr().cast::<RecvWqe>();
            (&raw mut (*wqe).reserved).write(0);
            (&raw mut (*wqe).padding).write(0);
            write(slot, request.wr_id, length as u32, sges.len() as u32);
        }
        // SAFETY: `next_slot` returned the slot, and it holds a complete request. The caller
        // guarantees its memory.
        unsafe { self.ring.advance() };
        self.fast_path = self.max_sge > 0;
        Ok(())
    }

    #[inline]
    fn ring(&mut self) {
        self.ring.publish();
    }

    #[inline]
    fn abort(&mut self) {
        self.ring.abort();
    }

    unsafe fn reset(&mut self) {
        self.ring.resync();
        self.fast_path = false;
    }
}
