//! Every state of a small ring, with every operation, against a model of absolute counts.
//!
//! A ring of up to eight slots has few states, so all of them are visited. The model counts slots
//! without ever wrapping; an index is a count modulo the number of slots.

use std::cell::UnsafeCell;
use std::ptr::NonNull;

use bareverbs_provider::barrier::{publish_own_index, read_peer_index};
use bareverbs_provider::ring::{Consumer, Producer, RingMemory};

/// Values of `RingMemory::mask`: rings of 1, 2, 4 and 8 slots.
const MASKS: [u32; 4] = [0, 1, 3, 7];

const SLOT: u32 = 3;

/// Two index words and eight slots of 8 bytes, each of which holds its own number.
struct Memory {
    words: Box<UnsafeCell<[u32; 2]>>,
    slots: Box<UnsafeCell<[u64; 8]>>,
    mask: u32,
}

impl Memory {
    fn new(mask: u32, producer: u32, consumer: u32) -> Self {
        let slots = Box::new(UnsafeCell::new(std::array::from_fn(|slot| slot as u64)));
        let memory = Self { words: Box::default(), slots, mask };
        memory.set_producer(producer);
        memory.set_consumer(consumer);
        memory
    }

    fn ring(&self) -> RingMemory {
        RingMemory {
            producer: NonNull::new(self.word(0)).expect("not null"),
            consumer: NonNull::new(self.word(1)).expect("not null"),
            slots: NonNull::new(self.slots.get().cast()).expect("not null"),
            log2_slot: SLOT,
            mask: self.mask,
        }
    }

    fn word(&self, which: usize) -> *mut u32 {
        assert!(which < 2);
        // SAFETY: there are two words.
        unsafe { self.words.get().cast::<u32>().add(which) }
    }

    fn set(&self, which: usize, value: u32) {
        // SAFETY: this is the only thread, and it accesses the words through the barriers only.
        unsafe { publish_own_index(self.word(which), value) };
    }

    fn get(&self, which: usize) -> u32 {
        // SAFETY: this is the only thread, and it accesses the words through the barriers only.
        unsafe { read_peer_index(self.word(which)) }
    }

    fn set_producer(&self, count: u32) {
        self.set(0, count & self.mask);
    }

    fn set_consumer(&self, count: u32) {
        self.set(1, count & self.mask);
    }

    fn producer(&self) -> u32 {
        self.get(0)
    }

    fn consumer(&self) -> u32 {
        self.get(1)
    }

    /// The number of the slot that a pointer points to.
    fn number(&self, slot: NonNull<u8>) -> u32 {
        let offset = slot.as_ptr().addr() - self.slots.get().addr();
        assert!(offset.is_multiple_of(8) && offset / 8 <= self.mask as usize, "outside the ring");
        (offset / 8) as u32
    }
}

/// A producer's state in counts: `known <= consumed <= published <= next <= known + mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Filling {
    mask: u32,
    /// The consumer's count as the producer read it last.
    known: u32,
    /// The consumer's count.
    consumed: u32,
    published: u32,
    next: u32,
}

impl Filling {
    fn all() -> impl Iterator<Item = Self> {
        MASKS.into_iter().flat_map(|mask| {
            (0..=mask).flat_map(move |known| {
                (known..=known + mask).flat_map(move |next| {
                    (known..=next).flat_map(move |published| {
                        (known..=published).map(move |consumed| Self {
                            mask,
                            known,
                            consumed,
                            published,
                            next,
                        })
                    })
                })
            })
        })
    }

    /// A ring and a producer in this state.
    fn build(self) -> (Memory, Producer) {
        let memory = Memory::new(self.mask, self.known, self.known);
        // SAFETY: every caller keeps the memory as long as the producer, which is the only one.
        let mut producer = unsafe { Producer::new(memory.ring()) };
        fill(&mut producer, self.published - self.known);
        producer.publish();
        memory.set_consumer(self.consumed);
        fill(&mut producer, self.next - self.published);
        (memory, producer)
    }

