//! `ibv_post_send` and `ibv_post_recv`.
//!
//! The fast path is that of a list of one request of the most frequent kinds. All else is done by functions
//! at the end of the fast path, with the same arguments, so that it saves no registers. They set errno
//! themselves.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering;

use bareverbs::error::{DoorbellError, PostError, PostReason};
use bareverbs::qp::{QpState, QpType};
use bareverbs::untyped::{BuiltIn, QpCore};

use super::QpObject;
use super::queues::{Queues, Sends};
use crate::abi::work::{ibv_recv_wr, ibv_send_wr};
use crate::convention::{Convention, Failure, OrErrno, Value, callback};
use crate::post::{PostBy, frequent_receive, frequent_send, post_receives, with_send};

callback! {
    /// Posts the requests with one doorbell, up to the first one that is rejected. Returns 0 or an errno.
    fn post_send<P: BuiltIn, const IS_ELIDED: bool>(
        qp: &QpObject,
        first: *mut ibv_send_wr,
        bad: Option<&mut *mut ibv_send_wr>,
    ) -> Value<c_int> {
        // SAFETY: the requests are a list of the program, which keeps what they name until they complete.
        Ok(unsafe {
            match qp.inner.queues() {
                Ok(queues) if !IS_ELIDED && queues.are_elided() => post_send::<P, true>(qp, first, bad),
                Ok(queues) => send::<P>(qp, queues, first, bad, IS_ELIDED),
                Err(failure) => OrErrno::answer(Err(failure)),
            }
        })
    }

    /// Returns 0 or an errno.
    fn post_recv<P: BuiltIn, const IS_ELIDED: bool>(
        qp: &QpObject,
        first: *mut ibv_recv_wr,
        bad: Option<&mut *mut ibv_recv_wr>,
    ) -> Value<c_int> {
        // SAFETY: the requests are a list of the program, which keeps their memory until they complete.
        Ok(unsafe {
            match qp.inner.queues() {
                Ok(queues) if !IS_ELIDED && queues.are_elided() => post_recv::<P, true>(qp, first, bad),
                Ok(queues) => receive::<P>(qp, queues, first, bad, IS_ELIDED),
                Err(failure) => OrErrno::answer(Err(failure)),
            }
        })
    }
}

/// The queues of a QP that was found to have some.
fn of(qp: &QpObject) -> &Queues {
    qp.inner.queues().expect("a QP with queues")
}

/// # Safety
///
/// As for [`with_send`] and `SendHalf::post_send`, for each request of the list.
#[inline(always)]
unsafe fn send<P: BuiltIn>(
    qp: &QpObject,
    queues: &Queues,
    first: *mut ibv_send_wr,
    bad: Option<&mut *mut ibv_send_wr>,
    is_elided: bool,
) -> c_int {
    let Some(mut sends) = queues.try_send(is_elided) else {
        // SAFETY: by the contract.
        return unsafe { send_contended(qp, first, bad) };
    };
    // SAFETY: by the contract.
    if let Some(request) = unsafe { first.as_ref() }
        && request.next.is_null()
        && bad.is_some()
        // SAFETY: by the contract. The device of the QP has this provider: see `data_path`.
        && let Some(posted) = unsafe { frequent_send(request, PostBy(sends.half().of_provider::<P>())) }
    {
        return match posted {
            Ok(()) => sends.unlock_with(0),
            Err(refused) => refuse(sends, refused, first, bad),
        };
    }
    sends.leave_locked();
    // SAFETY: by the contract. The queue was left locked.
    unsafe { send_list(qp, first, bad) }
}

/// Posts requests to a queue that another thread had locked.
///
/// # Safety
///
/// As for [`send`].
#[cold]
#[inline(never)]
unsafe fn send_contended(
    qp: &QpObject,
    first: *mut ibv_send_wr,
    bad: Option<&mut *mut ibv_send_wr>,
) -> c_int {
    of(qp).send().leave_locked();
    // SAFETY: by the contract. The queue was left locked.
    unsafe { send_list(qp, first, bad) }
}

/// Reports a request whose doorbell failed.
#[cold]
#[inline(never)]
fn refuse(
    sends: Sends<'_>,
    refused: PostError,
    request: *mut ibv_send_wr,
    bad: Option<&mut *mut ibv_send_wr>,
) -> c_int {
    drop(sends);
    if let Some(bad) = bad {
        *bad = if are_posted(&refused.reason) { ptr::null_mut() } else { request };
    }
    OrErrno::answer(Err(refused.reason.into()))
}

/// Whether requests count as posted although their doorbell failed: they have completions.
fn are_posted(reason: &PostReason) -> bool {
    matches!(reason, PostReason::Doorbell(DoorbellError::Posted(_)))
}

