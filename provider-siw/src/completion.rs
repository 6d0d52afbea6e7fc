//! The completion queue.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::elements::{ElementConsumer, FilledElement};
use bareverbs_provider::error::CreateError;
use bareverbs_provider::traits::{Completion, CompletionQueue, Visitor};
use bareverbs_provider::work::{Imm, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use bareverbs_uapi::siw::{CqCtrl, Cqe, NotifyFlags, Opcode, WcStatus as SiwStatus};

use crate::memory::{SharedMemory, bytes, locate};
use crate::shared::{CqShared, Flushed};

/// A completion queue (CQ).
///
/// On overrun the kernel drops the completion and raises the asynchronous event `CQ_ERR`. The ring has room
/// for completions that are not reported; see [`SiwSq`](crate::SiwSq).
#[derive(Debug)]
pub struct SiwCq {
    ring: ElementConsumer,
    /// Completions that were taken from the ring, and are reported next.
    ready: VecDeque<Cqe>,
    /// The word that arms the queue, after the elements.
    notify: NonNull<u32>,
    shared: Arc<CqShared>,
    entries: u32,
    /// Keeps the ring in place.
    _memory: Keep,
}

struct Keep(#[expect(dead_code, reason = "keeps the memory")] SharedMemory);

impl std::fmt::Debug for Keep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("memory")
    }
}

// SAFETY: the ring's memory belongs to no thread, and the value is its only consumer.
unsafe impl Send for SiwCq {}

/// Bytes of a completion queue of `count` elements.
pub(crate) fn cq_bytes(count: u32) -> usize {
    bytes::<Cqe>(count) + size_of::<CqCtrl>()
}

impl SiwCq {
    /// Creates the CQ from `memory`, which has `count` elements, of which the user knows `entries`.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] if the elements do not fit into the memory.
    ///
    /// # Safety
    ///
    /// 1. The memory must be the ring of a completion queue that the kernel, or a simulated kernel, shares.
    /// 2. Until the value is dropped, nothing else in this process may act as the ring's consumer,
    ///    including through another mapping of the same pages.
    pub unsafe fn new(memory: SharedMemory, count: u32, entries: u32) -> Result<Self, CreateError> {
        let place = locate::<Cqe>(&memory, "CQ", count, entries, size_of::<CqCtrl>())?;
        // SAFETY: `locate` checked that the control word lies in the memory, after the elements.
        let notify = unsafe { place.first.add(bytes::<Cqe>(count)) }.cast();
        // SAFETY: `locate` checked that the elements lie in the memory, which the value keeps. The caller
        // guarantees that it is the only consumer.
        let ring = unsafe { ElementConsumer::new(place) };
        // SAFETY: the elements are those of `ring`.
        let shared = unsafe { CqShared::new(count - entries, place, Arc::clone(&memory)) };
        let ready = VecDeque::new();
        Ok(Self { ring, ready, notify, shared, entries, _memory: Keep(memory) })
    }

    /// What the queue shares with those of its QPs.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// Copies the element that [`ElementConsumer::peek`] returned and gives it back.
    ///
    /// # Safety
    ///
    /// `filled` must be the result of the last `peek`.
    #[inline(always)]
    unsafe fn take<'a>(&mut self, filled: FilledElement) -> SiwCompletion<'a> {
        // SAFETY: `peek` returns elements of this CQ's ring.
        let completion = unsafe { copy(filled) };
        self.shared.count_taken();
        // SAFETY: by this function's contract, `peek` returned it.
        unsafe { self.ring.release(filled) };
        completion
    }

    /// Polls the next completion, if it is reported as it is.
    #[inline(always)]
    fn poll_fast<'a>(&mut self) -> FastPoll<'a> {
        if !self.ready.is_empty() {
            return FastPoll::Declined;
        }
        let Some(filled) = self.ring.peek() else {
            return if self.shared.has_flushed() { FastPoll::Declined } else { FastPoll::Empty };
        };
        if !is_fast(&self.shared, filled.word) {
            return FastPoll::Declined;
        }
        // SAFETY: `peek` was called above.
        FastPoll::Completion(unsafe { self.take(filled) })
    }

