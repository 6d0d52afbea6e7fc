//! A malicious device.
//!
//! Queues are created, used, reset, resized and destroyed while the device writes arbitrary bytes
//! into their CQs: CQEs of unknown queues, unknown opcodes, counters out of range, early owner
//! bits, endless compressed runs. A byte string encodes the steps, so property tests and fuzzing
//! share it.

use std::collections::HashSet;

use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge};
use bareverbs_uapi::mlx5::CqeCompressionFormats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use super::{DmaRange, Plain, resize};
use crate::cq::Mlx5Cq;
use crate::cqe::CQE;
use crate::rq::Mlx5Rq;
use crate::sq::Mlx5Sq;
use crate::srq::Mlx5Srq;

/// Log2 of the initial number of CQEs of a CQ.
const LOG: u32 = 3;
/// The SRQN.
const SRQ: u32 = 5;
/// The maximum number of steps; the rest of the bytes is ignored.
const STEPS: usize = 400;

/// The remaining bytes. Reads past the end give 0.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn one_of(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count
    }
}

struct Cq {
    queue: Mlx5Cq,
    ring: DmaRange,
    log: u32,
}

struct Qp {
    sq: Mlx5Sq,
    rq: Option<Mlx5Rq>,
    /// The user index in CQEs of version 1, and the QPN in CQEs of version 0.
    id: u32,
    number: u32,
}

struct Fixture {
    qps: Vec<Qp>,
    /// The memory of all receives, which scatter to CQE writes to.
    recv_buffer: Box<[u8; 64]>,
    srq: Mlx5Srq,
    cqs: [Cq; 2],
    context: Plain,
    cqe_version: u8,
    /// The `wr_id` of every posted request.
    ids: HashSet<u64>,
    next_id: u64,
}

/// Runs the steps that the bytes encode.
///
/// # Panics
/// If a malicious CQE was accepted: polling did not end, or named a request that was never posted.
pub fn run(script: &[u8]) {
    for cqe_version in [0, 1] {
        let mut script = Script(script);
        let mut fixture = Fixture::of_version(cqe_version);
        for _ in 0..STEPS {
            if script.0.is_empty() {
                break;
            }
            fixture.step(&mut script);
        }
    }
}

impl Fixture {
    fn of_version(cqe_version: u8) -> Self {
        let context = Plain::with_version(16, cqe_version).expect("memory");
        // The device of the second CQ may compress CQEs.
        let cq = |number| {
            let parts = context.cq(LOG, CQE).expect("memory");
            let parts = if number == 1 { parts } else { parts.compressed(CqeCompressionFormats::all()) };
            let ring = parts.ring();
            Cq { ring, log: LOG, queue: parts.finish(number) }
        };
        let cqs = [cq(1), cq(2)];
        let srq = context.srq(7, 2).expect("memory");
        srq.number(SRQ);
        let srq = srq.queue;
        let recv_buffer = Box::new([0; 64]);
        let mut fixture = Self {
            qps: Vec::new(),
            recv_buffer,
            srq,
            cqs,
            context,
            cqe_version,
            ids: HashSet::from([0]),
            next_id: 1,
        };
        fixture.add_qp(0);
        fixture.add_qp(1);
        fixture.add_qp(8);
        fixture
    }

