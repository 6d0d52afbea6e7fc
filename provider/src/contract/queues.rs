//! The queues that a provider makes: the data path.

use bareverbs_uapi::write::structs::ModifyQpReq;

use super::{DoorbellError, Ece};
use crate::command;
use crate::device::{DeviceFile, IoctlError};
use crate::work::{
    Datagram, Frame, PushError, RecvRequest, SendRequest, WcFlags, WcOpcode, WcStatus, WorkCompletion,
    XrcOperation,
};

/// The send half of a queue pair.
///
/// Requests are written one by one and submitted together: [`SendQueue::push`] fills the next free
/// slot, [`SendQueue::ring`] publishes all filled slots and rings the doorbell once.
///
/// # Safety
///
/// Code that posts relies on these obligations. "The device" carries out the requests: the adapter,
/// or the kernel for a software device. An implementation may take for granted that the device and
/// the kernel keep to their specifications, and that each caller of an `unsafe` method keeps to its
/// contract. All methods must fulfil them also when they panic: a panic must not leave a
/// half-written request that is submitted later.
///
/// 1. **Memory.** All that the device reads or writes for the queue beside the memory that requests
///    name (slots, doorbell record, inline data) stays valid and in place from the queue's making
///    until the value is dropped, wherever it is moved. Relied upon by all that destroys a queue
///    pair before it drops its queues: `verbs`' `Qp::drop`.
/// 2. **Requests** ([`push`](Self::push), [`push_datagram`](Self::push_datagram),
///    [`push_xrc`](Self::push_xrc), [`push_frame`](Self::push_frame), [`try_push`](Self::try_push),
///    [`try_push_all`](Self::try_push_all), [`try_post`](Self::try_post)). For a request that was
///    taken, the device accesses only the memory that its SGEs name, under their keys, and as the
///    operation says. Inline data and headers are copied before the method returns. A request that
///    is refused (`Err`) or declined (`false`, `None`, beyond the count) is not submitted, now or
///    later. Relied upon by `verbs`' `post_send` and `Batch`, which return such requests to the
///    caller as not posted.
/// 3. **No overwriting.** A slot is written only while no request in it may still be read by the
///    device. A full queue refuses. Relied upon by every caller: an overwritten request may name
///    memory that was given back.
/// 4. **Submission** ([`ring`](Self::ring), [`defer`](Self::defer),
///    [`try_post`](Self::try_post)). The device sees a request in one of these, or in
///    [`resume`](Self::resume) what they submitted, and not before.
/// 5. **Abort** ([`abort`](Self::abort)). The device never sees what was pushed and neither
///    submitted nor deferred. Relied upon by `verbs`' `Batch::drop`, after which the memory of such
///    requests is the caller's again.
/// 6. **IoctlError doorbells** ([`DoorbellError`]). After [`DoorbellError::TakenBack`], the device
///    accesses no memory for any request of the batch, whatever becomes of the queue pair; it may
///    at most report them as failed. In all other cases each request of the batch counts as posted.
///    Relied upon by `verbs`' `Endpoint`, which gives the buffers of a batch back on `TakenBack`
///    and keeps them otherwise.
/// 7. **Reset** ([`reset`](Self::reset)). The device sees nothing later of what was pushed before.
///    Relied upon by `verbs`' `Qp::reset`, after which the memory of the requests is the caller's
///    again.
/// 8. **Changes** ([`modify`](Self::modify)). The kernel is asked for this change and no other.
///
/// Nothing may rely on what [`capacity`](Self::capacity), [`owns_doorbell`](Self::owns_doorbell),
/// [`deferred`](Self::deferred), [`failure`](Self::failure),
/// [`validate_modify`](Self::validate_modify), [`resets_twice`](Self::resets_twice) and
/// [`ece`](Self::ece) return: they inform.
///
/// Safe code can't implement it:
///
/// ```compile_fail,E0200
/// # use bareverbs_provider::contract::{DoorbellError, SendQueue};
/// # use bareverbs_provider::work::{Datagram, PushError, SendRequest};
/// struct Forgetful;
/// impl SendQueue for Forgetful {
///     type Ah = ();
///     fn capacity(&self) -> u32 { 1 }
///     unsafe fn push(&mut self, _: &SendRequest<'_>) -> Result<(), PushError> { Ok(()) }
///     unsafe fn push_datagram(
///         &mut self,
///         _: &SendRequest<'_, Datagram<'_, ()>>,
///     ) -> Result<(), PushError> { Ok(()) }
///     fn ring(&mut self) -> Result<(), DoorbellError> { Ok(()) }
///     fn abort(&mut self) {}
///     unsafe fn reset(&mut self) {}
/// }
/// ```
///
/// Nor can it reset a queue whose queue pair still carries out requests, or change a queue pair:
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::contract::SendQueue;
/// fn reset(queue: &mut impl SendQueue) {
///     queue.reset();
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::contract::SendQueue;
/// # use bareverbs_provider::device::{DeviceFile, IoctlError};
/// # use bareverbs_uapi::write::structs::ModifyQpReq;
/// fn modify(queue: &mut impl SendQueue, file: &DeviceFile) -> Result<(), IoctlError> {
///     queue.modify(file, &ModifyQpReq::zeroed())
/// }
/// ```
pub unsafe trait SendQueue: Send {
    /// What it needs of an address handle.
    type Ah;