    /// Takes completions as long as they are reported as they are. Returns their number.
    #[inline(always)]
    fn take_fast(&mut self, into: &mut [WorkCompletion]) -> usize {
        let shared = &*self.shared;
        self.ring.take_into(into, |filled, slot| {
            if !is_fast(shared, filled.word) {
                return false;
            }
            // SAFETY: the element is one of this CQ's ring.
            *slot = unsafe { copy(filled) }.to_value();
            shared.count_taken();
            true
        })
    }

    /// Treats a completion that is not plain.
    #[cold]
    #[inline(never)]
    fn sort(&mut self, cqe: Cqe) {
        let ready = &mut self.ready;
        let Some(qp) = self.shared.qp(cqe.qp_id, self.shared.taken() - 1) else {
            ready.push_back(cqe);
            return;
        };
        if cqe.opcode == Opcode::RECEIVE {
            ready.push_back(cqe);
        } else {
            qp.complete(cqe, |cqe| ready.push_back(cqe));
        }
        if cqe.status != SiwStatus::SUCCESS {
            qp.fail(None);
        }
    }

    /// Takes a completion that the provider has made. Returns `false` if there is none.
    #[cold]
    #[inline(never)]
    fn take_flushed(&mut self) -> bool {
        let ready = &mut self.ready;
        match self.shared.take_flushed() {
            None => return false,
            Some(Flushed::Receive(cqe)) => ready.push_back(cqe),
            Some(Flushed::Send(qp, cqe)) => match qp.upgrade() {
                Some(qp) => qp.complete(cqe, |cqe| ready.push_back(cqe)),
                None => ready.push_back(cqe),
            },
            Some(Flushed::Reads(qp, reads)) => {
                if let Some(qp) = qp.upgrade() {
                    qp.end_reads(reads, |cqe| ready.push_back(cqe));
                }
            }
        }
        true
    }

    /// The next completion when the fast path has declined.
    #[cold]
    #[inline(never)]
    fn next_slow(&mut self) -> Option<SiwCompletion<'_>> {
        // A kernel that goes on adding completions that are not reported does not keep the caller here.
        let mut taken = 0;
        while taken <= self.ring.capacity() {
            if let Some(cqe) = self.ready.pop_front() {
                return Some(SiwCompletion::from(cqe));
            }
            // Before the ring: the kernel's completions of the QP come first, and are visible then.
            let has_flushed = self.shared.has_flushed();
            if let Some(filled) = self.ring.peek() {
                // SAFETY: `peek` was called above.
                let completion = unsafe { self.take(filled) };
                self.sort(Cqe::from(completion));
                taken += 1;
            } else if !has_flushed || !self.take_flushed() {
                return None;
            }
        }
        None
    }

    /// Fills `into` behind the first `taken` completions, and returns their new number.
    #[cold]
    #[inline(never)]
    fn next_slow_values(&mut self, into: &mut [WorkCompletion], mut taken: usize) -> usize {
        while let Some(slot) = into.get_mut(taken) {
            let Some(value) = self.next_slow_value() else { break };
            *slot = value;
            taken += 1;
        }
        taken
    }

    #[cold]
    #[inline(never)]
    fn next_slow_value(&mut self) -> Option<WorkCompletion> {
        self.next_slow().map(|completion| completion.to_value())
    }
}

