//! Objects that several threads use, and calls that end in another state than they began.

mod stress;

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::qp::{QpAttrMask, QpState, QpType};

use super::in_time;
use super::inline::{poll_cq, post_recv};
use super::objects::{context_and_pd, zeroed};
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc};
use crate::abi::memory::ibv_pd;
use crate::abi::qp::{ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::abi::values::{IBV_QP_EX_WITH_SEND, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
use crate::abi::work::ibv_recv_wr;
use crate::context::ContextArgument;
use crate::cq::{create_cq_ex, ibv_create_cq, ibv_destroy_cq, ibv_resize_cq, req_notify_cq};
use crate::memory::ibv_dealloc_pd;
use crate::open::ibv_close_device;
use crate::qp::{QpObject, create_qp_ex, ibv_destroy_qp, ibv_modify_qp};

/// A UD QP that takes receives, whose sends and receives have this CQ.
///
/// # Safety
///
/// The objects exist.
unsafe fn create_qp(context: ContextArgument<'_>, pd: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr_ex = zeroed();
    (init.send_cq, init.recv_cq, init.pd, init.qp_type) = (cq, cq, pd, QpType::UD.0);
    init.cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    init.comp_mask = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).cast_unsigned();
    init.send_ops_flags = IBV_QP_EX_WITH_SEND as u64;
    // SAFETY: by the contract.
    unsafe {
        let qp = create_qp_ex(context, Some(&mut init));
        let mut attr: ibv_qp_attr = zeroed();
        (attr.qp_state, attr.port_num, attr.qkey) = (QpState::INIT.0.into(), 1, 1);
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        let mask = mask.bits().cast_signed();
        assert_eq!(ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask), 0);
        qp
    }
}

/// Posts a receive, which the transition to ERR completes.
///
/// # Safety
///
/// The QP exists.
unsafe fn flush_receive(qp: *mut ibv_qp) {
    let mut request = ibv_recv_wr { wr_id: 1, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
    let mut bad = ptr::null_mut();
    let mut attr: ibv_qp_attr = zeroed();
    attr.qp_state = QpState::ERR.0.into();
    let mask = QpAttrMask::STATE.bits().cast_signed();
    // SAFETY: by the contract.
    unsafe {
        assert_eq!(post_recv(&*qp.cast::<QpObject>(), &raw mut request, Some(&mut bad)), 0);
        assert_eq!(ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask), 0);
    }
}

fn within_limit(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "no completion");
        thread::yield_now();
    }
}

type Start = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type Next = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;
type End = unsafe extern "C" fn(*mut ibv_cq_ex);

#[test]
fn cq_that_is_polled_stays_locked_when_its_destruction_is_refused() {
    let (context, pd) = context_and_pd();
    let mut init: ibv_cq_init_attr_ex = zeroed();
    init.cqe = 8;
    let mut attr: ibv_poll_cq_attr = zeroed();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let cq = create_cq_ex(context, Some(&init));
        let (start, next): (Start, Next) = ((*cq).start_poll.cast(), (*cq).next_poll.cast());
        let end: End = (*cq).end_poll.cast();
        let qp = create_qp(context, pd, cq.cast());
        assert_eq!(start(cq, &raw mut attr), libc::ENOENT);
        flush_receive(qp);
        within_limit(|| start(cq, &raw mut attr) == 0);
        assert_eq!(((*cq).wr_id.load(Ordering::Relaxed), (*cq).status.load(Ordering::Relaxed)), (1, 5));
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), libc::EBUSY);
        let inner = &(*cq.cast::<crate::cq::CqObject>()).inner;
        assert!(inner.try_lock(false).is_none());
        assert_eq!(next(cq), libc::ENOENT);
        end(cq);
        assert!(inner.try_lock(false).is_some());
        assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}

#[test]
fn thread_that_polls_in_place_arms_and_resizes_the_cq_and_creates_qps() {
    let (context, pd) = context_and_pd();
    let init = ibv_cq_init_attr_ex { cqe: 8, ..zeroed() };
    // SAFETY: the calls are those of a C program.
    unsafe {
        let cq = create_cq_ex(context, Some(&init));
        let addresses = [cq.expose_provenance(), pd.expose_provenance()];
        let context_address = context.pointer().expose_provenance();
        // It would wait for itself.
        in_time(move || {
            let [cq, pd] = addresses;
            let (cq, pd): (*mut ibv_cq_ex, _) =
                (ptr::with_exposed_provenance_mut(cq), ptr::with_exposed_provenance_mut(pd));
            let context = ContextArgument::of(ptr::with_exposed_provenance_mut(context_address));
            let (start, end): (Start, End) = ((*cq).start_poll.cast(), (*cq).end_poll.cast());
            let qp = create_qp(context, pd, cq.cast());
            flush_receive(qp);
            let mut attr: ibv_poll_cq_attr = zeroed();
            within_limit(|| start(cq, &raw mut attr) == 0);
            let object = cq.cast::<crate::cq::CqObject>().as_ref();
            assert_eq!(req_notify_cq(object, 0), 0);
            assert_eq!(ibv_resize_cq(object, 16), 0);
            let other = create_qp(context, pd, cq.cast());
            assert_eq!((*cq).wr_id.load(Ordering::Relaxed), 1);
            end(cq);
            assert!((*cq.cast::<crate::cq::CqObject>()).inner.try_lock(false).is_some());
            for qp in [qp, other] {
                assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);
            }
        });
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}

#[test]
fn another_thread_completes_what_a_thread_that_ended_has_started() {
    type Void = unsafe extern "C" fn(*mut ibv_qp_ex);
    type Complete = unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int;
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let cq = ibv_create_cq(context, 8, ptr::null_mut(), None, 0);
        let qp = create_qp(context, pd, cq);
        let ex: *mut ibv_qp_ex = qp.cast();
        let (start, complete): (Void, Complete) = ((*ex).wr_start.cast(), (*ex).wr_complete.cast());
        let address = ex.expose_provenance();
        thread::spawn(move || start(ptr::with_exposed_provenance_mut(address))).join().unwrap();
        assert_eq!((complete(ex), complete(ex)), (0, libc::EINVAL));
        start(ex);
        assert_eq!(complete(ex), 0);
        assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}

#[test]
fn thread_polls_a_cq_while_another_creates_and_destroys_its_qps() {
    const ROUNDS: usize = 100;
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let cq = ibv_create_cq(context, 256, ptr::null_mut(), None, 0);
        let ended = AtomicBool::new(false);
        let polled = thread::scope(|scope| {
            let (address, ended) = (cq.expose_provenance(), &ended);
            let poller = scope.spawn(move || {
                let cq = &*ptr::with_exposed_provenance_mut::<crate::cq::CqObject>(address);
                let mut polled = 0;
                loop {
                    let is_last = ended.load(Ordering::Acquire);
                    let mut completions: [ibv_wc; 2] = [zeroed(), zeroed()];
                    let count = poll_cq(cq, 2, completions.as_mut_ptr());
                    assert!((0..=2).contains(&count));
                    assert!(completions[..count as usize].iter().all(|completion| completion.wr_id == 1));
                    polled += count as usize;
                    if is_last && count == 0 {
                        return polled;
                    }
                }
            });
            for _ in 0..ROUNDS {
                let qp = create_qp(context, pd, cq);
                flush_receive(qp);
                assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);
            }
            ended.store(true, Ordering::Release);
            poller.join().unwrap()
        });
        assert!(polled <= ROUNDS);
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}
