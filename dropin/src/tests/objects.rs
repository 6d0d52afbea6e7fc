//! Objects that a soft device has, and the refusals of those that it lacks.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bareverbs::Device;
use bareverbs::device::EventType;
use bareverbs::qp::{QpAttrMask, QpState, QpType};

use super::{NO_CONTEXT, errno};
use crate::abi::cq::ibv_cq_init_attr_ex;
use crate::abi::device::ibv_values_ex;
use crate::abi::event::ibv_async_event;
use crate::abi::memory::{ibv_alloc_dm_attr, ibv_dmah_init_attr, ibv_mr, ibv_mr_init_attr, ibv_pd};
use crate::abi::path::ibv_ah_attr;
use crate::abi::qp::{
    ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_open_attr,
    ibv_qp_rate_limit_attr,
};
use crate::abi::srq::{ibv_srq_attr, ibv_srq_init_attr_ex, ibv_xrcd_init_attr};
use crate::abi::values::*;
use crate::abi::work::ibv_sge;
use crate::abi::wq::ibv_rwq_ind_table_init_attr;
use crate::context::ContextArgument;
use crate::cq::{create_cq_ex, ibv_create_cq, ibv_destroy_cq};
use crate::device::{DeviceObject, text};
use crate::device_memory::{alloc_dm, free_dm, ibv_dm_export_dmabuf_fd};
use crate::dma_handle::{ibv_alloc_dmah, ibv_dealloc_dmah};
use crate::events::{ibv_ack_async_event, ibv_get_async_event};
use crate::import::{ibv_import_device, ibv_import_dm, ibv_import_mr, ibv_import_pd};
use crate::memory::{
    BufferObject, MrObject, PdObject, Region, advise_mr, alloc_null_mr, ibv_alloc_buf, ibv_alloc_pd,
    ibv_dealloc_pd, ibv_dereg_mr, ibv_free_buf, ibv_reg_buf_mr, ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_reg_mr_ex,
    ibv_reg_mr_iova, ibv_reg_mr_iova2, ibv_rereg_mr, reg_dm_mr,
};
use crate::open;
use crate::path::{ibv_create_ah, ibv_destroy_ah};
use crate::port::{ibv_query_gid, query_rt_values};
use crate::qp::{
    QpObject, create_qp_ex, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_ece, ibv_set_ece,
    modify_qp_rate_limit, open_qp,
};
use crate::srq::{SrqObject, create_srq_ex, get_srq_num, ibv_destroy_srq, ibv_query_srq};
use crate::wq::create_rwq_ind_table;
use crate::xrc::{close_xrcd, open_xrcd};

