//! Shared receive queues.

use std::ffi::{c_int, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs::Error;
use bareverbs::error::{PostError, Refused};
use bareverbs::qp::RecvRequest;
use bareverbs::raw::QueueLayout;
use bareverbs::raw::uapi::verbs_values::SrqAttrMask;
use bareverbs::srq::{Srq, SrqAttr, SrqInit};
use bareverbs::untyped::BuiltIn;
use bareverbs::xrc::{XrcSrq, XrcSrqInit};

use crate::abi::device::ibv_context;
use crate::abi::srq::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex};
use crate::abi::values::{
    IBV_SRQ_INIT_ATTR_CQ, IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_INIT_ATTR_XRCD,
    IBV_SRQT_BASIC, IBV_SRQT_TM, IBV_SRQT_XRC,
};
use crate::abi::work::ibv_recv_wr;
use crate::context::ContextArgument;
use crate::convention::{
    Convention, Failure, OrErrno, OrNull, Value, callback, check_mask, export, inject_faults, required,
};
use crate::cq::CqObject;
use crate::domain::ParentDomain;
use crate::lock::Locked;
use crate::memory::PdObject;
use crate::object::{Acknowledged, Object, pointer};
use crate::post::{Receives, frequent_receive, post_receives};
use crate::xrc::XrcdObject;

/// The struct of C, and the acknowledged events of the SRQ.
#[repr(C)]
pub(crate) struct SrqHead {
    abi: ibv_srq,
    pub(crate) events: Acknowledged,
    _parent: Option<Arc<ParentDomain>>,
}

pub(crate) type SrqObject = Object<SrqHead, Locked<AnySrq>>;

/// An SRQ of any type.
pub(crate) enum AnySrq {
    Basic(Srq),
    Xrc(XrcSrq),
}

impl AnySrq {
    /// The SRQ, if QPs can be created with it.
    pub(crate) fn basic(&self) -> Result<&Srq, Failure> {
        match self {
            Self::Basic(srq) => Ok(srq),
            Self::Xrc(_) => Err(Failure::INVALID),
        }
    }

    fn handle(&self) -> u32 {
        match self {
            Self::Basic(srq) => srq.handle(),
            Self::Xrc(srq) => srq.handle(),
        }
    }

    /// Its granted capacity: receives, and SGEs of each.
    fn capacity(&self) -> (u32, u32) {
        match self {
            Self::Basic(srq) => (srq.capacity(), srq.max_sge()),
            Self::Xrc(srq) => (srq.capacity(), srq.max_sge()),
        }
    }

    pub(crate) fn layout(&self) -> Option<QueueLayout> {
        match self {
            Self::Basic(srq) => srq.layout(),
            Self::Xrc(srq) => srq.layout(),
        }
    }

    fn query(&self) -> Result<SrqAttr, Error> {
        match self {
            Self::Basic(srq) => srq.query(),
            Self::Xrc(srq) => srq.query(),
        }
    }

    fn set_limit(&mut self, limit: u32) -> Result<(), Error> {
        match self {
            Self::Basic(srq) => srq.set_limit(limit),
            Self::Xrc(srq) => srq.set_limit(limit),
        }
    }

    /// # Safety
    ///
    /// As for [`Srq::try_post_recv_of`].
    #[inline(always)]
    unsafe fn try_post_recv<P: BuiltIn>(&mut self, request: &RecvRequest<'_>) -> bool {
        match self {
            // SAFETY: the caller's contract is the same.
            Self::Basic(srq) => unsafe { srq.try_post_recv_of::<P>(request) },
            Self::Xrc(_) => false,
        }
    }

    /// # Safety
    ///
    /// As for [`Srq::post_recv`].
    #[inline(always)]
    unsafe fn post_recv_each(&mut self, requests: &mut Receives<'_>) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe {
            match self {
                Self::Basic(srq) => srq.post_recv_each(requests),
                Self::Xrc(srq) => srq.post_recv_each(requests),
            }
        }
    }

    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    fn destroy(self) -> Result<u32, Refused<Self>> {
        match self {
            Self::Basic(srq) => srq.destroy().map_err(|refused| refused.map(Self::Basic)),
            Self::Xrc(srq) => srq.destroy().map_err(|refused| refused.map(Self::Xrc)),
        }
    }
}

