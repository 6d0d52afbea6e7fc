//! Page faults of the responder.

use crate::engine::core::Core;
use crate::engine::page_fault::{PageFaultInfo, kind};
use crate::engine::qp::{FaultedAccess, Message, Qp, ResponderFault};
use crate::engine::srq::Receive;

/// Raises a page fault and waits for the answer. Returns `false` if no page-fault EQ took the
/// event. The responder has at most one outstanding fault.
pub(super) fn wait_for_page(
    qp: &mut Qp,
    core: &mut Core,
    access: FaultedAccess,
    info: PageFaultInfo,
    (committed, packet): (u32, usize),
) -> bool {
    if qp.responder.fault.is_none() {
        let token = core.page_fault(qp.number, info, committed, packet);
        qp.responder.fault = token.map(|token| ResponderFault { token, access });
    }
    qp.responder.fault.is_some()
}

/// Raises a page fault for a receive WQE and keeps the WQE until its message is sent again. Returns
/// `false`, and doesn't keep it, if no page-fault EQ took the event.
pub(crate) fn wait_for_receive(qp: &mut Qp, core: &mut Core, receive: &Receive, packet: usize) -> bool {
    let (kind, queue) = match receive.srq {
        Some(srq) => (kind::SHARED_RECEIVE, srq),
        None => (kind::RECEIVE, qp.number),
    };
    let info = PageFaultInfo::List { kind, queue, index: receive.wqe_counter };
    let raised = wait_for_page(qp, core, FaultedAccess::Receive, info, (receive.placed, packet));
    if raised {
        let receive_copy = Some(receive.clone());
        if receive.placed == 0 {
            qp.responder.reusable_receive = receive_copy;
        } else {
            qp.responder.message = receive_copy.map(Message::Send);
        }
    }
    raised
}
