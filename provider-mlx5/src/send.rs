//! The send queue.

mod built;
mod ece;
mod raw;
mod xrc;

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::contract::{DoorbellError, Ece, SendQueue};
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_provider::work::{
    Datagram, Frame, Operation, Payload, Refusal, Remote, SendFlags, SendRequest, Sge, WcOpcode, XrcOperation,
};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::ModifyQpReq;

use crate::doorbell::{RecordWord, SendRegister, Word};
use crate::pair::PairMemory;
use crate::short::{Short, Templates, control_flags};
use crate::table::{Record, SendSlot, Side};
use crate::wqe::{
    self, AddressVector, BLOCK, Control, ControlFlags, Opcode, SEGMENT, SEGMENTS_PER_BLOCK, Segment,
};

/// Bytes of the longest run of memory that a segment can name, and of the longest message on the wire.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

pub use built::Built;
pub(crate) use ece::{FIRST_VERSION, Options};
pub(crate) use raw::FRAME_HEADER;

/// What sends may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendLimits {
    pub(crate) qp_type: QpType,
    /// Requests that always find room.
    pub(crate) requests: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_inline: u32,
    /// Bytes of a message; of a datagram, the port's MTU.
    pub(crate) max_message: u64,
    /// Whether every request makes a completion.
    pub(crate) signal_all: bool,
    /// Bytes of a frame that a request must hold itself.
    pub(crate) frame_header: usize,
    /// Bytes of the longest header of a large send; 0 where there are none.
    pub(crate) tso_header: usize,
    /// Most bytes of a large send behind its header.
    pub(crate) max_tso: u64,
}

/// An address handle: what is the same for all datagrams to a port.
#[derive(Clone, Copy, Debug)]
pub struct Mlx5Ah {
    pub(crate) vector: AddressVector,
}

impl Mlx5Ah {
    /// The address vector that datagrams carry.
    #[must_use]
    pub fn vector(&self) -> &AddressVector {
        &self.vector
    }
}

/// A send queue.
#[derive(Debug)]
pub struct Mlx5Sq {
    record: Arc<Record>,
    memory: Arc<PairMemory>,
    register: SendRegister,
    /// The first block.
    start: *mut Segment,
    /// Blocks less one.
    mask: u32,
    limits: SendLimits,
    qp_num: u32,
    /// Flags of every request.
    every: ControlFlags,
    next: Position,
    /// Where the short way ends: a request of this number goes the long way.
    until: u32,
    /// Where the short way goes on, if it does: a block and its slot.
    at: *mut Segment,
    at_slot: NonNull<SendSlot>,
    /// The first block that the device has not been told of.
    published: u32,
    /// What the request there waits for.
    published_fence: ControlFlags,
    /// The first block of the last request pushed.
    last: u32,
    /// Requests complete when last looked.
    done: u32,
    /// The record's slots, as many as blocks.
    slots: NonNull<SendSlot>,
    /// In the doorbell record: how far the queue has been filled.
    filled: RecordWord,
    templates: Templates,
    /// What the queue pair has beyond the standard, where the device has such things.
    options: Option<Options>,
}

/// How far a queue has been filled.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Blocks, counted on.
    block: u32,
    /// Requests, counted on.
    request: u32,
    /// What the next request waits for.
    fence: ControlFlags,
}

impl Position {
    const START: Self = Self { block: 0, request: 0, fence: ControlFlags::empty() };
}

// SAFETY: the memory is kept by `memory` and belongs to no thread.
unsafe impl Send for Mlx5Sq {}

/// Writes a request's segments one after the other, round the ring's end.
struct Writer {
    start: *mut Segment,
    mask: u32,
    block: u32,
    /// Segments written, the control segment included.
    segments: usize,
}