    /// Asserts that a producer is in this state, except for `known`, which affects performance
    /// only.
    fn check(self, memory: &Memory, producer: &mut Producer, what: &str) {
        let Self { mask, consumed, published, next, .. } = self;
        assert_eq!(memory.producer(), published & mask, "{what}: producer index of {self:?}");
        assert_eq!(memory.consumer(), consumed & mask, "{what}: consumer index of {self:?}");
        assert_eq!(producer.capacity(), mask);
        assert_eq!(producer.pending(), next - published, "{what}: pending of {self:?}");
        assert_eq!(producer.outstanding(), published - consumed, "{what}: outstanding of {self:?}");
        let last = memory.number(producer.last_published());
        assert_eq!(last, published.wrapping_sub(1) & mask, "{what}: last published of {self:?}");
        for count in next..consumed + mask {
            let slot = producer.next_slot().map(|slot| memory.number(slot));
            assert_eq!(slot, Some(count & mask), "{what}: slot {count} after {self:?}");
            // SAFETY: this test is the other side of the ring, and it follows no addresses in
            // slots.
            unsafe { producer.advance() };
        }
        assert!(producer.next_slot().is_none(), "{what}: full after {self:?}");
    }
}

fn fill(producer: &mut Producer, count: u32) {
    for _ in 0..count {
        // SAFETY: this test is the other side of the ring, and it follows no addresses in slots.
        unsafe { producer.cached_free_slot().expect("room as far as is known").fill() };
    }
}

#[test]
fn every_producer_state_matches_the_model() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        state.check(&memory, &mut producer, "built");
    }
}

#[test]
fn cached_free_slot_reads_no_shared_index() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        let expected = (state.next - state.known < state.mask).then_some(state.next & state.mask);
        let slot = producer.cached_free_slot().map(|slot| memory.number(slot.start()));
        assert_eq!(slot, expected, "{state:?}");
        state.check(&memory, &mut producer, "a known slot that is not filled");
        if expected.is_some() {
            let (memory, mut producer) = state.build();
            // SAFETY: this test is the other side of the ring, and it follows no addresses in
            // slots.
            unsafe { producer.cached_free_slot().expect("known").fill() };
            let after = Filling { next: state.next + 1, ..state };
            after.check(&memory, &mut producer, "a known slot that is filled");
        }
    }
}

#[test]
fn full_is_decided_by_the_masked_peer_index() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        // A kernel increments its index without masking it.
        memory.set(1, state.consumed + 5 * (state.mask + 1));
        assert_eq!(producer.outstanding(), state.published - state.consumed, "{state:?}");
        let expected = (state.next - state.consumed < state.mask).then_some(state.next & state.mask);
        assert_eq!(producer.next_slot().map(|slot| memory.number(slot)), expected, "{state:?}");
        // The slot stays the next one until `advance`.
        assert_eq!(producer.next_slot().map(|slot| memory.number(slot)), expected, "{state:?}");
    }
}

#[test]
fn publish_of_all_pending_slots_can_be_taken_back() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        let batch = producer.publish();
        assert_eq!(batch.count(), state.next - state.published);
        let shown = Filling { published: state.next, ..state };
        shown.check(&memory, &mut producer, "publish");

        let (memory, mut producer) = state.build();
        let batch = producer.publish();
        // SAFETY: this test is the other side of the ring, and it follows no addresses in slots.
        unsafe { producer.take_back(batch) };
        let back = Filling { next: state.published, ..state };
        back.check(&memory, &mut producer, "take_back");
    }
}

#[test]
fn publish_next_of_one_slot_can_be_taken_back() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        let count = u32::from(state.next > state.published);
        assert_eq!(producer.publish_next().count(), count);
        let shown = Filling { published: state.published + count, ..state };
        shown.check(&memory, &mut producer, "publish_next");

        let (memory, mut producer) = state.build();
        let batch = producer.publish_next();
        // SAFETY: this test is the other side of the ring, and it follows no addresses in slots.
        unsafe { producer.take_back(batch) };
        let back = Filling { next: state.published, ..state };
        back.check(&memory, &mut producer, "take_back of one");
    }
}

