//! The queues of a QP.

use std::sync::Arc;

use bareverbs_transport::{Queues, ReceiveQueue, Service};

use super::receive::RecvRing;
use super::send::{SendRing, SendWqeRef};
use crate::channel::ObjectSink;

/// The queues and the parameters of a QP.
#[derive(Debug)]
pub(crate) struct QpQueues {
    pub(super) number: u32,
    pub(super) pd: u32,
    pub(super) service: Service,
    pub(super) send_cq: u32,
    pub(super) recv_cq: u32,
    pub(super) sends: SendRing,
    pub(super) receives: Receives,
    pub(super) sink: Arc<ObjectSink>,
}

/// Where a QP takes its receive WQEs.
#[derive(Debug)]
pub(super) enum Receives {
    Own(RecvRing),
    Srq(u32),
}

impl Queues for QpQueues {
    type SendWqe = SendWqeRef;

    fn number(&self) -> u32 {
        self.number
    }

    fn service(&self) -> Option<Service> {
        Some(self.service)
    }

    fn has_send_queue(&self) -> bool {
        true
    }

    fn receive_queue(&self) -> ReceiveQueue {
        match &self.receives {
            Receives::Own(ring) => ReceiveQueue::Own { size: ring.capacity() },
            Receives::Srq(_) => ReceiveQueue::Shared,
        }
    }

    fn blocks_own_multicast(&self) -> bool {
        false
    }

    fn inline_responses(&self) -> u32 {
        0
    }

    fn inline_receives(&self) -> usize {
        0
    }

    fn continue_after(&mut self, wqe: SendWqeRef) {
        self.sends.continue_after(wqe);
    }

    fn reset(&mut self) {
        self.sends.reset();
        if let Receives::Own(ring) = &mut self.receives {
            ring.reset();
        }
    }
}