impl Writer {
    /// Where segment `index` of the request is.
    #[inline(always)]
    fn at(&self, index: usize) -> *mut Segment {
        let block = self.block.wrapping_add((index / SEGMENTS_PER_BLOCK) as u32) & self.mask;
        // SAFETY: the block lies in the ring.
        unsafe { self.start.add(block as usize * SEGMENTS_PER_BLOCK + index % SEGMENTS_PER_BLOCK) }
    }

    #[inline(always)]
    fn put(&mut self, segment: Segment) {
        // SAFETY: the blocks of a request are free, as `Mlx5Sq::push` sees to, and so many.
        unsafe { self.at(self.segments).write(segment) };
        self.segments += 1;
    }

    /// Copies bytes into the blocks, `offset` bytes behind the start of the request's segment `first`.
    #[inline(always)]
    fn copy(&self, first: usize, offset: usize, bytes: &[u8]) {
        let mut at = first * SEGMENT + offset;
        // What lies in the request's first block can't reach the ring's end.
        if at + bytes.len() <= BLOCK {
            // SAFETY: within the request's first block.
            unsafe {
                let to = self.at(0).cast::<u8>().add(at);
                to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            return;
        }
        let mut bytes = bytes;
        while !bytes.is_empty() {
            let run = (BLOCK - at % BLOCK).min(bytes.len());
            let (now, later) = bytes.split_at(run);
            // SAFETY: the run ends with its block, which is one of the request's.
            unsafe {
                let to = self.at(at / SEGMENT).cast::<u8>().add(at % SEGMENT);
                to.copy_from_nonoverlapping(now.as_ptr(), run);
            }
            at += run;
            bytes = later;
        }
    }
}

impl Mlx5Sq {
    /// The send queue `offset` bytes into `memory`, of `blocks` blocks, a power of 2.
    pub(crate) fn new(
        record: Arc<Record>,
        memory: Arc<PairMemory>,
        register: SendRegister,
        (offset, blocks): (usize, u32),
        qp_num: u32,
        limits: SendLimits,
    ) -> Self {
        assert!(blocks.is_power_of_two() && offset.is_multiple_of(BLOCK), "a layout of sends");
        let rings = memory.ring(offset + blocks as usize * BLOCK);
        // SAFETY: so many bytes are there.
        let start = unsafe { rings.add(offset) }.cast().as_ptr();
        let every = if limits.signal_all { ControlFlags::CQ_UPDATE } else { ControlFlags::empty() };
        assert!(record.sends.slots().len() == blocks as usize, "a slot for each block");
        let slots = NonNull::from(record.sends.slots()).cast();
        Self {
            slots,
            filled: memory.record().word(Word::Second),
            templates: Templates::new(qp_num, every, limits.max_message),
            record,
            memory,
            register,
            start,
            mask: blocks - 1,
            limits,
            qp_num,
            every,
            next: Position::START,
            until: 0,
            at: start,
            at_slot: slots,
            published: 0,
            published_fence: ControlFlags::empty(),
            last: 0,
            done: 0,
            options: None,
        }
    }

    /// What the record says of the request with the first block `block`.
    #[inline(always)]
    fn slot(&self, block: u32) -> &SendSlot {
        // SAFETY: there are `mask + 1` slots, which the record keeps as long as this queue keeps the record.
        unsafe { self.slots.add((block & self.mask) as usize).as_ref() }
    }

    /// The first segment of block `block`.
    #[inline(always)]
    fn at(&self, block: u32) -> *mut Segment {
        // SAFETY: within the ring.
        unsafe { self.start.add((block & self.mask) as usize * SEGMENTS_PER_BLOCK) }
    }

    /// Opens the short way from here on, as far as there is room for requests and the ring does not end.
    fn open(&mut self) {
        let block = self.next.block;
        (self.at, self.at_slot) = (self.at(block), NonNull::from(self.slot(block)));
        let room = self.limits.requests.saturating_sub(self.next.request.wrapping_sub(self.done));
        self.until = self.next.request.wrapping_add(room.min(self.mask + 1 - (block & self.mask)));
    }

