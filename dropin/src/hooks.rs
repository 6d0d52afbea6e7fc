//! A trace of the data path, and injected faults: functions in place of those that C finds in objects.
//!
//! They are chosen when an object is created. Without the variables of the environment, an object has its own
//! functions, so its data path costs the same.

mod completions;
mod requests;
mod trace;

use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::LazyLock;
use std::time::Instant;

use self::trace::{Line, Trace};
use crate::abi::Function;
use crate::abi::device::{ibv_context, ibv_context_ops, verbs_context};
use crate::abi::qp::ibv_qp;
use crate::abi::work::{ibv_recv_wr, ibv_send_wr};
use crate::convention::{Convention, Failure, OrErrno};
use crate::environment::environment;
use crate::faults::{Faults, before, faults};

pub(crate) use self::completions::CqHooks;
pub(crate) use self::requests::QpHooks;

/// What the variables ask for.
pub(crate) struct Hooks {
    trace: Option<Trace>,
    faults: Option<&'static Faults>,
}

static HOOKS: LazyLock<Option<Hooks>> = LazyLock::new(|| {
    let trace = environment().trace.as_deref().and_then(Trace::create);
    let faults = faults();
    (trace.is_some() || faults.is_some()).then_some(Hooks { trace, faults })
});

/// `None`: nothing is asked for, or its file can't be used.
fn hooks() -> Option<&'static Hooks> {
    HOOKS.as_ref()
}

/// The start of an object of C, and its hooks.
#[repr(C)]
pub(crate) struct Hooked<A, H> {
    pub(crate) abi: A,
    pub(crate) hooks: Option<Box<H>>,
}

impl<A, H> Hooked<A, H> {
    /// The hooks of a live object whose functions were replaced.
    ///
    /// # Safety
    ///
    /// The object begins with this struct.
    unsafe fn of<'a>(object: *const Self) -> &'a H {
        // SAFETY: by the contract.
        unsafe { &*object }.hooks.as_deref().expect("only hooked objects have the functions")
    }
}

/// The functions that an open device had before.
pub(crate) struct ContextHooks {
    hooks: &'static Hooks,
    post_send: Function,
    post_recv: Function,
    post_srq_recv: Function,
    poll_cq: Function,
    req_notify_cq: Function,
}

/// Replaces the functions of an open device, if the environment asks for a trace or faults.
pub(crate) fn hook_context(operations: &mut ibv_context_ops) -> Option<Box<ContextHooks>> {
    let hooks = hooks()?;
    let replace = |place: &mut Function, by: *const ()| std::mem::replace(place, Function::new(by));
    Some(Box::new(ContextHooks {
        hooks,
        post_send: replace(&mut operations.post_send, post_send as *const ()),
        post_recv: replace(&mut operations.post_recv, post_recv as *const ()),
        post_srq_recv: replace(&mut operations.post_srq_recv, post_srq_recv as *const ()),
        poll_cq: replace(&mut operations.poll_cq, completions::poll_cq as *const ()),
        req_notify_cq: replace(&mut operations.req_notify_cq, completions::req_notify_cq as *const ()),
    }))
}

/// The hooks of an open device.
///
/// # Safety
///
/// The context is live, and has hooks.
unsafe fn of_context<'a>(context: *mut ibv_context) -> &'a ContextHooks {
    // SAFETY: by the contract. `verbs_context` is around the context, and its object begins with both.
    unsafe {
        Hooked::of(
            context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<Hooked<verbs_context, _>>(),
        )
    }
}

type PostSend = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
type PostRecv<Q> = unsafe extern "C" fn(*mut Q, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: C calls the function with a live QP of a hooked device.
    let (qp_of_c, context) = unsafe { (&*qp, of_context((*qp).context)) };
    let hooks = context.hooks;
    if let Err(errno) = before("post_send") {
        // SAFETY: the pointer is null or valid.
        if let Some(bad) = unsafe { bad.as_mut() } {
            *bad = first;
        }
        return OrErrno::answer(Err(Failure::of_errno(errno)));
    }
    let begin = Instant::now();
    // SAFETY: the function had this type. It gets the arguments of this one.
    let result = unsafe { context.post_send.cast::<PostSend>()(qp, first, bad) };
    let Some(trace) = &hooks.trace else { return result };
    let errno = Failure::last_errno();
    // SAFETY: as above.
    let end = unsafe { bad.as_ref() }.filter(|_| result != 0).map(|bad| bad.cast_const());
    let mut next = first.cast_const();
    // SAFETY: the requests up to the bad one are a valid list.
    while let Some(request) = unsafe { next.as_ref() } {
        let is_bad = end == Some(next);
        let failed = if is_bad { result } else { 0 };
        let line = Line { begin, call: "post-send", context: qp_of_c.context, result: -failed };
        // SAFETY: the request was posted, so its SGEs are valid; those of the bad one are not read.
        trace.write(&line, Some(&unsafe { trace::send(qp_of_c, request, !is_bad) }), None);
        next = if is_bad { std::ptr::null() } else { request.next };
    }
    Failure::restore_errno(errno);
    result
}

/// Calls a function that posts receives, and traces them.
///
/// # Safety
///
/// `original` has the type of functions that post receives to a `Q`. The other arguments are those of C.
unsafe fn post_receives<Q>(
    context: *mut ibv_context,
    qp_num: Option<u32>,
    original: Function,
    queue: *mut Q,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let begin = Instant::now();
    // SAFETY: by the contract.
    let (result, hooks) =
        unsafe { (original.cast::<PostRecv<Q>>()(queue, first, bad), of_context(context).hooks) };
    let Some(trace) = &hooks.trace else { return result };
    let errno = Failure::last_errno();
    // SAFETY: by the contract.
    let end = unsafe { bad.as_ref() }.filter(|_| result != 0).map(|bad| bad.cast_const());
    let mut next = first.cast_const();
    // SAFETY: the requests up to the bad one are a valid list.
    while let Some(request) = unsafe { next.as_ref() } {
        let is_bad = end == Some(next);
        let call = if qp_num.is_some() { "post-recv" } else { "post-srq-recv" };
        let line = Line { begin, call, context, result: if is_bad { -result } else { 0 } };
        // SAFETY: the request was posted, so its SGEs are valid; those of the bad one are not read.
        trace.write(&line, Some(&unsafe { trace::receive(qp_num, request, !is_bad) }), None);
        next = if is_bad { std::ptr::null() } else { request.next };
    }
    Failure::restore_errno(errno);
    result
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `post_send`.
    unsafe {
        let (context, qp_num) = ((*qp).context, (*qp).qp_num);
        post_receives(context, Some(qp_num), of_context(context).post_recv, qp, first, bad)
    }
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut crate::abi::srq::ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as in `post_send`.
    unsafe {
        let context = (*srq).context;
        post_receives(context, None, of_context(context).post_srq_recv, srq, first, bad)
    }
}
