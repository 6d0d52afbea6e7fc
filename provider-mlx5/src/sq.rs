//! The send queue.

mod datagram;
mod ece;
mod ipoib;
mod limits;
mod operation;
mod payload;
mod rate;
mod raw_packet;
mod raw_wqe;
mod writer;
mod xrc;

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::layout::{QueueLayout, RawPacketNumbers};
use bareverbs_provider::request::{Burst, Ece};
use bareverbs_provider::traits::{QpControl, SendQueue};
use bareverbs_provider::work::{Datagram, Frame, PushError, SendFlags, SendRequest, XrcOperation};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::{ExModifyQp, ModifyQpReq};

use crate::doorbell::{RecordWord, SendRegister, Word};
use crate::fast_path::{FastWqe, Templates, control_flags};
use crate::qp_memory::QpMemory;
use crate::uidx_table::{QueueRecordRef, SendSlot, Side};
use crate::wqe::{BLOCK, Control, ControlFlags, Opcode, SEGMENTS_PER_BLOCK, Segment};

pub use datagram::Mlx5Ah;
pub(crate) use ece::{ECE_VERSION_1, EceState};
pub(crate) use limits::{Datagrams, SendLimits};
use operation::{Head, PLAIN, supports, unsupported};
pub(crate) use payload::{MAX_MESSAGE, too_long};
pub(crate) use raw_packet::FRAME_HEADER;
pub use raw_wqe::RawWqe;
use writer::Writer;

/// A send queue.
///
/// The C layout keeps the register off offset 0, where the compiler would compute its address in
/// each post.
#[derive(Debug)]
#[repr(C)]
pub struct Mlx5Sq {
    next: Position,
    record: QueueRecordRef,
    memory: Arc<QpMemory>,
    register: SendRegister,
    /// The first block.
    start: *mut Segment,
    /// Number of blocks minus 1.
    mask: u32,
    limits: SendLimits,
    qp_num: u32,
    /// Control flags of every WQE.
    base_flags: ControlFlags,
    /// End of the fast path: the request with this number takes the slow path.
    fast_limit: u64,
    /// The next block and slot of the fast path.
    next_wqe: *mut Segment,
    next_slot: NonNull<SendSlot>,
    /// First unpublished block.
    published: u32,
    /// Fence of the request at `published`.
    published_fence: ControlFlags,
    /// First block of the last request pushed.
    last: u32,
    /// Last known count of completed requests. Requests from before a reset count as completed.
    done: u64,
    /// Slots of the record, one per block.
    slots: NonNull<SendSlot>,
    /// The producer index in the doorbell record.
    dbr: RecordWord,
    templates: Templates,
    /// ECE state, on devices that have ECE.
    options: Option<EceState>,
    raw_packet: Option<Box<RawPacketNumbers>>,
}

/// Producer index of a send queue.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Block index since the last reset.
    block: u32,
    /// Request count, which continues across resets.
    request: u64,
    /// The fence of the next request.
    fence: ControlFlags,
}

impl Position {
    const START: Self = Self { block: 0, request: 0, fence: ControlFlags::empty() };
}

// SAFETY: `memory` keeps the ring valid, and the ring has no thread affinity.
unsafe impl Send for Mlx5Sq {}

impl Mlx5Sq {
    /// Sets the objects behind a raw packet QP.
    pub(crate) fn with_raw_packet(self, numbers: Option<RawPacketNumbers>) -> Self {
        Self { raw_packet: numbers.map(Box::new), ..self }
    }

    /// The send queue of `blocks` blocks, a power of 2, at `offset` bytes in `memory`.
    pub(crate) fn new(
        record: QueueRecordRef,
        memory: Arc<QpMemory>,
        register: SendRegister,
        (offset, blocks): (usize, u32),
        qp_num: u32,
        limits: SendLimits,
    ) -> Self {
        assert!(blocks.is_power_of_two() && offset.is_multiple_of(BLOCK), "a layout of sends");
        let rings = memory.ring(offset + blocks as usize * BLOCK);
        // SAFETY: `ring` checked that the memory has these bytes.
        let start = unsafe { rings.add(offset) }.cast().as_ptr();
        let base_flags = if limits.signal_all { ControlFlags::CQ_UPDATE } else { ControlFlags::empty() };
        assert!(record.sends.slots().len() == blocks as usize, "a slot for each block");
        let slots = NonNull::from(record.sends.slots()).cast();
        Self {
            slots,
            dbr: memory.record().word(Word::Second),
            templates: Templates::new(qp_num, base_flags, limits.max_message),
            record,
            memory,
            register,
            start,
            mask: blocks - 1,
            limits,
            qp_num,
            base_flags,
            next: Position::START,
            fast_limit: 0,
            next_wqe: start,
            next_slot: slots,
            published: 0,
            published_fence: ControlFlags::empty(),
            last: 0,
            done: 0,
            options: None,
            raw_packet: None,
        }
    }

