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
#[inline]
pub(crate) unsafe fn write_sges(to: *mut work::Sge, sges: &[work::Sge]) -> u64 {
    let mut length = 0;
    for (i, sge) in sges.iter().enumerate() {
        // SAFETY: within the room that the caller promises.
        unsafe { to.add(i).write(*sge) };
        length += u64::from(sge.length);
    }
    length
}

impl<D: Doorbell, M: QueueMemory> SendQueue for RxeSq<D, M> {
    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    #[inline]
    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), Refusal> {
        let Some(slot) = self.ring.next_slot() else {
            return Err(Refusal::QueueFull { capacity: self.ring.capacity() });
        };
        let wqe = slot.as_ptr().cast::<SendWqe>();
        // A slot that is refused half-written stays free: only `advance` makes it part of the batch.

        let (length, num_sge, inline) = match request.payload {
            Payload::Sges(sges) => {
                if sges.len() > self.limits.max_sge as usize {
                    return Err(Refusal::TooManySges {
                        given: sges.len(),
                        max: self.limits.max_sge as usize,
                    });
                }
                // SAFETY: `locate` checked that a slot has room for `max_sge` elements behind the request, and
                // slots and `DATA` are multiples of 8.
                let length = unsafe { write_sges(slot.as_ptr().add(DATA).cast(), sges) };
                if length > MAX_MESSAGE {
                    return Err(Refusal::MessageTooLong { given: length, max: MAX_MESSAGE });
                }
                (length as u32, sges.len() as u32, SendFlags::empty())
            }
            Payload::Inline(parts) => {
                let max = self.limits.max_inline as usize;
                let mut length = 0usize;
                for part in parts {
                    if part.len() > max - length {
                        return Err(too_long_inline(parts, max));
                    }
                    // SAFETY: `locate` checked that a slot has room for `max_inline` bytes behind the request; the
                    // slot belongs to the ring alone, so it overlaps no Rust slice.
                    unsafe {
                        slot.as_ptr().add(DATA + length).copy_from_nonoverlapping(part.as_ptr(), part.len())
                    };
                    length += part.len();
                }
                (length as u32, 0, SendFlags::INLINE)
            }
        };

        let mut key_or_imm = 0;
        let mut iova = 0;
        // SAFETY: a slot has room for a `SendWqe`, is aligned to 64, and nobody else accesses it before it is
        // published, here and in the rest of the function.
        let form = unsafe { &raw mut (*wqe).wr.wr };
        let rdma = |remote: Remote| {
            let value = RdmaWr { remote_addr: remote.addr, rkey: remote.rkey, reserved: 0 };
            // SAFETY: as above; every form fits into `wr`, whose alignment is 8.
            unsafe { form.cast::<RdmaWr>().write(value) };
            remote.addr
        };
        let atomic = |remote: Remote, compare_add: u64, swap: u64| {
            if !inline.is_empty() {
                return Err(Refusal::InlineResult);
            }
            if length != 8 {
                return Err(Refusal::AtomicResult { given: length.into() });
            }
            if !remote.addr.is_multiple_of(8) {
                return Err(Refusal::AtomicAddress { addr: remote.addr });
            }
            let value =
                AtomicWr { remote_addr: remote.addr, compare_add, swap, rkey: remote.rkey, reserved: 0 };
            // SAFETY: as above.
            unsafe { form.cast::<AtomicWr>().write(value) };
            Ok(remote.addr)
        };
        let opcode = match request.operation {
            Operation::Send => WrOpcode::SEND,
            Operation::SendImm(imm) => {
                key_or_imm = imm;
                WrOpcode::SEND_WITH_IMM
            }
            Operation::SendInv(rkey) => {
                key_or_imm = rkey;
                WrOpcode::SEND_WITH_INV
            }
            Operation::Write(remote) => {
                iova = rdma(remote);
                WrOpcode::RDMA_WRITE
            }
            Operation::WriteImm(remote, imm) => {
                key_or_imm = imm;
                iova = rdma(remote);
                WrOpcode::RDMA_WRITE_WITH_IMM
            }
            Operation::Read(remote) => {
                if !inline.is_empty() {
                    return Err(Refusal::InlineResult);
                }
                iova = rdma(remote);
                WrOpcode::RDMA_READ
            }
            Operation::CmpSwp { remote, compare, swap } => {
                iova = atomic(remote, compare, swap)?;
                WrOpcode::ATOMIC_CMP_AND_SWP
            }
            Operation::FetchAdd { remote, add } => {
                iova = atomic(remote, add, 0)?;
                WrOpcode::ATOMIC_FETCH_AND_ADD
            }
            other => return Err(Refusal::Unsupported { operation: name(&other) }),
        };
        if self.limits.operations & (1 << opcode.0) == 0 {
            return Err(Refusal::Unsupported { operation: name(&request.operation) });
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
fn too_long_inline(parts: &[&[u8]], max: usize) -> Refusal {
    let given = parts.iter().fold(0usize, |sum, part| sum.saturating_add(part.len()));
    Refusal::InlineTooLong { given, max }
}

#[cold]
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