#[test]
fn abort_discards_exactly_the_pending_slots() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        producer.abort();
        let after = Filling { next: state.published, ..state };
        after.check(&memory, &mut producer, "abort");
    }
}

#[test]
fn abort_to_keeps_pending_slots_before_the_position() {
    for state in Filling::all() {
        for kept in state.published..=state.next {
            let (memory, mut producer) = Filling { next: kept, ..state }.build();
            let position = producer.position();
            fill(&mut producer, state.next - kept);
            assert_eq!(producer.pending_before(position), kept - state.published);
            producer.abort_to(position);
            let after = Filling { next: kept, ..state };
            after.check(&memory, &mut producer, "abort_to");
        }
    }
}

#[test]
fn abort_to_a_published_position_discards_all_pending_slots() {
    for state in Filling::all() {
        for position_at in state.known..state.published {
            let memory = Memory::new(state.mask, state.known, state.known);
            // SAFETY: the memory outlives the producer, which is the only one.
            let mut producer = unsafe { Producer::new(memory.ring()) };
            fill(&mut producer, position_at - state.known);
            let position = producer.position();
            fill(&mut producer, state.published - position_at);
            producer.publish();
            memory.set_consumer(state.consumed);
            fill(&mut producer, state.next - state.published);
            producer.abort_to(position);
            let after = Filling { next: state.published, ..state };
            after.check(&memory, &mut producer, "abort_to a published position");
        }
    }
}

#[test]
fn closed_ring_is_full() {
    for state in Filling::all() {
        let (memory, mut producer) = state.build();
        let before = memory.producer();
        // SAFETY: this test is the other side of the ring, and it follows no addresses in slots.
        unsafe { producer.close() };
        assert_eq!(producer.pending(), 0, "{state:?}");
        assert!(producer.cached_free_slot().is_none(), "{state:?}");
        assert!(producer.next_slot().is_none(), "{state:?}");
        assert_eq!(memory.producer(), before, "close stores no index");
    }
}

#[test]
fn resync_starts_from_the_shared_indices() {
    for state in Filling::all() {
        for back in 0..=state.mask {
            let (memory, mut producer) = state.build();
            let (consumed, published) = (state.consumed, state.consumed + back);
            memory.set(0, published + 3 * (state.mask + 1));
            producer.resync();
            // Publishing starts at the shared index.
            memory.set_producer(published);
            let after = Filling { mask: state.mask, known: consumed, consumed, published, next: published };
            after.check(&memory, &mut producer, "resync");
        }
    }
}

#[test]
fn slots_iterates_in_ring_order() {
    for mask in MASKS {
        let memory = Memory::new(mask, 0, 0);
        assert_eq!(memory.ring().bytes(), u64::from(mask + 1) << SLOT);
        // SAFETY: the memory outlives the producer, which is the only one.
        let producer = unsafe { Producer::new(memory.ring()) };
        let numbers: Vec<_> = producer.slots().map(|slot| memory.number(slot)).collect();
        assert_eq!(numbers, (0..=mask).collect::<Vec<_>>());
    }
}

/// A consumer's state in counts: `released <= next <= known <= filled <= released + mask`.
#[derive(Clone, Copy, Debug)]
struct Taking {
    mask: u32,
    released: u32,
    next: u32,
    /// The producer's count as the consumer read it last.
    known: u32,
    /// The producer's count.
    filled: u32,
}

impl Taking {
    fn all() -> impl Iterator<Item = Self> {
        MASKS.into_iter().flat_map(|mask| {
            (0..=mask).flat_map(move |released| {
                (released..=released + mask).flat_map(move |filled| {
                    (released..=filled).flat_map(move |known| {
                        // The index is read only if no known entry is left.
                        let least = if known == released { known } else { released + 1 };
                        (least..=known).map(move |next| Self { mask, released, next, known, filled })
                    })
                })
            })
        })
    }