    /// Adds a queue pair; the bits of `kind` select SRQ, CQ, BlueFlame and scatter to CQE.
    fn add_qp(&mut self, kind: u8) {
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
        let srq = (kind & 1 != 0).then_some(&self.srq);
        let recv = usize::from(kind >> 1 & 1);
        let (send_cq, recv_cq) = (&self.cqs[0].queue, &self.cqs[recv].queue);
        // User indices of destroyed QPs are freed when a poll finds the CQ empty.
        let parts = if kind & 9 == 8 {
            self.context.scattering_qp(QpType::RC, &cap, send_cq, recv_cq)
        } else {
            self.context.qp(QpType::RC, &cap, send_cq, recv_cq, srq)
        };
        let Ok(parts) = parts else { return };
        let id = parts.user_index();
        // The lowest free number, so numbers are reused.
        let number =
            (0x40..).find(|number| self.qps.iter().all(|qp| qp.number != *number)).expect("a number");
        let (sq, rq, _) = parts.finish(number, kind & 4 != 0).expect("memory");
        self.qps.push(Qp { sq, rq, id, number });
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.ids.insert(self.next_id);
        self.next_id
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let id = self.id();
        let place = script.byte() as usize;
        let at = place % self.qps.len().max(1);
        match script.one_of(12) {
            0 | 1 => self.send(at, id, script),
            2 => self.recv(at, id),
            3..=6 => self.write_cqe(place % 2, script),
            7 => self.poll(place % 2),
            8 => {
                if let Some(qp) = self.qps.get_mut(at) {
                    // SAFETY: no device executes the requests.
                    unsafe { qp.sq.reset() };
                    // SAFETY: no device executes the requests.
                    qp.rq.iter_mut().for_each(|rq| unsafe { rq.reset() });
                }
            }
            9 if self.qps.len() > 1 => drop(self.qps.swap_remove(at)),
            9 | 10 if self.qps.len() < 8 => self.add_qp(script.byte()),
            _ => self.resize_or_arm(place % 2, script),
        }
    }

    fn send(&mut self, at: usize, id: u64, script: &mut Script<'_>) {
        let Some(qp) = self.qps.get_mut(at) else { return };
        let remote = Remote { addr: 64, rkey: 1 };
        let operation = match script.one_of(5) {
            0 => Operation::Send,
            1 => Operation::Write(remote),
            2 => Operation::Read(remote),
            3 => Operation::FetchAdd { remote, add: 1 },
            _ => Operation::LocalInv(1),
        };
        let sges = [Sge { addr: 0, length: 8, lkey: 1 }; 1];
        let payload = match operation {
            Operation::LocalInv(_) => Payload::Sges(&[]),
            Operation::Send if script.byte() & 1 != 0 => Payload::Inline(&[&[1; 9]]),
            _ => Payload::Sges(&sges),
        };
        let request = SendRequest { wr_id: id, operation, flags: SendFlags::SIGNALED, payload };
        // The fast path is tried first, as in `verbs`.
        // SAFETY: no device accesses the memory.
        let _ = unsafe { qp.sq.try_push(&request) || qp.sq.push(&request).is_ok() };
        if script.byte() & 3 == 0 { qp.sq.abort() } else { qp.sq.ring().expect("doorbells are not refused") }
    }

    fn recv(&mut self, at: usize, id: u64) {
        let addr = self.recv_buffer.as_mut_ptr().expose_provenance() as u64;
        let sges = [Sge { addr, length: 8, lkey: 1 }];
        let request = RecvRequest { wr_id: id, sges: &sges };
        let Some(qp) = self.qps.get_mut(at) else { return };
        match &mut qp.rq {
            Some(rq) => {
                // SAFETY: the memory of the requests is valid as long as the fixture.
                if unsafe { rq.try_push(&request) || rq.push(&request).is_ok() } {
                    rq.ring();
                }
            }
            // SAFETY: the memory of the requests is valid as long as the fixture.
            None => drop(unsafe { self.srq.push(&request) }.map(|()| self.srq.ring())),
        }
    }

    /// Writes a CQE at a slot that is likely to be polled, for a queue that is likely to exist.
    fn write_cqe(&mut self, at: usize, script: &mut Script<'_>) {
        let cq = &self.cqs[at];
        let mut entry = [0u8; CQE];
        for byte in &mut entry[17..48] {
            *byte = script.byte();
        }
        let which = script.one_of(4);
        let named = if which == 0 { None } else { self.qps.get(which % self.qps.len().max(1)) };
        let queue = match named {
            None => u32::from_be_bytes([script.byte(), script.byte(), script.byte(), script.byte()]),
            Some(qp) if self.cqe_version == 1 => qp.id,
            Some(Qp { rq: Some(_), .. }) => 0,
            Some(_) => SRQ,
        };
        entry[32..36].copy_from_slice(&queue.to_be_bytes());
        for byte in &mut entry[54..63] {
            *byte = script.byte();
        }
        if let Some(qp) = named {
            entry[57..60].copy_from_slice(&qp.number.to_be_bytes()[1..]);
        }
        // Most WQE counters are those of requests that could be outstanding.
        if script.byte() & 3 != 0 {
            entry[60] = 0;
            entry[61] &= 7;
        }
        entry[63] = script.byte();
        // Most runs fit into the ring; some do not.
        if entry[63] >> 2 & 3 == 3 && script.byte() & 3 != 0 {
            entry[44..48].copy_from_slice(&u32::from(script.byte() % 12).to_be_bytes());
        }
        let slot = script.one_of(1 << cq.log);
        // SAFETY: the CQE lies in the ring, which is otherwise only read, by this thread.
        unsafe {
            cq.ring.start.add(slot * CQE).as_ptr().copy_from_nonoverlapping(entry.as_ptr(), CQE);
        }
    }

