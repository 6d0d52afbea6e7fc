//! The send queue.

mod datagram;
mod limits;
mod push_errors;
mod slot;
mod submit;

use std::ops::Range;

use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::{CreateError, DoorbellError};
use bareverbs_provider::layout::QueueLayout;
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
use crate::memory::{KernelQueue, QueueMemory, locate};
use crate::rd_atomic::RdAtomic;
use bareverbs_provider::doorbell::{Doorbell, KernelDoorbell};

/// The state of a failed WQE (`enum wqe_state` in `rxe_verbs.h`).
const STATE_ERROR: u32 = 4;

/// How the queue publishes requests. The fast path is open only for [`AtOnce`](Self::AtOnce).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Publishing {
    /// All requests, then one doorbell.
    AtOnce,
    /// Nothing before a doorbell has shown that the QP is in RTS or a later state: the QP was reset.
    AfterDoorbell,
    /// One request for each doorbell: the QP was moved to ERR.
    OneByOne,
}

/// The send queue of a QP.
#[derive(Debug)]
pub struct RxeSq<D: Doorbell = KernelDoorbell, M: QueueMemory = KernelQueue> {
    ring: Producer,
    limits: SendLimits,
    rd_atomic: RdAtomic,
    /// Whether the fast path accepts requests of one SGE.
    fast_sge: bool,
    /// The number of inline lengths that the fast path accepts, counted from the start of
    /// [`FAST_INLINE`].
    fast_inline: usize,
    /// The position that an abort returns to. Requests before it are published or deferred.
    deferred: Position,
    publishing: Publishing,
    doorbell: D,
    /// Keeps the ring in place.
    _memory: M,
}

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Creates the queue from `memory`, whose ring must hold `depth` requests within `limits`.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] if the header in `memory` describes a ring that does not fit.
    ///
    /// # Safety
    ///
    /// 1. The memory must be the ring of a QP's send queue that the kernel, or a simulated kernel,
    ///    shares.
    /// 2. Until the value is dropped, nothing else in this process may write to the memory or act
    ///    as the ring's producer, including through another mapping of the same pages.
    /// 3. The doorbell must be that of the same QP and return as [`Doorbell::ring`] documents.
    pub unsafe fn new(memory: M, depth: u32, limits: SendLimits, doorbell: D) -> Result<Self, CreateError> {
        let ring = locate(&memory, "send queue", depth, limits.element())?;
        // SAFETY: `locate` checked that the ring lies within the memory. The memory stays valid
        // while the value owns it, by the contract of `QueueMemory`. The caller guarantees that
        // this is the only producer.
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
            publishing: Publishing::AtOnce,
            doorbell,
            _memory: memory,
        })
    }

    /// Enables the fast path within the limits. Called after a request took the slow path.
    fn open_fast_path(&mut self) {
        if self.publishing != Publishing::AtOnce {
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
            PushError::MaxRdAtomicZero { operation: operation.name() }
        } else {
            unsupported(operation)
        }
    }
}

/// Inline lengths that the fast path copies as two words, in bytes.
const FAST_INLINE: Range<usize> = 8..17;

/// Operations of the fast path; a mask as in [`SendLimits`].
const FAST_OPERATIONS: u32 = 1 << WrOpcode::SEND.0 | 1 << WrOpcode::RDMA_WRITE.0;