/// Creates an SRQ, by `make`. Returns the granted capacity in `attr`.
fn create(
    pd: &PdObject,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    make: impl FnOnce(&SrqInit<'_>) -> Result<AnySrq, Error>,
) -> Result<*mut ibv_srq, Failure> {
    let parent = pd.abi.parent();
    let has_td = parent.is_some_and(|parent| parent.td().is_some());
    let is_single_threaded = has_td || ContextArgument::of(pd.abi.context).required()?.is_single_threaded;
    Object::create(|address| {
        let srq = make(&SrqInit {
            // libmlx5 grants room to programs that ask for none.
            max_sge: attr.max_sge,
            limit: attr.srq_limit,
            memory: ParentDomain::memory(parent),
            user_data: address,
            ..SrqInit::new(attr.max_wr.max(1))
        })?;
        (attr.max_wr, attr.max_sge) = srq.capacity();
        let abi = ibv_srq {
            context: pd.abi.context,
            srq_context,
            pd: pointer(Some(pd)),
            handle: srq.handle(),
            mutex: MaybeUninit::zeroed(),
            cond: MaybeUninit::zeroed(),
            events_completed: 0,
        };
        let head = SrqHead { abi, events: Acknowledged::default(), _parent: parent.cloned() };
        Ok((head, Locked::new(srq, is_single_threaded)))
    })
}

impl SrqObject {
    /// Its context, and the kernel's handle.
    pub(crate) fn kernel_object(&self) -> (*mut ibv_context, u32) {
        (self.abi.abi.context, self.abi.abi.handle)
    }
}

export! {
    /// Returns the granted capacity in `init`.
    fn ibv_create_srq(pd: Option<&PdObject>, init: Option<&mut ibv_srq_init_attr>) -> OrNull<ibv_srq> {
        let (pd, init) = (required(pd)?, required(init)?);
        create(pd, init.srq_context, &mut init.attr, |attr| pd.inner.create_srq(attr).map(AnySrq::Basic))
    }

    fn ibv_modify_srq(srq: Option<&SrqObject>, attr: Option<&ibv_srq_attr>, mask: c_int) -> OrErrno {
        let (srq, attr) = (required(srq)?, required(attr)?);
        let mask = SrqAttrMask::from_bits_retain(mask.cast_unsigned());
        check_mask(mask.into(), (SrqAttrMask::MAX_WR | SrqAttrMask::LIMIT).into(), Failure::INVALID)?;
        let mut srq = srq.inner.lock();
        if mask.contains(SrqAttrMask::MAX_WR) {
            match &mut *srq {
                AnySrq::Basic(srq) => srq.resize(attr.max_wr)?,
                // No device resizes them.
                AnySrq::Xrc(_) => return Err(Failure::INVALID),
            }
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            srq.set_limit(attr.srq_limit)?;
        }
        Ok(())
    }

    fn ibv_query_srq(srq: Option<&SrqObject>, attr: Option<&mut MaybeUninit<ibv_srq_attr>>) -> OrErrno {
        let found = required(srq)?.inner.lock().query()?;
        required(attr)?.write(ibv_srq_attr {
            max_wr: found.max_wr,
            max_sge: found.max_sge,
            srq_limit: found.limit,
        });
        Ok(())
    }

    fn ibv_destroy_srq(srq: Option<NonNull<SrqObject>>) -> OrErrno {
        // SAFETY: the argument is a live SRQ, which the program uses no longer, but to acknowledge
        // events.
        unsafe { Object::destroy(required(srq)?, AnySrq::destroy, |head, read| head.events.wait_for(read)) }
    }
}

callback! {
    /// `ibv_create_srq_ex`. Returns the granted capacity in `init`.
    fn create_srq_ex(context: ContextArgument<'_>, init: Option<&mut ibv_srq_init_attr_ex>) -> OrNull<ibv_srq> {
        inject_faults("create_srq_ex")?;
        let (context, init) = (&context.required()?.context, required(init)?);
        let has = |flags: c_int| init.comp_mask & flags.cast_unsigned() == flags.cast_unsigned();
        let of_xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
        let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type.cast_signed() } else { IBV_SRQT_BASIC };
        match srq_type {
            IBV_SRQT_XRC if context.capabilities().xrc => {}
            IBV_SRQT_XRC | IBV_SRQT_TM => return Err(Failure::UNSUPPORTED),
            IBV_SRQT_BASIC => {}
            _ => return Err(Failure::INVALID),
        }
        let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | of_xrc;
        let is_xrc = srq_type == IBV_SRQT_XRC;
        if init.comp_mask & !known.cast_unsigned() != 0 || !has(IBV_SRQ_INIT_ATTR_PD) || is_xrc && !has(of_xrc) {
            return Err(Failure::INVALID);
        }
        // SAFETY: a selected pointer is null or that of an object of its type.
        let (pd, objects) = unsafe {
            let pd: Option<&PdObject> = init.pd.cast::<PdObject>().as_ref();
            let xrcd: Option<&XrcdObject> = is_xrc.then(|| init.xrcd.cast::<XrcdObject>().as_ref()).flatten();
            let cq: Option<&CqObject> = is_xrc.then(|| init.cq.cast::<CqObject>().as_ref()).flatten();
            (required(pd)?, (xrcd, cq))
        };
        if !is_xrc {
            return create(pd, init.srq_context, &mut init.attr, |attr| {
                pd.inner.create_srq(attr).map(AnySrq::Basic)
            });
        }
        let (xrcd, cq) = (required(objects.0)?, required(objects.1)?);
        create(pd, init.srq_context, &mut init.attr, |attr| {
            cq.with_queue(|cq| {
                let init = XrcSrqInit { srq: *attr, xrcd: &xrcd.inner, cq };
                pd.inner.create_xrc_srq(&init).map(AnySrq::Xrc)
            })
        })
    }

    /// `ibv_get_srq_num`.
    fn get_srq_num(srq: Option<&SrqObject>, number: Option<&mut u32>) -> OrErrno {
        let (srq, number) = (required(srq)?.inner.lock(), required(number)?);
        *number = match &*srq {
            AnySrq::Xrc(srq) => srq.srq_num(),
            AnySrq::Basic(srq) => {
                srq.layout().and_then(|layout| layout.number).ok_or(Failure::UNSUPPORTED)?
            }
        };
        Ok(())
    }
}

