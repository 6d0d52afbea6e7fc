//! The functions of `ibv_cq_ex`: polling in place of C. The completion is decoded at `ibv_start_poll` and
//! `ibv_next_poll`, and the functions that read it copy its fields.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bareverbs::cq::{Completion, Cq, WorkCompletion};
use bareverbs::device::ClockInfo;

use super::{CqHead, CqObject, wc_flags};
use crate::abi::Function;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr};
use crate::abi::values::{
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, Value, callback, required};
use crate::object::lock;

/// The fields that a program can ask for. `bareverbs` has no tag matching.
pub(super) const WC_FLAGS: u64 = (IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
    | IBV_WC_EX_WITH_CVLAN
    | IBV_WC_EX_WITH_FLOW_TAG) as u64;

pub(super) fn has(wc_flags: u64, flag: c_int) -> bool {
    wc_flags & u64::from(flag.cast_unsigned()) != 0
}

/// What a thread polls between `ibv_start_poll` and `ibv_end_poll`. It holds the lock of the CQ, so only
/// that thread uses the cell.
#[derive(Default)]
pub(super) struct Polling(UnsafeCell<Option<Polled>>);

struct Polled {
    cq: MutexGuard<'static, Cq>,
    /// Of a CQ with wall-clock times, as `ibv_start_poll` found it.
    clock: Option<ClockInfo>,
    current: Current,
}

/// A completion.
struct Current {
    value: WorkCompletion,
    timestamp: u64,
    cvlan: u16,
    flow_tag: u32,
}

/// The struct of C with the functions of these fields.
pub(super) fn functions(base: ibv_cq, wc_flags: Option<u64>) -> ibv_cq_ex {
    let function = |is_wanted: bool, function: *const ()| {
        if is_wanted { Function::new(function) } else { Function::NULL }
    };
    let always = |address| function(wc_flags.is_some(), address);
    let with = |flag, address| function(wc_flags.is_some_and(|flags| has(flags, flag)), address);
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: AtomicU32::new(0),
        wr_id: AtomicU64::new(0),
        start_poll: always(start_poll as *const ()),
        next_poll: always(next_poll as *const ()),
        end_poll: always(end_poll as *const ()),
        read_opcode: always(read_opcode as *const ()),
        read_vendor_err: always(read_vendor_err as *const ()),
        read_byte_len: with(IBV_WC_EX_WITH_BYTE_LEN, read_byte_len as *const ()),
        read_imm_data: with(IBV_WC_EX_WITH_IMM, read_imm_data as *const ()),
        read_qp_num: with(IBV_WC_EX_WITH_QP_NUM, read_qp_num as *const ()),
        read_src_qp: with(IBV_WC_EX_WITH_SRC_QP, read_src_qp as *const ()),
        read_wc_flags: always(read_wc_flags as *const ()),
        read_slid: with(IBV_WC_EX_WITH_SLID, read_slid as *const ()),
        read_sl: with(IBV_WC_EX_WITH_SL, read_sl as *const ()),
        read_dlid_path_bits: with(IBV_WC_EX_WITH_DLID_PATH_BITS, read_dlid_path_bits as *const ()),
        read_completion_ts: with(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, read_completion_ts as *const ()),
        read_cvlan: with(IBV_WC_EX_WITH_CVLAN, read_cvlan as *const ()),
        read_flow_tag: with(IBV_WC_EX_WITH_FLOW_TAG, read_flow_tag as *const ()),
        read_tm_info: Function::NULL,
        read_completion_wallclock_ns: with(
            IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
            read_completion_wallclock_ns as *const (),
        ),
    }
}

/// Polls the next completion, and writes the fields of it that C reads from the struct.
fn poll(cq: &mut Cq, head: &CqHead) -> Result<Current, Failure> {
    let mut completions = cq.poll();
    let completion = completions.next().ok_or(Failure::EMPTY)?;
    let value = completion.to_value();
    let (timestamp, cvlan) = (completion.timestamp(), completion.cvlan());
    let flow_tag = completion.flow_tag().unwrap_or(0);
    head.abi.status.store(value.status.0, Ordering::Relaxed);
    head.abi.wr_id.store(value.wr_id, Ordering::Relaxed);
    Ok(Current { value, timestamp: timestamp.unwrap_or(0), cvlan: cvlan.unwrap_or(0), flow_tag })
}

