//! The send queue.

use bareverbs_provider::Errno;
use bareverbs_provider::contract::{CreateError, DoorbellError, SendQueue};
use bareverbs_provider::device::Refused;
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::ring::{Producer, Published};
use bareverbs_provider::work::{self, Operation, Payload, Refusal, Remote, SendRequest};
use bareverbs_uapi::rxe::{AtomicWr, RdmaWr, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::SendFlags;
use bareverbs_uapi::write::types::WrOpcode;

use crate::doorbell::{Doorbell, KernelDoorbell};
use crate::memory::{QueueMemory, locate};

/// The largest message of the wire protocol.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

/// Where a request's elements or inline bytes start in its slot.
const DATA: usize = size_of::<SendWqe>();

const _: () = assert!(size_of::<work::Sge>() == size_of::<Sge>());

/// What a request of a send queue may be.
#[derive(Clone, Copy, Debug)]
pub struct SendLimits {
    /// Elements.
    pub max_sge: u32,
    /// Bytes of inline data.
    pub max_inline: u32,
    /// One bit per opcode of the kernel's `ib_wr_opcode`.
    operations: u32,
}

impl SendLimits {
    /// The limits of a queue pair of type `qp_type`, if this provider makes such.
    #[must_use]
    pub fn new(qp_type: QpType, max_sge: u32, max_inline: u32) -> Option<Self> {
        const fn bits(opcodes: &[WrOpcode]) -> u32 {
            let (mut bits, mut i) = (0, 0);
            while i < opcodes.len() {
                bits |= 1 << opcodes[i].0;
                i += 1;
            }
            bits
        }
        const UC: u32 = bits(&[
            WrOpcode::SEND,
            WrOpcode::SEND_WITH_IMM,
            WrOpcode::SEND_WITH_INV,
            WrOpcode::RDMA_WRITE,
            WrOpcode::RDMA_WRITE_WITH_IMM,
        ]);
        const RC: u32 =
            UC | bits(&[WrOpcode::RDMA_READ, WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD]);
        let operations = match qp_type {
            QpType::RC => RC,
            QpType::UC => UC,
            _ => return None,
        };
        Some(Self { max_sge, max_inline, operations })
    }

    /// Bytes of the largest request.
    fn element(&self) -> usize {
        let data = (self.max_sge as usize).saturating_mul(size_of::<Sge>()).max(self.max_inline as usize);
        DATA.saturating_add(data)
    }
}

/// The send queue of a queue pair.
#[derive(Debug)]
pub struct RxeSq<D: Doorbell = KernelDoorbell, M: QueueMemory = Mapping> {
    ring: Producer,
    limits: SendLimits,
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
    pub fn new(memory: M, depth: u32, limits: SendLimits, doorbell: D) -> Result<Self, CreateError> {
        let ring = locate(&memory, "send queue", depth, limits.element())?;
        // SAFETY: `locate` checked that the ring lies in the memory, which stays valid as long as it is kept; this
        // value is the only one made for it, because it takes it.
        let ring = unsafe { Producer::new(ring) };
        Ok(Self { ring, limits, doorbell, _memory: memory })
    }

    #[cold]
    fn refused(&mut self, batch: Published, errno: Errno) -> DoorbellError {
        let refused = Refused { method: "PostSend (doorbell)", errno };
        if errno == Errno::INVAL {
            self.ring.take_back(batch);
            DoorbellError::TakenBack(refused)
        } else {
            DoorbellError::Posted(refused)
        }
    }
}

/// Copies elements behind a request; returns the sum of their bytes.
///
/// # Safety
///
/// There must be room for them at `to`, aligned to 8.
#[inline(always)]
pub(crate) unsafe fn write_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    match sges {
        [sge] => {
            // SAFETY: within the room that the caller promises.
            unsafe { to.write(*sge) };
            u64::from(sge.length)
        }
        // SAFETY: the same promise.
        _ => unsafe { write_several_sges(to, sges) },
    }
}

