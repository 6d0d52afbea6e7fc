//! The send queue.

mod datagram;
mod limits;
mod push_errors;
mod slot;
mod submit;

use std::ops::Range;

use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::{CreateError, DoorbellError};
use bareverbs_provider::ring::{Position, Producer};
use bareverbs_provider::traits::{QpControl, SendQueue};
use bareverbs_provider::work::{self, Datagram, Operation, Payload, PushError, Remote, SendRequest};
use bareverbs_uapi::rxe::{AtomicWr, FlushWr, MwWr, SendWqe};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState, SendFlags, WcStatus};
use bareverbs_uapi::write::structs::ModifyQpReq;
use bareverbs_uapi::write::types::{PlacementType, SelectivityLevel, WrOpcode};

pub use self::datagram::RxeAh;
pub use self::limits::SendLimits;
pub(crate) use self::push_errors::{MAX_MESSAGE, too_long, too_many_sges};
use self::push_errors::{no_payload, too_long_inline, unsupported, wrong_atomic};
pub(crate) use self::slot::write_sges;
use self::slot::{Common, DATA, kernel_flags, write_common, write_fast, write_inline, write_rdma};
use self::submit::DOORBELL;
use crate::doorbell::{Doorbell, KernelDoorbell};
use crate::memory::{KernelQueue, QueueMemory, locate};
use crate::rd_atomic::RdAtomic;

/// The state of a request that the kernel could not carry out (`enum wqe_state` of `rxe_verbs.h`).
const STATE_ERROR: u32 = 4;

/// The send queue of a queue pair.
#[derive(Debug)]
pub struct RxeSq<D: Doorbell = KernelDoorbell, M: QueueMemory = KernelQueue> {
    ring: Producer,
    limits: SendLimits,
    rd_atomic: RdAtomic,
    /// Whether the fast path takes requests of one SGE.
    fast_sge: bool,
    /// How many lengths of inline data the fast path takes, from the start of [`FAST_INLINE`] up.
    fast_inline: usize,
    /// Where an abort goes back to: requests before it are published or deferred.
    deferred: Position,
    /// Whether it was moved to the error state. There, the fast path stays disabled.
    in_error: bool,
    doorbell: D,
    /// Keeps the ring in place.
    _memory: M,
}

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Takes up the queue in `memory`, which must hold `depth` requests within `limits`.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] where the header in the memory says otherwise.
    ///
    /// # Safety
    ///
    /// 1. The memory must be what the kernel, or a stand-in for it, shares as the ring of a queue
    ///    pair's send queue.
    /// 2. Until the value is dropped, nothing else of this process may write to the memory or act
    ///    as the ring's producer, also through another mapping of the same pages.
    /// 3. The doorbell must be that of the same queue pair, and answer as [`Doorbell::ring`] says.
    pub unsafe fn new(memory: M, depth: u32, limits: SendLimits, doorbell: D) -> Result<Self, CreateError> {
        let ring = locate(&memory, "send queue", depth, limits.element())?;
        // SAFETY: `locate` checked that the ring lies in the memory, which stays valid as long as
        // it is kept, by the contract of `QueueMemory`. The caller promises that this is the only
        // producer.
        let ring = unsafe { Producer::new(ring) };
        let rd_atomic = RdAtomic::new(limits.operations);
        let deferred = ring.position();
        Ok(Self {
            ring,
            limits,
            rd_atomic,
            fast_sge: false,
            fast_inline: 0,
            deferred,
            in_error: false,
            doorbell,
            _memory: memory,
        })
    }

    /// Enables the fast path within the limits, once a request took the slow path.
    fn open_fast_path(&mut self) {
        if self.in_error {
            return;
        }
        let SendLimits { max_sge, max_inline, operations, .. } = self.limits;
        if operations & FAST_OPERATIONS == FAST_OPERATIONS {
            let longest = FAST_INLINE.end.min(max_inline as usize + 1);
            self.fast_sge = max_sge > 0;
            self.fast_inline = longest.saturating_sub(FAST_INLINE.start);
        }
    }

    fn close_fast_path(&mut self) {
        (self.fast_sge, self.fast_inline) = (false, 0);
    }

    #[cold]
    fn unsupported_operation(&self, operation: &Operation, opcode: WrOpcode) -> PushError {
        if self.rd_atomic.has(opcode) {
            PushError::NoReadsOutstanding { operation: operation.name() }
        } else {
            unsupported(operation)
        }
    }
}

