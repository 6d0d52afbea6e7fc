//! The inline functions of `verbs.h` that post and poll: they call what they find in the context.

use std::ffi::c_int;

use crate::abi::cq::ibv_wc;
use crate::abi::device::{ibv_context, ibv_context_ops};
use crate::abi::work::{ibv_recv_wr, ibv_send_wr};
use crate::cq::CqObject;
use crate::qp::QpObject;
use crate::srq::SrqObject;

fn operations(context: *mut ibv_context) -> &'static ibv_context_ops {
    // SAFETY: the context of an object lives longer than the test uses the object.
    unsafe { &(*context).ops }
}

/// Defines the functions. Their callers have the duties of the called ones.
macro_rules! inline {
    ($( $name:ident($object:ident: $type:ty $(, $argument:ident: $argument_type:ty)*); )*) => { $(
        pub(super) unsafe fn $name($object: &$type $(, $argument: $argument_type)*) -> c_int {
            let function = operations($object.kernel_object().0).$name;
            // SAFETY: the function has this type, and the caller has its duties.
            unsafe {
                let function: unsafe extern "C" fn(&$type $(, $argument_type)*) -> c_int = function.cast();
                function($object $(, $argument)*)
            }
        }
    )* };
}

inline! {
    post_send(qp: QpObject, first: *mut ibv_send_wr, bad: Option<&mut *mut ibv_send_wr>);
    post_recv(qp: QpObject, first: *mut ibv_recv_wr, bad: Option<&mut *mut ibv_recv_wr>);
    post_srq_recv(srq: SrqObject, first: *mut ibv_recv_wr, bad: Option<&mut *mut ibv_recv_wr>);
    poll_cq(cq: CqObject, count: c_int, into: *mut ibv_wc);
}
