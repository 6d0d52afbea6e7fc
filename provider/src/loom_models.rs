//! Models of both sides of a ring, the free list of a pool, and the barrier of device memory, for
//! `cargo xtask loom`.
//!
//! The index words are loom's atomics. Each slot is a loom cell, in which loom detects unordered
//! accesses.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::barrier::{before_peer_is_checked, issued};
use crate::dm::DeviceMemory;
use crate::elements::{ElementConsumer, ElementMemory, ElementProducer, Published, VALID, take_back};
use crate::free_list::FreeList;
use crate::mapping::{Mapping, Protection};
use crate::ring::{Consumer, Producer, RingMemory};

/// The number of slots. One slot always stays empty.
const SLOTS: usize = 4;

#[repr(align(128))]
struct Slot(UnsafeCell<u64>);

struct Memory {
    producer: AtomicU32,
    consumer: AtomicU32,
    slots: [Slot; SLOTS],
}

// SAFETY: the models order all accesses to the slots by the index words; loom checks it.
unsafe impl Sync for Memory {}
// SAFETY: the memory belongs to no thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Arc<Self> {
        let slots = std::array::from_fn(|_| Slot(UnsafeCell::new(0)));
        Arc::new(Self { producer: AtomicU32::new(0), consumer: AtomicU32::new(0), slots })
    }

    fn ring(&self) -> RingMemory {
        RingMemory {
            producer: NonNull::from(&self.producer).cast(),
            consumer: NonNull::from(&self.consumer).cast(),
            slots: NonNull::from(&self.slots).cast(),
            log2_slot: size_of::<Slot>().trailing_zeros(),
            mask: SLOTS as u32 - 1,
        }
    }

    fn producer(&self) -> Producer {
        // SAFETY: the models keep the memory, and have one producer at a time.
        unsafe { Producer::new(self.ring()) }
    }

    fn consumer(&self) -> Consumer {
        // SAFETY: the models keep the memory, and have one consumer at a time.
        unsafe { Consumer::new(self.ring()) }
    }
}

fn write(slot: NonNull<u8>, value: u64) {
    // SAFETY: a slot of the memory. loom checks that this side owns it.
    unsafe { slot.cast::<Slot>().as_ref().0.with_mut(|at| *at = value) };
}

fn read(slot: NonNull<u8>) -> u64 {
    // SAFETY: a slot of the memory. loom checks that this side owns it.
    unsafe { slot.cast::<Slot>().as_ref().0.with(|at| *at) }
}