    /// Writes a request to the short way's next place, and takes it into the batch.
    ///
    /// # Safety
    ///
    /// It must be that of `wr_id` at `next`, the number of which must not be `until`.
    #[inline(always)]
    unsafe fn take(&mut self, short: &Short, wr_id: u64) {
        let at = self.at;
        // SAFETY: `open` set out from a free block and its slot, and before `until` more of both follow. Blocks lie at
        // multiples of their size.
        unsafe {
            short.lanes[0].write(at);
            short.lanes[1].write(at.add(1));
            if let Some(third) = short.third {
                third.write(at.add(2));
            }
            self.at = at.add(SEGMENTS_PER_BLOCK);
        }
        let through = self.next.request.wrapping_add(1);
        // SAFETY: as above.
        unsafe {
            self.at_slot.as_ref().note(wr_id, through, 0);
            self.at_slot = self.at_slot.add(1);
        }
        self.next.block = self.next.block.wrapping_add(1);
        self.next.request = through;
    }

    /// Whether there may be no room; asks the poller only where it seems so.
    #[inline(always)]
    fn is_full(&mut self) -> bool {
        if self.next.request.wrapping_sub(self.done) < self.limits.requests {
            return false;
        }
        self.done = self.record.sends.done();
        self.next.request.wrapping_sub(self.done) >= self.limits.requests
    }

    #[inline(always)]
    fn writer(&self) -> Writer {
        Writer { start: self.start, mask: self.mask, block: self.next.block, segments: 1 }
    }

    /// Writes what an operation needs in front of its data, and completes the head.
    #[inline(always)]
    fn operation(
        &self,
        writer: &mut Writer,
        request: &SendRequest<'_>,
        head: &mut Head,
    ) -> Result<(), Refusal> {
        match request.operation {
            Operation::Send => {}
            Operation::SendImm(imm) => (head.opcode, head.imm) = (Opcode::SEND_IMM, imm),
            Operation::SendInv(rkey) => (head.opcode, head.imm) = (Opcode::SEND_INVAL, rkey.to_be()),
            Operation::Write(remote) => {
                head.opcode = Opcode::RDMA_WRITE;
                writer.put(wqe::remote_address(remote));
            }
            Operation::WriteImm(remote, imm) => {
                (head.opcode, head.imm) = (Opcode::RDMA_WRITE_IMM, imm);
                writer.put(wqe::remote_address(remote));
            }
            Operation::Read(remote) => {
                registered(request.payload)?;
                (head.opcode, head.purpose) = (Opcode::RDMA_READ, WcOpcode::RDMA_READ);
                writer.put(wqe::remote_address(remote));
            }
            Operation::CmpSwp { remote, compare, swap } => {
                result_of_atomic(request.payload, remote)?;
                (head.opcode, head.purpose) = (Opcode::ATOMIC_CS, WcOpcode::COMP_SWAP);
                writer.put(wqe::remote_address(remote));
                writer.put(wqe::atomic(swap, compare));
            }
            Operation::FetchAdd { remote, add } => {
                result_of_atomic(request.payload, remote)?;
                (head.opcode, head.purpose) = (Opcode::ATOMIC_FA, WcOpcode::FETCH_ADD);
                writer.put(wqe::remote_address(remote));
                writer.put(wqe::atomic(add, 0));
            }
            Operation::LocalInv(rkey) => {
                nothing(&request.operation, request.payload)?;
                (head.opcode, head.imm, head.purpose) = (Opcode::UMR, rkey.to_be(), WcOpcode::LOCAL_INV);
                for segment in &wqe::invalidate(self.qp_num)[..wqe::UNBIND_SEGMENTS] {
                    writer.put(*segment);
                }
            }
            Operation::BindMw(bind) => {
                nothing(&request.operation, request.payload)?;
                (head.opcode, head.imm, head.purpose) =
                    (Opcode::UMR, bind.mw_rkey.to_be(), WcOpcode::BIND_MW);
                let segments = if bind.length == 0 { wqe::UNBIND_SEGMENTS } else { wqe::BIND_SEGMENTS };
                for segment in &wqe::bind(&bind, self.qp_num)[..segments] {
                    writer.put(*segment);
                }
            }
            ref other => return Err(unsupported(other)),
        }
        Ok(())
    }

