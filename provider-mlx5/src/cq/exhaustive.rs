//! Polls a CQ exhaustively near the wraps of its consumer index.

use bareverbs_provider::traits::{RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Imm, Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcOpcode,
};
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use super::*;
use crate::cqe::CQE;
use crate::rq::Mlx5Rq;
use crate::sq::Mlx5Sq;
use crate::testing::{DmaRange, Plain};

const QPN: u32 = 0x123;
/// The immediate data of all CQEs. Those of messages without immediate data ignore it.
const IMM: Imm = Imm(0x0102_0304);

/// The opcode of a receive's CQE.
fn recv_opcode(wr_id: u64) -> CqeOpcode {
    let opcodes = [CqeOpcode::RESP_SEND, CqeOpcode::RESP_SEND_IMM, CqeOpcode::RESP_WR_IMM];
    opcodes[(wr_id / 3 % 3) as usize]
}

/// The device, which writes CQEs.
struct Device {
    ring: DmaRange,
    log: u32,
    cqe_size: usize,
    /// CQEs written, counted on.
    written: u32,
    user_index: u32,
    sends: u16,
    receives: u16,
}

impl Device {
    fn complete(&mut self, opcode: CqeOpcode, wqe_opcode: u8, counter: u16, bytes: u32) {
        self.complete_with(opcode.0 << 4, wqe_opcode, counter, bytes);
    }

    /// As `complete`, with all bits of `op_own` but the owner.
    fn complete_with(&mut self, op_own: u8, wqe_opcode: u8, counter: u16, bytes: u32) {
        let mut entry = [0; CQE];
        entry[32..36].copy_from_slice(&self.user_index.to_be_bytes());
        entry[36..40].copy_from_slice(&IMM.0.to_be_bytes());
        entry[44..48].copy_from_slice(&bytes.to_be_bytes());
        entry[56..60].copy_from_slice(&(u32::from(wqe_opcode) << 24 | QPN).to_be_bytes());
        entry[60..62].copy_from_slice(&counter.to_be_bytes());
        entry[63] = op_own | (self.written >> self.log & 1) as u8;
        let slot = (self.written & ((1 << self.log) - 1)) as usize;
        let at = (slot + 1) * self.cqe_size - CQE;
        assert!(at + CQE <= self.ring.len);
        // SAFETY: the CQE lies in the ring, which is otherwise only read, by this thread.
        unsafe { self.ring.start.add(at).as_ptr().copy_from_nonoverlapping(entry.as_ptr(), CQE) };
        self.written += 1;
    }
}

struct Fixture {
    cq: Mlx5Cq,
    sq: Mlx5Sq,
    rq: Mlx5Rq,
    device: Device,
    posted: u64,
    polled: u64,
    _context: Plain,
}

const SGES: [Sge; 1] = [Sge { addr: 64, length: 8, lkey: 1 }];

impl Fixture {
    /// A CQ of `1 << log` CQEs whose consumer index starts at `start`.
    fn new(log: u32, cqe_size: usize, start: u32) -> Self {
        let context = Plain::new(4).unwrap();
        let parts = context.cq(log, cqe_size).unwrap();
        let ring = parts.ring();
        let mut cq = parts.finish(9);
        cq.consumer = start;
        cq.reload_ring();
        let cap =
            QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let parts = context.qp(QpType::UC, &cap, &cq, &cq, None).unwrap();
        let user_index = parts.user_index();
        let (sq, rq, _) = parts.finish(QPN, false).unwrap();
        let device = Device { ring, log, cqe_size, written: start, user_index, sends: 0, receives: 0 };
        Self { cq, sq, rq: rq.unwrap(), device, posted: 0, polled: 0, _context: context }
    }

    /// Posts and completes `count` requests; every third is a receive, the others are sends.
    fn complete(&mut self, count: u64) {
        for _ in 0..count {
            let wr_id = self.posted;
            if wr_id.is_multiple_of(3) {
                // SAFETY: no device accesses the memory.
                unsafe { self.rq.push(&RecvRequest { wr_id, sges: &SGES }) }.unwrap();
                self.rq.ring();
                self.device.complete(recv_opcode(wr_id), 0, self.device.receives, bytes(wr_id));
                self.device.receives = self.device.receives.wrapping_add(1);
            } else {
                let operation = Operation::Write(Remote { addr: 64, rkey: 1 });
                let flags = SendFlags::SIGNALED;
                let payload = Payload::Sges(&SGES);
                // SAFETY: no device accesses the memory.
                unsafe { self.sq.push(&SendRequest { wr_id, operation, flags, payload }) }.unwrap();
                self.sq.ring().unwrap();
                self.device.complete(CqeOpcode::REQ, 8, self.device.sends, 0);
                self.device.sends = self.device.sends.wrapping_add(1);
            }
            self.posted += 1;
        }
    }

    fn check(&mut self, value: &WorkCompletion) {
        let wr_id = self.polled;
        assert_eq!((value.wr_id, value.status, value.qp_num), (wr_id, WcStatus::SUCCESS, QPN));
        let (byte_len, opcode, imm) = match recv_opcode(wr_id) {
            _ if !wr_id.is_multiple_of(3) => (0, WcOpcode::RDMA_WRITE, None),
            CqeOpcode::RESP_SEND => (bytes(wr_id), WcOpcode::RECV, None),
            CqeOpcode::RESP_SEND_IMM => (bytes(wr_id), WcOpcode::RECV, Some(IMM)),
            _ => (bytes(wr_id), WcOpcode::RECV_RDMA_WITH_IMM, Some(IMM)),
        };
        assert_eq!((value.byte_len, value.opcode, value.imm()), (byte_len, opcode, imm));
        self.polled += 1;
    }

