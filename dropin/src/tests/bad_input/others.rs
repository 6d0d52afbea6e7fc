//! The other functions with an attribute, a mask, a length, a list or an enumeration.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use bareverbs::qp::Sge;

use super::super::objects::pd_of;
use super::{BYTES, Objects, Words, made, returned, zeroed};
use crate::abi::comp_cntr::{ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_qp_attach_comp_cntr_attr};
use crate::abi::cq::ibv_wc;
use crate::abi::device::{ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr, ibv_values_ex};
use crate::abi::flow::{ibv_counter_attach_attr, ibv_counters_init_attr, ibv_flow_attr};
use crate::abi::gid::ibv_gid;
use crate::abi::memory::{ibv_dmah_init_attr, ibv_mw_bind, ibv_parent_domain_init_attr, ibv_td_init_attr};
use crate::abi::path::ibv_ah_attr;
use crate::abi::qp::{ibv_ece, ibv_qp_init_attr, ibv_qp_open_attr, ibv_qp_rate_limit_attr};
use crate::abi::srq::{ibv_srq_init_attr, ibv_xrcd_init_attr};
use crate::abi::wq::ibv_rwq_ind_table_init_attr;
use crate::comp_cntr::{_ibv_query_comp_cntr_caps, ibv_create_comp_cntr, ibv_qp_attach_comp_cntr};
use crate::convention::Failure;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::dma_handle::ibv_alloc_dmah;
use crate::domain::alloc_td;
use crate::flow::create_flow;
use crate::flow_counters::{attach_counters_point_flow, create_counters, read_counters};
use crate::import::{ibv_import_device, ibv_import_dm, ibv_import_mr, ibv_import_pd};
use crate::memory::{
    BufferObject, MrObject, advise_mr, alloc_null_mr, alloc_parent_domain, ibv_alloc_buf, ibv_dereg_mr,
    ibv_free_buf, ibv_reg_buf_mr, ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_reg_mr_iova2, ibv_rereg_mr,
};
use crate::mlx5::devx::{mlx5dv_devx_general_cmd, mlx5dv_devx_obj_create, mlx5dv_devx_umem_reg};
use crate::mlx5::objects::mlx5dv_init_obj;
use crate::mlx5::query::_mlx5dv_query_port;
use crate::path::{ibv_create_ah, ibv_create_ah_from_wc, ibv_destroy_ah, ibv_init_ah_from_wc};
use crate::port::{
    _ibv_query_gid_ex, _ibv_query_gid_table, ibv_get_pkey_index, ibv_query_gid, ibv_query_pkey,
    ibv_query_port, ibv_query_port_speed, query_device_ex, query_gid_type, query_port, query_rt_values,
};
use crate::qp::{
    QpObject, bind_mw, ibv_attach_mcast, ibv_create_qp, ibv_destroy_qp, ibv_detach_mcast, ibv_query_ece,
    ibv_query_qp, ibv_set_ece, modify_qp_rate_limit, open_qp,
};
use crate::rate::{ibv_rate_to_mbps, ibv_rate_to_mult, mbps_to_ibv_rate, mult_to_ibv_rate};
use crate::srq::{SrqObject, ibv_create_srq, ibv_destroy_srq, ibv_query_srq};
use crate::sysfs::ibv_read_sysfs_file;
use crate::text::{ibv_event_type_str, ibv_node_type_str, ibv_port_state_str, ibv_wc_status_str};
use crate::window::{MwObject, alloc_mw, dealloc_mw};
use crate::wq::{create_rwq_ind_table, modify_wq};
use crate::xrc::open_xrcd;

/// Ranges of advice.
const RANGES: usize = 8;

/// Memory for an answer, which only a call that succeeds may write, and not behind its end.
struct Answer<const N: usize>([u64; N]);

impl<const N: usize> Answer<N> {
    const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

    fn new() -> Self {
        Self([Self::UNTOUCHED; N])
    }

    fn place<T>(&mut self) -> *mut T {
        self.0.as_mut_ptr().cast()
    }

    /// Checks what a call has left that returned `code`, and could write `size` bytes.
    #[track_caller]
    fn check(&self, code: c_int, size: usize) {
        let written = if code == 0 { size.div_ceil(8) } else { 0 };
        let rest = self.0.get(written..).unwrap_or_default();
        assert!(rest.iter().all(|word| *word == Self::UNTOUCHED), "{code}: bytes behind {size}");
    }
}