    /// Writes the data behind what was written; returns their bytes.
    #[inline(always)]
    fn payload(&self, writer: &mut Writer, payload: Payload<'_>) -> Result<u64, Refusal> {
        match payload {
            Payload::Sges(sges) => {
                if sges.len() > self.limits.max_sge as usize {
                    return Err(too_many_sges(sges.len(), self.limits.max_sge));
                }
                let mut length = 0;
                for sge in sges {
                    length += u64::from(sge.length);
                    // The device would take no bytes for two gigabytes.
                    if sge.length > 0 {
                        writer.put(wqe::data(*sge));
                    }
                }
                if length > self.limits.max_message {
                    return Err(self.too_long(length));
                }
                Ok(length)
            }
            Payload::Inline(parts) => {
                let first = writer.segments;
                let mut length = 0;
                for part in parts {
                    if part.len() > self.limits.max_inline as usize - length {
                        return Err(too_long_inline(parts, self.limits.max_inline));
                    }
                    writer.copy(first, 4 + length, part);
                    length += part.len();
                }
                if length as u64 > self.limits.max_message {
                    return Err(self.too_long(length as u64));
                }
                if length > 0 {
                    // SAFETY: the first word of a segment of the request.
                    unsafe { writer.at(first).cast::<u32>().write(wqe::inline_header(length as u32)) };
                    writer.segments += wqe::inline_segments(length);
                }
                Ok(length as u64)
            }
        }
    }

    /// Writes the control segment and takes the request into the batch.
    #[inline(always)]
    fn finish(&mut self, writer: &Writer, head: &Head) {
        let mut flags = self.every | control_flags(head.flags);
        if !head.flags.contains(SendFlags::FENCE) {
            flags |= self.next.fence;
        }
        let control = Control {
            opcode: head.opcode,
            index: self.next.block as u16,
            qp_num: self.qp_num,
            segments: writer.segments as u8,
            flags,
            imm: head.imm,
        }
        .segment();
        // SAFETY: the request's first segment.
        unsafe { writer.at(0).write(control) };
        let Position { block, request, .. } = self.next;
        let through = request.wrapping_add(1);
        self.slot(block).note(head.wr_id, through, head.purpose.0);
        let blocks = writer.segments.div_ceil(SEGMENTS_PER_BLOCK) as u32;
        self.last = block;
        let fence = if head.opcode == Opcode::UMR {
            ControlFlags::INITIATOR_SMALL_FENCE
        } else {
            ControlFlags::empty()
        };
        self.next = Position { block: block.wrapping_add(blocks), request: through, fence };
        // The short way knows nothing of fences.
        if fence.is_empty() && matches!(self.limits.qp_type, QpType::RC | QpType::UC) {
            self.open();
        } else {
            self.until = through;
        }
    }

    /// Tells the device, should it look, how far the queue has been filled.
    #[inline(always)]
    fn tell(&self, block: u32) {
        barrier::before_device_reads();
        // SAFETY: `memory` keeps the record.
        unsafe { self.filled.set_low(block as u16) };
    }

    #[cold]
    fn too_long(&self, given: u64) -> Refusal {
        match self.limits.qp_type {
            QpType::UD => Refusal::DatagramTooLong { given, max: self.limits.max_message as u32 },
            _ => too_long(given, self.limits.max_message),
        }
    }

    #[cold]
    fn full(&self) -> Refusal {
        Refusal::QueueFull { capacity: self.limits.requests }
    }