callback! {
    /// Returns 0 or an errno. The fast path is as that of `ibv_post_recv`.
    fn post_srq_recv<P: BuiltIn, const IS_ELIDED: bool>(
        srq: &SrqObject,
        first: *mut ibv_recv_wr,
        bad: Option<&mut *mut ibv_recv_wr>,
    ) -> Value<c_int> {
        if !IS_ELIDED && srq.inner.is_elided() {
            // SAFETY: the contract is the same.
            return Ok(unsafe { post_srq_recv::<P, true>(srq, first, bad) });
        }
        let Some(mut guard) = srq.inner.try_lock(IS_ELIDED) else {
            // SAFETY: the requests are a list of the program, which keeps their memory until they complete.
            return Ok(unsafe { post_contended(srq, first, bad) });
        };
        // SAFETY: as above.
        if let Some(request) = unsafe { frequent_receive(first) }
            && bad.is_some()
            // SAFETY: as above.
            && unsafe { guard.try_post_recv::<P>(&request) }
        {
            return Ok(guard.unlock_with(0));
        }
        mem::forget(guard);
        // SAFETY: as above. The SRQ was left locked.
        Ok(unsafe { post_list(srq, first, bad) })
    }
}

/// Posts receives to an SRQ that another thread had locked.
///
/// # Safety
///
/// As for [`post_receives`].
#[cold]
#[inline(never)]
unsafe fn post_contended(
    srq: &SrqObject,
    first: *mut ibv_recv_wr,
    bad: Option<&mut *mut ibv_recv_wr>,
) -> c_int {
    mem::forget(srq.inner.lock());
    // SAFETY: by the contract. The SRQ was left locked.
    unsafe { post_list(srq, first, bad) }
}

/// Posts any list of receives. `bad` becomes the first one that is rejected.
///
/// # Safety
///
/// As for [`post_receives`]. The caller has left the SRQ locked.
#[inline(never)]
unsafe fn post_list(srq: &SrqObject, first: *mut ibv_recv_wr, bad: Option<&mut *mut ibv_recv_wr>) -> c_int {
    // SAFETY: by the contract.
    let mut guard = unsafe { srq.inner.take_up() };
    // SAFETY: by the contract.
    let posted = unsafe { post_receives(first, bad, |requests| guard.post_recv_each(requests)) };
    drop(guard);
    OrErrno::answer(posted)
}
