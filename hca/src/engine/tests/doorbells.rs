//! Doorbells as a driver rings them, by stores to the doorbell page of a card in this process.

use crate::engine::cq::Moderation;
use crate::engine::packet::Transport;
use crate::engine::{CqSetup, Link, QpSetup, ReceiveQueue, Service};
use crate::{Memory, PlainCard};

const CQ_DOORBELL: usize = 0x3000;

/// A card, the memory that its driver laid out, and a connected queue pair with its ring at 0x1000.
fn card() -> (PlainCard, Memory, u32, u32) {
    let mut card = PlainCard::new(Link::InfiniBand).unwrap();
    let memory = card.allocate(0x4000).unwrap();
    let cq = CqSetup {
        ring: memory.ring(0, 64 << 4),
        log_size: 4,
        eq: PlainCard::EVENTS,
        doorbell: memory.address() + CQ_DOORBELL as u64,
        ..CqSetup::default()
    };
    let cq = card.engine().create_cq(cq).unwrap();
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
        card.engine().create_qp(setup, Default::default()).unwrap()
    });
    card.connect(qp, peer).unwrap();
    card.run();
    (card, memory, qp, cq)
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

fn arm(card: &PlainCard, cq: u32, consumer: u32, sequence: u32) {
    let words = [(sequence << 28 | consumer).to_be_bytes(), cq.to_be_bytes()].concat();
    card.store(0x20, &words);
}

/// A request that does nothing but complete.
fn complete(card: &mut PlainCard, memory: &Memory, qp: u32, index: u16) {
    let wqe = nop(qp, index, 0);
    memory.write(0x1000 + 64 * usize::from(index), &wqe);
    count(memory, index + 1);
    card.store(0x800, &wqe[..8]);
    card.run();
}

#[test]
fn nothing_happens_before_the_doorbell() {
    let (mut card, memory, qp, cq) = card();
    memory.write(0x1000, &nop(qp, 0, 0));
    count(&memory, 1);
    card.run();
    assert_eq!(card.engine().cq_progress(cq).unwrap().0, 0);
    card.store(0x900, &nop(qp, 0, 0)[..8]);
    card.run();
    assert_eq!(card.engine().cq_progress(cq).unwrap().0, 1);
}

#[test]
fn a_whole_blueflame_copy_is_taken_and_the_ring_not_read() {
    let (mut card, memory, qp, cq) = card();
    // The ring still holds something that would fail.
    memory.write(0x1000, &[0xff; 64]);
    count(&memory, 1);
    card.store(0x800, &nop(qp, 0, 1));
    card.run();
    assert_eq!(card.engine().cq_progress(cq).unwrap().0, 1);
    assert_eq!(memory.read(63, 1), [0], "a requester's completion without an error");
}

#[test]
fn a_blueflame_copy_of_another_request_is_only_a_doorbell() {
    let (mut card, memory, qp, _) = card();
    memory.write(0x1000, &nop(qp, 0, 0));
    count(&memory, 1);
    let mut copy = nop(qp, 5, 1);
    copy[3] = 0x3e;
    card.store(0x800, &copy);
    card.run();
    assert_eq!(memory.read(63, 1), [0]);
}

#[test]
fn an_armed_queue_tells_once_and_a_stale_arming_asks_for_nothing() {
    let (mut card, memory, qp, cq) = card();
    let ring = |card: &mut PlainCard, index| complete(card, &memory, qp, index);
    // Events are read too, so that only armings decide.
    card.store(0x40, &[[1, 0, 0, 0], [0; 4]].concat());
    arm(&card, cq, 0, 0);
    ring(&mut card, 0);
    ring(&mut card, 1);
    assert_eq!((card.interrupts(), card.events().read(31, 1)), (1, vec![0]));
    // The arming that was answered, once more: nobody is told.
    arm(&card, cq, 2, 0);
    ring(&mut card, 2);
    assert_eq!(card.engine().eq_producer(PlainCard::EVENTS), Ok(1));
    // The next one, with an entry that came before it: told at once.
    arm(&card, cq, 2, 1);
    card.run();
    assert_eq!(card.engine().eq_producer(PlainCard::EVENTS), Ok(2));
}

#[test]
fn events_are_held_back_until_there_are_enough_or_the_time_is_up() {
    const PERIOD: u64 = 20_000;
    let (mut card, memory, qp, cq) = card();
    card.engine().moderate_cq(cq, Moderation::new(2, 20)).unwrap();
    let events = |card: &mut PlainCard| card.engine().eq_producer(PlainCard::EVENTS).unwrap();
    arm(&card, cq, 0, 0);
    complete(&mut card, &memory, qp, 0);
    assert_eq!(events(&mut card), 0);
    complete(&mut card, &memory, qp, 1);
    assert_eq!(events(&mut card), 1);
    arm(&card, cq, 2, 1);
    complete(&mut card, &memory, qp, 2);
    card.pass(PERIOD - 1);
    assert_eq!(events(&mut card), 1);
    card.pass(1);
    assert_eq!(events(&mut card), 2);
}

#[test]
fn an_event_that_is_held_back_survives_a_change_of_moderation() {
    for (count, microseconds, wait) in [(0, 0, 0), (1, 20, 0), (16, 50, 50_000)] {
        let (mut card, memory, qp, cq) = card();
        card.engine().moderate_cq(cq, Moderation::new(16, 20)).unwrap();
        arm(&card, cq, 0, 0);
        complete(&mut card, &memory, qp, 0);
        assert_eq!(card.engine().eq_producer(PlainCard::EVENTS), Ok(0));
        card.engine().moderate_cq(cq, Moderation::new(count, microseconds)).unwrap();
        card.pass(wait);
        assert_eq!(card.engine().eq_producer(PlainCard::EVENTS), Ok(1), "{count} in {microseconds} us");
    }
}
