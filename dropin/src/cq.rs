//! Completion queues.

mod extended;

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bareverbs::cq::{Arm, Completion, Cq, CqEventCounts, CqInit, CqeSize, WcFlags};
use bareverbs::device::DriverId;

use self::extended::Polling;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_wc};
use crate::abi::device::ibv_context;
use crate::abi::values::{
    IBV_CQ_ATTR_MODERATE, IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD,
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_GRH, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_IMM, IBV_WC_WITH_INV,
};
use crate::channel::ChannelObject;
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, Value, callback, export, required};
use crate::domain::ParentDomain;
use crate::environment;
use crate::hooks::{self, CqHooks};
use crate::memory::PdObject;
use crate::object::{Acknowledged, Object, lock, pointer};

/// The struct of C, the acknowledged events of the CQ, and the state of `ibv_start_poll`.
#[repr(C)]
pub(crate) struct CqHead {
    abi: ibv_cq_ex,
    /// Those of the completion channel.
    pub(crate) completions: Acknowledged,
    /// The asynchronous ones.
    pub(crate) events: Acknowledged,
    polling: Polling,
    parent: Option<Arc<ParentDomain>>,
    pub(crate) hooks: Option<Box<CqHooks>>,
}

pub(crate) type CqObject = Object<CqHead, Mutex<Cq>>;

impl CqHead {
    /// The part of the struct that all CQs have.
    fn base(&self) -> &ibv_cq {
        &self.abi.base
    }
}

impl CqObject {
    /// Its context, and the kernel's handle.
    pub(crate) fn kernel_object(&self) -> (*mut ibv_context, u32) {
        (self.abi.base().context, self.abi.base().handle)
    }
}

