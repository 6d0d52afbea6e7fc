//! The send queue.

use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::contract::{DoorbellError, SendQueue};
use bareverbs_provider::work::{
    Datagram, Operation, Payload, Refusal, Remote, SendFlags, SendRequest, Sge, WcOpcode,
};
use bareverbs_uapi::uverbs::types::QpType;

use crate::doorbell::{SendRegister, Word};
use crate::pair::PairMemory;
use crate::table::{Record, Side};
use crate::wqe::{
    self, AddressVector, BLOCK, Control, ControlFlags, Opcode, SEGMENT, SEGMENTS_PER_BLOCK, Segment,
};

/// Bytes of the longest run of memory that a segment can name, and of the longest message on the wire.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

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
    published: Position,
    /// Requests complete when last looked.
    done: u32,
    /// The last request pushed: the first 8 bytes of its control segment, and its blocks.
    last: (u64, u32),
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
        Self {
            record,
            memory,
            register,
            start,
            mask: blocks - 1,
            limits,
            qp_num,
            every,
            next: Position::START,
            published: Position::START,
            done: 0,
            last: (0, 0),
        }
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
        let mut flags = self.every;
        if head.flags.contains(SendFlags::SIGNALED) {
            flags |= ControlFlags::CQ_UPDATE;
        }
        if head.flags.contains(SendFlags::SOLICITED) {
            flags |= ControlFlags::SOLICITED;
        }
        flags |= if head.flags.contains(SendFlags::FENCE) { ControlFlags::FENCE } else { self.next.fence };
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
        self.record.sends.note(block & self.mask, head.wr_id, request, head.purpose.map_or(0, |what| what.0));
        let blocks = writer.segments.div_ceil(SEGMENTS_PER_BLOCK) as u32;
        self.last = (control[0], blocks);
        let fence =
            if head.purpose.is_some() { ControlFlags::INITIATOR_SMALL_FENCE } else { ControlFlags::empty() };
        self.next = Position { block: block.wrapping_add(blocks), request: request.wrapping_add(1), fence };
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
        // SAFETY: within the ring, masked.
        let block = unsafe { self.start.add((index & self.mask) as usize * SEGMENTS_PER_BLOCK) };
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
    /// What a UMR was used for.
    purpose: Option<WcOpcode>,
}

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

    /// Always part of the caller, where the operation and the kind of payload are mostly known.
    #[inline(always)]
    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), Refusal> {
        if self.is_full() {
            return Err(self.full());
        }
        if !carries(self.limits.qp_type, &request.operation) {
            return Err(unsupported(&request.operation));
        }
        let mut writer = self.writer();
        let mut head =
            Head { opcode: Opcode::SEND, imm: 0, flags: request.flags, wr_id: request.wr_id, purpose: None };
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
                head.opcode = Opcode::RDMA_READ;
                writer.put(wqe::remote_address(remote));
            }
            Operation::CmpSwp { remote, compare, swap } => {
                result_of_atomic(request.payload, remote)?;
                head.opcode = Opcode::ATOMIC_CS;
                writer.put(wqe::remote_address(remote));
                writer.put(wqe::atomic(swap, compare));
            }
            Operation::FetchAdd { remote, add } => {
                result_of_atomic(request.payload, remote)?;
                head.opcode = Opcode::ATOMIC_FA;
                writer.put(wqe::remote_address(remote));
                writer.put(wqe::atomic(add, 0));
            }
            Operation::LocalInv(rkey) => {
                nothing(&request.operation, request.payload)?;
                (head.opcode, head.imm, head.purpose) =
                    (Opcode::UMR, rkey.to_be(), Some(WcOpcode::LOCAL_INV));
                for segment in &wqe::invalidate(self.qp_num)[..wqe::UNBIND_SEGMENTS] {
                    writer.put(*segment);
                }
            }
            Operation::BindMw(bind) => {
                nothing(&request.operation, request.payload)?;
                (head.opcode, head.imm, head.purpose) =
                    (Opcode::UMR, bind.mw_rkey.to_be(), Some(WcOpcode::BIND_MW));
                let segments = if bind.length == 0 { wqe::UNBIND_SEGMENTS } else { wqe::BIND_SEGMENTS };
                for segment in &wqe::bind(&bind, self.qp_num)[..segments] {
                    writer.put(*segment);
                }
            }
            ref other => return Err(unsupported(other)),
        }
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
        let mut writer = self.writer();
        for segment in ah.vector.segments(qp_num, qkey) {
            writer.put(segment);
        }
        self.payload(&mut writer, request.payload)?;
        let (opcode, imm) = match imm {
            None => (Opcode::SEND, 0),
            Some(imm) => (Opcode::SEND_IMM, imm),
        };
        let head = Head { opcode, imm, flags: request.flags, wr_id: request.wr_id, purpose: None };
        self.finish(&writer, &head);
        Ok(())
    }

    /// A write to the register can't be refused.
    #[inline(always)]
    fn ring(&mut self) -> Result<(), DoorbellError> {
        let batch = self.next.request.wrapping_sub(self.published.request);
        if batch == 0 {
            return Ok(());
        }
        let first = self.published.block;
        self.published = self.next;
        barrier::before_device_reads();
        self.memory.record().set(Word::Second, self.next.block & 0xffff);
        let (control, blocks) = self.last;
        match &mut self.register {
            SendRegister::Exclusive(register) if batch == 1 && blocks as usize * BLOCK <= register.room() => {
                let (start, mask) = (self.start, self.mask);
                // SAFETY: the request's blocks, which lie in the ring and which only this queue's owner writes.
                unsafe {
                    register.copy(blocks as usize, |index| {
                        start.add((first.wrapping_add(index as u32) & mask) as usize * SEGMENTS_PER_BLOCK)
                    });
                }
            }
            register => register.ring(control),
        }
        Ok(())
    }

    #[inline]
    fn abort(&mut self) {
        self.next = self.published;
    }

    fn reset(&mut self) {
        self.record.cq(Side::Send).forget(&self.record, Side::Send);
        self.record.sends.reset();
        (self.next, self.published, self.done) = (Position::START, Position::START, 0);
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