    /// Requests it holds.
    fn capacity(&self) -> u32;

    /// Writes a request of the most frequent kinds into the next free slot, or returns `false`;
    /// then [`SendQueue::push`] writes or rejects it.
    ///
    /// This is the fast path. A provider keeps it free of calls and of predictable branches. It
    /// declines whenever in doubt, and always after the queue was made or reset until a push has
    /// succeeded, so that a caller may leave the check of the QP's state to the slow path.
    ///
    /// Default: declines every request.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
        let _ = request;
        false
    }

    /// Writes requests as [`SendQueue::try_push`] does, until it declines one; tells how many.
    ///
    /// A provider that chooses among several does so once here, not once for each request. Default:
    /// one `try_push` for each request.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[SendRequest<'_>]) -> usize {
        let mut rest = requests;
        while let [request, more @ ..] = rest {
            // SAFETY: the caller vouches for the memory that each request names, as `push` asks.
            if !unsafe { self.try_push(request) } {
                break;
            }
            rest = more;
        }
        requests.len() - rest.len()
    }

    /// Writes a request as [`SendQueue::try_push`] does, and submits it with all that was pushed or
    /// deferred before, or, with `defer`, leaves it for the next doorbell. `None` if it was
    /// declined.
    ///
    /// A provider that chooses among several does so once here, not once for each step. Default:
    /// `try_push`, then [`SendQueue::defer`] or [`SendQueue::ring`].
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    #[inline(always)]
    unsafe fn try_post(
        &mut self,
        request: &SendRequest<'_>,
        defer: bool,
    ) -> Option<Result<(), DoorbellError>> {
        // SAFETY: the caller vouches for the memory that the request names, as `push` asks.
        if !unsafe { self.try_push(request) } {
            return None;
        }
        Some(if defer { self.defer() } else { self.ring() })
    }

    /// Writes a request into the next free slot. The device does not see it before
    /// [`SendQueue::ring`].
    ///
    /// # Safety
    ///
    /// Memory named by the request's SGEs must stay registered and unaliased as the operation
    /// requires until the request is complete or the queue pair is destroyed.
    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError>;

    /// Writes a datagram into the next free slot, as [`SendQueue::push`] does with requests of
    /// connections.
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    unsafe fn push_datagram(
        &mut self,
        request: &SendRequest<'_, Datagram<'_, Self::Ah>>,
    ) -> Result<(), PushError>;

    /// Writes a request to a shared receive queue of the peer's XRC domain into the next free slot,
    /// as [`SendQueue::push`] does with requests of connections.
    ///
    /// Default: [`PushError::Unsupported`].
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError> {
        let _ = request;
        Err(PushError::Unsupported { operation: "a request over XRC" })
    }

    /// Writes a whole frame into the next free slot, as [`SendQueue::push`] does with requests of
    /// connections.
    ///
    /// Default: [`PushError::Unsupported`].
    ///
    /// # Safety
    ///
    /// As for [`SendQueue::push`].
    unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
        let _ = request;
        Err(PushError::Unsupported { operation: "a frame" })
    }

    /// Whether no other queue rings the doorbell that this one does. A device may be faster then:
    /// requests are copied to it with the doorbell. Default: no.
    fn owns_doorbell(&self) -> bool {
        false
    }

    /// Leaves what was pushed for the next [`SendQueue::ring`]: [`SendQueue::abort`] does not take
    /// it back any more.
    ///
    /// Default: hands it over at once by `ring`, which is right where a doorbell costs next to
    /// nothing.
    fn defer(&mut self) -> Result<(), DoorbellError> {
        self.ring()
    }

    /// Requests that [`SendQueue::defer`] has left for the next [`SendQueue::ring`]. Default: 0.
    fn deferred(&self) -> u32 {
        0
    }

    /// Publishes what was pushed or deferred and rings the doorbell; does nothing if there are no
    /// requests.
    ///
    /// The error says what became of the batch, all of which shares one fate.
    fn ring(&mut self) -> Result<(), DoorbellError>;

    /// Takes back what was pushed and neither submitted nor deferred.
    fn abort(&mut self);

    /// The `wr_id` of a request that failed on this side, and how it failed, where the queue knows
    /// more of that than the completion said. Default: none.
    fn failure(&self) -> Option<(u64, WcStatus)> {
        None
    }

    /// Empties the queue after the kernel has moved the QP to RESET.
    ///
    /// # Safety
    ///
    /// The kernel must have carried out at least one request to bring the queue pair to RESET, and
    /// the queue pair must not have left RESET since. Obligation 7 holds only if it has carried out
    /// as many as [`SendQueue::resets_twice`] says: a caller who hears of fewer must keep the
    /// memory of earlier requests as it is.
    unsafe fn reset(&mut self);

    /// Validates a modify request before it is sent to the kernel. Default: accepts every
    /// change.
    ///
    /// # Errors
    ///
    /// The reason, if the kernel's driver is known to fail on the request.
    fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
        let _ = request;
        Ok(())
    }

    /// Whether the kernel has to be told twice to bring the queue pair to RESET, because the first
    /// time leaves something of what was posted. Default: no.
    ///
    /// If the kernel refuses the second request, `verbs` issues it again before the queue pair
    /// leaves RESET.
    fn resets_twice(&self) -> bool {
        false
    }

    /// The QP's ECE options, as the device last reported them; `None` without ECE. Options that
    /// were [set](SendQueue::set_ece) and are not yet negotiated count as 0. Default: none.
    fn ece(&self) -> Option<Ece> {
        None
    }

    /// Has the next change of the queue pair ask for these of the vendor's options. Does nothing
    /// where there is no such thing, which is the default.
    fn set_ece(&mut self, options: u32) {
        let _ = options;
    }

    /// Modifies the QP. Default: [`command::modify_qp`].
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    ///
    /// # Safety
    ///
    /// As for [`command::modify_qp`]: the change names the queue pair that this is the send queue
    /// of, by its handle in the context of `file`. The caller owns the queue pair, and resets both
    /// of its queues after a change to RESET before it pushes anything.
    unsafe fn modify(&mut self, file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
        // SAFETY: the caller owns the queue pair that the change names, and resets its queues: this
        // method's contract.
        unsafe { command::modify_qp(file, request) }
    }

    /// Called after the kernel has modified the QP. Default: does nothing.
    fn modified(&mut self, request: &ModifyQpReq) {
        let _ = request;
    }

    /// Makes the device look at what was handed over while the queue was draining. Default: does
    /// nothing, which is right where the device looks by itself when the queue pair is back in RTS.
    fn resume(&mut self) -> Result<(), IoctlError> {
        Ok(())
    }
}