    /// Slot of the request whose first block is `block`.
    #[inline(always)]
    fn slot(&self, block: u32) -> &SendSlot {
        // SAFETY: there are `mask + 1` slots, and this queue's reference keeps the record and its
        // slots valid.
        unsafe { self.slots.add((block & self.mask) as usize).as_ref() }
    }

    /// The first segment of block `block`.
    #[inline(always)]
    fn at(&self, block: u32) -> *mut Segment {
        // SAFETY: the mask gives one of the `mask + 1` blocks. `new` checked by `QpMemory::ring`
        // that the memory has that many blocks from `start` on.
        unsafe { self.start.add((block & self.mask) as usize * SEGMENTS_PER_BLOCK) }
    }

    /// Enables the fast path up to the known free room or the end of the ring.
    fn open_fast_path(&mut self) {
        let block = self.next.block;
        (self.next_wqe, self.next_slot) = (self.at(block), NonNull::from(self.slot(block)));
        let room = u64::from(self.limits.requests).saturating_sub(self.next.request - self.done);
        self.fast_limit = self.next.request + room.min(u64::from(self.mask + 1 - (block & self.mask)));
    }

    /// Writes a WQE at the fast path's position and adds it to the batch.
    ///
    /// # Safety
    ///
    /// `wqe` must be the request `wr_id` at `next`. Its number must not be `fast_limit`.
    #[inline(always)]
    unsafe fn write_fast(&mut self, wqe: &FastWqe, wr_id: u64) {
        let at = self.next_wqe;
        // SAFETY: `open_fast_path` started at a free block and its slot, and more of both follow
        // until `fast_limit`. Blocks are aligned to their size.
        unsafe {
            wqe.segments[0].write(at);
            wqe.segments[1].write(at.add(1));
            if let Some(third) = wqe.third {
                third.write(at.add(2));
            }
            self.next_wqe = at.add(SEGMENTS_PER_BLOCK);
        }
        let through = self.next.request + 1;
        // SAFETY: `open_fast_path` started at a free block and its slot, and more of both follow
        // until `fast_limit`. Blocks are aligned to their size.
        unsafe {
            self.next_slot.as_ref().note(wr_id, through, 0);
            self.next_slot = self.next_slot.add(1);
        }
        self.next.block = self.next.block.wrapping_add(1);
        self.next.request = through;
    }

    /// Whether the queue is full. The poller's count is loaded only if the last known count says
    /// so.
    #[inline(always)]
    fn is_full(&mut self) -> bool {
        let most = u64::from(self.limits.requests);
        if self.next.request - self.done < most {
            return false;
        }
        let done = self.record.sends.done();
        // Other counts are from before the last reset, or a faulty device completed unpublished
        // requests.
        if (self.done..=self.next.request).contains(&done) {
            self.done = done;
        }
        self.next.request - self.done >= most
    }

    #[inline(always)]
    fn writer(&self) -> Writer {
        Writer { start: self.start, mask: self.mask, block: self.next.block, segments: 1 }
    }

    /// Writes the control segment and adds the request to the batch.
    #[inline(always)]
    fn finish(&mut self, writer: &Writer, head: &Head) {
        let mut flags = self.base_flags | control_flags(head.flags);
        if !head.flags.contains(SendFlags::FENCE) {
            flags |= self.next.fence;
        }
        let control = Control {
            opcode: head.opcode,
            index: self.next.block as u16,
            qp_num: self.qp_num,
            // The count fits 8 bits, as `Layout::new` and `Mlx5Sq::max_segments` ensure.
            segments: writer.segments as u8,
            flags,
            imm: head.imm,
        }
        .segment();
        self.finish_with(writer, control, head);
    }

