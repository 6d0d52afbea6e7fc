//! The functions of `ibv_cq_ex`: polling in place of C. `ibv_start_poll` and `ibv_next_poll` take the fields
//! of a completion out of the queue, and the functions that read it return them.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bareverbs::cq::{Completion, Cq, Visitor};
use bareverbs::device::ClockInfo;
use bareverbs::untyped::BuiltIn;

use super::{CqObject, imm_data, wc_flags};
use crate::abi::Function;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr};
use crate::abi::values::{
    IBV_WC_EX_WITH_BYTE_LEN, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_DLID_PATH_BITS,
    IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_IMM, IBV_WC_EX_WITH_QP_NUM, IBV_WC_EX_WITH_SL,
    IBV_WC_EX_WITH_SLID, IBV_WC_EX_WITH_SRC_QP, has,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, Value, callback};
use crate::data_path::PollFunctions;
use crate::lock;

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

/// What a thread polls between `ibv_start_poll` and `ibv_end_poll`.
#[derive(Default)]
pub(super) struct Polling {
    /// The thread, or 0.
    thread: AtomicUsize,
    /// The CQ is locked, so only that thread uses the cell.
    current: UnsafeCell<Current>,
}

/// What the functions of the CQ read of a completion.
#[derive(Default)]
struct Current {
    opcode: u32,
    vendor_err: u32,
    byte_len: u32,
    wc_flags: u32,
    rare: Rare,
    /// Of a CQ with wall-clock times, as `ibv_start_poll` found it.
    clock: Option<ClockInfo>,
}

/// The fields that a CQ has if its program asks for more than the length.
#[derive(Default)]
struct Rare {
    qp_num: u32,
    /// In network byte order, or the invalidated R_Key.
    imm_data: u32,
    src_qp: u32,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
    timestamp: u64,
    cvlan: u16,
    flow_tag: u32,
}

/// The flags of the other fields.
const FREQUENT: u64 = IBV_WC_EX_WITH_BYTE_LEN as u64;

/// The functions that poll the CQs of a provider.
pub(crate) const fn poll_functions<P: BuiltIn, const IS_ELIDED: bool>() -> PollFunctions {
    PollFunctions {
        frequent: [
            Function::new(start_poll::<P, false, IS_ELIDED> as *const ()),
            Function::new(next_poll::<P, false> as *const ()),
        ],
        all: [
            Function::new(start_poll::<P, true, IS_ELIDED> as *const ()),
            Function::new(next_poll::<P, true> as *const ()),
        ],
        end: Function::new(end_poll::<P, IS_ELIDED> as *const ()),
        start_with_clock: Function::new(start_poll_with_clock as *const ()),
    }
}

