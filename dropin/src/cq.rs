//! Completion queues.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use bareverbs::cq::{Arm, Completion, Cq, CqEventCounts, CqInit, WcFlags};

use crate::abi::cq::{ibv_cq, ibv_wc};
use crate::abi::values::{IBV_WC_GRH, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_IMM, IBV_WC_WITH_INV};
use crate::channel::ChannelObject;
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrMinusOne, OrNull, Value, callback, export, required};

use crate::object::{Acknowledged, Object, lock, pointer};

/// The struct of C, and the acknowledged events of the CQ.
#[repr(C)]
pub(crate) struct CqHead {
    abi: ibv_cq,
    /// Those of the completion channel.
    pub(crate) completions: Acknowledged,
    /// The asynchronous ones.
    pub(crate) events: Acknowledged,
}

pub(crate) type CqObject = Object<CqHead, Mutex<Cq>>;

fn count(entries: u32) -> c_int {
    c_int::try_from(entries).unwrap_or(c_int::MAX)
}

/// A number that C passes as `int`.
pub(crate) fn unsigned(number: c_int) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| Failure::INVALID)
}

export! {
    fn ibv_create_cq(
        context: ContextArgument<'_>,
        entries: c_int,
        cq_context: *mut c_void,
        channel: Option<&ChannelObject>,
        vector: c_int,
    ) -> OrNull<ibv_cq> {
        let (entries, vector) = (unsigned(entries)?, unsigned(vector)?);
        let created = Object::create(|address| {
            let channel_of_cq = channel.map(|channel| &channel.inner);
            let init = CqInit { channel: channel_of_cq, vector, user_data: address, ..CqInit::new(entries) };
            let cq = context.required()?.context.create_cq(&init)?;
            let abi = ibv_cq {
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
            let head = CqHead { abi, completions: Acknowledged::default(), events: Acknowledged::default() };
            Ok((head, Mutex::new(cq)))
        })?;
        if let Some(channel) = channel {
            channel.abi.refcnt.fetch_add(1, Ordering::Relaxed);
        }
        Ok(created.cast::<CqObject>().cast())
    }

    fn ibv_resize_cq(cq: Option<&CqObject>, entries: c_int) -> OrErrno {
        let cq = required(cq)?;
        let capacity = lock(&cq.inner).resize(unsigned(entries)?)?;
        cq.abi.abi.cqe.store(count(capacity), Ordering::Relaxed);
        Ok(())
    }

    fn ibv_ack_cq_events(cq: Option<&CqObject>, count: u32) -> Value<()> {
        required(cq)?.abi.completions.add(count);
        Ok(())
    }

    fn ibv_destroy_cq(cq: Option<NonNull<CqObject>>) -> OrErrno {
        let cq = required(cq)?;
        // SAFETY: the argument is a live CQ.
        let channel: *mut ChannelObject = unsafe { cq.as_ref() }.abi.abi.channel.cast();
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
