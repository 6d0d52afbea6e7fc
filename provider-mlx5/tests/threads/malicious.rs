//! A malicious device on its own thread. It writes arbitrary CQEs while other threads poll, post,
//! reset and destroy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use bareverbs_hca::memory::write_as_device;
use bareverbs_mlx5::cqe::CQE;
use bareverbs_mlx5::testing::{CqRef, DmaRange, Plain, resize};
use bareverbs_mlx5::{Mlx5Cq, Mlx5Rq, Mlx5Sq, Mlx5Srq};
use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, Payload, Remote, SendFlags, SendRequest, Sge};
use bareverbs_uapi::mlx5::CqeCompressionFormats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use crate::preempt::Preemption;
use crate::testbed::{SpinLock, recv, rounds};

/// Number of QPs.
const QPS: usize = 6;
/// SRQ number.
const SRQ: u32 = 5;
/// Log2 of the initial CQ size.
const LOG: u32 = 4;
/// Content of receive memory after its QP is destroyed.
const CANARY: u8 = 0xca;

/// A xorshift generator with fixed seeds.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() >> 8) as usize % count
    }
}

/// A CQ ring, and log2 of its entries.
struct Ring(DmaRange, u32);

// SAFETY: the address has no thread affinity.
unsafe impl Send for Ring {}

/// The queues, as the device sees them.
struct DeviceView {
    rings: [SpinLock<Ring>; 2],
    /// User index (high 32 bits) and QPN (low 32 bits) of each QP.
    qps: [AtomicU64; QPS],
    /// The last work request id posted.
    last_id: AtomicU64,
    stop: AtomicBool,
}

impl DeviceView {
    /// Writes a CQE that probably is valid for the poller and names an existing QP.
    fn write_entry(&self, random: &mut Random, cqe_version: u8) {
        let mut entry = [0u8; CQE];
        for bytes in entry.chunks_exact_mut(8) {
            bytes.copy_from_slice(&random.next().to_ne_bytes());
        }
        let qp = self.qps[random.below(QPS)].load(Ordering::Relaxed);
        let (user_index, number) = ((qp >> 32) as u32, qp as u32);
        if random.below(8) != 0 {
            let shared = if random.below(2) == 0 { 0 } else { SRQ };
            let name = if cqe_version == 1 { user_index } else { shared };
            entry[32..36].copy_from_slice(&name.to_be_bytes());
            entry[57..60].copy_from_slice(&number.to_be_bytes()[1..]);
        }
        // Most WQE counters match a request that may be outstanding.
        if random.below(4) != 0 {
            entry[60] = 0;
            entry[61] &= 7;
        }
        let opcode = [0, 0, 0, 1, 2, 2, 3, 4, 5, 13, 14, random.next() as u8 & 15][random.below(12)];
        // Most mini CQE arrays have a length that fits the ring.
        let format = [0, 0, 0, 1, 2, 3][random.below(6)];
        entry[63] = opcode << 4 | format << 2 | random.next() as u8 & 3;
        if format == 3 && random.below(4) != 0 {
            entry[44..48].copy_from_slice(&(random.below(12) as u32).to_be_bytes());
        }
        let ring = self.rings[random.below(2)].lock();
        let Ring(place, log) = *ring;
        let slot = random.below(1 << log);
        // SAFETY: within the ring. The poller replaces and frees the ring under this lock.
        unsafe { write_as_device(place.start.as_ptr().add(slot * CQE), &entry) };
        drop(ring);
    }

    /// Polls, arms and resizes the CQ.
    fn poll(&self, at: usize, cq: &mut Mlx5Cq, random: &mut Random) {
        while !self.stop.load(Ordering::Relaxed) {
            match random.below(200) {
                0 => {
                    let log = LOG + random.below(3) as u32;
                    let mut old = None;
                    resize(cq, log, |place| {
                        old = Some(std::mem::replace(&mut *self.rings[at].lock(), Ring(place, log)));
                    })
                    .expect("memory");
                }
                1..10 => cq.arm(random.below(2) == 0).expect("arming is a store"),
                _ => {
                    for _ in 0..8 {
                        let Some(completion) = cq.next() else { break };
                        let id = completion.to_value().wr_id;
                        let last = self.last_id.load(Ordering::Relaxed);
                        assert!(id <= last, "{id} was never posted; {last} was the last");
                    }
                    cq.release();
                }
            }
        }
    }
}

/// A QP and its receive memory.
struct Qp {
    sq: Mlx5Sq,
    rq: Option<Mlx5Rq>,
    memory: Box<[u8; 64]>,
}

struct Owner {
    context: Plain,
    cqs: [CqRef; 2],
    srq: Mlx5Srq,
    shared_memory: Box<[u8; 64]>,
    known: Arc<DeviceView>,
    random: Random,
    qps: [Option<Qp>; QPS],
}