/// Uses what the calling thread polls.
fn polled<R>(cq: Option<&CqObject>, call: impl FnOnce(&mut Polled) -> R) -> Result<R, Failure> {
    // SAFETY: C calls the functions between `ibv_start_poll` and `ibv_end_poll` of the same thread, which
    // holds the lock. Before, the cell is empty.
    let cell = unsafe { &mut *required(cq)?.abi.polling.0.get() };
    cell.as_mut().map(call).ok_or(Failure::INVALID)
}

/// Uses the completion that the calling thread polls.
fn current<R>(cq: Option<&CqObject>, read: impl FnOnce(&Current) -> R) -> Result<R, Failure> {
    polled(cq, |polled| read(&polled.current))
}

callback! {
    /// An empty CQ is `ENOENT`, without the lock.
    fn start_poll(cq: Option<&CqObject>, attr: Option<&ibv_poll_cq_attr>) -> OrErrno {
        let object = required(cq)?;
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Err(Failure::INVALID);
        }
        let mut cq = lock(&object.inner);
        // Before a completion is taken, which a failure would lose.
        let clock = if object.abi.abi.read_completion_wallclock_ns.is_null() {
            None
        } else {
            Some(ContextArgument::of(object.abi.base().context).required()?.context.clock_info()?)
        };
        let current = poll(&mut cq, &object.abi)?;
        // SAFETY: the CQ exists until `ibv_end_poll`, which drops the guard. The thread holds the lock, so it
        // alone uses the cell.
        unsafe {
            let cq = mem::transmute::<MutexGuard<'_, Cq>, MutexGuard<'static, Cq>>(cq);
            *object.abi.polling.0.get() = Some(Polled { cq, clock, current });
        }
        Ok(())
    }

    /// No further completion is `ENOENT`, with the lock.
    fn next_poll(cq: Option<&CqObject>) -> OrErrno {
        let head = &required(cq)?.abi;
        polled(cq, |Polled { cq, current, .. }| {
            *current = poll(cq, head)?;
            Ok(())
        })?
    }

    fn end_poll(cq: Option<&CqObject>) -> Value<()> {
        // SAFETY: as in `polled`. The cell is empty before the guard is dropped.
        drop(unsafe { &mut *required(cq)?.abi.polling.0.get() }.take());
        Ok(())
    }

    fn read_opcode(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.opcode.0) }
    fn read_vendor_err(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.vendor_err) }
    fn read_byte_len(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.byte_len) }
    /// In network byte order, or the invalidated R_Key.
    fn read_imm_data(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.ex) }
    fn read_qp_num(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.qp_num) }
    fn read_src_qp(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.src_qp) }
    fn read_wc_flags(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| wc_flags(current.value.wc_flags)) }
    fn read_slid(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.value.slid.into()) }
    fn read_sl(cq: Option<&CqObject>) -> Value<u8> { current(cq, |current| current.value.sl) }
    fn read_dlid_path_bits(cq: Option<&CqObject>) -> Value<u8> { current(cq, |current| current.value.dlid_path_bits) }
    fn read_completion_ts(cq: Option<&CqObject>) -> Value<u64> { current(cq, |current| current.timestamp) }
    fn read_completion_wallclock_ns(cq: Option<&CqObject>) -> Value<u64> {
        polled(cq, |Polled { clock, current, .. }| {
            let time = clock.map(|clock| clock.time(current.timestamp));
            time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        })
    }

    fn read_cvlan(cq: Option<&CqObject>) -> Value<u16> { current(cq, |current| current.cvlan) }
    fn read_flow_tag(cq: Option<&CqObject>) -> Value<u32> { current(cq, |current| current.flow_tag) }
}