/// The struct of C with the functions of these fields.
pub(super) fn functions(base: ibv_cq, wc_flags: Option<u64>, polling: &PollFunctions) -> ibv_cq_ex {
    let function = |is_wanted: bool, function: *const ()| {
        if is_wanted { Function::new(function) } else { Function::NULL }
    };
    let always = |address| function(wc_flags.is_some(), address);
    let with = |flag, address| function(wc_flags.is_some_and(|flags| has(flags, flag)), address);
    let has_clock = wc_flags.is_some_and(|flags| has(flags, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK));
    let has_rare = wc_flags.is_some_and(|flags| flags & !FREQUENT != 0);
    let [start_poll, next_poll] = if has_rare { polling.all } else { polling.frequent };
    let start_poll = if has_clock { polling.start_with_clock } else { start_poll };
    ibv_cq_ex {
        base,
        comp_mask: 0,
        status: AtomicU32::new(0),
        wr_id: AtomicU64::new(0),
        start_poll: if wc_flags.is_some() { start_poll } else { Function::NULL },
        next_poll: if wc_flags.is_some() { next_poll } else { Function::NULL },
        end_poll: if wc_flags.is_some() { polling.end } else { Function::NULL },
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
struct PollCurrent<'a, const HAS_RARE: bool> {
    abi: &'a ibv_cq_ex,
    current: &'a mut Current,
}

impl<const HAS_RARE: bool> Visitor for PollCurrent<'_, HAS_RARE> {
    /// Whether there is one. `None`: the fast path declined it.
    type Output = Option<bool>;

    #[inline(always)]
    fn completion(self, completion: impl Completion) -> Option<bool> {
        let Self { abi, current } = self;
        // Each field is written when it is read: all of them together don't fit into the registers.
        abi.wr_id.store(completion.wr_id(), Ordering::Relaxed);
        abi.status.store(completion.status().0, Ordering::Relaxed);
        current.opcode = completion.opcode().0;
        current.vendor_err = completion.vendor_err();
        current.byte_len = completion.byte_len();
        current.wc_flags = if completion.is_recv() { wc_flags(completion.wc_flags()) } else { 0 };
        if HAS_RARE {
            current.rare.timestamp = completion.timestamp().unwrap_or(0);
            current.rare.qp_num = completion.qp_num();
            if completion.is_recv() {
                current.rare.imm_data = imm_data(&completion);
                current.rare.src_qp = completion.src_qp();
                current.rare.slid = completion.slid();
                current.rare.sl = completion.sl();
                current.rare.dlid_path_bits = completion.dlid_path_bits();
                current.rare.cvlan = completion.cvlan().unwrap_or(0);
                current.rare.flow_tag = completion.flow_tag().unwrap_or(0);
            } else {
                let Rare { timestamp, qp_num, .. } = current.rare;
                current.rare = Rare { timestamp, qp_num, ..Rare::default() };
            }
        }
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
    /// Uses the queue, with the lock. A thread may do so between `ibv_start_poll` and `ibv_end_poll`, as in
    /// C.
    pub(crate) fn with_queue<R>(&self, call: impl FnOnce(&mut Cq) -> R) -> R {
        if self.abi.polling.thread.load(Ordering::Relaxed) != lock::thread() {
            return call(&mut self.inner.lock());
        }
        // SAFETY: this thread has left the CQ locked, and is in no other function. The CQ stays locked.
        let mut queue = ManuallyDrop::new(unsafe { self.inner.take_up() });
        call(&mut queue)
    }

    /// The current completion.
    ///
    /// # Safety
    ///
    /// The thread holds the lock, and nothing else refers to the completion while the reference is used.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "the value is in a cell")]
    unsafe fn current(&self) -> &mut Current {
        // SAFETY: by the contract.
        unsafe { &mut *self.abi.polling.current.get() }
    }

    /// What takes the next completion.
    ///
    /// # Safety
    ///
    /// As for [`current`](Self::current).
    #[inline(always)]
    unsafe fn poll_current<const HAS_RARE: bool>(&self) -> PollCurrent<'_, HAS_RARE> {
        // SAFETY: by the contract.
        PollCurrent { abi: &self.abi.abi, current: unsafe { self.current() } }
    }
}

/// `ibv_start_poll`. An empty CQ is `ENOENT`, without the lock. The fast path is that of one completion, or
/// of none.
#[inline(always)]
fn start<P: BuiltIn, const HAS_RARE: bool>(cq: &CqObject, is_elided: bool) -> c_int {
    let Some(mut guard) = cq.inner.try_lock(is_elided) else { return start_contended(cq) };
    // SAFETY: the lock is held. The device of the CQ has this provider: see `data_path`.
    match unsafe { guard.visit_next_of::<P, _>(cq.poll_current::<HAS_RARE>()) } {
        Some(true) => {
            cq.abi.polling.thread.store(lock::thread(), Ordering::Relaxed);
            // `ibv_end_poll` unlocks.
            mem::forget(guard);
            0
        }
        Some(false) => guard.unlock_with(libc::ENOENT),
        None => {
            mem::forget(guard);
            // SAFETY: the CQ was left locked.
            unsafe { start_declined(cq) }
        }
    }
}

#[cold]
#[inline(never)]
fn start_contended(cq: &CqObject) -> c_int {
    mem::forget(cq.inner.lock());
    // SAFETY: the CQ was left locked.
    unsafe { start_declined(cq) }
}

