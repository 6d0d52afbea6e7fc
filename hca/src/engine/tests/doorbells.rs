//! Doorbells, by stores to the doorbell page of an in-process device.

use crate::engine::cq::Moderation;
use crate::engine::packet::Transport;
use crate::engine::{CqSetup, Link, QpSetup, ReceiveQueue, Service};
use crate::{InProcessHca, Memory};

const CQ_DOORBELL: usize = 0x3000;

/// A device, its driver's memory, and a connected QP with its ring at 0x1000.
fn hca() -> (InProcessHca, Memory, u32, u32) {
    let mut hca = InProcessHca::new(Link::InfiniBand).unwrap();
    let memory = hca.allocate(0x4000).unwrap();
    let cq = CqSetup {
        ring: memory.ring(0, 64 << 4),
        log_size: 4,
        eq: InProcessHca::EVENTS,
        doorbell: memory.address() + CQ_DOORBELL as u64,
        ..CqSetup::default()
    };
    let cq = hca.engine().create_cq(cq).unwrap();
    let [qp, peer] = [(0x1000, 0x3040), (0x2000, 0x3080)].map(|(ring, doorbell)| {
        let setup = QpSetup {
            service: Service::Connected(Transport::Rc),
            pd: 1,
            ring: memory.ring(ring, 64 << 4),
            log_send_size: Some(4),
            receive: ReceiveQueue::None,
            doorbell: memory.address() + doorbell,
            send_cq: cq,
            receive_cq: cq,
            ..QpSetup::default()
        };
        hca.engine().create_qp(setup, Default::default()).unwrap()
    });
    hca.connect(qp, peer).unwrap();
    hca.run();
    (hca, memory, qp, cq)
}

fn nop(qp: u32, index: u16, immediate: u32) -> [u8; 64] {
    let mut wqe = [0; 64];
    wqe[1..3].copy_from_slice(&index.to_be_bytes());
    wqe[4..8].copy_from_slice(&(qp << 8 | 1).to_be_bytes());
    wqe[11] = 0x08;
    wqe[12..16].copy_from_slice(&immediate.to_be_bytes());
    wqe
}

fn count(memory: &Memory, producer: u16) {
    memory.write(0x3044, &u32::from(producer).to_be_bytes());
}

fn arm(hca: &InProcessHca, cq: u32, consumer: u32, sequence: u32) {
    let words = [(sequence << 28 | consumer).to_be_bytes(), cq.to_be_bytes()].concat();
    hca.store(0x20, &words);
}

/// Completes a signalled NOP.
fn complete(hca: &mut InProcessHca, memory: &Memory, qp: u32, index: u16) {
    let wqe = nop(qp, index, 0);
    memory.write(0x1000 + 64 * usize::from(index), &wqe);
    count(memory, index + 1);
    hca.store(0x800, &wqe[..8]);
    hca.run();
}

#[test]
fn no_wqe_executes_before_doorbell() {
    let (mut hca, memory, qp, cq) = hca();
    memory.write(0x1000, &nop(qp, 0, 0));
    count(&memory, 1);
    hca.run();
    assert_eq!(hca.engine().cq_progress(cq).unwrap().0, 0);
    hca.store(0x900, &nop(qp, 0, 0)[..8]);
    hca.run();
    assert_eq!(hca.engine().cq_progress(cq).unwrap().0, 1);
}

#[test]
fn blueflame_wqe_bypasses_ring() {
    let (mut hca, memory, qp, cq) = hca();
    // The ring contains a WQE that would fail.
    memory.write(0x1000, &[0xff; 64]);
    count(&memory, 1);
    hca.store(0x800, &nop(qp, 0, 1));
    hca.run();
    assert_eq!(hca.engine().cq_progress(cq).unwrap().0, 1);
    assert_eq!(memory.read(63, 1), [0], "a requester's completion without an error");
}

#[test]
fn stale_blueflame_copy_acts_as_doorbell() {
    let (mut hca, memory, qp, _) = hca();
    memory.write(0x1000, &nop(qp, 0, 0));
    count(&memory, 1);
    let mut copy = nop(qp, 5, 1);
    copy[3] = 0x3e;
    hca.store(0x800, &copy);
    hca.run();
    assert_eq!(memory.read(63, 1), [0]);
}

#[test]
fn armed_cq_raises_one_event_and_stale_arm_is_ignored() {
    let (mut hca, memory, qp, cq) = hca();
    let ring = |hca: &mut InProcessHca, index| complete(hca, &memory, qp, index);
    // The EQ is armed, so that only the CQ arms decide.
    hca.store(0x40, &[[1, 0, 0, 0], [0; 4]].concat());
    arm(&hca, cq, 0, 0);
    ring(&mut hca, 0);
    ring(&mut hca, 1);
    assert_eq!((hca.interrupts(), hca.events().read(31, 1)), (1, vec![0]));
    // An arm with an answered sequence number raises no event.
    arm(&hca, cq, 2, 0);
    ring(&mut hca, 2);
    assert_eq!(hca.engine().eq_producer(InProcessHca::EVENTS), Ok(1));
    // An arm with the next sequence number raises an event at once, because an unread CQE exists.
    arm(&hca, cq, 2, 1);
    hca.run();
    assert_eq!(hca.engine().eq_producer(InProcessHca::EVENTS), Ok(2));
}

#[test]
fn cq_moderation_delays_events_by_count_or_period() {
    const PERIOD: u64 = 20_000;
    let (mut hca, memory, qp, cq) = hca();
    hca.engine().moderate_cq(cq, Moderation::new(2, 20)).unwrap();
    let events = |hca: &mut InProcessHca| hca.engine().eq_producer(InProcessHca::EVENTS).unwrap();
    arm(&hca, cq, 0, 0);
    complete(&mut hca, &memory, qp, 0);
    assert_eq!(events(&mut hca), 0);
    complete(&mut hca, &memory, qp, 1);
    assert_eq!(events(&mut hca), 1);
    arm(&hca, cq, 2, 1);
    complete(&mut hca, &memory, qp, 2);
    hca.pass(PERIOD - 1);
    assert_eq!(events(&mut hca), 1);
    hca.pass(1);
    assert_eq!(events(&mut hca), 2);
}

#[test]
fn moderated_event_survives_moderation_change() {
    for (count, microseconds, wait) in [(0, 0, 0), (1, 20, 0), (16, 50, 50_000)] {
        let (mut hca, memory, qp, cq) = hca();
        hca.engine().moderate_cq(cq, Moderation::new(16, 20)).unwrap();
        arm(&hca, cq, 0, 0);
        complete(&mut hca, &memory, qp, 0);
        assert_eq!(hca.engine().eq_producer(InProcessHca::EVENTS), Ok(0));
        hca.engine().moderate_cq(cq, Moderation::new(count, microseconds)).unwrap();
        hca.pass(wait);
        assert_eq!(hca.engine().eq_producer(InProcessHca::EVENTS), Ok(1), "{count} in {microseconds} us");
    }
}
