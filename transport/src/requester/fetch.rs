//! Start of send WQEs.

use super::complete::fail;
use crate::device::{Device, Fetched};
use crate::error_state::fatal_error;
use crate::packet::{PSN_MASK, Transport};
use crate::qp::Qp;
use crate::qp::requester_state::{InflightWqe, Response};
use crate::status::Status;
use crate::work::{Action, Fence, Segment, Sge, Work};

/// Starts the next WQE. Returns `false` if there is none or it must wait.
pub(super) fn begin_next<D: Device>(qp: &mut Qp<D>, device: &mut D) -> bool {
    if qp.requester.blocked {
        return false;
    }
    let fetched = device.fetch(&mut qp.queues, &mut qp.requester.work);
    let (transport, mtu) = (qp.transport(), qp.attributes.mtu);
    let work = &qp.requester.work;
    let failure = match fetched {
        Fetched::Empty => return false,
        Fetched::Fault => {
            fatal_error(qp, device);
            return false;
        }
        Fetched::Malformed => Some(Status::LocalQpOperation),
        Fetched::Work if work.length > D::MAX_MESSAGE => Some(Status::LocalLength),
        Fetched::Work if transport == Some(Transport::Ud) && work.length > u64::from(mtu) => {
            Some(Status::LocalLength)
        }
        Fetched::Work if matches!(work.action, Action::AtomicWrite) && work.length != 8 => {
            Some(Status::LocalLength)
        }
        Fetched::Work if qp.attributes.max_rd_atomic == 0 && takes_depth(&work.action) => {
            Some(Status::LocalQpOperation)
        }
        Fetched::Work => None,
    };
    let wants_data = failure.is_none() && has_response(&work.action);
    let under_way = qp.requester.data_under_way();
    let fenced = match work.fence {
        Fence::None => false,
        Fence::Responses => under_way > 0,
        Fence::Everything => qp.requester.inflight.iter().any(|inflight| !inflight.done),
    };
    if fenced || wants_data && under_way >= usize::from(qp.attributes.max_rd_atomic.max(1)) {
        return false;
    }
    let (response, packets) = match work.action {
        _ if failure.is_some() => (Response::None, 0),
        Action::Local(_) => (Response::None, 0),
        Action::Read => (Response::Read { places: places(work), received: 0 }, packets_of(work.length, mtu)),
        Action::Atomic { .. } => (Response::Atomic { places: places(work) }, 1),
        // The response is that to a READ of no bytes.
        Action::Flush(_) | Action::AtomicWrite => (Response::Read { places: Box::default(), received: 0 }, 1),
        Action::Send { .. } | Action::Write { .. } => match transport {
            Some(Transport::Rc | Transport::Xrc) => (Response::Acknowledge, packets_of(work.length, mtu)),
            Some(Transport::Uc) => (Response::None, packets_of(work.length, mtu)),
            _ => (Response::None, 1),
        },
    };
    let wqe = device.begin(&mut qp.queues, work);
    let length = match work.action {
        Action::Flush(_) | Action::AtomicWrite => 0,
        _ => work.length as u32,
    };
    let signaled = work.signaled;
    let requester = &mut qp.requester;
    requester.inflight.push_back(InflightWqe {
        wqe,
        signaled,
        response,
        first_psn: requester.next_psn,
        packets,
        length,
        done: false,
        failure: None,
        inline_response: Box::default(),
    });
    requester.next_psn = requester.next_psn.wrapping_add(packets) & PSN_MASK;
    requester.cursor = (requester.inflight.len() - 1, 0);
    if let Some(status) = failure {
        fail(qp, device, qp.requester.inflight.len() - 1, status);
        return false;
    }
    true
}

/// Whether a request needs an initiator depth.
fn takes_depth<L>(action: &Action<L>) -> bool {
    matches!(action, Action::Read | Action::Atomic { .. } | Action::AtomicWrite)
}

/// Whether the responder answers with a response rather than an ACK.
fn has_response<L>(action: &Action<L>) -> bool {
    matches!(action, Action::Read | Action::Atomic { .. } | Action::Flush(_) | Action::AtomicWrite)
}

/// The SGEs of a response. Inline segments can't receive data, and devices reject such WQEs.
fn places<L>(work: &Work<L>) -> Box<[Sge]> {
    let memory = |segment: &Segment| match segment {
        Segment::Memory(sge) => Some(*sge),
        Segment::Inline { .. } => None,
    };
    work.segments.iter().filter_map(memory).collect()
}

fn packets_of(length: u64, mtu: u32) -> u32 {
    length.div_ceil(u64::from(mtu.max(1))).max(1) as u32
}
