//! Both sides of a ring, compared with a reference queue, on plain memory.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ptr::NonNull;

use bareverbs_provider::barrier::{publish_own_index, read_peer_index};
use bareverbs_provider::ring::{Consumer, Producer, RingMemory};
use proptest::prelude::*;

const PRODUCER: usize = 0;
const CONSUMER: usize = 1;

/// Two index words and up to 64 slots of 8 bytes.
struct Memory {
    words: Box<UnsafeCell<[u32; 2]>>,
    slots: Box<UnsafeCell<[u64; 64]>>,
    mask: u32,
}

impl Memory {
    fn new(log2: u32, start: u32) -> Self {
        let mask = (1 << log2) - 1;
        let memory = Self { words: Box::default(), slots: Box::new(UnsafeCell::new([0; 64])), mask };
        memory.set(PRODUCER, start & mask);
        memory.set(CONSUMER, start & mask);
        memory
    }

    fn ring(&self) -> RingMemory {
        RingMemory {
            producer: NonNull::new(self.word(PRODUCER)).expect("not null"),
            consumer: NonNull::new(self.word(CONSUMER)).expect("not null"),
            slots: NonNull::new(self.slots.get().cast()).expect("not null"),
            log2_slot: 3,
            mask: self.mask,
        }
    }

    fn word(&self, which: usize) -> *mut u32 {
        // SAFETY: there are two words, and `which` is 0 or 1.
        unsafe { self.words.get().cast::<u32>().add(which) }
    }

    fn get(&self, which: usize) -> u32 {
        // SAFETY: the words are accessed only by these functions.
        unsafe { read_peer_index(self.word(which)) }
    }

    fn set(&self, which: usize, value: u32) {
        // SAFETY: the words are accessed only by these functions.
        unsafe { publish_own_index(self.word(which), value) };
    }

    fn slot(&self, index: u32) -> *mut u64 {
        assert!(index <= self.mask, "the index is masked");
        // SAFETY: there are 64 slots, and masks are at most 63.
        unsafe { self.slots.get().cast::<u64>().add(index as usize) }
    }

    fn contains(&self, slot: NonNull<u8>) -> bool {
        (0..=self.mask).any(|index| self.slot(index).cast() == slot.as_ptr())
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Fill(u8),
    Publish,
    PublishAndTakeBack,
    Abort,
    Take(u8),
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..70u8).prop_map(Step::Fill),
        3 => Just(Step::Publish),
        1 => Just(Step::PublishAndTakeBack),
        1 => Just(Step::Abort),
        4 => (1..70u8).prop_map(Step::Take),
        3 => Just(Step::Release),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #[test]
    fn producer_matches_bounded_queue_model(log2 in 0..7u32, start: u32, steps in steps()) {
        let memory = Memory::new(log2, start);
        // SAFETY: the memory outlives the producer, which is the only one.
        let mut producer = unsafe { Producer::new(memory.ring()) };
        let capacity = memory.mask as usize;
        prop_assert_eq!(producer.capacity() as usize, capacity);

        let (mut pending, mut shared, mut next) = (VecDeque::new(), VecDeque::new(), 0u64);
        for step in steps {
            match step {
                Step::Fill(n) => for _ in 0..n {
                    let slot = producer.next_slot();
                    prop_assert_eq!(slot.is_some(), pending.len() + shared.len() < capacity);
                    if let Some(slot) = slot {
                        // SAFETY: the producer owns the slot until it is published.
                        unsafe { slot.cast::<u64>().write(next) };
                        // SAFETY: the slot was free and is filled; the consumer is part of this
                        // test.
                        unsafe { producer.advance() };
                        pending.push_back(next);
                        next += 1;
                    }
                },
                Step::Publish | Step::Release => {
                    let batch = producer.publish();
                    prop_assert_eq!(batch.count() as usize, pending.len());
                    shared.append(&mut pending);
                }
                Step::PublishAndTakeBack => {
                    let before = memory.get(PRODUCER);
                    let batch = producer.publish();
                    // SAFETY: the batch was just published, and the consumer is part of this test,
                    // on this thread.
                    unsafe { producer.take_back(batch) };
                    prop_assert_eq!(memory.get(PRODUCER), before);
                    pending.clear();
                }
                Step::Abort => {
                    producer.abort();
                    pending.clear();
                }
                Step::Take(n) => for _ in 0..n {
                    let index = memory.get(CONSUMER);
                    prop_assert_eq!(memory.get(PRODUCER) == index, shared.is_empty());
                    let Some(expected) = shared.pop_front() else { break };
                    // SAFETY: the slot was published.
                    prop_assert_eq!(unsafe { memory.slot(index).read() }, expected);
                    memory.set(CONSUMER, (index + 1) & memory.mask);
                },
            }
            prop_assert_eq!(producer.pending() as usize, pending.len());
        }
    }

