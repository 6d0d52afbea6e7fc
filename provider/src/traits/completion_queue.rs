//! Completion queues and their entries.

use crate::device::IoctlError;
use crate::layout::QueueLayout;
use crate::work::{Imm, WcFlags, WcOpcode, WcStatus, WorkCompletion};

/// A completion queue.
///
/// # Safety
///
/// Code that lends or returns the memory of requests relies on these obligations. An implementation
/// may assume that the device and the kernel adhere to their specifications, except where it can
/// detect a violation.
///
/// 1. **Memory.** The memory that the device reads or writes for the queue stays valid and in place
///    until the value is dropped. The memory that a borrowed [`Completion`] reads stays valid and
///    in place while it is borrowed. `verbs`' `Cq::drop` relies on it: it destroys the kernel
///    object first.
/// 2. **Success** ([`next`](Self::next), [`visit_next`](Self::visit_next),
///    [`next_value`](Self::next_value), [`next_values`](Self::next_values)). A completion with the
///    status [`WcStatus::SUCCESS`] belongs to a request that was posted to a queue of this CQ. It
///    has the posted `wr_id`: that of the last request in the slot that the entry names. `verbs`'
///    `Endpoint::poll` relies on it: it returns the request's buffer.
/// 3. **End of access.** When the completion of a request is reported, with any status, the device
///    has finished with the memory of that request, and its writes are visible to the polling
///    thread. `Endpoint::poll` and `Done::message` rely on it: they lend the received bytes.
/// 4. **Unmatched entries.** An entry that names no request is reported with the status
///    [`WcStatus::GENERAL_ERR`] and the `wr_id` 0, or not at all. A provider need not detect an
///    entry whose request is complete already, such as a repeated one, or was never published. Its
///    completion has any status, and 0 or the `wr_id` of the last request in the slot. A request
///    that was taken back
///    ([`DoorbellError::TakenBack`](crate::error::DoorbellError::TakenBack)) and a stale slot that
///    the device flushes in ERR have an error status. A safe type must therefore identify its
///    outstanding requests by ids that are never 0 and never reused, as `Endpoint` does: it then
///    detects a repeated entry, unless the slot was posted again. After that the entry is like the
///    one of the new request, and the device is trusted not to write it before it has finished
///    that request.
/// 5. **Slots** ([`release`](Self::release)). The device writes to the memory that a polled
///    [`Completion`] reads only after `release`, or after [`visit_next`](Self::visit_next),
///    [`next_value`](Self::next_value) or [`next_values`](Self::next_values), which also release. No
///    completion can be borrowed then.
/// 6. **Order of sends** (the same methods). Completions of one send queue, with any status, are
///    reported in the order of posting. So when one is reported, the device has finished with the
///    memory of all requests that were posted to this send queue before it and were not reported, such
///    as unsignalled ones. `verbs`' safe layer (`SendsInFlight::reap`) relies on it: it returns the
///    buffers of all older requests. A driver that may complete requests of a send queue out of
///    order, as the kernel's siw does for RDMA reads, needs a queue that restores the order
///    (`bareverbs-siw`: `order.rs`).
///
/// No code may rely on the fields of a completion beyond its `wr_id` and status without a check:
/// `byte_len` may exceed the memory of the request.
///
/// Safe code can't implement the trait:
///
/// ```compile_fail,E0200
/// # use bareverbs_provider::device::IoctlError;
/// # use bareverbs_provider::traits::CompletionQueue;
/// struct Wrapper<Q>(Q);
/// impl<Q: CompletionQueue> CompletionQueue for Wrapper<Q> {
///     type Completion<'a> = Q::Completion<'a> where Self: 'a;
///     fn capacity(&self) -> u32 { self.0.capacity() }
///     fn next(&mut self) -> Option<Self::Completion<'_>> { self.0.next() }
///     fn release(&mut self) { self.0.release() }
///     fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> { self.0.arm(solicited_only) }
/// }
/// ```
pub unsafe trait CompletionQueue: Send {
    /// A borrowed completion. It is the CQE in the queue, and its fields are decoded when they are
    /// read.
    type Completion<'a>: Completion
    where
        Self: 'a;

    /// Capacity in CQEs.
    fn capacity(&self) -> u32;

    /// Polls the next completion. [`CompletionQueue::release`] returns its slot to the device.
    fn next(&mut self) -> Option<Self::Completion<'_>>;

    /// Polls the next completion on the fast path, passes it to `visitor`, and releases its slot and
    /// all slots polled before. The visitor is compiled for each type of completion, so the fields
    /// that a provider knows are constants in it. Default: [`next`](Self::next),
    /// [`release`](Self::release).
    #[inline(always)]
    fn visit_next<V: Visitor>(&mut self, visitor: V) -> V::Output {
        let Some(completion) = self.next() else { return visitor.empty() };
        let output = visitor.completion(completion);
        self.release();
        output
    }

    /// Polls the next completion by value and releases its slot and all slots polled before.
    /// Default: [`next`](Self::next), [`Completion::to_value`], [`release`](Self::release).
    #[inline]
    fn next_value(&mut self) -> Option<WorkCompletion> {
        let value = self.next()?.to_value();
        self.release();
        Some(value)
    }