    /// Blocks of the ring as they are in memory, for tools that show them: the index of the next request's first block,
    /// and the bytes of block `index`.
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

/// What the control segment says, and what the poller is to know.
struct Head {
    opcode: Opcode,
    imm: u32,
    flags: SendFlags,
    wr_id: u64,
    /// What a UMR is used for, or what brings bytes back.
    purpose: WcOpcode,
}

/// Of a request that is just complete, and whose entry says what it was.
const PLAIN: WcOpcode = WcOpcode(0);

/// Whether queue pairs of a type carry an operation.
#[inline(always)]
fn carries(qp_type: QpType, operation: &Operation) -> bool {
    match operation {
        Operation::Send
        | Operation::SendImm(_)
        | Operation::Write(_)
        | Operation::WriteImm(..)
        | Operation::LocalInv(_)
        | Operation::BindMw(_) => matches!(qp_type, QpType::RC | QpType::UC),
        Operation::SendInv(_)
        | Operation::Read(_)
        | Operation::CmpSwp { .. }
        | Operation::FetchAdd { .. } => qp_type == QpType::RC,
        _ => false,
    }
}

impl SendQueue for Mlx5Sq {
    type Ah = Mlx5Ah;

    #[inline]
    fn capacity(&self) -> u32 {
        self.limits.requests
    }

    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let Position { block, request: number, .. } = self.next;
        if number == self.until {
            return false;
        }
        let Some(short) = self.templates.request(block, request) else { return false };
        // SAFETY: it is the request at `next`, which is before `until`.
        unsafe { self.take(&short, request.wr_id) };
        self.last = block;
        true
    }

    /// With BlueFlame, what is built in registers goes from there to the ring and to the device.
    #[inline(always)]
    unsafe fn try_post(
        &mut self,
        request: &SendRequest<'_>,
        _later: bool,
    ) -> Option<Result<(), DoorbellError>> {
        let Position { block, request: number, .. } = self.next;
        // What was pushed before would have to go first.
        if number == self.until || block != self.published {
            return None;
        }
        let short = self.templates.request(block, request)?;
        // SAFETY: it is the request at `next`, which is before `until`.
        unsafe { self.take(&short, request.wr_id) };
        let end = block.wrapping_add(1);
        self.published = end;
        self.tell(end);
        match &mut self.register {
            SendRegister::Exclusive(register) => register.copy_short(&short),
            register => register.ring(short.control),
        }
        Some(Ok(()))
    }

    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), Refusal> {
        if self.is_full() {
            return Err(self.full());
        }
        if !carries(self.limits.qp_type, &request.operation) {
            return Err(unsupported(&request.operation));
        }
        let mut writer = self.writer();
        let mut head =
            Head { opcode: Opcode::SEND, imm: 0, flags: request.flags, wr_id: request.wr_id, purpose: PLAIN };
        self.operation(&mut writer, request, &mut head)?;
        self.payload(&mut writer, request.payload)?;
        self.finish(&writer, &head);
        Ok(())
    }