    #[test]
    fn consumer_frees_slots_on_release(log2 in 0..7u32, start: u32, steps in steps()) {
        let memory = Memory::new(log2, start);
        // SAFETY: the memory outlives the consumer, which is the only one.
        let mut consumer = unsafe { Consumer::new(memory.ring()) };
        let capacity = memory.mask as usize;
        prop_assert_eq!(consumer.capacity() as usize, capacity);

        let (mut shared, mut held, mut next) = (VecDeque::new(), 0, 0u64);
        for step in steps {
            match step {
                Step::Fill(n) => for _ in 0..n {
                    let index = memory.get(PRODUCER);
                    let full = (index + 1) & memory.mask == memory.get(CONSUMER);
                    prop_assert_eq!(full, shared.len() + held == capacity);
                    if full {
                        break;
                    }
                    // SAFETY: the filling side owns a free slot.
                    unsafe { memory.slot(index).write(next) };
                    memory.set(PRODUCER, (index + 1) & memory.mask);
                    shared.push_back(next);
                    next += 1;
                },
                Step::Take(n) => for _ in 0..n {
                    // SAFETY: a taken slot stays valid until it is released.
                    let got = consumer.take().map(|slot| unsafe { slot.cast::<u64>().read() });
                    held += usize::from(got.is_some());
                    prop_assert_eq!(got, shared.pop_front());
                },
                Step::PublishAndTakeBack | Step::Abort => {
                    let room = if matches!(step, Step::Abort) { 5 } else { 1 };
                    let mut into = vec![u64::MAX; room];
                    // SAFETY: a taken slot stays valid until it is released.
                    let taken = consumer.take_into(&mut into, |slot| unsafe { slot.cast::<u64>().read() });
                    prop_assert_eq!(taken, room.min(shared.len()));
                    for got in &into[..taken] {
                        prop_assert_eq!(Some(*got), shared.pop_front());
                    }
                    prop_assert!(into[taken..].iter().all(|untouched| *untouched == u64::MAX));
                    if taken > 0 {
                        held = 0;
                    }
                }
                Step::Release | Step::Publish => {
                    consumer.release();
                    held = 0;
                }
            }
        }
    }

    #[test]
    fn malicious_index_never_causes_out_of_bounds_access(
        log2 in 0..7u32,
        start: u32,
        hostile: [u32; 20],
    ) {
        let memory = Memory::new(log2, start);
        memory.set(PRODUCER, start);
        memory.set(CONSUMER, start.rotate_left(16));
        // SAFETY: the memory outlives both; each is the only one of its side.
        let (mut producer, mut consumer) =
            unsafe { (Producer::new(memory.ring()), Consumer::new(memory.ring())) };
        for index in hostile {
            memory.set(CONSUMER, index);
            for _ in 0..70 {
                let Some(slot) = producer.next_slot() else { break };
                prop_assert!(memory.contains(slot));
                // SAFETY: the slot was free and is filled; the consumer is part of this test.
                unsafe { producer.advance() };
            }
            memory.set(PRODUCER, index);
            for _ in 0..70 {
                let Some(slot) = consumer.take() else { break };
                prop_assert!(memory.contains(slot));
            }
            memory.set(CONSUMER, index);
            consumer.release();
            producer.publish();
            prop_assert!(memory.get(PRODUCER) <= memory.mask);
        }
    }
}

#[test]
fn ring_of_one_slot_has_capacity_zero() {
    let memory = Memory::new(0, 0);
    // SAFETY: the memory outlives the producer, which is the only one.
    let mut producer = unsafe { Producer::new(memory.ring()) };
    assert!(producer.next_slot().is_none());
}

#[test]
fn elements_pass_between_threads_once_and_in_order() {
    struct Shared(Memory);
    // SAFETY: the index words are accessed as atomics, and the indices order the accesses to the
    // slots.
    unsafe impl Sync for Shared {}

    const COUNT: u64 = 100_000;
    let shared = Shared(Memory::new(4, 11));
    // SAFETY: the memory outlives both; each is the only one of its side.
    let (mut producer, mut consumer) =
        unsafe { (Producer::new(shared.0.ring()), Consumer::new(shared.0.ring())) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0;
            while next < COUNT {
                while let Some(slot) = producer.next_slot().filter(|_| next < COUNT) {
                    // SAFETY: the producer owns the slot until it is published.
                    unsafe { slot.cast::<u64>().write(next) };
                    // SAFETY: the slot was free and is filled; the consumer is part of this test.
                    unsafe { producer.advance() };
                    next += 1;
                }
                producer.publish();
                std::thread::yield_now();
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            while let Some(slot) = consumer.take() {
                // SAFETY: the consumer owns the slot until it is released.
                assert_eq!(unsafe { slot.cast::<u64>().read() }, expected);
                expected += 1;
            }
            consumer.release();
            std::thread::yield_now();
        }
    });
}
