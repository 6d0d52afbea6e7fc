//! Completion queues.

mod extended;

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit, offset_of};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bareverbs::Imm;
use bareverbs::cq::{
    Arm, Completion, Cq, CqEventCounts, CqInit, CqRef, CqeSize, Visitor, WcFlags, WorkCompletion,
};
use bareverbs::device::DriverId;
use bareverbs::untyped::BuiltIn;

use self::extended::Polling;
pub(crate) use self::extended::poll_functions;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use crate::abi::device::ibv_context;
use crate::abi::values::{
    IBV_CQ_ATTR_MODERATE, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_GRH, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_IMM, IBV_WC_WITH_INV, has,
};
use crate::channel::ChannelObject;
use crate::context::ContextArgument;
use crate::convention::{
    Failure, OrErrno, OrMinusOne, OrNull, Value, callback, export, inject_faults, required,
};
use crate::domain::ParentDomain;
use crate::environment;
use crate::hooks::{CqHooks, Hooked};
use crate::lock::Locked;
use crate::memory::PdObject;
use crate::object::{Acknowledged, Object, lock, pointer};

/// The struct of C, the acknowledged events of the CQ, and the state of `ibv_start_poll`.
#[repr(C)]
pub(crate) struct CqHead {
    abi: ibv_cq_ex,
    /// Behind the struct: see [`Hooked`].
    hooks: Option<Box<CqHooks>>,
    /// Those of the completion channel.
    pub(crate) completions: Acknowledged,
    /// The asynchronous ones.
    pub(crate) events: Acknowledged,
    polling: Polling,
    parent: Option<Arc<ParentDomain>>,
    /// For new objects that complete on the CQ, without its lock: a thread may hold it for long, from
    /// `ibv_start_poll` on, and may be the one that creates them. `None` while the CQ is destroyed.
    reference: Mutex<Option<CqRef>>,
}

const _: () = assert!(offset_of!(CqHead, hooks) == offset_of!(Hooked<ibv_cq_ex, CqHooks>, hooks));

pub(crate) type CqObject = Object<CqHead, Locked<Cq>>;

impl CqHead {
    /// The part of the struct that all CQs have.
    fn base(&self) -> &ibv_cq {
        &self.abi.base
    }
}

impl CqObject {
    /// For new objects that complete on the CQ.
    pub(crate) fn reference(&self) -> Result<CqRef, Failure> {
        required(lock(&self.abi.reference).clone())
    }

    /// Its context, and the kernel's handle.
    pub(crate) fn kernel_object(&self) -> (*mut ibv_context, u32) {
        (self.abi.base().context, self.abi.base().handle)
    }
}

/// What `ibv_create_cq_ex` and `mlx5dv_create_cq` add to `ibv_create_cq`.
#[derive(Clone, Copy, Default)]
pub(crate) struct CqOptions {
    /// `IBV_CREATE_CQ_ATTR_*`.
    pub(crate) flags: c_int,
    pub(crate) compressed: bool,
    pub(crate) cqe_size: Option<CqeSize>,
}

/// The size of CQEs of ConnectX devices that the environment names.
fn cqe_size_of_environment() -> Result<CqeSize, Failure> {
    match environment::cqe_size() {
        None => Ok(CqeSize::Bytes64),
        Some(size) if size == "64" => Ok(CqeSize::Bytes64),
        Some(size) if size == "128" => Ok(CqeSize::Bytes128),
        Some(_) => Err(Failure::INVALID),
    }
}