/// A receive queue, of one queue pair or shared.
///
/// # Safety
///
/// The obligations are those of a [`SendQueue`], with what its section says of the device, the
/// kernel and panics:
///
/// 1. **Memory.** All that the device reads or writes for the queue beside the memory that requests
///    name stays valid and in place until the value is dropped. Relied upon by all that destroys a
///    queue pair or a shared queue before it drops the value: `verbs`' `Qp::drop`, `Srq::drop` and
///    `Wq::drop`.
/// 2. **Requests** ([`push`](Self::push), [`try_push`](Self::try_push),
///    [`try_push_all`](Self::try_push_all), [`try_post`](Self::try_post)). For a request that was
///    taken, the device writes only to the memory that its SGEs name, under their keys. A
///    request that is refused or declined is not published, now or later. Relied upon by `verbs`'
///    `post_recv` functions.
/// 3. **No overwriting.** A slot is written only while no request in it may still be read by the
///    device.
/// 4. **Publishing** ([`ring`](Self::ring), [`try_post`](Self::try_post)). The device sees a
///    request in one of these, and not before.
/// 5. **Abort** ([`abort`](Self::abort)). The device never sees what was pushed and not published.
///    `verbs` doesn't abort a list of which one request is refused: its `post_recv` functions
///    publish the requests before that one.
/// 6. **Reset** ([`reset`](Self::reset)). The device sees nothing later of what was pushed before.
///    Relied upon by `verbs`' `Qp::reset` and `Wq::reset`.
///
/// 7. **Memory of requests** ([`abandon`](Self::abandon), dropping). No thread of this process
///    writes to the memory of posted receives after `abandon` has returned, or after the value was
///    dropped. Relied upon by `verbs`' `Qp::drop`, after which the memory may be given back.
///
/// Nothing may rely on what [`capacity`](Self::capacity) and [`posted`](Self::posted) return.
///
/// Safe code can't implement it:
///
/// ```compile_fail,E0200
/// # use bareverbs_provider::contract::RecvQueue;
/// # use bareverbs_provider::work::{RecvRequest, PushError};
/// struct Forgetful;
/// impl RecvQueue for Forgetful {
///     fn capacity(&self) -> u32 { 1 }
///     unsafe fn push(&mut self, _: &RecvRequest<'_>) -> Result<(), PushError> { Ok(()) }
///     fn ring(&mut self) {}
///     fn abort(&mut self) {}
///     unsafe fn reset(&mut self) {}
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use bareverbs_provider::contract::RecvQueue;
/// fn reset(queue: &mut impl RecvQueue) {
///     queue.reset();
/// }
/// ```
pub unsafe trait RecvQueue: Send {
    /// Requests it holds.
    fn capacity(&self) -> u32;