    fn poll(&mut self, at: usize) {
        let cq = &mut self.cqs[at];
        // CQEs from before this round, and CQEs of this round.
        let most = 2 << cq.log;
        for count in 0.. {
            assert!(count <= most, "polling goes on without end");
            let Some(completion) = cq.queue.next() else { break };
            let value = completion.to_value();
            assert!(self.ids.contains(&value.wr_id), "{value:?} is of no request");
            let shown = completion.entry().to_string();
            assert!(!shown.is_empty());
        }
        cq.queue.release();
    }

    fn resize_or_arm(&mut self, at: usize, script: &mut Script<'_>) {
        let cq = &mut self.cqs[at];
        match script.one_of(4) {
            0 => cq.queue.arm(false).expect("arming is a store"),
            1 => cq.queue.arm(true).expect("arming is a store"),
            way => {
                cq.log = if way == 2 { LOG } else { LOG + 2 };
                let ring = &mut cq.ring;
                // No RESIZE CQE marks the end of the old ring.
                resize(&mut cq.queue, cq.log, |place| *ring = place).expect("memory");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_provider::work::WcStatus;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::cqe::CqeOpcode;

    #[test]
    fn cqe_of_unknown_queue_is_a_general_error() {
        for opcode in [CqeOpcode::REQ, CqeOpcode::RESP_SEND] {
            for number in [0, 77, 0x00ff_ffff, u32::MAX] {
                let mut fixture = Fixture::of_version(1);
                let mut entry = [0u8; CQE];
                entry[32..36].copy_from_slice(&number.to_be_bytes());
                entry[63] = opcode.0 << 4;
                let Cq { queue, ring, .. } = &mut fixture.cqs[0];
                // SAFETY: the CQE lies in the ring, which is otherwise only read, by this thread.
                unsafe { ring.start.as_ptr().copy_from_nonoverlapping(entry.as_ptr(), CQE) };
                let completion = queue.next().expect("an entry").to_value();
                assert_eq!(
                    (completion.status, completion.wr_id),
                    (WcStatus::GENERAL_ERR, 0),
                    "{opcode:?} of {number:#x}"
                );
            }
        }
    }

    #[test]
    fn scatter_to_cqe_writes_only_to_posted_receives() {
        let mut fixture = Fixture::of_version(1);
        let at = fixture.qps.len() - 1;
        let id = fixture.qps[at].id;
        let sges =
            [Sge { addr: fixture.recv_buffer.as_mut_ptr().expose_provenance() as u64, length: 8, lkey: 1 }];
        let rq = fixture.qps[at].rq.as_mut().expect("receives");
        // SAFETY: the memory is valid as long as the fixture.
        unsafe { rq.push(&RecvRequest { wr_id: 7, sges: &sges }) }.expect("room");
        rq.abort();
        let mut entry = [9u8; CQE];
        entry[32..36].copy_from_slice(&id.to_be_bytes());
        entry[44..48].copy_from_slice(&8u32.to_be_bytes());
        entry[60..].copy_from_slice(&[0, 0, 0, CqeOpcode::RESP_SEND.0 << 4 | 1 << 2]);
        let Cq { queue, ring, .. } = &mut fixture.cqs[0];
        // SAFETY: the CQE lies in the ring, which is otherwise only read, by this thread.
        unsafe { ring.start.as_ptr().copy_from_nonoverlapping(entry.as_ptr(), CQE) };
        assert_eq!(queue.next().map(|completion| completion.status()), Some(WcStatus::GENERAL_ERR));
        assert_eq!(*fixture.recv_buffer, [0; 64]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn arbitrary_device_output_is_tolerated(script in vec(any::<u8>(), 0..4000)) {
            super::run(&script);
        }
    }
}
