//! The functions of `ibv_cq_ex`: polling in place of C. `ibv_start_poll` and `ibv_next_poll` take the fields
//! of a completion out of the queue, and the functions that read it return them.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bareverbs::cq::{Completion, Cq, Visitor};
use bareverbs::device::ClockInfo;

use super::{CqObject, PollInto};
use crate::abi::Function;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc};
use crate::abi::values::{
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, Value, callback};
use crate::lock::Guard;

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

/// What a thread polls between `ibv_start_poll` and `ibv_end_poll`. The CQ is locked then, so only that
/// thread uses the cell.
#[derive(Default)]
pub(super) struct Polling(UnsafeCell<Current>);

/// A completion.
#[derive(Default)]
struct Current {
    is_polling: bool,
    fields: ibv_wc,
    timestamp: u64,
    cvlan: u16,
    flow_tag: u32,
    /// Of a CQ with wall-clock times, as `ibv_start_poll` found it.
    clock: Option<ClockInfo>,
}

/// The struct of C with the functions of these fields.
pub(super) fn functions(base: ibv_cq, wc_flags: Option<u64>) -> ibv_cq_ex {
    let function = |is_wanted: bool, function: *const ()| {
        if is_wanted { Function::new(function) } else { Function::NULL }
    };
    let always = |address| function(wc_flags.is_some(), address);
    let with = |flag, address| function(wc_flags.is_some_and(|flags| has(flags, flag)), address);
    let has_clock = wc_flags.is_some_and(|flags| has(flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK));
    let start_poll = if has_clock { start_poll_with_clock as *const () } else { start_poll as *const () };
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: AtomicU32::new(0),
        wr_id: AtomicU64::new(0),
        start_poll: always(start_poll),
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

/// Takes the next completion out of the queue.
struct PollCurrent<'a>(&'a mut Current);

impl Visitor for PollCurrent<'_> {
    /// Whether there is one. `None`: the fast path declined it.
    type Output = Option<bool>;

    #[inline(always)]
    fn completion(self, completion: impl Completion) -> Option<bool> {
        self.0.timestamp = completion.timestamp().unwrap_or(0);
        if completion.is_recv() {
            self.0.cvlan = completion.cvlan().unwrap_or(0);
            self.0.flow_tag = completion.flow_tag().unwrap_or(0);
        } else {
            (self.0.cvlan, self.0.flow_tag) = (0, 0);
        }
        PollInto(&raw mut self.0.fields).completion(completion);
        Some(true)
    }

    #[inline(always)]
    fn empty(self) -> Option<bool> {
        Some(false)
    }

    #[inline(always)]
    fn declined(self) -> Option<bool> {
        None
    }
}

impl CqObject {
    /// The current completion.
    ///
    /// # Safety
    ///
    /// The thread holds the lock, and nothing else refers to the completion while the reference is used.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the value is in a cell")]
    unsafe fn current(&self) -> &mut Current {
        // SAFETY: by the contract.
        unsafe { &mut *self.abi.polling.0.get() }
    }

    /// Writes the fields of the current completion that C reads from the struct.
    #[inline(always)]
    fn publish(&self, fields: &ibv_wc) {
        self.abi.abi.status.store(fields.status, Ordering::Relaxed);
        self.abi.abi.wr_id.store(fields.wr_id, Ordering::Relaxed);
    }
}

/// Polls the next completion. Returns 0, or `ENOENT` for none.
///
/// # Safety
///
/// As for [`CqObject::current`].
#[inline(always)]
unsafe fn poll_next(cq: &CqObject, queue: &mut Cq) -> c_int {
    // SAFETY: by the contract.
    let current = unsafe { cq.current() };
    match queue.visit_next(PollCurrent(current)) {
        Some(true) => {
            cq.publish(&current.fields);
            0
        }
        Some(false) => libc::ENOENT,
        // SAFETY: by the contract. The reference above is not used again.
        None => unsafe { poll_declined(cq, queue) },
    }
}

/// As [`poll_next`], for a completion that the fast path declined.
///
/// # Safety
///
/// As for [`CqObject::current`].
#[inline(never)]
unsafe fn poll_declined(cq: &CqObject, queue: &mut Cq) -> c_int {
    // SAFETY: by the contract.
    let current = unsafe { cq.current() };
    let mut completions = queue.poll();
    let Some(completion) = completions.next() else { return libc::ENOENT };
    PollCurrent(current).completion(completion);
    cq.publish(&current.fields);
    0
}

