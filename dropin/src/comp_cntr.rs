//! Completion counters.

use std::ptr::NonNull;

use bareverbs::comp_cntr::{CompCntr, CompCntrOps};

use crate::abi::comp_cntr::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_qp_attach_comp_cntr_attr,
};
use crate::abi::values::{IBV_COMP_CNTR_TYPE_BYTES, IBV_COMP_CNTR_TYPE_WRS};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, check_mask, export, required};
use crate::object::Object;
use crate::port::write_known;
use crate::qp::QpObject;

pub(crate) type CompCntrObject = Object<ibv_comp_cntr, CompCntr>;

export! {
    fn _ibv_query_comp_cntr_caps(
        context: ContextArgument<'_>,
        caps: *mut ibv_comp_cntr_caps,
        size: usize,
    ) -> OrErrno {
        let context = context.required()?;
        if caps.is_null() || size < size_of::<ibv_comp_cntr_caps>() {
            return Err(Failure::INVALID);
        }
        let found = context.context.query_comp_cntr_caps()?;
        let found = ibv_comp_cntr_caps {
            max_value: found.max_value,
            max_counters: found.max_counters,
            supported_qp_attach_ops: found.ops.bits(),
        };
        // SAFETY: the program has a struct of this size.
        unsafe { write_known(&found, caps, size) };
        Ok(())
    }

    /// A counter of work requests. No device of `bareverbs` counts bytes.
    fn ibv_create_comp_cntr(
        context: ContextArgument<'_>,
        init: Option<&ibv_comp_cntr_init_attr>,
    ) -> OrNull<ibv_comp_cntr> {
        let (of_context, init) = (context.required()?, required(init)?);
        let is_valid = init.comp_mask == 0 && init.flags == 0;
        match init.counter_type.cast_signed() {
            IBV_COMP_CNTR_TYPE_WRS if is_valid => {}
            IBV_COMP_CNTR_TYPE_BYTES if is_valid => return Err(Failure::UNSUPPORTED),
            _ => return Err(Failure::INVALID),
        }
        Object::create(|_| {
            let counter = of_context.context.create_comp_cntr()?;
            Ok((ibv_comp_cntr { context: context.pointer(), handle: counter.handle() }, counter))
        })
    }

    /// A counter that is attached to a QP is `EBUSY`.
    fn ibv_destroy_comp_cntr(counter: Option<NonNull<CompCntrObject>>) -> OrErrno {
        // SAFETY: the argument is a live counter, which the program uses no longer.
        unsafe { Object::destroy(required(counter)?, CompCntr::destroy, |_, ()| ()) }
    }

    fn ibv_set_comp_cntr(counter: Option<&CompCntrObject>, value: u64) -> OrErrno {
        Ok(required(counter)?.inner.set(value)?)
    }

    fn ibv_set_err_comp_cntr(counter: Option<&CompCntrObject>, value: u64) -> OrErrno {
        Ok(required(counter)?.inner.set_errors(value)?)
    }

    fn ibv_inc_comp_cntr(counter: Option<&CompCntrObject>, amount: u64) -> OrErrno {
        Ok(required(counter)?.inner.add(amount)?)
    }

    fn ibv_inc_err_comp_cntr(counter: Option<&CompCntrObject>, amount: u64) -> OrErrno {
        Ok(required(counter)?.inner.add_errors(amount)?)
    }

    fn ibv_read_comp_cntr(counter: Option<&CompCntrObject>, value: Option<&mut u64>) -> OrErrno {
        let (counter, value) = (required(counter)?, required(value)?);
        *value = counter.inner.read()?;
        Ok(())
    }

    fn ibv_read_err_comp_cntr(counter: Option<&CompCntrObject>, value: Option<&mut u64>) -> OrErrno {
        let (counter, value) = (required(counter)?, required(value)?);
        *value = counter.inner.read_errors()?;
        Ok(())
    }

    fn ibv_qp_attach_comp_cntr(
        qp: Option<&QpObject>,
        counter: Option<&CompCntrObject>,
        attr: Option<&ibv_qp_attach_comp_cntr_attr>,
    ) -> OrErrno {
        let (qp, counter, attr) = (required(qp)?, required(counter)?, required(attr)?);
        check_mask(attr.comp_mask.into(), 0, Failure::INVALID)?;
        let ops = CompCntrOps::from_bits_retain(attr.op_mask);
        Ok(qp.inner.queues()?.with_core(|core| core.attach_comp_cntr(&counter.inner, ops))?)
    }
}