    /// Polls once into a slice of `len`.
    fn poll_into(&mut self, len: usize) -> usize {
        let mut into = vec![untouched(); len];
        let count = self.cq.next_values(&mut into);
        assert_eq!(count as u64, (self.posted - self.polled).min(len as u64), "into {len}");
        for value in &into[..count] {
            self.check(value);
        }
        assert!(into[count..].iter().all(|value| value.wr_id == u64::MAX), "the rest stays");
        count
    }

    /// Asserts that every polled CQE was released to the device.
    fn check_released(&self, start: u32) {
        let since = if self.polled == 0 { 0 } else { u64::from(start) + self.polled };
        let expected = since as u32 & COUNT;
        assert_eq!(self.cq.shared.doorbell.get(Word::First), expected);
    }
}

/// A value that differs from every completion.
fn untouched() -> WorkCompletion {
    WorkCompletion { wr_id: u64::MAX, ..WorkCompletion::default() }
}

fn bytes(wr_id: u64) -> u32 {
    wr_id as u32 * 5 + 1
}

/// The bit of `op_own` of a solicited message.
const SOLICITED: u8 = 1 << 1;

/// The values of completions that the fast path polls.
struct ToValue;

impl Visitor for ToValue {
    type Output = Option<WorkCompletion>;

    fn completion(self, completion: impl Completion) -> Self::Output {
        Some(completion.to_value())
    }

    fn empty(self) -> Self::Output {
        None
    }

    fn declined(self) -> Self::Output {
        None
    }
}

#[test]
fn successful_receives_take_the_fast_path_except_solicited_ones() {
    let mut fixture = Fixture::new(4, 64, 0);
    // The slow path of the first receive caches its queue.
    fixture.complete(1);
    assert!(fixture.cq.visit_next(ToValue).is_none());
    let value = fixture.cq.next_value().expect("written");
    fixture.check(&value);
    for bits in [0, SOLICITED] {
        for opcode in [CqeOpcode::RESP_SEND, CqeOpcode::RESP_SEND_IMM, CqeOpcode::RESP_WR_IMM] {
            // SAFETY: no device accesses the memory.
            unsafe { fixture.rq.push(&RecvRequest { wr_id: 7, sges: &SGES }) }.unwrap();
            fixture.rq.ring();
            fixture.device.complete_with(opcode.0 << 4 | bits, 0, fixture.device.receives, 8);
            fixture.device.receives += 1;
            let polled = fixture.cq.visit_next(ToValue);
            assert_eq!(polled.is_some(), bits == 0, "{opcode:?}");
            let value = polled.or_else(|| fixture.cq.next_value()).expect("written");
            assert_eq!((value.wr_id, value.status, value.byte_len), (7, WcStatus::SUCCESS, 8));
        }
    }
}

/// Consumer indices: 0, shortly before the wrap of 23 bits, and shortly before the wrap of 24 bits.
const STARTS: [u32; 5] = [0, 0x7f_fff0, 0xff_ffe0, 0xff_fff7, 0xff_ffff];

#[test]
fn every_fill_level_is_polled_into_every_slice_length_across_wraps() {
    for (log, cqe_size) in [(1, 64), (2, 64), (3, 64), (1, 128), (3, 128)] {
        for start in STARTS {
            let mut fixture = Fixture::new(log, cqe_size, start);
            assert_eq!(fixture.cq.capacity(), (1 << log) - 1);
            for filled in 0..=1u64 << log {
                for len in 1..=(1 << log) + 1 {
                    fixture.complete(filled);
                    assert_eq!(fixture.poll_into(0), 0);
                    while fixture.poll_into(len) != 0 {}
                    assert_eq!(fixture.polled, fixture.posted);
                    fixture.check_released(start);
                }
            }
        }
    }
}

#[test]
fn all_poll_functions_return_each_cqe_once_across_wraps() {
    for (log, cqe_size) in [(1, 64), (2, 128), (3, 64)] {
        for start in STARTS {
            let mut fixture = Fixture::new(log, cqe_size, start);
            for round in 0..200u64 {
                fixture.complete(round % ((1 << log) + 1));
                let count = fixture.posted - fixture.polled;
                match round % 5 {
                    0 => while fixture.poll_into(3) != 0 {},
                    1 => {
                        for _ in 0..count {
                            let value = fixture.cq.next_value().expect("written");
                            fixture.check(&value);
                        }
                    }
                    2 => {
                        while let Some(completion) = fixture.cq.next() {
                            let value = completion.to_value();
                            fixture.check(&value);
                        }
                        if count > 0 {
                            fixture.cq.release();
                        }
                    }
                    3 => {
                        for _ in 0..count {
                            let value = match fixture.cq.visit_next(ToValue) {
                                Some(value) => value,
                                None => fixture.cq.next_value().expect("written"),
                            };
                            fixture.check(&value);
                        }
                    }
                    _ => {
                        for _ in 0..count {
                            assert!(fixture.cq.poll_slow(), "the slow path takes what the fast one does");
                            // SAFETY: the CQ owns the ring.
                            let value = unsafe { fixture.cq.slow_result.completion() }.to_value();
                            fixture.check(&value);
                        }
                        if count > 0 {
                            fixture.cq.release();
                        }
                    }
                }
                assert_eq!(fixture.polled, fixture.posted);
                assert!(fixture.cq.next().is_none() && fixture.cq.next_value().is_none());
                fixture.check_released(start);
            }
        }
    }
}
