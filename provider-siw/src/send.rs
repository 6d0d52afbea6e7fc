//! The send queue.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::barrier::before_peer_is_checked;
use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::doorbell::{Doorbell, KernelDoorbell};
use bareverbs_provider::elements::ElementProducer;
use bareverbs_provider::error::{CreateError, DoorbellError};
use bareverbs_provider::traits::{QpControl, SendQueue};
use bareverbs_provider::work::{self, Datagram, Operation, Payload, PushError, SendFlags, SendRequest};
use bareverbs_uapi::siw::{MAX_INLINE, MAX_SGE, Opcode, Rqe, Sge, Sqe, WqeFlags};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::ModifyQpReq;

use crate::control::Control;
use crate::memory::{SharedMemory, locate, request_word};
use crate::recv::{MAX_MESSAGE, SiwRq};
use crate::shared::{CqShared, Entry, QpShared, Queue};

/// Payloads of so many bytes are sent from the caller's pages, unless the request is signalled
/// (`SENDPAGE_THRESH` of `siw.h`, a page; the smallest of all architectures).
const ZERO_COPY: u64 = 4096;

/// The address handle of a provider without datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiwAh {}

/// The send queue of a QP.
///
/// RDMA reads, and payloads of 4096 bytes and more, are always signalled to the kernel: see
/// [the crate's page](crate#completions). The CQ has room for as many such completions as it has entries.
/// Without room, requests are rejected as by a full queue until the CQ was polled.
#[derive(Debug)]
pub struct SiwSq<D: Doorbell = KernelDoorbell> {
    ring: ElementProducer,
    /// The flags of the requests of the batch, which the elements get when they are published.
    batch_flags: Box<[u16]>,
    /// Requests of the batch that an abort keeps.
    deferred: u32,
    signal_all: bool,
    /// Whether the fast path is enabled: a request was written since creation.
    fast_path: bool,
    /// Whether the last doorbell was refused: the kernel may not work on the queue.
    must_ring: bool,
    /// The number of RDMA reads at a time of the connection, once it is known.
    max_reads: Option<u32>,
    /// Entries of requests that were written and not published, with their place in the batch.
    entries: Vec<(u32, Entry)>,
    /// READs among them.
    new_reads: u32,
    doorbell: D,
    control: Arc<dyn Control>,
    shared: Arc<QpShared>,
}

/// The memory of both queues of a QP, and the numbers of their elements.
#[derive(Clone)]
pub struct QpMemory {
    /// The send queue.
    pub sq: (SharedMemory, u32),
    /// The receive queue; `None` with an SRQ.
    pub rq: Option<(SharedMemory, u32)>,
}

impl std::fmt::Debug for QpMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rq = self.rq.as_ref().map(|(_, count)| count);
        f.debug_struct("QpMemory").field("sq", &self.sq.1).field("rq", &rq).finish()
    }
}