/// What `mlx5dv_create_cq` adds to `ibv_create_cq_ex`.
#[derive(Default)]
pub(crate) struct CqOptions {
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
    ignores_overrun: bool,
    cq_context: *mut c_void,
    channel: Option<&ChannelObject>,
    parent: Option<&Arc<ParentDomain>>,
    wc_flags: Option<u64>,
    options: &CqOptions,
) -> Result<*mut CqObject, Failure> {
    let created = Object::create(|address| {
        let channel_of_cq = channel.map(|channel| &channel.inner);
        let memory = ParentDomain::memory(parent);
        let context_of_cq = &context.required()?.context;
        let cqe_size = match options.cqe_size {
            Some(size) => size,
            None if context_of_cq.driver() == DriverId::MLX5 => cqe_size_of_environment()?,
            None => CqeSize::default(),
        };
        let compressed = options.compressed;
        let user_data = address;
        let init = CqInit { channel: channel_of_cq, memory, user_data, compressed, cqe_size, ..init };
        let cq = if ignores_overrun {
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
        let mut abi = extended::functions(base, wc_flags);
        let hooks = CqHooks::replace(&mut abi);
        let head = CqHead {
            abi,
            completions: Acknowledged::default(),
            events: Acknowledged::default(),
            polling: Polling::default(),
            parent: parent.cloned(),
            hooks,
        };
        Ok((head, Mutex::new(cq)))
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
    hooks::before("create_cq_ex")?;
    let has = |flag: c_int| init.comp_mask & flag.cast_unsigned() != 0;
    if init.wc_flags & !extended::WC_FLAGS != 0 {
        return Err(Failure::UNSUPPORTED);
    }
    // Frames have tags.
    let has_tags = extended::has(init.wc_flags, IBV_WC_EX_WITH_FLOW_TAG);
    if has_tags && !context.required()?.context.capabilities().raw_packets {
        return Err(Failure::UNSUPPORTED);
    }
    let flags = if has(IBV_CQ_INIT_ATTR_MASK_FLAGS) { init.flags.cast_signed() } else { 0 };
    let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let known_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if flags & !known != 0 || init.comp_mask & !known_mask.cast_unsigned() != 0 {
        return Err(Failure::INVALID);
    }
    let parent = if has(IBV_CQ_INIT_ATTR_MASK_PD) {
        // SAFETY: the pointer is null or that of a PD.
        let pd = required(unsafe { init.parent_domain.cast::<PdObject>().as_ref() })?;
        Some(required(pd.abi.parent())?)
    } else {
        None
    };
    // SAFETY: the pointer is null or that of a channel.
    let channel = unsafe { init.channel.cast::<ChannelObject>().as_ref() };
    let has_wall_clock = extended::has(init.wc_flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
    if has_wall_clock {
        context.required()?.context.clock_info()?;
    }
    let has_time = extended::has(init.wc_flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    let attr =
        CqInit { vector: init.comp_vector, timestamps: has_time || has_wall_clock, ..CqInit::new(init.cqe) };
    let ignores_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0;
    let wc_flags = Some(init.wc_flags);
    Ok(create(context, attr, ignores_overrun, init.cq_context, channel, parent, wc_flags, options)?.cast())
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
        Ok(create(context, init, false, cq_context, channel, None, None, &CqOptions::default())?.cast())
    }

    fn ibv_resize_cq(cq: Option<&CqObject>, entries: c_int) -> OrErrno {
        let cq = required(cq)?;
        let memory = ParentDomain::memory(cq.abi.parent.as_ref());
        let capacity = lock(&cq.inner).resize_in(unsigned(entries)?, memory)?;
        cq.abi.base().cqe.store(count(capacity), Ordering::Relaxed);
        Ok(())
    }

    fn ibv_ack_cq_events(cq: Option<&CqObject>, count: u32) -> Value<()> {
        required(cq)?.abi.completions.add(count);
        Ok(())
    }

    fn ibv_destroy_cq(cq: Option<NonNull<CqObject>>) -> OrErrno {
        let cq = required(cq)?;
        // SAFETY: the argument is a live CQ.
        let channel: *mut ChannelObject = unsafe { cq.as_ref() }.abi.base().channel.cast();
        let wait = |head: &CqHead, read: CqEventCounts| {
            head.completions.wait_for(read.completion);
            head.events.wait_for(read.asynchronous);
        };
        // SAFETY: the argument is a live CQ, which the program uses no longer, but to acknowledge events.
        unsafe { Object::destroy(cq, Cq::destroy, wait) }?;
        // SAFETY: the channel exists while it has CQs.
        if let Some(channel) = unsafe { channel.as_ref() } {
            channel.abi.refcnt.fetch_sub(1, Ordering::Release);
        }
        Ok(())
    }
}

callback! {
    fn poll_cq(cq: Option<&CqObject>, count: c_int, into: *mut ibv_wc) -> OrMinusOne {
        let (cq, count) = (required(cq)?, unsigned(count)?);
        let mut cq = lock(&cq.inner);
        let mut completions = cq.poll();
        let mut polled = 0;
        while polled < count && let Some(completion) = completions.next() {
            // SAFETY: the program has `count` structs.
            unsafe { ptr::write(into.add(polled as usize), work_completion(&completion)) };
            polled += 1;
        }
        Ok(polled.cast_signed())
    }

    /// `ibv_create_cq_ex`. A CQ for one thread has a lock too.
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
        Ok(lock(&cq.inner).moderate(attr.moderate.cq_count, period)?)
    }

    fn req_notify_cq(cq: Option<&CqObject>, solicited_only: c_int) -> OrErrno {
        let arm = if solicited_only == 0 { Arm::Any } else { Arm::Solicited };
        Ok(lock(&required(cq)?.inner).arm(arm)?)
    }
}

fn work_completion(completion: &impl Completion) -> ibv_wc {
    let value = completion.to_value();
    ibv_wc {
        wr_id: value.wr_id,
        status: value.status.0,
        opcode: value.opcode.0,
        vendor_err: value.vendor_err,
        byte_len: value.byte_len,
        imm_data: value.ex,
        qp_num: value.qp_num,
        src_qp: value.src_qp,
        wc_flags: wc_flags(value.wc_flags),
        pkey_index: value.pkey_index,
        slid: value.slid,
        sl: value.sl,
        dlid_path_bits: value.dlid_path_bits,
    }
}

/// The flags of C, some of which have other bits in the kernel.
fn wc_flags(flags: WcFlags) -> u32 {
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
