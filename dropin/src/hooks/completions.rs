//! The functions of hooked CQs.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bareverbs::WcStatus;

use super::trace::{self, Line, add};
use super::{Hooked, Hooks, hooks, of_context};
use crate::abi::Function;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc};
use crate::convention::{Convention, Failure, OrErrno};
use crate::faults::before;
use crate::object::lock;

type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
type ReqNotifyCq = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type NextPoll = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;
type EndPoll = unsafe extern "C" fn(*mut ibv_cq_ex);
type Read<T> = unsafe extern "C" fn(*mut ibv_cq_ex) -> T;

impl Hooks {
    /// Counts a completion with this status. Returns the error that it becomes by a rule.
    fn fail(&self, status: u32) -> Option<WcStatus> {
        // One that failed by itself counts too.
        self.faults?.completion().filter(|_| WcStatus(status) == WcStatus::SUCCESS)
    }

    pub(super) fn fail_qp(&self, qp_num: u32) {
        if let Some(faults) = self.faults {
            faults.fail_qp(qp_num);
        }
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, into: *mut ibv_wc) -> c_int {
    let begin = Instant::now();
    // SAFETY: C calls the function with a live CQ of a hooked device. The original has its type.
    let (context, original) = unsafe { ((*cq).context, of_context((*cq).context)) };
    // SAFETY: as above.
    let polled = unsafe { original.poll_cq.cast::<PollCq>()(cq, count, into) };
    let errno = Failure::last_errno();
    let hooks = original.hooks;
    for at in 0..usize::try_from(polled).unwrap_or(0) {
        // SAFETY: the CQ has written these structs.
        let completion = unsafe { &mut *into.add(at) };
        if let Some(status) = hooks.fail(completion.status) {
            completion.status = status.0;
            hooks.fail_qp(completion.qp_num);
        }
        if let Some(trace) = &hooks.trace {
            let mut members = String::new();
            add(&mut members, "qp_num", completion.qp_num);
            add(&mut members, "vendor_err", completion.vendor_err);
            if WcStatus(completion.status) == WcStatus::SUCCESS {
                add(&mut members, "byte_len", completion.byte_len);
                add(&mut members, "src_qp", completion.src_qp);
                add(&mut members, "wc_flags", completion.wc_flags);
                // The R_Key that was invalidated has another byte order, so both are as in the struct.
                add(&mut members, "imm_data", completion.imm_data);
            }
            let message =
                trace::completion(completion.wr_id, completion.status, Some(completion.opcode), &members);
            trace.write(&Line { begin, call: "poll-cq", context, result: polled }, None, Some(&message));
        }
    }
    Failure::restore_errno(errno);
    polled
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as in `poll_cq`.
    let original = unsafe { of_context((*cq).context) };
    match before("req_notify_cq") {
        Err(errno) => OrErrno::answer(Err(Failure::of_errno(errno))),
        // SAFETY: as in `poll_cq`.
        Ok(()) => unsafe { original.req_notify_cq.cast::<ReqNotifyCq>()(cq, solicited_only) },
    }
}

/// The functions that an extended CQ had before.
pub(crate) struct CqHooks {
    hooks: &'static Hooks,
    start_poll: Function,
    next_poll: Function,
    end_poll: Function,
    /// The QPs whose completions became errors. They are moved to ERR once the CQ is not locked any more.
    failed: Mutex<Vec<u32>>,
}

impl CqHooks {
    /// Replaces the functions of an extended CQ, if the environment asks for a trace or faults.
    pub(crate) fn replace(cq: &mut ibv_cq_ex) -> Option<Box<Self>> {
        let hooks = hooks().filter(|_| !cq.start_poll.is_null())?;
        let replace = |place: &mut Function, by: *const ()| std::mem::replace(place, Function::new(by));
        Some(Box::new(Self {
            hooks,
            start_poll: replace(&mut cq.start_poll, start_poll as *const ()),
            next_poll: replace(&mut cq.next_poll, next_poll as *const ()),
            end_poll: replace(&mut cq.end_poll, end_poll as *const ()),
            failed: Mutex::default(),
        }))
    }
}

/// The hooks of a CQ.
///
/// # Safety
///
/// The CQ is live, and has hooks.
unsafe fn of_cq<'a>(cq: *mut ibv_cq_ex) -> &'a CqHooks {
    // SAFETY: by the contract. The object begins with the struct.
    unsafe { Hooked::of(cq.cast::<Hooked<ibv_cq_ex, _>>()) }
}

/// Fails and traces the completion that the thread polls.
///
/// # Safety
///
/// The calling thread polls this CQ.
unsafe fn polled(cq: *mut ibv_cq_ex, hooks: &CqHooks, begin: Instant) {
    /// A field that the program asked for.
    unsafe fn read<T>(cq: *mut ibv_cq_ex, function: Function) -> Option<T> {
        // SAFETY: the function has the type, and the calling thread polls the CQ.
        (!function.is_null()).then(|| unsafe { function.cast::<Read<T>>()(cq) })
    }

    // SAFETY: by the contract. The functions have the types of their fields.
    let (cq_of_c, qp_num) = unsafe { (&*cq, read::<u32>(cq, (*cq).read_qp_num)) };
    if let Some(status) = hooks.hooks.fail(cq_of_c.status.load(Ordering::Relaxed)) {
        cq_of_c.status.store(status.0, Ordering::Relaxed);
        lock(&hooks.failed).extend(qp_num);
    }
    let Some(trace) = &hooks.hooks.trace else { return };
    let mut members = String::new();
    // SAFETY: as above.
    let (opcode, vendor_err) = unsafe { (read(cq, cq_of_c.read_opcode), read(cq, cq_of_c.read_vendor_err)) };
    let mut add_read = |name: &str, value: Option<u32>| {
        if let Some(value) = value {
            add(&mut members, name, value);
        }
    };
    add_read("qp_num", qp_num);
    add_read("vendor_err", vendor_err);
    let status = cq_of_c.status.load(Ordering::Relaxed);
    if WcStatus(status) == WcStatus::SUCCESS {
        // SAFETY: as above.
        unsafe {
            add_read("byte_len", read(cq, cq_of_c.read_byte_len));
            add_read("src_qp", read(cq, cq_of_c.read_src_qp));
            add_read("wc_flags", read(cq, cq_of_c.read_wc_flags));
            add_read("imm_data", read(cq, cq_of_c.read_imm_data));
        }
    }
    let message = trace::completion(cq_of_c.wr_id.load(Ordering::Relaxed), status, opcode, &members);
    let line = Line { begin, call: "poll-cq", context: cq_of_c.base.context, result: 1 };
    trace.write(&line, None, Some(&message));
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let begin = Instant::now();
    // SAFETY: C calls the function with a live CQ with hooks. The original has its type.
    unsafe {
        let hooks = of_cq(cq);
        let result = hooks.start_poll.cast::<StartPoll>()(cq, attr);
        if result == 0 {
            polled(cq, hooks, begin);
        }
        result
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let begin = Instant::now();
    // SAFETY: as in `start_poll`.
    unsafe {
        let hooks = of_cq(cq);
        let result = hooks.next_poll.cast::<NextPoll>()(cq);
        if result == 0 {
            polled(cq, hooks, begin);
        }
        result
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: as in `start_poll`.
    let hooks = unsafe { of_cq(cq) };
    let failed = std::mem::take(&mut *lock(&hooks.failed));
    // SAFETY: as in `start_poll`.
    unsafe { hooks.end_poll.cast::<EndPoll>()(cq) };
    failed.into_iter().for_each(|qp_num| hooks.hooks.fail_qp(qp_num));
}
