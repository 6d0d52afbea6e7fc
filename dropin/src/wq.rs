//! Work queues and their indirection tables.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bareverbs::raw::uapi::uverbs::types::WqType;
use bareverbs::raw::uapi::verbs_values::WqAttrMask;
use bareverbs::raw::uapi::write::types::MAX_LOG_IND_TBL_SIZE;
use bareverbs::rss::{IndirectionTable, Wq, WqFlags, WqInit, WqState};

use crate::abi::Function;
use crate::abi::device::ibv_context;
use crate::abi::values::IBV_WQ_INIT_ATTR_FLAGS;
use crate::abi::work::ibv_recv_wr;
use crate::abi::wq::{ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq, ibv_wq_attr, ibv_wq_init_attr};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, callback, check_mask, required};
use crate::cq::CqObject;
use crate::domain::ParentDomain;
use crate::lock::Locked;
use crate::memory::PdObject;
use crate::object::{Acknowledged, Object};
use crate::post::post_receives;

/// The struct of C, and the acknowledged events of the WQ.
#[repr(C)]
pub(crate) struct WqHead {
    abi: ibv_wq,
    pub(crate) events: Acknowledged,
    _parent: Option<Arc<ParentDomain>>,
}

pub(crate) type WqObject = Object<WqHead, Locked<Wq>>;
pub(crate) type TableObject = Object<ibv_rwq_ind_table, IndirectionTable>;

impl WqObject {
    /// Its context, and the kernel's handle.
    pub(crate) fn kernel_object(&self) -> (*mut ibv_context, u32) {
        (self.abi.abi.context, self.abi.abi.handle)
    }
}

impl TableObject {
    /// Its context, and the kernel's handle.
    pub(crate) fn kernel_object(&self) -> (*mut ibv_context, u32) {
        (self.abi.context, self.inner.handle())
    }
}

/// Moves a WQ to the state of C.
fn set_state(wq: &mut Wq, state: WqState) -> Result<(), Failure> {
    let moved = match state {
        WqState::RESET => wq.reset(),
        WqState::RDY => wq.ready(),
        WqState::ERR => wq.set_error(),
        _ => return Err(Failure::INVALID),
    };
    Ok(moved?)
}

/// Creates a WQ.
pub(crate) fn create(context: ContextArgument<'_>, init: &ibv_wq_init_attr) -> Result<*mut ibv_wq, Failure> {
    if init.wq_type != WqType::RQ.0 || init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS.cast_unsigned() != 0 {
        return Err(Failure::INVALID);
    }
    let flags = if init.comp_mask == 0 { 0 } else { init.create_flags };
    // SAFETY: the pointers are null or those of objects of the program.
    let (pd, cq): (Option<&PdObject>, Option<&CqObject>) =
        unsafe { (init.pd.cast::<PdObject>().as_ref(), init.cq.cast::<CqObject>().as_ref()) };
    let (pd, cq) = (required(pd)?, required(cq)?);
    let (cq_of_wq, parent) = (cq.reference()?, pd.abi.parent());
    Object::create(|address| {
        let attr = WqInit {
            max_recv_sge: init.max_sge,
            flags: WqFlags::from_bits_retain(flags),
            memory: ParentDomain::memory(parent),
            user_data: address,
            ..WqInit::with_cq(&cq_of_wq, init.max_wr)
        };
        let wq = pd.inner.create_wq(&attr)?;
        let abi = ibv_wq {
            context: context.pointer(),
            wq_context: init.wq_context,
            pd: init.pd,
            cq: init.cq,
            wq_num: wq.wq_num(),
            handle: wq.handle(),
            state: AtomicU32::new(wq.state().0),
            wq_type: init.wq_type,
            post_recv: Function::new(post_wq_recv as *const ()),
            mutex: MaybeUninit::zeroed(),
            cond: MaybeUninit::zeroed(),
            events_completed: 0,
            comp_mask: 0,
        };
        let head = WqHead { abi, events: Acknowledged::default(), _parent: parent.cloned() };
        let has_td = parent.is_some_and(|parent| parent.td().is_some());
        Ok((head, Locked::new(wq, has_td || context.required()?.is_single_threaded)))
    })
}