impl<D: Doorbell> SiwSq<D> {
    /// Creates the queues of the QP with this number. `cqs`: those of its sends and of its receives.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] if the elements do not fit into the memory.
    ///
    /// # Safety
    ///
    /// 1. The memory must be that of the queues of a new QP that the kernel, or a simulated kernel, shares,
    ///    and all zero.
    /// 2. Until both queues and the CQs are dropped, nothing else in this process may write to the memory,
    ///    including through another mapping of the same pages.
    /// 3. The doorbell and the commands must be those of the same QP, and return as they document.
    pub unsafe fn new(
        qp_num: u32,
        memory: QpMemory,
        signal_all: bool,
        cqs: [&Arc<CqShared>; 2],
        doorbell: D,
        control: Arc<dyn Control>,
    ) -> Result<(Self, Option<SiwRq>), CreateError> {
        let QpMemory { sq: (sq, sq_count), rq } = memory;
        let sq_place = locate::<Sqe>(&sq, "send queue", sq_count, 1, 0)?;
        // SAFETY: `locate` checked that the elements lie in the memory. They are those of the producer below.
        let sq = unsafe { Queue::new(sq_place, sq) };
        let rq = match rq {
            None => None,
            Some((rq, count)) => {
                let place = locate::<Rqe>(&rq, "receive queue", count, 1, 0)?;
                // SAFETY: as for the send queue; the producer is that of `SiwRq::of_qp`.
                Some(unsafe { Queue::new(place, rq) })
            }
        };
        let shared = QpShared::new(qp_num, Arc::clone(&control), (sq, rq), cqs);
        // SAFETY: this is the only receive queue, by the caller's contract.
        let rq = unsafe { SiwRq::of_qp(&shared, Arc::clone(&control)) };
        // SAFETY: `shared` keeps the memory. The caller guarantees that this is the only producer.
        let ring = unsafe { ElementProducer::new(shared.sq.memory) };
        let sq = Self {
            batch_flags: vec![0; ring.capacity() as usize].into(),
            ring,
            deferred: 0,
            signal_all,
            fast_path: false,
            must_ring: false,
            max_reads: None,
            entries: Vec::new(),
            new_reads: 0,
            doorbell,
            control,
            shared,
        };
        Ok((sq, rq))
    }

    /// The flags of a request for the kernel, without those of its kind.
    #[inline(always)]
    fn flags(&self, flags: SendFlags) -> WqeFlags {
        let mut wqe = WqeFlags::empty();
        if self.signal_all || flags.contains(SendFlags::SIGNALED) {
            wqe |= WqeFlags::SIGNALLED;
        }
        if flags.contains(SendFlags::SOLICITED) {
            wqe |= WqeFlags::SOLICITED;
        }
        if flags.contains(SendFlags::FENCE) {
            wqe |= WqeFlags::READ_FENCE;
        }
        wqe
    }

    /// The number of RDMA reads at a time. An RDMA read of a connection without any would stop the queue
    /// for ever (`siw_activate_tx_from_sq` of `siw_qp.c`).
    fn check_reads(&mut self, operation: &Operation) -> Result<(), PushError> {
        let known = self.max_reads.or_else(|| self.control.max_reads().ok());
        self.max_reads = known.filter(|reads| *reads > 0);
        if known == Some(0) && !self.shared.sq.has_failed() {
            return Err(PushError::MaxRdAtomicZero { operation: operation.name() });
        }
        Ok(())
    }

    /// Adds the next element to the batch, with these flags and this word.
    ///
    /// # Safety
    ///
    /// As for [`ElementProducer::advance`].
    #[inline(always)]
    unsafe fn advance(&mut self, flags: WqeFlags, word: u64) {
        if let Some(slot) = self.batch_flags.get_mut(self.ring.pending() as usize) {
            *slot = flags.bits();
        }
        // SAFETY: by this function's contract.
        unsafe { self.ring.advance(word) };
    }

    /// Publishes the batch and rings the doorbell, unless the kernel works on the queue.
    #[inline(always)]
    fn submit(&mut self) -> Result<(), DoorbellError> {
        let batch = self.ring.pending();
        let has_entries = !self.entries.is_empty();
        if has_entries {
            self.add_entries();
        }
        let flags = |place| self.batch_flags.get(place as usize).copied().unwrap_or_default();
        self.ring.publish(&self.shared.sq.published, flags);
        self.deferred = 0;
        if has_entries {
            self.shared.published();
        }
        before_peer_is_checked();
        if self.shared.sq.has_failed() {
            self.shared.fail(Some(&*self.control));
            return Ok(());
        }
        if self.must_ring || self.ring.consumer_may_be_idle(batch) {
            return self.ring_doorbell(batch);
        }
        Ok(())
    }

    /// Whether each request needs an entry, because it may complete before a READ that was posted earlier.
    #[inline(always)]
    fn has_reads(&self) -> bool {
        self.new_reads != 0 || self.shared.has_reads()
    }

    /// Only now, so that no completion of an earlier request is taken for one of these.
    #[cold]
    #[inline(never)]
    fn add_entries(&mut self) {
        self.shared.add(self.entries.drain(..).map(|(_, entry)| entry));
        self.new_reads = 0;
    }