/// `ibv_start_poll` of any completion.
///
/// # Safety
///
/// The caller has left the CQ locked.
#[inline(never)]
unsafe fn start_declined(cq: &CqObject) -> c_int {
    // SAFETY: by the contract.
    let found = unsafe { next_declined(cq) };
    if found == 0 {
        // `ibv_end_poll` unlocks.
        cq.abi.polling.thread.store(lock::thread(), Ordering::Relaxed);
    } else {
        // SAFETY: by the contract.
        drop(unsafe { cq.inner.take_up() });
    }
    found
}

/// `ibv_next_poll` of any completion.
///
/// # Safety
///
/// The caller has left the CQ locked.
#[inline(never)]
unsafe fn next_declined(cq: &CqObject) -> c_int {
    // SAFETY: by the contract. The CQ stays locked.
    let (mut queue, current) = unsafe { (ManuallyDrop::new(cq.inner.take_up()), cq.poll_current::<true>()) };
    let mut completions = queue.poll();
    let Some(completion) = completions.next() else { return libc::ENOENT };
    current.completion(completion);
    0
}

callback! {
    /// Returns 0, or an errno. `ENOENT` is not stored to errno, as in C.
    fn start_poll<P: BuiltIn, const HAS_RARE: bool, const IS_ELIDED: bool>(
        cq: &CqObject,
        attr: Option<&ibv_poll_cq_attr>,
    ) -> Value<c_int> {
        if attr.is_some_and(|attr| attr.comp_mask != 0) {
            return Ok(OrErrno::answer(Err(Failure::INVALID)));
        }
        Ok(start::<P, HAS_RARE>(cq, IS_ELIDED))
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
        mem::forget(guard);
        // SAFETY: the CQ was left locked.
        Ok(unsafe { start_declined(cq) })
    }

    /// Returns 0, or `ENOENT`, with the lock.
    fn next_poll<P: BuiltIn, const HAS_RARE: bool>(cq: &CqObject) -> Value<c_int> {
        // SAFETY: C calls the function between `ibv_start_poll` and `ibv_end_poll` of the same thread. The value
        // of the guard is not dropped, so the CQ stays locked. Its device has this provider: see `data_path`.
        unsafe {
            let mut queue = ManuallyDrop::new(cq.inner.take_up());
            Ok(match queue.visit_next_of::<P, _>(cq.poll_current::<HAS_RARE>()) {
                Some(true) => 0,
                Some(false) => libc::ENOENT,
                None => next_declined(cq),
            })
        }
    }

    #[expect(clippy::extra_unused_type_parameters, reason = "`callback` takes a constant after a type")]
    fn end_poll<P: BuiltIn, const IS_ELIDED: bool>(cq: &CqObject) -> Value<()> {
        let thread = &cq.abi.polling.thread;
        // Before `ibv_start_poll`, nothing is polled.
        if thread.load(Ordering::Relaxed) != 0 {
            thread.store(0, Ordering::Relaxed);
            // SAFETY: `ibv_start_poll` has left the CQ locked.
            drop(unsafe { cq.inner.take_up_of(IS_ELIDED) });
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
    read_opcode -> u32: opcode;
    read_vendor_err -> u32: vendor_err;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: rare.imm_data;
    read_qp_num -> u32: rare.qp_num;
    read_wc_flags -> u32: wc_flags;
    read_src_qp -> u32: rare.src_qp;
    read_sl -> u8: rare.sl;
    read_dlid_path_bits -> u8: rare.dlid_path_bits;
    read_completion_ts -> u64: rare.timestamp;
    read_cvlan -> u16: rare.cvlan;
    read_flow_tag -> u32: rare.flow_tag;
}

callback! {
    fn read_slid(cq: &CqObject) -> Value<u32> {
        // SAFETY: as of the functions above.
        Ok(unsafe { cq.current() }.rare.slid.into())
    }

    fn read_completion_wallclock_ns(cq: &CqObject) -> Value<u64> {
        // SAFETY: as of the functions above.
        let current = unsafe { cq.current() };
        let time = current.clock.map(|clock| clock.time(current.rare.timestamp));
        Ok(time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}