    /// The same with a control segment.
    #[inline(always)]
    fn finish_with(&mut self, writer: &Writer, control: Segment, head: &Head) {
        // SAFETY: the request's first segment.
        unsafe { writer.at(0).write(control) };
        let Position { block, request, .. } = self.next;
        let through = request + 1;
        self.slot(block).note(head.wr_id, through, head.wr_data.0 as u8);
        let blocks = writer.segments.div_ceil(SEGMENTS_PER_BLOCK) as u32;
        self.last = block;
        let fence = if head.opcode == Opcode::UMR {
            ControlFlags::INITIATOR_SMALL_FENCE
        } else {
            ControlFlags::empty()
        };
        self.next = Position { block: block.wrapping_add(blocks), request: through, fence };
        // The fast path does not handle fences.
        if fence.is_empty() && matches!(self.limits.qp_type, QpType::RC | QpType::UC) {
            self.open_fast_path();
        } else {
            self.fast_limit = through;
        }
    }

    /// Writes the producer index to the doorbell record.
    #[inline(always)]
    fn update_dbr(&self, block: u32) {
        barrier::before_device_reads();
        // SAFETY: `memory` keeps the doorbell record valid. Only the send queue's owner accesses
        // this word.
        unsafe { self.dbr.set_low(block as u16) };
    }

    #[cold]
    fn full(&self) -> PushError {
        PushError::QueueFull { capacity: self.limits.requests }
    }

    /// The bytes of block `index` of the ring, for tools that print WQEs. The index is taken modulo
    /// the number of blocks.
    #[must_use]
    pub fn block(&self, index: u32) -> [u8; BLOCK] {
        let block = self.at(index);
        let mut bytes = [0; BLOCK];
        for (at, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: within the block.
            *byte = unsafe { block.cast::<u8>().add(at).read_volatile() };
        }
        bytes
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `memory` keeps the ring and the doorbell record, `register` the doorbell page, and `record`
//    the slots of the requests that CQEs name.
// 2. `Writer` and the templates copy SGEs, operation and inline data into blocks unchanged, and the
//    device checks the keys. Only `finish` and `write_fast`, which come last, advance the producer
//    index: a request that is rejected or declined is not posted.
// 3. `is_full` and `fast_limit` permit only blocks that were never used or whose requests are
//    complete by the record.
// 4. The device reads blocks up to the producer index in the doorbell record, which `update_dbr`
//    stores, and BlueFlame copies. Both are written in `ring` and `try_post` only.
// 5. `abort` returns to the first block that no `update_dbr` call covers.
// 6. A write to the register can't fail: no method returns a `DoorbellError`.
// 7. `reset` sets the counters to 0. The device's are 0 after a reset, as the caller promises.
unsafe impl SendQueue for Mlx5Sq {
    type Ah = Mlx5Ah;

    #[inline]
    fn capacity(&self) -> u32 {
        self.limits.requests
    }

    fn layout(&self) -> Option<QueueLayout> {
        let ring = NonNull::new(self.start.cast())?;
        let doorbell = self.memory.record().layout(Some(self.register.layout()));
        let layout = QueueLayout::new(ring, self.mask + 1, BLOCK as u32, self.next.block, doorbell);
        Some(layout.with_number(self.qp_num).with_raw_packet(self.raw_packet.as_deref().copied()))
    }

    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let Position { block, request: number, .. } = self.next;
        if number == self.fast_limit {
            return false;
        }
        let Some(wqe) = self.templates.request(block, request) else { return false };
        // SAFETY: it is the request at `next`, which is before `fast_limit`.
        unsafe { self.write_fast(&wqe, request.wr_id) };
        self.last = block;
        true
    }

    /// With BlueFlame, the WQE goes from CPU registers to the ring and to the device.
    #[inline(always)]
    unsafe fn try_post(
        &mut self,
        request: &SendRequest<'_>,
        _later: bool,
    ) -> Option<Result<(), DoorbellError>> {
        let Position { block, request: number, .. } = self.next;
        // Unpublished requests must be published first.
        if number == self.fast_limit || block != self.published {
            return None;
        }
        let wqe = self.templates.request(block, request)?;
        // SAFETY: it is the request at `next`, which is before `fast_limit`.
        unsafe { self.write_fast(&wqe, request.wr_id) };
        let end = block.wrapping_add(1);
        self.published = end;
        self.update_dbr(end);
        match &mut self.register {
            SendRegister::Exclusive(register) => register.copy_fast(&wqe),
            register => register.ring(wqe.control),
        }
        Some(Ok(()))
    }

    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
        if self.is_full() {
            return Err(self.full());
        }
        if !supports(self.limits.qp_type, &request.operation) {
            return Err(unsupported(&request.operation));
        }
        let mut writer = self.writer();
        let mut head =
            Head { opcode: Opcode::SEND, imm: 0, flags: request.flags, wr_id: request.wr_id, wr_data: PLAIN };
        self.operation(&mut writer, request, &mut head)?;
        self.payload(&mut writer, request.payload)?;
        self.finish(&writer, &head);
        Ok(())
    }