impl<D: Doorbell, M: QueueMemory> RxeSq<D, M> {
    /// Copies SGEs or inline data to `data`. Returns the length in bytes, the number of SGEs and
    /// the flag `INLINE` or none.
    ///
    /// # Safety
    ///
    /// `data` must have room for the payload that the limits allow, be aligned to 8 and overlap no
    /// Rust slice.
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
                // SAFETY: the caller guarantees room for `max_sge` SGEs.
                let length = unsafe { write_sges(data.cast(), sges) };
                if length > MAX_MESSAGE {
                    return Err(too_long(length));
                }
                Ok((length as u32, sges.len() as u32, SendFlags::empty()))
            }
            Payload::Inline(parts) => {
                // SAFETY: the caller guarantees room for `max_inline` bytes that overlap no Rust
                // slice.
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
//    the queue: inline data is in the slots, and the doorbell owns the memory of its call.
// 2. SGEs, operation and inline data are copied into a slot unchanged, and the kernel checks the
//    keys. `advance` and `fill` make a slot part of a batch. They are the last calls in `push`,
//    `push_to_handle` and `try_push`, so a rejected or declined request is in no batch.
// 3. `next_slot` and `cached_free_slot` return only slots that the kernel has released.
// 4. The kernel reads slots up to the producer index. Only `publish`, `publish_next` and
//    `take_back` store this index, in `ring_once`, `ring_one_by_one` and `refused`.
// 5. `abort_to` discards the slots that were filled after `deferred`. None of them was published.
// 6. After a reset, `probe` discards a batch that was never published. Before the first reset,
//    `refused` takes a batch back, on `EINVAL` only: the kernel did not read the ring, and the QP
//    is below RTS and never was in RTS, so nothing schedules its requester (see the crate's page).
//    If the QP enters ERR at that moment, the kernel may find the batch or stale slots and flush
//    them. It reports them as failed and accesses none of their memory (`flush_send_queue` in
//    `rxe_comp.c`, `rxe_requester` in `rxe_req.c`).
// 7. `resync` reloads the indices that the kernel left when it emptied the ring, as the caller of
//    `reset` guarantees, and discards slots that were not published.
//    Nothing panics between the first write to a slot and `advance`.
unsafe impl<D: Doorbell, M: QueueMemory> SendQueue for RxeSq<D, M> {
    type Ah = RxeAh;

    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn layout(&self) -> Option<QueueLayout> {
        Some(self.ring.layout())
    }

    /// Encodes a SEND or RDMA WRITE of one SGE or of 8 to 16 bytes inline. Always inlined: the
    /// caller mostly knows the operation and the kind of payload at compile time, so little more
    /// than the stores remains.
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let Some(slot) = self.ring.cached_free_slot() else { return false };
        let start = slot.start().as_ptr();
        let wqe = start.cast::<SendWqe>();
        // Each arm encodes the request separately, so its constants stay constant.
        let written = match request.payload {
            Payload::Inline([part]) => {
                let beyond = part.len().wrapping_sub(FAST_INLINE.start);
                if beyond >= self.fast_inline {
                    return false;
                }
                let from = part.as_ptr();
                // SAFETY: `open_fast_path` limited `fast_inline` to the inline length for which
                // `locate` checked that a slot has room after the request. The two words together
                // cover the part, and overlap if it is shorter than 16 bytes. The slot is aligned
                // to 64 bytes, and the kernel accesses it only once it is published.
                unsafe {
                    let first = from.cast::<u64>().read_unaligned();
                    let last = from.add(beyond).cast::<u64>().read_unaligned();
                    start.add(DATA).cast::<u64>().write_unaligned(first);
                    start.add(DATA + beyond).cast::<u64>().write_unaligned(last);
                    write_fast(wqe, request, part.len() as u32, 0, SendFlags::INLINE)
                }
            }
            Payload::Sges([sge]) if self.fast_sge && sge.length <= i32::MAX as u32 => {
                // SAFETY: `open_fast_path` set `fast_sge` only if `locate` checked that a slot has
                // room for an SGE after the request. The slot is aligned to 64 bytes, and the
                // kernel accesses it only once it is published.
                unsafe {
                    start.add(DATA).cast::<work::Sge>().write(*sge);
                    write_fast(wqe, request, sge.length, 1, SendFlags::empty())
                }
            }
            _ => return false,
        };
        if written {
            // SAFETY: the slot holds a complete request. The caller guarantees its memory.
            unsafe { slot.fill() };
        }
        written
    }

    /// In ERR, only the slow path rings the doorbell.
    #[inline(always)]
    unsafe fn try_post(
        &mut self,
        request: &SendRequest<'_>,
        defer: bool,
    ) -> Option<Result<(), DoorbellError>> {
        // SAFETY: the caller guarantees the memory of the request, as `push` requires.
        if !defer && self.has_failed() || !unsafe { self.try_push(request) } {
            return None;
        }
        Some(if defer { self.defer() } else { self.ring_once() })
    }

    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
        let Some(slot) = self.ring.next_slot() else {
            return Err(PushError::QueueFull { capacity: self.ring.capacity() });
        };
        // A slot that is rejected half-written stays free: only `advance` makes it part of the
        // batch.
        let wqe = slot.as_ptr().cast::<SendWqe>();
        // SAFETY: `locate` checked that a slot has room for a request and for the data that the
        // limits allow after it. Slots are aligned to 64 bytes, and `DATA` is a multiple of 8.
        // Nothing else accesses this slot before it is published, here and in the rest of the
        // function.
        let (data, form) = unsafe { (slot.as_ptr().add(DATA), &raw mut (*wqe).wr.wr) };

        // SAFETY: `locate` checked that a slot has room for the data that the limits allow after
        // the request. No Rust slice references ring memory, by the contract of `QueueMemory`.
        let (mut length, num_sge, inline) = unsafe { self.write_payload(data, request.payload) }?;

        let rdma = |remote: Remote| {
            // SAFETY: `form` points to the slot's `wr`, which is aligned to 8 and has room for each
            // form.
            unsafe { write_rdma(form.cast(), remote) };
        };
        let atomic = |remote: Remote, compare_add: u64, swap: u64| {
            let value =
                AtomicWr { remote_addr: remote.addr, compare_add, swap, rkey: remote.rkey, reserved: 0 };
            // SAFETY: `form` points to the slot's `wr`, which is aligned to 8 and has room for each
            // form.
            unsafe { form.cast::<AtomicWr>().write(value) };
        };
        let (opcode, iova, key_or_imm) = match request.operation {
            Operation::Send => (WrOpcode::SEND, 0, 0),
            Operation::SendImm(imm) => (WrOpcode::SEND_WITH_IMM, 0, imm.to_be()),
            Operation::SendInv(rkey) => (WrOpcode::SEND_WITH_INV, 0, rkey),
            Operation::Write(remote) => {
                rdma(remote);
                (WrOpcode::RDMA_WRITE, remote.addr, 0)
            }
            Operation::WriteImm(remote, imm) => {
                rdma(remote);
                (WrOpcode::RDMA_WRITE_WITH_IMM, remote.addr, imm.to_be())
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
                // SAFETY: `form` points to the slot's `wr`, which is aligned to 8 and has room for
                // each form.
                unsafe { form.cast::<MwWr>().write(value) };
                (WrOpcode::BIND_MW, 0, 0)
            }
            Operation::Flush { remote, length: bytes, placement, level } => {
                no_payload(&request.operation, length, num_sge, inline)?;
                // The packet's fields hold no other values.
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
                // SAFETY: `form` points to the slot's `wr`, which is aligned to 8 and has room for
                // each form.
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
                // SAFETY: each slot has room for 8 bytes after the request (`SendLimits::element`).
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
        // SAFETY: `locate` checked that a slot has room for a `SendWqe`; slots are aligned to 64
        // bytes.
        unsafe { write_common(wqe, &common) };
        // SAFETY: `next_slot` returned the slot, and it holds a complete request. The caller
        // guarantees its memory.
        unsafe { self.ring.advance() };
        self.open_fast_path();
        Ok(())
    }

    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, RxeAh>>,
    ) -> Result<(), PushError> {
        // SAFETY: the caller guarantees the memory of the request, as this method requires.
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
        if self.publishing == Publishing::AtOnce && !self.has_failed() {
            self.ring_once()
        } else {
            self.ring_slow()
        }
    }

    #[inline]
    fn abort(&mut self) {
        self.ring.abort_to(self.deferred);
    }

    /// From Linux 6.4 on, the kernel flushes a failed request like the requests after it. Only the
    /// slot keeps the original status (`rxe_requester` in `rxe_req.c`, `flush_send_wqe` in
    /// `rxe_comp.c`).
    fn failure(&self) -> Option<(u64, WcStatus)> {
        self.ring.slots().find_map(|slot| {
            let wqe = slot.as_ptr().cast::<SendWqe>();
            // SAFETY: a slot has room for a `SendWqe` and is aligned to 64 bytes. The kernel may be
            // writing these words, so each is read by a volatile load.
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
        self.publishing = Publishing::AfterDoorbell;
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

    /// Workaround: docs/kernel-bugs.md, "RESET leaves WQEs in the send queue".
    ///
    /// From Linux 6.4 on, the requester consumes the queue at its first request, and the completer
    /// drops the requests only afterwards (`rxe_qp_reset` in `rxe_qp.c`, `rxe_sender` in
    /// `rxe_req.c`). After one RESET the QP would first send as many empty writes, or nothing if
    /// the queue was full. The second RESET finds nothing to drop.
    fn needs_second_reset(&self) -> bool {
        true
    }

    /// Workaround: docs/kernel-bugs.md, "Destroy waits 50 seconds for a pending retry".
    ///
    /// A retry is pending only for a request that the kernel has not consumed. The kernel consumes
    /// acknowledged requests without a completion, too.
    fn needs_error_before_destroy(&self) -> bool {
        self.ring.outstanding() > 0
    }

    fn modified(&mut self, request: &ModifyQpReq) {
        self.rd_atomic.modified(request, &mut self.limits.operations);
        if request.attr_mask.contains(QpAttrMask::STATE) && request.qp_state == QpState::ERR {
            self.publishing = Publishing::OneByOne;
            self.close_fast_path();
        }
    }

    /// The kernel's transition to RTS does not start its send task (`rxe_qp_from_attr` in
    /// `rxe_qp.c`).
    fn resume(&mut self) -> Result<(), IoctlError> {
        self.doorbell.ring().map_err(|errno| self.doorbell_error(errno))
    }
}