/// Posts any list of requests. `bad` becomes the first one that is rejected.
///
/// # Safety
///
/// As for [`send`]. The caller has left the send queue locked.
#[inline(never)]
unsafe fn send_list(qp: &QpObject, first: *mut ibv_send_wr, bad: Option<&mut *mut ibv_send_wr>) -> c_int {
    let kind = (QpType(qp.abi.abi.qp_base.qp_type), qp.abi.has_source);
    let no_room = qp.abi.no_room;
    // SAFETY: by the contract.
    let mut sends = unsafe { of(qp).locked_send() };
    let mut half = sends.half();
    let push_all = |bad: &mut *mut ibv_send_wr| {
        let mut batch = half.start_send();
        let mut outcome = Ok(());
        let mut next = first;
        // SAFETY: the element of the list is valid, by the contract.
        while let Some(request) = unsafe { next.as_ref() } {
            // SAFETY: by the contract.
            if unsafe { frequent_send(request, &mut batch) }.is_none() {
                // SAFETY: by the contract.
                outcome = unsafe {
                    with_send(kind, (qp.abi.cap.max_send_sge, no_room.post), request, |request| {
                        batch.push(request).map_err(|reason| no_room.failure_of_post(reason))
                    })
                };
                if outcome.is_err() {
                    *bad = next;
                    break;
                }
            }
            next = request.next;
        }
        if batch.is_empty() {
            return outcome;
        }
        batch.ring().map_err(|refused| {
            *bad = if are_posted(&refused.reason) { next } else { first };
            Failure::from(refused.reason)
        })?;
        outcome
    };
    let posted = bad.ok_or(Failure::INVALID).and_then(push_all);
    drop(sends);
    OrErrno::answer(posted)
}

/// # Safety
///
/// As for [`post_receives`].
#[inline(always)]
unsafe fn receive<P: BuiltIn>(
    qp: &QpObject,
    queues: &Queues,
    first: *mut ibv_recv_wr,
    bad: Option<&mut *mut ibv_recv_wr>,
    is_elided: bool,
) -> c_int {
    if qp.abi.abi.qp_base.state.load(Ordering::Relaxed) == u32::from(QpState::ERR.0) {
        // SAFETY: by the contract.
        return unsafe { receive_in_err(qp, first, bad) };
    }
    let Some(mut receives) = queues.try_recv(is_elided) else {
        // SAFETY: by the contract.
        return unsafe { receive_contended(qp, first, bad) };
    };
    // SAFETY: by the contract.
    if let Some(request) = unsafe { frequent_receive(first) }
        && bad.is_some()
        // SAFETY: by the contract. The device of the QP has this provider: see `data_path`.
        && unsafe { receives.half().of_provider::<P>().try_post_recv(&request) }
    {
        return receives.unlock_with(0);
    }
    receives.leave_locked();
    // SAFETY: by the contract. The queue was left locked.
    unsafe { receive_list(qp, first, bad) }
}

/// Posts receives to a queue that another thread had locked.
///
/// # Safety
///
/// As for [`post_receives`].
#[cold]
#[inline(never)]
unsafe fn receive_contended(
    qp: &QpObject,
    first: *mut ibv_recv_wr,
    bad: Option<&mut *mut ibv_recv_wr>,
) -> c_int {
    of(qp).recv().leave_locked();
    // SAFETY: by the contract. The queue was left locked.
    unsafe { receive_list(qp, first, bad) }
}

/// Posts receives to a QP in ERR, whose core flushes them.
///
/// # Safety
///
/// As for [`post_receives`].
#[cold]
#[inline(never)]
unsafe fn receive_in_err(
    qp: &QpObject,
    first: *mut ibv_recv_wr,
    bad: Option<&mut *mut ibv_recv_wr>,
) -> c_int {
    // SAFETY: by the contract.
    let post = |core: &mut _| unsafe {
        post_receives(first, bad, |requests| {
            requests.try_for_each(|request| QpCore::post_recv(core, &[request]))
        })
    };
    OrErrno::answer(of(qp).with_core(post))
}

/// Posts any list of receives. `bad` becomes the first one that is rejected.
///
/// # Safety
///
/// As for [`post_receives`]. The caller has left the receive queue locked.
#[inline(never)]
unsafe fn receive_list(qp: &QpObject, first: *mut ibv_recv_wr, bad: Option<&mut *mut ibv_recv_wr>) -> c_int {
    // SAFETY: by the contract.
    let mut receives = unsafe { of(qp).locked_recv() };
    let mut half = receives.half();
    // SAFETY: by the contract.
    let posted = unsafe {
        post_receives(first, bad, |requests| requests.try_for_each(|request| half.post_recv(&[request])))
    };
    drop(receives);
    OrErrno::answer(posted)
}