/// Kept out of line, so that the common request costs neither its loop nor the registers for it.
#[inline(never)]
unsafe fn write_several_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    let mut length = 0;
    for (i, sge) in sges.iter().enumerate() {
        // SAFETY: within the room that the caller of `write_sges` promises.
        unsafe { to.add(i).write(*sge) };
        length += u64::from(sge.length);
    }
    length
}

/// Copies inline data behind a request; returns their bytes, or nothing where they are more than `max`.
///
/// # Safety
///
/// There must be room for `max` bytes at `to`, and none of it may overlap the data.
#[inline(always)]
unsafe fn write_inline(to: *mut u8, parts: &[&[u8]], max: u32) -> Option<u32> {
    match parts {
        [part] if part.len() > max as usize => None,
        [part] => {
            let (from, len) = (part.as_ptr(), part.len());
            if (8..=16).contains(&len) {
                // SAFETY: two words that together cover the part, and overlap where it is shorter than both.
                unsafe {
                    let first = from.cast::<u64>().read_unaligned();
                    let last = from.add(len - 8).cast::<u64>().read_unaligned();
                    to.cast::<u64>().write_unaligned(first);
                    to.add(len - 8).cast::<u64>().write_unaligned(last);
                }
            } else {
                // SAFETY: within the room that the caller promises.
                unsafe { to.copy_from_nonoverlapping(from, len) };
            }
            Some(len as u32)
        }
        // SAFETY: the same promise.
        _ => unsafe { write_several_inline(to, parts, max) },
    }
}

/// Kept out of line like [`write_several_sges`].
#[inline(never)]
unsafe fn write_several_inline(to: *mut u8, parts: &[&[u8]], max: u32) -> Option<u32> {
    let mut length = 0;
    for part in parts {
        if part.len() > max as usize - length {
            return None;
        }
        // SAFETY: within the room that the caller of `write_inline` promises.
        unsafe { to.add(length).copy_from_nonoverlapping(part.as_ptr(), part.len()) };
        length += part.len();
    }
    Some(length as u32)
}

