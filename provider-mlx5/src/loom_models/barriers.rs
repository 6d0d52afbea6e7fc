//! Barriers that each operation on a queue issues, and the state of the shared memory at each.
//!
//! loom's atomics work on its threads only, so each test runs as a model of one thread.

use std::ptr::NonNull;

use bareverbs_provider::barrier::issued;
use bareverbs_provider::traits::{CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge};
use bareverbs_uapi::mlx5::CqeCompressionFormats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use crate::cq::Mlx5Cq;
use crate::cqe::{CQE, CqeOpcode};
use crate::doorbell::Word;
use crate::fixture::{CAP, Device, Fixture, LOG, NUMBER, poll, recv, send};
use crate::sync::{AtomicU32, Ordering};
use crate::testing::{Plain, resize};

const DEEP: QpCap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_recv_sge: 1, ..CAP };
const SGES: [Sge; 1] = [Sge { addr: 64, length: 8, lkey: 1 }];
const RECV: RecvRequest<'_> = RecvRequest { wr_id: 1, sges: &SGES };

/// The barriers that `run` issues.
fn barriers(run: impl FnOnce()) -> Vec<&'static str> {
    issued::record(|| (), run).into_iter().map(|(name, ())| name).collect()
}

/// A probe of a word of the doorbell record at `address`.
fn doorbell_record(address: u64, word: Word) -> impl Fn() -> u32 + Copy {
    move || {
        let words = std::ptr::with_exposed_provenance::<AtomicU32>(address as usize);
        // SAFETY: a record begins with two of these. The tests keep it while they record.
        u32::from_be(unsafe { &*words.add(word as usize) }.load(Ordering::Relaxed))
    }
}

fn consumer_index(cq: &Mlx5Cq) -> impl Fn() -> u32 + Copy + 'static {
    doorbell_record(cq.shared().doorbell.address(), Word::First)
}

/// A probe of whether `bytes` bytes from `offset` on contain anything but zeros.
fn is_written(start: NonNull<u8>, offset: usize, bytes: usize) -> impl Fn() -> bool + Copy {
    // SAFETY: mapped memory of one thread, which the tests keep while they record.
    move || (offset..offset + bytes).any(|at| unsafe { start.add(at).read_volatile() } != 0)
}

/// How WQEs are posted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Post {
    /// One WQE, then the doorbell.
    PushAndRing,
    /// One WQE with its doorbell.
    TryPost,
    /// Two WQEs, then one doorbell. BlueFlame does not copy them.
    PushTwoAndRing,
}

impl Post {
    const ALL: [Self; 3] = [Self::PushAndRing, Self::TryPost, Self::PushTwoAndRing];

    fn count(self) -> u32 {
        if self == Self::PushTwoAndRing { 2 } else { 1 }
    }

    fn send(self, sq: &mut impl SendQueue) {
        let operation = Operation::Write(Remote { addr: 64, rkey: 1 });
        let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&SGES));
        let request = SendRequest { wr_id: 1, operation, flags, payload };
        // SAFETY: no device accesses the memory of the requests.
        unsafe {
            if self == Self::TryPost {
                assert!(sq.try_post(&request, false).is_some(), "the fast path");
            } else {
                (0..self.count()).for_each(|_| sq.push(&request).expect("room"));
                sq.ring().expect("a write to memory");
            }
        }
    }

    fn recv(self, rq: &mut impl RecvQueue) {
        // SAFETY: no device accesses the memory of the requests.
        unsafe {
            if self == Self::TryPost {
                assert!(rq.try_post(&RECV), "the fast path");
            } else {
                (0..self.count()).for_each(|_| rq.push(&RECV).expect("room"));
                rq.ring();
            }
        }
    }
}

#[test]
fn send_doorbell_follows_wqe_and_doorbell_record() {
    const REGISTER: usize = 0x800;
    const REGISTER_SIZE: usize = 512;
    loom::model(|| {
        for (blue_flame, post) in [false, true].into_iter().flat_map(|to| Post::ALL.map(|post| (to, post))) {
            let context = Plain::new(3).expect("memory");
            let cq = context.cq(LOG, CQE).expect("memory").finish(1);
            let parts = context.qp(QpType::RC, &DEEP, &cq, &cq, None).expect("small");
            let (ring, (offset, _)) = (parts.rings().start, parts.sends());
            let producer_index = doorbell_record(parts.doorbell(), Word::Second);
            let (mut sq, _rq, page) = parts.finish(NUMBER, blue_flame).expect("memory");
            // The first WQE enables the fast path. Its doorbell is erased.
            send(&mut sq, 1).expect("room");
            // SAFETY: memory in place of a register, which no device reads.
            unsafe { page.add(REGISTER).write_bytes(0, REGISTER_SIZE) };

            let end = 1 + post.count();
            let wqe = is_written(ring, offset + (end as usize - 1) * 64, 64);
            let doorbell = is_written(page, REGISTER, REGISTER_SIZE);
            let probe = move || (wqe(), producer_index(), doorbell());
            assert_eq!(probe(), (false, 1, false));
            assert_eq!(
                issued::record(probe, || post.send(&mut sq)),
                [
                    ("before_device_reads", (true, 1, false)),
                    ("before_write_combining", (true, end, false)),
                    ("flush_write_combining", (true, end, true)),
                ],
                "{post:?}, BlueFlame: {blue_flame}"
            );
            assert!(barriers(|| sq.ring().expect("no WQE")).is_empty());
        }
    });
}