/// The result of the fast path.
enum FastPoll<'a> {
    Completion(SiwCompletion<'a>),
    /// There is no completion.
    Empty,
    /// The slow path must look.
    Declined,
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `_memory` keeps the ring, by the contract of `QueueMemory`. A completion is a copy.
// 2. and 3. The kernel adds one completion when it has finished a request (`siw_sqe_complete` and
//    `siw_rqe_complete` of `siw_qp.c`), with the request's `wr_id`, which it reads from the element. Of a
//    send, it means that TCP has copied the data: requests that TCP would send from the caller's pages are
//    signalled (`SiwSq`). `ElementConsumer` takes each element once. Its flags are loaded before the rest,
//    so the kernel's earlier writes are visible where stores are seen in order, as on x86-64: the kernel has
//    no barrier between them and the flags. A request of `Flushed` was taken back from a QP in
//    ERR, whose queues the kernel does not execute.
// 4. The kernel writes no element without a request. One that it flushes while `QpShared::fail` takes it
//    back may be reported twice, with an error status.
// 5. A completion is a copy: no borrowed one reads an element.
// 6. `Order` (`order.rs`) restores the order.
unsafe impl CompletionQueue for SiwCq {
    type Completion<'a> = SiwCompletion<'a>;

    #[inline]
    fn capacity(&self) -> u32 {
        self.entries
    }

    #[inline(always)]
    fn next(&mut self) -> Option<SiwCompletion<'_>> {
        match self.poll_fast() {
            FastPoll::Completion(completion) => Some(completion),
            FastPoll::Empty => None,
            FastPoll::Declined => self.next_slow(),
        }
    }

    #[inline(always)]
    fn visit_next<V: Visitor>(&mut self, visitor: V) -> V::Output {
        match self.poll_fast() {
            FastPoll::Completion(completion) => visitor.completion(completion),
            FastPoll::Empty => visitor.empty(),
            FastPoll::Declined => visitor.declined(),
        }
    }

    /// The results of the fast path and of the slow path are returned separately. A single value
    /// for both would be built in memory first.
    #[inline(always)]
    fn next_value(&mut self) -> Option<WorkCompletion> {
        match self.poll_fast() {
            FastPoll::Completion(completion) => Some(completion.to_value()),
            FastPoll::Empty => None,
            FastPoll::Declined => self.next_slow_value(),
        }
    }

    #[inline(always)]
    fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize {
        let mut taken = 0;
        if self.ready.is_empty() {
            taken = self.take_fast(into);
            if taken == into.len() || self.ring.peek().is_none() && !self.shared.has_flushed() {
                return taken;
            }
        }
        self.next_slow_values(into, taken)
    }

    #[inline]
    fn release(&mut self) {}

    /// The kernel does not wake a queue that is armed for solicited completions when a solicited message
    /// arrives (`siw_rqe_complete` of `siw_qp.c`), so each completion raises the event.
    fn arm(&mut self, _solicited_only: bool) -> Result<(), IoctlError> {
        let events = NotifyFlags::SOLICITED | NotifyFlags::NEXT_COMPLETION;
        // SAFETY: the word lies in the memory, is aligned to 8, and is accessed here only.
        unsafe { barrier::arm_word(self.notify.as_ptr(), events.bits()) };
        Ok(())
    }
}

/// Copies a completion from its element.
///
/// # Safety
///
/// It must be an element of the ring of a CQ.
#[inline(always)]
unsafe fn copy<'a>(filled: FilledElement) -> SiwCompletion<'a> {
    let cqe = filled.element.cast::<Cqe>().as_ptr();
    // SAFETY: `locate` checked that an element holds a `Cqe`. The reads are volatile because the kernel
    // could write at any time.
    let (wr_id, qp_num) =
        unsafe { ((&raw const (*cqe).id).read_volatile(), (&raw const (*cqe).qp_id).read_volatile()) };
    SiwCompletion {
        wr_id,
        kind: kind(filled.word),
        bytes: bytes_of(filled.word),
        qp_num,
        _queue: PhantomData,
    }
}

/// Whether the completion with this word is successful and reported as it is.
#[inline(always)]
fn is_fast(shared: &CqShared, word: u64) -> bool {
    let kind = kind(word);
    kind < FAILED && shared.is_plain(kind >> 8)
}

/// The first half of an element's word: from the lowest byte on, flags, operation and status.
#[inline(always)]
fn kind(word: u64) -> u32 {
    let [flags, opcode, s0, s1, ..] = word.to_ne_bytes();
    let [s0, s1] = u16::from_ne_bytes([s0, s1]).to_le_bytes();
    u32::from_le_bytes([flags, opcode, s0, s1])
}

/// The length in the word of an element.
#[inline(always)]
fn bytes_of(word: u64) -> u32 {
    let [.., b0, b1, b2, b3] = word.to_ne_bytes();
    u32::from_ne_bytes([b0, b1, b2, b3])
}

/// A completion, copied from the ring.
#[derive(Debug)]
pub struct SiwCompletion<'a> {
    wr_id: u64,
    /// As of [`kind`]: less than [`FAILED`] if the request was successful.
    kind: u32,
    bytes: u32,
    qp_num: u64,
    _queue: PhantomData<&'a ()>,
}

/// The number of the kernel's operations.
const OPERATION_COUNT: usize = Opcode::COUNT.0 as usize;
const _: () = assert!(OPERATION_COUNT <= u32::BITS as usize);