    /// Requests that were published and not yet taken by the device, which may take more of them
    /// meanwhile; 0 if unknown, or if the driver itself rejects a resize below them. Default: 0.
    fn posted(&self) -> u32 {
        0
    }

    /// Writes a request of the most frequent kinds into the next free slot, or does nothing and
    /// returns `false`, as [`SendQueue::try_push`] does. Default: declines every request.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
        let _ = request;
        false
    }

    /// Writes requests as [`RecvQueue::try_push`] does, until it declines one; tells how many.
    /// Default: one `try_push` for each request.
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
        let mut rest = requests;
        while let [request, more @ ..] = rest {
            // SAFETY: the caller vouches for the memory that each request names, as `push` asks.
            if !unsafe { self.try_push(request) } {
                break;
            }
            rest = more;
        }
        requests.len() - rest.len()
    }

    /// Writes a request as [`RecvQueue::try_push`] does and publishes it with all that was pushed,
    /// or does nothing and returns `false`. Default: `try_push`, then [`RecvQueue::ring`].
    ///
    /// # Safety
    ///
    /// As for [`RecvQueue::push`].
    #[inline(always)]
    unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool {
        // SAFETY: the caller vouches for the memory that the request names, as `push` asks.
        let written = unsafe { self.try_push(request) };
        if written {
            self.ring();
        }
        written
    }

    /// Writes a request into the next free slot. The device does not see it before
    /// [`RecvQueue::ring`].
    ///
    /// # Safety
    ///
    /// Memory named by the request's SGEs must stay registered and unaliased until the
    /// request is complete or the queue pair is destroyed.
    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError>;

    /// Publishes what was pushed.
    fn ring(&mut self);

    /// Takes back what was pushed and not yet published.
    fn abort(&mut self);

    /// Takes the queue up where it stands after the kernel has brought the queue pair, or the work
    /// queue, to RESET: empty. Does nothing to a shared receive queue, which has no such state.
    ///
    /// # Safety
    ///
    /// The kernel must have carried out at least one request to bring the queue pair or the work
    /// queue to RESET, and it must not have left RESET since. Obligation 6 holds only if it has
    /// carried out as many as [`SendQueue::resets_twice`] says.
    unsafe fn reset(&mut self);

    /// Ends what this side does with the memory of posted receives, where the kernel has refused to
    /// destroy the queue: the queue itself is leaked then, because the device may go on using it.
    ///
    /// When this returns, no thread of this process writes to the memory of posted receives any
    /// more, nor does a completion that is polled later. The device may still write there. Nothing
    /// is posted afterwards.
    ///
    /// Dropping the queue does the same. Default: does nothing, which is right where only the
    /// device writes to that memory.
    fn abandon(&mut self) {}
}

