//! DMA handles.

use std::ptr::NonNull;

use bareverbs::mr::{Dmah, DmahInit, TphMemType};

use crate::abi::memory::{ibv_dmah, ibv_dmah_init_attr};
use crate::abi::values::{
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID, IBV_DMAH_INIT_ATTR_MASK_PH, IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE, has,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, export, required};
use crate::object::Object;

pub(crate) type DmahObject = Object<ibv_dmah, Dmah>;

export! {
    fn ibv_alloc_dmah(
        context: ContextArgument<'_>,
        attr: Option<&ibv_dmah_init_attr>,
    ) -> OrNull<ibv_dmah> {
        let (found, attr) = (&context.required()?.context, required(attr)?);
        let has = |flag| has(attr.comp_mask, flag);
        let of_cpu = IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
        if has(!(of_cpu | IBV_DMAH_INIT_ATTR_MASK_PH)) {
            return Err(Failure::UNSUPPORTED);
        }
        if has(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) != has(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) {
            return Err(Failure::INVALID);
        }
        let init = DmahInit {
            processing_hint: has(IBV_DMAH_INIT_ATTR_MASK_PH).then_some(attr.ph),
            cpu: has(of_cpu).then_some((attr.cpu_id, TphMemType(attr.tph_mem_type))),
        };
        Object::create(|_| Ok((ibv_dmah { context: context.pointer() }, found.alloc_dmah(&init)?)))
    }

    fn ibv_dealloc_dmah(dmah: Option<NonNull<DmahObject>>) -> OrErrno {
        // SAFETY: the argument is a live DMA handle, which the program uses no longer.
        unsafe { Object::destroy(required(dmah)?, Dmah::dealloc, |_, ()| ()) }
    }
}