/// The first kind that is a failure, or an operation that the kernel does not have.
const FAILED: u32 = (OPERATION_COUNT as u32) << 8;

/// The operations of successful completions.
const OPERATIONS: [WcOpcode; OPERATION_COUNT] = {
    let mut operations = [WcOpcode::SEND; OPERATION_COUNT];
    operations[Opcode::RECEIVE.0 as usize] = WcOpcode::RECV;
    operations[Opcode::WRITE.0 as usize] = WcOpcode::RDMA_WRITE;
    operations[Opcode::READ.0 as usize] = WcOpcode::RDMA_READ;
    operations[Opcode::READ_LOCAL_INV.0 as usize] = WcOpcode::RDMA_READ;
    operations
};

impl From<Cqe> for SiwCompletion<'_> {
    fn from(Cqe { id, opcode, status, bytes, qp_id, .. }: Cqe) -> Self {
        let kind = u32::from(status.0) << 16 | u32::from(opcode.0) << 8;
        Self { wr_id: id, kind, bytes, qp_num: qp_id, _queue: PhantomData }
    }
}

impl From<SiwCompletion<'_>> for Cqe {
    fn from(completion: SiwCompletion<'_>) -> Self {
        let SiwCompletion { wr_id, kind, bytes, qp_num, .. } = completion;
        let [_, opcode, status @ ..] = kind.to_le_bytes();
        let (opcode, status) = (Opcode(opcode), SiwStatus(u16::from_le_bytes(status)));
        Self { id: wr_id, opcode, status, bytes, qp_id: qp_num, ..Self::zeroed() }
    }
}

impl Completion for SiwCompletion<'_> {
    #[inline]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        if self.kind < FAILED { WcStatus::SUCCESS } else { failure(SiwStatus(self.vendor_err() as u16)) }
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        OPERATIONS.get((self.kind >> 8 & 0xff) as usize).copied().unwrap_or(WcOpcode::SEND)
    }

    #[inline]
    fn byte_len(&self) -> u32 {
        self.bytes
    }

    #[inline]
    fn qp_num(&self) -> u32 {
        self.qp_num as u32
    }

    #[inline]
    fn src_qp(&self) -> u32 {
        0
    }

    #[inline]
    fn imm(&self) -> Option<Imm> {
        None
    }

    #[inline]
    fn invalidated_rkey(&self) -> Option<u32> {
        None
    }

    /// The kernel's status.
    #[inline]
    fn vendor_err(&self) -> u32 {
        self.kind >> 16
    }

    #[inline]
    fn wc_flags(&self) -> WcFlags {
        WcFlags::empty()
    }

    #[inline]
    fn slid(&self) -> u16 {
        0
    }

    #[inline]
    fn sl(&self) -> u8 {
        0
    }

    #[inline]
    fn dlid_path_bits(&self) -> u8 {
        0
    }

    #[inline]
    fn to_value(&self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.wr_id(),
            status: self.status(),
            opcode: self.opcode(),
            vendor_err: self.vendor_err(),
            byte_len: self.byte_len(),
            ex: 0,
            qp_num: self.qp_num(),
            src_qp: 0,
            wc_flags: WcFlags::empty(),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

/// The status of a completion that is not successful. Values that the kernel does not have are
/// `GENERAL_ERR`.
#[cold]
#[inline(never)]
fn failure(status: SiwStatus) -> WcStatus {
    match status {
        SiwStatus::LOC_LEN_ERR => WcStatus::LOC_LEN_ERR,
        SiwStatus::LOC_PROT_ERR => WcStatus::LOC_PROT_ERR,
        SiwStatus::LOC_QP_OP_ERR => WcStatus::LOC_QP_OP_ERR,
        SiwStatus::WR_FLUSH_ERR => WcStatus::WR_FLUSH_ERR,
        SiwStatus::BAD_RESP_ERR => WcStatus::BAD_RESP_ERR,
        SiwStatus::LOC_ACCESS_ERR => WcStatus::LOC_ACCESS_ERR,
        SiwStatus::REM_ACCESS_ERR => WcStatus::REM_ACCESS_ERR,
        SiwStatus::REM_INV_REQ_ERR => WcStatus::REM_INV_REQ_ERR,
        _ => WcStatus::GENERAL_ERR,
    }
}