#[test]
fn recv_doorbell_record_follows_wqe() {
    loom::model(|| {
        for post in Post::ALL {
            let context = Plain::new(3).expect("memory");
            let cq = context.cq(LOG, CQE).expect("memory").finish(1);
            let parts = context.qp(QpType::RC, &DEEP, &cq, &cq, None).expect("small");
            let (ring, (_, shift)) = (parts.rings().start, parts.receives());
            let producer_index = doorbell_record(parts.doorbell(), Word::First);
            let (_sq, rq, _) = parts.finish(NUMBER, false).expect("memory");
            let mut rq = rq.expect("receives");
            // The first WQE enables the fast path.
            recv(&mut rq, 1, &SGES).expect("room");
            let wqe = is_written(ring, (post.count() as usize) << shift, 1 << shift);
            let probe = move || (wqe(), producer_index());
            assert_eq!(probe(), (false, 1));
            let issued = issued::record(probe, || post.recv(&mut rq));
            assert_eq!(issued, [("before_device_reads", (true, 1))], "{post:?}");
            assert_eq!(probe(), (true, 1 + post.count()));
        }
    });
}

#[test]
fn srq_doorbell_record_follows_wqe() {
    loom::model(|| {
        for post in Post::ALL {
            let context = Plain::new(2).expect("memory");
            let mut parts = context.srq(3, 1).expect("memory");
            // The SGE behind the link to the next slot.
            let sge = ((post.count() as usize - 1) << parts.shift) + 16;
            let wqe = is_written(parts.ring.start, sge, 16);
            let producer_index = doorbell_record(parts.doorbell, Word::First);
            let probe = move || (wqe(), producer_index());
            assert_eq!(probe(), (false, 0));
            let issued = issued::record(probe, || post.recv(&mut parts.queue));
            assert_eq!(issued, [("before_device_reads", (true, 0))], "{post:?}");
            assert_eq!(probe(), (true, post.count()));
        }
    });
}

#[test]
fn cqe_is_read_after_its_owner_bit_and_before_its_release() {
    const READ: &str = "after_device_wrote";
    const RELEASE: &str = "before_device_overwrites";
    loom::model(|| {
        for cached in [false, true] {
            let fixture = if cached { Fixture::with_cached_records() } else { Fixture::new(false) };
            let Fixture { mut device, mut cq, mut sq, mut rq, user_index, _context, .. } = fixture;
            send(&mut sq, 1).expect("room");
            recv(&mut rq, 2, &[]).expect("room");
            device.write_cqe(CqeOpcode::REQ, user_index, u16::from(cached));
            device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
            let consumed = consumer_index(&cq);
            for wr_id in [1, 2] {
                let before = consumed();
                let issued = issued::record(consumed, || assert_eq!(poll(&mut cq), Some(wr_id)));
                // Without a cached record, the slow path reads the CQE that the fast path declined.
                let reads = if cached { 1 } else { 2 };
                let expected: Vec<_> =
                    [READ].repeat(reads).into_iter().chain([RELEASE]).map(|name| (name, before)).collect();
                assert_eq!(issued, expected, "{wr_id}");
                assert_eq!(consumed(), before + 1);
            }
            assert!(barriers(|| assert!(cq.next().is_none())).is_empty(), "no CQE, and none released");
        }
    });
}

#[test]
fn error_cqe_is_read_after_its_owner_bit() {
    loom::model(|| {
        let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, _context, .. } = Fixture::new(false);
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ_ERR, user_index, 0);
        assert_eq!(barriers(|| assert!(cq.next().is_some())), ["after_device_wrote"]);
        assert_eq!(barriers(|| cq.release()), ["before_device_overwrites"]);
    });
}

