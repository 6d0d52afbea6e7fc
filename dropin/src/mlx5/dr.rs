//! The action of software-managed steering (DR) whose destination is a QP.
//!
//! No rule can have it: rules of DR are in tables of DR, which are refused. DPDK makes one for each QP of its
//! receive queues, also if it steers by `ibv_create_flow`.

use std::ptr::NonNull;

use bareverbs::qp::QpType;

use super::{context, export};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, required};
use crate::qp::QpObject;

pub(crate) struct DrAction {
    /// The destination. The program keeps it, and nothing reads it.
    _qp: NonNull<QpObject>,
}

export! {
    fn mlx5dv_dr_action_create_dest_ibv_qp(qp: Option<&QpObject>) -> OrNull<DrAction> {
        let qp = required(qp)?;
        context(ContextArgument::of(qp.kernel_object().0))?;
        if qp.numbers().0 != QpType::RAW_PACKET {
            return Err(Failure::INVALID);
        }
        Ok(Box::into_raw(Box::new(DrAction { _qp: NonNull::from(qp) })))
    }

    fn mlx5dv_dr_action_destroy(action: Option<NonNull<DrAction>>) -> OrErrno {
        // SAFETY: the only function that returns one has made it from a box. The program uses it no longer.
        drop(unsafe { Box::from_raw(required(action)?.as_ptr()) });
        Ok(())
    }
}