callback! {
    /// `ibv_create_wq`. As in C, `init` stays as it is: programs create several WQs by it. The inline
    /// function of C writes some fields afterwards.
    fn create_wq(context: ContextArgument<'_>, init: Option<&ibv_wq_init_attr>) -> OrNull<ibv_wq> {
        create(context, required(init)?)
    }

    /// `ibv_modify_wq`: the flags first, then the state.
    fn modify_wq(object: Option<&WqObject>, attr: Option<&ibv_wq_attr>) -> OrErrno {
        let (object, attr) = (required(object)?, required(attr)?);
        let mask = WqAttrMask::from_bits_retain(attr.attr_mask);
        let known = WqAttrMask::STATE | WqAttrMask::CUR_STATE | WqAttrMask::FLAGS;
        check_mask(mask.into(), known.into(), Failure::INVALID)?;
        let (current, next) = (WqState(attr.curr_wq_state), WqState(attr.wq_state));
        let mut wq = object.inner.lock();
        // A WQ moves itself to ERR, which its event says. The verb finds that out.
        let is_current = current == wq.state() || (wq.state(), current) == (WqState::RDY, WqState::ERR);
        let is_known = matches!(next, WqState::RESET | WqState::RDY | WqState::ERR);
        let has = |attr| mask.contains(attr);
        let is_wrong = has(WqAttrMask::CUR_STATE) && !is_current || has(WqAttrMask::STATE) && !is_known;
        if mask.is_empty() || is_wrong {
            return Err(Failure::INVALID);
        }
        if mask.contains(WqAttrMask::FLAGS) {
            let stripping = WqFlags::CVLAN_STRIPPING;
            if WqFlags::from_bits_retain(attr.flags_mask) != stripping {
                return Err(Failure::UNSUPPORTED);
            }
            wq.set_cvlan_stripping(WqFlags::from_bits_retain(attr.flags).contains(stripping))?;
        }
        if mask.contains(WqAttrMask::STATE) {
            set_state(&mut wq, next)?;
            object.abi.abi.state.store(next.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// `ibv_destroy_wq`. Tables that hold the WQ are `EBUSY`.
    fn destroy_wq(wq: Option<NonNull<WqObject>>) -> OrErrno {
        // SAFETY: the argument is a live WQ, which the program uses no longer, but to acknowledge events.
        unsafe { Object::destroy(required(wq)?, Wq::destroy, |head, read| head.events.wait_for(read)) }
    }

    fn post_wq_recv(
        wq: Option<&WqObject>,
        first: *mut ibv_recv_wr,
        bad: Option<&mut *mut ibv_recv_wr>,
    ) -> OrErrno {
        let mut wq = required(wq)?.inner.lock();
        // SAFETY: the requests are a list of the program, which keeps their memory until they complete.
        unsafe { post_receives(first, bad, |requests| requests.try_for_each(|request| wq.post_recv(&[request]))) }
    }

    /// `ibv_create_rwq_ind_table`. A WQ may have several entries.
    fn create_rwq_ind_table(
        context: ContextArgument<'_>,
        init: Option<&ibv_rwq_ind_table_init_attr>,
    ) -> OrNull<ibv_rwq_ind_table> {
        let (of_context, init) = (&context.required()?.context, required(init)?);
        let is_valid = init.comp_mask == 0 && init.log_ind_tbl_size <= MAX_LOG_IND_TBL_SIZE;
        if !is_valid || init.ind_tbl.is_null() {
            return Err(Failure::INVALID);
        }
        // SAFETY: the program has a list of this length, of WQs.
        let entries: &[Option<&WqObject>] =
            unsafe { slice::from_raw_parts(init.ind_tbl.cast(), 1 << init.log_ind_tbl_size) };
        let entries = entries.iter().map(|wq| required(*wq)).collect::<Result<Vec<_>, _>>()?;
        // Each WQ is locked once, in the order of their addresses: another thread may lock the same ones.
        let address = |wq: &WqObject| std::ptr::from_ref(wq).addr();
        let mut distinct = entries.clone();
        distinct.sort_unstable_by_key(|wq| address(wq));
        distinct.dedup_by_key(|wq| address(wq));
        let locked: Vec<_> = distinct.iter().map(|wq| wq.inner.lock()).collect();
        let index = |wq| distinct.binary_search_by_key(&address(wq), |other| address(other));
        let wqs = entries.iter().map(|wq| Ok(&*locked[index(wq).map_err(|_| Failure::INVALID)?]));
        let wqs = wqs.collect::<Result<Vec<&Wq>, Failure>>()?;
        Object::create(|_| {
            let table = of_context.create_indirection_table(&wqs)?;
            let number = |number: u32| c_int::from_ne_bytes(number.to_ne_bytes());
            let abi = ibv_rwq_ind_table {
                context: context.pointer(),
                ind_tbl_handle: number(table.handle()),
                ind_tbl_num: number(table.table_num()),
                comp_mask: 0,
            };
            Ok((abi, table))
        })
    }

    /// `ibv_destroy_rwq_ind_table`. QPs of the table are `EBUSY`.
    fn destroy_rwq_ind_table(table: Option<NonNull<TableObject>>) -> OrErrno {
        // SAFETY: the argument is a live table, which the program uses no longer.
        unsafe { Object::destroy(required(table)?, IndirectionTable::destroy, |_, ()| ()) }
    }
}