/// A struct of C without any bit set.
pub(super) fn zeroed<T>() -> T {
    // SAFETY: the structs of the ABI have numbers and pointers only.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// A context of a soft device of this process, and a PD of it.
pub(super) fn context_and_pd() -> (ContextArgument<'static>, *mut ibv_pd) {
    let device = Device::find("soft0").unwrap();
    let context = device.open().unwrap();
    let created = open::create(context, Arc::new(DeviceObject::new("soft0", device)), None);
    let context = ContextArgument::of(created.unwrap());
    // SAFETY: the context exists.
    (context, unsafe { ibv_alloc_pd(context) })
}

pub(super) fn pd_of<'a>(pd: *mut ibv_pd) -> Option<&'a PdObject> {
    // SAFETY: the tests pass PDs that exist.
    unsafe { pd.cast::<PdObject>().as_ref() }
}

#[track_caller]
pub(super) fn refuses<T>(made: *mut T, refused: c_int) {
    assert!(made.is_null());
    assert_eq!(errno(), refused);
}

/// UCX lists devices that have a character device of this name only.
#[test]
fn soft_device_has_a_name_of_its_file() {
    let device = DeviceObject::new("soft7", Device::find("soft0").unwrap());
    assert_eq!(device.abi.dev_name, text::<64>("soft7"));
}

#[test]
fn address_handle_has_the_bits_of_a_packet() {
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let mut attr: ibv_ah_attr = zeroed();
        (attr.port_num, attr.is_global, attr.sl) = (1, 1, u8::MAX);
        attr.grh.flow_label = u32::MAX;
        let mut gid = MaybeUninit::uninit();
        assert_eq!(ibv_query_gid(context, 1, 0, Some(&mut gid)), 0);
        attr.grh.dgid = gid.assume_init();
        let ah = ibv_create_ah(pd_of(pd), Some(&attr));
        assert!(!ah.is_null(), "{}", errno());
        assert_eq!(ibv_destroy_ah(NonNull::new(ah.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn region_has_the_iova_of_the_call() {
    let (context, pd) = context_and_pd();
    let mut bytes = [0_u8; 64];
    let addr: *mut c_void = bytes.as_mut_ptr().cast();
    let iova = (addr.addr() % 4096 + 8192) as u64;
    // SAFETY: the calls are those of a C program.
    unsafe {
        let mut init: ibv_mr_init_attr = zeroed();
        (init.addr, init.length, init.iova, init.access) = (addr, 64, iova, 1);
        init.comp_mask = (IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA) as u64;
        for (mr, expected) in [
            (ibv_reg_mr(pd_of(pd), addr, 64, 1), addr.addr() as u64),
            (ibv_reg_mr_iova(pd_of(pd), addr, 64, iova, 1), iova),
            (ibv_reg_mr_iova2(pd_of(pd), addr, 64, iova, 1), iova),
            (ibv_reg_mr_ex(pd_of(pd), Some(&init)), iova),
        ] {
            let Region::Memory(known) = &(*mr.cast::<MrObject>()).inner else { panic!("no memory") };
            assert_eq!(known.query().unwrap().iova, expected);
            assert_eq!(ibv_dereg_mr(NonNull::new(mr.cast())), 0);
        }
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn buffer_is_registered_within_its_bounds_and_its_pd() {
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let other = ibv_alloc_pd(context);
        let mut buffer: *mut BufferObject = ptr::null_mut();
        let start = ibv_alloc_buf(pd_of(pd), 4096, Some(&mut buffer));
        let register = |pd, offset, length| {
            ibv_reg_buf_mr(pd_of(pd), buffer.as_ref(), start.wrapping_byte_offset(offset), length, 1)
        };
        for (offset, length) in [(0, 4096), (4000, 96)] {
            let mr = register(pd, offset, length);
            assert_eq!(((*mr).addr, (*mr).length), (start.wrapping_byte_offset(offset), length));
            assert_eq!(ibv_dereg_mr(NonNull::new(mr.cast())), 0);
        }
        for (offset, length) in [(0, 4097), (4000, 97), (-1, 8), (8, usize::MAX)] {
            refuses(register(pd, offset, length), libc::EINVAL);
        }
        refuses(register(other, 0, 64), libc::EINVAL);
        ibv_free_buf(buffer);
        assert_eq!(ibv_dealloc_pd(NonNull::new(other.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

const TRANSLATION: c_int = IBV_REREG_MR_CHANGE_TRANSLATION;
const PD: c_int = IBV_REREG_MR_CHANGE_PD;
const ACCESS: c_int = IBV_REREG_MR_CHANGE_ACCESS;

#[test]
fn rereg_mr_changes_the_region_or_says_why_not() {
    let (context, old) = context_and_pd();
    let mut bytes = [0_u8; 64];
    let addr: *mut c_void = bytes.as_mut_ptr().cast();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let new = ibv_alloc_pd(context);
        let mr = ibv_reg_mr(pd_of(old), addr, bytes.len(), 1);
        let rereg = |flags, pd, addr, length, access| {
            let mr: Option<NonNull<MrObject>> = NonNull::new(mr.cast());
            let code = ibv_rereg_mr(mr, flags, pd_of(pd), addr, length, access);
            (code, if code == 0 { 0 } else { errno() })
        };
        let no_pd = ptr::null_mut();
        let input = (-1, libc::EINVAL);
        assert_eq!(ibv_rereg_mr(None, ACCESS, None, ptr::null_mut(), 0, 1), -1);
        assert_eq!(rereg(8, no_pd, ptr::null_mut(), 0, 0), input);
        assert_eq!(rereg(PD, no_pd, ptr::null_mut(), 0, 0), input);
        assert_eq!(rereg(PD, new, ptr::null_mut(), 0, 1), input, "access that is not selected");
        assert_eq!(rereg(TRANSLATION, no_pd, addr, 0, 0), input);
        assert_eq!(rereg(TRANSLATION, no_pd, ptr::null_mut(), 64, 0), input);
        assert_eq!(rereg(0, no_pd, ptr::null_mut(), 0, 0), (-4, libc::EINVAL));
        assert_eq!(rereg(TRANSLATION, no_pd, addr, 32, 0), (-4, libc::EOPNOTSUPP));
        assert_eq!(((*mr).addr, (*mr).length), (addr, 64));

        // Remote writes, which the kernel grants with local ones only.
        assert_eq!(rereg(ACCESS, no_pd, ptr::null_mut(), 0, 2), (-4, libc::EINVAL));
        assert_eq!(rereg(ACCESS | PD, new, ptr::null_mut(), 0, 3), (0, 0));
        assert_eq!((*mr).pd, new);
        let Region::Memory(known) = &(*mr.cast::<MrObject>()).inner else { panic!("no memory") };
        let info = known.query().unwrap();
        assert_eq!(((*mr).lkey, (*mr).rkey), (info.lkey, info.rkey));
        assert_eq!(ibv_dealloc_pd(NonNull::new(new.cast())), libc::EBUSY);
        assert_eq!(ibv_dealloc_pd(NonNull::new(old.cast())), 0);
        assert_eq!(ibv_dereg_mr(NonNull::new(mr.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(new.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn reg_mr_ex_takes_the_combinations_of_the_manual() {
    let (context, pd) = context_and_pd();
    let bytes = [0_u8; 64];
    let null = File::open("/dev/null").unwrap();
    let init = |mask: c_int| ibv_mr_init_attr {
        length: 64,
        access: 1,
        comp_mask: mask.cast_unsigned().into(),
        iova: (bytes.as_ptr().addr() % 4096 + 4096) as u64,
        addr: bytes.as_ptr().cast_mut().cast(),
        fd: null.as_raw_fd(),
        fd_offset: 0,
        dmah: ptr::null_mut(),
        buf: ptr::null_mut(),
    };
    let (iova, addr, file, offset) =
        (IBV_REG_MR_MASK_IOVA, IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET);
    // SAFETY: the calls are those of a C program.
    unsafe {
        for mask in [
            0,
            iova,
            addr | file | offset | iova,
            addr | offset,
            file | iova,
            file | offset,
            addr | IBV_REG_MR_MASK_DMAH,
            addr | IBV_REG_MR_MASK_BUF,
            file | offset | iova | IBV_REG_MR_MASK_BUF,
            addr | 1 << 6,
        ] {
            refuses(ibv_reg_mr_ex(pd_of(pd), Some(&init(mask))), libc::EINVAL);
        }
        refuses(ibv_reg_mr_ex(pd_of(pd), None), libc::EINVAL);
        // A soft device has no dma-bufs.
        refuses(ibv_reg_mr_ex(pd_of(pd), Some(&init(file | offset | iova))), libc::EOPNOTSUPP);
        refuses(ibv_reg_dmabuf_mr(pd_of(pd), 0, 64, 0, null.as_raw_fd(), 1), libc::EOPNOTSUPP);
        // NCCL asks in this way whether the device supports them.
        refuses(ibv_reg_dmabuf_mr(pd_of(pd), 0, 0, 0, -1, 0), libc::EOPNOTSUPP);
        for mask in [addr, addr | iova] {
            let mr: *mut ibv_mr = ibv_reg_mr_ex(pd_of(pd), Some(&init(mask)));
            assert_eq!(((*mr).addr, (*mr).length), (bytes.as_ptr().cast_mut().cast(), 64));
            assert_eq!(ibv_dereg_mr(NonNull::new(mr.cast())), 0);
        }
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn objects_that_the_device_lacks_are_unsupported() {
    let (context, pd) = context_and_pd();
    let unsupported = (libc::EOPNOTSUPP, libc::EOPNOTSUPP);
    // SAFETY: the calls are those of a C program.
    unsafe {
        let dm = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        refuses(alloc_dm(context, Some(&dm)), libc::EOPNOTSUPP);
        refuses(alloc_dm(context, Some(&ibv_alloc_dm_attr { comp_mask: 1, ..dm })), libc::EINVAL);
        refuses(alloc_null_mr(pd_of(pd)), libc::EOPNOTSUPP);
        let hint = ibv_dmah_init_attr { comp_mask: 2, cpu_id: 0, ph: 1, tph_mem_type: 0 };
        refuses(ibv_alloc_dmah(context, Some(&hint)), libc::EOPNOTSUPP);
        refuses(
            ibv_alloc_dmah(context, Some(&ibv_dmah_init_attr { comp_mask: 8, ..hint })),
            libc::EOPNOTSUPP,
        );
        refuses(ibv_alloc_dmah(context, Some(&ibv_dmah_init_attr { comp_mask: 3, ..hint })), libc::EINVAL);
        let range = ibv_sge { addr: 0, length: 1, lkey: 0 };
        assert_eq!((advise_mr(pd_of(pd), 0, 1, (&raw const range).cast(), 1), errno()), unsupported);

        let xrcd = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        refuses(open_xrcd(context, Some(&xrcd)), libc::EOPNOTSUPP);
        refuses(open_xrcd(context, Some(&ibv_xrcd_init_attr { comp_mask: 7, ..xrcd })), libc::EOPNOTSUPP);
        refuses(open_xrcd(context, Some(&ibv_xrcd_init_attr { comp_mask: 1, ..xrcd })), libc::EINVAL);
        refuses(open_qp(context, Some(&zeroed::<ibv_qp_open_attr>())), libc::EOPNOTSUPP);
        let qp_type = QpType::XRC_TGT.0;
        let mut target = ibv_qp_init_attr_ex { qp_type, comp_mask: 2, ..zeroed() };
        refuses(create_qp_ex(context, Some(&mut target)), libc::EOPNOTSUPP);
        for (srq_type, refused) in [(1, libc::EOPNOTSUPP), (2, libc::EOPNOTSUPP), (3, libc::EINVAL)] {
            let mut init = ibv_srq_init_attr_ex { comp_mask: 15, srq_type, pd, ..zeroed() };
            refuses(create_srq_ex(context, Some(&mut init)), refused);
        }

        let wall_clock = ibv_cq_init_attr_ex { cqe: 4, wc_flags: 1 << 11, ..zeroed() };
        refuses(create_cq_ex(context, Some(&wall_clock)), libc::EOPNOTSUPP);
        let mut values = ibv_values_ex { comp_mask: 1, ..zeroed() };
        assert_eq!((query_rt_values(context, Some(&mut values)), errno()), unsupported);
        values.comp_mask = 2;
        assert_eq!((query_rt_values(context, Some(&mut values)), errno()), (libc::EINVAL, libc::EINVAL));
        // The list of a table that is too large is not read.
        let wqs = [ptr::null_mut(); 1];
        let table = ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 14, ind_tbl: wqs.as_ptr(), comp_mask: 0 };
        refuses(create_rwq_ind_table(context, Some(&table)), libc::EINVAL);
        refuses(ibv_import_pd(context, 1), libc::EOPNOTSUPP);
        refuses(ibv_import_mr(pd_of(pd), 1), libc::EOPNOTSUPP);
        refuses(ibv_import_dm(context, 1), libc::EOPNOTSUPP);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn descriptors_of_other_files_are_not_imported() {
    let null = File::open("/dev/null").unwrap();
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    // SAFETY: the descriptors are open, or none.
    unsafe {
        refuses(ibv_import_device(-1), libc::EINVAL);
        refuses(ibv_import_device(file.as_raw_fd()), libc::EINVAL);
        refuses(ibv_import_device(null.as_raw_fd()), libc::ENODEV);
    }
    assert!(null.metadata().is_ok(), "it stays open");
}

#[test]
fn srq_of_any_capacity_is_created_by_the_extended_function() {
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let mut init = ibv_srq_init_attr_ex { comp_mask: 3, pd, ..zeroed() };
        let srq = create_srq_ex(context, Some(&mut init));
        assert!(!srq.is_null() && init.attr.max_wr >= 1);
        (init.attr.max_sge, init.attr.srq_limit) = (3, 1);
        let limited = create_srq_ex(context, Some(&mut init));
        assert!(init.attr.max_sge >= 3);
        let mut found = MaybeUninit::zeroed();
        assert_eq!(ibv_query_srq(limited.cast::<SrqObject>().as_ref(), Some(&mut found)), 0);
        let found: ibv_srq_attr = found.assume_init();
        assert_eq!((found.max_wr, found.max_sge, found.srq_limit), (init.attr.max_wr, init.attr.max_sge, 1));
        assert_eq!(ibv_destroy_srq(NonNull::new(limited.cast())), 0);
        let mut number = 0;
        let answer = get_srq_num(srq.cast::<SrqObject>().as_ref(), Some(&mut number));
        assert_eq!((answer, errno()), (libc::EOPNOTSUPP, libc::EOPNOTSUPP));
        assert_eq!(ibv_destroy_srq(NonNull::new(srq.cast())), 0);
        refuses(
            create_srq_ex(context, Some(&mut ibv_srq_init_attr_ex { comp_mask: 1, pd, ..zeroed() })),
            libc::EINVAL,
        );
        refuses(
            create_srq_ex(context, Some(&mut ibv_srq_init_attr_ex { comp_mask: 34, pd, ..zeroed() })),
            libc::EINVAL,
        );
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn event_names_its_object_which_waits_for_the_acknowledgement() {
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let cq = ibv_create_cq(context, 8, ptr::null_mut(), None, 0);
        let mut init = ibv_srq_init_attr_ex { comp_mask: 3, pd, ..zeroed() };
        let srq = create_srq_ex(context, Some(&mut init));
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.srq, init.qp_type) = (cq, cq, srq, QpType::RC.0);
        (init.cap.max_send_wr, init.cap.max_send_sge) = (1, 1);
        let qp: *mut ibv_qp = ibv_create_qp(pd_of(pd), Some(&mut init));
        assert!(!qp.is_null(), "{}", errno());
        let mut attr: ibv_qp_attr = zeroed();
        attr.port_num = 1;
        let state = QpAttrMask::STATE;
        let to_init = state | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        for (next, mask) in [(QpState::INIT, to_init), (QpState::ERR, state)] {
            attr.qp_state = next.0.into();
            let mask = mask.bits().cast_signed();
            assert_eq!(ibv_modify_qp(qp.cast::<QpObject>().as_ref(), Some(&attr), mask), 0);
        }
        let mut event: ibv_async_event = zeroed();
        assert_eq!(ibv_get_async_event(context, Some(&mut event)), 0);
        assert_eq!(event.event_type, EventType::QP_LAST_WQE_REACHED.0);
        assert_eq!(event.element, qp.expose_provenance() as u64);
        ibv_ack_async_event(Some(&event));
        // It would wait without end for the acknowledgement.
        assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);
        assert_eq!(ibv_destroy_srq(NonNull::new(srq.cast())), 0);
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn qp_options_that_the_device_lacks_are_unsupported() {
    let (context, pd) = context_and_pd();
    // SAFETY: the calls are those of a C program.
    unsafe {
        let cq = ibv_create_cq(context, 8, ptr::null_mut(), None, 0);
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
            qp_type: QpType::RC.0,
            sq_sig_all: 1,
        };
        let qp: *mut ibv_qp = ibv_create_qp(pd_of(pd), Some(&mut init));
        let of = |qp: *mut ibv_qp| qp.cast::<QpObject>().as_ref();
        let unsupported = (libc::EOPNOTSUPP, libc::EOPNOTSUPP);
        assert_eq!((ibv_query_ece(of(qp), Some(&mut MaybeUninit::zeroed())), errno()), unsupported);
        for vendor_id in [0, 1] {
            let ece = ibv_ece { vendor_id, options: 1, comp_mask: 0 };
            assert_eq!((ibv_set_ece(of(qp), Some(&ece)), errno()), unsupported);
        }
        let mut limit: ibv_qp_rate_limit_attr = zeroed();
        let invalid = (libc::EINVAL, libc::EINVAL);
        assert_eq!((modify_qp_rate_limit(of(qp), Some(&limit)), errno()), invalid, "the state is RESET");
        limit.comp_mask = 1;
        assert_eq!((modify_qp_rate_limit(of(qp), Some(&limit)), errno()), unsupported);
        assert_eq!(ibv_destroy_qp(NonNull::new(qp.cast())), 0);
        assert_eq!(ibv_destroy_cq(NonNull::new(cq.cast())), 0);
        assert_eq!(ibv_dealloc_pd(NonNull::new(pd.cast())), 0);
        assert_eq!(open::ibv_close_device(context), 0);
    }
}

#[test]
fn null_objects_are_invalid() {
    // SAFETY: all pointers are null.
    unsafe {
        for failed in [
            free_dm(None),
            ibv_dealloc_dmah(None),
            close_xrcd(None),
            get_srq_num(None, None),
            ibv_query_ece(None, None),
            ibv_set_ece(None, None),
            modify_qp_rate_limit(None, None),
            query_rt_values(NO_CONTEXT(), None),
            advise_mr(None, 0, 0, ptr::null(), 0),
        ] {
            assert_eq!((failed, errno()), (libc::EINVAL, libc::EINVAL));
        }
        assert_eq!((ibv_dm_export_dmabuf_fd(None), errno()), (-1, libc::EINVAL));
        refuses(ibv_reg_dmabuf_mr(None, 0, 1, 0, 0, 0), libc::EINVAL);
        refuses(reg_dm_mr(None, None, 0, 1, 0), libc::EINVAL);
        refuses(alloc_dm(NO_CONTEXT(), None), libc::EINVAL);
        refuses(alloc_null_mr(None), libc::EINVAL);
        refuses(ibv_alloc_dmah(NO_CONTEXT(), None), libc::EINVAL);
        refuses(open_xrcd(NO_CONTEXT(), None), libc::EINVAL);
        refuses(open_qp(NO_CONTEXT(), None), libc::EINVAL);
        refuses(create_srq_ex(NO_CONTEXT(), None), libc::EINVAL);
        refuses(ibv_import_pd(NO_CONTEXT(), 0), libc::EINVAL);
        refuses(ibv_import_mr(None, 0), libc::EINVAL);
    }
}