    #[inline]
    fn ring_doorbell(&mut self, batch: u32) -> Result<(), DoorbellError> {
        let answer = self.doorbell.ring();
        self.must_ring = answer.is_err();
        match answer {
            Ok(()) if self.ring.has_begun(batch) => Ok(()),
            // The kernel works on the queue, or the connection has ended: then the doorbell of 6.1 to 7.2
            // succeeds without an effect (`siw_post_send` of `siw_verbs.c`).
            Ok(()) => {
                self.check_end();
                Ok(())
            }
            // The connection is not established or is ending, or its state is locked. The requests stay in
            // the queue: the next doorbell starts them, or they are flushed.
            Err(Errno::NOTCONN) => {
                self.check_end();
                Ok(())
            }
            Err(errno) => {
                let origin = self.doorbell.error_origin();
                Err(DoorbellError::Posted(IoctlError { method: "PostSend (doorbell)", errno, origin }))
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn check_end(&self) {
        if self.control.has_ended() {
            self.shared.fail(Some(&*self.control));
        }
    }
}

/// Writes the fields before the SGEs, without the word.
///
/// # Safety
///
/// `sqe` must be a free element.
#[inline(always)]
unsafe fn write_header(sqe: *mut Sqe, wr_id: u64, raddr: u64) {
    // SAFETY: the caller guarantees room for an `Sqe`.
    unsafe {
        (&raw mut (*sqe).id).write(wr_id);
        (&raw mut (*sqe).raddr).write(raddr);
    }
}

/// The operation and the remote memory of the frequent requests.
#[inline(always)]
fn frequent(operation: &Operation) -> Option<(Opcode, (u64, u32))> {
    match operation {
        Operation::Send => Some((Opcode::SEND, (0, 0))),
        Operation::Write(remote) => Some((Opcode::WRITE, (remote.addr, remote.rkey))),
        _ => None,
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `shared` keeps the memory, by the contract of `QueueMemory`. The kernel reads nothing else for the
//    queue: inline data is in the elements, and the doorbell owns the memory of its call.
// 2. SGEs, operation and inline data are copied into an element. SGEs of no bytes are left out, which
//    changes nothing. The kernel checks the keys. `advance` makes an element part of the batch; it is the
//    last call in `push` and `try_push` that writes, so a rejected or declined request is in no batch.
// 3. `next_element` returns free elements only.
// 4. The kernel takes elements with the flag `VALID`, which only `publish` stores, in `submit`.
// 5. `abort_to` discards the elements that were filled after the deferred ones. Their words have no flags.
// 6. No batch is taken back.
// 7. siw has no reset: `modify` refuses it, so `reset` is never called.
//    Nothing panics between the first write to an element and `advance`.
unsafe impl<D: Doorbell> SendQueue for SiwSq<D> {
    type Ah = SiwAh;

    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Encodes a SEND or RDMA WRITE of one SGE or of one piece of inline data, while no RDMA read is
    /// outstanding.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let Some((opcode, (raddr, rkey))) = frequent(&request.operation) else { return false };
        if !self.fast_path || self.has_reads() {
            return false;
        }
        let flags = self.flags(request.flags);
        match request.payload {
            Payload::Sges([sge]) => {
                let is_signaled = flags.contains(WqeFlags::SIGNALLED);
                let max = if is_signaled { MAX_MESSAGE } else { ZERO_COPY - 1 };
                if u64::from(sge.length) > max {
                    return false;
                }
                let Some(element) = self.ring.next_element() else { return false };
                let sqe = element.cast::<Sqe>().as_ptr();
                // SAFETY: the element is a free `Sqe`. Nothing else accesses it before it is published.
                unsafe {
                    write_header(sqe, request.wr_id, raddr);
                    (&raw mut (*sqe).sge).cast::<work::Sge>().write(*sge);
                    self.advance(flags, request_word(1, opcode, rkey));
                }
                true
            }
            Payload::Inline([part]) => {
                if part.len() > MAX_INLINE as usize {
                    return false;
                }
                let Some(element) = self.ring.next_element() else { return false };
                let sqe = element.cast::<Sqe>().as_ptr();
                // SAFETY: as above. The SGEs after the first one have room for `MAX_INLINE` bytes. No Rust
                // slice references them, by the contract of `QueueMemory`.
                unsafe {
                    write_header(sqe, request.wr_id, raddr);
                    let sges = (&raw mut (*sqe).sge).cast::<Sge>();
                    (&raw mut (*sges).length).write(part.len() as u32);
                    sges.add(1).cast::<u8>().copy_from_nonoverlapping(part.as_ptr(), part.len());
                    self.advance(flags | WqeFlags::INLINE, request_word(1, opcode, rkey));
                }
                true
            }
            _ => false,
        }
    }

    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
        let operation = &request.operation;
        let is_inline = matches!(request.payload, Payload::Inline(_));
        let (opcode, (raddr, rkey)) = match operation {
            Operation::Send => (Opcode::SEND, (0, 0)),
            Operation::Write(remote) => (Opcode::WRITE, (remote.addr, remote.rkey)),
            // The kernel refuses inline data of this operation, and its element would stop the queue.
            Operation::SendInv(_) if is_inline => {
                return Err(PushError::Unsupported { operation: "a send with invalidate and inline data" });
            }
            Operation::SendInv(rkey) => (Opcode::SEND_REMOTE_INV, (0, *rkey)),
            Operation::Read(_) if is_inline => return Err(PushError::InlineResult),
            Operation::Read(remote) => (Opcode::READ, (remote.addr, remote.rkey)),
            other => return Err(PushError::Unsupported { operation: other.name() }),
        };
        let is_read = opcode == Opcode::READ;
        let Some(element) = self.ring.next_element() else {
            return Err(PushError::QueueFull { capacity: self.ring.capacity() });
        };
        let sqe = element.cast::<Sqe>().as_ptr();
        let mut flags = self.flags(request.flags);
        // SAFETY: the element is a free `Sqe`. Nothing else accesses it before it is published.
        let sges = unsafe { (&raw mut (*sqe).sge).cast::<work::Sge>() };
        let (num_sge, length) = match request.payload {
            Payload::Sges(list) => {
                let max = if is_read { 1 } else { MAX_SGE as usize };
                if list.len() > max {
                    return Err(PushError::TooManySges { given: list.len(), max });
                }
                let length = list.iter().map(|sge| u64::from(sge.length)).sum();
                if length > MAX_MESSAGE {
                    return Err(PushError::MessageTooLong { given: length, max: MAX_MESSAGE });
                }
                let mut num_sge = 0;
                // Workaround: docs/kernel-bugs.md, "A list with an SGE of no bytes crashes siw".
                for sge in list.iter().filter(|sge| sge.length > 0) {
                    // SAFETY: an element has room for `MAX_SGE` SGEs.
                    unsafe { sges.add(num_sge).write(*sge) };
                    num_sge += 1;
                }
                if num_sge == 0 {
                    // SAFETY: as above. The kernel reads the first SGE of a READ, and the first length.
                    unsafe { sges.write(work::Sge { addr: 0, length: 0, lkey: 0 }) };
                    num_sge = 1;
                }
                (num_sge as u8, length)
            }
            Payload::Inline(parts) => {
                let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
                let max = MAX_INLINE as usize;
                if given > max {
                    return Err(PushError::InlineTooLong { given, max });
                }
                flags |= WqeFlags::INLINE;
                // SAFETY: the SGEs after the first one have room for `MAX_INLINE` bytes. No Rust slice
                // references them, by the contract of `QueueMemory`.
                unsafe {
                    (&raw mut (*sges).length).write(given as u32);
                    let mut data = sges.add(1).cast::<u8>();
                    for part in parts {
                        data.copy_from_nonoverlapping(part.as_ptr(), part.len());
                        data = data.add(part.len());
                    }
                }
                (1, given as u64)
            }
        };
        if is_read {
            self.check_reads(operation)?;
            // The kernel refuses it, and the element would stop the queue. READs are in order without it.
            flags -= WqeFlags::READ_FENCE;
        }
        let is_signaled = flags.contains(WqeFlags::SIGNALLED);
        let is_hidden = !is_signaled && (is_read || !is_inline && length >= ZERO_COPY);
        if is_hidden {
            flags |= WqeFlags::SIGNALLED;
        }
        if is_read || is_hidden || self.has_reads() {
            let entry =
                Entry { wr_id: request.wr_id, is_read, is_signaled: is_signaled || is_hidden, is_hidden };
            if is_hidden && !self.shared.send_cq().reserve() {
                return Err(PushError::QueueFull { capacity: self.ring.capacity() });
            }
            self.entries.push((self.ring.pending(), entry));
            self.new_reads += u32::from(is_read);
        }
        // SAFETY: the element is a free `Sqe`, and its payload was written.
        unsafe {
            write_header(sqe, request.wr_id, raddr);
            self.advance(flags, request_word(num_sge, opcode, rkey));
        }
        self.fast_path = true;
        Ok(())
    }

    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, SiwAh>>,
    ) -> Result<(), PushError> {
        match *request.operation.ah {}
    }

    #[inline]
    fn defer(&mut self) -> Result<(), DoorbellError> {
        self.deferred = self.ring.pending();
        Ok(())
    }

    #[inline]
    fn deferred(&self) -> u32 {
        self.deferred
    }

    #[inline]
    fn ring(&mut self) -> Result<(), DoorbellError> {
        if self.ring.pending() == 0 {
            return Ok(());
        }
        self.submit()
    }

    #[inline]
    fn abort(&mut self) {
        while let Some((_, entry)) = self.entries.pop_if(|(place, _)| *place >= self.deferred) {
            self.new_reads -= u32::from(entry.is_read);
            self.shared.send_cq().unreserve(entry.is_hidden.into());
        }
        self.ring.abort_to(self.deferred);
    }

    unsafe fn reset(&mut self) {
        self.deferred = 0;
        self.abort();
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `modify` sends the request to the kernel unchanged, or refuses it.
// 2. The default `resume` does nothing.
// 3. `QpShared` issues commands for other threads under the lock of `end`, and not after
//    `release_handle` has taken the commands.
unsafe impl<D: Doorbell> QpControl for SiwSq<D> {
    fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
        if !request.attr_mask.contains(QpAttrMask::STATE) {
            return Ok(());
        }
        match request.qp_state {
            QpState::RESET => Err("a QP of iWARP can't be reset: create another one"),
            QpState::RTS => Err("the connection manager moves QPs of iWARP to RTS: connect by rdma_cm"),
            _ => Ok(()),
        }
    }

    fn release_handle(&mut self) {
        self.shared.release_handle();
    }

    /// The kernel accepts RESET and ignores it (`siw_qp_modify` of `siw_qp.c`).
    unsafe fn modify(&mut self, file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
        let sets = |state| request.attr_mask.contains(QpAttrMask::STATE) && request.qp_state == state;
        if sets(QpState::RESET) {
            return Err(IoctlError::new("ModifyQp", Errno::OPNOTSUPP));
        }
        // SAFETY: the caller owns the QP that the request names, by this method's contract.
        unsafe { command::modify_qp(file, request) }?;
        if sets(QpState::ERR) {
            self.shared.moved_to_error();
        }
        Ok(())
    }

    fn modified(&mut self, request: &ModifyQpReq) {
        if request.attr_mask.contains(QpAttrMask::STATE) && request.qp_state == QpState::ERR {
            self.shared.fail(Some(&*self.control));
        }
    }
}

impl<D: Doorbell> Drop for SiwSq<D> {
    fn drop(&mut self) {
        self.deferred = 0;
        self.abort();
        self.shared.remove();
    }
}