/// A call with random arguments.
///
/// # Safety
///
/// No other call uses the objects.
type Call = unsafe fn(&Objects, &mut Words<'_>);

/// The errno of a call that returns -1.
#[track_caller]
fn minus_one(code: c_int) {
    assert!(code >= -1);
    returned(if code == -1 { Failure::last_errno() } else { 0 });
}

/// The destruction of an object that a soft device can't have.
fn none<T>(_: *mut T) -> c_int {
    panic!("an object that the device lacks")
}

/// The object that a pointer, which may be null, stands for.
fn object<'a, C, O>(pointer: *mut C) -> Option<&'a O> {
    // SAFETY: the tests pass pointers of objects that exist.
    unsafe { pointer.cast::<O>().as_ref() }
}

/// A place for an answer, or null.
fn output<'a, T>(words: &mut Words<'_>, value: &'a mut T) -> Option<&'a mut T> {
    if words.flip() { None } else { Some(value) }
}

/// Attributes, or null.
fn attributes<'a, T>(words: &mut Words<'_>, value: &'a T) -> Option<&'a T> {
    if words.flip() { None } else { Some(value) }
}

/// Calls, whose bodies have the objects and the words.
macro_rules! calls {
    ($($name:ident |$objects:ident, $words:ident| $body:block)*) => {
        pub(super) const CALLS: &[Call] = &[$($name),*];
        $(
            unsafe fn $name($objects: &Objects, $words: &mut Words<'_>) {
                // SAFETY: by the contract. Pointers are null or valid.
                unsafe { $body }
            }
        )*
    };
}

calls! {
    qp |objects, words| {
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq) = (words.pointer(objects.cq), words.pointer(objects.cq));
        (init.srq, init.qp_type) = (words.pointer(objects.srq), words.number());
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (words.number(), words.number());
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (words.number(), words.number());
        (init.cap.max_inline_data, init.sq_sig_all) = (words.number(), words.number().cast_signed());
        let asked = init.cap;
        let pd = object(words.pointer(objects.pd));
        let qp = ibv_create_qp(pd, output(words, &mut init));
        assert!(!qp.is_null() || asked.max_send_wr == init.cap.max_send_wr);
        made(qp, |qp| ibv_destroy_qp(NonNull::new(qp.cast())));
    }

    cq |objects, words| {
        let (entries, vector) = (words.number().cast_signed(), words.number().cast_signed());
        let cq = ibv_create_cq(objects.context, entries, ptr::null_mut(), None, vector);
        made(cq, |cq| ibv_destroy_cq(NonNull::new(cq.cast())));
    }

    srq |objects, words| {
        let mut init: ibv_srq_init_attr = zeroed();
        (init.attr.max_wr, init.attr.max_sge, init.attr.srq_limit) =
            (words.number(), words.number(), words.number());
        let pd = object(words.pointer(objects.pd));
        let srq = ibv_create_srq(pd, output(words, &mut init));
        made(srq, |srq| ibv_destroy_srq(NonNull::new(srq.cast())));
    }

    queries |objects, words| {
        let (mut attr, mut init) = (std::mem::MaybeUninit::zeroed(), std::mem::MaybeUninit::zeroed());
        let mask = words.number().cast_signed();
        let qp: Option<&QpObject> = object(objects.qp);
        returned(ibv_query_qp(qp, output(words, &mut attr), mask, output(words, &mut init)));
        let srq: Option<&SrqObject> = object(objects.srq);
        returned(ibv_query_srq(srq, output(words, &mut std::mem::MaybeUninit::zeroed())));
        returned(ibv_query_ece(qp, output(words, &mut std::mem::MaybeUninit::zeroed())));
    }

    device |objects, words| {
        let mut answer = Answer::<80>::new();
        let input = crate::abi::device::ibv_query_device_ex_input { comp_mask: words.mask() & 1 };
        let size = words.number() as usize % 640;
        let place: *mut ibv_device_attr_ex = words.pointer(answer.place());
        let code = query_device_ex(objects.context, attributes(words, &input), place, size);
        returned(code);
        answer.check(code, size);
    }

    port |objects, words| {
        let mut answer = Answer::<8>::new();
        let (port, size) = (words.number() as u8, words.number() as usize % 65);
        let place: *mut ibv_port_attr = words.pointer(answer.place());
        let code = query_port(objects.context, port, place, size);
        returned(code);
        answer.check(code, size);
        let mut answer = Answer::<8>::new();
        let code = ibv_query_port(objects.context, port, words.pointer(answer.place()));
        returned(code);
        answer.check(code, size_of::<ibv_port_attr>());
        returned(ibv_query_port_speed(objects.context, words.number(), output(words, &mut 0)));
    }

    gids |objects, words| {
        let (port, index) = (words.number(), words.number());
        let mut gid = std::mem::MaybeUninit::zeroed();
        let gid = output(words, &mut gid);
        minus_one(ibv_query_gid(objects.context, port as u8, index.cast_signed(), gid));
        minus_one(query_gid_type(objects.context, port as u8, index, output(words, &mut 0)));
        let mut answer = Answer::<8>::new();
        let (size, flags) = (words.number() as usize % 64, words.mask());
        let place: *mut ibv_gid_entry = words.pointer(answer.place());
        let code = _ibv_query_gid_ex(objects.context, port, index, place, flags, size);
        returned(code);
        answer.check(code, size);
        let mut answer = Answer::<64>::new();
        let (max, flags) = (words.number() as usize, words.mask());
        // As many as there is room for, or so many that their size overflows.
        let (max, size) = if max > 8 { (usize::MAX / 16, 64) } else { (max, words.number() as usize % 65) };
        let place: *mut c_char = words.pointer(answer.place());
        let count = if max > 8 {
            _ibv_query_gid_table(objects.context, ptr::null_mut(), max, flags, size)
        } else {
            _ibv_query_gid_table(objects.context, place, max, flags, size)
        };
        returned(c_int::try_from(count.min(0)).unwrap().abs());
        answer.check(if count < 0 { 1 } else { 0 }, count.max(0).cast_unsigned() * size);
    }

    pkeys |objects, words| {
        let (port, index) = (words.number() as u8, words.number().cast_signed());
        minus_one(ibv_query_pkey(objects.context, port, index, output(words, &mut 0)));
        minus_one(ibv_get_pkey_index(objects.context, port, words.number() as u16));
    }

    values |objects, words| {
        let mut values = ibv_values_ex { comp_mask: words.mask(), ..zeroed() };
        returned(query_rt_values(objects.context, output(words, &mut values)));
    }

    regions |objects, words| {
        let (length, access) = (words.number() as usize % (BYTES + 1), words.mask());
        let start: *mut c_void = objects.bytes.as_ptr().cast_mut().cast();
        // The last page of the address space is no memory.
        let (start, length) = if words.flip() { (ptr::without_provenance_mut(usize::MAX - 4095), words.next() as usize) } else { (start, length) };
        let pd = words.pointer(objects.pd);
        let destroy = |mr: *mut _| ibv_dereg_mr(NonNull::new(mr).map(NonNull::cast));
        made(ibv_reg_mr(object(pd), start, length, access.cast_signed()), destroy);
        made(ibv_reg_mr_iova2(object(pd), start, length, words.next(), access), destroy);
        made(ibv_reg_dmabuf_mr(object(pd), words.next(), length, words.next(), -1, access.cast_signed()), destroy);
        made(alloc_null_mr(object(pd)), destroy);
    }

    rereg |objects, words| {
        let start: *mut c_void = objects.bytes.as_ptr().cast_mut().cast();
        let mr: *mut MrObject = ibv_reg_mr(pd_of(objects.pd), start, BYTES, 1).cast();
        let (flags, access) = (words.number().cast_signed(), words.mask().cast_signed());
        let (pd, length) = (object(words.pointer(objects.pd)), words.number() as usize % (BYTES + 1));
        let code = ibv_rereg_mr(NonNull::new(mr), flags, pd, words.pointer(start), length, access);
        assert!((-6..=0).contains(&code), "{code}");
        assert_eq!(ibv_dereg_mr(NonNull::new(mr)), 0);
    }

    advice |objects, words| {
        let ranges: [Sge; RANGES] = std::array::from_fn(|_| Sge { addr: 0, length: 1, lkey: words.number() });
        let (advice, flags) = (words.number(), words.mask());
        let count = words.number() % (RANGES as u32 + 1);
        let place = words.pointer(ranges.as_ptr().cast_mut());
        returned(advise_mr(object(words.pointer(objects.pd)), advice, flags, place, count));
    }

    windows |objects, words| {
        let mw = alloc_mw(object(words.pointer(objects.pd)), words.number());
        let window: Option<&MwObject> = object(mw);
        let mut bind: ibv_mw_bind = zeroed();
        (bind.send_flags, bind.bind_info.mw_access_flags) = (words.mask(), words.mask());
        (bind.bind_info.length, bind.bind_info.addr) = (words.next(), words.next());
        returned(bind_mw(object(objects.qp), window, attributes(words, &bind)));
        made(mw, |mw| dealloc_mw(NonNull::new(mw.cast())));
    }

    domains |objects, words| {
        let mut init: ibv_parent_domain_init_attr = zeroed();
        (init.pd, init.comp_mask) = (words.pointer(objects.pd), words.mask());
        made(alloc_parent_domain(objects.context, attributes(words, &init)), none);
        let init = ibv_td_init_attr { comp_mask: words.mask() };
        made(alloc_td(objects.context, attributes(words, &init)), none);
        let init = ibv_dmah_init_attr { comp_mask: words.mask(), tph_mem_type: words.number() as u8, ..zeroed() };
        made(ibv_alloc_dmah(objects.context, attributes(words, &init)), none);
    }

    xrc |objects, words| {
        let attr = ibv_xrcd_init_attr { comp_mask: words.mask(), fd: -1, oflags: words.number().cast_signed() };
        made(open_xrcd(objects.context, attributes(words, &attr)), none);
        let mut attr: ibv_qp_open_attr = zeroed();
        (attr.comp_mask, attr.qp_type) = (words.mask(), words.number());
        made(open_qp(objects.context, attributes(words, &attr)), none);
    }

    counters |objects, words| {
        let init = ibv_counters_init_attr { comp_mask: words.mask() };
        made(create_counters(objects.context, attributes(words, &init)), none);
        let mut attr: ibv_counter_attach_attr = zeroed();
        (attr.comp_mask, attr.counter_desc, attr.index) = (words.mask(), words.number(), words.number());
        returned(attach_counters_point_flow(None, attributes(words, &attr), ptr::null()));
        returned(read_counters(None, ptr::null_mut(), words.number(), words.mask()));
        let mut answer = Answer::<4>::new();
        let size = words.number() as usize % 33;
        let place: *mut ibv_comp_cntr_caps = words.pointer(answer.place());
        let code = _ibv_query_comp_cntr_caps(objects.context, place, size);
        returned(code);
        answer.check(code, size);
        let mut init: ibv_comp_cntr_init_attr = zeroed();
        (init.comp_mask, init.counter_type, init.flags) = (words.mask(), words.number(), words.mask());
        made(ibv_create_comp_cntr(objects.context, attributes(words, &init)), none);
        let attr = ibv_qp_attach_comp_cntr_attr { comp_mask: words.mask(), op_mask: words.mask() };
        let attr = attributes(words, &attr);
        returned(ibv_qp_attach_comp_cntr(object(objects.qp), None, attr));
    }

    flows |objects, words| {
        let mut rule = [0_u64; 64];
        let attr: *mut ibv_flow_attr = rule.as_mut_ptr().cast();
        ((*attr).comp_mask, (*attr).attr_type, (*attr).flags) = (words.mask() & 1, words.number(), words.mask());
        // Each of at most 3 specs has a size that is not above 56 bytes, so all are within the memory.
        ((*attr).num_of_specs, (*attr).port) = (words.number() as u8 % 4, words.number() as u8);
        let mut spec: *mut u8 = attr.add(1).cast();
        for _ in 0..(*attr).num_of_specs {
            let size = words.number() as u16 % 57;
            spec.cast::<u32>().write_unaligned(0x20 + words.number() % 0x40);
            spec.add(4).cast::<u16>().write_unaligned(size);
            spec = spec.add(size.into());
        }
        made(create_flow(object(objects.qp), words.pointer(attr)), none);
    }

    tables |objects, words| {
        let nulls = [ptr::null_mut(); 2];
        // A list of one element, or none.
        let (size, mask) = (words.number(), words.mask());
        let ind_tbl = if size == 0 { nulls.as_ptr() } else { ptr::null() };
        let init = ibv_rwq_ind_table_init_attr { log_ind_tbl_size: size, ind_tbl, comp_mask: mask };
        made(create_rwq_ind_table(objects.context, attributes(words, &init)), none);
        returned(modify_wq(None, None));
    }

    handles |objects, words| {
        let mut attr: ibv_ah_attr = zeroed();
        (attr.port_num, attr.is_global, attr.sl) = (words.number() as u8, words.number() as u8, words.number() as u8);
        (attr.grh.sgid_index, attr.static_rate) = (words.number() as u8, words.number() as u8);
        attr.grh.dgid = ibv_gid([words.number() as u8; 16]);
        let destroy = |ah: *mut _| ibv_destroy_ah(NonNull::new(ah).map(NonNull::cast));
        let pd = words.pointer(objects.pd);
        made(ibv_create_ah(object(pd), attributes(words, &attr)), destroy);
        let mut completion: ibv_wc = zeroed();
        (completion.wc_flags, completion.sl) = (words.mask(), words.number() as u8);
        let (grh, port) = ([words.number() as u8; 40], words.number() as u8);
        let grh = attributes(words, &grh);
        let completion = attributes(words, &completion);
        made(ibv_create_ah_from_wc(object(pd), completion, grh, port), destroy);
        minus_one(ibv_init_ah_from_wc(objects.context, port, completion, grh, output(words, &mut attr)));
    }

    groups |objects, words| {
        let (gid, lid) = (ibv_gid([words.number() as u8; 16]), words.number() as u16);
        let gid = attributes(words, &gid);
        let qp: Option<&QpObject> = object(objects.qp);
        let code = ibv_attach_mcast(qp, gid, lid);
        returned(code);
        returned(ibv_detach_mcast(qp, gid, lid));
    }

    options |objects, words| {
        let qp: Option<&QpObject> = object(objects.qp);
        let ece = ibv_ece { vendor_id: words.number(), options: words.number(), comp_mask: words.mask() };
        returned(ibv_set_ece(qp, attributes(words, &ece)));
        let mut limit: ibv_qp_rate_limit_attr = zeroed();
        (limit.rate_limit, limit.comp_mask) = (words.number(), words.mask());
        returned(modify_qp_rate_limit(qp, attributes(words, &limit)));
    }

    buffers |objects, words| {
        let mut buffer: *mut BufferObject = ptr::null_mut();
        let size = if words.flip() { words.next() as usize } else { words.number() as usize % 8192 };
        let pd = object(words.pointer(objects.pd));
        // A size that can't be had is refused.
        let start = ibv_alloc_buf(pd, size, Some(&mut buffer));
        let (offset, length) = (words.number() as usize, words.number() as usize);
        let mr = ibv_reg_buf_mr(pd, buffer.as_ref(), start.wrapping_byte_add(offset), length, 1);
        made(mr, |mr| {
            assert!(offset + length <= size, "a range of the buffer");
            ibv_dereg_mr(NonNull::new(mr.cast()))
        });
        ibv_free_buf(buffer);
    }

    imports |objects, words| {
        made(ibv_import_device(-words.number().cast_signed().abs() - 1), none);
        made(ibv_import_pd(objects.context, words.number()), none);
        made(ibv_import_mr(pd_of(objects.pd), words.number()), none);
        made(ibv_import_dm(objects.context, words.number()), none);
    }

    names |_objects, words| {
        let number = words.next() as c_int;
        for text in [ibv_wc_status_str, ibv_event_type_str, ibv_port_state_str, ibv_node_type_str] {
            assert!(!text(number).is_null());
        }
        for convert in [ibv_rate_to_mult, mult_to_ibv_rate, ibv_rate_to_mbps, mbps_to_ibv_rate] {
            assert!(convert(number) >= -1);
        }
        let (mut bytes, folder) = ([0_u8; 8], c"/proc/self/fd/none");
        let size = words.number() as usize % 9;
        let place = words.pointer(bytes.as_mut_ptr());
        let folder = words.pointer(folder.as_ptr().cast_mut());
        assert_eq!(ibv_read_sysfs_file(folder, words.pointer(folder), place, size), -1);
    }

    connectx |objects, words| {
        let mut bytes = [0_u8; BYTES];
        let memory: *mut c_void = words.pointer(bytes.as_mut_ptr().cast());
        let [input, output] = [(); 2].map(|()| words.number() as usize % (BYTES + 1));
        returned(mlx5dv_devx_general_cmd(objects.context, memory, input, memory, output));
        made(mlx5dv_devx_obj_create(objects.context, memory, input, memory, output), none);
        made(mlx5dv_devx_umem_reg(objects.context, memory, input, words.mask()), none);
        returned(_mlx5dv_query_port(objects.context, words.number(), memory, output));
        returned(mlx5dv_init_obj(Some(&zeroed()), words.mask().into()));
    }
}
