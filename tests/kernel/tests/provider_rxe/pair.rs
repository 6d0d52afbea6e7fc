//! Two connected queue pairs, and their messages.

use std::time::{Duration, Instant};

use bareverbs_provider::traits::{
    Completion as _, CompletionQueue, CreatedCq, CreatedQp, RecvQueue, SendQueue,
};
use bareverbs_provider::work::{
    Operation, Payload, PushError, RecvRequest, SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use bareverbs_rxe::Rxe;
use bareverbs_uapi::uverbs::types::QpCap;

use crate::host::Host;

pub(crate) const CAP: QpCap =
    QpCap { max_send_wr: 10, max_recv_wr: 10, max_send_sge: 2, max_recv_sge: 3, max_inline_data: 64 };

/// Two connected queue pairs, each with a CQ of its own.
pub(crate) struct Pair {
    pub(crate) host: Host,
    pub(crate) client: CreatedQp<Rxe>,
    pub(crate) client_cq: CreatedCq<Rxe>,
    pub(crate) server: CreatedQp<Rxe>,
    pub(crate) server_cq: CreatedCq<Rxe>,
}

impl Pair {
    pub(crate) fn unconnected(cap: QpCap) -> Self {
        let host = Host::new();
        let (client_cq, server_cq) = (host.cq(100), host.cq(100));
        let (client, server) = (host.qp(&client_cq, None, cap), host.qp(&server_cq, None, cap));
        Self { host, client, client_cq, server, server_cq }
    }

    pub(crate) fn new(cap: QpCap) -> Self {
        let pair = Self::unconnected(cap);
        pair.host.connect(&pair.client, &pair.server);
        pair
    }

    pub(crate) fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        let queue = self.server.rq.as_mut().unwrap();
        // SAFETY: the memory stays registered until the completion is polled.
        unsafe { queue.push(&RecvRequest { wr_id, sges }) }.unwrap();
        queue.ring();
    }

    pub(crate) fn send(&mut self, wr_id: u64, operation: Operation, payload: Payload<'_>) {
        push(&mut self.client, wr_id, operation, payload).unwrap();
        self.client.sq.ring().unwrap();
    }
}

pub(crate) fn push(
    qp: &mut CreatedQp<Rxe>,
    wr_id: u64,
    operation: Operation,
    payload: Payload<'_>,
) -> Result<(), PushError> {
    // SAFETY: the memory stays registered until the completion is polled.
    unsafe { qp.sq.push(&SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload }) }
}

pub(crate) fn try_poll(cq: &mut CreatedCq<Rxe>) -> Option<WorkCompletion> {
    let completion = cq.queue.next().map(|completion| completion.to_value());
    cq.queue.release();
    completion
}

pub(crate) fn poll(cq: &mut CreatedCq<Rxe>) -> WorkCompletion {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(completion) = try_poll(cq) {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion came");
        std::thread::yield_now();
    }
}

#[track_caller]
pub(crate) fn succeeds(cq: &mut CreatedCq<Rxe>, wr_id: u64, opcode: WcOpcode) -> WorkCompletion {
    let completion = poll(cq);
    assert_eq!((completion.wr_id, completion.status, completion.opcode), (wr_id, WcStatus::SUCCESS, opcode));
    completion
}