/// Fills free slots with consecutive values up to `last`.
fn fill(producer: &mut Producer, next: &mut u64, last: u64) {
    while *next <= last
        && let Some(slot) = producer.next_slot()
    {
        write(slot, *next);
        // SAFETY: the slot was written.
        unsafe { producer.advance() };
        *next += 1;
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(run);
}

#[test]
fn publish_concurrent_with_take() {
    model(|| {
        let memory = Memory::new();
        let shared = Arc::clone(&memory);
        let peer = thread::spawn(move || {
            let (mut producer, mut next) = (shared.producer(), 1);
            // More values than the ring holds, so that slots are reused.
            for _ in 0..3 {
                fill(&mut producer, &mut next, 5);
                let _ = producer.publish();
            }
            next
        });
        let (mut consumer, mut expected) = (memory.consumer(), 1);
        for _ in 0..2 {
            while let Some(slot) = consumer.take() {
                assert_eq!(read(slot), expected);
                expected += 1;
            }
            consumer.release();
        }
        let filled = peer.join().expect("filling does not panic");
        while let Some(slot) = consumer.take() {
            assert_eq!(read(slot), expected);
            expected += 1;
        }
        assert_eq!(expected, filled, "what was published is taken, in order and once");
    });
}

#[test]
fn publish_next_concurrent_with_take_into() {
    model(|| {
        let memory = Memory::new();
        let shared = Arc::clone(&memory);
        let peer = thread::spawn(move || {
            let (mut producer, mut next) = (shared.producer(), 1);
            fill(&mut producer, &mut next, 3);
            while producer.publish_next().count() > 0 {}
        });
        let (mut consumer, mut taken) = (memory.consumer(), Vec::new());
        let mut take = || {
            let mut values = [0; 2];
            let count = consumer.take_into(&mut values, read);
            taken.extend_from_slice(&values[..count]);
        };
        take();
        take();
        peer.join().expect("filling does not panic");
        take();
        take();
        assert_eq!(taken, [1, 2, 3]);
    });
}

/// A batch is taken back before the peer reads the ring, as after a failed doorbell. Then the peer
/// reads the ring.
#[test]
fn take_back_before_the_peer_looks() {
    model(|| {
        let memory = Memory::new();
        let (mut producer, mut next) = (memory.producer(), 1);
        fill(&mut producer, &mut next, 2);
        let batch = producer.publish();
        // SAFETY: the peer has not read the ring.
        unsafe { producer.take_back(batch) };
        let shared = Arc::clone(&memory);
        let peer = thread::spawn(move || {
            let mut consumer = shared.consumer();
            let value = consumer.take().map(read);
            consumer.release();
            value
        });
        let mut next = 7;
        fill(&mut producer, &mut next, 7);
        let _ = producer.publish();
        assert!(matches!(peer.join().expect("taking does not panic"), None | Some(7)));
    });
}

/// A side moves to another thread, as from a poller to the thread that resizes the queue, and
/// continues at the shared indices.
#[test]
fn resync_after_move_to_another_thread() {
    model(|| {
        let memory = Memory::new();
        let shared = Arc::clone(&memory);
        let peer = thread::spawn(move || {
            let (mut producer, mut next) = (shared.producer(), 1);
            fill(&mut producer, &mut next, 2);
            let _ = producer.publish();
            producer.resync();
            fill(&mut producer, &mut next, 3);
            let _ = producer.publish();
        });
        let mut consumer = memory.consumer();
        let first = consumer.take().map(read);
        consumer.release();
        let shared = Arc::clone(&memory);
        let follower = thread::spawn(move || {
            consumer.resync();
            let second = consumer.take().map(read);
            consumer.release();
            drop(shared);
            second
        });
        let second = follower.join().expect("taking does not panic");
        let taken: Vec<u64> = first.into_iter().chain(second).collect();
        assert!([&[][..], &[1], &[1, 2]].contains(&taken.as_slice()), "{taken:?}");
        peer.join().expect("filling does not panic");
    });
}

#[test]
fn device_memory_is_flushed_after_the_last_write() {
    let file = rustix::fs::memfd_create("dm", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::ftruncate(&file, 4096).expect("memory");
    let over = || {
        let mapping = Mapping::new(&file, 0, 4096, Protection::ReadWrite).expect("memory");
        // SAFETY: the file is accessed through `DeviceMemory` values only.
        unsafe { DeviceMemory::new(mapping, 0, 4096) }.expect("device memory")
    };
    let (mut memory, other) = (over(), over());
    let probe = move || {
        let mut bytes = [0; 8];
        other.read(8, &mut bytes);
        bytes
    };
    let issued = issued::record(probe, || memory.write(8, b"complete"));
    assert_eq!(issued, [("flush_write_combining", *b"complete")]);
    assert!(issued::record(|| (), || memory.write(8, b"")).is_empty());
}

/// The free list of a pool and what its slots contain.
struct Pool {
    free: FreeList,
    slots: [UnsafeCell<u64>; 2],
}

// SAFETY: the models access a slot only while they hold it; loom checks it.
unsafe impl Sync for Pool {}
// SAFETY: the memory belongs to no thread.
unsafe impl Send for Pool {}

impl Pool {
    fn new() -> Arc<Self> {
        Arc::new(Self { free: FreeList::new(2), slots: [UnsafeCell::new(0), UnsafeCell::new(0)] })
    }

    /// Takes a slot and changes it.
    fn use_one(&self) -> Option<u32> {
        let slot = self.free.take()?;
        // SAFETY: the slot belongs to this thread until it is put back; loom checks it.
        self.slots[slot as usize].with_mut(|contents| unsafe { *contents += 1 });
        Some(slot)
    }
}

#[test]
fn free_list_gives_a_slot_to_one_thread_at_a_time() {
    model(|| {
        let pool = Pool::new();
        let other = Arc::clone(&pool);
        // Takes both slots and returns the first: the case that the tag is for.
        let thread = thread::spawn(move || {
            let taken = [other.use_one(), other.use_one()];
            for slot in taken.into_iter().flatten() {
                assert!(other.free.put_back(slot));
            }
        });
        if let Some(slot) = pool.use_one() {
            assert!(pool.free.put_back(slot));
        }
        thread.join().unwrap();
        let (first, second) = (pool.free.take().unwrap(), pool.free.take().unwrap());
        assert_ne!(first, second);
        assert_eq!(pool.free.take(), None);
    });
}

#[test]
fn free_list_survives_the_return_of_its_top() {
    model(|| {
        let pool = Pool::new();
        let other = Arc::clone(&pool);
        // The top is taken, the slot below is taken and kept, and the top is returned.
        let thread = thread::spawn(move || {
            let top = other.use_one();
            let below = other.use_one();
            if let Some(top) = top {
                assert!(other.free.put_back(top));
            }
            below
        });
        let mine = [pool.use_one(), pool.use_one()];
        let kept = thread.join().unwrap();
        let mut taken: Vec<u32> = mine.into_iter().chain([kept]).flatten().collect();
        taken.sort_unstable();
        taken.dedup();
        // All that are held at the end are distinct.
        let held = mine.iter().flatten().count() + kept.iter().count();
        assert_eq!(taken.len(), held);
    });
}

/// An element of a send queue.
#[repr(C)]
struct Element {
    _id: u64,
    word: AtomicU64,
    value: UnsafeCell<u64>,
}

impl Element {
    fn new() -> Self {
        Self { _id: 0, word: AtomicU64::new(0), value: UnsafeCell::new(0) }
    }
}

/// A queue of two elements, and the kernel's side of it (`siw_qp.c`).
struct Elements {
    elements: [Element; 2],
    published: Published,
    /// `sq_lock` with the kernel's index, and whether the kernel works on the queue.
    kernel: Mutex<(usize, bool)>,
    /// The sum of the values that the kernel took.
    sum: AtomicU64,
}

// SAFETY: the models order all accesses to the values by the flags; loom checks it.
unsafe impl Sync for Elements {}
// SAFETY: the memory belongs to no thread.
unsafe impl Send for Elements {}

impl Elements {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            elements: std::array::from_fn(|_| Element::new()),
            published: Published::new(0),
            kernel: Mutex::new((0, false)),
            sum: AtomicU64::new(0),
        })
    }

    fn memory(&self) -> ElementMemory {
        ElementMemory { first: NonNull::from(&self.elements).cast(), stride: size_of::<Element>(), mask: 1 }
    }

    fn push(producer: &mut ElementProducer, value: u64) -> bool {
        let Some(element) = producer.next_element() else { return false };
        // SAFETY: the element is the producer's; loom checks it.
        unsafe { element.cast::<Element>().as_ref().value.with_mut(|at| *at = value) };
        // SAFETY: the element was written.
        unsafe { producer.advance(0) };
        true
    }

    /// `siw_activate_tx` and the end of `siw_qp_sq_process`, until the queue is empty.
    fn work(&self) {
        loop {
            let mut kernel = self.kernel.lock().expect("no thread panics");
            let element = &self.elements[kernel.0 % 2];
            if element.word.load(Acquire) & u64::from(VALID) == 0 {
                kernel.1 = false;
                return;
            }
            // SAFETY: the element is the kernel's; loom checks it.
            let value = element.value.with(|at| unsafe { *at });
            self.sum.store(self.sum.load(SeqCst) + value, SeqCst);
            element.word.store(0, Release);
            fence(SeqCst);
            *kernel = (kernel.0 + 1, true);
        }
    }

    /// `siw_post_send`.
    fn doorbell(&self) {
        let is_busy = self.kernel.lock().expect("no thread panics").1;
        if !is_busy {
            self.work();
        }
    }
}

