//! The functions as C calls them, on a soft device of this process.

mod bad_input;
mod inline;
mod mlx5;
mod objects;
mod threads;

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use bareverbs::qp::{QpAttrMask, QpState};

use self::inline::post_recv;
use crate::abi::cq::ibv_cq;
use crate::abi::memory::{ibv_parent_domain_init_attr, ibv_td_init_attr};
use crate::abi::qp::{ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr};
use crate::channel::{ChannelObject, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_cq_event};
use crate::context::ContextArgument;
use crate::cq::{CqObject, ibv_ack_cq_events, ibv_create_cq, ibv_destroy_cq, req_notify_cq};
use crate::device::{ibv_free_device_list, ibv_get_device_list, ibv_get_device_name};
use crate::domain::{alloc_td, dealloc_td};
use crate::flow::{create_flow, destroy_flow};
use crate::flow_counters::{attach_counters_point_flow, create_counters, destroy_counters, read_counters};
use crate::memory::{PdObject, alloc_parent_domain, ibv_alloc_pd, ibv_dealloc_pd, ibv_dereg_mr, ibv_reg_mr};
use crate::open::{ibv_close_device, ibv_open_device};
use crate::port::{ibv_query_device, ibv_query_gid, ibv_query_port};
use crate::qp::{QpObject, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::srq::{ibv_create_srq, ibv_destroy_srq};
use crate::wq::{create_rwq_ind_table, create_wq, destroy_rwq_ind_table, destroy_wq, modify_wq};

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

const NO_CONTEXT: fn() -> ContextArgument<'static> = || ContextArgument::of(ptr::null_mut());

#[test]
fn null_objects_are_invalid() {
    // SAFETY: all pointers are null.
    unsafe {
        for failed in [
            ibv_query_device(NO_CONTEXT(), None),
            ibv_query_port(NO_CONTEXT(), 1, ptr::null_mut()),
            ibv_close_device(NO_CONTEXT()),
            ibv_dealloc_pd(None),
            ibv_dereg_mr(None),
            dealloc_td(None),
            ibv_destroy_comp_channel(None),
            ibv_destroy_cq(None),
            ibv_destroy_srq(None),
            ibv_destroy_qp(None),
            ibv_modify_qp(None, None, 0),
            req_notify_cq(None, 0),
            modify_wq(None, None),
            destroy_wq(None),
            destroy_rwq_ind_table(None),
            destroy_flow(None),
            destroy_counters(None),
            attach_counters_point_flow(None, None, ptr::null()),
            read_counters(None, ptr::null_mut(), 0, 0),
        ] {
            assert_eq!((failed, errno()), (libc::EINVAL, libc::EINVAL));
        }
        assert_eq!((ibv_query_gid(NO_CONTEXT(), 1, 0, None), errno()), (-1, libc::EINVAL));
        assert!(ibv_open_device(None).is_null() && ibv_alloc_pd(NO_CONTEXT()).is_null());
        assert!(create_flow(None, ptr::null()).is_null() && create_counters(NO_CONTEXT(), None).is_null());
        assert!(
            create_wq(NO_CONTEXT(), None).is_null() && create_rwq_ind_table(NO_CONTEXT(), None).is_null()
        );
        assert!(alloc_td(NO_CONTEXT(), None).is_null() && alloc_parent_domain(NO_CONTEXT(), None).is_null());
        assert!(ibv_create_srq(None, None).is_null() && ibv_create_qp(None, None).is_null());
        ibv_free_device_list(ptr::null_mut());
    }
}

/// An address of this host that no other process has: process ids have at most 22 bits.
fn address() -> Ipv4Addr {
    (u32::from(Ipv4Addr::new(127, 64, 0, 0)) | std::process::id()).into()
}

#[test]
fn objects_are_destroyed_in_their_order_and_after_their_events() {
    // SAFETY: no other test looks at the environment. The calls are those of a C program.
    unsafe {
        std::env::set_var("BAREVERBS_SOFT", address().to_string());
        let mut count = 0;
        let list = ibv_get_device_list(Some(&mut count));
        let of_list = || slice(list, count);
        let soft = of_list().iter().position(|device| {
            CStr::from_ptr(ibv_get_device_name(device.as_ref())).to_str().unwrap().starts_with("soft")
        });
        let device = of_list()[soft.expect("the soft device is listed")];
        let again = ibv_get_device_list(None);
        assert!(slice(again, count).contains(&device), "a device keeps its address");
        ibv_free_device_list(again);
        let context = ibv_open_device(device.as_ref());
        assert!(!context.is_null(), "{}", errno());
        ibv_free_device_list(list);
        let context = ContextArgument::of(context);

        let channel = ibv_create_comp_channel(context);
        let cq = ibv_create_cq(
            context,
            8,
            ptr::without_provenance_mut(7),
            channel.cast::<ChannelObject>().as_ref(),
            0,
        );
        assert_eq!(ibv_destroy_comp_channel(NonNull::new(channel.cast())), libc::EBUSY);

        let pd = ibv_alloc_pd(context);
        // As on rxe.
        let td = alloc_td(context, Some(&ibv_td_init_attr { comp_mask: 0 }));
        assert_eq!((td, errno()), (ptr::null_mut(), libc::EOPNOTSUPP));
        let attr = ibv_parent_domain_init_attr {
            pd,
            td: ptr::null_mut(),
            comp_mask: 0,
            alloc: None,
            free: None,
            pd_context: ptr::null_mut(),
        };
        let parent = alloc_parent_domain(context, Some(&attr));
        assert_eq!((parent, errno()), (ptr::null_mut(), libc::EOPNOTSUPP));
        let mut bytes = [0_u8; 64];
        let mr = ibv_reg_mr(pd.cast::<PdObject>().as_ref(), bytes.as_mut_ptr().cast(), bytes.len(), 1);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), libc::EBUSY);

        let cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: ptr::null_mut(),
            cap,
            // UD.
            qp_type: 4,
            sq_sig_all: 1,
        };
        let qp = ibv_create_qp(pd.cast::<PdObject>().as_ref(), Some(&mut init));
        assert!(init.cap.max_send_wr >= 1, "the granted capacity is returned");
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), libc::EBUSY);

        // QPs are created with CQs that a thread polls.
        let other = ibv_create_cq(context, 8, ptr::null_mut(), None, 0);
        let locked = [cq, other].map(|cq| (*cq.cast::<CqObject>()).inner.lock());
        let addresses = [pd.expose_provenance(), cq.expose_provenance(), other.expose_provenance()];
        let created = in_time(move || {
            let [pd, send_cq, recv_cq] = addresses;
            let [send_cq, recv_cq] = [send_cq, recv_cq].map(ptr::with_exposed_provenance_mut);
            let pd = ptr::with_exposed_provenance::<PdObject>(pd).as_ref();
            let (qp_context, srq) = (ptr::null_mut(), ptr::null_mut());
            let mut init =
                ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type: 4, sq_sig_all: 1 };
            let qp = ibv_create_qp(pd, Some(&mut init));
            ibv_destroy_qp(NonNull::new(qp.cast()))
        });
        assert_eq!(created, 0);
        drop(locked);
        assert_eq!(ibv_destroy_cq(NonNull::new(other.cast())), 0);

        // A receive that is flushed raises an event.
        let mut attr: ibv_qp_attr = MaybeUninit::zeroed().assume_init();
        (attr.qp_state, attr.port_num, attr.qkey) = (QpState::INIT.0.into(), 1, 1);
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        assert_eq!(ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask.bits().cast_signed()), 0);
        let mut receive = crate::abi::work::ibv_recv_wr {
            wr_id: 1,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        let mut bad = ptr::null_mut();
        assert_eq!(post_recv(&*qp.cast::<QpObject>(), &raw mut receive, Some(&mut bad)), 0);
        assert_eq!(req_notify_cq(cq.cast::<CqObject>().as_ref(), 0), 0);
        attr.qp_state = QpState::ERR.0.into();
        let mask = QpAttrMask::STATE.bits().cast_signed();
        assert_eq!(ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask), 0);
        let (mut named, mut user): (*mut ibv_cq, _) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(
            ibv_get_cq_event(channel.cast::<ChannelObject>().as_ref(), Some(&mut named), Some(&mut user)),
            0
        );
        assert_eq!((named, user.addr()), (cq, 7));
        assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);

        let acknowledged = AtomicBool::new(false);
        thread::scope(|scope| {
            let (address, acknowledged) = (cq.expose_provenance(), &acknowledged);
            scope.spawn(move || {
                // The other thread waits meanwhile, or comes later.
                thread::sleep(Duration::from_millis(20));
                acknowledged.store(true, Ordering::Release);
                ibv_ack_cq_events(NonNull::new(ptr::with_exposed_provenance_mut(address)), 1);
            });
            assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
            assert!(acknowledged.load(Ordering::Acquire), "it waits for the acknowledgement");
        });
        assert_eq!(ibv_destroy_comp_channel(NonNull::new(channel.cast())), 0);
        assert_eq!(ibv_dereg_mr(NonNull::new(mr.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(ibv_close_device(context), 0);
    }
}

/// Calls what could wait for ever, in a thread.
fn in_time<R: Send + 'static>(call: impl FnOnce() -> R + Send + 'static) -> R {
    let (send, receive) = std::sync::mpsc::channel();
    thread::spawn(move || send.send(call()));
    receive.recv_timeout(Duration::from_secs(60)).expect("the call returns")
}

/// # Safety
///
/// The list has this length.
unsafe fn slice<'a, T>(list: *const T, count: c_int) -> &'a [T] {
    // SAFETY: by the contract.
    unsafe { std::slice::from_raw_parts(list, count.try_into().unwrap()) }
}