/// Lengths of inline data that the fast path copies, in two words.
const FAST_INLINE: Range<usize> = 8..17;

/// Operations of the fast path, as in [`SendLimits`].
const FAST_OPERATIONS: u32 = 1 << WrOpcode::SEND.0 | 1 << WrOpcode::RDMA_WRITE.0;

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Copies SGEs or inline data behind a request; returns their bytes, the number of SGEs and the
    /// flag.
    ///
    /// # Safety
    ///
    /// There must be room at `data` for what the limits allow, aligned to 8 and overlapping no Rust
    /// slice.
    #[inline(always)]
    unsafe fn write_payload(
        &self,
        data: *mut u8,
        payload: Payload<'_>,
    ) -> Result<(u32, u32, SendFlags), PushError> {
        match payload {
            Payload::Sges(sges) => {
                if sges.len() > self.limits.max_sge as usize {
                    return Err(too_many_sges(sges, self.limits.max_sge));
                }
                // SAFETY: the caller promises room for `max_sge` SGEs.
                let length = unsafe { write_sges(data.cast(), sges) };
                if length > MAX_MESSAGE {
                    return Err(too_long(length));
                }
                Ok((length as u32, sges.len() as u32, SendFlags::empty()))
            }
            Payload::Inline(parts) => {
                // SAFETY: the caller promises room for `max_inline` bytes, and that they overlap no
                // Rust slice.
                let Some(length) = (unsafe { write_inline(data, parts, self.limits.max_inline) }) else {
                    return Err(too_long_inline(parts, self.limits.max_inline));
                };
                Ok((length, 0, SendFlags::INLINE))
            }
        }
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `_memory` keeps the ring, by the contract of `QueueMemory`. The kernel reads nothing else for
//    the queue: inline data lie in the slots, and the doorbell's call is the doorbell's own.
// 2. SGEs, operation and inline data are copied into a slot as they are given, and the kernel
//    checks the keys. `advance` and `fill`, which make a slot part of a batch, come last in `push`,
//    `push_to_handle` and `try_push`: a request that is refused or declined is in no batch.
// 3. `next_slot` and `cached_free_slot` give slots only that the kernel has given back.
// 4. The kernel reads slots up to the producer's index, which only `publish`, `publish_next` and
//    `take_back` store, in `ring_once`, `ring_one_by_one` and `refused`.
// 5. `abort_to` forgets the slots that were filled after `deferred`, none of which was published.
// 6. `refused` takes a batch back on `EINVAL` only, by which the kernel says that it did not look
//    and that the queue pair is below RTS, where it carries out nothing (see the crate's page). If
//    the queue pair falls into the error state at that moment, the kernel may find the batch, or
//    stale slots, and flush them: it reports them as failed and accesses none of their memory
//    (`flush_send_queue` of `rxe_comp.c`, `rxe_requester` of `rxe_req.c`).
// 7. `resync` takes the indices that the kernel left when it emptied the ring, as who calls `reset`
//    promises, and forgets what was not published.
// Nothing panics between a slot's first byte and `advance`.
unsafe impl<D: Doorbell, M: QueueMemory> SendQueue for RxeSq<D, M> {
    type Ah = RxeAh;

    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// A send or a write of one SGE or of a few bytes inline. Always part of the caller, where the
    /// operation and the kind of payload are mostly known: what remains then is little more than
    /// the stores.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let Some(slot) = self.ring.cached_free_slot() else { return false };
        let start = slot.start().as_ptr();
        let wqe = start.cast::<SendWqe>();
        // Both arms go on by themselves: what is constant in them stays so.
        let written = match request.payload {
            Payload::Inline([part]) => {
                let beyond = part.len().wrapping_sub(FAST_INLINE.start);
                if beyond >= self.fast_inline {
                    return false;
                }
                let from = part.as_ptr();
                // SAFETY: `open_fast_path` let `fast_inline` be no longer than the inline data that
                // `locate` found room for, behind the request. The two words together cover the
                // part, and overlap where it is shorter than both. The slot is aligned to 64, and
                // the kernel accesses it only once it is published.
                unsafe {
                    let first = from.cast::<u64>().read_unaligned();
                    let last = from.add(beyond).cast::<u64>().read_unaligned();
                    start.add(DATA).cast::<u64>().write_unaligned(first);
                    start.add(DATA + beyond).cast::<u64>().write_unaligned(last);
                    write_fast(wqe, request, part.len() as u32, 0, SendFlags::INLINE)
                }
            }
            Payload::Sges([sge]) if self.fast_sge && sge.length <= i32::MAX as u32 => {
                // SAFETY: `open_fast_path` set `fast_sge` only where `locate` found room for an SGE
                // behind the request. The slot is aligned to 64, and the kernel accesses it only
                // once it is published.
                unsafe {
                    start.add(DATA).cast::<work::Sge>().write(*sge);
                    write_fast(wqe, request, sge.length, 1, SendFlags::empty())
                }
            }
            _ => return false,
        };
        if written {
            // SAFETY: the slot holds a whole request, for whose memory the caller vouches.
            unsafe { slot.fill() };
        }
        written
    }

    /// In the error state, the slow path rings the doorbell.
    #[inline(always)]
    unsafe fn try_post(
        &mut self,
        request: &SendRequest<'_>,
        defer: bool,
    ) -> Option<Result<(), DoorbellError>> {
        // SAFETY: the caller vouches for the memory that the request names, as `push` asks.
        if !defer && self.has_failed() || !unsafe { self.try_push(request) } {
            return None;
        }
        Some(if defer { self.defer() } else { self.ring_once() })
    }

    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
        let Some(slot) = self.ring.next_slot() else {
            return Err(PushError::QueueFull { capacity: self.ring.capacity() });
        };
        // A slot that is refused half-written stays free: only `advance` makes it part of the
        // batch.
        let wqe = slot.as_ptr().cast::<SendWqe>();
        // SAFETY: `locate` checked that a slot has room for a request and for the data that the
        // limits allow behind it. Slots are aligned to 64, and nothing else accesses this one
        // before it is published, here and in the rest of the function. `DATA` is a multiple of 8.
        let (data, form) = unsafe { (slot.as_ptr().add(DATA), &raw mut (*wqe).wr.wr) };

        // SAFETY: `locate` checked that behind a request a slot has room for the data that the
        // limits allow. Ring memory is referenced by no Rust slice, by the contract of
        // `QueueMemory`.
        let (mut length, num_sge, inline) = unsafe { self.write_payload(data, request.payload) }?;

        let rdma = |remote: Remote| {
            // SAFETY: `form` points to the slot's `wr`, whose alignment is 8 and into which each
            // form fits.
            unsafe { write_rdma(form.cast(), remote) };
        };
        let atomic = |remote: Remote, compare_add: u64, swap: u64| {
            let value =
                AtomicWr { remote_addr: remote.addr, compare_add, swap, rkey: remote.rkey, reserved: 0 };
            // SAFETY: `form` points to the slot's `wr`, whose alignment is 8 and into which each
            // form fits.
            unsafe { form.cast::<AtomicWr>().write(value) };
        };
        let (opcode, iova, key_or_imm) = match request.operation {
            Operation::Send => (WrOpcode::SEND, 0, 0),
            Operation::SendImm(imm) => (WrOpcode::SEND_WITH_IMM, 0, imm),
            Operation::SendInv(rkey) => (WrOpcode::SEND_WITH_INV, 0, rkey),
            Operation::Write(remote) => {
                rdma(remote);
                (WrOpcode::RDMA_WRITE, remote.addr, 0)
            }
            Operation::WriteImm(remote, imm) => {
                rdma(remote);
                (WrOpcode::RDMA_WRITE_WITH_IMM, remote.addr, imm)
            }
            Operation::Read(remote) => {
                if !inline.is_empty() {
                    return Err(PushError::InlineResult);
                }
                rdma(remote);
                (WrOpcode::RDMA_READ, remote.addr, 0)
            }
            Operation::CmpSwp { remote, compare, swap } => {
                if !inline.is_empty() || length != 8 || !remote.addr.is_multiple_of(8) {
                    return Err(wrong_atomic(inline, length, remote));
                }
                atomic(remote, compare, swap);
                (WrOpcode::ATOMIC_CMP_AND_SWP, remote.addr, 0)
            }
            Operation::FetchAdd { remote, add } => {
                if !inline.is_empty() || length != 8 || !remote.addr.is_multiple_of(8) {
                    return Err(wrong_atomic(inline, length, remote));
                }
                atomic(remote, add, 0);
                (WrOpcode::ATOMIC_FETCH_AND_ADD, remote.addr, 0)
            }
            Operation::LocalInv(rkey) => {
                no_payload(&request.operation, length, num_sge, inline)?;
                (WrOpcode::LOCAL_INV, 0, rkey)
            }
            Operation::BindMw(bind) => {
                no_payload(&request.operation, length, num_sge, inline)?;
                let value = MwWr {
                    addr: bind.addr,
                    length: bind.length,
                    mr_lkey: bind.mr_lkey,
                    mw_rkey: bind.mw_rkey,
                    rkey: bind.rkey,
                    access: bind.access,
                };
                // SAFETY: `form` points to the slot's `wr`, whose alignment is 8 and into which
                // each form fits.
                unsafe { form.cast::<MwWr>().write(value) };
                (WrOpcode::BIND_MW, 0, 0)
            }
            Operation::Flush { remote, length: bytes, placement, level } => {
                no_payload(&request.operation, length, num_sge, inline)?;
                // The packet has no more bits for them than these values need.
                if !matches!(level, SelectivityLevel::RANGE | SelectivityLevel::MR)
                    || placement.is_empty()
                    || !(PlacementType::GLOBAL | PlacementType::PERSISTENT).contains(placement)
                {
                    return Err(PushError::Flush { level: level.0, placement: placement.bits() });
                }
                let value = FlushWr {
                    remote_addr: remote.addr,
                    length: bytes,
                    rkey: remote.rkey,
                    placement,
                    level,
                    padding: [0; 6],
                };
                // SAFETY: `form` points to the slot's `wr`, whose alignment is 8 and into which
                // each form fits.
                unsafe { form.cast::<FlushWr>().write(value) };
                length = bytes;
                (WrOpcode::FLUSH, remote.addr, 0)
            }
            Operation::AtomicWrite { remote, value } => {
                no_payload(&request.operation, length, num_sge, inline)?;
                if !remote.addr.is_multiple_of(8) {
                    return Err(PushError::AtomicAddress { addr: remote.addr });
                }
                rdma(remote);
                // SAFETY: there is room for 8 bytes behind every request, as `SendLimits::element`
                // says.
                unsafe { data.cast::<[u8; 8]>().write(value) };
                length = 8;
                (WrOpcode::ATOMIC_WRITE, remote.addr, 0)
            }
            ref other => return Err(unsupported(other)),
        };
        if self.limits.operations & (1 << opcode.0) == 0 {
            return Err(self.unsupported_operation(&request.operation, opcode));
        }
        let flags = kernel_flags(request.flags, inline);
        let common = Common {
            wr_id: request.wr_id,
            opcode,
            flags,
            key_or_imm: Some(key_or_imm),
            iova,
            length,
            num_sge,
        };
        // SAFETY: `locate` checked that a slot has room for a `SendWqe`; slots are aligned to 64.
        unsafe { write_common(wqe, &common) };
        // SAFETY: `next_slot` gave the slot, which holds a whole request, for whose memory the
        // caller vouches.
        unsafe { self.ring.advance() };
        self.open_fast_path();
        Ok(())
    }

    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, RxeAh>>,
    ) -> Result<(), PushError> {
        // SAFETY: the caller vouches for the memory that the request names, as this method asks.
        unsafe { self.push_to_handle(request) }
    }

    #[inline]
    fn defer(&mut self) -> Result<(), DoorbellError> {
        self.deferred = self.ring.position();
        Ok(())
    }

    #[inline]
    fn deferred(&self) -> u32 {
        self.ring.pending_before(self.deferred)
    }

    #[inline]
    fn ring(&mut self) -> Result<(), DoorbellError> {
        if self.ring.pending() == 0 {
            return Ok(());
        }
        if self.in_error || self.has_failed() { self.ring_one_by_one() } else { self.ring_once() }
    }

    #[inline]
    fn abort(&mut self) {
        self.ring.abort_to(self.deferred);
    }

    /// From Linux 6.4 on, the kernel flushes a request that it cannot carry out like those after
    /// it; why it could not stands in the request's slot only (`rxe_requester` of `rxe_req.c`,
    /// `flush_send_wqe` of `rxe_comp.c`).
    fn failure(&self) -> Option<(u64, WcStatus)> {
        self.ring.slots().find_map(|slot| {
            let wqe = slot.as_ptr().cast::<SendWqe>();
            // SAFETY: a slot has room for a `SendWqe` and is aligned to 64; the kernel may be
            // writing these words, so they are read one by one and volatile.
            let (state, status, wr_id) = unsafe {
                (
                    (&raw const (*wqe).state).read_volatile(),
                    (&raw const (*wqe).status).read_volatile(),
                    (&raw const (*wqe).wr.wr_id).read_volatile(),
                )
            };
            let status = WcStatus(status);
            let failed =
                state == STATE_ERROR && !matches!(status, WcStatus::SUCCESS | WcStatus::WR_FLUSH_ERR);
            failed.then_some((wr_id, status))
        })
    }

    unsafe fn reset(&mut self) {
        self.ring.resync();
        self.deferred = self.ring.position();
        self.close_fast_path();
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. The default `modify` sends the request to the kernel unchanged.
// 2. `resume` rings the doorbell, which publishes nothing: the producer index stays.
unsafe impl<D: Doorbell, M: QueueMemory> QpControl for RxeSq<D, M> {
    fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
        self.rd_atomic.validate_modify(request)
    }

    /// From Linux 6.4 on, the kernel's requester takes up the queue at its first request, and only
    /// then does the completer drop the requests (`rxe_qp_reset` of `rxe_qp.c`, `rxe_sender` of
    /// `rxe_req.c`). After the reset the queue pair would send as many empty writes first, or,
    /// where the queue was full, nothing. The second time there is nothing to drop.
    fn needs_second_reset(&self) -> bool {
        true
    }

    fn modified(&mut self, request: &ModifyQpReq) {
        self.rd_atomic.modified(request, &mut self.limits.operations);
        if request.attr_mask.contains(QpAttrMask::STATE) {
            self.in_error = request.qp_state == QpState::ERR;
            if self.in_error {
                self.close_fast_path();
            }
        }
    }

    /// The kernel's change to RTS does not start its send task (`rxe_qp_from_attr` of `rxe_qp.c`).
    fn resume(&mut self) -> Result<(), IoctlError> {
        self.doorbell.ring().map_err(|errno| IoctlError { method: DOORBELL, errno })
    }
}