/// Whether the kernel misses an element that is published while it works on an earlier one.
fn element_is_missed(with_barrier: bool) -> bool {
    let missed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let found = std::sync::Arc::clone(&missed);
    model(move || {
        let queue = Elements::new();
        // SAFETY: the queue is kept, and has one producer.
        let mut producer = unsafe { ElementProducer::new(queue.memory()) };
        assert!(Elements::push(&mut producer, 1));
        producer.publish(&queue.published, |_| 0);
        let kernel = Arc::clone(&queue);
        let worker = thread::spawn(move || kernel.doorbell());
        assert!(Elements::push(&mut producer, 2));
        producer.publish(&queue.published, |_| 0);
        if with_barrier {
            before_peer_is_checked();
        }
        if producer.consumer_may_be_idle(1) {
            queue.doorbell();
        }
        worker.join().expect("no thread panics");
        if queue.sum.load(SeqCst) != 3 {
            missed.store(true, Relaxed);
        }
    });
    found.load(Relaxed)
}

#[test]
fn doorbell_of_elements_is_omitted_only_if_the_kernel_finds_them() {
    assert!(!element_is_missed(true));
    assert!(element_is_missed(false), "the barrier is needed");
}

/// One thread publishes two elements while another one learns that the consumer has stopped. Both are taken
/// back once, the first one before the second.
#[test]
fn elements_that_are_published_while_the_queue_fails_are_taken_back_in_order() {
    model(|| {
        let queue = Elements::new();
        let failed = Arc::new(AtomicBool::new(false));
        let flush = |queue: &Elements| {
            let _kernel = queue.kernel.lock().expect("no thread panics");
            // SAFETY: the queue is kept, no kernel runs, and the lock is held.
            unsafe {
                take_back(queue.memory(), &queue.published, |element| {
                    let element = element.cast::<Element>().as_ref();
                    let value = element.value.with(|at| *at);
                    queue.sum.store(10 * queue.sum.load(SeqCst) + value, SeqCst);
                });
            }
        };
        let (shared, learned) = (Arc::clone(&queue), Arc::clone(&failed));
        let poller = thread::spawn(move || {
            learned.store(true, loom::sync::atomic::Ordering::Relaxed);
            before_peer_is_checked();
            flush(&shared);
        });
        // SAFETY: the queue is kept, and has one producer.
        let mut producer = unsafe { ElementProducer::new(queue.memory()) };
        assert!(Elements::push(&mut producer, 1) && Elements::push(&mut producer, 2));
        producer.publish(&queue.published, |_| 0);
        before_peer_is_checked();
        if failed.load(loom::sync::atomic::Ordering::Relaxed) {
            flush(&queue);
        }
        poller.join().expect("no thread panics");
        assert_eq!(queue.sum.load(SeqCst), 12);
    });
}