/// `ibv_start_poll`. An empty CQ is `ENOENT`, without the lock.
#[inline(always)]
fn start(cq: &CqObject, is_elided: bool) -> c_int {
    let Some(guard) = cq.inner.try_lock(is_elided) else { return start_contended(cq) };
    start_locked(cq, guard)
}

#[inline(always)]
fn start_locked(cq: &CqObject, mut guard: Guard<'_, Cq>) -> c_int {
    // SAFETY: the lock is held.
    let found = unsafe { poll_next(cq, &mut guard) };
    if found != 0 {
        return guard.unlock_with(found);
    }
    // SAFETY: the lock is held.
    unsafe { cq.current() }.is_polling = true;
    // `ibv_end_poll` unlocks.
    mem::forget(guard);
    0
}

#[cold]
#[inline(never)]
fn start_contended(cq: &CqObject) -> c_int {
    start_locked(cq, cq.inner.lock())
}

#[inline(never)]
fn start_elided(cq: &CqObject) -> c_int {
    start(cq, true)
}

callback! {
    /// Returns 0, or an errno. `ENOENT` is not stored to errno, as in C.
    fn start_poll(cq: &CqObject, attr: Option<&ibv_poll_cq_attr>) -> Value<c_int> {
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Ok(OrErrno::answer(Err(Failure::INVALID)));
        }
        Ok(if cq.inner.is_elided() { start_elided(cq) } else { start(cq, false) })
    }

    /// `ibv_start_poll` of a CQ with wall-clock times. The clock is read before a completion is taken, which
    /// a failure would lose.
    fn start_poll_with_clock(cq: &CqObject, attr: Option<&ibv_poll_cq_attr>) -> Value<c_int> {
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Ok(OrErrno::answer(Err(Failure::INVALID)));
        }
        let guard = cq.inner.lock();
        let context = ContextArgument::of(cq.abi.base().context).required()?;
        match context.context.clock_info() {
            // SAFETY: the lock is held.
            Ok(clock) => unsafe { cq.current() }.clock = Some(clock),
            Err(error) => return Ok(OrErrno::answer(Err(error.into()))),
        }
        Ok(start_locked(cq, guard))
    }

    /// Returns 0, or `ENOENT`, with the lock.
    fn next_poll(cq: &CqObject) -> Value<c_int> {
        // SAFETY: C calls the function between `ibv_start_poll` and `ibv_end_poll` of the same thread. The value
        // of the guard is not dropped, so the CQ stays locked.
        unsafe {
            let mut guard = mem::ManuallyDrop::new(cq.inner.take_up());
            Ok(poll_next(cq, &mut guard))
        }
    }

    fn end_poll(cq: &CqObject) -> Value<()> {
        // SAFETY: as in `next_poll`. Before `ibv_start_poll`, nothing is polled.
        if mem::take(&mut unsafe { cq.current() }.is_polling) {
            // SAFETY: `ibv_start_poll` has left the CQ locked.
            drop(unsafe { cq.inner.take_up() });
        }
        Ok(())
    }
}

/// Defines the functions that read a field of the current completion.
macro_rules! read {
    ($( $name:ident -> $type:ty: $($field:ident).+; )*) => {
        callback! { $(
            fn $name(cq: &CqObject) -> Value<$type> {
                // SAFETY: C calls the function between `ibv_start_poll` and `ibv_end_poll` of the same thread.
                Ok(unsafe { cq.current() }.$($field).+)
            }
        )* }
    };
}

read! {
    read_opcode -> u32: fields.opcode;
    read_vendor_err -> u32: fields.vendor_err;
    read_byte_len -> u32: fields.byte_len;
    // In network byte order, or the invalidated R_Key.
    read_imm_data -> u32: fields.imm_data;
    read_qp_num -> u32: fields.qp_num;
    read_src_qp -> u32: fields.src_qp;
    read_wc_flags -> u32: fields.wc_flags;
    read_sl -> u8: fields.sl;
    read_dlid_path_bits -> u8: fields.dlid_path_bits;
    read_completion_ts -> u64: timestamp;
    read_cvlan -> u16: cvlan;
    read_flow_tag -> u32: flow_tag;
}

callback! {
    fn read_slid(cq: &CqObject) -> Value<u32> {
        // SAFETY: as of the functions above.
        Ok(unsafe { cq.current() }.fields.slid.into())
    }

    fn read_completion_wallclock_ns(cq: &CqObject) -> Value<u64> {
        // SAFETY: as of the functions above.
        let current = unsafe { cq.current() };
        let time = current.clock.map(|clock| clock.time(current.timestamp));
        Ok(time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}
