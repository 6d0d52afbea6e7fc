//! Memory windows.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use bareverbs::Access;
use bareverbs::mw::{Mw, MwBind, MwType};

use crate::abi::memory::{ibv_mw, ibv_mw_bind_info};
use crate::convention::{Failure, OrErrno, OrNull, callback, inject_faults, required};
use crate::memory::{MrObject, PdObject};
use crate::object::{Object, pointer};

pub(crate) type MwObject = Object<ibv_mw, Mw>;

/// The bind of a window, whose key C has in its struct. `None` for the region unbinds it.
pub(crate) fn bind(mw: Option<&MwObject>, rkey: u32, info: &ibv_mw_bind_info) -> Result<MwBind, Failure> {
    let mw = required(mw)?;
    // SAFETY: the pointer is null or that of a region.
    let mr = unsafe { info.mr.cast::<MrObject>().as_ref() };
    Ok(MwBind {
        mw_type: mw.inner.mw_type(),
        mw_rkey: mw.abi.rkey.load(Ordering::Relaxed),
        rkey,
        mr_lkey: mr.map_or(0, |mr| mr.abi.lkey),
        addr: info.addr,
        length: info.length,
        access: Access::from_bits_retain(info.mw_access_flags),
    })
}

callback! {
    /// `ibv_alloc_mw`.
    fn alloc_mw(pd: Option<&PdObject>, mw_type: u32) -> OrNull<ibv_mw> {
        inject_faults("alloc_mw")?;
        let pd = required(pd)?;
        let mw_type_of_kernel = u8::try_from(mw_type).map_err(|_| Failure::INVALID)?;
        Object::create(|_| {
            let mw = pd.inner.alloc_mw(MwType(mw_type_of_kernel))?;
            let abi = ibv_mw {
                context: pd.abi.context,
                pd: pointer(Some(pd)),
                rkey: AtomicU32::new(mw.rkey()),
                handle: mw.handle(),
                mw_type,
            };
            Ok((abi, mw))
        })
    }

    /// `ibv_dealloc_mw`.
    fn dealloc_mw(mw: Option<NonNull<MwObject>>) -> OrErrno {
        inject_faults("dealloc_mw")?;
        // SAFETY: the argument is a live window, which the program uses no longer.
        unsafe { Object::destroy(required(mw)?, Mw::dealloc, |_, ()| ()) }
    }
}