/// A completion queue.
///
/// # Safety
///
/// Code that lends or gives back the memory of requests relies on these obligations. An
/// implementation may take for granted that the device and the kernel keep to their specifications
/// where it can't tell that they don't.
///
/// 1. **Memory.** All that the device reads or writes for the queue stays valid and in place until
///    the value is dropped, and what a lent [`Completion`] reads as long as it is borrowed. Relied
///    upon by `verbs`' `Cq::drop`, which destroys the kernel object first.
/// 2. **Success** ([`next`](Self::next), [`next_value`](Self::next_value),
///    [`next_values`](Self::next_values)). A completion with the status [`WcStatus::SUCCESS`] is
///    that of a request that was posted to a queue which completes here. It has the `wr_id` that
///    was posted. Relied upon by `verbs`' `Endpoint::poll`, which gives the request's buffer back.
/// 3. **The end of access.** When the completion of a request is reported, with whatever status,
///    the device has finished with the memory of that request, and what it wrote there is visible
///    to the thread that polls. Relied upon by `Endpoint::poll` and by `Done::message`, which lends
///    the bytes received.
/// 4. **Unmatched entries.** An entry that the provider can't match to an outstanding request is
///    reported with the status [`WcStatus::GENERAL_ERR`], with the `wr_id` 0 or that of an earlier
///    request of the same slot, or not at all. A provider need not detect an entry that the device
///    repeats, or that names a slot whose request was not published: then the completion has the
///    `wr_id` that the slot has or had, or 0. A request that the device was denied
///    ([`DoorbellError::TakenBack`]), or a stale slot that the device flushes in the error state,
///    has an error status. So a safe type must recognize its own outstanding requests by ids that
///    are never 0 and never used twice, as `Endpoint` does.
/// 5. **Slots** ([`release`](Self::release)). The device writes to the slot of a taken completion
///    only after `release`, or after [`next_value`](Self::next_value) or
///    [`next_values`](Self::next_values), which release too. No completion can be borrowed then.
///
/// Nothing may rely on the fields of a completion beyond its `wr_id` and status without a check:
/// `byte_len` may exceed the memory of the request.
///
/// Safe code can't implement it:
///
/// ```compile_fail,E0200
/// # use bareverbs_provider::contract::CompletionQueue;
/// # use bareverbs_provider::device::IoctlError;
/// struct Wishful<Q>(Q);
/// impl<Q: CompletionQueue> CompletionQueue for Wishful<Q> {
///     type Completion<'a> = Q::Completion<'a> where Self: 'a;
///     fn capacity(&self) -> u32 { self.0.capacity() }
///     fn next(&mut self) -> Option<Self::Completion<'_>> { self.0.next() }
///     fn release(&mut self) { self.0.release() }
///     fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> { self.0.arm(solicited_only) }
/// }
/// ```
pub unsafe trait CompletionQueue: Send {
    /// One completion, lent: it lies in the queue and its fields are decoded when read.
    type Completion<'a>: Completion
    where
        Self: 'a;