/// Creates a CQ whose functions of `ibv_cq_ex` are those of `wc_flags`. Without them, it is one for
/// `ibv_poll_cq`.
fn create(
    context: ContextArgument<'_>,
    init: CqInit<'_>,
    cq_context: *mut c_void,
    channel: Option<&ChannelObject>,
    parent: Option<&Arc<ParentDomain>>,
    wc_flags: Option<u64>,
    options: &CqOptions,
) -> Result<*mut CqObject, Failure> {
    let created = Object::create(|address| {
        let channel_of_cq = channel.map(|channel| &channel.inner);
        let memory = ParentDomain::memory(parent);
        let object = context.required()?;
        let context_of_cq = &object.context;
        let cqe_size = match options.cqe_size {
            Some(size) => size,
            None if context_of_cq.driver() == DriverId::MLX5 => cqe_size_of_environment()?,
            None => CqeSize::default(),
        };
        let compressed = options.compressed;
        let user_data = address;
        let init = CqInit { channel: channel_of_cq, memory, user_data, compressed, cqe_size, ..init };
        let cq = if options.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
            // SAFETY: the program promises that the CQ does not overrun.
            unsafe { context_of_cq.create_cq_ignoring_overrun(&init) }?
        } else {
            context_of_cq.create_cq(&init)?
        };
        let base = ibv_cq {
            context: context.pointer(),
            channel: pointer(channel),
            cq_context,
            handle: cq.handle(),
            cqe: AtomicI32::new(count(cq.capacity())),
            mutex: MaybeUninit::zeroed(),
            cond: MaybeUninit::zeroed(),
            comp_events_completed: 0,
            async_events_completed: 0,
        };
        let is_single_threaded = object.is_single_threaded
            || options.flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
            || parent.is_some_and(|parent| parent.td().is_some());
        let polling = &object.data_paths.of(is_single_threaded).polling;
        let mut abi = extended::functions(base, wc_flags, polling);
        let hooks = CqHooks::replace(&mut abi);
        let head = CqHead {
            abi,
            completions: Acknowledged::default(),
            events: Acknowledged::default(),
            polling: Polling::default(),
            parent: parent.cloned(),
            reference: Mutex::new(Some(cq.reference().clone())),
            hooks,
        };
        Ok((head, Locked::new(cq, is_single_threaded)))
    })?;
    if let Some(channel) = channel {
        channel.abi.refcnt.fetch_add(1, Ordering::Relaxed);
    }
    Ok(created)
}

fn count(entries: u32) -> c_int {
    c_int::try_from(entries).unwrap_or(c_int::MAX)
}

/// A number that C passes as `int`.
pub(crate) fn unsigned(number: c_int) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| Failure::INVALID)
}