    #[inline(always)]
    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, Mlx5Ah>>,
    ) -> Result<(), Refusal> {
        if self.limits.qp_type != QpType::UD {
            return Err(Refusal::Unsupported { operation: "a datagram" });
        }
        if self.is_full() {
            return Err(self.full());
        }
        let Datagram { ah, qp_num, qkey, imm } = request.operation;
        if qp_num >> 24 != 0 {
            return Err(Refusal::QpNumber { qp_num });
        }
        let mut writer = self.writer();
        for segment in ah.vector.segments(qp_num, qkey) {
            writer.put(segment);
        }
        self.payload(&mut writer, request.payload)?;
        let (opcode, imm) = match imm {
            None => (Opcode::SEND, 0),
            Some(imm) => (Opcode::SEND_IMM, imm),
        };
        let head = Head { opcode, imm, flags: request.flags, wr_id: request.wr_id, purpose: PLAIN };
        self.finish(&writer, &head);
        Ok(())
    }

    unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), Refusal> {
        self.push_to_srq(request)
    }

    fn owns_doorbell(&self) -> bool {
        self.register.is_own()
    }

    fn ece(&self) -> Option<Ece> {
        self.told_ece()
    }

    fn ask_ece(&mut self, options: u32) {
        self.ask_options(options);
    }

    fn change(&mut self, file: &DeviceFile, change: &ModifyQpReq) -> Result<(), Refused> {
        self.change_with_options(file, change)
    }

    unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), Refusal> {
        self.push_whole_frame(request)
    }

    /// A write to the register can't be refused.
    #[inline(always)]
    fn ring(&mut self) -> Result<(), DoorbellError> {
        let (first, last, end) = (self.published, self.last, self.next.block);
        if end == first {
            return Ok(());
        }
        self.published = end;
        self.published_fence = self.next.fence;
        self.tell(end);
        let blocks = end.wrapping_sub(first) as usize;
        let control = self.at(last);
        match &mut self.register {
            SendRegister::Exclusive(register) if first == last && blocks * BLOCK <= register.room() => {
                let (start, mask) = (self.start, self.mask);
                // SAFETY: the request's blocks, which lie in the ring and which only this queue's owner writes.
                unsafe {
                    register.copy(blocks, |index| {
                        start.add((first.wrapping_add(index as u32) & mask) as usize * SEGMENTS_PER_BLOCK)
                    });
                }
            }
            // SAFETY: the control segment of a request that was written; the device only reads it.
            register => register.ring(unsafe { control.cast::<u64>().read() }),
        }
        Ok(())
    }

    fn abort(&mut self) {
        if self.next.block != self.published {
            // The first of them was noted as one more than those before it.
            let request = self.slot(self.published).through().wrapping_sub(1);
            self.next = Position { block: self.published, request, fence: self.published_fence };
            self.until = request;
        }
    }

    fn reset(&mut self) {
        self.record.cq(Side::Send).forget(&self.record, Side::Send);
        self.record.sends.reset();
        (self.next, self.until, self.done) = (Position::START, 0, 0);
        (self.published, self.published_fence) = (0, ControlFlags::empty());
        self.memory.record().set(Word::Second, 0);
    }
}

#[inline(always)]
fn registered(payload: Payload<'_>) -> Result<&[Sge], Refusal> {
    match payload {
        Payload::Sges(sges) => Ok(sges),
        Payload::Inline(_) => Err(Refusal::InlineResult),
    }
}

#[inline(always)]
fn result_of_atomic(payload: Payload<'_>, remote: Remote) -> Result<(), Refusal> {
    let given = registered(payload)?.iter().map(|sge| u64::from(sge.length)).sum();
    if given != 8 {
        return Err(Refusal::AtomicResult { given });
    }
    if !remote.addr.is_multiple_of(8) {
        return Err(Refusal::AtomicAddress { addr: remote.addr });
    }
    Ok(())
}

#[inline(always)]
fn nothing(operation: &Operation, payload: Payload<'_>) -> Result<(), Refusal> {
    match payload {
        Payload::Sges([]) | Payload::Inline([]) => Ok(()),
        _ => Err(Refusal::UnexpectedPayload { operation: operation.name() }),
    }
}

#[cold]
fn too_many_sges(given: usize, max: u32) -> Refusal {
    Refusal::TooManySges { given, max: max as usize }
}

#[cold]
pub(crate) fn too_long(given: u64, max: u64) -> Refusal {
    Refusal::MessageTooLong { given, max }
}

#[cold]
fn too_long_inline(parts: &[&[u8]], max: u32) -> Refusal {
    let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
    Refusal::InlineTooLong { given, max: max as usize }
}

#[cold]
fn unsupported(operation: &Operation) -> Refusal {
    Refusal::Unsupported { operation: operation.name() }
}