/// A completion queue of one element.
struct Completions(Element);

// SAFETY: as for `Elements`.
unsafe impl Sync for Completions {}
// SAFETY: as for `Elements`.
unsafe impl Send for Completions {}

#[test]
fn completions_are_read_before_their_element_is_given_back() {
    model(|| {
        let queue = Arc::new(Completions(Element::new()));
        let shared = Arc::clone(&queue);
        let kernel = thread::spawn(move || {
            let mut posted = 0;
            for value in 1..=2 {
                if shared.0.word.load(Acquire) == 0 {
                    posted += 1;
                    // SAFETY: the element is the kernel's; loom checks it.
                    shared.0.value.with_mut(|at| unsafe { *at = value });
                    shared.0.word.store(u64::from(VALID), Release);
                }
            }
            posted
        });
        let memory =
            ElementMemory { first: NonNull::from(&queue.0).cast(), stride: size_of::<Element>(), mask: 0 };
        // SAFETY: the queue is kept, and has one consumer.
        let mut consumer = unsafe { ElementConsumer::new(memory) };
        let mut taken = 0;
        let mut take = || {
            if let Some(filled) = consumer.peek() {
                // SAFETY: the element is the consumer's; loom checks it.
                let value = unsafe { filled.element.cast::<Element>().as_ref().value.with(|at| *at) };
                taken += 1;
                assert!(value == 1 || value == 2);
                // SAFETY: `peek` returned it.
                unsafe { consumer.release(filled) };
            }
        };
        take();
        take();
        let posted = kernel.join().expect("no thread panics");
        take();
        assert_eq!(taken, posted);
    });
}
