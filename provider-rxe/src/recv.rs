//! Receive queues, of one queue pair or shared.

use std::ptr::NonNull;

use bareverbs_provider::error::CreateError;
use bareverbs_provider::ring::Producer;
use bareverbs_provider::traits::RecvQueue;
use bareverbs_provider::work::{self, PushError, RecvRequest};
use bareverbs_uapi::rxe::{RecvWqe, Sge};

use crate::memory::{KernelQueue, QueueMemory, locate};
use crate::send::{MAX_MESSAGE, too_long, too_many_sges, write_sges};

/// Where a request's SGEs start in its slot.
const DATA: usize = size_of::<RecvWqe>();

/// A receive queue.
///
/// There is no doorbell: the kernel looks at the queue when a packet comes in. For that reason a
/// receive posted after the queue pair has gone to the error state, and been flushed, does not
/// complete.
#[derive(Debug)]
pub struct RxeRq<M: QueueMemory = KernelQueue> {
    ring: Producer,
    max_sge: u32,
    /// Whether the fast path is enabled: a request was written since creation or reset, and
    /// requests may have an SGE.
    fast_path: bool,
    /// Whether the kernel has left the ring for one that is not mapped.
    lost: bool,
    /// Keeps the ring in place.
    _memory: M,
}

/// A receive queue that several queue pairs share; it works like a queue pair's own.
pub type RxeSrq<M = KernelQueue> = RxeRq<M>;

impl<M: QueueMemory> RxeRq<M> {
    /// Takes up the queue in `memory`, which must hold `depth` requests of up to `max_sge` SGEs.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] where the header in the memory says otherwise.
    ///
    /// # Safety
    ///
    /// 1. The memory must be what the kernel, or a stand-in for it, shares as the ring of a receive
    ///    queue.
    /// 2. Until the value is dropped, nothing else of this process may write to the memory or act
    ///    as the ring's producer, also through another mapping of the same pages.
    pub unsafe fn new(memory: M, depth: u32, max_sge: u32) -> Result<Self, CreateError> {
        let element = (max_sge as usize).saturating_mul(size_of::<Sge>()).saturating_add(DATA);
        let ring = locate(&memory, "receive queue", depth, element)?;
        // SAFETY: `locate` checked that the ring lies in the memory, which stays valid as long as
        // it is kept, by the contract of `QueueMemory`. The caller promises that this is the only
        // producer.
        let ring = unsafe { Producer::new(ring) };
        Ok(Self { ring, max_sge, fast_path: false, lost: false, _memory: memory })
    }

    /// Switches to `memory`, to which the kernel has moved the queue and which must hold `depth`
    /// requests. Requests that were pushed and not published are forgotten: the kernel knew nothing
    /// of them.
    ///
    /// # Errors
    ///
    /// What stopped the mapping, or [`CreateError::Layout`] where the header in the memory says
    /// otherwise. The queue is lost then: it refuses requests with [`PushError::QueueLost`] until
    /// it is moved again.
    ///
    /// # Safety
    ///
    /// The kernel must have moved the queue: it reads the old memory no more. The new memory must
    /// be as for [`RxeRq::new`].
    pub unsafe fn finish_resize(
        &mut self,
        memory: Result<M, CreateError>,
        depth: u32,
    ) -> Result<(), CreateError> {
        // SAFETY: the caller promises for the new memory what `new` asks.
        match memory.and_then(|memory| unsafe { Self::new(memory, depth, self.max_sge) }) {
            Ok(moved) => *self = moved,
            Err(error) => {
                // SAFETY: the caller promises that the kernel has left the old memory.
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

/// Writes what stands before the SGEs, except the two words that are always zero.
///
/// # Safety
///
/// There must be room for a `RecvWqe` at `slot`, aligned to 8.
#[inline(always)]
unsafe fn write(slot: NonNull<u8>, wr_id: u64, length: u32, num_sge: u32) {
    let wqe = slot.as_ptr().cast::<RecvWqe>();
    // SAFETY: the caller promises room for the whole struct, aligned as it is.
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
// 2. A request's SGEs are copied into a slot as they are, and the kernel writes to them when a
//    message comes. `advance` and `fill`, which make a slot part of a batch, come last in `push`
//    and `try_push`: a request that is refused or declined is in no batch.
// 3. `next_slot` and `cached_free_slot` give free slots only. A queue that lost its memory has
//    none.
// 4. The kernel reads slots up to the producer's index, which only `publish` stores. `ring` after
//    the queue was lost stores it in memory that the kernel reads no more, as who called
//    `finish_resize` promised.
// 5. `abort` of the ring forgets the slots that were not published.
// 6. `resync` takes the indices that the kernel left when it emptied the ring, as who calls `reset`
//    promises, and forgets what was not published. Nothing panics between a slot's first byte and
//    `advance`.
// 7. Only the kernel writes to the memory of receives: no method of this type accesses it, so there
//    is nothing for `abandon` or dropping to end.
unsafe impl<M: QueueMemory> RecvQueue for RxeRq<M> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn posted(&self) -> u32 {
        if self.lost { 0 } else { self.ring.outstanding() }
    }

    /// One SGE.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        let [sge] = request.sges else { return false };
        if !self.fast_path || sge.length > i32::MAX as u32 {
            return false;
        }
        let Some(slot) = self.ring.cached_free_slot() else { return false };
        // SAFETY: `locate` checked that a slot has room for a request and, as `fast_path` says, one
        // SGE. Slots are aligned to 64, and nothing else accesses this one before it is published.
        unsafe {
            write(slot.start(), request.wr_id, sge.length, 1);
            slot.start().add(DATA).cast::<work::Sge>().write(*sge);
        }
        // SAFETY: the slot holds a whole request, for whose memory the caller vouches.
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
        // SAFETY: `locate` checked that a slot has room for `max_sge` SGEs behind the request, and
        // slots and `DATA` are multiples of 8.
        let length = unsafe { write_sges(slot.as_ptr().add(DATA).cast(), sges) };
        if length > MAX_MESSAGE {
            return Err(too_long(length));
        }
        // SAFETY: a slot has room for a `RecvWqe`, is aligned to 64, and nothing else accesses it
        // before it is published.
        unsafe {
            let wqe = slot.as_ptr().cast::<RecvWqe>();
            (&raw mut (*wqe).reserved).write(0);
            (&raw mut (*wqe).padding).write(0);
            write(slot, request.wr_id, length as u32, sges.len() as u32);
        }
        // SAFETY: `next_slot` gave the slot, which holds a whole request, for whose memory the
        // caller vouches.
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