    /// Polls completions by value until the queue is empty or `into` is full, and releases their
    /// slots and all slots polled before. Returns their number. Default: `next` and `to_value` for
    /// each, then one `release`.
    #[inline]
    fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize {
        let mut taken = 0;
        for slot in into {
            let Some(completion) = self.next() else { break };
            *slot = completion.to_value();
            taken += 1;
        }
        if taken > 0 {
            self.release();
        }
        taken
    }

    /// Releases the slots of all polled completions to the device.
    fn release(&mut self);

    /// The addresses of the ring, its indices and its doorbell, for programs that access them
    /// directly. Informative: no code relies on it for soundness. Default: `None`.
    fn layout(&self) -> Option<QueueLayout> {
        None
    }

    /// Arms the CQ: requests one event on the completion channel for the next completion, or for
    /// the next solicited one.
    ///
    /// # Errors
    ///
    /// The kernel rejects the command.
    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError>;
}

/// The user of [`CompletionQueue::visit_next`]. One of the methods is called.
pub trait Visitor {
    /// The result of each method.
    type Output;

    /// There is a completion.
    fn completion(self, completion: impl Completion) -> Self::Output;

    /// The device has written no further CQE.
    fn empty(self) -> Self::Output;

    /// Nothing was polled: [`CompletionQueue::next`] must handle the CQE, if there is one.
    fn declined(self) -> Self::Output;
}

/// A completion in place. The obligations are those of [`CompletionQueue`]; this trait by itself
/// guarantees nothing.
pub trait Completion {
    /// The `wr_id` of the request; 0, with the status [`WcStatus::GENERAL_ERR`], if the entry
    /// matches no request.
    fn wr_id(&self) -> u64;
    /// Status.
    fn status(&self) -> WcStatus;
    /// Operation; valid on success only.
    #[doc(alias = "ibv_wc_read_opcode")]
    fn opcode(&self) -> WcOpcode;
    /// Whether a completion that is known to be successful is that of a receive. Default: whether
    /// [`opcode`](Self::opcode) has the bit [`WcOpcode::RECV`].
    #[inline]
    fn is_recv(&self) -> bool {
        self.opcode().0 & WcOpcode::RECV.0 != 0
    }
    /// Operation of a completion that is known to be of a successful receive. Default:
    /// [`opcode`](Self::opcode).
    #[inline]
    fn recv_opcode(&self) -> WcOpcode {
        self.opcode()
    }
    /// Length in bytes of the received, read or fetched data.
    #[doc(alias = "ibv_wc_read_byte_len")]
    fn byte_len(&self) -> u32;
    /// QPN of the local queue pair. On ConnectX, received frames have their
    /// [flow tag](Completion::flow_tag) in its place.
    #[doc(alias = "ibv_wc_read_qp_num")]
    fn qp_num(&self) -> u32;
    /// QPN of the sender; datagrams only.
    #[doc(alias = "ibv_wc_read_src_qp")]
    fn src_qp(&self) -> u32;
    /// Immediate data, if the message has any.
    #[doc(alias = "imm_data")]
    #[doc(alias = "ibv_wc_read_imm_data")]
    fn imm(&self) -> Option<Imm>;
    /// Immediate data of a completion that is known to be of a successful receive. Default:
    /// [`imm`](Self::imm).
    #[inline]
    fn recv_imm(&self) -> Option<Imm> {
        self.imm()
    }
    /// The R_Key that the message invalidated, if any.
    #[doc(alias = "ibv_wc_read_invalidated_rkey")]
    fn invalidated_rkey(&self) -> Option<u32>;
    /// The device's own error code.
    #[doc(alias = "ibv_wc_read_vendor_err")]
    fn vendor_err(&self) -> u32;
    /// Flags, such as a GRH before the payload.
    #[doc(alias = "ibv_wc_read_wc_flags")]
    fn wc_flags(&self) -> WcFlags;
    /// LID of the sender; 0 on RoCE.
    #[doc(alias = "ibv_wc_read_slid")]
    fn slid(&self) -> u16;
    /// Service level.
    #[doc(alias = "ibv_wc_read_sl")]
    fn sl(&self) -> u8;
    /// Low bits of the destination LID.
    #[doc(alias = "ibv_wc_read_dlid_path_bits")]
    fn dlid_path_bits(&self) -> u8;
    /// P_Key index of a received management datagram. Default: 0.
    fn pkey_index(&self) -> u16 {
        0
    }
    /// The VLAN tag that the device stripped from a received frame: priority (3 bits), DEI (1 bit)
    /// and VLAN id (12 bits). `None` if it stripped none. Default: `None`.
    #[doc(alias = "ibv_wc_read_cvlan")]
    fn cvlan(&self) -> Option<u16> {
        None
    }
    /// The tag of the flow rule that steered a received frame; 0 for a rule without a tag. Of other
    /// messages it has no meaning. `None` if the device reports none. Default: `None`.
    #[doc(alias = "ibv_wc_read_flow_tag")]
    fn flow_tag(&self) -> Option<u32> {
        None
    }
    /// Completion time in ticks of the device's clock
    /// ([`Provider::read_clock`](super::Provider::read_clock)), if the device reports it. Default:
    /// `None`.
    #[doc(alias = "ibv_wc_read_completion_ts")]
    fn timestamp(&self) -> Option<u64> {
        None
    }
    /// All fields.
    fn to_value(&self) -> WorkCompletion;
}
