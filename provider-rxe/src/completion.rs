//! The completion queue.

use std::marker::PhantomData;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::CreateError;
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::ring::Consumer;
use bareverbs_provider::traits::{Completion, CompletionQueue};
use bareverbs_provider::work::{Imm, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use bareverbs_uapi::write::structs::Wc;

use crate::memory::{KernelQueue, QueueMemory, locate};

/// Arms a CQ.
pub trait Arm: Send {
    /// Requests one completion event for the next completion, or for the next solicited one.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError>;
}

/// The command `REQ_NOTIFY_CQ`.
#[derive(Debug)]
pub struct KernelArm {
    file: Arc<DeviceFile>,
    cq: u32,
}

impl KernelArm {
    /// Arms the CQ with the kernel's handle `cq`.
    #[must_use]
    pub fn new(file: Arc<DeviceFile>, cq: u32) -> Self {
        Self { file, cq }
    }
}

impl Arm for KernelArm {
    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> {
        command::req_notify_cq(&self.file, self.cq, solicited_only)
    }
}

/// A completion queue (CQ).
///
/// On overrun the kernel drops the completion and raises the asynchronous event `CQ_ERR`.
#[derive(Debug)]
pub struct RxeCq<A: Arm = KernelArm, M: QueueMemory = KernelQueue> {
    ring: Consumer,
    arm: A,
    /// Keeps the ring in place.
    memory: M,
}

impl<A: Arm, M: QueueMemory> RxeCq<A, M> {
    /// Creates the CQ from `memory`, whose ring must hold `depth` completions.
    ///
    /// # Errors
    ///
    /// [`CreateError::Layout`] if the header in `memory` describes a ring that does not fit.
    ///
    /// # Safety
    ///
    /// 1. The memory must be the ring of a completion queue that the kernel, or a simulated kernel,
    ///    shares.
    /// 2. Until the value is dropped, nothing else in this process may act as the ring's consumer,
    ///    including through another mapping of the same pages.
    pub unsafe fn new(memory: M, depth: u32, arm: A) -> Result<Self, CreateError> {
        // SAFETY: the value owns the memory together with the consumer. The caller guarantees that
        // it is the only consumer.
        let ring = unsafe { take_up(&memory, depth) }?;
        Ok(Self { ring, arm, memory })
    }

    /// Switches to `memory`, to which the kernel moved all completions that were not released. If
    /// the memory is unusable, the queue is emptied.
    ///
    /// The kernel copies under the lock under which it adds completions, and leaves the old ring
    /// empty (`resize_finish` in `rxe_queue.c`). From then on it adds only to the new ring. No
    /// completion is lost or duplicated if polled completions were
    /// [released](CompletionQueue::release) before the resize.
    ///
    /// # Errors
    ///
    /// The error of the mapping, or [`CreateError::Layout`] as for [`RxeCq::new`].
    ///
    /// # Safety
    ///
    /// The kernel must have moved the queue, and all polled completions must have been released
    /// before. The new memory must be as for [`RxeCq::new`].
    pub unsafe fn finish_resize(
        &mut self,
        memory: Result<M, CreateError>,
        depth: u32,
    ) -> Result<(), CreateError> {
        let moved = memory.and_then(|memory| {
            // SAFETY: the value owns the memory together with the consumer. The caller guarantees
            // that it is the only consumer.
            let ring = unsafe { take_up(&memory, depth) }?;
            Ok((ring, memory))
        });
        match moved {
            Ok((ring, memory)) => {
                self.ring = ring;
                self.memory = memory;
                Ok(())
            }
            Err(error) => {
                // Completions that the kernel moved must not be polled from this ring.
                self.ring.resync();
                Err(error)
            }
        }
    }
}

/// # Safety
///
/// The memory must outlive the consumer, which must be the only one of its ring.
unsafe fn take_up(memory: &impl QueueMemory, depth: u32) -> Result<Consumer, CreateError> {
    let ring = locate(memory, "CQ", depth, size_of::<Wc>())?;
    // SAFETY: `locate` checked that the ring lies within the memory. The caller keeps the memory as
    // long as the consumer and guarantees that there is no other consumer.
    Ok(unsafe { Consumer::new(ring) })
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `memory` keeps the ring, by the contract of `QueueMemory`; a completion borrows the queue.
// 2. and 3. The kernel posts one completion when it has finished a request (`rxe_cq_post` in
//    `rxe_cq.c`). The completion has the request's `wr_id`, which the kernel reads from the slot.
//    `Consumer` takes each entry once. Only `resync` could repeat one; `finish_resize` calls it
//    after a resize, after which the old ring holds only released entries. The producer index is
//    loaded before the entry (`read_peer_index`), so the kernel's earlier writes are visible.
// 4. The kernel writes no entry without a request. In ERR it may find stale slots in the ring (see
//    `SendQueue for RxeSq`); it flushes them with an error status.
// 5. `Consumer` stores its index only in `release` and at the end of `take_into`.
// 6. The completer takes the requests of a send queue from its consumer index on, one by one
//    (`rxe_completer` and `do_complete` in `rxe_comp.c`). An acknowledgement completes the requests
//    before the acknowledged one first. The CQ is a FIFO, and `Consumer` keeps its order.
unsafe impl<A: Arm, M: QueueMemory> CompletionQueue for RxeCq<A, M> {
    type Completion<'a>
        = RxeCompletion<'a>
    where
        Self: 'a;

    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn layout(&self) -> Option<QueueLayout> {
        Some(self.ring.layout())
    }

    #[inline]
    fn next(&mut self) -> Option<RxeCompletion<'_>> {
        let slot = self.ring.take()?;
        Some(RxeCompletion { wc: slot.as_ptr().cast(), _queue: PhantomData })
    }

    #[inline]
    fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize {
        let value =
            |slot: NonNull<u8>| RxeCompletion { wc: slot.as_ptr().cast(), _queue: PhantomData }.to_value();
        self.ring.take_into(into, value)
    }

    #[inline]
    fn release(&mut self) {
        self.ring.release();
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> {
        self.arm.arm(solicited_only)
    }
}

/// A completion in its slot.
#[derive(Debug)]
pub struct RxeCompletion<'a> {
    wc: *const Wc,
    _queue: PhantomData<&'a ()>,
}

macro_rules! field {
    ($self:ident . $field:ident) => {
        // SAFETY: `locate` checked that a slot holds a `Wc`. The slot is not released, and the
        // memory is not freed, while the queue is borrowed. Every bit pattern is a valid value of
        // the field. The read is volatile because the kernel could write at any time.
        unsafe { (&raw const (*$self.wc).$field).read_volatile() }
    };
}

impl RxeCompletion<'_> {
    /// Whether this is a receive completion. The kernel sets the immediate flag on completions of
    /// sends with immediate data too, but gives no value.
    #[inline]
    fn is_receive(&self) -> bool {
        field!(self.opcode).0 & WcOpcode::RECV.0 != 0
    }

    /// Copies the whole CQE in wide loads; field by field it would take four times as many loads.
    #[inline]
    fn copy(&self) -> WorkCompletion {
        let chunks: Chunks = std::array::from_fn(|i| {
            // SAFETY: `locate` checked that a slot holds a `Wc`. The chunks cover exactly its size.
            // Slots are aligned to 64 bytes. The slot is not released, and the memory is not freed,
            // while the queue is borrowed.
            unsafe { self.wc.cast::<Chunk>().add(i).read_volatile() }
        });
        // SAFETY: the fields of both types have the same offsets, as checked below, and accept any
        // bits.
        unsafe { std::mem::transmute::<Chunks, WorkCompletion>(chunks) }
    }
}

