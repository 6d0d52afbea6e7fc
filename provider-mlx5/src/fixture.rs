//! A queue pair with a device model that the test controls, for unit tests and loom models.

use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus,
};
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use crate::cq::Mlx5Cq;
use crate::cqe::{CQE, CqeOpcode};
use crate::rq::Mlx5Rq;
use crate::sq::Mlx5Sq;
use crate::testing::{DmaRange, Plain};

/// Two sends of one WQEBB and one receive fill the queues.
pub(crate) const CAP: QpCap =
    QpCap { max_send_wr: 2, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 4, max_inline_data: 0 };
/// Log2 of the number of CQEs of a CQ.
pub(crate) const LOG: u32 = 2;
pub(crate) const NUMBER: u32 = 0x40;

/// The device, which writes CQEs.
pub(crate) struct Device {
    pub(crate) ring: DmaRange,
    pub(crate) log: u32,
    /// CQEs written, counted on.
    pub(crate) next: u32,
}

// SAFETY: the memory of the ring belongs to no thread.
unsafe impl Send for Device {}

impl Device {
    /// Completes the request with WQE counter `counter` of the queue with this user index.
    pub(crate) fn write_cqe(&mut self, opcode: CqeOpcode, user_index: u32, counter: u16) {
        self.write_cqe_with_payload(opcode, user_index, counter, &[]);
    }

    /// Like [`Device::write_cqe`], with payload in the CQE.
    pub(crate) fn write_cqe_with_payload(
        &mut self,
        opcode: CqeOpcode,
        user_index: u32,
        counter: u16,
        message: &[u8],
    ) {
        let mut entry = [0u8; CQE];
        entry[..message.len()].copy_from_slice(message);
        entry[32..36].copy_from_slice(&user_index.to_be_bytes());
        entry[44..48].copy_from_slice(&(message.len() as u32).to_be_bytes());
        entry[56..60].copy_from_slice(&(0x0a << 24 | NUMBER).to_be_bytes());
        entry[60..62].copy_from_slice(&counter.to_be_bytes());
        let carries = if message.is_empty() { 0 } else { 1 << 2 };
        entry[63] = opcode.0 << 4 | carries | (self.next >> self.log & 1) as u8;
        let slot = (self.next & ((1 << self.log) - 1)) as usize;
        self.next += 1;
        // SAFETY: the CQE lies in the ring, which no other thread accesses while the device is
        // used.
        unsafe { self.ring.start.add(slot * CQE).as_ptr().copy_from_nonoverlapping(entry.as_ptr(), CQE) };
    }

    /// Writes a RESIZE CQE and switches to another ring.
    pub(crate) fn write_resize_cqe(&mut self, ring: DmaRange, log: u32) {
        self.write_cqe(CqeOpcode::RESIZE, 0, 0);
        (self.ring, self.log) = (ring, log);
    }
}

/// A queue pair with one CQ, or two.
pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) cq: Mlx5Cq,
    pub(crate) sq: Mlx5Sq,
    pub(crate) rq: Mlx5Rq,
    pub(crate) user_index: u32,
    /// The CQ of the receive queue, if it differs from `cq`.
    #[cfg_attr(not(loom), expect(dead_code, reason = "for models"))]
    pub(crate) recv_cq: Option<Mlx5Cq>,
    pub(crate) _context: Plain,
}

impl Fixture {
    pub(crate) fn new(scattering: bool) -> Self {
        Self::with(scattering, false)
    }

    pub(crate) fn with(scattering: bool, two_cqs: bool) -> Self {
        Self::in_context(Plain::new(3).expect("memory"), scattering, two_cqs)
    }

    pub(crate) fn in_context(context: Plain, scattering: bool, two_cqs: bool) -> Self {
        let parts = context.cq(LOG, CQE).expect("memory");
        let device = Device { ring: parts.ring(), log: LOG, next: 0 };
        let cq = parts.finish(1);
        let recv_cq = two_cqs.then(|| context.cq(LOG, CQE).expect("memory").finish(2));
        let to = recv_cq.as_ref().unwrap_or(&cq);
        let parts = if scattering {
            context.scattering_qp(QpType::RC, &CAP, &cq, to)
        } else {
            context.qp(QpType::RC, &CAP, &cq, to, None)
        };
        let parts = parts.expect("small");
        assert_eq!((parts.cap().max_send_wr, parts.cap().max_recv_wr), (2, 1));
        let user_index = parts.user_index();
        let (sq, rq, _) = parts.finish(NUMBER, false).expect("memory");
        Self { device, cq, sq, rq: rq.expect("receives"), user_index, recv_cq, _context: context }
    }

    /// A fixture whose poller has cached the records of both queues, which enables the fast path.
    pub(crate) fn with_cached_records() -> Self {
        let mut fixture = Self::new(false);
        send(&mut fixture.sq, 100).expect("room");
        recv(&mut fixture.rq, 200, &[]).expect("room");
        fixture.device.write_cqe(CqeOpcode::REQ, fixture.user_index, 0);
        fixture.device.write_cqe(CqeOpcode::RESP_SEND, fixture.user_index, 0);
        assert_eq!(poll(&mut fixture.cq), Some(100));
        assert_eq!(poll(&mut fixture.cq), Some(200));
        fixture
    }
}

/// Posts an RDMA write of one WQEBB.
pub(crate) fn send(sq: &mut Mlx5Sq, wr_id: u64) -> Result<(), PushError> {
    let operation = Operation::Write(Remote { addr: 64, rkey: 1 });
    let sges = [Sge { addr: 64, length: 8, lkey: 1 }];
    let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&sges) };
    // SAFETY: no device accesses the memory.
    let pushed = unsafe { if sq.try_push(&request) { Ok(()) } else { sq.push(&request) } };
    sq.ring().expect("a write to memory");
    pushed
}

pub(crate) fn recv(rq: &mut Mlx5Rq, wr_id: u64, sges: &[Sge]) -> Result<(), PushError> {
    let request = RecvRequest { wr_id, sges };
    // SAFETY: the models keep the memory valid while the receive is posted.
    let pushed = unsafe { if rq.try_push(&request) { Ok(()) } else { rq.push(&request) } };
    rq.ring();
    pushed
}

/// The `wr_id` of the next completion.
pub(crate) fn poll(cq: &mut Mlx5Cq) -> Option<u64> {
    let id = cq.next().map(|completion| {
        assert_eq!(completion.status(), WcStatus::SUCCESS);
        completion.wr_id()
    });
    cq.release();
    id
}
