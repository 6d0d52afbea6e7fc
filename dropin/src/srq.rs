//! Shared receive queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Mutex;

use bareverbs::raw::uapi::verbs_values::SrqAttrMask;
use bareverbs::srq::{Srq, SrqInit};

use crate::abi::srq::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::abi::work::ibv_recv_wr;
use crate::convention::{Failure, OrErrno, OrNull, callback, export, required};
use crate::memory::PdObject;
use crate::object::{Acknowledged, Object, lock, pointer};
use crate::post::post_receives;

/// The struct of C, and the acknowledged events of the SRQ.
#[repr(C)]
pub(crate) struct SrqHead {
    abi: ibv_srq,
    pub(crate) events: Acknowledged,
}

pub(crate) type SrqObject = Object<SrqHead, Mutex<Srq>>;

export! {
    /// Returns the granted capacity in `init`.
    fn ibv_create_srq(pd: Option<&PdObject>, init: Option<&mut ibv_srq_init_attr>) -> OrNull<ibv_srq> {
        let (pd, init) = (required(pd)?, required(init)?);
        let created = Object::create(|address| {
            let attr = SrqInit {
                max_sge: init.attr.max_sge,
                limit: init.attr.srq_limit,
                user_data: address,
                ..SrqInit::new(init.attr.max_wr)
            };
            let srq = pd.inner.create_srq(&attr)?;
            (init.attr.max_wr, init.attr.max_sge) = (srq.capacity(), srq.max_sge());
            let abi = ibv_srq {
                context: pd.abi.context,
                srq_context: init.srq_context,
                pd: pointer(Some(pd)),
                handle: srq.handle(),
                mutex: MaybeUninit::zeroed(),
                cond: MaybeUninit::zeroed(),
                events_completed: 0,
            };
            Ok((SrqHead { abi, events: Acknowledged::default() }, Mutex::new(srq)))
        });
        created.map(<*mut SrqObject>::cast)
    }

    fn ibv_modify_srq(srq: Option<&SrqObject>, attr: Option<&ibv_srq_attr>, mask: c_int) -> OrErrno {
        let (srq, attr) = (required(srq)?, required(attr)?);
        let mask = SrqAttrMask::from_bits(mask.cast_unsigned()).ok_or(Failure::INVALID)?;
        let mut srq = lock(&srq.inner);
        if mask.contains(SrqAttrMask::MAX_WR) {
            srq.resize(attr.max_wr)?;
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            srq.set_limit(attr.srq_limit)?;
        }
        Ok(())
    }

    fn ibv_query_srq(srq: Option<&SrqObject>, attr: Option<&mut MaybeUninit<ibv_srq_attr>>) -> OrErrno {
        let found = lock(&required(srq)?.inner).query()?;
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
        unsafe { Object::destroy(required(srq)?, Srq::destroy, |head, read| head.events.wait_for(read)) }
    }
}

callback! {
    fn post_srq_recv(
        srq: Option<&SrqObject>,
        first: *mut ibv_recv_wr,
        bad: Option<&mut *mut ibv_recv_wr>,
    ) -> OrErrno {
        let srq = required(srq)?;
        let mut srq = lock(&srq.inner);
        // SAFETY: the requests are a list of the program, which keeps their memory until they complete.
        unsafe { post_receives(first, required(bad)?, |request| srq.post_recv(&[request])) }
    }
}