/// The widest unit that one load reads.
#[cfg(target_arch = "x86_64")]
type Chunk = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Chunk = u64;

type Chunks = [Chunk; size_of::<Wc>() / size_of::<Chunk>()];

const _: () = {
    assert!(size_of::<Chunks>() == size_of::<Wc>());
    macro_rules! same_place {
        ($($ours:ident = $theirs:ident),*) => {
            $(assert!(offset_of!(WorkCompletion, $ours) == offset_of!(Wc, $theirs));)*
        };
    }
    same_place!(
        wr_id = wr_id,
        status = status,
        opcode = opcode,
        vendor_err = vendor_err,
        byte_len = byte_len
    );
    same_place!(ex = ex, qp_num = qp_num, src_qp = src_qp, wc_flags = wc_flags, pkey_index = pkey_index);
    same_place!(slid = slid, sl = sl, dlid_path_bits = dlid_path_bits);
};

/// Clears the immediate flag, unless the completion is of a receive.
#[cold]
fn fix_wc_flags(opcode: WcOpcode, flags: WcFlags) -> WcFlags {
    if opcode.0 & WcOpcode::RECV.0 == 0 { flags.difference(WcFlags::WITH_IMM) } else { flags }
}

impl Completion for RxeCompletion<'_> {
    #[inline]
    fn wr_id(&self) -> u64 {
        field!(self.wr_id)
    }

    #[inline]
    fn status(&self) -> WcStatus {
        field!(self.status)
    }

    #[inline]
    fn opcode(&self) -> WcOpcode {
        field!(self.opcode)
    }

    #[inline]
    fn byte_len(&self) -> u32 {
        field!(self.byte_len)
    }

    #[inline]
    fn qp_num(&self) -> u32 {
        field!(self.qp_num)
    }

    #[inline]
    fn src_qp(&self) -> u32 {
        field!(self.src_qp)
    }

    #[inline]
    fn imm(&self) -> Option<Imm> {
        (field!(self.wc_flags).contains(WcFlags::WITH_IMM) && self.is_receive())
            .then(|| Imm::from_be(field!(self.ex)))
    }

    #[inline]
    fn invalidated_rkey(&self) -> Option<u32> {
        (field!(self.wc_flags).contains(WcFlags::WITH_INVALIDATE) && self.is_receive())
            .then(|| field!(self.ex))
    }

    #[inline]
    fn vendor_err(&self) -> u32 {
        field!(self.vendor_err)
    }

    #[inline]
    fn wc_flags(&self) -> WcFlags {
        let flags = field!(self.wc_flags);
        if self.is_receive() { flags } else { flags - WcFlags::WITH_IMM }
    }

    #[inline]
    fn slid(&self) -> u16 {
        field!(self.slid)
    }

    #[inline]
    fn sl(&self) -> u8 {
        field!(self.sl)
    }

    #[inline]
    fn dlid_path_bits(&self) -> u8 {
        field!(self.dlid_path_bits)
    }

    #[inline]
    fn pkey_index(&self) -> u16 {
        field!(self.pkey_index)
    }

    #[inline]
    fn to_value(&self) -> WorkCompletion {
        let mut value = self.copy();
        // Compared in the slot: in a wide register it would have to be moved first.
        if field!(self.wc_flags).contains(WcFlags::WITH_IMM) {
            value.wc_flags = fix_wc_flags(value.opcode, value.wc_flags);
        }
        value
    }
}
