//! Two threads that post, poll, arm, and create and destroy other objects at the same time. `cargo xtask
//! tsan` runs them under ThreadSanitizer.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bareverbs::qp::{QpAttrMask, QpState, QpType};

use super::super::errno;
use super::super::inline::{poll_cq, post_recv, post_send, post_srq_recv};
use super::super::objects::{context_and_pd, pd_of, zeroed};
use crate::abi::cq::{ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc};
use crate::abi::gid::ibv_gid;
use crate::abi::memory::{ibv_mr, ibv_pd};
use crate::abi::path::{ibv_ah, ibv_ah_attr};
use crate::abi::qp::{ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex, ibv_qp_init_attr_ex};
use crate::abi::srq::{ibv_srq, ibv_srq_init_attr};
use crate::abi::values::{IBV_QP_EX_WITH_SEND, IBV_QP_INIT_ATTR_PD, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS};
use crate::abi::work::{ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::channel::{ChannelObject, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event};
use crate::context::ContextArgument;
use crate::cq::{
    CqObject, create_cq_ex, ibv_ack_cq_events, ibv_create_cq, ibv_destroy_cq, ibv_resize_cq, req_notify_cq,
};
use crate::memory::{ibv_dealloc_pd, ibv_dereg_mr, ibv_reg_mr};
use crate::open::ibv_close_device;
use crate::path::{ibv_create_ah, ibv_destroy_ah};
use crate::port::ibv_query_gid;
use crate::qp::{QpObject, create_qp_ex, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp};
use crate::srq::{SrqObject, ibv_create_srq, ibv_destroy_srq};

/// The Q_Key of all QPs.
const QKEY: u32 = 7;
/// The first bytes of a received datagram are those of a GRH.
const BYTES: usize = 40 + 8;
/// Requests of a queue.
const DEPTH: u32 = 16;
/// What is sent: other memory than that of the receives.
static PAYLOAD: [u8; 8] = *b"datagram";

/// The objects that both threads use.
struct Shared {
    context: ContextArgument<'static>,
    pd: *mut ibv_pd,
    channel: *mut ChannelObject,
    cq: *mut ibv_cq,
    cq_ex: *mut ibv_cq_ex,
    srq: *mut ibv_srq,
    /// The second one has the SRQ.
    qps: [*mut ibv_qp; 2],
    ah: *mut ibv_ah,
    path: ibv_ah_attr,
    bytes: *mut [u8; BYTES],
    mr: *mut ibv_mr,
}

// SAFETY: C lets all threads use the objects.
unsafe impl Sync for Shared {}

/// A UD QP in RTS.
///
/// # Safety
///
/// The objects exist.
unsafe fn ready_qp(
    context: ContextArgument<'_>,
    pd: *mut ibv_pd,
    [send_cq, recv_cq]: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr_ex = zeroed();
    (init.send_cq, init.recv_cq, init.srq) = (send_cq, recv_cq, srq);
    (init.pd, init.qp_type, init.sq_sig_all) = (pd, QpType::UD.0, 1);
    init.cap = ibv_qp_cap {
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 8,
    };
    init.comp_mask = (IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).cast_unsigned();
    init.send_ops_flags = IBV_QP_EX_WITH_SEND as u64;
    let mut attr: ibv_qp_attr = zeroed();
    (attr.port_num, attr.qkey) = (1, QKEY);
    let state = QpAttrMask::STATE;
    // SAFETY: by the contract.
    unsafe {
        let qp = create_qp_ex(context, Some(&mut init));
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
        qp
    }
}

/// Whether a request was posted, or its queue is full.
#[track_caller]
fn posted(code: c_int) {
    assert!([0, libc::ENOMEM].contains(&code), "{}", std::io::Error::from_raw_os_error(code));
}

#[track_caller]
fn succeeds(code: c_int) {
    assert_eq!(code, 0, "{}", std::io::Error::from_raw_os_error(code));
}

impl Shared {
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn new() -> Self {
        let (context, pd) = context_and_pd();
        let bytes = Box::into_raw(Box::new([0; BYTES]));
        let mut path: ibv_ah_attr = zeroed();
        (path.is_global, path.port_num) = (1, 1);
        // SAFETY: by the contract.
        unsafe {
            let channel: *mut ChannelObject = ibv_create_comp_channel(context).cast();
            let flags = libc::fcntl((*channel).abi.fd, libc::F_GETFL);
            assert_eq!(libc::fcntl((*channel).abi.fd, libc::F_SETFL, flags | libc::O_NONBLOCK), 0);
            let cq = ibv_create_cq(context, 512, ptr::null_mut(), channel.as_ref(), 0);
            let mut init: ibv_cq_init_attr_ex = zeroed();
            (init.cqe, init.channel) = (512, channel.cast());
            let cq_ex = create_cq_ex(context, Some(&init));
            let mut init: ibv_srq_init_attr = zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (DEPTH, 1);
            let srq = ibv_create_srq(pd_of(pd), Some(&mut init));
            let cqs = [cq, cq_ex.cast()];
            let qps =
                [ready_qp(context, pd, cqs, ptr::null_mut()), ready_qp(context, pd, [cqs[1], cqs[0]], srq)];
            let mut gid = std::mem::MaybeUninit::<ibv_gid>::zeroed();
            succeeds(ibv_query_gid(context, 1, 0, Some(&mut gid)));
            path.grh.dgid = gid.assume_init();
            let ah = ibv_create_ah(pd_of(pd), Some(&path));
            let mr = ibv_reg_mr(pd_of(pd), bytes.cast(), BYTES, 1);
            assert!(!ah.is_null() && !mr.is_null(), "{}", errno());
            Self { context, pd, channel, cq, cq_ex, srq, qps, ah, path, bytes, mr }
        }
    }

    fn qp(&self, index: usize) -> &QpObject {
        // SAFETY: the QPs exist until `destroy`.
        unsafe { &*self.qps[index].cast() }
    }

    fn cqs(&self) -> [&CqObject; 2] {
        // SAFETY: the CQs exist until `destroy`.
        unsafe { [&*self.cq.cast(), &*self.cq_ex.cast()] }
    }

    /// Calls some functions, which `random` selects.
    ///
    /// # Safety
    ///
    /// The objects exist. Their functions have the types of C.
    unsafe fn act(&self, random: u64) {
        let (call, random) = (random % 12, random / 12);
        let index = random as usize % 2;
        // SAFETY: by the contract.
        unsafe {
            match call {
                0 | 1 => self.send(index, random),
                2 => self.build_send(index, random),
                3 | 4 => self.receive(random),
                5 | 6 => self.poll(random),
                7 => self.poll_in_place(),
                8 => succeeds(req_notify_cq(Some(self.cqs()[index]), 0)),
                9 => self.take_events(),
                10 => self.create_and_destroy_qp(),
                _ => self.create_and_destroy_others(),
            }
        }
    }

    /// `ibv_post_send` of one or two requests.
    ///
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn send(&self, index: usize, random: u64) {
        let mut sge = ibv_sge { addr: PAYLOAD.as_ptr().expose_provenance() as u64, length: 8, lkey: 0 };
        let mut requests: [ibv_send_wr; 2] = [zeroed(), zeroed()];
        for request in &mut requests {
            (request.wr_id, request.sg_list, request.num_sge) = (1, &raw mut sge, 1);
            // Inline sends.
            (request.opcode, request.send_flags) = (2, 1 << 3);
            request.wr.ud.ah = self.ah;
            // SAFETY: by the contract.
            unsafe {
                request.wr.ud.remote_qpn = (*self.qps[1 - index]).qp_num;
                request.wr.ud.remote_qkey = QKEY;
            }
        }
        let second = &raw mut requests[1];
        requests[0].next = if random & 2 == 0 { second } else { ptr::null_mut() };
        let mut bad = ptr::null_mut();
        // SAFETY: by the contract.
        posted(unsafe { post_send(self.qp(index), &raw mut requests[0], Some(&mut bad)) });
    }

    /// `ibv_wr_start` to `ibv_wr_complete` or `ibv_wr_abort`.
    ///
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn build_send(&self, index: usize, random: u64) {
        type Void = unsafe extern "C" fn(*mut ibv_qp_ex);
        type Address = unsafe extern "C" fn(*mut ibv_qp_ex, *mut ibv_ah, u32, u32);
        type Inline = unsafe extern "C" fn(*mut ibv_qp_ex, *const c_void, usize);
        type Complete = unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int;
        let ex: *mut ibv_qp_ex = self.qps[index].cast();
        // SAFETY: by the contract.
        unsafe {
            let start: Void = (*ex).wr_start.cast();
            let (send, abort): (Void, Void) = ((*ex).wr_send.cast(), (*ex).wr_abort.cast());
            let (address, inline): (Address, Inline) =
                ((*ex).wr_set_ud_addr.cast(), (*ex).wr_set_inline_data.cast());
            let complete: Complete = (*ex).wr_complete.cast();
            let to = (*self.qps[1 - index]).qp_num;
            start(ex);
            (*ex).wr_id.store(1, Ordering::Relaxed);
            for _ in 0..1 + random / 4 % 2 {
                send(ex);
                address(ex, self.ah, to, QKEY);
                inline(ex, PAYLOAD.as_ptr().cast(), PAYLOAD.len());
            }
            if random & 2 == 0 {
                abort(ex);
            } else {
                posted(complete(ex));
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn receive(&self, random: u64) {
        // SAFETY: by the contract.
        let lkey = unsafe { (*self.mr).lkey };
        let mut sge = ibv_sge { addr: self.bytes.expose_provenance() as u64, length: BYTES as u32, lkey };
        let mut request = ibv_recv_wr { wr_id: 2, next: ptr::null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: by the contract.
        posted(unsafe {
            if random & 2 == 0 {
                post_recv(self.qp(0), &raw mut request, Some(&mut bad))
            } else {
                post_srq_recv(&*self.srq.cast::<SrqObject>(), &raw mut request, Some(&mut bad))
            }
        });
    }

    /// Polls both CQs until they are empty.
    ///
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn poll(&self, random: u64) {
        let most = 1 + (random / 4 % 4) as c_int;
        for cq in self.cqs() {
            loop {
                let mut completions: [ibv_wc; 4] = std::array::from_fn(|_| zeroed());
                // SAFETY: by the contract.
                let count = unsafe { poll_cq(cq, most, completions.as_mut_ptr()) };
                assert!((0..=most).contains(&count));
                for completion in &completions[..count as usize] {
                    check(completion.wr_id, completion.status);
                }
                if count == 0 {
                    break;
                }
            }
        }
    }

    /// `ibv_start_poll` to `ibv_end_poll`, with `ibv_req_notify_cq` in between.
    ///
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn poll_in_place(&self) {
        type Start = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
        type Next = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;
        type End = unsafe extern "C" fn(*mut ibv_cq_ex);
        let cq = self.cq_ex;
        let mut attr: ibv_poll_cq_attr = zeroed();
        // SAFETY: by the contract.
        unsafe {
            let (start, next): (Start, Next) = ((*cq).start_poll.cast(), (*cq).next_poll.cast());
            let end: End = (*cq).end_poll.cast();
            if start(cq, &raw mut attr) != 0 {
                return;
            }
            succeeds(req_notify_cq(Some(self.cqs()[1]), 0));
            loop {
                check((*cq).wr_id.load(Ordering::Relaxed), (*cq).status.load(Ordering::Relaxed));
                if next(cq) != 0 {
                    break;
                }
            }
            end(cq);
        }
    }

    /// Reads and acknowledges the events of the channel.
    ///
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn take_events(&self) {
        let (mut cq, mut user): (*mut ibv_cq, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: by the contract.
        unsafe {
            while ibv_get_cq_event(self.channel.as_ref(), Some(&mut cq), Some(&mut user)) == 0 {
                assert!(self.cqs().iter().any(|known| ptr::addr_eq(*known, cq)));
                ibv_ack_cq_events(NonNull::new(cq.cast()), 1);
            }
        }
        assert_eq!(errno(), libc::EAGAIN);
    }

    /// A QP with the CQs that are polled, whose receive is flushed.
    ///
    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn create_and_destroy_qp(&self) {
        let mut request =
            ibv_recv_wr { wr_id: 3, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let mut bad = ptr::null_mut();
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = QpState::ERR.0.into();
        let mask = QpAttrMask::STATE.bits().cast_signed();
        // SAFETY: by the contract.
        unsafe {
            let qp = ready_qp(self.context, self.pd, [self.cq, self.cq_ex.cast()], ptr::null_mut());
            let object = qp.cast::<QpObject>().as_ref();
            succeeds(post_recv(&*qp.cast::<QpObject>(), &raw mut request, Some(&mut bad)));
            succeeds(ibv_modify_qp(object, Some(&attr), mask));
            let (mut attr, mut init) = (std::mem::MaybeUninit::uninit(), std::mem::MaybeUninit::uninit());
            succeeds(ibv_query_qp(object, Some(&mut attr), mask, Some(&mut init)));
            succeeds(ibv_query_qp(Some(self.qp(0)), Some(&mut attr), mask, Some(&mut init)));
            succeeds(ibv_destroy_qp(NonNull::new(qp.cast())));
        }
    }

    /// # Safety
    ///
    /// As for [`Shared::act`].
    unsafe fn create_and_destroy_others(&self) {
        let mut bytes = [0_u8; 64];
        // SAFETY: by the contract.
        unsafe {
            let mr = ibv_reg_mr(pd_of(self.pd), bytes.as_mut_ptr().cast(), bytes.len(), 1);
            let ah = ibv_create_ah(pd_of(self.pd), Some(&self.path));
            let cq = ibv_create_cq(self.context, 4, ptr::null_mut(), self.channel.as_ref(), 0);
            succeeds(ibv_resize_cq(Some(self.cqs()[0]), 512));
            succeeds(ibv_destroy_cq(NonNull::new(cq.cast())));
            succeeds(ibv_destroy_ah(NonNull::new(ah.cast())));
            succeeds(ibv_dereg_mr(NonNull::new(mr.cast())));
        }
    }

    /// # Safety
    ///
    /// Nothing else uses the objects.
    unsafe fn destroy(self) {
        // SAFETY: by the contract.
        unsafe {
            for qp in self.qps {
                succeeds(ibv_destroy_qp(NonNull::new(qp.cast())));
            }
            self.take_events();
            succeeds(ibv_destroy_srq(NonNull::new(self.srq.cast())));
            succeeds(ibv_destroy_cq(NonNull::new(self.cq.cast())));
            succeeds(ibv_destroy_cq(NonNull::new(self.cq_ex.cast())));
            succeeds(ibv_destroy_comp_channel(NonNull::new(self.channel)));
            succeeds(ibv_destroy_ah(NonNull::new(self.ah.cast())));
            succeeds(ibv_dereg_mr(NonNull::new(self.mr.cast())));
            succeeds(ibv_dealloc_pd(NonNull::new(self.pd.cast())));
            succeeds(ibv_close_device(self.context));
            drop(Box::from_raw(self.bytes));
        }
    }
}

/// A completion of one of the requests: of success, or flushed.
#[track_caller]
fn check(wr_id: u64, status: u32) {
    assert!((1..=3).contains(&wr_id) && [0, 5].contains(&status), "request {wr_id}, status {status}");
}

/// How long the threads run. `BAREVERBS_THREADS_MS` sets another duration in milliseconds.
fn duration() -> Duration {
    let asked = std::env::var("BAREVERBS_THREADS_MS").ok().and_then(|text| text.parse().ok());
    Duration::from_millis(asked.unwrap_or(200))
}

#[test]
fn threads_post_poll_and_destroy_objects_at_the_same_time() {
    // SAFETY: the objects are destroyed after the threads have ended.
    unsafe {
        let shared = Shared::new();
        let end = Instant::now() + duration();
        thread::scope(|scope| {
            for seed in [1, 2] {
                let shared = &shared;
                scope.spawn(move || {
                    let mut random: u64 = seed;
                    while Instant::now() < end {
                        // Knuth's generator, whose upper bits are the random ones.
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        shared.act(random >> 33);
                    }
                });
            }
        });
        shared.destroy();
    }
}
