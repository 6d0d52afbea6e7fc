//! Functions with random masks, values, lengths and null pointers: each succeeds, or returns an errno and
//! creates nothing.

mod others;

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use bareverbs::qp::{QpAttrMask, QpState, QpType};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::errno;
use super::inline::{poll_cq, post_recv, post_send, post_srq_recv};
use super::objects::{context_and_pd, zeroed};
use crate::abi::Function;
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_modify_cq_attr, ibv_poll_cq_attr, ibv_wc};
use crate::abi::memory::{ibv_alloc_dm_attr, ibv_mr_init_attr, ibv_pd};
use crate::abi::qp::{ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::abi::srq::{ibv_srq_attr, ibv_srq_init_attr_ex};
use crate::abi::values::{
    IBV_QP_EX_WITH_SEND, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, IBV_WC_EX_WITH_BYTE_LEN,
};
use crate::abi::work::{ibv_data_buf, ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::abi::wq::ibv_wq_init_attr;
use crate::context::ContextArgument;
use crate::cq::{create_cq_ex, ibv_create_cq, ibv_destroy_cq, ibv_resize_cq, modify_cq, req_notify_cq};
use crate::device_memory::{alloc_dm, free_dm};
use crate::memory::{PdObject, ibv_dealloc_pd, ibv_dereg_mr, ibv_reg_mr_ex};
use crate::open::ibv_close_device;
use crate::qp::{QpObject, create_qp_ex, ibv_destroy_qp, ibv_modify_qp};
use crate::srq::{SrqObject, create_srq_ex, ibv_destroy_srq, ibv_modify_srq};
use crate::wq::{create_wq, destroy_wq};

/// Elements of the lists: as many as the queues take. No memory follows the last one.
const ELEMENTS: usize = 2;
/// Bytes of the memory that they name.
const BYTES: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4096;

/// Random words, each of which is used once.
struct Words<'a>(std::slice::Iter<'a, u64>);

impl Words<'_> {
    fn next(&mut self) -> u64 {
        self.0.next().copied().unwrap_or(0)
    }

    /// Mostly a small number.
    fn number(&mut self) -> u32 {
        let word = self.next();
        match word % 4 {
            0 => (word >> 8) as u32,
            _ => (word >> 8) as u32 % 16,
        }
    }

    /// Mostly a few of the low bits.
    fn mask(&mut self) -> u32 {
        let word = self.next();
        if word.is_multiple_of(4) { (word >> 8) as u32 } else { (word >> 8) as u32 & 0xff }
    }

    fn flip(&mut self) -> bool {
        self.next().is_multiple_of(4)
    }

    /// A valid pointer, or null.
    fn pointer<T>(&mut self, valid: *mut T) -> *mut T {
        if self.flip() { ptr::null_mut() } else { valid }
    }
}

/// The objects of the test.
struct Objects {
    context: ContextArgument<'static>,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    cq_ex: *mut ibv_cq_ex,
    srq: *mut crate::abi::srq::ibv_srq,
    qp: *mut ibv_qp,
    /// Of type RC, in RESET.
    rc: *mut ibv_qp,
    sges: *mut [ibv_sge; ELEMENTS],
    bytes: [u8; BYTES],
}

fn is_expected(code: c_int) -> bool {
    [
        libc::EINVAL,
        libc::EOPNOTSUPP,
        libc::ENOMEM,
        libc::EPERM,
        libc::EACCES,
        libc::ENODATA,
        libc::EFAULT,
        libc::ENOSYS,
        libc::EBADF,
        libc::ENOENT,
        libc::ERANGE,
    ]
    .contains(&code)
}

/// A pointer that was returned: it is destroyed at once, or null with an errno.
#[track_caller]
fn made<T>(object: *mut T, destroy: impl FnOnce(*mut T) -> c_int) {
    if object.is_null() {
        assert!(is_expected(errno()), "{}", std::io::Error::last_os_error());
    } else {
        assert_eq!(destroy(object), 0, "an object without users is destroyed");
    }
}

#[track_caller]
fn returned(code: c_int) {
    assert!(code == 0 || is_expected(code), "{}", std::io::Error::from_raw_os_error(code));
}

/// Memory that ends where a page without access begins.
fn before_a_gap<T>() -> *mut T {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the mapping is new, and the test never unmaps it.
    unsafe {
        let start = libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
        start.byte_add(PAGE - size_of::<T>()).cast()
    }
}