    /// Completions it holds.
    fn capacity(&self) -> u32;

    /// Takes the next completion, if there is one. Its slot goes back to the device with
    /// [`CompletionQueue::release`].
    fn next(&mut self) -> Option<Self::Completion<'_>>;

    /// Takes the next completion by value, if there is one, and gives its slot and all taken before
    /// it back to the device. Default: [`next`](Self::next), [`Completion::to_value`],
    /// [`release`](Self::release).
    #[inline]
    fn next_value(&mut self) -> Option<WorkCompletion> {
        let value = self.next()?.to_value();
        self.release();
        Some(value)
    }

    /// Takes as many completions by value as there are and as `into` has room for, and gives their
    /// slots and all taken before them back to the device; tells how many. Default: `next` and
    /// `to_value` for each, then one `release`.
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

    /// Gives the slots of all taken completions back to the device.
    fn release(&mut self);

    /// Asks for one event on the completion channel when the next completion arrives, or the next
    /// solicited one.
    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError>;
}

/// A completion in place. It is what [`CompletionQueue`] says of it; the trait by itself vouches
/// for nothing.
pub trait Completion {
    /// Of the request; 0, with the status [`WcStatus::GENERAL_ERR`], where the device reported what
    /// matches no request.
    fn wr_id(&self) -> u64;
    /// How it ended.
    fn status(&self) -> WcStatus;
    /// What it was; meaningful on success only.
    fn opcode(&self) -> WcOpcode;
    /// Bytes received, read or fetched.
    fn byte_len(&self) -> u32;
    /// The local queue pair.
    fn qp_num(&self) -> u32;
    /// The sender's queue pair; datagrams only.
    fn src_qp(&self) -> u32;
    /// Immediate data, if the message carried some: the four bytes as they were on the wire, so
    /// `u32::from_be` gives the number where the sender used `u32::to_be`.
    fn imm_data(&self) -> Option<u32>;
    /// The local key that the message invalidated, if it did.
    fn invalidated_rkey(&self) -> Option<u32>;
    /// The device's own word on a failure.
    fn vendor_err(&self) -> u32;
    /// What else is known: whether a global route header came first, say.
    fn wc_flags(&self) -> WcFlags;
    /// The sender's LID; 0 on RoCE.
    fn slid(&self) -> u16;
    /// Service level.
    fn sl(&self) -> u8;
    /// Low bits of the LID that the message came to.
    fn dlid_path_bits(&self) -> u8;
    /// When it was made, in ticks of the device's clock
    /// ([`Provider::read_clock`](super::Provider::read_clock)), where the device tells. Default:
    /// none.
    fn timestamp(&self) -> Option<u64> {
        None
    }
    /// All fields at once.
    fn to_value(&self) -> WorkCompletion;
}