    #[inline(always)]
    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, Mlx5Ah>>,
    ) -> Result<(), PushError> {
        self.push_to_handle(request)
    }

    unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError> {
        self.push_to_srq(request)
    }

    fn owns_doorbell(&self) -> bool {
        self.register.is_own()
    }

    unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
        self.push_whole_frame(request)
    }

    /// A write to the register can't fail.
    #[inline(always)]
    fn ring(&mut self) -> Result<(), DoorbellError> {
        let (first, last, end) = (self.published, self.last, self.next.block);
        if end == first {
            return Ok(());
        }
        self.published = end;
        self.published_fence = self.next.fence;
        self.update_dbr(end);
        let blocks = end.wrapping_sub(first) as usize;
        let control = self.at(last);
        match &mut self.register {
            SendRegister::Exclusive(register) if first == last && blocks * BLOCK <= register.room() => {
                let (start, mask) = (self.start, self.mask);
                // SAFETY: the blocks of the request lie in the ring, and only this queue's owner
                // writes them.
                unsafe {
                    register.copy(blocks, |index| {
                        start.add((first.wrapping_add(index as u32) & mask) as usize * SEGMENTS_PER_BLOCK)
                    });
                }
            }
            // SAFETY: the control segment of a written request; the device only reads it.
            register => register.ring(unsafe { control.cast::<u64>().read() }),
        }
        Ok(())
    }

    fn abort(&mut self) {
        if self.next.block != self.published {
            // Slots hold the count of requests up to and including theirs.
            let request = self.slot(self.published).through() - 1;
            self.next = Position { block: self.published, request, fence: self.published_fence };
            self.fast_limit = request;
            // A faulty device may have completed unpublished requests.
            self.done = self.done.min(request);
        }
    }

    unsafe fn reset(&mut self) {
        self.record.cq(Side::Send).clean(&self.record, Side::Send, 0);
        barrier::before_slots_are_reused();
        let request = self.next.request;
        // Requests from before the reset do not complete any more.
        (self.next, self.fast_limit, self.done) = (Position { request, ..Position::START }, request, request);
        (self.published, self.published_fence) = (0, ControlFlags::empty());
        self.memory.record().set(Word::Second, 0);
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `modify_with_ece` sends the request to the kernel unchanged.
// 2. The default `resume` does nothing.
unsafe impl QpControl for Mlx5Sq {
    fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
        // `mlx5_ib_modify_qp` of the driver's `qp.c`.
        let permitted = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
        if self.limits.datagrams == Datagrams::Ipoib && !permitted.contains(request.attr_mask) {
            return Err("a QP with a source QPN has no attributes but its state: set `STATE` alone");
        }
        Ok(())
    }

    unsafe fn modify_rate(
        &mut self,
        file: &DeviceFile,
        request: &ExModifyQp,
        burst: Burst,
    ) -> Result<(), IoctlError> {
        // SAFETY: the caller's promise is the same.
        unsafe { rate::modify(file, request, burst) }
    }

    fn ece(&self) -> Option<Ece> {
        self.ece_options()
    }

    fn set_ece(&mut self, options: u32) {
        self.set_ece_options(options);
    }

    unsafe fn modify(&mut self, file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
        // SAFETY: the caller owns the queue pair and resets its queues, as this method requires.
        unsafe { self.modify_with_ece(file, request) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