    /// A ring and a consumer in this state.
    fn build(self) -> (Memory, Consumer) {
        let memory = Memory::new(self.mask, self.known, self.released);
        // SAFETY: every caller keeps the memory as long as the consumer, which is the only one.
        let mut consumer = unsafe { Consumer::new(memory.ring()) };
        for _ in self.released..self.next {
            let _ = consumer.take().expect("filled");
        }
        memory.set_producer(self.filled);
        (memory, consumer)
    }

    /// Asserts that a consumer is in this state, except for `known`.
    fn check(self, memory: &Memory, consumer: &mut Consumer, what: &str) {
        let Self { mask, released, next, filled, .. } = self;
        assert_eq!(memory.consumer(), released & mask, "{what}: consumer index of {self:?}");
        assert_eq!(consumer.capacity(), mask);
        for count in next..filled {
            let slot = consumer.take().map(|slot| memory.number(slot));
            assert_eq!(slot, Some(count & mask), "{what}: slot {count} after {self:?}");
        }
        assert!(consumer.take().is_none(), "{what}: empty after {self:?}");
        assert_eq!(memory.consumer(), released & mask, "{what}: take stores no index");
    }
}

#[test]
fn every_consumer_state_matches_the_model() {
    for state in Taking::all() {
        let (memory, mut consumer) = state.build();
        state.check(&memory, &mut consumer, "built");
        consumer.release();
        assert_eq!(memory.consumer(), state.filled & state.mask, "all taken, then released");
    }
}

#[test]
fn release_frees_exactly_the_taken_slots() {
    for state in Taking::all() {
        let (memory, mut consumer) = state.build();
        consumer.release();
        let after = Taking { released: state.next, ..state };
        after.check(&memory, &mut consumer, "release");
    }
}

#[test]
fn take_into_fills_every_length_of_slice_in_order() {
    for state in Taking::all() {
        for len in 0..=state.mask as usize + 2 {
            let (memory, mut consumer) = state.build();
            let mut into = vec![u32::MAX; len];
            let taken = consumer.take_into(&mut into, |slot| memory.number(slot));
            let expected: Vec<_> =
                (state.next..state.filled).take(len).map(|count| count & state.mask).collect();
            assert_eq!(&into[..taken], expected, "{state:?} into {len}");
            assert!(into[taken..].iter().all(|rest| *rest == u32::MAX), "{state:?} into {len}");
            // The call also releases slots taken earlier, unless it took none.
            let next = state.next + taken as u32;
            let released = if taken == 0 { state.released } else { next };
            let after = Taking { released, next, ..state };
            after.check(&memory, &mut consumer, "take_into");
        }
    }
}

#[test]
fn consumer_masks_the_peer_index() {
    for state in Taking::all() {
        for take_by_value in [false, true] {
            let (memory, mut consumer) = state.build();
            memory.set(0, state.filled + 9 * (state.mask + 1));
            let mut count = 0;
            if take_by_value {
                let mut into = [0; 10];
                count = consumer.take_into(&mut into, |slot| memory.number(slot)) as u32;
            } else {
                while consumer.take().is_some() {
                    count += 1;
                    assert!(count <= state.mask, "a ring holds no more than its capacity");
                }
            }
            assert_eq!(count, state.filled - state.next, "{state:?}");
        }
    }
}

#[test]
fn consumer_resyncs_to_the_shared_index() {
    for state in Taking::all() {
        for moved in state.released..=state.filled {
            let (memory, mut consumer) = state.build();
            memory.set(1, moved + 4 * (state.mask + 1));
            consumer.resync();
            memory.set_consumer(moved);
            let after = Taking { released: moved, next: moved, known: moved, ..state };
            after.check(&memory, &mut consumer, "resync");
        }
    }
}