impl Owner {
    fn make(&mut self, at: usize) {
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
        let shared = self.random.below(3) == 0;
        let recv = self.random.below(2);
        let srq = shared.then_some(&self.srq);
        let (cqs, scatters) = ([&self.cqs[0], &self.cqs[recv]], self.random.below(2) == 0);
        // A user index of a destroyed QP is free again after the pollers have found its CQs empty.
        let Ok(parts) = self.context.qp_beside_pollers(QpType::RC, &cap, cqs, srq, scatters) else { return };
        let number = 0x40 + at as u32;
        let name = u64::from(parts.user_index()) << 32 | u64::from(number);
        let (sq, rq, _) = parts.finish(number, self.random.below(2) == 0).expect("memory");
        self.qps[at] = Some(Qp { sq, rq, memory: Box::new([0; 64]) });
        self.known.qps[at].store(name, Ordering::Relaxed);
    }

    /// Destroys a QP. Its memory must not change afterwards.
    fn destroy(&mut self, at: usize) {
        let Some(Qp { sq, rq, mut memory }) = self.qps[at].take() else { return };
        drop((sq, rq));
        memory.fill(CANARY);
        std::thread::yield_now();
        assert_eq!(*memory, [CANARY; 64], "written after the queue pair was dropped");
    }

    fn step(&mut self) {
        let at = self.random.below(QPS);
        let id = self.known.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let choice = self.random.below(16);
        let Some(qp) = &mut self.qps[at] else { return self.make(at) };
        match choice {
            0..7 => {
                let remote = Remote { addr: 64, rkey: 1 };
                let operation = [Operation::Send, Operation::Write(remote), Operation::Read(remote)]
                    [self.random.below(3)];
                let payload = Payload::Sges(&[Sge { addr: 0, length: 8, lkey: 1 }]);
                let request = SendRequest { wr_id: id, operation, flags: SendFlags::SIGNALED, payload };
                // SAFETY: no device executes requests.
                let _ = unsafe { qp.sq.try_push(&request) || qp.sq.push(&request).is_ok() };
                if self.random.below(8) == 0 {
                    qp.sq.abort();
                } else {
                    qp.sq.ring().expect("doorbells are not refused");
                }
            }
            7..13 => match &mut qp.rq {
                Some(rq) => {
                    let addr = qp.memory.as_mut_ptr().expose_provenance() as u64;
                    recv(rq, id, Sge { addr, length: 8, lkey: 1 });
                }
                None => {
                    let addr = self.shared_memory.as_mut_ptr().expose_provenance() as u64;
                    recv(&mut self.srq, id, Sge { addr, length: 8, lkey: 1 });
                }
            },
            13 => {
                // SAFETY: no device executes requests.
                unsafe { qp.sq.reset() };
                if let Some(rq) = &mut qp.rq {
                    // SAFETY: no device executes requests.
                    unsafe { rq.reset() };
                }
            }
            _ => self.destroy(at),
        }
    }
}

#[test]
fn concurrent_malicious_cqes_complete_no_unposted_wr_id() {
    for cqe_version in [0, 1] {
        let context = Plain::with_version(1 << 12, cqe_version).expect("memory");
        let [(cq, ring), (other, other_ring)] = [1, 2].map(|number| {
            let parts = context.cq(LOG, CQE).expect("memory");
            // The second CQ accepts compressed CQEs.
            let parts = if number == 1 { parts } else { parts.compressed(CqeCompressionFormats::all()) };
            let ring = SpinLock::new(Ring(parts.ring(), LOG));
            (parts.finish(number), ring)
        });
        let srq = context.srq(7, 2).expect("memory");
        srq.number(SRQ);
        let known = Arc::new(DeviceView {
            rings: [ring, other_ring],
            qps: [const { AtomicU64::new(0) }; QPS],
            last_id: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let mut owner = Owner {
            context,
            cqs: [CqRef::of(&cq), CqRef::of(&other)],
            srq: srq.queue,
            shared_memory: Box::new([0; 64]),
            known: Arc::clone(&known),
            random: Random(0x9e37_79b9_7f4a_7c15),
            qps: [const { None }; QPS],
        };
        let device = std::thread::spawn({
            let known = Arc::clone(&known);
            move || {
                let mut random = Random(0x2545_f491_4f6c_dd1d);
                while !known.stop.load(Ordering::Relaxed) {
                    known.write_entry(&mut random, cqe_version);
                }
            }
        });
        let pollers: [JoinHandle<Mlx5Cq>; 2] = [(0, cq), (1, other)].map(|(at, mut cq)| {
            let known = Arc::clone(&known);
            std::thread::spawn(move || {
                known.poll(at, &mut cq, &mut Random(at as u64 + 1));
                cq
            })
        });
        let preemption = Preemption::of(&[&pollers[0], &pollers[1]]);
        for _ in rounds(1000) {
            owner.step();
            if pollers.iter().any(JoinHandle::is_finished) {
                break;
            }
        }
        drop(preemption);
        known.stop.store(true, Ordering::Relaxed);
        device.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let _cqs =
            pollers.map(|poller| poller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    }
}