impl<D: Doorbell, M: QueueMemory> SendQueue for RxeSq<D, M> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    /// Always part of the caller, where the operation and the kind of payload are mostly known: what remains of
    /// the function then is little more than the stores.
    #[inline(always)]
    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), Refusal> {
        let Some(slot) = self.ring.next_slot() else {
            return Err(Refusal::QueueFull { capacity: self.ring.capacity() });
        };
        // A slot that is refused half-written stays free: only `advance` makes it part of the batch.
        let wqe = slot.as_ptr().cast::<SendWqe>();
        // SAFETY: `locate` checked that a slot has room for a request and for the data that the limits allow
        // behind it. Slots are aligned to 64, and nobody else accesses this one before it is published, here and in
        // the rest of the function. `DATA` is a multiple of 8.
        let (data, form) = unsafe { (slot.as_ptr().add(DATA), &raw mut (*wqe).wr.wr) };

        let (length, num_sge, inline) = match request.payload {
            Payload::Sges(sges) => {
                if sges.len() > self.limits.max_sge as usize {
                    return Err(too_many_sges(sges, self.limits.max_sge));
                }
                // SAFETY: there is room for `max_sge` elements, as above.
                let length = unsafe { write_sges(data.cast(), sges) };
                if length > MAX_MESSAGE {
                    return Err(too_long(length));
                }
                (length as u32, sges.len() as u32, SendFlags::empty())
            }
            Payload::Inline(parts) => {
                // SAFETY: there is room for `max_inline` bytes, as above; the slot belongs to the ring alone, so it
                // overlaps no Rust slice.
                let Some(length) = (unsafe { write_inline(data, parts, self.limits.max_inline) }) else {
                    return Err(too_long_inline(parts, self.limits.max_inline));
                };
                (length, 0, SendFlags::INLINE)
            }
        };

        let rdma = |remote: Remote| {
            let value = RdmaWr { remote_addr: remote.addr, rkey: remote.rkey, reserved: 0 };
            // SAFETY: as above; every form fits into `wr`, whose alignment is 8.
            unsafe { form.cast::<RdmaWr>().write(value) };
        };
        let atomic = |remote: Remote, compare_add: u64, swap: u64| {
            let value =
                AtomicWr { remote_addr: remote.addr, compare_add, swap, rkey: remote.rkey, reserved: 0 };
            // SAFETY: as above.
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
                    return Err(Refusal::InlineResult);
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
            ref other => return Err(unsupported(other)),
        };
        if self.limits.operations & (1 << opcode.0) == 0 {
            return Err(unsupported(&request.operation));
        }
        // Of the caller's flags only those that the API knows: INLINE is for this function to say.
        let flags = SendFlags::from_bits_retain((request.flags & work::SendFlags::all()).bits()) | inline;

        // SAFETY: as above.
        unsafe {
            (&raw mut (*wqe).wr.wr_id).write(request.wr_id);
            (&raw mut (*wqe).wr.reserved).write(0);
            (&raw mut (*wqe).wr.opcode).write(opcode);
            (&raw mut (*wqe).wr.send_flags).write(flags);
            (&raw mut (*wqe).wr.ex).write(key_or_imm);
            (&raw mut (*wqe).status).write(0);
            (&raw mut (*wqe).state).write(0);
            (&raw mut (*wqe).iova).write(iova);
            (&raw mut (*wqe).ssn).write(0);
            (&raw mut (*wqe).has_rd_atomic).write(0);
            (&raw mut (*wqe).dma.length).write(length);
            (&raw mut (*wqe).dma.resid).write(length);
            (&raw mut (*wqe).dma.cur_sge).write(0);
            (&raw mut (*wqe).dma.num_sge).write(num_sge);
            (&raw mut (*wqe).dma.sge_offset).write(0);
            (&raw mut (*wqe).dma.reserved).write(0);
        }
        self.ring.advance();
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), DoorbellError> {
        if self.ring.pending() == 0 {
            return Ok(());
        }
        let batch = self.ring.publish();
        match self.doorbell.ring() {
            Ok(()) => Ok(()),
            Err(errno) => Err(self.refused(batch, errno)),
        }
    }

    #[inline]
    fn abort(&mut self) {
        self.ring.abort();
    }
}

#[cold]
pub(crate) fn too_many_sges(sges: &[work::Sge], max: u32) -> Refusal {
    Refusal::TooManySges { given: sges.len(), max: max as usize }
}

#[cold]
pub(crate) fn too_long(given: u64) -> Refusal {
    Refusal::MessageTooLong { given, max: MAX_MESSAGE }
}

#[cold]
fn too_long_inline(parts: &[&[u8]], max: u32) -> Refusal {
    let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
    Refusal::InlineTooLong { given, max: max as usize }
}

#[cold]
fn wrong_atomic(inline: SendFlags, length: u32, remote: Remote) -> Refusal {
    if !inline.is_empty() {
        Refusal::InlineResult
    } else if length != 8 {
        Refusal::AtomicResult { given: length.into() }
    } else {
        Refusal::AtomicAddress { addr: remote.addr }
    }
}

#[cold]
fn unsupported(operation: &Operation) -> Refusal {
    Refusal::Unsupported { operation: name(operation) }
}

fn name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Send => "a send",
        Operation::SendImm(_) => "a send with immediate data",
        Operation::SendInv(_) => "a send that invalidates a key",
        Operation::Write(_) => "an RDMA write",
        Operation::WriteImm(..) => "an RDMA write with immediate data",
        Operation::Read(_) => "an RDMA read",
        Operation::CmpSwp { .. } => "a compare-and-swap",
        Operation::FetchAdd { .. } => "a fetch-and-add",
        _ => "this operation",
    }
}
