//! Page faults of the responder.

use crate::device::{Device, PageFault, SendWqe};
use crate::qp::Qp;
use crate::qp::responder_state::{FaultedAccess, Message, ResponderFault};
use crate::work::Receive;

/// Asks for an absent page and waits for the answer. Returns `false` if the device can't fault it
/// in. The responder has at most one outstanding fault.
pub(super) fn wait_for_page<D: Device>(
    qp: &mut Qp<D>,
    device: &mut D,
    access: FaultedAccess,
    fault: PageFault<SendWqe<D>, D::RecvWqe>,
    (committed, packet): (u32, usize),
) -> bool {
    if qp.responder.fault.is_none() {
        let token = device.page_fault(&qp.queues, fault, committed, packet);
        qp.responder.fault = token.map(|token| ResponderFault { token, access });
    }
    qp.responder.fault.is_some()
}

/// Asks for an absent page of a receive WQE and keeps the WQE until its message is sent again.
/// Returns `false`, and doesn't keep it, if the device can't fault the page in.
pub(crate) fn wait_for_receive<D: Device>(
    qp: &mut Qp<D>,
    device: &mut D,
    receive: &Receive<D::RecvWqe>,
    packet: usize,
) -> bool {
    let fault = PageFault::Receive(receive.wqe, receive.srq);
    let raised = wait_for_page(qp, device, FaultedAccess::Receive, fault, (receive.placed, packet));
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