/// Creates a CQ with the functions of `ibv_cq_ex`.
pub(crate) fn create_extended(
    context: ContextArgument<'_>,
    init: &ibv_cq_init_attr_ex,
    options: &CqOptions,
) -> Result<*mut ibv_cq_ex, Failure> {
    inject_faults("create_cq_ex")?;
    let has_attr = |flag| has(init.comp_mask, flag);
    if init.wc_flags & !extended::WC_FLAGS != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    // Frames have tags.
    let has_tags = has(init.wc_flags, IBV_WC_EX_WITH_FLOW_TAG);
    if has_tags && !context.required()?.context.capabilities().raw_packets {
        return Err(Failure::UNSUPPORTED);
    }
    let flags = if has_attr(IBV_CQ_INIT_ATTR_MASK_FLAGS) { init.flags.cast_signed() } else { 0 };
    let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let known_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if flags & !known != 0 || init.comp_mask & !known_mask.cast_unsigned() != 0 {
        return Err(Failure::INVALID);
    }
    let parent = if has_attr(IBV_CQ_INIT_ATTR_MASK_PD) {
        // SAFETY: the pointer is null or that of a PD.
        let pd = required(unsafe { init.parent_domain.cast::<PdObject>().as_ref() })?;
        Some(required(pd.abi.parent())?)
    } else {
        None
    };
    // SAFETY: the pointer is null or that of a channel.
    let channel = unsafe { init.channel.cast::<ChannelObject>().as_ref() };
    let has_wall_clock = has(init.wc_flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    if has_wall_clock {
        context.required()?.context.clock_info()?;
    }
    let has_time = has(init.wc_flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    let attr =
        CqInit { vector: init.comp_vector, timestamps: has_time || has_wall_clock, ..CqInit::new(init.cqe) };
    let (wc_flags, options) = (Some(init.wc_flags), CqOptions { flags, ..*options });
    Ok(create(context, attr, init.cq_context, channel, parent, wc_flags, &options)?.cast())
}

export! {
    fn ibv_create_cq(
        context: ContextArgument<'_>,
        entries: c_int,
        cq_context: *mut c_void,
        channel: Option<&ChannelObject>,
        vector: c_int,
    ) -> OrNull<ibv_cq> {
        let init = CqInit { vector: unsigned(vector)?, ..CqInit::new(unsigned(entries)?) };
        Ok(create(context, init, cq_context, channel, None, None, &CqOptions::default())?.cast())
    }

    fn ibv_resize_cq(cq: Option<&CqObject>, entries: c_int) -> OrErrno {
        let cq = required(cq)?;
        let memory = ParentDomain::memory(cq.abi.parent.as_ref());
        let entries = unsigned(entries)?;
        let capacity = cq.with_queue(|cq| cq.resize_in(entries, memory))?;
        cq.abi.base().cqe.store(count(capacity), Ordering::Relaxed);
        Ok(())
    }

    fn ibv_ack_cq_events(cq: Option<NonNull<CqObject>>, count: u32) -> Value<()> {
        // SAFETY: the argument is a live CQ. `ibv_destroy_cq` may wait for this, and frees it then: so this
        // refers to the count only.
        unsafe { &(*required(cq)?.as_ptr()).abi.completions }.add(count);
        Ok(())
    }

    fn ibv_destroy_cq(cq: Option<NonNull<CqObject>>) -> OrErrno {
        let cq = required(cq)?;
        // SAFETY: the argument is a live CQ.
        let head = unsafe { &(*cq.as_ptr()).abi };
        let channel: *mut ChannelObject = head.base().channel.cast();
        #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
        let destroy = |cq: Cq| {
            // Without references the CQ can be destroyed.
            drop(lock(&head.reference).take());
            cq.destroy().inspect_err(|refused| {
                *lock(&head.reference) = Some(refused.object.reference().clone());
            })
        };
        let wait = |head: &CqHead, read: CqEventCounts| {
            head.completions.wait_for(read.completion);
            head.events.wait_for(read.asynchronous);
        };
        // SAFETY: the argument is a live CQ, which the program uses no longer, but to acknowledge events.
        unsafe { Object::destroy(cq, destroy, wait) }?;
        // SAFETY: the channel exists while it has CQs.
        if let Some(channel) = unsafe { channel.as_ref() } {
            channel.abi.refcnt.fetch_sub(1, Ordering::Release);
        }
        Ok(())
    }
}

callback! {
    fn poll_cq<P: BuiltIn, const IS_ELIDED: bool>(
        cq: &CqObject,
        count: c_int,
        into: *mut ibv_wc,
    ) -> OrMinusOne {
        if count <= 0 {
            return if count == 0 { Ok(0) } else { Err(Failure::INVALID) };
        }
        if !IS_ELIDED && cq.inner.is_elided() {
            // SAFETY: the contract is the same.
            return Ok(unsafe { poll_cq::<P, true>(cq, count, into) });
        }
        Ok(poll::<P>(cq, count, into, IS_ELIDED))
    }

    /// `ibv_create_cq_ex`.
    fn create_cq_ex(context: ContextArgument<'_>, init: Option<&ibv_cq_init_attr_ex>) -> OrNull<ibv_cq_ex> {
        create_extended(context, required(init)?, &CqOptions::default())
    }

    /// `ibv_modify_cq`.
    fn modify_cq(cq: Option<&CqObject>, attr: Option<&ibv_modify_cq_attr>) -> OrErrno {
        let (cq, attr) = (required(cq)?, required(attr)?);
        if attr.attr_mask != IBV_CQ_ATTR_MODERATE.cast_unsigned() {
            return Err(Failure::INVALID);
        }
        let period = Duration::from_micros(attr.moderate.cq_period.into());
        Ok(cq.with_queue(|cq| cq.moderate(attr.moderate.cq_count, period))?)
    }

    fn req_notify_cq(cq: Option<&CqObject>, solicited_only: c_int) -> OrErrno {
        let arm = if solicited_only == 0 { Arm::Any } else { Arm::Solicited };
        Ok(required(cq)?.with_queue(|cq| cq.arm(arm))?)
    }
}

/// Polls at least one completion, as `ibv_poll_cq`. The fast path is that of one completion, or of none. All
/// else is done by functions at the end, so that the fast path saves no registers.
#[inline(always)]
fn poll<P: BuiltIn>(cq: &CqObject, count: c_int, into: *mut ibv_wc, is_elided: bool) -> c_int {
    let Some(mut guard) = cq.inner.try_lock(is_elided) else { return poll_contended(cq, count, into) };
    // SAFETY: the device of the CQ has this provider: see `data_path`.
    let has_first = match unsafe { guard.visit_next_of::<P, _>(PollInto(into)) } {
        Polled::One if count == 1 => return guard.unlock_with(1),
        Polled::None => return guard.unlock_with(0),
        Polled::One => true,
        Polled::Declined => false,
    };
    mem::forget(guard);
    // SAFETY: the CQ was left locked.
    unsafe { poll_further(cq, count, into, has_first) }
}

/// Polls completions of a CQ that another thread had locked.
#[cold]
#[inline(never)]
fn poll_contended(cq: &CqObject, count: c_int, into: *mut ibv_wc) -> c_int {
    mem::forget(cq.inner.lock());
    // SAFETY: the CQ was left locked.
    unsafe { poll_further(cq, count, into, false) }
}

/// Polls completions, after the first one if that was polled. Returns their number with it.
///
/// # Safety
///
/// The caller has left the CQ locked.
#[inline(never)]
unsafe fn poll_further(cq: &CqObject, count: c_int, into: *mut ibv_wc, has_first: bool) -> c_int {
    // SAFETY: by the contract.
    let mut cq = unsafe { cq.inner.take_up() };
    // SAFETY: the program has `count` structs, which are only written. Both types have one layout.
    let into = unsafe { slice::from_raw_parts_mut(into.cast::<WorkCompletion>(), count as usize) };
    let into = &mut into[usize::from(has_first)..];
    let polled = cq.poll_into(into);
    // The flags of most completions have the bits of C, so all are compared at once.
    let into = &mut into[..polled];
    let all = into.iter().fold(WcFlags::empty(), |all, completion| all | completion.wc_flags);
    if !SAME_WC_FLAGS.contains(all) {
        for completion in into {
            completion.wc_flags = WcFlags::from_bits_retain(wc_flags(completion.wc_flags));
        }
    }
    c_int::from(has_first) + polled as c_int
}

/// Writes the next completion of the fast path into the struct of C.
struct PollInto(*mut ibv_wc);

/// The result of the fast path.
enum Polled {
    One,
    None,
    Declined,
}

impl Visitor for PollInto {
    type Output = Polled;

    #[inline(always)]
    fn completion(self, completion: impl Completion) -> Polled {
        let into = self.0;
        // SAFETY: the program has a struct there, which is only written. Each field is written when it is
        // read: all of them together don't fit into the registers.
        unsafe {
            (*into).wr_id = completion.wr_id();
            (*into).status = completion.status().0;
            (*into).opcode = completion.opcode().0;
            (*into).vendor_err = completion.vendor_err();
            (*into).byte_len = completion.byte_len();
            (*into).qp_num = completion.qp_num();
            if completion.is_recv() {
                (*into).imm_data = imm_data(&completion);
                (*into).src_qp = completion.src_qp();
                (*into).wc_flags = wc_flags(completion.wc_flags());
                (*into).pkey_index = completion.pkey_index();
                (*into).slid = completion.slid();
                (*into).sl = completion.sl();
                (*into).dlid_path_bits = completion.dlid_path_bits();
            } else {
                (*into).imm_data = 0;
                (*into).src_qp = 0;
                (*into).wc_flags = 0;
                (*into).pkey_index = 0;
                (*into).slid = 0;
                (*into).sl = 0;
                (*into).dlid_path_bits = 0;
            }
        }
        Polled::One
    }

    #[inline(always)]
    fn empty(self) -> Polled {
        Polled::None
    }

    #[inline(always)]
    fn declined(self) -> Polled {
        Polled::Declined
    }
}

/// Immediate data in network byte order, or the invalidated R_Key.
#[inline(always)]
fn imm_data(completion: &impl Completion) -> u32 {
    completion.imm().map(Imm::to_be).or(completion.invalidated_rkey()).unwrap_or(0)
}

/// `poll_further` polls into the structs of C.
const _: () = {
    macro_rules! same_place {
        ($($ours:ident = $theirs:ident),*) => {
            $(assert!(offset_of!(WorkCompletion, $ours) == offset_of!(ibv_wc, $theirs));)*
        };
    }
    assert!(size_of::<WorkCompletion>() == size_of::<ibv_wc>());
    same_place!(wr_id = wr_id, status = status, opcode = opcode, vendor_err = vendor_err);
    same_place!(byte_len = byte_len, ex = imm_data, qp_num = qp_num, src_qp = src_qp, wc_flags = wc_flags);
    same_place!(pkey_index = pkey_index, slid = slid, sl = sl, dlid_path_bits = dlid_path_bits);
};

/// The flags whose bits in C are those of the kernel.
const SAME_WC_FLAGS: WcFlags = WcFlags::GRH.union(WcFlags::WITH_IMM);

/// The flags of C, some of which have other bits in the kernel.
#[inline(always)]
fn wc_flags(flags: WcFlags) -> u32 {
    if SAME_WC_FLAGS.contains(flags) { flags.bits() } else { other_wc_flags(flags) }
}

#[cold]
fn other_wc_flags(flags: WcFlags) -> u32 {
    let all = [
        (WcFlags::GRH, IBV_WC_GRH),
        (WcFlags::WITH_IMM, IBV_WC_WITH_IMM),
        (WcFlags::IP_CSUM_OK, IBV_WC_IP_CSUM_OK),
        (WcFlags::WITH_INVALIDATE, IBV_WC_WITH_INV),
    ];
    let set = all.into_iter().filter(|(flag, _)| flags.contains(*flag));
    set.fold(0, |bits, (_, bit)| bits | bit.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_the_bits_of_c() {
        assert_eq!(wc_flags(WcFlags::empty()), 0);
        assert_eq!(wc_flags(WcFlags::GRH | WcFlags::WITH_IMM), 3);
        assert_eq!(wc_flags(WcFlags::IP_CSUM_OK), 4);
        assert_eq!(wc_flags(WcFlags::WITH_INVALIDATE), 8);
    }
}