impl Objects {
    fn new() -> Self {
        let (context, pd) = context_and_pd();
        // SAFETY: the calls are those of a C program.
        unsafe {
            let cq = ibv_create_cq(context, 64, ptr::null_mut(), None, 0);
            let mut init: ibv_cq_init_attr_ex = zeroed();
            (init.cqe, init.wc_flags) = (64, IBV_WC_EX_WITH_BYTE_LEN as u64);
            let cq_ex = create_cq_ex(context, Some(&init));
            let mut init: ibv_srq_init_attr_ex = zeroed();
            (init.attr.max_wr, init.attr.max_sge, init.pd, init.comp_mask) = (4, 1, pd, 2);
            let srq = create_srq_ex(context, Some(&mut init));
            let mut init: ibv_qp_init_attr_ex = zeroed();
            (init.send_cq, init.recv_cq, init.pd) = (cq, cq_ex.cast(), pd);
            init.qp_type = QpType::UD.0;
            init.cap = ibv_qp_cap {
                max_send_wr: 4,
                max_recv_wr: 4,
                max_send_sge: ELEMENTS as u32,
                max_recv_sge: ELEMENTS as u32,
                max_inline_data: 32,
            };
            init.comp_mask = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).cast_unsigned();
            init.send_ops_flags = IBV_QP_EX_WITH_SEND as u64;
            let qp = create_qp_ex(context, Some(&mut init));
            init.qp_type = QpType::RC.0;
            let rc = create_qp_ex(context, Some(&mut init));
            assert_eq!((init.cap.max_send_sge, init.cap.max_recv_sge), (2, 2));
            assert!(
                !cq.is_null() && !cq_ex.is_null() && !srq.is_null() && !qp.is_null() && !rc.is_null(),
                "{}",
                errno()
            );
            let mut attr: ibv_qp_attr = zeroed();
            (attr.port_num, attr.qkey) = (1, 1);
            let state = QpAttrMask::STATE;
            for (next, mask) in [
                (QpState::INIT, state | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY),
                (QpState::RTR, state),
                (QpState::RTS, state | QpAttrMask::SQ_PSN),
            ] {
                attr.qp_state = next.0.into();
                assert_eq!(
                    ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask.bits().cast_signed()),
                    0
                );
            }
            Self { context, pd, cq, cq_ex, srq, qp, rc, sges: before_a_gap(), bytes: [0; BYTES] }
        }
    }

    /// Nothing that was refused is left.
    fn destroy(self) {
        // SAFETY: the calls are those of a C program.
        unsafe {
            assert_eq!(ibv_destroy_qp(NonNull::new(self.qp.cast())), 0);
            assert_eq!(ibv_destroy_qp(NonNull::new(self.rc.cast())), 0);
            assert_eq!(ibv_destroy_srq(NonNull::new(self.srq.cast())), 0);
            assert_eq!(ibv_destroy_cq(NonNull::new(self.cq.cast())), 0);
            assert_eq!(ibv_destroy_cq(NonNull::new(self.cq_ex.cast())), 0);
            assert_eq!(ibv_dealloc_pd(NonNull::new(self.pd.cast())), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }

    /// A list of elements, and any number.
    fn list(&mut self, words: &mut Words<'_>) -> (*mut ibv_sge, c_int) {
        // SAFETY: the memory exists, and no call uses it.
        for sge in unsafe { &mut *self.sges } {
            let addr = self.bytes.as_ptr().expose_provenance() as u64;
            *sge = ibv_sge { addr, length: words.number() % (BYTES as u32 + 1), lkey: words.number() };
        }
        (words.pointer(self.sges.cast()), words.number() as c_int)
    }

    /// # Safety
    ///
    /// The calls are those of a C program: no test uses the objects at the same time.
    unsafe fn call(&mut self, which: usize, words: &mut Words<'_>) {
        let (context, pd) = (self.context, self.pd);
        // SAFETY: by the contract.
        let qp_object = unsafe { &*self.qp.cast::<QpObject>() };
        // SAFETY: pointers are null or valid.
        unsafe {
            match which {
                0 => {
                    let mut init: ibv_cq_init_attr_ex = zeroed();
                    (init.cqe, init.comp_vector) = (words.number(), words.number());
                    (init.wc_flags, init.comp_mask, init.flags) =
                        (words.mask().into(), words.mask(), words.mask());
                    let destroy = |cq: *mut ibv_cq_ex| ibv_destroy_cq(NonNull::new(cq.cast()));
                    made(create_cq_ex(context, words.pointer(&raw mut init).as_ref()), destroy);
                }
                1 => {
                    let mut init: ibv_qp_init_attr_ex = zeroed();
                    (init.send_cq, init.recv_cq) = (words.pointer(self.cq), words.pointer(self.cq));
                    (init.pd, init.qp_type) = (words.pointer(pd), words.number());
                    (init.cap.max_send_wr, init.cap.max_recv_wr) = (words.number(), words.number());
                    (init.cap.max_send_sge, init.cap.max_recv_sge) = (words.number(), words.number());
                    (init.comp_mask, init.create_flags) = (words.mask() | 1, words.mask());
                    (init.cap.max_inline_data, init.send_ops_flags) = (words.number(), words.mask().into());
                    let destroy = |qp: *mut ibv_qp| ibv_destroy_qp(NonNull::new(qp.cast()));
                    made(create_qp_ex(context, words.pointer(&raw mut init).as_mut()), destroy);
                }
                2 => {
                    let mut init: ibv_srq_init_attr_ex = zeroed();
                    (init.attr.max_wr, init.attr.max_sge) = (words.number(), words.number());
                    (init.attr.srq_limit, init.comp_mask, init.srq_type) =
                        (words.number(), words.mask(), words.number());
                    (init.pd, init.cq) = (words.pointer(pd), words.pointer(self.cq));
                    let destroy = |srq: *mut _| ibv_destroy_srq(NonNull::new(srq).map(NonNull::cast));
                    made(create_srq_ex(context, words.pointer(&raw mut init).as_mut()), destroy);
                }
                3 => {
                    let mut init: ibv_wq_init_attr = zeroed();
                    (init.wq_type, init.max_wr, init.max_sge) =
                        (words.number(), words.number(), words.number());
                    (init.comp_mask, init.create_flags) = (words.mask(), words.mask());
                    (init.pd, init.cq) = (words.pointer(pd), words.pointer(self.cq));
                    let destroy = |wq: *mut _| destroy_wq(NonNull::new(wq).map(NonNull::cast));
                    made(create_wq(context, words.pointer(&raw mut init).as_ref()), destroy);
                }
                4 => {
                    let mut init: ibv_mr_init_attr = zeroed();
                    (init.length, init.access) =
                        (words.number() as usize % BYTES, words.mask().cast_signed());
                    (init.comp_mask, init.iova) = (words.mask().into(), words.next());
                    (init.addr, init.fd) = (words.pointer(self.bytes.as_mut_ptr().cast::<c_void>()), -1);
                    let destroy = |mr: *mut _| ibv_dereg_mr(NonNull::new(mr).map(NonNull::cast));
                    let pd = pd.cast::<PdObject>().as_ref();
                    made(ibv_reg_mr_ex(pd, words.pointer(&raw mut init).as_ref()), destroy);
                }
                5 => {
                    let mut init: ibv_alloc_dm_attr = zeroed();
                    (init.length, init.log_align_req, init.comp_mask) =
                        (words.number() as usize, words.number(), words.mask());
                    let destroy = |dm: *mut _| free_dm(NonNull::new(dm).map(NonNull::cast));
                    made(alloc_dm(context, words.pointer(&raw mut init).as_ref()), destroy);
                }
                6 => {
                    let mut attr: ibv_qp_attr = zeroed();
                    (attr.qp_state, attr.cur_qp_state) = (words.number() | 8, words.number());
                    (attr.path_mtu, attr.path_mig_state) = (words.number(), words.number());
                    (attr.timeout, attr.min_rnr_timer) = (words.number() as u8, words.number() as u8);
                    (attr.retry_cnt, attr.port_num) = (words.number() as u8, words.number() as u8);
                    // Not one that moves the QP on.
                    let mask = (words.mask() | QpAttrMask::STATE.bits()).cast_signed();
                    returned(ibv_modify_qp(Some(qp_object), words.pointer(&raw mut attr).as_ref(), mask));
                }
                7 => {
                    let mut attr: ibv_modify_cq_attr = zeroed();
                    (attr.attr_mask, attr.moderate.cq_count) = (words.mask(), words.number() as u16);
                    let cq = self.cq.cast::<crate::cq::CqObject>().as_ref();
                    returned(modify_cq(cq, words.pointer(&raw mut attr).as_ref()));
                    returned(ibv_resize_cq(cq, words.number().cast_signed()));
                    returned(req_notify_cq(cq, words.number().cast_signed()));
                }
                8 => {
                    let mut attr: ibv_srq_attr = zeroed();
                    (attr.max_wr, attr.srq_limit) = (words.number(), words.number());
                    let srq = self.srq.cast::<SrqObject>().as_ref();
                    let mask = words.mask().cast_signed();
                    returned(ibv_modify_srq(srq, words.pointer(&raw mut attr).as_ref(), mask));
                }
                9 => {
                    let (sg_list, num_sge) = self.list(words);
                    let mut request: ibv_send_wr = zeroed();
                    (request.sg_list, request.num_sge) = (sg_list, num_sge);
                    (request.opcode, request.send_flags) = (words.number(), words.mask());
                    let request = words.pointer(&raw mut request);
                    let mut bad: *mut ibv_send_wr = ptr::null_mut();
                    let bad_of_c = words.pointer(&raw mut bad).as_mut();
                    let has_bad = bad_of_c.is_some();
                    let qp: *mut ibv_qp = if words.flip() { self.qp } else { self.rc };
                    let code = post_send(&*qp.cast(), request, bad_of_c);
                    returned(code);
                    // No address handle and a QP in RESET, so none is posted.
                    assert!(code != 0 || request.is_null());
                    assert!(code == 0 || !has_bad || bad == request);
                }
                10 => {
                    let (sg_list, num_sge) = self.list(words);
                    let mut request = ibv_recv_wr { wr_id: 1, next: ptr::null_mut(), sg_list, num_sge };
                    let request = words.pointer(&raw mut request);
                    let mut bad: *mut ibv_recv_wr = ptr::null_mut();
                    let bad_of_c = words.pointer(&raw mut bad).as_mut();
                    let has_bad = bad_of_c.is_some();
                    let code = if words.flip() {
                        post_recv(qp_object, request, bad_of_c)
                    } else {
                        post_srq_recv(&*self.srq.cast::<SrqObject>(), request, bad_of_c)
                    };
                    returned(code);
                    assert!(code == 0 || !has_bad || bad == request);
                }
                11 => {
                    let mut completion: ibv_wc = zeroed();
                    let count = (words.number() % 3).cast_signed() - 1;
                    let polled = poll_cq(&*self.cq.cast(), count, &raw mut completion);
                    assert!(polled == 0 || polled == -1 && count < 0);
                    let mut attr: ibv_poll_cq_attr = zeroed();
                    attr.comp_mask = words.mask();
                    type Start = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
                    let start = function(&(*self.cq_ex).start_poll);
                    let start: Start = start.cast();
                    let code = start(self.cq_ex, words.pointer(&raw mut attr));
                    assert!(code == libc::ENOENT || code == libc::EINVAL);
                }
                12 => {
                    let ex: *mut ibv_qp_ex = self.qp.cast();
                    type Void = unsafe extern "C" fn(*mut ibv_qp_ex);
                    type Inline = unsafe extern "C" fn(*mut ibv_qp_ex, *const c_void, usize);
                    type List<T> = unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const T);
                    type Complete = unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int;
                    let (start, send) = (&(*ex).wr_start, &(*ex).wr_send);
                    let (start, send): (Void, Void) = (function(start).cast(), function(send).cast());
                    let inline: Inline = function(&(*ex).wr_set_inline_data).cast();
                    let buffers: List<ibv_data_buf> = function(&(*ex).wr_set_inline_data_list).cast();
                    let sges: List<ibv_sge> = function(&(*ex).wr_set_sge_list).cast();
                    let complete: Complete = function(&(*ex).wr_complete).cast();
                    start(ex);
                    let count = words.number() % 4;
                    for _ in 0..count {
                        send(ex);
                        let bytes = words.pointer(self.bytes.as_mut_ptr());
                        // Any length above that of inline data.
                        let length = words.number() as usize;
                        let length = if length > BYTES { words.next() as usize | 1 << 63 } else { length };
                        match words.next() % 3 {
                            0 => inline(ex, bytes.cast(), length),
                            1 => buffers(ex, 1, &ibv_data_buf { addr: bytes.cast(), length }),
                            _ => sges(ex, words.number() as usize, words.pointer(self.sges.cast())),
                        }
                    }
                    let code = complete(ex);
                    // No address handle, so none is posted.
                    let expected: &[_] = if count == 0 { &[0] } else { &[libc::EINVAL, libc::ENOSPC] };
                    assert!(expected.contains(&code), "{code}");
                }
                other => others::CALLS[other - 13](self, words),
            }
        }
    }
}

fn function(function: &Function) -> Function {
    *function
}

#[test]
fn random_arguments_are_refused_with_an_errno_and_leave_nothing() {
    let mut objects = Objects::new();
    let mut runner =
        TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(6000) });
    let words = proptest::collection::vec(any::<u64>(), 40);
    let objects_of_run = std::cell::RefCell::new(&mut objects);
    runner
        .run(&(0..13 + others::CALLS.len(), words), |(which, words)| {
            // SAFETY: nothing else uses the objects.
            unsafe { objects_of_run.borrow_mut().call(which, &mut Words(words.iter())) };
            Ok(())
        })
        .unwrap();
    objects.destroy();
}