#[test]
fn compressed_cqes_are_expanded_after_the_title_is_read_and_before_their_release() {
    loom::model(|| {
        let context = Plain::new(3).expect("memory");
        let parts = context.cq(LOG, CQE).expect("memory").compressed(CqeCompressionFormats::HASH);
        let ring = parts.ring();
        let mut cq = parts.finish(1);
        let parts = context.qp(QpType::RC, &DEEP, &cq, &cq, None).expect("small");
        let user_index = parts.user_index();
        let (_sq, rq, _) = parts.finish(NUMBER, false).expect("memory");
        let mut rq = rq.expect("receives");
        recv(&mut rq, 1, &SGES).expect("room");
        // A run of one CQE, which has no array of mini CQEs.
        let mut device = Device { ring, log: LOG, next: 0 };
        device.write_cqe(CqeOpcode::RESP_SEND, user_index, 0);
        // SAFETY: within the ring's first CQE, which nothing else accesses now.
        unsafe {
            ring.start.add(47).write(1);
            *ring.start.add(63).as_mut() |= 3 << 2;
        }
        let op_own = move || {
            // SAFETY: within the ring's first CQE, which nothing writes now.
            let op_own = unsafe { ring.start.add(63).read_volatile() };
            op_own >> 2 & 3
        };
        let consumed = consumer_index(&cq);
        let issued = issued::record(move || (op_own(), consumed()), || assert_eq!(poll(&mut cq), Some(1)));
        assert_eq!(
            issued,
            [
                ("after_device_wrote", (3, 0)),
                ("after_device_wrote", (0, 0)),
                ("before_device_overwrites", (0, 0)),
            ]
        );
    });
}

#[test]
fn arm_doorbell_follows_the_doorbell_record() {
    const REGISTER: usize = 0x20;
    loom::model(|| {
        for pending in [false, true] {
            let fixture = Fixture::new(false);
            let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, _context: context, .. } = fixture;
            if pending {
                send(&mut sq, 1).expect("room");
                device.write_cqe(CqeOpcode::REQ, user_index, 0);
            }
            let armed = doorbell_record(cq.shared().doorbell.address(), Word::Second);
            let doorbell = is_written(context.uar(), REGISTER, 8);
            // Solicited only: the record is not zero then.
            let probe = move || (armed() != 0, doorbell());
            let issued = issued::record(probe, || cq.arm(true).expect("a write to memory"));
            // Each CQE in the ring is read for an event that it raised.
            let mut expected = vec![("after_device_wrote", (false, false))];
            expected.truncate(pending.into());
            expected.push(("before_write_combining", (true, false)));
            expected.push(("flush_write_combining", (true, true)));
            assert_eq!(issued, expected);
        }
    });
}

#[test]
fn reset_reads_cqes_before_the_consumer_index_and_hides_the_qp_before_slots_are_reused() {
    loom::model(|| {
        let context = Plain::new(3).expect("memory");
        let cq = context.cq(LOG, CQE).expect("memory").finish(1);
        let parts = context.qp(QpType::RC, &DEEP, &cq, &cq, None).expect("small");
        let [recv_index, send_index] =
            [Word::First, Word::Second].map(|word| doorbell_record(parts.doorbell(), word));
        let (mut sq, rq, _) = parts.finish(NUMBER, false).expect("memory");
        let mut rq = rq.expect("receives");
        send(&mut sq, 1).expect("room");
        recv(&mut rq, 2, &SGES).expect("room");
        const ISSUED: [(&str, u32); 2] = [("after_device_wrote", 1), ("before_slots_are_reused", 1)];
        // SAFETY: no kernel and no device uses the queue.
        assert_eq!(issued::record(send_index, || unsafe { sq.reset() }), ISSUED);
        // SAFETY: no kernel and no device uses the queue.
        assert_eq!(issued::record(recv_index, || unsafe { rq.reset() }), ISSUED);
        assert_eq!((send_index(), recv_index()), (0, 0));
    });
}

#[test]
fn resize_reads_cqes_after_their_owner_bits_and_releases_the_old_ring_first() {
    loom::model(|| {
        let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, _context, .. } = Fixture::new(false);
        send(&mut sq, 1).expect("room");
        device.write_cqe(CqeOpcode::REQ, user_index, 0);
        let consumed = consumer_index(&cq);
        let issued = issued::record(consumed, || {
            resize(&mut cq, LOG, |ring| device.write_resize_cqe(ring, LOG)).expect("memory");
        });
        // The CQE and the resize mark are read for compressed runs. Then the CQE is read and
        // copied.
        let reads = [("after_device_wrote", 0); 3];
        let release = [("before_device_overwrites", 0)];
        assert_eq!(issued, [&release[..], &reads, &release].concat());
        assert_eq!(consumed(), 1);
        assert_eq!(poll(&mut cq), Some(1));
    });
}
